"""`meruit benchmark leaderboard` and `meruit benchmark compare`."""

from typing import TYPE_CHECKING

import click

from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    config_option,
    format_cell,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.model.task_run import ConfidenceInterval


@click.command()
@click.argument("name", metavar="SLUG[@V]")
@tenant_option
@store_options
@config_option
@json_option
def leaderboard(
    *, name: str, tenant: str, data: str | None, database_url: str | None, config: str | None, as_json: bool
) -> int:
    """Rank the agents of a benchmark by their verified runs.

    A run counts if it was scored, names its agent, covers every task, and every task run has a verdict of this version.
    """
    # Imported here, and below, so that --help is quick.
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.reports.standings import BenchmarkStandings

    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        found = BenchmarkStandings(at.benchmarks.library, at.reader).leaderboard(at.scope, name)
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    rows = [
        (
            str(one.rank),
            one.agent_id,
            format_cell(one.score),
            _interval(one.score_interval),
            format_cell(one.pass_rate),
            _interval(one.pass_rate_interval),
            f"{one.task_runs:,}",
            ", ".join(one.tied_with) or "–",
            ", ".join(one.recorded_by),
        )
        for one in found.standings
    ]
    headings = ("rank", "agent", "score", "95 %", "pass rate", "95 %", "task runs", "tied with", "recorded by")
    if rows:
        print_table(headings, rows)
        say()
    say(f"judged by {found.judged_by}, {found.tasks:,} tasks")
    for reason, times in found.left_out.items():
        note(f"left out: {times:,} {reason}")
    return ExitCode.PASSED


@click.command()
@click.argument("first", metavar="RUN_ID")
@click.argument("second", metavar="RUN_ID")
@tenant_option
@store_options
@config_option
@json_option
def compare(
    *,
    first: str,
    second: str,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Compare two ended runs of one benchmark, task by task.

    Differences are the second run minus the first.
    """
    from meruit.cli.shared.benchmark_session import open_session
    from meruit.reports.standings import BenchmarkStandings

    with open_session(StoreAddress(data=data, database_url=database_url, tenant=tenant), config) as at:
        found = BenchmarkStandings(at.benchmarks.library, at.reader).compare(at.scope, first, second)
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    rows = [
        (one.task, format_cell(one.first), format_cell(one.second), f"{one.second - one.first:+.3g}")
        for one in found.tasks
    ]
    if rows:
        print_table(("task", "first", "second", "difference"), rows)
        say()
    say(found.sentence)
    say(f"better at {found.won:,}, worse at {found.lost:,}, equal at {found.tied:,}")
    if found.score.interval is not None:
        say(f"95 % interval of the difference {_interval(found.score.interval)}")
    if found.first_judged_by != found.second_judged_by:
        note(f"judged by different criteria: {found.first_judged_by} and {found.second_judged_by}")
    for what, tasks in (("first", found.only_first), ("second", found.only_second), ("no", found.undecided)):
        if tasks:
            how = "have no verdict in both" if what == "no" else f"are in the {what} run only"
            note(f"not compared, because they {how}: {', '.join(tasks)}")
    return ExitCode.PASSED


def _interval(found: "ConfidenceInterval | None") -> str:
    return "–" if found is None else f"{found.low:.2f} to {found.high:.2f}"
