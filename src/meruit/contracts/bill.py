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
from meruit.model.money import Bill, ContractTokenUse, Cost, JudgeStanding, Line, PricePart, as_decimal, as_micros
from meruit.model.numbers import MICRO, Number, exact
from meruit.model.threshold import LARGEST_MICROS, MONEY_PLACES, money
from meruit.model.usage import UsageStatus
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.registry import SettlementContext, SettlementRule, settlement_rules

ADJUST = "adjust"
"""The rule of the line that settles a dispute on another amount; no terms name it."""
GUARD = "guard"
"""The rule of lines that no terms name. A price is never negative, and never above what is in escrow."""
FLOAT_NOISE = 1e-14
"""Largest relative error of a sum of floats."""
MAX_LINES = 10_000
"""Most lines of one rule."""
LARGEST_LINE = 2**62
"""In millionths; a record cannot hold more."""


def hold_for(criteria: SuccessCriteria | None, terms: Terms) -> int:
    """The escrow of a contract: the most that it can cost. Raises AmountTooLarge."""
    bonuses = sum(as_micros(one.bonus) for one in criteria.criteria if one.bonus) if criteria is not None else 0
    hold = _rate(terms) + (bonuses if terms.max_cpa_total is None else min(bonuses, as_micros(terms.max_cpa_total)))
    hold += as_micros(terms.max_token_cost or 0) if terms.prices_tokens else 0
    if hold > LARGEST_MICROS:
        raise AmountTooLarge(
            f"the contract could cost more than {LARGEST_MICROS // MICRO}; lower the bonuses or give a cap"
        )
    return hold


def bill(
    result: VerificationResult,
    terms: Terms,
    hold: int,
    usage: Sequence[ContractTokenUse] = (),
    judges: Sequence[JudgeStanding] = (),
) -> Bill:
    """Bill a result and its tokens, rule by rule; `judges` are kept with the bill.

    Raises UnknownName for a rule that is not installed, and RuleFailed.
    """
    used = tuple(usage) if terms.prices_tokens else ()
    proven = bool(used) and all(one.status is UsageStatus.VERIFIED and one.tokens is not None for one in used)
    lines: list[Line] = []
    for name in terms.rules:
        rule = settlement_rules.get(name)
        added = _apply_rule(rule, SettlementContext(result, terms, tuple(lines), used))
        if not proven and any(line.part is PricePart.TOKENS for line in added):
            raise RuleFailed(f"the settlement rule {rule.name} bills tokens that are not verified")
        if any(line.part is PricePart.ADJUSTMENT for line in added):
            raise RuleFailed(f"the settlement rule {rule.name} bills an adjustment, which only settles a dispute")
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
        judges=tuple(judges),
    )


def bill_adjustment(micros: int, terms: Terms, hold: int, reason: str) -> Bill:
    """Bill the amount that a dispute was settled on; the fee is that of the terms, the rest of the escrow goes back."""
    fee, payout = fee_and_payout(micros, terms.platform_fee_rate)
    return Bill(
        currency=terms.currency,
        lines=[Line(ADJUST, PricePart.ADJUSTMENT, micros, reason)],
        base=0,
        bonus=0,
        penalty=0,
        total=micros,
        fee=fee,
        payout=payout,
        released=hold - micros,
        adjustment=micros,
    )


def is_adjusted(bill: Bill) -> bool:
    """Whether the bill settles a dispute on another amount than the rules give."""
    return any(line.part is PricePart.ADJUSTMENT for line in bill.lines)


def _apply_rule(rule: SettlementRule, context: SettlementContext) -> list[Line]:
    """The lines that a rule adds to the bill; raises RuleFailed for a rule that adds anything else."""
    try:
        added = [*islice(rule.apply(context), MAX_LINES + 1)]
    except Exception as problem:  # noqa: BLE001 - a plugin may raise anything; the work is recorded all the same
        # The message is shown and stored, so it must not repeat what the plugin wrote.
        raise RuleFailed(f"the settlement rule {rule.name} raised {type(problem).__name__}") from None
    if len(added) > MAX_LINES:
        raise RuleFailed(f"the settlement rule {rule.name} wrote more than {MAX_LINES} lines")
    if not all(map(_is_line, added)):
        raise RuleFailed(f"the settlement rule {rule.name} returned something that is not a line of a bill")
    return added


# Any: a plugin may return anything.
def _is_line(line: Any) -> bool:
    """Whether it is a line that survives being recorded."""
    try:
        recordable = isinstance(line, Line) and Line.from_json(line.to_json()) == line
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        return False
    return (
        recordable
        and type(line.micros) is int
        and isinstance(line.part, PricePart)
        and abs(line.micros) <= LARGEST_LINE
    )


def sum_of(lines: Sequence[Line], part: PricePart) -> int:
    """The sum of the lines of one part."""
    return sum(line.micros for line in lines if line.part is part)


def fee_and_payout(price: int, rate: Number) -> tuple[int, int]:
    """The platform's fee, rounded half-even to a millionth, and the agent's payout; they sum to the price."""
    fee = round(price * exact(rate))
    return fee, price - fee


def largest_penalty(base: int, rate: Number) -> int:
    """The most that penalties may take off a price."""
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
        raise MeruitError("the terms have no cpc_rate; give one with the work or the award")
    return as_micros(terms.cpc_rate)


def calculate_cost(execution: Execution | Any, verification: VerificationResult | Any) -> Cost:
    """CPC + bonus − penalty.

    A cap of 0 means no bonus. The penalty is limited, so that the parts sum to the total. The result may be awaited.
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
    """The exact sum of a VerificationResult; of any other object, the number in its field."""
    micros = _part(verification, f"{name}_micros")
    if isinstance(micros, int) and micros > 0:
        return micros
    written = _part(verification, name)
    try:
        return as_micros(money(_round_float_noise(written)))
    except ValueError as problem:
        raise MeruitError(f"the {name} of the verification: {problem}") from None


# Any, here and below: callers may pass any object.
def _part(verification: Any, name: str) -> Any:
    return verification.get(name) if isinstance(verification, Mapping) else getattr(verification, name, None)


def _round_float_noise(written: Any) -> Any:
    """Round a float that is the sum of floats to the amount it stands for: 0.1 + 0.2 is 0.3."""
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
"""Causes in the author's own code, when it returns no number."""


OF_VALUES = frozenset({Cause.NOT_A_NUMBER, Cause.WRONG_TYPE, Cause.OUT_OF_DOMAIN})


def chargeable_criteria(result: VerificationResult) -> list[CriterionResult]:
    """Criteria that were not met; also those that were not measured, where the criteria penalize missing values."""
    found = [one for one in result.criterion_results if one.status is Status.NOT_MET and one.penalty]
    # The result's sum is larger than theirs only where the criteria penalize missing values.
    if result.penalty_micros > sum(as_micros(one.penalty or 0) for one in found):
        found += [
            one
            for one in result.criterion_results
            if one.status is Status.INDETERMINATE and one.penalty and not _is_author_code_failure(one)
        ]
    return found


def _is_author_code_failure(judged: CriterionResult) -> bool:
    """Whether the author's own code returned no valid value; the agent does not pay for that."""
    return judged.cause in OF_CODE or (judged.cause in OF_VALUES and judged.fault is Fault.AUTHOR)
