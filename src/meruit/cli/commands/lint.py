"""`meruit lint`: test criteria before agents are judged by them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    config_option,
    escape_control_characters,
    json_option,
    paint,
    print_json,
    print_table,
    python_full_option,
    say,
    sources_option,
)

if TYPE_CHECKING:
    from meruit.verify.lint.criteria import LintReport


USUAL_TENANT = "default"
"""A copy of the model's default, so that --help need not load the model."""


@click.command()
@click.argument("criteria", metavar="FILE.yaml")
@click.option("--input", "input_file", metavar="IN.json", help="Input of the agents, a JSON file, references included.")
@click.option(
    "--gold",
    "gold_file",
    metavar="OUT.json|FOLDER",
    help="A known good output; for a benchmark, the data folder with good runs. Damaged copies of it are tested.",
)
@click.option("--metadata", "metadata_file", metavar="META.json", help="Metadata of the gold run, a JSON file.")
@click.option(
    "--task", "tasks", metavar="ID", multiple=True, help="Test only this task of a benchmark; may be repeated."
)
@click.option("--gold-agent-id", metavar="NAME", help="Agent whose runs are good (default: gold).")
@click.option("--tenant", metavar="NAME", help="Tenant of the gold runs (default: default).")
@click.option("--judges", "ask_judges", is_flag=True, help="Ask model judges too, which costs tokens.")
@sources_option
@config_option
@python_full_option
@json_option
def lint(  # noqa: PLR0913 - one an option
    *,
    criteria: str,
    input_file: str | None,
    gold_file: str | None,
    metadata_file: str | None,
    tasks: tuple[str, ...],
    gold_agent_id: str | None,
    tenant: str | None,
    ask_judges: bool,
    allow_sources: bool,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Test criteria or benchmark tasks before you use them.

    An agent that does nothing must not pass. With --gold, the good output must pass, and each criterion must fail for
    at least one damaged copy of it. Exit codes: 0 the criteria hold, 1 they do not.

    For a benchmark, the environment of each task is created from its seed and judged untouched. With --gold FOLDER, the
    newest passing run of each task is judged too, and copies of it with its changes undone, repeated or altered.
    """
    # Imported here so that --help is quick.
    from meruit.cli.shared.engine import load_engine
    from meruit.documents.document import parse
    from meruit.files import read_bytes
    from meruit.playground.load import is_benchmark_file
    from meruit.verify.lint.criteria import Gold
    from meruit.verify.lint.criteria import lint as prove
    from meruit.verify.load import load_payload

    check_stdin_used_once(criteria, input_file, gold_file, metadata_file, config)
    if metadata_file is not None and gold_file is None:
        raise click.UsageError("--metadata needs --gold: it describes the gold run")
    if is_benchmark_file(criteria):
        from meruit.cli.shared.lint_benchmark import BenchmarkLintOptions, lint_tasks

        _refuse(
            _BRINGS,
            {
                "--input": input_file,
                "--metadata": metadata_file,
                "--allow-python-full": allow_python_full,
                "--judges": ask_judges,
            },
        )
        options = BenchmarkLintOptions(
            file=criteria,
            tasks=tasks,
            gold=gold_file,
            gold_agent_id=gold_agent_id or "gold",
            tenant=tenant or USUAL_TENANT,
            config=config,
            any_address=allow_sources,
        )
        if gold_file is None:
            _refuse("needs --gold FOLDER", {"--gold-agent-id": gold_agent_id, "--tenant": tenant})
        return lint_tasks(options, as_json=as_json)
    of_tasks = {"--task": tasks, "--gold-agent-id": gold_agent_id, "--tenant": tenant, "--allow-sources": allow_sources}
    if any(of_tasks.values()) and criteria != "-":
        # For a benchmark that cannot be parsed, its problems are reported.
        parse(read_bytes(criteria), criteria)
    _refuse(_OF_TASKS, of_tasks)
    _, engine, wanted = load_engine(criteria, config, allow_python_full=allow_python_full)
    metadata = load_payload(metadata_file) if metadata_file is not None else {}
    report = prove(
        engine,
        wanted,
        work_input=load_payload(input_file) if input_file is not None else None,
        gold=Gold(load_payload(gold_file), metadata) if gold_file is not None else None,
        ask_judges=ask_judges,
    )
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    return ExitCode.PASSED if report.ok else ExitCode.NOT_PASSED


_BRINGS = "is not allowed for a benchmark: its tasks have environments of their own and no code"
_OF_TASKS = "needs a benchmark; this file has no `tasks`"


# Any: options are of different types.
def _refuse(why: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError for options that have no effect here."""
    for name, value in given.items():
        if value:
            raise click.UsageError(f"{name} {why}")


def _print(report: "LintReport") -> None:
    say("agents that do nothing:")
    print_table(("agent", "verdict"), [(name, verdict) for name, verdict in report.null_agents.items()])
    if report.gold is not None:
        mutants = "mutant" if report.mutants_tried == 1 else "mutants"
        say(f"\ngold output: {paint(report.gold)}; {report.mutants_tried} {mutants} tried")
        if report.failed_by:
            print_table(("criterion", "first failed by"), list(report.failed_by.items()))
    if report.injections_tried:
        say(f"\njudges: {report.injections_tried} outputs that give orders tried")
    say()
    for finding in report.findings:
        where = f"{finding.criterion_id}: " if finding.criterion_id else ""
        say(f"{paint(str(finding.severity))}: {escape_control_characters(where + finding.message)} [{finding.code}]")
    say("the criteria hold" if report.ok else "the criteria do not hold")
