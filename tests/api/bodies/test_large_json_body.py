"""A document that is parsed in slices is read, or refused, as one that is parsed at once."""

import gc
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.conftest import Deployment, code_of

from meruit.api.bodies.dismantle import _FREEING, dismantle
from meruit.api.bodies.json_body import LARGE_BYTES, MAX_DEPTH, parse_large_json, parse_strict_json
from meruit.documents import json_slices
from meruit.errors import BodyError
from meruit.model.access import Role

TEXTS = st.text(alphabet='ab"\\[]{},: é\u2028\n', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5),
    max_leaves=25,
)
INSERTED = st.sampled_from([b",", b"[", b"]", b"{", b"}", b'"', b":", b" ", b"\\", b"1", b'"a":1,', b""])
BLOCKS = st.sampled_from([3, 5, 9, 17, 40])


def read(parse: Any, body: bytes) -> Any:
    try:
        return parse(body)
    except BodyError as refused:
        return BodyError, refused.reason in ("too_deep", "too_small")


def in_blocks(body: bytes, size: int) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_slices, "BLOCK_BYTES", size)
        return read(parse_large_json, body)


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), BLOCKS)
def test_documents_are_read_alike(value: Any, indent: int | None, escaped: bool, size: int) -> None:
    body = json.dumps(value, indent=indent, ensure_ascii=escaped).encode()
    assert in_blocks(body, size) == read(parse_strict_json, body)


@given(VALUES, st.data(), BLOCKS)
def test_damaged_documents_are_refused_alike(value: Any, data: st.DataObject, size: int) -> None:
    body = json.dumps(value).encode()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(body)))
        body = body[:place] + data.draw(INSERTED) + body[place + data.draw(st.integers(0, 1)) :]
    assert in_blocks(body, size) == read(parse_strict_json, body)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"[" * (MAX_DEPTH + 1) + b"1,2" + b"]" * (MAX_DEPTH + 1), "too_deep"),
        (b"[]" * 2_000, "not_json"),
        (b'{"a":[1,2,3],"b":[1,2],"a":[1,2]}', "duplicate_key"),
        (b'{"a":1,"b":1,"c":1,"a":1,"d":1}', "duplicate_key"),
        (b"[1,2,1e-400,3]", "too_small"),
        (b"[1,2," + b"9" * 500 + b"]", "too_long"),
        (b'["a,b,c', "not_json"),
        (b"[1,2]]", "not_json"),
        (b"[1,2}", "not_json"),
        (b"", "not_json"),
    ],
)
def test_why_a_document_is_refused(body: bytes, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_slices, "BLOCK_BYTES", 4)
    with pytest.raises(BodyError) as refused:
        parse_large_json(body)
    assert refused.value.reason == reason


def test_no_piece_is_large() -> None:
    pieces: list[int] = []

    def parse(piece: bytes) -> Any:
        pieces.append(len(piece))
        return parse_strict_json(piece)

    body = b'{"output":{"more":[' + b",".join([b'{"a":[1]}'] * 60_000) + b"]}}"
    assert json_slices.parse_in_slices(body, parse, MAX_DEPTH) == parse_strict_json(body)
    assert max(pieces) < 3 * json_slices.BLOCK_BYTES < len(body)


def test_a_large_body_is_judged_and_freed(deployment: Deployment, tenant: str) -> None:
    key = deployment.key(Role.OPERATOR, tenant)
    criteria = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
    more = [{"a": number} for number in range(LARGE_BYTES // 10)]
    body = {"criteria": {"criteria": [criteria]}, "output": {"text": "two words", "more": more}}
    reply = deployment.ask("POST", "/v1/verify", key=key, json=body)
    assert (reply.status_code, reply.json()["result"]["success"]) == (200, True)
    content = json.dumps(body).encode()
    refused = deployment.ask(
        "POST", "/v1/verify", key=key, content=content[:-1], headers={"content-type": "application/json"}
    )
    assert (refused.status_code, code_of(refused)) == (400, "bad_body")
    # The collector was off meanwhile, and is on again once both are freed.
    _FREEING.submit(lambda: None).result()
    assert gc.isenabled()


def test_a_document_is_dismantled() -> None:
    inner: list[Any] = [1, [2, {"a": []}]]
    document = {"a": inner, "b": {"c": inner[1]}}
    dismantle([document, "text", None, [inner]])
    assert (document, inner) == ({}, [])
