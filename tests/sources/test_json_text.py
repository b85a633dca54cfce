"""Values are read as json reads them, and keep the characters that they were written in."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meruit.sources import json_text as slices

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=5,
)
layouts = st.sampled_from(
    [{}, {"indent": 1}, {"indent": "\t"}, {"separators": (",", ":")}, {"separators": (" , ", "\n:\r\n")}]
)
nested = slices.object_of({"entry": slices.array_of(slices.object_of({"resource": slices.with_text}))})


def plain(value: Any) -> Any:
    match value:
        case slices.JsonSlice():
            return value.value
        case list():
            return [plain(one) for one in value]
        case dict():
            return {name: plain(one) for name, one in value.items()}
        case _:
            return value


@settings(max_examples=50)
@given(st.lists(values, max_size=4), values, layouts, st.booleans())
def test_slices_say_what_json_says_in_the_very_characters(
    resources: list[Any], other: Any, layout: dict[str, Any], ascii_only: bool
) -> None:
    document = {"a": other, "entry": [{"fullUrl": "x", "resource": one} for one in resources], "z": other}
    text = json.dumps(document, ensure_ascii=ascii_only, **layout)
    found = slices.read(f" \n{text}\t", nested)
    assert plain(found) == json.loads(text)
    at = 0
    for entry, value in zip(found["entry"], resources, strict=True):
        at = text.index(entry["resource"].text, at)
        assert json.loads(entry["resource"].text) == value


@settings(max_examples=50)
@given(values, layouts)
def test_any_value_may_stand_where_another_was_expected(value: Any, layout: dict[str, Any]) -> None:
    text = json.dumps(value, **layout)
    assert plain(slices.read(text, nested)) == value
    assert plain(slices.read(text, slices.array_of(slices.with_text))) == value
    assert slices.read(text, slices.with_text).text == text


@settings(max_examples=40)
@given(values, st.data())
def test_a_text_that_is_cut_is_refused(value: Any, data: st.DataObject) -> None:
    text = json.dumps({"entry": [{"resource": value}], "total": 1})
    cut = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError, match=r"."):
        slices.read(text[:cut], nested)


@given(st.text(alphabet='{}[]",:entry01\\ \n'))
def test_what_json_refuses_is_refused(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        expected = None
        with pytest.raises(ValueError, match=r"."):
            slices.read(text, nested)
    # An object of theirs is short of signs for two names, so none stands twice unless both are empty.
    if expected is not None and text.count('""') < 2:
        assert plain(slices.read(text, nested)) == expected


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"entry": [{"resource": 1, "resource": 2}]}',
        '{"a": NaN}',
        '{"a": -Infinity}',
        "[1] 2",
        "[" * 200_000,
        '{"entry": [1 2]}',
        "{1: 2}",
        "",
    ],
)
def test_what_two_readers_could_read_differently_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        slices.read(text, nested)


def test_the_last_zero_stays() -> None:
    found = slices.read('{"entry":[{"resource": {"value": 1.00, "é": "\\u00e9"} }]}', nested)
    assert found["entry"][0]["resource"].text == '{"value": 1.00, "é": "\\u00e9"}'
