"""Adds up criteria: a tally of weights and required criteria, and the outcome that follows.

An outcome depends only on sums over the criteria, so one work and a column of a million use the same arithmetic.
Weights are integers and scores are compared by cross-multiplication, without rounding.

Every outcome is computed twice: in the low one each unmeasured criterion has failed, in the high one it is met. Where
both agree, that is the verdict; otherwise the verdict is inconclusive and success is false.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple, Protocol

import msgspec

from meruit.judge.plan import CriterionRule, Plan
from meruit.model.kinds import Aggregation
from meruit.model.verdict import PASS_SCORE, AxisScore, Bounds, Status, Verdict

_PASS_PARTS, _PASS_WHOLE = PASS_SCORE.as_integer_ratio()


class ScoredCriterion(Protocol):
    """The part of a criterion's result that aggregation needs."""

    @property
    def status(self) -> Status:
        """How it ended."""
        ...

    @property
    def exact(self) -> str:
        """Its score, as a fraction."""
        ...


class CriteriaTally(msgspec.Struct, frozen=True):
    """The sums over a group of criteria."""

    earned: int | Fraction
    """Weight earned."""
    open: int
    """Weight that could not be measured."""
    total: int
    """Weight that counts: all but what was excluded."""
    met: int
    unknown: int
    """How many could not be measured."""
    gates: int
    """How many success depends on."""
    gates_failed: int
    gates_open: int
    caps_failed: int
    """How many that the author called `required` were not met."""
    caps_open: int

    @property
    def low(self) -> Fraction:
        """The score if every unmeasured criterion had failed."""
        return Fraction(self.earned) / self.total if self.total else Fraction(0)

    @property
    def high(self) -> Fraction:
        """The score if every unmeasured criterion were met."""
        return Fraction(self.earned + self.open) / self.total if self.total else Fraction(0)


class Aggregate(msgspec.Struct, frozen=True):
    """The overall result that follows from the statuses of the criteria."""

    sums: CriteriaTally
    verdict: Verdict
    success: bool
    exact: str
    """The low score as a fraction."""
    bounds: Bounds
    coverage: float
    axes: dict[str, AxisScore]
    bonus: int
    """In millionths."""
    penalty: int


class OverallOutcome(NamedTuple):
    """The outcome if every unmeasured criterion is taken as met, or as failed."""

    verdict: Verdict
    success: bool


def aggregate(plan: Plan, judged: Sequence[tuple[CriterionRule, ScoredCriterion]]) -> Aggregate:
    """Aggregate the criteria of one work."""
    sums = tally(judged)
    verdict, success = outcome(plan, sums)
    bounds = _bounds(sums)
    bonus, penalty = _bonus_and_penalty(judged) if plan.has_money else (0, 0)
    return Aggregate(
        sums=sums,
        verdict=verdict,
        success=success,
        exact=str(sums.low),
        bounds=bounds,
        coverage=(sums.total - sums.open) / sums.total if sums.total else 0.0,
        axes=_axes(plan, judged, sums, bounds),
        bonus=bonus,
        penalty=penalty,
    )


def tally(judged: Iterable[tuple[CriterionRule, ScoredCriterion]]) -> CriteriaTally:
    """Add up judged criteria. The order does not matter, because all values are sums."""
    earned: int | Fraction = 0
    unknown_weight = total = met = unknown = gates = gates_failed = gates_open = caps_failed = caps_open = 0
    for rule, result in judged:
        status = result.status
        if status is Status.EXCLUDED:
            continue
        total += rule.weight
        gates += rule.gates
        if status is Status.MET:
            met += 1
            earned += rule.weight
        elif status is Status.NOT_MET:
            gates_failed += rule.gates
            caps_failed += rule.caps
            if result.exact != "0":
                earned += rule.weight * Fraction(result.exact)
        else:
            unknown += 1
            unknown_weight += rule.weight
            gates_open += rule.gates
            caps_open += rule.caps
    return CriteriaTally(
        earned=earned,
        open=unknown_weight,
        total=total,
        met=met,
        unknown=unknown,
        gates=gates,
        gates_failed=gates_failed,
        gates_open=gates_open,
        caps_failed=caps_failed,
        caps_open=caps_open,
    )


