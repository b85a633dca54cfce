"""What the audit log says of a contract, and how its row differs from that. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from meruit.log.entries import (
    AwardEntry,
    DisputeEntry,
    EvidenceEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
    VerdictEntry,
)
from meruit.model.contract import Contract, ContractState, Escrow


@dataclass(frozen=True, slots=True)
class LoggedContract:
    """A contract as the entries of the log state it."""

    award: AwardEntry | None = None
    outcome: str = ""
    verdict: VerdictEntry | None = None
    """The latest version."""
    settlement: SettlementEntry | None = None
    """The live one."""
    settlements: int = 0
    version: int = 0
    """The version of the verdict that was settled last."""
    escrow: Escrow = Escrow.HELD
    disputed: bool = False


# Any: entries of every kind; only some say something of money.
def read_logged_contract(entries: Iterable[Any]) -> LoggedContract:
    """Follow the entries of one contract in their order."""
    logged = LoggedContract()
    for entry in entries:
        match entry:
            case AwardEntry():
                logged = replace(logged, award=entry)
            case EvidenceEntry():
                logged = replace(logged, outcome=entry.outcome)
            case VerdictEntry():
                logged = replace(logged, verdict=entry)
            case SettlementEntry():
                logged = replace(
                    logged, settlement=entry, settlements=entry.number, version=entry.version, escrow=Escrow.PAID
                )
            case ReversalEntry():
                logged = replace(logged, settlement=None, escrow=Escrow.HELD)
            case ReleaseEntry():
                logged = replace(logged, escrow=Escrow.RELEASED)
            case DisputeEntry():
                frozen = Escrow.FROZEN if logged.escrow is Escrow.HELD else logged.escrow
                logged = replace(logged, disputed=True, escrow=frozen)
            case ResolutionEntry():
                thawed = Escrow.HELD if logged.escrow is Escrow.FROZEN else logged.escrow
                logged = replace(logged, disputed=False, escrow=thawed)
            case _:
                continue
    return logged


def differing_fields(contract: Contract, logged: LoggedContract) -> Iterator[str]:
    """The names of what a contract's row says otherwise than the log."""
    award = logged.award
    if award is None:
        yield "award"
        return
    live = logged.settlement
    pairs: dict[str, tuple[Any, Any]] = {
        "id": (contract.id, award.contract),
        "work_id": (contract.work_id, award.work),
        "agent_id": (contract.agent_id, award.agent),
        "consumer_id": (contract.consumer_id, award.consumer),
        "currency": (contract.currency, award.currency),
        "hold_micros": (contract.hold_micros, award.hold_micros),
        "terms": (sha256(contract.terms).hexdigest(), award.terms),
        "outcome_id": (contract.outcome_id or "", logged.outcome),
        "escrow": (contract.escrow, logged.escrow),
        "settlement": (contract.settlement, 0 if live is None else live.number),
        "settlements": (contract.settlements, logged.settlements),
        "version": (contract.version, logged.version),
        "total_micros": (contract.total_micros, 0 if live is None else live.total_micros),
        "state": (
            (contract.state is ContractState.DISPUTED, contract.state is ContractState.SETTLED),
            (logged.disputed, logged.escrow is Escrow.PAID and not logged.disputed),
        ),
    }
    yield from (name for name, (recorded, expected) in pairs.items() if recorded != expected)
