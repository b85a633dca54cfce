"""The most that all bonuses together may come to."""

from collections.abc import Sequence

from meruit.model.contract import CapSplit, Terms
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.numbers import in_units
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("cap")
def cap(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:  # noqa: ARG001 - one signature
    """Bonuses are cut to `max_cpa_total`, in order or each by the same share."""
    if terms.max_cpa_total is None:
        return []
    limit = as_micros(terms.max_cpa_total)
    earned: dict[str | None, int] = {}
    for line in lines:
        if line.part is PricePart.BONUS:
            earned[line.criterion_id] = earned.get(line.criterion_id, 0) + line.micros
    total = sum(earned.values())
    if total <= limit:
        return []
    kept = _split_cap([*earned.values()], limit, terms.cap_split)
    why = f"over the cap of {in_units(limit)}"
    return [
        Line("cap", PricePart.BONUS, left - micros, why, criterion_id)
        for (criterion_id, micros), left in zip(earned.items(), kept, strict=True)
        if left != micros
    ]


def _split_cap(amounts: Sequence[int], limit: int, split: CapSplit) -> list[int]:
    match split:
        case CapSplit.IN_ORDER:
            return _in_order(amounts, limit)
        case CapSplit.PRO_RATA:
            return _pro_rata(amounts, limit)


def _in_order(amounts: Sequence[int], limit: int) -> list[int]:
    kept = []
    for micros in amounts:
        kept.append(min(micros, limit))
        limit -= kept[-1]
    return kept


def _pro_rata(amounts: Sequence[int], limit: int) -> list[int]:
    """Shares of the running total, so that what is rounded away from one falls to the next and nothing is lost."""
    total = sum(amounts)
    kept, before, running = [], 0, 0
    for micros in amounts:
        running += micros
        reached = running * limit // total
        kept.append(reached - before)
        before = reached
    return kept
