"""The engine for one process: it takes runs from a SQLite file, and a lock keeps a second process out.

On Postgres it drives one run and its members for a client that waits for that run, beside other workers.
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
"""Least pause between two polls, so that many commits do not mean as many polls."""
MAX_LEFT = 10_000
"""Most runs to take over from a dead process at a time."""


_locks: set[int] = set()


def _close_locks() -> None:
    """Close the locks in a forked child of authors' code, which would hold them after the end of the worker."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


@contextmanager
def hold_worker_lock(folder: Path) -> Iterator[None]:
    """Lock a data folder for one worker; raises WorkerRefused with the process that has the lock."""
    file = folder / LOCK_FILE
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    _locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 100).decode(errors="replace").strip() or "another process"
            raise WorkerRefused(
                f"{holder} already works on {folder}, and a SQLite file can have one worker only; "
                "stop that one, or use Postgres (--database-url) for several workers"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        yield
    finally:
        # A forked child has closed it already.
        if descriptor in _locks:
            _locks.discard(descriptor)
            os.close(descriptor)


class InlineEngine(PollingEngine):
    """Drives due runs in this process, several at a time."""

    def __init__(
        self,
        store: Store,
        agents: AgentRoster,
        *,
        concurrency: int = 16,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
        pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
        only: str | None = None,
    ) -> None:
        worker = store.surroundings.new_id("wrk")
        super().__init__(
            store,
            agents,
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
        """Continue a run of a process that is gone."""
        self.begin(due, takeover=True)

    async def open(self) -> list[Callable[[], Awaitable[None]]]:
        """Find orphaned runs: with the lock on a file, all running ones; on Postgres, at intervals."""
        if self.store.database.location.kind == "postgresql":
            return [self._reap]
        self._left.extend(self._find_orphans(all_but=self.worker))
        return []

    def fetch_limit(self) -> int:
        """As many as can be driven, and those being claimed, which may still be listed as queued."""
        return self.concurrency if len(self._taken) < self.concurrency else 0

    async def feed(self, found: list[DueRun]) -> None:
        """Drive started runs before new ones."""
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
                connection,
                self.now(),
                self.agents.names,
                all_but=all_but,
                limit=MAX_LEFT,
                only=self.only,
            )

    def _has_capacity(self) -> bool:
        return len(self._taken) < self.concurrency
