"""Summaries and comparisons: against scipy, and by simulation."""

import random
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.evaluations.compare import (
    MOST_VALUES,
    EvaluationComparison,
    adjust_family,
    compare_counted,
    compare_evaluations,
)
from meruit.evaluations.evaluation import CaseSummary
from meruit.evaluations.summary import MAX_TAG_VALUES, EvaluationSummary, SummaryBuilder
from meruit.model.verdict import Verdict

CRITERIA = ("first", "second")


# Any: scipy has no types of its own. It takes seconds to load, so only the tests that ask it do.
def scipy_stats() -> Any:
    from scipy import stats  # type: ignore[import-untyped]  # as above

    return stats


LETTER = {True: "m", False: "n", None: "i"}


def case(
    number: int,
    passed: bool | None,
    *,
    group: str | None = None,
    repeat: int = 0,
    statuses: str | None = None,
    tag: str | None = None,
) -> CaseSummary:
    verdict = Verdict.INCONCLUSIVE if passed is None else Verdict.PASS if passed else Verdict.FAIL
    return CaseSummary(
        f"c{number}",
        repeat,
        number,
        f"out_{number}",
        1,
        verdict,
        bool(passed),
        float(bool(passed)),
        statuses or LETTER[passed] * len(CRITERIA),
        group,
        {} if tag is None else {"kind": tag},
    )


def summary(cases: Sequence[CaseSummary], *, clustered: bool = False, repeated: bool = False) -> EvaluationSummary:
    builder = SummaryBuilder(CRITERIA, clustered=clustered, repeated=repeated)
    for one in cases:
        builder.add(one)
    return builder.build()


def compared(before: Sequence[CaseSummary], after: Sequence[CaseSummary]) -> EvaluationComparison:
    return compare_evaluations(("A", before, CRITERIA), ("B", after, CRITERIA))


@given(st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=60))
def test_what_is_open_is_neither_passed_nor_failed(ends: list[bool | None]) -> None:
    found = summary([case(n, end) for n, end in enumerate(ends)]).overall
    assert (found.passed, found.failed, found.open) == (ends.count(True), ends.count(False), ends.count(None))
    assert found.bounds is not None
    judged = found.passed + found.failed
    assert (found.rate is None) is (judged == 0)
    if found.rate is not None and found.interval is not None:
        assert found.bounds.low <= found.rate <= found.bounds.high or found.open == 0
        assert found.interval.low <= found.rate <= found.interval.high
        proportion = scipy_stats().binomtest(found.passed, judged).proportion_ci(method="wilson")
        assert (found.interval.low, found.interval.high) == pytest.approx((proportion.low, proportion.high))


def test_each_criterion_and_tag_has_its_own_rate() -> None:
    found = summary([case(1, True, statuses="mx", tag="a"), case(2, False, statuses="ni", tag="b"), case(3, True)])
    assert {name: (rate.passed, rate.failed, rate.open) for name, rate in found.criteria.items()} == {
        "first": (2, 1, 0),
        "second": (1, 0, 1),
    }
    assert {value: rate.rate for value, rate in found.tags["kind"].items()} == {"a": 1.0, "b": 0.0}


def test_repeats_give_pass_at_k_and_pass_hat_k() -> None:
    tries = [case(1, True), case(1, False, repeat=1), case(2, True), case(2, True, repeat=1)]
    found = summary(tries, repeated=True)
    assert found.pass_at_k == pytest.approx({"1": 0.75, "2": 1.0})
    assert found.pass_hat_k == pytest.approx({"1": 0.75, "2": 0.5})
    assert found.groups == 2


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=80))
def test_a_paired_difference_is_that_of_students_t(pairs: list[tuple[bool, bool]]) -> None:
    found = compared([case(n, a) for n, (a, _) in enumerate(pairs)], [case(n, b) for n, (_, b) in enumerate(pairs)])
    changes = [int(b) - int(a) for a, b in pairs]
    assert found.overall.difference == pytest.approx(sum(changes) / len(changes))
    assert set(found.fixed) == {f"c{n}" for n, change in enumerate(changes) if change == 1}
    assert set(found.broken) == {f"c{n}" for n, change in enumerate(changes) if change == -1}
    if len(set(changes)) > 1:
        expected = scipy_stats().ttest_1samp(changes, 0)
        interval = expected.confidence_interval(0.95)
        assert found.overall.interval is not None
        expected_interval = (max(-1, interval.low), min(1, interval.high))
        assert (found.overall.interval.low, found.overall.interval.high) == pytest.approx(expected_interval)
        assert found.overall.p == pytest.approx(max(expected.pvalue, 1e-12), abs=1e-9)
    else:
        assert found.overall.interval is None


