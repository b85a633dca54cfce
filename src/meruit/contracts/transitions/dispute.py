"""Dispute a settlement, and resolve the dispute."""

from typing import Any

import msgspec

from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import Decision, Operation
from meruit.contracts.settlement import adjust_payment, follow_usage, reverse_payment
from meruit.contracts.store.read import ContractSnapshot, terms_of
from meruit.contracts.store.tampering import require_untampered
from meruit.contracts.store.transaction import ContractRequest, ContractTransaction, fingerprint
from meruit.contracts.transitions.void import _void
from meruit.errors import BadAmount, WrongState
from meruit.log.entries import DisputeEntry, ResolutionEntry
from meruit.model.contract import Escrow
from meruit.model.events import EventType
from meruit.model.money import as_micros
from meruit.model.numbers import Number, in_units
from meruit.store.transaction import WriteTransaction


class DisputeContract(msgspec.Struct, frozen=True):
    """Dispute how a contract was judged or paid."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the dispute; a repeated request changes nothing."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        require_untampered(step, contract)
        mark = fingerprint("dispute", step.actor.by, self.reason)
        try:
            contract = lifecycle.dispute(contract, step.now, terms_of(contract))
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.DISPUTE, contract.disputes, mark, problem)
        step.append(DisputeEntry(*step.entry_header(contract), step.actor.by, self.reason))
        step.save(contract)
        step.record_operation(contract, Operation.DISPUTE, contract.disputes, mark, self.reason)
        step.emit_event(contract, EventType.CONTRACT_DISPUTED, contract.disputes, reason=self.reason, by=step.actor.by)
        return step.load_snapshot(contract)


class SettlementAmount(msgspec.Struct, frozen=True):
    """What a dispute is settled on."""

    micros: int
    currency: str | None = None
    """Of the amount; that of the contract when not given."""


def to_settlement_amount(amount: Number | None, currency: str | None) -> SettlementAmount | None:
    """The amount to settle on, where one is given; raises BadAmount for a currency alone."""
    if amount is None and currency is not None:
        raise BadAmount("amount_missing", f"the currency {currency!r} has no amount; give both, or neither")
    return None if amount is None else SettlementAmount(as_micros(amount), currency)


class ResolveDispute(msgspec.Struct, frozen=True):
    """Resolve a dispute."""

    request: ContractRequest
    contract_id: str
    decision: Decision
    reason: str
    amount: SettlementAmount | None = None
    """What to settle on, where the decision is `adjust`."""

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the decision and what follows from it; a repeated request changes nothing."""
        step = ContractTransaction(writing, self.request.actor)
        lifecycle.check_amount_given(self.decision, given=self.amount is not None)
        contract = step.load(self.contract_id)
        require_untampered(step, contract)
        amount = () if self.amount is None else (str(self.amount.micros),)
        mark = fingerprint("resolve", str(self.decision), *amount, self.reason)
        try:
            contract = lifecycle.uphold(contract)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.RESOLVE, contract.disputes, mark, problem)
        if self.decision is Decision.REVERSE and contract.escrow is not Escrow.PAID:
            raise WrongState("nothing_paid", f"contract {contract.id} has no payment to reverse; uphold it or void it")
        if self.amount is not None:
            lifecycle.check_adjustment(contract, self.amount.micros, self.amount.currency)
        step.append(
            ResolutionEntry(
                *step.entry_header(contract),
                str(self.decision),
                step.actor.by,
                self.reason,
                *(() if self.amount is None else (contract.currency, self.amount.micros)),
            )
        )
        step.record_operation(contract, Operation.RESOLVE, contract.disputes, mark, self.reason)
        match self.decision:
            case Decision.UPHOLD:
                # Its tokens may have changed while it was frozen.
                contract = follow_usage(step, contract)
            case Decision.REVERSE:
                contract = reverse_payment(step, contract, mark, self.reason)
            case Decision.VOID:
                if contract.escrow is Escrow.PAID:
                    contract = reverse_payment(step, contract, mark, self.reason)
                contract = _void(step, contract, mark, self.reason)
            case Decision.ADJUST:
                assert self.amount is not None  # noqa: S101 - checked above
                contract = adjust_payment(step, contract, self.amount.micros, mark, self.reason)
        settled_on: dict[str, Any] = {} if self.amount is None else {"amount": in_units(self.amount.micros)}
        step.emit_event(
            contract,
            EventType.CONTRACT_RESOLVED,
            contract.disputes,
            decision=str(self.decision),
            reason=self.reason,
            by=step.actor.by,
            **settled_on,
        )
        step.save(contract)
        return step.load_snapshot(contract)
