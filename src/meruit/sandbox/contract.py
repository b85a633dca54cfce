"""What each tier takes and returns: JSON in, a few finite numbers out, or one named failure."""

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from meruit.errors import ContextError, Failure, SandboxError
from meruit.model.canonical import LARGEST_INTEGER, payload_bytes
from meruit.model.kinds import Tier
from meruit.model.limits import DEFAULT_MEMORY_MB, DEFAULT_TIMEOUT_MS, MAX_METRICS, MAX_NAME
from meruit.sandbox.determinism import FROZEN_S, SEED

MAX_CONTEXT_BYTES = 16 * 1024 * 1024
MAX_RESULT_BYTES = 64 * 1024
MAX_MESSAGE = 400
"""The longest message that a tier passes on from inside the sandbox."""
FROZEN_CLOCK = datetime.fromtimestamp(FROZEN_S, UTC).isoformat()
"""The fixed time that user code sees, so that the same work always gives the same numbers."""
CONTEXT = ("input", "output", "metadata")
"""The names of what metric code receives."""


VALUE = "value"
"""The metric name of an expression's number."""
BOOLEAN = "boolean"
"""The metric name of an expression's truth: 1 for true, 0 for false."""
UNDEFINED = "the code defines no function metric(input, output, metadata)"
SYNTAX_ERROR = "SyntaxError: "
"""Begins the message about code that is not valid Python, in any tier."""


class Limits(msgspec.Struct, frozen=True):
    """Limits of one call."""

    timeout_ms: int = DEFAULT_TIMEOUT_MS
    memory_limit_mb: int = DEFAULT_MEMORY_MB


class SandboxResult(dict[str, Any]):
    """The result of one call: the mapping `{"metrics": {name: number}}`, empty when the call failed."""

    failure: Failure | None
    message: str
    """What went wrong, for the author of the code; empty on success."""
    evidence: Mapping[str, Any]
    """The tier, its engine, the code's digest and the limits."""

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


def may_run_in_wider_tier(failed: SandboxResult) -> bool:
    """Whether a failure is the tier's: what is not valid Python, or defines no metric, runs in no tier."""
    of_tier = failed.failure is Failure.UNSUPPORTED_CONSTRUCT
    return of_tier and not failed.message.startswith((SYNTAX_ERROR, UNDEFINED))


@lru_cache(64)
def code_digest(code: str) -> str:
    """SHA-256 of the code."""
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).hexdigest()


def build_evidence(code: str, tier: Tier, engine: str, limits: Limits) -> dict[str, Any]:
    """Build the evidence of one call; it does not depend on how the call ends."""
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
    """Shorten an untrusted message to one line that any terminal and any JSON can show."""
    line = " ".join(text[: 4 * MAX_MESSAGE].encode("utf-8", "backslashreplace").decode().split())
    # Characters that move a cursor or reverse the reading order are escaped.
    line = "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


_OUTSIDE = re.compile(
    r"NameError: name '(input|output|metadata)' is not defined|'(return|yield)' outside function"
    r"|builtin_function_or_method' object is not subscriptable"
)
"""What is said of code that reads the work, or returns, outside of a function."""


def explain_top_level_code(message: str) -> str:
    """Add to an error that the code belongs into a function, where the error shows that it stands outside of one."""
    if message != UNDEFINED and _OUTSIDE.search(message) is None:
        return message
    return f"{message}; write def metric(input, output, metadata): … return {{name: number}}"


# Any: work is any JSON.
class WorkContext(dict[str, Any]):
    """The context of one piece of work, which is encoded once for all code that judges it."""

    encoded: bytes | ContextError | None = None
    """As JSON, or why it cannot be written; None until it is asked for."""


def encode_context(context: Mapping[str, Any]) -> bytes:
    """Encode the context as JSON with exactly `input`, `output` and `metadata`; raises ContextError."""
    if not isinstance(context, WorkContext):
        return _encode_context(context)
    if context.encoded is None:
        try:
            context.encoded = _encode_context(context)
        except ContextError as refused:
            context.encoded = refused
    if isinstance(context.encoded, ContextError):
        # Without the traceback, which would grow with each call.
        raise context.encoded.with_traceback(None)
    return context.encoded


