"""Compares two values for equality: numbers by value, texts exactly."""

from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Any

from meruit.checks.formats.hl7v2 import HL7_NULL
from meruit.checks.matching.compare import AnyValueJudge, Judge, Values, format_value, list_of, parts_of
from meruit.checks.values.decimals import MAX_DIGITS, format_decimal, numeral
from meruit.errors import AuthorError


class Dialect(StrEnum):
    """How the values of a source are typed."""

    JSON = "json"
    """By type: 1 is not "1", true is not 1."""
    TEXT = "text"
    """Everything is text, as in HL7 v2 and X12; a number that an author writes means its text."""


# Any, in this file: a value of a document, or what an author wrote.
def check_literal(given: Any, dialect: Dialect) -> None:
    """Refuse a value that nothing can equal; the callers decide about null."""
    for part in parts_of(given):
        match part:
            case None if part is given:
                pass
            case str():
                pass
            case None | bool() if dialect is Dialect.JSON:
                pass
            case Mapping() if dialect is Dialect.JSON and all(isinstance(key, str) for key in part):
                pass
            case list() | tuple() if dialect is Dialect.JSON or part is given:
                pass
            case int() | float() | Decimal() if not isinstance(part, bool):
                if numeral(part) is None:
                    raise AuthorError(f"a number must be finite, with at most {MAX_DIGITS} digits and places")
            case _ if dialect is Dialect.TEXT:
                raise AuthorError(
                    f"{format_value(part)} can never match: everything is text; quote it, or write exists"
                )
            case _:
                raise AuthorError(f"a {type(part).__name__} can never match")


def same(expected: Any, actual: Any, dialect: Dialect) -> bool:
    """Whether two values are equal; numbers are compared by value."""
    match expected:
        case None:
            return actual is None or actual is HL7_NULL
        case Mapping():
            if not isinstance(actual, Mapping) or expected.keys() != actual.keys():
                return False
            return all(same(value, actual[key], dialect) for key, value in expected.items())
        case list() | tuple():
            if not isinstance(actual, list | tuple) or len(expected) != len(actual):
                return False
            return all(same(one, other, dialect) for one, other in zip(expected, actual, strict=True))
        case _:
            return _same_scalar(expected, actual, dialect)


def _same_scalar(expected: Any, actual: Any, dialect: Dialect) -> bool:
    if isinstance(expected, bool) or isinstance(actual, bool):
        return expected is actual
    number = None if isinstance(expected, str) else numeral(expected)
    if number is None:
        return isinstance(actual, str) and bool(expected == actual)
    if dialect is Dialect.TEXT:
        # A number in a file is its text already. One that was computed, or came as JSON, has only its value.
        is_code = isinstance(expected, int) or not isinstance(actual, str)
        return bool(format_decimal(number) == actual) if is_code else numeral(actual) == number
    return not isinstance(actual, str) and numeral(actual) == number


def equals(given: Any, dialect: Dialect, _depth: int = 0) -> Judge:
    """Match a literal: one value is equal to it; null also matches absence."""
    check_literal(given, dialect)
    if given is None:
        return _null

    def test(value: Any) -> str | None:
        return None if same(given, value, dialect) else f"is {format_value(value)}{_hint(given, value, dialect)}"

    one = AnyValueJudge(test)
    if not isinstance(given, list):
        return one
    # A path opens lists, so a list is compared with all the values.
    return lambda values: None if same(given, list(values), dialect) else one(values)


def _hint(given: Any, value: Any, dialect: Dialect) -> str:
    """What to write where two texts are the same number."""
    if dialect is Dialect.JSON or not isinstance(given, str) or not isinstance(value, str):
        return ""
    number = numeral(given)
    if number is None or numeral(value) != number:
        return ""
    return f", the same number as other text; to compare by value write {{near: {{value: {given}, by: 0}}}}"


def _null(values: Values) -> str | None:
    """Null matches null and absence, in FHIR as in forms."""
    return next((f"is {format_value(value)}" for value in values if not same(None, value, Dialect.JSON)), None)


def among(name: str, given: Any, dialect: Dialect) -> Judge:
    """One of several literals."""
    choices = list_of(name, given)
    for choice in choices:
        check_literal(choice, dialect)

    def test(value: Any) -> str | None:
        return None if any(same(choice, value, dialect) for choice in choices) else f"is {format_value(value)}"

    one = AnyValueJudge(test)
    if all(choice is not None for choice in choices):
        return one
    return lambda values: one(values) if values else None


def same_set(given: Any, dialect: Dialect, _depth: int = 0) -> Judge:
    """The same values in any order, each as often."""
    if not isinstance(given, list):
        raise AuthorError("set takes a list")
    for one in given:
        check_literal(one, dialect)

    def judge(values: Values) -> str | None:
        left = list(given)
        for value in values:
            position = next((place for place, one in enumerate(left) if same(one, value, dialect)), None)
            if position is None:
                return f"also holds {format_value(value)}"
            left.pop(position)
        return f"lacks {format_value(left[0])}" if left else None

    return judge
