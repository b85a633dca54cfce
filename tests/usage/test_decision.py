"""May a run's tokens be believed? Every case that a person would argue about, each with its answer."""

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.golden import check_golden
from tests.sampling import examples
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
    opinion,
    run_of,
    split,
    whole,
)

from meruit.errors import FetchError
from meruit.model.usage import (
    Acknowledgement,
    Anchor,
    Assurance,
    Cohort,
    Observation,
    Tokens,
    UsageCode,
    UsagePolicy,
    UsageRun,
    UsageStatus,
    UsageStep,
    sum_tokens,
)
from meruit.usage.decision import decide, is_equal, is_same_model
from meruit.usage.observation import ModelNames
from meruit.usage.schedule import next_observation

RUN = run_of("a", "b")
NONE = run_of(declares_no_usage=True)
ZERO = Tokens()
MORE, LESS = Tokens(70, 6, 3), Tokens(50, 6, 3)
"""Instead of A, of which there are 60 tokens of input."""
INCOMPLETE = "⚠️ Data stable but incomplete: only {} steps have tokens"
STABLE = "✅ Data stable across 60 minute interval"


def told(**locals_: Tokens | None) -> UsageRun:
    """A run whose steps say themselves what they used."""
    return UsageRun(ENDED, tuple(UsageStep(name, local=local) for name, local in locals_.items()))


def using(*models: str) -> UsageRun:
    return UsageRun(ENDED, (UsageStep("a", models=models), UsageStep("b")))


def both(minutes: float, a: Tokens = A, b: Tokens = B) -> Observation:
    return split(minutes, a=a, b=b)


TWICE = (both(10), both(70))


@dataclass(frozen=True)
class Case:
    """A row of the truth table, or one of its variants."""

    row: str
    looks: tuple[Observation, ...]
    status: UsageStatus
    code: UsageCode
    run: UsageRun = RUN
    policy: UsagePolicy = SPECIFIED
    words: tuple[Acknowledgement, ...] = ()
    withdrawn: int = 0
    held: bool = False
    counted: Tokens | None = None
    """The count that is claimed, where the row says one."""


NOT_AVAILABLE = (DATA_NOT_AVAILABLE, UsageCode.API_ERROR)
PERMANENT = UsagePolicy(anomaly_is_permanent=True)
SPAN = UsagePolicy(anchor=Anchor.SPAN)
CACHED = Tokens(100, 10, 5, cached=20)
TABLE = [
    Case("no attempt", (), PENDING, UsageCode.NOT_STARTED),
    Case("run open", TWICE, PENDING, UsageCode.RUN_OPEN, run=replace(RUN, ended_at=None)),
    Case("attempt before the run's end", (both(-5), both(-70)), PENDING, UsageCode.NOT_STARTED),
    Case(
        "first attempt with tokens",
        (both(10),),
        PENDING,
        UsageCode.FIRST,
        counted=Tokens(100, 10, 5),
    ),
    Case("zero tokens, first", (whole(10, ZERO),), DATA_NOT_AVAILABLE, UsageCode.ZERO_TOKENS),
    *(
        Case(
            f"zero tokens, repeated after {gap} minutes",
            (whole(10, ZERO), whole(10 + gap, ZERO)),
            DATA_NOT_AVAILABLE,
            UsageCode.ZERO_TOKENS,
        )
        for gap in (1, 60, 10_000)
    ),
    Case(
        "zero, then tokens",
        (whole(10, ZERO), both(70)),
        PENDING,
        UsageCode.CHANGING,
    ),
    *(
        Case(
            f"only errors ({error})",
            (failed(10, error), failed(20, error)),
            *NOT_AVAILABLE,
        )
        for error in FetchError
        if error is not FetchError.AUTH
    ),
    Case(
        "only errors, scope or key",
        (failed(10), failed(20, FetchError.AUTH)),
        *NOT_AVAILABLE,
    ),
    Case(
        "data, error, same data, ends ≥ 60 min apart",
        (both(10), failed(40), both(70)),
        VERIFIED,
        UsageCode.STABLE,
    ),
    Case("data, error, same data, ends < 60 min apart", (both(10), failed(40), both(69)), PENDING, UsageCode.GAP),
    Case(
        "error after any verdict: verified",
        (*TWICE, failed(80)),
        VERIFIED,
        UsageCode.STABLE,
        held=True,
    ),
    Case("error after any verdict: first", (both(10), failed(80)), PENDING, UsageCode.FIRST, held=True),
    Case(
        "error after any verdict: decreased",
        (both(10), both(20, LESS), failed(80)),
        WARNING,
        UsageCode.DECREASED,
        held=True,
    ),
    Case(
        "error after any verdict: zero",
        (whole(10, ZERO), failed(80)),
        DATA_NOT_AVAILABLE,
        UsageCode.ZERO_TOKENS,
        held=True,
    ),
    Case("truncated pagination", (failed(10, FetchError.PARTIAL_PAGE),), *NOT_AVAILABLE),
    Case("malformed page", (Observation("empty", after(10)),), *NOT_AVAILABLE),
    Case(
        "truncated pagination between equal data",
        (both(10), replace(both(40, LESS), error=FetchError.PARTIAL_PAGE), both(70)),
        VERIFIED,
        UsageCode.STABLE,
    ),
    Case(
        "tokens grew",
        (both(10), both(70, MORE)),
        PENDING,
        UsageCode.CHANGING,
    ),
    Case(
        "identical, < 60 min",
        (both(10), both(55)),
        PENDING,
        UsageCode.GAP,
    ),
    Case("identical, ≥ 60 min, steps complete", TWICE, VERIFIED, UsageCode.STABLE, counted=Tokens(100, 10, 5)),
    Case(
        "identical, ≥ 60 min, steps complete: 95",
        (both(10), both(105)),
        VERIFIED,
        UsageCode.STABLE,
    ),
    Case(
        "identical at 0, 30, 60 min: pending under `last_pair`",
        (both(0), both(30), both(60)),
        PENDING,
        UsageCode.GAP,
    ),
    Case(
        "identical at 0, 30, 60 min: verified under `span`",
        (both(0), both(30), both(60)),
        VERIFIED,
        UsageCode.STABLE,
        policy=SPAN,
    ),
    Case("verified, then an early identical check", (*TWICE, both(75)), VERIFIED, UsageCode.STABLE),
    Case(
        "verified, then growth",
        (*TWICE, both(130, MORE)),
        PENDING,
        UsageCode.CHANGING,
        withdrawn=1,
    ),
    Case(
        "… then stable ≥ 60 min again",
        (*TWICE, both(130, MORE), both(190, MORE)),
        VERIFIED,
        UsageCode.STABLE,
        withdrawn=1,
    ),
    Case(
        "decrease at any time: after the first",
        (both(10), split(20, a=LESS, b=Tokens(40, 2, 2))),
        WARNING,
        UsageCode.DECREASED,
    ),
    Case(
        "decrease at any time: once verified",
        (*TWICE, both(140, LESS)),
        WARNING,
        UsageCode.DECREASED,
        withdrawn=1,
    ),
    Case(
        "decrease at any time: of requests alone",
        (both(10), both(20, Tokens(60, 6, 2))),
        WARNING,
        UsageCode.DECREASED,
    ),
    Case(
        "N tokens, then zero",
        (both(10), whole(70, ZERO)),
        DATA_NOT_AVAILABLE,
        UsageCode.ZERO_TOKENS,
        counted=Tokens(100, 10, 5),
    ),
    Case("decreased, then stable lower", (both(10), both(20, LESS), both(90, LESS)), WARNING, UsageCode.DECREASED),
    Case("decreased, then back", (both(10), both(20, LESS), both(90)), PENDING, UsageCode.CHANGING),
    Case(
        "decreased, then back and stable",
        (both(10), both(20, LESS), both(90), both(150)),
        VERIFIED,
        UsageCode.STABLE,
    ),
    Case(
        "decreased, then back and stable; `anomaly=permanent` forbids it",
        (both(10), both(20, LESS), both(90), both(150)),
        WARNING,
        UsageCode.DECREASED,
        policy=PERMANENT,
    ),
    Case(
        "same total, tokens moved between steps",
        (both(10), both(70, Tokens(50, 6, 3), Tokens(50, 4, 2))),
        WARNING,
        UsageCode.DECREASED,
    ),
    Case(
        "cached/reasoning split changed, totals equal: cached",
        (whole(10, CACHED), whole(70, replace(CACHED, cached=30))),
        PENDING,
        UsageCode.CHANGING,
    ),
    Case(
        "cached/reasoning split changed, totals equal: reasoning",
        (whole(10, CACHED), whole(70, replace(CACHED, reasoning=5))),
        PENDING,
        UsageCode.CHANGING,
    ),
    Case(
        "stable, k < n steps",
        (both(10, b=ZERO), both(70, b=ZERO)),
        WARNING,
        UsageCode.INCOMPLETE,
    ),
    Case("k < n, still changing", (both(10, b=ZERO), both(70, MORE, ZERO)), PENDING, UsageCode.CHANGING),
    Case("k < n, gap short", (both(10, b=ZERO), both(40, b=ZERO)), PENDING, UsageCode.GAP),
    Case(
        "failed or skipped steps",
        (split(10, a=A), split(70, a=A)),
        WARNING,
        UsageCode.INCOMPLETE,
        run=UsageRun(ENDED, (UsageStep("a", succeeded=True), UsageStep("b", succeeded=False))),
    ),
    Case(
        "step declared tokenless before the run",
        (split(10, a=A), split(70, a=A)),
        VERIFIED,
        UsageCode.STABLE,
        run=UsageRun(ENDED, (UsageStep("a"), UsageStep("b", expects_usage=False))),
    ),
    Case(
        "no steps declared, tokens billed",
        (whole(10, A), whole(70, A)),
        WARNING,
        UsageCode.INCOMPLETE,
        run=run_of(),
    ),
    Case(
        "run declares no model use, zero, stable",
        (whole(10, ZERO), whole(70, ZERO)),
        VERIFIED,
        UsageCode.STABLE,
        run=NONE,
        counted=ZERO,
    ),
    Case(
        "… but tokens billed",
        (whole(10, A), whole(70, A)),
        WARNING,
        UsageCode.UNDECLARED_USAGE,
        run=NONE,
    ),
    Case(
        "step billed but unknown locally",
        (split(10, a=A, b=B, c=A), split(70, a=A, b=B, c=A)),
        WARNING,
        UsageCode.UNATTRIBUTED,
    ),
    Case(
        "usage in the attribution key outside steps",
        tuple(replace(one, unattributed=7) for one in TWICE),
        WARNING,
        UsageCode.UNATTRIBUTED,
    ),
    Case(
        "step known locally, absent remotely",
        (split(10, a=A), split(70, a=A)),
        WARNING,
        UsageCode.INCOMPLETE,
        run=told(a=A, b=B),
    ),
    Case(
        "steps not separable, locals tie out",
        (whole(10, Tokens(100, 10, 5)), whole(70, Tokens(100, 10, 5))),
        VERIFIED,
        UsageCode.STABLE,
        run=told(a=A, b=B),
    ),
    Case(
        "steps not separable, no locals",
        (whole(10, Tokens(100, 10, 5)), whole(70, Tokens(100, 10, 5))),
        WARNING,
        UsageCode.INCOMPLETE,
    ),
    Case(
        "local ≠ billed",
        TWICE,
        WARNING,
        UsageCode.DISCREPANCY,
        run=told(a=LESS, b=B),
    ),
    Case(
        "model differs",
        tuple(replace(one, models=("gpt-4o-mini",)) for one in TWICE),
        WARNING,
        UsageCode.MODEL_MISMATCH,
        run=using("gpt-4o"),
    ),
    Case(
        "model is the same after alias → snapshot mapping",
        tuple(replace(one, models=("gpt-4o-2024-08-06",)) for one in TWICE),
        VERIFIED,
        UsageCode.STABLE,
        run=using("gpt-4o"),
    ),
    Case("out of order", (TWICE[1], TWICE[0]), VERIFIED, UsageCode.STABLE),
    Case("out of order: what grew did not fall", (both(70, MORE), both(10)), PENDING, UsageCode.CHANGING),
    Case("duplicate attempt", (both(10), both(10), both(10)), PENDING, UsageCode.FIRST),
    Case("duplicate attempt: of a pair", (*TWICE, *TWICE), VERIFIED, UsageCode.STABLE),
    Case(
        "one id, two contents",
        (*TWICE, both(70, MORE)),
        WARNING,
        UsageCode.CONFLICTING_EVIDENCE,
    ),
    Case("older than 24 h without data: errors", (failed(2000),), *NOT_AVAILABLE),
    Case("older than 24 h without data: zero", (whole(2000, ZERO),), DATA_NOT_AVAILABLE, UsageCode.ZERO_TOKENS),
]


