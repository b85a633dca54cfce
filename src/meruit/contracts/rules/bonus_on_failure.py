"""Whether work that failed as a whole keeps what some of its criteria earned."""

from collections.abc import Sequence

from meruit.model.contract import BonusOnFailure, Terms
from meruit.model.money import Line, PricePart
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("bonus_on_failure")
def bonus_on_failure(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:
    """Under `bonus_on_failure: none`, failed work earns no bonus."""
    if result.success or terms.bonus_on_failure is BonusOnFailure.PER_CRITERION:
        return []
    earned: dict[str | None, int] = {}
    for line in lines:
        if line.part is PricePart.BONUS:
            earned[line.criterion_id] = earned.get(line.criterion_id, 0) + line.micros
    return [
        Line("bonus_on_failure", PricePart.BONUS, -micros, "the work failed", criterion_id)
        for criterion_id, micros in earned.items()
        if micros
    ]
