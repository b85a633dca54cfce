"""Statements: in-toto's field names, DSSE's own vector, and nothing unsigned is read."""

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import StatementError

# The module, because pytest would take a `test_result` of its own for a test.
from meruit.log import statement
from meruit.log.note import SigningKey
from meruit.log.statement import MAX_SIGNATURES, envelope, open_envelope, pre_authentication
from meruit.model.verdict import Verdict

KEY = SigningKey.generate("example.com/log", bytes(range(32)))
OTHER = SigningKey.generate("example.com/other", bytes(32))
DIGEST, CRITERIA = "0123456789abcdef" * 4, "01" * 32


def stated(result: Verdict = Verdict.PASS, **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"passed": ["a"], "warned": [], "failed": [], "configuration": {"criteria": CRITERIA}}
    return statement.test_result({"output": DIGEST}, result, **{"success": True, **fields, **more})


def signed(payload: bytes, payload_type: str = statement.PAYLOAD_TYPE, key: SigningKey = KEY) -> dict[str, Any]:
    """An envelope around anything at all, truly signed."""
    signature = key.sign_bytes(pre_authentication(payload_type, payload))
    return {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": payload_type,
        "signatures": [{"keyid": key.key_id, "sig": base64.b64encode(signature).decode()}],
    }


def opened(wrapped: Any) -> dict[str, Any]:
    return open_envelope(json.dumps(wrapped).encode(), KEY.verifier)


# Statements.


def test_a_statement_has_the_fields_of_the_specification() -> None:
    made = statement.test_result(
        {"output": DIGEST, "input": CRITERIA},
        Verdict.PARTIAL,
        success=True,
        passed=["word_count"],
        warned=("latency",),
        failed=["accuracy", "bleu"],
        configuration={"criteria": CRITERIA},
        annotations={"score": 0.5, "outcome": "o-1"},
    )
    assert made == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {
                "name": "output",
                "digest": {"sha256": DIGEST},
                "annotations": {"score": 0.5, "outcome": "o-1"},
            },
            {"name": "input", "digest": {"sha256": CRITERIA}},
        ],
        "predicateType": "https://in-toto.io/attestation/test-result/v0.1",
        "predicate": {
            "result": "WARNED",
            "configuration": [{"name": "criteria", "digest": {"sha256": CRITERIA}}],
            "passedTests": ["word_count"],
            "warnedTests": ["latency"],
            "failedTests": ["accuracy", "bleu"],
        },
    }


@pytest.mark.parametrize("verdict", Verdict)
def test_only_a_pass_is_passed_and_only_a_failure_failed(verdict: Verdict) -> None:
    expected = {Verdict.PASS: "PASSED", Verdict.FAIL: "FAILED"}.get(verdict, "WARNED")
    assert stated(verdict)["predicate"]["result"] == expected


@pytest.mark.parametrize("verdict", Verdict)
def test_what_did_not_succeed_is_never_passed(verdict: Verdict) -> None:
    expected = "FAILED" if verdict is Verdict.FAIL else "WARNED"
    assert stated(verdict, success=False)["predicate"]["result"] == expected


@pytest.mark.parametrize("annotations", [None, {}])
def test_without_annotations_there_is_no_field_for_them(annotations: dict[str, Any] | None) -> None:
    assert stated(annotations=annotations)["subject"] == [{"name": "output", "digest": {"sha256": DIGEST}}]


def test_a_statement_about_nothing_is_refused() -> None:
    with pytest.raises(StatementError, match="subject"):
        statement.test_result({}, Verdict.PASS, success=True, passed=[], warned=[], failed=[], configuration={})


