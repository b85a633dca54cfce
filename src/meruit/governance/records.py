"""What other packages may use of what governance remembers of agents and outputs. Tables and SQL are in store."""

from meruit.governance.paid_runs import (
    find_paid_contract,
    find_paid_contract_now,
    forget_run_payment,
    record_run_payment,
)
from meruit.governance.store import (
    OutputAttempt,
    VerifiedWork,
    add_history,
    compare_verified,
    record_attempt,
    record_history,
)

__all__ = [
    "OutputAttempt",
    "VerifiedWork",
    "add_history",
    "compare_verified",
    "find_paid_contract",
    "find_paid_contract_now",
    "forget_run_payment",
    "record_attempt",
    "record_history",
    "record_run_payment",
]
