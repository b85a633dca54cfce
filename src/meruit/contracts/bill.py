"""From a verdict and the terms to a bill whose lines sum to its total."""

import math
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from meruit.errors import AmountTooLarge, MeruitError, RuleFailed
from meruit.model.contract import Execution, Terms
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Fault
from meruit.model.money import Bill, ContractTokenUse, Cost, Line, PricePart, as_decimal, as_micros
from meruit.model.numbers import MICRO, Number, exact
from meruit.model.threshold import LARGEST_MICROS, MONEY_PLACES, money
from meruit.model.usage import UsageStatus
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.registry import SettlementRule, settlement_rules

GUARD = "guard"
"""The rule of lines that no terms name: a price is never negative, and never above what is held."""
FLOAT_NOISE = 1e-14
"""By which part of itself a sum of floats may miss the amount that it stands for."""
MAX_LINES = 10_000
"""That one rule may write."""
LARGEST_LINE = 2**62
"""In millionths; more is nobody's money, and no record could hold it."""


def hold_for(criteria: SuccessCriteria | None, terms: Terms) -> int:
    """What is put aside at the award: the most that the contract can cost; raises TooMuch."""
    bonuses = sum(as_micros(one.bonus) for one in criteria.criteria if one.bonus) if criteria is not None else 0
    hold = _rate(terms) + (bonuses if terms.max_cpa_total is None else min(bonuses, as_micros(terms.max_cpa_total)))
    hold += as_micros(terms.max_token_cost or 0) if terms.prices_tokens else 0
    if hold > LARGEST_MICROS:
        raise AmountTooLarge(
            f"the contract could cost more than {LARGEST_MICROS // MICRO}; lower the bonuses or give a cap"
        )
    return hold


def bill(result: VerificationResult, terms: Terms, hold: int, usage: Sequence[ContractTokenUse] = ()) -> Bill:
    """What is owed for a result and the tokens that it took, rule by rule.

    Raises UnknownName for a rule that is not installed, and RuleFailed.
    """
    used = tuple(usage) if terms.prices_tokens else ()
    proven = bool(used) and all(one.status is UsageStatus.VERIFIED and one.tokens is not None for one in used)
    lines: list[Line] = []
    for name in terms.rules:
        rule = settlement_rules.get(name)
        added = _apply_rule(rule, result, terms, tuple(lines), *([used] if rule.by_usage else []))
        if not proven and any(line.part is PricePart.TOKENS for line in added):
            raise RuleFailed(f"the settlement rule {rule.name} bills tokens that are not verified")
        lines += added
    lines += _guard_lines(lines, hold)
    total = sum(line.micros for line in lines)
    fee, payout = fee_and_payout(total, terms.platform_fee_rate)
    return Bill(
        currency=terms.currency,
        lines=lines,
        base=sum_of(lines, PricePart.CPC),
        bonus=sum_of(lines, PricePart.BONUS),
        penalty=-sum_of(lines, PricePart.PENALTY),
        total=total,
        fee=fee,
        payout=payout,
        released=hold - total,
        tokens=sum_of(lines, PricePart.TOKENS),
        usage=used,
    )


# Any: what a rule takes.
def _apply_rule(rule: SettlementRule, *what: Any) -> list[Line]:
    """What a rule adds to the bill; somebody else's rule may do anything."""
    try:
        added = [*islice(rule.apply(*what), MAX_LINES + 1)]
    except Exception as problem:  # noqa: BLE001 - whatever a stranger's rule raises, the work is recorded and waits
        # Its own words may be anything, and this is shown and kept.
        raise RuleFailed(f"the settlement rule {rule.name} raised {type(problem).__name__}") from None
    if len(added) > MAX_LINES:
        raise RuleFailed(f"the settlement rule {rule.name} wrote more than {MAX_LINES} lines")
    if not all(map(_is_line, added)):
        raise RuleFailed(f"the settlement rule {rule.name} gave something that is no line of a bill")
    return added


# Any: it comes from whoever wrote the rule.
def _is_line(line: Any) -> bool:
    """Whether it is a line just as a record holds one."""
    try:
        whole = isinstance(line, Line) and Line.from_json(line.to_json()) == line
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return False
    return whole and type(line.micros) is int and isinstance(line.part, PricePart) and abs(line.micros) <= LARGEST_LINE


def sum_of(lines: Sequence[Line], part: PricePart) -> int:
    """What the lines of one part add up to."""
    return sum(line.micros for line in lines if line.part is part)


