"""Pay nothing for failed work; only for terms that name this rule."""

from meruit.model.contract import TOKENS_RULE
from meruit.model.money import Line, PricePart
from meruit.registry import SettlementContext, settlement_rules


# The limit of penalties is a share of the rate, so they are charged before the rate is taken away.
@settlement_rules.add("pay_on_success", after=("cpc", TOKENS_RULE, "cpa_penalty"))
def pay_on_success(context: SettlementContext) -> list[Line]:
    """Work that failed is not paid for being completed, nor for its tokens."""
    if context.result.success:
        return []
    paid = {part: context.sum_of(part) for part in (PricePart.CPC, PricePart.TOKENS)}
    return [Line("pay_on_success", part, -micros, "the work failed") for part, micros in paid.items() if micros]
