"""The benchmark that is shipped: every agent gets the verdict it deserves, and the criteria notice every mistake."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import yaml
from tests.benchmarks.benching import create_one
from tests.sampling import sample

from meruit.app import build_benchmarks, build_engine, build_environments, open_store
from meruit.benchmarks.lint import TaskReport, lint_task
from meruit.benchmarks.service import Benchmarks, TaskRunStart
from meruit.config import Settings
from meruit.model.access import Scope
from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark, Task
from meruit.model.task_run import CriterionRun, CriterionStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.playground.environment import seed_of
from meruit.playground.host import Host
from meruit.playground.load import load_benchmark
from meruit.store.location import Location
from meruit.verify.engine import VerificationEngine
from meruit.verify.lint.criteria import Severity

FOLDER = Path(__file__).parents[2] / "examples" / "front-desk"
EXPECTED: dict[str, dict[str, Any]] = yaml.safe_load((FOLDER / "expected.yaml").read_text(encoding="utf-8"))
NEVER = ("passes_on_nothing", "never_fails", "mutant_passes", "missed_to_no_effect")
"""What a linter must not find: points for nothing, criteria for nothing, and mistakes that are noticed in vain."""
TENANT = "default"
MAX_AGENTS = 8
"""At once."""
ALL_CHECKS = {
    *("fhir-resource-state", "hl7-structural", "portal-state-match", "sftp-file-present"),
    *("voice-transcript", "x12-response", "state-unchanged"),
}


@cache
def benchmark() -> Benchmark:
    return load_benchmark(FOLDER / "front-desk.yaml")


def task(task_id: str) -> Task:
    found = benchmark().task(task_id)
    assert found is not None
    return found


# Any: the agents are a folder of scripts, not a package that types are known of.
@cache
def front_desk() -> Any:
    sys.path.insert(0, str(FOLDER / "agents"))
    try:
        return import_module("front_desk"), import_module("front_desk.desk")
    finally:
        sys.path.remove(str(FOLDER / "agents"))


def agents(task_id: str) -> Mapping[str, Callable[[Any], object]]:
    found: Mapping[str, Callable[[Any], object]] = front_desk()[0].agents(task_id)
    return found


def environment(started: TaskRunStart) -> dict[str, str]:
    """What `meruit benchmark run` tells an agent."""
    access = started.access
    where = access["endpoints"]
    return {
        "MERUIT_TASK_ID": started.run.task,
        "MERUIT_PLAYGROUND": access["id"],
        "MERUIT_SECRET": access["secret"],
        **{f"MERUIT_{name.upper()}_URL": where[name] for name in ("fhir", "portal", "x12", "call")},
        **{f"MERUIT_{name.upper()}": where[name] for name in ("mllp", "sftp")},
    }


class Run(NamedTuple):
    """One agent at one task, judged."""

    run: TaskRun
    criteria: list[CriterionRun]
    before: EnvironmentState
    after: EnvironmentState

    @property
    def fails(self) -> list[str]:
        return [one.label for one in self.criteria if one.status is not CriterionStatus.PASSED]


class Clinic:
    """One host and one store for all runs."""

    def __init__(self, runner: asyncio.Runner, host: Host, benchmarks: Benchmarks, agents: Executor) -> None:
        self.host = host
        # Threads of their own: those of the loop are the host's, which must answer while agents wait.
        self._agents = agents
        self._runner = runner
        self._benchmarks = benchmarks

    def run(self, task_id: str, acts: Mapping[str, Callable[[TaskRunStart], object]]) -> dict[str, Run]:
        """All of them at once, each in a world of its own."""

        async def together() -> list[Run]:
            return await asyncio.gather(*(self._run(task_id, act) for act in acts.values()))

        return dict(zip(acts, self._runner.run(together()), strict=True))

    async def _run(self, task_id: str, act: Callable[[TaskRunStart], object]) -> Run:
        scope = Scope(TENANT)
        made = await create_one(self._benchmarks, TENANT, "test", "front-desk", task_id, scored=False, agent_id=None)
        started = await self._benchmarks.start(scope, made.id)
        before = await self.host.snapshots(started.access["id"])
        await asyncio.get_running_loop().run_in_executor(self._agents, act, started)
        after = await self.host.snapshots(started.access["id"])
        ended = await self._benchmarks.complete(scope, made.id)
        return Run(ended, self._benchmarks.reader.criterion_runs(TENANT, ended), before, after)


@asynccontextmanager
async def opened(runner: asyncio.Runner, folder: Path) -> AsyncIterator[Clinic]:
    with closing(open_store(Location(folder / "data"), make=True)) as store, ThreadPoolExecutor(MAX_AGENTS) as threads:
        async with httpx.AsyncClient() as client, Host(folder / "playgrounds") as host:
            await host.serve_http()
            worlds = build_environments(host, Settings(), client, {}, for_others=False)
            benchmarks = build_benchmarks(Settings(), store, worlds)
            await benchmarks.publish(TENANT, "test", benchmark())
            yield Clinic(runner, host, benchmarks, threads)


@pytest.fixture(scope="module")
def clinic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clinic]:
    with asyncio.Runner() as runner:
        opening = opened(runner, tmp_path_factory.mktemp("front-desk"))
        yield runner.run(opening.__aenter__())
        runner.run(opening.__aexit__(None, None, None))


def acting(task_id: str, name: str) -> Callable[[TaskRunStart], object]:
    def act(started: TaskRunStart) -> None:
        with front_desk()[1].Desk(environment(started)) as desk:
            agents(task_id)[name](desk)

    return act


@cache
def engine() -> VerificationEngine:
    return build_engine(Settings())


def linted(task_id: str, gold: Run) -> TaskReport:
    asked = task(task_id)
    facts = seed_of(benchmark(), asked).facts
    return lint_task(engine(), asked, gold.before, facts, gold.after)


@pytest.mark.parametrize("task_id", [one.id for one in benchmark().tasks])
def test_every_agent_gets_the_verdict_it_deserves(clinic: Clinic, task_id: str) -> None:
    names = sample([*EXPECTED[task_id]], 2, always=("null", "gold"), name=task_id)
    found = clinic.run(task_id, {name: acting(task_id, name) for name in names})
    said = {name: {"verdict": str(one.run.verdict), "fails": one.fails} for name, one in found.items()}
    assert said == {name: EXPECTED[task_id][name] for name in names}
    nothing, gold = found["null"], found["gold"]
    assert nothing.run.verdict is Verdict.FAIL
    assert {one.label for one in nothing.criteria if one.score} == guards(task_id)
    assert (gold.run.verdict, gold.run.exact) == (Verdict.PASS, "1")
    scores = {name: (str(one.run.verdict), f"{one.run.score:.2f}") for name, one in found.items()}
    shown = printed(task_id)
    assert set(shown) == {*EXPECTED[task_id]} - {"gold", "null"}
    assert {name: shown[name] for name in names if name in shown} == {
        name: score for name, score in scores.items() if name in shown
    }
    report = linted(task_id, gold)
    assert [one for one in report.findings if one.severity is Severity.ERROR] == []
    assert [one for one in report.findings if one.code in NEVER] == []


def printed(task_id: str) -> dict[str, tuple[str, str]]:
    """What the example's page says of a task's scripts."""
    found, task_of_row = {}, ""
    for row in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip(" `") for cell in row.split("|")[1:-1]]
        if len(cells) == len(("task", "mistake", "verdict", "score")):
            task_of_row = cells[0] or task_of_row
            if task_of_row == task_id:
                found[cells[1]] = (cells[2], cells[3])
    return found


def guards(task_id: str) -> set[str]:
    """The criteria that forbid, and that an agent meets who does nothing."""
    found = set()
    for one in task(task_id).criteria:
        assert one.assertion is not None
        forbids = one.assertion.settings.get("count") in (0, {"max": 1})
        if one.assertion.check == "state-unchanged" or forbids:
            found.add(str(one.name))
    return found


def test_every_task_has_its_agents() -> None:
    assert [*EXPECTED] == [one.id for one in benchmark().tasks]
    for task_id, expected in EXPECTED.items():
        acted = {name for name in agents(task_id) if not name.startswith("near_miss_")}
        assert acted == {*expected}
        assert len([one for one in expected.values() if one["verdict"] == "pass"]) < len(expected) - 2


def test_all_seven_checks_are_used() -> None:
    used = {one.assertion.check for task in benchmark().tasks for one in task.criteria if one.assertion is not None}
    assert used == ALL_CHECKS


def test_the_script_acts_as_the_environment_says(clinic: Clinic) -> None:
    def act(started: TaskRunStart) -> None:
        given = {**os.environ, **environment(started)}
        subprocess.run(
            [sys.executable, FOLDER / "agents" / "run.py", "near_miss_1"], env=given, check=True, timeout=300
        )

    found = clinic.run("refuted-allergy", {"near_miss_1": act})
    assert found["near_miss_1"].fails == EXPECTED["refuted-allergy"]["deleted_it"]["fails"]
