"""What tokens cost: frozen prices times counts, exactly; unknown where the counts do not determine it."""

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, Inexact, localcontext
from enum import StrEnum

import msgspec

from meruit.model.metering import CallState, MeteredCall, MeteredRun, MeteredStep, PriceQuote
from meruit.model.usage import Assurance, Tokens, UsageStatus, UsageVerdict, sum_tokens

STANDARD = "standard"
PRICE_CHANGED = "its price changed while the run lasted"
"""The reason of a quote that holds from some moment of the run on."""
STANDARD_TIERS = frozenset({"", STANDARD, "default"})
"""Names of the standard tier in responses."""
_EXACT = Context(prec=200, traps=[Inexact])
"""More digits than any count times any price has; rounding would raise."""
_MILLION, _THOUSAND = Decimal(10**6), Decimal(10**3)
_NOTHING = Decimal(0)


class UnknownCost(StrEnum):
    """Why a cost is unknown."""

    NOT_VERIFIED = "not_verified"
    NO_MODEL = "no_model"
    """Neither a call nor the provider names the model."""
    NO_PRICE = "no_price"
    NO_COUNT = "no_count"
    """Calls with different prices do not all have a count."""
    SUM_DIFFERS = "sum_differs"
    """Calls with different prices do not add up to the verified tokens."""
    UNPRICED_TOKENS = "unpriced_tokens"
    NO_CALLS = "no_calls"
    """The price depends on single calls, and the run lists none."""
    UNKNOWN_SPLIT = "unknown_split"
    """The cached part of the input is unknown and has its own price."""


class CostBounds(msgspec.Struct, frozen=True):
    """The range of a cost; both ends are equal where the cost is known."""

    low: Decimal
    high: Decimal


class QuotedCost(msgspec.Struct, frozen=True):
    """What a run's verified tokens cost by its frozen prices."""

    amount: Decimal | None
    """None where the cost is unknown."""
    why: str = ""
    """Why the cost is unknown, for people; empty where it is known."""
    bounds: CostBounds | None = None
    """The range of the cost, where it is known."""
    code: UnknownCost | None = None
    """Why the cost is unknown; None where it is known."""


def tier_of(named: str) -> str:
    """The name of a service tier in quotes."""
    return STANDARD if named in STANDARD_TIERS else named


def clamp_calls(run: MeteredRun) -> list[MeteredCall]:
    """The run's calls with their times limited to the run's, so that no call is priced by another day."""
    start, end = run.started_at, run.ended_at
    if start is None or end is None:
        return run.calls
    return [msgspec.structs.replace(one, at=min(max(one.at, start), end)) for one in run.calls]


def band_name(above: int, up_to: int | None) -> str:
    """Name the band of calls with more input than `above`, and at most `up_to`: `0-200000`, `200001-`."""
    return f"{above + 1 if above else 0}-{'' if up_to is None else up_to}"


def covers(band: str, input_tokens: int) -> bool:
    """Whether a call with so much input falls into the band; an empty band covers every call."""
    _, _, most = band.partition("-")
    return _lower_bound(band) <= input_tokens and (not most or input_tokens <= int(most))


def _lower_bound(band: str) -> int:
    return int(band.partition("-")[0] or 0)


def cost_bounds(tokens: Tokens, prices: Mapping[str, Decimal]) -> CostBounds | None:
    """Compute what the tokens cost by the prices of a quote.

    Input is priced as read from the cache, written to the cache, or neither. Where a source does not split these and
    their prices differ, the cost lies between the lowest and the highest price. Reasoning is part of output. None where
    used tokens have no price, or the counts contradict each other.
    """
    rest = tokens.input - (tokens.cached or 0) - (tokens.cache_write or 0)
    if rest < 0 or any(
        used and name not in prices for name, used in (("input", tokens.input), ("output", tokens.output))
    ):
        return None
    if "requests" in prices and tokens.requests is None:
        return None
    plain = prices.get("input", _NOTHING)
    cached, written = prices.get("cached", plain), prices.get("cache_write", plain)
    possible = [plain]
    possible += [cached] if tokens.cached is None else []
    possible += [written] if tokens.cache_write is None else []
    with localcontext(_EXACT):
        known = (tokens.cached or 0) * cached + (tokens.cache_write or 0) * written
        known += tokens.output * prices.get("output", _NOTHING)
        calls = (tokens.requests or 0) * prices.get("requests", _NOTHING) / _THOUSAND
        low, high = ((known + rest * price) / _MILLION + calls for price in (min(possible), max(possible)))
    return CostBounds(low, high)


