"""The transitions of a contract; each writes its log entry, money, events and reply in one transaction.

In the order of a contract's life: award.py, start.py, complete.py, settle.py, dispute.py; void.py ends it early.
"""

from meruit.contracts.transitions.award import AwardContract
from meruit.contracts.transitions.complete import UNAVAILABLE, CompleteContract
from meruit.contracts.transitions.dispute import DisputeContract, ResolveDispute, SettlementAmount, to_settlement_amount
from meruit.contracts.transitions.settle import FollowUsage, ReleaseContract, SettleContract
from meruit.contracts.transitions.start import RecordInputRead, StartContract
from meruit.contracts.transitions.void import ExpireContracts, ReverseContract, VoidContract

__all__ = [
    "UNAVAILABLE",
    "AwardContract",
    "CompleteContract",
    "DisputeContract",
    "ExpireContracts",
    "FollowUsage",
    "RecordInputRead",
    "ReleaseContract",
    "ResolveDispute",
    "ReverseContract",
    "SettleContract",
    "SettlementAmount",
    "StartContract",
    "VoidContract",
    "to_settlement_amount",
]
