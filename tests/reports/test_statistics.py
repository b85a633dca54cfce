"""The statistics against scipy, against tables that were printed, and against counting everything out."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.benchmarks.score import pass_at_k, pass_hat_k
from meruit.reports.statistics import (
    MDE_FACTOR,
    bootstrap_samples,
    bootstrap_totals,
    cliffs_delta,
    cluster_robust_error,
    fisher,
    holm,
    mde,
    mean_of,
    over_tasks,
    rank_intervals,
    ratio_interval,
    share_interval,
    t_p_value,
    t_quantile,
    wilcoxon_signed_rank,
    wilson,
)

DIFFERENCES = st.lists(st.floats(-5, 5).map(lambda one: round(one, 3)), min_size=5, max_size=60)


# Any: scipy has no types of its own. It takes seconds to load, so only the tests that ask it do.
def scipy_stats() -> Any:
    from scipy import stats  # type: ignore[import-untyped]  # as above

    return stats


# Printed tables.


@pytest.mark.parametrize(
    ("freedom", "printed"),
    [(1, 12.706), (2, 4.303), (4, 2.776), (9, 2.262), (19, 2.093), (30, 2.042), (120, 1.980), (999, 1.962)],
)
def test_students_quantiles_are_those_of_every_table(freedom: int, printed: float) -> None:
    assert round(t_quantile(freedom), 3) == printed


@pytest.mark.parametrize(
    ("number", "critical"), [(6, 0), (7, 2), (8, 3), (9, 5), (10, 8), (12, 13), (15, 25), (20, 52)]
)
def test_signed_ranks_agree_with_wilcoxons_table_at_five_percent(number: int, critical: int) -> None:
    """The largest sum of ranks that is significant, both sides (Wilcoxon and Wilcox, 1964)."""
    assert wilcoxon_signed_rank(_with_sum(number, critical)).p <= 0.05
    assert wilcoxon_signed_rank(_with_sum(number, critical + 1)).p > 0.05


def _with_sum(number: int, ranks: int) -> list[float]:
    """Differences 1 to n whose positive ones have this sum of ranks."""
    positive = set()
    for rank in range(number, 0, -1):
        if rank <= ranks:
            positive.add(rank)
            ranks -= rank
    return [float(rank if rank in positive else -rank) for rank in range(1, number + 1)]


def test_darwins_plants() -> None:
    """Fisher's example of a paired t test (Design of Experiments, 1935): fifteen pairs, mean 20.93, t = 2.148."""
    found = mean_of([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48])
    assert found.se is not None
    assert found.interval is not None
    assert round(found.mean, 2) == 20.93
    assert round(found.mean / found.se, 3) == 2.148
    assert round(found.interval.low, 2) == 0.03
    assert round(found.p or 0, 4) == 0.0497


def test_holms_example() -> None:
    """Four chances: the smallest counts four times, and none falls below the one before it."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@pytest.mark.parametrize(
    ("met", "of", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilsons_intervals_are_those_that_newcombe_printed(met: int, of: int, low: float, high: float) -> None:
    """Newcombe, Statistics in Medicine 17 (1998), table I, method 3."""
    found = wilson(met / of, of)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_the_lady_tasting_tea() -> None:
    """Fisher's: of eight cups, three of four were told right on either side."""
    assert fisher(3, 1, 1, 3) == pytest.approx(34 / 70)
    assert fisher(4, 0, 0, 4) == pytest.approx(2 / 70)


@pytest.mark.parametrize(
    ("k", "at_least_one", "all_of_them"), [(1, 0.5, 0.5), (2, 11 / 14, 3 / 14), (4, 69 / 70, 1 / 70)]
)
def test_tries_in_closed_form(k: int, at_least_one: float, all_of_them: float) -> None:
    """Of eight tries four: 1 − C(4,k)/C(8,k) and C(4,k)/C(8,k)."""
    assert pass_at_k(8, 4, k) == pytest.approx(at_least_one)
    assert pass_hat_k(8, 4, k) == pytest.approx(all_of_them)


def test_the_plug_in_overstates_and_the_estimate_does_not() -> None:
    """At n = 8, k = 4 and p = 0.7 the truth is 0.240; p̂⁴ reads 0.316 on average, which was simulated as 0.317."""
    chances = [math.comb(8, c) * 0.7**c * 0.3 ** (8 - c) for c in range(9)]
    plug_in = sum(chance * (c / 8) ** 4 for c, chance in enumerate(chances))
    unbiased = sum(chance * pass_hat_k(8, c, 4) for c, chance in enumerate(chances))
    assert round(plug_in, 3) == 0.316
    assert unbiased == pytest.approx(0.7**4)
    assert round(unbiased, 3) == 0.240


