"""Comparing: exact, as written, and never a guess."""

import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meruit.judge.compare import FloatInterval, bracket, compile_test, domain_of
from meruit.model.criterion import SuccessCriterion
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import MetricType
from meruit.model.numbers import exact


def holds(
    comparison: str, threshold: Any, kind: str = "numeric", natural: MetricType | None = None, **more: Any
) -> Any:
    criterion = SuccessCriterion.model_validate(
        {"metric": "m", "metric_type": kind, "comparison": comparison, "threshold": threshold, **more}
    )
    return compile_test(criterion, bracket(criterion, natural), Fault.SYSTEM)


finite = st.floats(allow_nan=False, allow_infinity=False)
usual = st.floats(-1e299, 1e299).filter(lambda number: number == 0 or abs(number) >= 1e-300)
written = st.one_of(
    usual,
    st.integers(-(2**53), 2**53),
    st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**20), max_value=10**20, places=20),
)


@given(value=finite | st.integers(-(2**53), 2**53), threshold=written)
def test_every_operator_decides_as_exact_arithmetic_would(value: float, threshold: Any) -> None:
    v, t = exact(value), exact(threshold)
    assert holds("gte", threshold)(value) is (v >= t)
    assert holds("gt", threshold)(value) is (v > t)
    assert holds("lte", threshold)(value) is (v <= t)
    assert holds("lt", threshold)(value) is (v < t)
    assert holds("eq", threshold)(value) is (abs(v - t) < Fraction(1, 10_000))
    assert holds("neq", threshold)(value) is (abs(v - t) >= Fraction(1, 10_000))


@given(value=finite, near=usual, reach=st.floats(1e-9, 1e6) | st.just(0.0))
def test_a_declared_tolerance_is_inclusive_and_exact(value: float, near: float, reach: float) -> None:
    within = abs(exact(value) - exact(near)) <= exact(reach)
    assert holds("eq", near, tolerance=reach)(value) is within
    assert holds("neq", near, tolerance=reach)(value) is not within


@given(value=finite, one=usual, other=usual)
def test_a_range_includes_both_its_ends(value: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert holds("in_range", [low, high])(value) is (low <= value <= high)
    assert holds("in_range", {"min": low})(value) is (low <= value)
    assert holds("in_range", {"max": high, "min": None})(value) is (value <= high)


@given(
    threshold=st.decimals(allow_nan=False, allow_infinity=False, min_value=0, max_value=1, places=25),
    value=st.floats(0, 1),
)
def test_a_threshold_with_more_digits_than_a_float_is_compared_as_written(threshold: Decimal, value: float) -> None:
    assert holds("gte", str(threshold))(value) is (exact(value) >= Fraction(threshold))


def test_nine_tenths_is_nine_tenths() -> None:
    assert holds("gte", 0.9)(9 / 10) is True
    assert holds("gte", "0.90000000000000000001")(0.9) is False
    assert holds("gt", 0.3)(0.1 + 0.2) is True  # 0.30000000000000004 as written


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("comparison", ["gte", "gt", "lte", "lt", "eq", "neq"])
def test_infinity_and_nan_are_unmeasurable_under_every_operator(comparison: str, value: float) -> None:
    found = holds(comparison, 0.5)(value)
    assert isinstance(found, Missing)
    assert found.cause is Cause.NOT_A_NUMBER


@pytest.mark.parametrize("value", ["0.9", None, [], {}, b"1", object()])
def test_a_value_of_another_kind_is_unmeasurable_and_never_an_exception(value: Any) -> None:
    found = holds("gte", 0.5)(value)
    assert isinstance(found, Missing)
    assert found.cause is Cause.WRONG_TYPE


def test_a_boolean_is_not_a_number() -> None:
    found = holds("gte", 0.5)(True)
    assert isinstance(found, Missing)
    assert found.cause is Cause.WRONG_TYPE


def test_booleans_and_their_numbers_are_one_for_a_boolean_metric() -> None:
    for kind in ("boolean", "matches_schema", "custom"):
        assert holds("eq", True, kind)(1.0) is True
        assert holds("eq", True, kind)(True) is True
        assert holds("eq", True, kind)(False) is False
        assert holds("neq", True, kind)(0) is True
    assert isinstance(holds("eq", True, "boolean")(0.5), Missing)
    assert isinstance(holds("eq", True, "custom")(0.5), Missing)
    assert holds("eq", True, "matches_schema")(0.99999) is False
    assert holds("eq", True, "boolean", MetricType.CONTAINS)(0.5) is False


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("latency", -1.0),
        ("count", -1),
        ("percentage", 1.2),
        ("accuracy", -0.1),
        ("f1_score", 95.0),
        ("contains", 1.5),
        ("numeric", 2**53 + 1),
    ],
)
def test_a_value_that_its_type_cannot_have_is_unmeasurable(kind: str, value: float) -> None:
    found = holds("gte", 0.5, kind)(value)
    assert isinstance(found, Missing)
    assert found.cause is Cause.OUT_OF_DOMAIN


def test_a_count_is_a_whole_number() -> None:
    assert holds("gte", 3, "count")(3.0) is True
    found = holds("gte", 3, "count")(3.5)
    assert isinstance(found, Missing)
    assert found.cause is Cause.WRONG_TYPE


def test_a_share_on_another_scale_is_refused_not_passed() -> None:
    found = holds("gte", 0.90, "percentage")(95)
    assert isinstance(found, Missing)
    assert "scale" in found.why


def test_a_share_in_percent_is_converted_for_a_metric_that_counts_in_fractions() -> None:
    assert holds("gte", 90, "percentage", MetricType.ACCURACY)(0.9) is True
    assert holds("gte", 90, "percentage", MetricType.ACCURACY)(0.8999) is False
    assert holds("gte", 0.5, "percentage", MetricType.ACCURACY, scale="percent")(0.005) is True
    assert holds("gte", 90, "percentage")(95) is True
    assert isinstance(holds("gte", 90, "percentage")(101), Missing)


def test_texts_are_compared_letter_by_letter() -> None:
    assert holds("eq", "yes", "custom")("yes") is True
    assert holds("neq", "yes", "custom")("no") is True
    assert isinstance(holds("eq", "yes", "custom")(1.0), Missing)


def test_containment_reads_a_share_a_list_or_a_text() -> None:
    every, some = (
        holds("contains_all", ["a", "b"], "contains"),
        holds("contains_any", ["a", "b"], "contains"),
    )
    assert (every(1.0), every(0.5), some(0.5), some(0.0)) == (True, False, True, False)
    assert (every(["A", "b", "c"]), every(["a"]), some(["a"]), some([])) == (True, False, True, False)
    assert (every("B and A"), some("c")) == (True, False)
    assert holds("contains_any", "word", "contains")("a Word") is True


def test_containment_of_what_the_input_lists_is_a_share() -> None:
    every, some = holds("contains_all", True, "contains"), holds("contains_any", True, "contains")
    assert (every(0.5), every(1.0), some(0.5), some(0.0)) == (False, True, True, False)


def test_containment_without_anything_named_cannot_be_judged() -> None:
    found = holds("contains_all", [], "contains")(["a"])
    assert isinstance(found, Missing)
    assert found.fault is Fault.AUTHOR


@given(low=finite, high=finite, number=finite)
def test_a_negated_interval_holds_what_the_other_does_not(low: float, high: float, number: float) -> None:
    assume(low <= high)
    assert FloatInterval(low, high).holds(number) is not FloatInterval(low, high, negated=True).holds(number)


def test_every_type_has_a_domain() -> None:
    for kind in MetricType:
        assert domain_of(kind).low <= domain_of(kind).high