@pytest.mark.parametrize("case", TABLE, ids=[one.row for one in TABLE])
def test_the_truth_table(case: Case) -> None:
    verdict = decide(case.run, case.looks, case.policy, case.words)
    assert (verdict.status, verdict.code) == (case.status, case.code)
    assert (verdict.withdrawn, verdict.held) == (case.withdrawn, case.held)
    if case.counted is not None:
        assert verdict.tokens == case.counted


@pytest.mark.golden
def test_the_words_of_the_truth_table() -> None:
    verdicts = [(case.row, decide(case.run, case.looks, case.policy, case.words)) for case in TABLE]
    check_golden("usage/verdicts", "\n".join(f"{row}\n  {one.message}\n  {one.explanation}" for row, one in verdicts))


@pytest.mark.parametrize("case", TABLE, ids=[one.row for one in TABLE])
def test_the_oracle_reads_the_truth_table_alike(case: Case) -> None:
    assert opinion(case.run, case.looks, case.policy, case.words) == (case.status, case.code, case.withdrawn)


STEPS = [
    Tokens(8389, 2837),
    Tokens(9819, 3098),
    Tokens(7245, 2156),
    Tokens(3711, 524),
    Tokens(5823, 1890),
    Tokens(4127, 1456),
]
"""The specification's."""
SIX = run_of("1", "2", "3", "4", "5", "6")
EVERY = {str(number): one for number, one in enumerate(STEPS, 1)}
PARTLY = {name: Tokens(0, 0) if name in "356" else one for name, one in EVERY.items()}


@pytest.mark.parametrize("run", [SIX, run_of()], ids=["with declared steps", "without"])
@pytest.mark.parametrize("are_named", [True, False], ids=["steps named", "steps only counted"])
def test_the_scenarios_of_the_specification(run: UsageRun, *, are_named: bool) -> None:
    def looks(steps: dict[str, Tokens]) -> list[Observation]:
        have = sum(bool(one.total) for one in steps.values())
        counted = [replace(split(at, **steps), steps_with_tokens=have, total_steps=6) for at in (30, 90)]
        return counted if are_named else [replace(one, steps=None) for one in counted]

    verdict = decide(run, looks(PARTLY))
    assert verdict.status is WARNING
    assert verdict.message == "⚠️ Data stable but incomplete: only 3/6 steps have tokens"
    assert (verdict.tokens or ZERO).total == 21919 + 6459
    assert verdict.empty_steps == (("3", "5", "6") if are_named else ())
    verdict = decide(run, looks(EVERY))
    assert verdict.status is VERIFIED
    assert verdict.message == "✅ Data stable across 60 minute interval"
    assert (verdict.steps_with_tokens, verdict.total_steps) == (6, 6)


