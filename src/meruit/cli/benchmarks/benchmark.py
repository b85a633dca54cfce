"""`meruit benchmark`: run agents on tasks and judge what they changed in their environments."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from meruit.cli.benchmarks.edit import delete, edit
from meruit.cli.benchmarks.standings import compare, leaderboard
from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    check_stdin_used_once,
    config_option,
    json_option,
    note,
    page_options,
    print_json,
    say,
    sources_option,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.model.task_run import TaskRun

_Command = TypeVar("_Command", bound=Callable[..., Any])

MAX_PARALLEL = 64
MAX_REPEATS = 100

agent_option = click.option(
    "--agent",
    "agent",
    required=True,
    metavar="COMMAND",
    help="Command that runs the agent, without a shell; {task} is replaced by the task's id.",
)


def _check_finite(_context: click.Context, _option: click.Parameter, seconds: float | None) -> float | None:
    if seconds is not None and not math.isfinite(seconds):
        raise click.UsageError("--timeout must be a number of seconds, such as 90")
    return seconds


def running_options(command: _Command) -> _Command:
    """Add the options that say how to run agents."""
    for option in (
        click.option(
            "--timeout",
            type=click.FloatRange(min=0, min_open=True),
            callback=_check_finite,
            metavar="S",
            help="Stop an agent after this time and judge what it did (default: the time limit of its task).",
        ),
        click.option(
            "--parallel",
            type=click.IntRange(1, MAX_PARALLEL),
            default=1,
            show_default=True,
            help="Number of agents that run at a time.",
        ),
        click.option(
            "--answer",
            type=click.Choice(["stdout"]),
            metavar="stdout",
            help="Take the standard output of an agent as its answer (default: agents give no answer).",
        ),
        sources_option,
        agent_option,
    ):
        command = option(command)
    return command


@click.group()
def benchmark() -> None:
    """Run agents on benchmark tasks and judge the results.

    All evidence is recorded in the data folder, so a run can be judged again later without its playgrounds.
    """


benchmark.add_command(compare)
benchmark.add_command(delete)
benchmark.add_command(edit)
benchmark.add_command(leaderboard)


@benchmark.command()
@click.argument("name", metavar="FILE.yaml|SLUG[@V]")
@running_options
@click.option("--task", "tasks", multiple=True, metavar="ID", help="Run only this task; may be repeated.")
@click.option(
    "--repeats",
    type=click.IntRange(1, MAX_REPEATS),
    default=1,
    show_default=True,
    help="Number of attempts at each task.",
)
@click.option(
    "--scored/--practice",
    default=True,
    show_default=True,
    help="Whether the run counts (default) or is practice. Practice publishes nothing, and shows the criteria.",
)
@click.option("--agent-id", metavar="NAME", help="Name of the agent in the records.")
@tenant_option
@store_options
@config_option
@json_option
def run(  # noqa: PLR0913 - one an option
    *,
    name: str,
    agent: str,
    allow_sources: bool,
    tasks: tuple[str, ...],
    repeats: int,
    parallel: int,
    scored: bool,
    agent_id: str | None,
    timeout: float | None,
    answer: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Run an agent on each task of a benchmark and judge it.

    Each task has a playground of its own.
    The command finds the path of a JSON file with its task in MERUIT_TASK, and the same in MERUIT_INSTRUCTION,
    MERUIT_TASK_ID, MERUIT_DEADLINE, MERUIT_PLAYGROUND, MERUIT_SECRET, MERUIT_FHIR_URL, MERUIT_PORTAL_URL,
    MERUIT_X12_URL, MERUIT_CALL_URL, MERUIT_FAX_URL, MERUIT_INBOX_URL, MERUIT_CDS_URL, MERUIT_MLLP and MERUIT_SFTP.
    The state of the playground decides the verdict, not the command's exit code.
    Exit codes: 0 passed, 1 not passed, 3 could not be judged.
    """
    # Imported here, and below, so that --help is quick.
    from meruit.benchmarks.agent_process import parse_agent_command
    from meruit.cli.shared.benchmark_runs import run_rollouts, run_until_interrupted, select_tasks
    from meruit.cli.shared.benchmark_session import find_or_publish, open_session, read_benchmark_file
    from meruit.cli.shared.contracts import COMMAND_LINE, check_line, command_line_actor
    from meruit.cli.views.benchmark import pluralize

    check_stdin_used_once(name, config)
    command_line_actor(tenant)
    if agent_id is not None:
        check_line("--agent-id", agent_id)
    found = read_benchmark_file(name)
    # All validation comes before the first write.
    if found is not None:
        parse_agent_command(agent, select_tasks(found, tasks))
    with open_session(
        StoreAddress(data=data, database_url=database_url, tenant=tenant),
        config,
        make=found is not None,
        any_address=allow_sources,
    ) as at:

        async def measure() -> int:
            meant = await find_or_publish(at, COMMAND_LINE, name, found, practice=not scored)
            command = parse_agent_command(agent, select_tasks(meant, tasks))
            created, runs = await at.benchmarks.create(
                tenant,
                COMMAND_LINE,
                meant.name,
                tasks=list(tasks) or None,
                repeats=repeats,
                scored=scored,
                agent_id=agent_id,
            )
            note(f"{created.id}: {meant.name}, {pluralize(len(runs), 'task run')}, recorded in {at.folder}")
            return await run_rollouts(
                at, created.id, runs, (command, parallel, timeout, answer is not None), as_json=as_json
            )

        return run_until_interrupted(measure())


