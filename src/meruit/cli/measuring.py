"""What the commands about benchmarks share: agents run at tasks, runs judged again, and how they are listed."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

import click
import msgspec

from meruit.cli.arena import Desk
from meruit.cli.outcome import progress_shown
from meruit.cli.output import ExitCode, note, print_json, say, shown, table, visible
from meruit.cli.standings import Progress, exit_code, name_logs, print_run
from meruit.engine.rollouts import Rollouts
from meruit.engine.running import AgentCommand, AgentRan
from meruit.model.errors import nearest
from meruit.model.run import BenchmarkRun, RunStatus, TaskRun
from meruit.model.task import Benchmark
from meruit.playground.ground import seed_of
from meruit.stores import benchmarks as kept_benchmarks
from meruit.stores import runs as kept_runs
from meruit.stores.database import NotFound, StoreError

_T = TypeVar("_T")


class Told(NamedTuple):
    """A benchmark run that was printed."""

    found: BenchmarkRun
    runs: list[TaskRun]
    agents: dict[str, AgentRan | None]


def chosen(found: Benchmark, tasks: Sequence[str]) -> list[str]:
    """The tasks that are meant; raises UsageError for one that there is not, MeruitError for a seed that is none."""
    known = [task.id for task in found.tasks]
    for name in tasks:
        if name not in known:
            listed = nearest(name, known) or f"; it has {', '.join(known[:20])}"
            raise click.UsageError(f"{found.name} has no task {name!r}{listed}")
    meant = [task for task in found.tasks if not tasks or task.id in tasks]
    for task in meant:
        seed_of(found, task)
    return [task.id for task in meant]


async def rolled_out(
    at: Desk,
    run_id: str,
    runs: Sequence[TaskRun],
    how: tuple[AgentCommand, int, float | None],
    *,
    as_json: bool,
) -> int:
    """Run agents at the runs given, and print what all of the benchmark run comes to."""
    command, parallel, timeout = how
    progress = Progress(len(runs))
    async with at.arena(at.home_of_run(run_id)) as benchmarks:
        rollouts = Rollouts(benchmarks, at.tenant, command, os.environ, at.logs, progress.observer(), parallel, timeout)
        try:
            done = await rollouts.all(runs)
        except asyncio.CancelledError:
            note(
                f"interrupted: {progress.done:,} of {len(runs):,} task runs have ended and stay recorded, the others "
                f"are cancelled; `meruit benchmark show {run_id}` shows them"
            )
            raise
        finally:
            progress.clear()
    told = print_standing(at, run_id, as_json=as_json)
    if not as_json:
        name_logs(told.runs, told.agents)
    troubled = sum(one.trouble is not None for one in done)
    if troubled:
        note(f"{troubled:,} task runs could not be begun, and are cancelled")
        return ExitCode.COULD_NOT_VERIFY
    return exit_code(told.found)


def print_standing(at: Desk, run_id: str, *, as_json: bool) -> Told:
    """Print a benchmark run as it stands, and answer it."""
    found = at.benchmarks.benchmark_run(at.scope, run_id)
    runs = at.benchmarks.task_runs(at.scope, run_id)
    agents = {one.id: at.logs.remembered(one) for one in runs}
    print_run(found, runs, agents, as_json=as_json)
    return Told(found, runs, agents)


def until_interrupted(doing: Coroutine[Any, Any, _T]) -> _T:
    """Run something that cleans up behind itself when it is interrupted, or asked to end."""

    async def heeding() -> _T:
        task = asyncio.current_task()
        # Only there a signal can be heard.
        if task is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await doing

    try:
        return asyncio.run(heeding())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def judge_again(at: Desk, run_id: str, reason: str, name: str | None) -> None:
    """Judge every completed task run of a benchmark run by its own criteria, or by those of the version named."""
    runs = at.benchmarks.task_runs(at.scope, run_id)
    completed = [one for one in runs if one.status is RunStatus.COMPLETED]
    alone, turned = Counter[str](), 0
    with progress_shown("judging") as progress:
        for number, one in enumerate(completed, start=1):
            try:
                again = await at.benchmarks.rejudge(at.tenant, one.id, reason, name)
                turned += again.verdict != one.verdict
            except (NotFound, StoreError) as problem:
                # The version has no such task any more, or the evidence was erased.
                alone[str(problem)] += 1
            progress(number, len(completed))
    by = "their own criteria" if name is None else name
    note(
        f"{len(completed) - alone.total():,} of {len(runs):,} task runs judged again by {by}; {turned:,} end otherwise"
    )
    for why, times in alone.items():
        note(f"{times:,} left alone: {why}")


def label(found: BenchmarkRun) -> None:
    """Say which run it is."""
    labels = {
        "run": found.id,
        "benchmark": f"{found.benchmark}@{found.version}",
        "agent": found.agent_id,
        "created": f"{found.created_at.isoformat(timespec='seconds')} by {found.created_by}",
        "counts": "yes" if found.scored else "no, it was practice",
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:12}{visible(value)}")
    say()


def list_published(at: Desk, before: int | None, limit: int, *, as_json: bool) -> None:
    """List benchmarks, the newest first."""
    with at.store.database.reading() as connection:
        found = kept_benchmarks.page(connection, at.tenant, before=before, limit=limit)
    rows = [
        (
            f"{one.benchmark}@{one.version}",
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            str(one.tasks),
            one.title or "–",
        )
        for one in found
    ]
    headings = ("benchmark", "published (UTC)", "tasks", "title")
    _print_page("benchmarks", found, (headings, rows), limit, as_json=as_json)


def list_found_runs(at: Desk, slug: str | None, before: int | None, limit: int, *, as_json: bool) -> None:
    """List benchmark runs, the newest first, of one benchmark or all."""
    with at.store.database.reading() as connection:
        page = kept_runs.benchmark_run_page(connection, at.scope, slug=slug, before=before, limit=limit)
    found = [at.benchmarks.benchmark_run(at.scope, one.id) for one in page]
    rows = [
        (
            one.id,
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            f"{one.benchmark}@{one.version}",
            one.agent_id or "–",
            f"{sum(one.counts.values()):,}",
            "–" if one.result is None else str(one.result.verdict),
            "–" if one.result is None else shown(one.result.score),
        )
        for one in found
    ]
    headings = ("run", "created (UTC)", "benchmark", "agent", "task runs", "verdict", "score")
    _print_page("benchmark_runs", found, (headings, rows), limit, as_json=as_json)


# Any: records that have a place in the log.
def _print_page(
    name: str,
    found: Sequence[Any],
    shown_as: tuple[Sequence[str], Sequence[Sequence[str]]],
    limit: int,
    *,
    as_json: bool,
) -> None:
    following = found[-1].seq if len(found) == limit else None
    if as_json:
        print_json(msgspec.json.encode({name: found, "next": following}))
        return
    table(*shown_as)
    if following is not None:
        note(f"there may be more: --before {following}")
