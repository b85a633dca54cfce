"""What an importer yields: facts of the run, cases with what their origin claims of them, and notes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from meruit.evaluations.evaluation import MAX_NAME, Case, CaseError
from meruit.evaluations.importers.support.json_stream import clean

MAX_DEPTH = 100
"""Levels of foreign JSON that are kept; deeper parts are left out."""
LARGEST = 2**63 - 1
"""Integers beyond 64 bits are kept as text."""
PASSES, FAILS = (
    {"c", "correct", "pass", "passed", "true", "yes", "y"},
    {"i", "incorrect", "fail", "failed", "false", "no", "n"},
)
"""Words of several tools for their two verdicts."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What a file says of the whole run."""

    tags: Mapping[str, str] = field(default_factory=dict)
    planned: int | None = None
    """How many cases there should be, where the file says so."""


@dataclass(frozen=True, slots=True)
class ImportNote:
    """Something that users should know about an import."""

    message: str
    partial: bool = False
    """Whether cases are missing."""


@dataclass(frozen=True, slots=True)
class Claim:
    """What the origin says of one case; nothing of it is our judgement."""

    success: bool | None = None
    """Its own verdict; None where it has none."""
    score: float | None = None
    """Its overall number between 0 and 1, where it has no verdict."""
    checks: Mapping[str, bool | None] = field(default_factory=dict)
    """Its verdicts by name: assertions, graders."""
    scores: Mapping[str, Any] = field(default_factory=dict)
    """Its values by name, as they are written; None is unscored."""
    reasons: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ImportedCase:
    """A case and its origin's claim."""

    case: Case
    claim: Claim = Claim()


Piece = RunFacts | ImportNote | ImportedCase


@dataclass(frozen=True, slots=True)
class TokenClasses:
    """Tokens of a case in four classes that do not overlap."""

    input: int = 0
    """Without those read from a cache or written to one."""
    cache_read: int = 0
    cache_write: int = 0
    output: int = 0

    @classmethod
    def exclusive(cls, *, given: Any, read: Any = 0, written: Any = 0, made: Any = 0) -> "TokenClasses":
        """From an origin whose input tokens exclude the cache (Inspect, verifiers)."""
        return cls(count(given), count(read), count(written), count(made))

    @classmethod
    def inclusive(cls, *, given: Any, read: Any = 0, written: Any = 0, made: Any = 0) -> "TokenClasses":
        """From an origin whose input tokens include the cache (OpenTelemetry, Harbor, ATIF)."""
        cached, wrote = count(read), count(written)
        return cls(max(0, count(given) - cached - wrote), cached, wrote, count(made))

    @property
    def total(self) -> int:
        """All classes together."""
        return self.input + self.cache_read + self.cache_write + self.output

    def __add__(self, other: "TokenClasses") -> "TokenClasses":
        """The sum, class by class."""
        return TokenClasses(
            self.input + other.input,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
            self.output + other.output,
        )

    def to_dict(self) -> dict[str, int]:
        """As metadata keep it; empty where nothing was counted."""
        found = {
            "input_tokens": self.input,
            "cache_read_tokens": self.cache_read,
            "cache_write_tokens": self.cache_write,
            "output_tokens": self.output,
        }
        return found if any(found.values()) else {}


def build_case(  # noqa: PLR0913 - one a part of a case
    case_id: Any,
    *,
    given: Mapping[str, Any],
    output: Any = None,
    repeat: Any = 0,
    tags: Mapping[str, Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    messages: Sequence[Any] = (),
    tokens: TokenClasses = TokenClasses(),  # noqa: B008 - frozen
    duration_ms: Any = None,
    cost: Any = None,
    error: str | None = None,
    group: str | None = None,
) -> Case:
    """A case from foreign values, made safe to store."""
    facts = plain(metadata or {})
    if messages:
        facts["messages"] = plain([*messages])
    if usage := tokens.to_dict():
        facts["usage"] = usage
    took = number(duration_ms)
    if took is not None and took >= 0:
        facts["duration_ms"] = took
    made = plain(output)
    if made is not None and not isinstance(made, dict):
        made = {"text": made}
    dollars = number(cost)
    return Case(
        id=name_of(case_id),
        input=plain(dict(given)),
        output=made,
        metadata=facts,
        group=None if group is None else name_of(group),
        tags={name_of(key): name_of(value) for key, value in (tags or {}).items() if value not in (None, "")},
        repeat=max(0, count(repeat)),
        error=None if error is None else CaseError.ORIGIN_ERROR,
        error_message="" if error is None else clean(error)[:2_000] or "the origin recorded an error",
        cost_micros=round(dollars * 1_000_000) if dollars is not None and 0 <= dollars < 1e9 else None,
    )


def plain(value: Any, depth: int = 0) -> Any:  # noqa: PLR0911 - one a kind of value
    """Plain JSON from foreign values: NaN becomes None, huge integers text, and what is too deep is left out."""
    match value:
        case None | bool():
            return value
        case str():
            return clean(value)
        case int():
            return value if abs(value) <= LARGEST else str(value) if abs(value) < 10**100 else None
        case float():
            return value if math.isfinite(value) else None
        case _ if depth >= MAX_DEPTH:
            return None
        case Mapping():
            return {clean(str(key)): plain(part, depth + 1) for key, part in value.items()}
        case list() | tuple():
            return [plain(part, depth + 1) for part in value]
        case _:
            return clean(str(value))


def name_of(value: Any) -> str:
    """A printable name of at most 200 characters; a longer one ends in a digest, so that two of them differ."""
    text = clean(value if isinstance(value, str) else str(value)).strip()
    printable = "".join(one if one.isprintable() else "\ufffd" for one in text) or "-"
    if len(printable) <= MAX_NAME and (printable == text or not text):
        return printable
    return f"{printable[: MAX_NAME - 17]}…{sha256(text.encode()).hexdigest()[:16]}"


def number(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if math.isfinite(found) else None


def count(value: Any) -> int:
    """A count from 0 up; 0 for anything else."""
    found = number(value)
    return 0 if found is None or found < 0 else int(min(found, 10**15))


def verdict_word(value: Any) -> bool | None:
    """Whether a word means a pass or a failure; None where it is neither."""
    if isinstance(value, bool):
        return value
    word = value.strip().casefold() if isinstance(value, str) else ""
    return True if word in PASSES else False if word in FAILS else None


def mapping(value: Any) -> Mapping[str, Any]:
    """A JSON object; an empty one in place of anything else."""
    return value if isinstance(value, Mapping) else {}


def first_known(*values: Any) -> Any:
    """The first value that is not null; None where all are."""
    return next((one for one in values if one is not None), None)


def items(value: Any) -> Sequence[Any]:
    """A JSON list; an empty one in place of anything else."""
    return value if isinstance(value, list) else []


def all_hold(checks: Mapping[str, bool | None]) -> bool | None:
    """Whether every check holds: None where there is none; an unknown one decides nothing, but a failed one does."""
    if any(one is False for one in checks.values()):
        return False
    return True if checks and all(checks.values()) else None


def number_names(names: Sequence[str]) -> list[str]:
    """The names; the second of a kind as `name #2`, or with the next number that no other name ends in."""
    taken, seen = {*names}, dict[str, int]()
    found = []
    for name in names:
        number_ = seen.get(name, 0) + 1
        chosen = name
        if number_ > 1:
            while (chosen := f"{name} #{number_}") in taken:
                number_ += 1
        seen[name] = number_
        taken.add(chosen)
        found.append(chosen)
    return found
