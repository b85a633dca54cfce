"""A log that Inspect's own reader and viewer open."""

from collections.abc import Iterator
from typing import Any

from msgspec import json

from meruit.evaluations.export import EvaluationExport, is_open, unmet
from meruit.evaluations.reader import CaseDetail
from meruit.model.verdict import Status
from meruit.registry import exporters

SCORER = "meruit"
GRADES = {Status.MET: "C", Status.NOT_MET: "I"}
"""How Inspect writes correct and incorrect."""


@exporters.add("inspect", ending=".inspect.json")
def write_inspect(exported: EvaluationExport) -> Iterator[bytes]:
    """An Inspect log as JSON: `read_eval_log` and `inspect view` open it; each criterion is a scorer."""
    evaluation, overall = exported.evaluation, exported.summary.overall
    created = evaluation.started_at.isoformat()
    spec = {
        "eval_id": evaluation.id,
        "run_id": evaluation.id,
        "created": created,
        "task": evaluation.name,
        "task_id": evaluation.id,
        "task_version": 0,
        "dataset": {"name": evaluation.name, "samples": overall.cases},
        "model": evaluation.tags.get("model", "unknown/unknown"),
        "config": {},
        "metadata": {"criteria": evaluation.criteria_digest, **evaluation.tags},
    }
    metrics = {} if overall.rate is None else {"accuracy": {"name": "accuracy", "value": overall.rate}}
    results = {
        "total_samples": overall.cases,
        "completed_samples": overall.cases - overall.open,
        "scores": [
            {
                "name": SCORER,
                "scorer": SCORER,
                "scored_samples": overall.cases - overall.open,
                "unscored_samples": overall.open,
                "metrics": metrics,
            }
        ],
    }
    ended = created if evaluation.ended_at is None else evaluation.ended_at.isoformat()
    head = {
        "version": 2,
        "status": "success" if evaluation.ended_at is not None else "started",
        "eval": spec,
        "plan": {"name": "plan", "steps": [], "config": {}},
        "results": results,
        "stats": {"started_at": created, "completed_at": ended, "model_usage": {}},
    }
    yield json.encode(head)[:-1] + b',"samples":['
    for number, case in enumerate(exported.cases()):
        yield (b",\n" if number else b"\n") + json.encode(_sample(case))
    yield b"]}\n"


def _sample(case: CaseDetail) -> dict[str, Any]:
    one, given = case.summary, case.input or {}
    reference = given.get("references", given.get("reference", ""))
    text = (case.output or {}).get("text")
    completion = text if isinstance(text, str) else "" if case.output is None else _text(case.output)
    prompt = given.get("prompt", given.get("question"))
    asked = prompt if isinstance(prompt, str) else _text(given)
    sample: dict[str, Any] = {
        "id": one.case_id,
        "epoch": one.repeat + 1,
        "input": asked,
        "target": [str(part) for part in reference] if isinstance(reference, list) else str(reference),
        "messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": completion}],
        "output": {
            "model": "unknown/unknown",
            "choices": [{"message": {"role": "assistant", "content": completion}, "stop_reason": "stop"}],
        },
        "scores": _scores(case),
        "metadata": {"outcome": one.outcome_id, "verdict": one.verdict.value, "claimed": one.claimed, **one.tags},
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }
    if one.error is not None:
        message = case.error_message or one.error.value
        sample["error"] = {"message": message, "traceback": message, "traceback_ansi": message}
    if one.latency_ms is not None:
        sample["total_time"] = one.latency_ms / 1_000
    return sample


def _scores(case: CaseDetail) -> dict[str, Any]:
    """Only what was judged: a score that is not there is what Inspect takes for unscored."""
    if is_open(case):
        return {}
    whole = "C" if case.summary.success else "I"
    found: dict[str, Any] = {SCORER: {"value": whole, "explanation": "; ".join(unmet(case)) if whole == "I" else None}}
    for judged in case.result.criterion_results if case.result is not None else ():
        if judged.status in GRADES:
            answer = None if judged.value is None else str(judged.value)
            found[judged.criterion_id] = {"value": GRADES[judged.status], "answer": answer}
    return found


def _text(part: Any) -> str:
    return json.encode(part).decode()
