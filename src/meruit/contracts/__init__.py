"""Contracts: offer, award, settlement, ledger."""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.contracts.bill import calculate_cost
    from meruit.contracts.client import Market
    from meruit.contracts.marketplace import Marketplace
    from meruit.model.contract import Budget, Contract, ContractState, Execution, Terms, WorkSubmission
    from meruit.model.money import Bill, Cost, Line, PricePart

__all__ = [
    "Bill",
    "Budget",
    "Contract",
    "ContractState",
    "Cost",
    "Execution",
    "Line",
    "Market",
    "Marketplace",
    "PricePart",
    "Terms",
    "WorkSubmission",
    "calculate_cost",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "contracts.bill": ("calculate_cost",),
        "contracts.client": ("Market",),
        "contracts.marketplace": ("Marketplace",),
        "model.contract": (
            "Budget",
            "Contract",
            "ContractState",
            "Execution",
            "Terms",
            "WorkSubmission",
        ),
        "model.money": (
            "Bill",
            "Cost",
            "Line",
            "PricePart",
        ),
    },
)