def _bonus_and_penalty(judged: Iterable[tuple[CriterionRule, ScoredCriterion]]) -> tuple[int, int]:
    """Bonus and penalty in millionths. An unmeasured criterion moves no money, unless the criteria say so."""
    bonus = penalty = 0
    for rule, result in judged:
        if result.status is Status.MET:
            bonus += rule.bonus
        elif result.status is Status.NOT_MET:
            penalty += rule.penalty
        elif result.status is Status.INDETERMINATE:
            penalty += rule.penalty_if_missing
    return bonus, penalty


def outcome(plan: Plan, sums: CriteriaTally) -> OverallOutcome:
    """The verdict and success on which the low and the high outcome agree."""
    if not plan.total_weight:
        return OverallOutcome(Verdict.FAIL, success=False)
    if not sums.total:
        return OverallOutcome(Verdict.INCONCLUSIVE, success=False)
    low = _outcome_if_open_failed(plan, sums)
    if not sums.unknown:
        return low
    high = _outcome_if_open_failed(plan, _with_all_open_met(sums))
    return low if low == high else OverallOutcome(Verdict.INCONCLUSIVE, success=False)


def _with_all_open_met(sums: CriteriaTally) -> CriteriaTally:
    return msgspec.structs.replace(
        sums,
        earned=sums.earned + sums.open,
        met=sums.met + sums.unknown,
        unknown=0,
        open=0,
        gates_open=0,
        caps_open=0,
    )


def _outcome_if_open_failed(plan: Plan, sums: CriteriaTally) -> OverallOutcome:
    """The outcome if every unmeasured criterion had failed."""
    if sums.caps_failed or sums.caps_open:
        verdict = Verdict.FAIL
    elif sums.earned * _PASS_WHOLE >= sums.total * _PASS_PARTS:
        verdict = Verdict.PASS
    else:
        verdict = Verdict.PARTIAL if sums.earned > 0 else Verdict.FAIL
    return OverallOutcome(verdict, _succeeds(plan, sums))


def _succeeds(plan: Plan, sums: CriteriaTally) -> bool:
    if sums.gates_failed or sums.gates_open:
        return False
    match plan.aggregation:
        case Aggregation.ALL:
            # Without a required criterion nothing can fail, so it does not pass by default either.
            return sums.gates > 0
        case Aggregation.ANY:
            return sums.met > 0
        case Aggregation.WEIGHTED:
            parts, whole = plan.minimum
            return sums.earned * whole >= sums.total * parts


def _bounds(sums: CriteriaTally) -> Bounds:
    return Bounds(float(sums.low), float(sums.high))


def _axes(
    plan: Plan, judged: Sequence[tuple[CriterionRule, ScoredCriterion]], whole: CriteriaTally, bounds: Bounds
) -> dict[str, AxisScore]:
    if len(plan.axes) == 1:
        return {plan.axes[0]: _axis_score(plan, whole, bounds, len(judged))}
    groups: dict[str, list[tuple[CriterionRule, ScoredCriterion]]] = {axis: [] for axis in plan.axes}
    for rule, result in judged:
        groups[rule.axis].append((rule, result))
    sums = {axis: tally(members) for axis, members in groups.items()}
    return {axis: _axis_score(plan, sums[axis], _bounds(sums[axis]), len(groups[axis])) for axis in plan.axes}


def _axis_score(plan: Plan, sums: CriteriaTally, bounds: Bounds, members: int) -> AxisScore:
    if not sums.total:
        # Criteria without weight are met or not: then each counts equally.
        bounds = Bounds(sums.met / members, (sums.met + sums.unknown) / members)
    return AxisScore(
        score=bounds.low, weight=float(sums.total * plan.weight_unit), passed=sums.met, total=members, bounds=bounds
    )
