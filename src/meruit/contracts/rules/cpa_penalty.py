"""What criteria cost that were not met."""

from collections.abc import Sequence

from meruit.contracts.bill import chargeable_criteria
from meruit.model.contract import Terms
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.numbers import exact, in_units
from meruit.model.verdict import CriterionResult, Status, VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("cpa_penalty")
def cpa_penalty(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:
    """Each criterion that is not met costs its penalty, up to `max_penalty_rate` of the CPC."""
    costs = [
        Line(
            *("cpa_penalty", PricePart.PENALTY, -as_micros(one.penalty or 0), f"{one.criterion_id} is {_how(one)}"),
            one.criterion_id,
        )
        for one in chargeable_criteria(result)
    ]
    base = sum(line.micros for line in lines if line.part is PricePart.CPC)
    limit = round(base * exact(terms.max_penalty_rate))
    over = -sum(line.micros for line in costs) - limit
    if over > 0:
        costs.append(Line("cpa_penalty", PricePart.PENALTY, over, f"penalties take at most {in_units(limit)}"))
    return costs


def _how(judged: CriterionResult) -> str:
    return "not met" if judged.status is Status.NOT_MET else "not measurable"
