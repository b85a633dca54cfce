"""The outbox: events in order, the cursors of consumers, and the delivery lease."""

from functools import lru_cache
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, select, update

from meruit.errors import LeaseLost
from meruit.model.events import SCHEMA_VERSION, SOURCE, Event, OutboxEvent
from meruit.model.time import from_micros, to_rfc3339
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

LEASE = "deliver"
"""The name of the delivery lease: its holder delivers, other processes only read."""

_MICROS = 1_000_000
_events, _leases = tables.events, tables.leases


class OutboxPage(msgspec.Struct, frozen=True):
    """A page of events, in order."""

    events: list[OutboxEvent]
    upto: int
    """The page holds every matching event up to this number."""
    full: bool
    """Whether more events may follow."""


def newest(connection: Connection) -> int:
    """The number of the newest event; 0 when there is none."""
    return int(connection.execute(select(tables.log_state.c.events)).scalar() or 0)


def events_after(
    connection: Connection,
    seq: int,
    *,
    tenant: str | None,
    limit: int = MAX_PAGE,
    types: frozenset[str] | None = None,
    subjects: frozenset[str] | None = None,
) -> list[OutboxEvent]:
    """List events after a cursor, oldest first, filtered by tenant, types and subjects."""
    query = select(_events).where(_events.c.seq > seq)
    if tenant is not None:
        query = query.where(_events.c.tenant == tenant)
    if types:
        query = query.where(_events.c.type.in_(sorted(types)))
    if subjects is not None:
        query = query.where(_events.c.subject.in_(sorted(subjects)))
    query = query.order_by(_events.c.seq).limit(min(limit, MAX_PAGE))
    return [outbox_event_from(row) for row in connection.execute(query)]


def page_after(
    connection: Connection,
    seq: int,
    *,
    tenant: str | None,
    limit: int = MAX_PAGE,
    types: frozenset[str] | None = None,
    subjects: frozenset[str] | None = None,
) -> OutboxPage:
    """Read a page of events, with the cursor that follows it. The cursor passes events that do not match."""
    # Read first: an event that is written meanwhile has a higher number, and is on the next page.
    last = newest(connection)
    found = events_after(connection, seq, tenant=tenant, limit=limit, types=types, subjects=subjects)
    full = len(found) >= min(limit, MAX_PAGE)
    reached = found[-1].seq if found else seq
    return OutboxPage(events=found, upto=reached if full else max(reached, last), full=full)


def cursor(connection: Connection, consumer: str) -> int:
    """The last event that a consumer has processed; 0 when there is none."""
    query = select(tables.cursors.c.seq).where(tables.cursors.c.consumer == consumer)
    return int(connection.execute(query).scalar() or 0)


_CURSORS = Rows[int]("cursor")


class Advance(msgspec.Struct, frozen=True):
    """Advance the cursor of a consumer; it never goes back."""

    consumer: str
    seq: int
    holder: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Move the cursor; raises LeaseLost."""
        check_holder(writing, self.holder)
        query = select(tables.cursors.c.seq).where(tables.cursors.c.consumer == self.consumer)
        if _CURSORS.get(writing, self.consumer) is not None or writing.read(query):
            writing.change(_ADVANCE, of_consumer=self.consumer, new_seq=self.seq)
        else:
            writing.insert(
                tables.cursors,
                consumer=self.consumer,
                seq=self.seq,
            )
        _CURSORS.put(writing, self.seq, self.consumer)


_ADVANCE = (
    update(tables.cursors)
    .where(tables.cursors.c.consumer == bindparam("of_consumer"), tables.cursors.c.seq < bindparam("new_seq"))
    .values(seq=bindparam("new_seq"))
)


class Lease(msgspec.Struct, frozen=True):
    """A lease: its holder, and when it ends unless it is renewed."""

    holder: str
    until: int
    """In microseconds since 1970."""


_LEASES = Rows[Lease]("lease")


def lease(connection: Connection, name: str = LEASE) -> Lease | None:
    """The current or last lease of this name."""
    row = connection.execute(_lease_of(name)).first()
    return None if row is None else Lease(row.holder, row.until)


class TakeLease(msgspec.Struct, frozen=True):
    """Take a lease that is free or expired, or renew one's own."""

    holder: str
    seconds: float
    name: str = LEASE

    def __call__(self, writing: WriteTransaction) -> Lease:
        """Return the lease after the attempt; another process may hold it."""
        found = _current_lease(writing, self.name)
        if found is not None and found.holder != self.holder and found.until > writing.now.micros:
            return found
        taken = Lease(self.holder, writing.now.micros + int(self.seconds * _MICROS))
        if found is None:
            writing.insert(_leases, name=self.name, **msgspec.structs.asdict(taken))
        else:
            writing.change(_TAKE, of_name=self.name, new_holder=taken.holder, new_until=taken.until)
        _LEASES.put(writing, taken, self.name)
        return taken


class ReleaseLease(msgspec.Struct, frozen=True):
    """Release a lease, so that the next process need not wait for its end."""

    holder: str
    name: str = LEASE

    def __call__(self, writing: WriteTransaction) -> None:
        """End the lease now; has no effect when another process holds it."""
        found = _current_lease(writing, self.name)
        if found is not None and found.holder == self.holder:
            ended = Lease(self.holder, writing.now.micros)
            writing.change(_TAKE, of_name=self.name, new_holder=ended.holder, new_until=ended.until)
            _LEASES.put(writing, ended, self.name)


_TAKE = (
    update(_leases)
    .where(_leases.c.name == bindparam("of_name"))
    .values(holder=bindparam("new_holder"), until=bindparam("new_until"))
)


def _lease_of(name: str) -> Select[Any]:
    return select(_leases).where(_leases.c.name == name)


def _current_lease(writing: WriteTransaction, name: str) -> Lease | None:
    known = _LEASES.get(writing, name)
    if known is None:
        rows = writing.read(_lease_of(name))
        known = Lease(rows[0].holder, rows[0].until) if rows else None
    return known


def check_holder(writing: WriteTransaction, holder: str) -> None:
    """Check that this process holds the delivery lease; raises LeaseLost."""
    # A holder whose lease expired may still write until another process takes the lease.
    found = _current_lease(writing, LEASE)
    if found is None or found.holder != holder:
        raise LeaseLost("another process holds the delivery lease now")


# Any: rows of SQLAlchemy have no type.
def outbox_event_from(row: Any) -> OutboxEvent:
    """Convert a row with the columns of the outbox, and maybe others, to an event."""
    return outbox_event_of(
        row.seq, row.tenant, row.event_id, row.type, row.subject, row.idempotency_key, row.at, row.data
    )


def outbox_event_of(  # noqa: PLR0913 - one for each column
    seq: int,
    tenant: str,
    event_id: str,
    kind: str,
    subject: str,
    idempotency_key: str,
    at: int,
    data: bytes,
) -> OutboxEvent:
    """Build an event from the columns of its row, in the order of the table."""
    return OutboxEvent(
        seq,
        subject,
        Event(
            event_id=event_id,
            event_type=kind,
            schema_version=SCHEMA_VERSION,
            idempotency_key=idempotency_key,
            timestamp=_timestamp(at),
            source=SOURCE,
            tenant_id=tenant,
            data=msgspec.json.decode(data),
        ),
    )


# Events of one transaction have one time.
@lru_cache(maxsize=64)
def _timestamp(at: int) -> str:
    return to_rfc3339(from_micros(at))
