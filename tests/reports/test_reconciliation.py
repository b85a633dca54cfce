"""Steps, looks and differences, as a report tells them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reports.worlds import NOON, recorded

from meruit.errors import FetchError
from meruit.model.metering import CallState, MeteredCall, MeteredStep, UsageRecord
from meruit.model.usage import Observation, Tokens, UsageChange, UsageCode, UsageStatus
from meruit.reports.reconciliation import (
    MOST_ROWS,
    MOST_STEPS,
    DiscrepancyCause,
    TimelineObservationKind,
    TokenClass,
    Waterfall,
    split_by_class,
)
from meruit.reports.report import build_report

COUNTS = st.integers(0, 10_000)
TOKENS = st.builds(
    Tokens, COUNTS, COUNTS, st.none() | COUNTS, st.none() | COUNTS, st.none() | COUNTS, st.none() | COUNTS
)
CALLS = st.builds(MeteredCall, st.just(NOON), st.just("m"), st.none() | TOKENS, st.sampled_from(CallState))
STEPS = st.builds(
    lambda calls, tokens: MeteredStep("s", calls=tuple(calls), tokens=tokens),
    st.lists(CALLS, max_size=3),
    st.none() | TOKENS,
)


def step(name: str, tokens: Tokens | None = None, *calls: MeteredCall, expects: bool | None = None) -> MeteredStep:
    return MeteredStep(name, calls=calls, tokens=tokens, expects_usage=expects)


def called(tokens: Tokens | None, state: CallState = CallState.OK) -> MeteredCall:
    return MeteredCall(NOON, "m", tokens, state)


def look(name: str, minutes: float, total: Tokens | None = None, **more: object) -> Observation:
    return Observation(name, NOON + timedelta(minutes=5 + minutes), total, **more)  # type: ignore[arg-type]  # fields of Attempt


@given(TOKENS)
def test_the_classes_of_a_count_add_up_to_it(tokens: Tokens) -> None:
    parts = split_by_class(tokens)
    assert sum(parts.values()) == tokens.total
    assert min(parts.values()) >= 0
    assert parts.keys() == {*TokenClass}


@given(st.lists(STEPS, max_size=3), TOKENS, COUNTS)
def test_what_runs_counted_and_the_parts_come_to_what_is_billed(
    steps: list[MeteredStep], billed: Tokens, outside: int
) -> None:
    record = recorded("a", steps=steps, tokens=billed, status=UsageStatus.WARNING)
    (found,) = build_report([record], {record.run.id: [look("1", 9, billed, unattributed=outside)]}).waterfalls
    assert found.local + sum(found.parts.values()) == found.billed == billed.total


def fall(record: UsageRecord, *looks: Observation) -> Waterfall:
    (found,) = build_report([record], {record.run.id: looks}).waterfalls
    return found


ONE = Tokens(100, 10, 1)


@pytest.mark.parametrize(
    ("steps", "billed", "part", "tokens"),
    [
        ([step("s")], Tokens(100, 10, 1), DiscrepancyCause.UNCOUNTED, 110),
        (
            [step("s", None, called(ONE), called(None, CallState.ABORTED))],
            Tokens(150, 10, 2),
            DiscrepancyCause.ABORTED,
            50,
        ),
        ([step("s", None, called(ONE), called(None, CallState.FAILED))], Tokens(150, 10), DiscrepancyCause.RETRIES, 50),
        ([step("s", ONE)], Tokens(200, 20, 2), DiscrepancyCause.RETRIES, 110),
        ([step("s", ONE)], Tokens(140, 10, 1, 40), DiscrepancyCause.CACHE, 40),
        ([step("s", ONE)], Tokens(141, 10, 1, 40), DiscrepancyCause.UNEXPLAINED, 41),
        ([step("s", ONE)], Tokens(90, 10, 1), DiscrepancyCause.UNEXPLAINED, -10),
    ],
)
def test_each_reason_takes_what_it_explains(
    steps: list[MeteredStep], billed: Tokens, part: DiscrepancyCause, tokens: int
) -> None:
    assert fall(recorded("a", steps=steps, tokens=billed)).parts == {part: tokens}


def test_what_is_in_no_step_comes_first() -> None:
    record = recorded("a", steps=[step("s", ONE)], tokens=Tokens(150, 10, 1))
    looks = [look("1", 9, Tokens(150, 10, 1), unattributed=30), look("2", 99, error=FetchError.SERVER)]
    assert fall(record, *looks).parts == {DiscrepancyCause.UNATTRIBUTED: 30, DiscrepancyCause.UNEXPLAINED: 20}


def test_a_run_that_was_not_counted_is_listed_separately() -> None:
    found = fall(recorded("a", tokens=None))
    assert (found.runs, found.without, found.billed) == (0, 1, 0)


def test_steps_are_averaged_over_verified_runs_by_their_place() -> None:
    several = [
        recorded("a", number=1, steps=[step("plan", Tokens(10, 2)), step("act", Tokens(30, 4, 1, 10, 5, 1))]),
        recorded("a", number=2, steps=[step("plan", Tokens(20, 4))]),
        recorded("a", number=3, steps=[step("plan", Tokens(900, 4))], status=UsageStatus.WARNING),
    ]
    (found,) = build_report(several).steps
    first, second = found.steps
    assert (found.runs, first.label, first.runs, first.tokens["input"]) == (2, "plan", 2, 15)
    assert (second.runs, second.tokens) == (
        1,
        {"cached": 10, "cache_write": 5, "input": 15, "reasoning": 1, "output": 3},
    )


def test_a_step_that_only_the_provider_knows_is_the_providers() -> None:
    record = recorded("a", steps=[step("plan"), step("act"), step("idle", expects=False)])
    looks = [
        look("1", 9, Tokens(5, 5), steps={"plan": Tokens(5, 5)}),
        look("2", 80, Tokens(9, 9), steps={"plan": Tokens(9, 9)}),
        look("3", 90, error=FetchError.TIMEOUT),
    ]
    (found,) = build_report([record], {record.run.id: looks}).steps
    assert found.unknown == 1
    assert found.steps[0].tokens["input"] == 9
    (nothing,) = build_report([record]).steps
    assert (nothing.unknown, nothing.steps) == (2, ())


def test_names_that_differ_are_not_one_step() -> None:
    several = [recorded("a", number=number, steps=[step(f"s{number}", Tokens(1, 1))]) for number in range(4)]
    assert build_report(several).steps[0].steps[0].label == ""


def test_many_steps_end_in_one() -> None:
    many = [step(f"s{number}", Tokens(10, 1)) for number in range(MOST_STEPS + 7)]
    (found,) = build_report([recorded("a", steps=many)]).steps
    assert len(found.steps) == MOST_STEPS + 1
    assert found.steps[-1].tokens["input"] == 70


def test_observations_are_shown_from_the_end_of_the_run() -> None:
    changes = [
        UsageChange(NOON + timedelta(minutes=85), UsageStatus.VERIFIED, UsageCode.STABLE, "2"),
        UsageChange(NOON + timedelta(minutes=125), UsageStatus.PENDING, UsageCode.CHANGING, "3"),
    ]
    record = recorded("a", history=changes, withdrawn=1, status=UsageStatus.PENDING, attempts=4)
    looks = [
        look("2", 80, Tokens(9, 1)),
        look("1", 10, Tokens(9, 1)),
        look("3", 120, Tokens(0, 0)),
        look("4", 130, error=FetchError.RATE_LIMITED),
    ]
    told = build_report([record], {record.run.id: looks}).timeline
    (row,) = told.rows
    assert [(one.minutes, one.kind) for one in row.observations] == [
        (10, TimelineObservationKind.COUNT),
        (80, TimelineObservationKind.COUNT),
        (120, TimelineObservationKind.ZERO),
        (130, TimelineObservationKind.ERROR),
    ]
    assert [(one.minutes, one.withdraws) for one in row.changes] == [(80, False), (120, True)]
    assert (told.attempts, told.withdrawn, told.by_status) == (4, 1, {"pending": 1})


def test_the_most_argued_about_come_first_and_never_too_many() -> None:
    quiet = [recorded("a", number=number) for number in range(40)]
    loud = [recorded("z", number=1, withdrawn=2), recorded("z", number=2, status=UsageStatus.WARNING)]
    rows = build_report([*quiet, *loud, recorded("z", number=3, attempts=0)]).timeline.rows
    assert len(rows) == MOST_ROWS
    assert [one.run for one in rows[:3]] == ["z/t/1", "z/t/2", "a/t/0"]
