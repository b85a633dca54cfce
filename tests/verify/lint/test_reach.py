"""Criteria on one metric that exclude each other: what no output can reach is proven before agents pay for it."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.judge.plan import Trait, compile_plan
from meruit.model.criterion import SuccessCriteria
from meruit.verify.lint.reach import CONTRADICTORY, UNAVOIDABLE, UNREACHABLE, find_unreachable


def one(comparison: str, threshold: Any, **more: Any) -> dict[str, Any]:
    return {"metric": "m", "metric_type": "count", "comparison": comparison, "threshold": threshold, **more}


def codes(*criteria: dict[str, Any], **whole: Any) -> list[str]:
    asked = SuccessCriteria.model_validate({"criteria": [*criteria], **whole})
    plan = compile_plan(asked, lambda _name: Trait(), ("m",) * len(criteria))
    return [found.code for found in find_unreachable(plan)]


SHORT, LONG = one("lte", 50), one("gte", 100, id="long")
OPTIONAL = {"required": False}


@pytest.mark.parametrize(
    "criteria",
    [
        (SHORT, LONG),
        (one("eq", 3), one("neq", 3)),
        # Between 1 and 2, no whole number is left.
        (one("gt", 1), one("lt", 2)),
        # Each two of them can be met.
        (one("in_range", [1, 2]), one("neq", 1), one("neq", 2)),
        (one("eq", "a", metric_type="custom"), one("eq", "b", metric_type="custom")),
        (one("eq", "a", metric_type="custom"), one("neq", "a", metric_type="custom")),
    ],
)
def test_required_criteria_that_exclude_each_other_contradict(criteria: tuple[dict[str, Any], ...]) -> None:
    assert codes(*criteria) == [CONTRADICTORY]


@pytest.mark.parametrize(
    "criteria",
    [
        (SHORT, one("gte", 50)),
        (SHORT, LONG | OPTIONAL),
        (one("gt", 1), one("lt", 3)),
        (one("gt", 1, metric_type="numeric"), one("lt", 1.5, metric_type="numeric")),
        (one("neq", "a", metric_type="custom"), one("neq", "b", metric_type="custom")),
        # A list may be searched for both words.
        (one("contains_all", ["a"], metric_type="contains"), one("contains_all", ["b"], metric_type="contains")),
    ],
)
def test_criteria_that_one_value_meets_do_not_contradict(criteria: tuple[dict[str, Any], ...]) -> None:
    assert codes(*criteria) == []


@pytest.mark.parametrize(("minimum", "found"), [(0.5, []), (0.51, [UNREACHABLE]), (0.9, [UNREACHABLE])])
def test_a_minimum_above_the_best_score_is_found(minimum: float, found: list[str]) -> None:
    assert codes(SHORT, LONG, aggregation="weighted", minimum_weighted_score=minimum) == found


def test_weights_decide_what_can_be_reached() -> None:
    weighted = {"aggregation": "weighted", "minimum_weighted_score": 0.9}
    assert codes(SHORT | {"weight": 1}, LONG | {"weight": 9}, **weighted) == []
    assert codes(SHORT | {"weight": 2}, LONG | {"weight": 9}, **weighted) == [UNREACHABLE]
    # What is left out of the score when it is missing may raise it.
    assert codes(SHORT | {"missing": "exclude"}, LONG, **weighted) == []


def test_a_penalty_that_every_value_costs_is_found() -> None:
    fined = {"required": False, "penalty": 0.3}
    assert codes(SHORT | fined, LONG | fined) == [UNAVOIDABLE]
    assert codes(SHORT | fined, LONG | OPTIONAL) == []
    assert codes(SHORT | fined, one("gte", 40) | fined) == []


COMPARISONS = st.tuples(st.sampled_from(["gte", "gt", "lte", "lt", "eq", "neq"]), st.integers(0, 6))


@settings(deadline=None, max_examples=60)
@given(st.lists(COMPARISONS, min_size=2, max_size=4))
def test_a_contradiction_is_found_exactly_where_no_count_meets_all(asked: list[tuple[str, int]]) -> None:
    criteria = [one(comparison, threshold) for comparison, threshold in asked]
    plan = compile_plan(SuccessCriteria.model_validate({"criteria": criteria}), lambda _: Trait(), ("m",) * len(asked))
    tests = [rule.test for rule in plan.rules if rule.test is not None]
    met = [[test(count) is True for test in tests] for count in range(20)]
    each_alone = all(any(column) for column in zip(*met, strict=True))
    found = [one.code for one in find_unreachable(plan)]
    # What no count meets alone is another finding.
    assert not each_alone or found == ([] if any(map(all, met)) else [CONTRADICTORY])
