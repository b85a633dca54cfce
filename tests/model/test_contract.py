"""Terms, budgets and work as a buyer writes them: what is taken, and what is refused before money is put aside."""

import re
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from meruit.contracts.store.read import terms_body, terms_of
from meruit.model.canonical import canonical
from meruit.model.contract import (
    CAP_NAMES,
    MAX_CANARIES,
    MAX_DEADLINE_HOURS,
    MAX_TEXT,
    OPEN,
    USUAL_RULES,
    BonusOnFailure,
    Budget,
    CapSplit,
    Contract,
    ContractState,
    Escrow,
    Execution,
    SettleWhen,
    Terms,
    WorkSubmission,
    parse_stored_work,
    work_body,
)
from meruit.model.money import CURRENCIES
from meruit.model.numbers import in_units
from meruit.model.outcome import MAX_LABEL
from meruit.model.threshold import LARGEST_MICROS

CRITERION = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
AT = datetime(2026, 11, 1, tzinfo=UTC)
AMOUNTS = st.integers(0, LARGEST_MICROS).map(in_units)
SHARES = st.decimals(0, 1, places=9).map(str)
NO_AMOUNT = [
    -1,
    "-0.000001",
    "0.0000001",
    0.0000001,
    float("nan"),
    float("inf"),
    True,
    "many",
    [],
    {},
    10**400,
    "1e99",
    f"1e{9**30}",
]


