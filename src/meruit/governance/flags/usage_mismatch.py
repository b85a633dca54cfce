"""Flag claimed tokens that differ from the provider's count."""

import math
from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, Suspicion, as_statistic
from meruit.model.numbers import exact
from meruit.registry import flags


@flags.add(
    "usage_mismatch",
    action=Action.HOLD,
    limits={"tokens": 5.0, "share": 0.02},
    examples=[
        (Dossier(claimed_tokens=1200.0, provider_tokens=1000.0), True),
        (Dossier(claimed_tokens=1200.0, provider_tokens=1000.0, usage_reconciled=True), True),
        (Dossier(claimed_tokens=1020.0, provider_tokens=1000.0), False),
        (Dossier(claimed_tokens=1200.0), None),
    ],
)
def usage_mismatch(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The agent claims other usage than the provider counted; with a final count, the outcome is invalid."""
    claimed, counted = dossier.claimed_tokens, dossier.provider_tokens
    if claimed is None or counted is None or not math.isfinite(claimed) or not math.isfinite(counted):
        return None
    apart = abs(exact(claimed) - exact(counted))
    if apart <= max(exact(limits["tokens"]), exact(limits["share"]) * exact(counted)):
        return []
    return [
        Suspicion(
            {"claimed_tokens": claimed, "provider_tokens": counted, "reconciled": dossier.usage_reconciled},
            statistic=as_statistic(apart),
            action=Action.INVALIDATE if dossier.usage_reconciled else None,
        )
    ]
