"""`meruit report`: success, tokens and cost of agents; only verified usage is counted."""

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

import click

from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    json_option,
    note,
    print_json,
    print_table,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.reports.compare import Comparison
    from meruit.reports.report import Report

_Command = TypeVar("_Command", bound=Callable[..., Any])

COSTS = ("quoted", "billed", "settled")


def source_options(command: _Command) -> _Command:
    """Add the options that choose the runs and the cost."""
    for option in (
        click.option(
            "--include-imported",
            is_flag=True,
            help="Count tokens that were read from files as verified too; the report says so.",
        ),
        click.option("--cost", type=click.Choice(COSTS), default="quoted", show_default=True, help="Cost to report."),
        click.option(
            "--from",
            "source",
            metavar="FILE.json",
            help="Read the runs from this file instead of the store; - is stdin.",
        ),
    ):
        command = option(command)
    return command


@click.group()
def report() -> None:
    """Report on agents: success, tokens and cost.

    Success counts all runs; tokens and cost count verified runs only. Every run that is left out is listed.
    """


@report.command()
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE.html",
    help="Page to write; FILE.json beside it gets the data. - is stdout.",
)
@click.option("--framework", "agents", multiple=True, metavar="NAME", help="Filter by agent; may be repeated.")
@click.option("--question", metavar="TEXT", help="Question that the report answers; becomes its heading.")
@source_options
@tenant_option
@store_options
@json_option
def build(  # noqa: PLR0913 - one an option
    *,
    target: str | None,
    agents: tuple[str, ...],
    question: str | None,
    cost: str,
    source: str | None,
    include_imported: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Write the report as one self-contained HTML page.

    The same runs give the same page, byte for byte. --json prints the data of the page. Verified figures are the
    provider's alone: counts from files, --from included, are listed as imported unless --include-imported is given.
    """
    if target is None and not as_json:
        raise click.UsageError("give -o FILE.html for the page, or --json for its data")
    if target == "-" and as_json:
        raise click.UsageError("`-o -` and --json both write to stdout; give one of them")
    if target is not None and not Path(target).name:
        raise click.UsageError("-o must name a file, such as report.html")
    if target is not None and Path(target).suffix == ".json":
        raise click.UsageError("-o must name the page, such as report.html; the data goes to the .json file beside it")
    targets = [] if target in (None, "-") else [Path(target), Path(target).with_suffix(".json")]
    for path in targets:
        if source is not None and _is_same(path, source):
            raise click.UsageError(f"{path} is the file that the runs are read from; give -o another name")
    wanted, place = (
        ReportOptions(agents, cost, question, include_imported),
        StoreAddress(data=data, database_url=database_url, tenant=tenant),
    )
    if target is None:
        print_json(_build_report(source, place, wanted).to_json())
        return ExitCode.PASSED
    # The page alone needs an extra, which is named before the runs are read.
    from meruit.reports.page import render

    found = _build_report(source, place, wanted)
    if target == "-":
        sys.stdout.buffer.write(render(found))
        sys.stdout.buffer.flush()
        return ExitCode.PASSED
    _write(dict(zip(targets, (render(found), found.to_json()), strict=True)))
    _note_written(targets, found)
    if as_json:
        print_json(found.to_json())
    return ExitCode.PASSED


def _note_written(targets: Sequence[Path], found: "Report") -> None:
    out, names = found.runs - found.verified, " and ".join(map(str, targets))
    note(f"{names} written: {found.runs:,} runs, {found.verified:,} verified, {out:,} excluded")
    if found.imported and not found.include_imported:
        note(f"{found.imported:,} of them were imported from files, so not verified; --include-imported counts them")


def _is_same(path: Path, source: str) -> bool:
    """Whether the path and the source are the same file, links included."""
    given = Path("/dev/stdin" if source == "-" else source)
    try:
        return path.samefile(given)
    except OSError:
        # One of them does not exist.
        return path.resolve() == given.resolve()


def _write(contents: dict[Path, bytes]) -> None:
    """Write files so that they appear when all of them are complete."""
    from meruit.outcomes.export import atomic_file

    with ExitStack() as files:
        for path, content in contents.items():
            file = files.enter_context(atomic_file(path))
            file.write(content)
            file.flush()


@report.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@source_options
@tenant_option
@store_options
@json_option
def compare(  # noqa: PLR0913 - one an option
    *,
    a: str,
    b: str,
    cost: str,
    source: str | None,
    include_imported: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Compare two agents, task by task.

    Exit code 3 if no task has a verified run of both.
    """
    if a == b:
        raise click.UsageError("A and B are the same agent")
    wanted = ReportOptions((a, b), cost, f"Is {a} better or cheaper than {b}?", include_imported)
    found = _build_report(source, StoreAddress(data=data, database_url=database_url, tenant=tenant), wanted)
    if as_json:
        print_json(found.to_json())
    else:
        _print_comparison(found)
    return ExitCode.PASSED if found.tasks_compared else ExitCode.COULD_NOT_VERIFY


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What a report is asked for."""

    agents: Sequence[str]
    cost: str
    question: str | None
    include_imported: bool


def _build_report(source: str | None, place: StoreAddress, wanted: ReportOptions) -> "Report":
    from meruit.cli.shared.open_store import open_records
    from meruit.reports.population import CostKind
    from meruit.reports.report import QUESTION, build_report
    from meruit.reports.runs_file import read_runs
    from meruit.usage.records import find_observations, iterate_all

    # Any: the arguments of build_report.
    options: dict[str, Any] = {
        "agents": wanted.agents,
        "cost": CostKind(wanted.cost),
        "question": wanted.question or QUESTION,
        "command": _reproduce_command(source, place, wanted),
        "include_imported": wanted.include_imported,
    }
    if source is not None:
        content = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
        file = read_runs(content, "standard input" if source == "-" else source)
        return build_report(file.records, file.attempts, **options)
    with open_records(place.data, place.database_url) as store, store.database.reading() as connection:
        return build_report(
            iterate_all(connection, place.tenant, wanted.agents[0] if len(wanted.agents) == 1 else None),
            lambda run_id: find_observations(connection, place.tenant, run_id),
            **options,
        )


def _reproduce_command(source: str | None, place: StoreAddress, wanted: ReportOptions) -> str:
    """The command that builds the report again in the same folder; it names no password."""
    taken = source is not None and any(_is_same(Path(name), source) for name in ("report.html", "report.json"))
    words = ["meruit", "report", "build", "-o", "report-again.html" if taken else "report.html"]
    words += [word for agent in wanted.agents for word in ("--framework", agent)]
    words += ["--include-imported"] if wanted.include_imported else []
    options = {
        "--cost": wanted.cost if wanted.cost != COSTS[0] else None,
        "--question": wanted.question,
        "--tenant": place.tenant if place.tenant != "default" else None,
        "--data": place.data if source is None else None,
        "--from": source,
    }
    words += [word for name, value in options.items() if value is not None for word in (name, value)]
    command = " ".join(map(_quote, words))
    if source is not None or place.database_url is None:
        return command
    shown = '"$MERUIT_DATABASE_URL"' if _has_password(place.database_url) else _quote(place.database_url)
    return f"{command} --database-url {shown}"


def _quote(word: str) -> str:
    """Quote a word for a shell; a page shows control characters escaped, so they are written as escapes."""
    if word.isprintable():
        return shlex.quote(word)
    return "$'" + "".join(one if one.isprintable() and one not in "\\'" else _escape(one) for one in word) + "'"


def _escape(character: str) -> str:
    return f"\\{character}" if character in "\\'" else f"\\U{ord(character):08x}"


def _has_password(database_url: str) -> bool:
    parts = urlsplit(database_url)
    return parts.password is not None or "password" in parse_qs(parts.query)


def _print_comparison(found: "Report") -> None:
    from meruit.reports.compare import describe_left_out

    say(found.answer)
    say()
    rows = [_row(one) for one in found.comparisons]
    if rows:
        headings = ("measure", "runs", "tasks", "first", "second", "estimate", "95 % interval", "p", "p Holm", "MDE")
        print_table(headings, rows)
        for one in found.comparisons:
            if one.left_out:
                say(f"{one.measure}: {describe_left_out(one)}")
        say()
    print_table(
        ("agent", "runs", "verified", "excluded", "by rule"),
        [
            (
                one.agent,
                f"{one.runs:,}",
                f"{one.verified:,}",
                f"{one.excluded:,}",
                ", ".join(f"{name} {count:,}" for name, count in one.by_code.items()) or "–",
            )
            for one in found.exclusions
        ],
    )
    for line in found.notes:
        note(line)


def _row(one: "Comparison") -> tuple[str, ...]:
    from meruit.pages.number_format import format_difference, format_factor, format_number, format_p, format_share
    from meruit.reports.compare import ComparisonScale

    shown, value = (
        (format_factor, format_number) if one.scale is ComparisonScale.RATIO else (format_difference, format_share)
    )
    limits = f"{shown(one.interval.low)} to {shown(one.interval.high)}" if one.interval else f"none: {one.why_not}"
    return (
        str(one.measure),
        str(one.among),
        f"{one.tasks:,}",
        value(one.value_a),
        value(one.value_b),
        shown(one.estimate),
        limits,
        format_p(one.p),
        format_p(one.p_holm),
        shown(one.mde),
    )