@pytest.mark.parametrize(
    ("apart", "status"),
    [
        (timedelta(minutes=60), VERIFIED),
        (timedelta(minutes=59, seconds=59), PENDING),
        (timedelta(minutes=59, seconds=59, microseconds=999_999), PENDING),
    ],
    ids=str,
)
@pytest.mark.parametrize("anchor", Anchor)
def test_sixty_minutes_are_sixty_minutes(apart: timedelta, status: UsageStatus, anchor: Anchor) -> None:
    looks = [both(10), replace(both(11), at=after(10) + apart)]
    assert decide(RUN, looks, UsagePolicy(anchor=anchor)).status is status


def test_a_shorter_interval_is_stamped_on_the_result() -> None:
    shorter = decide(RUN, [both(10), both(40)], UsagePolicy(interval_min=30))
    assert (shorter.status, shorter.interval_min) == (VERIFIED, 30)
    assert "30 minutes" in shorter.explanation
    assert "minutes" not in decide(RUN, TWICE, UsagePolicy(interval_min=60)).explanation
    assert "0 minutes" in decide(RUN, [], UsagePolicy(interval_min=0)).explanation


@pytest.mark.parametrize(
    ("interval", "apart", "says"),
    [
        (59.0, timedelta(minutes=59, seconds=59), "across 59 minute interval"),
        (0.5, timedelta(seconds=59), "across 0 minute interval"),
        (60.0, timedelta(minutes=60, seconds=40), "across 61 minute interval"),
    ],
    ids=["shorter than specified", "less than a minute", "as specified"],
)
def test_less_than_sixty_minutes_never_read_as_sixty(interval: float, apart: timedelta, says: str) -> None:
    looks = [both(10), replace(both(11), at=after(10) + apart)]
    assert says in decide(RUN, looks, UsagePolicy(interval_min=interval)).message


def test_an_interval_is_shown_to_its_last_digit() -> None:
    nearly = UsagePolicy(interval_min=59.9999999999)
    for looks in (TWICE, TWICE[:1], [both(10), both(20, MORE)], [both(10), both(20)]):
        assert "59.9999999999 minutes" in decide(RUN, looks, nearly).explanation


def test_two_observations_of_one_moment_prove_nothing() -> None:
    at_once = [both(10), replace(both(10), id="other")]
    assert decide(RUN, at_once, UsagePolicy(interval_min=0)).code is UsageCode.GAP
    assert decide(RUN, [*at_once, both(11)], UsagePolicy(interval_min=0)).status is VERIFIED


def test_every_status_is_in_the_history() -> None:
    looks = [both(10), both(70), both(80), both(130, MORE), both(190, MORE), both(200, LESS)]
    verdict = decide(RUN, looks)
    assert [(one.at, one.code, one.observation_id) for one in verdict.history] == [
        (after(10), UsageCode.FIRST, "look-10"),
        (after(70), UsageCode.STABLE, "look-70"),
        (after(130), UsageCode.CHANGING, "look-130"),
        (after(190), UsageCode.STABLE, "look-190"),
        (after(200), UsageCode.DECREASED, "look-200"),
    ]
    assert verdict.withdrawn == 2


def test_a_verdict_names_the_observations_that_decided() -> None:
    def named(looks: list[Observation], policy: UsagePolicy = SPECIFIED) -> tuple[tuple[str, ...], float | None]:
        verdict = decide(RUN, looks, policy)
        return verdict.compared, verdict.minutes

    assert named([both(10)]) == (("look-10",), None)
    assert named([both(10), failed(20), both(40)]) == (("look-10", "look-40"), 30)
    assert named([*TWICE, both(75)]) == (("look-10", "look-70"), 60)
    assert named([*TWICE, both(150)]) == (("look-70", "look-150"), 80)
    assert named([*TWICE, both(75, MORE)]) == (("look-70", "look-75"), 5)
    spread = [both(0), both(30), both(45), both(61), both(70)]
    assert named(spread[:3], SPAN) == (("look-0", "look-45"), 45)
    assert named(spread, SPAN) == (("look-0", "look-61"), 61)


def test_a_verdict_without_observations_counts_expected_steps() -> None:
    run = UsageRun(ENDED, (UsageStep("a"), UsageStep("b", expects_usage=False)))
    verdict = decide(run, [failed(10)])
    assert (verdict.total_steps, verdict.tokens, verdict.compared) == (1, None, ())


def test_a_single_failure_quotes_the_provider() -> None:
    verdict = decide(RUN, [replace(failed(10), detail="slow down")])
    assert "rate_limited: slow down" in verdict.explanation


# A person's word.

DIPPED = [both(10), both(20, LESS), both(80, LESS)]


def test_what_a_person_accepts_is_judged_at_once() -> None:
    assert decide(RUN, DIPPED[:2], acknowledged=[accepted(21)]).code is UsageCode.CHANGING
    verdict = decide(RUN, DIPPED, acknowledged=[accepted(81)])
    assert (verdict.status, verdict.tokens) == (VERIFIED, Tokens(90, 10, 5))
    assert (verdict.history[-1].at, verdict.history[-1].observation_id) == (after(81), "")


def test_a_word_counts_for_what_was_there_at_that_moment_also_at_the_very_same() -> None:
    assert decide(RUN, DIPPED, acknowledged=[accepted(20)]).status is VERIFIED
    assert decide(RUN, DIPPED, acknowledged=[accepted(19)]).code is UsageCode.DECREASED


def test_a_later_fall_warns_again() -> None:
    lower = both(140, Tokens(40, 6, 3))
    words = [accepted(81)]
    assert decide(RUN, [*DIPPED, lower], acknowledged=words).code is UsageCode.DECREASED
    # Back at what was accepted it is high enough, though it was higher once.
    healed = [*DIPPED, lower, both(150, LESS), both(210, LESS)]
    assert decide(RUN, healed, acknowledged=words).status is VERIFIED
    assert decide(RUN, [*DIPPED, lower], acknowledged=[*words, accepted(141)]).code is UsageCode.CHANGING


@pytest.mark.parametrize(
    "looks",
    [[both(10)], [*TWICE], [both(10), whole(15, ZERO)], [failed(10)], [both(10), both(12, MORE)]],
    ids=["first", "verified", "zero", "error", "changing"],
)
def test_a_word_about_what_has_not_fallen_says_nothing(looks: list[Observation]) -> None:
    words = [accepted(-10), accepted(100)]
    later = [both(200, LESS), both(260, LESS)]
    assert decide(RUN, looks, acknowledged=words) == decide(RUN, looks)
    assert decide(RUN, [*looks, *later], acknowledged=words) == decide(RUN, [*looks, *later])


def test_accepting_a_total_forgets_nothing_of_steps() -> None:
    """Else the mark of a step would be lost with a look that cannot tell steps apart."""
    looks = [both(10), whole(20, Tokens(90, 10, 5)), both(30, Tokens(20, 6, 3), Tokens(70, 4, 2))]
    verdict = decide(RUN, looks, acknowledged=[accepted(21)])
    assert verdict.code is UsageCode.DECREASED
    assert "step a" in verdict.message


def test_a_run_without_usage_may_fall_to_zero_with_a_persons_word() -> None:
    looks = [whole(10, A), whole(20, ZERO), whole(80, ZERO)]
    assert decide(NONE, looks).code is UsageCode.DECREASED
    assert decide(NONE, looks, acknowledged=[accepted(90)]).status is VERIFIED


