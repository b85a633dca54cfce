"""Units: two names of one unit agree, two units contradict, and what is not known does neither."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.checks.fhir_types.units import contradict
from meruit.checks.matching.matchers import matcher

SAME = [
    {"mg", "MG", "milligram", "milligrams"},
    {"ug", "mcg", "µg", "microgram"},
    {"mm[Hg]", "mmHg", "mm Hg"},
    {"meq", "mEq"},
    {"/min", "{beats}/min", "bpm", "beats/min", "breaths/min", "beats per minute"},
    {"Cel", "°C", "C"},
    {"[degF]", "°F"},
    {"mL", "ml", "cc"},
    {"mg/dL", "mg/dl"},
    {"[lb_av]", "lbs"},
    {"kg"},
    {"g"},
    {"%"},
    {"h", "hours"},
]


def test_names_of_one_unit_agree_and_of_two_contradict() -> None:
    for unit in SAME:
        assert not any(contradict(one, other) for one in unit for other in unit), unit
    for unit, another in combinations(SAME, 2):
        assert all(contradict(one, other) and contradict(other, one) for one in unit for other in another)


@pytest.mark.parametrize("unknown", ["tablet", "TAB", "puff", "mg/tablet", ""])
def test_what_is_not_known_contradicts_nothing(unknown: str) -> None:
    if unknown:
        assert not contradict(unknown, "mg")


@given(st.text(max_size=20), st.text(max_size=20))
def test_contradiction_is_mutual_and_never_of_itself(one: str, other: str) -> None:
    assert contradict(one, other) == contradict(other, one)
    assert not contradict(one, one)


@pytest.mark.parametrize(
    ("found", "fits"),
    [
        ({"unit": "mg"}, True),
        ({"code": "mg"}, True),
        ({"unit": "milligrams", "code": "mg"}, True),
        ({"unit": "mg", "code": "g"}, False),
        ({"unit": "g", "code": "mg"}, False),
        ({"unit": "mg", "code": "MG-1"}, True),
        ({"unit": "g", "code": "g"}, False),
        ({}, False),
    ],
)
def test_text_and_code_of_a_quantity_must_not_contradict(found: dict[str, str], fits: bool) -> None:
    asked = matcher({"quantity": {"value": 5, "unit": "mg"}})
    assert (asked.judge(({"value": 5, **found},)) is None) is fits
