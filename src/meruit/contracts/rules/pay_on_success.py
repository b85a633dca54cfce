"""Pay nothing for failed work; only for terms that name this rule."""

from meruit.model.money import Line, PricePart
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("pay_on_success")
def pay_on_success(context: SettlementContext) -> list[Line]:
    """Work that failed is not paid for being completed, nor for its tokens."""
    if context.result.success:
        return []
    paid = {part: context.sum_of(part) for part in (PricePart.CPC, PricePart.TOKENS)}
    return [Line("pay_on_success", part, -micros, "the work failed") for part, micros in paid.items() if micros]
