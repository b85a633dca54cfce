"""Flag outputs that the agent gave for another task before."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "replayed_output",
    action=Action.HOLD,
    needs_history=True,
    limits={"chars_min": 64.0},
    examples=[
        (Dossier(agent_id="a", output_chars=400, history=History(replayed_in="contract-1")), True),
        (Dossier(agent_id="a", output_chars=3, history=History(replayed_in="contract-1")), False),
        (Dossier(agent_id="a", output_chars=400), False),
        (Dossier(output_chars=400), None),
    ],
)
def flag_replayed_output(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent gave the same long output for another task before."""
    if dossier.agent_id is None:
        return None
    earlier = dossier.history.replayed_in
    if earlier is None or dossier.output_chars < limits["chars_min"]:
        return []
    return [Suspicion({"contract_id": earlier, "output_chars": dossier.output_chars})]
