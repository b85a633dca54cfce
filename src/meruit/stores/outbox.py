"""Who reads the outbox and how far: cursors, leases, webhooks, and what waits to be delivered to them."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, exists, func, or_, select, update

from meruit.model.errors import MeruitError, nearest
from meruit.model.events import SCHEMA_VERSION, SOURCE, Event, EventType, Numbered
from meruit.model.outcome import from_micros, written
from meruit.model.record import Record
from meruit.stores import tables
from meruit.stores.database import NotFound
from meruit.stores.outcomes import MAX_PAGE
from meruit.stores.writing import Writing

LEASE = "deliver"
"""Whoever holds it delivers; everybody else only reads."""
MAX_WEBHOOKS = 100
"""Webhooks of one tenant."""
MAX_ERROR_CHARS = 300
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with
BEHIND = 1 << 62
"""The next attempt of an event that waits for an earlier one of its subject: never, until that one is settled."""

_MICROS = 1_000_000
_events, _webhooks, _deliveries, _leases = tables.events, tables.webhooks, tables.deliveries, tables.leases


class LeaseLost(MeruitError):
    """Somebody else delivers by now; what was not settled is theirs to deliver again."""


class Page(NamedTuple):
    """Events in their order."""

    events: list[Numbered]
    upto: int
    """All that was asked for up to this place is on the page."""
    full: bool
    """Whether there may be more."""


def newest(connection: Connection) -> int:
    """The place of the newest event, 0 before the first."""
    return int(connection.execute(select(tables.log_state.c.events)).scalar() or 0)


def events_after(
    connection: Connection, seq: int, *, tenant: str | None, limit: int = MAX_PAGE, types: frozenset[str] | None = None
) -> list[Numbered]:
    """Events past a place, oldest first: of one tenant or of all, of some types or of all."""
    query = select(_events).where(_events.c.seq > seq)
    if tenant is not None:
        query = query.where(_events.c.tenant == tenant)
    if types:
        query = query.where(_events.c.type.in_(sorted(types)))
    query = query.order_by(_events.c.seq).limit(min(limit, MAX_PAGE))
    return [_numbered(row) for row in connection.execute(query)]


def page_after(
    connection: Connection, seq: int, *, tenant: str | None, limit: int = MAX_PAGE, types: frozenset[str] | None = None
) -> Page:
    """A page of events, and how far its reader has come with it, also where what lies between is not for it."""
    # Read first: an event that is written meanwhile has a later place, and is on the next page.
    last = newest(connection)
    found = events_after(connection, seq, tenant=tenant, limit=limit, types=types)
    full = len(found) >= min(limit, MAX_PAGE)
    reached = found[-1].seq if found else seq
    return Page(found, reached if full else max(reached, last), full)


def cursor(connection: Connection, consumer: str) -> int:
    """The last event that a consumer has done with, 0 before the first."""
    query = select(tables.cursors.c.seq).where(tables.cursors.c.consumer == consumer)
    return int(connection.execute(query).scalar() or 0)


class Advance(NamedTuple):
    """A consumer has done with every event up to a place; it never goes back."""

    consumer: str
    seq: int
    holder: str

    def __call__(self, writing: Writing) -> None:
        """Move the cursor; raises LeaseLost."""
        _hold(writing, self.holder)
        here = ("cursor", self.consumer)
        query = select(tables.cursors.c.seq).where(tables.cursors.c.consumer == self.consumer)
        if writing.known(here) or writing.read(query):
            writing.change(_ADVANCE, of_consumer=self.consumer, new_seq=self.seq)
        else:
            writing.insert(tables.cursors, self.consumer, self.seq)
        writing.learn(here, self.seq)


_ADVANCE = (
    update(tables.cursors)
    .where(tables.cursors.c.consumer == bindparam("of_consumer"), tables.cursors.c.seq < bindparam("new_seq"))
    .values(seq=bindparam("new_seq"))
)


class Lease(NamedTuple):
    """Who may do something alone, and until when unless renewed."""

    holder: str
    until: int
    """In microseconds since 1970."""


def lease(connection: Connection, name: str = LEASE) -> Lease | None:
    """Who holds it, or held it last."""
    row = connection.execute(_lease_of(name)).first()
    return None if row is None else Lease(row.holder, row.until)


class TakeLease(NamedTuple):
    """Wants to be the only one for some seconds: takes what is free or expired, renews what is its own."""

    holder: str
    seconds: float
    name: str = LEASE

    def __call__(self, writing: Writing) -> Lease:
        """The lease as it is then, whoever holds it."""
        found = _held(writing, self.name)
        if found is not None and found.holder != self.holder and found.until > writing.now.micros:
            return found
        taken = Lease(self.holder, writing.now.micros + int(self.seconds * _MICROS))
        if found is None:
            writing.insert(_leases, self.name, *taken)
        else:
            writing.change(_TAKE, of_name=self.name, new_holder=taken.holder, new_until=taken.until)
        writing.learn(("lease", self.name), taken)
        return taken


class LetGo(NamedTuple):
    """Needs a lease no more, so that the next one need not wait for its end."""

    holder: str
    name: str = LEASE

    def __call__(self, writing: Writing) -> None:
        """End the lease now; somebody else's stays."""
        found = _held(writing, self.name)
        if found is not None and found.holder == self.holder:
            ended = Lease(self.holder, writing.now.micros)
            writing.change(_TAKE, of_name=self.name, new_holder=ended.holder, new_until=ended.until)
            writing.learn(("lease", self.name), ended)


