"""Which tokens belong to which run: compared with a loop over every row for every run."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from random import Random
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from meruit.errors import FetchError
from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    CallState,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    UsageRow,
    Window,
)
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Assurance, Cohort, Observation, Tokens, UsageCode, sum_tokens
from meruit.usage.attribution import columns
from meruit.usage.attribution import project as projecting
from meruit.usage.attribution.cohorts import GUARD, AccountCohorts, CohortSpan
from meruit.usage.attribution.columns import OPEN
from meruit.usage.attribution.project import DueUsageRun, Fetch, ProviderCounts, build_failed_observation
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.decision import decide

MINUTE = timedelta(minutes=1)
START = datetime(2026, 7, 1, 23, 50, tzinfo=UTC)
"""Ten minutes before midnight: what is tried here lies on both sides of it."""
LATER = datetime(2026, 7, 2, 12, tzinfo=UTC)
FETCH = Fetch("acme", LATER, "d1")
KEY_A = AttributionKey(AttributionKind.KEY, "key_a")
WHOLE = AttributionKey()
FIELDS = ("input", "output", "requests", "cached", "cache_write", "reasoning")


def at(minutes: float = 0, seconds: float = 0) -> datetime:
    return START + timedelta(minutes=minutes, seconds=seconds)


def row(
    minute: int, tokens: int | Tokens = 10, *, key: str = "key_a", model: str = "m", width: timedelta = MINUTE
) -> UsageRow:
    counted = tokens if isinstance(tokens, Tokens) else Tokens(tokens, 1, 1)
    return UsageRow(at(minute), at(minute) + width, counted, model, key)


def run(
    start: datetime | None,
    end: datetime | None,
    *steps: MeteredStep,
    attribution_key: AttributionKey = KEY_A,
    name: str = "r1",
) -> MeteredRun:
    return MeteredRun(name, "agent", "acme", attribution_key, start, end, steps)


def step(name: str, start: datetime | None, end: datetime | None, *calls: MeteredCall) -> MeteredStep:
    return MeteredStep(name, start, end, True, calls=calls)


def light(one: MeteredRun, last: Tokens | None = None, next_observation_at: datetime | None = None) -> AttributionRun:
    local, seen = _three(one.local), _three(last)
    return AttributionRun(
        id=one.id,
        seq=1,
        attribution_kind=one.attribution_key.kind.value,
        attribution_key=one.attribution_key.value,
        started_at=_micros(one.started_at),
        ended_at=_micros(one.ended_at),
        local_input=local[0],
        local_output=local[1],
        local_requests=local[2],
        last_input=seen[0],
        last_output=seen[1],
        last_requests=seen[2],
        next_observation_at=_micros(next_observation_at),
        status="pending",
    )


def _three(tokens: Tokens | None) -> tuple[int | None, int | None, int | None]:
    return (None, None, None) if tokens is None else (tokens.input, tokens.output, tokens.requests)


def _micros(moment: datetime | None) -> int | None:
    return None if moment is None else to_micros(moment)


def counted(*rows: UsageRow, bucket: timedelta = MINUTE, window: Window | None = None) -> ProviderCounts:
    found = ProviderCounts(bucket, window)
    found.add(rows)
    return found


def shared_of(runs: Sequence[MeteredRun], bucket: timedelta = MINUTE) -> dict[str, CohortSpan | None]:
    neighbours = AccountCohorts(bucket)
    several = [light(one) for one in runs]
    neighbours.add(several)
    spans = neighbours.spans(several)
    return {one.id: neighbours.cohort_span(number) for one, number in zip(several, spans.cohort_numbers, strict=True)}


# What a person writes first: every run asks every row, and every other run.


def plain_window(one: MeteredRun, bucket: timedelta) -> tuple[datetime, datetime | None]:
    width = bucket or timedelta(microseconds=1)
    start = one.started_at or one.ended_at
    assert start is not None
    first = start - (start - datetime(1970, 1, 1, tzinfo=UTC)) % width
    if one.ended_at is None:
        return first, None
    end = max(start, one.ended_at)
    over = (end - datetime(1970, 1, 1, tzinfo=UTC)) % width
    return first, (end - over + width if over else end) + GUARD


def plain_group(one: MeteredRun, runs: Sequence[MeteredRun], bucket: timedelta) -> list[MeteredRun]:
    """Those that overlap with one in its attribution key, and with those, and so on."""
    if one.attribution_key.kind is AttributionKind.REQUESTS:
        return [one]
    mates = [
        other
        for other in runs
        if one.attribution_key.kind is AttributionKind.WINDOW or other.attribution_key == one.attribution_key
    ]
    found, waiting = [one], [one]
    while waiting:
        start, end = plain_window(waiting.pop(), bucket)
        for other in mates:
            begun, ended = plain_window(other, bucket)
            if other not in found and (end is None or begun < end) and (ended is None or start < ended):
                found.append(other)
                waiting.append(other)
    return found


def plain_total(
    attribution_key: AttributionKey, start: datetime, end: datetime | None, rows: Sequence[UsageRow]
) -> Tokens:
    return sum_tokens(
        one.tokens
        for one in rows
        if one.start >= start
        and (end is None or one.start < end)
        and (attribution_key.kind is AttributionKind.WINDOW or of(one, attribution_key))
    )


def plain_models(
    attribution_key: AttributionKey, start: datetime, end: datetime | None, rows: Sequence[UsageRow]
) -> dict[str, Tokens] | None:
    used = [one for one in rows if any(getattr(one.tokens, name) for name in FIELDS)]
    names = {
        one.model for one in used if plain_total(attribution_key, start, end, [replace(one, tokens=Tokens(1))]).total
    }
    found = {
        name: plain_total(attribution_key, start, end, [one for one in rows if one.model == name]) for name in names
    }
    return None if "" in found else found


def of(one: UsageRow, attribution_key: AttributionKey) -> bool:
    return (
        attribution_key.value == {"key": one.key, "project": one.project, "session": one.session}[attribution_key.kind]
    )


# Small worlds.

COUNTS = st.integers(0, 50)
MAYBE = st.none() | COUNTS
TOKENS = st.builds(Tokens, COUNTS, COUNTS, MAYBE, MAYBE, MAYBE, MAYBE)
KEYS = st.sampled_from(
    [
        KEY_A,
        AttributionKey(AttributionKind.KEY, "key_b"),
        AttributionKey(AttributionKind.PROJECT, "p"),
        AttributionKey(AttributionKind.SESSION, "s"),
        WHOLE,
    ]
)
SECONDS = st.integers(0, 60 * 25) | st.integers(0, 25).map(lambda minutes: minutes * 60)
ROWS = st.lists(
    st.builds(
        lambda minute, tokens, key, project, session, model: UsageRow(
            at(minute), at(minute + 1), tokens, model, key, project, session
        ),
        st.integers(-1, 30),
        TOKENS,
        st.sampled_from(["", "key_a", "key_b"]),
        st.sampled_from(["", "p"]),
        st.sampled_from(["", "s"]),
        st.sampled_from(["", "m", "n"]),
    ),
    max_size=25,
)


@st.composite
def runs_of(draw: st.DrawFn) -> list[MeteredRun]:
    found = []
    for number in range(draw(st.integers(1, 8))):
        seconds = draw(SECONDS)
        length = draw(st.integers(0, 400) | st.none() | st.just(-30))
        end = None if length is None else at(seconds=seconds + length)
        tokens = draw(st.none() | TOKENS)
        one = MeteredStep("s1", tokens=tokens)
        begun = at(seconds=seconds) if end is None or draw(st.integers(0, 9)) else None
        found.append(run(begun, end, one, attribution_key=draw(KEYS), name=f"r{number}"))
    return found


@given(
    runs_of(),
    ROWS,
    st.sampled_from([MINUTE, timedelta(hours=1), timedelta()]),
    st.randoms(),
)
def test_every_run_gets_what_a_loop_over_all_rows_finds(
    runs: list[MeteredRun], rows: list[UsageRow], bucket: timedelta, chance: Random
) -> None:
    provider = ProviderCounts(bucket)
    shuffled = [*rows]
    chance.shuffle(shuffled)
    half = len(rows) // 2
    provider.add(shuffled[:half])
    provider.add(shuffled[half:])
    shared = shared_of(runs, bucket)
    for one in runs:
        if one.started_at is None:
            continue
        group = plain_group(one, runs, bucket)
        windows = [plain_window(other, bucket) for other in group]
        ends = [end for _, end in windows]
        last = None if None in ends else max(end for end in ends if end is not None)
        look = provider.observe(one, FETCH, shared[one.id])
        first = min(start for start, _ in windows)
        assert look.total == plain_total(one.attribution_key, first, last, rows)
        assert look.by_model == plain_models(one.attribution_key, first, last, rows)
        is_told_by_time = one.attribution_key.kind is AttributionKind.WINDOW
        assert (look.assurance is Assurance.COHORT) == (len(group) > 1 or is_told_by_time)
        if len(group) > 1 or is_told_by_time:
            locals_ = [None if other.ended_at is None else other.local for other in group]
            said = None if None in locals_ else sum_tokens(local for local in locals_ if local is not None)
            assert look.cohort is not None
            assert look.cohort.runs == len(group)
            assert look.cohort.local == (None if said is None else Tokens(said.input, said.output, said.requests))


@given(runs_of(), ROWS)
def test_a_row_belongs_to_one_run_alone_or_to_none_and_none_is_lost(
    runs: list[MeteredRun], rows: list[UsageRow]
) -> None:
    runs = [one for one in runs if one.started_at is not None]
    provider = ProviderCounts(MINUTE)
    provider.add(rows)
    shared = shared_of(runs)
    for attribution_key in {one.attribution_key for one in runs}:
        seen: dict[object, int] = {}
        inside: set[int] = set()
        for one in (one for one in runs if one.attribution_key == attribution_key):
            look, group = provider.observe(one, FETCH, shared[one.id]), shared[one.id]
            assert look.total is not None
            seen[one.id if group is None else (group.start, group.end)] = look.total.total
            start, end = plain_window(one, MINUTE)
            if group is not None:
                start, end = from_micros(group.start), None if group.end == OPEN else from_micros(group.end)
            inside |= {n for n, one in enumerate(rows) if one.start >= start and (end is None or one.start < end)}
        mine = [
            n
            for n, one in enumerate(rows)
            if attribution_key.kind is AttributionKind.WINDOW or of(one, attribution_key)
        ]
        outside = sum(rows[n].tokens.total for n in mine if n not in inside)
        assert sum(seen.values()) + outside == sum(rows[n].tokens.total for n in mine)


# One run.


def test_a_run_alone_has_its_minutes_and_two_after_them() -> None:
    provider = counted(*(row(minute) for minute in range(12)))
    look = provider.observe(run(at(2, 30), at(4, 10)), FETCH)
    assert (look.total, look.assurance, look.models) == (
        Tokens(50, 5, 5, None, None, None),
        Assurance.ATTRIBUTION_KEY,
        ("m",),
    )
    assert (look.at, look.digest, look.watermark, look.cohort) == (LATER, "d1", None, None)


@pytest.mark.parametrize(
    ("start", "end", "minutes"),
    [
        (at(2), at(4), [2, 3, 4, 5]),
        (at(2, 59.999999), at(4), [2, 3, 4, 5]),
        (at(2), at(4, 0.000001), [2, 3, 4, 5, 6]),
        (at(2), at(2), [2, 3]),
        (at(2, 30), at(2, 30), [2, 3, 4]),
        (at(9, 30), at(10, 30), [9, 10, 11, 12]),
        (at(5), at(3), [5, 6]),
    ],
    ids=[
        "whole minutes",
        "just before",
        "just after",
        "no length",
        "no length in a minute",
        "midnight",
        "clock set back",
    ],
)
def test_a_window_begins_and_ends_on_a_bucket(start: datetime, end: datetime, minutes: list[int]) -> None:
    provider = counted(*(row(minute, 2**minute) for minute in range(20)))
    look = provider.observe(run(start, end), FETCH)
    assert look.total is not None
    assert look.total.input == sum(2**minute for minute in minutes)


def test_rows_of_one_minute_are_added() -> None:
    provider = counted(
        row(2, Tokens(1, 2, 3, 4, 5, 6)), row(2, Tokens(1, 2, 3, 4, 5, 6), model="n"), row(2, Tokens(1, 2, 3, 4, 5, 6))
    )
    look = provider.observe(run(at(2), at(3)), FETCH)
    assert (look.total, look.models) == (Tokens(3, 6, 9, 12, 15, 18), ("m", "n"))


@pytest.mark.parametrize("field", FIELDS[2:])
def test_what_one_row_does_not_say_is_not_known_of_the_sum(field: str) -> None:
    silent = replace(Tokens(1, 1, 1, 1, 1, 1), **{field: None})
    look = counted(row(2, Tokens(1, 1, 1, 1, 1, 1)), row(3, silent)).observe(run(at(2), at(4)), FETCH)
    assert look.total == replace(Tokens(2, 2, 2, 2, 2, 2), **{field: None})


def test_models_without_tokens_or_without_a_name_are_not_named() -> None:
    provider = counted(row(2), row(2, Tokens(0, 0, 5), model="idle"), row(2, model=""))
    look = provider.observe(run(at(2), at(3)), FETCH)
    assert (look.models, look.by_model) == (("m",), None)


def test_counts_are_split_by_model_where_every_row_names_one() -> None:
    provider = counted(row(2), row(2, 5, model="n"), row(3), row(3, Tokens(), model=""), row(2, Tokens(), model="idle"))
    assert provider.observe(run(at(2), at(3)), FETCH).by_model == {"m": Tokens(20, 2, 2), "n": Tokens(5, 1, 1)}
    assert provider.observe(run(at(20), at(21)), FETCH).by_model == {}


def test_tokens_billed_for_another_model_than_the_one_that_was_called_are_not_verified() -> None:
    calls = (MeteredCall(at(2), "gpt-4o", Tokens(100_000, 1, 1)), MeteredCall(at(2), "gpt-4o-mini", Tokens(10, 1, 1)))
    one = run(at(2), at(3), step("s1", at(2), at(3), *calls))
    provider = counted(row(2, 10, model="gpt-4o"), row(2, 100_000, model="gpt-4o-mini"))
    looks = [provider.observe(one, msgspec.structs.replace(FETCH, at=LATER + timedelta(hours=n))) for n in range(2)]
    verdict = decide(one.for_judging, looks)
    assert verdict.code is UsageCode.DISCREPANCY
    assert all(value in verdict.message for value in ("gpt-4o,", "100,000 in / 1 out", "10 in / 1 out"))


def test_a_key_without_rows_has_zero_tokens() -> None:
    provider = counted(row(2), row(2, key=""))
    for attribution_key in (
        AttributionKey(AttributionKind.KEY, "other"),
        AttributionKey(AttributionKind.KEY, ""),
        AttributionKey(AttributionKind.PROJECT, "key_a"),
    ):
        assert provider.observe(run(at(2), at(3), attribution_key=attribution_key), FETCH).total == Tokens(
            0, 0, 0, 0, 0, 0
        )
    assert provider.observe(run(at(2), at(3), attribution_key=WHOLE), FETCH).total == Tokens(20, 2, 2, None, None, None)


def test_a_page_that_comes_later_is_counted_as_well() -> None:
    provider = counted(row(2))
    one = run(at(2), at(3))
    first = provider.observe(one, FETCH)
    provider.add([row(3)])
    again = provider.observe(one, FETCH)
    assert [look.total.input if look.total else None for look in (first, again)] == [10, 20]


def test_more_than_was_asked_for_is_not_ready_rather_than_too_little() -> None:
    window = Window(at(0), at(5))
    provider = counted(row(1), row(4), window=window)
    assert provider.observe(run(at(0), at(3)), FETCH).error is None
    for start, end in ((at(-1), at(3)), (at(0), at(3, 1))):
        look = provider.observe(run(start, end), FETCH)
        assert (look.error, look.total) == (FetchError.NOT_READY, None)
        assert "2026-07-01T23:50:00" in look.detail
    still_open = provider.observe(run(at(0), None), FETCH)
    assert still_open.total is not None
    assert still_open.total.input == 20
    before = CohortSpan(to_micros(at(-5)), OPEN, Cohort(2))
    assert "to now" in provider.observe(run(at(0), at(3)), FETCH, before).detail


def test_a_run_without_a_start_has_no_minutes_of_its_own() -> None:
    look = counted(row(1)).observe(run(None, at(3)), FETCH)
    assert look.error is FetchError.MALFORMED
    assert "started_at" in look.detail


# Steps.

TWO = (step("one", at(0), at(2)), step("two", at(2), at(4)))


def test_steps_on_whole_minutes_are_split_and_late_tokens_the_last_ones() -> None:
    provider = counted(row(0), row(1), row(2), row(4), row(5))
    look = provider.observe(run(at(0), at(4), *TWO), FETCH)
    assert look.steps == {"one": Tokens(20, 2, 2), "two": Tokens(30, 3, 3)}
    assert look.unattributed == 0


def test_a_minute_that_two_steps_touch_leaves_no_split() -> None:
    steps = (step("one", at(0), at(2, 1)), step("two", at(2, 1), at(4)))
    provider = counted(row(0), row(3))
    assert provider.observe(run(at(0), at(4), *steps), FETCH).steps == {
        "one": Tokens(10, 1, 1),
        "two": Tokens(10, 1, 1),
    }
    provider.add([row(2)])
    look = provider.observe(run(at(0), at(4), *steps), FETCH)
    assert (look.steps, look.unattributed) == (None, 0)
    empty = counted(row(0), row(2, Tokens(0, 0, 0)), row(3)).observe(run(at(0), at(4), *steps), FETCH)
    assert empty.steps is not None


def test_what_is_used_while_no_step_is_at_work_is_attributed_to_none() -> None:
    steps = (step("one", at(0), at(1)), step("two", at(3), at(4)))
    look = counted(row(0), row(1), row(2), row(3)).observe(run(at(0), at(8), *steps), FETCH)
    assert (look.steps, look.unattributed) == ({"one": Tokens(10, 1, 1), "two": Tokens(10, 1, 1)}, 22)
    none = counted(row(0), row(9)).observe(run(at(0), at(8)), FETCH)
    assert (none.steps, none.unattributed) == ({}, 22)


def test_steps_without_times_have_no_split() -> None:
    for unsure in (step("two", None, at(4)), step("two", at(2), None)):
        look = counted(row(0), row(9)).observe(run(at(0), at(8), TWO[0], unsure), FETCH)
        assert (look.steps, look.unattributed) == (None, 0)


def test_a_step_of_no_length_is_at_work_in_its_minute() -> None:
    steps = (step("one", at(0, 30), at(0, 30)), step("two", at(1), at(1)), step("back", at(3), at(2)))
    look = counted(row(0), row(1), row(3)).observe(run(at(0), at(4), *steps), FETCH)
    assert look.steps is not None
    assert {name: one.input for name, one in look.steps.items()} == {"one": 10, "two": 10, "back": 10}


def test_steps_by_a_skewed_clock_leave_what_they_missed_outside() -> None:
    steps = (step("one", at(-30), at(-29)), step("two", at(2), at(40)))
    look = counted(row(0), row(2), row(5)).observe(run(at(0), at(4), *steps), FETCH)
    assert (look.steps, look.unattributed) == ({"two": Tokens(20, 2, 2)}, 11)


def test_a_run_whose_clock_was_set_back_keeps_its_steps_apart() -> None:
    steps = (step("one", at(5), at(5, 1)), step("two", at(3), at(9)))
    look = counted(row(4), row(5), row(6)).observe(run(at(5), at(3), *steps), FETCH)
    assert look.steps == {"two": Tokens(20, 2, 2)}


STEPS = st.lists(st.tuples(st.integers(-120, 900), st.integers(-60, 400)), max_size=6)


@given(STEPS, ROWS, st.integers(0, 900), st.sampled_from([MINUTE, timedelta(), timedelta(minutes=5)]))
def test_the_split_by_step_is_that_of_a_loop_over_steps_and_rows(
    spans: list[tuple[int, int]], rows: list[UsageRow], length: int, bucket: timedelta
) -> None:
    steps = [
        step(f"s{number}", at(seconds=start), at(seconds=start + more)) for number, (start, more) in enumerate(spans)
    ]
    one = run(at(), at(seconds=length), *steps)
    look = counted(*rows, bucket=bucket).observe(one, FETCH)
    width = bucket or timedelta(microseconds=1)
    _, end = plain_window(one, bucket)
    assert end is not None
    found: dict[str, list[Tokens]] = {}
    outside, several = 0, False
    for line in rows:
        used = any(getattr(line.tokens, name) for name in FIELDS)
        if line.key != "key_a" or not used or not at() <= line.start < end:
            continue
        touched = [one for one in steps if _touches(one, line.start, width)]
        if steps and line.start >= end - GUARD:
            touched = [max(steps, key=lambda one: (max(one.ended_at, one.started_at), one.id))]  # type: ignore[type-var]
        several = several or len(touched) > 1
        outside += 0 if touched else line.tokens.total
        if len(touched) == 1:
            found.setdefault(touched[0].id, []).append(line.tokens)
    assert look.unattributed == outside
    assert look.steps == (None if several else {name: sum_tokens(some) for name, some in found.items()})
    if look.steps is not None:
        assert look.total is not None
        assert sum(one.total for one in look.steps.values()) + outside == look.total.total


def _touches(one: MeteredStep, bucket: datetime, width: timedelta) -> bool:
    assert one.started_at is not None
    assert one.ended_at is not None
    if one.ended_at <= one.started_at:
        return bucket <= one.started_at < bucket + width
    return one.started_at < bucket + width and one.ended_at > bucket


# Calls.


def call(name: str, state: CallState = CallState.OK, model: str = "m") -> MeteredCall:
    return MeteredCall(at(1), model, Tokens(10, 1, 1), state, name)


def answered(name: str, tokens: int = 10, moment: float = 1, key: str = "key_a", model: str = "m") -> UsageRow:
    return UsageRow(at(moment), at(moment), Tokens(tokens, 1, 1), model, key, request_id=name)


REQUESTS = AttributionKey(AttributionKind.REQUESTS)


def test_a_row_for_each_call_gives_an_exact_split() -> None:
    steps = (
        step("one", None, None, call("a"), call("b")),
        step("two", None, None, call("c")),
        step("idle", None, None),
    )
    provider = counted(
        answered("c", 3), answered("a", 1), answered("b", 2, model="n"), answered("x", 99), bucket=timedelta()
    )
    look = provider.observe(run(None, at(5), *steps, attribution_key=REQUESTS), FETCH)
    assert (look.assurance, look.total, look.models) == (Assurance.REQUEST, Tokens(6, 3, 3), ("m", "n"))
    assert look.steps == {"one": Tokens(3, 2, 2), "two": Tokens(3, 1, 1)}
    assert look.by_model == {"m": Tokens(4, 2, 2), "n": Tokens(2, 1, 1)}


def test_a_call_without_a_row_is_not_ready_unless_it_was_refused() -> None:
    provider = counted(answered("a"), bucket=timedelta())
    refused = step("one", None, None, call("a"), call("no", CallState.FAILED), call("", CallState.FAILED))
    assert provider.observe(run(None, at(5), refused, attribution_key=REQUESTS), FETCH).total == Tokens(10, 1, 1)
    aborted = step("one", None, None, call("a"), *(call(f"gone{n}", CallState.ABORTED) for n in range(5)))
    look = provider.observe(run(None, at(5), aborted, attribution_key=REQUESTS), FETCH)
    assert (look.error, look.total) == (FetchError.NOT_READY, None)
    assert all(value in look.detail for value in ("5 of 6", "gone0, gone1, gone2"))
    assert "gone3" not in look.detail
    nameless = provider.observe(run(None, at(5), step("one", None, None, call("")), attribution_key=REQUESTS), FETCH)
    assert nameless.error is FetchError.NOT_READY
    assert "provider's id" in nameless.detail


def test_a_call_that_two_steps_claim_is_counted_once_and_its_rows_all() -> None:
    steps = (step("one", None, None, call("a")), step("two", None, None, call("a"), call("b")))
    provider = counted(answered("a", 1), answered("a", 2), answered("b", 4), bucket=timedelta())
    look = provider.observe(run(None, at(5), *steps, attribution_key=REQUESTS), FETCH)
    assert (look.total, look.steps) == (Tokens(7, 3, 3), {"one": Tokens(3, 2, 2), "two": Tokens(4, 1, 1)})


def test_calls_found_by_key_belong_to_the_step_with_their_id() -> None:
    steps = (step("one", at(0), at(3), call("late")), step("two", at(2), at(6), call("x")))
    rows = (answered("late", 1, 4.5), answered("unknown", 2, 5.5), answered("other", 4, 1, key="key_b"))
    look = counted(*rows, bucket=timedelta()).observe(run(at(0), at(6), *steps), FETCH)
    assert look.steps == {"one": Tokens(1, 1, 1), "two": Tokens(2, 1, 1)}
    assert look.assurance is Assurance.ATTRIBUTION_KEY
    both = counted(answered("unknown", 2, 2.5), bucket=timedelta()).observe(run(at(0), at(6), *steps), FETCH)
    assert both.steps is None


# Runs that share.


def named(
    name: str,
    start: datetime,
    end: datetime | None,
    attribution_key: AttributionKey = KEY_A,
    tokens: int = 5,
    model: str = "m",
) -> MeteredRun:
    made = MeteredCall(start, model, Tokens(tokens, 1, 1))
    return run(start, end, step("s1", start, end or start, made), attribution_key=attribution_key, name=name)


def test_runs_that_overlap_are_counted_together_and_tie_out() -> None:
    runs = [named("a", at(0), at(2)), named("b", at(3), at(5)), named("c", at(20), at(21))]
    shared = shared_of(runs)
    assert shared["c"] is None
    assert shared["a"] == shared["b"]
    provider = counted(row(0, 5), row(4, 5), row(20, 5))
    looks = [
        provider.observe(one, msgspec.structs.replace(FETCH, at=LATER + more), shared[one.id])
        for one in runs[:2]
        for more in (timedelta(), timedelta(hours=1))
    ]
    assert looks[0].total == Tokens(10, 2, 2)
    assert looks[0].cohort == Cohort(2, Tokens(10, 2, 2))
    assert looks[0].by_model == {"m": Tokens(10, 2, 2)}
    assert (looks[0].steps, looks[0].unattributed) == (None, 0)
    assert {one.assurance for one in looks} == {Assurance.COHORT}
    assert decide(runs[0].for_judging, looks[:2]).code is UsageCode.STABLE


def test_sums_of_more_groups_than_are_remembered_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "MAX_MEMOISED_SUMS", 1)
    pairs = [named(f"r{n}{twin}", at(10 * n), at(10 * n + 1)) for n in range(3) for twin in "ab"]
    shared = shared_of(pairs)
    provider = counted(*(row(10 * n, n + 1) for n in range(3)))
    found = [provider.observe(one, FETCH, shared[one.id]).total for one in pairs]
    assert [one.input for one in found if one is not None] == [1, 1, 2, 2, 3, 3]


def test_neighbours_that_do_not_say_what_they_used_leave_it_ambiguous() -> None:
    silent = run(at(1), at(2), MeteredStep("s1"), name="b")
    runs = [named("a", at(0), at(2)), silent]
    shared = shared_of(runs)
    assert shared["a"] is not None
    assert shared["a"].cohort == Cohort(2)
    provider = counted(row(0, 5), row(1, 50))
    looks = [
        provider.observe(runs[0], msgspec.structs.replace(FETCH, at=LATER + timedelta(hours=n)), shared["a"])
        for n in range(2)
    ]
    assert decide(runs[0].for_judging, looks).code is UsageCode.AMBIGUOUS_ATTRIBUTION


def test_the_guard_after_a_run_is_no_other_runs() -> None:
    def apart(minutes: float) -> bool:
        return shared_of([named("a", at(0), at(2)), named("b", at(minutes), at(9))])["a"] is None

    assert (apart(3), apart(3 + 59 / 60), apart(4)) == (False, False, True)


def test_an_open_run_shares_with_all_that_begin_after_it() -> None:
    runs = [named("before", at(0), at(2)), named("open", at(10), None), named("after", at(600), at(601))]
    shared = shared_of(runs)
    assert shared["before"] is None
    assert shared["after"] == shared["open"]
    assert shared["after"] is not None
    assert shared["after"].end == OPEN
    assert shared["after"].cohort == Cohort(2, None, has_open=True)
    not_begun = MeteredRun("new", "agent", "acme", KEY_A)
    assert shared_of([runs[0], not_begun]) == {"before": None, "new": None}


def test_a_run_attributed_by_time_shares_with_the_whole_account() -> None:
    runs = [
        named("time", at(0), at(2), WHOLE),
        named("key", at(1), at(3)),
        named("call", at(1), at(3), REQUESTS),
        named("late", at(30), at(31), WHOLE),
        named("p1", at(60), at(62), AttributionKey(AttributionKind.PROJECT, "p")),
        named("p2", at(60), at(62), AttributionKey(AttributionKind.PROJECT, "p")),
    ]
    shared = shared_of(runs)
    assert shared["time"] is not None
    assert shared["time"].cohort.runs == 3
    assert shared["p1"] is not None
    assert shared["p1"].cohort.runs == 2
    assert [name for name, one in shared.items() if one is None] == ["key", "call", "late"]
    look = counted(row(0), row(1, key="key_b")).observe(runs[0], FETCH, shared["time"])
    assert look.total == Tokens(20, 2, 2)


@pytest.mark.parametrize(
    ("billed", "code"), [(5, UsageCode.STABLE), (50, UsageCode.AMBIGUOUS_ATTRIBUTION)], ids=["its own", "a stranger's"]
)
def test_a_run_attributed_by_time_is_never_known_to_be_alone(billed: int, code: UsageCode) -> None:
    one = named("time", at(2), at(3), WHOLE)
    provider = counted(row(2, billed, key=""))
    looks = [provider.observe(one, msgspec.structs.replace(FETCH, at=LATER + timedelta(hours=n))) for n in range(2)]
    assert looks[0].cohort == Cohort(1, Tokens(5, 1, 1))
    assert looks[0].steps == {"s1": Tokens(billed, 1, 1)}
    verdict = decide(one.for_judging, looks)
    assert (verdict.code, verdict.assurance) == (code, Assurance.COHORT)


# Attribution keys within attribution keys.

PROJECT, SESSION = AttributionKey(AttributionKind.PROJECT, "p"), AttributionKey(AttributionKind.SESSION, "s")


def in_project(minute: int, tokens: int = 5, *, project: str = "p", session: str = "") -> UsageRow:
    return replace(row(minute, tokens), project=project, session=session)


def due_of(runs: Sequence[MeteredRun], *rows: UsageRow) -> dict[str, Cohort | None]:
    """With whom each of these is counted, when all are looked at."""
    provider = ProviderCounts(MINUTE)
    provider.add(rows)
    found = passed([light(one, None, LATER) for one in runs], provider)
    return {one.run.id: None if one.cohort_span is None else one.cohort_span.cohort for one in found.due}


@given(runs_of(), st.integers(0, 1500), st.integers(1, 300))
def test_runs_that_overlap_a_span_are_those_that_a_loop_over_all_finds(
    runs: list[MeteredRun], start: int, length: int
) -> None:
    neighbours = AccountCohorts(MINUTE)
    neighbours.add([light(one) for one in runs])
    keys = [KEY_A, PROJECT, AttributionKey(AttributionKind.SESSION, "nobody's")]
    first, last = at(seconds=start), at(seconds=start + length)
    windows = [plain_window(one, MINUTE) for one in runs if one.attribution_key in keys]
    expected = sum(begun < last and (ended is None or ended > first) for begun, ended in windows)
    asked = [(one.kind, one.value) for one in keys]
    assert neighbours.count_overlapping(asked, to_micros(first), to_micros(last)) == expected
    assert neighbours.has_mixed_kinds == (
        len({one.attribution_key.kind for one in runs} - {AttributionKind.WINDOW}) > 1
    )


def test_a_key_and_the_project_that_it_is_of_count_the_same_rows() -> None:
    key, project = named("key", at(0), at(2)), named("project", at(1), at(3), PROJECT)
    assert due_of([key, project], in_project(1)) == {"key": Cohort(2), "project": Cohort(2)}
    elsewhere = due_of([key, project], in_project(1, project="q"), in_project(1, project=""))
    assert elsewhere == {"key": None, "project": None}
    later = named("project", at(4), at(5), PROJECT)
    assert due_of([key, later], in_project(1), in_project(5)) == {"key": None, "project": None}


def test_keysof_more_spans_than_are_remembered_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projecting, "MAX_MEMOISED_SUMS", 1)
    runs = [named("key", at(0), at(2)), named("project", at(1), at(3), PROJECT), named("late", at(9), at(10))]
    assert due_of(runs, in_project(1), in_project(9)) == {"key": Cohort(2), "project": Cohort(2), "late": None}


def test_neither_of_them_is_verified() -> None:
    runs = [named("key", at(0), at(2)), named("project", at(1), at(3), PROJECT)]
    provider = ProviderCounts(MINUTE)
    provider.add([in_project(1)])
    for one in passed([light(one, None, LATER) for one in runs], provider).due:
        (whole,) = (other for other in runs if other.id == one.run.id)
        looks = [
            provider.observe(whole, msgspec.structs.replace(FETCH, at=LATER + timedelta(hours=n)), one.cohort_span)
            for n in range(2)
        ]
        assert looks[0].total == Tokens(5, 1, 1)
        assert decide(whole.for_judging, looks).code is UsageCode.AMBIGUOUS_ATTRIBUTION


def test_a_cohort_includes_all_runs_of_the_same_rows() -> None:
    runs = [
        named("one", at(0), at(2)),
        named("two", at(3), at(5)),
        named("session", at(0), at(1), SESSION),
        named("open", at(4), None, PROJECT),
        named("time", at(0), at(1), WHOLE),
        named("call", at(0), at(1), REQUESTS),
    ]
    found = due_of(runs, in_project(4), in_project(1, session="s"))
    assert found["one"] == found["two"] == Cohort(4)
    assert found["session"] == Cohort(2)
    # The other run of the key begins as late as the guard after the first one ends.
    assert found["open"] == Cohort(2, has_open=True)
    assert found["call"] is None


# Names of looks.


def test_the_id_of_an_observation_is_a_digest_of_its_content() -> None:
    one = run(at(2), at(3))
    provider = counted(row(2))
    look = provider.observe(one, FETCH)
    elsewhere = LATER.astimezone(timezone(timedelta(hours=2)))
    assert provider.observe(one, msgspec.structs.replace(FETCH, at=elsewhere)) == look
    others = [
        provider.observe(one, msgspec.structs.replace(FETCH, account="b")),
        provider.observe(one, msgspec.structs.replace(FETCH, at=LATER + MINUTE)),
        provider.observe(one, msgspec.structs.replace(FETCH, digest="d2")),
        provider.observe(run(at(2), at(3), name="r2"), FETCH),
        provider.observe(one, FETCH, CohortSpan(to_micros(at(2)), to_micros(at(5)), Cohort(2))),
        build_failed_observation("r1", FETCH, FetchError.SERVER, "502"),
        build_failed_observation("r1", FETCH, FetchError.TIMEOUT, "502"),
    ]
    assert len({look.id, *(one.id for one in others)}) == len(others) + 1


def test_a_failed_observation_has_a_reason_and_no_count() -> None:
    look = build_failed_observation("r1", msgspec.structs.replace(FETCH, watermark=at(1)), FetchError.AUTH, "401")
    assert look == Observation(look.id, LATER, watermark=at(1), error=FetchError.AUTH, detail="401", digest="d1")


# A pass over all runs.


class _Pass(NamedTuple):
    due: list[DueUsageRun]
    needed: Window | None


def passed(runs: Sequence[AttributionRun], provider: ProviderCounts, now: datetime = LATER) -> _Pass:
    neighbours = AccountCohorts(MINUTE)
    for some in (runs[:2], runs[2:]):
        neighbours.add(some)
    found = [one for some in (runs[:2], runs[2:]) for one in provider.due_runs(some, neighbours, now)]
    return _Pass(found, neighbours.window_for(runs, now))


def test_a_run_is_due_by_its_time_or_a_changed_count() -> None:
    alone = [named(f"r{n}", at(10 * n), at(10 * n + 1)) for n in range(8)]
    same, never = Tokens(10, 1, 1), None
    asked = named("r8", at(0), at(1), REQUESTS)
    runs = [
        light(alone[0], same),
        light(alone[1], Tokens(9, 1, 1)),
        light(alone[2], Tokens(10, 0, 1)),
        light(alone[3], Tokens(10, 1, None)),
        light(alone[4], never),
        light(alone[5], never, LATER),
        light(alone[6], same, LATER + MINUTE),
        light(alone[7], same, LATER - MINUTE),
        light(asked, Tokens(99, 1, 1)),
    ]
    provider = ProviderCounts(MINUTE)
    provider.add(row(10 * n) for n in range(8))
    found = passed(runs, provider)
    assert [one.run.id for one in found.due] == ["r1", "r2", "r3", "r5", "r7"]
    assert {one.cohort_span for one in found.due} == {None}
    assert found.needed == Window(at(0), at(73))


def test_what_was_not_asked_for_whole_is_not_taken_for_a_change() -> None:
    runs = [light(named("in", at(0), at(1)), Tokens(9, 1, 1)), light(named("out", at(5), at(6)), Tokens(9, 1, 1))]
    provider = counted(row(0), window=Window(at(0), at(5)))
    assert [one.run.id for one in passed(runs, provider).due] == ["in"]


def test_columns_can_grow_while_what_was_read_of_them_is_kept() -> None:
    provider = counted(*(row(n) for n in range(3)))
    kept = columns._to_array(provider._key_codes)
    provider.add([row(4)])
    assert (len(kept), len(provider._key_codes)) == (3, 4)


def test_what_moves_for_runs_that_share_moves_for_each_of_them() -> None:
    runs = [light(named(f"r{n}", at(n), at(n + 1)), Tokens(30, 3, 3)) for n in range(3)]
    provider = counted(*(row(n) for n in range(3)))
    assert passed(runs, provider).due == []
    provider.add([row(4)])
    due = passed(runs, provider).due
    assert [one.run.id for one in due] == ["r0", "r1", "r2"]
    assert {one.cohort_span.cohort.runs for one in due if one.cohort_span} == {3}


def test_what_is_needed_reaches_from_the_first_neighbour_to_now_at_most() -> None:
    neighbours = AccountCohorts(MINUTE)
    runs = [light(named("first", at(0), at(2))), light(named("mate", at(3), at(5))), light(named("open", at(60), None))]
    neighbours.add(runs)
    assert neighbours.window_for(runs[1:2], LATER) == Window(at(0), at(7))
    assert neighbours.window_for(runs[2:], LATER) == Window(at(60), LATER)
    assert neighbours.window_for([], LATER) is None


@given(runs_of(), ROWS)
def test_totals_by_columns_are_those_of_the_observations(runs: list[MeteredRun], rows: list[UsageRow]) -> None:
    """So that a run that was just looked at is not looked at again, and one whose count moved always is."""
    runs = [one for one in runs if one.started_at is not None and one.ended_at is not None]
    provider = counted(*rows)
    shared = shared_of(runs)
    totals = {one.id: provider.observe(one, FETCH, shared[one.id]).total for one in runs}
    assert passed([light(one, totals[one.id]) for one in runs], provider).due == []
    moved = [
        light(one, None if (seen := totals[one.id]) is None else Tokens(seen.input + 1, seen.output, seen.requests))
        for one in runs
    ]
    assert len(passed(moved, provider).due) == len(runs)
