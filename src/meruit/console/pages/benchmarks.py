"""Benchmarks: the leaderboard, the matrix of a run, and what exactly one task run changed."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.api.file_stream import stream_table
from meruit.api.wire.task_runs import task_run_to_agent
from meruit.benchmarks import records as benchmarks
from meruit.console.environment_difference import SystemChange, compare_environments
from meruit.console.evidence_paths import list_paths
from meruit.console.live import Live
from meruit.console.page import ANYONE, OPERATORS, NavEntry, PageRequest, page
from meruit.console.query import Query
from meruit.console.shape import word
from meruit.console.table import Column, Table, read_once
from meruit.errors import NotFound
from meruit.model.access import Role, Scope
from meruit.model.decoding import convert_to, decode_json
from meruit.model.environment import environment_in, restore_state
from meruit.model.task_run import ACTS_KEY, ActLog, AgentAct, BenchmarkRun, CriterionStatus, RunStatus, TaskRun
from meruit.outcomes import records as outcomes
from meruit.playground.events import read_acts
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 50
LONG_VERSION = 20
RANKED = 50
"""Benchmark runs that a leaderboard compares: the newest."""
STATUS_TONES = {
    RunStatus.COMPLETED: "pass",
    RunStatus.TIMED_OUT: "fail",
    RunStatus.RUNNING: "open",
    RunStatus.PENDING: "open",
    RunStatus.CANCELLED: "error",
}
CRITERION_TONES = {
    CriterionStatus.PASSED: "pass",
    CriterionStatus.FAILED: "fail",
    CriterionStatus.ERROR: "error",
    CriterionStatus.SKIPPED: "open",
}
TONES = {str(name): tone for name, tone in (STATUS_TONES | CRITERION_TONES).items()}


COLUMNS = (
    Column("agent", "Agent", sortable=True),
    Column("benchmark", "Benchmark", sortable=True),
    Column("runs", "Task runs"),
    Column("created", "Created", numeric=True, sortable=True),
    Column("id", "Run", usual=False),
)
HEADINGS = ("benchmark_run_id", "agent", "benchmark", "version", "scored", "created_at", "ended")


@page("/benchmarks", nav=NavEntry("Agents", "Benchmarks", keys="b", order=20))
async def list_benchmarks(request: PageRequest) -> Response[Any]:
    """List published benchmarks, and the newest runs of agents on them."""
    scope, query = request.caller.scope, Query.of(request)
    table = Table.of(query, "Benchmark runs, newest first", COLUMNS)

    def read(connection: Connection, at: Table) -> tuple[list[BenchmarkRun], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = benchmarks.benchmark_runs_sorted(connection, scope, at.order, limit=limit)
            return ordered.entries, at.following(ordered)
        newest = benchmarks.benchmark_run_page(connection, scope, before=at.query.number("before"), limit=limit)
        return newest, at.before(newest[-1].seq if len(newest) == limit else None)

    if table.file is not None:
        every = table.read_all(partial(read_once, request.service.store, read))
        rows = (
            (one.id, one.agent_id, one.benchmark, one.version, one.scored, one.created_at, one.ended) for one in every
        )
        return await stream_table(request, table.file, HEADINGS, lambda: rows)
    (runs, following), published = await request.service.read(
        lambda connection: (
            read(connection, table),
            benchmarks.page_published(connection, scope.tenant, limit=PAGE_SIZE),
        )
    )
    return request.show(
        "benchmarks.html",
        live=Live(),
        query=query,
        table=table,
        published=published,
        runs=runs,
        next=following,
    )


@page("/benchmarks/{slug:str}")
async def show_leaderboard(request: PageRequest, slug: FromPath[str]) -> Response[Any]:
    """Rank the newest benchmark runs, and show which tasks separate agents."""
    scope, reader = request.caller.scope, request.service.benchmarks.reader

    def ask() -> list[BenchmarkRun]:
        with request.service.store.database.reading() as connection:
            found = benchmarks.benchmark_run_page(connection, scope, slug=slug, limit=RANKED)
        return [reader.benchmark_run(scope, one.id) if one.ended else one for one in found]

    found = await asyncio.to_thread(ask)
    if not found:
        await asyncio.to_thread(request.service.benchmarks.find, scope.tenant, slug)
    ranked = sorted(
        (one for one in found if one.result is not None and one.scored),
        key=lambda one: (-(one.result.score if one.result else 0), one.seq),
    )
    tasks: dict[str, list[tuple[str, float]]] = {}
    for one in ranked:
        for task in one.result.tasks if one.result else ():
            tasks.setdefault(task.task, []).append((one.id, task.score))
    spread = {name: max(s for _, s in scores) - min(s for _, s in scores) for name, scores in tasks.items()}
    return request.show(
        "leaderboard.html",
        live=Live(),
        slug=slug,
        ranked=ranked,
        unranked=[one for one in found if one not in ranked],
        tasks=[(name, dict(tasks[name]), spread[name]) for name in sorted(tasks, key=lambda name: -spread[name])],
    )


@page("/benchmark-runs/{run_id:str}")
async def show_benchmark_run(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Show a benchmark run as a matrix of tasks and attempts."""
    scope, reader = request.caller.scope, request.service.benchmarks.reader
    run, several = await asyncio.to_thread(
        lambda: (reader.benchmark_run(scope, run_id), reader.task_runs(scope, run_id))
    )
    matrix: dict[str, dict[int, TaskRun]] = {}
    for one in several:
        matrix.setdefault(one.task, {})[one.attempt] = one
    return request.show(
        "benchmark-run.html",
        live=None if run.ended else Live(),
        run=run,
        matrix=matrix,
        attempts=range(1, run.repeats + 1),
        tones=TONES,
        by_task={} if run.result is None else {one.task: one for one in run.result.tasks},
    )


