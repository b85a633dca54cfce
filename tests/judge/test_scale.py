"""Shares in percent: the result says on which scale its value and its threshold are."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.judge.conftest import NOW

from meruit.cli.views.verdict import format_threshold, format_value
from meruit.judge.plan import Trait, compile_plan
from meruit.judge.verdict import Circumstances, conclude, rejudge
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Evidence, Missing, Provenance
from meruit.model.kinds import ComparisonOperator, MetricType, Scale
from meruit.model.verdict import CriterionResult, VerificationResult

OURS = Trait(MetricType.ACCURACY, Provenance.COMPUTED)


def whole(value: Evidence, trait: Trait = OURS, **changes: Any) -> tuple[SuccessCriteria, VerificationResult]:
    asked = {"metric": "m", "metric_type": "accuracy", "comparison": "gte", "threshold": 90, **changes}
    criteria = SuccessCriteria.model_validate({"criteria": [asked]})
    return criteria, conclude(compile_plan(criteria, lambda _: trait), [value], Circumstances("c", NOW))


def judge(value: Evidence, trait: Trait = OURS, **changes: Any) -> CriterionResult:
    return whole(value, trait, **changes)[1].criterion_results[0]


@pytest.mark.parametrize(
    ("value", "trait", "changes", "scales", "shown"),
    [
        (1.0, OURS, {}, (Scale.PERCENT, Scale.FRACTION), ("100%", "≥ 90%")),
        (0.07, OURS, {"comparison": "lte"}, (Scale.PERCENT, Scale.FRACTION), ("7%", "≤ 90%")),
        (0.5, OURS, {"threshold": 0.9}, (Scale.FRACTION, Scale.FRACTION), ("0.5", "≥ 0.9")),
        (1, OURS, {"threshold": 1, "scale": "percent"}, (Scale.PERCENT, Scale.FRACTION), ("100%", "≥ 1%")),
        (95, Trait(), {}, (Scale.PERCENT, Scale.PERCENT), ("95%", "≥ 90%")),
        (
            0.93,
            OURS,
            {"comparison": "in_range", "threshold": [90, None]},
            (Scale.PERCENT, Scale.FRACTION),
            ("93%", "in 90% to –"),
        ),
        (7, Trait(), {"metric_type": "count"}, (None, None), ("7", "≥ 90")),
        (True, Trait(), {"metric_type": "boolean", "threshold": True}, (None, None), ("true", "≥ true")),
        (Missing("no"), OURS, {}, (Scale.PERCENT, Scale.FRACTION), ("–", "≥ 90%")),
    ],
)
def test_value_and_threshold_are_shown_on_one_scale(
    value: Any, trait: Trait, changes: dict[str, Any], scales: Any, shown: tuple[str, str]
) -> None:
    judged = judge(value, trait, **changes)
    assert (judged.scale, judged.value_scale) == scales
    assert (format_value(judged), format_threshold(judged.comparison, judged.threshold, judged.scale)) == shown


def test_the_json_carries_both_scales_and_the_specified_fields_as_they_are() -> None:
    written = msgspec.json.decode(msgspec.json.encode(judge(1.0)))
    assert (written["value"], written["threshold"]) == (1.0, 90)
    assert (written["scale"], written["value_scale"]) == ("percent", "fraction")


@given(st.integers(0, 10**6))
def test_a_value_in_percent_is_exact(millionths: int) -> None:
    judged = judge(millionths / 10**6)
    assert Decimal(repr(judged.value_on_scale)) == Decimal(repr(millionths / 10**6)) * 100


@pytest.mark.parametrize("value", [True, "text", ["a"], None])
def test_what_is_not_a_number_has_no_scale(value: Any) -> None:
    judged = CriterionResult(
        "m", value, 90, ComparisonOperator.GTE, False, scale=Scale.PERCENT, value_scale=Scale.FRACTION
    )
    assert judged.value_on_scale is value


def test_a_result_judged_again_keeps_its_scales() -> None:
    for value in (0.95, 0.5, Missing("no")):
        criteria, result = whole(value)
        assert rejudge(criteria, result) == result
