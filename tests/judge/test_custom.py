"""Expressions and failed code in the judge: named for themselves, and judged again from the record alone."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude, evidence_of, rejudge
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Cause, Evidence, Fault, Measured, Missing, Provenance, Skipped
from meruit.model.kinds import MetricType
from meruit.model.verdict import Status, VerificationResult

WHEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NUMERIC = {"metric_type": "numeric", "comparison": "gte", "threshold": 1}
RAN = {"sandbox": {"tier": "python", "engine": "x 1", "failure": "timeout"}}


def judged(plan: Plan, *evidence: Evidence) -> VerificationResult:
    return conclude(plan, evidence, Circumstances("c", WHEN))


@pytest.mark.parametrize("missing", ["bounds", "exclude"])
def test_what_is_known_of_a_failure_stays_with_the_criterion(missing: str, plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({"missing": missing})
    failed = Missing("too slow", Cause.TIMEOUT, Fault.AUTHOR, RAN)
    (result,) = judged(plan, failed).criterion_results
    assert result.status is (Status.INDETERMINATE if missing == "bounds" else Status.EXCLUDED)
    assert (result.cause, result.fault, result.details) == (Cause.TIMEOUT, Fault.AUTHOR, RAN)
    assert evidence_of(result) == failed


def test_how_a_value_came_about_stays_where_the_value_cannot_be_judged(plan_of: Callable[..., Plan]) -> None:
    plan = plan_of({}, {"metric_type": "count"})
    whole = judged(plan, Measured("text", RAN), Measured(0.5, None))
    first, second = whole.criterion_results
    assert (first.cause, first.details) == (Cause.WRONG_TYPE, RAN)
    assert (second.cause, second.details) == (Cause.WRONG_TYPE, None)
    assert rejudge(plan, whole).to_json() == whole.to_json()


def test_a_skipped_criterion_has_no_details(plan_of: Callable[..., Plan]) -> None:
    (result,) = judged(plan_of({}), Skipped("not for this work")).criterion_results
    assert (result.cause, result.fault, result.details) == (None, Fault.NONE, None)


def test_an_expression_ignores_metrics_of_the_same_name() -> None:
    made = SuccessCriteria.model_validate(
        {
            "criteria": [
                {"metric": "share", "metric_type": "percentage", "comparison": "gte", "threshold": 90},
                {"metric": "share", "expr": "1", "metric_type": "percentage", "comparison": "gte", "threshold": 90},
                {"name": "share", "expr": "2", **NUMERIC, "id": "third"},
                {"expr": "3", **NUMERIC},
                {"assert": "share"},
            ]
        }
    )
    trait = Trait(MetricType.ACCURACY, Provenance.CLAIMED)
    slots = ("share", "share[share-2]", "share[third]", "3", "share-3")
    plan = compile_plan(made, lambda _name: trait, slots)
    assert [rule.subject for rule in plan.rules] == ["share", "share", "share", "3", "share"]
    assert [rule.provenance for rule in plan.rules] == [Provenance.CLAIMED, *[Provenance.COMPUTED] * 3, None]
    result = judged(plan, 0.95, 95, 7, Missing("gone", Cause.CRASHED, Fault.AUTHOR, RAN), Skipped("later"))
    assert result.metrics == {"share": 0.95, "share[share-2]": 95, "share[third]": 7}
    assert [judged.natural for judged in result.criterion_results] == [MetricType.ACCURACY, None, None, None, None]
    assert rejudge(made, result).to_json() == result.to_json()
    again = VerificationResult.from_json(result.to_json())
    assert rejudge(made, again).to_json() == result.to_json()


def test_a_name_like_anothers_slot_is_kept_apart() -> None:
    def criterion(**parts: Any) -> dict[str, Any]:
        return {**NUMERIC, **parts}

    made = SuccessCriteria.model_validate(
        {"criteria": [criterion(metric="m"), criterion(name="m[c]", expr="1"), criterion(metric="m", id="c")]}
    )
    result = judged(compile_plan(made, lambda _name: Trait(), ("m", "m[c]", "m")), 3, 4, 3)
    assert result.metrics == {"m": 3, "m[c]": 4}
    assert rejudge(made, result).to_json() == result.to_json()


STAKES = {"bonus": "5.00", "penalty": "2.00"}
OWN = [{"metrics": ["mine"], "code": "x"}]


@pytest.mark.parametrize("asked", [{"metric": "mine"}, {"expr": "1"}, {"expr": "1", "metric": "theirs"}])
@pytest.mark.parametrize("fault", Fault)
def test_failed_custom_code_costs_no_penalty(asked: dict[str, Any], fault: Fault) -> None:
    criteria = SuccessCriteria.model_validate(
        {
            "penalize_missing": True,
            "custom_metrics": OWN,
            "criteria": [{**asked, **NUMERIC, **STAKES}, {"metric": "theirs", **NUMERIC, **STAKES}],
        }
    )
    plan = compile_plan(criteria, lambda _: Trait())
    failed = Missing("it broke", Cause.CRASHED, fault)
    result = judged(plan, failed, Missing("it was not there"))
    assert (result.bonus, result.penalty) == (0.0, 2.0)
    assert rejudge(criteria, result) == result


def test_an_impossible_value_is_the_code_authors_fault() -> None:
    share = {"metric_type": "percentage", "comparison": "gte", "threshold": 0.9}
    criteria = SuccessCriteria.model_validate(
        {
            "custom_metrics": OWN,
            "criteria": [{"metric": "mine", **share}, {"expr": "95", **share}, {"metric": "theirs", **share}],
        }
    )
    plan = compile_plan(criteria, lambda _: Trait(None, Provenance.COMPUTED))
    faults = [each.fault for each in judged(plan, 95, 95, 95).criterion_results]
    assert faults == [Fault.AUTHOR, Fault.AUTHOR, Fault.SYSTEM]
