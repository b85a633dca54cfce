"""Rewords pydantic's validation errors for the author of a document."""

import re
from collections.abc import Collection, Mapping
from decimal import Decimal
from typing import Any

from pydantic_core import ErrorDetails

from meruit.suggestions import nearest

MAX_SHOWN_CHARS = 60
"""Characters of a value that a message repeats."""

ABOUT_A_KEY = ("missing", "extra_forbidden")
"""Kinds of errors whose location ends in a key that the file lacks or should not have."""

_EXPECTED = {
    "string_type": "text",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SHOULD = re.compile(r"(\w+) should (be|have) (.+)", re.DOTALL)
_SUBJECTS = {
    "String": "text",
    "List": "a list",
    "Tuple": "a list",
    "Set": "a list",
    "Dictionary": "a mapping",
}


def describe_error(detail: ErrorDetails, known: Collection[str]) -> str:
    """Describe what was expected and what was found, with the nearest known key."""
    kind, value, context = detail["type"], detail["input"], detail.get("ctx", {})
    match kind:
        case "missing":
            message = f"needs {str(detail['loc'][-1])!r}"
        case "extra_forbidden":
            key = str(detail["loc"][-1])
            message = f"unknown key {short(repr(key))}{nearest(key, known)}"
        case "enum" | "literal_error":
            message = _one_of(re.findall(r"'([^']*)'", context["expected"]), value)
        case "value_error" | "assertion_error":
            message = str(context["error"])
        case "string_type" if isinstance(value, int | float | Decimal):
            message = f"expected text, got {describe_value(value)}; quote it if it is meant as text"
        case _ if kind in _EXPECTED:
            message = f"expected {_EXPECTED[kind]}, got {describe_value(value)}"
        case _:
            message = _reword(detail["msg"], value)
    return message


# Any, here and below: a document's value may be of any type.
def _one_of(names: list[str], value: Any) -> str:
    got = f"{short(repr(value))}{nearest(value, names)}" if isinstance(value, str) else describe_value(value)
    return f"expected one of {', '.join(map(repr, names))}, got {got}"


def _reword(message: str, value: Any) -> str:
    """Turn `String should have at least 1 character` into what was expected and what was found."""
    sentence = _SHOULD.fullmatch(message)
    if sentence is None:
        return message
    subject, verb, expected = sentence.groups()
    if verb == "have":
        expected = f"{_SUBJECTS.get(subject, subject.lower())} with {expected}"
    elif expected.startswith(("greater", "less")):
        expected = f"a number {expected}"
    return f"expected {expected}, got {describe_value(value)}"


def describe_value(value: Any) -> str:
    """Name the kind of a value, and the value where it is short enough to repeat."""
    match value:
        case None:
            words = "nothing"
        case bool():
            words = str(value).lower()
        case int() | float() | Decimal():
            words = f"the number {value}"
        case str():
            return f"text {short(repr(value))}"
        case Mapping():
            words = "a mapping"
        case list():
            words = "a list"
        case _:
            words = repr(value)
    return short(words)


def short(text: str) -> str:
    """Cut text that is too long for a message."""
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[: MAX_SHOWN_CHARS - 1]}…"
