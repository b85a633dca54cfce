"""JSON read with its text at hand: a value is kept with the very characters that it was written in.

What was parsed and written again would say 1 where 1.00 stood.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, NoReturn, TypeAlias

# What stands in JSON is anything at all.
Reader: TypeAlias = Callable[[str, int], tuple[Any, int]]
"""Reads one value of a text from a place on; answers it, and where it ended. Raises ValueError for what is no JSON."""

_SPACE = re.compile(r"[ \t\n\r]*")


class JsonSlice(NamedTuple):
    """A value and the text that it was written in."""

    text: str
    value: Any


def read(text: str, reader: Reader) -> Any:
    """The one value that a text holds; raises ValueError for what is no JSON, or for more than one value."""
    try:
        value, at = reader(text, _after_space(text, 0))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if _after_space(text, at) != len(text):
        raise json.JSONDecodeError("Extra data", text, at)
    return value


def value(text: str, at: int) -> tuple[Any, int]:
    """Any value, as Python has it."""
    return _DECODER.raw_decode(text, at)


def with_text(text: str, at: int) -> tuple[Any, int]:
    """Any value, as Sliced."""
    found, end = _DECODER.raw_decode(text, at)
    return JsonSlice(text[at:end], found), end


def array_of(element: Reader) -> Reader:
    """A reader of arrays whose elements are read by another; what is no array is read as any value."""

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
    """A reader of objects, some members of which have readers of their own; what is no object is read as any value.

    A name that stands twice is refused: two readers of one text could disagree on which of both counts.
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
                raise json.JSONDecodeError(f"{name!r} stands twice", text, at)
            at = _after_space(text, _past(":", text, _after_space(text, end)))
            found[name], at = members.get(name, others)(text, at)
            at = _after_space(text, at)
            if text.startswith("}", at):
                return found, at + 1
            at = _after_space(text, _past(",", text, at))

    return reader


def _after_space(text: str, at: int) -> int:
    # The pattern matches everywhere, the end included.
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _past(sign: str, text: str, at: int) -> int:
    if not text.startswith(sign, at):
        raise json.JSONDecodeError(f"Expecting {sign!r} delimiter", text, at)
    return at + 1


def _reject_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_reject_constant)
