"""Dotted paths find what a plain walk finds; bytes are a document or say why not."""

import json
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meruit.checks.formats.json_path import MAX_NESTING, compile_path, raw, read_json, values
from meruit.errors import AuthorError, UnreadableContent

scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "phone", "1"])
keys = st.sampled_from(["a", "b", "c", "value", "valueQuantity"])
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4), max_leaves=20
)
names = st.lists(keys, min_size=1, max_size=4)
odd_keys = st.text(st.characters(exclude_characters='"', exclude_categories=["Cs"]), max_size=5)
odd_documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_keys, inner, max_size=3), max_leaves=15
)
signs = st.sampled_from(["{", "}", "[", "]", ",", ":", '"', "\\", " ", "-", "e", "é"])
wholes = st.sampled_from(['"a"', '"b":', '{"a":1,', "1", ".5", "true", "tru", "x", "[" * 150])
refused = st.sampled_from(["NaN", "-Infinity", "1e9999", "1e401", "9" * 500, '"\\ud800"', '"\\u00"'])
almost_json = st.lists(signs | wholes | refused, max_size=12).map(lambda found: "".join(found).encode())


def at(document: Any, text: str, *, choices: bool = False) -> tuple[Any, ...]:
    return values(document, compile_path(text, choices=choices))


def walked(node: Any, rest: list[str]) -> list[Any]:
    """The same by a plain walk."""
    if isinstance(node, list):
        return [found for one in node for found in walked(one, rest)] if rest else node
    if not rest:
        return [node]
    return walked(node[rest[0]], rest[1:]) if isinstance(node, dict) and rest[0] in node else []


def places(node: Any, way: str = "") -> list[tuple[str, Any]]:
    """Every place in a document but the whole, with the path that says each position and quotes each key."""
    inside = (
        [(f'{way}["{key}"]', one) for key, one in node.items()]
        if isinstance(node, dict)
        else [(f"{way}[{position}]", one) for position, one in enumerate(node)]
        if isinstance(node, list)
        else []
    )
    return [found for place, one in inside for found in [(place, one), *places(one, place)]]


@given(documents, names)
def test_a_path_finds_exactly_what_a_plain_walk_finds(document: Any, way: list[str]) -> None:
    assert list(at(document, ".".join(way))) == walked(document, way)


@given(odd_documents)
def test_every_place_has_a_path_that_finds_it_and_nothing_else(document: Any) -> None:
    for text, node in places(document):
        assert raw(document, compile_path(text)) == [node]
        assert list(at(document, text)) == (node if isinstance(node, list) else [node])


@given(documents)
def test_a_position_may_be_written_after_a_dot(document: Any) -> None:
    for text, node in places(document):
        dotted = re.sub(r'\["?(\w+)"?\]', r".\1", text).removeprefix(".")
        assert raw(document, compile_path(dotted)) == [node]


@given(documents, names)
def test_walking_explicitly_changes_nothing(document: Any, way: list[str]) -> None:
    assert at(document, "[].".join(way)) == at(document, ".".join(way)) == at(document, ".".join(way) + "[]")


@given(st.lists(st.dictionaries(st.sampled_from(["system", "use", "value"]), scalars)))
def test_a_filter_keeps_the_elements_whose_child_says_so(telecom: list[dict[str, Any]]) -> None:
    document = {"telecom": telecom}
    phones = [one for one in telecom if one.get("system") == "phone"]
    assert list(at(document, "telecom[system=phone]")) == phones
    assert list(at(document, "telecom[system=phone].value")) == [one["value"] for one in phones if "value" in one]
    assert list(at(document, "telecom[system=phone][0]")) == phones[:1]
    both = [one for one in phones if one.get("use") is True]
    assert list(at(document, "telecom[system='phone'][use=true]")) == both


@given(documents, names)
def test_choices_only_add_to_what_the_plain_path_finds(document: Any, way: list[str]) -> None:
    plain, chosen = at(document, ".".join(way)), at(document, ".".join(way), choices=True)
    assert [one for one in plain if one not in chosen] == []
    assert plain == chosen or "value" in way


@given(documents, st.text(st.sampled_from("ab0.[]=\"'x*($ "), max_size=12) | st.text(max_size=12))
def test_any_text_is_a_path_or_an_authors_error(document: Any, text: str) -> None:
    for choices in (False, True):
        try:
            path = compile_path(text, choices=choices)
        except AuthorError:
            continue
        values(document, path)


