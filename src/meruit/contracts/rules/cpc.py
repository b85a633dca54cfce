"""Cost per completion."""

from collections.abc import Sequence

from meruit.model.contract import Terms
from meruit.model.money import Line, PricePart, as_micros
from meruit.model.verdict import VerificationResult
from meruit.registry import settlement_rules


@settlement_rules.add("cpc")
def cpc(result: VerificationResult, terms: Terms, lines: Sequence[Line]) -> list[Line]:  # noqa: ARG001 - one signature
    """The rate, paid for completion whatever the verdict."""
    return [Line("cpc", PricePart.CPC, as_micros(terms.cpc_rate or 0), "completed")]
