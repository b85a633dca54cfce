"""One turn of one webhook: sign and send its events, and schedule retries of those that fail."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol, TypeVar

import msgspec
from standardwebhooks import Webhook as Signer

from meruit.errors import OutboundRefused
from meruit.events.store.deliveries import BEHIND, Delivery, PendingRetry, SettleDeliveries
from meruit.events.store.outbox import OutboxPage
from meruit.events.store.webhooks import WebhookTarget
from meruit.model.events import Event, OutboxEvent
from meruit.model.time import to_micros

POLL_S = 1.0
"""Longest delay until events of other processes are seen."""
GATHER_S = 0.1
"""Shortest time between two wake-ups, so that a thousand commits a second do not cause a thousand reads."""
HEARTBEAT_S = 15.0
PAUSE_S = 5.0
"""Pause after an internal error or an error of the database."""
LEASE_S = 30.0
TURN_S = 10.0
"""Longest time in which one turn starts attempts; then other webhooks get their turn."""
POST_S = 30.0
CLOSING_S = 15.0
REST_S = 1.0
"""Backoff after a turn in which every delivery failed; doubles with each such turn."""
JITTER = 0.1
"""Largest random part that is added to a delay, so that retries spread out."""
RETRIES_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The delay after each failed attempt, as Standard Webhooks recommends; one attempt follows the last delay."""
MAX_POSTS = 4
"""Most requests to one webhook at the same time, each about another subject."""
MAX_FAILURES = 4
"""Failures in a row that end a turn."""

T = TypeVar("T")
_MICROS = 1_000_000


class DeliveryResult(StrEnum):
    """The result of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"


class WebhookReply(Protocol):
    """The reply of a webhook."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...


Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[WebhookReply]]
"""Sends bytes to a URL; raises OutboundRefused when a retry cannot help."""


class DeliveryCounters(Protocol):
    """Counts deliveries."""

    def count_attempt(self, result: str, tenant: str) -> None:
        """Count an attempt by its result and the tenant of the event."""
        ...

    def count_dead_letter(self, tenant: str) -> None:
        """Count an event that became a dead letter."""
        ...

    def set_lag(self, count: int) -> None:
        """Set how many events follow the oldest one that is not delivered yet."""
        ...


class NoCounters:
    """Counts nothing."""

    def count_attempt(self, result: str, tenant: str) -> None:
        """Do nothing."""

    def count_dead_letter(self, tenant: str) -> None:
        """Do nothing."""

    def set_lag(self, count: int) -> None:
        """Do nothing."""


class DeliveryTiming(msgspec.Struct, frozen=True):
    """Intervals, timeouts and retry delays; tests use shorter ones."""

    poll_s: float = POLL_S
    gather_s: float = GATHER_S
    heartbeat_s: float = HEARTBEAT_S
    pause_s: float = PAUSE_S
    lease_s: float = LEASE_S
    turn_s: float = TURN_S
    post_s: float = POST_S
    closing_s: float = CLOSING_S
    rest_s: float = REST_S
    retries_s: tuple[float, ...] = RETRIES_S


NO_COUNTERS = NoCounters()
DEFAULT_TIMING = DeliveryTiming()


class DeliveryContext(msgspec.Struct, frozen=True):
    """What an attempt needs beside the event."""

    post: Post
    clock: Callable[[], datetime]
    jitter: Callable[[], float]
    counters: DeliveryCounters
    pace: DeliveryTiming
    can_continue: Callable[[], bool]
    """Whether this process still holds the delivery lease."""


class DeliveryFailure(msgspec.Struct, frozen=True):
    """Why an attempt failed."""

    reason: str
    final: bool = False
    """Whether a retry cannot help."""


