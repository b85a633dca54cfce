"""Flag long series of perfect accuracies."""

from collections.abc import Mapping

from meruit.governance.binomial import binomial_tail
from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "perfect_accuracy_streak",
    action=Action.FLAG,
    needs_history=True,
    limits={"mean_min": 0.965, "window": 60.0, "p_max": 1e-6, "p_perfect": 0.5},
    examples=[
        (Dossier(history=History(accuracies=[1.0] * 20)), True),
        (Dossier(history=History(accuracies=[1.0] * 19)), False),
        (Dossier(history=History(accuracies=[0.97] * 60)), False),
        (Dossier(), None),
    ],
)
def perfect_accuracy_streak(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """Too many of the last accuracies are perfect; only a hint, because honest specialists look the same."""
    shares = [_share(accuracy) for accuracy in dossier.history.accuracies[-int(limits["window"]) :]]
    if not shares:
        return None
    n, perfect, mean = len(shares), sum(share == 1 for share in shares), sum(shares) / len(shares)
    chance = binomial_tail(perfect, n, limits["p_perfect"])
    if mean <= limits["mean_min"] or chance >= limits["p_max"]:
        return []
    evidence = {"perfect": perfect, "n": n, "mean": mean}
    return [Suspicion(evidence, statistic=chance, name="pattern:perfect_accuracy_streak")]


def _share(accuracy: float) -> float:
    """A share on the scale of 1; larger values are read as percent."""
    return accuracy / 100 if accuracy > 1 else accuracy