def test_a_permanent_anomaly_ends_with_a_persons_word_alone() -> None:
    looks = [*DIPPED, both(90), both(150)]
    assert decide(RUN, looks, PERMANENT).code is UsageCode.DECREASED
    assert decide(RUN, looks, PERMANENT, [accepted(160)]).status is VERIFIED
    again = [*looks, both(170, LESS), both(180), both(240)]
    assert decide(RUN, again, PERMANENT, [accepted(160)]).code is UsageCode.DECREASED
    # A zero is no count that fell.
    assert decide(RUN, [both(10), whole(20, ZERO), both(30), both(90)], PERMANENT).status is VERIFIED


# Stricter and laxer policies.


def test_two_pairs_need_three_observations_an_interval_apart() -> None:
    twice = UsagePolicy(min_stable_pairs=2)
    verdict = decide(RUN, TWICE, twice)
    assert verdict.code is UsageCode.GAP
    assert "1 of 2" in verdict.message
    assert decide(RUN, [*TWICE, both(130)], twice).status is VERIFIED
    assert decide(RUN, [*TWICE, both(100), both(160)], twice).code is UsageCode.GAP
    assert decide(RUN, [*TWICE, both(100), both(160), both(220)], twice).status is VERIFIED
    assert decide(RUN, [*TWICE, both(130), both(140), both(200)], twice).status is VERIFIED


def test_a_span_counts_its_intervals_one_after_the_other() -> None:
    twice = UsagePolicy(anchor=Anchor.SPAN, min_stable_pairs=2)
    looks = [both(at) for at in (0, 30, 60, 90, 120)]
    assert [decide(RUN, looks[: n + 1], twice).status for n in range(5)] == [PENDING] * 4 + [VERIFIED]
    changed = [both(0), both(59), both(61, MORE), both(120, MORE)]
    assert decide(RUN, changed, SPAN).code is UsageCode.GAP


def test_a_span_that_is_long_enough_stays_so() -> None:
    looks = [both(at, b=ZERO) for at in (0, 60, 70)]
    assert decide(RUN, looks, SPAN).code is UsageCode.INCOMPLETE
    assert decide(RUN, looks).code is UsageCode.GAP


def test_totals_only_sees_neither_split_nor_calls() -> None:
    totals = UsagePolicy(totals_only=True)
    moved = (both(10), both(70, Tokens(50, 6, 1), Tokens(50, 4, 1)))
    assert decide(RUN, moved, totals).status is VERIFIED
    assert decide(RUN, (both(10), both(70, LESS)), totals).code is UsageCode.DECREASED
    assert is_equal(moved[0], moved[1], totals)
    assert not is_equal(*moved)


@pytest.mark.parametrize(("tolerance", "code"), [(10, UsageCode.STABLE), (9, UsageCode.DISCREPANCY)])
def test_a_tolerance_is_a_number_of_tokens(tolerance: int, code: UsageCode) -> None:
    policy = UsagePolicy(tolerance=tolerance)
    assert decide(told(a=LESS, b=B), TWICE, policy).code is code
    assert decide(told(a=MORE, b=B), TWICE, policy).code is code
    shared = tuple(replace(one, cohort=Cohort(2, Tokens(110, 10, 5))) for one in TWICE)
    expected = code if code is UsageCode.STABLE else UsageCode.AMBIGUOUS_ATTRIBUTION
    assert decide(told(a=A, b=B), shared, policy).code is expected


# What a look can tell.


@pytest.mark.parametrize(
    ("watermark", "status"),
    [(after(-1), DATA_NOT_AVAILABLE), (ENDED, PENDING), (after(1), PENDING), (None, PENDING)],
    ids=["before the end", "at the end", "after the end", "not said"],
)
def test_what_was_counted_up_to_before_the_runs_end_is_not_its_count(watermark: datetime, status: UsageStatus) -> None:
    assert decide(RUN, [replace(both(10), watermark=watermark)]).status is status


def test_a_provider_that_is_behind_neither_makes_nor_breaks_a_pair() -> None:
    behind = replace(both(40, LESS), watermark=after(-1))
    verdict = decide(RUN, [both(10), behind, both(70)])
    assert verdict.status is VERIFIED
    assert "(not_ready)" in decide(RUN, [behind]).message


def test_a_count_that_an_observation_lacks_has_not_fallen() -> None:
    unsplit = whole(20, Tokens(100, 10, None))
    assert decide(RUN, [both(10), unsplit]).code is UsageCode.CHANGING
    assert decide(RUN, [both(10), unsplit, both(30)]).code is UsageCode.CHANGING
    assert decide(RUN, [both(10), split(20, a=Tokens(100, 10, 5))]).code is UsageCode.DECREASED
    uncounted = replace(both(20), total=Tokens(100, 10, None))
    assert decide(RUN, [both(10), uncounted]).code is UsageCode.CHANGING


def test_a_step_without_counts_is_as_good_as_none() -> None:
    assert is_equal(split(10, a=A), split(70, a=A, b=Tokens(0, 0, 0)))
    assert not is_equal(split(10, a=A), whole(70, A))
    assert not is_equal(split(10, a=A), replace(split(70, a=A), unattributed=1))
    assert not is_equal(split(10, a=A), replace(split(70, a=A), models=("gpt-4o",)))


def counted(at: float, have: int | None, of: int | None) -> Observation:
    return replace(whole(at, Tokens(100, 10)), steps_with_tokens=have, total_steps=of)


THREE = UsageRun(ENDED, (UsageStep("a"), UsageStep("b"), UsageStep("c", expects_usage=False)))


@pytest.mark.parametrize(
    ("run", "have", "of", "code", "shown"),
    [
        (run_of(), 6, 6, UsageCode.STABLE, (6, 6)),
        (run_of(), 5, 6, UsageCode.INCOMPLETE, (5, 6)),
        (run_of(), 7, 6, UsageCode.UNATTRIBUTED, (7, 6)),
        (run_of(), 0, 0, UsageCode.INCOMPLETE, (0, 0)),
        (run_of(), 3, None, UsageCode.INCOMPLETE, (3, 0)),
        (run_of(), None, 6, UsageCode.INCOMPLETE, (0, 6)),
        (RUN, 2, None, UsageCode.STABLE, (2, 2)),
        (RUN, 1, 1, UsageCode.INCOMPLETE, (1, 2)),
        (RUN, 2, 3, UsageCode.INCOMPLETE, (2, 3)),
        (THREE, 2, 3, UsageCode.STABLE, (2, 2)),
        (THREE, 2, 2, UsageCode.STABLE, (2, 2)),
        (THREE, 3, 3, UsageCode.UNATTRIBUTED, (3, 2)),
        (told(a=Tokens(100, 10), b=None), 2, 2, UsageCode.STABLE, (2, 2)),
    ],
)
def test_a_files_count_of_steps(
    run: UsageRun, have: int | None, of: int | None, code: UsageCode, shown: tuple[int, int]
) -> None:
    looks = [counted(10, have, of), counted(70, have, of)]
    verdict = decide(run, looks)
    assert (verdict.code, (verdict.steps_with_tokens, verdict.total_steps)) == (code, shown)
    assert opinion(run, looks).code is code


