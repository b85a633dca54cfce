"""Tells the world what was recorded: to the log, to webhooks, and to whoever follows; at least once, in order."""

import asyncio
import random
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from enum import StrEnum
from functools import partial
from http import HTTPStatus
from typing import NamedTuple, Protocol, TypeVar

from sqlalchemy import Connection
from standardwebhooks import Webhook as Signer

from meruit.model.events import Event, Numbered
from meruit.model.outcome import in_micros
from meruit.sources.outbound import OutboundRefused
from meruit.stores import outbox
from meruit.stores.outbox import BEHIND, Busy, Delivery, LeaseLost, Settle, Target, Waiting
from meruit.stores.recorder import Committed
from meruit.stores.store import Store

LOG_CONSUMER = "log"
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
MAX_REST_S = 300.0
JITTER = 0.1
"""By what part of it at most a delay is prolonged, so that what failed together does not come back together."""
RETRIES_S = (5.0, 300.0, 1_800.0, 7_200.0, 18_000.0, 36_000.0, 50_400.0, 72_000.0, 86_400.0)
"""The delay after each attempt, as Standard Webhooks recommends; the attempt after the last one is the last."""
MAX_TURNS = 16
"""Webhooks that are being served at the same time."""
MAX_SLOW_TURNS = MAX_TURNS // 2
"""How many of them may be such as failed or were slow the last time, so that others always find room."""
MAX_POSTS = 4
"""Requests to one webhook at the same time, each about another subject."""
MAX_FAILURES = 4
"""Failures in a row that end a turn."""
MAX_READS = 4
"""Our readings of the database at the same time; the others' connections are not ours to use up."""
MAX_RESTING = 10_000
MAX_BUSY = 500
"""Webhooks with work that one look finds; the next look begins after them."""
MAX_DOUBLINGS = 16
RENEW_AT = 2 / 3
"""A lease is renewed once less of it is left."""
PAGE = 100
LOG_PAGE = 200

T = TypeVar("T")
_MICROS = 1_000_000


class Result(StrEnum):
    """How an attempt ended."""

    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"


