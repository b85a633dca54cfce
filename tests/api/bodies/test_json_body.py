"""Strict JSON: the same value as any reader, or a refusal that says where."""

import gc
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.api.conftest import code_of

from meruit.api.bodies import json_body
from meruit.api.bodies.gc import pause_gc
from meruit.api.bodies.json_body import (
    MAX_DEPTH,
    MAX_DIGITS,
    SEARCHED_BYTES,
    TINY_BYTES,
    StrictRequest,
    _json_error,
    convert_body,
    parse_strict_json,
)
from meruit.api.problems import exception_handlers
from meruit.errors import BodyError, Problem
from meruit.web.app import WebApp
from meruit.web.parameters import JSONBody
from meruit.web.requests import Request
from meruit.web.routing import post
from meruit.web.validation import NOT_ALLOWED, field_problem

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(min_value=-(10**60), max_value=10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.sampled_from([":", "\\u003a", '":', "[[[", "}", "a:b"])
)
KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.sampled_from(["a", ":", "\\"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner), max_leaves=30)


def the_same(left: Any, right: Any) -> bool:
    """Equal, with 1, 1.0 and True told apart."""
    return repr(left) == repr(right)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_valid_json_reads_as_everywhere(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert the_same(parse_strict_json(text.encode()), json.loads(text))


def read(body: bytes) -> Any:
    """What a body says, or why it is refused."""
    try:
        return parse_strict_json(body)
    except BodyError as refused:
        return refused


@given(VALUES, st.data())
def test_what_another_strict_parser_refuses_is_refused(value: Any, data: st.DataObject) -> None:
    body = bytearray(orjson.dumps(json.loads(json.dumps(value), parse_int=float)))
    place = data.draw(st.integers(0, len(body) - 1))
    body[place : place + data.draw(st.integers(0, 1))] = data.draw(
        st.sampled_from(
            [b'"', b"\\", b"{", b"]", b":", b",", b"0", b".", b"-", b"e", b"\x00", b"\xff", b" ", b"\\ud800"]
        )
    )
    try:
        expected = orjson.loads(bytes(body))
    except orjson.JSONDecodeError:
        with pytest.raises(BodyError):
            parse_strict_json(bytes(body))
    else:
        # Only two keys made equal by the change are refused here and taken there.
        found = read(bytes(body))
        assert found == expected or getattr(found, "reason", None) == "duplicate_key"


def nested(value: Any, path: list[str | None]) -> str:
    """A text wrapped in lists (None) and objects (their key)."""
    text = value
    for key in path:
        text = f"[0, {text}]" if key is None else f'{{"other": 1, {json.dumps(key)}: {text}}}'
    return str(text)


@given(
    st.lists(st.none() | st.sampled_from(["k", "::", "\\"]), max_size=20),
    st.sampled_from([('"a"', '"a"'), ('"a"', '"\\u0061"'), ('":"', '"\\u003A"'), ('""', '""'), ('"é"', '"\\u00e9"')]),
    st.sampled_from(["1", '":"', '"\\u003a"', '"\\u003a\\u003a\\u003a"', "{}", '{"b": [":"]}']),
)
def test_a_key_that_stands_twice_is_refused_at_any_depth(
    path: list[str | None], keys: tuple[str, str], value: str
) -> None:
    body = nested(f"{{{keys[0]}: {value}, {keys[1]}: {value}}}", path)
    with pytest.raises(BodyError) as refused:
        parse_strict_json(body.encode())
    assert refused.value.reason == "duplicate_key"


def test_the_same_key_may_stand_in_different_objects() -> None:
    assert parse_strict_json(b'[{"a": ":"}, {"a": "\\u003a", "b": {"a": 1}}]') == [
        {"a": ":"},
        {"a": ":", "b": {"a": 1}},
    ]


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_depth_is_limited(opening: str) -> None:
    closing = "]" if opening == "[" else "}"
    deepest = (opening * MAX_DEPTH + "1" + closing * MAX_DEPTH).encode()
    assert parse_strict_json(deepest) == json.loads(deepest)
    for depth in (MAX_DEPTH + 1, 300, 100_000):
        with pytest.raises(BodyError, match="64 deep"):
            parse_strict_json((opening * depth + "1" + closing * depth).encode())


def test_many_brackets_are_not_deep() -> None:
    body = json.dumps([{"a": [[]]}] * 100 + ["[" * 100]).encode()
    assert parse_strict_json(body) == json.loads(body)


def test_long_integers_are_exact_and_limited() -> None:
    longest = "9" * MAX_DIGITS
    assert parse_strict_json(f"[{longest}, -{longest}]".encode()) == [int(longest), -int(longest)]
    for digits in (MAX_DIGITS + 1, 4_000, 5_000):
        with pytest.raises(BodyError, match="400 digits"):
            parse_strict_json(b'{"n": ' + b"9" * digits + b"}")
    assert parse_strict_json(b'["' + b"9" * 1000 + b'"]') == ["9" * 1000]
    assert parse_strict_json(b"0." + b"1" * 1000) == float("0." + "1" * 1000)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"\xef\xbb\xbf{}", "byte order"),
        (b'{"a": "\xff"}', "at byte 7"),
        (b'"\xed\xa0\x80"', "at byte 1"),
        ('{"a": 1}'.encode("utf-16"), "at byte 0"),
        (b"[NaN]", "column 2"),
        (b"[1, Infinity]", "column 5"),
        (b"-Infinity", "column 2"),
        (b"[1e999]", "infinity"),
        (b"-1e999", "infinity"),
        (b'"\\ud800"', "surrogate"),
        (b'"\\ude00\\ud83d"', "surrogate"),
        (b'{"\\ud800": 1}', "surrogate"),
        (b"{} {}", "after document"),
        (b"{}x", "after document"),
        (b"[1,]", "line 1 column 3"),
        (b"{'a': 1}", "line 1 column 2"),
        (b'{"a": 1', "end of data"),
        (b'"a\nb"', "control character"),
        (b"01", "leading zero"),
        (b"// no\n1", "column 1"),
    ],
)
def test_invalid_json_is_refused_with_its_position(body: bytes, said: str) -> None:
    with pytest.raises(BodyError, match=said) as refused:
        parse_strict_json(body)
    assert refused.value.reason == "not_json"


