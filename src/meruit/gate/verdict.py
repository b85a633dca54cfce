"""The verdict of a verifier as a value, and the answer of a gate; authors of verifiers raise an exception to reject."""

from typing import Any, TypeAlias

import msgspec

from meruit.model.decoding import json_decoder
from meruit.model.record import Record

MAX_CODE = 100


class Acceptance(Record, frozen=True, tag_field="outcome", tag="passed"):
    """The candidate passes."""

    # Any: the return value of the verifier, as JSON.
    result: Any = None


class Rejection(Record, frozen=True, tag_field="outcome", tag="rejected"):
    """The candidate does not pass, and why."""

    message: str
    code: str | None = None
    retryable: bool = True
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class SystemErrorVerdict(Record, frozen=True, tag_field="outcome", tag="system_error"):
    """The verifier broke; the candidate is not judged."""

    error: str
    permanent: bool = False
    """Whether a retry cannot help."""


class Deferral(Record, frozen=True, tag_field="outcome", tag="deferred"):
    """No verdict yet: the verifier is called again with the answer of a client, or after a pause."""

    note: str = ""
    """What it waits for, for the client that answers."""
    timeout_s: float | None = None
    """Seconds to wait for the answer; None for no limit."""
    pause_s: float | None = None
    """Seconds after which the verifier is called again; None where it waits for an answer."""


VerifierVerdict: TypeAlias = Acceptance | Rejection | SystemErrorVerdict
VerifierAnswer: TypeAlias = VerifierVerdict | Deferral
_READER: msgspec.json.Decoder[VerifierVerdict] = json_decoder(VerifierVerdict)


def parse_verdict(written: bytes) -> VerifierVerdict:
    """Parse a stored verdict."""
    return _READER.decode(written)


def failure_message(verdict: VerifierVerdict) -> str | None:
    """Say in words for people why a verdict is not a pass; None for a pass."""
    match verdict:
        case Acceptance():
            return None
        case Rejection():
            return verdict.message
        case SystemErrorVerdict():
            return verdict.error


class Passed(msgspec.Struct, frozen=True):
    """The candidate passed; `result` is the final result."""

    result: Any
    attempt: int
    replayed: bool = False


class Rejected(msgspec.Struct, frozen=True):
    """The candidate was rejected; `feedback` is for the model."""

    feedback: str
    attempt: int
    attempts_used: int
    counted: bool
    code: str | None = None
    replayed: bool = False
