"""The verdict of a verifier as a value; authors of verifiers raise an exception instead."""

from typing import Any, TypeAlias

import msgspec

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


VerifierVerdict: TypeAlias = Acceptance | Rejection | SystemErrorVerdict
_READER: msgspec.json.Decoder[VerifierVerdict] = msgspec.json.Decoder(VerifierVerdict)


def parse_verdict(written: bytes) -> VerifierVerdict:
    """Parse a stored verdict."""
    return _READER.decode(written)


def failure_message(said: VerifierVerdict) -> str | None:
    """Say in words for people why a verdict is not a pass; None for a pass."""
    match said:
        case Acceptance():
            return None
        case Rejection():
            return said.message
        case SystemErrorVerdict():
            return said.error
