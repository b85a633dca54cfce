"""Judges each criterion on its evidence, and decides the verdict."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any, cast

import msgspec
from msgspec.structs import force_setattr

from meruit.errors import MeruitError
from meruit.judge.aggregate import CriteriaTally, aggregate
from meruit.judge.plan import CriterionRule, Plan, Quick, Trait, compile_plan
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Measured, Missing, Skipped, Value
from meruit.model.kinds import Aggregation
from meruit.model.numbers import MICRO
from meruit.model.verdict import (
    BELIEVED,
    OF_GOVERNANCE,
    CriterionResult,
    GovernanceStatus,
    Reason,
    ReasonCode,
    Status,
    VerificationResult,
)

MAX_CACHED_STATUSES = 65_536
"""The size of a plan's cache of outcomes, in criteria of all combinations together."""


class Circumstances(msgspec.Struct, frozen=True):
    """Metadata of a verdict: time, versions and the like."""

    contract_id: str
    verified_at: datetime
    input_digest: str | None = None
    output_digest: str | None = None
    metadata_digest: str | None = None
    versions: dict[str, str] = {}


def conclude(plan: Plan, evidence: Sequence[Evidence], circumstances: Circumstances) -> VerificationResult:
    """Judge one work: one piece of evidence for each criterion, in the plan's order."""
    known = circumstances
    digests = known.input_digest, known.output_digest, known.metadata_digest
    return conclude_for(plan, evidence, known.contract_id, known.verified_at, digests, known.versions)


def conclude_for(
    plan: Plan,
    evidence: Sequence[Evidence],
    contract_id: str,
    verified_at: datetime,
    digests: tuple[str | None, str | None, str | None],
    versions: dict[str, str],
) -> VerificationResult:
    """The same with the circumstances one by one, which saves making them; digests of input, output and metadata."""
    if len(evidence) != len(plan.rules):
        raise ValueError(f"{len(evidence)} pieces of evidence for {len(plan.rules)} criteria")
    results: list[CriterionResult] = []
    # Any: the values of metrics.
    metrics: dict[str, Any] = {}
    for quick, slot, found in zip(plan.quick, plan.slots, evidence):  # noqa: B905 - counted above
        judged = quick(found)
        if judged is not None:
            # A bare number is its value.
            metrics[slot] = found
        else:
            judged = _judge_other(plan.rules[len(results)], quick, found)
            if judged.value is not None:
                metrics[slot] = judged.value
        results.append(judged)
    # The overall result without what differs between works, memoised by the statuses of the criteria.
    ended = tuple([result.status for result in results])
    outcome = plan.outcome_cache.get(ended)
    if outcome is None:
        outcome = _outcome(plan, results, ended)
    given, made, facts = digests
    # Each result gets lists and mappings of its own, so that changing one does not change another. By position, which
    # takes half the time of a copy whose fields are set, and a quarter of that by keyword.
    return VerificationResult(
        contract_id,
        outcome.success,
        metrics,
        results,
        outcome.weighted_score,
        outcome.bonus,
        outcome.penalty,
        [],
        verified_at,
        outcome.verdict,
        outcome.score,
        outcome.exact,
        outcome.axes.copy(),
        outcome.bounds,
        outcome.coverage,
        _own_reasons(outcome.reasons, results) if outcome.reasons else [],
        outcome.governance,
        outcome.criteria_digest,
        given,
        made,
        facts,
        versions,
        outcome.bonus_micros,
        outcome.penalty_micros,
    )


def _judge_other(rule: CriterionRule, quick: Quick, found: Evidence) -> CriterionResult:
    """Judge what is not a usual number by itself; a number with details is the most frequent."""
    if found.__class__ is Measured and found.provenance is None:
        judged = quick(found.value)
        if judged is not None:
            if found.details is not None:
                force_setattr(judged, "details", found.details)
            return judged
    return _judge(rule, found)


def _outcome(plan: Plan, results: Sequence[CriterionResult], ended: tuple[Status, ...]) -> VerificationResult:
    """Summarize, and remember it; where a criterion may be met in part, its statuses do not say all."""
    summary = _summarize(plan, results)
    if not plan.partial_credit:
        if len(plan.outcome_cache) * len(results) >= MAX_CACHED_STATUSES:
            plan.outcome_cache.clear()
        plan.outcome_cache[ended] = summary
    return summary


