"""What an author may write in every assertion, and how what is wrong is told."""

from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.shelves import Shelf

from meruit.checks.formats import json_path as dotted
from meruit.checks.framework.assertion import MAX_FIELDS, SettleSettings, as_rule
from meruit.checks.framework.compile import validate_settings
from meruit.checks.matching.formulas import fill_templates
from meruit.checks.matching.matchers import Dialect
from meruit.errors import AssertionFaults, AuthorError
from meruit.model.assertion import Range, as_range

# Any, here and below: whatever an author may write.
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["min", "max", "a"]), inner),
    max_leaves=4,
)


def faults(**written: Any) -> dict[str, str]:
    with pytest.raises(AssertionFaults) as refused:
        validate_settings(Shelf, written)
    return {".".join(map(str, place)): why for place, why in refused.value.faults}


@pytest.mark.parametrize(
    ("written", "low", "high", "text"),
    [
        (1, 1, 1, "exactly 1"),
        (0, 0, 0, "exactly 0"),
        (">=1", 1, None, "at least 1"),
        ("> 1", 2, None, "at least 2"),
        ("<=3", 0, 3, "0 to 3"),
        ("<3", 0, 2, "0 to 2"),
        ("= 2", 2, 2, "exactly 2"),
        ("==2", 2, 2, "exactly 2"),
        ([1, 3], 1, 3, "1 to 3"),
        ({"min": 1}, 1, None, "at least 1"),
        ({"max": 1}, 0, 1, "0 to 1"),
        ({"min": 2, "max": 2}, 2, 2, "exactly 2"),
        ({"min": 2, "max": None}, 2, None, "at least 2"),
        (Range(1, 2), 1, 2, "1 to 2"),
    ],
)
def test_how_many_there_may_be(written: Any, low: int, high: int | None, text: str) -> None:
    found = as_range(written)
    assert (found.low, found.high, str(found)) == (low, high, text)
    for number in range(5):
        assert (number in found) is (number >= low and (high is None or number <= high))
    assert not found.__contains__("a")


@pytest.mark.parametrize(
    "written",
    [
        -1,
        True,
        1.5,
        Decimal(1),
        None,
        "",
        "1-3",
        "<0",
        ">=x",
        "٣",
        [3, 1],
        [1],
        [True, 2],
        [-1, 2],
        {},
        {"min": "1"},
        {"max": -1},
        {"min": 3, "max": 1},
        {"least": 1},
        {"min": True},
        {"min": None},
        ["1", "2"],
        ">=" + "9" * 10,
    ],
)
def test_an_invalid_count_is_refused(written: Any) -> None:
    with pytest.raises(ValueError, match="number of"):
        as_range(written)


@given(ANYTHING)
def test_a_count_of_any_kind_is_a_range_or_refused(written: Any) -> None:
    try:
        found = as_range(written)
    except ValueError:
        return
    assert found.low >= 0
    assert found.high is None or found.high >= found.low


def test_a_field_may_weigh_more_and_may_be_a_must() -> None:
    rule = as_rule({"gte": 1, "weight": "2.5", "must": True}, Dialect.JSON)
    assert (rule.weight, rule.must, rule.matcher.op) == (Fraction(5, 2), True, "gte")
    assert as_rule("a", Dialect.JSON).weight == 1
    assert as_rule(rule, Dialect.JSON) is rule


