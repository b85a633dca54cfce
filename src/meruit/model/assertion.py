"""Assertions as authors write them: how many items one allows, and whether it only forbids.

An assertion that only forbids is a guard. It holds while nothing is done, so it gates a verdict and earns no points.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

GUARD_DEFAULTS: Mapping[str, Any] = {"weight": 0, "required": True}
"""What a guard's criterion has unless its author writes otherwise: an unwanted act is never a matter of degree."""
UNCHANGED_DEFAULTS: Mapping[str, Any] = {**GUARD_DEFAULTS, "axis": "safety"}
UNCHANGED = "state-unchanged"
"""The check that is a guard with any settings."""
_ASKED_OF_SPEECH = ("contains", "phrases", "order")
_ASKED_OF_ITEMS = ("fields", "fhirpath", "segments", "order", "outcome", "envelope", "valid", "size", "sha256")
_SIGNED = re.compile(r"(>=|<=|==?|>|<)\s*([0-9]{1,9})")


class Range(NamedTuple):
    """An allowed number of items, a pair as authors may write it: [1, 3]."""

    low: int
    high: int | None

    def __contains__(self, number: object) -> bool:
        """Whether the number is in the range."""
        return isinstance(number, int) and self.low <= number and (self.high is None or number <= self.high)

    def __str__(self) -> str:
        """`exactly 1`, `at least 1`, `0 to 3`."""
        if self.low == self.high:
            return f"exactly {self.low:,}"
        return f"at least {self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


AT_LEAST_ONE = Range(1, None)


# Any, here and below: what an author wrote.
def as_range(written: Any) -> Range:
    """Parse `1`, `">=1"`, `[1, 3]` or `{min: 1, max: 3}`."""
    if isinstance(written, Range):
        return written
    found = _ends(written)
    if found is not None:
        low, high = found
        if _is_number(low) and (high is None or (_is_number(high) and low <= high)):
            return Range(low, high)
    raise ValueError('expected a number of items: 1, ">=1", [1, 3] or {min: 1, max: 3}')


def is_guard(check: str, settings: Mapping[str, Any]) -> bool:
    """Whether an assertion only forbids: phrases, changes, or more items than a maximum."""
    if check == UNCHANGED or settings.get("changed") == "none":
        return True
    if settings.get("forbidden") and not any(settings.get(name) for name in _ASKED_OF_SPEECH):
        return True
    return allows_none(settings.get("count")) and not any(settings.get(name) for name in _ASKED_OF_ITEMS)


def guard_defaults(check: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The defaults of an assertion's criterion; empty where it is not a guard."""
    if check == UNCHANGED:
        return UNCHANGED_DEFAULTS
    return GUARD_DEFAULTS if is_guard(check, settings) else {}


def allows_none(count: Any) -> bool:
    """Whether a count allows zero items; a count that is not valid is refused elsewhere."""
    try:
        return count is not None and as_range(count).low == 0
    except ValueError:
        return False


def _ends(written: Any) -> tuple[Any, Any] | None:
    match written:
        case int():
            return written, written
        case str() if found := _SIGNED.fullmatch(written.strip()):
            number = int(found[2])
            ends = {">=": (number, None), ">": (number + 1, None), "<=": (0, number), "<": (0, number - 1)}
            return ends.get(found[1], (number, number))
        case [low, high]:
            return low, high
        case Mapping() if written and written.keys() <= {"min", "max"}:
            return written.get("min", 0), written.get("max")
        case _:
            return None


def _is_number(end: Any) -> bool:
    return isinstance(end, int) and not isinstance(end, bool) and end >= 0
