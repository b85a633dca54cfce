"""Each criterion judged on its evidence, and all of them brought to a verdict."""

from collections.abc import Sequence
from datetime import datetime
from fractions import Fraction
from typing import NamedTuple, cast

from meruit.judge.aggregate import Tally, outcome, owed, tally
from meruit.judge.plan import Plan, Rule
from meruit.model.criterion import Aggregation
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Measured, Missing, Skipped, Value
from meruit.model.numbers import MICRO
from meruit.model.verdict import (
    AxisScore,
    Bounds,
    CriterionResult,
    GovernanceStatus,
    Reason,
    ReasonCode,
    Status,
    VerificationResult,
)


class Circumstances(NamedTuple):
    """What a verdict is stamped with, besides what was found."""

    contract_id: str
    verified_at: datetime
    input_digest: str | None = None
    output_digest: str | None = None
    metadata_digest: str | None = None
    versions: dict[str, str] = {}


def conclude(plan: Plan, evidence: Sequence[Evidence], circumstances: Circumstances) -> VerificationResult:
    """Judge one work: one piece of evidence for each criterion, in the plan's order."""
    rules = plan.rules
    results = [_judge(rule, found) for rule, found in zip(rules, evidence, strict=True)]
    sums = tally(zip(rules, results, strict=True))
    verdict, success = outcome(plan, sums)
    bounds = _bounds(sums)
    bonus, penalty = owed(plan, zip(rules, results, strict=True)) if plan.has_money else (0, 0)
    return VerificationResult(
        contract_id=circumstances.contract_id,
        success=success,
        metrics={
            rule.slot: result.value
            for rule, result in zip(rules, results, strict=True)
            if result.value is not None
        },
        criterion_results=results,
        weighted_score=bounds.low if plan.aggregation is Aggregation.WEIGHTED else None,
        bonus=bonus / MICRO,
        penalty=penalty / MICRO,
        governance_flags=[],
        verified_at=circumstances.verified_at,
        verdict=verdict,
        score=bounds.low,
        exact=_ratio(sums.earned, sums.total),
        axes=_axes(plan, results, sums, bounds),
        bounds=bounds,
        coverage=(sums.total - sums.open) / sums.total if sums.total else 0.0,
        reasons=[] if sums.earned == sums.total and success else _reasons(plan, results, sums),
        governance=GovernanceStatus.NOT_CHECKED,
        criteria_digest=plan.digest,
        input_digest=circumstances.input_digest,
        output_digest=circumstances.output_digest,
        metadata_digest=circumstances.metadata_digest,
        versions=circumstances.versions,
    )


def rejudge(plan: Plan, result: VerificationResult) -> VerificationResult:
    """The verdict on the evidence that a result carries, governance aside: what a stranger recomputes."""
    return conclude(
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


def evidence_of(result: CriterionResult) -> Evidence:
    """The evidence that a criterion's result rests on."""
    if result.cause is not None:
        return Missing(result.error or "", result.cause, result.fault)
    if result.error is not None:
        return Skipped(result.error)
    if result.comparison is None:
        return Checked(result.exact, result.details, result.fault)
    # Whatever was measured has its value.
    return Measured(cast("Value", result.value), result.details, result.provenance)


def _judge(rule: Rule, found: Evidence) -> CriterionResult:
    """One criterion: its value and its test, or the reason that there is none."""
    details, provenance = None, rule.provenance
    if found.__class__ is not float and isinstance(found, Measured | Missing | Skipped | Checked):
        if not isinstance(found, Measured):
            return _unmeasured(rule, found)
        details, provenance, found = found.details, found.provenance or provenance, found.value
    met = rule.test(found) if rule.test is not None else _NO_FINDING
    if met is True:
        return CriterionResult(rule.subject, found, *rule.when_met, provenance, details)
    if met is False:
        return CriterionResult(rule.subject, found, *rule.when_not, provenance, details)
    return _unmeasured(rule, met)


_NO_FINDING = Missing("an assertion needs what its check found, not a value", Cause.CHECK_ERROR, Fault.SYSTEM)


def _unmeasured(rule: Rule, found: Missing | Skipped | Checked) -> CriterionResult:
    """No value: an assertion with a score of its own, or a reason."""
    match found:
        case Checked():
            return _checked(rule, found)
        case Missing():
            status = Status.EXCLUDED if rule.excludable else Status.INDETERMINATE
            return _open(rule, found.why, status, found.cause, found.fault)
        case Skipped():
            return _open(rule, found.why, Status.EXCLUDED, None, Fault.NONE)


def _checked(rule: Rule, found: Checked) -> CriterionResult:
    """An assertion's own score; one outside 0 and 1 is refused."""
    try:
        score = Fraction(found.score)
    except (ValueError, ZeroDivisionError):
        score = Fraction(-1)
    if not 0 <= score <= 1:
        why = f"the check gave the score {found.score!r}, not one from 0 to 1"
        return _unmeasured(rule, Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM))
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


def _open(rule: Rule, why: str, status: Status, cause: Cause | None, fault: Fault) -> CriterionResult:
    """Neither a pass nor a failure; what is at stake stays written on it."""
    return CriterionResult(
        metric=rule.subject,
        value=None,
        threshold=rule.criterion.threshold,
        comparison=rule.criterion.comparison,
        met=False,
        weight=rule.shown_weight,
        bonus=rule.shown_bonus,
        penalty=rule.shown_penalty,
        error=why,
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
    )


def _ratio(part: int | Fraction, whole: int) -> str:
    """The share as an exact fraction; 0 of nothing is 0."""
    if part == whole and whole:
        return "1"
    return str(Fraction(part) / whole) if part else "0"


def _bounds(sums: Tally) -> Bounds:
    if not sums.total:
        return Bounds(0.0, 0.0)
    # The quotient of two integers, or of a Fraction and one, is rounded once and correctly.
    low = float(sums.earned / sums.total)
    return Bounds(low, float((sums.earned + sums.open) / sums.total) if sums.open else low)


def _axes(
    plan: Plan, results: Sequence[CriterionResult], whole: Tally, bounds: Bounds
) -> dict[str, AxisScore]:
    if len(plan.axes) == 1:
        return {plan.axes[0]: _axis_score(plan, whole, bounds, len(results))}
    groups: dict[str, list[tuple[Rule, CriterionResult]]] = {axis: [] for axis in plan.axes}
    for rule, result in zip(plan.rules, results, strict=True):
        groups[rule.axis].append((rule, result))
    sums = {axis: tally(members) for axis, members in groups.items()}
    return {axis: _axis_score(plan, sums[axis], _bounds(sums[axis]), len(groups[axis])) for axis in plan.axes}


def _axis_score(plan: Plan, sums: Tally, bounds: Bounds, members: int) -> AxisScore:
    whole = sums.total == plan.total_weight
    weight = plan.shown_total if whole else float(sums.total * plan.weight_unit)
    return AxisScore(bounds.low, weight, sums.met, members, bounds)


def _reasons(plan: Plan, results: Sequence[CriterionResult], sums: Tally) -> list[Reason]:
    """Why this is no plain pass, in the order a reader asks."""
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
                return Reason(ReasonCode.REQUIRED_NOT_MET, f"{result.metric} is required and not met", result.criterion_id)
            return Reason(ReasonCode.NOT_MET, f"{result.metric} is not met", result.criterion_id)
        case Status.INDETERMINATE:
            return Reason(ReasonCode.INDETERMINATE, f"{result.metric}: {result.error}", result.criterion_id)
