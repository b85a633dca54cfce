"""The engine for many processes on many machines: DBOS on Postgres queues the runs; our own journal is the record.

A queued run is a row. Every worker enqueues the next few due rows in the queue of all workers with the same agents.
The workflow id names the claim of the run, so that two workers enqueue it once. The workflow has no steps of its own:
it claims the run, drives it with our journal, and ends at the run's next pause. The first worker that sees the lease
of a dead worker end enqueues its runs again.
"""

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from hashlib import sha256
from importlib import metadata
from typing import Any
from uuid import uuid4

import msgspec
from sqlalchemy import create_engine

from meruit.documents.sanitize import describe
from meruit.errors import WorkerRefused
from meruit.gate.loop import MAX_LINE
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.polling import PollingEngine, PollingIntervals
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun, ForgetWorker
from meruit.store.store import Store

try:
    from dbos import DBOS, DBOSConfig, DBOSPortableJSONSerializer, EnqueueOptions, WorkflowStatus
except ModuleNotFoundError:
    raise WorkerRefused("workers on Postgres need DBOS: pip install 'meruit[cluster]'") from None

LEAST_DBOS = (3, 3)
"""Earlier versions let a paused worker overwrite the one that took over."""
CONTRACT = "meruit-agents-1"
"""Version of the workflow; DBOS gives a workflow only to workers of the same version."""
SCHEMA = "meruit_dbos"
"""Database schema of DBOS, beside our own tables."""
WORKFLOW = "meruit_agent_run"
LEAST_AHEAD = 64
"""Least number of runs to keep in the queue, so that a free worker need not wait for the next poll."""
DONE_FOR_S = 600.0
"""Seconds after which a workflow that has ended is deleted from DBOS."""
MAX_SWEPT = 1_000
"""Workflows to read in one pass."""
FORGET_AFTER = 10
"""Leases after which a silent worker is removed from the list."""
POOL_SIZE = 10
CLOSING = 5
"""Seconds that DBOS waits for its workflows to end."""
CONNECTING = re.compile(r"connect|shut ?down|starting up|OperationalError|InterfaceError", re.IGNORECASE)
"""Matches log lines of DBOS about a database that cannot be reached."""
FIRST, USUAL = 1, 2
"""Priorities: runs of a dead worker go before new ones."""


