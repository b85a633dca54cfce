"""No success, no pay; for terms that name it."""

from collections.abc import Sequence

from meruit.model.contract import Terms
from meruit.model.money import Line, PricePart
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("pay_on_success")
def pay_on_success(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:  # noqa: ARG001 - one signature
    """Work that failed is not paid for being completed, nor for its tokens."""
    if result.success:
        return []
    paid = {part: sum(line.micros for line in lines if line.part is part) for part in (PricePart.CPC, PricePart.TOKENS)}
    return [Line("pay_on_success", part, -micros, "the work failed") for part, micros in paid.items() if micros]
