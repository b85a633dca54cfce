"""Tables of lists: which columns there are, which are shown, and how they are sorted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from sqlalchemy import Connection

from meruit.api.listing import ListFormat
from meruit.console.query import Query
from meruit.store.database import MAX_PAGE
from meruit.store.sorting import MAX_SORTED_PAGE, ListOrder, SortedPage
from meruit.store.store import Store

T = TypeVar("T")
Read = TypeVar("Read")
COLUMNS, SORT, FORMAT = "columns", "sort", "format"
AFTER = "after"


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    key: str
    word: str
    numeric: bool = False
    minor: bool = False
    """Whether a phone leaves it out."""
    wide: bool = False
    """Whether it takes a line of its own on a phone."""
    below: bool = False
    """Whether it is a row of its own, below the others."""
    sortable: bool = False
    usual: bool = True
    """Whether it is shown unless the reader chooses otherwise."""
    hint: str = ""
    """What the word means, for those who do not know it."""


@dataclass(frozen=True, slots=True)
class Table:
    """The columns of a list, as its URL asks for them."""

    caption: str
    columns: tuple[Column, ...]
    shown: tuple[Column, ...]
    query: Query
    sort: str
    descending: bool

    @classmethod
    def of(cls, query: Query, caption: str, columns: Sequence[Column], sort: str = "") -> Self:
        """The columns that the query chooses, and its order; `sort` is the usual one, such as `-started`."""
        known = {column.key for column in columns}
        chosen = [key for key in query.get(COLUMNS).split(",") if key in known]
        shown = [one for one in columns if (one.key in chosen if chosen else one.usual)]
        # A row needs its name.
        if columns[0] not in shown:
            shown.insert(0, columns[0])
        sortable = {column.key for column in columns if column.sortable}
        asked = query.get(SORT)
        order = asked if asked.removeprefix("-") in sortable else sort
        return cls(
            caption,
            tuple(columns),
            tuple(shown),
            query,
            order.removeprefix("-"),
            order.startswith("-"),
        )

    @property
    def is_sorted(self) -> bool:
        """Whether the reader chose an order."""
        return bool(self.sort) and self.query.get(SORT).removeprefix("-") == self.sort

    @property
    def order(self) -> ListOrder | None:
        """The order that the reader chose, with the cursor of the page; None for the usual order."""
        return ListOrder(self.sort, self.descending, self.query.get(AFTER)) if self.is_sorted else None

    def limit(self, usual: int) -> int:
        """How many rows to read at once: those of a page; for a file more."""
        if self.file is None:
            return usual
        return MAX_PAGE if self.order is None else MAX_SORTED_PAGE

    def turn(self, query: Query) -> Self:
        """The same table at another page."""
        return replace(self, query=query)

    def read_all(self, read: Callable[[Self], tuple[Iterable[T], Query | None]]) -> Iterator[T]:
        """Every row of the list, read a page at a time; `read` gives the rows of a page, and the next page."""
        table: Self | None = self
        while table is not None:
            entries, following = read(table)
            yield from entries
            table = None if following is None else table.turn(following)

    def following(self, found: SortedPage[Any]) -> Query | None:
        """The page behind this one, of a list that the database sorted."""
        return None if found.next is None else self.query.turn(AFTER, found.next)

    # Any: rows of any kind, and values of any kind that have an order.
    def sort_rows(self, rows: Sequence[T], order: Mapping[str, Callable[[T], Any]]) -> list[T]:
        """The rows in the order that the reader chose; as they are where none is chosen."""
        value = order.get(self.sort)
        if value is None:
            return [*rows]
        known = [(found, row) for row in rows if (found := value(row)) is not None]
        unknown = [row for row in rows if value(row) is None]
        return [row for _, row in sorted(known, key=lambda one: one[0], reverse=self.descending)] + unknown

    def before(self, cursor: int | None) -> Query | None:
        """The page of what is older than a cursor; None where nothing is."""
        return None if cursor is None else self.query.turn("before", cursor)

    def has(self, key: str) -> bool:
        """Whether a column is shown."""
        return any(column.key == key for column in self.shown)

    def aria_sort(self, column: Column) -> str:
        """The value of aria-sort."""
        if column.key != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"

    def sort_link(self, column: Column) -> str:
        """The address of the same list sorted by a column; a second click turns the order."""
        down = column.numeric if column.key != self.sort else not self.descending
        return str(self.query.choose(SORT, f"-{column.key}" if down else column.key))

    def column_link(self, column: Column) -> str:
        """The address of the same list with a column shown or hidden."""
        wanted = {one.key for one in self.shown} ^ {column.key}
        return str(self.query.choose(COLUMNS, ",".join(one.key for one in self.columns if one.key in wanted)))

    def file_link(self, kind: str) -> str:
        """The address of the same list as a file, `csv` or `xlsx`."""
        return str(self.query.choose(FORMAT, kind))

    @property
    def file(self) -> ListFormat | None:
        """The format of the file that is asked for; None for a page."""
        asked = self.query.get(FORMAT)
        return ListFormat(asked) if asked in (ListFormat.CSV, ListFormat.XLSX) else None


def read_once(store: Store, read: Callable[[Connection, Table], Read], table: Table) -> Read:
    """Read a page in a transaction of its own: a long file must not hold one open."""
    with store.database.reading() as connection:
        return read(connection, table)
