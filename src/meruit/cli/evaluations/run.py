"""`meruit eval run`: judge every case of a file, or of what a target makes of it."""

import asyncio
import sys
from contextlib import redirect_stdout
from functools import partial
from typing import TYPE_CHECKING

import click

from meruit.cli.evaluations.filters import parse_pairs
from meruit.cli.terminal import (
    ExitCode,
    check_stdin_used_once,
    config_option,
    fresh_option,
    json_option,
    note,
    print_json,
    python_full_option,
    refuse_nan,
    say,
    store_options,
    tenant_option,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from meruit.cli.shared.engine import EngineWithCriteria
    from meruit.evaluations.ci import GateDecision
    from meruit.evaluations.datafiles import ColumnMap, DataFile
    from meruit.evaluations.evaluation import EvaluationRecord
    from meruit.evaluations.ray_run import RayRun
    from meruit.evaluations.reader import Evaluations
    from meruit.evaluations.run import EvaluationProgress
    from meruit.evaluations.service import Evaluator
    from meruit.evaluations.summary import EvaluationSummary
    from meruit.evaluations.targets import Target
    from meruit.review.results import ReviewResults
    from meruit.verify.catalogue import CompiledCriteria

MAX_WORKERS = 256


@click.command("run")
@click.argument("criteria", metavar="CRITERIA.yaml")
@click.argument("data_file", metavar="DATA")
@click.option("--name", required=True, metavar="NAME", help="Name of the evaluation; an unfinished one is continued.")
@click.option("--map", "mapping", metavar="MAP", help="Columns, as input.reference=answer,output.text=completion.")
@click.option(
    "--format",
    "format_name",
    metavar="FORMAT",
    help="Format of DATA: jsonl, json, csv, tsv, parquet (default: by ending).",
)
@click.option(
    "--tag", "tags", callback=parse_pairs, multiple=True, metavar="NAME=VALUE", help="Such as model=m-1; repeatable."
)
@click.option("--target", metavar="MODULE:FUNCTION", help="Python function that makes the outputs.")
@click.option("--command", metavar="COMMAND", help="Command that makes them: input on stdin as JSON, output on stdout.")
@click.option("--url", metavar="URL", help="HTTP endpoint that makes them: input is POSTed as JSON.")
@click.option("--body", metavar="JSON", help="With --url: template of the body; {{name}} is a part of the input.")
@click.option(
    "--header", "headers", callback=parse_pairs, multiple=True, metavar="NAME=VALUE", help="With --url: header."
)
@click.option("--answer", metavar="PATH", help="With --url: part of the answer, as choices.0.message.content.")
@click.option("--concurrency", default=8, show_default=True, metavar="N", help="Outputs made at once.")
@click.option("--repeat", default=1, show_default=True, metavar="K", help="Tries of each case, for pass@k and pass^k.")
@click.option("--retries", default=2, show_default=True, metavar="N", help="Further tries when making an output fails.")
@click.option("--timeout", "timeout_s", default=120.0, show_default=True, metavar="S", help="Seconds for one output.")
@click.option(
    "--rate",
    "rate_per_s",
    type=float,
    callback=refuse_nan,
    metavar="N",
    help="Most outputs begun in a second, further tries included.",
)
@click.option(
    "--max-cost", type=float, callback=refuse_nan, metavar="DOLLARS", help="Begin no output once so much was spent."
)
@click.option("--max-judge-tokens", type=int, metavar="N", help="Ask judges nothing once so many tokens were used.")
@click.option(
    "--max-judge-cost",
    type=click.FloatRange(0),
    callback=refuse_nan,
    metavar="DOLLARS",
    help="Ask judges nothing that could cost more; the price of each model must be known.",
)
@click.option(
    "--engine", type=click.Choice(("local", "ray")), default="local", show_default=True, help="Where to judge."
)
@click.option(
    "--workers",
    type=click.IntRange(1, MAX_WORKERS),
    metavar="N",
    help="With --engine ray: number of workers, for files of any size (default: 2, where judging takes long).",
)
@fresh_option
@click.option(
    "--fail-under",
    type=click.FloatRange(0, 1),
    callback=refuse_nan,
    metavar="RATE",
    help="Exit 1 when the pass rate is lower.",
)
@click.option("--strict", is_flag=True, help="With --fail-under: use the lower end of the interval.")
@click.option("--baseline", metavar="NAME", help="Exit 1 when worse than this evaluation by more than --max-drop.")
@click.option(
    "--max-drop",
    default=0.0,
    callback=refuse_nan,
    show_default=True,
    metavar="POINTS",
    help="Percentage points, with --baseline.",
)
@click.option(
    "--min-kappa",
    type=click.FloatRange(-1, 1),
    callback=refuse_nan,
    metavar="KAPPA",
    help="Exit 1 when a judge's kappa is lower.",
)
@click.option("--min-labels", type=click.IntRange(1), metavar="N", help="Exit 1 when a judge has fewer random labels.")
@click.option("--junit", metavar="FILE", help="Write JUnit XML too.")
@click.option("--ctrf", metavar="FILE", help="Write a CTRF report (JSON) too.")
@tenant_option
@store_options
@config_option
@python_full_option
@json_option
def run_command(  # noqa: PLR0913, PLR0915 - one an option, and each is passed on once
    *,
    criteria: str,
    data_file: str,
    name: str,
    mapping: str | None,
    format_name: str | None,
    tags: tuple[tuple[str, str], ...],
    target: str | None,
    command: str | None,
    url: str | None,
    body: str | None,
    headers: tuple[tuple[str, str], ...],
    answer: str | None,
    concurrency: int,
    repeat: int,
    retries: int,
    timeout_s: float,
    rate_per_s: float | None,
    max_cost: float | None,
    max_judge_tokens: int | None,
    max_judge_cost: float | None,
    engine: str,
    workers: int | None,
    fresh: bool,
    fail_under: float | None,
    strict: bool,
    baseline: str | None,
    max_drop: float,
    min_kappa: float | None,
    min_labels: int | None,
    junit: str | None,
    ctrf: str | None,
    tenant: str,
    data: str | None,
    database_url: str | None,
    config: str | None,
    allow_python_full: bool,
    as_json: bool,
) -> int:
    """Judge every case of a file and record the evaluation.

    DATA is a file of JSON Lines, JSON, CSV or Parquet, - for JSON Lines on stdin, or dataset:NAME[@VERSION]. Exit
    codes: 0 every case was judged; 1 by --fail-under or --baseline; 3 nothing could be judged. Run
    the same command again to go on after an interruption.
    """
    # Imported here so that --help is quick.
    from meruit.app import open_store
    from meruit.cli.evaluations.reports import report_decision, write_reports
    from meruit.cli.evaluations.view import print_summary
    from meruit.cli.shared.engine import load_engine
    from meruit.config import location_of
    from meruit.evaluations.ci import decide
    from meruit.evaluations.datafiles import ColumnMap, open_data
    from meruit.evaluations.datasets import PREFIX, Datasets, DatasetSource
    from meruit.evaluations.export import check_writable
    from meruit.evaluations.reader import Evaluations
    from meruit.evaluations.run import RunLimits, check_same_reading, repeat_cases, run_cases
    from meruit.evaluations.run_target import run_target
    from meruit.evaluations.service import Evaluator
    from meruit.outcomes.service import Registrar
    from meruit.review.results import ReviewResults

    check_stdin_used_once(criteria, data_file, config)
    maker = _target(target, command, url, body, dict(headers), answer)
    _check_gate(fail_under, baseline, max_drop, strict=strict)
    _check_limits(maker, repeat, max_cost, rate_per_s)
    _check_engine(engine, workers, is_file=maker is None and data_file != "-" and not data_file.startswith(PREFIX))
    limits = RunLimits(
        concurrency,
        repeat,
        retries,
        timeout_s,
        rate_per_s,
        None if max_cost is None else round(max_cost * 1_000_000),
        max_judge_tokens,
    )
    for report_file in filter(None, (junit, ctrf)):
        check_writable(report_file)
    columns = ColumnMap() if mapping is None else ColumnMap.parse(mapping)
    is_stored = data_file.startswith(PREFIX)
    if is_stored and (mapping is not None or format_name is not None):
        raise click.UsageError("--map and --format are for files; `meruit dataset add` takes them")
    file = None if is_stored else open_data(data_file, format_name)
    loaded = load_engine(
        criteria,
        config,
        allow_python_full=allow_python_full,
        governed=True,
        fresh=fresh,
        max_judge_cost=max_judge_cost,
    )
    store = open_store(location_of(data, database_url), make=True)
    try:
        evaluator = Evaluator(Registrar(loaded.engine, store), tenant)
        compiled = evaluator.compile(loaded.criteria)
        reader = Evaluations(store, tenant)
        against = None if baseline is None else _find_baseline(reader, baseline)
        source = Datasets(store, tenant).open(data_file) if file is None else file
        planned = None if source.rows is None else source.rows * repeat
        started = evaluator.start(
            name, compiled, tags=dict(tags), dataset_digest=source.digest, planned=planned, replaces_empty=True
        )
        if started.cases:
            if file is not None and file.digest is not None:
                check_same_reading(reader, started, file.cases(columns), has_target=maker is not None)
            note(f"going on with {name}: {started.cases} cases are recorded")
        with _ProgressLine() as report:
            cases = source.cases() if isinstance(source, DatasetSource) else source.cases(columns)
            if (
                maker is None
                and file is not None
                and engine == "ray"
                and (workers is not None or _is_worth_ray(evaluator, compiled, file, columns))
            ):
                elsewhere = _ray_run(loaded, tenant, workers, allow_python_full=allow_python_full)
                elsewhere.run(evaluator, started, compiled, file, columns, report=report)
            elif maker is None:
                several = repeat_cases(cases, 1)
                run_cases(evaluator, started, compiled, several, limits=limits.judges, report=report)
            else:
                # What a user's function prints is not part of our output.
                with redirect_stdout(sys.stderr):
                    asyncio.run(run_target(evaluator, started, compiled, cases, maker, limits, report=report))
        done = reader.find(started.id)
        summary, tokens = reader.summary(done), reader.judge_tokens(done)
        if as_json:
            print_json(_to_json(done, summary, tokens))
        else:
            print_summary(done, summary, tokens)
            _explain_open(reader, done, summary)
        compared = None if against is None else reader.compare(against, done)
        write_reports(reader, done, {"junit": junit, "ctrf": ctrf})
        decision = decide(summary.overall, fail_under=fail_under, strict=strict, compared=compared, max_drop=max_drop)
        decision = _with_judges(decision, ReviewResults(store, tenant), done, min_kappa, min_labels)
        report_decision(criteria, done, summary, decision, compared)
        if summary.overall.rate is None:
            note("nothing could be judged")
            return ExitCode.COULD_NOT_VERIFY
        return ExitCode.PASSED if decision.passed else ExitCode.NOT_PASSED
    finally:
        store.close()


def _explain_open(reader: "Evaluations", done: "EvaluationRecord", summary: "EvaluationSummary") -> None:
    """Say why cases could not be judged: as a rule, a column is not where the criteria look for it."""
    from meruit.cli.evaluations.view import print_why_open
    from meruit.evaluations.reader import CaseFilter
    from meruit.evaluations.summary import OPEN

    if summary.overall.open:
        wanted = CaseFilter(verdicts=tuple(sorted(OPEN)))
        for example in reader.details(done, wanted, limit=1):
            print_why_open(done.name, example)


def _find_baseline(reader: "Evaluations", name: str) -> "EvaluationRecord":
    """The evaluation to compare with; raises NotComparable for one whose cases are not all recorded."""
    from meruit.errors import NotComparable
    from meruit.evaluations.evaluation import EvaluationStatus

    found = reader.find(name)
    if found.status is not EvaluationStatus.FINISHED:
        raise NotComparable(
            f"the baseline {name!r} is not finished, and {found.cases:,} of its cases are recorded; run the command "
            "that began it again, or name another baseline"
        )
    return found


def _check_gate(fail_under: float | None, baseline: str | None, max_drop: float, *, strict: bool) -> None:
    if strict and fail_under is None:
        raise click.UsageError("--strict needs --fail-under")
    if max_drop and baseline is None:
        raise click.UsageError("--max-drop needs --baseline")


def _check_limits(maker: "Target | None", repeat: int, max_cost: float | None, rate_per_s: float | None) -> None:
    if maker is None and repeat != 1:
        raise click.UsageError("--repeat needs a target; map a column to repeat where a file holds several tries")
    if maker is None and (max_cost is not None or rate_per_s is not None):
        raise click.UsageError("--max-cost and --rate need a target: --target, --command or --url")


def _check_engine(engine: str, workers: int | None, *, is_file: bool) -> None:
    if workers is not None and engine != "ray":
        raise click.UsageError("--workers needs --engine ray")
    if engine == "ray" and not is_file:
        raise click.UsageError("--engine ray judges outputs that are stored in a file")


def _is_worth_ray(evaluator: "Evaluator", criteria: "CompiledCriteria", file: "DataFile", columns: "ColumnMap") -> bool:
    """Whether judging a file here takes so long that starting Ray pays."""
    from meruit.evaluations.ray_run import is_worth_ray
    from meruit.outcomes.rescore.ray import LEAST_S

    if is_worth_ray(evaluator, criteria, file, columns):
        return True
    note(
        f"judging takes less than {LEAST_S:.0f} s: it is done here, because Ray would take longer; "
        "give --workers N to use Ray nevertheless"
    )
    return False


def _ray_run(loaded: "EngineWithCriteria", tenant: str, workers: int | None, *, allow_python_full: bool) -> "RayRun":
    from meruit.app import build_engine
    from meruit.evaluations.ray_run import RayRun
    from meruit.outcomes.rescore.ray import DEFAULT_WORKERS

    make = partial(build_engine, loaded.settings, allow_python_full=allow_python_full, governed=True)
    return RayRun(make, tenant, workers or DEFAULT_WORKERS)


def _with_judges(
    decision: "GateDecision",
    results: "ReviewResults",
    done: "EvaluationRecord",
    min_kappa: float | None,
    min_labels: int | None,
) -> "GateDecision":
    """Add what the judges of the evaluation lack of what is asked for, and which of them are not calibrated."""
    import msgspec

    from meruit.review.results import unmet_requirements

    failures, notes = [*decision.failures], [*decision.notes]
    for one in results.judge_statuses(done):
        name = f"{one.judge or '–'} of {one.criterion}"
        missing = unmet_requirements(name, one.labels, one.kappa, min_kappa=min_kappa, min_labels=min_labels)
        failures += missing
        if not one.calibrated and not missing:
            notes.append(f"the judge {name} is uncalibrated: {one.labels} of {one.min_labels} random labels")
    return msgspec.structs.replace(decision, failures=tuple(failures), notes=tuple(notes))


def _target(
    function: str | None,
    command: str | None,
    url: str | None,
    body: str | None,
    headers: dict[str, str],
    answer: str | None,
) -> "Target | None":
    if sum(one is not None for one in (function, command, url)) > 1:
        raise click.UsageError("give one of --target, --command and --url")
    if url is None and (body is not None or headers or answer is not None):
        raise click.UsageError("--body, --header and --answer need --url")
    from meruit.evaluations import targets

    if function is not None:
        return targets.load_function(function)
    if command is not None:
        return targets.CommandTarget(command)
    return None if url is None else targets.UrlTarget(url, body, headers, answer)


class _ProgressLine:
    """A line on stderr that is written again and again, where that is a terminal."""

    def __enter__(self) -> "Callable[[EvaluationProgress], None] | None":
        self._shown = False
        return self._show if sys.stderr.isatty() else None

    def __exit__(self, *_: object) -> None:
        if self._shown:
            say("", err=True)

    def _show(self, progress: "EvaluationProgress") -> None:
        from meruit.cli.evaluations.view import format_progress

        self._shown = True
        say(f"\r\x1b[K{format_progress(progress)}", err=True, newline=False)


def _to_json(evaluation: "EvaluationRecord", summary: object, judge_tokens: object) -> bytes:
    import msgspec

    return msgspec.json.encode({"evaluation": evaluation, "summary": summary, "judge_tokens": judge_tokens})
