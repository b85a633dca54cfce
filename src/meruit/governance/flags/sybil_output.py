"""Flag outputs that another agent gave for another task."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "sybil_output",
    action=Action.HOLD,
    needs_history=True,
    version="2",
    limits={"chars_min": 64.0, "likeness_min": 0.96},
    examples=[
        (Dossier(agent_id="a", output_chars=400, history=History(shared_with="b")), True),
        (Dossier(agent_id="a", output_chars=400, history=History(shared_with="b", shared_likeness=0.9)), True),
        (Dossier(agent_id="a", output_chars=3, history=History(shared_with="b")), False),
        (Dossier(agent_id="a", output_chars=400), False),
        (Dossier(output_chars=400), None),
    ],
)
def sybil_output(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """Another agent gave the same long output, or nearly the same, for another task."""
    if dossier.agent_id is None:
        return None
    other = dossier.history.shared_with
    if other is None or dossier.output_chars < limits["chars_min"]:
        return []
    likeness = dossier.history.shared_likeness
    evidence = {"agent_id": other, "output_chars": dossier.output_chars, "likeness": likeness}
    # Honest work may share much of its text: a form letter, or a notice under every answer.
    action = None if likeness >= limits["likeness_min"] else Action.FLAG
    return [Suspicion(evidence, statistic=likeness, action=action)]
