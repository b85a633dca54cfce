"""Compares values with one expectation, and gives the reason when they do not fit."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from meruit.checks.values.decimals import TOO_LONG_NUMBER, format_decimal, json_number
from meruit.errors import AuthorError

# Any, in this file: a value of a document, or what an author wrote.
Values = tuple[Any, ...]
"""Everything that was found at a path."""
Judge = Callable[[Values], str | None]
"""Why the values do not fit; None when they do."""
Test = Callable[[Any], str | None]
"""The same for one value."""

NOTHING = "there is nothing at this path"
MAX_SHOWN = 120
"""Characters of a value in a reason."""
MAX_DEPTH = 64
"""The deepest nesting of mappings and lists in an assertion."""
MAX_PARTS = 200_000
"""Keys and values of one assertion."""


class TemplateValue:
    """Marks a value that replaced a `${…}`: it is literal, and never read as a matcher."""

    __slots__ = ()


class WrongKindReason(str):
    """A reason that says that a value has the wrong type: then a negation does not hold either."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AnyValueJudge:
    """A judge that needs one value that fits; otherwise the reason is that of the first value."""

    test: Test

    def __call__(self, values: Values) -> str | None:
        """Why no value fits."""
        if not values:
            return NOTHING
        first: str | None = None
        for value in values:
            why = self.test(value)
            if why is None:
                return None
            if first is None or (isinstance(why, WrongKindReason) and not isinstance(first, WrongKindReason)):
                first = why
        if first is None or len(values) == 1:
            return first
        return type(first)(f"none of {len(values):,} values fits; the first: {first}")


@dataclass(frozen=True, slots=True)
class AllJudges:
    """A judge that combines several; each must accept all the values."""

    judges: Sequence[Judge]

    def __call__(self, values: Values) -> str | None:
        """The first reason of any."""
        return next((why for judge in self.judges if (why := judge(values)) is not None), None)


def combine_judges(judges: Sequence[Judge]) -> Judge:
    """Combine judges; those of single values must accept the same value: 0 and 9 are not between 1 and 5."""
    tests = [judge.test for judge in judges if isinstance(judge, AnyValueJudge)]
    whole = [judge for judge in judges if not isinstance(judge, AnyValueJudge)]

    def test(value: Any) -> str | None:
        return next((why for one in tests if (why := one(value)) is not None), None)

    parts: list[Judge] = [*([AnyValueJudge(test)] if tests else ()), *whole]
    return parts[0] if len(parts) == 1 else AllJudges(parts)


def format_value(value: Any) -> str:
    """A value in a reason, short."""
    if isinstance(value, Decimal):
        text = format_decimal(value)
    elif isinstance(value, Mapping | list | tuple):
        text = _outline(value)
    else:
        # Long text is cut before it is formatted. A number that Python refuses to format gets a name.
        text = repr(value[: MAX_SHOWN + 1]) if isinstance(value, str) else _format_scalar(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def _format_scalar(value: Any) -> str:
    try:
        return "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value)
    except ValueError:
        return TOO_LONG_NUMBER


def _outline(value: Any) -> str:
    """The beginning of a document as JSON; the rest is never formatted."""
    text = ""
    try:
        for piece in json.JSONEncoder(ensure_ascii=False, default=_as_json).iterencode(value):
            text += piece
            if len(text) > MAX_SHOWN:
                break
    except (RecursionError, TypeError, ValueError):
        text += "…"
    return text


def _as_json(value: Any) -> Any:
    match value:
        case Decimal():
            return json_number(value)
        case Mapping():
            return dict(value)
        case _:
            return str(value)


def parts_of(written: Any) -> Iterator[Any]:
    """Every part that an author wrote, keys included, templates' values whole; raises AuthorError beyond the limits."""
    waiting = [(written, 0)]
    for _ in range(MAX_PARTS):
        if not waiting:
            return
        part, depth = waiting.pop()
        yield part
        inner = () if isinstance(part, TemplateValue) else _inside(part)
        if inner and depth == MAX_DEPTH:
            raise AuthorError(f"lists and mappings are nested more than {MAX_DEPTH} deep")
        waiting += [(one, depth + 1) for one in inner]
    raise AuthorError(f"an assertion has at most {MAX_PARTS:,} keys and values")


def _inside(part: Any) -> Sequence[Any]:
    if isinstance(part, Mapping):
        return [*part, *part.values()]
    return part if isinstance(part, list | tuple) else ()


def text_of(name: str, given: Any) -> str:
    """The text that an operator takes; raises AuthorError for anything else."""
    if not isinstance(given, str) or not given:
        raise AuthorError(f"{name} takes a text")
    return given


def list_of(name: str, given: Any) -> list[Any]:
    """The list that an operator takes; raises AuthorError for anything else."""
    if not isinstance(given, list) or not given:
        raise AuthorError(f"{name} takes a list with at least one entry")
    return given


def settings_of(name: str, given: Any, needed: set[str], more: set[str]) -> Mapping[str, Any]:
    """The mapping that an operator takes; raises AuthorError for anything else."""
    if not isinstance(given, Mapping):
        raise AuthorError(f"{name} takes a mapping with {', '.join(sorted(needed | more))}")
    lacking, unknown = needed - given.keys(), given.keys() - needed - more
    if lacking or unknown:
        names = ", ".join(sorted(lacking) if lacking else sorted(map(str, unknown)))
        what = f"lacks {names}" if lacking else f"has no setting {names}"
        raise AuthorError(f"{name} {what}; it takes {', '.join(sorted(needed | more))}")
    return given
