"""Take a contract back: void it before payment, reverse it after payment, or let it expire."""

from collections.abc import Iterator

import msgspec
from sqlalchemy import select

from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import Operation
from meruit.contracts.settlement import release_escrow, reverse_payment
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.transaction import Actor, ContractRequest, ContractTransaction, fingerprint
from meruit.errors import WrongState
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState
from meruit.model.events import EventType
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


class VoidContract(msgspec.Struct, frozen=True):
    """Void a contract: the escrow goes back to the consumer."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the release of the escrow; a repeated request changes nothing."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        mark = fingerprint("void", self.reason)
        try:
            lifecycle.check(contract, Operation.VOID)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.VOID, 0, mark, problem)
        contract = _void(step, contract, mark, self.reason)
        step.save(contract)
        return step.load_snapshot(contract)


class ReverseContract(msgspec.Struct, frozen=True):
    """Reverse a payment into escrow; a later verdict can be settled, or the contract voided."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the reversal; a repeated request changes nothing."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        mark = fingerprint("reverse", self.reason)
        try:
            lifecycle.check(contract, Operation.REVERSE)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.REVERSE, contract.settlements, mark, problem)
        contract = reverse_payment(step, contract, mark, self.reason)
        step.save(contract)
        return step.load_snapshot(contract)


class ExpireContracts(msgspec.Struct, frozen=True):
    """Expire contracts whose deadline has passed; their escrow goes back."""

    by: str
    limit: int = 100

    def __call__(self, writing: WriteTransaction) -> int:
        """Write the expiry of those that are due, earliest first; returns their number."""
        return sum(self._expire_one(writing, tenant, contract_id) for tenant, contract_id in self._due(writing))

    def _due(self, writing: WriteTransaction) -> Iterator[tuple[str, str]]:
        table, left = tables.contracts, self.limit
        for state in (ContractState.AWARDED, ContractState.EXECUTING):
            query = (
                select(table.c.tenant, table.c.id)
                .where(table.c.state == str(state), table.c.expires_at < writing.now.micros)
                .order_by(table.c.expires_at)
                .limit(left)
            )
            rows = writing.read(query)
            left -= len(rows)
            yield from ((row.tenant, row.id) for row in rows)

    def _expire_one(self, writing: WriteTransaction, tenant: str, contract_id: str) -> bool:
        step = ContractTransaction(writing, Actor(Scope(tenant), self.by))
        try:
            contract = lifecycle.expire(step.load(contract_id), step.now)
            release_escrow(step, contract, "expire", "the deadline passed")
        except WrongState:
            # Another request of the same group changed it first, or the log says otherwise of it.
            return False
        step.record_operation(contract, Operation.EXPIRE, 0, fingerprint("expire"))
        step.emit_event(contract, EventType.CONTRACT_EXPIRED)
        step.save(contract)
        return True


def _void(step: ContractTransaction, contract: Contract, mark: str, reason: str) -> Contract:
    contract = lifecycle.void(contract)
    release_escrow(step, contract, "void", reason)
    step.record_operation(contract, Operation.VOID, 0, mark, reason)
    step.emit_event(contract, EventType.CONTRACT_VOIDED, reason=reason, by=step.actor.by)
    return contract
