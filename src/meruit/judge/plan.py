"""Compiles criteria once: thresholds as intervals, weights as integers, money in millionths."""

import math
from collections.abc import Callable
from fractions import Fraction
from hashlib import sha256
from typing import Any

import msgspec
from msgspec.structs import force_setattr

from meruit.judge.compare import Bracket, Test, bracket, compile_test, usual_numbers, value_scale
from meruit.model.canonical import canonical
from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.evidence import Fault, Provenance
from meruit.model.kinds import DEFAULT_AXIS, Aggregation, MetricType, MissingPolicy, Scale
from meruit.model.numbers import MICRO, Number, exact
from meruit.model.verdict import CriterionResult, Reason, ReasonCode, Status, VerificationResult

DEFAULT_MINIMUM = Fraction(1, 2)
"""The default weighted score that succeeds; a written 0.0 means 0.0."""


class Trait(msgspec.Struct, frozen=True):
    """What is known of a metric before it is measured."""

    natural: MetricType | None = None
    """The metric's own type; None when a third-party extractor computes it."""
    provenance: Provenance | None = None


COMPUTED_HERE = Trait(None, Provenance.COMPUTED)
"""The facts about metrics that custom code or an expression computes."""


class CriterionRule(msgspec.Struct, frozen=True):
    """One criterion, ready to be judged."""

    position: int
    id: str
    subject: str
    """The metric's name, or the assertion's."""
    slot: str
    """The name of its value in the metrics: the subject, or `subject[id]` where several use different settings."""
    criterion: SuccessCriterion
    threshold: Any
    shared: bool
    """Whether the threshold is a list or mapping, which each result copies."""
    test: Test | None
    """None for an assertion, whose check gives the score."""
    bracket: Bracket | None
    """Its intervals; None for text or an assertion."""
    weight: int
    """In units of the plan's smallest."""
    shown_weight: float
    gates: bool
    """Whether success depends on it."""
    caps: bool
    """Whether the author set `required`, so that failing it makes the verdict fail."""
    excludable: bool
    bonus: int
    penalty: int
    penalty_if_missing: int
    """The penalty when it cannot be measured: none, unless the criteria say so."""
    shown_bonus: float | None
    shown_penalty: float | None
    axis: str
    provenance: Provenance | None
    natural: MetricType | None
    value_scale: Scale | None
    when_met: CriterionResult
    """The result of a value that meets it, to be copied; the value is still to be set."""
    when_not: CriterionResult
    reason: Reason
    """What a result says where it is not met."""


Quick = Callable[[Any], CriterionResult | None]
"""The result of a usual number; None for any other evidence, which has to be looked at."""


class Plan(msgspec.Struct, frozen=True):
    """A set of criteria that can judge any number of works."""

    criteria: SuccessCriteria
    rules: tuple[CriterionRule, ...]
    aggregation: Aggregation
    minimum: tuple[int, int]
    """The weighted score that succeeds, as numerator and denominator."""
    total_weight: int
    weight_unit: Fraction
    """The value of one integer weight."""
    axes: tuple[str, ...]
    has_money: bool
    partial_credit: bool
    """Whether a criterion may be met in part, as assertions may."""
    slots: tuple[str, ...]
    body: bytes
    """The criteria in canonical form."""
    digest: str
    """SHA-256 of the canonical form."""
    quick: tuple[Quick, ...]
    """What judges a usual number, for each rule."""
    outcome_cache: dict[tuple[Status, ...], VerificationResult]
    """Cache of results by the statuses of the criteria, to be copied; not part of the plan's meaning."""


def compile_plan(
    criteria: SuccessCriteria, trait: Callable[[str], Trait], slots: tuple[str, ...] | None = None
) -> Plan:
    """Compile the criteria once for all works. Linear in the number of criteria."""
    weights = [exact(criterion.weight) for criterion in criteria.criteria]
    unit = Fraction(1, math.lcm(*(weight.denominator for weight in weights))) if weights else Fraction(1)
    ids = criteria.ids
    own_names = {name for custom in criteria.custom_metrics for name in custom.metrics}
    rules = tuple(
        _rule(
            index,
            ids[index],
            slots[index] if slots else criterion.label,
            criteria,
            weight=int(weights[index] / unit),
            trait=_trait(criterion, trait),
            own_code=criterion.expr is not None or criterion.metric in own_names,
        )
        for index, criterion in enumerate(criteria.criteria)
    )
    minimum = criteria.minimum_weighted_score
    body = canonical(criteria.model_dump(exclude_defaults=True))
    return Plan(
        criteria=criteria,
        rules=rules,
        aggregation=criteria.aggregation,
        minimum=(DEFAULT_MINIMUM if minimum is None else exact(minimum)).as_integer_ratio(),
        total_weight=sum(rule.weight for rule in rules),
        weight_unit=unit,
        axes=tuple(dict.fromkeys(rule.axis for rule in rules)),
        has_money=any(rule.bonus or rule.penalty for rule in rules),
        partial_credit=any(rule.test is None for rule in rules),
        slots=tuple(rule.slot for rule in rules),
        quick=tuple(_quick(rule) for rule in rules),
        outcome_cache={},
        body=body,
        digest=sha256(body).hexdigest(),
    )


