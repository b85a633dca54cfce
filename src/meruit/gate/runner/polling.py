"""What every worker does beside driving: look for what is due, say that it lives, and let go when told to stop."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, NamedTuple

from meruit.documents.sanitize import describe
from meruit.errors import StoreUnavailable, WorkerRefused
from meruit.gate.runner.engine import AgentRoster, DurableEngine
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun, ForgetWorker, OverdueWait, RecordHeartbeat
from meruit.gate.store.runs import WakeRun
from meruit.gate.tools import contain_exits
from meruit.model.time import to_micros
from meruit.store.recorder import CommitNotice
from meruit.store.store import Store

CLOSING_S = 10.0
NOTHING_CAME = b'"nothing came in time"'


class PollingIntervals(NamedTuple):
    """How often a worker looks around, and for how long it is believed to live."""

    poll_s: float = 0.1
    """How soon it sees what other processes wrote."""
    beat_s: float = 5.0
    """How often it says that it lives."""
    alive_s: float = 20.0
    """For how long it is believed."""
    reap_s: float = 5.0
    """How often it looks for what the dead have left."""


class _PollResult(NamedTuple):
    due: list[DueRun]
    late: list[OverdueWait]
    stop: list[DueRun]


class PollingEngine(DurableEngine):
    """An engine that finds its work by looking: what is due stands in the store, so no message can be lost."""

    def __init__(  # noqa: PLR0913 - each is a setting of its own
        self,
        store: Store,
        crew: AgentRoster,
        *,
        worker: str,
        concurrency: int,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
        pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
        only: str | None = None,
    ) -> None:
        super().__init__(store, crew, worker=worker, deps=deps, watch=watch)
        if concurrency < 1:
            raise WorkerRefused(f"a worker drives at least one run at a time, not {concurrency}")
        self.concurrency, self.pace, self.only = concurrency, pace, only
        self.gather_s = pace.poll_s
        """The least time between two looks."""
        self._commit_signal = asyncio.Event()
        self._away = False
        self._taken: dict[tuple[str, str], asyncio.Task[Any]] = {}

    @abstractmethod
    async def open(self) -> list[Callable[[], Awaitable[None]]]:
        """Begin; answers what else is to be done again and again, as often as the dead are looked for."""

    @abstractmethod
    def fetch_limit(self) -> int:
        """How many due runs are worth reading now."""

    @abstractmethod
    async def feed(self, found: list[DueRun]) -> None:
        """Have them driven, as far as there is room."""

    async def close(self) -> None:
        """Let go of what runs, so that the next worker need not guess."""
        running = [*self._taken.values()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running, timeout=CLOSING_S)

    async def serve(self, stopping: asyncio.Event, *, until_idle: bool = False) -> None:
        """Work until told to stop; with `until_idle`, until nothing is due, running or pausing any more."""
        with contain_exits(asyncio.get_running_loop()):
            await self._serve(stopping, until_idle=until_idle)

    async def _serve(self, stopping: asyncio.Event, *, until_idle: bool) -> None:
        loop = asyncio.get_running_loop()

        def on_commit(_committed: CommitNotice) -> None:
            # The loop may be over, and the store with all its listeners still in use.
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
                news = loop.create_task(self._commit_signal.wait())
                await asyncio.wait({news, halted}, timeout=self.pace.poll_s, return_when=asyncio.FIRST_COMPLETED)
                news.cancel()
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
        """Drive a run in a task of its own, unless one does."""
        key = (due.tenant, due.id)
        if key not in self._taken:
            task = asyncio.get_running_loop().create_task(self.run(due, takeover=takeover))
            self._taken[key] = task
            task.add_done_callback(lambda done: self._on_task_done(key, done))

    def now(self) -> int:
        """The time, in microseconds."""
        return to_micros(self.store.surroundings.clock())

    async def _poll(self) -> None:
        """Take what is due, wake what has waited in vain, end what nobody wants."""
        try:
            seen = await asyncio.to_thread(self._read_store)
            for one in seen.late:
                await self.store.recorder.record(WakeRun(one.tenant, one.id, one.key, NOTHING_CAME))
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
                agent_reading.due_runs(connection, now, self.agents.names, wanted, only=self.only)
                if wanted > 0
                else [],
                agent_reading.overdue_waits(connection, now, only=self.only),
                agent_reading.runs_to_cancel(connection, self.worker) if self._taken else [],
            )

    def _on_task_done(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        del self._taken[key]
        self._commit_signal.set()
        crash = None if task.cancelled() else task.exception()
        if crash is not None:
            self.watch(key[1], f"the worker could not drive it: {describe(crash)}")

    def _report_unreachable(self, problem: StoreUnavailable) -> None:
        """Told once, however often it is tried."""
        if not self._away:
            self._away = True
            self.watch(self.worker, f"the database cannot be reached ({problem}); trying again")

    def _report_reachable(self) -> None:
        if self._away:
            self._away = False
            self.watch(self.worker, "the database is back")

    async def _beat(self) -> None:
        # Who is here for one run works for nobody else's.
        agents = self.agents.names if self.only is None else ()
        with suppress(StoreUnavailable):
            await self.store.recorder.record(RecordHeartbeat(self.worker, agents, self.pace.alive_s))

    async def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(seconds)
            try:
                await chore()
            except StoreUnavailable as problem:
                self._report_unreachable(problem)
            except Exception as problem:  # noqa: BLE001 - it is tried again; a worker that fell silent would be taken for dead
                self.watch(self.worker, describe(problem))
