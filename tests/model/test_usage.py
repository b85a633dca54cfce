"""Counts of tokens: how they add up, and what is never read as zero."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import PriceQuote, RunCosts
from meruit.model.usage import Observation, Tokens, UsagePolicy, UsageRun, UsageStep, sum_tokens

COUNTS = st.integers(0, MOST_TOKENS)
MAYBE = st.none() | COUNTS
TOKENS = st.builds(Tokens, COUNTS, COUNTS, MAYBE, MAYBE, MAYBE, MAYBE)
NOTHING = Tokens(0, 0, 0, 0, 0, 0)
NOW = datetime(2026, 3, 1, tzinfo=UTC)


@given(st.lists(TOKENS, max_size=5))
def test_a_sum_knows_what_all_of_its_parts_know(several: list[Tokens]) -> None:
    total = sum_tokens(several)
    for name in Tokens.__struct_fields__:
        parts = [getattr(one, name) for one in several]
        expected = None if None in parts else min(sum(parts), MOST_TOKENS)
        assert getattr(total, name) == expected
    assert sum_tokens([*reversed(several)]) == total


@given(TOKENS)
def test_nothing_added_changes_nothing(one: Tokens) -> None:
    assert sum_tokens([one, NOTHING]) == sum_tokens([NOTHING, one]) == sum_tokens([one]) == one
    assert sum_tokens([]) == NOTHING
    assert one.total == one.input + one.output


@given(
    st.lists(st.builds(UsageStep, id=st.just("a"), expects_usage=st.none() | st.booleans(), local=st.none() | TOKENS))
)
def test_a_run_says_what_it_used_when_each_step_that_may_have_used_something_does(steps: list[UsageStep]) -> None:
    run = UsageRun(NOW, tuple(steps))
    silent = [one for one in steps if one.local is None]
    if any(one.expects_usage is not False for one in silent) or not steps:
        assert run.local is None
    else:
        assert run.local == sum_tokens(one.local for one in steps if one.local is not None)


def test_who_declares_no_usage_says_zero_by_that() -> None:
    tokenless = UsageStep("a", expects_usage=False)
    assert UsageRun(NOW, declares_no_usage=True).local == NOTHING
    assert UsageRun(NOW, (tokenless,)).local == NOTHING
    assert UsageRun(NOW, (UsageStep("a"),), declares_no_usage=True).local is None


def test_a_run_says_what_it_used_of_each_model_when_each_step_that_used_something_does() -> None:
    one, two = Tokens(10, 1, 1), Tokens(20, 2, 1)
    first = UsageStep("a", local=Tokens(30, 3, 2), by_model={"o1": one, "gpt-4o": two})
    second = UsageStep("b", local=one, by_model={"o1": one})
    idle, tokenless = UsageStep("c", local=Tokens(0, 0, 1)), UsageStep("d", expects_usage=False)
    assert UsageRun(NOW, (first, second, idle, tokenless)).by_model == {"o1": Tokens(20, 2, 2), "gpt-4o": two}
    assert UsageRun(NOW, (first, UsageStep("e", local=one))).by_model is None
    assert UsageRun(NOW, (first, UsageStep("e"))).by_model is None
    assert UsageRun(NOW).by_model is None
    assert UsageRun(NOW, declares_no_usage=True).by_model == {}


def test_a_run_uses_none_when_it_or_each_of_its_steps_was_declared_so() -> None:
    silent, other = UsageStep("a", expects_usage=False), UsageStep("b")
    assert UsageRun(NOW, (other,), declares_no_usage=True).uses_none
    assert UsageRun(NOW, (silent, silent)).uses_none
    assert not UsageRun(NOW, (silent, other)).uses_none
    assert not UsageRun(NOW).uses_none


@given(st.floats(0, allow_nan=False))
def test_any_interval_can_be_told(minutes: float) -> None:
    interval = UsagePolicy(interval_min=minutes).interval
    assert interval >= timedelta()
    if minutes < 1e6:
        assert interval == timedelta(minutes=minutes)


def test_sixty_minutes_are_the_default() -> None:
    assert UsagePolicy().interval == timedelta(minutes=60)


@pytest.mark.parametrize(
    "written",
    [
        b'{"id": "1", "at": "2026-03-01T12:00:00"}',
        b'{"id": "1", "at": "2026-03-01T12:00:00Z", "total": {"input": -1}}',
        b'{"id": "1", "at": "2026-03-01T12:00:00Z", "total": {"input": 1.5}}',
        b'{"id": "1", "at": "2026-03-01T12:00:00Z", "error": "tired"}',
    ],
    ids=["naive time", "negative", "half a token", "unknown error"],
)
def test_what_cannot_be_meant_is_refused(written: bytes) -> None:
    with pytest.raises(msgspec.ValidationError):
        Observation.from_json(written)


def test_prices_and_costs_keep_every_digit() -> None:
    exact = Decimal("0.1000000000000000000001")
    quote = PriceQuote("table", "1", "00", "openai", "gpt-4o", "gpt-4o-2024-08-06", NOW, {"input": exact})
    assert PriceQuote.from_json(quote.to_json()) == quote
    assert RunCosts.from_json(RunCosts(quoted=exact).to_json()) == RunCosts(quoted=exact)
    assert (RunCosts().billed, RunCosts().settled) == (None, None)
