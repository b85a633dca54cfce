"""Limit the sum of all bonuses."""

from collections.abc import Sequence

from meruit.model.contract import CapSplit
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.numbers import in_units
from meruit.registry import SettlementContext, settlement_rules


# What is withheld must not use up the cap.
@settlement_rules.add("cap", after=("cpa_bonus", "claimed_only", "bonus_on_failure"))
def cap(context: SettlementContext) -> list[Line]:
    """Bonuses are cut to `max_cpa_total`, in order or each by the same share."""
    terms = context.terms
    if terms.max_cpa_total is None:
        return []
    limit = as_micros(terms.max_cpa_total)
    earned = context.bonus_by_criterion()
    if sum(earned.values()) <= limit:
        return []
    capped = _split_cap([*earned.values()], limit, terms.cap_split)
    why = f"over the cap of {in_units(limit)}"
    return [
        Line("cap", PricePart.BONUS, left - micros, why, criterion_id)
        for (criterion_id, micros), left in zip(earned.items(), capped, strict=True)
        if left != micros
    ]


def _split_cap(amounts: Sequence[int], limit: int, split: CapSplit) -> list[int]:
    match split:
        case CapSplit.IN_ORDER:
            return _in_order(amounts, limit)
        case CapSplit.PRO_RATA:
            return _pro_rata(amounts, limit)


def _in_order(amounts: Sequence[int], limit: int) -> list[int]:
    capped = []
    for micros in amounts:
        capped.append(min(micros, limit))
        limit -= capped[-1]
    return capped


def _pro_rata(amounts: Sequence[int], limit: int) -> list[int]:
    """Shares of the running total: what rounding takes from one amount goes to the next, so nothing is lost."""
    total = sum(amounts)
    capped, before, running = [], 0, 0
    for micros in amounts:
        running += micros
        reached = running * limit // total
        capped.append(reached - before)
        before = reached
    return capped
