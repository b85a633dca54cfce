"""What the audit log says of a contract, and how its row differs from that. Pure."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Any

import msgspec

from meruit.log.commitment import matches
from meruit.log.entries import (
    AwardEntry,
    DisputeEntry,
    EvidenceEntry,
    InputReadEntry,
    ReleaseEntry,
    ResolutionEntry,
    ReversalEntry,
    SettlementEntry,
    StartEntry,
    VerdictEntry,
)
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.decoding import decode_json
from meruit.model.time import to_rfc3339

WAITING = (ContractState.AWARDED, ContractState.EXECUTING)
"""States of contracts without an output; those that are late expire."""


class _Deadline(msgspec.Struct, frozen=True):
    """The part of terms that says how long an agent has."""

    deadline_hours: int


@dataclass(frozen=True, slots=True)
class LoggedContract:
    """A contract as the entries of the log state it."""

    award: AwardEntry | None = None
    outcome: str = ""
    run: str = ""
    """The run that it is to be paid for, as a salted hash; empty for none."""
    verdict: VerdictEntry | None = None
    """The latest version."""
    settlement: SettlementEntry | None = None
    """The live one."""
    settlements: int = 0
    version: int = 0
    """The version of the verdict that was settled last."""
    escrow: Escrow = Escrow.HELD
    completed_at: str | None = None
    disputes: int = 0
    """How many disputes there may have been: one more than the settlements before the last of them."""
    input_read_at: str | None = None
    started_at: str | None = None
    disputed: bool = False

    @property
    def waits(self) -> bool:
        """Whether the agent has still to hand in an output."""
        return not self.outcome and not self.disputed and self.escrow is not Escrow.RELEASED


# Any: entries of every kind; only some say something of money.
def read_logged_contract(entries: Iterable[Any]) -> LoggedContract:
    """Follow the entries of one contract in their order."""
    logged = LoggedContract()
    for entry in entries:
        match entry:
            case AwardEntry():
                logged = replace(logged, award=entry)
            case InputReadEntry():
                logged = replace(logged, input_read_at=entry.at)
            case StartEntry():
                logged = replace(logged, started_at=entry.at)
            case EvidenceEntry():
                logged = replace(logged, outcome=entry.outcome, run=entry.run, completed_at=entry.at)
            case VerdictEntry():
                logged = replace(logged, verdict=entry)
            case _:
                logged = _follow_money(logged, entry)
    return logged


# Any: entries of every kind.
def _follow_money(logged: LoggedContract, entry: Any) -> LoggedContract:
    match entry:
        case SettlementEntry():
            return replace(
                logged, settlement=entry, settlements=entry.number, version=entry.version, escrow=Escrow.PAID
            )
        case ReversalEntry():
            return replace(logged, settlement=None, escrow=Escrow.HELD)
        case ReleaseEntry():
            return replace(logged, escrow=Escrow.RELEASED)
        case DisputeEntry():
            frozen = Escrow.FROZEN if logged.escrow is Escrow.HELD else logged.escrow
            return replace(logged, disputed=True, disputes=logged.settlements + 1, escrow=frozen)
        case ResolutionEntry():
            thawed = Escrow.HELD if logged.escrow is Escrow.FROZEN else logged.escrow
            return replace(logged, disputed=False, escrow=thawed)
        case _:
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
        "awarded_at": (to_rfc3339(contract.awarded_at), award.at),
        "input_read_at": (_written(contract.input_read_at), logged.input_read_at),
        "started_at": (_written(contract.started_at), logged.started_at),
        "completed_at": (_written(contract.completed_at), logged.completed_at),
        "settled_at": (_written(contract.settled_at), None if live is None else live.at),
        "disputes": (contract.disputes, logged.disputes),
        "disputed_from": (
            (contract.disputed_from is not None, contract.disputed_from is ContractState.SETTLED),
            (logged.disputed, logged.disputed and live is not None),
        ),
        "terms": (sha256(contract.terms).hexdigest(), award.terms),
        "outcome_id": (contract.outcome_id or "", logged.outcome),
        "escrow": (contract.escrow, logged.escrow),
        "settlement": (contract.settlement, 0 if live is None else live.number),
        "settlements": (contract.settlements, logged.settlements),
        "version": (contract.version, logged.version),
        "total_micros": (contract.total_micros, 0 if live is None else live.total_micros),
        "state": (
            (
                contract.state is ContractState.DISPUTED,
                contract.state is ContractState.SETTLED,
                contract.state in WAITING,
            ),
            (logged.disputed, logged.escrow is Escrow.PAID and not logged.disputed, logged.waits),
        ),
    }
    differ = [name for name, (recorded, expected) in pairs.items() if recorded != expected]
    yield from differ
    if "terms" not in differ and contract.expires_at != contract.awarded_at + _time_allowed(contract.terms):
        yield "expires_at"


def is_logged_run(run: str | None, logged: LoggedContract, salt: bytes | None) -> bool:
    """Whether a contract's row names the run that its output was handed in for; true once the salt was erased."""
    if run is None or not logged.run:
        return run is None and not logged.run
    return salt is None or matches(logged.run, bytes(salt), run.encode())


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else to_rfc3339(moment)


def _time_allowed(terms: bytes) -> timedelta:
    return timedelta(hours=decode_json(terms, _Deadline).deadline_hours)
