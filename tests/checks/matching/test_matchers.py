"""Each matcher against what is found: fits, does not fit, or says why nobody can tell."""

import math
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.checks.fhir_types.reference import OwnReference
from meruit.checks.formats.hl7v2 import HL7_NULL
from meruit.checks.matching.formulas import fill_templates
from meruit.checks.matching.matchers import MAX_DEPTH, NOTHING, OPERATORS, Dialect, matcher, same
from meruit.errors import AuthorError

TEXT, JSON = Dialect.TEXT, Dialect.JSON


def why(written: Any, *values: Any, dialect: Dialect = JSON) -> str | None:
    return matcher(written, dialect).judge(values)


def fits(written: Any, *values: Any, dialect: Dialect = JSON) -> bool:
    return why(written, *values, dialect=dialect) is None


SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "A", "1", "true", "absent"])
NUMBERS = st.decimals(-50, 50, places=2)
VALUES = st.recursive(
    SCALARS | NUMBERS | st.text("abc é\0|", max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=5,
)
WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from(["2026-03-06", "20260306", "2026-03-06T10:00:00Z", "Patient/1", "15m", "s|c", "(", "absent"])
    | st.sampled_from([5000, 4300, 300]).map(lambda digits: 10**digits)
    | st.sampled_from([HL7_NULL, b"x", object(), {1}, Decimal("sNaN"), Decimal("1e999999")]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*OPERATORS, "value", "by", "unit", "tz", "coding", "code"]), inner, max_size=3
        )
        | st.tuples(inner)
    ),
    max_leaves=8,
)


# Equality


def reference(expected: Any, actual: Any) -> bool:
    """Sameness in JSON, told by types that keep numbers apart from all else."""

    def key(value: Any) -> Any:
        match value:
            case bool() | None | str():
                return type(value).__name__, value
            case int() | float() | Decimal():
                return "number", Fraction(str(value))
            case list():
                return "list", tuple(map(key, value))
            case _:
                return "mapping", tuple(sorted((name, key(one)) for name, one in value.items()))

    return bool(key(expected) == key(actual))


@given(VALUES, VALUES)
def test_two_values_are_the_same_when_type_and_content_are(expected: Any, actual: Any) -> None:
    assert same(expected, actual, JSON) is reference(expected, actual)
    assert same(expected, expected, JSON)


@given(VALUES.filter(lambda value: value is not None and not isinstance(value, list)), st.lists(VALUES))
def test_one_value_that_is_the_same_is_enough(expected: Any, found: list[Any]) -> None:
    assert fits({"equals": expected}, *found) is any(reference(expected, one) for one in found)