def test_of_two_counts_of_steps_the_one_that_claims_less_holds() -> None:
    def verdict(have: int, *, b: Tokens) -> tuple[UsageCode, str]:
        found = decide(RUN, [replace(both(at, b=b), steps_with_tokens=have, total_steps=2) for at in (10, 70)])
        return found.code, found.message

    assert verdict(2, b=B)[0] is UsageCode.STABLE
    assert verdict(1, b=B) == (UsageCode.INCOMPLETE, INCOMPLETE.format("1/2"))
    assert verdict(2, b=ZERO) == (UsageCode.INCOMPLETE, INCOMPLETE.format("1/2"))


def test_a_sentence_names_five_steps_and_how_many_more() -> None:
    run = run_of(*"abcdefgh")
    assert "No tokens: b, c, d, e, f and 2 more." in decide(run, [split(10, a=A), split(70, a=A)]).explanation


def test_tokens_of_a_step_that_was_declared_tokenless_are_undeclared() -> None:
    run = UsageRun(ENDED, (UsageStep("a"), UsageStep("b", expects_usage=False)))
    verdict = decide(run, TWICE)
    assert verdict.code is UsageCode.UNDECLARED_USAGE
    assert all(value in verdict.message for value in ("Steps b", "100 in / 10 out"))


def test_steps_that_were_all_declared_tokenless_make_a_run_without_usage() -> None:
    run = UsageRun(ENDED, (UsageStep("a", expects_usage=False), UsageStep("b", expects_usage=False)))
    assert decide(run, [whole(10, ZERO), whole(70, ZERO)]).status is VERIFIED
    assert decide(run, [whole(10, A), whole(70, A)]).code is UsageCode.UNDECLARED_USAGE


def test_calls_of_a_run_that_declares_none_are_a_discrepancy() -> None:
    called = Tokens(0, 0, requests=3)
    verdict = decide(NONE, [whole(10, called), whole(70, called)])
    assert verdict.code is UsageCode.DISCREPANCY
    assert all(value in verdict.message for value in ("in 0 calls", "in 3 calls"))


def test_of_a_run_that_does_not_say_all_what_it_does_say_is_compared() -> None:
    assert decide(told(a=A, b=None), TWICE).status is VERIFIED
    verdict = decide(told(a=LESS, b=None), TWICE)
    assert verdict.code is UsageCode.DISCREPANCY
    assert all(value in verdict.message for value in ("Step a", "50 in / 6 out", "60 in / 6 out"))
    assert decide(told(a=None, b=None), TWICE).status is VERIFIED


# Whose count it is.


def shared(at: float, local: Tokens | None, *models: str) -> Observation:
    return replace(whole(at, Tokens(1000, 100, 50)), cohort=Cohort(3, local, models))


def test_a_cohort_is_verified_by_the_sum_of_its_own_counts() -> None:
    looks = [shared(10, Tokens(1000, 100, 50)), shared(70, Tokens(1000, 100, 50))]
    verdict = decide(told(a=A, b=B), looks)
    assert (verdict.status, verdict.assurance, verdict.tokens) == (VERIFIED, Assurance.COHORT, Tokens(100, 10, 5))
    boasting = [replace(one, assurance=Assurance.REQUEST) for one in looks]
    assert decide(told(a=A, b=B), boasting).assurance is Assurance.COHORT


@pytest.mark.parametrize(
    ("local", "values"),
    [
        (Tokens(999, 100, 50), ("3 runs", "999 in / 100 out", "1,000 in / 100 out")),
        (Tokens(1000, 100, 49), ("in 49 calls", "in 50 calls")),
        (None, ("3 runs",)),
    ],
    ids=["tokens", "calls", "unknown"],
)
def test_a_sum_that_does_not_tie_out_is_ambiguous(local: Tokens | None, values: tuple[str, ...]) -> None:
    verdict = decide(told(a=A, b=B), [shared(10, local), shared(70, local)])
    assert verdict.code is UsageCode.AMBIGUOUS_ATTRIBUTION
    assert all(value in verdict.message for value in values)


def test_a_run_that_does_not_say_what_it_used_has_no_part_of_a_sum() -> None:
    looks = [replace(shared(at, Tokens(1000, 100, 50)), steps={"a": A, "b": B}) for at in (10, 70)]
    assert decide(told(a=A, b=None), looks).code is UsageCode.AMBIGUOUS_ATTRIBUTION


def test_a_run_without_usage_may_share_a_key() -> None:
    verdict = decide(NONE, [shared(10, Tokens(1000, 100, 50)), shared(70, Tokens(1000, 100, 50))])
    assert (verdict.status, (verdict.tokens or A).total) == (VERIFIED, 0)


