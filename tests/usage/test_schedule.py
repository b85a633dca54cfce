"""When somebody looks again: soon while it may move, seldom once it stands, never for ever."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.usage.oracle import (
    DATA_NOT_AVAILABLE,
    ENDED,
    PENDING,
    SPECIFIED,
    VERIFIED,
    WARNING,
    A,
    B,
    accepted,
    after,
    failed,
    run_of,
    split,
    whole,
)

from meruit.errors import FetchError
from meruit.model.usage import Anchor, Observation, Tokens, UsageCode, UsagePolicy, UsageRun, UsageStatus, UsageVerdict
from meruit.usage.decision import decide
from meruit.usage.schedule import NextObservation, Schedule, is_early, next_observation

RUN = run_of("a", "b")
ZERO = Tokens()
HOUR, DAY, WEEK = 60, 24 * 60, 7 * 24 * 60
MOST_LOOKS = 200
"""More than anybody takes at one run by himself, whatever the provider says: every hour for a week, and then some."""


def some(minutes: float) -> Observation:
    return split(minutes, a=A, b=B)


def more(minutes: float, n: int = 1) -> Observation:
    return split(minutes, a=Tokens(60 + n, 6, 3), b=B)


def less(minutes: float) -> Observation:
    return split(minutes, a=Tokens(50, 6, 3), b=B)


def part(minutes: float) -> Observation:
    return split(minutes, a=A)


def zero(minutes: float) -> Observation:
    return whole(minutes, ZERO)


def due(*looks: Observation, run: UsageRun = RUN, policy: UsagePolicy = SPECIFIED) -> NextObservation:
    return next_observation(run.ended_at, decide(run, looks, policy), looks, policy)


def minutes_to(then: NextObservation) -> float | None:
    return None if then.at is None else (then.at - ENDED) / timedelta(minutes=1)


Provider = Callable[[float], Observation]
"""What a look finds so many minutes after the run's end."""


def followed(
    provider: Provider, *, policy: UsagePolicy = SPECIFIED, run: UsageRun = RUN
) -> tuple[list[Observation], NextObservation]:
    """The looks that the schedule alone makes, until it makes none any more."""
    looks: list[Observation] = []
    for _ in range(MOST_LOOKS):
        verdict = decide(run, looks, policy)
        then = next_observation(run.ended_at, verdict, looks, policy)
        if then.at is None:
            return looks, then
        assert not looks or then.at > looks[-1].at
        minutes = (then.at - ENDED) / timedelta(minutes=1)
        look = replace(provider(minutes), id=f"{len(looks)}", at=then.at)
        # Who comes when he was told to is never too early.
        assert not is_early(looks, verdict, look, policy)
        looks.append(look)
    raise AssertionError("looked at for ever")


def times(looks: list[Observation]) -> list[float]:
    return [(one.at - ENDED) / timedelta(minutes=1) for one in looks]


# What a provider does, and when it is looked at.


def test_an_open_run_is_not_observed() -> None:
    then = due(run=replace(RUN, ended_at=None))
    assert then == NextObservation(None, then.why)
    assert "still open" in then.why


def test_the_first_observation_comes_ten_minutes_after_the_end() -> None:
    assert minutes_to(due()) == 10


@pytest.mark.parametrize("minutes", [-1, -30, -300])
def test_an_observation_before_the_end_does_not_count_as_the_first(minutes: float) -> None:
    assert minutes_to(due(some(minutes))) == 10
    verdict = decide(RUN, [some(minutes)])
    assert not is_early([some(minutes)], verdict, some(10))


def test_what_is_stable_and_whole_is_audited_three_times() -> None:
    looks, end = followed(some)
    invoice = (datetime(2026, 4, 4, tzinfo=UTC) - ENDED) / timedelta(minutes=1)
    assert times(looks) == [10, 70, DAY, WEEK, invoice]
    assert end == NextObservation(None, end.why)
    assert "every audit" in end.why


