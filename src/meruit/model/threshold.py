"""Validates numbers, amounts of money and thresholds that authors write."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from meruit.model.canonical import canonical
from meruit.model.kinds import YES_OR_NO, ComparisonOperator, MetricType, Scale
from meruit.model.numbers import MAX_DIGITS, MICRO, WRITTEN, Number, exact, plain

MONEY_PLACES = 6

LARGEST = int(1e300)
"""The largest number that an author may write; one over it is the smallest."""
LARGEST_MICROS = 2**33 * MICRO
"""The largest amount of money: beyond it a float in a result is no longer exact to a millionth."""


def number_as_written(value: Any) -> Number:
    """A finite number as written; numeric text keeps every digit."""
    if isinstance(value, str) and len(value) <= MAX_DIGITS and WRITTEN.fullmatch(value):
        try:
            value = Decimal(value)
        except ArithmeticError:
            raise ValueError(f"expected a number of common size, got {value[:40]}") from None
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        found = f"the text {value[:40]!r}" if isinstance(value, str) else _kind(value)
        raise ValueError(f"expected a number, got {found}")  # noqa: TRY004 - pydantic collects ValueErrors
    number: Number = value
    # The limits keep exact arithmetic fast for any input.
    usual = not _is_nan(number)
    if usual:
        size: Number = -number if number < 0 else number
        usual = size <= LARGEST and (size == 0 or size * LARGEST >= 1)
    if not usual:
        raise ValueError(f"expected a finite number of common size (up to 1e300), got {str(number)[:40]}")
    return plain(number) if isinstance(number, Decimal) else number


def _is_nan(number: Number) -> bool:
    """Decimals refuse to be compared when they are NaN, so this comes first."""
    return number.is_nan() if isinstance(number, Decimal) else number != number


def plain_json(value: Any) -> Any:
    """Return the value if it is plain JSON; criteria are digested and stored."""
    try:
        canonical(value)
    except (TypeError, ValueError, ArithmeticError, RecursionError) as problem:
        why = "it contains itself or is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise ValueError(f"expected plain JSON: {why}") from None
    return value


def _kind(value: Any) -> str:
    """What a value is, in words."""
    names = {
        type(None): "nothing",
        bool: "true or false",
        list: "a list",
        dict: "a mapping",
        float: "a number with decimals",
    }
    return names.get(type(value), type(value).__name__)


def at_least_zero(value: Any) -> Number:
    """A number that is not negative."""
    number = number_as_written(value)
    if number < 0:
        raise ValueError(f"expected a number of at least 0, got {number}")
    return number


def money(value: Any) -> Number:
    """An amount that millionths of a unit express exactly."""
    amount = at_least_zero(value)
    if (exact(amount) * MICRO).denominator != 1:
        raise ValueError(f"money has at most {MONEY_PLACES} decimal places, got {amount}")
    if exact(amount) * MICRO > LARGEST_MICROS:
        raise ValueError(f"an amount is at most {LARGEST_MICROS // MICRO}, got {amount}")
    return amount


def share(value: Any) -> Number:
    """A number from 0 to 1."""
    number = at_least_zero(value)
    if number > 1:
        raise ValueError(f"expected a score between 0 and 1, got {number}")
    return number


def check_threshold(threshold: Any, kind: MetricType, comparison: ComparisonOperator) -> Any:
    """Normalise a threshold for the judge; raises ValueError that says what would fit."""
    match comparison:
        case ComparisonOperator.IN_RANGE:
            return _range(threshold)
        case ComparisonOperator.CONTAINS_ALL | ComparisonOperator.CONTAINS_ANY:
            return _check_keywords(threshold)
        case ComparisonOperator.EQ | ComparisonOperator.NEQ:
            if kind is MetricType.CUSTOM and isinstance(threshold, bool | str):
                return threshold
            return _scalar(threshold, kind)
        case ComparisonOperator.GTE | ComparisonOperator.GT | ComparisonOperator.LTE | ComparisonOperator.LT:
            return _scalar(threshold, kind)


def _scalar(threshold: Any, kind: MetricType) -> Any:
    if isinstance(threshold, bool):
        if kind in YES_OR_NO:
            return threshold
        raise ValueError(f"a {kind} is compared with a number, not with {str(threshold).lower()}")
    number = number_as_written(threshold)
    if kind is MetricType.BOOLEAN and number not in (0, 1):
        raise ValueError(f"a boolean is compared with true or false, not with {number}")
    return number


def _range(threshold: Any) -> dict[str, Number | None]:
    """Accept {min, max} or [min, max]; either side may be open."""
    if isinstance(threshold, Mapping):
        unknown = sorted(map(str, threshold.keys() - {"min", "max"}))
        if unknown:
            raise ValueError(f"a range has min and max, not {', '.join(unknown)}")
        low, high = threshold.get("min"), threshold.get("max")
    elif isinstance(threshold, list | tuple) and len(threshold) == 2:
        low, high = threshold
    else:
        raise ValueError("a range is written {min: …, max: …} or [min, max]")
    low = None if low is None else number_as_written(low)
    high = None if high is None else number_as_written(high)
    if low is None and high is None:
        raise ValueError("a range open on both sides can never fail; give min or max")
    if low is not None and high is not None and exact(low) > exact(high):
        raise ValueError(f"min {low} is above max {high}, so nothing can match")
    return {"min": low, "max": high}


def _check_keywords(threshold: Any) -> Any:
    """What must be contained: a list or one word; otherwise the work's input lists it."""
    if isinstance(threshold, str) and not threshold.strip():
        raise ValueError("an empty keyword is contained in everything")
    if isinstance(threshold, list | tuple):
        for item in threshold:
            if isinstance(item, str) and not item.strip():
                raise ValueError("an empty keyword is contained in everything")
            if isinstance(item, bool) or not isinstance(item, str | int):
                # YAML has turned 1.10 into 1.1, and 1.1 would be searched for.
                why = f"a keyword is a text or a whole number, not {_kind(item)}; quote it"
                raise ValueError(why)  # noqa: TRY004 - pydantic collects ValueErrors
        return list(threshold)
    if isinstance(threshold, Mapping):
        raise ValueError("give a list of what must be contained")  # noqa: TRY004 - pydantic collects ValueErrors
    return threshold


def numbers_in(threshold: Any) -> list[Number]:
    """The numbers in a threshold; true and false do not count."""
    found = threshold.values() if isinstance(threshold, Mapping) else [threshold]
    return [number for number in found if isinstance(number, int | float | Decimal) and not isinstance(number, bool)]


def scale_of(numbers: list[Number], declared: Scale | None) -> Scale:
    """Which scale a share's thresholds are on; a mixture is refused."""
    if any(number < 0 or number > 100 for number in numbers):
        raise ValueError(f"a share lies between 0 and 1, or 0 and 100; got {', '.join(map(str, numbers))}")
    above_one = any(number > 1 for number in numbers)
    if declared is Scale.FRACTION and above_one:
        raise ValueError("scale is fraction, but a threshold is above 1; write 0.95, or scale: percent")
    if declared is not None:
        return declared
    if above_one and any(0 < number < 1 for number in numbers):
        raise ValueError("one threshold is on the scale of 1 and one on that of 100; declare scale")
    return Scale.PERCENT if above_one else Scale.FRACTION
