"""Whose word on the budget counts, and which budgets cannot be meant."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import BudgetError
from meruit.gate.limits import DEFAULT_ATTEMPTS, MAX_ATTEMPTS, GateLimits, budget, validate_count

counts = st.integers(1, MAX_ATTEMPTS)
senseless = st.one_of(
    st.booleans(),
    st.integers(max_value=0),
    st.integers(MAX_ATTEMPTS + 1),
    st.floats(),
    st.text(),
    st.lists(st.integers()),
)


@given(st.none() | counts, st.none() | counts, st.none() | counts)
def test_the_run_speaks_before_the_agent_and_the_agent_before_the_model(
    run: int | None, agent: int | None, model: int | None
) -> None:
    said = [one for one in (run, agent, model) if one is not None]
    assert budget(run, agent, model) == [*said, DEFAULT_ATTEMPTS][0]


@given(senseless)
def test_a_budget_that_is_not_a_count_is_refused(said: Any) -> None:
    for place, whose in {"run": "the run's", "agent": "the agent's", "model": "the output model's"}.items():
        with pytest.raises(BudgetError, match=f"^{whose} verify_max_attempts is .*from 1 to 1,000$"):
            budget(**{place: said})


def test_a_senseless_word_is_not_passed_over_for_a_weaker_one() -> None:
    with pytest.raises(BudgetError, match="the run's"):
        budget(0, 3, 4)


def test_a_count_may_have_a_limit_of_its_own() -> None:
    assert validate_count(10, "turns", most=10) == 10
    with pytest.raises(BudgetError, match=r"turns is 11.* 10$"):
        validate_count(11, "turns", most=10)


def test_the_specified_defaults() -> None:
    assert DEFAULT_ATTEMPTS == 5
    assert GateLimits() == GateLimits(max_attempts=5, no_progress=3, schema_errors=3, system_errors=5)
