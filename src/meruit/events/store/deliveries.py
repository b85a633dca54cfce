"""Deliveries: events that wait for a retry, and dead letters."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, and_, bindparam, delete, exists, func, or_, select, update

from meruit.errors import NotFound
from meruit.events.store import webhooks
from meruit.events.store.outbox import check_holder, outbox_event_from
from meruit.model.events import Event, OutboxEvent
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.transaction import WriteTransaction

MAX_ERROR_CHARS = 300
BEHIND = 1 << 62
"""`next_at` of an event that waits for an earlier event of its subject."""

_events, _webhooks, _deliveries = tables.events, tables.webhooks, tables.deliveries


class PendingWebhook(msgspec.Struct, frozen=True):
    """A webhook with events to send."""

    id: str
    seq: int
    fresh: bool
    """Whether its tenant has new events; they may all have other types."""
    due: bool
    """Whether a retry is due."""


def pending_webhooks(
    connection: Connection, now: int, *, after: str = "", limit: int = MAX_PAGE
) -> list[PendingWebhook]:
    """Find the webhooks of all tenants that have events to send, by id."""
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
    return [
        PendingWebhook(id=row.id, seq=row.seq, fresh=bool(row.fresh), due=bool(row.due))
        for row in connection.execute(query)
    ]


class PendingRetry(msgspec.Struct, frozen=True):
    """An event whose delivery is retried."""

    outbox_event: OutboxEvent
    attempts: int
    """Number of attempts so far."""


def due_retries(connection: Connection, webhook_id: str, now: int, *, limit: int = MAX_PAGE) -> list[PendingRetry]:
    """Find the due retries of a webhook, of each subject only the first, longest due first."""
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
    """Those of the subjects that have an event waiting for a retry; later events queue behind it."""
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


class Delivery(msgspec.Struct, frozen=True):
    """The state of an event that was not delivered at the first attempt."""

    seq: int
    subject: str
    attempts: int
    next_at: int
    """In microseconds since 1970; BEHIND while an earlier event of its subject waits."""
    error: str = ""
    dead_at: int | None = None


class SettleDeliveries(msgspec.Struct, frozen=True):
    """Record the result of a webhook's turn, unless another process holds the lease now."""

    webhook_id: str
    holder: str
    upto: int | None = None
    """Every event up to here was delivered, or is in `new`."""
    new: tuple[Delivery, ...] = ()
    """New events that wait for a retry or are dead."""
    done: tuple[Delivery, ...] = ()
    """Retries that succeeded."""
    again: tuple[Delivery, ...] = ()
    """Retries that failed: they wait again or are dead."""

    def __call__(self, writing: WriteTransaction) -> bool:
        """Record it; returns whether the webhook still exists. Raises LeaseLost."""
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
        """Make the next event of each settled subject due now."""
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
# An event that waits for its own retry keeps its time.
_FOLLOW = (
    update(_deliveries).where(*_THE_DELIVERY, _deliveries.c.next_at == BEHIND).values(next_at=bindparam("new_next_at"))
)


class PendingDelivery(Record, frozen=True):
    """An event that waits for the next attempt to deliver it."""

    seq: int
    attempts: int
    error: str
    next_at: datetime | None
    """None where it waits for an earlier event of its subject."""
    event: Event


def pending_deliveries(
    connection: Connection, tenant: str, webhook_id: str, *, limit: int = MAX_PAGE
) -> list[PendingDelivery]:
    """List the deliveries of a webhook that failed and are tried again, oldest event first; raises NotFound."""
    webhooks.find(connection, tenant, webhook_id)
    query = (
        select(_deliveries.c.attempts, _deliveries.c.error, _deliveries.c.next_at, _events)
        .join(_events, _events.c.seq == _deliveries.c.seq)
        .where(_deliveries.c.webhook_id == webhook_id, _deliveries.c.dead_at.is_(None))
        .order_by(_deliveries.c.seq)
        .limit(min(limit, MAX_PAGE))
    )
    return [
        PendingDelivery(
            row.seq,
            row.attempts,
            row.error or "",
            None if row.next_at >= BEHIND else from_micros(row.next_at),
            outbox_event_from(row).event,
        )
        for row in connection.execute(query)
    ]


class DeadLetter(Record, frozen=True):
    """An event that could not be delivered to a webhook, with the last error."""

    seq: int
    attempts: int
    error: str
    dead_at: datetime
    event: Event


