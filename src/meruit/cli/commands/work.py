"""`meruit work`: work that is offered to agents, with its criteria and terms."""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from meruit.cli.shared.list_options import check_span, span_options
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    StoreAddress,
    check_stdin_used_once,
    config_option,
    escape_control_characters,
    json_option,
    note,
    page_options,
    print_json,
    print_table,
    python_full_option,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from meruit.contracts.records import WorkView
    from meruit.model.contract import WorkSubmission
    from meruit.model.criterion import SuccessCriterion


@click.group()
def work() -> None:
    """Publish work with criteria and terms, and list it."""


@work.command()
@click.argument("file", metavar="WORK.yaml")
@click.option(
    "--accept-finding",
    "accepted",
    metavar="CODE",
    multiple=True,
    help="Publish despite a proven error with this code, such as never_met; recorded. May be repeated.",
)
@tenant_option
@store_options
@config_option
@python_full_option
@json_option
def submit(  # noqa: PLR0913 - one an option
    *,
    file: str,
    accepted: tuple[str, ...],
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Publish work and print its id; - is stdin.

    Criteria that an agent passes by doing nothing are refused, unless accept_null_agent in the file gives a reason.
    Criteria that are proven wrong are refused with the codes of the findings, unless --accept-finding, or
    accept_findings in the file, names the codes.
    """
    # Imported here so that --help is quick.
    from meruit.app import build_engine
    from meruit.cli.shared.contracts import command_line_actor, open_marketplace
    from meruit.config import Settings
    from meruit.contracts.records import to_work_view as view
    from meruit.documents.authoring import locate_problems, parse_work
    from meruit.errors import BrokenCriteria
    from meruit.files import read_bytes
    from meruit.verify.faults import examine_with

    check_stdin_used_once(file, config)
    actor, settings = command_line_actor(tenant), Settings.load(config)
    engine = build_engine(settings, allow_python_full=allow_python_full)
    # Validated before the first write.
    content, name = read_bytes(file), "standard input" if file == "-" else file
    submission = parse_work(
        content,
        name,
        known_metrics=engine.catalogue.names(),
        max_criteria=settings.verification.max_criteria_per_task,
        examine=examine_with(engine.catalogue),
    )
    submission = _accept(submission, accepted)
    with open_marketplace(
        StoreAddress(data=data, database_url=database_url, tenant=tenant), settings, engine, make=True
    ) as market:
        try:
            ready = market.publish(actor, submission)
        except BrokenCriteria as refused:
            if not as_json:
                note(
                    "correct the criteria, or accept a finding: --accept-finding CODE, which is recorded with the work"
                )
            raise BrokenCriteria(name, locate_problems(content, name, refused.problems)) from None
        made = market.store.recorder.write(ready)
    if as_json:
        print_json(view(made, submission.input_for_judge()).to_json())
        return ExitCode.PASSED
    if submission.accept_null_agent is not None:
        note(f"an agent that does nothing may pass: {submission.accept_null_agent}")
    if ready.findings:
        note(f"published despite {', '.join(ready.findings)}, as accepted; this is recorded with the work")
    note(f"`meruit contract award {made.id} --agent-id …` awards it to an agent")
    say(made.id)
    return ExitCode.PASSED


def _accept(submission: "WorkSubmission", codes: tuple[str, ...]) -> "WorkSubmission":
    """Add the findings that the command line accepts to those of the file."""
    from meruit.model.contract import FINDING_CODE, MAX_FINDINGS

    wrong = next((code for code in codes if re.fullmatch(FINDING_CODE, code) is None), None)
    if wrong is not None or len(codes) > MAX_FINDINGS:
        raise click.BadParameter("must be the code of a finding, such as never_met", param_hint="--accept-finding")
    every = tuple(dict.fromkeys([*submission.accept_findings, *codes]))
    return submission.model_copy(update={"accept_findings": every})


@work.command(name="list")
@click.option("--consumer-id", metavar="ID", help="Filter by consumer.")
@span_options()
@page_options
@tenant_option
@store_options
@json_option
def list_work(
    *,
    limit: int,
    before: int | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **chosen: Any,
) -> int:
    """List published work, newest first.

    Several filters must all hold.
    """
    import msgspec

    from meruit.contracts import records as works
    from meruit.store.paging import ListPage, fill_page

    check_span(chosen["since"], chosen["until"])
    wanted = works.WorkFilter(**chosen)
    with open_records(data, database_url) as store, store.database.reading() as connection:

        def read(place: int | None, most: int) -> ListPage[works.WorkView]:
            page = works.page_work(connection, tenant, wanted=wanted, before=place, limit=most)
            return page.convert(works.to_work_view)

        found, following = fill_page(read, before, limit)
    if as_json:
        print_json(msgspec.json.encode({"works": found, "next": following}))
        return ExitCode.PASSED
    rows = [
        (
            one.id,
            one.created_at.strftime("%Y-%m-%d %H:%M:%S"),
            one.consumer_id,
            f"{one.terms['cpc_rate'] or '–'} {one.terms['currency']}",
            "yes" if one.has_criteria else "no",
            one.title,
        )
        for one in found
    ]
    print_table(("work", "published (UTC)", "consumer", "per completion", "criteria", "title"), rows)
    if following is not None:
        note(f"next page: --before {following}")
    return ExitCode.PASSED


@work.command()
@click.argument("work_id", metavar="WORK_ID")
@tenant_option
@store_options
@json_option
def show(*, work_id: str, tenant: str, data: str | None, database_url: str | None, as_json: bool) -> int:
    """Show one work with its terms and criteria.

    With --json also the whole input, private parts included.
    """
    from meruit.contracts import records as works
    from meruit.outcomes.records import criteria_from

    with open_records(data, database_url) as store, store.database.reading() as connection:
        found = works.find_work(connection, tenant, work_id)
        view = works.to_work_view(found, works.input_of(connection, tenant, found, store.blobs))
    if as_json:
        print_json(view.to_json())
        return ExitCode.PASSED
    for name, value in _labels(view):
        say(f"{name:12}{escape_control_characters(value)}")
    if found.criteria is not None:
        say()
        rows = [_row(one) for one in criteria_from(found.criteria).criteria]
        print_table(("criterion", "threshold", "bonus", "penalty"), rows)
    return ExitCode.PASSED


def _labels(view: "WorkView") -> Iterator[tuple[str, str]]:
    """The main facts about the work; empty ones are left out."""
    from meruit.model.work import PRIVATE_INPUTS

    terms, private = view.terms, PRIVATE_INPUTS | {*view.private}
    given = [f"{name} (private)" if name in private else name for name in view.input or {}]
    facts = {
        "work": view.id,
        "title": view.title,
        "consumer": view.consumer_id,
        "domain": view.domain,
        "published": f"{view.created_at.isoformat(timespec='seconds')} by {view.created_by}",
        "pays": f"{terms['cpc_rate'] or 'as awarded'} {terms['currency']} for completion",
        "cap": None if terms["max_cpa_total"] is None else f"bonuses of {terms['max_cpa_total']} at most",
        "fee": f"{terms['platform_fee_rate']} of the price" if terms["platform_fee_rate"] != "0" else None,
        "deadline": f"{terms['deadline_hours']} h after the award",
        "disputes": f"until {terms['dispute_window_hours']} h after the settlement",
        "rules": ", ".join(terms["rules"]),
        "input": ", ".join(given) or None,
        "canaries": str(len(view.canaries)) if view.canaries else None,
        "impossible": "planted: no honest agent can pass it" if view.impossible else None,
        "null agent": view.accept_null_agent,
        "accepted": ", ".join(view.accept_findings) or None,
        "criteria": view.criteria_digest,
    }
    yield from ((name, value) for name, value in facts.items() if value is not None)


def _row(criterion: "SuccessCriterion") -> tuple[str, ...]:
    from meruit.cli.views.verdict import format_threshold
    from meruit.model.money import as_micros
    from meruit.model.numbers import in_units

    threshold = format_threshold(criterion.comparison, criterion.threshold, criterion.scale)
    bonus, penalty = (in_units(as_micros(one)) if one else "–" for one in (criterion.bonus, criterion.penalty))
    return (criterion.id or criterion.label, threshold, bonus, penalty)
