"""The statistics of a report, by their textbook formulas; tests compare them with scipy.

They are implemented here so that a report does not need scipy.
"""

import math
import random
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain, repeat
from statistics import NormalDist

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval

FEWEST_TASKS = 5
"""The fewest tasks for an interval: with fewer, Student's t is too optimistic."""
FEWEST_TO_RESAMPLE = 30
"""The fewest tasks for a bootstrap of totals: with fewer, its interval is too narrow."""
RESAMPLES = 2_000
SEED = 8
"""The seed of every bootstrap, so that a report can be built again to the byte."""
LEVEL = 0.95
MDE_FACTOR = 2.80
"""Standard errors of a difference that a test at 5 % detects in 80 % of cases: 1.96 + 0.84."""
SMALLEST_P = 1e-12
"""The smallest probability that is distinguished."""
MOST_EXACT = 50
"""Up to this number of differences, Wilcoxon's distribution is exact; beyond, it is normal."""
MOST_COUNTED_OUT = 10_000
"""Up to this number of runs, Fisher's test is exact."""
_DECIMALS = 12
"""Differences that are equal to so many decimals are ties: 0.6 − 0.4 and 0.8 − 0.6 differ in the 17th."""
MOST_SUMMED = 1_000
"""Degrees of freedom up to which the probability of t is a sum of terms."""
MOST_STEPS = 10_000
"""Of a continued fraction; some dozens are enough."""
Z = NormalDist().inv_cdf((1 + LEVEL) / 2)


class Mean(Record, frozen=True):
    """The mean of one number for each task, with its interval."""

    tasks: int
    mean: float
    se: float | None = None
    interval: ConfidenceInterval | None = None
    p: float | None = None
    """The probability of this mean if the true mean is zero."""
    mde: float | None = None
    """The smallest difference that so many tasks detect in 80 % of cases."""
    why_not: str = ""
    """Why the interval is missing."""


class SignedRanks(Record, frozen=True):
    """The result of Wilcoxon's signed-rank test."""

    statistic: float
    """The smaller sum of ranks."""
    differences: int
    """How many differences are not zero."""
    p: float
    exact: bool
    """Whether the probability is exact, not from the normal distribution."""


# Student's t.


def t_p_value(t: float, freedom: int) -> float:
    """The two-sided probability of t (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    if freedom > MOST_SUMMED:
        return _clamp_p(_p_of_many(abs(t), freedom))
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, series = cosine if odd else 1.0, []
    for step in range(1 + odd, freedom, 2):
        series.append(term)
        term *= cosine * cosine * step / (step + 1)
    within = sine * math.fsum(series)
    return _clamp_p(1 - (2 / math.pi * (angle + within) if odd else within))


def _p_of_many(t: float, freedom: int) -> float:
    """The same for many degrees of freedom: the incomplete beta function of f / (f + t²), f / 2 and 1 / 2.

    As a continued fraction (Abramowitz and Stegun, 26.5.8): a sum would have a term for every second degree.
    """
    if not t:
        return 1.0
    a, square = freedom / 2, t * t
    # Of gamma(a + 1/2) / gamma(a), whose logarithms would lose digits.
    gammas = math.sqrt(a) * (1 - 1 / (8 * a) + 1 / (128 * a**2) + 5 / (1024 * a**3) - 21 / (32768 * a**4))
    power = math.exp(-(a + 0.5) * math.log1p(square / freedom))
    front = gammas / math.sqrt(math.pi) * power * t / math.sqrt(freedom)
    if square > 3:
        return front / a * _beta_fraction(a, 0.5, freedom / (freedom + square))
    return 1 - 2 * front * _beta_fraction(0.5, a, square / (freedom + square))


def _beta_fraction(a: float, b: float, x: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    found = d
    for m in range(1, MOST_STEPS):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d)
            c = 1 + numerator / c
            found *= c * d
        if abs(c * d - 1) < 1e-16:
            break
    return found


@lru_cache(maxsize=1024)
def t_quantile(freedom: int, level: float = LEVEL) -> float:
    """The two-sided quantile of t."""
    low, high = 0.0, 1.0
    while t_p_value(high, freedom) > 1 - level:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_p_value(middle, freedom) > 1 - level else (low, middle)
    return (low + high) / 2


def mean_of(numbers: Sequence[float]) -> Mean:
    """The mean over tasks, one number each, with Student's interval, or the reason why it is missing."""
    return mean_of_counts(Counter(numbers))