def refusal(model: type[BaseModel], **parts: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        model.model_validate(parts)
    return str(caught.value)


def work(**parts: Any) -> WorkSubmission:
    return WorkSubmission.model_validate({"title": "Summarise", **parts})


@st.composite
def agreements(draw: st.DrawFn) -> Terms:
    return Terms.model_validate(
        {
            "currency": draw(st.sampled_from(sorted(CURRENCIES))),
            "cpc_rate": draw(st.none() | AMOUNTS),
            "max_cpa_total": draw(st.none() | AMOUNTS),
            "max_penalty_rate": draw(SHARES),
            "platform_fee_rate": draw(SHARES),
            "bonus_on_failure": draw(st.sampled_from(BonusOnFailure)),
            "cap_split": draw(st.sampled_from(CapSplit)),
            "settle": draw(st.sampled_from(SettleWhen)),
            "claimed_may_earn": draw(st.booleans()),
            "dispute_window_hours": draw(st.integers(1, 168)),
            "deadline_hours": draw(st.integers(1, MAX_DEADLINE_HOURS)),
            "rules": draw(st.lists(st.text(min_size=1, max_size=9), min_size=1, max_size=32, unique=True)),
        }
    )


def kept(terms: Terms) -> Terms:
    """The terms as they are read back from a contract."""
    contract = Contract(
        id="c",
        seq=1,
        work_id="w",
        agent_id="a",
        consumer_id="b",
        domain=None,
        state=ContractState.AWARDED,
        escrow=Escrow.HELD,
        currency=terms.currency,
        hold_micros=0,
        terms=terms_body(terms),
        awarded_at=AT,
        expires_at=AT,
    )
    return terms_of(contract)


# Properties.


@given(agreements())
def test_terms_are_read_back_as_they_were_agreed(terms: Terms) -> None:
    again = kept(terms)
    assert again == terms
    assert sha256(terms_body(again)).digest() == sha256(terms_body(terms)).digest()


@given(st.integers(0, LARGEST_MICROS))
def test_an_amount_written_in_another_way_is_the_same_agreement(micros: int) -> None:
    text = in_units(micros)
    ways = [text, Decimal(text), f"{text}{'' if '.' in text else '.'}0"]
    assert len({terms_body(Terms.model_validate({"cpc_rate": way})) for way in ways}) == 1


# Terms.


def test_terms_have_the_usual_defaults() -> None:
    terms = Terms()
    assert (terms.currency, terms.cpc_rate, terms.max_cpa_total, terms.max_penalty_rate) == ("USD", None, None, 1)
    assert (terms.dispute_window_hours, terms.deadline_hours, terms.platform_fee_rate) == (24, 168, 0)
    assert (terms.bonus_on_failure, terms.cap_split, terms.settle) == ("per_criterion", "in_order", "at_once")
    assert terms.claimed_may_earn is False
    assert terms.rules == USUAL_RULES


@pytest.mark.parametrize("name", ["cpc_rate", "max_cpa_total"])
@pytest.mark.parametrize("value", NO_AMOUNT)
def test_an_invalid_amount_is_refused(name: str, value: Any) -> None:
    said = refusal(Terms, **{name: value})
    assert "expected" in said or "decimal places" in said or "at most" in said


@pytest.mark.parametrize("name", ["max_penalty_rate", "platform_fee_rate"])
@pytest.mark.parametrize("value", [-0.1, 1.000001, "1.1", True, None, "half", float("nan")])
def test_an_invalid_share_is_refused(name: str, value: Any) -> None:
    assert "expected" in refusal(Terms, **{name: value})


def test_the_largest_amount_is_taken_and_a_millionth_more_is_not() -> None:
    assert Terms.model_validate({"cpc_rate": in_units(LARGEST_MICROS)}).cpc_rate is not None
    assert "at most" in refusal(Terms, cpc_rate=in_units(LARGEST_MICROS + 1))


@pytest.mark.parametrize("code", ["usd", "XXX", "DOLLAR", "", " USD", 840, None, ["USD"]])
def test_an_unknown_currency_is_refused(code: Any) -> None:
    assert "a currency" in refusal(Terms, currency=code)


@pytest.mark.parametrize("hours", [1, 24, 168])
def test_a_dispute_window_is_from_an_hour_to_a_week(hours: int) -> None:
    assert Terms(dispute_window_hours=hours).dispute_window_hours == hours


@pytest.mark.parametrize("hours", [0, -1, 169, 24.0, 0.5, "24", True, None])
def test_any_other_window_is_refused(hours: Any) -> None:
    refusal(Terms, dispute_window_hours=hours)


@pytest.mark.parametrize("hours", [0, MAX_DEADLINE_HOURS + 1, "168", 1.5, True])
def test_a_deadline_beyond_a_year_or_before_now_is_refused(hours: Any) -> None:
    refusal(Terms, deadline_hours=hours)
    assert Terms(deadline_hours=MAX_DEADLINE_HOURS).deadline_hours == MAX_DEADLINE_HOURS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bonus_on_failure", "some"),
        ("cap_split", "by_weight"),
        ("settle", "never"),
        ("claimed_may_earn", "yes"),
        ("claimed_may_earn", 1),
        ("rules", []),
        ("rules", "cpc"),
        ("rules", ["cpc"] * 33),
        ("rules", [1]),
        ("rules", ["cpc", "cpa_bonus", "cpc"]),
        ("cpc", 1),
    ],
)
def test_impossible_terms_are_refused(name: str, value: Any) -> None:
    refusal(Terms, **{name: value})


def test_terms_are_fixed() -> None:
    with pytest.raises(ValidationError):
        Terms().cpc_rate = 5  # type: ignore[misc]


# Budgets, and the one cap with its many names.


@pytest.mark.parametrize(
    "written", [*({name: "2.5"} for name in CAP_NAMES), {"cpa_bonus": {"max_total": "2.5"}}, {"max_bonus": 2.5}]
)
def test_the_cap_is_taken_under_each_of_its_names(written: dict[str, Any]) -> None:
    assert Budget.model_validate(written).max_cpa_total == Decimal("2.5")
    assert work(budget=written).terms_in_force().max_cpa_total == Decimal("2.5")


