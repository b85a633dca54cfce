"""Deliveries: what waits to be sent to a webhook, what is tried again, and what was given up on."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, exists, func, or_, select, update

from meruit.errors import NotFound
from meruit.events.store import webhooks
from meruit.events.store.outbox import check_holder, outbox_event_from
from meruit.model.events import Event, OutboxEvent
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.transaction import WriteTransaction

MAX_ERROR_CHARS = 300
BEHIND = 1 << 62
"""The next attempt of an event that waits for an earlier one of its subject: never, until that one is settled."""

_events, _webhooks, _deliveries = tables.events, tables.webhooks, tables.deliveries


class PendingWebhook(NamedTuple):
    """A webhook that something is to be sent to."""

    id: str
    seq: int
    fresh: bool
    """Whether its tenant has events that it was not sent yet; they may all be of other types."""
    due: bool
    """Whether something that waited is to be tried again."""


def pending_webhooks(
    connection: Connection, now: int, *, after: str = "", limit: int = MAX_PAGE
) -> list[PendingWebhook]:
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
    return [PendingWebhook(row.id, row.seq, bool(row.fresh), bool(row.due)) for row in connection.execute(query)]


class PendingRetry(NamedTuple):
    """An event that is to be tried again."""

    outbox_event: OutboxEvent
    attempts: int
    """How many there were."""


def due_retries(connection: Connection, webhook_id: str, now: int, *, limit: int = MAX_PAGE) -> list[PendingRetry]:
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
    return [PendingRetry(outbox_event_from(row), row.attempts) for row in connection.execute(query)]


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


class SettleDeliveries(NamedTuple):
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

    def __call__(self, writing: WriteTransaction) -> bool:
        """Whether the webhook is still there; raises LeaseLost."""
        check_holder(writing, self.holder)
        if not writing.read(select(_webhooks.c.id).where(_webhooks.c.id == self.webhook_id)):
            return False
        if self.upto is not None:
            writing.change(_REACHED, of_webhook=self.webhook_id, new_seq=self.upto)
        for one in self.new:
            writing.insert(
                _deliveries,
                webhook_id=self.webhook_id,
                seq=one.seq,
                subject=one.subject,
                attempts=one.attempts,
                next_at=one.next_at,
                dead_at=one.dead_at,
                error=one.error[:MAX_ERROR_CHARS],
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
        self._unblock_next(writing)
        return True

    def _unblock_next(self, writing: WriteTransaction) -> None:
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


def dead_letters(
    connection: Connection, tenant: str, webhook_id: str, *, after: int = 0, limit: int = MAX_PAGE
) -> list[DeadLetter]:
    """A webhook's dead letters, oldest event first; raises NotFound."""
    webhooks.find(connection, tenant, webhook_id)
    query = (
        select(_deliveries.c.attempts, _deliveries.c.error, _deliveries.c.dead_at, _events)
        .join(_events, _events.c.seq == _deliveries.c.seq)
        .where(_deliveries.c.webhook_id == webhook_id, _deliveries.c.dead_at.is_not(None), _deliveries.c.seq > after)
        .order_by(_deliveries.c.seq)
        .limit(min(limit, MAX_PAGE))
    )
    return [
        DeadLetter(row.seq, row.attempts, row.error, from_micros(row.dead_at), outbox_event_from(row).event)
        for row in connection.execute(query)
    ]


class Redeliver(NamedTuple):
    """A dead letter to be tried again, from the first of its attempts on; later events may have been quicker."""

    tenant: str
    webhook_id: str
    seq: int

    def __call__(self, writing: WriteTransaction) -> None:
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
