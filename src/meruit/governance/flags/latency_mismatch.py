"""Flag claimed durations that are shorter than observed."""

import math
from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.model.numbers import exact
from meruit.registry import flags


@flags.add(
    "latency_mismatch",
    action=Action.FLAG,
    limits={"observed_share": 0.9, "slack_ms": 50.0, "hold_from": 3.0},
    examples=[
        (Dossier(claimed_ms=800.0, observed_ms=1000.0), True),
        (Dossier(claimed_ms=800.0, observed_ms=1000.0, history=History(latency_mismatches=2)), True),
        (Dossier(claimed_ms=850.0, observed_ms=1000.0), False),
        (Dossier(claimed_ms=800.0), None),
    ],
)
def latency_mismatch(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent claims to be faster than observed; the third time, the outcome is held."""
    claimed, observed = dossier.claimed_ms, dossier.observed_ms
    if claimed is None or observed is None or not math.isfinite(claimed) or not math.isfinite(observed):
        return None
    if exact(claimed) >= exact(limits["observed_share"]) * exact(observed) - exact(limits["slack_ms"]):
        return []
    time = dossier.history.latency_mismatches + 1
    return [
        Suspicion(
            {"claimed_ms": claimed, "observed_ms": observed, "time": time},
            statistic=observed - claimed,
            action=Action.HOLD if time >= limits["hold_from"] else None,
        )
    ]