@page("/task-runs/{run_id:str}", roles=ANYONE)
async def show_task_run(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Show a task run: what the agent did, what changed in each system, and how that was judged."""
    scope, service = request.caller.scope, request.service
    reader = service.benchmarks.reader
    run = await asyncio.to_thread(reader.run, scope, run_id)
    if request.caller.role is Role.AGENT:
        return request.show("task-run-own.html", run=task_run_to_agent(run), tones=TONES)

    def ask() -> dict[str, Any]:
        _, benchmark = service.benchmarks.find(scope.tenant, f"{run.benchmark}@{run.version}")
        return {
            "task": benchmark.task(run.task),
            "criteria": reader.criterion_runs(scope.tenant, run),
            **_what_happened(request, run),
            "shown": msgspec.to_builtins(reader.completion(scope.tenant, run)) if run.outcome_id else None,
        }

    values = await asyncio.to_thread(ask)
    return request.show(
        "task-run.html",
        live=None if run.ended_at is not None else Live(subject=run.id),
        run=run,
        paths=list_paths,
        describe_act=describe_act,
        time_of_act=time_of_act,
        progress=await service.benchmarks.progress(scope, run.id) if run.status is RunStatus.RUNNING else None,
        tones=TONES,
        **values,
    )


@dataclass(frozen=True, slots=True)
class ShownActs:
    """What agent and systems did, as a page shows it."""

    acts: Sequence[AgentAct] = ()
    more: bool = False
    kept: bool = True
    """Whether the acts are recorded with the run; else they are in its playground only."""
    why_not: str = ""
    """Why none are shown: `trouble`, `no_playground`, `not_kept`, `role`, `gone` or `erased`."""
    trouble: str = ""


def _what_happened(request: PageRequest, run: TaskRun) -> dict[str, Any]:
    changes, done = _read_recorded(request, run)
    return {"changes": changes, "done": done or _read_live(request, run)}


def _read_recorded(request: PageRequest, run: TaskRun) -> tuple[list[SystemChange] | None, ShownActs | None]:
    """What the run changed, by system, and what was done; None where nothing is recorded or it was erased."""
    if run.outcome_id is None:
        return None, None
    store, tenant = request.service.store, request.caller.tenant
    with store.database.reading() as connection:
        work = outcomes.evidence(connection, Scope(tenant), run.outcome_id, store.blobs)
    if work.input is None or work.output is None or work.metadata is None:
        return None, ShownActs(why_not="erased")
    before = environment_in(msgspec.json.decode(work.input))
    after = restore_state(before, environment_in(msgspec.json.decode(work.output)))
    log = decode_json(work.metadata, dict[str, Any]).get(ACTS_KEY)
    return compare_environments(before, after), None if log is None else _kept_acts(convert_to(log, ActLog))


def _kept_acts(log: ActLog) -> ShownActs:
    return ShownActs(log.acts, more=log.more, why_not="trouble" if log.trouble else "", trouble=log.trouble)


def _read_live(request: PageRequest, run: TaskRun) -> ShownActs:
    """What was done so far, while the playground exists; else the reason why it is not shown."""
    if run.playground_id is None:
        return ShownActs(why_not="no_playground")
    if request.caller.role not in OPERATORS:
        return ShownActs(why_not="role")
    try:
        log = read_acts(request.service.hosting.state_of(request.caller.tenant, run.playground_id))
    except NotFound:
        return ShownActs(why_not="gone")
    return ShownActs(log.acts, more=log.more, kept=False)


def describe_act(act: AgentAct) -> tuple[str, str, str]:
    """What was done in a word, to what, and what is noted beside it."""
    # The version of a row or file is its digest, which says nothing to a reader.
    facts = {
        name: value
        for name, value in act.facts.items()
        if isinstance(value, str | int | float) and (name != "version" or len(str(value)) < LONG_VERSION)
    }
    asked = str(facts.pop("request", ""))
    does, _, what = asked.partition(" ") if asked else (word(act.type), "", act.key or "")
    noted = [act.system or "", *(f"{name} {value}" for name, value in facts.items())]
    return does, what, ", ".join(filter(None, noted))


def time_of_act(act: AgentAct, run: TaskRun) -> str:
    """When it was done, from the start of the run; as a time of day where clocks do not agree."""
    at = datetime.fromisoformat(act.at)
    since = -1.0 if run.started_at is None else (at - run.started_at).total_seconds()
    if since < 0 or (run.ended_at is not None and at > run.ended_at):
        return f"{at:%H:%M:%S}"
    return f"{since:.2f} s" if since < 100 else f"{int(since // 60):,} min {int(since % 60)} s"
