"""Stored results are judged again, by their own criteria only."""

from typing import Any

import numpy as np
import pytest
from tests.verify.engines import WORDS, Governance, Says, criterion

from meruit import (
    SuccessCriteria,
    VerificationEngine,
    VerificationResult,
    rejudge,
)
from meruit.errors import BatchUnsupported, MeruitError
from meruit.judge.batch import judge_columns


def test_an_error_result_cannot_be_judged_again() -> None:
    engine = VerificationEngine()
    nothing = engine.verify_sync("c", {}, "text", {"criteria": [WORDS]}, {})  # type: ignore[arg-type]
    with pytest.raises(MeruitError, match="criteria"):
        rejudge(engine.compile({"criteria": [WORDS]}).plan, nothing)


def test_a_result_is_judged_again_by_its_own_criteria_only() -> None:
    engine = VerificationEngine()
    one, other = (
        {"criteria": [criterion("contains_keywords", "contains", "contains_all", words)]} for words in (["a"], ["b"])
    )
    result = engine.verify_sync("c", {}, {"text": "a"}, one, {})
    with pytest.raises(MeruitError, match="criteria"):
        rejudge(engine.compile(other).plan, result)


@pytest.mark.parametrize("answer", [Says(True, ["odd"]), Says(False, ["fraud"]), RuntimeError("down")])
def test_judging_again_keeps_the_answer_of_governance(answer: Any) -> None:
    engine = VerificationEngine(governance=Governance(answer))
    compiled = engine.compile({"criteria": [WORDS]})
    result = engine.verify_sync("c", {}, {"text": "a"}, compiled, {})
    assert rejudge(compiled.plan, result).to_json() == result.to_json()


def test_a_record_is_judged_again_without_its_metrics() -> None:
    asked = SuccessCriteria.model_validate(
        {
            "criteria": [
                criterion("accuracy", "percentage", "gte", 90),
                criterion("contains_keywords", "contains", "contains_all", ["a"]),
                criterion("contains_keywords", "contains", "contains_all", ["b"], id="second"),
            ]
        }
    )
    output = {"predictions": ["x"] * 10, "text": "a"}
    result = VerificationEngine().verify_sync("c", {"ground_truth": ["x"] * 10}, output, asked, {})
    stored = VerificationResult.from_json(result.to_json())
    again = rejudge(SuccessCriteria.model_validate_json(asked.model_dump_json()), stored)
    assert again.to_json() == result.to_json()
    assert again.criterion_results[0].met


def test_columns_refuse_integers_that_single_values_refuse() -> None:
    plan = VerificationEngine().compile({"criteria": [criterion("word_count", "numeric", "gte", 1)]}).plan
    for column in (np.array([2**53 + 1, 2**53]), [2**53 + 1, 2**53], np.array([2**53 + 1, 2**53], dtype=object)):
        assert judge_columns(plan, {"word_count": column}).states.tolist() == [[2, 1]]
    assert judge_columns(plan, {"word_count": [10**400, 1]}).states.tolist() == [[2, 1]]
    with pytest.raises(BatchUnsupported):
        judge_columns(plan, {"word_count": ["1"]})


def test_masked_entries_are_missing() -> None:
    plan = VerificationEngine().compile({"criteria": [WORDS]}).plan
    for kind in (np.int64, np.float64):
        column = np.ma.array(np.array([5, 5], kind), mask=[False, True])
        assert judge_columns(plan, {"word_count": column}).states.tolist() == [[1, 2]]
