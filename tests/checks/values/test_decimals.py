"""Numbers of the world: exact, bounded, and never a bool."""

import time
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.checks.values.decimals import EXACTLY, MAX_DIGITS, format_decimal, numeral

NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=12, min_value=-(10**20), max_value=10**20)
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(st.characters(exclude_categories=()))
    | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)


@given(NUMBERS)
def test_a_number_is_the_same_however_it_is_written(number: Decimal) -> None:
    assert numeral(number) == numeral(str(number)) == numeral(f" {number:f} ") == number


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150))
def test_a_float_is_its_shortest_text(number: float) -> None:
    found = numeral(number)
    assert found is None or found == Decimal(repr(number))


@given(ANYTHING)
def test_every_value_has_an_answer(value: Any) -> None:
    found = numeral(value)
    assert found is None or found.is_finite()


@pytest.mark.parametrize(
    "value",
    [True, False, None, "", " ", "1_000", "1,000", "five", "٣", "nan", "Infinity", float("nan"), float("inf"), [], {}],
)
def test_a_value_that_is_not_a_number_is_none(value: Any) -> None:
    assert numeral(value) is None


@pytest.mark.parametrize(
    "value",
    [
        "1e999999999",
        "1e-999999999",
        "1e99999999999999999999",
        "0e9999999",
        10**MAX_DIGITS,
        Decimal("1e201"),
        "9" * 401,
        "1" + "0" * MAX_DIGITS,
        f"0.{'1' * (MAX_DIGITS + 1)}",
    ],
)
def test_a_number_of_enormous_size_is_refused_quickly(value: Any) -> None:
    started = time.process_time()
    assert numeral(value) is None
    assert time.process_time() - started < 30


@given(NUMBERS)
def test_a_number_is_shown_without_exponent_and_idle_zeros(number: Decimal) -> None:
    text = format_decimal(number)
    assert Decimal(text) == number
    assert "E" not in text
    assert text == "0" or not (text.startswith("-0") and "." not in text)
    assert "." not in text or not text.endswith(("0", "."))


@pytest.mark.parametrize(("number", "text"), [("-0.00", "0"), ("450.00", "450"), ("1E+3", "1000"), ("0.10", "0.1")])
def test_zeros_that_say_nothing_are_left_away(number: str, text: str) -> None:
    assert format_decimal(Decimal(number)) == text


@given(
    *[
        st.tuples(st.integers(1, 10 ** (MAX_DIGITS - 1)), st.integers(-MAX_DIGITS + 5, 0)).map(
            lambda pair: numeral(Decimal(pair[0]).scaleb(pair[1], EXACTLY))
        )
    ]
    * 2
)
def test_reckoning_with_any_two_numbers_never_rounds(one: Decimal | None, other: Decimal | None) -> None:
    if one is not None and other is not None:
        assert Fraction(EXACTLY.subtract(one, other)) == Fraction(one) - Fraction(other)
        assert Fraction(EXACTLY.multiply(one, other)) == Fraction(one) * Fraction(other)
