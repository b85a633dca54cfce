"""Evaluations from Python: one call that judges cases, with a result for notebooks and programs."""

import asyncio
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from meruit.errors import InvalidCase, MeruitError
from meruit.evaluations.datafiles import ColumnMap
from meruit.evaluations.evaluation import Case, EvaluationRecord
from meruit.evaluations.reader import CaseDetail, Evaluations
from meruit.evaluations.run import Report, RunLimits, run_cases
from meruit.evaluations.run_target import run_target
from meruit.evaluations.service import Evaluator
from meruit.evaluations.summary import EvaluationSummary, Rate
from meruit.evaluations.targets import FunctionTarget, Target
from meruit.model.criterion import SuccessCriteria
from meruit.outcomes.service import Registrar
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine
from meruit.verify.load import load_criteria

UNNAMED = "evaluation"
"""The name of an evaluation that is not kept."""
# Any: a row is JSON, and a function may return whatever `to_output` reads.
Cases = Iterable[Case | Mapping[str, Any]]
MakeOutput = Callable[[dict[str, Any]], Any]


@dataclass(frozen=True)
class EvaluationResult:
    """An evaluation with all its cases."""

    evaluation: EvaluationRecord
    summary: EvaluationSummary
    cases: tuple[CaseDetail, ...]

    def failing(self) -> list[CaseDetail]:
        """The cases that did not pass, or could not be judged."""
        return [case for case in self.cases if not case.summary.success]

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each case: its id, verdict, score, tags, and the value of each metric."""
        return [
            {
                "case_id": one.summary.case_id,
                "repeat": one.summary.repeat,
                "verdict": one.summary.verdict.value,
                "success": one.summary.success,
                "score": one.summary.score,
                "error": None if one.summary.error is None else one.summary.error.value,
                "latency_ms": one.summary.latency_ms,
                **{f"tag.{name}": value for name, value in one.summary.tags.items()},
                **({} if one.result is None else one.result.metrics),
            }
            for one in self.cases
        ]

    def to_dataframe(self) -> Any:
        """The rows as a pandas DataFrame; pandas must be installed."""
        try:
            import pandas as pd  # type: ignore[import-untyped]
        except ImportError:
            raise MeruitError("pandas is not installed; `rows()` gives the same as plain dictionaries") from None
        return pd.DataFrame(self.rows())

    def __str__(self) -> str:
        """The pass rate, and that of each criterion."""
        lines = [f"{self.evaluation.name}: pass rate {_percent(self.summary.overall)}"]
        lines += [f"  {name}: {_percent(rate)}" for name, rate in self.summary.criteria.items()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """The same as a table, for notebooks."""
        rates = {"all": self.summary.overall, **self.summary.criteria}
        rows = "".join(
            f"<tr><td>{escape(name)}</td><td>{escape(_percent(rate))}</td><td>{rate.passed}</td>"
            f"<td>{rate.failed}</td><td>{rate.open}</td></tr>"
            for name, rate in rates.items()
        )
        head = "<tr><th>criterion</th><th>pass rate</th><th>met</th><th>not met</th><th>not judged</th></tr>"
        return f"<table><caption>{escape(self.evaluation.name)}</caption>{head}{rows}</table>"


def _percent(rate: Rate) -> str:
    if rate.rate is None:
        return "nothing was judged"
    interval = "" if rate.interval is None else f" ({rate.interval.low:.1%} to {rate.interval.high:.1%})"
    opened = f", {rate.open} not judged" if rate.open else ""
    return f"{rate.rate:.1%}{interval} of {rate.passed + rate.failed}{opened}"


@contextmanager
def _open(data: str | Path | None, database_url: str | None) -> Iterator[Store]:
    """The store that is asked for, or one that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="meruit-") as folder:
        store = Store.open(Location(Path(folder if data is None else data), database_url))
        try:
            yield store
        finally:
            store.close()