def _summarize(plan: Plan, results: Sequence[CriterionResult]) -> VerificationResult:
    """The overall result that follows from the criteria."""
    whole = aggregate(plan, list(zip(plan.rules, results, strict=True)))
    flawless = whole.sums.met == len(results) and whole.success
    return VerificationResult(
        contract_id="",
        success=whole.success,
        metrics={},
        criterion_results=[],
        weighted_score=whole.bounds.low if plan.aggregation is Aggregation.WEIGHTED else None,
        bonus=whole.bonus / MICRO,
        penalty=whole.penalty / MICRO,
        governance_flags=[],
        verified_at=_NEVER,
        verdict=whole.verdict,
        score=whole.bounds.low,
        exact=whole.exact,
        axes=whole.axes,
        bounds=whole.bounds,
        coverage=whole.coverage,
        reasons=[] if flawless else _reasons(plan, results, whole.sums),
        governance=GovernanceStatus.NOT_CHECKED,
        criteria_digest=plan.digest,
        bonus_micros=whole.bonus,
        penalty_micros=whole.penalty,
    )


def _own_reasons(reasons: list[Reason], results: Sequence[CriterionResult]) -> list[Reason]:
    """Reasons of works that ended alike; why a value is missing differs from work to work."""
    unknown = (result for result in results if result.status is Status.INDETERMINATE)
    return [_reason_for_unknown(next(unknown)) if reason.code is _UNKNOWN else reason for reason in reasons]


_UNKNOWN = ReasonCode.INDETERMINATE
_NEVER = datetime.min.replace(tzinfo=UTC)
"""Stands where the time of judging is set."""


def apply_governance(
    result: VerificationResult, status: GovernanceStatus, flags: list[str], reason: Reason | None = None
) -> VerificationResult:
    """The result with governance's answer: success stays only if the answer is clear."""
    return msgspec.structs.replace(
        result,
        success=result.success and status in BELIEVED,
        governance=status,
        governance_flags=flags,
        reasons=result.reasons if reason is None else [*result.reasons, reason],
    )


def rejudge(criteria: Plan | SuccessCriteria, result: VerificationResult) -> VerificationResult:
    """Compute the verdict again from a result's evidence and governance's answer, as an auditor does.

    Needs no metric installed: all that judging depends on is in the record. Raises MeruitError when the result was
    judged by other criteria, because its evidence answers other questions.
    """
    plan = criteria if isinstance(criteria, Plan) else _plan_from_record(criteria, result)
    if plan.digest != result.criteria_digest:
        raise MeruitError("the result was judged by other criteria, or was not judged")
    again = conclude(
        plan,
        [evidence_of(judged) for judged in result.criterion_results],
        Circumstances(
            contract_id=result.contract_id,
            verified_at=result.verified_at,
            input_digest=result.input_digest,
            output_digest=result.output_digest,
            metadata_digest=result.metadata_digest,
            versions=result.versions,
        ),
    )
    if result.governance is GovernanceStatus.NOT_CHECKED:
        return again
    governance = next((reason for reason in result.reasons if reason.code in OF_GOVERNANCE), None)
    return apply_governance(again, result.governance, result.governance_flags, governance)


def _plan_from_record(criteria: SuccessCriteria, result: VerificationResult) -> Plan:
    """Rebuild the plan from the metric types in the record."""
    traits = {
        judged.metric: Trait(judged.natural, judged.provenance)
        for criterion, judged in zip(criteria.criteria, result.criterion_results, strict=False)
        if criterion.metric is not None and criterion.expr is None
    }
    subjects = {criterion.subject for criterion in criteria.criteria}
    slots = tuple(
        name
        if (name := f"{judged.metric}[{judged.criterion_id}]") in result.metrics and name not in subjects
        else judged.metric
        for judged in result.criterion_results
    )
    fits = len(slots) == len(criteria.criteria)
    return compile_plan(criteria, lambda metric: traits.get(metric, Trait()), slots if fits else None)


def evidence_of(result: CriterionResult) -> Evidence:
    """The evidence behind a criterion's result."""
    if result.cause is not None:
        return Missing(result.error or "", result.cause, result.fault, result.details)
    if result.error is not None:
        return Skipped(result.error)
    if result.comparison is None:
        return Checked(result.exact, result.details, result.fault)
    # A measured metric has its value.
    return Measured(cast("Value", result.value), result.details, result.provenance)


def _judge(rule: CriterionRule, found: Evidence) -> CriterionResult:
    """Judge one criterion: test its value, or record why there is none."""
    details, provenance = None, rule.provenance
    if isinstance(found, Missing | Skipped | Checked):
        return _result_without_value(rule, found)
    if isinstance(found, Measured):
        details, provenance, found = found.details, found.provenance or provenance, found.value
    met = rule.test(found) if rule.test is not None else _NO_FINDING
    if met is True:
        result = rule.when_met.__copy__()
    elif met is False:
        result = rule.when_not.__copy__()
    else:
        # Details matter most where the value cannot be judged.
        return _result_without_value(rule, met if details is None else Missing(met.why, met.cause, met.fault, details))
    force_setattr(result, "value", found)
    if rule.shared:
        force_setattr(result, "threshold", rule.threshold.copy())
    if details is not None:
        force_setattr(result, "details", details)
    if provenance is not rule.provenance:
        force_setattr(result, "provenance", provenance)
    return result


