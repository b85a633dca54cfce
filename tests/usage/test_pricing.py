"""What a run costs: prices frozen as they were, and three costs side by side, none of which forgets."""

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest
from genai_prices import types
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.test_cost import AT, a_call, a_run, verdict, whole
from tests.usage.test_price_table import book, model, priced, stepped

from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    CallState,
    CostRow,
    MeteredCall,
    MeteredRun,
    RunCosts,
    UsageRecord,
    UsageRow,
)
from meruit.model.usage import Tokens, UsageStatus
from meruit.usage.cost import PRICE_CHANGED
from meruit.usage.pricing import amount_billed, ledger_of, merge_ledgers, quotes_for, quotes_missing, requote

PLAIN = book(model("m", priced(input_mtok=2, output_mtok=8)))
BANDS = book(model("m", priced(input_mtok=stepped("1", (200, "2")), output_mtok=8)))
DEARER = book(model("m", priced(input_mtok=3, output_mtok=8)))
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
MONEY = st.none() | st.decimals(0, 9, places=3, allow_nan=False)


def a_record(run: MeteredRun, tokens: Tokens, **more: object) -> UsageRecord:
    record = UsageRecord(run, 1, 2, verdict(tokens))
    return msgspec.structs.replace(record, **more)


# Prices, frozen.


def test_a_run_is_priced_by_each_model_and_tier_that_it_used() -> None:
    calls = [a_call(whole(1, 1)), a_call(whole(1, 1)), a_call(whole(1, 1), tier="flex"), a_call(whole(1, 1), "other")]
    assert [(one.model, one.tier) for one in quotes_for(a_run(*calls), "maker", PLAIN)] == [("m", "standard")]


def test_the_installed_table_is_the_default() -> None:
    (found,) = quotes_for(a_run(a_call(whole(1, 1), "gpt-4.1")), "openai")
    assert (found.source, found.matched, found.at) == ("genai-prices", "gpt-4.1", AT)


def test_only_bands_that_a_call_may_fall_into_are_quoted() -> None:
    def bands(*calls: MeteredCall) -> list[str]:
        return [one.band for one in quotes_for(a_run(*calls), "maker", BANDS)]

    assert bands(a_call(whole(200, 1))) == ["0-200"]
    assert bands(a_call(whole(200, 1)), a_call(whole(201, 1))) == ["0-200", "201-"]
    assert bands(a_call(None)) == ["0-200", "201-"]
    assert bands(a_call(None, state=CallState.FAILED), a_call(whole(1, 1), model="")) == []


def test_a_price_that_changes_while_the_run_lasts_is_quoted_twice() -> None:
    dated = [
        types.ConditionalPrice(prices=priced(input_mtok=4, output_mtok=1)),
        types.ConditionalPrice(
            types.StartDateConstraint(date(2026, 11, 2)), prices=priced(input_mtok=3, output_mtok=1)
        ),
    ]
    calls = [a_call(whole(1000, 0), at=at) for at in (NOON + DAY, NOON, NOON + timedelta(seconds=1))]
    run, table = a_run(*calls), book(model("m", dated))
    quotes = quotes_for(run, "maker", table)
    assert [(one.at, one.prices["input"], one.reason) for one in quotes] == [
        (NOON, Decimal(4), ""),
        (NOON + DAY, Decimal(3), PRICE_CHANGED),
    ]
    assert ledger_of(a_record(run, whole(3000, 0), quotes=quotes)).quoted == Decimal("0.011")


def test_pricing_again_adds_quotes_with_a_reason_and_takes_none_away() -> None:
    run = a_run(a_call(whole(1000, 0)))
    record = a_record(run, whole(1000, 0), quotes=quotes_for(run, "maker", PLAIN))
    assert requote(record, "maker", "a new table", PLAIN) == record.quotes
    again = requote(record, "maker", "the table was wrong", DEARER)
    assert again[:1] == record.quotes
    assert [(one.prices["input"], one.reason) for one in again[1:]] == [(Decimal(3), "the table was wrong")]
    assert ledger_of(msgspec.structs.replace(record, quotes=again)).quoted == Decimal("0.003")
    nothing = book(model("another", priced(input_mtok=1)))
    assert requote(record, "maker", "it knows nothing", nothing) == record.quotes