@given(st.binary() | st.text().map(str.encode) | almost_json)
@example(b"")
@example(b"\xff")
@example(b"\xef\xbb\xbf[")
@example(b'{"a":1,"a":1')
@example(b'["\\ud800", 1e9999')
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b"[" * 201 + b'"\\q')
def test_any_bytes_are_a_document_or_say_why_not(content: bytes) -> None:
    refused: UnreadableContent | None = None
    try:
        document = read_json(content)
    except UnreadableContent as fault:
        refused = fault
    else:
        json.dumps(document, default=str, ensure_ascii=False).encode()
    assert refused is None or 0 <= refused.offset <= len(content)


@given(odd_documents, st.sampled_from([b"", b"\xef\xbb\xbf"]))
def test_what_is_written_is_read(document: Any, mark: bytes) -> None:
    assert read_json(mark + json.dumps(document).encode()) == document
    assert read_json(mark + json.dumps(document, ensure_ascii=False).encode()) == document


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_decimals_keep_every_digit(number: Decimal) -> None:
    read = read_json(f"[{number}]".encode())[0]
    assert str(read) == str(number)


@given(st.integers(1, 400), st.sampled_from([(b"[", b"]"), (b'{"a":', b"}")]))
def test_nesting_has_one_limit(depth: int, brackets: tuple[bytes, bytes]) -> None:
    start, end = brackets
    content = start * depth + b"1" + end * depth
    if depth <= MAX_NESTING:
        read_json(content)
    else:
        with pytest.raises(UnreadableContent, match="deep") as refused:
            read_json(content)
        assert refused.value.offset == len(start) * MAX_NESTING


@pytest.mark.parametrize("depth", [MAX_NESTING, MAX_NESTING + 1])
def test_a_wide_document_may_be_as_deep_as_another(depth: int) -> None:
    content = b"[" + b"[],{}," * 500 + b"[" * (depth - 1) + b"]" * (depth - 1) + b"]"
    if depth == MAX_NESTING:
        assert len(read_json(content)) == 1001
    else:
        with pytest.raises(UnreadableContent, match="deep"):
            read_json(content)


def test_a_sound_document_is_not_called_bad_because_our_own_stack_is_full() -> None:
    def deeper() -> Any:
        try:
            return deeper()
        except RecursionError:
            return read_json(b"[" * 150 + b"]" * 150)

    # Somewhere on the way out there is room again.
    assert isinstance(deeper(), list)


@pytest.mark.parametrize(
    ("content", "offset", "why"),
    [
        (b'{"a": 1, "b": {"a": 2}, "a": 3}', 24, "'a' twice"),
        ('{"ä": 1, "\\u00e4": 2}'.encode(), 10, "twice"),
        (b'[1, {"x": NaN}]', 10, "has NaN"),
        (b"[-Infinity]", 1, "has -Infinity"),
        (b'["NaN", 1e999999999]', 8, "number"),
        (b"[1E-999999999999999999999]", 1, "number"),
        (b"[0, " + b"9" * 1000 + b"]", 4, "number"),
        (b"[0.5, 0." + b"9" * 1000 + b"]", 6, "number"),
        (b'["\\ud83d\\ude00", "\\ud83d"]', 17, "surrogate"),
        (b'{"a": 1,}', 8, "not JSON"),
        (b"\xef\xbb\xbf{", 4, "not JSON"),
        (b'"\xc3\xa4\xff"', 3, "not UTF-8"),
        (b"", 0, "not JSON"),
        (b"<html>", 0, "not JSON"),
        ('{"a": 1}'.encode("utf-16"), 0, "not UTF-8"),
    ],
)
def test_refused_json_is_reported_with_its_offset(content: bytes, offset: int, why: str) -> None:
    with pytest.raises(UnreadableContent, match=re.escape(why)) as refused:
        read_json(content)
    assert refused.value.offset == offset


def test_surrogate_escapes_are_joined_and_backslashes_kept() -> None:
    assert read_json(b'["\\ud83d\\ude00", "\\\\ud800"]') == ["😀", "\\ud800"]


ORDER: dict[str, Any] = {
    "resourceType": "MedicationRequest",
    "status": "active",
    "medicationCodeableConcept": {"coding": [{"system": "ndc", "code": "40032-917-01"}]},
    "dosageInstruction": [
        {"doseAndRate": [{"doseQuantity": {"value": 10, "unit": "mEq"}}, {"doseRange": {"low": {"value": 1}}}]},
        {"doseAndRate": [{"doseQuantity": {"value": 20, "unit": "mEq"}}]},
    ],
}


