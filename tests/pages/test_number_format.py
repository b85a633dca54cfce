"""Numbers on pages: the digits that mean something, and a dash for an unknown value."""

from typing import Literal

import pytest

from meruit.model.task_run import ConfidenceInterval
from meruit.pages.number_format import (
    format_interval,
    format_money,
    format_number,
    format_p,
    format_places,
    format_share,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (1_234_567, "1,234,567"),
        (0.0421, "0.0421"),
        (1234.5, "1,234"),
        (0.00004, "4.00e-05"),
        (0.0, "0.0000"),
    ],
)
def test_numbers_have_the_digits_that_mean_something(value: float | None, text: str) -> None:
    assert format_number(value) == text


def test_words_for_what_is_unknown_and_what_is_tiny() -> None:
    assert (format_share(None), format_money(None, "USD"), format_p(None), format_places(None)) == ("–",) * 4
    assert (format_p(1e-12), format_p(0.0049), format_p(0.2)) == ("< 0.0001", "0.0049", "0.200")
    assert (format_places(ConfidenceInterval(1, 3)), format_places(ConfidenceInterval(2, 2))) == ("1 to 3", "2")


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("share", "25.0 to 150.0 %"),
        ("number", "0.2500 to 1.500"),
        ("difference", "+25.0 to +150.0"),
        ("factor", "× 0.250 to 1.500"),
    ],
)
def test_an_interval_names_its_unit_once(form: Literal["share", "number", "difference", "factor"], text: str) -> None:
    assert format_interval(ConfidenceInterval(0.25, 1.5), form) == text
    assert format_interval(None, form) == ""
