"""What tells one candidate from another: a digest of its meaning, not of how it was written."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec
from pydantic_core import PydanticSerializationError, to_jsonable_python

from meruit.model.canonical import canonical

_VERSION = b"\x01"
"""Of the recipe below."""


class NotJson(ValueError):
    """A value that JSON cannot hold."""


def jsonable(value: Any) -> Any:
    """A value as JSON has it, its sets sorted; raises NotJson for what JSON cannot hold, NaN included."""
    return _written(value)[0]


def jsonable_and_hash(model: str, value: Any) -> tuple[Any, str]:
    """The same, and what tells it from other outputs of that model."""
    plain, written = _written(value)
    return plain, _hash_of(model, written)


def _written(value: Any) -> tuple[Any, bytes]:
    try:
        plain = _settled(to_jsonable_python(value, by_alias=False, fallback=_built_in), value)
        return plain, canonical(plain)
    except (PydanticSerializationError, TypeError, ValueError, RecursionError) as problem:
        raise NotJson(str(problem).partition("\n")[0]) from None


def _built_in(value: Any) -> Any:
    """What pydantic does not know and msgspec does: our own records are among it."""
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


# Any: JSON, and the value that it was written from.
def _settled(plain: Any, value: Any) -> Any:
    """JSON with every set in one order: the one in which a set is written differs between processes."""
    match plain, value:
        case dict(), Mapping() if len(plain) == len(value):
            return {key: _settled(one, said) for (key, one), said in zip(plain.items(), value.values(), strict=True)}
        case dict(), _:
            return {key: _settled(one, getattr(value, key, None)) for key, one in plain.items()}
        case list(), list() | tuple() | set() | frozenset() if len(plain) == len(value):
            settled = [_settled(one, said) for one, said in zip(plain, value, strict=True)]
            return sorted(settled, key=canonical) if isinstance(value, set | frozenset) else settled
        case None, float():
            # Pydantic writes null for what is no number, and must not be taken for it.
            raise ValueError(f"{value} is no JSON")
        case _:
            return plain


def candidate_hash(output: Any) -> str:
    """SHA-256 over the canonical JSON of a validated output and the name of its model; raises NotJson.

    1 and 1.0 are one number, and the order of keys says nothing.
    """
    return jsonable_and_hash(type(output).__name__, output)[1]


def hash_of(model: str, plain: Any) -> str:
    """The same from an output as JSON has it."""
    return _hash_of(model, canonical(plain))


def _hash_of(model: str, written: bytes) -> str:
    return sha256(_VERSION + model.encode() + b"\0" + written).hexdigest()