@pytest.mark.parametrize(
    ("expected", "actual", "is_same"),
    [
        (1, Decimal("1.0"), True),
        (Decimal("0.3"), Decimal("0.30"), True),
        (0.3, Decimal("0.1") + Decimal("0.2"), True),
        (1, True, False),
        (True, 1, False),
        (0, False, False),
        (1, "1", False),
        ("1", 1, False),
        ("1.0", "1", False),
        (None, 0, False),
        ("", None, False),
        (Decimal("0.1"), Decimal("0.1000000000000000055511151231257827"), False),
        (10**30, Decimal("1E+30"), True),
        ({"a": 1}, {"a": Decimal("1.0")}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ([1, 2], [2, 1], False),
    ],
)
def test_numbers_are_equal_as_numbers_and_nothing_else_is(expected: Any, actual: Any, is_same: bool) -> None:
    assert same(expected, actual, JSON) is is_same


@pytest.mark.parametrize(
    ("expected", "actual", "is_same"),
    [
        ("01", "01", True),
        (1, "1", True),
        (1, "01", False),
        (1, "1.0", False),
        (Decimal("450.50"), "450.5", True),
        ("a", "A", False),
        ("", "", True),
        ("", HL7_NULL, False),
        ('""', HL7_NULL, False),
    ],
)
def test_a_number_matches_its_text_in_text_protocols(expected: Any, actual: Any, is_same: bool) -> None:
    assert fits({"equals": expected}, actual, dialect=TEXT) is is_same


@pytest.mark.parametrize(
    "written",
    [
        True,
        False,
        {"equals": True},
        {"in": ["a", False]},
        {"set": [True]},
        {"equals": {"a": 1}},
        {"equals": [True]},
        {"equals": [["a"]]},
        {"in": [{"a": "b"}]},
        {"not": True},
        {"any": {"equals": False}},
    ],
)
def test_what_can_never_stand_in_text_is_refused(written: Any) -> None:
    with pytest.raises(AuthorError, match="is text"):
        matcher(written, TEXT)


@pytest.mark.parametrize(
    "written",
    [
        math.nan,
        math.inf,
        {"equals": math.nan},
        {"in": [1, math.inf]},
        {"equals": 10**5000},
        Decimal("1e500"),
        b"a",
        {1},
        object(),
        datetime(2026, 1, 1, tzinfo=UTC),
        {"equals": {1: 2}},
        {"set": [date(2026, 1, 1)]},
    ],
)
def test_what_can_never_stand_anywhere_is_refused(written: Any) -> None:
    with pytest.raises(AuthorError):
        matcher(written)


def test_null_is_the_same_as_null_and_as_nothing_and_other_than_the_rest() -> None:
    assert fits(None)
    assert fits(None, None)
    assert fits({"equals": None}, None, None)
    assert not fits(None, "")
    assert not fits(None, None, 0)
    assert fits(None, HL7_NULL, dialect=TEXT)
    assert fits({"in": [None, "a"]})
    assert not fits({"in": ["b", "a"]})


def test_null_and_absence_are_distinguished() -> None:
    strictly_null = {"count": 1, "equals": None}
    assert fits(strictly_null, None)
    assert not fits(strictly_null)
    assert fits("absent")
    assert str(why("absent", None)).startswith("is null; ")


def test_a_list_is_held_against_all_that_was_found() -> None:
    assert fits({"equals": [1, 2]}, 1, 2)
    assert not fits({"equals": [1, 2]}, 2, 1)
    assert fits({"equals": [1, 2]}, [1, 2], [3])
    assert why({"equals": [1]}) == NOTHING


# Membership


@given(st.lists(VALUES, min_size=1), st.lists(VALUES, min_size=1))
def test_in_and_not_in_are_opposites_wherever_there_is_something(choices: list[Any], found: list[Any]) -> None:
    expected = any(reference(one, other) for one in choices for other in found)
    assert fits({"in": choices}, *found) is expected
    assert fits({"not_in": choices}, *found) is not expected
    assert not fits({"not_in": choices})


@pytest.mark.parametrize("name", ["in", "not_in", "one_of", "all_of"])
@pytest.mark.parametrize("given", [[], "a", None, {"a": 1}, 5])
def test_an_empty_list_is_the_authors_error(name: str, given: Any) -> None:
    with pytest.raises(AuthorError, match="a list"):
        matcher({name: given})


@given(st.lists(VALUES, max_size=5), st.randoms())
def test_a_set_is_a_list_in_any_order_each_as_often(wanted: list[Any], chance: Any) -> None:
    shuffled = chance.sample(wanted, len(wanted))
    assert fits({"set": wanted}, *shuffled)
    assert not fits({"set": wanted}, *shuffled, "one more than asked")
    if wanted:
        assert not fits({"set": wanted}, *shuffled[1:])


@given(*[st.lists(st.sampled_from("abc"))] * 2)
def test_a_set_counts(wanted: list[str], found: list[str]) -> None:
    assert fits({"set": wanted}, *found, dialect=TEXT) is (Counter(wanted) == Counter(found))


# Text


@pytest.mark.parametrize(
    ("pattern", "value", "is_match"),
    [
        (r"AUTH-\d+", "AUTH-4471", True),
        (r"AUTH-\d+", "AUTH-4471 ", False),
        ("a|b", "ab", False),
        (".*MRI.*", "an MRI", True),
        ("4.5", Decimal("4.50"), True),
        ("72148", 72148, True),
        ("é+", "éé", True),
        (".", "\ud800", True),
        ("a", True, False),
        ("a", {"text": "a"}, False),
        ("", "", True),
    ],
)
def test_a_pattern_matches_the_whole_text(pattern: str, value: Any, is_match: bool) -> None:
    assert fits({"matches": pattern}, value) is is_match


@pytest.mark.parametrize("given", ["(", "[a", "(?<=a)b", "a{1001}", "\\", 5, None, "a" * 2001, "\ud800"])
def test_a_bad_pattern_is_the_authors_error(given: Any) -> None:
    with pytest.raises(AuthorError):
        matcher({"matches": given})


def test_no_pattern_can_keep_anybody_busy() -> None:
    started = time.process_time()
    assert not fits({"matches": "(a+)+$"}, "a" * 100_000 + "!")
    assert not fits({"matches": "(a|aa)*b|(.*)*c"}, "a" * 100_000)
    assert time.process_time() - started < 30


CONCEPT = {
    "text": "By Mouth",
    "coding": [
        {"system": "http://snomed.info/sct", "code": "26643006", "display": "Oral route"},
        {"system": "http://example.org", "code": "PO"},
        "odd",
    ],
}


@pytest.mark.parametrize(
    ("written", "value", "is_fit"),
    [
        ({"contains": "Rivera"}, "Dr. Rivera, MD", True),
        ({"contains": "rivera"}, "Dr. Rivera, MD", False),
        ({"contains": "Oral"}, CONCEPT, True),
        ({"says": "by mouth!"}, CONCEPT, True),
        ({"says": "ORAL"}, CONCEPT, True),
        ({"says": "oral"}, "temporal", False),
        ({"says": "no known allergies"}, "There are known allergies", False),
        ({"contains": "a"}, 5, False),
        ({"says": "a"}, None, False),
        ({"says": "a"}, {"text": 5, "coding": {"display": "a"}}, False),
    ],
)
def test_words_are_found_in_texts_and_in_what_concepts_show(written: Any, value: Any, is_fit: bool) -> None:
    assert fits(written, value) is is_fit


@pytest.mark.parametrize("written", [{"contains": ""}, {"contains": 5}, {"says": "..."}, {"says": None}, {"says": ""}])
def test_no_word_is_the_authors_error(written: Any) -> None:
    with pytest.raises(AuthorError):
        matcher(written)


# Presence


@pytest.mark.parametrize(
    ("values", "true_of_them"),
    [
        ((), {"absent"}),
        ((None,), set()),
        (("",), {"empty"}),
        (({},), {"empty"}),
        ((HL7_NULL,), {"hl7_null"}),
        (("a",), {"exists"}),
        ((0,), {"exists"}),
        ((False,), {"exists"}),
        (("", "a"), {"exists"}),
        ((HL7_NULL, ""), set()),
    ],
)
def test_absent_empty_and_null_are_three_things_and_none_of_them_exists(
    values: tuple[Any, ...], true_of_them: set[str]
) -> None:
    words = ("exists", "absent", "empty", "hl7_null")
    assert {word for word in words if fits(word, *values)} == true_of_them
    assert {word for word in words if fits({word: True}, *values)} == true_of_them


def test_the_opposite_of_a_presence_is_not_satisfied_by_nothing() -> None:
    assert fits({"exists": False})
    assert not fits({"exists": False}, "a")
    assert fits({"absent": False}, "a")
    assert not fits({"absent": False})
    assert fits({"empty": False}, "a")
    assert not fits({"empty": False}, "")
    assert not fits({"empty": False})
    assert fits({"hl7_null": False}, "")
    assert not fits({"hl7_null": False}, HL7_NULL)
    assert not fits({"hl7_null": False})


@pytest.mark.parametrize("word", ["exists", "absent", "empty", "hl7_null"])
def test_a_word_can_be_compared_with_when_the_author_says_so(word: str) -> None:
    assert fits({"equals": word}, word)
    assert not fits({"equals": word}, "other")
    with pytest.raises(AuthorError, match="true or"):
        matcher({word: "yes"})


@given(st.lists(VALUES), st.integers(0, 4))
def test_a_count_is_of_all_values_at_the_path(found: list[Any], number: int) -> None:
    assert fits({"count": number}, *found) is (len(found) == number)
    assert fits({"count": {"gte": number}}, *found) is (len(found) >= number)
    assert fits({"count": {"not": number}}, *found) is (len(found) != number)


@pytest.mark.parametrize("given", ["3", True, None, -1, 1.5, [3], math.nan, 10**999])
def test_a_count_that_nothing_has_is_the_authors_error(given: Any) -> None:
    with pytest.raises(AuthorError):
        matcher({"count": given})


# Order


@given(st.lists(NUMBERS, min_size=1), NUMBERS, NUMBERS)
def test_numbers_are_in_their_order(found: list[Decimal], one: Decimal, other: Decimal) -> None:
    low, high = sorted((one, other))
    for dialect, values in ((JSON, found), (TEXT, [str(number) for number in found])):
        assert fits({"gt": low}, *values, dialect=dialect) is any(number > low for number in found)
        assert fits({"gte": low}, *values, dialect=dialect) is any(number >= low for number in found)
        assert fits({"lt": low}, *values, dialect=dialect) is any(number < low for number in found)
        assert fits({"lte": low}, *values, dialect=dialect) is any(number <= low for number in found)
        expected = any(low <= number <= high for number in found)
        assert fits({"between": [low, high]}, *values, dialect=dialect) is expected
        assert fits({"gte": low, "lte": high}, *values, dialect=dialect) is expected
        assert fits({"all_of": [{"gte": low}, {"lte": high}]}, *values, dialect=dialect) is expected


def test_two_conditions_are_about_the_same_value() -> None:
    assert not fits({"gte": 1, "lte": 5}, 0, 9)
    assert fits({"gte": 1, "lte": 5, "count": 3}, 0, 9, 5)
    assert not fits({"all_of": [{"one_of": [1, 2]}, {"gt": 1}]}, 1, 9)


@given(NUMBERS, NUMBERS, NUMBERS.map(abs))
def test_near_is_exact(number: Decimal, value: Decimal, reach: Decimal) -> None:
    expected = abs(Fraction(number) - Fraction(value)) <= Fraction(reach)
    assert fits({"near": {"value": value, "by": reach}}, number) is expected
    by_share = abs(Fraction(number) - Fraction(value)) <= abs(Fraction(value)) * Fraction(reach) / 100
    assert fits({"near": {"value": value, "pct": reach}}, number) is by_share
    assert fits({"quantity": {"value": value, "by": reach}}, {"value": number}) is expected


def test_tenths_add_up() -> None:
    assert fits({"near": {"value": 0.3, "by": 0}}, Decimal("0.1") + Decimal("0.2"))
    assert fits({"near": {"value": 0.1, "by": 0.1}}, Decimal("0.2"))
    assert not fits({"near": {"value": 0.1, "by": 0.1}}, Decimal("0.20000000000000000000000000000001"))
    assert fits({"near": {"value": "123456789012345678901234567890.1", "pct": 0}}, "123456789012345678901234567890.10")
    assert not fits({"lte": 1}, Decimal("1.00000000000000000000000000000000000000000001"))


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ({"gt": 5}, "high"),
        ({"lte": 5}, True),
        ({"between": [1, 2]}, None),
        ({"near": {"value": 1, "by": 1}}, "1 mg"),
        ({"gt": 5}, Decimal("1e999")),
        ({"before": "2026-03-06"}, "soon"),
        ({"after": "2026-03-06T10:00Z"}, 20260306),
        ({"after": "2026-03-06T10:00Z"}, "2026-03-07T10:00"),
        ({"after": "2026-03-06T10:00Z"}, "2026-03-07"),
        ({"after": "2026-03-06"}, "2026"),
        ({"same_day": "2026-03-01"}, "2026-03"),
        ({"around": {"value": "2026-03-06T10:00Z", "by": "1h"}}, {}),
        ({"quantity": {"value": 5}}, 5),
        ({"quantity": {"value": 5, "unit": "mg"}}, {"value": 5, "unit": "g"}),
        ({"quantity": {"value": 5}}, {"value": 5, "comparator": "<"}),
        ({"matches": "a"}, {"a": 1}),
    ],
)
def test_what_is_of_another_kind_fits_neither_a_matcher_nor_its_opposite(written: Any, value: Any) -> None:
    reason = why(written, value)
    assert reason is not None
    assert reason.startswith("is ")
    assert not fits({"not": written}, value)
    assert not fits({"none": written}, value)
    assert not fits({"not": {"one_of": [written, "other"]}}, value)