@pytest.mark.parametrize(
    ("named", "billed", "code"),
    [
        (("gpt-4o",), ("gpt-4o",), UsageCode.STABLE),
        ((), ("gpt-4o",), UsageCode.STABLE),
        ((), ("", ""), UsageCode.STABLE),
        (("gpt-4o",), ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"), UsageCode.STABLE),
        (("gpt-4o", "openai/gpt-4o"), ("gpt-4o", "gpt-4o-2024-08-06"), UsageCode.STABLE),
        (("gpt-4o", "o1"), ("gpt-4o", "o1"), UsageCode.AMBIGUOUS_ATTRIBUTION),
        ((), ("gpt-4o", "o1"), UsageCode.AMBIGUOUS_ATTRIBUTION),
        (("gpt-4o", "gpt-4o-2024-08-06"), ("gpt-4o", "gpt-4o-2024-08-06"), UsageCode.AMBIGUOUS_ATTRIBUTION),
        (("gpt-4o",), ("gpt-4o", "o1"), UsageCode.MODEL_MISMATCH),
    ],
)
def test_several_models_of_a_cohort_are_ambiguous(
    named: tuple[str, ...], billed: tuple[str, ...], code: UsageCode
) -> None:
    run = UsageRun(ENDED, (UsageStep("a", local=A, models=("gpt-4o",)),))
    looks = [replace(shared(at, Tokens(1000, 100, 50), *named), models=billed) for at in (10, 70)]
    verdict = decide(run, looks)
    assert verdict.code is code
    assert opinion(run, looks).code is code
    if code is UsageCode.AMBIGUOUS_ATTRIBUTION:
        assert all(value in verdict.message for value in ("3 runs", f"{billed[0]}, {billed[1]}"))


def test_how_the_input_of_one_of_several_was_read_is_only_its_own_word() -> None:
    run = told(a=Tokens(60, 6, 3, cached=40, cache_write=2, reasoning=1), b=Tokens(40, 4, 2, 10, 0, 0))
    total = Tokens(1000, 100, 50, cached=300, cache_write=0)
    looks = [replace(shared(at, Tokens(1000, 100, 50)), total=total) for at in (10, 70)]
    assert decide(run, looks).tokens == Tokens(100, 10, 5, cached=None, cache_write=0, reasoning=None)


def test_an_open_run_of_the_cohort_must_be_ended() -> None:
    looks = [replace(shared(at, None), cohort=Cohort(2, has_open=True)) for at in (10, 70)]
    verdict = decide(told(a=A, b=B), looks)
    assert verdict.code is UsageCode.AMBIGUOUS_ATTRIBUTION
    assert "2 runs" in verdict.message
    assert "usage end" in verdict.explanation
    assert "usage end" not in decide(told(a=A, b=B), [shared(10, None), shared(70, None)]).explanation


# Told by the time alone.


IN_ALL = Tokens(100, 10, 5, 40)


def timed(at: float, local: Tokens | None, total: Tokens = IN_ALL) -> Observation:
    """A look at all that an account counted while one run was there."""
    return replace(whole(at, total), cohort=Cohort(1, local))


def test_a_run_attributed_by_time_ties_out_with_its_own_count() -> None:
    verdict = decide(told(a=A, b=B), [timed(10, Tokens(100, 10, 5)), timed(70, Tokens(100, 10, 5))])
    assert (verdict.status, verdict.assurance) == (VERIFIED, Assurance.COHORT)
    # Nobody else was there, so what the provider says of the whole it says of the run.
    assert verdict.tokens == IN_ALL


def test_tokens_of_another_client_in_the_same_minutes_are_not_the_runs() -> None:
    others = [timed(at, Tokens(100, 10, 5), Tokens(150, 10, 6)) for at in (10, 70)]
    verdict = decide(told(a=A, b=B), others)
    assert verdict.code is UsageCode.AMBIGUOUS_ATTRIBUTION
    assert all(value in verdict.message for value in ("100 in / 10 out", "150 in / 10 out"))
    assert verdict.tokens == Tokens(100, 10, 5)
    silent = decide(RUN, [replace(timed(at, None), steps={"a": A, "b": B}) for at in (10, 70)])
    assert silent.code is UsageCode.AMBIGUOUS_ATTRIBUTION


def test_a_run_attributed_by_time_ties_out_model_by_model() -> None:
    ours = {"gpt-4o": A, "gpt-4o-mini": B}
    theirs = {"gpt-4o": B, "gpt-4o-mini": A}
    looks = [replace(timed(at, Tokens(100, 10, 5)), models=(*ours,), by_model=theirs) for at in (10, 70)]
    verdict = decide(counting(ours), looks)
    assert verdict.code is UsageCode.DISCREPANCY
    assert decide(counting(theirs), looks).status is VERIFIED


# Model by model, and class by class.


def counting(ours: dict[str, Tokens]) -> UsageRun:
    """A run of one step that says how much it used of each model."""
    return UsageRun(ENDED, (UsageStep("a", local=sum_tokens(ours.values()), models=(*ours,), by_model=ours),))


def billing(theirs: dict[str, Tokens] | None, total: Tokens) -> list[Observation]:
    """Two looks that prove it."""
    models = (*(theirs or {}),)
    return [
        replace(whole(at, total), models=models, by_model=theirs, assurance=Assurance.ATTRIBUTION_KEY)
        for at in (10, 70)
    ]


MINI = "gpt-4o-mini"


@pytest.mark.parametrize(
    ("ours", "theirs", "values"),
    [
        (
            {"gpt-4o": Tokens(100_000, 5), MINI: Tokens(10, 5)},
            {"gpt-4o": Tokens(10, 5), MINI: Tokens(100_000, 5)},
            (
                "gpt-4o",
                "100,000 in / 5 out",
                "10 in / 5 out",
            ),
        ),
        (
            {"gpt-4o": Tokens(9, 5), MINI: Tokens(9, 6)},
            {"gpt-4o": Tokens(9, 6), MINI: Tokens(9, 5)},
            (
                "gpt-4o",
                "9 in / 5 out",
                "9 in / 6 out",
            ),
        ),
        (
            {"gpt-4o": Tokens(9, 5, cached=4), MINI: Tokens(9, 5, cached=0)},
            {"gpt-4o": Tokens(9, 5, cached=0), MINI: Tokens(9, 5, cached=4)},
            (
                "gpt-4o",
                "9 in / 5 out, 4 cached",
                "9 in / 5 out, 0 cached",
            ),
        ),
        (
            {"gpt-4o": Tokens(9, 5, 1, 1, 0), MINI: Tokens(9, 5, 2, 1, 3)},
            {"gpt-4o": Tokens(9, 5, 2, 1, 3), MINI: Tokens(9, 5, 1, 1, 0)},
            (
                "gpt-4o",
                "9 in / 5 out, 0 written",
                "9 in / 5 out, 3 written",
            ),
        ),
        ({"o1": Tokens(9, 5, cached=4)}, {"o1": Tokens(9, 5, cached=0)}, ("9 in / 5 out, 4 cached",)),
        ({"o1": Tokens(9, 5, cached=4)}, {"o1": Tokens(9, 5)}, ()),
        ({"o1": Tokens(9, 5)}, {"o1": Tokens(9, 5, cached=4)}, ()),
        # Several names of one model, on either side.
        ({"gpt-4o": Tokens(9, 5)}, {"gpt-4o-2024-05-13": Tokens(4, 5), "gpt-4o-2024-08-06": Tokens(5, 0)}, ()),
        ({"gpt-4o": Tokens(4, 5), "openai/gpt-4o-2024-08-06": Tokens(5, 0)}, {"gpt-4o-2024-08-06": Tokens(9, 5)}, ()),
        (
            {"gpt-4o": Tokens(4, 5), MINI: Tokens(5, 1)},
            {"gpt-4o-2024-05-13": Tokens(3, 3), "gpt-4o-2024-08-06": Tokens(2, 2), MINI: Tokens(4, 1)},
            (
                "gpt-4o",
                "4 in / 5 out",
                "5 in / 5 out",
            ),
        ),
        (
            {"gpt-4o-2024-05-13": Tokens(4, 5), "gpt-4o-2024-08-06": Tokens(5, 5)},
            {"gpt-4o-2024-05-13": Tokens(5, 5), "gpt-4o-2024-08-06": Tokens(4, 5)},
            (
                "gpt-4o-2024-05-13",
                "4 in / 5 out",
                "5 in / 5 out",
            ),
        ),
        # What one side does not tell by model is not compared by model.
        ({"gpt-4o": Tokens(4, 5), MINI: Tokens(5, 5)}, None, ()),
        ({"gpt-4o": Tokens(4, 5), MINI: Tokens(5, 5)}, {"gpt-4o": Tokens(4, 5), MINI: Tokens(4, 5), "": Tokens(1)}, ()),
        ({}, {"gpt-4o": Tokens(9, 10)}, ()),
    ],
)
def test_what_both_sides_know_by_model_ties_out_by_model(
    ours: dict[str, Tokens], theirs: dict[str, Tokens] | None, values: tuple[str, ...]
) -> None:
    run = counting(ours) if ours else told(a=Tokens(9, 10))
    looks = billing(theirs, sum_tokens((ours if theirs is None else theirs).values()))
    verdict = decide(run, looks)
    assert verdict.code is (UsageCode.DISCREPANCY if values else UsageCode.STABLE)
    assert opinion(run, looks).code is verdict.code
    assert all(value in verdict.message for value in values)


def test_a_model_that_only_one_side_counts_is_none_on_the_other() -> None:
    run, (one, other) = counting({"gpt-4o": Tokens(9, 5)}), billing({"o1": Tokens(9, 5)}, Tokens(9, 5))
    assert decide(run, [one, other]).code is UsageCode.MODEL_MISMATCH
    # Where the look lists no models, their counts still tell.
    unlisted = [replace(look, models=()) for look in (one, other)]
    verdict = decide(run, unlisted)
    assert verdict.code is UsageCode.DISCREPANCY
    assert all(value in verdict.message for value in ("gpt-4o", "9 in / 5 out", "0 in / 0 out"))
    assert opinion(run, unlisted).code is verdict.code


def test_a_tolerance_holds_for_each_model() -> None:
    ours, theirs = {"gpt-4o": Tokens(10), MINI: Tokens(20)}, {"gpt-4o": Tokens(20), MINI: Tokens(10)}
    for tolerance, code in ((10, UsageCode.STABLE), (9, UsageCode.DISCREPANCY)):
        verdict = decide(counting(ours), billing(theirs, Tokens(30)), UsagePolicy(tolerance=tolerance))
        assert verdict.code is code


def test_tokens_that_move_from_one_model_to_another_are_still_moving() -> None:
    before = {"gpt-4o": Tokens(10), MINI: Tokens(20)}
    moved = {"gpt-4o": Tokens(20), MINI: Tokens(10)}
    one, other = billing(before, Tokens(30))[0], billing(moved, Tokens(30))[1]
    assert not is_equal(one, other)
    assert decide(told(a=Tokens(30)), [one, other]).code is UsageCode.CHANGING
    assert is_equal(one, other, UsagePolicy(totals_only=True))
    assert is_equal(one, replace(one, by_model={**before, "idle": Tokens()}))
    assert not is_equal(one, replace(one, by_model=None))


# When to look again.


def test_a_run_with_silent_neighbours_has_data_however_late() -> None:
    late = 60 * 24 * 60
    look = replace(shared(late, None), at=after(late))
    run = told(a=None, b=None)
    following = next_observation(ENDED, decide(run, [look]), [look])
    assert following.at == after(late + 60)
    assert following.waits == ""


@pytest.mark.parametrize("cohort", [None, Cohort(2, Tokens(100, 10, 5))], ids=["alone", "shared"])
def test_what_only_the_run_says_is_never_verified(cohort: Cohort | None) -> None:
    looks = [replace(one, assurance=Assurance.LOCAL, cohort=cohort) for one in TWICE]
    assert decide(told(a=A, b=B), looks).code is UsageCode.LOCAL_ONLY


def test_what_only_the_run_says_makes_no_pair_with_its_providers_word() -> None:
    looks = [replace(both(10), assurance=Assurance.LOCAL), both(70)]
    assert decide(told(a=A, b=B), looks).code is UsageCode.CHANGING
    assert decide(told(a=A, b=B), looks, UsagePolicy(totals_only=True)).code is UsageCode.CHANGING
    assert decide(told(a=A, b=B), [*looks, both(130)]).status is VERIFIED


def test_a_verdict_has_the_weaker_assurance_of_its_observations() -> None:
    looks = [replace(both(10), assurance=Assurance.COHORT), replace(both(70), assurance=Assurance.REQUEST)]
    assert decide(RUN, looks).assurance is Assurance.COHORT
    surer = replace(both(130), assurance=Assurance.ATTRIBUTION_KEY)
    assert decide(RUN, [*looks, surer]).assurance is Assurance.ATTRIBUTION_KEY


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gpt-4o", "gpt-4o-2024-08-06"),
        ("claude-3-7-sonnet-latest", "claude-3-7-sonnet-20250219"),
        ("claude-3-7-sonnet", "claude-3-7-sonnet-latest"),
        ("openai/gpt-4o", "gpt-4o"),
        ("openrouter/openai/gpt-4o", "GPT-4o-2024-08-06 "),
        ("claude-3-5-sonnet@20240620", "claude-3-5-sonnet"),
        ("gpt-3.5-turbo", "gpt-3.5-turbo-0125"),
        ("mistral-large", "mistral-large-2411"),
        ("o1", "o1"),
    ],
)
def test_an_alias_means_its_dated_version(ours: str, theirs: str) -> None:
    assert is_same_model(ours, theirs)
    assert is_same_model(theirs, ours)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("gpt-4o", "gpt-4o-mini"),
        ("gpt-4o-mini", "gpt-4o-mini-audio"),
        ("gpt-4o-2024-05-13", "gpt-4o-2024-08-06"),
        ("gpt-4o", "gpt-4"),
        ("o1", "o1-preview"),
        ("llama-7b", "llama-7b-4096"),
        ("claude-3-5-sonnet-20240620", "claude-3-7-sonnet-latest"),
    ],
)
def test_another_model_is_another_model(ours: str, theirs: str) -> None:
    assert not is_same_model(ours, theirs)
    assert not is_same_model(theirs, ours)