def _encode_context(context: Mapping[str, Any]) -> bytes:
    if not isinstance(context, Mapping):
        raise ContextError(f"the context is {type(context).__name__}; pass a mapping of input, output and metadata")
    unknown = next((name for name in context if name not in CONTEXT), None)
    if unknown is not None:
        raise ContextError(f"the context has an unknown key {unknown!r}; use only {', '.join(CONTEXT)}")
    encoded = payload_bytes({name: context.get(name, {}) for name in CONTEXT})
    if encoded is None:
        raise ContextError("the context cannot be written as JSON: it has NaN, an object, or a key that is not text")
    if len(encoded) > MAX_CONTEXT_BYTES:
        limit = f"{MAX_CONTEXT_BYTES // 2**20} MiB"
        refused = ContextError(f"the context is {len(encoded):,} bytes; a sandbox accepts at most {limit}")
        refused.too_large = True
        raise refused
    return encoded


def read_answer(answer: bytes) -> dict[str, float]:
    """Parse what came out of the sandbox; it is untrusted. Raises SandboxError unless it is a few finite numbers."""
    if len(answer) > MAX_RESULT_BYTES:
        raise SandboxError(Failure.RESULT_REJECTED, f"the result is larger than {MAX_RESULT_BYTES // 1024} KiB")
    return validate_metrics(_decode(answer))


# Any: hostile code chose it.
def _decode(answer: bytes) -> Any:
    with contextlib.suppress(ValueError):
        result = orjson.loads(answer)
        # Each member has a colon, so there are more colons than names where one appears twice.
        if type(result) is dict and len(result) == answer.count(b":"):
            return result
    try:
        return _DECODER.decode(answer.decode(json.detect_encoding(answer), "surrogatepass"))
    except (ValueError, RecursionError) as problem:
        raise SandboxError(Failure.RESULT_REJECTED, f"the result is not JSON: {problem}"[:MAX_MESSAGE]) from None


# Any: hostile code chose it.
def validate_metrics(result: Any) -> dict[str, float]:
    """Return the result if it maps names to a few finite numbers; raise SandboxError otherwise."""
    if not isinstance(result, dict):
        expected = "metric() must return a mapping of names to numbers"
        raise SandboxError(Failure.RESULT_REJECTED, f"{expected}, not {type(result).__name__}")
    if len(result) > MAX_METRICS:
        raise SandboxError(
            Failure.RESULT_REJECTED, f"the result has {len(result):,} metrics; at most {MAX_METRICS} are allowed"
        )
    for name, value in result.items():
        wrong = _name_fault(name) or _number_fault(value)
        if wrong is not None:
            raise SandboxError(Failure.RESULT_REJECTED, to_one_line(f"metric {name!r:.60}: {wrong}"))
    return result


def _name_fault(name: Any) -> str | None:
    if not isinstance(name, str) or not name or len(name) > MAX_NAME:
        return f"a name must be text of 1 to {MAX_NAME} characters"
    if "\ufffd" in name:
        return "the name has a character that is not valid Unicode"
    return None if name.isprintable() else "a name must not have control characters"


def _number_fault(value: Any) -> str | None:
    # Exactly these types: a bool is an int in Python, but not a number in JSON.
    if type(value) is not int and type(value) is not float:
        hint = "; write `1 if … else 0`" if isinstance(value, bool) else ""
        return f"{type(value).__name__} is not a number{hint}"
    if type(value) is float and not math.isfinite(value):
        return f"{value} is not a finite number"
    if abs(value) > LARGEST_INTEGER:
        return "the number is beyond ±2^53, where floats are no longer exact"
    return None


def _reject_duplicate_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a name appears twice")
    return members


# Made once: `json.loads` makes one for each call that has a hook.
_DECODER = json.JSONDecoder(object_pairs_hook=_reject_duplicate_names)
