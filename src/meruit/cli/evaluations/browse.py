"""`meruit eval list`, `show` and `compare`."""

import click

from meruit.cli.evaluations.run import parse_pairs
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import ExitCode, json_option, print_json, store_options, tenant_option

VERDICTS = ("pass", "partial", "fail", "inconclusive", "error")


@click.command("list")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, metavar="N", help="Most rows.")
@click.option("--before", metavar="ID", help="Cursor: pass the `next` value of the previous page.")
@tenant_option
@store_options
@json_option
def list_command(
    *, limit: int, before: str | None, tenant: str, data: str | None, database_url: str | None, as_json: bool
) -> int:
    """List evaluations, newest first."""
    import msgspec

    from meruit.cli.evaluations.view import print_evaluations
    from meruit.evaluations.reader import Evaluations

    with open_records(data, database_url) as store:
        found = Evaluations(store, tenant).page(before=before, limit=limit)
        following = found[-1].id if len(found) == limit else None
        if as_json:
            print_json(msgspec.json.encode({"evaluations": found, "next": following}))
        else:
            print_evaluations(found, following)
    return ExitCode.PASSED


@click.command("show")
@click.argument("name", metavar="NAME")
@click.option("--failing", is_flag=True, help="Only cases that did not pass.")
@click.option("--criterion", metavar="ID", help="Only cases that do not meet this criterion.")
@click.option(
    "--verdict", "verdicts", type=click.Choice(VERDICTS), multiple=True, help="Only this verdict; repeatable."
)
@click.option(
    "--tag", "tags", callback=parse_pairs, multiple=True, metavar="NAME=VALUE", help="Only with this tag; repeatable."
)
@click.option("--group", metavar="NAME", help="Only this group.")
@click.option("--case", "case_ids", multiple=True, metavar="ID", help="Only this case; repeatable.")
@click.option("--disputed", is_flag=True, help="Only cases whose origin claimed another verdict.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=20, show_default=True, metavar="N", help="Most cases.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Cursor: `next` of the previous page.")
@tenant_option
@store_options
@json_option
def show_command(  # noqa: PLR0913 - one an option
    *,
    name: str,
    failing: bool,
    criterion: str | None,
    verdicts: tuple[str, ...],
    tags: tuple[tuple[str, str], ...],
    group: str | None,
    case_ids: tuple[str, ...],
    disputed: bool,
    limit: int,
    after: int,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Show an evaluation's numbers, or the cases that fit the filters.

    Filters can be combined; a case must fit all of them.
    """
    import msgspec

    from meruit.cli.evaluations.view import print_cases, print_summary
    from meruit.evaluations.reader import CaseFilter, Evaluations
    from meruit.model.verdict import Verdict

    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        found = reader.find(name)
        wanted = CaseFilter(
            verdicts=tuple(map(Verdict, verdicts)),
            failing=failing,
            criterion=None if criterion is None else reader.criterion_position(found, criterion),
            tags=tags,
            group=group,
            case_ids=case_ids,
            disputed=disputed,
        )
        if wanted == CaseFilter() and not after:
            summary = reader.summary(found)
            if as_json:
                print_json(msgspec.json.encode({"evaluation": found, "summary": summary}))
            else:
                print_summary(found, summary)
            return ExitCode.PASSED
        details = [*reader.details(found, wanted, after=after, limit=limit)]
        following = details[-1].summary.seq if len(details) == limit else None
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
@tenant_option
@store_options
@json_option
def compare_command(
    *,
    first: str,
    others: tuple[str, ...],
    limit: int,
    tenant: str,
    data: str | None,
    database_url: str | None,
    as_json: bool,
) -> int:
    """Compare evaluations with the first one, case by case."""
    import msgspec

    from meruit.cli.evaluations.view import print_comparison
    from meruit.evaluations.reader import Evaluations

    with open_records(data, database_url) as store:
        reader = Evaluations(store, tenant)
        base = reader.find(first)
        compared = [reader.compare(base, reader.find(other)) for other in others]
        if as_json:
            print_json(msgspec.json.encode({"comparisons": compared}))
        else:
            for one in compared:
                print_comparison(one, limit)
    return ExitCode.PASSED
