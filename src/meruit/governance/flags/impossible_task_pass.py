"""Flag a pass of a task that cannot be passed."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, Suspicion
from meruit.registry import flags


@flags.add(
    "impossible_task_pass",
    action=Action.INVALIDATE,
    examples=[
        (Dossier(work_id="planted", impossible=True, success=True), True),
        (Dossier(work_id="planted", impossible=True), False),
        (Dossier(success=True), False),
    ],
)
def impossible_task_pass(dossier: Dossier, _limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A planted task that contradicts itself was passed."""
    return [Suspicion({"work_id": dossier.work_id})] if dossier.impossible and dossier.success else []
