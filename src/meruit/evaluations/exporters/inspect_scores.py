"""Scores for a log that Inspect wrote: `inspect score LOG --scorer inspect_ai/precomputed_scores -S scores=FILE`."""

from collections.abc import Iterator

import orjson

from meruit.evaluations.export import EvaluationExport, is_open, unmet
from meruit.registry import exporters


@exporters.add("inspect-scores", ending=".scores.jsonl")
def write_inspect_scores(exported: EvaluationExport) -> Iterator[bytes]:
    """JSON Lines for Inspect's scorer `precomputed_scores`; cases that could not be judged are left out."""
    for case in exported.cases():
        if is_open(case):
            continue
        row = {
            "id": case.summary.case_id,
            "epoch": case.summary.repeat + 1,
            "value": "C" if case.summary.success else "I",
            "explanation": "" if case.summary.success else "; ".join(unmet(case)),
            "metadata": {"outcome": case.summary.outcome_id, "score": case.summary.score},
        }
        yield orjson.dumps(row) + b"\n"