@pytest.mark.parametrize(
    "digest", ["", DIGEST[:-1], DIGEST + "0", DIGEST.upper(), "g" * 64, "X" * 64, f"sha256:{DIGEST[7:]}"]
)
def test_what_is_no_digest_is_refused(digest: str) -> None:
    with pytest.raises(StatementError, match="'output'"):
        statement.test_result(
            {"output": digest}, Verdict.PASS, success=True, passed=[], warned=[], failed=[], configuration={}
        )
    with pytest.raises(StatementError, match="'criteria'"):
        stated(configuration={"criteria": digest})


# Envelopes.


def test_what_is_signed_is_as_dsse_published_it() -> None:
    encoded = pre_authentication("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_lengths_are_counted_in_bytes() -> None:
    assert pre_authentication("é", "—".encode()) == b"DSSEv1 2 \xc3\xa9 3 \xe2\x80\x94"
    assert pre_authentication("", b"") == b"DSSEv1 0  0 "


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(Verdict), st.dictionaries(st.text(), anything), st.lists(st.text()))
def test_what_is_sealed_is_what_is_opened(verdict: Verdict, annotations: dict[str, Any], names: list[str]) -> None:
    made = stated(verdict, annotations=annotations, failed=names)
    assert open_envelope(envelope(made, KEY), KEY.verifier) == made


def test_an_envelope_has_the_fields_of_the_specification() -> None:
    wrapped = json.loads(envelope(stated(), KEY))
    assert [*wrapped] == ["payload", "payloadType", "signatures"]
    assert wrapped["payloadType"] == "application/vnd.in-toto+json"
    [signature] = wrapped["signatures"]
    assert signature["keyid"] == KEY.vkey.split("+")[1]
    payload = base64.b64decode(wrapped["payload"])
    assert KEY.verifier.verify(
        pre_authentication("application/vnd.in-toto+json", payload), base64.b64decode(signature["sig"])
    )
    assert payload == json.dumps(stated(), sort_keys=True, separators=(",", ":")).encode()


def test_equal_statements_have_equal_envelopes() -> None:
    made = stated(annotations={"b": 1, "a": {"d": 2, "c": 3}})
    turned = {key: made[key] for key in reversed(made)}
    assert envelope(made, KEY) == envelope(turned, KEY)


@pytest.mark.parametrize("value", [object(), float("nan"), {1: 2}, b"bytes"])
def test_what_is_not_json_is_not_sealed(value: Any) -> None:
    with pytest.raises(StatementError, match="not JSON"):
        envelope(stated(annotations={"value": value}), KEY)


def test_what_could_not_be_read_again_is_not_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    length = len(envelope(stated(), KEY))
    monkeypatch.setattr(statement, "MAX_ENVELOPE_BYTES", length)
    sealed = envelope(stated(), KEY)
    assert open_envelope(sealed, KEY.verifier) == stated()
    with pytest.raises(StatementError, match=str(length)):
        envelope(stated(failed=["b"]), KEY)
    with pytest.raises(StatementError, match=str(length)):
        open_envelope(sealed + b" ", KEY.verifier)


def test_either_base64_and_fields_we_do_not_know_are_taken() -> None:
    wrapped = signed(json.dumps(stated(annotations={"~~~": "???ÿÿÿ"}), ensure_ascii=False).encode())
    urlsafe = json.loads(json.dumps(wrapped).replace("+", "-").replace("/", "_"))
    urlsafe["payloadType"] = wrapped["payloadType"]
    assert urlsafe["payload"] != wrapped["payload"]
    assert opened({**urlsafe, "extra": 1}) == opened(wrapped)


@pytest.mark.parametrize("keyid", ["", None])
def test_a_signature_without_a_hint_is_tried(keyid: str | None) -> None:
    wrapped = signed(json.dumps(stated()).encode())
    wrapped["signatures"][0]["keyid"] = keyid
    assert opened(wrapped) == stated()
    del wrapped["signatures"][0]["keyid"]
    assert opened(wrapped) == stated()


