"""A judged pass rate, corrected by people's labels: the difference estimator (prediction-powered inference). Pure.

The judge's answers are known for all N cases, labels for n of them that were drawn at random. The estimate is the
judge's mean over all cases plus the mean error that the labels show:

    lambda * mean_N(f) + mean_n(Y - lambda * f)

It is right on average for any judge, however wrong: f only narrows the interval. So a case that the judge did not
decide may have any value; it has one half. `lambda` is the weight that makes the interval narrowest,
cov(Y, f) / var(f), between 0 and 1. With fewer than CROSS_FIT_BELOW labels each label uses a weight that was estimated
without it.

With few labels, or few errors among them, the labels alone show too little spread. So two labels are added that stand
for each combination of judge and truth alike, as Agresti and Min (2005) do for pairs of shares.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

import msgspec

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import t_p_value, t_quantile

FEWEST_LABELS = 10
"""Labels that an interval needs at least."""
CROSS_FIT_BELOW = 100
FOLDS = 10
UNDECIDED = 0.5
"""The value of a case that the judge did not decide."""
PSEUDO_LABELS = 2.0
"""What the added labels weigh together."""
LEAST_SPREAD = 1e-12


class Target(StrEnum):
    """What a rate is about."""

    THESE = "these"
    """The cases at hand: the only chance is which of them were labelled."""
    LIKE_THESE = "like_these"
    """All cases like these: the cases at hand are a sample too."""


class RatedCase(Record, frozen=True):
    """One case: what the judge says, and what people say where it was drawn and labelled."""

    judged: float
    """Between 0 and 1; for a comparison, the second minus the first."""
    truth: float | None = None
    """None where it has no label."""
    probability: float = 1.0
    """Of being drawn and labelled; only where it is."""
    stratum: str = ""
    group: str = ""
    """Cases that share something; empty where it shares nothing."""


class CorrectedMean(Record, frozen=True):
    """The judge's mean, as it is and corrected by labels."""

    target: Target
    cases: int
    labels: int
    raw: float | None
    """The judge's mean over all cases."""
    estimate: float | None
    interval: ConfidenceInterval | None
    """At 95 %."""
    p: float | None = None
    """The probability of an estimate this far from zero by chance."""
    weight: float | None = None
    """Lambda: how far the judge is relied on. 0 means labels alone."""
    why_not: str = ""
    """Why the estimate or the interval is missing."""


_Label = tuple[RatedCase, float]
"""A labelled case, and what it weighs."""


def correct_rate(cases: Sequence[RatedCase], target: Target = Target.THESE) -> CorrectedMean:
    """Correct a share between 0 and 1."""
    corners = [(judged, truth, PSEUDO_LABELS / 4) for judged in (0.0, 1.0) for truth in (0.0, 1.0)]
    return _correct(cases, target, corners, low=0.0, high=1.0)


def correct_difference(cases: Sequence[RatedCase], target: Target = Target.THESE) -> CorrectedMean:
    """Correct the mean difference of pairs, between -1 and 1."""
    # What two independent shares of one half differ by.
    steps = ((-1.0, 0.25), (0.0, 0.5), (1.0, 0.25))
    corners = [(judged, truth, PSEUDO_LABELS * a * b) for judged, a in steps for truth, b in steps]
    return _correct(cases, target, corners, low=-1.0, high=1.0)


def _correct(
    cases: Sequence[RatedCase],
    target: Target,
    corners: Iterable[tuple[float, float, float]],
    *,
    low: float,
    high: float,
) -> CorrectedMean:
    real = [(case, 1 / case.probability) for case in cases if case.truth is not None]
    if not cases:
        return CorrectedMean(
            target=target, cases=0, labels=0, raw=None, estimate=None, interval=None, why_not="there are no cases"
        )
    raw = math.fsum(case.judged for case in cases) / len(cases)
    if not real:
        return CorrectedMean(
            target=target,
            cases=len(cases),
            labels=0,
            raw=raw,
            estimate=None,
            interval=None,
            why_not="no case that was drawn has a label",
        )
    typical = math.fsum(weight for _, weight in real) / len(real)
    added = [(RatedCase(judged, truth), typical * times) for judged, truth, times in corners]
    weigh = _weights(real, added)
    # What each label says of the rate: its truth, moved by what the judge says of all cases and of this one.
    errors = [_truth(case) - weigh(place) * (case.judged - raw) for place, (case, _) in enumerate(real)]
    extra = [_truth(case) - weigh(None) * (case.judged - raw) for case, _ in added]
    total = math.fsum(weight for _, weight in real)
    estimate = math.fsum(error * weight for error, (_, weight) in zip(errors, real, strict=True)) / total
    estimate = min(high, max(low, estimate))
    found = CorrectedMean(
        target=target, cases=len(cases), labels=len(real), raw=raw, estimate=estimate, interval=None, weight=weigh(None)
    )
    if len(real) < FEWEST_LABELS:
        return msgspec.structs.replace(
            found, why_not=f"{len(real)} of the {FEWEST_LABELS} labels that an interval needs"
        )
    moved = _mean([*errors, *extra], [weight for _, weight in (*real, *added)])
    spread = _Spread(cases, real, added, errors, extra, moved)
    unseen = 1 - math.fsum(case.probability for case, _ in real) / len(real)
    if target is Target.THESE:
        centre, variance, freedom = estimate + unseen * (moved - estimate), spread.of_these(), len(real)
    else:
        centre = moved
        variance, freedom = spread.of_like_these(raw, weigh(None))
    error = math.sqrt(max(0.0, variance))
    reach = t_quantile(freedom) * error
    interval = ConfidenceInterval(max(low, min(estimate, centre - reach)), min(high, max(estimate, centre + reach)))
    p = t_p_value(centre / error, freedom) if error > LEAST_SPREAD else None
    return msgspec.structs.replace(found, interval=interval, p=p)


