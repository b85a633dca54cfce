"""Flag evidence that was paid before."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, History, Suspicion
from meruit.registry import flags


@flags.add(
    "duplicate_claim",
    action=Action.INVALIDATE,
    needs_history=True,
    examples=[
        (Dossier(contract_id="contract-2", history=History(settled_under="contract-1")), True),
        (Dossier(contract_id="contract-2"), False),
    ],
)
def duplicate_claim(dossier: Dossier, _limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The same evidence was already settled under another contract."""
    earlier = dossier.history.settled_under
    return [] if earlier is None else [Suspicion({"contract_id": earlier})]
