"""Cost per completion: pay the rate."""

from meruit.model.money import Line, PricePart, as_micros
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("cpc")
def cpc(context: SettlementContext) -> list[Line]:
    """The rate, paid for completion with any verdict."""
    return [Line("cpc", PricePart.CPC, as_micros(context.terms.cpc_rate or 0), "completed")]
