"""How far people agree: Cohen's and Fleiss' kappa, Krippendorff's alpha and Gwet's AC1, with intervals over cases.

Each case is given as the choices of its labellers, by their names; who did not label it is left out. All four are 1 for
perfect agreement and 0 for what chance gives. They differ in what they take chance to be: with a skewed base rate the
kappas and alpha fall although people agree on nearly all cases, and AC1 does not. So they are shown side by side.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import FEWEST_TO_RESAMPLE, bootstrap_samples, percentile_interval

Ratings = Sequence[Mapping[str, str]]
"""For each case, the choice of each labeller."""
CountedRatings = Sequence[tuple[Mapping[str, str], int]]
"""Distinct ratings of a case, each with the number of cases that have them."""
LEAST_SPREAD = 1e-12
"""Where chance alone agrees this nearly always, a coefficient is not defined."""
MOST_UNDEFINED = 0.05
"""The share of resamples that may leave a coefficient undefined before its interval is withheld."""


class Coefficient(Record, frozen=True):
    """One coefficient of agreement with its interval."""

    value: float | None
    interval: ConfidenceInterval | None = None
    """At 95 %, by a bootstrap over cases."""
    why_not: str = ""
    """Why the value or its interval is missing."""


class Agreement(Record, frozen=True):
    """How far the labellers of a set of cases agree."""

    cases: int
    """Cases with at least two labels."""
    labellers: int
    labels: int
    agreed: float | None
    """The share of pairs of labels of one case that are equal."""
    cohen: Coefficient
    """For exactly two labellers."""
    fleiss: Coefficient
    """Where every case has the same number of labels."""
    krippendorff: Coefficient
    """For any number of labellers and missing labels."""
    gwet: Coefficient
    """AC1, which a skewed base rate does not mislead."""


def agreement_of(ratings: Ratings) -> Agreement:
    """All coefficients over the cases that at least two people labelled."""
    several = [case for case in ratings if len(case) > 1]
    people = {name for case in several for name in case}
    return Agreement(
        cases=len(several),
        labellers=len(people),
        labels=sum(map(len, several)),
        agreed=percent_agreement(count_ratings(several)),
        cohen=_cohen(several, people),
        fleiss=_fleiss(several),
        krippendorff=_with_interval(several, krippendorff_alpha),
        gwet=_with_interval(several, gwet_ac1),
    )


def count_ratings(ratings: Ratings) -> CountedRatings:
    """The distinct ratings, each with its number of cases."""
    return [(dict(key), count) for key, count in Counter(map(_key, ratings)).items()]


def interval_over_cases(
    ratings: Ratings, measure: Callable[[CountedRatings], float | None]
) -> tuple[ConfidenceInterval | None, str]:
    """The interval of a measure by resampling cases; or the reason why there is none."""
    if len(ratings) < FEWEST_TO_RESAMPLE:
        return None, f"{len(ratings)} of the {FEWEST_TO_RESAMPLE} cases that an interval needs"
    distinct = {_key(case): case for case in ratings}
    keys = [_key(case) for case in ratings]
    # Cases with equal ratings are counted instead of listed: there are few kinds, however many cases there are.
    samples = (Counter(map(keys.__getitem__, picked)) for picked in bootstrap_samples(len(keys)))
    values = [measure([(distinct[key], count) for key, count in sample.items()]) for sample in samples]
    found = [value for value in values if value is not None]
    if len(found) < len(values) * (1 - MOST_UNDEFINED):
        return None, "too few of the cases differ for an interval"
    return percentile_interval(found), ""


def percent_agreement(ratings: CountedRatings) -> float | None:
    """The mean over cases of the share of pairs of labels that are equal; None without a case of two labels."""
    several = [(case, times) for case, times in ratings if len(case) > 1]
    number = sum(times for _, times in several)
    return math.fsum(_agreeing_share(case) * times for case, times in several) / number if number else None


def cohen_kappa(ratings: CountedRatings) -> float | None:
    """Cohen's kappa of two labellers; None where chance agreement is perfect or no case has both labels."""
    names = sorted({name for case, _ in ratings for name in case})
    both = [([case[name] for name in names], times) for case, times in ratings if len(case) == 2]
    number = sum(times for _, times in both)
    if not number:
        return None
    first: Counter[str] = Counter()
    second: Counter[str] = Counter()
    agreed = 0
    for (one, other), times in both:
        first[one] += times
        second[other] += times
        agreed += times * (one == other)
    chance = sum(count * second[choice] for choice, count in first.items()) / number**2
    return _beyond_chance(agreed / number, chance)


def fleiss_kappa(ratings: CountedRatings) -> float | None:
    """Fleiss' kappa; every case has the same number of labels, at least two."""
    observed = percent_agreement(ratings)
    if observed is None:
        return None
    totals = _choices(ratings)
    labels = totals.total()
    return _beyond_chance(observed, math.fsum((count / labels) ** 2 for count in totals.values()))


def krippendorff_alpha(ratings: CountedRatings) -> float | None:
    """Krippendorff's alpha of names (nominal data), with missing labels; None where all labels are equal."""
    several = [(case, times) for case, times in ratings if len(case) > 1]
    totals = _choices(several)
    labels = totals.total()
    expected = labels**2 - sum(count**2 for count in totals.values())
    if not expected:
        return None
    apart = math.fsum((1 - _agreeing_share(case)) * len(case) * times for case, times in several)
    return 1 - (labels - 1) * apart / expected


def gwet_ac1(ratings: CountedRatings) -> float | None:
    """Gwet's AC1 with missing labels; None without a case of two labels, or where only one choice is used."""
    observed = percent_agreement(ratings)
    shares: dict[str, float] = {}
    number = 0
    for case, times in ratings:
        number += times * bool(case)
        for choice in case.values():
            shares[choice] = shares.get(choice, 0.0) + times / len(case)
    if observed is None or len(shares) < 2:
        return None
    spread = math.fsum(share / number * (1 - share / number) for share in shares.values())
    return _beyond_chance(observed, spread / (len(shares) - 1))


def _cohen(several: Ratings, people: set[str]) -> Coefficient:
    if len(people) != 2:
        return Coefficient(None, why_not=f"Cohen's kappa is for two labellers; there are {len(people)}")
    return _with_interval(several, cohen_kappa)


def _fleiss(several: Ratings) -> Coefficient:
    if len({len(case) for case in several}) > 1:
        return Coefficient(None, why_not="cases have different numbers of labels; see Krippendorff's alpha")
    return _with_interval(several, fleiss_kappa)


def _with_interval(several: Ratings, measure: Callable[[CountedRatings], float | None]) -> Coefficient:
    if not several:
        return Coefficient(None, why_not="no case has two labels")
    value = measure(count_ratings(several))
    if value is None:
        return Coefficient(None, why_not="all labels are the same choice, so chance agreement is perfect too")
    return Coefficient(value, *interval_over_cases(several, measure))


def _key(case: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(case.items()))


def _choices(ratings: CountedRatings) -> Counter[str]:
    found: Counter[str] = Counter()
    for case, times in ratings:
        for choice in case.values():
            found[choice] += times
    return found


def _agreeing_share(case: Mapping[str, str]) -> float:
    labels = len(case)
    return sum(count * (count - 1) for count in Counter(case.values()).values()) / (labels * (labels - 1))


def _beyond_chance(observed: float, chance: float) -> float | None:
    return None if 1 - chance <= LEAST_SPREAD else (observed - chance) / (1 - chance)