# Three costs.


def test_quoted_is_only_what_is_verified_and_stays_when_that_is_withdrawn() -> None:
    run = a_run(a_call(whole(1000, 100)))
    record = a_record(run, whole(1000, 100), quotes=quotes_for(run, "maker", PLAIN))
    known = ledger_of(record, settled=Decimal(1))
    assert known == RunCosts(Decimal("0.0028"), None, Decimal(1))
    open_again = verdict(whole(1100, 100), UsageStatus.PENDING)
    withdrawn = msgspec.structs.replace(record, verdict=open_again, ledger=known)
    assert ledger_of(withdrawn) == known
    assert ledger_of(msgspec.structs.replace(withdrawn, ledger=RunCosts())) == RunCosts()


LEDGERS = st.builds(RunCosts, MONEY, MONEY, MONEY)


@given(LEDGERS, LEDGERS)
def test_what_is_unknown_never_takes_the_place_of_what_was_known(before: RunCosts, after: RunCosts) -> None:
    both = merge_ledgers(before, after)
    for name in ("quoted", "billed", "settled"):
        new = getattr(after, name)
        assert getattr(both, name) == (getattr(before, name) if new is None else new)


CALLS = [msgspec.structs.replace(a_call(whole(10, 1)), id=name) for name in ("a", "b")]


def cost_rows(**costs: str | None) -> list[UsageRow]:
    return [
        UsageRow(AT, AT, Tokens(10, 1), request_id=name, cost=None if cost is None else Decimal(cost))
        for name, cost in costs.items()
    ]


def test_costs_of_the_very_calls_are_the_runs() -> None:
    run = a_run(*CALLS)
    assert amount_billed(run, whole(20, 2), rows=cost_rows(a="0.1", b="0.02", z="9")) == Decimal("0.12")
    assert amount_billed(run, whole(20, 2), rows=cost_rows(a="0", b="0")) == 0
    for partly in (cost_rows(a="0.1"), cost_rows(a="0.1", b=None), []):
        assert amount_billed(run, whole(20, 2), rows=partly) is None
    assert amount_billed(a_run(*CALLS, a_call(whole(1, 1))), whole(21, 3), rows=cost_rows(a="1", b="1")) is None
    assert amount_billed(a_run(), whole(0, 0), rows=cost_rows(a="1")) is None


def test_a_call_that_was_refused_is_billed_only_if_the_provider_says_so() -> None:
    refused = msgspec.structs.replace(a_call(None, state=CallState.FAILED), id="c")
    run = a_run(*CALLS, refused)
    assert amount_billed(run, whole(20, 2), rows=cost_rows(a="1", b="1")) == 2
    assert amount_billed(run, whole(20, 2), rows=cost_rows(a="1", b="1", c="0.5")) == Decimal("2.5")


MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC)
LANED = MeteredRun(
    "r1",
    "agent",
    attribution_key=AttributionKey(AttributionKind.KEY, "k1"),
    started_at=NOON,
    ended_at=NOON + timedelta(hours=1),
)
USED = Tokens(1000, 100)


def lane_cost(amount: str = "0.5", day: int = 0, key: str = "k1", currency: str = "USD") -> CostRow:
    start = MIDNIGHT + day * DAY
    return CostRow(start, start + DAY, Decimal(amount), currency, key=key)


def test_a_days_costs_are_the_runs_where_it_used_the_key_alone() -> None:
    costs = [lane_cost(), lane_cost("0.25"), lane_cost("7", key="k2"), lane_cost("7", day=1)]
    assert amount_billed(LANED, USED, costs=costs, key_tokens=Tokens(1000, 100, 9)) == Decimal("0.75")
    long = msgspec.structs.replace(LANED, ended_at=NOON + DAY)
    assert amount_billed(long, USED, costs=costs, key_tokens=USED) == Decimal("7.75")


