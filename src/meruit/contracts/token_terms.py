"""Price the tokens of a contract's runs by its terms."""

from decimal import Decimal

from meruit.model.contract import Terms, TokenRates
from meruit.model.metering import UsageRecord
from meruit.model.money import Bill, ContractTokenUse, as_decimal, as_micros
from meruit.model.numbers import MICRO
from meruit.model.usage import INTERVAL_MIN, Tokens, UsageStatus, UsageVerdict
from meruit.usage.cost import cost_bounds, quote_cost


def token_use(record: UsageRecord) -> ContractTokenUse:
    """What may be billed of a run: its verified tokens and their cost, or why they may not be billed."""
    verdict = record.verdict
    if verdict.status is not UsageStatus.VERIFIED:
        # The message of a usage verdict starts with a symbol.
        symbol, _, words = verdict.message.partition(" ")
        return ContractTokenUse(
            record.run.id, verdict.status, record.attempts, why=verdict.message if symbol.isascii() else words
        )
    why_not = _why_not_payable(verdict)
    if why_not:
        return ContractTokenUse(record.run.id, verdict.status, record.attempts, why=why_not)
    found = quote_cost(record.run, verdict, record.quotes)
    return ContractTokenUse(
        run_id=record.run.id,
        status=verdict.status,
        observations=record.attempts,
        tokens=verdict.tokens,
        cost=found.amount,
        why=found.why,
    )


def price_of(use: ContractTokenUse, terms: Terms) -> int | None:
    """The price of a run's tokens by the terms, in millionths, rounded half-even; None while it is not known."""
    if use.status is not UsageStatus.VERIFIED or use.tokens is None:
        return None
    amount = use.cost if terms.token_rates is None else _by_rates(use.tokens, terms.token_rates)
    return None if amount is None else round(amount * MICRO)


def _why_not_payable(verdict: UsageVerdict) -> str:
    """Why verified tokens may not be paid; empty where they may."""
    if verdict.reported_by:
        return f"was imported from a {verdict.reported_by}, not requested from the provider"
    if verdict.interval_min < INTERVAL_MIN:
        return f"was judged with {verdict.interval_min:g} minutes between observations instead of {INTERVAL_MIN:g}"
    return ""


def _by_rates(tokens: Tokens, rates: TokenRates) -> Decimal | None:
    given = {"input": rates.input_per_million, "output": rates.output_per_million, "cached": rates.cached_per_million}
    bounds = cost_bounds(
        tokens, {name: as_decimal(as_micros(rate)) for name, rate in given.items() if rate is not None}
    )
    return bounds.low if bounds is not None and bounds.low == bounds.high else None


def why_price_unknown(use: ContractTokenUse, terms: Terms) -> str:
    """Why verified tokens have no price."""
    if terms.token_rates is None:
        return use.why
    return "its source does not report cached input, which the terms price separately"


def describe_token_use(use: ContractTokenUse) -> str:
    """A run and its tokens, for a line of a bill."""
    tokens = use.tokens or Tokens()
    cached = f" ({tokens.cached:,} cached)" if tokens.cached else ""
    return f"run {use.run_id}: {tokens.input:,} in{cached}, {tokens.output:,} out"


def token_payments_by_run(bill: Bill, terms: Terms) -> dict[str, Decimal]:
    """What a bill pays for the tokens of each run; under a cap, the first runs are paid first."""
    left, shares = bill.tokens, {}
    for use in bill.usage:
        share = min(price_of(use, terms) or 0, left)
        shares[use.run_id] = as_decimal(share)
        left -= share
    return shares