def test_only_cases_that_both_judged_are_compared() -> None:
    found = compared(
        [case(1, True), case(2, None), case(3, True), case(4, False)],
        [case(1, True), case(2, True), case(3, None), case(5, True)],
    )
    assert (found.overall.cases, found.open, found.only_first, found.only_second) == (1, 2, 1, 1)
    assert "1 common case" in found.sentence


@pytest.mark.parametrize(
    ("before", "after", "significant", "words"),
    [
        # Every case changed alike, which t cannot judge, but ranks can.
        (False, True, True, "chance alone does not explain"),
        (True, True, False, "ended alike"),
    ],
)
def test_cases_that_all_changed_alike_are_enough(before: bool, after: bool, significant: bool, words: str) -> None:
    found = compared([case(n, before) for n in range(200)], [case(n, after) for n in range(200)])
    assert (found.overall.interval, found.overall.is_significant) == (None, significant)
    assert words in found.sentence
    assert "too few" not in found.sentence


def test_nothing_in_common_is_said() -> None:
    found = compared([case(1, True)], [case(2, True)])
    assert found.overall.difference is None
    assert not found.overall.is_significant


def test_chances_of_criteria_are_adjusted_for_their_number() -> None:
    random.seed(1)
    ends = [random.random() < 0.4 for _ in range(60)]
    found = compared(
        [case(n, False, statuses="nn") for n in range(60)],
        [case(n, end, statuses=("m" if end else "n") + "n") for n, end in enumerate(ends)],
    )
    first = found.criteria["first"]
    assert first.p is not None
    assert first.p_holm == pytest.approx(min(1.0, 2 * first.p))


def chance_of_a_false_alarm(groups: int, size: int, trials: int, shared: float) -> float:
    """How often two equal evaluations are called different; cases of a group share their fate with some probability."""
    chance = random.Random(8)

    def ends() -> list[bool]:
        found: list[bool] = []
        for _ in range(groups):
            common = chance.random() < 0.5
            found += [common if chance.random() < shared else chance.random() < 0.5 for _ in range(size)]
        return found

    alarms = 0
    for _ in range(trials):
        before, after = ends(), ends()
        found = compared(
            [case(n, end, group=f"g{n // size}") for n, end in enumerate(before)],
            [case(n, end, group=f"g{n // size}") for n, end in enumerate(after)],
        )
        alarms += found.overall.is_significant
    return alarms / trials


@pytest.mark.parametrize(
    ("groups", "size", "trials"),
    [(50, 1, 400), (200, 1, 200), (50, 4, 300), (500, 4, 60)],
    ids=["50", "200", "50x4", "2000"],
)
def test_equal_evaluations_are_seldom_called_different(groups: int, size: int, trials: int) -> None:
    # At the 5 % level, give or take four standard errors of so many trials; seeded, so it is the same each time.
    alarms = chance_of_a_false_alarm(groups, size, trials, shared=0.7 if size > 1 else 0.0)
    assert alarms <= 0.05 + 4 * (0.05 * 0.95 / trials) ** 0.5


def test_ignoring_groups_would_raise_false_alarms() -> None:
    """The simulation can fail: without groups, what cases share looks like a difference."""
    chance = random.Random(8)
    alarms = 0
    for _ in range(200):
        ends = [[chance.random() < 0.5] * 8 for _ in range(2 * 25)]
        before, after = ([*chain.from_iterable(side)] for side in (ends[:25], ends[25:]))
        found = compared([case(n, end) for n, end in enumerate(before)], [case(n, end) for n, end in enumerate(after)])
        alarms += found.overall.is_significant
    assert alarms / 200 > 0.3


