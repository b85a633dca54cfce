"""Every Eval Ever 0.3.0: the aggregate document that shared leaderboards read."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import orjson

from meruit.evaluations.export import EvaluationExport
from meruit.evaluations.summary import Rate
from meruit.registry import exporters

SCHEMA_VERSION = "0.3.0"
CONFIDENCE = 0.95
UNKNOWN = "unknown"
DETAILS = {
    "deployment_type": ("self_deployed", "externally_managed"),
    "model_availability": ("open_weights", "closed_weights"),
}
"""What the format asks of a model, and the words that it takes; tags of these names say it."""


@exporters.add("every-eval-ever", ending=".eee.json")
def write_every_eval_ever(exported: EvaluationExport) -> Iterator[bytes]:
    """Every Eval Ever 0.3.0: pass rates with intervals; tags `deployment_type` and `model_availability` are used."""
    evaluation, summary = exported.evaluation, exported.summary
    model = evaluation.tags.get("model", "unknown/unknown")
    details = {name: evaluation.tags.get(name, UNKNOWN) for name in DETAILS}
    source = {"dataset_name": evaluation.name, "source_type": "other", "samples_number": evaluation.cases}
    rates = {"pass rate": summary.overall, **summary.criteria}
    document = {
        "schema_version": SCHEMA_VERSION,
        "evaluation_id": f"{evaluation.name}/{model}/{evaluation.id}",
        "retrieved_timestamp": str(int(evaluation.started_at.timestamp())),
        "source_metadata": {
            "source_name": "Meruit",
            "source_type": "evaluation_run",
            "source_organization_name": UNKNOWN,
            "evaluator_relationship": "other",
        },
        "eval_library": {"name": "meruit", "version": version("meruit")},
        "model_info": {
            "name": model,
            "id": model,
            "additional_details": {name: word if word in DETAILS[name] else UNKNOWN for name, word in details.items()},
        },
        "evaluation_results": [
            _result(f"{evaluation.name}: {name}", rate, source) for name, rate in rates.items() if rate.rate is not None
        ],
    }
    yield orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"


def _result(name: str, rate: Rate, source: dict[str, Any]) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": rate.passed + rate.failed}
    if rate.interval is not None:
        uncertainty["confidence_interval"] = {
            "lower": rate.interval.low,
            "upper": rate.interval.high,
            "confidence_level": CONFIDENCE,
            "method": "wilson",
        }
    return {
        "evaluation_name": name,
        "source_data": source,
        "metric_config": {
            "evaluation_description": "Share of judged cases that passed.",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0,
            "max_score": 1,
        },
        "score_details": {"score": rate.rate, "uncertainty": uncertainty},
    }
