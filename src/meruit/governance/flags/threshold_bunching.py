"""Flag results that are just past the threshold more often than by chance."""

from collections.abc import Mapping

from meruit.governance.binomial import binomial_tail
from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "threshold_bunching",
    action=Action.FLAG,
    needs_history=True,
    limits={"near": 0.01, "far": 0.03, "window": 60.0, "n_min": 6.0, "p_max": 1e-5},
    examples=[
        (Dossier(history=History(margins=[0.001] * 11)), True),
        (Dossier(history=History(margins=[0.001] * 10)), False),
        (Dossier(history=History(margins=[0.005, 0.015, 0.025] * 20)), False),
        (Dossier(history=History(margins=[0.001] * 5)), None),
    ],
)
def threshold_bunching(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """Too many of the last margins are below 1 %, compared with those from 1 to 3 %."""
    near, far = limits["near"], limits["far"]
    margins = dossier.history.margins[-int(limits["window"]) :]
    k = sum(0 <= margin < near for margin in margins)
    n = sum(0 <= margin < far for margin in margins)
    if n < limits["n_min"]:
        return None
    # So close to a threshold, honest results are spread evenly.
    chance = binomial_tail(k, n, near / far)
    return [Suspicion({"near": k, "n": n}, statistic=chance)] if chance < limits["p_max"] else []
