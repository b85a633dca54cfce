"""Guards: assertions that only forbid. They hold while nothing is done, so they gate a verdict and earn no points."""

from collections.abc import Mapping
from typing import Any

from meruit.model.item_range import as_range

GUARD_DEFAULTS: Mapping[str, Any] = {"weight": 0, "required": True}
"""What a guard's criterion has unless its author writes otherwise: an unwanted act is never a matter of degree."""
UNCHANGED_DEFAULTS: Mapping[str, Any] = {**GUARD_DEFAULTS, "axis": "safety"}
UNCHANGED = "state-unchanged"
"""The check that is a guard with any settings."""
_ASKED_OF_SPEECH = ("contains", "phrases", "order")
_ASKED_OF_ITEMS = ("fields", "fhirpath", "segments", "order", "outcome", "envelope", "valid", "size", "sha256")


# Any: as an author wrote it.
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
    """Whether a count allows that there is no item; a count that is not valid is refused elsewhere."""
    try:
        return count is not None and as_range(count).low == 0
    except ValueError:
        return False