@pytest.mark.parametrize(
    ("ended_at", "closes"),
    [
        (datetime(2026, 12, 5, tzinfo=UTC), datetime(2027, 1, 4, tzinfo=UTC)),
        (datetime(2026, 1, 31, 23, 30, tzinfo=timezone(timedelta(hours=-2))), datetime(2026, 3, 4, tzinfo=UTC)),
        (datetime(2028, 2, 1, tzinfo=UTC), datetime(2028, 3, 4, tzinfo=UTC)),
    ],
)
def test_an_invoice_closes_three_days_into_the_next_month_of_utc(ended_at: datetime, closes: datetime) -> None:
    looks = [replace(some(n), at=ended_at + timedelta(days=7, hours=n)) for n in (1, 2)]
    verdict = decide(replace(RUN, ended_at=ended_at), looks)
    assert verdict.status is VERIFIED
    assert next_observation(ended_at, verdict, looks).at == closes


def test_an_invoice_that_closes_within_the_week_has_its_audit_too() -> None:
    ended_at = datetime(2026, 3, 31, 12, tzinfo=UTC)
    looks = [replace(some(n), at=ended_at + timedelta(hours=n)) for n in (1, 2, 24)]
    run = replace(RUN, ended_at=ended_at)
    then = next_observation(ended_at, decide(run, looks), looks)
    assert then.at == datetime(2026, 4, 4, tzinfo=UTC)
    looks.append(replace(some(4), at=then.at))
    assert next_observation(ended_at, decide(run, looks), looks).at == ended_at + timedelta(days=7)


def test_without_data_each_pause_is_twice_as_long_then_daily_then_on_request() -> None:
    for provider in (zero, failed):
        looks, end = followed(provider)
        early = [10, 20, 40, 80, 160, 320, 640, 1000, 1360, 1720]
        assert times(looks) == [*early, *(1720 + DAY * n for n in range(1, 7))]
        assert (end.waits, end.exhausted) == ("person", True)


@pytest.mark.parametrize(("minutes", "exhausted"), [(DAY - 1, False), (DAY, True), (WEEK, True)])
def test_a_run_without_data_after_a_day_is_exhausted(minutes: int, *, exhausted: bool) -> None:
    assert due(zero(minutes)).exhausted is exhausted
    assert due(failed(minutes)).exhausted is exhausted
    # One that has data is not.
    assert due(some(5), failed(minutes)).exhausted is False


def test_data_after_a_long_silence_are_settled_within_the_hour() -> None:
    looks, _ = followed(lambda minutes: zero(minutes) if minutes < 2000 else some(minutes))
    first = next(n for n, one in enumerate(looks) if one.total == Tokens(100, 10, 5))
    assert looks[first + 1].at - looks[first].at == timedelta(hours=1)
    assert decide(RUN, looks[: first + 2]).status is VERIFIED


def test_a_zero_in_between_starts_the_pauses_again() -> None:
    assert minutes_to(due(zero(10), zero(20), some(40), zero(100))) == 110


@pytest.mark.parametrize("minutes", [10, DAY, WEEK, 10 * WEEK])
@pytest.mark.parametrize("before", [[], [some(1)], [some(-90), some(1), some(9)]])
def test_a_key_that_is_refused_waits_for_another(minutes: int, before: list[Observation]) -> None:
    then = due(*before, failed(minutes, FetchError.AUTH))
    assert (then.at, then.waits) == (None, "credential")


def test_a_warning_is_observed_once_more_after_a_day() -> None:
    looks, end = followed(part)
    assert times(looks) == [10, 70, DAY]
    assert (end.waits, decide(RUN, looks).code) == ("person", UsageCode.INCOMPLETE)


