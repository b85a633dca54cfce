"""What every tier promises: JSON in, a few finite numbers out, or one named failure."""

import hashlib
import json
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from meruit.errors import ContextError
from meruit.model.canonical import LARGEST_INTEGER, payload_bytes
from meruit.model.kinds import Tier
from meruit.model.limits import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT_MS, MAX_METRICS, MAX_NAME
from meruit.sandbox.determinism import FROZEN_S, SEED

MAX_CONTEXT_BYTES = 16 * 1024 * 1024
MAX_RESULT_BYTES = 64 * 1024
MAX_MESSAGE = 400
"""The longest explanation that a tier passes on from inside the box."""
FROZEN_CLOCK = datetime.fromtimestamp(FROZEN_S, UTC).isoformat()
"""The only moment that user code knows: the same work gives the same numbers, whenever it is measured."""
CONTEXT = ("input", "output", "metadata")
"""What metric code is given, by name."""


class Failure(StrEnum):
    """Why user code gave no numbers. Each is a cause in the evidence; none is a pass, and none a failed agent."""

    TIMEOUT = "timeout"
    MEMORY = "memory"
    CRASHED = "crashed"
    """It raised, left, or took its worker down."""
    RESULT_REJECTED = "result_rejected"
    """It answered something that is not a few finite numbers."""
    UNSUPPORTED_CONSTRUCT = "unsupported_construct"
    """The tier cannot run what is written."""
    NONDETERMINISTIC = "nondeterministic"
    """Two runs on the same work differ."""
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    """No wall, no run: this machine or its operator does not offer the tier."""


class Limits(NamedTuple):
    """What one call may use."""

    timeout_ms: int = DEFAULT_TIMEOUT_MS
    memory_limit_mb: int = DEFAULT_MEMORY_MB


class SandboxError(Exception):
    """Inside the room: a call that ended without numbers."""

    def __init__(self, failure: Failure, message: str, where: str = "") -> None:
        self.failure = failure
        self.where = where
        """On which line of the code, where that is known."""
        super().__init__(message)


class SandboxResult(dict[str, Any]):
    """The specified mapping, `{"metrics": {name: number}}`; empty when the call failed."""

    failure: Failure | None
    message: str
    """What went wrong, for the author of the code; empty when nothing did."""
    evidence: Mapping[str, Any]
    """What ran, where, and within which limits."""

    def __init__(
        self,
        metrics: Mapping[str, float] | None,
        evidence: Mapping[str, Any],
        failure: Failure | None = None,
        message: str = "",
    ) -> None:
        super().__init__() if metrics is None else super().__init__(metrics=dict(metrics))
        self.failure = failure
        self.message = message
        self.evidence = evidence

    def __repr__(self) -> str:
        if self.failure is None:
            return f"SandboxResult({super().__repr__()})"
        return f"SandboxResult(failure={str(self.failure)!r}, message={self.message!r})"


def code_digest(code: str) -> str:
    """SHA-256 of the code as it was given."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def build_evidence(code: str, tier: Tier, engine: str, limits: Limits) -> dict[str, Any]:
    """The evidence of one call, before it is known how it ends."""
    return {
        "tier": str(tier),
        "engine": engine,
        "code_sha256": code_digest(code),
        "timeout_ms": limits.timeout_ms,
        "memory_limit_mb": limits.memory_limit_mb,
        "clock": FROZEN_CLOCK,
        "seed": SEED,
    }


def to_one_line(text: str) -> str:
    """A stranger's message, short and fit for any terminal and any JSON."""
    line = " ".join(text[: 4 * MAX_MESSAGE].encode("utf-8", "backslashreplace").decode().split())
    # What moves a cursor, or turns the reading order, is spelled out.
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def encode_context(context: Mapping[str, Any]) -> bytes:
    """The context as it crosses: JSON bytes of exactly `input`, `output` and `metadata`."""
    if not isinstance(context, Mapping):
        raise ContextError(f"the context is {type(context).__name__}; give a mapping of input, output and metadata")
    strange = next((name for name in context if name not in CONTEXT), None)
    if strange is not None:
        raise ContextError(f"the context holds {strange!r}; metric code is given {', '.join(CONTEXT)} and nothing else")
    crossing = payload_bytes({name: context.get(name, {}) for name in CONTEXT})
    if crossing is None:
        raise ContextError("the context holds something that is not JSON: NaN, an object, a key that is no text")
    if len(crossing) > MAX_CONTEXT_BYTES:
        limit = f"{MAX_CONTEXT_BYTES // 2**20} MiB"
        raise ContextError(f"the context is {len(crossing):,} bytes; at most {limit} cross into a sandbox")
    return crossing


def read_answer(answer: bytes) -> dict[str, float]:
    """The metrics in what came out of the box, whoever wrote it; `Failed` for anything but a few finite numbers."""
    if len(answer) > MAX_RESULT_BYTES:
        raise SandboxError(Failure.RESULT_REJECTED, f"the result is larger than {MAX_RESULT_BYTES // 1024} KiB")
    try:
        said: Any = json.loads(answer, object_pairs_hook=_reject_duplicate_names)
    except (ValueError, RecursionError) as problem:
        raise SandboxError(Failure.RESULT_REJECTED, f"the result is not JSON: {problem}"[:MAX_MESSAGE]) from None
    return validate_metrics(said)


# Any: hostile code chose it.
def validate_metrics(said: Any) -> dict[str, float]:
    """The metrics, if they are a few finite numbers under names; `Failed` says what they are instead."""
    if not isinstance(said, dict):
        wish = "metric() must return a mapping of names to numbers"
        raise SandboxError(Failure.RESULT_REJECTED, f"{wish}, not {type(said).__name__}")
    if len(said) > MAX_METRICS:
        raise SandboxError(Failure.RESULT_REJECTED, f"{len(said):,} metrics; at most {MAX_METRICS} are taken")
    for name, value in said.items():
        wrong = _name_fault(name) or _number_fault(value)
        if wrong is not None:
            raise SandboxError(Failure.RESULT_REJECTED, to_one_line(f"metric {name!r:.60}: {wrong}"))
    return said


def _name_fault(name: Any) -> str | None:
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        return f"a name is a text of 1 to {MAX_NAME} characters"
    if "\ufffd" in name:
        return "a name holds a character that could not be read"
    return None if name.isprintable() else "a name holds no control characters"


def _number_fault(value: Any) -> str | None:
    # Exactly these types: a bool is an int to Python, and no number to anyone else.
    if type(value) is not int and type(value) is not float:
        hint = "; write `1 if … else 0`" if isinstance(value, bool) else ""
        return f"{type(value).__name__} is no number{hint}"
    if type(value) is float and not math.isfinite(value):
        return f"{value} is no finite number"
    if abs(value) > LARGEST_INTEGER:
        return "the number is beyond ±2^53, where floats no longer tell neighbours apart"
    return None


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name stands twice")
    return members
