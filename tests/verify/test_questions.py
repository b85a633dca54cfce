"""Criteria share a question only where they ask the same; one that cannot be asked affects no other."""

from typing import Any

import msgspec
import pytest
from tests.verify.engines import WORDS, Answers, criterion, statuses, verify

from meruit import (
    Cause,
    Checked,
    Status,
    VerificationEngine,
)
from meruit.registry import Check, checks, metrics


def test_schemas_that_differ_only_in_type_are_two_questions() -> None:
    asked = [
        criterion(
            "matches_schema", "matches_schema", "eq", True, params={"schema": {"properties": {"id": {"const": value}}}}
        )
        for value in (1, "1")
    ]
    assert statuses(verify(*asked, output={"id": 1})) == [Status.MET, Status.NOT_MET]


def test_a_metric_that_searches_nothing_refuses_containment() -> None:
    result = verify(criterion("word_count", "count", "contains_all", ["apple", "pear"]), output={"text": "x"})
    assert result.criterion_results[0].cause is Cause.AUTHOR_ERROR
    assert not result.success


def test_half_of_the_patterns_is_not_all_of_them() -> None:
    patterns = {"patterns": ["a", "b"]}
    for kind in ("boolean", "contains"):
        result = verify(
            criterion("matches_pattern", kind, "eq", True, params=patterns, penalty=1), output={"text": "a"}
        )
        assert (statuses(result), result.penalty) == ([Status.NOT_MET], 1.0)


def test_refused_params_do_not_affect_the_next_criterion() -> None:
    engine = VerificationEngine({"x": Answers(pol=1)})
    asked = criterion("pol", "numeric", "gte", 1)
    result = verify({**asked, "params": {"a": 1}}, asked, engine=engine)
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_a_claim_in_percent_needs_a_threshold_in_percent() -> None:
    asked = criterion("confidence", "percentage", "gte", 80)
    assert statuses(verify(asked, output={"confidence": 88})) == [Status.MET]
    assert statuses(verify(asked, output={"confidence": 70})) == [Status.NOT_MET]
    assert statuses(verify(criterion("confidence", "percentage", "gte", 0.8), output={"confidence": 88})) == [
        Status.INDETERMINATE
    ]


@pytest.mark.parametrize("first", [0, 1])
def test_a_refused_criterion_does_not_affect_others(first: int) -> None:
    asked = [criterion("word_count", "count", "contains_all", ["x"]), WORDS]
    result = verify(asked[first], asked[1 - first], output={"text": "a b"})
    assert {judged.comparison: judged.status for judged in result.criterion_results} == {
        "contains_all": Status.INDETERMINATE,
        "gte": Status.MET,
    }


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("crash", [SystemExit(0), Unspeakable(), KeyError("x")])
def test_a_built_in_metric_that_raises_costs_one_criterion(
    crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measure(_work: Any) -> Any:
        raise crash

    monkeypatch.setitem(
        metrics._found, "word_count", msgspec.structs.replace(metrics.get("word_count"), prepare=lambda _ask: measure)
    )
    result = verify(WORDS, criterion("output_length", "count", "gte", 1), output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_a_metric_that_cannot_be_prepared_costs_one_criterion(monkeypatch: pytest.MonkeyPatch) -> None:
    def prepare(_ask: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setitem(
        metrics._found, "word_count", msgspec.structs.replace(metrics.get("word_count"), prepare=prepare)
    )
    result = verify(WORDS, criterion("output_length", "count", "gte", 1), output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]
    assert result.criterion_results[0].fault == "system"


@pytest.mark.parametrize("score", [None, [1], float("inf"), 1, "1e-10000000", "1" * 100, "nan", ""])
def test_a_check_without_a_valid_score_is_indeterminate(score: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    checks.names()
    monkeypatch.setitem(checks._found, "mine", Check("mine", "A check.", lambda _a: lambda _w: Checked(score)))
    result = verify({"assert": "mine"}, WORDS, output={"text": "a"})
    assert statuses(result) == [Status.INDETERMINATE, Status.MET]


def test_money_is_also_given_in_whole_millionths() -> None:
    asked = [{**WORDS, "bonus": "8589934591.999999", "id": str(number)} for number in range(5)]
    result = verify(*asked, output={"text": "a"})
    assert (result.bonus_micros, result.penalty_micros) == (5 * 8589934591999999, 0)