class DbosEngine(PollingEngine):
    """Drives due runs from a queue that all workers with the same agents and settings share."""

    def __init__(
        self,
        store: Store,
        agents: AgentRoster,
        *,
        concurrency: int = 16,
        total: int | None = None,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
        pace: PollingIntervals = PollingIntervals(),  # noqa: B008 - frozen
    ) -> None:
        worker = f"{socket.gethostname()[:60]}-{os.getpid()}-{uuid4().hex}"
        super().__init__(store, agents, worker=worker, concurrency=concurrency, deps=deps, watch=watch, pace=pace)
        self.total = total
        """Most runs that all workers of the queue drive at a time; None for no limit."""
        self.queue = _queue_name(agents, concurrency, total)
        self._fed: set[str] = set()
        self._launched = self._closing = False
        self._pool = create_engine(store.database.writer.url, pool_size=POOL_SIZE, pool_pre_ping=True)
        self._log = _DbosLogHandler(lambda text: watch(worker, text))

    async def enqueue(self, due: DueRun) -> None:
        """Enqueue a run; the same claim of it twice is enqueued once."""
        await self._enqueue_workflow(due, self._workflow_id(due), USUAL)

    async def resume(self, due: DueRun) -> None:
        """Enqueue a run whose worker is gone."""
        # By its claim, not by its worker: a worker that was only silent may claim it again, and lose it again.
        await self._enqueue_workflow(due, f"{self.queue}:{due.tenant}:{due.id}:{due.owner}", FIRST)

    async def open(self) -> list[Callable[[], Awaitable[None]]]:
        """Launch DBOS on this event loop, which must be the only one while the worker lives."""
        # One for each process, like DBOS itself.
        global _engine
        _check_version()
        logging.getLogger("dbos").addHandler(self._log)
        DBOS(config=self._config())
        if DBOS.executor_id != self.worker:
            raise WorkerRefused(
                "this process already uses DBOS, which takes its first settings only; "
                "start the worker in a process of its own: meruit worker app:agents"
            )
        _engine, self._launched = self, True
        try:
            DBOS.listen_queues([self.queue])
            DBOS.launch()
            await DBOS.register_queue_async(
                self.queue,
                worker_concurrency=self.concurrency if self.total is None else min(self.concurrency, self.total),
                global_concurrency=self.total,
                polling_interval_sec=self.pace.poll_s,
                on_conflict="always_update",
            )
        except Exception as problem:
            where = self.store.database.location.display_name
            raise WorkerRefused(f"DBOS cannot be started on {where}: {describe(problem)}") from problem
        return [self._reap, self._sweep]

    def fetch_limit(self) -> int:
        """The next few of all due runs."""
        return max(LEAST_AHEAD, 2 * self.concurrency)

    async def feed(self, found: list[DueRun]) -> None:
        """Enqueue new runs; those enqueued earlier and still due are in the queue."""
        by_id = {self._workflow_id(due): due for due in found}
        self._fed &= by_id.keys()
        fresh = [name for name in by_id if name not in self._fed]
        errors = await asyncio.gather(*(self.enqueue(by_id[name]) for name in fresh), return_exceptions=True)
        for name, problem in zip(fresh, errors, strict=True):
            if problem is None:
                self._fed.add(name)
            else:
                # The row is still due: the next poll retries.
                self.watch(by_id[name].id, f"could not be enqueued: {_first_line(str(problem))}")

    async def close(self) -> None:
        """Take no more runs, release the running ones, and give the event loop its own threads back."""
        global _engine  # noqa: PLW0603
        self._closing = True
        if self._launched:
            loop = asyncio.get_running_loop()
            with ThreadPoolExecutor(1) as aside:
                # In a thread, because the thread of its queue starts its last workflows on this loop.
                ending = loop.run_in_executor(aside, lambda: DBOS.destroy(workflow_completion_timeout_sec=CLOSING))
                await super().close()
                await ending
            await super().close()
            # DBOS had set its own threads as those of the loop, and has ended them.
            loop.set_default_executor(ThreadPoolExecutor())
            _engine = None
        logging.getLogger("dbos").removeHandler(self._log)
        self._pool.dispose()

    async def drive(self, due: DueRun) -> None:
        """Drive the run as far as it goes, as the body of a workflow; the store, not DBOS, has the result."""
        key = (due.tenant, due.id)
        while (before := self._taken.get(key)) is not None:
            # An earlier claim may end without the run; then this one must try itself.
            await asyncio.wait({before})
            await asyncio.sleep(0)
        self.begin(due, takeover=due.worker is not None)
        task = self._taken[key]
        if self._closing:
            # Too late: claim and release it, so that another worker sees it again.
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait({task})

    def _config(self) -> DBOSConfig:
        return {
            "name": "meruit",
            "application_version": CONTRACT,
            "executor_id": self.worker,
            "system_database_engine": self._pool,
            "dbos_system_schema": SCHEMA,
            # Not the default, pickle: write access to the table would allow running code here.
            "serializer": DBOSPortableJSONSerializer(),
            "use_listen_notify": False,
            "enable_otlp": False,
            "log_level": "WARNING",
        }

    async def _enqueue_workflow(self, due: DueRun, workflow_id: str, priority: int) -> None:
        options: EnqueueOptions = {
            "workflow_name": WORKFLOW,
            "queue_name": self.queue,
            "workflow_id": workflow_id,
            "app_version": CONTRACT,
            "priority": priority,
        }
        await DBOS.enqueue_workflow_with_options_async(options, due.tenant, due.id, due.agent, due.worker)

    def _workflow_id(self, due: DueRun) -> str:
        # After one lease, two, four and so on it may be enqueued again, so that a run is not stranded if its workflow
        # is lost, for example deleted by an operator; ever more rarely, so that a long queue does not multiply.
        leases = int((self.now() - due.wake_at) / 1_000_000 / self.pace.alive_s)
        return f"{self.queue}:{due.tenant}:{due.id}:{due.wake_at}:{leases.bit_length()}"

    async def _reap(self) -> None:
        """Let the runs of dead workers continue; the next pass makes up for one that fails."""
        left, silent = await asyncio.to_thread(self._find_dead)
        for due in left:
            await self.resume(due)
        for worker in silent:
            await self.store.recorder.record(ForgetWorker(worker))

    def _find_dead(self) -> tuple[list[DueRun], list[str]]:
        now = self.now()
        long_ago = now - int(FORGET_AFTER * self.pace.alive_s * 1_000_000)
        with self.store.database.reading() as connection:
            left = agent_reading.orphan_runs(connection, now, self.agents.names)
            return left, agent_reading.dead_worker_ids(connection, long_ago)

    async def _sweep(self) -> None:
        """Resume workflows that DBOS assigns to dead workers, and delete those that ended long ago."""
        pending = await self._workflows(status="PENDING", queue_name=self.queue)
        alive = await asyncio.to_thread(self._live_worker_ids)
        lost = [one.workflow_id for one in pending if one.executor_id not in alive]
        if lost:
            # If the run was claimed since, this only makes DBOS stop counting it.
            await DBOS.resume_workflows_async(lost, queue_name=self.queue)
        before = self.store.surroundings.clock() - timedelta(seconds=DONE_FOR_S)
        done = await self._workflows(status=["SUCCESS", "ERROR", "CANCELLED"], completed_before=before.isoformat())
        if done:
            await DBOS.delete_workflows_async([one.workflow_id for one in done])

    # Any: filters of DBOS, passed on.
    async def _workflows(self, **chosen: Any) -> list[WorkflowStatus]:
        return await DBOS.list_workflows_async(
            name=WORKFLOW, load_input=False, load_output=False, limit=MAX_SWEPT, **chosen
        )

    def _live_worker_ids(self) -> set[str]:
        with self.store.database.reading() as connection:
            return {one.id for one in agent_reading.live_workers(connection, self.now())}


class _DbosLogHandler(logging.Handler):
    """Passes warnings of DBOS on to the log of the worker."""

    def __init__(self, report: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        # The worker itself reports, once, that the database cannot be reached.
        if CONNECTING.search(text) is None:
            self._report(_first_line(text))


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:MAX_LINE]


_engine: DbosEngine | None = None


@DBOS.workflow(name=WORKFLOW)
async def _agent_run(tenant: str, run_id: str, agent: str, gone: str | None) -> None:
    if _engine is not None:
        await _engine.drive(DueRun(tenant=tenant, id=run_id, agent=agent, worker=gone))


def _queue_name(agents: AgentRoster, concurrency: int, total: int | None) -> str:
    """Name the queue by agents and limits, because DBOS stores the limits with the queue."""
    settings = msgspec.json.encode([agents.names, concurrency, total])
    return f"meruit-{sha256(settings).hexdigest()[:16]}"


def _check_version() -> None:
    found = metadata.version("dbos")
    if tuple(int(part) for part in found.split(".")[:2]) < LEAST_DBOS:
        least = ".".join(map(str, LEAST_DBOS))
        raise WorkerRefused(f"DBOS {found} is too old; install {least} or later: pip install 'meruit[cluster]'")
