"""What a verifier says: an exception where people write it, a value wherever it is kept."""

from typing import Any, TypeAlias

import msgspec

from meruit.errors import MeruitError
from meruit.model.record import Record

MAX_CODE = 100


class VerificationRejected(Exception):
    """Raised by `verify` for a candidate that is not good enough; its message goes back to the model."""

    def __init__(
        self,
        message: str,
        retryable: bool = True,  # noqa: FBT001, FBT002 - as specified
        code: str | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retryable = retryable
        self.code = code
        self.metadata = dict(metadata or {})

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel whole and without `__init__`, which an author's subclass may have given other parameters."""
        return _rebuild_rejection, (type(self), self.args), vars(self)


def _rebuild_rejection(kind: type[VerificationRejected], args: tuple[Any, ...]) -> VerificationRejected:
    return kind.__new__(kind, *args)


class VerificationExhausted(MeruitError):
    """No candidate passed, and none may be submitted any more."""

    def __init__(self, reason: str, attempts_used: int, message: str = "", code: str | None = None) -> None:
        super().__init__(f"verification ended without a pass ({reason}, {attempts_used} counted): {message}")
        self.reason = reason
        self.attempts_used = attempts_used
        self.message = message
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes whole."""
        return type(self), (self.reason, self.attempts_used, self.message, self.code)


class CouldNotVerify(MeruitError):
    """The verifier broke, and nobody was judged."""


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
