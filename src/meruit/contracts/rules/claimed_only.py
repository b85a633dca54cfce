"""Withhold bonuses that rest on the agent's own claims, unless the terms allow them."""

from meruit.model.evidence import Provenance
from meruit.model.money import Line, PricePart
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("claimed_only", after=("cpa_bonus",))
def withhold_claimed_only(context: SettlementContext) -> list[Line]:
    """A bonus that rests on a claim alone is withheld."""
    if context.terms.claimed_may_earn:
        return []
    claimed = {one.criterion_id for one in context.result.criterion_results if one.provenance is Provenance.CLAIMED}
    return [
        Line(
            rule="claimed_only",
            part=PricePart.BONUS,
            micros=-line.micros,
            reason=f"{line.criterion_id} is only what the agent says",
            criterion_id=line.criterion_id,
        )
        for line in context.lines
        if line.part is PricePart.BONUS and line.criterion_id in claimed
    ]
