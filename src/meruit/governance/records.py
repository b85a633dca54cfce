"""What other packages may use of what governance remembers of agents and outputs. Tables and SQL are in store."""

from meruit.governance.store import (
    OutputAttempt,
    add_history,
    find_paid_contract,
    forget_paid_evidence,
    record_attempt,
    record_history,
    record_paid_evidence,
)

__all__ = [
    "OutputAttempt",
    "add_history",
    "find_paid_contract",
    "forget_paid_evidence",
    "record_attempt",
    "record_history",
    "record_paid_evidence",
]