def test_a_fallen_count_is_observed_every_interval_for_a_day() -> None:
    looks, end = followed(lambda minutes: some(minutes) if minutes < 100 else less(minutes))
    # A look that comes so soon before the day is over that one at its end would be too early has one an hour later.
    assert times(looks) == [10, 70, DAY]
    assert (end.waits, decide(RUN, looks).withdrawn) == ("person", 1)
    looks, end = followed(lambda minutes: more(minutes) if minutes < 50 else some(minutes))
    assert times(looks) == [10, *(70 + HOUR * n for n in range(24))]
    assert end.waits == "person"


@pytest.mark.parametrize("fell", [True, False])
def test_the_observation_at_the_end_of_the_day_is_never_early(fell: bool) -> None:
    looks = [more(DAY - 90), less(DAY - 30)] if fell else [part(DAY - 90), part(DAY - 30)]
    assert minutes_to(due(*looks)) == DAY + 30


def test_a_contradiction_is_for_a_person() -> None:
    assert due(some(10), more(10)).waits == "person"


def test_what_a_person_accepted_goes_on_as_if_it_had_never_been_higher() -> None:
    looks = [more(10), some(70)]
    verdict = decide(RUN, looks, acknowledged=[accepted(80)])
    assert minutes_to(next_observation(ENDED, verdict, looks)) == 130


def test_a_failed_observation_is_retried_when_it_would_count() -> None:
    assert minutes_to(due(some(10), failed(70))) == 80
    assert minutes_to(due(some(60), failed(65))) == 120
    assert minutes_to(due(some(60), failed(65), failed(120))) == 140


@pytest.mark.parametrize("audit", [DAY, WEEK, 5 * WEEK])
def test_an_audit_that_fails_is_tried_again_and_is_no_lack_of_data(audit: int) -> None:
    verified = [some(10), some(70)]
    then = due(*verified, failed(audit))
    assert (minutes_to(then), then.waits, then.exhausted) == (audit + DAY, "", False)


def test_audits_that_always_fail_come_to_an_end_and_leave_the_verdict() -> None:
    looks, end = followed(lambda minutes: some(minutes) if minutes < DAY else failed(minutes))
    assert end == NextObservation(None, end.why)
    assert "every audit" in end.why
    assert decide(RUN, looks).status is VERIFIED
    assert times(looks)[-1] > 30 * DAY


@pytest.mark.parametrize("found", [more, zero], ids=["growth", "zero"])
def test_what_an_audit_withdraws_late_is_settled_again(found: Provider) -> None:
    looks, _ = followed(lambda minutes: found(minutes) if WEEK <= minutes < WEEK + 30 else some(minutes))
    grown, _ = followed(lambda minutes: more(minutes) if minutes >= 8 * DAY else some(minutes))
    for one in (looks, grown):
        assert decide(RUN, one).withdrawn == 1
    assert decide(RUN, grown).status is VERIFIED
    assert decide(RUN, looks).status is (VERIFIED if found is zero else WARNING)


def test_what_never_stops_moving_is_left_to_a_person() -> None:
    looks, end = followed(lambda minutes: more(minutes, int(minutes)))
    assert decide(RUN, looks).status is PENDING
    assert (end.waits, len(looks) < MOST_LOOKS) == ("person", True)


def test_a_late_changing_count_gets_ten_more_observations() -> None:
    late = [more(WEEK + HOUR * n, n) for n in range(11)]
    assert minutes_to(due(*late[:10])) == WEEK + 10 * HOUR
    assert due(*late).waits == "person"


def test_a_provider_that_is_behind_is_asked_again_like_one_that_fails() -> None:
    behind = replace(some(70), watermark=after(-1))
    assert minutes_to(due(some(10), behind)) == 80
    assert minutes_to(due(behind)) == 80


@pytest.mark.parametrize("interval", [0, 1e-9, 0.5])
def test_the_shortest_interval_has_a_pause(interval: float) -> None:
    then = due(some(10), policy=UsagePolicy(interval_min=interval))
    assert then.at is not None
    assert then.at >= after(11)


