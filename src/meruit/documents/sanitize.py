"""Turns what metrics, checks and agents return into plain JSON that a record can hold, or into a reason why not."""

import math
import numbers
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import msgspec

from meruit.judge.compare import EXACT_INTEGERS
from meruit.model.decoding import decode_json
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Measured, Missing, Provenance, Skipped, Value

MAX_LIST_VALUE = 10_000
"""The most items of a list that a metric returns as its value."""
NOT_FOUND = "Metric not found: "
"""Begins what is said of a value that was not measured."""
MAX_MESSAGE = 200
"""The longest description of an exception."""
_NUMBERS = frozenset({float, int})
_TEXT = frozenset({str})


def sanitize(finding: Any) -> Evidence:  # noqa: PLR0911 - one return a kind of finding
    """Turn a finding into evidence with plain JSON values only."""
    # The usual case first: a number with details.
    if finding.__class__ is Measured and finding.value.__class__ in _NUMBERS and finding.provenance is None:
        return Measured(finding.value, _sanitize_details(finding.details))
    match finding:
        case Missing():
            # A plugin may return other types than its annotations say.
            cause, fault = Cause(finding.cause), Fault(finding.fault)
            found = NOT_FOUND if cause is Cause.METRIC_MISSING else ""
            return Missing(
                found + escape_unencodable(str(finding.why)), cause, fault, _sanitize_details(finding.details)
            )
        case Measured():
            value = _sanitize_value(finding.value)
            if isinstance(value, Missing):
                return value
            provenance = None if finding.provenance is None else Provenance(finding.provenance)
            return Measured(value, _sanitize_details(finding.details), provenance)
        case Checked(score=str()):
            return Checked(finding.score, _sanitize_details(finding.details), Fault(finding.fault))
        case Checked():
            why = f"the check returned a score of type {type(finding.score).__name__}, not text such as 2/3"
            return Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM)
        case Skipped():
            return Skipped(escape_unencodable(str(finding.why)))
        case _:
            return _sanitize_value(finding)


def _sanitize_value(value: Any) -> Value | Missing:  # noqa: PLR0911 - one line a kind of value
    """Convert numbers of other libraries to Python's; return Missing for anything that is not a value."""
    match value:
        case bool():
            return value
        # Subclasses such as numpy's float64 cannot be encoded.
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            if escape_unencodable(value) == value:
                return value
            return Missing("the value is text that is not Unicode", Cause.WRONG_TYPE, Fault.SYSTEM)
        case numbers.Integral():
            return int(value)
        case numbers.Real() | Decimal():
            return float(value) if math.isfinite(value) else math.nan
        case list() | tuple() if len(value) <= MAX_LIST_VALUE and all(map(_listable, value)):
            return list(value)
        case _:
            item = getattr(value, "item", None)
            if callable(item) and getattr(value, "ndim", None) == 0:
                return _sanitize_value(item())
            why = f"the value is {type(value).__name__}, not a number"
            return Missing(why, Cause.WRONG_TYPE, Fault.SYSTEM)


def _listable(item: Any) -> bool:
    """Whether a metric's list value may have this item."""
    return (
        escape_unencodable(item) == item
        if isinstance(item, str)
        else isinstance(item, int) and abs(item) <= EXACT_INTEGERS
    )


def escape_unencodable(text: str) -> str:
    """Escape the characters that JSON cannot hold."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# Any: an untrusted value.
def text_of(value: Any) -> str:
    """A value as text, even when its own `__str__` fails."""
    try:
        return escape_unencodable(str(value))
    except Exception:  # noqa: BLE001 - an untrusted value's `__str__` may raise anything
        return f"a value of type {type(value).__name__}"


def _sanitize_details(details: Any) -> Any:
    """Copy the details as plain JSON."""
    if details is None:
        return None
    copied = _copy_plain(details)
    if copied is not None:
        return copied
    try:
        try:
            written = msgspec.json.encode(details)
        except UnicodeEncodeError:
            written = msgspec.json.encode(_escape_nested(details))
        return decode_json(written, dict[str, Any])
    except (TypeError, ValueError, RecursionError):
        return {"message": "the details cannot be written as JSON"}


def _copy_plain(details: Any) -> dict[str, Any] | None:
    """A copy of details that hold only ASCII texts and lists of them, as those of keywords do; else None."""
    if details.__class__ is not dict:
        return None
    copied: dict[str, Any] = {}
    for key, value in details.items():
        if value.__class__ is list:
            if not (_TEXT.issuperset(map(type, value)) and "".join(value).isascii()):
                return None
            copied[key] = value.copy()
        elif value.__class__ is str and value.isascii():
            copied[key] = value
        else:
            return None
        if key.__class__ is not str or not key.isascii():
            return None
    return copied


def _escape_nested(value: Any) -> Any:
    match value:
        case str():
            return escape_unencodable(value)
        case Mapping():
            return {escape_unencodable(str(key)): _escape_nested(item) for key, item in value.items()}
        case list() | tuple():
            return [_escape_nested(item) for item in value]
        case _:
            return value


def describe(crash: BaseException) -> str:
    """Describe an exception in one short line that any terminal and any JSON can show."""
    try:
        message = str(crash)
    except Exception:  # noqa: BLE001 - an untrusted exception's `__str__` may raise anything
        message = ""
    text = f"{type(crash).__name__}: {message}" if message else type(crash).__name__
    line = " ".join(escape_unencodable(text).split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