@pytest.mark.parametrize(
    ("run", "costs", "key_tokens"),
    [
        (LANED, [lane_cost()], None),
        (LANED, [lane_cost()], Tokens(1001, 100)),
        (LANED, [lane_cost()], Tokens(1000, 101)),
        (LANED, [], USED),
        (LANED, [lane_cost(key="k2")], USED),
        (LANED, [lane_cost(day=1)], USED),
        (LANED, [lane_cost(currency="EUR")], USED),
        (LANED, [lane_cost(), lane_cost(currency="EUR")], USED),
        (msgspec.structs.replace(LANED, ended_at=NOON + 2 * DAY), [lane_cost(), lane_cost(day=2)], USED),
        (msgspec.structs.replace(LANED, ended_at=None), [lane_cost()], USED),
        (msgspec.structs.replace(LANED, started_at=None), [lane_cost()], USED),
        (msgspec.structs.replace(LANED, attribution_key=AttributionKey(AttributionKind.WINDOW)), [lane_cost()], USED),
        (
            msgspec.structs.replace(LANED, attribution_key=AttributionKey(AttributionKind.KEY, "")),
            [lane_cost(key="")],
            USED,
        ),
    ],
)
def test_costs_that_cannot_be_attributed_are_unknown(
    run: MeteredRun, costs: list[CostRow], key_tokens: Tokens | None
) -> None:
    assert amount_billed(run, USED, costs=costs, key_tokens=key_tokens) is None


# Models that only the provider names.


def observed_record(run: MeteredRun, **by_model: Tokens) -> UsageRecord:
    record = a_record(run, whole(2, 2))
    return msgspec.structs.replace(record, verdict=msgspec.structs.replace(record.verdict, by_model=by_model))


def test_models_of_the_provider_are_quoted_where_a_run_lists_no_calls() -> None:
    run = MeteredRun("r", "agent", started_at=NOON, ended_at=NOON + DAY)
    record = observed_record(run, m=whole(2, 2), other=whole(0, 0))
    (quote,) = quotes_missing(record, "maker", PLAIN)
    assert (quote.model, quote.at, quote.tier, quote.reason) == ("m", NOON, "standard", "")
    priced_record = msgspec.structs.replace(record, quotes=(quote,))
    assert ledger_of(priced_record).quoted == Decimal("0.00002")
    assert quotes_missing(priced_record, "maker", PLAIN) == ()
    assert [one.reason for one in requote(priced_record, "maker", "dearer", DEARER)] == ["", "dearer"]


def test_a_run_with_calls_is_quoted_once_by_its_calls() -> None:
    record = observed_record(a_run(a_call(whole(1, 1))), n=whole(2, 2))
    quotes = quotes_missing(record, "maker", PLAIN)
    assert [one.model for one in quotes] == ["m"]
    assert quotes_missing(msgspec.structs.replace(record, quotes=quotes), "maker", PLAIN) == ()


def test_a_price_that_changed_during_a_run_without_calls_is_kept_with_the_first() -> None:
    changing = [
        types.ConditionalPrice(constraint=None, prices=priced(input_mtok=2, output_mtok=8)),
        types.ConditionalPrice(
            constraint=types.StartDateConstraint(start_date=date(2026, 11, 2)),
            prices=priced(input_mtok=3, output_mtok=8),
        ),
    ]
    run = MeteredRun("r", "agent", started_at=NOON, ended_at=NOON + DAY)
    found = quotes_missing(observed_record(run, m=whole(1, 1)), "maker", book(model("m", changing)))
    assert [(one.at, one.reason) for one in found] == [(NOON, ""), (NOON + DAY, PRICE_CHANGED)]


def test_a_run_without_times_has_no_quote() -> None:
    assert quotes_missing(observed_record(MeteredRun("r", "agent"), m=whole(1, 1)), "maker", PLAIN) == ()