_TAKE = (
    update(_leases)
    .where(_leases.c.name == bindparam("of_name"))
    .values(holder=bindparam("new_holder"), until=bindparam("new_until"))
)


def _lease_of(name: str) -> Select[Any]:
    return select(_leases).where(_leases.c.name == name)


def _held(writing: Writing, name: str) -> Lease | None:
    known: Lease | None = writing.known(("lease", name))
    if known is None:
        rows = writing.read(_lease_of(name))
        known = Lease(rows[0].holder, rows[0].until) if rows else None
    return known


def _hold(writing: Writing, holder: str) -> None:
    """A holder that slept past its end may still write while nobody has taken over."""
    found = _held(writing, LEASE)
    if found is None or found.holder != holder:
        raise LeaseLost("another process delivers events by now")


class Webhook(Record, frozen=True):
    """Where a tenant wants events to be sent, as it is listed: everything but its secret."""

    id: str
    tenant: str
    url: str
    types: tuple[str, ...]
    """Empty for every type."""
    created_at: datetime


class IssuedWebhook(Record, frozen=True):
    """A new webhook with the secret that signs what it is sent, which is shown this once."""

    webhook: Webhook
    secret: str


class AddWebhook(NamedTuple):
    """A webhook to be made; whether its URL may be called is for the caller to check."""

    tenant: str
    url: str
    types: frozenset[str]
    entropy: Callable[[int], bytes]

    def __call__(self, writing: Writing) -> IssuedWebhook:
        """Keep it, answer its secret; it is sent what happens from now on."""
        for unknown in sorted(self.types - set(EventType)):
            raise MeruitError(f"no event type is named {unknown!r}{nearest(unknown, map(str, EventType))}")
        counted = ("webhooks", self.tenant)
        query = select(func.count()).where(_webhooks.c.tenant == self.tenant)
        count = writing.known(counted) or writing.read(query)[0][0]
        if count >= MAX_WEBHOOKS:
            raise MeruitError(f"a tenant has {MAX_WEBHOOKS} webhooks at most; remove one first")
        writing.learn(counted, count + 1)
        webhook_id = writing.new_id("whk")
        secret = SECRET_PREFIX + b64encode(self.entropy(SECRET_BYTES)).decode()
        types = tuple(sorted(self.types))
        writing.insert(
            _webhooks,
            *(webhook_id, self.tenant, self.url, secret, ",".join(types), writing.now.micros, writing.events),
        )
        return IssuedWebhook(Webhook(webhook_id, self.tenant, self.url, types, from_micros(writing.now.micros)), secret)


