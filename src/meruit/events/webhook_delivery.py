"""One webhook's turn: what it is due is signed, sent, and tried again later where that failed."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar

from standardwebhooks import Webhook as Signer

from meruit.errors import OutboundRefused
from meruit.events.store.deliveries import BEHIND, Delivery, PendingRetry, SettleDeliveries
from meruit.events.store.outbox import OutboxPage
from meruit.events.store.webhooks import Target
from meruit.model.events import Event, OutboxEvent
from meruit.model.time import to_micros

POLL_S = 1.0
"""How soon we see what other processes wrote."""
GATHER_S = 0.1
"""The least time between two wake-ups, so that a thousand commits a second are not a thousand readings by each."""
HEARTBEAT_S = 15.0
PAUSE_S = 5.0
"""The rest after an error of ours or the database's."""
LEASE_S = 30.0
TURN_S = 10.0
"""How long a webhook's turn begins new attempts; what was reached is kept then, and others get their turn."""
POST_S = 30.0
CLOSING_S = 15.0
REST_S = 1.0
"""The rest after a turn in which nothing could be delivered; doubles with each such turn in a row."""
JITTER = 0.1
"""By what part of it at most a delay is prolonged, so that what failed together does not come back together."""
RETRIES_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The delay after each attempt, as Standard Webhooks recommends; the attempt after the last one is the last."""
MAX_POSTS = 4
"""Requests to one webhook at the same time, each about another subject."""
MAX_FAILURES = 4
"""Failures in a row that end a turn."""

T = TypeVar("T")
_MICROS = 1_000_000


class DeliveryResult(StrEnum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"


class WebhookReply(Protocol):
    """What a webhook's endpoint replied."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...


Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[WebhookReply]]
"""Sends bytes to a URL; raises OutboundRefused where trying again is of no use."""


class DeliveryCounters(Protocol):
    """What is counted."""

    def count_attempt(self, result: str) -> None:
        """An attempt to deliver has ended."""
        ...

    def count_dead_letter(self) -> None:
        """An event was given up on."""
        ...

    def set_lag(self, count: int) -> None:
        """How many events there are past the oldest that somebody was not told of yet."""
        ...


class NoCounters:
    """Counts nothing."""

    def count_attempt(self, result: str) -> None:
        """Nothing."""

    def count_dead_letter(self) -> None:
        """Nothing."""

    def set_lag(self, count: int) -> None:
        """Nothing."""


class DeliveryTiming(NamedTuple):
    """How long everything takes; a test is in more of a hurry."""

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


class DeliveryContext(NamedTuple):
    """What an attempt needs besides the event."""

    post: Post
    clock: Callable[[], datetime]
    jitter: Callable[[], float]
    counters: DeliveryCounters
    pace: DeliveryTiming
    can_continue: Callable[[], bool]
    """Whether we are still the one who delivers."""


class DeliveryFailure(NamedTuple):
    """Why an attempt failed."""

    reason: str
    final: bool = False
    """Whether trying again is of no use."""


class WebhookTurn:
    """One webhook is sent what it is due: subjects side by side, the events of each in their order."""

    def __init__(self, target: Target, means: DeliveryContext) -> None:
        self.target = target
        self.delivered = 0
        self.failed = 0
        self.halted = False
        self._means = means
        self._signer = Signer(target.secret)
        self._in_a_row = 0
        self._ends = asyncio.get_running_loop().time() + means.pace.turn_s

    @property
    def is_late(self) -> bool:
        """Whether its time is up."""
        return asyncio.get_running_loop().time() >= self._ends

    def can_continue(self) -> bool:
        """Whether another attempt may begin."""
        return not (self.halted or self.is_late or self._in_a_row >= MAX_FAILURES) and self._means.can_continue()

    async def retry(self, due: list[PendingRetry], holder: str) -> SettleDeliveries:
        """Try what waited; of each subject it is the first."""
        done: list[Delivery] = []
        again: list[Delivery] = []

        async def work(one: PendingRetry) -> None:
            missed = await self._attempt(one.outbox_event, one.attempts)
            if missed is None:
                done.append(Delivery(one.outbox_event.seq, one.outbox_event.subject, one.attempts + 1, 0))
            else:
                again.append(missed)

        await self._each(due, work)
        return SettleDeliveries(self.target.id, holder, done=tuple(done), again=tuple(again))

    async def send_new(self, page: OutboxPage, waiting: frozenset[str], holder: str) -> SettleDeliveries:
        """Try what is new; what comes after something that waits queues behind it."""
        blocked = set(waiting)
        new: list[Delivery] = []
        # Events are taken in their order, and whoever waits for a lock first gets it first.
        in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def work(one: OutboxEvent) -> None:
            async with in_order[one.subject]:
                if one.subject in blocked:
                    new.append(Delivery(one.seq, one.subject, 0, BEHIND))
                    return
                missed = await self._attempt(one, 0)
                if missed is not None:
                    new.append(missed)
                    if missed.dead_at is None:
                        blocked.add(one.subject)

        taken = await self._each(page.events, work)
        # What was not taken stays where it is: beyond the cursor.
        upto = page.upto if taken == len(page.events) else page.events[taken].seq - 1
        return SettleDeliveries(self.target.id, holder, upto=upto, new=tuple(new))

    async def _each(self, several: Iterable[T], work: Callable[[T], Awaitable[None]]) -> int:
        """Do one after the other, a few at the same time; answers how many were begun, all of which are done."""
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

        async with asyncio.TaskGroup() as lanes:
            for _ in range(MAX_POSTS):
                lanes.create_task(worker())
        return taken

    async def _attempt(self, numbered: OutboxEvent, before: int) -> Delivery | None:
        """Where the event stands after one more attempt; None when it was delivered."""
        failure = await self._send(numbered.event)
        counters, pace = self._means.counters, self._means.pace
        if failure is None:
            self.delivered += 1
            self._in_a_row = 0
            counters.count_attempt(DeliveryResult.DELIVERED)
            return None
        self.failed += 1
        self._in_a_row += 1
        now = to_micros(self._means.clock())
        if failure.final or before >= len(pace.retries_s):
            counters.count_attempt(DeliveryResult.DEAD)
            counters.count_dead_letter()
            return Delivery(numbered.seq, numbered.subject, before + 1, now, failure.reason, dead_at=now)
        counters.count_attempt(DeliveryResult.FAILED)
        delay_s = pace.retries_s[before] * (1 + JITTER * self._means.jitter())
        return Delivery(numbered.seq, numbered.subject, before + 1, now + int(delay_s * _MICROS), failure.reason)

    async def _send(self, event: Event) -> DeliveryFailure | None:
        body = event.to_json()
        now = self._means.clock()
        headers = {
            "content-type": "application/json",
            "user-agent": "meruit",
            "webhook-id": event.event_id,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(event.event_id, now, body.decode()),
        }
        try:
            async with asyncio.timeout(self._means.pace.post_s):
                reply = await self._means.post(self.target.url, body, headers)
        except OutboundRefused as refusal:
            return DeliveryFailure(str(refusal), final=True)
        except TimeoutError:
            return DeliveryFailure(f"no answer within {self._means.pace.post_s:g} s")
        except Exception as problem:  # noqa: BLE001 - whatever it was, the event was not delivered and others wait
            return DeliveryFailure(str(problem) or type(problem).__name__)
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return None
        return DeliveryFailure(f"answered {reply.status}", final=reply.status == HTTPStatus.GONE)
