"""How often a judge is right, by people's labels: confusion matrix, both rates, kappa, and the same over time. Pure.

Only cases that were drawn at random say this of the judge. A case that was drawn with a smaller probability stands for
more cases, and weighs more.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import fisher, holm, wilson
from meruit.review.agreement import cohen_kappa, count_ratings, gwet_ac1, interval_over_cases

JUDGE, PEOPLE = "judge", "people"
MET, NOT_MET = "met", "not_met"
DRIFT_WINDOWS = 4
"""Parts of equal size into which labels are divided, in the order of the judge's work, to see drift."""
FEWEST_IN_WINDOW = 10
"""Labels that a window needs at least."""
DRIFTED = 0.05
"""The level of the test for drift."""


class JudgedLabel(Record, frozen=True):
    """A judge's answer and what people say, for one case that was drawn at random."""

    case_id: str
    judged: bool | None
    """None where the judge did not decide."""
    labelled: bool | None
    """None where people did not decide, or contradict each other."""
    probability: float = 1.0
    """Of being drawn and labelled."""
    tags: Mapping[str, str] = {}
    at_micros: int = 0
    """When the judge answered."""


class ConfusionMatrix(Record, frozen=True):
    """How many cases of each kind; people's labels are the truth."""

    true_positive: int
    false_positive: int
    """The judge says met, people say not met."""
    false_negative: int
    """The judge says not met, people say met."""
    true_negative: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.true_positive + self.false_positive + self.false_negative + self.true_negative


class JudgeRate(Record, frozen=True):
    """A rate of the judge, with its interval."""

    labels: int
    """Labels that it rests on."""
    value: float | None
    interval: ConfidenceInterval | None
    """Wilson's, at 95 %."""


class Calibration(Record, frozen=True):
    """What random labels say of a judge."""

    labels: int
    """Cases that both people and the judge decided."""
    matrix: ConfusionMatrix
    tpr: JudgeRate
    """Of the cases that people call met, the share that the judge calls met."""
    tnr: JudgeRate
    """Of the cases that people call not met, the share that the judge calls not met."""
    accuracy: JudgeRate
    kappa: float | None
    """Cohen's, between the judge and people."""
    kappa_interval: ConfidenceInterval | None
    ac1: float | None
    ac1_interval: ConfidenceInterval | None
    undecided: int
    """Labelled cases that the judge did not decide."""
    cannot_tell: int
    """Cases that people did not decide, or on which they contradict each other."""


class DriftWindow(Record, frozen=True):
    """The judge against people's labels in one part of its work."""

    start_micros: int
    end_micros: int
    labels: int
    agreed: int
    p_holm: float | None
    """The probability of a difference to all other windows this large by chance, for all windows together."""

    @property
    def drifted(self) -> bool:
        """Whether chance alone is an unlikely explanation."""
        return self.p_holm is not None and self.p_holm < DRIFTED


def calibrate(labels: Sequence[JudgedLabel]) -> Calibration:
    """The judge's rates, over labels that were drawn at random."""
    decided = [one for one in labels if one.judged is not None and one.labelled is not None]
    met = [one for one in decided if one.labelled]
    missed = [one for one in decided if not one.labelled]
    ratings = [{JUDGE: _word(one.judged), PEOPLE: _word(one.labelled)} for one in decided]
    counted = count_ratings(ratings)
    return Calibration(
        labels=len(decided),
        matrix=ConfusionMatrix(
            true_positive=sum(one.judged is True for one in met),
            false_positive=sum(one.judged is True for one in missed),
            false_negative=sum(one.judged is False for one in met),
            true_negative=sum(one.judged is False for one in missed),
        ),
        tpr=_rate(met),
        tnr=_rate(missed),
        accuracy=_rate(decided),
        kappa=cohen_kappa(counted),
        kappa_interval=interval_over_cases(ratings, cohen_kappa)[0],
        ac1=gwet_ac1(counted),
        ac1_interval=interval_over_cases(ratings, gwet_ac1)[0],
        undecided=sum(one.judged is None and one.labelled is not None for one in labels),
        cannot_tell=sum(one.labelled is None for one in labels),
    )


def calibrate_by_tag(labels: Sequence[JudgedLabel]) -> dict[str, dict[str, Calibration]]:
    """The same for each tag, by its value."""
    found: dict[str, dict[str, list[JudgedLabel]]] = {}
    for one in labels:
        for name, value in one.tags.items():
            found.setdefault(name, {}).setdefault(value, []).append(one)
    return {name: {value: calibrate(some) for value, some in values.items()} for name, values in found.items()}


def disagreements(labels: Sequence[JudgedLabel]) -> list[JudgedLabel]:
    """The cases to read: judge and people differ; the newest first."""
    differing = [one for one in labels if None not in (one.judged, one.labelled) and one.judged != one.labelled]
    return sorted(differing, key=lambda one: (one.at_micros, one.case_id), reverse=True)


def find_drift(labels: Sequence[JudgedLabel]) -> list[DriftWindow]:
    """Each window against all others by Fisher's test, adjusted after Holm; empty with too few labels."""
    decided = sorted(
        (one for one in labels if one.judged is not None and one.labelled is not None), key=lambda one: one.at_micros
    )
    number = min(DRIFT_WINDOWS, len(decided) // FEWEST_IN_WINDOW)
    if number < 2:
        return []
    ends = [len(decided) * place // number for place in range(number + 1)]
    windows = [decided[start:end] for start, end in pairwise(ends)]
    agreed = [sum(one.judged == one.labelled for one in window) for window in windows]
    total = sum(agreed)
    chances = [
        fisher(right, len(window) - right, total - right, len(decided) - len(window) - (total - right))
        for right, window in zip(agreed, windows, strict=True)
    ]
    return [
        DriftWindow(
            start_micros=window[0].at_micros,
            end_micros=window[-1].at_micros,
            labels=len(window),
            agreed=right,
            p_holm=p,
        )
        for window, right, p in zip(windows, agreed, holm(chances), strict=True)
    ]


def _rate(labels: Sequence[JudgedLabel]) -> JudgeRate:
    """The share that the judge has right; weighted by the inverse of the probability of each label."""
    if not labels:
        return JudgeRate(0, None, None)
    weights = [1 / one.probability for one in labels]
    total = math.fsum(weights)
    value = math.fsum(w for w, one in zip(weights, labels, strict=True) if one.judged == one.labelled) / total
    # Unequal weights carry less than so many equal ones (Kish).
    effective = total**2 / math.fsum(w * w for w in weights)
    return JudgeRate(len(labels), value, wilson(min(1.0, value), effective))


def _word(met: bool | None) -> str:  # noqa: FBT001 - a value, not a switch
    return MET if met else NOT_MET
