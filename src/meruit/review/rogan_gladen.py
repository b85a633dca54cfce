"""A judged pass rate, corrected by a judge's known error (Rogan and Gladen, 1978). Pure.

The labels may come from another set of cases, if the judge errs there as it does here. The interval is that of Lang and
Reiczigel (2014), which allows for chance in the judged rate and in both rates of the judge.
"""

import math

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import Z, wilson

FEWEST_LABELS = 50
"""With fewer, most judges are refused as no better than chance, and the intervals of the rest do not hold."""
ADDED_LABELS = 2
"""Labels that the interval adds to each rate of the judge, half right and half wrong."""


class RoganGladen(Record, frozen=True):
    """A rate corrected by the judge's error, or the reason for refusing it."""

    estimate: float | None
    interval: ConfidenceInterval | None
    """At 95 %."""
    why_not: str = ""


def correct_by_error_rates(
    *, met: int, cases: int, true_positive: int, false_negative: int, true_negative: int, false_positive: int
) -> RoganGladen:
    """Correct `met` of `cases` by the counts of a calibration; refused where the judge may be no better than chance."""
    positives, negatives = true_positive + false_negative, true_negative + false_positive
    if cases and positives + negatives < FEWEST_LABELS:
        why = f"{positives + negatives} of the {FEWEST_LABELS} labels that the judge's rates need"
        return RoganGladen(None, None, why)
    if not cases:
        return RoganGladen(None, None, "no case was decided by the judge")
    if not positives or not negatives:
        kind = "not met" if positives else "met"
        return RoganGladen(None, None, f"no label says {kind}, so one rate of the judge is unknown")
    tpr, tnr = true_positive / positives, true_negative / negatives
    worse = math.hypot(tpr - wilson(tpr, positives).low, tnr - wilson(tnr, negatives).low)
    if tpr + tnr - 1 - worse <= 0:
        return RoganGladen(
            None, None, f"the judge may be no better than chance (TPR {tpr:.2f} + TNR {tnr:.2f} is not surely above 1)"
        )
    estimate = min(1.0, max(0.0, (met / cases + tnr - 1) / (tpr + tnr - 1)))
    interval = _interval(met, cases, (true_positive, positives), (true_negative, negatives))
    return RoganGladen(estimate, ConfidenceInterval(min(estimate, interval.low), max(estimate, interval.high)))


def _interval(met: int, cases: int, positive: tuple[int, int], negative: tuple[int, int]) -> ConfidenceInterval:
    squared = Z * Z
    number = cases + squared
    rate = (met + squared / 2) / number
    positives, negatives = positive[1] + ADDED_LABELS, negative[1] + ADDED_LABELS
    tpr, tnr = (positive[0] + ADDED_LABELS / 2) / positives, (negative[0] + ADDED_LABELS / 2) / negatives
    youden = tpr + tnr - 1
    middle = (rate + tnr - 1) / youden
    of_tpr, of_tnr = tpr * (1 - tpr) / positives, tnr * (1 - tnr) / negatives
    spread = math.sqrt(rate * (1 - rate) / number + of_tpr * middle**2 + of_tnr * (1 - middle) ** 2) / youden
    shifted = middle + 2 * squared * (middle * of_tpr - (1 - middle) * of_tnr)
    low, high = shifted - Z * spread, shifted + Z * spread
    return ConfidenceInterval(min(1.0, max(0.0, low)), min(1.0, max(0.0, high)))