def test_the_order_of_observations_does_not_matter() -> None:
    assert due(failed(70), some(10)) == due(some(10), failed(70))


# Any provider.

ANSWERS: dict[str, Provider] = {"some": some, "more": more, "less": less, "part": part, "zero": zero, "failed": failed}
SCRIPTS = st.lists(st.sampled_from([*ANSWERS]), min_size=1, max_size=8)
POLICIES = st.builds(
    UsagePolicy,
    interval_min=st.sampled_from([60, 60, 60, 90]),
    anchor=st.sampled_from(Anchor),
    min_stable_pairs=st.sampled_from([1, 2]),
    anomaly_is_permanent=st.booleans(),
)


@given(SCRIPTS, POLICIES, st.booleans())
def test_observations_follow_each_other_and_end(script: list[str], policy: UsagePolicy, uses_none: bool) -> None:
    answers = iter(script)
    run = replace(RUN, declares_no_usage=uses_none)

    def answer(minutes: float) -> Observation:
        return ANSWERS[next(answers, script[-1])](minutes)

    looks, end = followed(answer, policy=policy, run=run)
    assert end.why
    verdict = decide(run, looks, policy)
    assert verdict.status is not PENDING or end.waits
    assert verdict.status is VERIFIED or end.waits in ("person", "credential")
    assert (verdict.status is DATA_NOT_AVAILABLE) == end.exhausted


@given(SCRIPTS, st.lists(st.integers(1, 2000), min_size=8, max_size=8), POLICIES, st.integers(0, 3000))
def test_an_early_observation_sets_no_time_in_the_past(
    script: list[str], pauses: list[int], policy: UsagePolicy, then: int
) -> None:
    """Else a run would be due again at once, and again, until its interval is over."""
    looks, minutes = [], 0
    for kind, pause in zip(script, pauses, strict=False):
        minutes += pause
        looks.append(replace(ANSWERS[kind](minutes), id=f"{minutes}"))
    verdict = decide(RUN, looks, policy)
    look = replace(looks[-1], id="new", at=after(minutes + then))
    planned = next_observation(ENDED, verdict, looks, policy)
    if is_early(looks, verdict, look, policy):
        assert planned.at is None or planned.at > look.at


@given(
    SCRIPTS,
    st.sampled_from([datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)]),
    st.sampled_from([0.0, 60.0, 1e300]),
)
def test_the_ends_of_the_calendar_have_an_answer(script: list[str], moment: datetime, interval: float) -> None:
    policy = UsagePolicy(interval_min=interval)
    looks = [replace(ANSWERS[kind](n), id=f"{n}", at=moment) for n, kind in enumerate(script)]
    run = replace(RUN, ended_at=moment)
    assert next_observation(moment, decide(run, looks, policy), looks, policy).why
    assert next_observation(moment, decide(run, []), [], policy).why


# Looks that come too early.


@pytest.mark.parametrize("every", [1, 5, 7, 59, 60, 61])
@pytest.mark.parametrize("errors", [False, True], ids=["", "every third look fails"])
def test_frequent_observations_never_starve_a_run(every: int, errors: bool) -> None:
    looks: list[Observation] = []
    verdict = decide(RUN, looks)
    for n in range(1, 400):
        look = failed(n * every) if errors and n % 3 == 0 else some(n * every)
        if not is_early(looks, verdict, look):
            looks.append(look)
            verdict = decide(RUN, looks)
        if verdict.status is VERIFIED:
            break
    assert verdict.status is VERIFIED
    assert verdict.minutes is not None
    assert HOUR <= verdict.minutes < HOUR + 2 * every + 1


def test_frequent_observations_never_starve_a_run_without_usage() -> None:
    run = run_of(declares_no_usage=True)
    looks: list[Observation] = []
    for minutes in range(10, 75, 5):
        if not is_early(looks, decide(run, looks), zero(minutes)):
            looks.append(zero(minutes))
    assert times(looks) == [10, 70]
    assert decide(run, looks).status is VERIFIED