@pytest.mark.parametrize(("tasks", "repeats", "printed"), [(20, 5, 0.195), (50, 5, 0.123), (200, 3, 0.074)])
def test_what_so_many_tasks_can_find(tasks: int, repeats: int, printed: float) -> None:
    """Tasks of every difficulty alike: runs of one task vary by E[p(1−p)] = 1/6, agents' differences by 0.03."""
    se = math.sqrt((2 * (1 / 6) / repeats + 0.03) / tasks)
    assert round(mde(se), 3) == printed


def test_the_factor_is_a_test_at_five_percent_with_power_eighty() -> None:
    stats = scipy_stats()
    assert stats.norm.ppf(0.975) + stats.norm.ppf(0.8) == pytest.approx(MDE_FACTOR, abs=0.002)


# scipy.


@given(st.floats(0, 50), st.integers(1, 400) | st.integers(990, 10**7))
def test_students_chance_is_scipys(t: float, freedom: int) -> None:
    stats = scipy_stats()
    assert t_p_value(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), abs=1e-11)


@given(DIFFERENCES)
def test_the_paired_test_is_scipys(differences: Sequence[float]) -> None:
    stats = scipy_stats()
    found = mean_of(differences)
    if found.interval is None:
        assert len(set(differences)) == 1
        return
    theirs = stats.ttest_1samp(differences, 0)
    interval = theirs.confidence_interval()
    assert (found.interval.low, found.interval.high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert found.p == pytest.approx(max(theirs.pvalue, 1e-12), abs=1e-11)


@given(st.lists(st.integers(-9, 9), min_size=1, max_size=10))
def test_signed_ranks_are_counted_out_ties_and_all(differences: Sequence[int]) -> None:
    """Every way in which the signs could fall."""
    sizes = [abs(one) for one in differences if one]
    ranks = [(sum(other < one for other in sizes) + sum(other <= one for other in sizes) + 1) / 2 for one in sizes]
    observed = sum(rank for rank, one in zip(ranks, [one for one in differences if one], strict=True) if one > 0)
    smaller = min(observed, sum(ranks) - observed)
    ways = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=len(ranks))]
    assert wilcoxon_signed_rank(differences).p == pytest.approx(
        min(1, 2 * sum(one <= smaller for one in ways) / len(ways))
    )


@pytest.mark.parametrize("number", [3, 20, 50, 51, 300])
def test_signed_ranks_are_scipys(number: int) -> None:
    stats = scipy_stats()
    differences = [math.sin(7 * one) + 0.2 for one in range(1, number + 1)]
    theirs = stats.wilcoxon(differences, method="exact" if number <= 50 else "asymptotic")
    found = wilcoxon_signed_rank(differences)
    assert (found.statistic, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.exact is (number <= 50)


def test_many_ties_are_scipys_too() -> None:
    stats = scipy_stats()
    differences = [1.0, 2, -3, 4, 5, -6] * 15
    assert wilcoxon_signed_rank(differences).p == pytest.approx(stats.wilcoxon(differences, method="asymptotic").pvalue)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(0, 30), st.integers(0, 30))
def test_unequal_shares_are_scipys(a: int, b: int, c: int, d: int) -> None:
    stats = scipy_stats()
    assert fisher(a, b, c, d) == pytest.approx(stats.fisher_exact([[a, b], [c, d]]).pvalue, abs=1e-9)


def test_many_runs_use_the_normal_distribution() -> None:
    stats = scipy_stats()
    theirs = stats.chi2_contingency([[1000, 9000], [1100, 8900]], correction=False).pvalue
    assert fisher(1000, 9000, 1100, 8900) == pytest.approx(theirs)


@given(st.lists(st.floats(1e-12, 1), min_size=1, max_size=12))
def test_holm_is_what_stepping_down_says(chances: Sequence[float]) -> None:
    """The oracle goes down the list as Holm tells it, by significance and not by adjusting."""
    adjusted = holm(chances)
    for level in (0.001, 0.01, 0.05, 0.2):
        rejected, left = set[int](), len(chances)
        for number in sorted(range(len(chances)), key=chances.__getitem__):
            if chances[number] * left > level:
                break
            rejected.add(number)
            left -= 1
        assert {number for number, one in enumerate(adjusted) if one <= level} == rejected


@given(st.integers(0, 60), st.integers(1, 60))
def test_a_share_lies_in_its_interval(met: int, of: int) -> None:
    stats = scipy_stats()
    met = min(met, of)
    theirs = stats.binomtest(met, of).proportion_ci(method="wilson")
    found = wilson(met / of, of)
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    assert 0 <= found.low <= met / of <= found.high <= 1


