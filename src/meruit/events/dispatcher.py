"""The dispatcher: delivers events to the log, to webhooks and to event streams, at least once and in order."""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from sqlalchemy import Connection

from meruit.errors import LeaseLost
from meruit.events.commit_signal import CommitSignal, first_of
from meruit.events.recent_events import RecentEvents
from meruit.events.store import deliveries, outbox, webhooks
from meruit.events.store.deliveries import PendingRetry, PendingWebhook
from meruit.events.store.webhooks import WebhookTarget
from meruit.events.webhook_delivery import (
    DEFAULT_TIMING,
    NO_COUNTERS,
    DeliveryContext,
    DeliveryCounters,
    DeliveryTiming,
    Post,
    WebhookTurn,
)
from meruit.model.events import Event, OutboxEvent
from meruit.model.time import to_micros
from meruit.store.store import Store

LOG_CONSUMER = "log"
MAX_REST_S = 300.0
"""Longest backoff."""
MAX_TURNS = 16
"""Most webhooks that are served at the same time."""
MAX_SLOW_TURNS = MAX_TURNS // 2
"""Most of those that failed or were slow the last time, so that others always get a turn."""
MAX_READS = 4
"""Most database reads at the same time, so that other readers keep their connections."""
MAX_BACKOFFS = 10_000
MAX_BUSY = 500
"""Most pending webhooks that one read returns; the next read starts after them."""
MAX_DOUBLINGS = 16
RENEW_AT = 2 / 3
"""A lease is renewed when less than this part of it is left."""
PAGE = 100
LOG_PAGE = 200
ADVANCE_S = 1.0
"""Shortest time between two writes of how far the log is; after a crash, events since the last one are logged again."""

T = TypeVar("T")
_MICROS = 1_000_000


class _TurnResult(msgspec.Struct, frozen=True):
    """The result of a turn."""

    more: bool = False
    """Whether there is more to do now."""
    bad: bool = False
    """Whether every delivery failed."""
    slow: bool = False


class _Backoff(msgspec.Struct, frozen=True):
    """The backoff of a consumer that failed or was slow the last time."""

    bad_turns: int
    until: float


class _PendingWork(msgspec.Struct, frozen=True):
    """The work that one read found."""

    newest: int
    logged: int
    lease: outbox.Lease | None
    busy: list[PendingWebhook]
    running: frozenset[str]
    is_behind: bool = False
    """Whether the outbox does not know yet how far the log is."""

    @property
    def lag(self) -> int:
        return self.newest - min([self.logged, *(one.seq for one in self.busy if one.fresh)])