@pytest.mark.parametrize(
    "written",
    [
        {"weight": 2},
        {"equals": 1, "weight": 0},
        {"equals": 1, "weight": -1},
        {"equals": 1, "weight": "much"},
        {"equals": 1, "must": "yes"},
        {"equals": 1, "weight": True},
        {"equals": "${"},
        {"equals": "${lambda: 1}"},
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(written: Any) -> None:
    with pytest.raises(AuthorError):
        as_rule(written, Dialect.JSON)


def test_a_filled_in_value_is_not_a_rule() -> None:
    planted = fill_templates({"a": "${x}"}, {"x": {"weight": 1, "must": False, "exists": True}})["a"]
    rule = as_rule(planted, Dialect.JSON)
    assert (rule.matcher.op, rule.matcher.expected) == ("equals", planted)


def test_fields_may_be_a_list() -> None:
    written = [
        {"path": "participant.0.actor.display", "expected": "Dr. Rivera"},
        {"path": "status", "expected": {"in": ["booked"]}, "weight": 2},
        {"path": "note", "expected": "absent"},
        {"path": "tags", "expected": ["a", "b"], "must": True},
        {"path": "start"},
        {"path": "end", "weight": 3},
        {"path": "size", "gte": 1},
        {"path": "gone", "expected": None},
    ]
    rules = validate_settings(Shelf, {"fields": written}).fields
    assert {path: rule.matcher.op for path, rule in rules.items()} == {
        "participant.0.actor.display": "equals",
        "status": "in",
        "note": "absent",
        "tags": "equals",
        "start": "exists",
        "end": "exists",
        "size": "gte",
        "gone": "equals",
    }
    assert (rules["status"].weight, rules["end"].weight, rules["tags"].must) == (Fraction(2), Fraction(3), True)


def test_a_value_filled_into_a_list_is_literal() -> None:
    for planted in ("absent", {"exists": True}):
        fields = fill_templates([{"path": "a", "expected": "${x}"}], {"x": planted})
        rule = validate_settings(Shelf, {"fields": fields}).fields["a"]
        assert rule.matcher.op == "equals"
        assert rule.matcher.judge(("other",)) is not None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        (["status"], "a path"),
        ([{"expected": 1}], "a path"),
        ([{"path": 5, "expected": 1}], "a path"),
        ([{"path": "a", "expected": 1}, {"path": "a"}], "twice"),
        ([{"path": "a", "expected": 1, "gte": 2}], "weight"),
        ("status", "a mapping"),
        ({f"a{number}": 1 for number in range(MAX_FIELDS + 1)}, "500"),
    ],
)
def test_an_invalid_list_of_fields_is_refused(fields: Any, why: str) -> None:
    assert why in faults(fields=fields)["fields"]


def test_every_fault_is_reported_at_its_path() -> None:
    assert faults(
        fields={"a..b": 1, "c": {"equal": 1}, "d": {"gte": "much"}, "${e}": 1},
        where={"f": {"matches": "("}},
        feilds={},
        count="many",
        changed="maybe",
        match="worst",
        credit="none",
        evidence="secret",
        let={"in": {"path": "a"}, "k": {"pick": "any", "path": ""}},
        when="k +",
        capture="not",
        settle={"within": "soon", "stable": 0},
    ).keys() == {
        *("fields.a..b", "fields.c", "fields.d", "fields.${e}", "where.f", "feilds", "count", "changed", "match"),
        *("credit", "evidence", "let.in", "let.k.pick", "let.k.path", "when", "capture"),
        *("settle.within", "settle.stable"),
    }


def test_faults_name_what_is_wrong() -> None:
    found = faults(feilds={}, changed="create", fields={"a": {"equal": 1}, "${b}": 1}, capture="min")
    assert "'fields'" in found["feilds"]
    assert "'created', 'updated'" in found["changed"]
    assert "'equals'" in found["fields.a"]
    assert "${…}" in found["fields.${b}"]
    assert "'min'" in found["capture"]
    assert "'an order'" in faults(capture="an order")["capture"]


@pytest.mark.parametrize("more", [{"fields": {"a": 1}}, {"capture": "book"}])
def test_count_zero_with_fields_is_refused(more: Any) -> None:
    assert "count: 0" in faults(count=0, **more)[""]


def test_no_time_at_all_is_a_time() -> None:
    assert SettleSettings(within="0s").within == "0s"
    assert SettleSettings(within="0s").within_s == 0
    assert SettleSettings().within_s == 30


@pytest.mark.parametrize("name", ["source", "validate", "allow"])
def test_internal_names_are_unknown_keys(name: str) -> None:
    assert "unknown key" in faults(**{name: "a"})[name]


def test_a_path_is_checked_by_the_check() -> None:
    with pytest.raises(AuthorError):
        dotted.compile_path("a..b")
    assert "'a..b'" in faults(where={"a..b": 1})["where.a..b"]