def test_huge_exponents_cost_nothing() -> None:
    started = time.process_time()
    for found in ("1e999999999", "-1e-999999999", Decimal("1e999999"), "9" * 399):
        for written in ({"gt": 5}, {"near": {"value": 1, "by": 1}}, {"equals": 5}, {"between": [0, 1]}, {"in": [1]}):
            assert not fits(written, found)
    for expected in ("1e999999999", Decimal("1e999999")):
        with pytest.raises(AuthorError):
            matcher({"near": {"value": expected, "by": 0}})
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "written",
    [
        {"between": [2, 1]},
        {"between": [1]},
        {"between": "1-2"},
        {"between": ["2026-03-07", "2026-03-06"]},
        {"between": ["2026-03-07T10:00Z", "2026-03-07T10:00+01:00"]},
        {"between": ["2026-03-06", "2026-03-07T10:00Z"]},
        {"between": [1, "2026-03-07"]},
        {"near": 5},
        {"near": {"value": 5}},
        {"near": {"value": 5, "by": 1, "pct": 1}},
        {"near": {"value": 5, "by": -1}},
        {"near": {"value": 5, "by": "a", "pct": 1}},
        {"near": {"value": "x", "by": 1}},
        {"near": {"value": 5, "within": 1}},
        {"gt": "much"},
        {"gt": None},
        {"gt": True},
        {"gt": []},
        {"before": "2026-03-06T10:00:00"},
        {"before": "tomorrow"},
        {"before": {"value": "2026-03-06T10:00:00", "tz": "Mars"}},
        {"before": {"at": "2026-03-06"}},
        {"same_day": "2026-03"},
        {"same_day": "2026-03-06T10:00"},
        {"around": {"value": "2026-03-06", "by": "1h"}},
        {"around": {"value": "2026-03-06T10:00", "by": "1h"}},
        {"around": {"value": "2026-03-06T10:00Z", "by": 5}},
        {"around": {"value": "2026-03-06T10:00Z"}},
        {"coding": ""},
        {"coding": "system|"},
        {"coding": 5},
        {"ref": ""},
        {"ref": {"reference": "Patient/1"}},
        {"quantity": 5},
        {"quantity": {"unit": "mg"}},
        {"quantity": {"value": 5, "unit": 5}},
        {"quantity": {"value": 5, "by": -1}},
        {"quantity": {"value": "five"}},
        {"set": "a"},
        {"not": "exists"},
        {"not": {"exists": True}},
        {},
        [],
        ["a"],
        {"equal": 1},
        {5: 1},
        {"any": []},
        {"all": {}},
    ],
)
def test_what_cannot_be_meant_is_the_authors_error(written: Any) -> None:
    with pytest.raises(AuthorError):
        matcher(written)


