"""Times as stores keep them and as JSON shows them."""

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_micros(moment: datetime) -> int:
    """A moment as whole microseconds since 1970, as stores keep it."""
    return (moment - _EPOCH) // _MICROSECOND


def from_micros(micros: int) -> datetime:
    """The moment that `to_micros` wrote."""
    return _EPOCH + micros * _MICROSECOND


def to_rfc3339(moment: datetime) -> str:
    """A moment as RFC 3339 text in UTC, one text for one moment."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
