"""Benchmarks, and worlds in memory that agents act on, for tests of runs."""

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any, NamedTuple

import msgspec

from meruit.app import build_benchmarks
from meruit.benchmarks.service import Benchmarks
from meruit.benchmarks.store import read as stored_runs
from meruit.benchmarks.store.read import TaskRunRow
from meruit.config import Settings
from meruit.model.access import Scope
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind, make_item
from meruit.model.task import Benchmark, Task
from meruit.model.task_run import ActLog, AgentAct, TaskRun
from meruit.store.store import Store

RUBRIC = "canary-72148"
"""A value that only the rubric of the usual task holds."""
DONE = {"prior_auth/1": {"member": "M1", "cpt": RUBRIC}}


def asked(label: str = "requested", **more: Any) -> dict[str, Any]:
    """A criterion that the usual act meets."""
    said = {
        "assert": "portal-state-match",
        "correlate_by": {"resource": "prior_auth", "member": "M1"},
        "fields": {"cpt": RUBRIC},
    }
    return {"label": label, "assertion": said, **more}


UNTOUCHED = {"label": "untouched", "assert": "state-unchanged"}


def task(name: str = "t1", *criteria: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A task whose world is rows alone."""
    return {
        "id": name,
        "instruction": f"do {name}",
        "sources": {"portal": "rows"},
        "seed": {"rows": {"member": {"M1": {"name": "Ann"}}}},
        "criteria": list(criteria or (asked(), UNTOUCHED)),
        **more,
    }


def benchmark(*tasks: Mapping[str, Any], name: str = "demo", version: int = 1, **more: Any) -> Benchmark:
    """A benchmark of these tasks, or of the usual one."""
    written = {"benchmark": name, "version": version, "tasks": list(tasks or (task(),)), **more}
    return Benchmark.model_validate(written)


class Spot(NamedTuple):
    """A world of ours."""

    id: str | None
    access: dict[str, Any]
    facts: Mapping[str, Any]


class MemoryGround:
    """Worlds of rows that live as long as this object."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.trouble: dict[str | None, str] = {}
        """By world, or for all under None, why it cannot be read."""
        self.discarded: list[str] = []
        self.reads = 0
        self._numbers = count(1)

    async def prepare(self, benchmark: Benchmark, task: Task) -> Spot:
        """A world with the rows of the task's seed."""
        name = f"pg_{next(self._numbers)}"
        seed = task.seed or {}
        rows = {f"{kind}/{key}": row for kind, found in seed.get("rows", {}).items() for key, row in found.items()}
        self.rows[name] = rows
        return Spot(name, {"at": name}, seed.get("facts", {}))

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """All rows; whoever else waits has a turn first."""
        self.reads += 1
        await asyncio.sleep(0)
        trouble = self.trouble.get(place_id, self.trouble.get(None))
        if place_id not in self.rows:
            trouble = "the world is gone"
        if trouble is not None:
            return {"portal": Snapshot(SourceKind.ROWS, trouble=trouble)}
        found = self.rows[place_id or ""]
        items = [make_item(key, msgspec.json.encode(found[key])) for key in sorted(found)]
        return {"portal": Snapshot(SourceKind.ROWS, items)}

    async def access(self, place_id: str) -> dict[str, Any]:
        """As it was told before."""
        return {"at": place_id}

    async def last_event(self, place_id: str) -> str | None:
        """The last row."""
        return max(self.rows.get(place_id, {}), default=None)

    async def acts(self, place_id: str) -> ActLog:
        """One act for each row."""
        return ActLog(
            tuple(AgentAct("2026-01-01T00:00:00Z", "row", "rows", key) for key in self.rows.get(place_id, {}))
        )

    async def discard(self, place_id: str) -> None:
        """Forget a world."""
        self.discarded.append(place_id)
        self.rows.pop(place_id, None)

    def act(self, run: TaskRun, rows: Mapping[str, Any] = DONE) -> None:
        """What an agent does there."""
        self.rows[run.playground_id or ""] |= rows


class Bench(NamedTuple):
    """Benchmarks in a store, the worlds that they run in, and whose they are."""

    benchmarks: Benchmarks
    ground: MemoryGround
    tenant: str

    @property
    def store(self) -> Store:
        """Where all of it is kept."""
        return self.benchmarks.store

    @property
    def scope(self) -> Scope:
        """All that is the tenant's."""
        return Scope(self.tenant)

    async def publish(self, *tasks: Mapping[str, Any], **more: Any) -> None:
        """A benchmark `demo@1`, unless told otherwise."""
        await self.benchmarks.publish(self.tenant, "author", benchmark(*tasks, **more))

    async def created(self, scored: bool = True, agent_id: str | None = "a1", task_id: str = "t1") -> TaskRun:
        """A run of one task that nobody has begun."""
        return await create_one(self.benchmarks, self.tenant, "me", "demo", task_id, scored=scored, agent_id=agent_id)

    async def started(self, **more: Any) -> TaskRun:
        """A run under way."""
        created = await self.created(**more)
        return (await self.benchmarks.start(self.scope, created.id)).run

    async def completed(self, rows: Mapping[str, Any] = DONE, **more: Any) -> TaskRun:
        """A run whose agent did this."""
        run = await self.started(**more)
        self.ground.act(run, rows)
        return await self.benchmarks.complete(self.scope, run.id)


def bench(store: Store, tenant: str = "acme") -> Bench:
    """Benchmarks in a store, over worlds in memory."""
    ground = MemoryGround()
    return Bench(build_benchmarks(Settings(), store, ground), ground, tenant)


async def create_one(
    benchmarks: Benchmarks, tenant: str, by: str, name: str, task_id: str, *, scored: bool, agent_id: str | None
) -> TaskRun:
    """Create one task run on its own."""
    plan = benchmarks.plan_one(tenant, by, name, task_id, scored=scored, agent_id=agent_id)
    return (await benchmarks.store.recorder.record(plan))[0]


def find_row(benchmarks: Benchmarks, scope: Scope, run_id: str) -> TaskRunRow:
    """Return a task run as it is stored."""
    with benchmarks.store.database.reading() as connection:
        return stored_runs.find(connection, scope, run_id)