class WebhookTurn:
    """Sends the events of one webhook: subjects in parallel, the events of each subject in order."""

    def __init__(self, target: WebhookTarget, context: DeliveryContext) -> None:
        self.target = target
        self.delivered = 0
        self.failed = 0
        self.halted = False
        self._context = context
        self._signer = Signer(target.secret)
        self._failures_in_a_row = 0
        self._ends = asyncio.get_running_loop().time() + context.pace.turn_s

    @property
    def is_late(self) -> bool:
        """Whether the time of the turn is up."""
        return asyncio.get_running_loop().time() >= self._ends

    def can_continue(self) -> bool:
        """Whether another attempt may start."""
        return (
            not (self.halted or self.is_late or self._failures_in_a_row >= MAX_FAILURES)
            and self._context.can_continue()
        )

    async def retry(self, due: list[PendingRetry], holder: str) -> SettleDeliveries:
        """Retry due events, of each subject the first."""
        done: list[Delivery] = []
        again: list[Delivery] = []

        async def work(one: PendingRetry) -> None:
            missed = await self._attempt(one.outbox_event, one.attempts)
            if missed is None:
                done.append(
                    Delivery(
                        seq=one.outbox_event.seq, subject=one.outbox_event.subject, attempts=one.attempts + 1, next_at=0
                    )
                )
            else:
                again.append(missed)

        await self._each(due, work)
        return SettleDeliveries(self.target.id, holder, done=tuple(done), again=tuple(again))

    async def send_new(self, page: OutboxPage, waiting: frozenset[str], holder: str) -> SettleDeliveries:
        """Send new events; an event waits while an earlier one of its subject waits for a retry."""
        blocked = set(waiting)
        new: list[Delivery] = []
        # Events are taken in order, and asyncio locks are fair.
        in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def work(one: OutboxEvent) -> None:
            async with in_order[one.subject]:
                if one.subject in blocked:
                    new.append(Delivery(seq=one.seq, subject=one.subject, attempts=0, next_at=BEHIND))
                    return
                missed = await self._attempt(one, 0)
                if missed is not None:
                    new.append(missed)
                    if missed.dead_at is None:
                        blocked.add(one.subject)

        taken = await self._each(page.events, work)
        # Events that were not taken stay after the cursor.
        upto = page.upto if taken == len(page.events) else page.events[taken].seq - 1
        return SettleDeliveries(self.target.id, holder, upto=upto, new=tuple(new))

    async def _each(self, several: Iterable[T], work: Callable[[T], Awaitable[None]]) -> int:
        """Run `work` for each item in order, a few at a time; returns how many were started, all of them done."""
        taken = 0
        queue = iter(several)

        async def worker() -> None:
            nonlocal taken
            while self.can_continue():
                one = next(queue, None)
                if one is None:
                    return
                taken += 1
                await work(one)

        async with asyncio.TaskGroup() as workers:
            for _ in range(MAX_POSTS):
                workers.create_task(worker())
        return taken

    async def _attempt(self, numbered: OutboxEvent, before: int) -> Delivery | None:
        """Make one attempt; returns the next state of the delivery, or None when it succeeded."""
        failure = await self._send(numbered.event)
        counters, pace = self._context.counters, self._context.pace
        if failure is None:
            self.delivered += 1
            self._failures_in_a_row = 0
            counters.count_attempt(DeliveryResult.DELIVERED, numbered.event.tenant_id)
            return None
        self.failed += 1
        self._failures_in_a_row += 1
        now = to_micros(self._context.clock())
        if failure.final or before >= len(pace.retries_s):
            counters.count_attempt(DeliveryResult.DEAD, numbered.event.tenant_id)
            counters.count_dead_letter(numbered.event.tenant_id)
            return Delivery(
                seq=numbered.seq,
                subject=numbered.subject,
                attempts=before + 1,
                next_at=now,
                error=failure.reason,
                dead_at=now,
            )
        counters.count_attempt(DeliveryResult.FAILED, numbered.event.tenant_id)
        delay_s = pace.retries_s[before] * (1 + JITTER * self._context.jitter())
        return Delivery(
            seq=numbered.seq,
            subject=numbered.subject,
            attempts=before + 1,
            next_at=now + int(delay_s * _MICROS),
            error=failure.reason,
        )

    async def _send(self, event: Event) -> DeliveryFailure | None:
        body = event.to_json()
        now = self._context.clock()
        headers = {
            "content-type": "application/json",
            "user-agent": "meruit",
            "webhook-id": event.event_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(event.event_id, now, body.decode()),
        }
        try:
            async with asyncio.timeout(self._context.pace.post_s):
                reply = await self._context.post(self.target.url, body, headers)
        except OutboundRefused as refusal:
            return DeliveryFailure(str(refusal), final=True)
        except TimeoutError:
            return DeliveryFailure(f"no reply within {self._context.pace.post_s:g} s")
        except Exception as problem:  # noqa: BLE001 - any error means that the event was not delivered
            return DeliveryFailure(str(problem) or type(problem).__name__)
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return None
        return DeliveryFailure(f"answered {reply.status}", final=reply.status == HTTPStatus.GONE)
