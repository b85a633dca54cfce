"""Flag a search for hidden criteria by many nearly equal tries."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion, as_statistic
from meruit.registry import flags


@flags.add(
    "probing",
    action=Action.FLAG,
    needs_history=True,
    # Since version 2, tries of a search by halves count as nearly equal, though its halves share no word.
    version="2",
    limits={"failed_max": 5.0, "failed_share_min": 0.8},
    examples=[
        (Dossier(agent_id="a", history=History(near_tries=7, near_tries_failed=6)), True),
        (Dossier(agent_id="a", history=History(near_tries=5, near_tries_failed=5)), False),
        (Dossier(agent_id="a", history=History(near_tries=20, near_tries_failed=6)), False),
        (Dossier(), None),
    ],
)
def probing(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent tried the same criteria many times with nearly the same words, and most tries failed."""
    if dossier.agent_id is None:
        return None
    tries, failed = dossier.history.near_tries, dossier.history.near_tries_failed
    # An agent that answers by a form passes most of the time; one that searches fails until it has found.
    if failed <= limits["failed_max"] or failed < limits["failed_share_min"] * tries:
        return []
    return [Suspicion({"near_tries": tries, "failed": failed}, statistic=as_statistic(failed))]
