"""What tokens cost: frozen prices times counts, exactly; where that cannot be known for sure, it is not."""

from collections.abc import Mapping, Sequence
from decimal import Context, Decimal, Inexact, localcontext
from typing import NamedTuple

import msgspec

from meruit.model.metering import CallState, MeteredCall, MeteredRun, MeteredStep
from meruit.model.prices import PriceQuote
from meruit.model.usage import Assurance, Tokens, UsageStatus, UsageVerdict, sum_tokens

STANDARD = "standard"
STANDARD_TIERS = frozenset({"", STANDARD, "default"})
"""How responses call the tier that everybody has."""
_EXACT = Context(prec=200, traps=[Inexact])
"""More digits than any count times any price has; what had to be rounded would raise."""
_MILLION, _THOUSAND = Decimal(10**6), Decimal(10**3)
_NOTHING = Decimal(0)


class CostBounds(NamedTuple):
    """Between what a cost lies; both are the same where it is known."""

    low: Decimal
    high: Decimal


class QuotedCost(NamedTuple):
    """What a run's verified tokens cost by its frozen prices."""

    amount: Decimal | None
    """None where it is not known, and never 0 for that."""
    why: str = ""
    """Why it is not known; empty where it is."""
    bounds: CostBounds | None = None
    """Between what it lies, where that much is known."""


def tier_of(named: str) -> str:
    """A service tier as quotes name it."""
    return STANDARD if named in STANDARD_TIERS else named


def clamp_calls(run: MeteredRun) -> list[MeteredCall]:
    """The run's calls, each within its time: no call is priced as of another day than it was counted on."""
    start, end = run.started_at, run.ended_at
    if start is None or end is None:
        return run.calls
    return [msgspec.structs.replace(one, at=min(max(one.at, start), end)) for one in run.calls]


def band_name(above: int, up_to: int | None) -> str:
    """The band of calls with more input than one bound, and not more than the other: `0-200000`, `200001-`."""
    return f"{above + 1 if above else 0}-{'' if up_to is None else up_to}"


def covers(band: str, input_tokens: int) -> bool:
    """Whether a call with so much input falls into the band; the one without a name has every call."""
    _, _, most = band.partition("-")
    return _lower_bound(band) <= input_tokens and (not most or input_tokens <= int(most))


def _lower_bound(band: str) -> int:
    return int(band.partition("-")[0] or 0)


def cost_bounds(tokens: Tokens, prices: Mapping[str, Decimal]) -> CostBounds | None:
    """What the tokens cost by prices of a quote.

    Input is priced by how it was read: out of the cache, into the cache, or plainly. Where a source does not tell
    these apart and their prices differ, the cost lies between the cheapest and the dearest. Reasoning is part of
    output. None where something was used that has no price, or where the counts contradict each other.
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
        told = (tokens.cached or 0) * cached + (tokens.cache_write or 0) * written
        told += tokens.output * prices.get("output", _NOTHING)
        calls = (tokens.requests or 0) * prices.get("requests", _NOTHING) / _THOUSAND
        low, high = ((told + rest * price) / _MILLION + calls for price in (min(possible), max(possible)))
    return CostBounds(low, high)


def quote_cost(run: MeteredRun, verdict: UsageVerdict, quotes: Sequence[PriceQuote]) -> QuotedCost:
    """The frozen prices times the tokens that are verified; of any others nothing is said."""
    tokens = verdict.tokens
    if verdict.status is not UsageStatus.VERIFIED or tokens is None:
        return QuotedCost(None, f"its tokens are {verdict.status}, not verified")
    if not tokens.total and not tokens.requests:
        return QuotedCost(_NOTHING)
    calls = [one for one in clamp_calls(run) if one.state is not CallState.FAILED or one.tokens is not None]
    silent = next((step.id for step in run.steps if _is_silent(step)), None)
    if silent is not None or not calls:
        return QuotedCost(None, "no call says which model was used" + ("" if silent is None else f" in step {silent}"))
    fitting = [_find_quotes(call, quotes, tokens, alone=len(calls) == 1) for call in calls]
    without = next((call for call, found in zip(calls, fitting, strict=True) if not found), None)
    if without is not None:
        return QuotedCost(
            None, f"{without.model or 'a model without a name'} has no known price ({tier_of(without.tier)})"
        )
    places = set().union(*fitting)
    # Of runs that share an attribution key only sums are proven, and not how any of them is made up.
    shares = verdict.assurance is Assurance.COHORT
    if len(places) == 1:
        known = tokens if shares else _with_local_split(tokens, run.local)
        return _to_quoted_cost(cost_bounds(known, quotes[places.pop()].prices))
    told = [_without_own_split(call, tokens) for call in calls] if shares else calls
    return _cost_by_calls(told, [quotes[max(found)] for found in fitting], tokens)


def _is_silent(step: MeteredStep) -> bool:
    """Whether a step may have used a model and does not say which."""
    return not step.calls and step.expects_usage is not False and (step.tokens is None or step.tokens.total > 0)


def _find_quotes(call: MeteredCall, quotes: Sequence[PriceQuote], tokens: Tokens, *, alone: bool) -> set[int]:
    """The places of the quotes that may be the call's own: several where nobody knows into which band it falls."""
    # Of a band the last one stands: what was quoted before it was quoted again, for a reason or for a later price.
    latest = {
        quote.band: place
        for place, quote in enumerate(quotes)
        if quote.model == call.model and quote.tier == tier_of(call.tier) and quote.at <= call.at
    }
    if call.tokens is None and not alone:
        # No call has more input than all of them together.
        return {place for band, place in latest.items() if _lower_bound(band) <= tokens.input}
    length = tokens.input if call.tokens is None else call.tokens.input
    return set(sorted(place for band, place in latest.items() if covers(band, length))[-1:])


