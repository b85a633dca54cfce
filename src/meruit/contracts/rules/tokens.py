"""What verified tokens are paid."""

from collections.abc import Sequence

from meruit.contracts.token_terms import describe_token_use, price_of
from meruit.model.contract import TOKENS_RULE, Terms
from meruit.model.money import ContractTokenUse, Line, PricePart, as_micros
from meruit.model.numbers import in_units
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add(TOKENS_RULE, by_usage=True)
def tokens(
    result: VerificationResult,  # noqa: ARG001 - one signature
    terms: Terms,
    lines: Sequence[Line],  # noqa: ARG001
    usage: Sequence[ContractTokenUse],
) -> list[Line]:
    """Each run's verified tokens, by `token_rates` or at cost, up to `max_token_cost`; nothing that is unknown."""
    prices = [(use, price_of(use, terms)) for use in usage]
    owed = [
        Line(TOKENS_RULE, PricePart.TOKENS, price, describe_token_use(use))
        for use, price in prices
        if price is not None
    ]
    limit = as_micros(terms.max_token_cost or 0)
    over = sum(line.micros for line in owed) - limit
    return (
        [*owed, Line(TOKENS_RULE, PricePart.TOKENS, -over, f"over the cap of {in_units(limit)}")] if over > 0 else owed
    )
