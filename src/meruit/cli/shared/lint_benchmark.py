"""`meruit lint` on a benchmark: test its tasks before agents run on them."""

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import msgspec

from meruit.app import build_environments, build_task_engine, open_store
from meruit.benchmarks import records as runs
from meruit.benchmarks.lint import TaskReport, lint_task
from meruit.benchmarks.records import TaskRunFilter
from meruit.cli.terminal import ExitCode, escape_control_characters, paint, print_json, print_table, say
from meruit.config import Settings
from meruit.errors import MeruitError, StoreError
from meruit.model.access import Scope
from meruit.model.decoding import decode_json
from meruit.model.environment import EnvironmentState, environment_in, restore_state
from meruit.model.record import Record
from meruit.model.task import Benchmark, Task, slug_of_practice
from meruit.model.task_run import RunStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.outcomes import records as outcomes
from meruit.playground.host import Host
from meruit.playground.load import load_benchmark
from meruit.store.location import FILE, Location
from meruit.store.store import Store
from meruit.suggestions import nearest
from meruit.verify.lint.criteria import LintFinding, Severity

PAGE = 500
MAX_PAGES = 200
"""Most runs of an agent that are searched for a gold run."""


class BenchmarkReport(Record, frozen=True):
    """Findings for each task."""

    ok: bool
    tasks: list[TaskReport]


class BenchmarkLintOptions(msgspec.Struct, frozen=True):
    """What to test, as the options say."""

    file: str
    tasks: Sequence[str]
    gold: str | None
    gold_agent_id: str
    tenant: str
    config: str | None
    any_address: bool
    """Whether tasks may name systems of their own."""


class GoldRun(msgspec.Struct, frozen=True):
    """A recorded run that passed: the environment before and after it."""

    before: EnvironmentState
    after: EnvironmentState


def lint_tasks(options: BenchmarkLintOptions, *, as_json: bool) -> int:
    """Test the tasks and print the findings."""
    benchmark = load_benchmark(options.file)
    settings = Settings.load(options.config)
    chosen = _select_tasks(benchmark, options.tasks)
    gold = {} if options.gold is None else _gold_runs(options.gold, options, benchmark, chosen)
    reports = asyncio.run(_lint_all(settings, benchmark, chosen, gold, options))
    report = BenchmarkReport(all(one.ok for one in reports), reports)
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return ExitCode.PASSED if report.ok else ExitCode.NOT_PASSED


def _select_tasks(benchmark: Benchmark, wanted: Sequence[str]) -> list[Task]:
    known = [task.id for task in benchmark.tasks]
    for name in wanted:
        if name not in known:
            raise MeruitError(f"{benchmark.name} has no task {name!r}{nearest(name, known)}; it has {', '.join(known)}")
    return [task for task in benchmark.tasks if not wanted or task.id in wanted]


async def _lint_all(
    settings: Settings, benchmark: Benchmark, tasks: list[Task], gold: dict[str, GoldRun], options: BenchmarkLintOptions
) -> list[TaskReport]:
    engine = build_task_engine(settings)
    reports = []
    with tempfile.TemporaryDirectory(prefix="meruit-lint-") as folder:
        async with httpx.AsyncClient() as client, Host(Path(folder)) as host:
            worlds = build_environments(host, settings, client, os.environ, for_others=not options.any_address)
            for task in tasks:
                place = await worlds.prepare(benchmark, task)
                before = await worlds.read(task, place.id)
                if place.id is not None:
                    await worlds.discard(place.id)
                good = gold.get(task.id)
                known = (None, None) if good is None else (good.after, good.before)
                report = await asyncio.to_thread(lint_task, engine, task, before, place.facts, *known)
                reports.append(_without_gold(report) if options.gold is not None and good is None else report)
    return reports


def _without_gold(report: TaskReport) -> TaskReport:
    lacking = LintFinding(
        Severity.WARNING, "no_gold_run", "no gold run of this task is recorded, so no mutants were tested"
    )
    return msgspec.structs.replace(report, findings=[*report.findings, lacking])


