"""Scales: positions inside their edges, and round numbers to mark."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.pages.scale import Axis, difference_tick, log_ticks, ratio_tick, round_up, span_decades

POSITIVE = st.floats(1e-9, 1e12)


@given(st.floats(allow_nan=False))
def test_a_position_is_never_beyond_the_edges(value: float) -> None:
    assert 10 <= Axis(-1.0, 1.0, 10.0, 90.0).at(value) <= 90


@given(POSITIVE)
def test_the_next_round_number_is_never_smaller(value: float) -> None:
    assert value * (1 - 1e-9) <= round_up(value) <= value * 10


@given(st.lists(POSITIVE, min_size=1))
def test_ticks_are_few_and_inside_the_range(values: list[float]) -> None:
    low, high = span_decades(values)
    ticks = log_ticks(low, high)
    assert len(ticks) <= 7
    assert all(low <= one <= high for one in ticks)


@pytest.mark.parametrize(("most", "tick"), [(0.05, 0.05), (0.62, 0.5), (0.3, 0.25), (1.0, 1.0)])
def test_a_difference_is_marked_at_a_round_number(most: float, tick: float) -> None:
    assert difference_tick(most) == pytest.approx(tick)


@pytest.mark.parametrize(("most", "factor"), [(math.log(3.2), 3), (math.log(1.3), 1.25), (math.log(1.005), 1.005)])
def test_a_ratio_is_marked_at_a_round_factor(most: float, factor: float) -> None:
    assert math.exp(ratio_tick(most)) == pytest.approx(factor)
