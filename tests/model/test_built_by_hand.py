"""Results and records that a program builds itself, with only what they must say."""

from datetime import UTC, datetime
from typing import Any

import pytest

from meruit import ComparisonOperator, CriterionResult, OutcomeRecord, SuccessCriteria, VerificationResult, rejudge
from meruit.model.criterion import SuccessCriterion, criteria_digest, validate_threshold

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CRITERION = {"metric": "accuracy", "metric_type": "accuracy", "comparison": "gte", "threshold": 0.9}
CRITERIA = SuccessCriteria.model_validate({"criteria": [CRITERION]})


def one(value: float | None = 0.95, **more: Any) -> CriterionResult:
    given = {"metric": "accuracy", "threshold": 0.9, "comparison": ComparisonOperator.GTE, "met": value == 0.95}
    return CriterionResult(**{**given, "value": value, **more})


def whole(*results: CriterionResult, **more: Any) -> VerificationResult:
    given: dict[str, Any] = {
        "contract_id": "c",
        "success": True,
        "metrics": {},
        "criterion_results": [*results],
        "weighted_score": None,
        "bonus": 0.0,
        "penalty": 0.0,
        "governance_flags": [],
        "verified_at": NOW,
    }
    return VerificationResult(**{**given, **more})


@pytest.mark.parametrize(
    ("made", "status", "exact"),
    [
        (one(), "met", "1"),
        (one(0.5), "not_met", "0"),
        (one(None), "indeterminate", "0"),
        (one(0.5, error="broken"), "indeterminate", "0"),
    ],
)
def test_status_and_score_follow_from_what_is_given(made: CriterionResult, status: str, exact: str) -> None:
    assert (made.status, made.exact, made.criterion_id) == (status, exact, "accuracy")
    assert (made.cause is not None) == (status == "indeterminate")
    assert CriterionResult.from_json(made.to_json()) == made


def test_what_is_given_stays() -> None:
    made = one(criterion_id="mine", exact="2/3", score=0.6, status="excluded")
    assert (made.criterion_id, made.exact, made.score, made.status) == ("mine", "2/3", 0.6, "excluded")
    assert one(criterion_id="mine").criterion_id == "mine"


@pytest.mark.parametrize(
    ("made", "verdict", "score", "coverage"),
    [
        (whole(), "pass", 1.0, 1.0),
        (whole(success=False), "fail", 0.0, 1.0),
        (whole(one(), one(0.5)), "partial", 0.5, 1.0),
        (whole(one(), one(None)), "inconclusive", 0.5, 0.5),
        (whole(one(weight=95), one(None, weight=5)), "pass", 0.95, 0.95),
        (whole(one(0.5)), "fail", 0.0, 1.0),
        (whole(one(), one(0.5, status="excluded", exact="0")), "pass", 1.0, 1.0),
    ],
)
def test_the_verdict_follows_from_the_criteria(
    made: VerificationResult, verdict: str, score: float, coverage: float
) -> None:
    assert (made.verdict, made.score, made.coverage) == (verdict, score, coverage)
    assert VerificationResult.from_json(made.to_json()) == made


def test_money_is_exact_and_time_is_utc() -> None:
    made = whole(bonus=0.1, penalty=0.3, verified_at=NOW.replace(tzinfo=None))
    assert (made.bonus_micros, made.penalty_micros, made.verified_at) == (100_000, 300_000, NOW)


def test_a_record_names_its_criteria() -> None:
    given = {"id": "o", "contract_id": "c", "agent_id": "a", "consumer_id": "b", "domain": "d", "billing_impact": {}}
    made = OutcomeRecord(
        **given,
        success_criteria=CRITERIA,
        verification_result=whole(one()),
        execution_metadata={},
        created_at=NOW.replace(tzinfo=None),
    )
    assert (made.criteria_digest, made.version, made.created_at) == (criteria_digest(CRITERIA), 1, NOW)
    again = whole(one(), criteria_digest=made.criteria_digest, metrics={"accuracy": 0.95})
    assert rejudge(CRITERIA, again).verdict == "pass"


def test_a_threshold_must_fit_its_metric() -> None:
    good = SuccessCriterion.model_validate(CRITERION)
    assert validate_threshold(good)
    assert not validate_threshold(good.model_copy(update={"threshold": "high"}))
    assert not validate_threshold(good.model_copy(update={"comparison": ComparisonOperator.IN_RANGE}))
    assert not validate_threshold(good.model_copy(update={"metric_type": None}))
    assert validate_threshold(SuccessCriterion.model_validate({"assert": "row-exists", "table": "t"}))
