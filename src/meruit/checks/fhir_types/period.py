"""Time spans in FHIR: 2026-03 is a month, and a search compares spans, not points."""

import math
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from itertools import takewhile
from typing import Any

import msgspec

_SECOND = 1_000_000_000
_MINUTE, _DAY = 60 * _SECOND, 86_400 * _SECOND
_LAST_DAY = date.max.toordinal()
_WRITTEN = re.compile(
    r"(?P<year>\d{4})(?:-(?P<month>\d\d)(?:-(?P<day>\d\d)"
    r"(?:T(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d|60)(?:\.(?P<fraction>\d{1,30}))?)?"
    r"(?P<zone>Z|[+-](?:0\d|1[0-4]):[0-5]\d)?)?)?)?",
    re.ASCII,
)


class FhirTimeSpan(msgspec.Struct, frozen=True):
    """From a moment up to, and without, another; in nanoseconds, and infinite where one is not known."""

    low: float
    high: float

    def holds(self, other: "FhirTimeSpan") -> bool:
        """Whether the other lies wholly in this one."""
        return self.low <= other.low and other.high <= self.high


# First the expected span, then the found one. `gt` means that part of it is later, `sa` that all of it is.
COMPARE: dict[str, Callable[[FhirTimeSpan, FhirTimeSpan], bool]] = {
    "eq": FhirTimeSpan.holds,
    "ne": lambda asked, found: not asked.holds(found),
    "gt": lambda asked, found: found.high > asked.high,
    "lt": lambda asked, found: found.low < asked.low,
    "ge": lambda asked, found: found.high > asked.high or asked.holds(found),
    "le": lambda asked, found: found.low < asked.low or asked.holds(found),
    "sa": lambda asked, found: found.low >= asked.high,
    "eb": lambda asked, found: found.high <= asked.low,
}
"""FHIR's prefixes."""


def parse_time_span(text: str, zone: tzinfo = UTC) -> FhirTimeSpan | None:
    """What a FHIR date or time covers, in `zone` where it names none; None for anything else."""
    found = _WRITTEN.fullmatch(text)
    if found is None:
        return None
    part = found.groupdict()
    try:
        low, high = _days(*(int(part[name]) for name in takewhile(part.get, ("year", "month", "day"))))
    except ValueError:
        return None
    if part["hour"] is not None:
        low += (int(part["hour"]) * 60 + int(part["minute"])) * _MINUTE
        high = low + _MINUTE
    if part["second"] is not None:
        # Digits after the ninth are dropped.
        fraction = (part["fraction"] or "")[:9]
        low += int(part["second"]) * _SECOND + int(fraction.ljust(9, "0"))
        high = low + _SECOND // 10 ** len(fraction)
    if part["zone"] is not None:
        ahead = _ahead(part["zone"])
        return FhirTimeSpan(low - ahead, high - ahead)
    return FhirTimeSpan(low - _ahead_in(zone, low), high - _ahead_in(zone, high))


def time_span_of(value: Any, zone: tzinfo = UTC) -> FhirTimeSpan | None:
    """What a FHIR date, time, Period or Timing covers, from its first moment to its last; None for anything else."""
    match value:
        case str():
            return parse_time_span(value, zone)
        case {"event": [*events]}:
            return _around([found for found in (time_span_of(event, zone) for event in events) if found is not None])
        case {"repeat": {"boundsPeriod": period}}:
            return time_span_of(period, zone)
        case {"start": _} | {"end": _}:
            return _period(value.get("start"), value.get("end"), zone)
        case _:
            return None


def _around(spans: list[FhirTimeSpan]) -> FhirTimeSpan | None:
    return FhirTimeSpan(min(one.low for one in spans), max(one.high for one in spans)) if spans else None


def _period(start: Any, end: Any, zone: tzinfo) -> FhirTimeSpan | None:
    first = parse_time_span(start, zone) if isinstance(start, str) else None
    last = parse_time_span(end, zone) if isinstance(end, str) else None
    # An end that cannot be parsed does not count as an open end.
    if (first is None and start is not None) or (last is None and end is not None) or (first is None and last is None):
        return None
    return FhirTimeSpan(-math.inf if first is None else first.low, math.inf if last is None else last.high)


def _days(year: int, month: int | None = None, day: int | None = None) -> tuple[int, int]:
    first = date(year, month or 1, day or 1).toordinal()
    if day is not None:
        after = first + 1
    elif month is not None and month < 12:
        after = date(year, month + 1, 1).toordinal()
    else:
        after = date(year, 12, 31).toordinal() + 1
    return first * _DAY, after * _DAY


def _ahead(written: str) -> int:
    if written == "Z":
        return 0
    return (-1 if written[0] == "-" else 1) * (int(written[1:3]) * 60 + int(written[4:6])) * _MINUTE


def _ahead_in(zone: tzinfo, clock: int) -> int:
    """How far the clocks of a zone are ahead of UTC when they show this."""
    if zone is UTC:
        return 0
    day, rest = divmod(clock, _DAY)
    midnight = datetime.fromordinal(min(day, _LAST_DAY))
    shown = midnight.replace(hour=rest // (60 * _MINUTE), minute=rest // _MINUTE % 60, tzinfo=zone)
    ahead = shown.utcoffset()
    return 0 if ahead is None else round(ahead.total_seconds()) * _SECOND
