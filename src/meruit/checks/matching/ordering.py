"""Matchers that order numbers and times: gt, lt, between, near, before, after."""

import operator
from collections.abc import Callable, Mapping
from datetime import tzinfo
from decimal import Decimal
from functools import partial
from typing import Any

from meruit.checks.matching.compare import (
    AnyValueJudge,
    Judge,
    WrongKindReason,
    combine_judges,
    format_value,
    settings_of,
)
from meruit.checks.values.dates import DateOrTime, Precision, duration, parse_date_or_time, zone
from meruit.checks.values.decimals import EXACTLY, numeral
from meruit.errors import AuthorError

# Any, in this file: a value of a document, or what an author wrote.
Holds = Callable[[Any, Any], bool]
"""Whether the found value, first, is in the right order to the expected one, second."""
OF_A_DAY = 8
"""Digits of a quoted number that are a date, as 20260306."""


def order_judge(name: str, holds: Holds, given: Any) -> Judge:
    """A number or a moment on one side of another."""
    limit = _number(given)
    if limit is not None:
        return AnyValueJudge(partial(_compare_number, lambda number: holds(number, limit)))
    return time_judge(name, holds, given)


def between(given: Any) -> Judge:
    """From one number or moment to another, both included."""
    if not isinstance(given, list) or len(given) != len(("from", "to")):
        raise AuthorError("between takes [from, to]")
    low, high = map(_number, given)
    if low is not None and high is not None:
        if low > high:
            raise AuthorError(f"between {format_value(low)} and {format_value(high)} there is nothing; swap them")
        return AnyValueJudge(partial(_compare_number, lambda number: low <= number <= high))
    _check_order(*(_parse_expected_moment("between", end)[0] for end in given))
    return combine_judges([time_judge("between", operator.ge, given[0]), time_judge("between", operator.le, given[1])])


def _check_order(start: DateOrTime, end: DateOrTime) -> None:
    if start.has_time is not end.has_time:
        raise AuthorError(f"between {start.text} and {end.text}: give both a time, or neither")
    precision = min(start.precision, end.precision)
    turned = start.at > end.at if start.has_time else _date(start, precision) > _date(end, precision)
    if turned:
        raise AuthorError(f"between {start.text} and {end.text} there is nothing; swap them")


def _date(found: DateOrTime, precision: Precision, place: tzinfo | None = None) -> tuple[int, ...]:
    return tuple(found.day(place).timetuple()[:precision])


def _number(given: Any) -> Decimal | None:
    """A number, unless it is quoted and a date as HL7 writes one."""
    if isinstance(given, str) and len(given) >= OF_A_DAY and given.isdigit() and parse_date_or_time(given) is not None:
        return None
    return numeral(given)


def _compare_number(holds: Callable[[Decimal], bool], value: Any) -> str | None:
    number = numeral(value)
    if number is None:
        return WrongKindReason(f"is {format_value(value)}, which is not a number")
    return None if holds(number) else f"is {format_value(number)}"


def near(given: Any) -> Judge:
    """Match a number that differs at most by an amount or by a percentage."""
    settings = settings_of("near", given, {"value"}, {"by", "pct"})
    value, by, pct = (numeral(settings.get(name)) for name in ("value", "by", "pct"))
    if value is None or (by is None) == (pct is None) or len(settings) != len(("value", "reach")):
        raise AuthorError("near takes {value, by} or {value, pct}, all numbers")
    reach = by if by is not None else EXACTLY.multiply(value.copy_abs(), EXACTLY.scaleb(pct or Decimal(0), -2))
    if reach < 0:
        raise AuthorError("near: by and pct must not be negative")
    return AnyValueJudge(partial(_compare_number, lambda number: within(number, value, reach)))


def within(number: Decimal, value: Decimal, reach: Decimal) -> bool:
    """Whether two numbers differ by no more than that, exactly."""
    return EXACTLY.subtract(number, value).copy_abs() <= reach


# Time


def time_judge(name: str, holds: Holds, given: Any) -> Judge:
    """A moment on one side of another: instants in any zone, dates as precisely as the author wrote them."""
    expected, place = _parse_expected_moment(name, given)
    return _moment_judge(_instants(holds, expected) if expected.has_time else _dates(holds, expected, place), place)


def _moment_judge(compare: Callable[[DateOrTime], str | None], place: tzinfo | None) -> Judge:
    def test(value: Any) -> str | None:
        found = parse_date_or_time(value) if isinstance(value, str) else None
        if found is None:
            return WrongKindReason(f"is {format_value(value)}, which is not a date or time")
        return compare(found.with_default_zone(place))

    return AnyValueJudge(test)


def _parse_expected_moment(name: str, given: Any) -> tuple[DateOrTime, tzinfo | None]:
    settings = settings_of(name, given if isinstance(given, Mapping) else {"value": given}, {"value"}, {"tz"})
    place = zone(settings.get("tz"))
    text = _text_of_moment(settings["value"])
    expected = None if text is None else parse_date_or_time(text)
    if expected is None:
        what = format_value(settings["value"])
        raise AuthorError(f"{name}: {what} is not a date or time; for example 2026-03-06T10:00:00-06:00")
    expected = expected.with_default_zone(place)
    if expected.has_time and not expected.has_zone:
        raise AuthorError(f"{name}: {expected.text} has a time but no zone; add one, or tz")
    return expected, place


def _text_of_moment(written: Any) -> str | None:
    # YAML reads 2026 and 20260306 as numbers.
    is_number = isinstance(written, int) and not isinstance(written, bool) and 0 <= written < 10**14
    return written if isinstance(written, str) else str(written) if is_number else None


def _instants(holds: Holds, expected: DateOrTime) -> Callable[[DateOrTime], str | None]:
    def compare(found: DateOrTime) -> str | None:
        if not found.has_time:
            return WrongKindReason(f"is {found.text}, a date without a time")
        if not found.has_zone:
            return WrongKindReason(f"is {found.text}, which has no zone; give the matcher a tz")
        return None if holds(found.at, expected.at) else f"is {found.text}"

    return compare


def _dates(holds: Holds, expected: DateOrTime, place: tzinfo | None) -> Callable[[DateOrTime], str | None]:
    def compare(found: DateOrTime) -> str | None:
        if found.precision < expected.precision:
            return WrongKindReason(f"is {found.text}, which is less precise than {expected.text}")
        fits = holds(_date(found, expected.precision, place), _date(expected, expected.precision))
        return None if fits else f"is {found.text}"

    return compare


def same_day(given: Any) -> Judge:
    """A date, or a time on it: in the zone that the author names, or as it was written."""
    expected, place = _parse_expected_moment("same_day", given)
    if expected.precision < Precision.DAY:
        raise AuthorError(f"same_day: {expected.text} is not a day")
    if place is None and expected.has_time:
        place = expected.at.tzinfo
    day = expected.day(place)

    def compare(found: DateOrTime) -> str | None:
        if found.precision < Precision.DAY:
            return WrongKindReason(f"is {found.text}, which is less precise than a day")
        return None if found.day(place) == day else f"is {found.text}"

    return _moment_judge(compare, place)


def around(given: Any) -> Judge:
    """Match an instant at most that far away."""
    settings = settings_of("around", given, {"value", "by"}, {"tz"})
    reach = duration(settings["by"])
    asked = {name: value for name, value in settings.items() if name != "by"}
    expected, _ = _parse_expected_moment("around", asked)
    if not expected.has_time:
        raise AuthorError(f"around: {expected.text} has no time; write same_day")
    return time_judge("around", lambda found, wanted: abs(found - wanted) <= reach, asked)
