"""Parse JSON and keep the text of each value: writing a parsed value again would turn 1.00 into 1."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeAlias

import msgspec

# JSON can be any value.
Reader: TypeAlias = Callable[[str, int], tuple[Any, int]]
"""Reads one value of a text from a position; returns it and its end. Raises ValueError for invalid JSON."""

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonSlice(msgspec.Struct, frozen=True):
    """A value and its text."""

    text: str
    value: Any


def read(text: str, reader: Reader) -> Any:
    """Return the one value of a text; raises ValueError for invalid JSON, or for more than one value."""
    try:
        value, at = reader(text, _after_space(text, 0))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _after_space(text, at) != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def value(text: str, at: int) -> tuple[Any, int]:
    """Read any value."""
    return _DECODER.raw_decode(text, at)


def with_text(text: str, at: int) -> tuple[Any, int]:
    """Read any value, as a JsonSlice."""
    found, end = _DECODER.raw_decode(text, at)
    return JsonSlice(text[at:end], found), end


def array_of(element: Reader) -> Reader:
    """Build a reader of arrays that reads elements with another reader; other values are read as they are."""

    def reader(text: str, at: int) -> tuple[Any, int]:
        if not text.startswith("[", at):
            return value(text, at)
        found: list[Any] = []
        at = _after_space(text, at + 1)
        if text.startswith("]", at):
            return found, at + 1
        while True:
            one, at = element(text, at)
            found.append(one)
            at = _after_space(text, at)
            if text.startswith("]", at):
                return found, at + 1
            at = _after_space(text, _past(",", text, at))

    return reader


def object_of(members: Mapping[str, Reader], others: Reader = value) -> Reader:
    """Build a reader of objects with readers for some members; other values are read as they are.

    A repeated name is refused: two readers of one text could disagree on which of them counts.
    """

    def reader(text: str, at: int) -> tuple[Any, int]:
        if not text.startswith("{", at):
            return value(text, at)
        found: dict[str, Any] = {}
        at = _after_space(text, at + 1)
        if text.startswith("}", at):
            return found, at + 1
        while True:
            if not text.startswith('"', at):
                raise json.JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
            name, end = value(text, at)
            if name in found:
                raise json.JSONDecodeError(f"{name!r} is there twice", text, at)
            at = _after_space(text, _past(":", text, _after_space(text, end)))
            found[name], at = members.get(name, others)(text, at)
            at = _after_space(text, at)
            if text.startswith("}", at):
                return found, at + 1
            at = _after_space(text, _past(",", text, at))

    return reader


def _after_space(text: str, at: int) -> int:
    # The pattern matches everywhere, also at the end.
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _past(sign: str, text: str, at: int) -> int:
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"Expecting {sign!r} delimiter", text, at)
    return at + 1


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
