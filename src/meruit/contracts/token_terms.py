"""Contracts that pay for tokens: what a run's tokens are worth by the terms, and what keeps them from being paid."""

from collections.abc import Sequence
from decimal import Decimal

from meruit.model.contract import Terms, TokenRates
from meruit.model.metering import UsageRecord
from meruit.model.money import Bill, ContractTokenUse, as_decimal, as_micros
from meruit.model.numbers import MICRO
from meruit.model.usage import INTERVAL_MIN, Tokens, UsageStatus, UsageVerdict
from meruit.usage.cost import cost_bounds, quote_cost


def token_use(record: UsageRecord) -> ContractTokenUse:
    """What may be billed of a run: its tokens and their cost, once they are verified as specified, or why not."""
    verdict = record.verdict
    if verdict.status is not UsageStatus.VERIFIED:
        # Before the words stands a sign for those who skim.
        sign, _, words = verdict.message.partition(" ")
        return ContractTokenUse(
            record.run.id, verdict.status, record.attempts, why=verdict.message if sign.isascii() else words
        )
    why_not = _why_not_payable(verdict)
    if why_not:
        return ContractTokenUse(record.run.id, verdict.status, record.attempts, why=why_not)
    found = quote_cost(record.run, verdict, record.quotes)
    return ContractTokenUse(record.run.id, verdict.status, record.attempts, verdict.tokens, found.amount, found.why)


def why_usage_waits(usage: Sequence[ContractTokenUse], terms: Terms) -> str:
    """Why tokens that the terms price cannot be billed yet; empty when they can, or have no price.

    Nobody's word stands in for this: tokens are paid when they are verified, or not at all.
    """
    if not terms.prices_tokens:
        return ""
    if not usage:
        return "its terms price tokens, and no run is recorded under its contract_id"
    for use in usage:
        if use.status is not UsageStatus.VERIFIED:
            return f"usage of run {use.run_id} is {use.status}: {use.why}"
        if use.tokens is None:
            return f"usage of run {use.run_id} {use.why}"
        if price_of(use, terms) is None:
            return f"the cost of run {use.run_id} is unknown: {_why_unknown(use, terms)}"
    return ""


def price_of(use: ContractTokenUse, terms: Terms) -> int | None:
    """What a run's tokens are worth by the terms, in millionths, rounded half-even; None while that is not known."""
    if use.status is not UsageStatus.VERIFIED or use.tokens is None:
        return None
    amount = use.cost if terms.token_rates is None else _by_rates(use.tokens, terms.token_rates)
    return None if amount is None else round(amount * MICRO)


def _why_not_payable(verdict: UsageVerdict) -> str:
    """What verified tokens lack to be worth money; empty where that is nothing."""
    if verdict.reported_by:
        return f"is told by a {verdict.reported_by}, and was not asked of the provider here"
    if verdict.interval_min < INTERVAL_MIN:
        return f"was judged with {verdict.interval_min:g} minutes between looks instead of {INTERVAL_MIN:g}"
    return ""


def _by_rates(tokens: Tokens, rates: TokenRates) -> Decimal | None:
    given = {"input": rates.input_per_million, "output": rates.output_per_million, "cached": rates.cached_per_million}
    bounds = cost_bounds(
        tokens, {name: as_decimal(as_micros(rate)) for name, rate in given.items() if rate is not None}
    )
    return bounds.low if bounds is not None and bounds.low == bounds.high else None


def _why_unknown(use: ContractTokenUse, terms: Terms) -> str:
    if terms.token_rates is None:
        return use.why
    return "its source does not say how much of the input was cached, which the terms price apart"


def describe_token_use(use: ContractTokenUse) -> str:
    """A run and its tokens, as a line of a bill names them."""
    tokens = use.tokens or Tokens()
    cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
    return f"run {use.run_id}: {tokens.input:,} in{cached}, {tokens.output:,} out"


def token_payments_by_run(bill: Bill, terms: Terms) -> dict[str, Decimal]:
    """What of a bill was for the tokens of each of its runs; where less was paid than they are worth, in order."""
    left, shares = bill.tokens, {}
    for use in bill.usage:
        share = min(price_of(use, terms) or 0, left)
        shares[use.run_id] = as_decimal(share)
        left -= share
    return shares