@pytest.mark.parametrize(("groups", "size", "rate"), [(200, 1, 0.9), (50, 4, 0.5), (60, 3, 0.8)])
def test_the_interval_of_a_rate_holds_the_truth_as_often_as_it_says(groups: int, size: int, rate: float) -> None:
    chance, held, trials = random.Random(3), 0, 300
    for _ in range(trials):
        cases = []
        for group in range(groups):
            # Each group has a rate of its own, around the true one.
            own = chance.betavariate(4 * rate, 4 * (1 - rate))
            cases += [case(group * size + n, chance.random() < own, group=f"g{group}") for n in range(size)]
        interval = summary(cases, clustered=size > 1).overall.interval
        assert interval is not None
        held += interval.low <= rate <= interval.high
    assert held / trials >= 0.95 - 4 * (0.95 * 0.05 / trials) ** 0.5


def test_few_groups_and_equal_changes_have_no_interval() -> None:
    def run(groups: int, *, passed: bool) -> list[CaseSummary]:
        return [case(10 * group + n, passed, group=f"g{group}") for group in range(groups) for n in range(2)]

    for groups in (2, 10):
        found = compared(run(groups, passed=False), run(groups, passed=True)).overall
        assert (found.difference, found.interval, found.p) == (1.0, None, None)
        assert found.why_not


def test_repeats_of_a_case_are_one_pair() -> None:
    before = [case(n, False, repeat=repeat) for n in range(6) for repeat in range(2)]
    after = [case(n, n % 2 == 0, repeat=repeat) for n in range(6) for repeat in range(2)]
    assert compared(before, after).overall.cases == 6


def test_a_tag_with_very_many_values_is_cut() -> None:
    found = summary([case(n, True, tag=f"v{n}") for n in range(MAX_TAG_VALUES + 5)])
    assert len(found.tags["kind"]) == MAX_TAG_VALUES
    assert found.overall.cases == MAX_TAG_VALUES + 5


@given(st.randoms(use_true_random=False), st.booleans())
def test_which_values_of_a_tag_are_counted_depends_on_no_order(order: random.Random, grouped: bool) -> None:
    names = [f"v{n:03}" for n in range(MAX_TAG_VALUES + 30)]
    cases = [case(n, n % 3 != 0, tag=name) for n, name in enumerate([*names, *names])]
    order.shuffle(cases)
    found = summary(cases, clustered=grouped).tags["kind"]
    assert sorted(found) == names[:MAX_TAG_VALUES]
    assert {one.cases for one in found.values()} == {2}


def test_each_tag_is_compared_by_itself_and_adjusted() -> None:
    """Of the same cases, and allowing for the number of tags."""
    before = [case(n, False, tag="even" if n % 2 == 0 else "odd") for n in range(40)]
    after = [case(n, n % 2 == 0 and n % 8 != 0, tag="even" if n % 2 == 0 else "odd") for n in range(40)]
    found = compared(before, after)
    even, odd = found.tags["kind"]["even"], found.tags["kind"]["odd"]
    assert (even.cases, even.difference, odd.difference) == (20, 0.75, 0.0)
    assert even.p is not None
    assert even.p_holm == pytest.approx(2 * even.p)
    assert adjust_family([found, found])[0].tags["kind"]["even"].p_holm == pytest.approx(4 * even.p)
    assert sum(one.cases for one in found.tags["kind"].values()) == found.overall.cases
    many = [case(n, True, tag=f"t{n}") for n in range(40)]
    assert len(compared(many, many).tags["kind"]) == MOST_VALUES


def test_nothing_in_common_is_no_difference() -> None:
    counted = compare_counted(("a", CRITERIA), ("b", CRITERIA), [], [], only_first=3, only_second=2)
    alone = compare_evaluations(("a", [case(1, True)], CRITERIA), ("b", [case(2, True)], CRITERIA))
    assert counted.overall == alone.overall
    assert counted.overall.cases == 0
