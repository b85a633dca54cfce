"""What other packages may use of what governance remembers of agents and outputs. Tables and SQL are in store."""

from meruit.governance.store import (
    OutputAttempt,
    VerifiedWork,
    add_history,
    compare_verified,
    find_paid_contract,
    find_paid_contract_now,
    forget_paid_evidence,
    record_attempt,
    record_history,
    record_paid_evidence,
)

__all__ = [
    "OutputAttempt",
    "VerifiedWork",
    "add_history",
    "compare_verified",
    "find_paid_contract",
    "find_paid_contract_now",
    "forget_paid_evidence",
    "record_attempt",
    "record_history",
    "record_paid_evidence",
]
