"""Work of the benchmark commands: run agents on tasks, judge runs again, list them."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import click
import msgspec

from meruit.benchmarks import records as kept_benchmarks
from meruit.benchmarks import records as kept_runs
from meruit.benchmarks.agent_process import AgentCommand, AgentExit, strip_judge_secrets
from meruit.benchmarks.evidence import has_unreadable_source
from meruit.benchmarks.rollouts import Rollouts
from meruit.cli.shared.benchmark_session import BenchmarkSession
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    format_cell,
    note,
    print_json,
    print_table,
    say,
    show_progress,
)
from meruit.cli.views.benchmark import (
    UNDECIDED_VERDICTS,
    Progress,
    TaskRunDetails,
    exit_code,
    is_or_are,
    pluralize,
    print_log_paths,
    print_run,
    version_judged_by,
    worst_run,
)
from meruit.errors import NotFound, StoreError
from meruit.model.task import Benchmark, TaskSource
from meruit.model.task_run import BenchmarkRun, CriterionStatus, RunStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.playground.environment import seed_of
from meruit.suggestions import nearest

_T = TypeVar("_T")
MAX_UNJUDGED = 3
"""Most task runs for which the reason is printed why they could not be judged."""


class BenchmarkRunDetails(msgspec.Struct, frozen=True):
    """A benchmark run that was printed."""

    found: BenchmarkRun
    runs: list[TaskRun]
    agents: dict[str, AgentExit | None]


def select_tasks(found: Benchmark, tasks: Sequence[str]) -> list[str]:
    """Find the named tasks; raises UsageError for an unknown task, MeruitError for a bad seed."""
    known = [task.id for task in found.tasks]
    for name in tasks:
        if name not in known:
            listed = nearest(name, known) or f"; it has {', '.join(known[:20])}"
            raise click.UsageError(f"{found.name} has no task {name!r}{listed}")
    meant = [task for task in found.tasks if not tasks or task.id in tasks]
    for task in meant:
        seed_of(found, task)
    return [task.id for task in meant]


async def run_rollouts(
    at: BenchmarkSession,
    run_id: str,
    runs: Sequence[TaskRun],
    how: tuple[AgentCommand, int, float | None, bool],
    *,
    as_json: bool,
) -> int:
    """Run agents on the task runs given, and print the whole benchmark run."""
    command, parallel, timeout, answers = how
    progress = Progress(len(runs))
    async with at.open_playgrounds(at.home_of_run(run_id)) as benchmarks:
        environment = strip_judge_secrets(os.environ, _sources(at, runs[0]))
        rollouts = Rollouts(
            benchmarks=benchmarks,
            tenant=at.tenant,
            command=command,
            environment=environment,
            logs=at.logs,
            observer=progress.observer(),
            parallel=parallel,
            timeout_s=timeout,
            answers=answers,
        )
        watching = asyncio.create_task(progress.watch(benchmarks.environments.last_event))
        try:
            done = await rollouts.run_all(runs)
        except BaseException as problem:
            progress.clear()
            _note_unfinished(at, run_id, interrupted=isinstance(problem, asyncio.CancelledError))
            raise
        finally:
            watching.cancel()
            progress.clear()
    printed = load_and_print_run(at, run_id, as_json=as_json)
    if not as_json:
        print_log_paths(printed.runs, printed.agents)
        suggest_next(at, printed)
    troubled = Counter(one.run.status for one in done if one.trouble is not None)
    if waiting := troubled[RunStatus.PENDING]:
        note(f"{pluralize(waiting, 'task run')} could not be started; `meruit benchmark resume` tries again")
    if broken := troubled[RunStatus.CANCELLED]:
        note(f"{pluralize(broken, 'task run')} could not be completed and {is_or_are(broken)} cancelled")
    return ExitCode.COULD_NOT_VERIFY if troubled else exit_code(printed.found)


def _sources(at: BenchmarkSession, run: TaskRun) -> Iterator[TaskSource]:
    """Systems that the benchmark of a run reads, or that the operator has configured."""
    yield from at.settings.benchmarks.sources.values()
    for task in at.benchmarks.find(at.tenant, f"{run.benchmark}@{run.version}").benchmark.tasks:
        yield from task.sources.values()


def _note_unfinished(at: BenchmarkSession, run_id: str, *, interrupted: bool) -> None:
    """Print the state of a benchmark run that ended early, and how to continue it."""
    counts = at.reader.benchmark_run(at.scope, run_id).counts
    pending, cancelled = (counts.get(status, 0) for status in (RunStatus.PENDING, RunStatus.CANCELLED))
    ended = sum(counts.values()) - pending - cancelled
    total = pluralize(sum(counts.values()), "task run")
    note(
        f"{'interrupted' if interrupted else 'ended early'}: {ended:,} of {total} ended and are recorded, "
        f"{cancelled:,} cancelled, {pending:,} left to do"
    )
    resume = f"`meruit benchmark resume {run_id} --agent …` starts the rest"
    note(resume if pending else f"`meruit benchmark show {run_id}` shows them")


def load_and_print_run(at: BenchmarkSession, run_id: str, *, as_json: bool) -> BenchmarkRunDetails:
    """Print a benchmark run and return it."""
    found = at.reader.benchmark_run(at.scope, run_id)
    runs = at.reader.task_runs(at.scope, run_id)
    agents = {one.id: at.logs.load_exit(one) for one in runs}
    print_run(found, runs, agents, as_json=as_json)
    return BenchmarkRunDetails(found=found, runs=runs, agents=agents)


def suggest_next(at: BenchmarkSession, printed: BenchmarkRunDetails) -> None:
    """Print the next steps for a benchmark run that did not pass."""
    result = printed.found.result
    if result is None:
        if printed.found.counts.get(RunStatus.PENDING):
            note(f"next: `meruit benchmark resume {printed.found.id} --agent …` starts the rest")
        return
    unjudged = [run for run in printed.runs if run.verdict in UNDECIDED_VERDICTS]
    for run in unjudged[:MAX_UNJUDGED]:
        _explain_unjudged(at, run)
    if len(unjudged) > MAX_UNJUDGED:
        note(f"and {pluralize(len(unjudged) - MAX_UNJUDGED, 'task run')} more that could not be judged")
    lacking = result.verdict in UNDECIDED_VERDICTS and {run.task for run in printed.runs} - {
        one.task for one in result.tasks
    }
    if lacking:
        again = " ".join(f"--task {task}" for task in sorted(lacking)[:MAX_UNJUDGED])
        name = f"{printed.found.benchmark}@{printed.found.version}"
        note(f"next: `meruit benchmark run {name} {again} --agent …` runs the tasks again that have no counted run")
    elif not unjudged and result.verdict is not Verdict.PASS and (worst := worst_run(printed.runs)) is not None:
        note(f"next: `meruit benchmark show {worst.id}` shows why {worst.task} did not pass")


def _explain_unjudged(at: BenchmarkSession, run: TaskRun) -> None:
    for one in at.reader.criterion_runs(at.tenant, run):
        if one.status is CriterionStatus.ERROR:
            note(f"{run.task}: {one.label} could not be judged: {one.details or 'no reason is recorded'}")
    result = at.reader.result(at.tenant, run)
    if result is not None and has_unreadable_source(result):
        how = f"{run.id} --allow-sources" if at.any_address else run.id
        note(f"next: `meruit benchmark recheck {how} --reread` reads it again once the system can be read")
    else:
        note(f"next: `meruit benchmark show {run.id}` shows its criteria")


def runs_of_task(at: BenchmarkSession, run_id: str, task: str) -> list[TaskRun]:
    """Find the runs of one task in a benchmark run; raises UsageError if there are none."""
    runs = at.reader.task_runs(at.scope, run_id)
    found = [one for one in runs if one.task == task]
    if not found:
        known = list(dict.fromkeys(one.task for one in runs))
        listed = nearest(task, known) or f"; it has {', '.join(known[:20])}"
        raise click.UsageError(f"{run_id} has no run of a task {task!r}{listed}")
    return found


def load_task_run_details(at: BenchmarkSession, run: TaskRun) -> TaskRunDetails:
    """Collect the details of a task run."""
    playground = run.playground_id
    exists = playground is not None and (at.home_of(run) / playground).is_dir()
    criteria = at.reader.criterion_runs(at.tenant, run)
    return TaskRunDetails(
        run=run,
        criteria=criteria,
        agent=at.logs.load_exit(run),
        has_playground=exists,
        required_fields=_fields_required(at, run),
    )


def _fields_required(at: BenchmarkSession, run: TaskRun) -> dict[int, set[str]]:
    """Required fields of each criterion, by its position."""
    by = version_judged_by(run) or run.version
    task = at.benchmarks.find(at.tenant, f"{run.benchmark}@{by}").benchmark.task(run.task)
    found: dict[int, set[str]] = {}
    for position, criterion in enumerate(() if task is None else task.criteria):
        fields = None if criterion.assertion is None else criterion.assertion.settings.get("fields")
        if isinstance(fields, Mapping):
            found[position] = {path for path, one in fields.items() if _is_required(one)}
    return found


# Any: as an author wrote it.
def _is_required(written: Any) -> bool:
    return isinstance(written, Mapping) and written.get("must") is True


def run_until_interrupted(doing: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine that SIGINT and SIGTERM cancel, so that it can clean up."""

    async def cancel_on_sigterm() -> _T:
        task = asyncio.current_task()
        # Only the main thread can handle signals.
        if task is not None and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await doing

    try:
        return asyncio.run(cancel_on_sigterm())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def judge_again(at: BenchmarkSession, run_id: str, reason: str, name: str | None) -> None:
    """Judge every completed task run again by its own criteria, or by those of the named version."""
    runs = at.reader.task_runs(at.scope, run_id)
    completed = [one for one in runs if one.status is RunStatus.COMPLETED]
    alone, turned = Counter[str](), 0
    with show_progress("judging") as progress:
        for number, one in enumerate(completed, start=1):
            try:
                again = await at.benchmarks.rejudge(at.tenant, one.id, reason, name)
                turned += again.verdict != one.verdict
            except (NotFound, StoreError) as problem:
                # The version does not have the task, or the evidence was erased.
                alone[str(problem)] += 1
            progress(number, len(completed))
    by = "their own criteria" if name is None else name
    note(
        f"{len(completed) - alone.total():,} of {pluralize(len(runs), 'task run')} judged again by {by}; "
        f"{turned:,} changed"
    )
    for why, times in alone.items():
        note(f"{times:,} skipped: {why}")


