"""Contracts: publish work, award it, judge the output, decide the payment, and move the money.

Read in this order:

- lifecycle.py - the states of a contract, and what each allows
- latency.py - from when an agent's time counts
- payment_decision.py - decide whether a contract may be paid
- hold_evidence.py - why a contract waits for a person, with the evidence
- bill.py, rules/ - compute the bill of a verdict, rule by rule
- rule_order.py - check the order of the rules against the terms
- token_terms.py - price the tokens of a contract's runs
- settlement.py - pay, hold, reverse, release
- transitions.py - every transition, as one transaction each
- marketplace.py - publish work, judge what agents submit
- rejudge.py - judge an output again
- postings.py, invariants.py, replay.py - double entry, what must always hold, and the ledger from the log
- usage_followers/ - what happens when the usage of a run is recorded
- store/ - tables and SQL
- preview.py - what a transition would do, found by running it and taking it back
- earnings.py, statement_view.py, list_csv.py - earnings, statements and lists as programs and spreadsheets read them
- trust.py - how far an agent can be trusted, from its recorded work
- client.py - all of it for Python programs
"""

from typing import TYPE_CHECKING

from meruit._lazy import lazy_names

if TYPE_CHECKING:
    from meruit.contracts.bill import calculate_cost
    from meruit.contracts.client import Market
    from meruit.contracts.earnings import EarningsReport
    from meruit.contracts.marketplace import Marketplace
    from meruit.contracts.trust import TrustScore, WorkEnd, compute_trust
    from meruit.errors import BrokenCriteria
    from meruit.model.contract import Budget, Contract, ContractState, Execution, Terms, WorkSubmission
    from meruit.model.money import Bill, Cost, Line, PricePart

__all__ = [
    "Bill",
    "BrokenCriteria",
    "Budget",
    "Contract",
    "ContractState",
    "Cost",
    "EarningsReport",
    "Execution",
    "Line",
    "Market",
    "Marketplace",
    "PricePart",
    "Terms",
    "TrustScore",
    "WorkEnd",
    "WorkSubmission",
    "calculate_cost",
    "compute_trust",
]
__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "contracts.bill": ("calculate_cost",),
        "errors": ("BrokenCriteria",),
        "contracts.client": ("Market",),
        "contracts.earnings": ("EarningsReport",),
        "contracts.marketplace": ("Marketplace",),
        "contracts.trust": (
            "TrustScore",
            "WorkEnd",
            "compute_trust",
        ),
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
