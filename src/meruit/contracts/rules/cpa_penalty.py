"""Charge the penalty of each criterion that was not met."""

from meruit.contracts.bill import chargeable_criteria, largest_penalty
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.numbers import in_units
from meruit.model.verdict import CriterionResult, Status
from meruit.registry import SettlementContext, settlement_rules


@settlement_rules.add("cpa_penalty", after=("cpc",))
def cpa_penalty(context: SettlementContext) -> list[Line]:
    """Each criterion that is not met costs its penalty, up to `max_penalty_rate` of the CPC."""
    costs = [
        Line(
            rule="cpa_penalty",
            part=PricePart.PENALTY,
            micros=-as_micros(one.penalty or 0),
            reason=f"{one.criterion_id} is {_status_text(one)}",
            criterion_id=one.criterion_id,
        )
        for one in chargeable_criteria(context.result)
    ]
    limit = largest_penalty(context.sum_of(PricePart.CPC), context.terms.max_penalty_rate)
    over = -sum(line.micros for line in costs) - limit
    if over > 0:
        costs.append(Line("cpa_penalty", PricePart.PENALTY, over, f"penalties take at most {in_units(limit)}"))
    return costs


def _status_text(judged: CriterionResult) -> str:
    return "not met" if judged.status is Status.NOT_MET else "not measurable"
