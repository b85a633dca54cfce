"""How many labels a corrected rate needs for an interval of a wanted width. Pure."""

import math
from collections.abc import Sequence

from meruit.errors import MeruitError
from meruit.model.record import Record
from meruit.reports.statistics import Z
from meruit.review.corrected import FEWEST_LABELS


class LabelPlan(Record, frozen=True):
    """Labels for an interval of plus or minus `half_width`."""

    half_width: float
    cases: int
    """How many cases there are; no more can be labelled."""
    spread: float
    """The variance of truth minus judge that the plan goes by."""
    basis: str
    """Where it comes from: `pilot` or `claimed`."""
    labels: int
    without_judge: int
    """What the same interval needs with labels alone, at the worst rate of one half."""


def plan_from_pilot(errors: Sequence[float], *, half_width: float, cases: int) -> LabelPlan:
    """Go by labels that are there already: truth minus judge for each of them."""
    number = len(errors)
    if number < FEWEST_LABELS:
        raise MeruitError(f"a pilot has at least {FEWEST_LABELS} labels, not {number}; or give the judge's error rates")
    # Two more errors, one of each kind: a pilot without an error does not prove that there are none.
    several = [*errors, 1.0, -1.0]
    mean = math.fsum(several) / len(several)
    spread = math.fsum((one - mean) ** 2 for one in several) / (len(several) - 1)
    return _plan(spread, "pilot", half_width=half_width, cases=cases)


def plan_from_error(*, tpr: float, tnr: float, rate: float, half_width: float, cases: int) -> LabelPlan:
    """Go by the rates that the judge is said to have, and the share of cases that are expected to be met."""
    for name, value in (("tpr", tpr), ("tnr", tnr), ("rate", rate)):
        if not 0 <= value <= 1:
            raise MeruitError(f"{name} is a share between 0 and 1, not {value:g}")
    low, high = rate * (1 - tpr), (1 - rate) * (1 - tnr)
    return _plan(low + high - (low - high) ** 2, "claimed", half_width=half_width, cases=cases)


def _plan(spread: float, basis: str, *, half_width: float, cases: int) -> LabelPlan:
    if not 0 < half_width < 1:
        raise MeruitError(f"the half-width is a share between 0 and 1, such as 0.05, not {half_width:g}")
    if cases < 1:
        raise MeruitError(f"there must be at least one case, not {cases}")
    return LabelPlan(
        half_width=half_width,
        cases=cases,
        spread=spread,
        basis=basis,
        labels=_labels(spread, half_width, cases),
        without_judge=_labels(0.25, half_width, cases),
    )


def _labels(spread: float, half_width: float, cases: int) -> int:
    wanted = Z * Z * spread / half_width**2
    # Of few cases, each label leaves less to chance.
    return min(cases, max(FEWEST_LABELS, math.ceil(wanted / (1 + wanted / cases))))