def test_a_matcher_that_is_misspelt_names_the_nearest() -> None:
    with pytest.raises(AuthorError, match="'equals'"):
        matcher({"equal": 1})


# Time

INSTANTS = st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 - made so
AFTER: dict[str, Callable[[Any, Any], bool]] = {
    "before": lambda found, limit: found < limit,
    "after": lambda found, limit: found > limit,
    "gt": lambda found, limit: found > limit,
    "gte": lambda found, limit: found >= limit,
    "lt": lambda found, limit: found < limit,
    "lte": lambda found, limit: found <= limit,
}


@given(INSTANTS, INSTANTS, st.integers(-12, 12), st.timedeltas(timedelta(), timedelta(days=400)))
def test_instants_are_ordered_across_zones(found: datetime, limit: datetime, hours: int, reach: timedelta) -> None:
    written = (found + timedelta(hours=hours)).replace(tzinfo=None).isoformat() + f"{hours:+03d}:00"
    for name, holds in AFTER.items():
        assert fits({name: limit.isoformat()}, written) is holds(found, limit)
    seconds = int(reach.total_seconds())
    around = {"around": {"value": limit.isoformat(), "by": f"{seconds}s"}}
    assert fits(around, written) is (abs(found - limit) <= timedelta(seconds=seconds))