def mean_of_counts(counts: Mapping[float, int]) -> Mean:
    """The same for numbers that occur several times each; sums are exact, so that nothing depends on it."""
    tasks = sum(counts.values())
    if not tasks:
        return Mean(0, math.nan, why_not="no tasks")
    mean = math.fsum(_several(counts, float)) / tasks
    if tasks < FEWEST_TASKS:
        return Mean(tasks, mean, why_not=f"{tasks} of the {FEWEST_TASKS} tasks that an interval needs")
    spread = math.fsum(_several(counts, lambda one: (one - mean) ** 2)) / (tasks - 1)
    se = math.sqrt(spread / tasks)
    if se <= 10**-_DECIMALS * max(1.0, abs(mean)):
        # All values are equal: t has no spread, but ranks still give a probability.
        ranks = wilcoxon_signed_rank([*_several(counts, float)])
        return Mean(tasks, mean, 0.0, p=ranks.p, why_not="no spread: all tasks have the same value")
    reach = t_quantile(tasks - 1) * se
    return Mean(
        tasks=tasks,
        mean=mean,
        se=se,
        interval=ConfidenceInterval(mean - reach, mean + reach),
        p=t_p_value(mean / se, tasks - 1),
        mde=mde(se),
    )


def _several(counts: Mapping[float, int], of: Callable[[float], float]) -> Iterator[float]:
    """A function of each number, as often as the number occurs."""
    return chain.from_iterable(repeat(of(number), times) for number, times in counts.items())


def mde(se: float) -> float:
    """The minimal detectable difference."""
    return MDE_FACTOR * se


# Ranks.


def wilcoxon_signed_rank(differences: Sequence[float]) -> SignedRanks:
    """Wilcoxon's signed-rank test, both sides; zeros are left out, ties share their ranks."""
    counted = [one for one in (round(one, _DECIMALS) for one in differences) if one]
    sizes = sorted(abs(one) for one in counted)
    # Twice the middle rank is whole, ties or not.
    doubled = [bisect_left(sizes, abs(one)) + bisect_right(sizes, abs(one)) + 1 for one in counted]
    up = sum(rank for rank, one in zip(doubled, counted, strict=True) if one > 0)
    smaller = min(up, sum(doubled) - up)
    number = len(counted)
    if not number:
        return SignedRanks(0.0, 0, 1.0, exact=True)
    exact = number <= MOST_EXACT
    p = _exact_p(doubled, smaller) if exact else _normal_p(sizes, smaller / 2)
    return SignedRanks(smaller / 2, number, p, exact)


def _exact_p(doubled: Sequence[int], smaller: int) -> float:
    """The share of all sign assignments that are at least this uneven."""
    ways = [1]
    for rank in doubled:
        ways = [a + b for a, b in zip([*ways, *[0] * rank], [*[0] * rank, *ways], strict=True)]
    return _clamp_p(2 * sum(ways[: smaller + 1]) / 2 ** len(doubled))


def _normal_p(sizes: Sequence[float], smaller: float) -> float:
    number = len(sizes)
    ties = sum(count**3 - count for count in Counter(sizes).values())
    spread = math.sqrt((number * (number + 1) * (2 * number + 1) - ties / 2) / 24)
    return _clamp_p(math.erfc(abs(smaller - number * (number + 1) / 4) / spread / math.sqrt(2)))