@pytest.mark.parametrize(
    "written",
    [
        {"max_cpa_total": 5, "max_bonus": 5},
        {"max_cpa_total": 5, "max_bonus": 5.0},
        {"max_cpa_total": "5", "max_cpa_bonus": 5, "cpa_bonus": {"max_total": "5.00"}},
        {"max_cpa_total": None, "max_bonus": 5},
        {"max_cpa_total": 5, "cpa_bonus": None},
    ],
)
def test_the_same_cap_under_two_names_is_one_cap(written: dict[str, Any]) -> None:
    assert Budget.model_validate(written).max_cpa_total == 5


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ({"max_cpa_total": 5, "max_bonus": 6}, "max_bonus"),
        ({"max_cpa_total": 0, "max_bonus": 1}, "max_bonus"),
        (
            {"max_cpa_bonus": 5, "cpa_bonus": {"max_total": 6}},
            "cpa_bonus.max_total",
        ),
        ({"cpa_bonus": {"max_total": 5, "min": 1}}, "only max_total"),
        ({"cpa_bonus": {}}, "only max_total"),
        ({"cpa_bonus": 5}, "only max_total"),
        ({"max_bonus": -1}, "at least 0"),
        ({"max_bonus": "0.0000001"}, "decimal places"),
        ({"max_bonus": [5], "max_cpa_total": 5}, "a number"),
        ({"max_cpc": True}, "a number"),
        ({"max": 1}, "Extra inputs"),
    ],
)
def test_a_budget_that_contradicts_itself_is_refused(written: dict[str, Any], says: str) -> None:
    assert says in refusal(Budget, **written)


def test_no_cap_and_a_cap_of_nothing_are_two_budgets() -> None:
    assert Budget().max_cpa_total is None
    assert Budget.model_validate({"max_bonus": 0}).max_cpa_total == 0
    assert Budget.model_validate({"max_bonus": None}).max_cpa_total is None


def test_a_budget_is_a_mapping() -> None:
    assert "valid dictionary" in refusal(WorkSubmission, title="x", budget=5)


# Work.


def test_work_needs_a_title_and_nothing_else() -> None:
    made = work()
    assert (made.description, made.input, made.success_criteria, made.canaries) == ("", {}, None, ())
    assert made.terms_in_force() == Terms()


def test_the_budgets_cap_is_among_the_terms_in_force() -> None:
    made = work(budget={"max_bonus": 3, "max_cpc": 9}, terms={"cpc_rate": 8})
    assert (made.terms_in_force().max_cpa_total, made.terms_in_force().cpc_rate) == (3, 8)
    assert work(terms={"max_cpa_total": 4}).terms_in_force().max_cpa_total == 4
    assert work(budget={"max_bonus": 0}).terms_in_force().max_cpa_total == 0


def test_two_different_caps_are_refused() -> None:
    assert work(budget={"max_bonus": "3.0"}, terms={"max_cpa_total": 3}).terms_in_force().max_cpa_total == 3
    said = refusal(WorkSubmission, title="x", budget={"max_bonus": 0}, terms={"max_cpa_total": 3})
    assert "terms.max_cpa_total" in said


def test_empty_criteria_are_refused_and_none_are_not() -> None:
    assert work(success_criteria=None).success_criteria is None
    assert work(success_criteria={"criteria": [CRITERION]}).success_criteria is not None
    said = refusal(WorkSubmission, title="x", success_criteria={"criteria": []})
    assert "success_criteria" in said


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("title", ""),
        ("title", "x" * (MAX_LABEL + 1)),
        ("title", "two\nlines"),
        ("title", "bell\a"),
        ("title", None),
        ("title", 5),
        ("consumer_id", ""),
        ("domain", "a\tb"),
        ("description", "x" * (MAX_TEXT + 1)),
        ("input", []),
        ("input", {"when": object()}),
        ("input", {"nan": float("nan")}),
        ("input", {"deep": [{5: "a key is text"}]}),
        ("canaries", ["short"]),
        ("canaries", ["x" * (MAX_LABEL + 1)]),
        ("canaries", ["long enough"] * (MAX_CANARIES + 1)),
        ("impossible", "no"),
        ("impossible", 1),
        ("accept_null_agent", ""),
        ("accept_null_agent", True),
        ("terms", {"currency": "XXX"}),
        ("success_criteria", {"criteria": [{"metric": "word_count"}]}),
        ("price", 5),
    ],
)
def test_work_that_cannot_be_given_out_is_refused(name: str, value: Any) -> None:
    refusal(WorkSubmission, **{"title": "x", name: value})