@pytest.mark.parametrize("body", [b"", b" \n"])
def test_an_empty_body_is_named(body: bytes) -> None:
    with pytest.raises(BodyError) as refused:
        parse_strict_json(body)
    assert refused.value.reason == "empty"


def test_a_fault_of_one_parser_keeps_its_message() -> None:
    found = _json_error(b"1", msgspec.DecodeError("odd (byte 0)"))
    assert (found.reason, str(found).endswith("odd (byte 0)")) == ("not_json", True)


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    kind: str
    level: int = 0


class Order(msgspec.Struct):
    count: int
    parts: list[Inner] = []
    labels: dict[str, int] = {}


class Left(msgspec.Struct, tag="left"):
    n: int


class Right(msgspec.Struct, tag="right"):
    n: int


@post("/orders")
async def orders(data: JSONBody[Order]) -> Order:
    return data


@post("/either")
async def either(data: JSONBody[Left | Right]) -> int:
    return data.n


@post("/anything")
async def anything(request: Request) -> Any:
    first = await request.json()
    return [first, await request.json() is first]


@post("/plain")
async def plain(data: JSONBody[dict[str, int]]) -> dict[str, int]:
    return data


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    app = WebApp(
        [orders, either, anything, plain],
        request_class=StrictRequest,
        exception_handlers=exception_handlers,
        max_body_bytes=10_000,
    )
    with TestClient(app) as opened:
        yield opened


JSON = {"Content-Type": "application/json"}


def test_a_struct_is_read_strictly(client: TestClient) -> None:
    assert client.post("/orders", json={"count": 3}).json() == {"count": 3, "parts": [], "labels": {}}
    refused = client.post("/orders", content=b'{"count": 1, "count": 2}', headers=JSON)
    assert (refused.status_code, code_of(refused), "'count'" in refused.json()["detail"]) == (400, "bad_body", True)
    # msgspec alone could take the text for a number.
    refused = client.post("/orders", json={"count": "3"})
    assert refused.status_code == 400
    assert refused.json()["errors"] == [{"where": "count", "message": "Expected `int`, got `str`"}]


def test_a_union_of_structs_is_read_strictly(client: TestClient) -> None:
    assert client.post("/either", json={"type": "right", "n": 2}).json() == 2
    assert client.post("/either", json={"type": "right", "n": "2"}).status_code == 400
    refused = client.post("/either", json={"type": "sideways", "n": 2})
    assert refused.json()["errors"] == [{"where": "type", "message": NOT_ALLOWED}]


