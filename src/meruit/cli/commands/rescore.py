"""`meruit rescore`: judge recorded outcomes by other criteria; each verdict is a new version."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from meruit.cli.commands.outcome import build_filter, filter_options
from meruit.cli.shared.open_store import open_records
from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    config_option,
    json_option,
    note,
    print_json,
    print_table,
    python_full_option,
    say,
    show_progress,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from meruit.cli.shared.engine import EngineWithCriteria
    from meruit.outcomes.rescore.columns import FileSummary
    from meruit.outcomes.rescore.run import RescoreSummary
    from meruit.store.store import Store

MAX_WORKERS = 256


@click.command()
@click.argument("criteria", metavar="CRITERIA.yaml")
@click.option(
    "--reason", metavar="TEXT", help="Reason, one line; it is recorded in each new version and in the audit log."
)
@filter_options
@click.option("--all", "everything", is_flag=True, help="Judge all outcomes of the tenant.")
@click.option("--dry-run", is_flag=True, help="Show what would change; record nothing.")
@click.option("--engine", type=click.Choice(("local", "ray")), default="local", show_default=True, help="Where to run.")
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    metavar="N",
    help="With --engine ray: number of workers (default: 2, used only where judging here would take 45 s or more).",
)
@click.option(
    "--from", "source", metavar="FILE.parquet", help="Judge an exported file instead of the store; record nothing."
)
@click.option("-o", "--output", "target", metavar="OUT.parquet", help="With --from: file for the verdicts.")
@tenant_option
@store_options
@config_option
@python_full_option
@json_option
def rescore(  # noqa: PLR0913 - one an option
    *,
    criteria: str,
    reason: str | None,
    everything: bool,
    dry_run: bool,
    engine: str,
    workers: int | None,
    source: str | None,
    target: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
    **chosen: str | None,
) -> int:
    """Judge recorded outcomes again by other criteria.

    Each outcome gets a new version of its verdict, oldest outcome first; earlier versions stay. Outcomes that these
    criteria have already judged are skipped, so the same command continues after an interruption.
    """
    # Imported here so that --help is quick.
    from meruit.cli.shared.engine import load_engine

    check_stdin_used_once(criteria, config)
    wanted = build_filter(chosen)
    if source is not None:
        if wanted is not None or everything or dry_run or reason is not None or engine != "local":
            raise click.UsageError("--from judges a whole file and records nothing; it can be combined with -o only")
    elif target is not None:
        raise click.UsageError("-o needs --from; without it, verdicts go to the store")
    elif (wanted is None) is not everything:
        raise click.UsageError(
            "--all and a filter cannot be combined"
            if everything
            else "choose outcomes with --contract-id, --agent-id, --verdict, --criteria-digest or --all"
        )
    elif not dry_run and (reason is None or not reason.strip() or not reason.isprintable()):
        raise click.UsageError("--reason is required: one line that says why the verdicts change")
    if workers is not None and engine != "ray":
        raise click.UsageError("--workers needs --engine ray")
    loaded = load_engine(criteria, config, allow_python_full=allow_python_full)
    prepared = loaded.engine.compile_or_raise(loaded.criteria, "standard input" if criteria == "-" else criteria)
    if source is not None:
        if not _columns_are_possible():
            raise click.UsageError("--from needs the extra `bulk`: pip install 'meruit[bulk]'")
        from meruit.outcomes.rescore.columns import judge_file

        with show_progress("judging") as progress:
            judged = judge_file(
                Path(source), loaded.engine, prepared, None if target is None else Path(target), progress
            )
        _tell_file(judged, target, as_json=as_json)
        return ExitCode.PASSED
    with open_records(data, database_url) as store, show_progress("rescoring") as progress:
        now = store.surroundings.clock()
        where = (store, loaded.engine, tenant, loaded.criteria)
        if dry_run and engine == "local" and _columns_are_possible():
            from meruit.outcomes.rescore.columns import preview_outcomes

            summary = preview_outcomes(*where, narrowed=wanted, now=now, progress=progress)
        else:
            judge_again = _rescore_here if engine == "local" else _rescore_on_ray(workers, loaded, allow_python_full)
            summary = judge_again(
                *where, narrowed=wanted, reason=reason or "", now=now, progress=progress, dry_run=dry_run
            )
        hint = _explain_none(store, tenant, summary)
    _tell(summary, hint, as_json=as_json)
    return ExitCode.PASSED


def _explain_none(store: "Store", tenant: str, summary: "RescoreSummary") -> str:
    """What to do where there are evaluations and no outcome fits."""
    from meruit.evaluations.reader import Evaluations

    if summary.examined or not Evaluations(store, tenant).page(limit=1):
        return ""
    return (
        "cases of evaluations are not rescored; to judge them by other criteria, run `meruit eval run` with the same "
        "data and another name"
    )


def _columns_are_possible() -> bool:
    """Whether the packages of the extra `bulk` are installed; without them, outcomes are judged one by one."""
    return all(find_spec(name) is not None for name in ("numpy", "polars", "pyarrow"))


# Any: what `rescore` of outcomes/rescore/run.py takes.
def _rescore_here(*where: Any, **how: Any) -> "RescoreSummary":
    from meruit.outcomes.rescore.run import LocalRunner, rescore

    return rescore(*where, runner=LocalRunner(), **how)


def _rescore_on_ray(
    workers: int | None,
    loaded: "EngineWithCriteria",
    allow_python_full: bool,  # noqa: FBT001 - an option
) -> "Callable[..., RescoreSummary]":
    from meruit.app import build_engine
    from meruit.outcomes.rescore.ray import LEAST_S, RayRescore

    make = partial(build_engine, loaded.settings, allow_python_full=allow_python_full, governed=False)
    runner = RayRescore(make, workers)

    # Any: as above.
    def rescore_there(*where: Any, **how: Any) -> "RescoreSummary":
        summary = runner.rescore(*where, **how)
        if not runner.has_begun:
            note(
                f"judging took less than {LEAST_S:.0f} s: it was done here, because Ray would take longer; "
                "give --workers N to use Ray nevertheless"
            )
        return summary

    return rescore_there


def _tell(summary: "RescoreSummary", hint: str, *, as_json: bool) -> None:
    if hint:
        note(hint)
    if as_json:
        print_json(summary.to_json())
        return
    would = "would be " if summary.dry_run else ""
    say(
        f"{summary.rescored:,} of {summary.examined:,} outcomes {would}rescored: "
        f"{summary.from_evidence:,} from their evidence, {summary.measured:,} measured again"
    )
    for reason, times in summary.skipped.items():
        say(f"{times:,} skipped: {reason}")
    say(
        f"verdicts: {summary.unchanged:,} unchanged, {sum(turn.count for turn in summary.changed):,} changed; "
        f"success: {summary.success_gained:,} gained, {summary.success_lost:,} lost"
    )
    if summary.changed:
        say()
        rows = [(str(turn.before), str(turn.after), f"{turn.count:,}") for turn in summary.changed]
        print_table(("verdict", "becomes", "outcomes"), rows)
    if summary.criteria:
        say()
        print_table(
            ("criterion", "outcomes with a changed result"),
            [(name, f"{times:,}") for name, times in summary.criteria.items()],
        )
    note(f"{summary.seconds:.1f} s, criteria {summary.criteria_digest}")


def _tell_file(summary: "FileSummary", target: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json(summary.to_json())
        return
    say(f"{summary.rows:,} rows judged, {summary.successes:,} successful")
    print_table(("verdict", "rows"), [(str(verdict), f"{times:,}") for verdict, times in summary.verdicts.items()])
    say()
    statuses = ("met", "not_met", "indeterminate", "excluded")
    ended = {name: {str(status): times for status, times in some.items()} for name, some in summary.criteria.items()}
    print_table(
        ("criterion", *(status.replace("_", " ") for status in statuses)),
        [(name, *(f"{some.get(status, 0):,}" for status in statuses)) for name, some in ended.items()],
    )
    if target is not None:
        note(f"verdicts written to {target}")
    note(f"{summary.seconds:.1f} s, criteria {summary.criteria_digest}")
