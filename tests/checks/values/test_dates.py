"""Dates and times of three standards, each as precise as it was written."""

from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.checks.values.dates import Precision, duration, parse_date_or_time, zone
from meruit.errors import AuthorError

OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=OFFSETS, min_value=datetime(1000, 1, 1)))  # noqa: DTZ001 - hypothesis adds the zone
def test_an_instant_is_the_same_in_fhir_and_in_hl7(at: datetime) -> None:
    compact = at.strftime("%Y%m%d%H%M%S.%f%z")
    for text in (at.isoformat(), compact):
        found = parse_date_or_time(text)
        assert found is not None
        assert (found.at, found.precision, found.has_zone) == (at, Precision.TIME, True)


@given(st.dates(min_value=date(1000, 1, 1)))
def test_a_date_is_as_precise_as_it_was_written(day: date) -> None:
    for form, precision in (
        ("%Y", Precision.YEAR),
        ("%Y-%m", Precision.MONTH),
        ("%Y%m", Precision.MONTH),
        ("%Y-%m-%d", Precision.DAY),
        ("%Y%m%d", Precision.DAY),
    ):
        found = parse_date_or_time(day.strftime(form))
        assert found is not None
        assert found.precision is precision
        assert tuple(found.at.timetuple()[:precision]) == tuple(day.timetuple()[:precision])


@given(st.text() | st.from_regex(r"[0-9TZ:+. -]{1,40}", fullmatch=True))
def test_any_text_is_a_moment_or_none(text: str) -> None:
    found = parse_date_or_time(text)
    if found is not None:
        found.day(zone("America/Chicago"))
        found.day(zone("+14:00"))
        found.with_default_zone(zone("-14:00")).instant()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-06T10:00:00.5-06:00", datetime(2026, 3, 6, 16, 0, 0, 500_000, UTC)),
        ("20260306100000.5-0600", datetime(2026, 3, 6, 16, 0, 0, 500_000, UTC)),
        ("2026-03-06T10:00Z", datetime(2026, 3, 6, 10, tzinfo=UTC)),
        ("2026030610+0000", datetime(2026, 3, 6, 10, tzinfo=UTC)),
        ("2026-03-06T10:00:00.123456789Z", datetime(2026, 3, 6, 10, 0, 0, 123_456, UTC)),
    ],
)
def test_the_forms_of_an_instant(text: str, at: datetime) -> None:
    found = parse_date_or_time(text)
    assert found is not None
    assert found.at == at


@pytest.mark.parametrize(
    "text",
    [
        "",
        "today",
        "2026-13",
        "2026-02-30",
        "2026-0306",
        "202603-06",
        "2026-03-0610:00",
        "20260306 10:00",
        "0000",
        "2026-03-06T25:00Z",
        "2026-03-06T10:00+99:00",
        "2026-03-06T10",
        "٢٠٢٦",
        "2026-03-06T10:00:00" + "0" * 40,
    ],
)
def test_text_that_is_not_a_time(text: str) -> None:
    assert parse_date_or_time(text) is None


def test_a_day_depends_on_the_zone_that_is_asked_for() -> None:
    late = parse_date_or_time("2026-03-06T23:00:00-06:00")
    assert late is not None
    assert late.day(None) == date(2026, 3, 6)
    assert late.day(UTC) == date(2026, 3, 7)
    plain = parse_date_or_time("2026-03-06")
    assert plain is not None
    assert plain.day(zone("Pacific/Auckland")) == date(2026, 3, 6)


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_the_ends_of_time_have_a_day_in_every_zone(text: str) -> None:
    found = parse_date_or_time(text)
    assert found is not None
    assert found.day(UTC) == found.at.date()


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../etc/passwd", "+25:00", "+05:75", 5, [], "\0", "x" * 5000])
def test_an_unknown_zone_is_the_authors_error(name: Any) -> None:
    with pytest.raises(AuthorError, match="time zone"):
        zone(name)


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("0m", timedelta()),
        ("15m", timedelta(minutes=15)),
        ("1.5 h", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        (" 30s ", timedelta(seconds=30)),
        ("1d", timedelta(days=1)),
    ],
)
def test_durations(text: str, length: timedelta) -> None:
    assert duration(text) == length


@pytest.mark.parametrize(
    "written", ["", "15", "-15m", "15 weeks", 15, None, "9" * 20 + "d", "1e9s", "40000d", "9" * 9999]
)
def test_an_invalid_duration_is_the_authors_error(written: Any) -> None:
    with pytest.raises(AuthorError):
        duration(written)