def test_other_bodies_are_parsed_strictly_too(client: TestClient) -> None:
    assert client.post("/anything", json={"a": [1]}).json() == [{"a": [1]}, True]
    assert client.post("/plain", json={"a": 1}).json() == {"a": 1}
    for path in ("/anything", "/plain"):
        assert client.post(path, content=b'{"a": 1, "a": 2}', headers=JSON).status_code == 400
    empty = client.post("/anything", content=b"", headers=JSON)
    assert (empty.status_code, code_of(empty)) == (400, "bad_body")


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "text/plain",
        "application/x-www-form-urlencoded",
        "application/msgpack",
        "application/json; charset=latin-1",
    ],
)
def test_other_content_types_are_refused(client: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    assert client.post("/orders", content=b'{"count": 1}', headers=headers).status_code == 415


def test_json_in_utf8_may_say_so(client: TestClient) -> None:
    headers = {"Content-Type": "application/json; charset=UTF-8"}
    assert client.post("/orders", content=b'{"count": 1}', headers=headers).status_code == 201


def test_a_missing_body_is_named(client: TestClient) -> None:
    for headers in ({}, JSON):
        refused = client.post("/orders", headers=headers)
        assert refused.status_code == 400
        assert refused.json()["errors"] == [{"where": "body", "message": "is required"}]


def test_a_large_body_is_refused(client: TestClient) -> None:
    refused = client.post("/orders", content=b" " * 10_001, headers=JSON)
    assert (refused.status_code, code_of(refused)) == (413, "too_large")


@pytest.mark.parametrize(
    ("value", "where", "message"),
    [
        ({}, "", "required field `count`"),
        ({"count": 1, "parts": [{}]}, "parts[0]", "required field `kind`"),
        ({"count": 1, "parts": [{"kind": "a", "b": 1}]}, "parts[0]", "Object contains unknown field `b`"),
        ({"count": 1, "labels": {"a": "secret"}}, "labels[...]", "Expected `int`, got `str`"),
        ([], "", "Expected `object`, got `array`"),
    ],
)
def test_a_wrong_field_is_named_without_its_value(value: Any, where: str, message: str) -> None:
    with pytest.raises(BodyError, match=where.replace("[", r"\[") or "the body") as refused:
        convert_body(value, Order)
    (problem,) = refused.value.problems
    assert problem.where == where
    assert problem.message.endswith(message)


def test_values_that_a_complaint_quotes_are_dropped() -> None:
    assert field_problem("Invalid enum value 'se`cret' - at `$.a[0].b`") == Problem("a[0].b", NOT_ALLOWED)
    assert field_problem("Expected `str` - at `key in $.a`").where == "a"


@pytest.mark.parametrize(
    "body", [b'{"a": 1e-400}', b"[-1E-0999]", b"[0." + b"0" * 400 + b"1]", b'{"a": [1, 2.5e-5000]}']
)
def test_a_number_too_small_for_a_float_is_refused(body: bytes) -> None:
    with pytest.raises(BodyError) as refused:
        parse_strict_json(body)
    assert refused.value.reason == "too_small"


@pytest.mark.parametrize("body", [b"[0e-400]", b"[0.0e-999]", b"[1e-300]", b'["1e-400"]', b"[0." + b"0" * 400 + b"]"])
def test_other_small_numbers_are_taken(body: bytes) -> None:
    assert parse_strict_json(body) == json.loads(body)


@given(st.integers(0, 3 * SEARCHED_BYTES), st.sampled_from([b"1e-400", b"0." + b"0" * 330 + b"1"]))
def test_tiny_numbers_are_found_wherever_they_are(before: int, number: bytes) -> None:
    body = b'{"padding": "' + b"x" * before + b'", "amount": ' + number + b"}"
    with pytest.raises(BodyError):
        parse_strict_json(body)


@given(st.integers(1, 200), st.booleans())
def test_a_duplicate_is_found_among_any_number_of_keys(count: int, is_twice: bool) -> None:
    names = [f"k{number}" for number in range(count)]
    body = b"{%b}" % b", ".join(b'"%b": 0' % name.encode() for name in names + names[:1] * is_twice)
    if not is_twice:
        assert parse_strict_json(body) == dict.fromkeys(names, 0)
        return
    with pytest.raises(BodyError) as refused:
        parse_strict_json(body)
    assert refused.value.reason == "duplicate_key"


def test_no_search_holds_other_threads_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []

    class Counted:
        def search(self, block: bytes) -> None:
            searched.append(len(block))

    monkeypatch.setattr(json_body, "_TINY_POWER", Counted())
    monkeypatch.setattr(json_body, "_TINY_FRACTION", Counted())
    text = (b"-" + b"0" * 300) * (4 * SEARCHED_BYTES // 300)
    parse_strict_json(b'{"text": "' + text + b'"}')
    assert sum(searched) >= 2 * 4 * SEARCHED_BYTES
    assert max(searched) <= SEARCHED_BYTES + TINY_BYTES


def test_the_collector_rests_while_a_large_body_is_parsed() -> None:
    with pause_gc():
        assert not gc.isenabled()
    assert gc.isenabled()
