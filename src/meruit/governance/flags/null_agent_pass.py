"""Flag criteria that an idle agent meets."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, Suspicion
from meruit.registry import flags


@flags.add(
    "null_agent_pass",
    action=Action.REFUSE,
    examples=[
        (Dossier(null_passes=["empty text"]), True),
        (Dossier(), False),
    ],
)
def null_agent_pass(dossier: Dossier, _limits: Mapping[str, float]) -> list[Suspicion] | None:
    """An agent that does nothing, or echoes its input, would pass."""
    passes = dossier.null_passes
    return [Suspicion({"passes": sorted(passes)}, statistic=float(len(passes)))] if passes else []
