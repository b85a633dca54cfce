"""`meruit lint`: prove criteria before anyone is judged by them."""

from typing import TYPE_CHECKING

import click

from meruit.cli.output import (
    ExitCode,
    config_option,
    json_option,
    once,
    paint,
    print_json,
    python_full_option,
    say,
    table,
    visible,
)

if TYPE_CHECKING:
    from meruit.engine.lint import LintReport


@click.command()
@click.argument("criteria", metavar="CRITERIA.yaml")
@click.option("--input", "input_file", metavar="IN.json", help="What agents are given, references included.")
@click.option(
    "--gold",
    "gold_file",
    metavar="OUT.json",
    help="An output known to be good; it and its mutants are tried.",
)
@click.option("--metadata", "metadata_file", metavar="META.json", help="How the gold run went.")
@config_option
@python_full_option
@json_option
def lint(
    *,
    criteria: str,
    input_file: str | None,
    gold_file: str | None,
    metadata_file: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Prove the criteria before anyone is judged by them.

    An agent that does nothing must not pass. With --gold, the good output must pass, and each criterion must
    be failed by at least one damaged copy of it. Exit code 0 when all holds, 1 when not.
    """
    # Loading pydantic and the metrics takes a moment that --help should not pay.
    from meruit.cli.loading import load
    from meruit.config import load_payload
    from meruit.engine.lint import Gold
    from meruit.engine.lint import lint as prove

    once(criteria, input_file, gold_file, metadata_file, config)
    if metadata_file is not None and gold_file is None:
        raise click.UsageError("--metadata belongs to --gold: it says how the gold run went")
    _, engine, wanted = load(criteria, config, allow_python_full=allow_python_full)
    metadata = load_payload(metadata_file) if metadata_file is not None else {}
    report = prove(
        engine,
        wanted,
        work_input=load_payload(input_file) if input_file is not None else {},
        gold=Gold(load_payload(gold_file), metadata) if gold_file is not None else None,
    )
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return ExitCode.PASSED if report.ok else ExitCode.NOT_PASSED


def _print(report: "LintReport") -> None:
    say("agents that do nothing:")
    table(("agent", "verdict"), [(name, verdict) for name, verdict in report.null_agents.items()])
    if report.gold is not None:
        say(f"\ngold output: {paint(report.gold)}; {report.mutants_tried} mutants tried")
        if report.failed_by:
            table(("criterion", "first failed by"), list(report.failed_by.items()))
    say()
    for finding in report.findings:
        where = f"{finding.criterion_id}: " if finding.criterion_id else ""
        say(f"{paint(str(finding.severity))}: {visible(where + finding.message)} [{finding.code}]")
    say("the criteria hold" if report.ok else "the criteria do not hold")
