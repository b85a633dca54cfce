"""`meruit outcome`: what is recorded, how it came to be, and how it changed."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from meruit.cli.shared.open_store import open_records
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
    from meruit.model.difference import CriterionDifference
    from meruit.outcomes.store.read import OutcomeFilter

_Command = TypeVar("_Command", bound=Callable[..., Any])

FILTERS = ("contract_id", "agent_id", "verdict", "criteria_digest")
VERDICTS = ("pass", "partial", "fail", "inconclusive")
LONGEST_CELL = 60


def filter_options(command: _Command) -> _Command:
    """Say which outcomes, by at most one thing."""
    for option in (
        click.option("--criteria-digest", metavar="SHA256", help="Only those judged by these criteria."),
        click.option("--verdict", type=click.Choice(VERDICTS), help="Only those that ended so."),
        click.option("--agent-id", metavar="ID", help="Only this agent's."),
        click.option("--contract-id", metavar="ID", help="Only this contract's."),
    ):
        command = option(command)
    return command


def build_filter(chosen: dict[str, str | None]) -> "OutcomeFilter | None":
    """The filter that was chosen; two at once are refused, because no index serves both."""
    from meruit.outcomes.store.read import OutcomeFilter, OutcomeFilterField

    given = [(name, value) for name in FILTERS if (value := chosen[name]) is not None]
    if len(given) > 1:
        names = " and ".join(f"--{name.replace('_', '-')}" for name, _ in given)
        raise click.UsageError(f"{names} cannot be combined; give one of them")
    return OutcomeFilter(OutcomeFilterField(given[0][0]), given[0][1]) if given else None


@click.group()
def outcome() -> None:
    """List, show, compare, export and erase recorded outcomes; each takes --json or writes it."""


@outcome.command(name="list")
@filter_options
@page_options
@tenant_option
@store_options
@json_option
def list_outcomes(
    *,
    limit: int,
    before: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: str | None,
) -> int:
    """List outcomes, the newest first."""
    import msgspec

    from meruit.model.access import Scope
    from meruit.outcomes.store.read import page

    wanted = build_filter(chosen)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = page(connection, Scope(tenant), narrowed=wanted, before=before, limit=limit)
    following = found[-1].seq if len(found) == limit else None
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
        note(f"there may be more: --before {following}")
    return ExitCode.PASSED


@outcome.command()
@click.argument("outcome_id", metavar="OUTCOME_ID")
@click.option("--version", "number", type=click.IntRange(1), metavar="N", help="Which verdict; else the latest.")
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
    """Show one outcome and the verdict on it; --json gives its whole record."""
    from meruit.cli.views.verdict import print_verification
    from meruit.model.access import Scope
    from meruit.outcomes.store.read import full_record, summary, version

    scope = Scope(tenant)
    with open_records(data, database_url) as store, store.database.reading() as connection:
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
    "--from", "older", type=click.IntRange(1), metavar="A", help="The earlier version; else the last but one."
)
@click.option("--to", "newer", type=click.IntRange(1), metavar="B", help="The later version; else the latest.")
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
    """Compare two versions of the verdict on an outcome, criterion by criterion."""
    from meruit.errors import StoreError
    from meruit.model.access import Scope
    from meruit.model.difference import difference
    from meruit.outcomes.store.read import summary, version

    scope = Scope(tenant)
    with open_records(data, database_url) as store, store.database.reading() as connection:
        later = newer or summary(connection, scope, outcome_id).version
        earlier = older or later - 1
        if not earlier:
            raise StoreError(f"{outcome_id} has one version; `meruit rescore` makes others")
        both = [version(connection, scope, outcome_id, number).result for number in (earlier, later)]
    if both[0] is None or both[1] is None:
        raise StoreError(f"the results of {outcome_id} were erased")
    found = difference(both[0], both[1])
    if as_json:
        print_json(found.to_json())
        return ExitCode.PASSED
    say(
        f"version {earlier}: verdict {found.before.verdict}, success {format_cell(found.before.success)}, "
        f"score {format_cell(found.before.score)}"
    )
    say(
        f"version {later}: verdict {found.after.verdict}, success {format_cell(found.after.success)}, "
        f"score {format_cell(found.after.score)}"
    )
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
    "-o", "--output", "target", metavar="FILE", required=True, help="FILE.jsonl or FILE.parquet; - is stdout."
)
@click.option("--format", "kind", type=click.Choice(("jsonl", "parquet")), help="Where the name does not say it.")
@click.option("--all-versions", is_flag=True, help="Every verdict, not only the latest of each outcome.")
@filter_options
@tenant_option
@store_options
@json_option
def export(
    *,
    target: str,
    kind: str | None,
    all_versions: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: str | None,
) -> int:
    """Write outcomes to a file for training and analysis; it appears once it is complete."""
    import msgspec

    from meruit.model.access import Scope
    from meruit.outcomes.export import atomic_file, export_jsonl, export_parquet

    wanted = build_filter(chosen)
    kind = kind or ("jsonl" if target == "-" else Path(target).suffix[1:])
    if kind not in ("jsonl", "parquet"):
        raise click.UsageError(f"{target} says neither .jsonl nor .parquet; add --format")
    if target == "-" and (kind != "jsonl" or as_json):
        raise click.UsageError("- is standard output, for JSONL alone; give a file, and --json tells about it")
    write = export_jsonl if kind == "jsonl" else export_parquet
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


@outcome.command()
@click.argument("outcome_id", metavar="OUTCOME_ID")
@click.option("--reason", required=True, metavar="TEXT", help="Why; it stays in the audit log.")
@click.option("--yes", is_flag=True, help="Do it without asking.")
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
    """Forget the work and all results of an outcome for good; the log keeps that it was there, and why it went."""
    import msgspec

    from meruit.outcomes.store.erase import erase as forget

    if not reason.strip() or not reason.isprintable():
        raise click.UsageError("--reason is a line of text, and not empty")
    if not yes:
        click.confirm(f"Erase the work and all results of {outcome_id} for good?", abort=True, err=True)
    with open_records(data, database_url) as store:
        erased = forget(store, tenant, outcome_id, reason)
    if as_json:
        print_json(msgspec.json.encode({"outcome_id": erased.outcome_id, "erased": erased.parts}))
    else:
        what = ", ".join(erased.parts) if erased.parts else "nothing: all of it had gone before"
        say(f"{outcome_id}: erased {what}")
    return ExitCode.PASSED
