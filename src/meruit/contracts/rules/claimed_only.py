"""What an agent says of itself earns nothing, unless the terms allow it."""

from collections.abc import Sequence

from meruit.model.contract import Terms
from meruit.model.evidence import Provenance
from meruit.model.money import Line, PricePart
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("claimed_only")
def withhold_claimed_only(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:
    """A bonus that rests on a claim alone is withheld."""
    if terms.claimed_may_earn:
        return []
    claimed = {one.criterion_id for one in result.criterion_results if one.provenance is Provenance.CLAIMED}
    return [
        Line(
            *("claimed_only", PricePart.BONUS, -line.micros, f"{line.criterion_id} is only what the agent says"),
            line.criterion_id,
        )
        for line in lines
        if line.part is PricePart.BONUS and line.criterion_id in claimed
    ]
