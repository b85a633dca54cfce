"""What a run costs: the quotes to freeze, and the quoted, billed and settled amounts."""

from collections.abc import Iterable, Sequence
from decimal import Decimal

import msgspec

from meruit.model.metering import (
    AttributionKind,
    CallState,
    CostRow,
    MeteredRun,
    PriceQuote,
    RunCosts,
    UsageRecord,
    UsageRow,
)
from meruit.model.usage import Tokens
from meruit.usage.cost import PRICE_CHANGED, clamp_calls, covers, quote_cost, tier_of
from meruit.usage.price_table import ModelPriceTable, load_table

CURRENCY = "USD"
"""The currency of every price in the table."""
_BILLABLE_KINDS = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Kinds of attribution key that providers bill by."""


def quotes_for(run: MeteredRun, provider: str, prices: ModelPriceTable | None = None) -> tuple[PriceQuote, ...]:
    """Quote the prices of the run's calls, each at its time; a model without a known price has no quote.

    A model has a quote for each band of context lengths that its calls fall into, or may fall into, and another one
    from the first call after each change of its prices.
    """
    prices = prices or load_table()
    found: dict[tuple[str, str, str], list[PriceQuote]] = {}
    # Prices begin and end on the minute.
    looked_up: dict[tuple[object, ...], tuple[PriceQuote, ...]] = {}
    for call in sorted(clamp_calls(run), key=lambda one: one.at):
        if not call.model or (call.tokens is None and call.state is CallState.FAILED):
            continue
        key = (call.model, call.tier, call.at.replace(second=0, microsecond=0))
        if key not in looked_up:
            looked_up[key] = prices.quotes(provider, call.model, call.at, call.tier)
        for quote in looked_up[key]:
            if call.tokens is None or covers(quote.band, call.tokens.input):
                several = found.setdefault((call.model, tier_of(call.tier), quote.band), [])
                if not several:
                    several.append(quote)
                elif several[-1].prices != quote.prices:
                    several.append(msgspec.structs.replace(quote, reason=PRICE_CHANGED))
    return tuple(sorted((quote for several in found.values() for quote in several), key=lambda one: one.at))


def quotes_missing(record: UsageRecord, provider: str, prices: ModelPriceTable | None = None) -> tuple[PriceQuote, ...]:
    """Quote what the run has no frozen price for: all of it at first, later only models that the provider adds."""
    if record.run.calls:
        return () if record.quotes else quotes_for(record.run, provider, prices)
    named = {one.model for one in record.quotes}
    new = [one for one in record.verdict.by_model or () if one not in named]
    return _quotes_of_models(record.run, new, provider, prices or load_table()) if new else ()


def _quotes_of_models(
    run: MeteredRun, models: Iterable[str], provider: str, prices: ModelPriceTable
) -> tuple[PriceQuote, ...]:
    """Quote models that only the provider names, at the start of the run; and at its end, where prices changed."""
    found: list[PriceQuote] = []
    moments = [one for one in (run.started_at, run.ended_at) if one is not None]
    for model in models:
        first = {one.band: one for one in prices.quotes(provider, model, moments[0])} if moments else {}
        last = prices.quotes(provider, model, moments[-1]) if first else ()
        found += first.values()
        found += [
            msgspec.structs.replace(one, reason=PRICE_CHANGED)
            for one in last
            if one.band not in first or one.prices != first[one.band].prices
        ]
    return tuple(sorted(found, key=lambda one: one.at))


def requote(
    record: UsageRecord, provider: str, reason: str, prices: ModelPriceTable | None = None
) -> tuple[PriceQuote, ...]:
    """Return the run's quotes, followed by those of the given table where they differ; none is removed."""
    again = (
        quotes_for(record.run, provider, prices)
        if record.run.calls
        else _quotes_of_models(record.run, record.verdict.by_model or (), provider, prices or load_table())
    )
    standing = record.quotes[-len(again) :] if again else ()
    if [(one.at, one.band, one.prices) for one in again] == [(one.at, one.band, one.prices) for one in standing]:
        return record.quotes
    return (*record.quotes, *(msgspec.structs.replace(one, reason=reason) for one in again))


def ledger_of(record: UsageRecord, *, billed: Decimal | None = None, settled: Decimal | None = None) -> RunCosts:
    """Compute the run's costs; amounts that are not given stay as they were."""
    return merge_ledgers(
        record.ledger, RunCosts(quote_cost(record.run, record.verdict, record.quotes).amount, billed, settled)
    )


def merge_ledgers(before: RunCosts, now: RunCosts) -> RunCosts:
    """Merge costs; an unknown amount never replaces a known one."""
    return RunCosts(
        before.quoted if now.quoted is None else now.quoted,
        before.billed if now.billed is None else now.billed,
        before.settled if now.settled is None else now.settled,
        now.currency,
    )


def amount_billed(
    run: MeteredRun,
    tokens: Tokens,
    *,
    rows: Sequence[UsageRow] = (),
    costs: Sequence[CostRow] = (),
    key_tokens: Tokens | None = None,
) -> Decimal | None:
    """Compute what the provider bills for the run; None where the cost cannot be attributed to it.

    Either each of the run's calls has a row with its cost. Or the costs of the run's attribution key cover all of its
    time, and `key_tokens`, all tokens of that key in the time of these costs, are the run's tokens.
    """
    by_calls = _sum_call_costs(run, rows)
    return _sum_attribution_key_costs(run, tokens, costs, key_tokens) if by_calls is None else by_calls


def _sum_call_costs(run: MeteredRun, rows: Sequence[UsageRow]) -> Decimal | None:
    cost_of = {row.request_id: row.cost for row in rows if row.request_id}
    needed = [call for call in run.calls if call.state is not CallState.FAILED or call.id in cost_of]
    found = [cost_of.get(call.id) if call.id else None for call in needed]
    known = [one for one in found if one is not None]
    return sum(known, Decimal(0)) if known and len(known) == len(found) else None


def _sum_attribution_key_costs(
    run: MeteredRun, tokens: Tokens, costs: Sequence[CostRow], key_tokens: Tokens | None
) -> Decimal | None:
    start, end = run.started_at, run.ended_at
    if (
        start is None
        or end is None
        or key_tokens is None
        or run.attribution_key.kind not in _BILLABLE_KINDS
        or not run.attribution_key.value
    ):
        return None
    if (key_tokens.input, key_tokens.output) != (tokens.input, tokens.output):
        return None
    own = [
        one
        for one in costs
        if getattr(one, run.attribution_key.kind) == run.attribution_key.value and one.start <= end and one.end > start
    ]
    reached = start
    for one in sorted(own, key=lambda one: one.start):
        reached = max(reached, one.end) if one.start <= reached else reached
    if reached < end or not own or any(one.currency != CURRENCY for one in own):
        return None
    return sum((one.amount for one in own), Decimal(0))