_NO_FINDING = Missing("an assertion needs what its check found, not a value", Cause.CHECK_ERROR, Fault.SYSTEM)


def _result_without_value(rule: CriterionRule, found: Missing | Skipped | Checked) -> CriterionResult:
    """Judge evidence without a value: an assertion's score, or a reason."""
    match found:
        case Checked():
            return _result_of_check(rule, found)
        case Missing():
            return _inconclusive_result(rule, found, Status.EXCLUDED if rule.excludable else Status.INDETERMINATE)
        case Skipped():
            return _inconclusive_result(rule, found, Status.EXCLUDED)


_SCORE = re.compile(r"[0-9]{1,30}(/[0-9]{1,30}|\.[0-9]{1,30})?")


def _result_of_check(rule: CriterionRule, found: Checked) -> CriterionResult:
    """Read an assertion's score; refuses one outside of 0 to 1, and one that is too long."""
    try:
        score = Fraction(found.score) if _SCORE.fullmatch(found.score) else Fraction(-1)
    except (TypeError, ZeroDivisionError):
        score = Fraction(-1)
    if not 0 <= score <= 1:
        why = f"the check returned the score {found.score!r}; it must be from 0 to 1"
        return _result_without_value(rule, Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM))
    met = score == 1
    return CriterionResult(
        metric=rule.subject,
        value=None,
        threshold=None,
        comparison=None,
        met=met,
        weight=rule.shown_weight,
        bonus=rule.shown_bonus if met else None,
        penalty=None if met else rule.shown_penalty,
        error=None,
        criterion_id=rule.id,
        index=rule.position,
        status=Status.MET if met else Status.NOT_MET,
        score=float(score),
        exact=str(score),
        required=rule.gates,
        axis=rule.axis,
        fault=Fault.NONE if met else found.fault,
        details=found.details,
    )


def _inconclusive_result(rule: CriterionRule, found: Missing | Skipped, status: Status) -> CriterionResult:
    """Neither a pass nor a failure; bonus and penalty stay on the result."""
    cause, fault, details = (
        (found.cause, found.fault, found.details) if isinstance(found, Missing) else (None, Fault.NONE, None)
    )
    return CriterionResult(
        metric=rule.subject,
        value=None,
        threshold=rule.threshold.copy() if rule.shared else rule.threshold,
        comparison=rule.criterion.comparison,
        met=False,
        weight=rule.shown_weight,
        bonus=rule.shown_bonus,
        penalty=rule.shown_penalty,
        error=found.why,
        criterion_id=rule.id,
        index=rule.position,
        status=status,
        score=0.0,
        exact="0",
        required=rule.gates,
        axis=rule.axis,
        cause=cause,
        fault=fault,
        provenance=rule.provenance,
        details=details,
        natural=rule.natural,
        scale=rule.criterion.scale,
        value_scale=rule.value_scale,
    )


def _reasons(plan: Plan, results: Sequence[CriterionResult], sums: CriteriaTally) -> list[Reason]:
    """The reasons why this is not a plain pass, the most important first."""
    if not results:
        return [Reason(ReasonCode.NO_CRITERIA, "there are no criteria, and nothing passes by default")]
    if not plan.total_weight:
        return [Reason(ReasonCode.NO_WEIGHT, "every weight is 0, so no score exists")]
    judged = zip(plan.rules, results, strict=True)
    reasons = [reason for rule, result in judged if (reason := _reason(rule, result)) is not None]
    if not sums.total:
        reasons.append(Reason(ReasonCode.NOTHING_MEASURED, "every criterion was excluded: nothing was judged"))
    elif plan.aggregation is Aggregation.ALL and not sums.gates:
        reasons.append(Reason(ReasonCode.NOTHING_REQUIRED, "no criterion is required, so `all` asks for nothing"))
    elif plan.aggregation is Aggregation.WEIGHTED:
        needed = Fraction(*plan.minimum)
        if sums.low < needed:
            message = f"the score is {float(sums.low):.4g}, {float(needed):.4g} is needed"
            reasons.append(Reason(ReasonCode.BELOW_MINIMUM, message))
    return reasons


def _reason(rule: CriterionRule, result: CriterionResult) -> Reason | None:
    match result.status:
        case Status.MET | Status.EXCLUDED:
            return None
        case Status.NOT_MET:
            return rule.reason
        case Status.INDETERMINATE:
            return _reason_for_unknown(result)


def _reason_for_unknown(result: CriterionResult) -> Reason:
    return Reason(ReasonCode.INDETERMINATE, f"{result.criterion_id}: {result.error}", result.criterion_id)
