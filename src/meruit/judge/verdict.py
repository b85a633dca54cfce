"""Judges each criterion on its evidence, and decides the verdict."""

import re
from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple, cast

import msgspec

from meruit.errors import MeruitError
from meruit.judge.aggregate import Aggregate, CriteriaTally, aggregate
from meruit.judge.plan import CriterionRule, Plan, Trait, compile_plan
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


class Circumstances(NamedTuple):
    """Metadata of a verdict: time, versions and the like."""

    contract_id: str
    verified_at: datetime
    input_digest: str | None = None
    output_digest: str | None = None
    metadata_digest: str | None = None
    versions: dict[str, str] = {}  # noqa: RUF012 - never written to; the engine passes its own


def conclude(plan: Plan, evidence: Sequence[Evidence], circumstances: Circumstances) -> VerificationResult:
    """Judge one work: one piece of evidence for each criterion, in the plan's order."""
    results = [_judge(rule, found) for rule, found in zip(plan.rules, evidence, strict=True)]
    whole = _aggregate_results(plan, results)
    flawless = whole.sums.met == len(results) and whole.success
    return VerificationResult(
        contract_id=circumstances.contract_id,
        success=whole.success,
        metrics={
            slot: result.value for slot, result in zip(plan.slots, results, strict=True) if result.value is not None
        },
        criterion_results=results,
        weighted_score=whole.bounds.low if plan.aggregation is Aggregation.WEIGHTED else None,
        bonus=whole.bonus / MICRO,
        penalty=whole.penalty / MICRO,
        governance_flags=[],
        verified_at=circumstances.verified_at,
        verdict=whole.verdict,
        score=whole.bounds.low,
        exact=whole.exact,
        # Each result gets its own copy, so that changing one does not change another.
        axes=dict(whole.axes),
        bounds=whole.bounds,
        coverage=whole.coverage,
        reasons=[] if flawless else _reasons(plan, results, whole.sums),
        governance=GovernanceStatus.NOT_CHECKED,
        criteria_digest=plan.digest,
        input_digest=circumstances.input_digest,
        output_digest=circumstances.output_digest,
        metadata_digest=circumstances.metadata_digest,
        versions=circumstances.versions,
        bonus_micros=whole.bonus,
        penalty_micros=whole.penalty,
    )


def _aggregate_results(plan: Plan, results: Sequence[CriterionResult]) -> Aggregate:
    """The overall outcome, memoised by the statuses of the criteria."""
    if plan.partial_credit:
        return aggregate(plan, list(zip(plan.rules, results, strict=True)))
    ended = tuple([result.status for result in results])
    whole = plan.outcome_cache.get(ended)
    if whole is None:
        if len(plan.outcome_cache) * len(results) >= MAX_CACHED_STATUSES:
            plan.outcome_cache.clear()
        whole = plan.outcome_cache[ended] = aggregate(plan, list(zip(plan.rules, results, strict=True)))
    # The plan's cache is untyped, because this type is defined in a higher module.
    return cast("Aggregate", whole)


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
    said = next((reason for reason in result.reasons if reason.code in OF_GOVERNANCE), None)
    return apply_governance(again, result.governance, result.governance_flags, said)


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
    # Bare numbers are the usual case; testing for their exact class is fastest.
    if found.__class__ is not float and found.__class__ is not int:
        if isinstance(found, Missing | Skipped | Checked):
            return _result_without_value(rule, found)
        if isinstance(found, Measured):
            details, provenance, found = found.details, found.provenance or provenance, found.value
    met = rule.test(found) if rule.test is not None else _NO_FINDING
    if isinstance(met, Missing):
        # Details matter most where the value cannot be judged.
        return _result_without_value(rule, met if details is None else Missing(met.why, met.cause, met.fault, details))
    threshold = rule.threshold.copy() if rule.shared else rule.threshold
    decided = rule.when_met if met else rule.when_not
    scales = rule.criterion.scale, rule.value_scale
    return CriterionResult(rule.subject, found, threshold, *decided, provenance, details, rule.natural, *scales)


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
    reasons = [reason for result in results if (reason := _reason(result)) is not None]
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


def _reason(result: CriterionResult) -> Reason | None:
    match result.status:
        case Status.MET | Status.EXCLUDED:
            return None
        case Status.NOT_MET:
            if result.required:
                return Reason(
                    ReasonCode.REQUIRED_NOT_MET,
                    f"{result.criterion_id} is required and not met",
                    result.criterion_id,
                )
            return Reason(ReasonCode.NOT_MET, f"{result.criterion_id} is not met", result.criterion_id)
        case Status.INDETERMINATE:
            return Reason(ReasonCode.INDETERMINATE, f"{result.criterion_id}: {result.error}", result.criterion_id)