def label(found: BenchmarkRun) -> None:
    """Print the labels of a benchmark run."""
    labels = {
        "run": found.id,
        "benchmark": f"{found.benchmark}@{found.version}",
        "agent": found.agent_id,
        "created": f"{found.created_at.isoformat(timespec='seconds')} by {found.created_by}",
        "counts": "yes" if found.scored else "no, it was practice",
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:12}{escape_control_characters(value)}")
    say()


def list_published(at: BenchmarkSession, before: int | None, limit: int, *, as_json: bool) -> None:
    """List benchmarks, newest first."""
    with at.store.database.reading() as connection:
        found = kept_benchmarks.page_published(connection, at.tenant, before=before, limit=limit)
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


def list_benchmark_runs(
    at: BenchmarkSession, slug: str | None, before: int | None, limit: int, *, as_json: bool
) -> None:
    """List benchmark runs of one benchmark or all, newest first."""
    with at.store.database.reading() as connection:
        page = kept_runs.benchmark_run_page(connection, at.scope, slug=slug, before=before, limit=limit)
    found = [at.reader.benchmark_run(at.scope, one.id) for one in page]
    rows = [
        (
            one.id,
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            f"{one.benchmark}@{one.version}",
            one.agent_id or "–",
            f"{sum(one.counts.values()):,}",
            "–" if one.result is None else str(one.result.verdict),
            "–" if one.result is None or not one.result.runs else format_cell(one.result.score),
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
    print_table(*shown_as)
    if following is not None:
        note(f"next page: --before {following}")