def test_one_true_signature_among_others_is_enough() -> None:
    payload = json.dumps(stated()).encode()
    ours, theirs = signed(payload), signed(payload, key=OTHER)
    forged = {"keyid": KEY.key_id, "sig": theirs["signatures"][0]["sig"]}
    assert opened({**ours, "signatures": [*theirs["signatures"], forged, *ours["signatures"]]}) == stated()
    with pytest.raises(StatementError, match=r"bad signature: example.com/log\+"):
        opened({**ours, "signatures": [forged]})


@pytest.mark.parametrize("signatures", [[], signed(b"{}", key=OTHER)["signatures"]])
def test_an_envelope_that_this_key_did_not_sign_is_not_opened(signatures: list[Any]) -> None:
    with pytest.raises(StatementError, match=KEY.key_id):
        opened({**signed(json.dumps(stated()).encode()), "signatures": signatures})


def test_every_changed_byte_is_noticed_except_in_the_name_of_the_hint() -> None:
    sealed = envelope(stated(), KEY)
    hint = sealed.index(b"keyid")
    for at, byte in enumerate(sealed):
        changed = sealed[:at] + bytes([byte ^ 1]) + sealed[at + 1 :]
        if at in range(hint, hint + len(b"keyid")):
            assert open_envelope(changed, KEY.verifier) == stated()
        else:
            with pytest.raises(StatementError):
                open_envelope(changed, KEY.verifier)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"payload": "", "payloadType": ""}',
        b'{"payload": "", "signatures": []}',
        b'{"payloadType": "", "signatures": []}',
        b'{"payload": 1, "payloadType": "", "signatures": []}',
        b'{"payload": "", "payloadType": "", "signatures": {}}',
        b'{"payload": "", "payloadType": "", "signatures": [{"keyid": ""}]}',
        b'{"payload": "A", "payloadType": "", "signatures": []}',
        b'{"payload": "AB==", "payloadType": "", "signatures": []}',
        '{"payload": "é", "payloadType": "", "signatures": []}'.encode(),
        b'{"payload": "", "payloadType": "", "signatures": [{"sig": "?"}]}',
    ],
)
def test_what_is_no_envelope_is_malformed(data: bytes) -> None:
    with pytest.raises(StatementError, match="malformed envelope"):
        open_envelope(data, KEY.verifier)


def test_signatures_have_a_limit() -> None:
    wrapped = signed(json.dumps(stated()).encode())
    [signature] = wrapped["signatures"]
    assert opened({**wrapped, "signatures": [signature] * MAX_SIGNATURES}) == stated()
    with pytest.raises(StatementError, match="100"):
        opened({**wrapped, "signatures": [signature] * (MAX_SIGNATURES + 1)})


@pytest.mark.parametrize("payload", [b"", b"null", b"[]", b"{", b"\xff", b'{"a":' * 100_000])
def test_a_signed_payload_that_is_no_json_object_is_malformed(payload: bytes) -> None:
    with pytest.raises(StatementError, match="malformed statement"):
        opened(signed(payload))


def test_a_signed_payload_of_another_type_is_not_taken_for_a_statement() -> None:
    with pytest.raises(StatementError, match="holds 'text/plain'"):
        opened(signed(json.dumps(stated()).encode(), "text/plain"))


@pytest.mark.parametrize("field", ["_type", "predicateType"])
def test_a_signed_statement_of_another_kind_is_not_taken_for_a_result(field: str) -> None:
    for changed in ({**stated(), field: "https://in-toto.io/Statement/v0.1"}, {**stated(), field: None}):
        with pytest.raises(StatementError, match="envelope"):
            opened(signed(json.dumps(changed).encode()))


def test_a_signed_note_is_never_a_signed_statement() -> None:
    sealed = json.loads(envelope(stated(), KEY))
    text = pre_authentication(statement.PAYLOAD_TYPE, base64.b64decode(sealed["payload"])).decode()
    # The same key signs both: no statement ends in the newline that every note must end in.
    assert not text.endswith("\n")