def _compile(evaluator: Evaluator, criteria: str | Path | Mapping[str, Any] | SuccessCriteria) -> CompiledCriteria:
    return evaluator.compile(load_criteria(criteria) if isinstance(criteria, str | Path) else criteria)


def _to_cases(cases: Cases) -> Iterator[Case]:
    columns = ColumnMap()
    # Any: what users pass, whatever the types say.
    case: Any
    for number, case in enumerate(cases, 1):
        if not isinstance(case, Case | Mapping):
            raise InvalidCase(f"case {number} is a Case or an object, not {type(case).__name__}")
        yield case if isinstance(case, Case) else columns.apply(case, str(number))


async def evaluate_async(  # noqa: PLR0913 - one a choice
    criteria: str | Path | Mapping[str, Any] | SuccessCriteria,
    cases: Cases,
    target: MakeOutput | Target | None = None,
    *,
    name: str | None = None,
    data: str | Path | None = None,
    database_url: str | None = None,
    tenant: str = "default",
    tags: Mapping[str, str] | None = None,
    limits: RunLimits = RunLimits(),  # noqa: B008 - frozen
    engine: VerificationEngine | None = None,
    report: Report | None = None,
) -> EvaluationResult:
    """Judge cases by criteria; with a target, it makes the outputs first.

    Cases are `Case` objects, or rows with the usual columns (`id`, `prompt`, `output`, `reference`). With `data` or
    `database_url` the evaluation is kept there under its name, and an unfinished one is continued. Raises NoCases where
    there is no case.
    """
    if name is None and (data is not None or database_url is not None):
        raise MeruitError("an evaluation that is kept needs a name")
    with _open(data, database_url) as store:
        evaluator, reader = (
            Evaluator(Registrar(engine or VerificationEngine(), store), tenant),
            Evaluations(store, tenant),
        )
        compiled = _compile(evaluator, criteria)
        started = evaluator.start(name or UNNAMED, compiled, tags=tags, replaces_empty=True)
        if target is None:
            await asyncio.to_thread(
                run_cases, evaluator, started, compiled, _to_cases(cases), limits=limits.judges, report=report
            )
        else:
            maker = target if isinstance(target, Target) else FunctionTarget(target)
            await run_target(evaluator, started, compiled, _to_cases(cases), maker, limits, report=report)
        done = reader.find(started.id)
        return EvaluationResult(done, reader.summary(done), tuple(reader.details(done)))


def evaluate(  # noqa: PLR0913 - one a choice
    criteria: str | Path | Mapping[str, Any] | SuccessCriteria,
    cases: Cases,
    target: MakeOutput | Target | None = None,
    *,
    name: str | None = None,
    data: str | Path | None = None,
    database_url: str | None = None,
    tenant: str = "default",
    tags: Mapping[str, str] | None = None,
    limits: RunLimits = RunLimits(),  # noqa: B008 - frozen
    engine: VerificationEngine | None = None,
    report: Report | None = None,
) -> EvaluationResult:
    """`evaluate_async` for callers without an event loop, and for notebooks, which have one of their own."""

    def run() -> EvaluationResult:
        return asyncio.run(
            evaluate_async(
                criteria,
                cases,
                target,
                name=name,
                data=data,
                database_url=database_url,
                tenant=tenant,
                tags=tags,
                limits=limits,
                engine=engine,
                report=report,
            )
        )

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return run()
    return _in_thread(run)


def _in_thread(call: Callable[[], EvaluationResult]) -> EvaluationResult:
    ended: list[EvaluationResult | BaseException] = []

    def run() -> None:
        try:
            ended.append(call())
        except BaseException as problem:  # noqa: BLE001 - raised again where it was asked for
            ended.append(problem)

    thread = threading.Thread(target=run, name="meruit-evaluate")
    thread.start()
    thread.join()
    (found,) = ended
    if isinstance(found, BaseException):
        raise found
    return found
