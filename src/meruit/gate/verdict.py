"""What a verifier says: an exception where people write it, a value wherever it is kept."""

from typing import Any, TypeAlias

import msgspec

from meruit.model.record import Record

MAX_CODE = 100


class Acceptance(Record, frozen=True, tag_field="outcome", tag="passed"):
    """Good enough."""

    # Any: whatever the verifier returned, as JSON has it.
    result: Any = None


class Rejection(Record, frozen=True, tag_field="outcome", tag="rejected"):
    """Not good enough, and why."""

    message: str
    code: str | None = None
    retryable: bool = True
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class SystemErrorVerdict(Record, frozen=True, tag_field="outcome", tag="system_error"):
    """Nobody could tell."""

    error: str
    permanent: bool = False
    """Whether asking again cannot help."""


VerifierVerdict: TypeAlias = Acceptance | Rejection | SystemErrorVerdict
_READER: msgspec.json.Decoder[VerifierVerdict] = msgspec.json.Decoder(VerifierVerdict)


def parse_verdict(written: bytes) -> VerifierVerdict:
    """What a verifier said, from where it was kept."""
    return _READER.decode(written)
