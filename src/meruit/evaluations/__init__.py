"""Evaluations: named sets of cases judged by the same criteria, compared case by case.

Read in this order:
    evaluation.py   an evaluation, a dataset and a case, as values
    service.py      Evaluator: begin, judge, record in segments, finish
    run.py          a whole run of stored outputs: limits, progress, going on after a death
    run_target.py   the same where a target makes the outputs
    journal.py      what a target made and is not recorded yet
    targets.py      what makes outputs: a function, a command, or an HTTP endpoint
    judge_usage.py  what judges used, as usage runs of their accounts
    datafiles.py    cases from JSON Lines, CSV, Parquet and standard input
    datasets.py     Datasets: cases kept by name and version; dataset_chunks.py says how
    segment.py      how up to 512 cases are kept as one blob
    summary.py      the numbers of one evaluation
    imports.py      results of other tools, with what they claim       importers/
    export.py       an evaluation as other tools read it               exporters/
    compare.py      two evaluations, paired case by case
    pairwise.py     evaluations compared by preference; bradley_terry.py fits the model
    ci.py           what a pipeline asks: good enough or not, a summary, annotations
    reader.py       Evaluations: find, list, cases, summaries, comparisons
    page/           one evaluation or a comparison as one HTML file
    from_python.py  all of it in one call from Python
    store/          tables and SQL
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.evaluations.compare import Difference, EvaluationComparison
    from meruit.evaluations.datasets import DatasetDiff, Datasets
    from meruit.evaluations.evaluation import Case, CaseError, CaseSummary, DatasetRecord, EvaluationRecord
    from meruit.evaluations.from_python import EvaluationResult, evaluate, evaluate_async
    from meruit.evaluations.reader import CaseDetail, CaseFilter, CasePage, EvaluationFilter, Evaluations
    from meruit.evaluations.run import EvaluationProgress, RunLimits
    from meruit.evaluations.summary import EvaluationSummary, Rate
    from meruit.evaluations.targets import CommandTarget, FunctionTarget, TargetOutput, UrlTarget

__all__ = [
    "Case",
    "CaseDetail",
    "CaseError",
    "CaseFilter",
    "CasePage",
    "CaseSummary",
    "CommandTarget",
    "DatasetDiff",
    "DatasetRecord",
    "Datasets",
    "Difference",
    "EvaluationComparison",
    "EvaluationFilter",
    "EvaluationProgress",
    "EvaluationRecord",
    "EvaluationResult",
    "EvaluationSummary",
    "Evaluations",
    "FunctionTarget",
    "Rate",
    "RunLimits",
    "TargetOutput",
    "UrlTarget",
    "evaluate",
    "evaluate_async",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "evaluations.compare": ("Difference", "EvaluationComparison"),
        "evaluations.datasets": ("DatasetDiff", "Datasets"),
        "evaluations.from_python": ("EvaluationResult", "evaluate", "evaluate_async"),
        "evaluations.reader": ("CaseDetail", "CaseFilter", "CasePage", "EvaluationFilter", "Evaluations"),
        "evaluations.run": ("EvaluationProgress", "RunLimits"),
        "evaluations.summary": ("EvaluationSummary", "Rate"),
        "evaluations.targets": ("CommandTarget", "FunctionTarget", "TargetOutput", "UrlTarget"),
        "evaluations.evaluation": ("Case", "CaseError", "CaseSummary", "DatasetRecord", "EvaluationRecord"),
    },
)
