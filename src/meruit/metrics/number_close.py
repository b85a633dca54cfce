"""Whether the number in an answer is the right one."""

import re
from decimal import Context, Decimal, DecimalException
from typing import Any

from meruit.errors import AuthorError
from meruit.metrics.support.keywords import check_params, choice
from meruit.metrics.support.reference import FIELD_PARAM, MAX_CHARS, part_at, path_of, text_at
from meruit.model.evidence import Cause, Fault, Measured, Missing
from meruit.model.kinds import MetricType
from meruit.model.work import Work
from meruit.registry import Ask, Finding, Measure, metrics

TAKES = ("last", "first", "only")
MAX_DIGITS = 400
"""Digits of a number that is read; a double has 17."""
DEFAULT_RELATIVE = Decimal("1e-9")
PARAMS = {
    "tolerance": "how far off it may be, as 0.5; 0 asks for the very number",
    "relative": "how far off it may be as a share of the right number, as 0.01; 1e-9 where no tolerance is given",
    "take": "which number of a text counts: `last` (the default), `first`, or `only` (a text with several has none)",
    "decimal": "what is written before the fraction: `.` (the default) or `,`",
    "reference": "the right number, where the work's input has no `reference`",
} | FIELD_PARAM

_ARITHMETIC = Context(prec=MAX_DIGITS + 20)
_GROUPS = "\u00a0\u202f\u2009'\u2019_"


def _number_pattern(decimal: str) -> re.Pattern[str]:
    group = "[" + ("," if decimal == "." else r"\.") + _GROUPS + "]"
    point = re.escape(decimal)
    whole = rf"\d{{1,3}}(?:{group}\d{{3}})+(?!\d)|\d+"
    return re.compile(
        rf"(?<![\w{point}])(?<![^\W\d_]-)[-+\u2212]?(?:(?:{whole})(?:{point}\d+)?|{point}\d+)(?:[eE][-+]?\d{{1,3}})?(?!\w)"
    )


_PATTERNS = {decimal: _number_pattern(decimal) for decimal in ".,"}


def _numbers(text: str, decimal: str) -> list[Decimal]:
    # One after another: other threads wait while many are found in one call.
    found = _PATTERNS[decimal].finditer(text)
    return [number for one in found if (number := _parse(one[0], decimal)) is not None]


def _parse(text: str, decimal: str) -> Decimal | None:
    plain = text.translate({ord(char): None for char in _GROUPS + ("," if decimal == "." else ".")})
    if len(plain) > MAX_DIGITS:
        return None
    # Decimal reads the digits of every script.
    return Decimal(plain.replace(decimal, ".").replace("\u2212", "-"))


def _to_decimal(value: Any, decimal: str) -> Decimal | None:
    """A number of JSON, or the one number of a text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float | Decimal):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        return number if number.is_finite() and number.adjusted() < MAX_DIGITS else None
    if isinstance(value, str) and len(value) <= MAX_CHARS:
        found = _numbers(value, decimal)
        return found[0] if len(found) == 1 else None
    return None


def _limit(ask: Ask, name: str) -> Decimal | None:
    if name not in ask.params:
        return None
    value = ask.params[name]
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not 0 <= value < float("inf"):
        raise AuthorError(f"the param {name} must be a number from 0 up, not {value!r}")
    return Decimal(str(value))


@metrics.add(
    "number_close",
    kind=MetricType.BOOLEAN,
    params=PARAMS,
    examples=[
        (Work(output={"text": "6 × 7, so the answer is 42."}, input={"reference": 42}), True),
        (Work(output={"text": "$1,250.00"}, input={"reference": "1250"}), True),
        (Work(output={"text": "about 3.1"}, input={"reference": 3.14159}), True, Ask({"tolerance": 0.05})),
        (Work(output={"text": "about 3.1"}, input={"reference": 3.14159}), False, Ask({"relative": 0.01})),
        (Work(output={"text": "no idea"}, input={"reference": 42}), False),
        (Work(output={"text": "42"}), Missing),
    ],
)
def number_close(ask: Ask) -> Measure:
    """Whether the last number of the text is the reference, give or take a tolerance; no number at all is wrong."""
    check_params(ask, "number_close", PARAMS)
    path = path_of(ask)
    absolute, relative = _limit(ask, "tolerance"), _limit(ask, "relative")
    if absolute is None and relative is None:
        relative = DEFAULT_RELATIVE
    take, decimal = choice(ask, "take", TAKES), choice(ask, "decimal", (".", ","))
    own = _to_decimal(ask.params.get("reference"), decimal)
    if "reference" in ask.params and own is None:
        raise AuthorError(f"the param reference must be one number, not {ask.params['reference']!r}")

    def measure(work: Work) -> Finding:
        right = own
        if right is None:
            given = work.input.get("reference")
            if given is None:
                return Missing("the input has no reference to compare with", fault=Fault.AUTHOR)
            right = _to_decimal(given, decimal)
            if right is None:
                why = f"the input's reference is not one number but {str(given)[:80]!r}"
                return Missing(why, cause=Cause.AUTHOR_ERROR, fault=Fault.AUTHOR)
        value = part_at(work.output, path)
        found = _to_decimal(value, decimal) if not isinstance(value, str) else None
        if found is None:
            text = text_at(work, path)
            if isinstance(text, Missing):
                return text
            numbers = _numbers(text, decimal)
            if not numbers or (take == "only" and len(numbers) > 1):
                return Measured(value=False, details={"expected": str(right), "numbers": len(numbers)})
            found = numbers[0 if take == "first" else -1]
        return _compare(found, right, absolute, relative)

    return measure


def _compare(found: Decimal, right: Decimal, absolute: Decimal | None, relative: Decimal | None) -> Finding:
    try:
        off = abs(_ARITHMETIC.subtract(found, right))
        allowed = max(absolute or Decimal(0), _ARITHMETIC.multiply(relative or Decimal(0), abs(right)))
    except DecimalException:
        return Missing("the numbers differ too much in size to be compared", cause=Cause.OUT_OF_DOMAIN)
    return Measured(off <= allowed, details={"found": str(found), "expected": str(right), "off_by": str(+off)})
