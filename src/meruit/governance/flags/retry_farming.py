"""Flag many nearly equal outputs to one input."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion, as_statistic
from meruit.registry import flags


@flags.add(
    "retry_farming",
    action=Action.FLAG,
    needs_history=True,
    limits={"attempts_max": 5.0},
    examples=[
        (Dossier(agent_id="a", history=History(near_duplicates=6)), True),
        (Dossier(agent_id="a", history=History(near_duplicates=5)), False),
        (Dossier(), None),
    ],
)
def retry_farming(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent tried the same input many times with nearly the same output."""
    if dossier.agent_id is None:
        return None
    attempts = dossier.history.near_duplicates
    if attempts <= limits["attempts_max"]:
        return []
    return [Suspicion({"near_duplicates": attempts}, statistic=as_statistic(attempts))]