@given(st.dates(date(1900, 1, 1)), st.dates(date(1900, 1, 1)), st.sampled_from(["%Y", "%Y-%m", "%Y-%m-%d"]))
def test_dates_are_compared_as_precisely_as_the_author_wrote(found: date, limit: date, form: str) -> None:
    one, other = found.strftime(form), limit.strftime(form)
    for name in ("before", "after"):
        assert fits({name: other}, found.isoformat()) is AFTER[name](one, other)
    if form == "%Y-%m-%d":
        for name in ("gt", "gte", "lt", "lte"):
            assert fits({name: limit.strftime("%Y%m%d")}, found.strftime("%Y%m%d"), dialect=TEXT) is AFTER[name](
                one, other
            )
        assert fits({"between": sorted((one, other))}, found.isoformat())


@pytest.mark.parametrize(
    ("written", "value", "is_fit"),
    [
        ({"around": {"value": "20260306100000-0600", "by": "0m"}}, "2026-03-06T16:00:00Z", True),
        ({"around": {"value": "20260306100000", "by": "0m", "tz": "America/Chicago"}}, "202603061000", True),
        ({"after": {"value": "2026-03-06T10:00", "tz": "-06:00"}}, "2026-03-06T16:00:01Z", True),
        ({"same_day": "2026-03-06"}, "2026-03-06T23:59:59-06:00", True),
        ({"same_day": {"value": "2026-03-06", "tz": "UTC"}}, "2026-03-06T23:59:59-06:00", False),
        ({"same_day": "2026-03-06T23:00:00-06:00"}, "2026-03-07T05:00:00Z", True),
        ({"same_day": 20260306}, "20260306", True),
        ({"before": 2027}, "2026-12-31", True),
        ({"after": "2026"}, "2026-12-31", False),
        ({"between": ["20260301", "20260331"]}, "202603311200", True),
        ({"between": ["2026-03-06", "2026-04"]}, "2026-04-30", True),
        ({"between": ["2026-03-06T00:00Z", "2026-03-07T00:00Z"]}, "2026-03-06T12:00Z", True),
        ({"between": ["2026-03-06T00:00Z", "2026-03-07T00:00Z"]}, "2026-03-07T12:00Z", False),
        ({"same_day": {"value": "0001-01-01", "tz": "UTC"}}, "0001-01-01T00:00:00+14:00", True),
    ],
)
def test_times_of_a_day(written: Any, value: Any, is_fit: bool) -> None:
    assert fits(written, value) is is_fit


