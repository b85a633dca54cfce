"""One entry in one chart, right and with each mistake of a careless agent, on a playground and on Medplum's server."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from tests.benchmarks.benching import create_one
from tests.servers.running import FhirServer

from meruit.app import build_benchmarks, build_environments, open_store
from meruit.benchmarks.lint import lint_task
from meruit.benchmarks.service import Benchmarks, TaskRunStart
from meruit.config import Settings
from meruit.model.access import Scope
from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark
from meruit.model.task_run import CriterionStatus
from meruit.model.verdict import Verdict
from meruit.playground.environment import seed_of
from meruit.playground.host import Host
from meruit.playground.load import load_benchmark
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine

FOLDER = Path(__file__).parents[2] / "examples" / "charting"
TENANT = "clinic"
FAILING = {
    "gold": set[str](),
    "wrong_patient": {"entry", "nothing else"},
    "wrong_time": {"entry"},
    "wrong_unit": {"entry"},
    "duplicate": {"entry"},
    "stray_edit": {"nothing else"},
    "ssn_aloud": {"no number"},
}
"""The criteria that each agent fails; `entry` is the first of a task."""
_numbers = count()


@cache
def example() -> Benchmark:
    return load_benchmark(FOLDER / "charting.yaml")


@cache
# Any: a module of the example.
def script() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        return import_module("agent")
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("agent", None)


class Judged(NamedTuple):
    verdict: Verdict | None
    fails: set[str]
    before: EnvironmentState
    after: EnvironmentState


class Clinic:
    """One host and one store for all runs."""

    def __init__(self, runner: asyncio.Runner, benchmarks: Benchmarks, agents: Executor) -> None:
        self._runner = runner
        # Threads of their own: those of the loop are the host's, which must answer while agents wait.
        self._agents = agents
        self._benchmarks = benchmarks

    def run(
        self, benchmark: Benchmark, acts: dict[str, tuple[str, Callable[[TaskRunStart], object]]]
    ) -> dict[str, Judged]:
        """Run every agent at once, each in an environment of its own; `acts` names the task and what is done."""

        async def together() -> list[Judged]:
            await self._benchmarks.publish(TENANT, "test", benchmark)
            return await asyncio.gather(*(self._run(benchmark, task_id, act) for task_id, act in acts.values()))

        return dict(zip(acts, self._runner.run(together()), strict=True))

    async def _run(self, benchmark: Benchmark, task_id: str, act: Callable[[TaskRunStart], object]) -> Judged:
        scope, environments = Scope(TENANT), self._benchmarks.environments
        task = benchmark.task(task_id)
        assert task is not None
        made = await create_one(self._benchmarks, TENANT, "test", benchmark.name, task_id, scored=False, agent_id=None)
        started = await self._benchmarks.start(scope, made.id)
        before = await environments.read(task, started.run.playground_id)
        await asyncio.get_running_loop().run_in_executor(self._agents, act, started)
        after = await environments.read(task, started.run.playground_id)
        ended = await self._benchmarks.complete(scope, made.id)
        criteria = self._benchmarks.reader.criterion_runs(TENANT, ended)
        fails = {
            "entry" if place == 0 else one.label
            for place, one in enumerate(criteria)
            if one.status is not CriterionStatus.PASSED
        }
        return Judged(ended.verdict, fails, before, after)


@asynccontextmanager
async def opened(runner: asyncio.Runner, folder: Path) -> AsyncIterator[Clinic]:
    with (
        closing(open_store(Location(folder / "data"), make=True)) as store,
        ThreadPoolExecutor(len(FAILING)) as threads,
    ):
        async with httpx.AsyncClient(verify=False) as client, Host(folder / "playgrounds") as host:
            await host.serve_http()
            worlds = build_environments(host, Settings(), client, {}, for_others=False)
            yield Clinic(runner, build_benchmarks(Settings(), store, worlds), threads)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    with asyncio.Runner() as runner:
        opening = opened(runner, tmp_path_factory.mktemp("charting"))
        yield runner.run(opening.__aenter__())
        runner.run(opening.__aexit__(None, None, None))


def acting(name: str, task_id: str, chart: str | None = None) -> Callable[[TaskRunStart], object]:
    def act(started: TaskRunStart) -> None:
        ends = started.access["endpoints"]
        desk = script().Desk(chart or ends["fhir"], ends["call"], started.access["secret"])
        script().AGENTS[name](desk, task_id)

    return act


def check(found: dict[str, Judged]) -> None:
    assert {name: one.fails for name, one in found.items()} == FAILING
    assert {name: one.verdict for name, one in found.items()} == {
        name: Verdict.FAIL if fails else Verdict.PASS for name, fails in FAILING.items()
    }


@pytest.mark.parametrize("task_id", [one.id for one in example().tasks])
def test_only_the_careful_agent_passes_on_a_playground(clinic: Clinic, task_id: str) -> None:
    found = clinic.run(example(), {name: (task_id, acting(name, task_id)) for name in FAILING})
    check(found)
    task, gold = example().task(task_id), found["gold"]
    assert task is not None
    report = lint_task(VerificationEngine(), task, gold.before, seed_of(example(), task).facts, gold.after, gold.before)
    assert report.ok, report.findings


def on_medplum(task_id: str, charts: dict[str, str]) -> Benchmark:
    """The task once for each agent, each with a chart of its own that is not a playground's."""
    whole = example().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    (task,) = (one for one in whole["tasks"] if one["id"] == task_id)
    kind = script().GOLD[task_id]["resourceType"]
    # The server has the history of each type, so one reading is enough.
    criteria = [
        one | {"assertion": one["assertion"] | ({} if "from" in one["assertion"] else {"settle": {"stable": 1}})}
        for one in task["criteria"]
    ]
    sources = {"call": {"kind": "voice"}}
    tasks = [
        task
        | {"id": name.replace("_", "-"), "criteria": criteria}
        | {"sources": sources | {"ehr": {"kind": "fhir", "at": chart, "types": ["Patient", kind]}}}
        for name, chart in charts.items()
    ]
    return Benchmark.model_validate(whole | {"benchmark": f"medplum-{task_id}", "tasks": tasks})


@pytest.mark.parametrize("task_id", [one.id for one in example().tasks])
def test_only_the_careful_agent_passes_on_medplum(clinic: Clinic, medplum: FhirServer, task_id: str) -> None:
    charts = {name: medplum.base(f"charting{next(_numbers)}", "kept") for name in FAILING}
    seeded = seed_of(example(), example().tasks[0]).resources
    with httpx.Client(verify=False) as client:
        for chart in charts.values():
            for key, resource in seeded.items():
                client.put(f"{chart}/{key}", json=resource).raise_for_status()
    written = on_medplum(task_id, charts)
    acts = {name: (name.replace("_", "-"), acting(name, task_id, chart)) for name, chart in charts.items()}
    check(clinic.run(written, acts))