class Dispatcher:
    """Delivers events in the service's event loop; of several processes on one database, one delivers at a time."""

    def __init__(
        self,
        store: Store,
        post: Post,
        *,
        log: Callable[[Sequence[Event]], None],
        report: Callable[[Exception], None],
        counters: DeliveryCounters = NO_COUNTERS,
        pace: DeliveryTiming = DEFAULT_TIMING,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._store = store
        self._clock = store.surroundings.clock
        self._log = log
        self._report = report
        self._counters = counters
        self._pace = pace
        self._context = DeliveryContext(
            post=post, clock=self._clock, jitter=jitter, counters=counters, pace=pace, can_continue=self._can_continue
        )
        self._holder = store.surroundings.new_id("dsp")
        self._lease_until = 0
        self._stopping = asyncio.Event()
        self._closing = False
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._turns: dict[str, WebhookTurn] = {}
        self._backoffs: dict[str, _Backoff] = {}
        self._after = ""
        self._reads = asyncio.Semaphore(MAX_READS)
        self._commit_signal = CommitSignal(store.recorder, pace.gather_s)
        self._recent: RecentEvents | None = None
        self._logged = 0
        """The last event that this process has logged while it held the lease; 0 where the outbox knows it."""
        self._advanced_at = float("-inf")

    async def run(self, stopping: asyncio.Event) -> None:
        """Deliver until `stopping` is set; then finish and record the deliveries in progress."""
        self._commit_signal.listen()
        self._keep_recent_events()
        self._stopping, self._closing = stopping, False
        try:
            while not stopping.is_set():
                self._commit_signal.nudge.clear()
                try:
                    await self._start_pending_work()
                except Exception as problem:  # noqa: BLE001 - nothing may end it silently; the error is reported and retried
                    self._report(problem)
                    await first_of(stopping, within_s=self._pace.pause_s)
                else:
                    await first_of(self._commit_signal.nudge, stopping, within_s=self._pace.poll_s)
        except asyncio.CancelledError:
            for task in self._tasks.values():
                task.cancel()
            raise
        finally:
            await self._close()

    async def watch(self, stopping: asyncio.Event) -> None:
        """Notice new events for those who follow, and deliver nothing; for a process that only reads."""
        self._commit_signal.listen()
        while not stopping.is_set():
            try:
                self._commit_signal.advance_to(await self._read(outbox.newest))
            except Exception as problem:  # noqa: BLE001 - nothing may end it silently; the error is reported and retried
                self._report(problem)
            await first_of(stopping, within_s=self._pace.poll_s)

    def announce_events(self, announce: Callable[[int], None]) -> None:
        """Call `announce` with the number of the newest event after commits of this process."""
        self._commit_signal.announce = announce

    def notice_events(self, newest: int) -> None:
        """Wake readers, because another process committed events up to this number. Needs `run` or `watch`."""
        self._commit_signal.advance_to(newest)

    async def follow(
        self,
        tenant: str,
        after_seq: int,
        types: frozenset[str] | None,
        stopping: asyncio.Event,
        *,
        subjects: frozenset[str] | None = None,
    ) -> AsyncGenerator[OutboxEvent | None, None]:
        """Yield the events of a tenant after a cursor, as they arrive; None as a heartbeat. Needs `run` or `watch`."""
        loop = self._commit_signal.listen()
        cursor = after_seq
        beat = loop.time() + self._pace.heartbeat_s
        while not stopping.is_set():
            # Taken before the read, so that an event written meanwhile wakes us at once.
            next_commit = self._commit_signal.next_commit
            page = await self._read(partial(_page, seq=cursor, tenant=tenant, types=types, subjects=subjects))
            for numbered in page.events:
                yield numbered
                if stopping.is_set():
                    return
                beat = loop.time() + self._pace.heartbeat_s
            cursor = page.upto
            if page.full:
                continue
            await first_of(next_commit, stopping, within_s=max(0.0, beat - loop.time()))
            if loop.time() >= beat and not stopping.is_set():
                yield None
                beat = loop.time() + self._pace.heartbeat_s

    async def _read(self, read: Callable[[Connection], T]) -> T:
        def reading() -> T:
            with self._store.database.reading() as connection:
                return read(connection)

        async with self._reads:
            return await asyncio.to_thread(reading)

    async def _start_pending_work(self) -> None:
        """Find pending work, and start as much of it as the limits allow."""
        now, after, running = to_micros(self._clock()), self._after, list(self._turns)

        def find_pending_work(connection: Connection) -> _PendingWork:
            return _PendingWork(
                newest=outbox.newest(connection),
                logged=outbox.cursor(connection, LOG_CONSUMER),
                lease=outbox.lease(connection),
                busy=deliveries.pending_webhooks(connection, now, after=after, limit=MAX_BUSY),
                running=webhooks.existing(connection, running),
            )

        found = await self._read(find_pending_work)
        if found.logged < self._logged:
            found = msgspec.structs.replace(found, logged=self._logged, is_behind=True)
        self._commit_signal.advance_to(found.newest)
        self._counters.set_lag(found.lag)
        for webhook_id, turn in self._turns.items():
            turn.halted = turn.halted or (webhook_id in running and webhook_id not in found.running)
        work = found.logged < found.newest or found.is_behind or found.busy or self._tasks
        self._after = self._begin(found, after) if work and await self._hold_lease(found.lease) else ""
        if after and not self._after:
            # This read started in the middle; the webhooks before it must not wait for the next poll.
            self._commit_signal.nudge.set()

    async def _hold_lease(self, seen: outbox.Lease | None) -> bool:
        """Take or renew the delivery lease; returns whether this process holds it."""
        now = to_micros(self._clock())
        if seen is not None and seen.holder != self._holder and seen.until > now:
            self._lease_until = self._logged = 0
            return False
        if self._lease_until - now < self._pace.lease_s * _MICROS * RENEW_AT:
            taken = await self._store.recorder.record(outbox.TakeLease(self._holder, self._pace.lease_s))
            self._lease_until = taken.until if taken.holder == self._holder else 0
        return self._can_continue()

    def _can_continue(self) -> bool:
        # Asked of `stopping` itself: the loop may be reading, and would notice it later.
        closing = self._closing or self._stopping.is_set()
        return not closing and self._lease_until > to_micros(self._clock())

    def _begin(self, found: _PendingWork, after: str) -> str:
        """Start turns; returns the webhook after which the next read starts."""
        if (found.logged < found.newest or found.is_behind) and self._is_free(LOG_CONSUMER):
            self._start(LOG_CONSUMER, found.newest, self._log_events)
        for one in found.busy:
            turns = [key for key in self._tasks if key != LOG_CONSUMER]
            if len(turns) >= MAX_TURNS:
                # The next read starts with the webhooks that got no turn.
                return after
            slow = sum(1 for key in turns if key in self._backoffs)
            if self._is_free(one.id) and (one.id not in self._backoffs or slow < MAX_SLOW_TURNS):
                self._start(one.id, found.newest, partial(self._serve, one))
            after = one.id
        return after if len(found.busy) >= MAX_BUSY else ""

    def _is_free(self, key: str) -> bool:
        rest = self._backoffs.get(key)
        return key not in self._tasks and (rest is None or rest.until <= asyncio.get_running_loop().time())

    def _start(self, key: str, newest: int, work: Callable[[], Awaitable[_TurnResult]]) -> None:
        self._tasks[key] = asyncio.create_task(self._run_guarded(key, newest, work))

    async def _run_guarded(self, key: str, newest: int, work: Callable[[], Awaitable[_TurnResult]]) -> None:
        ended = _TurnResult()
        try:
            ended = await work()
        except LeaseLost:
            self._lease_until = self._logged = 0
        except Exception as problem:  # noqa: BLE001 - nothing may end it silently; the error is reported and retried
            self._report(problem)
            self._back_off(key, self._pace.pause_s)
        else:
            self._update_backoff(key, ended)
        finally:
            del self._tasks[key]
            self._turns.pop(key, None)
        if ended.more:
            self._commit_signal.nudge.set()
        elif self._commit_signal.newest > newest:
            # Events that arrived meanwhile were found while this consumer was busy.
            self._commit_signal.wake()

    def _update_backoff(self, key: str, ended: _TurnResult) -> None:
        if ended.bad:
            before = self._backoffs[key].bad_turns if key in self._backoffs else 0
            self._back_off(key, min(self._pace.rest_s * 2 ** min(before, MAX_DOUBLINGS), MAX_REST_S))
        elif ended.slow:
            self._back_off(key, 0.0)
        else:
            self._backoffs.pop(key, None)

    def _back_off(self, key: str, seconds: float) -> None:
        before = self._backoffs.pop(key, None)
        bad_turns = 1 if before is None else before.bad_turns + 1
        self._backoffs[key] = _Backoff(bad_turns if seconds else 0, asyncio.get_running_loop().time() + seconds)
        if len(self._backoffs) > MAX_BACKOFFS:
            del self._backoffs[next(iter(self._backoffs))]

    def _keep_recent_events(self) -> None:
        """Keep what this process commits from now on until it is logged."""
        if self._recent is None:
            self._recent = recent = RecentEvents()
            self._store.recorder.listen(lambda done: recent.add(done.emitted))

    async def _log_events(self) -> _TurnResult:
        recent = [] if self._recent is None or not self._logged else self._recent.take_after(self._logged)
        if recent:
            self._log([numbered.event for numbered in recent])
            self._logged = recent[-1].seq
            await self._advance_log(only_if_due=True)
            return _TurnResult(more=self._logged < self._commit_signal.newest)
        if self._commit_signal.newest > self._logged:
            page = await self._read(self._read_unlogged)
            if page.events:
                self._log([numbered.event for numbered in page.events])
            self._logged = page.upto
            await self._advance_log()
            return _TurnResult(more=page.full)
        await self._advance_log(only_if_due=True)
        return _TurnResult()

    def _read_unlogged(self, connection: Connection) -> outbox.OutboxPage:
        # Read again: the events may have been logged since the first read.
        logged = max(self._logged, outbox.cursor(connection, LOG_CONSUMER))
        return outbox.page_after(connection, logged, tenant=None, limit=LOG_PAGE)

    async def _advance_log(self, *, only_if_due: bool = False) -> None:
        """Write how far the log is; a write for every wake-up would cost as much as logging."""
        now = asyncio.get_running_loop().time()
        if not only_if_due or now - self._advanced_at >= ADVANCE_S:
            await self._store.recorder.record(
                outbox.Advance(consumer=LOG_CONSUMER, seq=self._logged, holder=self._holder)
            )
            self._advanced_at = now

    async def _serve(self, one: PendingWebhook) -> _TurnResult:
        """Serve one webhook: due retries first, then a page of new events."""
        now = to_micros(self._clock())

        def begin(connection: Connection) -> tuple[WebhookTarget | None, list[PendingRetry]]:
            retries = deliveries.due_retries(connection, one.id, now, limit=PAGE) if one.due else []
            return webhooks.target(connection, one.id), retries

        target, due = await self._read(begin)
        if target is None:
            return _TurnResult()
        turn = self._turns[one.id] = WebhookTurn(target, self._context)
        more = False
        if due:
            settled = await turn.retry(due, self._holder)
            await self._store.recorder.record(settled)
            more = turn.is_late or any(tried.dead_at is not None for tried in settled.again) or bool(settled.done)
        if one.fresh and turn.can_continue():
            more = await self._send_fresh(turn) or more
        bad = turn.failed > 0 and turn.delivered == 0
        return _TurnResult(more=more, bad=bad, slow=turn.is_late)

    async def _send_fresh(self, turn: WebhookTurn) -> bool:
        """Send a page of new events; returns whether there are more."""
        target = turn.target

        def read(connection: Connection) -> tuple[outbox.OutboxPage, frozenset[str]]:
            page = _page(connection, target.seq, target.tenant, target.types)
            subjects = [numbered.subject for numbered in page.events]
            return page, deliveries.waiting_subjects(connection, target.id, subjects)

        page, waiting = await self._read(read)
        settled = await turn.send_new(page, waiting, self._holder)
        await self._store.recorder.record(settled)
        return page.full or turn.is_late

    async def _close(self) -> None:
        self._closing = True
        if self._tasks:
            _, late = await asyncio.wait(list(self._tasks.values()), timeout=self._pace.closing_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        if self._lease_until:
            try:
                if self._logged:
                    await self._advance_log()
            except Exception as problem:  # noqa: BLE001 - the events since the last one are then logged again
                self._report(problem)
            self._lease_until = self._logged = 0
            try:
                await self._store.recorder.record(outbox.ReleaseLease(self._holder))
            except Exception as problem:  # noqa: BLE001 - the lease then expires by itself
                self._report(problem)


def _page(
    connection: Connection,
    seq: int,
    tenant: str,
    types: frozenset[str] | None,
    subjects: frozenset[str] | None = None,
) -> outbox.OutboxPage:
    return outbox.page_after(connection, seq, tenant=tenant, limit=PAGE, types=types, subjects=subjects)
