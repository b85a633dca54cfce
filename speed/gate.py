"""What the gate costs: a submission in memory and recorded, tasks through a worker, and how soon a restart goes on.

The baseline is the bare loop: the same model class validated and its `verify` called, nothing counted, nothing kept.
"""

import asyncio
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import BaseModel
from tests.postgres import running

from meruit.api.bodies.gc import freeze_gc
from meruit.errors import VerificationRejected
from meruit.gate.agent import Agent
from meruit.gate.gate import Gate
from meruit.gate.run import RunRequest, RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.worker import run_worker
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import ClaimRun, QueueRun
from meruit.gate.verdict import Passed
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.testing import ScriptedModel, submits
from speed.measure import Row

RUNS, AT_ONCE = 2_000, 256
TASKS, CLUSTER_TASKS = 1_000, 300
QUEUED = (1_000, 10_000)
SUBMITS_PER_S = 5_000
_BARE = "the same loop without a gate"


class Final(BaseModel):
    """What is accepted."""

    n: int


class Output(BaseModel):
    """What is proposed: rejected twice, then good."""

    n: int

    async def verify(self, attempt: int) -> Final:
        if self.n < 2:
            raise VerificationRejected(f"{self.n} is too small", code="small", metadata={"attempt": attempt})
        return Final(n=self.n)


CANDIDATES = [{"n": n} for n in range(3)]


def agent() -> Agent:
    return Agent("bench", "count", ScriptedModel([submits(n=n) for n in range(3)]), output_type=Output)


async def _bare() -> None:
    for candidate in CANDIDATES:
        try:
            await Output.model_validate(candidate).verify(1)
        except VerificationRejected:
            continue


async def _gated(store: Store | None) -> None:
    gate = Gate(Output, store=store)
    answers = [await gate.submit(candidate) for candidate in CANDIDATES]
    assert isinstance(answers[-1], Passed)


def rows() -> Iterator[Row]:
    """Submissions and tasks, one by one and many at once."""
    bare = _each_us(_bare, 20_000, 1) / len(CANDIDATES)
    memory = _each_us(lambda: _gated(None), RUNS, 1) / len(CANDIDATES)
    yield Row("gate, a submission in memory", memory, bare, _BARE, None, _rate(memory))
    with _store() as store:
        alone = _each_us(lambda: _gated(store), 100, 1) / len(CANDIDATES)
        remark = f"{alone / 1_000:.2f} ms an attempt, of which it may take 5"
        yield Row("gate, a submission recorded, one by one", alone, bare, _BARE, None, remark)
        # As in `meruit worker` and `meruit serve`.
        with freeze_gc():
            many = _each_us(lambda: _gated(store), RUNS, AT_ONCE) / len(CANDIDATES)
        target = 1_000_000 / SUBMITS_PER_S
        yield Row(f"gate, a submission recorded, {AT_ONCE} at once", many, target, "5,000 a second", 1, _rate(many))
    loop = _each_us(lambda: agent().run("go"), 200, 1)
    with _store() as store:
        took = _worked_us(store, TASKS)
        yield Row("worker on SQLite, a task of three turns", took, loop, "the same agent in memory", None, _rate(took))
        yield _restarted(store)
    with running({}) as server, tempfile.TemporaryDirectory() as folder:
        server.ask("CREATE DATABASE bench")
        store = Store.open(Location(Path(folder), server.url("bench")))
        try:
            took = _worked_us(store, CLUSTER_TASKS)
            yield Row(
                "worker on Postgres, a task of three turns", took, loop, "the same agent in memory", None, _rate(took)
            )
        finally:
            store.close()


def growth() -> Iterator[tuple[str, int, float]]:
    """Many tasks in the queue: the time of all, and what they add to the memory of the worker."""
    for size in QUEUED:
        with _store() as store:
            _queue(store, size)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            start = time.perf_counter()
            asyncio.run(run_worker(store, AgentRoster([agent()]), until_idle=True, concurrency=64))
            took_ms = (time.perf_counter() - start) * 1_000
            more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1_024
            print(f"  {size:,} tasks: {more:.1f} MB more at the highest", file=sys.stderr)
            yield "worker, tasks in the queue", size, took_ms


def _each_us(one: Callable[[], Awaitable[object]], times: int, at_once: int) -> float:
    async def all_of_them() -> float:
        start = time.perf_counter()
        left = iter(range(times))

        async def some() -> None:
            for _ in left:
                await one()

        await asyncio.gather(*(some() for _ in range(at_once)))
        return (time.perf_counter() - start) / times * 1_000_000

    return min(asyncio.run(all_of_them()) for _ in range(2))


def _worked_us(store: Store, tasks: int) -> float:
    _queue(store, tasks)
    start = time.perf_counter()
    asyncio.run(run_worker(store, AgentRoster([agent()]), until_idle=True, concurrency=64))
    return (time.perf_counter() - start) / tasks * 1_000_000


def _queue(store: Store, tasks: int) -> None:
    limits = agent().limits()

    async def queue() -> None:
        await asyncio.gather(
            *(
                store.recorder.record(
                    QueueRun("default", "bench", store.surroundings.new_id("run"), "bench", RunRequest("go"), limits)
                )
                for _ in range(tasks)
            )
        )

    asyncio.run(queue())


def _restarted(store: Store) -> Row:
    """A run that a dead process had in its hands: how long a new worker takes to end it."""
    run_id = store.surroundings.new_id("run")
    store.recorder.write(QueueRun("default", "bench", run_id, "bench", RunRequest("go"), agent().limits()))
    store.recorder.write(ClaimRun("default", run_id, "own_dead", "wrk_dead"))
    start = time.perf_counter()
    asyncio.run(run_worker(store, AgentRoster([agent()]), until_idle=True))
    took = (time.perf_counter() - start) * 1_000_000
    with store.database.reading() as connection:
        found = agent_reading.find(connection, "default", run_id)
    assert found.status is RunState.COMPLETED
    return Row("restart to done with what was left", took, 500_000, "half a second", 1)


def _rate(took_us: float) -> str:
    return f"{1_000_000 / took_us:,.0f}/s"


@contextmanager
def _store() -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        try:
            yield store
        finally:
            store.close()
