"""Cost per action: pay the bonus of each met criterion."""

from meruit.model.money import Line, PricePart, as_micros
from meruit.model.verdict import Status
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("cpa_bonus")
def cpa_bonus(context: SettlementContext) -> list[Line]:
    """Each met criterion earns its bonus."""
    return [
        Line("cpa_bonus", PricePart.BONUS, as_micros(one.bonus), f"{one.criterion_id} is met", one.criterion_id)
        for one in context.result.criterion_results
        if one.status is Status.MET and one.bonus
    ]