# Executions, and the rest.


def test_an_execution_is_read_from_any_object_with_its_attributes() -> None:
    read = Execution.model_validate({"agent": {"pricing": {"cpc_rate": "1.5"}}})
    assert read.agent.pricing.cpc_rate == Decimal("1.5")
    assert (read.task.budget.max_cpa_total, read.task.budget.max_penalty_rate) == (None, 1)
    assert Execution.model_validate(read) == read


def test_money_is_open_while_it_is_held_or_frozen() -> None:
    assert {*Escrow} - OPEN == {Escrow.PAID, Escrow.RELEASED}


# What is refused of new work, and stays readable where it was taken before.


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"title": " "}, "spaces"),
        ({"title": "\u2003 "}, "spaces|control characters"),
        ({"accept_null_agent": "  "}, "spaces"),
        ({"terms": {"cpc_rate": "0.2"}, "budget": {"max_cpc": "0.1"}}, "budget.max_cpc"),
        ({"input": {"a": 1}, "private": {"a": 2}}, "'a'"),
        ({"input": {"a": {"reference": "x"}}}, "'reference'"),
        ({"input": {"a": [{"b": [[{"pattern": "x"}]]}]}}, "'pattern'"),
        ({"private": {"a": object()}}, "private"),
        ({"private": ["a"]}, "private"),
    ],
)
def test_contradictory_work_is_refused(parts: dict[str, Any], says: str) -> None:
    assert re.search(says, refusal(WorkSubmission, **{"title": "x", **parts}))


@pytest.mark.parametrize(
    "parts",
    [
        {"terms": {"cpc_rate": "0.1"}, "budget": {"max_cpc": "0.10"}},
        {"budget": {"max_cpc": 0}},
        {"terms": {"cpc_rate": 1}},
        {"input": {"reference": {"reference": "x"}, "output_schema": {"properties": {"a": {"pattern": "x"}}}}},
        {"private": {"reference": "x", "answers": [{"ground_truth": "y"}]}},
        {"input": {"a": ["reference", {"b": "pattern"}]}},
    ],
)
def test_work_that_does_is_taken(parts: dict[str, Any]) -> None:
    made = WorkSubmission.model_validate({"title": "x", **parts})
    assert made.input_for_judge() == {**parts.get("input", {}), **parts.get("private", {})}


def test_work_is_read_back_as_it_was_kept() -> None:
    made = WorkSubmission.model_validate(
        {"title": "x", "input": {"a": 1}, "private": {"c": 1, "b": 2}, "canaries": ["long enough"], "impossible": True}
    )
    kept = parse_stored_work(work_body(made, "c0"))
    assert kept.input_commitment == "c0"
    assert kept.private == {"b", "c"}
    assert kept.submission == made.model_copy(update={"input": {}, "private": {}})
    assert work_body(made, "c0") == work_body(made.model_copy(update={"input": {"other": 1}}), "c0")
    assert work_body(made, "c0") != work_body(made, "c1")


@pytest.mark.parametrize(
    "parts",
    [
        {"title": " "},
        {"title": "x", "accept_null_agent": " "},
        {"title": "x", "terms": {"cpc_rate": 2}, "budget": {"max_cpc": 1}},
    ],
)
def test_what_was_taken_once_stays_readable(parts: dict[str, Any]) -> None:
    assert parse_stored_work(canonical(parts)).submission.title == parts["title"]


@pytest.mark.parametrize(
    "body",
    [
        *(b"[]", b"5", b"{}", b'{"title":"x","private_names":"ab"}', b'{"title":"x","private_names":[1]}', b"{"),
        b'{"title":"x","input_commitment":1}',
    ],
)
def test_invalid_stored_work_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each says something else
        parse_stored_work(body)
