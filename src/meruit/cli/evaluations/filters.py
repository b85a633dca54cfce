"""The filters of cases, as options of every command that lists or exports them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from meruit.evaluations.evaluation import EvaluationRecord
    from meruit.evaluations.reader import CaseFilter, Evaluations

VERDICTS = ("pass", "partial", "fail", "inconclusive", "error")
FAULTS = ("agent", "author", "system")
_Command = TypeVar("_Command", bound=Callable[..., Any])


def parse_pairs(ctx: click.Context, param: click.Parameter, typed: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Split each `name=value` at its first equals sign."""
    pairs = []
    for one in typed:
        name, separator, value = one.partition("=")
        if not separator or not name or not value:
            raise click.BadParameter(f"{one!r} is not NAME=VALUE", ctx, param)
        pairs.append((name, value))
    return (*pairs,)


_OPTIONS = (
    click.option("--failing", is_flag=True, help="Only cases that did not pass or could not be judged."),
    click.option(
        "--criterion", "criteria", multiple=True, metavar="ID", help="Only cases that do not meet it; repeatable."
    ),
    click.option(
        "--verdict", "verdicts", type=click.Choice(VERDICTS), multiple=True, help="Only this verdict; repeatable."
    ),
    click.option(
        "--tag",
        "tags",
        callback=parse_pairs,
        multiple=True,
        metavar="NAME=VALUE",
        help="Only with this tag; repeatable.",
    ),
    click.option("--group", "groups", multiple=True, metavar="NAME", help="Only this group; repeatable."),
    click.option(
        "--fault",
        "faults",
        type=click.Choice(FAULTS),
        multiple=True,
        help="Only where this one is responsible for what is not met or not measured; repeatable.",
    ),
    click.option("--text", metavar="TEXT", help="Only with this text in the id, input, output or metadata."),
    click.option("--case", "case_ids", multiple=True, metavar="ID", help="Only this case; repeatable."),
    click.option("--errors", is_flag=True, help="Only cases that had no output to judge."),
    click.option("--disputed", is_flag=True, help="Only cases whose origin claimed another verdict."),
)


def case_filters(command: _Command) -> _Command:
    """Add the filters of cases to a command; `make_filter` takes them."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


# Any: the options as click passes them.
def make_filter(reader: "Evaluations", evaluation: "EvaluationRecord", options: dict[str, Any]) -> "CaseFilter":
    """The filter that the options describe; raises UnknownName for a criterion that the evaluation does not have."""
    from meruit.evaluations.reader import CaseFilter
    from meruit.model.evidence import Fault
    from meruit.model.verdict import Verdict

    return CaseFilter(
        verdicts=tuple(map(Verdict, options["verdicts"])),
        failing=options["failing"],
        criteria=reader.criterion_positions(evaluation, options["criteria"]),
        tags=options["tags"],
        groups=options["groups"],
        case_ids=options["case_ids"],
        faults=tuple(map(Fault, options["faults"])),
        error=True if options["errors"] else None,
        disputed=options["disputed"],
        text=options["text"] or None,
    )