def quote_cost(run: MeteredRun, verdict: UsageVerdict, quotes: Sequence[PriceQuote]) -> QuotedCost:
    """Compute the frozen prices times the verified tokens; unknown for a run that is not verified."""
    tokens = verdict.tokens
    if verdict.status is not UsageStatus.VERIFIED or tokens is None:
        return QuotedCost(None, f"the tokens are {verdict.status}, not verified", code=UnknownCost.NOT_VERIFIED)
    if not tokens.total and not tokens.requests:
        return QuotedCost(_NOTHING)
    if not run.calls and verdict.by_model:
        return _cost_by_model(verdict.by_model, tokens, quotes)
    return _cost_of_calls(run, verdict, tokens, quotes)


def _cost_of_calls(run: MeteredRun, verdict: UsageVerdict, tokens: Tokens, quotes: Sequence[PriceQuote]) -> QuotedCost:
    calls = [one for one in clamp_calls(run) if one.state is not CallState.FAILED or one.tokens is not None]
    unnamed = next((step.id for step in run.steps if _is_silent(step)), None)
    if unnamed is not None or not calls:
        where = "" if unnamed is None else f" in step {unnamed}"
        message = f"neither a call nor the provider names the model{where}"
        return QuotedCost(None, message, code=UnknownCost.NO_MODEL)
    fitting = [_find_quotes(call, quotes, tokens, alone=len(calls) == 1) for call in calls]
    without = next((call for call, found in zip(calls, fitting, strict=True) if not found), None)
    if without is not None:
        name = without.model or "a model without a name"
        return _no_price(name, tier_of(without.tier))
    places = set().union(*fitting)
    # For a cohort only the sums are verified, not the parts of one run.
    is_shared = verdict.assurance is Assurance.COHORT
    if len(places) == 1:
        known = tokens if is_shared else _with_local_split(tokens, run.local)
        return _to_quoted_cost(cost_bounds(known, quotes[places.pop()].prices))
    priced = [_without_own_split(call, tokens) for call in calls] if is_shared else calls
    return _cost_by_calls(priced, [quotes[max(found)] for found in fitting], tokens)


def _no_price(model: str, tier: str) -> QuotedCost:
    message = f"{model} has no frozen price ({tier}): the price table lacks it, or the provider was not asked yet"
    return QuotedCost(None, message, code=UnknownCost.NO_PRICE)


def _cost_by_model(by_model: Mapping[str, Tokens], tokens: Tokens, quotes: Sequence[PriceQuote]) -> QuotedCost:
    """Price the provider's counts by model, for a run that lists no calls, at the standard tier."""
    if _has_difference(sum_tokens(by_model.values()), tokens):
        message = "the provider's counts by model do not add up to the verified tokens"
        return QuotedCost(None, message, code=UnknownCost.SUM_DIFFERS)
    bounds: list[CostBounds] = []
    for model, count in by_model.items():
        fitting = _prices_of_model(model, count, quotes)
        if not fitting and not count.total:
            continue
        if not fitting:
            return _no_price(model or "a model without a name", STANDARD)
        if any(one != fitting[0] for one in fitting):
            message = f"the price of {model} depends on the time or length of each call, and the run lists no calls"
            return QuotedCost(None, message, code=UnknownCost.NO_CALLS)
        cost = cost_bounds(count, fitting[0])
        if cost is None:
            return _to_quoted_cost(None)
        bounds.append(cost)
    with localcontext(_EXACT):
        return _to_quoted_cost(
            CostBounds(sum((one.low for one in bounds), _NOTHING), sum((one.high for one in bounds), _NOTHING))
        )


