"""Flag outputs that contain a planted string."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, Suspicion
from meruit.registry import flags


@flags.add(
    "canary_leak",
    action=Action.INVALIDATE,
    version="2",
    examples=[
        (Dossier(canaries=3, leaked=["9f86d081"]), True),
        (Dossier(canaries=3), False),
        (Dossier(), None),
    ],
)
def canary_leak(dossier: Dossier, _limits: Mapping[str, float]) -> list[Suspicion] | None:
    """A string planted in references or rubrics occurs in the output."""
    leaked = dossier.leaked
    if not leaked:
        return [] if dossier.canaries else None
    return [Suspicion({"leaked": sorted(leaked), "planted": dossier.canaries}, statistic=float(len(leaked)))]