def cliffs_delta(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Cliff's delta: how much more often one of ours is above one of theirs than below, between −1 and 1."""
    order = sorted(theirs)
    above = sum(bisect_left(order, one) for one in ours)
    below = sum(len(order) - bisect_right(order, one) for one in ours)
    return (above - below) / (len(ours) * len(theirs))


def holm(chances: Sequence[float]) -> list[float]:
    """Adjust the probabilities of one family of tests (Holm, 1979)."""
    adjusted, highest = [0.0] * len(chances), 0.0
    for place, number in enumerate(sorted(range(len(chances)), key=chances.__getitem__)):
        highest = max(highest, min(1.0, (len(chances) - place) * chances[number]))
        adjusted[number] = highest
    return adjusted


# Shares.


def wilson(rate: float, number: float, quantile: float = Z) -> ConfidenceInterval:
    """Wilson's interval of a share among so many independent tries."""
    spread = quantile * quantile / number
    middle = (rate + spread / 2) / (1 + spread)
    reach = quantile * math.sqrt(rate * (1 - rate) / number + spread / (4 * number)) / (1 + spread)
    # At 0 and at 1 the last digit may fall on the wrong side.
    return ConfidenceInterval(max(0.0, min(rate, middle - reach)), min(1.0, max(rate, middle + reach)))


def cluster_robust_error(groups: Sequence[Sequence[float]]) -> float:
    """The standard error of the mean over runs, clustered by task."""
    runs, number = sum(map(len, groups)), len(groups)
    mean = math.fsum(one for group in groups for one in group) / runs
    apart = math.fsum((math.fsum(group) - mean * len(group)) ** 2 for group in groups)
    return math.sqrt(number / (number - 1) * apart) / runs


def share_interval(groups: Sequence[Sequence[float]]) -> ConfidenceInterval | None:
    """The interval of a share: Wilson's, with the effective number of runs where tasks were repeated.

    The repeats of one task count as between one run and all of them, by how much tasks differ (Dean and Pagano, 2015).
    """
    runs, tasks = sum(map(len, groups)), len(groups)
    if not runs:
        return None
    rate = math.fsum(one for group in groups for one in group) / runs
    if runs == tasks:
        return wilson(rate, runs)
    if tasks < FEWEST_TASKS:
        return None
    error = cluster_robust_error(groups)
    # Equal tasks are strong evidence where their runs differ, and weak where none does.
    worth = rate * (1 - rate) / error**2 if error else runs * (0 < rate < 1)
    return wilson(rate, min(max(worth, tasks), runs), t_quantile(tasks - 1))


def fisher(met: int, missed: int, others_met: int, others_missed: int) -> float:
    """The probability that two shares differ this much by chance (Fisher; normal for many runs)."""
    ours, theirs, all_met = met + missed, others_met + others_missed, met + others_met
    total = ours + theirs
    if not ours or not theirs or all_met in (0, total):
        return 1.0
    if total > MOST_COUNTED_OUT:
        rate = all_met / total
        spread = math.sqrt(rate * (1 - rate) * (1 / ours + 1 / theirs))
        return _clamp_p(math.erfc(abs(met / ours - others_met / theirs) / spread / math.sqrt(2)))
    possible = range(max(0, all_met - theirs), min(all_met, ours) + 1)
    ways = {one: math.comb(ours, one) * math.comb(theirs, all_met - one) for one in possible}
    return _clamp_p(sum(way for way in ways.values() if way <= ways[met]) / math.comb(total, all_met))


def _clamp_p(p: float) -> float:
    return min(1.0, max(SMALLEST_P, p))


# Bootstrap: tasks are drawn, with all that belongs to each.


def bootstrap_samples(tasks: int) -> Iterator[list[int]]:
    """Tasks drawn with replacement, the same at every call."""
    # Python promises that random() gives the same numbers in every version.
    chance = random.Random(SEED).random  # noqa: S311 - not for secrets
    for _ in range(RESAMPLES):
        yield [int(chance() * tasks) for _ in range(tasks)]


def bootstrap_totals(columns: Sequence[Sequence[float]]) -> list[list[float]]:
    """The totals of each agent over bootstrap samples of the same tasks."""
    totals: list[list[float]] = [[] for _ in columns]
    for picked in bootstrap_samples(len(columns[0]) if columns else 0):
        for total, column in zip(totals, columns, strict=True):
            total.append(math.fsum(map(column.__getitem__, picked)))
    return totals


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> ConfidenceInterval | None:
    """The interval of a ratio of totals over bootstrap samples; None where a divisor is zero."""
    ratios = [one / other for one, other in zip(ours, theirs, strict=True) if other > 0]
    return percentile_interval(ratios) if len(ratios) == len(ours) else None


def rank_intervals(totals: Sequence[Sequence[float]], *, high_is_good: bool) -> list[ConfidenceInterval]:
    """The interval of each agent's rank over bootstrap samples; equal agents share the better rank."""
    sign = -1.0 if high_is_good else 1.0
    places: list[list[float]] = [[] for _ in totals]
    for several in zip(*totals, strict=True):
        own = [round(sign * one, _DECIMALS) for one in several]
        order = sorted(own)
        for place, one in zip(places, own, strict=True):
            place.append(1.0 + bisect_left(order, one))
    return [percentile_interval(place) for place in places]


def percentile_interval(numbers: Sequence[float]) -> ConfidenceInterval:
    """The range of the middle 95 %."""
    order = sorted(numbers)
    outside = int(len(order) * (1 - LEVEL) / 2)
    return ConfidenceInterval(order[outside], order[-1 - outside])


# Many tries of one task.


def over_tasks(
    tries: Sequence[tuple[int, int]], most: int, chance: Callable[[int, int, int], float]
) -> dict[str, float]:
    """The mean over tasks of a probability for 1, 2, … tries; each task is (tries, successes).

    Only for as many tries as every task has, so that all numbers are over the same tasks.
    """
    fewest = min((number for number, _ in tries), default=0)
    return {
        str(k): math.fsum(chance(number, passes, k) for number, passes in tries) / len(tries)
        for k in range(1, min(fewest, most) + 1)
    }
