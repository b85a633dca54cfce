"""One byte string for one meaning, and its digest."""

import hashlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import orjson

_SORTED = orjson.OPT_SORT_KEYS


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and no floats: every number travels as its shortest decimal text."""
    return orjson.dumps(_floatless(value), option=_SORTED)


def digest(value: Any) -> str:
    """SHA-256 of the canonical form."""
    return hashlib.sha256(canonical(value)).hexdigest()


def payload_digest(payload: Any) -> str | None:
    """SHA-256 of a payload's sorted JSON; None when it is not JSON at all."""
    try:
        return hashlib.sha256(orjson.dumps(payload, option=_SORTED)).hexdigest()
    except (orjson.JSONEncodeError, RecursionError):
        return None


def _floatless(value: Any) -> Any:
    if isinstance(value, float | Decimal):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        # 2000, 2000.0 and 2E+3 are one number and must give one digest.
        shortest = number.normalize()
        return str(int(shortest)) if shortest == shortest.to_integral_value() else format(shortest, "f")
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _floatless(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_floatless(item) for item in value]
    raise TypeError(f"{type(value).__name__} is no JSON")