def _prices_of_model(model: str, count: Tokens, quotes: Sequence[PriceQuote]) -> list[Mapping[str, Decimal]]:
    """The prices that may apply to some call of a model: of each band, the last ones, and those before a change."""
    found: dict[str, list[PriceQuote]] = {}
    for quote in quotes:
        if quote.model != model or quote.tier != STANDARD:
            continue
        if quote.reason == PRICE_CHANGED:
            found.setdefault(quote.band, []).append(quote)
        else:
            found[quote.band] = [quote]
    is_one = count.requests == 1
    return [
        quote.prices
        for band, several in found.items()
        if (covers(band, count.input) if is_one else _lower_bound(band) <= count.input)
        for quote in several
    ]


def _is_silent(step: MeteredStep) -> bool:
    """Whether a step may have used a model and does not name it."""
    return not step.calls and step.expects_usage is not False and (step.tokens is None or step.tokens.total > 0)


def _find_quotes(call: MeteredCall, quotes: Sequence[PriceQuote], tokens: Tokens, *, alone: bool) -> set[int]:
    """Find the quotes that may apply to the call, by index; several where its band is unknown."""
    # The last quote of a band applies: it replaced the one before, for a reason or for a later price.
    latest = {
        quote.band: place
        for place, quote in enumerate(quotes)
        if quote.model == call.model and quote.tier == tier_of(call.tier) and quote.at <= call.at
    }
    if call.tokens is None and not alone:
        # No call has more input than all calls have together.
        return {place for band, place in latest.items() if _lower_bound(band) <= tokens.input}
    length = tokens.input if call.tokens is None else call.tokens.input
    return set(sorted(place for band, place in latest.items() if covers(band, length))[-1:])


def _with_local_split(tokens: Tokens, local: Tokens | None) -> Tokens:
    """Add to the verified counts the parts that only the run itself reports."""
    if local is None or (local.input, local.output) != (tokens.input, tokens.output):
        return tokens
    return msgspec.structs.replace(
        tokens,
        requests=local.requests if tokens.requests is None else tokens.requests,
        cached=local.cached if tokens.cached is None else tokens.cached,
        cache_write=local.cache_write if tokens.cache_write is None else tokens.cache_write,
    )


def _without_own_split(call: MeteredCall, verified: Tokens) -> MeteredCall:
    """Remove the cache counts that only the run itself reports, unless they must be zero."""
    if call.tokens is None:
        return call
    none = {name: 0 if getattr(verified, name) == 0 else None for name in ("cached", "cache_write")}
    return msgspec.structs.replace(call, tokens=msgspec.structs.replace(call.tokens, **none))


def _cost_by_calls(calls: Sequence[MeteredCall], quotes: Sequence[PriceQuote], tokens: Tokens) -> QuotedCost:
    """Price each call by its own quote, where the calls add up to the verified tokens."""
    known = [one.tokens for one in calls if one.tokens is not None]
    if len(known) < len(calls):
        return QuotedCost(None, "calls with different prices do not all have a count", code=UnknownCost.NO_COUNT)
    if _has_difference(sum_tokens(known), tokens):
        message = "calls with different prices do not add up to the verified tokens"
        return QuotedCost(None, message, code=UnknownCost.SUM_DIFFERS)
    bounds = [cost_bounds(one, quote.prices) for one, quote in zip(known, quotes, strict=True)]
    priced = [one for one in bounds if one is not None]
    if len(priced) < len(bounds):
        return _to_quoted_cost(None)
    with localcontext(_EXACT):
        return _to_quoted_cost(
            CostBounds(sum((one.low for one in priced), _NOTHING), sum((one.high for one in priced), _NOTHING))
        )


def _has_difference(local: Tokens, verified: Tokens) -> bool:
    """Whether counts differ that both have."""
    pairs = [(getattr(local, name), getattr(verified, name)) for name in ("input", "output", "cached", "cache_write")]
    return any(one is not None and other is not None and one != other for one, other in pairs)


def _to_quoted_cost(bounds: CostBounds | None) -> QuotedCost:
    if bounds is None:
        message = "some tokens have no price, or the counts contradict each other"
        return QuotedCost(None, message, code=UnknownCost.UNPRICED_TOKENS)
    if bounds.low != bounds.high:
        message = "the cached part of the input is unknown and has its own price"
        return QuotedCost(amount=None, why=message, bounds=bounds, code=UnknownCost.UNKNOWN_SPLIT)
    return QuotedCost(bounds.low, bounds=bounds)
