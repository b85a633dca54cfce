"""Windows: in whole spans, in pieces that are all of it, and nothing of the future."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.usage.providers.opened import NOW

from meruit.errors import FetchError, FetchFailed
from meruit.model.metering import Window
from meruit.usage.providers.support.http_client import ProviderResponse
from meruit.usage.providers.support.paging import (
    DAY,
    MINUTE,
    BucketValidator,
    align,
    ceiling,
    floor,
    rfc3339,
    split_window,
)

zones = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))
seconds = st.floats(631_152_000, 3_786_912_000)
moments = st.builds(datetime.fromtimestamp, seconds, zones)
widths = st.sampled_from([timedelta(seconds=1), MINUTE, timedelta(hours=1), DAY])


@given(moments, widths)
def test_a_span_holds_its_moment_and_begins_at_a_multiple_of_its_width(moment: datetime, width: timedelta) -> None:
    start, end = floor(moment, width), ceiling(moment, width)
    assert start <= moment <= end
    assert end - start in (timedelta(), width)
    assert {one.timestamp() % width.total_seconds() for one in (start, end)} == {0}
    assert start.tzinfo is end.tzinfo is UTC


@given(moments, st.timedeltas(timedelta(seconds=1), timedelta(days=3)), st.timedeltas(MINUTE, DAY))
def test_pieces_are_all_of_a_window_and_none_is_too_long(start: datetime, long: timedelta, longest: timedelta) -> None:
    several = [*split_window(Window(start, start + long), longest)]
    assert several[0].start == start
    assert several[-1].end == start + long
    assert all(before.end == after.start for before, after in pairwise(several))
    assert all(timedelta() < one.end - one.start <= longest for one in several)


@given(moments, st.timedeltas(timedelta(seconds=1), DAY), moments, widths, st.booleans())
def test_what_is_asked_for_holds_the_window_as_far_as_it_is_over(
    start: datetime, long: timedelta, now: datetime, width: timedelta, unfinished: bool
) -> None:
    try:
        found = align(Window(start, start + long), width, now, unfinished=unfinished)
    except FetchFailed as failure:
        # Not even the first span is over.
        late = floor(start, width) + (timedelta(seconds=1) if unfinished else width)
        assert (failure.kind, failure.at, now < late) == (FetchError.NOT_READY, now, True)  # noqa: PT017
        return
    assert found.start == floor(start, width)
    assert found.end <= now
    assert found.end == ceiling(start + long, width) or now - found.end < (
        timedelta(seconds=1) if unfinished else width
    )


@pytest.mark.parametrize("moment", [NOW, NOW.astimezone(timezone(timedelta(hours=5)))])
def test_times_are_written_in_utc(moment: datetime) -> None:
    assert rfc3339(moment) == "2026-09-14T12:00:00Z"


HOUR = Window(NOW - timedelta(hours=1), NOW)


@given(st.lists(st.tuples(st.integers(-1, 4), st.integers(0, 3)), max_size=6))
def test_spans_are_followed_as_long_as_each_begins_where_the_last_one_ended(told: list[tuple[int, int]]) -> None:
    spans, answer, expected = BucketValidator(HOUR, MINUTE), ProviderResponse("it", 200, NOW, b"", str), 0
    for start, wide in told:
        begins = HOUR.start + start * MINUTE
        kind = (
            FetchError.CLOCK
            if start < 0
            else FetchError.MALFORMED
            if wide != 1
            else FetchError.PARTIAL_PAGE
            if start != expected
            else None
        )
        if kind is None:
            spans.check_next(answer, begins, begins + wide * MINUTE)
            expected += 1
            continue
        with pytest.raises(FetchFailed) as failed:
            spans.check_next(answer, begins, begins + wide * MINUTE)
        assert failed.value.kind is kind
    with pytest.raises(FetchFailed) as failed:
        spans.next_page_name(answer, has_more=False, next_page=None)
    assert failed.value.kind is FetchError.PARTIAL_PAGE
    assert spans.next_page_name(answer, has_more=True, next_page="more") == "more"


@pytest.mark.parametrize(
    ("until", "is_told"),
    [
        (NOW - timedelta(hours=1, minutes=1), False),
        (NOW - timedelta(hours=1), True),
        (NOW - timedelta(minutes=59), True),
        (floor(NOW, DAY) + DAY, True),
        (floor(NOW, DAY) + DAY + MINUTE, False),
    ],
)
def test_the_last_day_may_end_early(until: datetime, is_told: bool) -> None:
    spans = BucketValidator(Window(floor(NOW, DAY), NOW - timedelta(hours=1)), DAY)
    answer = ProviderResponse("it", 200, NOW, b"", str)
    if is_told:
        spans.check_next(answer, floor(NOW, DAY), until)
        assert spans.next_page_name(answer, has_more=False, next_page=None) is None
        return
    with pytest.raises(FetchFailed) as failed:
        spans.check_next(answer, floor(NOW, DAY), until)
    assert failed.value.kind is FetchError.MALFORMED