# FHIR


@pytest.mark.parametrize(
    ("wanted", "is_fit"),
    [
        ("http://snomed.info/sct|26643006", True),
        ("http://example.org|PO", True),
        ("PO", True),
        ("|PO", False),
        ("http://snomed.info/sct|PO", False),
        ("po", False),
    ],
)
def test_any_coding_of_a_concept_will_do(wanted: str, is_fit: bool) -> None:
    assert fits({"coding": wanted}, CONCEPT) is is_fit
    backwards = CONCEPT | {"coding": list(reversed(CONCEPT["coding"]))}
    assert fits({"coding": wanted}, backwards) is is_fit
    assert fits({"coding": wanted}, *(one for one in CONCEPT["coding"] if isinstance(one, dict))) is is_fit


def test_a_code_without_a_system_is_asked_for_with_an_empty_one() -> None:
    assert fits({"coding": "|PO"}, {"code": "PO"})
    assert fits({"coding": "active"}, "active")
    assert not fits({"coding": "|active"}, "active")


OURS = OwnReference("https://server/fhir/Patient/1", "Patient/1")


@pytest.mark.parametrize(
    "found", ["Patient/1", "Patient/1/_history/3", {"reference": "Patient/1"}, {"reference": OURS, "display": "Ann"}]
)
def test_all_forms_of_a_reference_are_equal(found: Any) -> None:
    assert fits({"ref": "Patient/1"}, found)
    assert fits({"ref": "Patient/1/_history/9"}, found)
    for other in ("Patient/11", "Practitioner/1", "patient/1", "https://elsewhere/fhir/Patient/1"):
        assert not fits({"ref": other}, found)


