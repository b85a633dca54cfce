"""Criteria: what an author may write, and what is refused before anyone is judged by it."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.kinds import MetricType, Scale
from meruit.model.verdict import Bounds

METRIC = {"metric": "m", "metric_type": "numeric", "comparison": "gte", "threshold": 1}


def criterion(**parts: Any) -> SuccessCriterion:
    return SuccessCriterion.model_validate({**METRIC, **parts})


def refusal(**parts: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        criterion(**parts)
    return str(caught.value)


def test_the_specified_defaults_hold() -> None:
    made = criterion()
    assert (made.weight, made.required, made.bonus, made.penalty) == (1.0, None, None, None)
    whole = SuccessCriteria(criteria=(made,))
    assert (whole.aggregation, whole.minimum_weighted_score) == ("all", None)


@pytest.mark.parametrize("aggregation", ["most", "", "ALL", None])
def test_an_unknown_aggregation_is_refused(aggregation: Any) -> None:
    with pytest.raises(ValidationError):
        SuccessCriteria.model_validate({"criteria": [METRIC], "aggregation": aggregation})


@pytest.mark.parametrize("field", ["weight", "bonus", "penalty", "tolerance"])
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), True, "many", [], 10**400, "1e-99999999"])
def test_what_must_be_a_number_of_at_least_zero_is_refused_otherwise(field: str, value: Any) -> None:
    assert "expected" in refusal(**{field: value, "comparison": "eq"})


def test_money_has_at_most_six_places() -> None:
    assert criterion(bonus=0.000001).bonus == 0.000001
    assert "6 decimal places" in refusal(bonus=0.0000001)
    assert "6 decimal places" in refusal(penalty="1.0000001")


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(ValidationError, match="weight"):
        SuccessCriteria.model_validate({"criteria": [{**METRIC, "weight": 0}] * 2})


def test_an_inverted_range_is_refused() -> None:
    assert "above max" in refusal(comparison="in_range", threshold={"min": 5, "max": 1})
    assert "above max" in refusal(comparison="in_range", threshold=[5, 1])


@pytest.mark.parametrize(
    "threshold",
    [{}, [None, None], {"min": None}, [1], [1, 2, 3], "1-2", 5, {"low": 1}, {"min": "a"}, {"min": True}],
)
def test_a_range_that_is_none_is_refused(threshold: Any) -> None:
    assert "Invalid threshold for metric: m" in refusal(comparison="in_range", threshold=threshold)


@pytest.mark.parametrize("threshold", [{"min": 1, "max": 2}, [1, 2], [None, 2], {"min": 1}])
def test_both_forms_of_a_range_are_taken_and_either_side_may_be_open(threshold: Any) -> None:
    made = criterion(comparison="in_range", threshold=threshold)
    assert set(made.threshold) == {"min", "max"}


@pytest.mark.parametrize(
    ("kind", "threshold"),
    [
        ("numeric", True),
        ("latency", False),
        ("count", "many"),
        ("numeric", [1]),
        ("boolean", 2),
        ("numeric", {"min": 1}),
    ],
)
def test_a_threshold_that_its_type_cannot_be_compared_with_is_refused(kind: str, threshold: Any) -> None:
    assert "Invalid threshold for metric: m" in refusal(metric_type=kind, comparison="eq", threshold=threshold)


@pytest.mark.parametrize("kind", ["boolean", "matches_schema", "contains", "custom"])
def test_truth_values_stay_truth_values(kind: str) -> None:
    assert criterion(metric_type=kind, comparison="eq", threshold=True).threshold is True


def test_custom_metrics_may_be_compared_with_text() -> None:
    assert criterion(metric_type="custom", comparison="eq", threshold="yes").threshold == "yes"
    assert "Invalid threshold" in refusal(metric_type="custom", comparison="gte", threshold="yes")


@pytest.mark.parametrize("threshold", ["", " ", ["a", ""], [["a"]], {"a": 1}])
def test_a_keyword_that_everything_contains_is_refused(threshold: Any) -> None:
    assert "Invalid threshold" in refusal(metric_type="contains", comparison="contains_all", threshold=threshold)


@pytest.mark.parametrize("threshold", [["a", 1], "a", [], True, 1.0])
def test_containment_takes_a_list_a_word_or_leaves_it_to_the_input(threshold: Any) -> None:
    assert criterion(metric_type="contains", comparison="contains_any", threshold=threshold).threshold == threshold


@pytest.mark.parametrize(
    ("threshold", "declared", "scale"),
    [
        (0.9, None, "fraction"),
        (90, None, "percent"),
        (1, None, "fraction"),
        (0.5, "percent", "percent"),
        (0, None, "fraction"),
    ],
)
def test_the_scale_of_a_share_is_declared_or_inferred_and_kept(threshold: Any, declared: Any, scale: str) -> None:
    made = criterion(metric_type="percentage", threshold=threshold, scale=declared)
    assert made.scale == scale
    assert SuccessCriterion.model_validate(made.model_dump()).scale == scale


def test_a_mixed_scale_is_refused() -> None:
    share = {"metric_type": "percentage"}
    assert "declare scale" in refusal(**share, comparison="in_range", threshold=[0.5, 95])
    assert "above 1" in refusal(**share, threshold=95, scale="fraction")
    assert "between 0 and 1" in refusal(**share, threshold=101)
    assert "between 0 and 1" in refusal(**share, threshold=-0.1)
    assert "scale" in refusal(threshold=1, scale="percent")


def test_a_share_compared_by_containment_counts_in_fractions() -> None:
    made = criterion(metric_type="percentage", comparison="contains_all", threshold=["a"])
    assert made.scale is Scale.FRACTION


def test_the_reserved_axis_is_refused() -> None:
    assert "__default__" in refusal(axis="__default__")


def test_a_criterion_is_a_metric_or_an_assertion() -> None:
    assert "`expr`" in refusal(assertion={"assert": "x"})
    with pytest.raises(ValidationError, match="`expr`"):
        SuccessCriterion.model_validate({"weight": 1})
    with pytest.raises(ValidationError, match="also needs metric_type, comparison, threshold"):
        SuccessCriterion.model_validate({"metric": "m"})
    with pytest.raises(ValidationError, match="no comparison"):
        SuccessCriterion.model_validate({"assertion": {"assert": "x"}, "comparison": "eq"})


def test_tolerance_belongs_to_equality_and_required_excludes_exclusion() -> None:
    assert "eq and" in refusal(tolerance=1)
    assert "excluded" in refusal(required=True, missing="exclude")


def test_an_assertion_may_stand_flat_or_nested_and_keeps_its_settings() -> None:
    flat = {
        "assert": "fhir-resource-state",
        "resource": "Patient",
        "threshold": 3,
        "weight": 2,
        "axis": "safety",
    }
    nested = {
        "assertion": {"assert": "fhir-resource-state", "resource": "Patient", "threshold": 3},
        "weight": 2,
        "axis": "safety",
    }
    one, other = SuccessCriterion.model_validate(flat), SuccessCriterion.model_validate(nested)
    assert one == other
    assert one.assertion is not None
    assert one.assertion.settings == {"resource": "Patient", "threshold": 3}
    assert one.label == "fhir-resource-state"
    again = SuccessCriterion.model_validate_json(one.model_dump_json())
    assert again == one


def test_unknown_keys_are_refused() -> None:
    assert "Extra inputs" in refusal(treshold=1)
    with pytest.raises(ValidationError, match="Extra inputs"):
        SuccessCriteria.model_validate({"criteria": [METRIC], "minimum": 1})


def test_the_whole_file_and_its_inside_are_both_taken() -> None:
    inside = {"criteria": [METRIC]}
    assert SuccessCriteria.model_validate({"success_criteria": inside}) == SuccessCriteria.model_validate(inside)


def test_ids_are_unique_and_follow_the_labels() -> None:
    whole = SuccessCriteria.model_validate(
        {"criteria": [METRIC, METRIC, {**METRIC, "id": "m-2"}, {**METRIC, "name": "n"}]}
    )
    assert whole.ids == ("m", "m-3", "m-2", "n")
    with pytest.raises(ValidationError, match="'a'"):
        SuccessCriteria.model_validate({"criteria": [{**METRIC, "id": "a"}] * 2})


def test_a_minimum_score_lies_between_zero_and_one() -> None:
    for wrong in (-0.1, 1.1, "x"):
        with pytest.raises(ValidationError):
            SuccessCriteria.model_validate({"criteria": [METRIC], "minimum_weighted_score": wrong})


def test_an_invalid_type_gives_no_second_complaint_about_the_scale() -> None:
    with pytest.raises(ValidationError) as caught:
        criterion(metric_type="percent", scale="percent")
    assert [error["loc"] for error in caught.value.errors()] == [("metric_type",)]


numbers = st.one_of(
    st.integers(-(10**12), 10**12),
    st.floats(-1e12, 1e12).filter(lambda number: number == 0 or abs(number) > 1e-9),
    st.decimals(-(10**6), 10**6, places=30).map(str),
)


@given(
    threshold=numbers,
    kind=st.sampled_from([MetricType.NUMERIC, MetricType.COUNT]),
    comparison=st.sampled_from(["gte", "lt", "eq"]),
)
def test_criteria_survive_json_and_back(threshold: Any, kind: MetricType, comparison: str) -> None:
    made = criterion(metric_type=kind, comparison=comparison, threshold=threshold)
    assert SuccessCriterion.model_validate_json(made.model_dump_json()) == made
    assert SuccessCriterion.model_validate(made.model_dump()) == made


def test_numeric_text_keeps_every_digit() -> None:
    assert criterion(threshold="0.90000000000000000001").threshold == Decimal("0.90000000000000000001")
    assert criterion(threshold="0.90").threshold == 0.9
    for wrong in ("1_000", "٣", "sNaN", " 1", "01", "0x1", "1e99999999", "9" * 500):
        assert "expected" in refusal(threshold=wrong)


def test_records_are_welcome_in_pydantic_models() -> None:
    class Mine(BaseModel):
        bounds: Bounds

    made = Mine.model_validate({"bounds": {"low": 0.1, "high": 0.9}})
    assert made.bounds == Bounds(0.1, 0.9)
    assert Mine(bounds=made.bounds).model_dump() == {"bounds": {"low": 0.1, "high": 0.9}}
    assert Mine.model_validate_json(made.model_dump_json()) == made
    assert Mine.model_json_schema()["properties"]["bounds"]["required"] == ["low", "high"]
    with pytest.raises(ValidationError, match="`high`"):
        Mine.model_validate({"bounds": {"low": 1}})


def test_what_cannot_be_written_down_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["self"] = loop
    for params in (loop, {"a": "\ud800"}, {"a": object()}, {"a": b"1"}):
        assert "plain JSON" in refusal(params=params)
    assert "plain JSON" in refusal(metric_type="contains", comparison="contains_all", threshold=["\ud800"])
    with pytest.raises(ValidationError, match="plain JSON"):
        SuccessCriterion.model_validate({"assert": "x", "where": {"a": {1, 2}}})


def test_a_guard_has_its_defaults_however_it_is_built() -> None:
    written = SuccessCriterion.model_validate({"assert": "state-unchanged"})
    assert written.assertion is not None
    built = SuccessCriterion.model_validate({"assertion": written.assertion})
    assert (built.weight, built.required) == (written.weight, written.required) == (0, True)
