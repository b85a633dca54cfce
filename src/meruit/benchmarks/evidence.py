"""Criterion runs with their evidence, and what of a completed run each caller may see."""

from collections.abc import Mapping
from typing import Any

from meruit.benchmarks.store.read import CriterionRunRow
from meruit.model.evidence import Cause
from meruit.model.task import Reveal
from meruit.model.task_run import (
    Completion,
    CriterionLine,
    CriterionRun,
    CriterionStatus,
    TaskRun,
    TaskRunAxis,
)
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.registry import checks

_STATUS = {
    Status.MET: CriterionStatus.PASSED,
    Status.NOT_MET: CriterionStatus.FAILED,
    Status.INDETERMINATE: CriterionStatus.ERROR,
    Status.EXCLUDED: CriterionStatus.SKIPPED,
}
_PHRASES = "phraseResults"
_FIELD_KEYS = ("path", "expected", "actual", "passed")
_PHRASE_KEYS = ("phrase", "found", "turn")


def status_of(judged: CriterionResult) -> CriterionStatus:
    """Return how a criterion ended."""
    return _STATUS[judged.status]


def criterion_run(found: CriterionRunRow, judged: CriterionResult) -> CriterionRun:
    """Build a criterion run with its evidence."""
    status = status_of(judged)
    return CriterionRun(
        id=found.id,
        task_run_id=found.task_run_id,
        position=found.position,
        label=judged.criterion_id,
        check=judged.metric,
        axis=judged.axis,
        weight=judged.weight,
        status=status,
        score=judged.score if status in (CriterionStatus.PASSED, CriterionStatus.FAILED) else None,
        passed=judged.met,
        required=judged.required,
        fault=judged.fault,
        details=details_of(judged),
        evidence=format_evidence(judged),
        took_ms=None if found.took_us is None else found.took_us / 1000,
    )


def details_of(judged: CriterionResult) -> str | None:
    """Return the reason for the result, in a sentence."""
    if judged.error is not None:
        return judged.error
    found = judged.details or {}
    message = found.get("message") or found.get("why")
    if message is not None or judged.met:
        return None if message is None else str(message)
    failing = [one["path"] for one in found.get("fields", ()) if not one.get("passed", True)]
    return f"does not fit: {', '.join(map(str, failing))}" if failing else None


def format_evidence(judged: CriterionResult) -> dict[str, Any]:
    """Return the evidence under the field that this kind of check uses, with further details beside it."""
    found = dict(judged.details or {})
    check = checks.find(judged.metric)
    name = "fieldResults" if check is None else check.evidence
    fields = found.pop("fields", None)
    if fields is None:
        return found
    keys = _PHRASE_KEYS if name == _PHRASES else _FIELD_KEYS
    return {name: [_in_order(one, keys) for one in fields], **found}


def _in_order(one: Mapping[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    return {key: one.get(key) for key in keys} | {key: value for key, value in one.items() if key not in keys}


def completion(run: TaskRun, result: VerificationResult | None, lines: list[CriterionRun]) -> Completion:
    """Build the reply to a completed run: of a scored run, only what its task reveals."""
    if run.scored:
        return _completion_for_reveal(run, lines)
    return Completion(
        task_run_id=run.id,
        status=run.status,
        verdict=run.verdict,
        score=run.score,
        axes={name: format_axis(axis) for name, axis in run.axes.items()} if run.verdict is not None else None,
        coverage=run.coverage,
        bounds=run.bounds,
        reasons=None if result is None else result.reasons,
        criteria=[_line(one) for one in lines],
    )


def _completion_for_reveal(run: TaskRun, lines: list[CriterionRun]) -> Completion:
    level = [Reveal.NONE, Reveal.VERDICT, Reveal.AXES, Reveal.CRITERIA].index(run.reveal)
    if run.verdict is None or level == 0:
        return Completion(run.id, run.status)
    reply = Completion(run.id, run.status, run.verdict, run.score)
    if level == 1:
        return reply
    axes = {name: format_axis(axis) for name, axis in run.axes.items()}
    passed = {one.label: one.passed for one in lines} if run.reveal is Reveal.CRITERIA else None
    return Completion(
        task_run_id=run.id, status=run.status, verdict=run.verdict, score=run.score, axes=axes, passed=passed
    )


def format_axis(axis: TaskRunAxis) -> dict[str, Any]:
    """Build one axis of a score; one that could not be read completely is open, not 0."""
    weight = int(axis.weight) if axis.weight == int(axis.weight) else axis.weight
    if axis.score is not None:
        return {"score": axis.score, "weight": weight}
    return {"score": None, "weight": weight, "bounds": {"low": axis.bounds.low, "high": axis.bounds.high}}


def _line(one: CriterionRun) -> CriterionLine:
    return CriterionLine(
        id=one.id,
        label=one.label,
        axis=one.axis,
        weight=one.weight,
        status=one.status,
        score=one.score,
        passed=one.passed,
        details=one.details,
        evidence=one.evidence,
    )


def has_unreadable_source(result: VerificationResult) -> bool:
    """Return whether a criterion could not be judged because a source could not be read."""
    return any(judged.cause is Cause.CHECK_ERROR for judged in result.criterion_results)
