"""Flag values that are unusual for the agent."""

import math
from collections.abc import Mapping

from meruit.model.governance import Action, Baseline, Dossier, History, MetricFact, Suspicion
from meruit.registry import flags


def _against(value: float, n: int) -> Dossier:
    usual = {"accuracy": Baseline(n, 0.8, 0.02)}
    return Dossier(metrics=[MetricFact("accuracy", "c", value)], history=History(baselines=usual))


@flags.add(
    "anomaly",
    action=Action.FLAG,
    needs_history=True,
    limits={"n_min": 10.0, "medium": 3.0, "high": 4.0, "spread_min": 1e-9},
    examples=[
        (_against(0.99, 10), True),
        (_against(0.6, 10), True),
        (_against(0.85, 10), False),
        (_against(0.99, 9), None),
    ],
)
def anomaly(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A value is more than three deviations from the agent's mean of the last 30 days."""
    furthest: dict[str, tuple[float, MetricFact, Baseline]] = {}
    for fact in dossier.metrics:
        usual = dossier.history.baselines.get(fact.metric)
        z = None if usual is None or usual.n < limits["n_min"] else _z(fact, usual, limits["spread_min"])
        if usual is not None and z is not None and abs(z) >= abs(furthest.get(fact.metric, (0.0,))[0]):
            furthest[fact.metric] = (z, fact, usual)
    if not furthest:
        return None
    return [
        Suspicion(
            {
                "value": fact.value,
                "mean": usual.mean,
                "deviation": usual.deviation,
                "n": usual.n,
                "severity": "high" if abs(z) > limits["high"] else "medium",
            },
            metric=metric,
            statistic=z,
            name=f"anomaly:{metric}:3sigma",
        )
        for metric, (z, fact, usual) in furthest.items()
        if abs(z) > limits["medium"]
    ]


def _z(fact: MetricFact, usual: Baseline, spread_min: float) -> float | None:
    """The distance from the mean in deviations; None without a value or a spread."""
    # Equal values may differ in their last digit; that does not count as spread.
    spread = max(usual.deviation, spread_min * abs(usual.mean))
    if fact.value is None or not math.isfinite(fact.value) or not spread:
        return None
    return (fact.value - usual.mean) / spread
