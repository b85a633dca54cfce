"""The states of a contract, and the operations that each state allows."""

from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from meruit.errors import BadAmount, WrongState
from meruit.model.contract import OPEN, Contract, ContractState, Escrow, Terms
from meruit.model.numbers import in_units

S = ContractState


class Operation(StrEnum):
    """An operation on a contract."""

    AWARD = "award"
    READ = "read"
    """The agent is given the input of the work for the first time."""
    START = "start"
    COMPLETE = "complete"
    SETTLE = "settle"
    DISPUTE = "dispute"
    RESOLVE = "resolve"
    RELEASE = "release"
    """Settle although a review was asked for."""
    VOID = "void"
    """Pay nothing and return the escrow; possible while the escrow is held."""
    REVERSE = "reverse"
    EXPIRE = "expire"


class Decision(StrEnum):
    """How a dispute ends."""

    UPHOLD = "uphold"
    """The verdict stays."""
    REVERSE = "reverse"
    """The payment goes back into escrow; a later verdict can be settled."""
    VOID = "void"
    """The payment is reversed and the contract cancelled."""
    ADJUST = "adjust"
    """The contract is settled on another amount, within what is held or was paid."""


ALLOWED: dict[Operation, frozenset[ContractState]] = {
    Operation.READ: frozenset({S.AWARDED, S.EXECUTING}),
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
    """Raise WrongState for an operation that the contract's state does not allow."""
    if contract.state not in ALLOWED[operation]:
        states = " or ".join(sorted(ALLOWED[operation]))
        raise WrongState(
            "wrong_state",
            f"contract {contract.id} is {contract.state}; {operation} needs the state {states}",
        )
    if operation in (Operation.SETTLE, Operation.VOID, Operation.RELEASE) and contract.escrow is not Escrow.HELD:
        raise WrongState("wrong_state", f"the escrow of contract {contract.id} is {contract.escrow}")


def read_input(contract: Contract, now: datetime) -> Contract:
    """Mark that the agent has the input; the first time counts."""
    check(contract, Operation.READ)
    return contract if contract.input_read_at is not None else msgspec.structs.replace(contract, input_read_at=now)


def start(contract: Contract, now: datetime) -> Contract:
    """Mark the contract as started by its agent."""
    check(contract, Operation.START)
    _check_deadline(contract, now)
    return msgspec.structs.replace(contract, state=S.EXECUTING, started_at=now)


def complete(
    contract: Contract, now: datetime, outcome_id: str, completion: str, evidence: str | None = None
) -> Contract:
    """Mark the contract as completed; it is settled or held next."""
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
    """Hold the contract for a reason."""
    return msgspec.structs.replace(contract, state=S.VERIFICATION_PENDING, hold_reason=reason)


def apply_verdict(contract: Contract, *, success: bool) -> Contract:
    """Mark the contract as verified or failed."""
    return msgspec.structs.replace(contract, state=S.VERIFIED if success else S.FAILED, hold_reason="")


def settle(contract: Contract, now: datetime, version: int, total: int) -> Contract:
    """Mark a version of the verdict as paid; raises WrongState where it was paid before."""
    check(contract, Operation.SETTLE)
    if version <= contract.version:
        raise WrongState(
            "already_settled",
            f"version {version} of the verdict was settled and reversed; judge the output again, or void the contract",
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
    """Put the payment back into escrow."""
    if contract.escrow is not Escrow.PAID:
        raise WrongState("wrong_state", f"contract {contract.id} has no payment to reverse")
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
    """Return the escrow to the consumer, finally."""
    if contract.escrow not in OPEN:
        raise WrongState("wrong_state", f"the escrow of contract {contract.id} is {contract.escrow}")
    return msgspec.structs.replace(contract, state=state, escrow=Escrow.RELEASED, hold_reason="")


def expire(contract: Contract, now: datetime) -> Contract:
    """End a contract whose deadline has passed; raises WrongState before it."""
    check(contract, Operation.EXPIRE)
    if now <= contract.expires_at:
        raise WrongState("not_due", f"contract {contract.id} runs until {contract.expires_at.isoformat()}")
    return void(contract, S.EXPIRED)


def dispute(contract: Contract, now: datetime, terms: Terms) -> Contract:
    """Freeze the contract; possible once per settlement and within the window. Raises WrongState."""
    check(contract, Operation.DISPUTE)
    if contract.escrow is Escrow.RELEASED:
        raise WrongState("wrong_state", f"contract {contract.id} was voided; it cannot be disputed")
    if contract.disputes > contract.settlements:
        raise WrongState("already_disputed", f"contract {contract.id} was already disputed; the dispute is resolved")
    since = contract.settled_at or contract.completed_at
    # A contract in a state that can be disputed was completed.
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
    """End a dispute: the contract returns to its state before it."""
    check(contract, Operation.RESOLVE)
    assert contract.disputed_from is not None  # noqa: S101 - set by every dispute
    return msgspec.structs.replace(
        contract,
        state=contract.disputed_from,
        escrow=Escrow.HELD if contract.escrow is Escrow.FROZEN else contract.escrow,
        disputed_from=None,
    )


def check_amount_given(decision: Decision, *, given: bool) -> None:
    """Raise BadAmount where `adjust` has no amount, or another decision has one."""
    if decision is Decision.ADJUST and not given:
        raise BadAmount("amount_missing", "the decision adjust needs the amount to settle on")
    if decision is not Decision.ADJUST and given:
        raise BadAmount("amount_unexpected", f"the decision {decision} takes no amount; only adjust does")


def check_adjustment(contract: Contract, micros: int, currency: str | None) -> None:
    """Raise BadAmount for an amount that a dispute cannot be settled on: a currency or a bound is wrong.

    `contract` is in its state before the dispute.
    """
    if currency not in (None, contract.currency):
        raise BadAmount(
            "wrong_currency", f"contract {contract.id} is in {contract.currency}, not in {currency}; convert the amount"
        )
    paid = contract.escrow is Escrow.PAID
    most = contract.total_micros if paid else contract.hold_micros
    if micros > most:
        bound = f"what {'was paid' if paid else 'is held'}, {in_units(most)} {contract.currency}"
        raise BadAmount(
            "above_paid" if paid else "above_held",
            f"contract {contract.id} can be settled on at most {bound}, not on {in_units(micros)}",
        )


def _check_deadline(contract: Contract, now: datetime) -> None:
    if now > contract.expires_at:
        raise WrongState("deadline_passed", f"contract {contract.id} ran until {contract.expires_at.isoformat()}")
