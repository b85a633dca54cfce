"""Money as text says exactly what the millionths say."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.numbers import MICRO, in_units


@given(st.integers(0, 2**53))
def test_units_say_the_millionths_exactly(micros: int) -> None:
    assert Decimal(in_units(micros)) * MICRO == micros


@pytest.mark.parametrize(
    ("micros", "text"), [(0, "0"), (50_000, "0.05"), (1, "0.000001"), (10_000_000, "10"), (1_500_000, "1.5")]
)
def test_units_have_no_needless_zeros(micros: int, text: str) -> None:
    assert in_units(micros) == text