names = st.lists(
    st.builds(
        "{}{}{}{}".format,
        st.sampled_from(["", "openai/", " Azure/"]),
        st.sampled_from(["m", "n-2", "M", ""]),
        st.sampled_from(["", "-2025-01-01", "-0613", "-2025-01-01-0613"]),
        st.sampled_from(["", "-latest", ":latest-latest"]),
    ),
    max_size=12,
)


@examples(60)
@given(names, names)
def test_every_name_of_a_model_is_found_without_comparing_any_two(known: list[str], asked: list[str]) -> None:
    found = ModelNames(known)
    assert all(
        sorted(found.find(one)) == sorted(other for other in known if is_same_model(one, other)) for one in asked
    )


def test_one_model_that_a_run_spells_in_two_ways_is_one() -> None:
    half, whole = Tokens(5, 5, 1), Tokens(10, 10, 2)
    models = {"m": half, "openai/m": half}
    run = UsageRun(ENDED, (UsageStep("s", local=whole, models=tuple(models), by_model=models),))
    for billed, status in (({"m": whole}, UsageStatus.VERIFIED), ({"m": half, "n": half}, UsageStatus.WARNING)):
        looks = [
            Observation(
                f"a{hour}", ENDED + timedelta(hours=hour), whole, {"s": whole}, models=(*billed,), by_model=billed
            )
            for hour in (1, 2)
        ]
        assert decide(run, [replace(one, assurance=Assurance.ATTRIBUTION_KEY) for one in looks]).status is status


def test_thousands_of_models_take_no_long_time() -> None:
    models = {f"m{number}-2025-01-{number % 28 + 1:02}": Tokens(1, 1) for number in range(4_000)}
    total = Tokens(4_000, 4_000)
    run = UsageRun(ENDED, (UsageStep("s", local=total, models=tuple(models), by_model=models),))
    looks = [
        Observation(
            f"a{hour}", ENDED + timedelta(hours=hour), total, {"s": total}, models=tuple(models), by_model=models
        )
        for hour in (1, 2)
    ]
    began = time.process_time()
    decide(run, looks)
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("ours", "theirs", "code"),
    [
        (("gpt-4o", ""), ("gpt-4o",), UsageCode.STABLE),
        (("gpt-4o",), (), UsageCode.STABLE),
        ((), ("gpt-4o",), UsageCode.STABLE),
        (("gpt-4o", "o1"), ("gpt-4o",), UsageCode.MODEL_MISMATCH),
        (("gpt-4o",), ("gpt-4o", "o1"), UsageCode.MODEL_MISMATCH),
    ],
)
def test_models_are_compared_where_both_sides_name_them(
    ours: tuple[str, ...], theirs: tuple[str, ...], code: UsageCode
) -> None:
    assert decide(using(*ours), [replace(one, models=theirs) for one in TWICE]).code is code


@pytest.mark.parametrize("interval", [1e300, float("inf")])
def test_an_endless_interval_is_never_over(interval: float) -> None:
    ends = [replace(both(10), at=datetime.max.replace(tzinfo=UTC)), both(20)]
    assert decide(RUN, ends, UsagePolicy(interval_min=interval)).code is UsageCode.GAP


def test_the_first_and_the_last_moment_of_the_calendar_are_moments() -> None:
    west, east = timezone(timedelta(hours=-12)), timezone(timedelta(hours=12))
    run = replace(RUN, ended_at=datetime.min.replace(tzinfo=east))
    first, last = datetime.min.replace(tzinfo=east), datetime.max.replace(tzinfo=west)
    near = [replace(both(10), at=last), replace(both(11), at=last - timedelta(minutes=1))]
    assert decide(run, near).code is UsageCode.GAP
    assert decide(run, [replace(both(9), at=first), near[0]]).status is VERIFIED
    late = UsagePolicy(interval_min=1e300)
    assert "9999-12-31" in decide(run, [replace(both(9), at=first), near[0]], late).explanation


