"""Money: whole millionths, said exactly in either direction."""

import asyncio
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.model.money import CURRENCIES, Bill, Cost, Line, PricePart, as_decimal, as_micros
from meruit.model.numbers import MICRO, in_units
from meruit.model.threshold import LARGEST_MICROS, money


@given(st.integers(-LARGEST_MICROS, LARGEST_MICROS))
def test_an_amount_says_its_millionths_exactly(micros: int) -> None:
    amount = as_decimal(micros)
    assert amount * MICRO == micros
    assert as_micros(amount) == micros
    assert str(amount) == in_units(micros)


@given(st.integers(0, 2**33 * MICRO))
def test_a_float_in_a_result_still_means_the_amount(micros: int) -> None:
    assert as_micros(micros / MICRO) == as_micros(float(in_units(micros))) == micros


@given(st.integers(0, LARGEST_MICROS))
def test_an_amount_as_written_keeps_every_digit(micros: int) -> None:
    assert as_micros(money(in_units(micros))) == as_micros(money(Decimal(micros) / MICRO)) == micros


@pytest.mark.parametrize(
    ("micros", "text"),
    [(-1, "-0.000001"), (-1_500_000, "-1.5"), (-10_000_000, "-10"), (-999_999, "-0.999999"), (100_000_000, "100")],
)
def test_what_is_owed_is_written_with_its_sign(micros: int, text: str) -> None:
    assert in_units(micros) == str(as_decimal(micros)) == text


def test_nothing_has_no_sign_and_no_places() -> None:
    assert str(as_decimal(0)) == in_units(0) == "0"


@pytest.mark.parametrize(
    ("amount", "micros"), [(0.1, 100_000), (0.3, 300_000), (1, MICRO), (Decimal("2.50"), 2_500_000)]
)
def test_amounts_of_every_kind_are_read(amount: float | Decimal, micros: int) -> None:
    assert as_micros(amount) == micros


def test_currencies_are_those_of_the_standard() -> None:
    assert len(CURRENCIES) > 150
    assert all(len(code) == 3 and code.isascii() and code.isupper() for code in CURRENCIES)
    assert {"USD", "EUR", "JPY", "CHF", "INR"} <= CURRENCIES
    assert not {"XXX", "BTC", "DEM", "XAU"} & CURRENCIES


def test_a_cost_is_awaited_at_once_and_as_often_as_one_likes() -> None:
    cost = Cost(Decimal(1), Decimal(2), Decimal(0), Decimal(3))

    async def twice() -> list[Cost]:
        return [await cost, await cost]

    assert asyncio.run(twice()) == [cost, cost]
    assert cost.breakdown == {}


def test_parts_are_named_as_in_the_specified_breakdown() -> None:
    assert [*PricePart][:3] == ["cpc", "cpa_bonus", "cpa_penalty"]
    # These are ours.
    assert [*PricePart][3:] == ["tokens", "adjustment"]


def test_a_bill_and_its_lines_survive_json() -> None:
    bill = Bill(
        "EUR",
        [Line("cpc", PricePart.CPC, 5, "completed"), Line("x", PricePart.PENALTY, -1, "y", "z")],
        5,
        0,
        1,
        4,
        1,
        3,
        2,
    )
    assert Bill.from_json(bill.to_json()) == bill
