"""Times as stores keep them and as JSON shows them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """Convert a time to whole microseconds since 1970, the form that stores keep."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """Convert back what `to_micros` returned."""
    return _EPOCH + micros * _MICROSECOND


def to_rfc3339(moment: datetime) -> str:
    """Format a time as RFC 3339 in UTC; equal times give equal text."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