def test_a_choice_is_found_by_its_name() -> None:
    assert at(ORDER, "medication.coding.code", choices=True) == ("40032-917-01",)
    assert at(ORDER, "medication[x].coding.code", choices=True) == ("40032-917-01",)
    assert at(ORDER, "dosageInstruction.doseAndRate.dose.unit", choices=True) == ("mEq", "mEq")
    assert at(ORDER, "dosageInstruction[1].doseAndRate.dose.value", choices=True) == (20,)
    assert at({"valueQuantity": {"unit": "mg"}}, "value.unit", choices=True) == ("mg",)
    assert at({"effectiveDateTime": "2026"}, "effective", choices=True) == ("2026",)
    assert at({"medicationReference": {"reference": "Medication/1"}}, "medication.reference", choices=True)


def test_a_choice_ends_in_a_datatype_and_yields_to_the_name_itself() -> None:
    assert at({"nameSpace": 1, "nameQuantityless": 2, "namequantity": 3}, "name", choices=True) == ()
    assert at({"valueQuantity": 1, "value": 2}, "value", choices=True) == (2,)
    assert at({"valueQuantity": 1}, "value") == ()
    assert at({"valueQuantity": 1}, '["value"]', choices=True) == ()


def test_absent_empty_and_null_are_distinguished() -> None:
    assert at({}, "a") == at({"a": []}, "a") == ()
    assert raw({}, compile_path("a")) == []
    assert raw({"a": []}, compile_path("a")) == [[]]
    assert at({"a": None}, "a") == (None,)
    assert at({"a": None}, "a.b") == ()


def test_a_list_in_a_list_is_one_value_unless_both_are_walked() -> None:
    document = {"rows": [[1, 2], [3]]}
    assert at(document, "rows") == at(document, "rows[]") == ([1, 2], [3])
    assert at(document, "rows[][]") == (1, 2, 3)
    assert at(document, "rows[0]") == (1, 2)
    assert at(document, "rows[].0") == (1, 3)
    assert at([{"a": 1}], "[0].a") == at([{"a": 1}], "0.a") == at([{"a": 1}], "a") == (1,)
    assert at([1, 2], "[]") == (1, 2)


def test_a_number_after_a_dot_is_a_key_where_there_are_keys() -> None:
    assert at({"0": "key", "list": ["first"]}, "0") == ("key",)
    assert at({"0": "key", "list": ["first"]}, "list.0") == ("first",)
    assert at({"list": ["first"]}, "list.1") == at({"list": ["first"]}, "list[1]") == ()
    assert at({"0": "key"}, "[0]") == ()


def test_a_filter_compares_by_what_is_written() -> None:
    lines = {"line": [{"no": 1, "x": "a"}, {"no": Decimal("1.0"), "x": "b"}, {"no": "1", "x": "c"}, {"no": True}]}
    assert at(lines, "line[no=1].x") == ("a", "b", "c")
    assert at(lines, "line[no=true]") == ({"no": True},)
    assert at(lines, "line[no=x]") == at(lines, "line[no=null]") == ()
    people = {"participant": [{"actor": {"reference": "Patient/1"}, "status": "accepted"}]}
    assert at(people, "participant[actor.reference=Patient/1].status") == ("accepted",)
    assert at(
        {"extension": [{"url": "http://x.y/z", "valueCode": "M"}]}, "extension[url=http://x.y/z].value", choices=True
    )
    assert at({"one": {"kind": "a", "is": 1}}, "one[kind=a].is") == (1,)
    assert at({"one": {"kind": "b", "is": 1}}, "one[kind=a].is") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty"),
        ("a" * 501, "longer"),
        (".a", "character 1"),
        ("a.", "character 3"),
        ("a..b", "character 3"),
        ("a[", "brackets hold"),
        ("a[-1]", "brackets hold"),
        ("a[b>1]", "brackets hold"),
        ("a[b!=1]", "brackets hold"),
        ("a[0]b", "character 5"),
        ("a]", "bracket"),
        ("a.[0]", "missing"),
        ("$.a", "$"),
        (" a", "space"),
        ("a.*.b", "without *"),
        ("a=b", "in brackets"),
        ("name.where(use='official')", "fhirpath"),
        ("value[x]", "FHIR"),
    ],
)
def test_an_invalid_path_is_refused_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(AuthorError, match=re.escape(why)) as refused:
        compile_path(text)
    assert "name.given" in str(refused.value)


def test_a_fhir_path_starts_below_its_resource() -> None:
    with pytest.raises(AuthorError, match="resource's type"):
        compile_path("Patient.name.family", choices=True)
    assert at({"Patient": 1}, "Patient") == (1,)


def test_paths_are_equal_when_they_are_written_alike() -> None:
    assert compile_path("a.b") == compile_path("a.b")
    assert compile_path("a.b") != compile_path("a.b", choices=True)
