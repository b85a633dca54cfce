"""The engine for one process: runs are taken from the SQLite file that keeps them, and no second process may.

On Postgres it drives one run and its members for whoever waits for just that, beside workers that it shares them with.
"""

import asyncio
import fcntl
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from meruit.errors import WorkerRefused
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.polling import PollingEngine, PollingIntervals
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun
from meruit.store.store import Store

LOCK_FILE = "worker.lock"
GATHER_S = 0.005
"""So that a thousand commits a second are not a thousand looks."""
MAX_LEFT = 10_000
"""Runs that a dead process may have left."""


_locks: set[int] = set()


def _close_locks() -> None:
    """In a child that authors' code forked: while it lives, it would hold the lock of a worker that is gone."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def hold_worker_lock(folder: Path) -> Iterator[None]:
    """Be the only worker of a data folder; raises WorkerRefused with who is."""
    file = folder / LOCK_FILE
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    _locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another process"
            raise WorkerRefused(
                f"{holder} works on {folder} already, and a SQLite file has one worker; "
                "end that one, or use Postgres (--database-url), where any number may work"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        # A forked child that comes by here has closed it.
        if descriptor in _locks:
            _locks.discard(descriptor)
            os.close(descriptor)


class InlineEngine(PollingEngine):
    """Takes due runs, several at a time, in this process."""

    def __init__(
        self,
        store: Store,
        crew: AgentRoster,
        *,
        concurrency: int = 16,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
        pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
        only: str | None = None,
    ) -> None:
        worker = store.surroundings.new_id("wrk")
        super().__init__(
            *(store, crew),
            worker=worker,
            concurrency=concurrency,
            deps=deps,
            watch=watch,
            pace=pace,
            only=only,
        )
        self.gather_s = GATHER_S
        self._left: deque[DueRun] = deque()

    async def enqueue(self, due: DueRun) -> None:
        """Drive it here, beside the others."""
        self.begin(due, takeover=False)

    async def resume(self, due: DueRun) -> None:
        """Drive on what a process left that is gone."""
        self.begin(due, takeover=True)

    async def open(self) -> list[Callable[[], Awaitable[None]]]:
        """Whatever runs on a file was driven by a process that is gone, as this one holds the lock; elsewhere, look."""
        if self.store.database.location.kind == "postgresql":
            return [self._reap]
        self._left.extend(self._find_orphans(all_but=self.worker))
        return []

    def fetch_limit(self) -> int:
        """As many as there is room for, and those that are being taken, which may still be listed as queued."""
        return self.concurrency if len(self._taken) < self.concurrency else 0

    async def feed(self, found: list[DueRun]) -> None:
        """What was begun goes before what is new."""
        while self._left and self._has_capacity():
            await self.resume(self._left.popleft())
        for due in found:
            if self._has_capacity():
                await self.enqueue(due)

    async def _reap(self) -> None:
        self._left.extend(await asyncio.to_thread(self._find_orphans))

    def _find_orphans(self, all_but: str | None = None) -> list[DueRun]:
        with self.store.database.reading() as connection:
            return agent_reading.orphan_runs(
                *(connection, self.now(), self.agents.names),
                all_but=all_but,
                limit=MAX_LEFT,
                only=self.only,
            )

    def _has_capacity(self) -> bool:
        return len(self._taken) < self.concurrency
