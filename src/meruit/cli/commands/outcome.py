"""`meruit outcome`: recorded outcomes and the versions of their verdicts."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from meruit.cli.shared.list_options import (
    TableTarget,
    check_span,
    csv_options,
    span_options,
    table_options,
    was_given,
    write_table,
)
from meruit.cli.shared.open_store import open_records, resolve_outcome
from meruit.cli.terminal import (
    ExitCode,
    escape_control_characters,
    format_cell,
    json_option,
    note,
    page_options,
    print_json,
    print_table,
    say,
    show_progress,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.judge.difference import CriterionDifference
    from meruit.model.outcome import OutcomeSummary
    from meruit.outcomes.records import OutcomeFilter
    from meruit.store.paging import ListPage

_Command = TypeVar("_Command", bound=Callable[..., Any])

VERDICTS = ("pass", "partial", "fail", "inconclusive", "error")
FORMATS = ("jsonl", "csv", "xlsx", "parquet")
LONGEST_CELL = 60


def filter_options(command: _Command) -> _Command:
    """Add the options that filter outcomes; all that are given must hold."""
    for option in (
        span_options(),
        click.option("--criteria-digest", metavar="SHA256", help="Filter by the digest of the criteria."),
        click.option("--verdict", type=click.Choice(VERDICTS), help="Filter by verdict."),
        click.option("--domain", metavar="NAME", help="Filter by domain."),
        click.option("--consumer-id", metavar="ID", help="Filter by consumer."),
        click.option("--agent-id", metavar="ID", help="Filter by agent."),
        click.option("--contract-id", metavar="ID", help="Filter by contract."),
    ):
        command = option(command)
    return command


# Any: most filters are text, two are times.
def build_filter(chosen: "Mapping[str, Any]") -> "OutcomeFilter | None":
    """Build the filter; None when there is nothing to filter by."""
    from meruit.outcomes.records import OutcomeFilter

    check_span(chosen["since"], chosen["until"])
    given = {name: value for name, value in chosen.items() if value is not None}
    return OutcomeFilter(**given) if given else None


@click.group()
def outcome() -> None:
    """List, show, compare, export and erase recorded outcomes."""


@outcome.command(name="list")
@filter_options
@page_options
@table_options
@tenant_option
@store_options
@json_option
def list_outcomes(
    *,
    limit: int,
    before: int | None,
    table: TableTarget | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """List outcomes, newest first.

    Several filters must all hold. --csv and --xlsx write every outcome that fits unless --limit is given.
    """
    import msgspec

    from meruit.model.access import Scope
    from meruit.outcomes.records import OUTCOME_HEADINGS, outcome_cells, page
    from meruit.store.paging import fill_page, iterate_pages

    wanted = build_filter(chosen)
    with open_records(data, database_url) as store, store.database.reading() as connection:

        def read(place: int | None, most: int) -> "ListPage[OutcomeSummary]":
            return page(connection, Scope(tenant), narrowed=wanted, before=place, limit=most)

        if table is not None and not was_given("limit"):
            every = (one for several in iterate_pages(read, before) for one in several)
            write_table(table, OUTCOME_HEADINGS, map(outcome_cells, every))
            return ExitCode.PASSED
        found, following = fill_page(read, before, limit)
    if table is not None:
        write_table(table, OUTCOME_HEADINGS, map(outcome_cells, found))
        return ExitCode.PASSED
    if as_json:
        print_json(msgspec.json.encode({"outcomes": found, "next": following}))
        return ExitCode.PASSED
    rows = [
        (
            one.id,
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            one.contract_id,
            one.agent_id or "–",
            str(one.verdict),
            format_cell(one.score),
            str(one.version),
        )
        for one in found
    ]
    print_table(("outcome", "recorded (UTC)", "contract", "agent", "verdict", "score", "version"), rows, painted=4)
    if following is not None:
        note(f"next page: --before {following}")
    return ExitCode.PASSED


@outcome.command()
@click.argument("outcome_id", metavar="OUTCOME_ID")
@click.option(
    "--version", "number", type=click.IntRange(1), metavar="N", help="Version of the verdict (default: the latest)."
)
@tenant_option
@store_options
@json_option
def show(
    *,
    outcome_id: str,
    number: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Show an outcome and its verdict.

    With --json the whole record. OUTCOME_ID may be `latest`.
    """
    from meruit.cli.views.verdict import print_verification
    from meruit.model.access import Scope
    from meruit.outcomes.records import full_record, summary, version

    scope = Scope(tenant)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        outcome_id = resolve_outcome(store, tenant, outcome_id)
        found = summary(connection, scope, outcome_id)
        verdict = version(connection, scope, outcome_id, found.version if number is None else number)
        if as_json:
            print_json(
                full_record(connection, scope, outcome_id, store.blobs, verdict.version).model_dump_json().encode()
            )
            return ExitCode.PASSED
    labels = {
        "outcome": found.id,
        "contract": found.contract_id,
        "agent": found.agent_id,
        "consumer": found.consumer_id,
        "domain": found.domain,
        "recorded": found.created_at.isoformat(timespec="seconds"),
        "version": f"{verdict.version} of {found.version}",
        "criteria": verdict.criteria_digest,
        "reason": verdict.reason or None,
    }
    for name, value in labels.items():
        if value is not None:
            say(f"{name:10}{escape_control_characters(value)}")
    say()
    if verdict.result is None:
        say(f"verdict {verdict.verdict}; the result itself was erased")
    else:
        print_verification(verdict.result)
    return ExitCode.PASSED


