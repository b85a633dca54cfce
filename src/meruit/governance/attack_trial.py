"""How often an attack on the governance rules is noticed, with intervals."""

from collections import Counter

from meruit.governance.binomial import clopper_pearson
from meruit.model.governance import Disposition, GovernanceResult
from meruit.model.record import Record


class AttackTrial(Record, frozen=True):
    """How often one attack, or one honest look-alike, is noticed."""

    attack: str
    honest: bool
    """Whether it is honest behaviour, so that any flag is a false positive."""
    tries: int
    noticed: int
    """Tries that were flagged, held or invalidated."""
    stopped: int
    """Tries of which a payment was held or invalidated."""
    rate: float
    """The share that was noticed."""
    low: float
    """The rate's 95 % interval (Clopper-Pearson)."""
    high: float
    stopped_rate: float
    stopped_low: float
    stopped_high: float


def end_of(result: GovernanceResult) -> str:
    """How an outcome ended: `clear`, `flagged` or `stopped`."""
    if result.conclusion is not Disposition.CLEAR:
        return "stopped"
    return "flagged" if result.flags else "clear"


def count_tries(attack: str, ends: Counter[str], *, honest: bool) -> AttackTrial:
    """The rates of one attack; `ends` counts tries by how they ended."""
    tries, stopped = ends.total(), ends["stopped"]
    noticed = stopped + ends["flagged"]
    rates = (noticed / tries, *clopper_pearson(noticed, tries), stopped / tries, *clopper_pearson(stopped, tries))
    return AttackTrial(attack, honest, tries, noticed, stopped, *rates)
