"""FHIR's JSON, read and written unchanged: 1.0 is not 1.00."""

import json
from decimal import Decimal
from json.encoder import encode_basestring
from typing import Any

from meruit.checks.formats.json_path import read_json
from meruit.errors import TooDeep

MAX_DEPTH = 64
"""How deep objects and lists may be nested, so that every reader can parse a bundle of them."""

# Any, here and below: JSON has values of every type.
Json = dict[str, Any]


class ExactDecimal(Decimal):
    """A decimal that keeps its digits and its exponent as they were written."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> "ExactDecimal":
        """Read one number."""
        number = super().__new__(cls, text)
        number.text = text
        return number


_DECODER = json.JSONDecoder(parse_float=ExactDecimal)


class Verbatim(str):
    """JSON that is already written, as a part of what is to be written."""

    __slots__ = ()


def parse(body: bytes) -> Any:
    """Parse JSON from a client; raises UnreadableContent with the byte."""
    read_json(body)
    return decode_stored(body.decode("utf-8-sig"))


def decode_stored(text: str) -> Any:
    """Parse JSON that is known to be valid."""
    return _DECODER.decode(text)


def write(value: Any) -> bytes:
    """Write a value as JSON without spaces, its keys in their order; raises TooDeep if no reader could parse it."""
    parts: list[str] = []
    _write(value, parts, MAX_DEPTH)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str], depth_left: int) -> None:
    if not depth_left and isinstance(value, dict | list):
        raise TooDeep(f"nested deeper than {MAX_DEPTH} levels")
    match value:
        case Verbatim():
            parts.append(value)
        case str():
            parts.append(encode_basestring(value))
        case dict():
            between = "{"
            for name, member in value.items():
                parts += (between, encode_basestring(name), ":")
                _write(member, parts, depth_left - 1)
                between = ","
            parts.append("}" if value else "{}")
        case list():
            between = "["
            for element in value:
                parts.append(between)
                _write(element, parts, depth_left - 1)
                between = ","
            parts.append("]" if value else "[]")
        case ExactDecimal():
            parts.append(value.text)
        case Decimal():
            parts.append(str(value))
        case _:
            parts.append(json.dumps(value, allow_nan=False))