def _gold_runs(
    folder: str, options: BenchmarkLintOptions, benchmark: Benchmark, tasks: list[Task]
) -> dict[str, GoldRun]:
    """The newest passing run of each task; raises MeruitError if there is none at all."""
    try:
        store = open_store(Location(Path(folder)))
    except StoreError as problem:
        if (Path(folder) / FILE).exists():
            raise
        raise MeruitError(f"{folder} has no records yet; {_how_to_record(options)}") from problem
    try:
        found = _newest_passing_runs(store, options, benchmark, {task.id for task in tasks})
        gold = {task: _load_gold_run(store, options.tenant, run) for task, run in found.items()}
    finally:
        store.close()
    if not gold:
        agent = f"by {options.gold_agent_id!r}; --gold-agent-id names another agent"
        lacking = f"{folder} has no passing run of these tasks of {benchmark.benchmark} {agent}"
        raise MeruitError(f"{lacking}; {_how_to_record(options)}")
    return gold


def _how_to_record(options: BenchmarkLintOptions) -> str:
    return f"`meruit benchmark run {options.file} --agent … --agent-id {options.gold_agent_id}` records them"


def _newest_passing_runs(
    store: Store, options: BenchmarkLintOptions, benchmark: Benchmark, wanted: set[str]
) -> dict[str, TaskRun]:
    found: dict[str, TaskRun] = {}
    before = None
    for _ in range(MAX_PAGES):
        with store.database.reading() as connection:
            several = runs.page(
                connection,
                Scope(options.tenant),
                wanted=TaskRunFilter(agent_id=options.gold_agent_id),
                before=before,
                limit=PAGE,
            )
        for run in several.entries:
            good = run.status is RunStatus.COMPLETED and run.verdict is Verdict.PASS
            slug = slug_of_practice(run.benchmark) or run.benchmark
            if good and slug == benchmark.benchmark and run.task in wanted:
                found.setdefault(run.task, run)
        if several.next is None or found.keys() >= wanted:
            break
        before = several.next
    return found


def _load_gold_run(store: Store, tenant: str, run: TaskRun) -> GoldRun:
    with store.database.reading() as connection:
        found = outcomes.evidence(connection, Scope(tenant), run.outcome_id or "", store.blobs)
    if found.input is None or found.output is None:
        raise MeruitError(
            f"the evidence of the gold run {run.id} was erased; record another run, or leave out its task"
        )
    # Any: work is JSON.
    given, done = (decode_json(part, dict[str, Any]) for part in (found.input, found.output))
    before = environment_in(given)
    return GoldRun(before, restore_state(before, environment_in(done)))


def _print(report: BenchmarkReport) -> None:
    rows = [
        (
            one.task,
            one.nothing,
            one.gold or "–",
            f"{one.mutants_tried:,}" if one.gold else "–",
            f"{one.survived:,}" if one.gold else "–",
            ", ".join(f"{name} ({weight:g})" for name, weight in one.free.items()) or "–",
        )
        for one in report.tasks
    ]
    print_table(("task", "does nothing", "gold", "mutants", "survive", "met by nothing (weight)"), rows)
    for one in report.tasks:
        if one.findings:
            say(f"\n{escape_control_characters(one.task)}:")
        for finding in one.findings:
            where = f"{finding.criterion_id}: " if finding.criterion_id else ""
            text = escape_control_characters(where + finding.message)
            say(f"  {paint(str(finding.severity))}: {text} [{finding.code}]")
    say(f"\n{_conclusion(report)}")


def _conclusion(report: BenchmarkReport) -> str:
    if not report.ok:
        return "the tasks do not hold"
    if any(one.gold is not None for one in report.tasks):
        survived = sum(one.survived for one in report.tasks)
        survive = "1 mutant survives" if survived == 1 else f"{survived:,} mutants survive"
        return f"no error, but {survive}" if survived else "the tasks hold"
    return "an agent that does nothing does not pass; `--gold FOLDER` tests more"