def test_a_resource_of_another_server_is_another_one() -> None:
    there = {"reference": "http://elsewhere/fhir/Patient/1/_history/3"}
    assert not fits({"ref": "Patient/1"}, there)
    assert not fits({"ref": "https://elsewhere/fhir/Patient/1"}, there)
    assert fits({"ref": "http://elsewhere/fhir/Patient/1"}, there)
    assert fits({"ref": "https://server/fhir/Patient/1"}, {"reference": OURS})


@pytest.mark.parametrize("found", [None, 5, {}, {"reference": 5}, {"display": "Patient/1"}, "#p", "urn:uuid:1"])
def test_what_refers_elsewhere_does_not_fit(found: Any) -> None:
    assert not fits({"ref": "Patient/1"}, found)


def test_a_quantity_is_not_converted_and_both_are_shown() -> None:
    asked = {"quantity": {"value": 80, "unit": "mEq", "by": 0.1}}
    assert fits(asked, {"value": Decimal("80.10"), "unit": "mEq"})
    assert fits(asked, {"value": 80, "unit": "milliequivalent", "code": "mEq"})
    assert why(asked, {"value": Decimal("0.080"), "unit": "Eq"}) == "is 0.08 Eq, not in mEq"
    assert str(why(asked, {"value": 80})).endswith("not in mEq")
    assert why(asked, {"value": Decimal("80.2"), "unit": "mEq"}) == "is 80.2 mEq"


# Several


@given(st.lists(st.integers(0, 5)), st.integers(0, 5))
def test_any_all_and_none_are_what_they_are_called(found: list[int], limit: int) -> None:
    asked = {"gte": limit}
    assert fits({"any": asked}, *found) is any(one >= limit for one in found)
    assert fits({"all": asked}, *found) is (bool(found) and all(one >= limit for one in found))
    assert fits({"none": asked}, *found) is not any(one >= limit for one in found)
    assert fits({"not": asked}, *found) is (bool(found) and not any(one >= limit for one in found))


def test_nothing_satisfies_only_what_asks_for_absence() -> None:
    satisfied = {
        name
        for name, given in {
            "any": "a",
            "all": "a",
            "none": "a",
            "not": "a",
            "in": ["a"],
            "not_in": ["a"],
            "one_of": ["a"],
            "all_of": ["a"],
            "matches": ".*",
            "contains": "a",
            "says": "a",
            "gt": 1,
            "lt": 1,
            "between": [0, 9],
            "near": {"value": 0, "by": 9},
            "before": "2026",
            "after": "2026",
            "same_day": "2026-01-01",
            "coding": "a",
            "ref": "Patient/1",
            "quantity": {"value": 0},
            "equals": "a",
            "set": ["a"],
            "exists": True,
            "absent": True,
            "empty": True,
            "hl7_null": True,
            "count": 0,
        }.items()
        if fits({name: given})
    }
    assert satisfied == {"none", "absent", "count"}
    assert fits({"one_of": ["absent", {"not": "a"}]})


def test_not_denies_what_is_said_of_the_whole() -> None:
    assert not fits({"not": {"count": 2}}, 1, 2)
    assert fits({"not": {"count": 2}}, 1)
    assert not fits({"not": {"set": [1, 2]}}, 2, 1)
    assert not fits({"not": {"equals": [1, 2]}}, 1, 2)
    assert fits({"not": {"all": 1}}, 1, 2)
    assert fits({"not": "absent"}, "")
    assert fits({"not": None}, 5)
    assert not fits({"not": None}, None)


@given(VALUES, st.lists(VALUES, min_size=1))
def test_not_twice_is_once(expected: Any, found: list[Any]) -> None:
    plain = {"equals": expected}
    assert fits({"not": {"not": plain}}, *found) is fits(plain, *found)


def test_alternatives_need_one_that_holds() -> None:
    route = {"one_of": [{"says": "oral"}, {"coding": "http://snomed.info/sct|26643006"}]}
    assert fits(route, {"coding": [{"system": "http://snomed.info/sct", "code": "26643006"}]})
    assert fits(route, {"text": "Oral"})
    assert why(route, {"text": "IV"}) == 'says {"text": "IV"}'


