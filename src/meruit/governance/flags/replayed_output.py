"""Flag outputs that the agent gave for another task before."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "replayed_output",
    action=Action.HOLD,
    needs_history=True,
    version="2",
    limits={"chars_min": 64.0, "likeness_min": 0.96},
    examples=[
        (Dossier(agent_id="a", output_chars=400, history=History(replayed_in="contract-1")), True),
        (
            Dossier(agent_id="a", output_chars=400, history=History(replayed_in="contract-1", replayed_likeness=0.9)),
            True,
        ),
        (Dossier(agent_id="a", output_chars=3, history=History(replayed_in="contract-1")), False),
        (Dossier(agent_id="a", output_chars=400), False),
        (Dossier(output_chars=400), None),
    ],
)
def flag_replayed_output(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent gave the same long output, or nearly the same, for another task before."""
    if dossier.agent_id is None:
        return None
    earlier = dossier.history.replayed_in
    if earlier is None or dossier.output_chars < limits["chars_min"]:
        return []
    likeness = dossier.history.replayed_likeness
    evidence = {"contract_id": earlier, "output_chars": dossier.output_chars, "likeness": likeness}
    # Honest work may share much of its text: a form letter, or a notice under every answer.
    action = None if likeness >= limits["likeness_min"] else Action.FLAG
    return [Suspicion(evidence, statistic=likeness, action=action)]