@benchmark.command()
@click.argument("run_id", metavar="RUN_ID")
@running_options
@tenant_option
@store_options
@config_option
@json_option
def resume(  # noqa: PLR0913 - one an option
    *,
    run_id: str,
    agent: str,
    allow_sources: bool,
    parallel: int,
    timeout: float | None,
    answer: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Complete a benchmark run that was interrupted or killed.

    Starts the task runs that have not ended, also those that were under way, each in a new playground. Task runs that
    have ended stay as they are.
    """
    from meruit.benchmarks.agent_process import parse_agent_command
    from meruit.cli.shared.benchmark_runs import run_rollouts, run_until_interrupted
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.cli.views.benchmark import pluralize
    from meruit.errors import MeruitError
    from meruit.model.task_run import ENDED, RunStatus

    with open_session(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), config, any_address=allow_sources
    ) as at:
        runs = at.reader.task_runs(at.scope, run_id)
        left = [one for one in runs if one.status not in ENDED]
        if not left:
            raise MeruitError(f"every task run of {run_id} has ended; there is nothing to resume")
        command = parse_agent_command(agent, [one.task for one in left])
        lost = [one.id for one in left if one.status is RunStatus.RUNNING]

        async def measure() -> int:
            if lost:
                # While another process runs them, their playgrounds are locked.
                async with at.open_playgrounds(at.home_of_run(run_id)) as benchmarks:
                    await benchmarks.requeue(tenant, lost, judging_too=True)
                whose = "its agent and starts" if len(lost) == 1 else "their agents and start"
                note(f"{pluralize(len(lost), 'task run')} had lost {whose} again")
            waiting = [at.reader.run(at.scope, one.id) for one in left]
            return await run_rollouts(
                at, run_id, waiting, (command, parallel, timeout, answer is not None), as_json=as_json
            )

        return run_until_interrupted(measure())


@benchmark.command()
@click.argument("run_id", metavar="RUN_ID|TASK_RUN_ID")
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--evidence", is_flag=True, help="Also print all evidence; --json always has it.")
@tenant_option
@store_options
@config_option
@json_option
def show(  # noqa: PLR0913 - one an option
    *,
    run_id: str,
    task: str | None,
    evidence: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Show a benchmark run, one task run, or all runs of one task.

    RUN_ID names a benchmark run or a task run; with TASK, all runs of that task in the benchmark run.
    """
    from meruit.cli.shared.benchmark_runs import (
        label,
        load_and_print_run,
        load_task_run_details,
        runs_of_task,
        suggest_next,
    )
    from meruit.cli.shared.benchmark_session import OUTCOME_PREFIX, RUN_PREFIX, open_session
    from meruit.cli.views.benchmark import print_attempts, print_task_run, print_task_runs

    if run_id.startswith(OUTCOME_PREFIX):
        raise click.UsageError(f"{run_id} is an outcome; `meruit outcome show {run_id}` shows it")
    if task is not None and not run_id.startswith(RUN_PREFIX):
        raise click.UsageError(f"{task!r} needs a benchmark run, whose id begins with {RUN_PREFIX}; leave it out")
    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        if task is not None:
            several = [load_task_run_details(at, one) for one in runs_of_task(at, run_id, task)]
            print_attempts(several, evidence=evidence, as_json=as_json)
        elif run_id.startswith(RUN_PREFIX):
            if not as_json:
                label(at.reader.benchmark_run(at.scope, run_id))
            printed = load_and_print_run(at, run_id, as_json=as_json)
            if not as_json:
                say()
                print_task_runs(printed.runs, printed.agents)
                suggest_next(at, printed)
        else:
            found = load_task_run_details(at, at.reader.run(at.scope, run_id))
            print_task_run(found, evidence=evidence, as_json=as_json)
    return ExitCode.PASSED


@benchmark.command(name="list")
@click.option("--published", "of_benchmarks", is_flag=True, help="List published benchmarks instead of runs.")
@click.option("--benchmark", "slug", metavar="SLUG", help="Filter by benchmark.")
@page_options
@tenant_option
@store_options
@config_option
@json_option
def list_runs(  # noqa: PLR0913 - one an option
    *,
    of_benchmarks: bool,
    slug: str | None,
    limit: int,
    before: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """List benchmark runs or published benchmarks, newest first."""
    from meruit.cli.shared.benchmark_runs import list_benchmark_runs, list_published
    from meruit.cli.shared.benchmark_session import open_session

    if of_benchmarks and slug is not None:
        raise click.UsageError("--benchmark and --published cannot be combined; --benchmark filters runs")
    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        if of_benchmarks:
            list_published(at, before, limit, as_json=as_json)
        else:
            list_benchmark_runs(at, slug, before, limit, as_json=as_json)
    return ExitCode.PASSED


@benchmark.command()
@click.argument("run_id", metavar="RUN_ID")
@click.option(
    "--benchmark",
    "name",
    metavar="FILE|SLUG@V",
    help="Benchmark version whose criteria judge (default: the run's own).",
)
@click.option("--reason", required=True, metavar="TEXT", help="Reason, one line; it is recorded.")
@tenant_option
@store_options
@config_option
@json_option
def score(  # noqa: PLR0913 - one an option
    *,
    run_id: str,
    name: str | None,
    reason: str,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Judge a run again from its recorded evidence.

    Earlier verdicts stay on record. Exit codes are those of `meruit benchmark run`.
    """
    from meruit.cli.shared.benchmark_runs import judge_again, load_and_print_run, run_until_interrupted, suggest_next
    from meruit.cli.shared.benchmark_session import find_or_publish, open_session, read_benchmark_file
    from meruit.cli.shared.contracts import COMMAND_LINE, check_line
    from meruit.cli.views.benchmark import exit_code

    check_stdin_used_once(name, config)
    check_line("--reason", reason)
    found = None if name is None else read_benchmark_file(name)
    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        measured = at.reader.benchmark_run(at.scope, run_id)
        if found is not None and found.benchmark != measured.benchmark:
            raise click.UsageError(f"{run_id} is a run of {measured.benchmark}, not of {found.name}")

        async def rejudge() -> None:
            meant = None if name is None else await find_or_publish(at, COMMAND_LINE, name, found)
            await judge_again(at, run_id, reason, None if meant is None else meant.name)

        run_until_interrupted(rejudge())
        printed = load_and_print_run(at, run_id, as_json=as_json)
        if not as_json:
            suggest_next(at, printed)
        return exit_code(printed.found)


@benchmark.command()
@click.argument("file", metavar="FILE.yaml")
@tenant_option
@store_options
@config_option
@json_option
def publish(
    *, file: str, tenant: str, data: str | None, database_url: str | None, config: str | None, as_json: bool
) -> int:
    """Publish a benchmark and print its name; - is stdin.

    A published version cannot be changed.
    """
    from meruit.cli.shared.benchmark_runs import run_until_interrupted, select_tasks
    from meruit.cli.shared.benchmark_session import find_or_publish, open_session
    from meruit.cli.shared.contracts import COMMAND_LINE, command_line_actor
    from meruit.playground.load import load_benchmark

    check_stdin_used_once(file, config)
    command_line_actor(tenant)
    found = load_benchmark(file)
    select_tasks(found, ())
    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config, make=True) as at:
        run_until_interrupted(find_or_publish(at, COMMAND_LINE, file, found))
        view = at.benchmarks.find(tenant, found.name).view
    if as_json:
        print_json(view.to_json())
    else:
        say(found.name)
    return ExitCode.PASSED


@benchmark.command()
@click.argument("task_run_id", metavar="TASK_RUN_ID")
@click.option(
    "--reread",
    is_flag=True,
    help="Read again what could not be read before. Later changes count too; the record says so.",
)
@sources_option
@tenant_option
@store_options
@config_option
@json_option
def recheck(  # noqa: PLR0913 - one an option
    *,
    task_run_id: str,
    reread: bool,
    allow_sources: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Judge a task run again that could not be judged completely.

    Uses the recorded evidence, or with --reread the state of the systems now.
    """
    from meruit.cli.shared.benchmark_runs import load_task_run_details, run_until_interrupted
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.cli.views.benchmark import print_task_run
    from meruit.model.verdict import Verdict

    with open_session(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), config, any_address=allow_sources
    ) as at:
        run = at.reader.run(at.scope, task_run_id)

        async def recheck_run() -> "TaskRun":
            async with at.open_playgrounds(at.home_of(run)) as benchmarks:
                return await benchmarks.recheck(tenant, task_run_id, reread=reread)

        again = run_until_interrupted(recheck_run())
        print_task_run(load_task_run_details(at, again), evidence=False, as_json=as_json)
    if again.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR):
        return ExitCode.COULD_NOT_VERIFY
    return ExitCode.PASSED if again.verdict is Verdict.PASS else ExitCode.NOT_PASSED


@benchmark.command()
@click.argument("run_id", metavar="RUN_ID|TASK_RUN_ID")
@tenant_option
@store_options
@config_option
@json_option
def cancel(
    *, run_id: str, tenant: str, data: str | None, database_url: str | None, config: str | None, as_json: bool
) -> int:
    """Cancel the part of a run that has not ended."""
    import msgspec

    from meruit.cli.shared.benchmark_runs import run_until_interrupted
    from meruit.cli.shared.benchmark_session import RUN_PREFIX, open_session
    from meruit.errors import AlreadyServed
    from meruit.model.task_run import ENDED

    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        of_benchmark = run_id.startswith(RUN_PREFIX)
        runs = at.reader.task_runs(at.scope, run_id) if of_benchmark else [at.reader.run(at.scope, run_id)]
        going = [one for one in runs if one.status not in ENDED]

        async def cancel_runs() -> None:
            ids = [one.id for one in going]
            try:
                begun = next((one for one in going if one.playground_id is not None), going[0])
                async with at.open_playgrounds(at.home_of(begun)) as benchmarks:
                    await benchmarks.cancel(tenant, ids)
            except AlreadyServed:
                # The process that serves the playgrounds removes them when it sees this.
                await at.benchmarks.cancel(tenant, ids)

        if going:
            run_until_interrupted(cancel_runs())
        ended = [at.reader.run(at.scope, one.id) for one in going]
    if as_json:
        print_json(msgspec.json.encode({"cancelled": [one.id for one in ended]}))
    else:
        say(f"{len(ended):,} cancelled, {len(runs) - len(ended):,} had already ended")
    return ExitCode.PASSED


@benchmark.command()
@json_option
def schema(*, as_json: bool) -> int:
    """Print the JSON Schema of benchmark files, for editors."""
    import json

    from meruit.app import build_json_schema

    text = json.dumps(build_json_schema("benchmark"), indent=None if as_json else 2, ensure_ascii=False)
    print_json(text.encode())
    return ExitCode.PASSED
