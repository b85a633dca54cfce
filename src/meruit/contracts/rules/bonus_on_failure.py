"""Withhold the bonuses of failed work, where the terms say so."""

from meruit.model.contract import BonusOnFailure
from meruit.model.money import Line, PricePart
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("bonus_on_failure", after=("cpa_bonus",))
def bonus_on_failure(context: SettlementContext) -> list[Line]:
    """Under `bonus_on_failure: none`, failed work earns no bonus."""
    if context.result.success or context.terms.bonus_on_failure is BonusOnFailure.PER_CRITERION:
        return []
    return [
        Line("bonus_on_failure", PricePart.BONUS, -micros, "the work failed", criterion_id)
        for criterion_id, micros in context.bonus_by_criterion().items()
        if micros
    ]