def early(looks: list[Observation], look: Observation, verdict: UsageVerdict | None = None) -> bool:
    return is_early(looks, verdict or decide(RUN, looks), look)


def test_only_an_equal_observation_within_the_interval_is_early() -> None:
    assert early([some(10)], some(69))
    assert not early([some(10)], some(70))
    assert not early([some(10)], more(20))
    assert not early([], some(10))
    assert early([more(10), less(20)], less(30))


def test_an_error_is_recorded_and_does_not_hide_the_count() -> None:
    assert not early([some(10)], failed(20))
    assert not early([some(10)], Observation("nothing", after(20)))
    assert early([some(10), failed(20)], some(30))
    nothing = run_of(declares_no_usage=True)
    assert not early([zero(10)], Observation("nothing", after(20)), decide(nothing, [zero(10)]))
    assert not early([failed(20)], some(30))


def test_a_provider_that_was_behind_starts_no_interval() -> None:
    behind = replace(some(50), watermark=after(-1))
    assert not early([some(10), behind], some(70))
    assert not early([behind], some(70))


def test_each_zero_is_recorded_and_makes_the_next_pause_longer() -> None:
    assert not early([zero(10)], zero(20))


def test_a_verified_run_may_be_observed_at_any_time() -> None:
    assert not early([some(10), some(70)], some(71))


def test_a_late_observation_is_early_within_the_interval() -> None:
    assert early([some(100)], some(70))
    assert not early([some(100)], some(40))


def test_a_schedule_can_be_written_down() -> None:
    schedule = Schedule(first_min=5, audits_h=(12,))
    assert Schedule.from_json(schedule.to_json()) == schedule
    verified = [some(10), some(70)]
    assert minutes_to(next_observation(ENDED, decide(RUN, verified), verified, schedule=schedule)) == 12 * HOUR
    assert minutes_to(next_observation(ENDED, decide(RUN, []), [], schedule=schedule)) == 5


# What was imported.


def from_file(look: Observation) -> Observation:
    return replace(look, reported_by="file")


def test_what_is_imported_is_never_early_nor_is_the_providers_first_count_after_it() -> None:
    assert not early([some(10)], from_file(some(30)))
    assert not early([from_file(some(10))], some(30))
    assert early([from_file(some(10)), some(30)], some(40))


def test_a_run_verified_by_a_file_is_due_an_hour_after_its_last_attempt() -> None:
    looks = [from_file(some(10)), from_file(some(70))]
    verdict = decide(RUN, looks)
    assert (verdict.status, verdict.reported_by) == (UsageStatus.VERIFIED, "file")
    assert next_observation(ENDED, verdict, looks).at == after(130)
    confirmed = [*looks, some(130), some(190)]
    assert decide(RUN, confirmed).reported_by == ""
    assert next_observation(ENDED, decide(RUN, confirmed), confirmed).at == after(24 * 60)


def test_an_account_that_reads_files_is_observed_like_any_other() -> None:
    looks = [replace(some(minutes), reported_by="file account") for minutes in (10, 40, 70)]
    assert early(looks[:1], looks[1])
    pair = [looks[0], looks[2]]
    assert next_observation(ENDED, decide(RUN, pair), pair).at == after(24 * 60)


def test_an_early_observation_moves_no_due_time() -> None:
    looks = [some(10), replace(some(40), early=True)]
    assert next_observation(ENDED, decide(RUN, looks), looks).at == after(70)


def test_a_run_verified_by_a_file_is_not_observed_without_end() -> None:
    late = 60 * 24 * 8
    looks = [from_file(some(late + 60 * n)) for n in range(12)]
    upcoming = next_observation(ENDED, decide(RUN, looks), looks)
    assert "audit" in upcoming.why
