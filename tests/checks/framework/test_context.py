"""What checks see and show: documents, changes, and values fit for evidence."""

import json
import math
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.checks.shelves import snapshot, work

from meruit.checks.formats.hl7v2 import HL7_NULL
from meruit.checks.framework.assertion import EvidenceDisplay, ItemChange
from meruit.checks.framework.context import (
    MAX_ACTUAL,
    CheckContext,
    build_work_context,
    digest_of,
    for_evidence,
    redact_value,
    sanitize_value,
)
from meruit.checks.matching.compare import MAX_SHOWN, format_value

WILD = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.decimals()
    | st.text(st.characters(exclude_categories=()))
    | st.sampled_from([300, 400, 5000]).map(lambda digits: 10**digits)
    | st.sampled_from([HL7_NULL, Decimal("sNaN"), Decimal("1e999999"), math.inf]),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=())), inner),
    max_leaves=8,
)


@given(WILD)
def test_any_value_is_shown_as_json_of_bounded_size(value: Any) -> None:
    for one in (sanitize_value(value), for_evidence((value, value)), for_evidence((value,), EvidenceDisplay.HASH)):
        written = json.dumps(one, allow_nan=False)
        assert json.loads(written) == one
        assert len(written.encode("utf-8", "surrogatepass")) < 20 * MAX_ACTUAL
    assert len(format_value(value)) <= MAX_SHOWN + 1


@pytest.mark.parametrize(
    ("value", "as_shown"),
    [
        (Decimal("7.50"), 7.5),
        (Decimal("0.1000000000000000055511151231257827"), "0.1000000000000000055511151231257827"),
        (2**60, str(2**60)),
        (10**20, 1e20),
        (10**400, "1" + "0" * 400),
        (0.5, 0.5),
        (math.nan, "nan"),
        (True, True),
        ("\ud800", "\\ud800"),
        (HL7_NULL, '""'),
        ("x" * 3_000, "x" * MAX_ACTUAL + "…"),
        ({"a": [Decimal("1.5"), None]}, {"a": [1.5, None]}),
    ],
)
def test_values_are_shown_as_they_are_read(value: Any, as_shown: Any) -> None:
    assert sanitize_value(value) == as_shown
    assert type(sanitize_value(value)) is type(as_shown)


def test_nothing_is_null_and_several_are_a_list() -> None:
    assert for_evidence(()) is None
    assert for_evidence((), EvidenceDisplay.HASH) is None
    assert for_evidence((1,)) == 1
    assert for_evidence((1, "a")) == [1, "a"]


@given(WILD)
def test_what_is_hidden_stays_as_it_is(value: Any) -> None:
    once = for_evidence((value,), EvidenceDisplay.HASH)
    assert redact_value(once) == once
    assert redact_value([once, once]) == [once, once]
    assert redact_value(None) is None
    assert redact_value(7) == digest_of(7)


def test_digests_are_equal_for_equal_values_only() -> None:
    assert digest_of(Decimal("1.0")) == digest_of(1) == digest_of(1.0)
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    different: list[Any] = [1, "1", True, None, "", [], {}, [1], 10**400, 10**401]
    assert len(set(map(digest_of, different))) == len(different)


def test_a_scene_may_be_narrowed_before_anything_is_parsed() -> None:
    book = work({"a/1": "{}", "b/1": "{}"}, {"a/1": "{}", "b/1": "[]", "b/2": b"\xff"}).derive(build_work_context)
    scene = CheckContext("a", book.before["a"], book.after["a"], {}, book)
    assert scene.filter_items(lambda one: one.key.startswith("a/")).changes() == {"a/1": ItemChange.NONE}
    assert scene.changes() == {"a/1": ItemChange.NONE, "b/1": ItemChange.UPDATED, "b/2": ItemChange.CREATED}
    assert msgspec.structs.replace(scene, before=None).filter_items(lambda _one: True).changes() is None
    assert msgspec.structs.replace(scene, before=snapshot({}, trouble="down")).changes() is None
