"""Cost per action: what met criteria earn."""

from collections.abc import Sequence

from meruit.model.contract import Terms
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.verdict import Status, VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("cpa_bonus")
def cpa_bonus(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:  # noqa: ARG001 - one signature
    """Each met criterion earns its bonus."""
    return [
        Line(
            "cpa_bonus", PricePart.BONUS, as_micros(judged.bonus), f"{judged.criterion_id} is met", judged.criterion_id
        )
        for judged in result.criterion_results
        if judged.status is Status.MET and judged.bonus
    ]
