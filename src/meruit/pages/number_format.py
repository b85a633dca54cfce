"""Format the numbers of a page: with significant digits, and a dash for an unknown value."""

from decimal import Decimal
from typing import Literal

from meruit.model.task_run import ConfidenceInterval

UNKNOWN = "–"


def format_count(value: int) -> str:
    """`1,234`."""
    return f"{value:,}"


def format_share(value: float | None) -> str:
    """`80.0 %`."""
    return UNKNOWN if value is None else f"{100 * value:.1f} %"


def format_number(value: float | Decimal | None) -> str:
    """Format a count, or any number with about four digits."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int):
        return f"{value:,}"
    size = abs(float(value))
    if size >= 1000:
        return f"{value:,.0f}"
    if 0 < size < 0.001:
        return f"{value:.2e}"
    places = 4 if size < 1 else 3 if size < 10 else 2 if size < 100 else 1
    return f"{value:.{places}f}"


def format_money(value: float | Decimal | None, currency: str) -> str:
    """`0.0421 USD`."""
    return UNKNOWN if value is None else f"{format_number(value)} {currency}"


def format_p(p: float | None) -> str:
    """Format a probability: `0.031`, and never 0."""
    if p is None:
        return UNKNOWN
    return "< 0.0001" if p < 0.0001 else f"{p:.4f}" if p < 0.01 else f"{p:.3f}"


def format_difference(value: float | None) -> str:
    """Format a difference in percentage points."""
    return UNKNOWN if value is None else f"{100 * value:+.1f}"


def format_factor(value: float | None) -> str:
    """Format a ratio."""
    return UNKNOWN if value is None else f"× {value:.3f}"


def format_places(interval: ConfidenceInterval | None) -> str:
    """Format the interval of a rank: `1 to 3`."""
    if interval is None:
        return UNKNOWN
    return f"{interval.low:.0f} to {interval.high:.0f}" if interval.low != interval.high else f"{interval.low:.0f}"


def format_interval(
    interval: ConfidenceInterval | None, form: Literal["share", "number", "difference", "factor"]
) -> str:
    """Format a confidence interval: `74.3 to 99.5 %`; empty where there is none."""
    if interval is None:
        return ""
    match form:
        case "share":
            return f"{100 * interval.low:.1f} to {format_share(interval.high)}"
        case "number":
            return f"{format_number(interval.low)} to {format_number(interval.high)}"
        case "difference":
            return f"{format_difference(interval.low)} to {format_difference(interval.high)}"
        case "factor":
            return f"{format_factor(interval.low)} to {interval.high:.3f}"
