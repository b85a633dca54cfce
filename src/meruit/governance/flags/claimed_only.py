"""Flag bonuses that rest on the agent's claims alone."""

from collections.abc import Mapping

from meruit.model.evidence import Provenance
from meruit.model.governance import Action, Dossier, MetricFact, Suspicion
from meruit.registry import flags

_CLAIMED = [MetricFact("accuracy", "c", 0.99, provenance=Provenance.CLAIMED, met=True, bonus_micros=500_000)]


@flags.add(
    "claimed_only",
    action=Action.WITHHOLD,
    examples=[
        (Dossier(metrics=_CLAIMED), True),
        (Dossier(metrics=_CLAIMED, claimed_may_earn=True), False),
        (Dossier(), False),
    ],
)
def flag_claimed_only(dossier: Dossier, _limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A bonus rests on claimed values, and the terms do not allow that."""
    if dossier.claimed_may_earn:
        return []
    micros: dict[str, int] = {}
    for fact in dossier.metrics:
        if fact.bonus_micros > 0 and fact.provenance is Provenance.CLAIMED:
            micros[fact.metric] = micros.get(fact.metric, 0) + fact.bonus_micros
    return [Suspicion({"bonus_micros": bonus}, metric=metric) for metric, bonus in micros.items()]
