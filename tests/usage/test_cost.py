"""What tokens cost: the same sum that anyone would make with fractions, and nothing where nobody could make it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import CallState, MeteredCall, MeteredRun, MeteredStep, PriceQuote
from meruit.model.usage import Assurance, Tokens, UsageCode, UsageStatus, UsageVerdict, sum_tokens
from meruit.usage.cost import (
    PRICE_CHANGED,
    CostBounds,
    UnknownCost,
    band_name,
    cost_bounds,
    covers,
    quote_cost,
    tier_of,
)

AT = datetime(2026, 11, 1, 12, tzinfo=UTC)
PRICES = {"input": "2", "output": "8", "cached": "0.5", "cache_write": "2.5"}
SMALL = st.integers(0, 10**6)
COUNTS = SMALL | st.integers(0, MOST_TOKENS // 4)
AMOUNTS = st.decimals("0", "1000", places=6, allow_nan=False)


def priced(**amounts: str | Decimal) -> dict[str, Decimal]:
    return {name: Decimal(amount) for name, amount in amounts.items()}


def a_quote(model: str = "m", at: datetime = AT, tier: str = "standard", band: str = "", **amounts: str) -> PriceQuote:
    return PriceQuote("table", "1", "0" * 64, "maker", model, model, at, priced(**(amounts or PRICES)), tier, band)


def a_call(
    tokens: Tokens | None, model: str = "m", at: datetime = AT, tier: str = "", state: CallState = CallState.OK
) -> MeteredCall:
    return MeteredCall(at, model, tokens, state, tier=tier)


def a_run(*calls: MeteredCall, steps: Sequence[MeteredStep] = ()) -> MeteredRun:
    return MeteredRun("r1", "agent", steps=(MeteredStep("s1", calls=calls), *steps))


def verdict(
    tokens: Tokens | None, status: UsageStatus = UsageStatus.VERIFIED, assurance: Assurance = Assurance.ATTRIBUTION_KEY
) -> UsageVerdict:
    return UsageVerdict(status, UsageCode.STABLE, "said", "why", assurance, tokens)


def whole(read: int, output: int, cached: int = 0, written: int = 0) -> Tokens:
    """Counts that tell everything."""
    return Tokens(read, output, 1, cached, written)


@st.composite
def told_counts(draw: st.DrawFn) -> Tokens:
    """Counts in which everything is known."""
    plain, cached, written, output = (draw(COUNTS) for _ in range(4))
    return Tokens(plain + cached + written, output, draw(SMALL), cached, written)


@given(told_counts(), AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS, AMOUNTS)
def test_a_cost_is_the_plain_sum_to_the_last_digit(
    tokens: Tokens, read: Decimal, output: Decimal, cached: Decimal, written: Decimal, each: Decimal
) -> None:
    prices = priced(input=read, output=output, cached=cached, cache_write=written, requests=each)
    assert tokens.cached is not None and tokens.cache_write is not None and tokens.requests is not None  # noqa: PT018
    million = Fraction(1, 10**6)
    wanted = (
        (tokens.input - tokens.cached - tokens.cache_write) * Fraction(read) * million
        + tokens.cached * Fraction(cached) * million
        + tokens.cache_write * Fraction(written) * million
        + tokens.output * Fraction(output) * million
        + tokens.requests * Fraction(each) / 1000
    )
    found = cost_bounds(tokens, prices)
    assert found is not None
    assert Fraction(found.low) == Fraction(found.high) == wanted


@given(told_counts(), st.integers(0, 1000), st.integers(0, 1000), AMOUNTS, AMOUNTS)
def test_more_tokens_never_cost_less(tokens: Tokens, more: int, further: int, read: Decimal, output: Decimal) -> None:
    prices = priced(input=read, output=output, cached=read / 2)
    fewer = cost_bounds(tokens, prices)
    greater = cost_bounds(
        Tokens(tokens.input + more, tokens.output + further, None, tokens.cached, tokens.cache_write), prices
    )
    assert fewer is not None
    assert greater is not None
    assert fewer.low <= greater.low
    assert fewer.high <= greater.high


@given(told_counts(), AMOUNTS, AMOUNTS, AMOUNTS, st.booleans(), st.booleans())
def test_the_cost_lies_between_its_bounds_for_any_split(
    tokens: Tokens, read: Decimal, cached: Decimal, written: Decimal, hide_cached: bool, hide_written: bool
) -> None:
    prices = priced(input=read, output="1", cached=cached, cache_write=written)
    true = cost_bounds(tokens, prices)
    seen = Tokens(
        tokens.input,
        tokens.output,
        tokens.requests,
        cached=None if hide_cached else tokens.cached,
        cache_write=None if hide_written else tokens.cache_write,
    )
    found = cost_bounds(seen, prices)
    assert true is not None
    assert found is not None
    assert found.low <= true.low == true.high <= found.high
    if not (hide_cached or hide_written):
        assert found == true


@pytest.mark.parametrize(
    ("tokens", "amounts", "wanted"),
    [
        (whole(1000, 100), PRICES, ("0.0028", "0.0028")),
        (whole(1000, 100, 400), PRICES, ("0.0022", "0.0022")),
        (whole(1000, 100, 400, 100), PRICES, ("0.00225", "0.00225")),
        # Reasoning is part of output, and costs nothing besides.
        (Tokens(1000, 100, 1, 0, 0, reasoning=90), PRICES, ("0.0028", "0.0028")),
        # Nobody says how much was cached: between all of it and the dearest that it can be.
        (Tokens(1000, 0, 1), PRICES, ("0.0005", "0.0025")),
        (Tokens(1000, 0, 1, cached=None, cache_write=0), PRICES, ("0.0005", "0.002")),
        # It makes no difference where both cost the same.
        (Tokens(1000, 0, 1), {"input": "2"}, ("0.002", "0.002")),
        (Tokens(1000, 0, 1), {"input": "2", "cached": "2"}, ("0.002", "0.002")),
        (Tokens(0, 0), PRICES, ("0", "0")),
        (Tokens(0, 5), {"output": "2"}, ("0.00001", "0.00001")),
        (Tokens(1000, 0, 3), {"input": "2", "requests": "5"}, ("0.017", "0.017")),
    ],
)
def test_what_is_priced(tokens: Tokens, amounts: dict[str, str], wanted: tuple[str, str]) -> None:
    assert cost_bounds(tokens, priced(**amounts)) == CostBounds(*map(Decimal, wanted))


@pytest.mark.parametrize(
    ("tokens", "amounts"),
    [
        (Tokens(1, 0), {"output": "2"}),
        (Tokens(1, 1), {"input": "2"}),
        (Tokens(1, 0), {}),
        (Tokens(1, 0), {"input": "2", "requests": "5"}),
        (whole(10, 0, 8, 3), PRICES),
    ],
)
def test_what_has_no_price_or_contradicts_itself_has_no_cost(tokens: Tokens, amounts: dict[str, str]) -> None:
    assert cost_bounds(tokens, priced(**amounts)) is None


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=5, unique=True), st.integers(0, 2000))
def test_every_length_is_in_exactly_one_band(starts: list[int], length: int) -> None:
    starts.sort()
    bands = [band_name(above, up_to) for above, up_to in zip([0, *starts], [*starts, None], strict=True)]
    assert sum(covers(band, length) for band in bands) == 1


def test_a_band_without_a_name_has_every_call() -> None:
    assert covers("", 0)
    assert covers("", MOST_TOKENS)


@pytest.mark.parametrize(("named", "tier"), [("", "standard"), ("default", "standard"), ("flex", "flex")])
def test_tiers_are_named_as_quotes_do(named: str, tier: str) -> None:
    assert tier_of(named) == tier


# A whole run.


@pytest.mark.parametrize("status", [one for one in UsageStatus if one is not UsageStatus.VERIFIED])
def test_only_verified_tokens_have_a_cost(status: UsageStatus) -> None:
    found = quote_cost(a_run(a_call(whole(10, 1))), verdict(whole(10, 1), status), [a_quote()])
    assert (found.amount, found.bounds, found.code) == (None, None, UnknownCost.NOT_VERIFIED)
    assert status in found.why


def test_a_run_that_provably_used_nothing_costs_nothing() -> None:
    assert quote_cost(a_run(), verdict(Tokens()), []).amount == 0
    assert quote_cost(a_run(), verdict(None), []).amount is None


def test_one_price_is_that_of_all_that_was_verified() -> None:
    calls = [a_call(whole(1000, 100)), a_call(whole(1000, 0, 400))]
    assert quote_cost(a_run(*calls), verdict(Tokens(2000, 100, 2, 400)), [a_quote()]).amount == Decimal("0.0042")


def test_the_runs_own_split_counts_where_the_provider_has_none() -> None:
    run = a_run(a_call(whole(1000, 100, 400)))
    assert quote_cost(run, verdict(Tokens(1000, 100)), [a_quote()]).amount == Decimal("0.0022")
    # But not where it counted something else.
    other = quote_cost(run, verdict(Tokens(1001, 100)), [a_quote()])
    assert other.amount is None
    assert other.bounds == CostBounds(Decimal("0.0013005"), Decimal("0.0033025"))
    assert other.code is UnknownCost.UNKNOWN_SPLIT


def test_the_split_of_one_of_several_runs_is_only_its_own_word() -> None:
    run = a_run(a_call(whole(1000, 100, 400)))
    shared = verdict(Tokens(1000, 100, 1), assurance=Assurance.COHORT)
    assert quote_cost(run, shared, [a_quote()]).bounds == CostBounds(Decimal("0.0013"), Decimal("0.0033"))
    assert quote_cost(run, shared, [a_quote()]).amount is None
    # What the provider read from no cache for all of them, it read from none for this one.
    plain = verdict(Tokens(1000, 100, 1, 0, 0), assurance=Assurance.COHORT)
    assert quote_cost(run, plain, [a_quote()]).amount == Decimal("0.0028")


def test_neither_are_those_of_its_calls() -> None:
    run = a_run(a_call(whole(1000, 0, 1000)), a_call(whole(1000, 0, 1000), tier="flex"))
    quotes = [a_quote(), a_quote(tier="flex", input="1", output="1")]
    shared = quote_cost(run, verdict(Tokens(2000, 0, 2), assurance=Assurance.COHORT), quotes)
    assert (shared.amount, shared.bounds) == (None, CostBounds(Decimal("0.0015"), Decimal("0.0035")))
    plain = quote_cost(run, verdict(Tokens(2000, 0, 2, 0, 0), assurance=Assurance.COHORT), quotes)
    assert plain.amount == Decimal("0.003")
    alone = quote_cost(run, verdict(Tokens(2000, 0, 2)), quotes)
    assert alone.amount == Decimal("0.0015")
    silent = a_run(a_call(whole(1000, 0)), a_call(None, tier="flex", state=CallState.ABORTED))
    assert quote_cost(silent, verdict(Tokens(2000, 0, 2), assurance=Assurance.COHORT), quotes).bounds is None


def test_calls_of_several_models_are_priced_one_by_one() -> None:
    run = a_run(a_call(whole(1000, 0)), a_call(whole(1000, 0), model="n"), a_call(whole(1000, 0), tier="flex"))
    quotes = [a_quote(), a_quote("n", input="3", output="1"), a_quote(tier="flex", input="1", output="1")]
    assert quote_cost(run, verdict(Tokens(3000, 0)), quotes).amount == Decimal("0.006")
    differs = quote_cost(run, verdict(Tokens(3001, 0)), quotes)
    assert (differs.amount, differs.bounds, differs.code) == (None, None, UnknownCost.SUM_DIFFERS)
    assert quote_cost(run, verdict(Tokens(3000, 0, cached=1)), quotes).amount is None
    without = quote_cost(run, verdict(Tokens(3000, 0)), quotes[:2])
    assert (without.amount, without.code) == (None, UnknownCost.NO_PRICE)
    assert without.why.startswith("m ")
    assert "(flex)" in without.why


def test_a_call_without_a_count_is_fine_where_there_is_one_price() -> None:
    run = a_run(a_call(whole(1000, 0)), a_call(None, state=CallState.ABORTED))
    assert quote_cost(run, verdict(Tokens(1500, 0, 2, 0, 0)), [a_quote()]).amount == Decimal("0.003")
    other = a_run(a_call(whole(1000, 0)), a_call(None, model="n", state=CallState.ABORTED))
    found = quote_cost(other, verdict(Tokens(1500, 0, 2, 0, 0)), [a_quote(), a_quote("n")])
    assert (found.amount, found.code) == (None, UnknownCost.NO_COUNT)


def test_a_call_that_was_refused_is_not_priced() -> None:
    run = a_run(a_call(whole(1000, 0)), a_call(None, model="unknown", state=CallState.FAILED))
    assert quote_cost(run, verdict(Tokens(1000, 0, 1, 0, 0)), [a_quote()]).amount == Decimal("0.002")


@pytest.mark.parametrize(
    ("step", "known"),
    [
        (MeteredStep("s2", tokens=Tokens(5, 0)), False),
        (MeteredStep("s2"), False),
        (MeteredStep("s2", expects_usage=False), True),
        (MeteredStep("s2", tokens=Tokens(0, 0)), True),
    ],
)
def test_a_step_that_names_no_model_leaves_the_cost_unknown(step: MeteredStep, known: bool) -> None:
    found = quote_cost(a_run(a_call(whole(10, 0)), steps=[step]), verdict(whole(10, 0)), [a_quote()])
    assert (found.amount is not None) is known
    assert known or (found.code is UnknownCost.NO_MODEL and found.why.endswith("s2"))


def test_a_run_without_calls_or_without_a_models_name_has_no_cost() -> None:
    none = quote_cost(a_run(steps=[MeteredStep("s2", expects_usage=False)]), verdict(whole(10, 0)), [a_quote()])
    assert none.amount is None
    silent = MeteredRun("r1", "agent", steps=(MeteredStep("s", expects_usage=False),))
    assert quote_cost(silent, verdict(whole(10, 0)), []).code is UnknownCost.NO_MODEL
    nameless = quote_cost(a_run(a_call(whole(10, 0), model="")), verdict(whole(10, 0)), [a_quote()])
    assert nameless.code is UnknownCost.NO_PRICE
    assert "(standard)" in nameless.why


LONG = [a_quote(band="0-200", input="1", output="1"), a_quote(band="201-", input="2", output="2")]


@pytest.mark.parametrize(
    ("lengths", "total", "wanted"),
    [
        ([100, 200], 300, "0.0003"),
        ([100, 201], 301, "0.000502"),
        ([201, 300], 501, "0.001002"),
        # Only the sum is known: it is in the first band, so each call is.
        ([None, None], 200, "0.0002"),
        ([None, None], 201, None),
        # The one call that there was is as long as the sum.
        ([None], 201, "0.000402"),
        ([None, 300], 500, None),
    ],
)
def test_the_length_of_each_call_decides_its_band(lengths: list[int | None], total: int, wanted: str | None) -> None:
    run = a_run(*(a_call(None if one is None else whole(one, 0)) for one in lengths))
    found = quote_cost(run, verdict(Tokens(total, 0, None, 0, 0)), LONG)
    assert found.amount == (None if wanted is None else Decimal(wanted))


def test_a_price_holds_from_its_moment_on_and_a_later_quote_takes_its_place() -> None:
    later = AT + timedelta(hours=1)
    run = a_run(a_call(whole(1000, 0)), a_call(whole(1000, 0), at=later))
    quotes = [a_quote(input="1", output="1"), a_quote(at=later, input="3", output="1")]
    assert quote_cost(run, verdict(whole(2000, 0)), quotes).amount == Decimal("0.004")
    again = [*quotes, a_quote(input="2", output="1"), a_quote(at=later, input="4", output="1")]
    assert quote_cost(run, verdict(whole(2000, 0)), again).amount == Decimal("0.006")
    assert quote_cost(run, verdict(whole(2000, 0)), quotes[1:]).amount is None, "the first call was before that price"


def test_what_one_call_used_without_a_price_leaves_the_whole_unknown() -> None:
    run = a_run(a_call(whole(10, 5)), a_call(whole(10, 5), model="n"))
    found = quote_cost(run, verdict(Tokens(20, 10)), [a_quote(), a_quote("n", input="1")])
    assert (found.amount, found.code) == (None, UnknownCost.UNPRICED_TOKENS)


# Models that only the provider names.


def counted(**by_model: Tokens) -> UsageVerdict:
    """Tokens that the provider counts by model, for a run without calls."""
    return replace(verdict(sum_tokens(by_model.values())), by_model=by_model)


CALLLESS = MeteredRun("r1", "agent", steps=(MeteredStep("s1", tokens=whole(1_000_000, 0)),))


def test_a_run_without_calls_is_priced_by_the_models_of_the_provider() -> None:
    used = counted(m=whole(1_000_000, 1_000_000), n=whole(2_000_000, 0, cached=1_000_000))
    quotes = [a_quote("m"), a_quote("n", input="1", output="1", cached="0.25", cache_write="1")]
    assert quote_cost(CALLLESS, used, quotes).amount == Decimal(2) + Decimal(8) + Decimal("1.25")
    assert quote_cost(MeteredRun("r1", "agent"), used, quotes).amount == Decimal("11.25")


@pytest.mark.parametrize(
    ("used", "quotes", "code"),
    [
        (counted(m=whole(1, 1)), [], UnknownCost.NO_PRICE),
        (counted(m=whole(1, 1), n=whole(1, 1)), [a_quote("m")], UnknownCost.NO_PRICE),
        (counted(m=whole(1, 1)), [a_quote("m", tier="flex")], UnknownCost.NO_PRICE),
        (counted(m=Tokens(5, 1, 2)), [a_quote("m")], UnknownCost.UNKNOWN_SPLIT),
        (counted(m=whole(1, 1)), [a_quote("m", input="1")], UnknownCost.UNPRICED_TOKENS),
        (replace(counted(m=whole(1, 1)), tokens=whole(2, 1)), [a_quote("m")], UnknownCost.SUM_DIFFERS),
        (
            counted(m=Tokens(300, 1, 2, 0, 0)),
            [a_quote("m", band="0-200"), a_quote("m", band="201-", input="4", output="16")],
            UnknownCost.NO_CALLS,
        ),
        (
            counted(m=whole(1, 1)),
            [a_quote("m"), replace(a_quote("m", input="4", output="16"), reason=PRICE_CHANGED)],
            UnknownCost.NO_CALLS,
        ),
        (replace(counted(m=whole(1, 1)), by_model=None), [a_quote("m")], UnknownCost.NO_MODEL),
    ],
)
def test_a_run_without_calls_has_a_reason_where_it_has_no_price(
    used: UsageVerdict, quotes: list[PriceQuote], code: UnknownCost
) -> None:
    found = quote_cost(CALLLESS, used, quotes)
    assert (found.amount, found.code, bool(found.why)) == (None, code, True)


def test_the_band_of_a_single_call_and_of_short_calls_is_known() -> None:
    bands = [a_quote("m", band="0-200"), a_quote("m", band="201-", input="4", output="16")]
    assert quote_cost(CALLLESS, counted(m=whole(300, 1)), bands).amount == Decimal("0.001216")
    assert quote_cost(CALLLESS, counted(m=Tokens(200, 1, 2, 0, 0)), bands).amount == Decimal("0.000408")


def test_a_price_for_another_reason_replaces_the_one_before() -> None:
    again = replace(a_quote("m", input="4", output="16"), reason="a newer table")
    assert quote_cost(CALLLESS, counted(m=whole(1, 1)), [a_quote("m"), again]).amount == Decimal("0.00002")
