"""What tells one candidate from another: a digest of its meaning, not of how it was written."""

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
"""Of the recipe below."""


def to_json_value(value: Any) -> Any:
    """A value as JSON has it, its sets sorted; raises NotJson for what JSON cannot hold, NaN included."""
    return _serialize(value)[0]


def to_json_value_and_hash(model: str, value: Any) -> tuple[Any, str]:
    """The same, and what tells it from other outputs of that model."""
    plain, written = _serialize(value)
    # Of several models that an output may be of, each has its own.
    return plain, _hash_of(type(value).__name__ if isinstance(value, BaseModel) else model, written)


def _serialize(value: Any) -> tuple[Any, bytes]:
    try:
        plain = _sort_sets(to_jsonable_python(value, by_alias=False, fallback=_to_builtins), value)
        return plain, canonical(plain)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as problem:
        raise NotJsonSerializable(str(problem).partition("\n")[0]) from None


def _to_builtins(value: Any) -> Any:
    """What pydantic does not know and msgspec does: our own records are among it."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


# Any: JSON, and the value that it was written from.
def _sort_sets(plain: Any, value: Any) -> Any:
    """JSON with every set in one order: the one in which a set is written differs between processes."""
    if isinstance(value, RootModel):
        value = value.root
    match plain, value:
        case dict(), Mapping() if len({*map(str, value)}) < len(value):
            raise ValueError("two of its keys are one in JSON")
        case dict(), Mapping() if len(plain) == len(value):
            return {key: _sort_sets(one, said) for (key, one), said in zip(plain.items(), value.values(), strict=True)}
        case dict(), _:
            return {key: _sort_sets(one, getattr(value, key, None)) for key, one in plain.items()}
        case list(), Iterator():
            raise ValueError(f"a {type(value).__name__} can be read only once; give a list")
        case list(), list() | tuple() | set() | frozenset() | deque() if len(plain) == len(value):
            settled = [_sort_sets(one, said) for one, said in zip(plain, value, strict=True)]
            return sorted(settled, key=canonical) if isinstance(value, set | frozenset) else settled
        case None, float():
            # Pydantic writes null for what is no number, and must not be taken for it.
            raise ValueError(f"{value} is no JSON")
        case _:
            return plain


# Any: an output, and its JSON.
def is_lossless(output: Any, plain: Any) -> bool:  # noqa: PLR0911 - one a kind of value
    """Whether the JSON of an output shows all of it: nothing is hidden, rounded, left out or added on the way."""
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
            # Secrets among them, and whatever nobody here knows.
            return False


def _is_each_lossless(output: Mapping[Any, Any], plain: Any) -> bool:
    return (
        isinstance(plain, dict)
        and output.keys() == plain.keys()
        and all(is_lossless(one, plain[name]) for name, one in output.items())
    )


def candidate_hash(output: Any) -> str:
    """SHA-256 over the canonical JSON of a validated output and the name of its model; raises NotJson.

    1 and 1.0 are one number, and the order of keys says nothing.
    """
    return to_json_value_and_hash(type(output).__name__, output)[1]


def hash_of(model: str, plain: Any) -> str:
    """The same from an output as JSON has it."""
    return _hash_of(model, canonical(plain))


def _hash_of(model: str, written: bytes) -> str:
    return sha256(_VERSION + model.encode() + b"\0" + written).hexdigest()
