"""Pages of a list in the order that a reader chose: by the database, over the whole list.

A page begins behind the value and the tie-breaker of the last row before it, not at a number of rows. So a row that is
added or removed moves no other row to another page. Rows without a value come last, in both directions.
"""

import heapq
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, UnaryExpression, tuple_
from sqlalchemy.sql.operators import custom_op

from meruit.model.decoding import decode_json

MAX_SORTED_PAGE = 2_000
"""Most rows of one page: a file reads long ones, because some orders sort all rows for each page."""
FETCH_ROWS = 500
"""Rows that are fetched at a time."""
LARGEST = 2**63
"""Integers of a cursor are smaller: databases hold no larger ones."""
T = TypeVar("T")
U = TypeVar("U")


class SortKey(msgspec.Struct, frozen=True):
    """What a list can be sorted by. A `kind` is `int`, `float` or `str`."""

    # Any: a column or an expression of any type.
    value: ColumnElement[Any]
    kind: type
    tie: ColumnElement[Any]
    """Distinguishes rows of equal value; unique and not null."""
    tie_kind: type = int
    nullable: bool = False
    grouped: "IndexGroups | None" = None
    """Where the index has another column before the value: each of its values is read in order, and merged."""

    def without_index(self) -> "SortKey":
        """The same order for a filter that leaves few rows: by sorting them, not by walking all in order."""
        return msgspec.structs.replace(self, value=without_index(self.value), grouped=None)


def without_index(value: ColumnElement[Any]) -> ColumnElement[Any]:
    """The same value, for which SQLite seeks no index; Postgres knows how many rows there are."""
    # SQLite uses no index for a value behind a plus sign.
    return UnaryExpression(value, operator=custom_op("+"))


class IndexGroups(msgspec.Struct, frozen=True):
    """A column with few values that stands before the value in its index."""

    column: ColumnElement[Any]
    values: tuple[str, ...]


class ListOrder(msgspec.Struct, frozen=True):
    """The order of a list: the name of a SortKey, the direction, and the cursor behind which a page begins."""

    by: str
    descending: bool = False
    after: str = ""
    """The `next` of the page before; one that is not valid begins at the first page."""


class SortedPage(NamedTuple, Generic[T]):
    """Some entries of a sorted list."""

    entries: list[T]
    next: str | None
    """Pass it as `after` of the order to get the next page; None on the last."""

    def convert(self, make: Callable[[T], U]) -> "SortedPage[U]":
        """The same page with each entry converted."""
        return SortedPage([make(one) for one in self.entries], self.next)


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def read_sorted(
    connection: Connection, query: Select[Any], keys: Mapping[str, SortKey], order: ListOrder, limit: int
) -> SortedPage[Row[Any]]:
    """Read one page of the rows of a query, which has no order yet.

    The places are sorted first and their rows read then: a sort that carries whole rows takes twice as long.
    """
    limit, key = min(limit, MAX_SORTED_PAGE), keys[order.by]
    places = take_page(
        iterate_sorted(connection, query.with_only_columns(key.tie), keys, order, limit + 1),
        limit,
    )
    if not places.entries:
        return SortedPage([], None)
    ties = [place[-1] for place in places.entries]
    rows = connection.execute(query.where(key.tie.in_(ties)).add_columns(key.tie.label("sort_tie")))
    by_tie = {row[-1]: row for row in rows}
    # A row that was removed between the two queries is left out.
    return SortedPage([by_tie[tie] for tie in ties if tie in by_tie], places.next)


