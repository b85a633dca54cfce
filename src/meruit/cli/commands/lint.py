"""`meruit lint`: prove criteria before anyone is judged by them."""

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
"""As the option has it; the model that knows it too would have to be loaded for --help."""


@click.command()
@click.argument("criteria", metavar="FILE.yaml")
@click.option("--input", "input_file", metavar="IN.json", help="What agents are given, references included.")
@click.option(
    "--gold",
    "gold_file",
    metavar="OUT.json|FOLDER",
    help="An output known to be good, or for a benchmark the records with good runs; mutants of it are tried.",
)
@click.option("--metadata", "metadata_file", metavar="META.json", help="How the gold run went.")
@click.option("--task", "tasks", metavar="ID", multiple=True, help="Of a benchmark, only this task; may be repeated.")
@click.option("--gold-agent-id", metavar="NAME", help="Whose runs are good ones; gold when not given.")
@click.option("--tenant", help="Whose runs are looked for; default when not given.")
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
    allow_sources: bool,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Prove criteria, or the tasks of a benchmark, before anyone is judged by them.

    An agent that does nothing must not pass. With --gold, the good output must pass, and each criterion must
    be failed by at least one damaged copy of it. Exit code 0 when all holds, 1 when not.

    Of a benchmark each task's world is made from its seed and tried untouched. With --gold FOLDER, the newest run of
    each task that passed there is tried too, and its world with what was done undone, done twice or done wrongly.
    """
    # Loading pydantic and the metrics takes a moment that --help should not pay.
    from meruit.cli.shared.engine import load_engine
    from meruit.config import is_benchmark_file, load_payload, read_bytes
    from meruit.documents.document import parse
    from meruit.verify.lint.criteria import Gold
    from meruit.verify.lint.criteria import lint as prove

    check_stdin_used_once(criteria, input_file, gold_file, metadata_file, config)
    if metadata_file is not None and gold_file is None:
        raise click.UsageError("--metadata belongs to --gold: it says how the gold run went")
    if is_benchmark_file(criteria):
        from meruit.cli.shared.lint_benchmark import BenchmarkLintOptions, lint_tasks

        _refuse(_BRINGS, {"--input": input_file, "--metadata": metadata_file, "--allow-python-full": allow_python_full})
        wish = BenchmarkLintOptions(
            criteria, tasks, gold_file, gold_agent_id or "gold", tenant or USUAL_TENANT, config, allow_sources
        )
        if gold_file is None:
            _refuse("belongs to --gold FOLDER", {"--gold-agent-id": gold_agent_id, "--tenant": tenant})
        return lint_tasks(wish, as_json=as_json)
    of_tasks = {"--task": tasks, "--gold-agent-id": gold_agent_id, "--tenant": tenant, "--allow-sources": allow_sources}
    if any(of_tasks.values()) and criteria != "-":
        # A benchmark that cannot be parsed has its faults told, rather than that it is none.
        parse(read_bytes(criteria), criteria)
    _refuse(_OF_TASKS, of_tasks)
    _, engine, wanted = load_engine(criteria, config, allow_python_full=allow_python_full)
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


_BRINGS = "does not fit a benchmark, whose tasks bring their own world and hold no code"
_OF_TASKS = "is for benchmarks; this file has no `tasks`"


# Any: options are of different types.
def _refuse(why: str, given: Mapping[str, Any]) -> None:
    """Refuse options that mean nothing here, rather than leave them unheard."""
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
    say()
    for finding in report.findings:
        where = f"{finding.criterion_id}: " if finding.criterion_id else ""
        say(f"{paint(str(finding.severity))}: {escape_control_characters(where + finding.message)} [{finding.code}]")
    say("the criteria hold" if report.ok else "the criteria do not hold")