def _with_local_split(tokens: Tokens, local: Tokens | None) -> Tokens:
    """The verified counts, with what only the run itself tells of how they are made up."""
    if local is None or (local.input, local.output) != (tokens.input, tokens.output):
        return tokens
    return msgspec.structs.replace(
        tokens,
        requests=local.requests if tokens.requests is None else tokens.requests,
        cached=local.cached if tokens.cached is None else tokens.cached,
        cache_write=local.cache_write if tokens.cache_write is None else tokens.cache_write,
    )


def _without_own_split(call: MeteredCall, verified: Tokens) -> MeteredCall:
    """The call without what only the run says of how its input was read, unless it can be but nothing."""
    if call.tokens is None:
        return call
    none = {name: 0 if getattr(verified, name) == 0 else None for name in ("cached", "cache_write")}
    return msgspec.structs.replace(call, tokens=msgspec.structs.replace(call.tokens, **none))


def _cost_by_calls(calls: Sequence[MeteredCall], quotes: Sequence[PriceQuote], tokens: Tokens) -> QuotedCost:
    """Each call at its own price; only where the calls together are what was verified."""
    known = [one.tokens for one in calls if one.tokens is not None]
    if len(known) < len(calls):
        return QuotedCost(None, "calls of different prices do not say what each of them used")
    if _has_difference(sum_tokens(known), tokens):
        return QuotedCost(None, "calls of different prices do not add up to what was verified")
    bounds = [cost_bounds(one, quote.prices) for one, quote in zip(known, quotes, strict=True)]
    priced = [one for one in bounds if one is not None]
    if len(priced) < len(bounds):
        return _to_quoted_cost(None)
    with localcontext(_EXACT):
        return _to_quoted_cost(
            CostBounds(sum((one.low for one in priced), _NOTHING), sum((one.high for one in priced), _NOTHING))
        )


def _has_difference(local: Tokens, verified: Tokens) -> bool:
    """Whether counts that both know differ."""
    pairs = [(getattr(local, name), getattr(verified, name)) for name in ("input", "output", "cached", "cache_write")]
    return any(one is not None and other is not None and one != other for one, other in pairs)


def _to_quoted_cost(bounds: CostBounds | None) -> QuotedCost:
    if bounds is None:
        return QuotedCost(None, "something was used that has no price, or the counts contradict each other")
    if bounds.low != bounds.high:
        return QuotedCost(None, "how much of the input was cached is not known, and priced apart", bounds)
    return QuotedCost(bounds.low, bounds=bounds)
