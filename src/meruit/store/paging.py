"""Pages of a table under several filters at once, newest first. A page examines a bounded number of rows.

Each filter has an index of its own, with the tenant before it and `seq` behind it. Of several filters, the one whose
index reaches furthest back within MAX_EXAMINED rows gives the rows, and the others are tested on them. So the cost of a
page is bounded for any filter and however long the list is. It may hold fewer entries than asked for, or none, and
still have a next page.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Table, select

from meruit.model.time import to_micros
from meruit.store.database import MAX_PAGE

MAX_EXAMINED = 5_000
"""Most rows that are examined at once."""
MAX_ROUNDS = 4
"""How often a page that is still empty examines more rows."""
CLOCK_SLACK_MICROS = 3_600 * 1_000_000
"""How far the clock of the records may ever have been set back: a later row is dated at most this much earlier."""

T = TypeVar("T")
U = TypeVar("U")
_Conditions = tuple[ColumnElement[bool], ...]


class ListPage(NamedTuple, Generic[T]):
    """Some entries of a list, newest first."""

    entries: list[T]
    next: int | None
    """Pass it as `before` to get the next page; None on the last."""

    def convert(self, make: Callable[[T], U]) -> "ListPage[U]":
        """The same page with each entry converted."""
        return ListPage([make(one) for one in self.entries], self.next)


class ListFilter(msgspec.Struct, frozen=True):
    """The filters of a list; all of them must hold."""

    indexed: Mapping[str, str]
    """Columns and their values; each column has an index between the tenant and `seq`."""
    dated: str
    """The column that `since` and `until` are about; it grows with `seq`, as far as the clock was right."""
    since: datetime | None = None
    """Inclusive."""
    until: datetime | None = None
    """Exclusive."""
    unindexed: Mapping[str, str] = {}
    """Columns and their values; no index serves them alone."""


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def read_page(
    connection: Connection,
    table: Table,
    tenant: str,
    wanted: ListFilter,
    *,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[Row[Any]]:
    """Read the newest rows that fit, of those older than `before`; the table has the columns `tenant` and `seq`."""
    limit = min(limit, MAX_PAGE)
    inside: _Conditions = (table.c.tenant == tenant, *_span(connection, table, tenant, wanted))
    if before is not None:
        inside = (*inside, table.c.seq < before)
    candidates: list[_Conditions] = [(table.c[name] == value,) for name, value in wanted.indexed.items()]
    tested = bool(wanted.unindexed) or wanted.since is not None or wanted.until is not None
    if len(candidates) <= 1 and not tested:
        # Every row that the index gives fits.
        matching = select(table).where(*inside, *(one for several in candidates for one in several))
        rows = [*connection.execute(matching.order_by(table.c.seq.desc()).limit(limit))]
        return ListPage(rows, rows[-1].seq if len(rows) == limit else None)
    found: list[int] = []
    reached: int | None = None
    for _ in range(MAX_ROUNDS):
        driver, reached = _furthest(connection, table, inside, candidates or [()])
        found = _find_fitting(connection, table, (*inside, *driver), wanted, limit)
        if found or reached is None:
            break
        inside = (*inside, table.c.seq < reached)
    query = select(table).where(table.c.tenant == tenant, table.c.seq.in_(found)).order_by(table.c.seq.desc())
    rows = [*connection.execute(query)] if found else []
    return ListPage(rows, found[-1] if len(found) == limit else reached)


def merge_pages(pages: Sequence[ListPage[T]], limit: int, seq: Callable[[T], int]) -> ListPage[T]:
    """One page of several lists, as far back as all of them were read; each entry has a place, its `seq`."""
    end = max((page.next for page in pages if page.next is not None), default=None)
    every = sorted((one for page in pages for one in page.entries), key=seq, reverse=True)
    found = [one for one in every if end is None or seq(one) >= end]
    if len(found) <= limit:
        return ListPage(found, end)
    return ListPage(found[:limit], seq(found[limit - 1]))


def fill_page(read: Callable[[int | None, int], ListPage[T]], before: int | None, limit: int) -> ListPage[T]:
    """Read on until a page is full or the list ends; `read` takes `before` and a limit."""
    page = read(before, limit)
    while page.next is not None and len(page.entries) < limit:
        more = read(page.next, limit - len(page.entries))
        page = ListPage([*page.entries, *more.entries], more.next)
    return page


def iterate_pages(read: Callable[[int | None, int], ListPage[T]], before: int | None = None) -> Iterator[list[T]]:
    """Iterate over a whole list, a page at a time."""
    while True:
        page = read(before, MAX_PAGE)
        if page.entries:
            yield page.entries
        if page.next is None:
            return
        before = page.next


def _find_fitting(
    connection: Connection, table: Table, inside: _Conditions, wanted: ListFilter, limit: int
) -> list[int]:
    """The `seq` of each row that fits, of the first MAX_EXAMINED."""
    names = {"seq", wanted.dated, *wanted.indexed, *wanted.unindexed}
    rows = select(*(table.c[name] for name in sorted(names))).where(*inside).order_by(table.c.seq.desc())
    # The limit keeps the planner from using another index than that of the condition chosen.
    examined = rows.limit(MAX_EXAMINED).subquery()
    fitting = select(examined.c.seq).where(*_fits(examined.c, wanted)).order_by(examined.c.seq.desc())
    return [*connection.execute(fitting.limit(limit)).scalars()]


def _fits(columns: Any, wanted: ListFilter) -> Iterator[ColumnElement[bool]]:
    for name, value in {**wanted.indexed, **wanted.unindexed}.items():
        yield columns[name] == value
    if wanted.since is not None:
        yield columns[wanted.dated] >= to_micros(wanted.since)
    if wanted.until is not None:
        yield columns[wanted.dated] < to_micros(wanted.until)


def _furthest(
    connection: Connection, table: Table, inside: _Conditions, candidates: list[_Conditions]
) -> tuple[_Conditions, int | None]:
    """The candidate whose first MAX_EXAMINED rows reach furthest back, and where they end; None: they are all rows."""
    found: list[tuple[int, _Conditions]] = []
    for candidate in candidates:
        query = select(table.c.seq).where(*inside, *candidate).order_by(table.c.seq.desc())
        end = connection.execute(query.offset(MAX_EXAMINED - 1).limit(1)).scalar()
        if end is None:
            return candidate, None
        found.append((int(end), candidate))
    end, best = min(found, key=lambda one: one[0])
    return best, end


def _span(connection: Connection, table: Table, tenant: str, wanted: ListFilter) -> Iterator[ColumnElement[bool]]:
    """Bounds of `seq` outside which no row has a fitting time."""
    if wanted.since is not None:
        early = to_micros(wanted.since) - CLOCK_SLACK_MICROS
        yield table.c.seq > _last_before(connection, table, tenant, wanted.dated, early)
    if wanted.until is not None:
        late = to_micros(wanted.until) + CLOCK_SLACK_MICROS
        yield table.c.seq <= _last_before(connection, table, tenant, wanted.dated, late)


def _last_before(connection: Connection, table: Table, tenant: str, dated: str, micros: int) -> int:
    """A `seq` such that the last row up to it is dated before the time, and the next row is not; by bisection."""
    rows = select(table.c.seq, table.c[dated]).where(table.c.tenant == tenant).order_by(table.c.seq.desc()).limit(1)
    newest = connection.execute(rows).first()
    low, high = 0, 0 if newest is None else int(newest.seq)
    while low < high:
        middle = (low + high + 1) // 2
        row = connection.execute(rows.where(table.c.seq <= middle)).first()
        if row is None or row[1] < micros:
            low = middle
        else:
            high = int(row.seq) - 1
    return low
