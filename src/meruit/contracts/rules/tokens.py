"""Pay verified tokens."""

from meruit.contracts.token_terms import describe_token_use, price_of
from meruit.model.contract import TOKENS_RULE
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.numbers import in_units
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add(TOKENS_RULE)
def tokens(context: SettlementContext) -> list[Line]:
    """Each run's verified tokens, by `token_rates` or at cost, up to `max_token_cost`; nothing that is unknown."""
    prices = [(use, price_of(use, context.terms)) for use in context.usage]
    owed = [
        Line(TOKENS_RULE, PricePart.TOKENS, price, describe_token_use(use))
        for use, price in prices
        if price is not None
    ]
    limit = as_micros(context.terms.max_token_cost or 0)
    over = sum(line.micros for line in owed) - limit
    if over > 0:
        owed.append(Line(TOKENS_RULE, PricePart.TOKENS, -over, f"over the cap of {in_units(limit)}"))
    return owed
