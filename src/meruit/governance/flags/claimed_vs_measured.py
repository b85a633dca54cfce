"""Flag claims that differ from the measurement."""

import math
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction

from meruit.model.evidence import Provenance
from meruit.model.governance import Action, Dossier, MetricFact, Suspicion, as_statistic
from meruit.model.kinds import SHARES, MetricType
from meruit.model.numbers import exact
from meruit.registry import flags

ROUNDED_PLACES = 2
"""Claims of a share may be rounded to whole percents."""


def _accuracy(claim: float, measured: float) -> Dossier:
    fact = MetricFact(
        metric="accuracy", criterion_id="c", value=measured, kind=MetricType.ACCURACY, provenance=Provenance.COMPUTED
    )
    return Dossier(claims={"accuracy": claim}, metrics=[fact])


@flags.add(
    "claimed_vs_measured",
    action=Action.FLAG,
    limits={"minor": 0.05, "major": 0.2},
    examples=[
        (_accuracy(0.95, 0.88), True),
        (_accuracy(0.95, 0.6), True),
        (_accuracy(0.95, 0.9025), False),
        (_accuracy(95.0, 0.95), False),
        (_accuracy(0.0, 0.004), False),
        (Dossier(claims={"accuracy": 0.95}), None),
    ],
)
def flag_claimed_vs_measured(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A claim differs from the measurement: by more than 5 % it is flagged, by more than 20 % held."""
    measured = _facts_by_metric(dossier)
    compared = [
        (metric, claim, _nearest(measured[metric], claim))
        for metric, claim in dossier.claims.items()
        if math.isfinite(claim) and metric in measured
    ]
    if not compared:
        return None
    found = []
    for metric, claim, fact in compared:
        deviation = _deviation(claim, fact)
        if deviation > exact(limits["minor"]):
            evidence = {"claimed": claim, "measured": fact.value}
            action = Action.HOLD if deviation > exact(limits["major"]) else None
            found.append(Suspicion(evidence, metric=metric, statistic=as_statistic(deviation), action=action))
    return found


def _facts_by_metric(dossier: Dossier) -> dict[str, list[MetricFact]]:
    """By metric, the criteria that measured it."""
    found: dict[str, list[MetricFact]] = {}
    for fact in dossier.metrics:
        if fact.provenance is not Provenance.CLAIMED and fact.value is not None and math.isfinite(fact.value):
            found.setdefault(fact.metric, []).append(fact)
    return found


def _nearest(measured: list[MetricFact], claim: float) -> MetricFact:
    """The criterion whose measurement is closest to the claim."""
    return min(measured, key=lambda fact: _deviation(claim, fact))


def _deviation(claim: float, fact: MetricFact) -> Fraction:
    """The difference relative to the claim, or to the measured value where the claim is 0."""
    claimed, measured = exact(claim), exact(fact.value or 0)
    if fact.kind in SHARES:
        claimed, measured = _share(claimed), _share(measured)
        if abs(claimed - measured) <= _rounding(claim):
            return Fraction(0)
    return abs(claimed - measured) / abs(claimed or measured or Fraction(1))


def _share(number: Fraction) -> Fraction:
    """A share on the scale of 1; larger values are read as percent."""
    return number / 100 if number > 1 else number


def _rounding(claim: float) -> Fraction:
    """Half a unit of the last digit of the claim, at most half a percent."""
    written = Decimal(repr(claim)) / (100 if claim > 1 else 1)
    exponent = written.normalize().as_tuple().exponent
    places = max(ROUNDED_PLACES, -exponent if isinstance(exponent, int) else 0)
    return Fraction(1, 2 * 10**places)