def dead_letters(
    connection: Connection, tenant: str, webhook_id: str, *, after: int = 0, limit: int = MAX_PAGE
) -> list[DeadLetter]:
    """List the dead letters of a webhook, oldest event first; raises NotFound."""
    webhooks.find(connection, tenant, webhook_id)
    query = (
        select(_deliveries.c.attempts, _deliveries.c.error, _deliveries.c.dead_at, _events)
        .join(_events, _events.c.seq == _deliveries.c.seq)
        .where(_deliveries.c.webhook_id == webhook_id, _deliveries.c.dead_at.is_not(None), _deliveries.c.seq > after)
        .order_by(_deliveries.c.seq)
        .limit(min(limit, MAX_PAGE))
    )
    return [
        DeadLetter(
            seq=row.seq,
            attempts=row.attempts,
            error=row.error,
            dead_at=from_micros(row.dead_at),
            event=outbox_event_from(row).event,
        )
        for row in connection.execute(query)
    ]


class Redeliver(msgspec.Struct, frozen=True):
    """Deliver a dead letter again, with all its retries. Later events may have been delivered already."""

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


class DeliveryState(StrEnum):
    """What became of an event for a webhook."""

    DELIVERED = "delivered"
    RETRIED = "retried"
    DEAD = "dead"


class RecentDelivery(Record, frozen=True):
    """One event that was meant for a webhook, and what became of it."""

    seq: int
    state: DeliveryState
    error: str
    """Of the last attempt that failed; empty where none did, or where it was delivered since."""
    subject: str
    at: datetime
    event: Event


def recent_deliveries(
    connection: Connection, tenant: str, webhook_id: str, *, before: int | None = None, limit: int = MAX_PAGE
) -> list[RecentDelivery]:
    """List the events that a webhook was sent, newest first; raises NotFound.

    What was delivered has no row of its own: it is each event up to the webhook's cursor without one.
    """
    query = _sent_to(webhooks.find(connection, tenant, webhook_id), tenant)
    if before is not None:
        query = query.where(_events.c.seq < before)
    rows = connection.execute(query.order_by(_events.c.seq.desc()).limit(min(limit, MAX_PAGE)))
    found = []
    for row in rows:
        failed = DeliveryState.RETRIED if row.dead_at is None else DeliveryState.DEAD
        state = DeliveryState.DELIVERED if row.failed_seq is None else failed
        event = outbox_event_from(row).event
        found.append(RecentDelivery(row.seq, state, row.error or "", row.subject, from_micros(row.at), event))
    return found


# Any: a query of SQLAlchemy has untyped rows.
def _sent_to(webhook: webhooks.Webhook, tenant: str) -> Select[Any]:
    """The events up to a webhook's cursor that it takes, each with its row where it is not delivered."""
    failed = and_(_deliveries.c.webhook_id == webhook.id, _deliveries.c.seq == _events.c.seq)
    reached = select(_webhooks.c.seq).where(_webhooks.c.id == webhook.id).scalar_subquery()
    query = (
        select(_events, _deliveries.c.seq.label("failed_seq"), _deliveries.c.dead_at, _deliveries.c.error)
        .outerjoin(_deliveries, failed)
        .where(
            _events.c.tenant == tenant,
            _events.c.seq <= reached,
            # Events from before a webhook are not for it.
            _events.c.at > to_micros(webhook.created_at),
        )
    )
    return query.where(_events.c.type.in_(sorted(webhook.types))) if webhook.types else query


class SendAgain(msgspec.Struct, frozen=True):
    """Send an event again that was delivered; receivers know it by its id."""

    tenant: str
    webhook_id: str
    seq: int

    def __call__(self, writing: WriteTransaction) -> None:
        """Make it due now; raises NotFound where this event was not delivered to this webhook."""
        found = writing.read(select(_webhooks).where(_webhooks.c.id == self.webhook_id))
        if not found or found[0].tenant != self.tenant:
            raise NotFound(f"no webhook {self.webhook_id!r}")
        sent = writing.read(_sent_to(webhooks.webhook_from(found[0]), self.tenant).where(_events.c.seq == self.seq))
        if not sent or sent[0].failed_seq is not None:
            raise NotFound(f"the event {self.seq} was not delivered to the webhook {self.webhook_id!r}")
        writing.insert(
            _deliveries,
            webhook_id=self.webhook_id,
            seq=self.seq,
            subject=sent[0].subject,
            attempts=0,
            next_at=writing.now.micros,
            dead_at=None,
            error="",
        )