class RemoveWebhook(NamedTuple):
    """A webhook that is to be sent nothing more."""

    tenant: str
    webhook_id: str

    def __call__(self, writing: Writing) -> None:
        """Forget it and all that waits for it; raises NotFound."""
        if not writing.read(_webhook_of(self.tenant, self.webhook_id)):
            raise NotFound(f"no webhook {self.webhook_id!r}")
        writing.change(_REMOVE, of_webhook=self.webhook_id)
        # Also what is settled in this very transaction: changes come after inserts.
        writing.change(_FORGET, of_webhook=self.webhook_id)


_REMOVE = delete(_webhooks).where(_webhooks.c.id == bindparam("of_webhook"))
_FORGET = delete(_deliveries).where(_deliveries.c.webhook_id == bindparam("of_webhook"))


def page(connection: Connection, tenant: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[Webhook]:
    """A tenant's webhooks by id."""
    query = select(_webhooks).where(_webhooks.c.tenant == tenant)
    if after is not None:
        query = query.where(_webhooks.c.id > after)
    return [_webhook(row) for row in connection.execute(query.order_by(_webhooks.c.id).limit(min(limit, MAX_PAGE)))]


def find(connection: Connection, tenant: str, webhook_id: str) -> Webhook:
    """One of a tenant's webhooks; raises NotFound."""
    row = connection.execute(_webhook_of(tenant, webhook_id)).first()
    if row is None:
        raise NotFound(f"no webhook {webhook_id!r}")
    return _webhook(row)


def _webhook_of(tenant: str, webhook_id: str) -> Select[Any]:
    return select(_webhooks).where(_webhooks.c.id == webhook_id, _webhooks.c.tenant == tenant)


class Target(NamedTuple):
    """A webhook as whoever delivers to it needs it."""

    id: str
    tenant: str
    url: str
    secret: str
    types: frozenset[str]
    seq: int
    """Every event up to here was delivered, waits in `deliveries`, or is dead."""


def target(connection: Connection, webhook_id: str) -> Target | None:
    """The webhook with its secret; None when it was removed."""
    row = connection.execute(select(_webhooks).where(_webhooks.c.id == webhook_id)).first()
    if row is None:
        return None
    return Target(row.id, row.tenant, row.url, row.secret, frozenset(_types(row)), row.seq)


class Busy(NamedTuple):
    """A webhook that something is to be sent to."""

    id: str
    seq: int
    fresh: bool
    """Whether its tenant has events that it was not sent yet; they may all be of other types."""
    due: bool
    """Whether something that waited is to be tried again."""


def busy(connection: Connection, now: int, *, after: str = "", limit: int = MAX_PAGE) -> list[Busy]:
    """Webhooks of every tenant with work, by id."""
    fresh = exists().where(_events.c.tenant == _webhooks.c.tenant, _events.c.seq > _webhooks.c.seq)
    due = exists().where(
        _deliveries.c.webhook_id == _webhooks.c.id, _deliveries.c.dead_at.is_(None), _deliveries.c.next_at <= now
    )
    query = (
        select(_webhooks.c.id, _webhooks.c.seq, fresh.label("fresh"), due.label("due"))
        .where(_webhooks.c.id > after, or_(fresh, due))
        .order_by(_webhooks.c.id)
        .limit(limit)
    )
    return [Busy(row.id, row.seq, bool(row.fresh), bool(row.due)) for row in connection.execute(query)]


def existing(connection: Connection, ids: Sequence[str]) -> frozenset[str]:
    """Those of the webhooks that were not removed."""
    return frozenset(connection.execute(select(_webhooks.c.id).where(_webhooks.c.id.in_(ids))).scalars())


class Waiting(NamedTuple):
    """An event that is to be tried again."""

    numbered: Numbered
    attempts: int
    """How many there were."""


def due(connection: Connection, webhook_id: str, now: int, *, limit: int = MAX_PAGE) -> list[Waiting]:
    """What a webhook is to be sent again by now; of each subject the first alone, longest due first."""
    earlier = _deliveries.alias()
    query = (
        select(_deliveries.c.attempts, _events)
        .join(_events, _events.c.seq == _deliveries.c.seq)
        .where(
            _deliveries.c.webhook_id == webhook_id,
            _deliveries.c.dead_at.is_(None),
            _deliveries.c.next_at <= now,
            ~exists().where(
                earlier.c.webhook_id == webhook_id,
                earlier.c.subject == _deliveries.c.subject,
                earlier.c.dead_at.is_(None),
                earlier.c.seq < _deliveries.c.seq,
            ),
        )
        .order_by(_deliveries.c.next_at, _deliveries.c.seq)
        .limit(min(limit, MAX_PAGE))
    )
    return [Waiting(_numbered(row), row.attempts) for row in connection.execute(query)]


def waiting_subjects(connection: Connection, webhook_id: str, subjects: Sequence[str]) -> frozenset[str]:
    """Those of the subjects of which something waits; what comes later queues behind it."""
    query = (
        select(_deliveries.c.subject)
        .where(
            _deliveries.c.webhook_id == webhook_id,
            _deliveries.c.subject.in_(sorted(set(subjects))),
            _deliveries.c.dead_at.is_(None),
        )
        .distinct()
    )
    return frozenset(connection.execute(query).scalars())


class Delivery(NamedTuple):
    """Where an event stands that could not be delivered at once."""

    seq: int
    subject: str
    attempts: int
    next_at: int
    """In microseconds since 1970; BEHIND while an earlier one of its subject waits."""
    error: str = ""
    dead_at: int | None = None


class Settle(NamedTuple):
    """What a webhook's turn came to: all of it is kept, or none when somebody else delivers by now."""

    webhook_id: str
    holder: str
    upto: int | None = None
    """Every event up to here was delivered, or is among the new ones."""
    new: tuple[Delivery, ...] = ()
    """Fresh events that wait or are dead."""
    done: tuple[Delivery, ...] = ()
    """Such as waited and were delivered."""
    again: tuple[Delivery, ...] = ()
    """Such as waited, and wait again or are dead."""

    def __call__(self, writing: Writing) -> bool:
        """Whether the webhook is still there; raises LeaseLost."""
        _hold(writing, self.holder)
        if not writing.read(select(_webhooks.c.id).where(_webhooks.c.id == self.webhook_id)):
            return False
        if self.upto is not None:
            writing.change(_REACHED, of_webhook=self.webhook_id, new_seq=self.upto)
        for one in self.new:
            writing.insert(
                _deliveries,
                *(self.webhook_id, one.seq, one.subject, one.attempts, one.next_at, one.dead_at),
                one.error[:MAX_ERROR_CHARS],
            )
        for one in self.again:
            writing.change(
                _AGAIN,
                of_webhook=self.webhook_id,
                of_seq=one.seq,
                new_attempts=one.attempts,
                new_next_at=one.next_at,
                new_dead_at=one.dead_at,
                new_error=one.error[:MAX_ERROR_CHARS],
            )
        for one in self.done:
            writing.change(_DONE, of_webhook=self.webhook_id, of_seq=one.seq)
        self._let_follow(writing)
        return True

    def _let_follow(self, writing: Writing) -> None:
        """The next of each subject whose first was settled is due now."""
        settled = [*self.done, *(one for one in self.again if one.dead_at is not None)]
        if not settled:
            return
        query = (
            select(func.min(_deliveries.c.seq).label("seq"))
            .where(
                _deliveries.c.webhook_id == self.webhook_id,
                _deliveries.c.subject.in_([one.subject for one in settled]),
                _deliveries.c.dead_at.is_(None),
                _deliveries.c.seq.not_in([one.seq for one in settled]),
            )
            .group_by(_deliveries.c.subject)
        )
        for row in writing.read(query):
            writing.change(_FOLLOW, of_webhook=self.webhook_id, of_seq=row.seq, new_next_at=writing.now.micros)


_THE_DELIVERY = (
    _deliveries.c.webhook_id == bindparam("of_webhook"),
    _deliveries.c.seq == bindparam("of_seq"),
)
_REACHED = (
    update(_webhooks)
    .where(_webhooks.c.id == bindparam("of_webhook"), _webhooks.c.seq < bindparam("new_seq"))
    .values(seq=bindparam("new_seq"))
)
_AGAIN = (
    update(_deliveries)
    .where(*_THE_DELIVERY)
    .values(
        attempts=bindparam("new_attempts"),
        next_at=bindparam("new_next_at"),
        dead_at=bindparam("new_dead_at"),
        error=bindparam("new_error"),
    )
)
_DONE = delete(_deliveries).where(*_THE_DELIVERY)
# One that waits for its own next attempt keeps its time.
_FOLLOW = (
    update(_deliveries).where(*_THE_DELIVERY, _deliveries.c.next_at == BEHIND).values(next_at=bindparam("new_next_at"))
)


class DeadLetter(Record, frozen=True):
    """An event that a webhook was not sent, and why nobody tries any more."""

    seq: int
    attempts: int
    error: str
    dead_at: datetime
    event: Event


def dead(
    connection: Connection, tenant: str, webhook_id: str, *, after: int = 0, limit: int = MAX_PAGE
) -> list[DeadLetter]:
    """A webhook's dead letters, oldest event first; raises NotFound."""
    find(connection, tenant, webhook_id)
    query = (
        select(_deliveries.c.attempts, _deliveries.c.error, _deliveries.c.dead_at, _events)
        .join(_events, _events.c.seq == _deliveries.c.seq)
        .where(_deliveries.c.webhook_id == webhook_id, _deliveries.c.dead_at.is_not(None), _deliveries.c.seq > after)
        .order_by(_deliveries.c.seq)
        .limit(min(limit, MAX_PAGE))
    )
    return [
        DeadLetter(row.seq, row.attempts, row.error, from_micros(row.dead_at), _numbered(row).event)
        for row in connection.execute(query)
    ]


class Redeliver(NamedTuple):
    """A dead letter to be tried again, from the first of its attempts on; later events may have been quicker."""

    tenant: str
    webhook_id: str
    seq: int

    def __call__(self, writing: Writing) -> None:
        """Make it due now; raises NotFound."""
        query = (
            select(_deliveries.c.seq)
            .join(_webhooks, _webhooks.c.id == _deliveries.c.webhook_id)
            .where(_webhooks.c.tenant == self.tenant, _webhooks.c.id == self.webhook_id)
            .where(_deliveries.c.seq == self.seq, _deliveries.c.dead_at.is_not(None))
        )
        if not writing.read(query):
            raise NotFound(f"webhook {self.webhook_id!r} has no dead letter {self.seq}")
        writing.change(
            _AGAIN,
            of_webhook=self.webhook_id,
            of_seq=self.seq,
            new_attempts=0,
            new_next_at=writing.now.micros,
            new_dead_at=None,
            new_error="",
        )


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _numbered(row: Any) -> Numbered:
    return Numbered(
        row.seq,
        row.subject,
        Event(
            event_id=row.event_id,
            event_type=row.type,
            schema_version=SCHEMA_VERSION,
            idempotency_key=row.idempotency_key,
            timestamp=written(from_micros(row.at)),
            source=SOURCE,
            tenant_id=row.tenant,
            data=msgspec.json.decode(row.data),
        ),
    )


# Any: as above.
def _webhook(row: Any) -> Webhook:
    return Webhook(row.id, row.tenant, row.url, _types(row), from_micros(row.created_at))


# Any: as above.
def _types(row: Any) -> tuple[str, ...]:
    return tuple(row.types.split(",")) if row.types else ()