def test_reasons_are_short_and_count() -> None:
    assert why("a", "b") == "is 'b'"
    assert str(why("a", "b", "c")).endswith("is 'b'")
    assert why({"all": "a"}, "a", "c") == "is 'c'"
    assert why("a", {"value": Decimal("7.50"), "list": [True, None]}) == 'is {"value": 7.5, "list": [true, null]}'
    for value in ("x" * 10**6, ["x" * 100] * 10**5, {"a": 10**5000}, 10**5000):
        assert len(why("a", value) or "") < 200


# Never an exception


@given(WILD, st.lists(WILD, max_size=3), st.sampled_from(Dialect))
def test_any_input_is_a_matcher_or_the_authors_error(written: Any, found: list[Any], dialect: Dialect) -> None:
    try:
        judge = matcher(written, dialect).judge
    except AuthorError:
        return
    assert isinstance(judge(tuple(found)), str | None)


@given(
    st.sampled_from([name for name in OPERATORS if name not in ("any", "all", "none", "one_of", "all_of", "not")]), WILD
)
def test_every_operator_takes_what_it_can_and_refuses_the_rest(name: str, given: Any) -> None:
    try:
        judge = matcher({name: given}).judge
    except AuthorError:
        return
    odd: list[Any] = [None, "", "a", 0, [], {}, {"coding": 5, "reference": [], "value": "x"}, HL7_NULL]
    for value in odd:
        assert isinstance(judge((value,)), str | None)


@pytest.mark.parametrize("name", ["not", "equals", "in", "set", "one_of"])
@pytest.mark.parametrize("depth", [100, 100_000])
def test_deep_nesting_is_the_authors_error(name: str, depth: int) -> None:
    written: Any = "a"
    for _ in range(depth):
        written = {"not": written} if name == "not" else [written]
    with pytest.raises(AuthorError, match="deep"):
        matcher({name: written})


def test_the_nesting_of_matchers_is_limited() -> None:
    written: Any = "a"
    for _ in range(MAX_DEPTH):
        written = {"not": written}
    assert fits(written, "a")
    with pytest.raises(AuthorError, match="matchers"):
        matcher({"not": written})


def test_what_holds_itself_is_the_authors_error() -> None:
    cyclic: dict[str, Any] = {}
    cyclic["not"] = cyclic
    with pytest.raises(AuthorError):
        matcher(cyclic)
    wide: list[Any] = ["a"]
    for _ in range(50):
        wide = [wide, wide]
    with pytest.raises(AuthorError):
        matcher({"equals": wide})


def test_a_deep_document_is_judged() -> None:
    deep: Any = "a"
    for _ in range(100_000):
        deep = {"coding": [deep]}
    for written in ("a", {"says": "a"}, {"coding": "a"}, {"equals": {"coding": ["a"]}}, {"set": [1]}):
        assert not fits(written, deep)


# What is filled in


def test_a_template_waits_and_fits_nothing_until_it_is_filled_in() -> None:
    waiting = matcher({"not": "${k}"})
    assert waiting.later
    assert "${…}" in str(waiting.judge(("a",)))


@pytest.mark.parametrize(
    "planted", ["exists", "absent", {"exists": True}, {"matches": ".*"}, {"not": "b"}, ["a"], "${k}"]
)
def test_a_filled_in_value_is_never_a_matcher(planted: Any) -> None:
    for written in ("${x}", {"not": {"not": "${x}"}}, {"one_of": ["${x}"]}, {"in": ["${x}"]}, {"all": "${x}"}):
        compiled = matcher(fill_templates(written, {"x": planted}))
        assert compiled.judge((planted,)) is None
        assert compiled.judge(("anything",)) is not None


@given(st.text(min_size=1))
def test_a_value_filled_into_a_pattern_is_escaped(planted: str) -> None:
    compiled = matcher(fill_templates({"matches": "A-${x}-\\d+"}, {"x": planted}))
    assert compiled.judge((f"A-{planted}-7",)) is None
    assert compiled.judge((f"A-{planted}x-7",)) is not None
    assert compiled.judge((f"A-{planted}-",)) is not None


def test_an_amount_is_compared_by_value_in_text_and_a_code_is_not() -> None:
    amount = matcher(450.0, Dialect.TEXT)
    assert [amount.judge((text,)) is None for text in ("450.00", "450", "450.01", "x")] == [True, True, False, False]
    assert matcher(837, Dialect.TEXT).judge(("0837",)) is not None