def test_a_runs_model_must_be_billed_also_in_a_cohort() -> None:
    run = UsageRun(ENDED, (UsageStep("a", local=A, models=("gpt-4o",)),))
    looks = [replace(shared(at, Tokens(1000, 100, 50)), models=("gpt-4o-mini",)) for at in (10, 70)]
    assert decide(run, looks).code is opinion(run, looks).code is UsageCode.MODEL_MISMATCH


def test_what_was_counted_with_an_open_run_is_no_mark() -> None:
    run = UsageRun(ENDED, (UsageStep("a", local=A),))
    more = replace(shared(10, None), total=Tokens(5000, 500, 80), cohort=Cohort(2, has_open=True))
    looks = [more, *(replace(shared(at, Tokens(1000, 100, 50)), id=str(at)) for at in (80, 140))]
    assert decide(run, looks).code is opinion(run, looks).code is UsageCode.STABLE


def test_tokens_of_one_dated_version_are_not_anothers_by_way_of_their_alias() -> None:
    old, new = "gpt-4o-2024-05-13", "gpt-4o-2024-08-06"
    said = {old: Tokens(999, 0), "gpt-4o": Tokens(1, 0)}
    run = UsageRun(ENDED, (UsageStep("a", local=Tokens(1000, 0), models=(*said,), by_model=said),))
    billed = {old: Tokens(1, 0), new: Tokens(999, 0)}
    looks = [
        Observation(str(n), ENDED + timedelta(minutes=n), Tokens(1000, 0), models=(*billed,), by_model=billed)
        for n in (10, 70)
    ]
    assert decide(run, looks).code is opinion(run, looks).code is UsageCode.DISCREPANCY


def test_undeclared_usage_is_found_also_in_a_cohort() -> None:
    run = UsageRun(ENDED, (UsageStep("a", expects_usage=False, local=A),), declares_no_usage=True)
    looks = [shared(at, Tokens(1000, 100, 50)) for at in (10, 70)]
    assert decide(run, looks).code is opinion(run, looks).code is UsageCode.UNDECLARED_USAGE


BOTH = sum_tokens([A, B])
LOCAL = told(a=BOTH)


# Early observations.


def marked(minutes: float, total: Tokens = BOTH) -> Observation:
    """A look that was kept though it came too early."""
    return replace(whole(minutes, total), early=True)


def test_an_observation_marked_as_early_neither_makes_nor_breaks_a_pair() -> None:
    looks = [whole(10, BOTH), marked(40), whole(70, BOTH)]
    verdict = decide(LOCAL, looks)
    assert (verdict.code, verdict.early, verdict.compared) == (UsageCode.STABLE, 1, ("look-10", "look-70"))
    assert opinion(LOCAL, looks).code is UsageCode.STABLE


def test_the_same_attempts_without_the_mark_are_too_close() -> None:
    verdict = decide(LOCAL, [whole(10, BOTH), whole(40, BOTH), whole(70, BOTH)])
    assert (verdict.code, verdict.early, verdict.compared) == (UsageCode.GAP, 0, ("look-40", "look-70"))


def test_the_mark_hides_neither_a_change_nor_a_confirmation() -> None:
    grown = Tokens(BOTH.input + 1, BOTH.output, BOTH.requests)
    assert decide(LOCAL, [whole(10, BOTH), marked(40, grown)]).code is UsageCode.CHANGING
    assert decide(LOCAL, [whole(10, BOTH), marked(70)]).code is UsageCode.STABLE
    assert decide(LOCAL, [marked(10)]).code is UsageCode.FIRST


def test_an_early_observation_shows_that_the_provider_answers_again() -> None:
    assert decide(LOCAL, [whole(10, BOTH), failed(20)]).held
    assert not decide(LOCAL, [whole(10, BOTH), failed(20), marked(30)]).held


# What the words say.


@pytest.mark.parametrize(
    ("before", "after_it", "said"),
    [
        ({}, {"total": Tokens(100, 10, 5, cached=7)}, "cached unknown → 7"),
        ({}, {"total": Tokens(100, 10, 6)}, "requests 5 → 6"),
        ({"total": Tokens(100, 10, 5, reasoning=1)}, {"total": Tokens(100, 10, 5, reasoning=2)}, "reasoning 1 → 2"),
        ({"models": ("m",)}, {"models": ("m", "n")}, "models m → m, n"),
        ({}, {"models": ("n",)}, "models none → n"),
        ({"unattributed": 5}, {}, "tokens outside of steps 5 → 0"),
        ({"steps_with_tokens": 1, "total_steps": 2}, {"steps_with_tokens": 2, "total_steps": 2}, "tokens 1 → 2"),
        ({}, {"assurance": Assurance.LOCAL}, "counted by the provider yes → no"),
        ({}, {"steps": {"a": Tokens(100, 10)}}, "step a 0 in / 0 out → 100 in / 10 out"),
        ({}, {"by_model": {}}, "counts by model no → yes"),
        (
            {"by_model": {"m": Tokens(100, 10, cached=1)}},
            {"by_model": {"m": Tokens(100, 10, cached=2)}},
            "model m requests unknown, cached 1",
        ),
        ({}, {"total": Tokens(101, 10, 5)}, "100 in / 10 out → 101 in / 10 out"),
    ],
)
def test_a_change_is_shown_by_what_changed(before: dict[str, object], after_it: dict[str, object], said: str) -> None:
    usual = whole(10, Tokens(100, 10, 5))
    verdict = decide(LOCAL, [replace(usual, **before), replace(usual, id="later", at=after(80), **after_it)])
    assert verdict.code is UsageCode.CHANGING
    assert said in verdict.message


@pytest.mark.parametrize(("minutes", "may_be"), [(0, True), (14.9, True), (15, False), (60, False), (1440, False)])
def test_zero_tokens_may_be_too_recent_for_a_quarter_of_an_hour(minutes: float, may_be: bool) -> None:
    explained = decide(LOCAL, [whole(minutes, Tokens())]).explanation
    assert ("may be too recent" in explained) is may_be
    assert ("older than 24 hours" in explained) is (minutes == 1440)


def test_zero_after_tokens_is_never_called_too_recent() -> None:
    assert "too recent" not in decide(LOCAL, [whole(1, BOTH), whole(2, Tokens())]).explanation


# Runs that share their count.


@pytest.mark.parametrize("steps", [(), (UsageStep("a"), UsageStep("b"))])
@pytest.mark.parametrize("shared", [Cohort(2), Cohort(2, BOTH), Cohort(2, has_open=True)])
def test_overlapping_runs_without_own_counts_are_ambiguous(steps: tuple[UsageStep, ...], shared: Cohort) -> None:
    looks = [replace(whole(minutes, BOTH), cohort=shared) for minutes in (10, 80)]
    run = UsageRun(ENDED, steps)
    assert decide(run, looks).code is UsageCode.AMBIGUOUS_ATTRIBUTION
    assert opinion(run, looks).code is UsageCode.AMBIGUOUS_ATTRIBUTION


# Models that only the provider names.


def test_a_verdict_has_the_models_that_only_the_provider_names() -> None:
    split_by_model = {"m": Tokens(60, 6), "n": Tokens(40, 4)}
    looks = [replace(whole(10, BOTH), by_model=split_by_model, models=("m", "n"))]
    assert decide(LOCAL, looks).by_model == split_by_model
    assert decide(LOCAL, [replace(whole(10, BOTH), models=("m",))]).by_model == {"m": BOTH}
    assert decide(LOCAL, [replace(whole(10, BOTH), models=("m", "n"))]).by_model is None
    assert decide(LOCAL, [replace(whole(10, BOTH), models=("m",), cohort=Cohort(2, BOTH))]).by_model is None
    named = UsageRun(ENDED, (UsageStep("a", local=BOTH, models=("m",)),))
    assert decide(named, looks).by_model is None
