"""Exact numbers as other systems write them, bounded in size."""

import math
from decimal import Context, Decimal, InvalidOperation
from typing import Any

MAX_DIGITS = 200
"""The most digits and decimal places of a number."""
EXACTLY = Context(prec=4 * MAX_DIGITS)
"""Wide enough that adding, multiplying and comparing two such numbers never rounds."""
TOO_LONG_NUMBER = "a number of thousands of digits"
"""Shown for a number that Python refuses to format."""
_TOO_LARGE = 10**MAX_DIGITS


# Any: a value of a document.
def numeral(value: Any) -> Decimal | None:
    """The value as a number, also where it is written as text; None when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal | str):
        return None
    text = value.strip() if isinstance(value, str) else value
    if isinstance(text, str) and (len(text) > 2 * MAX_DIGITS or not text.isascii() or "_" in text):
        return None
    if isinstance(text, int) and abs(text) >= _TOO_LARGE:
        return None
    try:
        number = Decimal(repr(text) if isinstance(text, float) else text)
    except InvalidOperation:
        return None
    if not number.is_finite() or abs(number.adjusted()) > MAX_DIGITS or len(number.as_tuple().digits) > MAX_DIGITS:
        return None
    return number


def format_decimal(number: Decimal) -> str:
    """The number without an exponent and without zeros that say nothing."""
    if not number:
        return "0"
    text = f"{number:f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def json_number(value: float | Decimal) -> float | str:
    """The number as JSON has it; one that JSON's readers would change, as text."""
    if isinstance(value, int) and abs(value) < 2**53:
        return int(value)
    try:
        text = repr(value) if isinstance(value, float) else str(value)
        nearest = float(text)
    except ValueError:
        return TOO_LONG_NUMBER
    return nearest if math.isfinite(nearest) and Decimal(repr(nearest)) == Decimal(text) else text