class _Spread:
    """The variance of an estimate, for either target."""

    def __init__(
        self,
        cases: Sequence[RatedCase],
        real: Sequence[_Label],
        added: Sequence[_Label],
        errors: Sequence[float],
        extra: Sequence[float],
        moved: float,
    ) -> None:
        self._cases, self._real, self._errors = cases, real, errors
        self._typical = math.fsum(weight for _, weight in real) / len(real)
        self._total = math.fsum(weight for _, weight in (*real, *added))
        self._mean = moved
        self._extra = [
            (error - moved) ** 2 * self._typical * weight for error, (_, weight) in zip(extra, added, strict=True)
        ]

    def of_these(self) -> float:
        """Chance is in the draw only: the more of the cases are labelled, the less is left to it."""
        seen = math.fsum(case.probability for case, _ in self._real) / len(self._real)
        return (self._within_strata() + (1 - seen) * math.fsum(self._extra)) / self._total**2

    def _within_strata(self) -> float:
        strata: dict[str, list[int]] = {}
        for place, (case, _) in enumerate(self._real):
            strata.setdefault(case.stratum, []).append(place)
        found = 0.0
        for places in strata.values():
            number = len(places)
            # One label shows no spread of its own: it is compared with all.
            alone = number < 2
            around = self._mean if alone else math.fsum(self._errors[place] for place in places) / number
            scale = 1.0 if alone else number / (number - 1)
            for place in places:
                case, weight = self._real[place]
                found += scale * (1 - case.probability) * (weight * (self._errors[place] - around)) ** 2
        return found

    def of_like_these(self, raw: float, relied: float) -> tuple[float, int]:
        """Chance is in the cases too: groups of them are what is drawn. Also the degrees of freedom."""
        sums: dict[str, float] = {}
        labelled: set[str] = set()
        place = 0
        for number, case in enumerate(self._cases):
            name = case.group or f"\0{number}"
            moved = relied * (case.judged - raw) / len(self._cases)
            if case.truth is not None:
                moved += self._real[place][1] * (self._errors[place] - self._mean) / self._total
                labelled.add(name)
                place += 1
            sums[name] = sums.get(name, 0.0) + moved
        groups = len(sums)
        clustered = math.fsum(one * one for one in sums.values()) * groups / max(1, groups - 1)
        freedom = len(self._real) if groups == len(self._cases) else max(1, len(labelled) - 1)
        return clustered + math.fsum(self._extra) / self._total**2, freedom


def _weights(real: Sequence[_Label], added: Sequence[_Label]) -> Callable[[int | None], float]:
    """Lambda for the label at each place; None asks for that of all labels."""
    whole = _best_weight([*real, *added])
    if len(real) >= CROSS_FIT_BELOW:
        return lambda _: whole
    folds = min(FOLDS, len(real))
    without = [
        _best_weight([*(one for place, one in enumerate(real) if place % folds != fold), *added])
        for fold in range(folds)
    ]
    return lambda place: whole if place is None else without[place % folds]


def _best_weight(labels: Sequence[_Label]) -> float:
    """cov(Y, f) / var(f), between 0 and 1."""
    weights = [weight for _, weight in labels]
    judged = _mean([case.judged for case, _ in labels], weights)
    truth = _mean([_truth(case) for case, _ in labels], weights)
    spread = _mean([(case.judged - judged) ** 2 for case, _ in labels], weights)
    common = _mean([(case.judged - judged) * (_truth(case) - truth) for case, _ in labels], weights)
    return min(1.0, max(0.0, common / spread)) if spread > LEAST_SPREAD else 0.0


def _truth(case: RatedCase) -> float:
    return 0.0 if case.truth is None else case.truth


def _mean(numbers: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(n * w for n, w in zip(numbers, weights, strict=True)) / math.fsum(weights)