def iterate_sorted(
    connection: Connection,
    query: Select[Any],
    keys: Mapping[str, SortKey],
    order: ListOrder,
    limit: int | None = None,
) -> Generator[tuple[Row[Any], str], None, None]:
    """Stream the rows of a query in order, each with the cursor behind it."""
    key = keys[order.by]
    if key.grouped is not None:
        yield from _merge_groups(connection, query, key, order, limit)
        return
    left, place = limit, _read_cursor(order.after, key)
    for part in _parts(query, key, place, descending=order.descending):
        # Closed also when the caller has seen enough: the cursor is the database's.
        options = {"yield_per": min(FETCH_ROWS, limit or FETCH_ROWS)}
        limited = part if left is None else part.limit(left)
        with closing(connection.execute(limited, execution_options=options)) as rows:
            for row in rows:
                left = None if left is None else left - 1
                yield row, _write_cursor(row[-2], row[-1])
        if left == 0:
            return


def _merge_groups(
    connection: Connection, query: Select[Any], key: SortKey, order: ListOrder, limit: int | None
) -> Iterator[tuple[Row[Any], str]]:
    """Stream the rows of each group of an index in order, merged: of a few short reads instead of one long sort."""
    if key.grouped is None or key.nullable:
        raise ValueError("only values that are never null are read in groups")
    alone = {order.by: msgspec.structs.replace(key, grouped=None)}
    with ExitStack() as closed:
        groups = [
            closed.enter_context(
                closing(iterate_sorted(connection, query.where(key.grouped.column == value), alone, order, limit))
            )
            for value in key.grouped.values
        ]
        merged = heapq.merge(*groups, key=_place_of, reverse=order.descending)
        yield from merged if limit is None else islice(merged, limit)


def _place_of(one: tuple[Row[Any], str]) -> tuple[Any, Any]:
    row = one[0]
    return row.sort_value, row.sort_tie


def take_page(rows: Iterator[tuple[T, str]], limit: int) -> SortedPage[T]:
    """The first entries of a stream as a page; `next` is None where the stream has no more."""
    found = [*islice(rows, limit + 1)]
    return SortedPage([row for row, _ in found[:limit]], found[limit - 1][1] if len(found) > limit else None)


class _Cursor(NamedTuple):
    value: int | float | str | None
    tie: int | str


def _parts(query: Select[Any], key: SortKey, place: _Cursor | None, *, descending: bool) -> Iterator[Select[Any]]:
    """The rows with a value and then those without, as two queries: an index serves each."""
    query = query.add_columns(key.value.label("sort_value"), key.tie.label("sort_tie"))
    tie = key.tie.desc() if descending else key.tie
    if place is None or place.value is not None:
        known = query.where(key.value.is_not(None)) if key.nullable else query
        if place is not None:
            row, behind = tuple_(key.value, key.tie), tuple_(place.value, place.tie)
            known = known.where(row < behind if descending else row > behind)
        yield known.order_by(key.value.desc() if descending else key.value, tie)
    if key.nullable:
        unknown = query.where(key.value.is_(None))
        if place is not None and place.value is None:
            unknown = unknown.where(key.tie < place.tie if descending else key.tie > place.tie)
        yield unknown.order_by(tie)


def _write_cursor(value: object, tie: object) -> str:
    return urlsafe_b64encode(msgspec.json.encode([value, tie])).decode().rstrip("=")


def _read_cursor(text: str, key: SortKey) -> _Cursor | None:
    """The place that a cursor names; None where it is empty or does not fit the order."""
    try:
        content = urlsafe_b64decode(text.encode("ascii") + b"==")
        value, tie = decode_json(content, tuple[int | float | str | None, int | str])
    except (ValueError, msgspec.DecodeError):
        return None
    if not (_is_storable(value) and _is_storable(tie)):
        return None
    if key.kind is float and type(value) is int:
        # A whole number may be written without a point.
        value = float(value)
    fits = type(tie) is key.tie_kind and (type(value) is key.kind or (value is None and key.nullable))
    return _Cursor(value, tie) if fits else None


def _is_storable(value: int | float | str | None) -> bool:
    """Whether a database takes the value."""
    if isinstance(value, int):
        return abs(value) < LARGEST
    return not (isinstance(value, str) and "\0" in value)
