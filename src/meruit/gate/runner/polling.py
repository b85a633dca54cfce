"""What every worker does beside driving runs: poll for due runs, send heartbeats, release runs when it stops."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec

from meruit.documents.sanitize import describe
from meruit.errors import StoreUnavailable, WorkerRefused
from meruit.gate.journal import TIMED_OUT
from meruit.gate.runner.engine import AgentRoster, DurableEngine
from meruit.gate.state import VERIFIER_WAIT
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun, ForgetWorker, OverdueWait, RecordHeartbeat
from meruit.gate.store.runs import WakeRun
from meruit.gate.tools import contain_exits
from meruit.model.time import to_micros
from meruit.store.recorder import CommitNotice
from meruit.store.store import Store

CLOSING_S = 10.0
NOTHING_CAME = b'"nothing came in time"'


class PollingIntervals(msgspec.Struct, frozen=True):
    """The intervals of a worker: polls, heartbeats, lease, search for orphaned runs."""

    poll_s: float = 0.1
    """Between two polls, unless this process commits earlier."""
    beat_s: float = 5.0
    """Between two heartbeats."""
    alive_s: float = 20.0
    """Length of the lease that a heartbeat extends."""
    reap_s: float = 5.0
    """Between two searches for runs of dead workers."""


class _PollResult(msgspec.Struct, frozen=True):
    due: list[DueRun]
    late: list[OverdueWait]
    stop: list[DueRun]


class PollingEngine(DurableEngine):
    """An engine that polls the store for due runs, so that no message can be lost."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        store: Store,
        agents: AgentRoster,
        *,
        worker: str,
        concurrency: int,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
        pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
        only: str | None = None,
    ) -> None:
        super().__init__(store, agents, worker=worker, deps=deps, watch=watch)
        if concurrency < 1:
            raise WorkerRefused(f"a worker drives at least one run at a time, not {concurrency}")
        self.concurrency, self.pace, self.only = concurrency, pace, only
        self.gather_s = pace.poll_s
        """Least time between two polls."""
        self._commit_signal = asyncio.Event()
        self._away = False
        self._taken: dict[tuple[str, str], asyncio.Task[Any]] = {}

    @abstractmethod
    async def open(self) -> list[Callable[[], Awaitable[None]]]:
        """Start; return the chores to repeat at the interval `reap_s`."""

    @abstractmethod
    def fetch_limit(self) -> int:
        """How many due runs to read now."""

    @abstractmethod
    async def feed(self, found: list[DueRun]) -> None:
        """Drive as many of them as possible."""

    async def close(self) -> None:
        """Release the running runs, so that another worker can continue at once."""
        running = [*self._taken.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)

    async def serve(self, stopping: asyncio.Event, *, until_idle: bool = False) -> None:
        """Work until `stopping` is set; with `until_idle`, until no run is due, running or pausing."""
        with contain_exits(asyncio.get_running_loop()):
            await self._serve(stopping, until_idle=until_idle)

    async def _serve(self, stopping: asyncio.Event, *, until_idle: bool) -> None:
        loop = asyncio.get_running_loop()

        def on_commit(_committed: CommitNotice) -> None:
            # The loop may be closed while the store and its listeners are still in use.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._commit_signal.set)

        await self._beat()
        beating = loop.create_task(self._every(self.pace.beat_s, self._beat))
        chores: list[asyncio.Task[None]] = []
        halted = loop.create_task(stopping.wait())
        try:
            chores += [loop.create_task(self._every(self.pace.reap_s, chore)) for chore in await self.open()]
            self.store.recorder.listen(on_commit)
            while not stopping.is_set():
                self._commit_signal.clear()
                await self._poll()
                if until_idle and await self._is_idle():
                    return
                signal = loop.create_task(self._commit_signal.wait())
                await asyncio.wait({signal, halted}, timeout=self.pace.poll_s, return_when=asyncio.FIRST_COMPLETED)
                signal.cancel()
                await asyncio.sleep(self.gather_s)
        finally:
            for task in (halted, *chores):
                task.cancel()
            try:
                await self.close()
            finally:
                beating.cancel()
                with suppress(StoreUnavailable):
                    await self.store.recorder.record(ForgetWorker(self.worker))

    def begin(self, due: DueRun, *, takeover: bool) -> None:
        """Drive a run in a task of its own, unless one does already."""
        key = (due.tenant, due.id)
        if key not in self._taken:
            task = asyncio.get_running_loop().create_task(self.run(due, takeover=takeover))
            self._taken[key] = task
            task.add_done_callback(lambda done: self._on_task_done(key, done))

    def now(self) -> int:
        """The time, in microseconds."""
        return to_micros(self.store.surroundings.clock())

    async def _poll(self) -> None:
        """Drive due runs, end waits that have timed out, stop cancelled runs."""
        try:
            seen = await asyncio.to_thread(self._read_store)
            for one in seen.late:
                instead = TIMED_OUT if one.key.startswith(VERIFIER_WAIT) else NOTHING_CAME
                await self.store.recorder.record(WakeRun(tenant=one.tenant, id=one.id, key=one.key, value=instead))
        except StoreUnavailable as problem:
            self._report_unreachable(problem)
            return
        self._report_reachable()
        for due in seen.stop:
            self.stop(due)
        await self.feed(seen.due)

    async def _is_idle(self) -> bool:
        if self._taken:
            return False
        try:
            return not await asyncio.to_thread(self._has_unfinished_runs)
        except StoreUnavailable:
            return False

    def _has_unfinished_runs(self) -> bool:
        with self.store.database.reading() as connection:
            return agent_reading.has_unfinished_runs(connection, self.agents.names, only=self.only)

    def _read_store(self) -> _PollResult:
        now, wanted = self.now(), self.fetch_limit()
        with self.store.database.reading() as connection:
            return _PollResult(
                due=agent_reading.due_runs(connection, now, self.agents.names, wanted, only=self.only)
                if wanted > 0
                else [],
                late=agent_reading.overdue_waits(connection, now, only=self.only),
                stop=agent_reading.runs_to_cancel(connection, self.worker) if self._taken else [],
            )

    def _on_task_done(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        del self._taken[key]
        self._commit_signal.set()
        crash = None if task.cancelled() else task.exception()
        if crash is not None:
            self.watch(key[1], f"the worker failed to drive it: {describe(crash)}")

    def _report_unreachable(self, problem: StoreUnavailable) -> None:
        """Report once, however often it is retried."""
        if not self._away:
            self._away = True
            self.watch(self.worker, f"the database cannot be reached ({problem}); retrying")

    def _report_reachable(self) -> None:
        if self._away:
            self._away = False
            self.watch(self.worker, "the database can be reached again")

    async def _beat(self) -> None:
        # A worker for one run does not offer its agents to other runs.
        agents = self.agents.names if self.only is None else ()
        with suppress(StoreUnavailable):
            await self.store.recorder.record(RecordHeartbeat(id=self.worker, agents=agents, seconds=self.pace.alive_s))

    async def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await chore()
            except StoreUnavailable as problem:
                self._report_unreachable(problem)
            except Exception as problem:  # noqa: BLE001 - it is retried; without heartbeats the worker would seem dead
                self.watch(self.worker, describe(problem))