def _rule(
    position: int,
    name: str,
    slot: str,
    criteria: SuccessCriteria,
    *,
    weight: int,
    trait: Trait,
    own_code: bool,
) -> CriterionRule:
    criterion = criteria.criteria[position]
    # The agent is responsible for a claimed value, the author for custom code; otherwise the system is.
    blame = Fault.AGENT if trait.provenance is Provenance.CLAIMED else Fault.AUTHOR if own_code else Fault.SYSTEM
    gates, axis, shown_weight = (
        _gates(criterion, criteria.aggregation),
        criterion.axis or DEFAULT_AXIS,
        float(criterion.weight),
    )
    shown_bonus = None if criterion.bonus is None else float(criterion.bonus)
    shown_penalty = None if criterion.penalty is None else float(criterion.penalty)
    numbers = bracket(criterion, trait.natural) if criterion.assertion is None else None
    scale = value_scale(criterion, trait.natural)
    # Any: fields of several types.
    fixed: dict[str, Any] = {
        "metric": criterion.subject,
        "value": None,
        "threshold": criterion.threshold,
        "comparison": criterion.comparison,
        "weight": shown_weight,
        "criterion_id": name,
        "index": position,
        "required": gates,
        "axis": axis,
        "provenance": trait.provenance,
        "natural": trait.natural,
        "scale": criterion.scale,
        "value_scale": scale,
    }
    return CriterionRule(
        position=position,
        id=name,
        subject=criterion.subject,
        slot=slot,
        criterion=criterion,
        threshold=criterion.threshold,
        shared=isinstance(criterion.threshold, list | dict),
        test=compile_test(criterion, numbers, blame) if criterion.assertion is None else None,
        bracket=numbers,
        weight=weight,
        shown_weight=shown_weight,
        gates=gates,
        caps=criterion.required is True,
        excludable=criterion.missing is MissingPolicy.EXCLUDE,
        bonus=_micros(criterion.bonus),
        penalty=_micros(criterion.penalty),
        # A failure of the author's own code costs no penalty.
        penalty_if_missing=_micros(criterion.penalty) if criteria.penalize_missing and not own_code else 0,
        shown_bonus=shown_bonus,
        shown_penalty=shown_penalty,
        axis=axis,
        provenance=trait.provenance,
        natural=trait.natural,
        value_scale=scale,
        when_met=CriterionResult(**fixed, met=True, bonus=shown_bonus, status=Status.MET, score=1.0, exact="1"),
        when_not=CriterionResult(
            **fixed, met=False, penalty=shown_penalty, status=Status.NOT_MET, score=0.0, exact="0", fault=Fault.AGENT
        ),
        reason=Reason(ReasonCode.REQUIRED_NOT_MET, f"{name} is required and not met", name)
        if gates
        else Reason(ReasonCode.NOT_MET, f"{name} is not met", name),
    )


def _quick(rule: CriterionRule) -> Quick:
    """The rule as one function over local values: looking up fields takes as long as comparing."""
    if rule.bracket is None:
        return _never
    (low, high, negated), (floats, integers) = rule.bracket.meets, usual_numbers(rule.bracket)
    (float_low, float_high, _), (integer_low, integer_high, _) = floats, integers
    copy_inside, copy_outside = rule.when_met.__copy__, rule.when_not.__copy__
    if negated:
        copy_inside, copy_outside = copy_outside, copy_inside
    threshold = rule.threshold if rule.shared else None

    def judge(value: Any) -> CriterionResult | None:
        if value.__class__ is float:
            if not float_low <= value <= float_high:
                return None
        elif value.__class__ is not int or not integer_low <= value <= integer_high:
            return None
        result = copy_inside() if low <= value <= high else copy_outside()
        force_setattr(result, "value", value)
        if threshold is not None:
            # A list or mapping: each result gets its own.
            force_setattr(result, "threshold", threshold.copy())
        return result

    return judge


def _never(_value: Any) -> None:
    """Of text and of an assertion, no number is judged."""


def _trait(criterion: SuccessCriterion, trait: Callable[[str], Trait]) -> Trait:
    """The facts about the value; an expression's name does not refer to a metric of that name."""
    if criterion.expr is not None:
        return COMPUTED_HERE
    return Trait() if criterion.metric is None else trait(criterion.metric)


def _gates(criterion: SuccessCriterion, aggregation: Aggregation) -> bool:
    """Unset means required under `all` only; otherwise `any` and `weighted` would act like `all`."""
    if criterion.required is None:
        return aggregation is Aggregation.ALL
    return criterion.required


def _micros(amount: Number | None) -> int:
    return 0 if amount is None else int(exact(amount) * MICRO)