# What must hold.


@given(DIFFERENCES)
def test_the_other_way_round_is_the_mirror_image(differences: Sequence[float]) -> None:
    one, other = mean_of(differences), mean_of([-one for one in differences])
    assert one.mean == -other.mean
    assert one.p == other.p
    if one.interval is not None and other.interval is not None:
        assert (one.interval.low, one.interval.high) == (-other.interval.high, -other.interval.low)
    assert wilcoxon_signed_rank(differences).p == wilcoxon_signed_rank([-one for one in differences]).p


def test_four_tasks_have_no_interval() -> None:
    found = mean_of([0.1, 0.2, 0.3, 0.4])
    assert found.interval is None
    assert found.mde is None
    assert "4 of the 5 tasks" in found.why_not
    assert share_interval([[1, 0], [1, 1], [0, 1], [1, 1]]) is None


def test_tasks_that_all_say_the_same_have_no_spread_and_still_a_chance() -> None:
    found = mean_of([1.0] * 8)
    assert found.interval is None
    assert found.p == pytest.approx(2 / 2**8)
    assert mean_of([0.0] * 8).p == 1.0


def test_no_task_is_no_mean() -> None:
    assert mean_of([]).tasks == 0
    assert math.isnan(mean_of([]).mean)
    assert share_interval([]) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9), st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_cliffs_delta_counts_every_pair(ours: Sequence[int], theirs: Sequence[int]) -> None:
    pairs = [(a > b) - (a < b) for a in ours for b in theirs]
    assert cliffs_delta(ours, theirs) == pytest.approx(sum(pairs) / len(pairs))
    assert cliffs_delta(ours, theirs) == -cliffs_delta(theirs, ours)


def test_runs_that_repeat_each_other_are_worth_one() -> None:
    """Ten tasks, each nine times the same: as sure as ten runs, and never surer."""
    alike = [[float(number % 2)] * 9 for number in range(10)]
    alone = share_interval([[float(number % 2)] for number in range(10)])
    found = share_interval(alike)
    assert found is not None
    assert alone is not None
    assert found.high - found.low >= alone.high - alone.low
    independent = share_interval([[1.0, 0.0]] * 45)
    assert independent is not None
    assert independent.high - independent.low < 0.22


def test_all_successes_are_not_certainty() -> None:
    found = share_interval([[1.0] * 5] * 10)
    assert found is not None
    assert found.low < 0.8
    assert found.high == 1.0


def test_the_error_of_single_runs_is_the_usual_one() -> None:
    values = [0.1, 0.4, 0.9, 0.3, 0.5]
    mean = sum(values) / 5
    usual = math.sqrt(sum((one - mean) ** 2 for one in values) / 4 / 5)
    assert cluster_robust_error([[one] for one in values]) == pytest.approx(usual)


def test_tasks_are_drawn_alike_every_time() -> None:
    assert [*itertools.islice(bootstrap_samples(7), 3)] == [*itertools.islice(bootstrap_samples(7), 3)]
    # Written down: should a Python ever draw otherwise, reports change, and this says so.
    assert next(bootstrap_samples(10)) == [2, 9, 1, 7, 0, 2, 9, 2, 6, 4]


def test_a_ratio_of_totals_lies_in_its_interval() -> None:
    ours = [1.0 + (number % 7) / 10 for number in range(40)]
    theirs = [2.0 + (number % 5) / 10 for number in range(40)]
    found = ratio_interval(*bootstrap_totals([ours, theirs]))
    assert found is not None
    assert found.low < sum(ours) / sum(theirs) < found.high
    assert ratio_interval([1.0], [0.0]) is None
    assert bootstrap_totals([]) == []


def test_places_are_intervals_and_equals_share_the_better_one() -> None:
    best, worst = [0.9] * 10, [0.1] * 10
    first, second, third = rank_intervals(bootstrap_totals([best, worst, best]), high_is_good=True)
    assert (first.low, first.high) == (third.low, third.high) == (1, 1)
    assert (second.low, second.high) == (3, 3)
    cheap, _ = rank_intervals(bootstrap_totals([worst, best]), high_is_good=False)
    assert cheap.high == 1


def test_tries_go_up_to_what_every_task_has() -> None:
    assert over_tasks([(3, 3), (5, 1)], 10, pass_hat_k).keys() == {"1", "2", "3"}
    assert over_tasks([(3, 3), (5, 1)], 2, pass_at_k)["1"] == pytest.approx((1 + 0.2) / 2)
    assert over_tasks([], 10, pass_at_k) == {}
