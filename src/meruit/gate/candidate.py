"""The hash that identifies a candidate: of its canonical JSON, not of its formatting."""

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any
from uuid import UUID

import msgspec
from pydantic import BaseModel, RootModel
from pydantic_core import PydanticSerializationError, to_jsonable_python

from meruit.errors import NotJsonSerializable
from meruit.model.canonical import canonical

_VERSION = b"\x01"
"""Version of the hash, as its first byte."""


def to_json_value(value: Any) -> Any:
    """Convert a value to plain JSON, with sorted sets; raises NotJsonSerializable, also for NaN."""
    return _serialize(value)[0]


def to_json_value_and_hash(model: str, value: Any) -> tuple[Any, str]:
    """Convert a value to plain JSON and hash it together with the name of its model."""
    plain, written = _serialize(value)
    # An output type may allow several models: equal fields of two models are two candidates.
    return plain, _hash_of(type(value).__name__ if isinstance(value, BaseModel) else model, written)


def _serialize(value: Any) -> tuple[Any, bytes]:
    try:
        plain = _sort_sets(to_jsonable_python(value, by_alias=False, fallback=_to_builtins), value)
        return plain, canonical(plain)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as problem:
        raise NotJsonSerializable(str(problem).partition("\n")[0]) from None


def _to_builtins(value: Any) -> Any:
    """Convert msgspec structs, which pydantic does not know; our own records are such."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


# Any: JSON, and the value that it was written from.
def _sort_sets(plain: Any, value: Any) -> Any:
    """Sort every set: the order in which a set is serialized differs between processes."""
    if isinstance(plain, str | int):
        # Most values; whether the others are mappings takes longer to find out.
        return plain
    if isinstance(value, RootModel):
        value = value.root
    elif isinstance(value, BaseModel) and isinstance(plain, dict):
        return {key: _sort_sets(one, getattr(value, key, None)) for key, one in plain.items()}
    match plain, value:
        case dict(), Mapping() if len({*map(str, value)}) < len(value):
            raise ValueError("two of its keys are one in JSON")
        case dict(), Mapping() if len(plain) == len(value):
            return {
                key: _sort_sets(one, original)
                for (key, one), original in zip(plain.items(), value.values(), strict=True)
            }
        case dict(), _:
            return {key: _sort_sets(one, getattr(value, key, None)) for key, one in plain.items()}
        case list(), Iterator():
            raise ValueError(f"a {type(value).__name__} can be read only once; give a list")
        case list(), list() | tuple() | set() | frozenset() | deque() if len(plain) == len(value):
            settled = [_sort_sets(one, original) for one, original in zip(plain, value, strict=True)]
            return sorted(settled, key=canonical) if isinstance(value, set | frozenset) else settled
        case None, float():
            # Pydantic writes null for NaN and infinity; they must not equal a real null.
            raise ValueError(f"{value} is not JSON serializable")
        case _:
            return plain


# Any: an output, and its JSON.
def is_lossless(output: Any, plain: Any) -> bool:  # noqa: PLR0911 - one for each kind of value
    """Whether the JSON of an output shows all of it: no value is hidden, rounded, left out or added."""
    match output:
        case RootModel():
            return is_lossless(output.root, plain)
        case BaseModel():
            fields = {name: getattr(output, name) for name in type(output).model_fields} | (output.model_extra or {})
            return _is_each_lossless(fields, plain)
        case Mapping():
            return _is_each_lossless(output, plain)
        case list() | tuple() | deque():
            return isinstance(plain, list) and len(plain) == len(output) and all(map(is_lossless, output, plain))
        case Enum() | Decimal() | UUID() | date() | time() | timedelta():
            return bool(to_jsonable_python(output) == plain)
        case bool() | int() | float() | str() | None:
            return type(output) is type(plain) and bool(output == plain)
        case _:
            # Secrets and types that are not known here.
            return False


def _is_each_lossless(output: Mapping[Any, Any], plain: Any) -> bool:
    return (
        isinstance(plain, dict)
        and output.keys() == plain.keys()
        and all(is_lossless(one, plain[name]) for name, one in output.items())
    )


def candidate_hash(output: Any) -> str:
    """SHA-256 over the canonical JSON of a validated output and the name of its model; raises NotJsonSerializable.

    1 and 1.0 are equal, and the order of keys does not matter.
    """
    return to_json_value_and_hash(type(output).__name__, output)[1]


def _hash_of(model: str, written: bytes) -> str:
    return sha256(_VERSION + model.encode() + b"\0" + written).hexdigest()