class Answered(Protocol):
    """What a webhook's endpoint replied."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        ...


Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[Answered]]
"""Sends bytes to a URL; raises OutboundRefused where trying again is of no use."""


class Counters(Protocol):
    """What is counted."""

    def attempted(self, result: str) -> None:
        """An attempt to deliver has ended."""
        ...

    def died(self) -> None:
        """An event was given up on."""
        ...

    def lag(self, count: int) -> None:
        """How many events there are past the oldest that somebody was not told of yet."""
        ...


class Uncounted:
    """Counts nothing."""

    def attempted(self, result: str) -> None:
        """Nothing."""

    def died(self) -> None:
        """Nothing."""

    def lag(self, count: int) -> None:
        """Nothing."""


class Pace(NamedTuple):
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


UNCOUNTED = Uncounted()
USUAL_PACE = Pace()


class _Means(NamedTuple):
    """What an attempt needs besides the event."""

    post: Post
    clock: Callable[[], datetime]
    jitter: Callable[[], float]
    counters: Counters
    pace: Pace
    may_go_on: Callable[[], bool]


class _Failure(NamedTuple):
    reason: str
    final: bool = False


class _Turn:
    """One webhook is sent what it is due: subjects side by side, the events of each in their order."""

    def __init__(self, target: Target, means: _Means) -> None:
        self.target = target
        self.delivered = 0
        self.failed = 0
        self.halted = False
        self._means = means
        self._signer = Signer(target.secret)
        self._in_a_row = 0
        self._ends = asyncio.get_running_loop().time() + means.pace.turn_s

    @property
    def late(self) -> bool:
        """Whether its time is up."""
        return asyncio.get_running_loop().time() >= self._ends

    def goes_on(self) -> bool:
        """Whether another attempt may begin."""
        return not (self.halted or self.late or self._in_a_row >= MAX_FAILURES) and self._means.may_go_on()

    async def again(self, due: list[Waiting], holder: str) -> Settle:
        """Try what waited; of each subject it is the first."""
        done: list[Delivery] = []
        again: list[Delivery] = []

        async def work(one: Waiting) -> None:
            missed = await self._attempt(one.numbered, one.attempts)
            if missed is None:
                done.append(Delivery(one.numbered.seq, one.numbered.subject, one.attempts + 1, 0))
            else:
                again.append(missed)

        await self._each(due, work)
        return Settle(self.target.id, holder, done=tuple(done), again=tuple(again))

    async def fresh(self, page: outbox.Page, waiting: frozenset[str], holder: str) -> Settle:
        """Try what is new; what comes after something that waits queues behind it."""
        blocked = set(waiting)
        new: list[Delivery] = []
        # Events are taken in their order, and whoever waits for a lock first gets it first.
        in_order: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

        async def work(one: Numbered) -> None:
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
        return Settle(self.target.id, holder, upto=upto, new=tuple(new))

    async def _each(self, several: Iterable[T], work: Callable[[T], Awaitable[None]]) -> int:
        """Do one after the other, a few at the same time; answers how many were begun, all of which are done."""
        taken = 0
        queue = iter(several)

        async def lane() -> None:
            nonlocal taken
            while self.goes_on():
                one = next(queue, None)
                if one is None:
                    return
                taken += 1
                await work(one)

        async with asyncio.TaskGroup() as lanes:
            for _ in range(MAX_POSTS):
                lanes.create_task(lane())
        return taken

    async def _attempt(self, numbered: Numbered, before: int) -> Delivery | None:
        """Where the event stands after one more attempt; None when it was delivered."""
        failure = await self._send(numbered.event)
        counters, pace = self._means.counters, self._means.pace
        if failure is None:
            self.delivered += 1
            self._in_a_row = 0
            counters.attempted(Result.DELIVERED)
            return None
        self.failed += 1
        self._in_a_row += 1
        now = in_micros(self._means.clock())
        if failure.final or before >= len(pace.retries_s):
            counters.attempted(Result.DEAD)
            counters.died()
            return Delivery(numbered.seq, numbered.subject, before + 1, now, failure.reason, dead_at=now)
        counters.attempted(Result.FAILED)
        delay_s = pace.retries_s[before] * (1 + JITTER * self._means.jitter())
        return Delivery(numbered.seq, numbered.subject, before + 1, now + int(delay_s * _MICROS), failure.reason)

    async def _send(self, event: Event) -> _Failure | None:
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
            return _Failure(str(refusal), final=True)
        except TimeoutError:
            return _Failure(f"no answer within {self._means.pace.post_s:g} s")
        except Exception as problem:  # noqa: BLE001 - whatever it was, the event was not delivered and others wait
            return _Failure(str(problem) or type(problem).__name__)
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return None
        return _Failure(f"answered {reply.status}", final=reply.status == HTTPStatus.GONE)


class _Ended(NamedTuple):
    """How a turn went."""

    more: bool = False
    """Whether there is something left that can be done at once."""
    bad: bool = False
    """Whether nothing at all succeeded."""
    slow: bool = False


class _Rest(NamedTuple):
    """What failed or was slow the last time."""

    bad_turns: int
    until: float


class _Look(NamedTuple):
    """What there is to do."""

    newest: int
    logged: int
    lease: outbox.Lease | None
    busy: list[Busy]
    running: frozenset[str]

    @property
    def lag(self) -> int:
        return self.newest - min([self.logged, *(one.seq for one in self.busy if one.fresh)])


class Dispatcher:
    """Runs inside the service's event loop; of several processes with one database, one delivers at a time."""

    def __init__(
        self,
        store: Store,
        post: Post,
        *,
        log: Callable[[Event], None],
        report: Callable[[Exception], None],
        counters: Counters = UNCOUNTED,
        pace: Pace = USUAL_PACE,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = store.surroundings.clock
        self._log = log
        self._report = report
        self._counters = counters
        self._pace = pace
        self._means = _Means(post, self._clock, jitter, counters, pace, self._may_go_on)
        self._holder = store.surroundings.new_id("dsp")
        self._lease_until = 0
        self._closing = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, _Turn] = {}
        self._rests: dict[str, _Rest] = {}
        self._after = ""
        self._reads = asyncio.Semaphore(MAX_READS)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._newest = 0
        self._nudge = asyncio.Event()
        self._news = asyncio.Event()
        self._telling: asyncio.TimerHandle | None = None
        self._told_at = 0.0

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until told to stop; then what was begun is finished and kept."""
        self._listen()
        self._closing = False
        try:
            while not stopping.is_set():
                self._nudge.clear()
                try:
                    await self._look_around()
                except Exception as problem:  # noqa: BLE001 - nothing may end it silently; it is told and tried again
                    self._report(problem)
                    await _first_of(stopping, within_s=self._pace.pause_s)
                else:
                    await _first_of(self._nudge, stopping, within_s=self._pace.poll_s)
        except asyncio.CancelledError:
            for task in self._tasks.values():
                task.cancel()
            raise
        finally:
            await self._close()

    async def follow(
        self, tenant: str, after_seq: int, types: frozenset[str] | None, stopping: asyncio.Event
    ) -> AsyncGenerator[Numbered | None, None]:
        """A tenant's events past a place, as they come while `run` runs; None now and then when there are none."""
        loop = self._listen()
        place = after_seq
        beat = loop.time() + self._pace.heartbeat_s
        while not stopping.is_set():
            # Taken before reading: what is written meanwhile wakes us at once.
            news = self._news
            page = await self._read(partial(_page, seq=place, tenant=tenant, types=types))
            for numbered in page.events:
                yield numbered
                if stopping.is_set():
                    return
                beat = loop.time() + self._pace.heartbeat_s
            place = page.upto
            if page.full:
                continue
            await _first_of(news, stopping, within_s=max(0.0, beat - loop.time()))
            if loop.time() >= beat and not stopping.is_set():
                yield None
                beat = loop.time() + self._pace.heartbeat_s

    def _listen(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._told_at = self._loop.time() - self._pace.gather_s
            self._store.recorder.listen(self._committed)
        return self._loop

    def _committed(self, done: Committed) -> None:
        """Called by the recorder's thread."""
        if self._loop is not None and done.events > self._newest:
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._heard, done.events)

    def _heard(self, newest: int) -> None:
        if newest > self._newest:
            self._newest = newest
            self._wake()

    def _wake(self) -> None:
        """Soon, but not more often than every `gather_s`."""
        if self._telling is None:
            loop = asyncio.get_running_loop()
            self._telling = loop.call_at(max(self._told_at + self._pace.gather_s, loop.time()), self._tell, loop)

    def _tell(self, loop: asyncio.AbstractEventLoop) -> None:
        self._telling = None
        self._told_at = loop.time()
        news, self._news = self._news, asyncio.Event()
        news.set()
        self._nudge.set()

    async def _read(self, read: Callable[[Connection], T]) -> T:
        def reading() -> T:
            with self._store.database.reading() as connection:
                return read(connection)

        async with self._reads:
            return await asyncio.to_thread(reading)

    async def _look_around(self) -> None:
        """See what there is to do, and begin as much of it as may be done at the same time."""
        now, after, running = in_micros(self._clock()), self._after, list(self._turns)

        def look(connection: Connection) -> _Look:
            return _Look(
                newest=outbox.newest(connection),
                logged=outbox.cursor(connection, LOG_CONSUMER),
                lease=outbox.lease(connection),
                busy=outbox.busy(connection, now, after=after, limit=MAX_BUSY),
                running=outbox.existing(connection, running),
            )

        found = await self._read(look)
        self._heard(found.newest)
        self._counters.lag(found.lag)
        for webhook_id, turn in self._turns.items():
            turn.halted = turn.halted or (webhook_id in running and webhook_id not in found.running)
        work = found.logged < found.newest or found.busy or self._tasks
        self._after = self._begin(found, after) if work and await self._holds(found.lease) else ""
        if after and not self._after:
            # The look began in the middle; those before it are not to wait for the next one.
            self._nudge.set()

    async def _holds(self, seen: outbox.Lease | None) -> bool:
        """Whether we are the one who delivers; renewed in good time, taken when nobody else is."""
        now = in_micros(self._clock())
        if seen is not None and seen.holder != self._holder and seen.until > now:
            self._lease_until = 0
            return False
        if self._lease_until - now < self._pace.lease_s * _MICROS * RENEW_AT:
            taken = await self._store.recorder.record(outbox.TakeLease(self._holder, self._pace.lease_s))
            self._lease_until = taken.until if taken.holder == self._holder else 0
        return self._may_go_on()

    def _may_go_on(self) -> bool:
        return not self._closing and self._lease_until > in_micros(self._clock())

    def _begin(self, found: _Look, after: str) -> str:
        """Answers after which webhook the next look begins."""
        if found.logged < found.newest and self._is_free(LOG_CONSUMER):
            self._start(LOG_CONSUMER, found.newest, self._tell_log)
        for one in found.busy:
            turns = [key for key in self._tasks if key != LOG_CONSUMER]
            if len(turns) >= MAX_TURNS:
                # The next look begins with those who found no room.
                return after
            slow = sum(1 for key in turns if key in self._rests)
            if self._is_free(one.id) and (one.id not in self._rests or slow < MAX_SLOW_TURNS):
                self._start(one.id, found.newest, partial(self._serve, one))
            after = one.id
        return after if len(found.busy) >= MAX_BUSY else ""

    def _is_free(self, key: str) -> bool:
        rest = self._rests.get(key)
        return key not in self._tasks and (rest is None or rest.until <= asyncio.get_running_loop().time())

    def _start(self, key: str, newest: int, work: Callable[[], Awaitable[_Ended]]) -> None:
        self._tasks[key] = asyncio.create_task(self._guarded(key, newest, work))

    async def _guarded(self, key: str, newest: int, work: Callable[[], Awaitable[_Ended]]) -> None:
        ended = _Ended()
        try:
            ended = await work()
        except LeaseLost:
            self._lease_until = 0
        except Exception as problem:  # noqa: BLE001 - nothing may end it silently; it is told and tried again
            self._report(problem)
            self._let_rest(key, self._pace.pause_s)
        else:
            self._judge(key, ended)
        finally:
            del self._tasks[key]
            self._turns.pop(key, None)
        if ended.more:
            self._nudge.set()
        elif self._newest > newest:
            # What came meanwhile was looked at while we were not free.
            self._wake()

    def _judge(self, key: str, ended: _Ended) -> None:
        if ended.bad:
            before = self._rests[key].bad_turns if key in self._rests else 0
            self._let_rest(key, min(self._pace.rest_s * 2 ** min(before, MAX_DOUBLINGS), MAX_REST_S))
        elif ended.slow:
            self._let_rest(key, 0.0)
        else:
            self._rests.pop(key, None)

    def _let_rest(self, key: str, seconds: float) -> None:
        before = self._rests.pop(key, None)
        bad_turns = 1 if before is None else before.bad_turns + 1
        self._rests[key] = _Rest(bad_turns if seconds else 0, asyncio.get_running_loop().time() + seconds)
        if len(self._rests) > MAX_RESTING:
            del self._rests[next(iter(self._rests))]

    async def _tell_log(self) -> _Ended:
        def read(connection: Connection) -> outbox.Page:
            # Read again: what was seen when looking around may have been told since.
            told = outbox.cursor(connection, LOG_CONSUMER)
            return outbox.page_after(connection, told, tenant=None, limit=LOG_PAGE)

        page = await self._read(read)
        for numbered in page.events:
            self._log(numbered.event)
        await self._store.recorder.record(outbox.Advance(LOG_CONSUMER, page.upto, self._holder))
        return _Ended(more=page.full)

    async def _serve(self, one: Busy) -> _Ended:
        """A webhook's turn: what waited first, then a page of what is new."""
        now = in_micros(self._clock())

        def begin(connection: Connection) -> tuple[Target | None, list[Waiting]]:
            waited = outbox.due(connection, one.id, now, limit=PAGE) if one.due else []
            return outbox.target(connection, one.id), waited

        target, due = await self._read(begin)
        if target is None:
            return _Ended()
        turn = self._turns[one.id] = _Turn(target, self._means)
        more = False
        if due:
            settled = await turn.again(due, self._holder)
            await self._store.recorder.record(settled)
            more = turn.late or any(tried.dead_at is not None for tried in settled.again) or bool(settled.done)
        if one.fresh and turn.goes_on():
            more = await self._send_fresh(turn) or more
        bad = turn.failed > 0 and turn.delivered == 0
        return _Ended(more, bad, turn.late)

    async def _send_fresh(self, turn: _Turn) -> bool:
        """Whether there are more."""
        target = turn.target

        def read(connection: Connection) -> tuple[outbox.Page, frozenset[str]]:
            page = _page(connection, target.seq, target.tenant, target.types)
            subjects = [numbered.subject for numbered in page.events]
            return page, outbox.waiting_subjects(connection, target.id, subjects)

        page, waiting = await self._read(read)
        settled = await turn.fresh(page, waiting, self._holder)
        await self._store.recorder.record(settled)
        return page.full or turn.late

    async def _close(self) -> None:
        self._closing = True
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=self._pace.closing_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._lease_until:
            self._lease_until = 0
            try:
                await self._store.recorder.record(outbox.LetGo(self._holder))
            except Exception as problem:  # noqa: BLE001 - it ends by itself then
                self._report(problem)


def _page(connection: Connection, seq: int, tenant: str, types: frozenset[str] | None) -> outbox.Page:
    return outbox.page_after(connection, seq, tenant=tenant, limit=PAGE, types=types)


async def _first_of(*events: asyncio.Event, within_s: float) -> None:
    """Wait until one of them is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
