"""What may be done with a contract, and from which state: each move once, from the right one only."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from meruit.errors import WrongState
from meruit.model.contract import OPEN, Contract, ContractState, Escrow, Terms

S = ContractState


class Operation(StrEnum):
    """What can be done."""

    AWARD = "award"
    START = "start"
    COMPLETE = "complete"
    SETTLE = "settle"
    DISPUTE = "dispute"
    RESOLVE = "resolve"
    RELEASE = "release"
    """Settle although governance held it, or something could not be measured."""
    VOID = "void"
    """Pay nothing; the escrow goes back. Possible as long as it is held."""
    REVERSE = "reverse"
    EXPIRE = "expire"


class Decision(StrEnum):
    """How a dispute ends."""

    UPHOLD = "uphold"
    """The verdict stands."""
    REVERSE = "reverse"
    """What was paid comes back into escrow, to be settled by a later verdict."""
    VOID = "void"
    """Nobody is paid; what was paid comes back."""


ALLOWED: dict[Operation, frozenset[ContractState]] = {
    Operation.START: frozenset({S.AWARDED}),
    Operation.COMPLETE: frozenset({S.AWARDED, S.EXECUTING}),
    Operation.SETTLE: frozenset({S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED}),
    Operation.DISPUTE: frozenset({S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED, S.SETTLED}),
    Operation.RESOLVE: frozenset({S.DISPUTED}),
    Operation.RELEASE: frozenset({S.VERIFICATION_PENDING}),
    Operation.VOID: frozenset({S.AWARDED, S.EXECUTING, S.VERIFICATION_PENDING, S.VERIFIED, S.FAILED}),
    Operation.REVERSE: frozenset({S.SETTLED}),
    Operation.EXPIRE: frozenset({S.AWARDED, S.EXECUTING}),
}


def check(contract: Contract, operation: Operation) -> None:
    """Raise WrongState for a move that is not possible from here."""
    if contract.state not in ALLOWED[operation]:
        states = " or ".join(sorted(ALLOWED[operation]))
        raise WrongState(
            "wrong_state", f"contract {contract.id} is {contract.state}; {operation} needs it to be {states}"
        )
    if operation in (Operation.SETTLE, Operation.VOID, Operation.RELEASE) and contract.escrow is not Escrow.HELD:
        raise WrongState("wrong_state", f"the escrow of contract {contract.id} is {contract.escrow}")


def start(contract: Contract, now: datetime) -> Contract:
    """The agent has begun."""
    check(contract, Operation.START)
    _check_deadline(contract, now)
    return msgspec.structs.replace(contract, state=S.EXECUTING, started_at=now)


def complete(
    contract: Contract, now: datetime, outcome_id: str, completion: str, evidence: str | None = None
) -> Contract:
    """The output is here and judged; what follows is settled or held."""
    check(contract, Operation.COMPLETE)
    _check_deadline(contract, now)
    return msgspec.structs.replace(
        contract,
        state=S.VERIFICATION_PENDING,
        completed_at=now,
        outcome_id=outcome_id,
        completion=completion,
        evidence=evidence,
    )


def hold(contract: Contract, reason: str) -> Contract:
    """A person must look before money moves."""
    return msgspec.structs.replace(contract, state=S.VERIFICATION_PENDING, hold_reason=reason)


def apply_verdict(contract: Contract, *, success: bool) -> Contract:
    """The verdict is clear, one way or the other."""
    return msgspec.structs.replace(contract, state=S.VERIFIED if success else S.FAILED, hold_reason="")


def settle(contract: Contract, now: datetime, version: int, total: int) -> Contract:
    """The verdict is paid; raises WrongState where this version was paid already."""
    check(contract, Operation.SETTLE)
    if version <= contract.version:
        raise WrongState(
            "already_settled",
            f"version {version} of the verdict was settled and reversed; a later one is needed: judge it again, "
            "or void the contract",
        )
    number = contract.settlements + 1
    return msgspec.structs.replace(
        contract,
        state=S.SETTLED,
        escrow=Escrow.PAID,
        settled_at=now,
        settlement=number,
        settlements=number,
        version=version,
        total_micros=total,
        hold_reason="",
    )


def reverse(contract: Contract, reason: str) -> Contract:
    """What was paid is back in escrow, waiting for a later verdict."""
    if contract.escrow is not Escrow.PAID:
        raise WrongState("wrong_state", f"nothing was paid on contract {contract.id} that could be reversed")
    return msgspec.structs.replace(
        contract,
        state=S.VERIFICATION_PENDING,
        escrow=Escrow.HELD,
        settled_at=None,
        settlement=0,
        total_micros=0,
        hold_reason=reason,
    )


def void(contract: Contract, state: ContractState = S.FAILED) -> Contract:
    """The escrow is back with the consumer, for good."""
    if contract.escrow not in OPEN:
        raise WrongState("wrong_state", f"the escrow of contract {contract.id} is {contract.escrow}")
    return msgspec.structs.replace(contract, state=state, escrow=Escrow.RELEASED, hold_reason="")


def expire(contract: Contract, now: datetime) -> Contract:
    """Nobody delivered in time."""
    check(contract, Operation.EXPIRE)
    if now <= contract.expires_at:
        raise WrongState("not_due", f"contract {contract.id} runs until {contract.expires_at.isoformat()}")
    return void(contract, S.EXPIRED)


def dispute(contract: Contract, now: datetime, terms: Terms) -> Contract:
    """Somebody objects, once a verdict and within the window: what is held is frozen, what was paid may come back."""
    check(contract, Operation.DISPUTE)
    if contract.escrow is Escrow.RELEASED:
        raise WrongState("wrong_state", f"contract {contract.id} was called off; there is nothing to dispute")
    if contract.disputes > contract.settlements:
        raise WrongState("already_disputed", f"contract {contract.id} was disputed already, and that was resolved")
    since = contract.settled_at or contract.completed_at
    # Whatever may be disputed was completed.
    assert since is not None  # noqa: S101
    closes = since + timedelta(hours=terms.dispute_window_hours)
    if contract.state is S.SETTLED and now > closes:
        raise WrongState(
            "dispute_window_closed",
            f"contract {contract.id} could be disputed until {closes.isoformat()}; an operator may still reverse it",
        )
    return msgspec.structs.replace(
        contract,
        state=S.DISPUTED,
        escrow=Escrow.FROZEN if contract.escrow is Escrow.HELD else contract.escrow,
        disputed_from=contract.state,
        disputes=contract.settlements + 1,
    )


def uphold(contract: Contract) -> Contract:
    """The dispute changes nothing: back to where it stood."""
    check(contract, Operation.RESOLVE)
    assert contract.disputed_from is not None  # noqa: S101 - set by whatever made it disputed
    return msgspec.structs.replace(
        contract,
        state=contract.disputed_from,
        escrow=Escrow.HELD if contract.escrow is Escrow.FROZEN else contract.escrow,
        disputed_from=None,
    )


def _check_deadline(contract: Contract, now: datetime) -> None:
    if now > contract.expires_at:
        raise WrongState("deadline_passed", f"contract {contract.id} ran until {contract.expires_at.isoformat()}")
