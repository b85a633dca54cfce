"""A verdict as others can read and check it: an in-toto statement of a test result, in a DSSE envelope."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from orjson import dumps

from meruit.errors import StatementError
from meruit.log.note import SigningKey, VerifierKey, strict_base64
from meruit.model.canonical import payload_bytes
from meruit.model.decoding import decode_json
from meruit.model.record import Record
from meruit.model.verdict import Verdict

STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_ENVELOPE_BYTES = 16_000_000
MAX_SIGNATURES = 100
"""On one envelope."""
_SHA256_HEX = 64
_STANDARD = str.maketrans("-_", "+/")
"""The other alphabet of base64, which every reader of envelopes must take as well."""


class _Signature(Record, frozen=True):
    sig: str
    keyid: str | None = None


class _Envelope(Record, frozen=True, rename="camel"):
    payload: str
    payload_type: str
    signatures: list[_Signature]


def test_result(  # noqa: PLR0913 - one a field
    subjects: Mapping[str, str],
    result: Verdict,
    *,
    success: bool,
    passed: Sequence[str],
    warned: Sequence[str],
    failed: Sequence[str],
    configuration: Mapping[str, str],
    annotations: Mapping[str, Any] | None = None,  # noqa: PT028 - the predicate is named so; no test of ours
) -> dict[str, Any]:
    """The statement that subjects were tested; subjects and configuration are names with their SHA-256 in hex.

    The annotations belong to the first subject.
    """
    if not subjects:
        raise StatementError("a statement is about at least one subject")
    subject = [_descriptor(name, digest) for name, digest in subjects.items()]
    if annotations:
        subject[0]["annotations"] = dict(annotations)
    return {
        "_type": STATEMENT_TYPE,
        "subject": subject,
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "result": _word(result, success=success),
            "configuration": [_descriptor(name, digest) for name, digest in configuration.items()],
            "passedTests": [*passed],
            "warnedTests": [*warned],
            "failedTests": [*failed],
        },
    }


def envelope(statement: Mapping[str, Any], key: SigningKey) -> bytes:
    """The statement in sorted JSON, signed: what `open_envelope` opens, and every other reader of DSSE."""
    payload = payload_bytes(statement)
    if payload is None:
        raise StatementError("the statement holds something that is not JSON")
    signature = key.sign_bytes(pre_authentication(PAYLOAD_TYPE, payload))
    written = dumps(
        {
            "payload": b64encode(payload).decode(),
            "payloadType": PAYLOAD_TYPE,
            "signatures": [{"keyid": key.key_id, "sig": b64encode(signature).decode()}],
        }
    )
    if len(written) > MAX_ENVELOPE_BYTES:
        raise StatementError(
            f"the statement fills {len(written)} bytes; at most {MAX_ENVELOPE_BYTES} can be read again"
        )
    return written


def open_envelope(data: bytes, key: VerifierKey) -> dict[str, Any]:
    """The statement of a test result that this key signed; nothing of it is read before the signature holds."""
    if len(data) > MAX_ENVELOPE_BYTES:
        raise StatementError(f"malformed envelope: it is longer than {MAX_ENVELOPE_BYTES} bytes")
    try:
        found = _Envelope.from_json(data)
        payload = _any_base64(found.payload)
        # The id is a hint and proves nothing; it only shows which signatures are worth trying.
        ours = [_any_base64(each.sig) for each in found.signatures if (each.keyid or key.key_id) == key.key_id]
    except (ValueError, RecursionError) as problem:
        raise StatementError(f"malformed envelope: {problem}") from problem
    if len(found.signatures) > MAX_SIGNATURES:
        raise StatementError(f"malformed envelope: it has more than {MAX_SIGNATURES} signatures")
    if not ours:
        raise StatementError(f"the envelope has no signature by {key.name}+{key.key_id}")
    signed = pre_authentication(found.payload_type, payload)
    if not any(key.verify(signed, signature) for signature in ours):
        raise StatementError(f"bad signature: {key.name}+{key.key_id} did not sign this statement")
    return _statement(found.payload_type, payload)


def pre_authentication(payload_type: str, payload: bytes) -> bytes:
    """What is signed: DSSE's encoding of a payload together with its type."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def _statement(payload_type: str, payload: bytes) -> dict[str, Any]:
    if payload_type != PAYLOAD_TYPE:
        raise StatementError(f"the envelope holds {payload_type!r}, not {PAYLOAD_TYPE!r}")
    try:
        statement = decode_json(payload, dict[str, Any])
    except (ValueError, RecursionError) as problem:
        raise StatementError(f"malformed statement: {problem}") from problem
    kinds = statement.get("_type"), statement.get("predicateType")
    if kinds != (STATEMENT_TYPE, PREDICATE_TYPE):
        raise StatementError(f"the envelope holds no {STATEMENT_TYPE} with a {PREDICATE_TYPE}")
    return statement


def _word(result: Verdict, *, success: bool) -> str:
    match result:
        case Verdict.PASS:
            # Who reads only this word must not take work for good that failed a gate, or that governance rejects.
            return "PASSED" if success else "WARNED"
        case Verdict.FAIL:
            return "FAILED"
        case Verdict.PARTIAL | Verdict.INCONCLUSIVE | Verdict.ERROR:
            return "WARNED"


def _descriptor(name: str, digest: str) -> dict[str, Any]:
    if len(digest) != _SHA256_HEX or not {*digest} <= {*"0123456789abcdef"}:
        raise StatementError(f"{name!r} is named by its SHA-256 in lower-case hex, not by {digest!r}")
    return {"name": name, "digest": {"sha256": digest}}


def _any_base64(text: str) -> bytes:
    return strict_base64(text.translate(_STANDARD))
