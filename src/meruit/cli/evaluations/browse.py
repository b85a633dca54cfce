"""`meruit eval list`, `show` and `compare`."""

from datetime import datetime
from typing import Any

import click

from meruit.cli.evaluations.filters import case_filters, make_filter, parse_pairs
from meruit.cli.shared.list_options import check_span, span_options
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    config_option,
    fresh_option,
    json_option,
    note,
    print_json,
    refuse_nan,
    say,
    store_options,
    tenant_option,
)

STATUSES = ("running", "finished")
SHOWN_CASES = 20
"""Cases that are listed where no limit is given."""


@click.command("list")
@click.option("--text", metavar="TEXT", help="Only with this text in the name.")
@click.option("--status", "statuses", type=click.Choice(STATUSES), multiple=True, help="Only this status; repeatable.")
@click.option(
    "--tag", "tags", callback=parse_pairs, multiple=True, metavar="NAME=VALUE", help="Only with this tag; repeatable."
)
@span_options()
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="Most rows.")
@click.option("--before", metavar="ID", help="Cursor: pass the `next` value of the previous page.")
@tenant_option
@store_options
@json_option
def list_command(  # noqa: PLR0913 - one an option
    *,
    text: str | None,
    statuses: tuple[str, ...],
    tags: tuple[tuple[str, str], ...],
    since: datetime | None,
    until: datetime | None,
    limit: int,
    before: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """List evaluations, newest first."""
    import msgspec

    from meruit.cli.evaluations.view import print_evaluations
    from meruit.evaluations.evaluation import EvaluationStatus
    from meruit.evaluations.reader import EvaluationFilter, Evaluations

    check_span(since, until)
    wanted = EvaluationFilter(text, tuple(map(EvaluationStatus, statuses)), tags, since=since, until=until)
    with open_records(data, database_url) as store:
        found = Evaluations(store, tenant).page(wanted, before=before, limit=limit)
        following = found[-1].id if len(found) == limit else None
        if as_json:
            print_json(msgspec.json.encode({"evaluations": found, "next": following}))
        else:
            print_evaluations(found, following, filtered=wanted != EvaluationFilter())
    return ExitCode.PASSED


@click.command("show")
@click.argument("name", metavar="NAME")
@case_filters
@click.option("--limit", type=click.IntRange(1, 10_000), metavar="N", help="List cases, at most so many (default: 20).")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Cursor: `next` of the previous page.")
@tenant_option
@store_options
@json_option
# Any: the filters, which `make_filter` reads.
def show_command(
    *,
    name: str,
    limit: int | None,
    after: int,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
    **filters: Any,
) -> int:
    """Show an evaluation's numbers, or the cases that fit the filters.

    Cases are listed where a filter, --limit or --after is given. Filters can be combined; a case must fit all of
    them. A filter that is given several times accepts each of its values. With --json, cases come with their work
    and all evidence.
    """
    import msgspec

    from meruit.cli.evaluations.view import print_cases, print_summary
    from meruit.cli.views.review import print_corrected_rates, print_judge_statuses
    from meruit.evaluations.reader import CaseFilter, Evaluations
    from meruit.review.results import ReviewResults

    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        found = reader.find(name)
        wanted = make_filter(reader, found, filters)
        if wanted == CaseFilter() and not after and limit is None:
            summary, results = reader.summary(found), ReviewResults(store, tenant)
            corrected, judges = results.corrected_rates(found), results.judge_statuses(found)
            tokens = reader.judge_tokens(found)
            if as_json:
                shown = {"evaluation": found, "summary": summary, "corrected": corrected, "judges": judges}
                print_json(msgspec.json.encode({**shown, "judge_tokens": tokens}))
                return ExitCode.PASSED
            print_summary(found, summary, tokens)
            if judges:
                say()
                print_judge_statuses(judges)
            if corrected:
                say()
                print_corrected_rates(corrected)
            return ExitCode.PASSED
        most = limit or SHOWN_CASES
        details = [*reader.details(found, wanted, after=after, limit=most)]
        following = details[-1].summary.seq if len(details) == most else None
        if as_json:
            print_json(msgspec.json.encode({"evaluation": found, "cases": details, "next": following}))
        else:
            print_cases(details, following)
    return ExitCode.PASSED


@click.command("compare")
@click.argument("first", metavar="FIRST")
@click.argument("others", metavar="SECOND...", nargs=-1, required=True)
@click.option(
    "--limit", type=click.IntRange(0, 10_000), default=10, show_default=True, metavar="N", help="Flips listed."
)
@click.option("--pairwise", "judge", metavar="JUDGE", help="Ask this judge which output of each case is better.")
@click.option("--question", metavar="TEXT", help="With --pairwise: question to the judge (default: which is better).")
@click.option("--rubric", metavar="TEXT", help="With --pairwise: how to decide.")
@click.option("--max-judge-tokens", type=int, metavar="N", help="Ask judges nothing once so many tokens were used.")
@click.option(
    "--max-judge-cost",
    type=click.FloatRange(0),
    callback=refuse_nan,
    metavar="DOLLARS",
    help="Ask judges nothing that could cost more; the price of the model must be known.",
)
@fresh_option
@tenant_option
@store_options
@config_option
@json_option
def compare_command(  # noqa: PLR0913 - one an option
    *,
    first: str,
    others: tuple[str, ...],
    limit: int,
    judge: str | None,
    question: str | None,
    rubric: str | None,
    max_judge_tokens: int | None,
    max_judge_cost: float | None,
    fresh: bool,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    as_json: bool,
) -> int:
    """Compare evaluations with the first one, case by case.

    Give names or ids. With several, the probabilities allow for the number of comparisons. With --pairwise, a judge is
    asked about both orders of each two outputs; answers that contradict each other are a tie.
    """
    import msgspec

    from meruit.cli.evaluations.view import print_comparison
    from meruit.cli.views.review import print_corrected_differences
    from meruit.evaluations.evaluation import EvaluationStatus
    from meruit.evaluations.reader import Evaluations
    from meruit.review.results import ReviewResults

    if judge is None and (question or rubric or max_judge_tokens is not None or max_judge_cost is not None):
        raise click.UsageError("--question, --rubric and the limits of judges need --pairwise")
    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        if judge is not None:
            from meruit.cli.evaluations.pairwise import PairOptions, print_preferences

            asked = PairOptions(
                judge=judge,
                question=question,
                rubric=rubric,
                max_tokens=max_judge_tokens,
                max_cost=max_judge_cost,
                config=config,
                fresh=fresh,
            )
            print_preferences(store, tenant, [reader.find(name) for name in (first, *others)], asked, as_json=as_json)
            return ExitCode.PASSED
        base, several = reader.find(first), [reader.find(other) for other in others]
        compared = reader.compare_several(base, several)
        results = ReviewResults(store, tenant)
        corrected = [results.corrected_differences(base, other) for other in several]
        unfinished = [one for one in (base, *several) if one.status is not EvaluationStatus.FINISHED]
        if as_json:
            names = [one.name for one in unfinished]
            print_json(msgspec.json.encode({"comparisons": compared, "corrected": corrected, "unfinished": names}))
            return ExitCode.PASSED
        for evaluation in unfinished:
            note(f"{evaluation.name} is not finished: only its {evaluation.cases:,} recorded cases are compared")
        for place, one in enumerate(compared):
            if place:
                say()
            print_comparison(one, limit)
            if corrected[place]:
                say()
                say("corrected by labels of the same cases:")
                print_corrected_differences(corrected[place])
    return ExitCode.PASSED
