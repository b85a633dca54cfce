"""What an agent can reach at best with any output: criteria on one metric may exclude each other."""

import math
from collections.abc import Iterator, Sequence, Set
from fractions import Fraction
from typing import NamedTuple

from meruit.judge.compare import EXACT_INTEGERS
from meruit.judge.plan import CriterionRule, Plan
from meruit.model.kinds import CONTAINMENT, Aggregation
from meruit.model.numbers import in_units

CONTRADICTORY, UNREACHABLE, UNAVOIDABLE = "contradictory", "unreachable_minimum", "unavoidable_penalty"
IMPOSSIBLE = frozenset({CONTRADICTORY, UNREACHABLE, UNAVOIDABLE})
"""Findings of criteria that no output can satisfy together."""

Value = float | str


class ReachFinding(NamedTuple):
    """A proof that no output gets all that the criteria seem to offer."""

    code: str
    message: str
    criterion_id: str | None = None


def find_unreachable(plan: Plan) -> Iterator[ReachFinding]:
    """Find required criteria, minimum scores and penalties that no value of the metrics can satisfy."""
    lost = 0
    for rules in _rules_by_metric(plan):
        values = {frozenset(rule.position for rule in rules if _is_met(rule, value)) for value in _values(rules)}
        # A criterion that nothing meets has a finding of its own.
        possible = [rule for rule in rules if any(rule.position in met for met in values)]
        lost += sum(rule.weight for rule in rules) - max(_sum(rules, met) for met in values)
        contradiction = _contradiction([rule for rule in possible if rule.gates], values)
        if contradiction is not None:
            yield contradiction
        else:
            yield from _unavoidable(possible, values)
    # A criterion that is left out of the score when it is missing may raise it.
    if plan.aggregation is Aggregation.WEIGHTED and lost and not any(rule.excludable for rule in plan.rules):
        best, minimum = Fraction(plan.total_weight - lost, plan.total_weight), Fraction(*plan.minimum)
        if best < minimum:
            message = f"some criteria exclude each other: the score is at most {float(best):.4g}, below the minimum"
            yield ReachFinding(UNREACHABLE, f"{message} of {float(minimum):.4g}")


def _rules_by_metric(plan: Plan) -> Iterator[list[CriterionRule]]:
    """The criteria that judge one value; a list of words may be searched in many values at once, so it is left out."""
    by_slot: dict[str, list[CriterionRule]] = {}
    for rule in plan.rules:
        if rule.test is not None and rule.criterion.comparison not in CONTAINMENT:
            by_slot.setdefault(rule.slot, []).append(rule)
    return (rules for rules in by_slot.values() if len(rules) > 1)


def _values(rules: Sequence[CriterionRule]) -> list[Value]:
    """Values among which is one for every combination of criteria that can be met together.

    Between two ends of the intervals nothing changes, so the ends and their neighbours are enough.
    """
    texts = {rule.threshold for rule in rules if rule.bracket is None}
    values: set[Value] = {*texts, "".join(sorted(texts)) + "?"}
    for rule in rules:
        if rule.bracket is None:
            continue
        for end in (*rule.bracket.meets[:2], *rule.bracket.possible[:2]):
            if math.isfinite(end):
                values |= {end, math.nextafter(end, -math.inf), math.nextafter(end, math.inf)}
            if abs(end) < EXACT_INTEGERS:
                whole = math.floor(end)
                values |= {float(whole + step) for step in (-1, 0, 1, 2)}
    return sorted(values, key=str)


def _is_met(rule: CriterionRule, value: Value) -> bool:
    return rule.test is not None and rule.test(value) is True


def _sum(rules: Sequence[CriterionRule], met: frozenset[int]) -> int:
    return sum(rule.weight for rule in rules if rule.position in met)


def _contradiction(gates: Sequence[CriterionRule], values: Set[frozenset[int]]) -> ReachFinding | None:
    """Required criteria on one metric that no value meets together."""
    if len(gates) < 2 or any({gate.position for gate in gates} <= met for met in values):
        return None
    for number, one in enumerate(gates):
        for other in gates[number + 1 :]:
            if not any({one.position, other.position} <= met for met in values):
                message = f"contradicts {other.id!r}: no value of {one.subject} meets both, and both are required"
                return ReachFinding(code=CONTRADICTORY, message=message, criterion_id=one.id)
    named = ", ".join(repr(gate.id) for gate in gates[1:])
    message = f"contradicts {named}: no value of {gates[0].subject} meets all of them, and all are required"
    return ReachFinding(code=CONTRADICTORY, message=message, criterion_id=gates[0].id)


def _unavoidable(rules: Sequence[CriterionRule], values: Set[frozenset[int]]) -> Iterator[ReachFinding]:
    """Penalties of which every value costs one."""
    costly = [rule for rule in rules if rule.penalty]
    least = min((sum(rule.penalty for rule in costly if rule.position not in met) for met in values), default=0)
    if least:
        named = ", ".join(repr(rule.id) for rule in costly)
        message = f"every value of {costly[0].subject} costs a penalty: at least {in_units(least)} of those on {named}"
        yield ReachFinding(code=UNAVOIDABLE, message=message, criterion_id=costly[0].id)