def fee_and_payout(price: int, rate: Number) -> tuple[int, int]:
    """The platform's share, rounded half-even to a millionth, and the agent's: together the price exactly."""
    fee = round(price * exact(rate))
    return fee, price - fee


def largest_penalty(base: int, rate: Number) -> int:
    """The most that penalties take off a price."""
    return round(base * exact(rate))


def _guard_lines(lines: Sequence[Line], hold: int) -> list[Line]:
    total = sum(line.micros for line in lines)
    if total < 0:
        return [Line(GUARD, PricePart.PENALTY, -total, "a price is never negative")]
    if total > hold:
        return [Line(GUARD, PricePart.BONUS, hold - total, "no more is paid than was held")]
    return []


def _rate(terms: Terms) -> int:
    if terms.cpc_rate is None:
        raise MeruitError("the terms name no cpc_rate; give one with the work or the award")
    return as_micros(terms.cpc_rate)


def calculate_cost(execution: Execution | Any, verification: VerificationResult | Any) -> Cost:
    """CPC + bonus − penalty, as specified.

    Unlike the printed code, a cap of 0 is a cap, and the penalty itself is clamped, so that the parts sum to the
    total. It may be awaited.
    """
    known = Execution.model_validate(execution)
    base = as_micros(known.agent.pricing.cpc_rate)
    cap, rate = known.task.budget.max_cpa_total, known.task.budget.max_penalty_rate
    bonus, penalty = _micros_of(verification, "bonus"), _micros_of(verification, "penalty")
    bonus = bonus if cap is None else min(bonus, as_micros(cap))
    penalty = min(penalty, largest_penalty(base, rate), base + bonus)
    cpc, cpa_bonus, cpa_penalty = (as_decimal(micros) for micros in (base, bonus, penalty))
    return Cost(
        base=cpc,
        bonus=cpa_bonus,
        penalty=cpa_penalty,
        total=as_decimal(base + bonus - penalty),
        breakdown={"cpc": cpc, "cpa_bonus": cpa_bonus, "cpa_penalty": cpa_penalty},
    )


def _micros_of(verification: VerificationResult | Any, name: str) -> int:
    """Of a result of ours the exact sum; of anyone else's the number as written."""
    micros = _part(verification, f"{name}_micros")
    if isinstance(micros, int) and micros > 0:
        return micros
    written = _part(verification, name)
    try:
        return as_micros(money(_round_float_noise(written)))
    except ValueError as problem:
        raise MeruitError(f"the {name} of the verification: {problem}") from None


# Any, here and below: whoever calls may have written anything.
def _part(verification: Any, name: str) -> Any:
    return verification.get(name) if isinstance(verification, Mapping) else getattr(verification, name, None)


def _round_float_noise(written: Any) -> Any:
    """A float that comes of adding floats up is the amount it stands for: 0.1 + 0.2 is 0.3."""
    if not isinstance(written, float) or not math.isfinite(written):
        return written
    nearest = round(written, MONEY_PLACES)
    return nearest if math.isclose(written, nearest, rel_tol=FLOAT_NOISE) else written


OF_CODE = frozenset(
    {
        Cause.TIMEOUT,
        Cause.MEMORY,
        Cause.CRASHED,
        Cause.RESULT_REJECTED,
        Cause.UNSUPPORTED_CONSTRUCT,
        Cause.NONDETERMINISTIC,
        Cause.SANDBOX_UNAVAILABLE,
    }
)
"""How the author's own code ends when it gives no number."""


OF_VALUES = frozenset({Cause.NOT_A_NUMBER, Cause.WRONG_TYPE, Cause.OUT_OF_DOMAIN})


def chargeable_criteria(result: VerificationResult) -> list[CriterionResult]:
    """Those not met; and those that could not be measured, where the criteria say that this costs too."""
    found = [one for one in result.criterion_results if one.status is Status.NOT_MET and one.penalty]
    # The result's own sum is larger than theirs only where criteria penalize what is missing.
    if result.penalty_micros > sum(as_micros(one.penalty or 0) for one in found):
        found += [
            one
            for one in result.criterion_results
            if one.status is Status.INDETERMINATE and one.penalty and not _is_author_code_failure(one)
        ]
    return found


def _is_author_code_failure(judged: CriterionResult) -> bool:
    """Whether it is the author's own code that gave nothing, or nothing that can be judged: nobody pays for that."""
    return judged.cause in OF_CODE or (judged.cause in OF_VALUES and judged.fault is Fault.AUTHOR)
