"""Flag work that ended before it started or after it was submitted."""

from collections.abc import Mapping

from meruit.model.governance import Action, Dossier, Suspicion
from meruit.registry import flags


@flags.add(
    "clock_order",
    action=Action.INVALIDATE,
    limits={"start_skew_s": 0.25, "received_skew_s": 5.0},
    examples=[
        (Dossier(started_at=100.0, ended_at=99.0, received_at=101.0), True),
        (Dossier(started_at=100.0, ended_at=110.0, received_at=101.0), True),
        (Dossier(started_at=100.0, ended_at=99.9, received_at=101.0), False),
        (Dossier(started_at=100.0), None),
    ],
)
def clock_order(dossier: Dossier, limits: Mapping[str, float]) -> list[Suspicion] | None:
    """The work ended before it started, or after it was received."""
    started, ended, received = dossier.started_at, dossier.ended_at, dossier.received_at
    if ended is None or (started is None and received is None):
        return None
    found = []
    if started is not None and ended < started - limits["start_skew_s"]:
        found.append(Suspicion({"started_at": started, "ended_at": ended}, statistic=started - ended))
    if received is not None and ended > received + limits["received_skew_s"]:
        found.append(Suspicion({"ended_at": ended, "received_at": received}, statistic=ended - received))
    return found
