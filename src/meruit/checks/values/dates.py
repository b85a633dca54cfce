"""Dates and times as FHIR, HL7 v2 and X12 write them; each knows how precise it is and whether it has a zone."""

import re
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import IntEnum
from typing import Any
from zoneinfo import ZoneInfo

import msgspec

from meruit.errors import AuthorError

MAX_TEXT = 40
"""Characters of a date and time; nothing longer is one."""
LONGEST_DURATION = timedelta(days=36_525)

_ZONE = r"Z|[+-][0-2]\d:?[0-5]\d"
# 2026, 2026-03, 2026-03-06, 2026-03-06T10:00:00.5-06:00.
_DASHED = re.compile(
    r"(?P<y>\d{4})(?:-(?P<mo>\d\d)(?:-(?P<d>\d\d)"
    r"(?:[T ](?P<h>\d\d):(?P<mi>\d\d)(?::(?P<s>\d\d)(?:\.(?P<f>\d{1,9}))?)?"
    rf"(?P<z>{_ZONE})?)?)?)?",
    re.ASCII,
)
# 202603, 20260306, 2026030610, 20260306100000.5-0600; HL7 gives a zone to dates as well.
_COMPACT = re.compile(
    r"(?P<y>\d{4})(?P<mo>\d\d)(?:(?P<d>\d\d)"
    r"(?:[T ]?(?P<h>\d\d)(?:(?P<mi>\d\d)(?:(?P<s>\d\d)(?:\.(?P<f>\d{1,9}))?)?)?)?"
    rf"(?P<z>{_ZONE})?)?",
    re.ASCII,
)
_DURATION = re.compile(r"(\d{1,20}(?:\.\d{1,20})?)\s*(ms|s|m|h|d)", re.ASCII)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class Precision(IntEnum):
    """How much of a moment was written."""

    YEAR = 1
    MONTH = 2
    DAY = 3
    TIME = 4


class DateOrTime(msgspec.Struct, frozen=True):
    """A date, or a time of one."""

    at: datetime
    """Its beginning; with a zone if it was written with one."""
    precision: Precision
    text: str

    @property
    def has_time(self) -> bool:
        """Whether it is more than a date."""
        return self.precision is Precision.TIME

    @property
    def has_zone(self) -> bool:
        """Whether it was written with a zone."""
        return self.at.tzinfo is not None

    def with_default_zone(self, zone: tzinfo | None) -> "DateOrTime":
        """The same moment, its zone filled in where it has a time and no zone of its own."""
        if zone is None or self.has_zone or not self.has_time:
            return self
        return msgspec.structs.replace(self, at=self.at.replace(tzinfo=zone))

    def day(self, zone: tzinfo | None) -> date:
        """Its date: in the zone given, or as it was written."""
        if zone is None or not self.has_zone or not self.has_time:
            return self.at.date()
        try:
            return self.at.astimezone(zone).date()
        except OverflowError:
            # A zone cannot move the first and the last representable day.
            return self.at.date()

    def instant(self) -> datetime:
        """Its beginning as one instant, taken to be in UTC where it names no zone; for putting moments in order."""
        return self.at if self.has_zone else self.at.replace(tzinfo=UTC)


def parse_date_or_time(text: str) -> DateOrTime | None:
    """What a text says as a date or time; None when it says none."""
    written = text.strip() if len(text) <= MAX_TEXT else ""
    found = _DASHED.fullmatch(written) or _COMPACT.fullmatch(written)
    if found is None:
        return None
    part = found.groupdict()
    try:
        at = datetime(
            int(part["y"]),
            int(part["mo"] or 1),
            int(part["d"] or 1),
            int(part["h"] or 0),
            int(part["mi"] or 0),
            int(part["s"] or 0),
            int((part["f"] or "0")[:6].ljust(6, "0")),
            tzinfo=_offset(part["z"]),
        )
    except ValueError:
        return None
    precision = sum(part[name] is not None for name in ("y", "mo", "d", "h"))
    return DateOrTime(at=at, precision=Precision(precision), text=text)


def _offset(written: str | None) -> tzinfo | None:
    if written is None:
        return None
    if written == "Z":
        return UTC
    sign = -1 if written[0] == "-" else 1
    return timezone(sign * timedelta(hours=int(written[1:3]), minutes=int(written[-2:])))


# Any, here and below: what an author wrote.
def zone(name: Any) -> tzinfo | None:
    """A time zone by its name or offset; None for none."""
    if name is None:
        return None
    try:
        return _offset(name) if re.fullmatch(_ZONE, name, re.ASCII) else ZoneInfo(name)
    except (TypeError, ValueError, KeyError, OSError):
        raise AuthorError(f"unknown time zone {name!r:.80}; for example America/Chicago or -06:00") from None


def duration(written: Any) -> timedelta:
    """`15m`, `0m`, `30s`, `2h`, `1d`."""
    found = _DURATION.fullmatch(written.strip()) if isinstance(written, str) else None
    if found is None:
        raise AuthorError(f"{written!r:.80} is not a duration; write 30s, 15m, 2h or 1d")
    try:
        length = timedelta(**{_UNITS[found[2]]: float(Decimal(found[1]))})
    except OverflowError:
        length = timedelta.max
    if length > LONGEST_DURATION:
        raise AuthorError(f"{written!r:.80} is longer than a century")
    return length