@outcome.command()
@click.argument("outcome_id", metavar="OUTCOME_ID")
@click.option(
    "--from", "older", type=click.IntRange(1), metavar="A", help="Earlier version (default: the last but one)."
)
@click.option("--to", "newer", type=click.IntRange(1), metavar="B", help="Later version (default: the latest).")
@tenant_option
@store_options
@json_option
def diff(
    *,
    outcome_id: str,
    older: int | None,
    newer: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Compare two versions of a verdict, criterion by criterion.

    OUTCOME_ID may be `latest`.
    """
    from meruit.errors import StoreError
    from meruit.judge.difference import difference
    from meruit.judge.explain import explain_difference
    from meruit.model.access import Scope
    from meruit.outcomes.records import summary, version

    scope = Scope(tenant)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        outcome_id = resolve_outcome(store, tenant, outcome_id)
        later = newer or summary(connection, scope, outcome_id).version
        earlier = older or later - 1
        if not earlier:
            raise StoreError(f"{outcome_id} has only one version; `meruit rescore` adds versions")
        results = [version(connection, scope, outcome_id, number).result for number in (earlier, later)]
    both = [result for result in results if result is not None]
    if len(both) < len(results):
        raise StoreError(f"the results of {outcome_id} were erased")
    found = difference(*both)
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    for number, result, side in zip((earlier, later), both, (found.before, found.after), strict=True):
        say(
            f"version {number}: verdict {side.verdict}, success {format_cell(side.success)}, "
            f"score {format_cell(side.score)}"
        )
        if sentence := explain_difference(result):
            say(f"  {sentence}")
    if found.is_empty:
        say("nothing differs")
    elif found.criteria:
        say()
        print_table(("criterion", "", "what", "before", "after"), [row for one in found.criteria for row in _rows(one)])
    return ExitCode.PASSED


def _rows(found: "CriterionDifference") -> Iterator[tuple[str, ...]]:
    for number, change in enumerate(found.changes):
        label = (found.criterion_id, str(found.kind)) if number == 0 else ("", "")
        yield (*label, change.field, *(_truncate(format_cell(side)) for side in (change.before, change.after)))


def _truncate(text: str) -> str:
    return text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…"


@outcome.command()
@click.option(
    "-o",
    "--output",
    "target",
    metavar="FILE",
    help="File to write, FILE.jsonl, FILE.csv, FILE.xlsx or FILE.parquet; - is stdout.",
)
@click.option("--format", "kind", type=click.Choice(FORMATS), help="File format (default: by the file's name).")
@csv_options
@click.option("--all-versions", is_flag=True, help="Export every version of the verdict, not only the latest.")
@filter_options
@tenant_option
@store_options
@json_option
def export(  # noqa: PLR0913 - one an option
    *,
    target: str | None,
    kind: str | None,
    csv_file: str | None,
    bom: bool,
    all_versions: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """Export outcomes to a file for training and analysis.

    The file appears when it is complete. --csv FILE is short for -o FILE --format csv.
    """
    import msgspec

    from meruit.model.access import Scope
    from meruit.outcomes.export import atomic_file

    wanted = build_filter(chosen)
    target, kind = _export_target(target, kind, csv_file)
    if target == "-" and (kind in ("parquet", "xlsx") or as_json):
        raise click.UsageError("stdout takes JSONL and CSV only, without --json; give -o a file")
    if bom and kind != "csv":
        raise click.UsageError("--bom needs CSV")
    write = _writer(kind, bom=bom)
    with open_records(data, database_url) as store, show_progress("exporting") as progress:
        if target == "-":
            written = write(store, Scope(tenant), wanted, sys.stdout.buffer, progress, every_version=all_versions)
            sys.stdout.buffer.flush()
        else:
            with atomic_file(Path(target)) as file:
                written = write(store, Scope(tenant), wanted, file, progress, every_version=all_versions)
    if as_json:
        print_json(msgspec.json.encode({"file": target, "format": kind, "records": written}))
    else:
        note(f"{written:,} records written to {'standard output' if target == '-' else target}")
    return ExitCode.PASSED


def _export_target(target: str | None, kind: str | None, csv_file: str | None) -> tuple[str, str]:
    """The file and its format; raises UsageError when the options leave it open or contradict each other."""
    if csv_file is not None:
        if target is not None or kind not in (None, "csv"):
            raise click.UsageError("--csv names the file and the format; leave -o and --format out")
        return csv_file, "csv"
    if target is None:
        raise click.UsageError("name the file with -o FILE, or with --csv [FILE]")
    kind = kind or ("jsonl" if target == "-" else Path(target).suffix[1:])
    if kind not in FORMATS:
        raise click.UsageError(f"{target} ends in none of .jsonl, .csv, .xlsx and .parquet; add --format")
    return target, kind


# Any: the writers take the same arguments.
def _writer(kind: str, *, bom: bool) -> Callable[..., int]:
    from meruit.outcomes.export import export_jsonl, export_parquet
    from meruit.outcomes.export_csv import export_csv, export_xlsx

    match kind:
        case "csv":
            return partial(export_csv, bom=bom)
        case "xlsx":
            return export_xlsx
        case "parquet":
            return export_parquet
        case _:
            return export_jsonl


@outcome.command()
@click.argument("outcome_id", metavar="OUTCOME_ID")
@click.option("--reason", required=True, metavar="TEXT", help="Reason, one line; it stays in the audit log.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@tenant_option
@store_options
@json_option
def erase(
    *,
    outcome_id: str,
    reason: str,
    yes: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Erase the work and all results of an outcome.

    This cannot be undone. The log keeps that the outcome existed and why it was erased.
    """
    import msgspec

    from meruit.errors import NotFound
    from meruit.evaluations.reader import erase_case
    from meruit.outcomes.records import erase as forget

    if not reason.strip() or not reason.isprintable():
        raise click.UsageError("--reason must be one line of text, not empty")
    if not yes:
        click.confirm(f"Erase the work and all results of {outcome_id} permanently?", abort=True, err=True)
    with open_records(data, database_url) as store:
        try:
            erased = forget(store, tenant, outcome_id, reason)
        except NotFound:
            # A case of an evaluation lies in a segment with others.
            erased = erase_case(store, tenant, outcome_id, reason)
    if as_json:
        print_json(msgspec.json.encode({"outcome_id": erased.outcome_id, "erased": erased.parts}))
    else:
        what = ", ".join(erased.parts) if erased.parts else "nothing: it was erased before"
        say(f"{outcome_id}: erased {what}")
    return ExitCode.PASSED
