"""Exact numbers as they were written: 0.9 means nine tenths, not its binary approximation."""

import re
from decimal import Decimal
from fractions import Fraction

Number = int | float | Decimal

WRITTEN = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
"""A number as JSON writes it; nothing else is one."""
MAX_DIGITS = 400
"""The most digits, and the largest exponent, of a number."""

MICRO = 1_000_000
"""Money counts in millionths of a currency unit."""


def exact(number: Number) -> Fraction:
    """The number as written; a float stands for its shortest decimal text."""
    return Fraction(repr(number)) if isinstance(number, float) else Fraction(number)


def plain(number: Decimal) -> int | float | Decimal:
    """The simplest Python number that still says exactly what was written."""
    if number == number.to_integral_value() and number.as_tuple().exponent == 0:
        return int(number)
    nearest = float(number)
    return nearest if exact_decimal(nearest) == number else number


def exact_decimal(number: float) -> Decimal:
    """The decimal that a float's shortest text denotes."""
    return Decimal(repr(number))


def in_units(micros: int) -> str:
    """Millionths as decimal text, without trailing zeros."""
    whole, rest = divmod(abs(micros), MICRO)
    return f"{'-' * (micros < 0)}{whole}.{rest:06d}".rstrip("0").rstrip(".")
