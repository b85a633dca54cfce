"""Read the input of a contract, and start its work."""

import msgspec

from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import Operation
from meruit.contracts.store.input_reads import find_unread
from meruit.contracts.store.read import ContractSnapshot
from meruit.contracts.store.tampering import require_untampered
from meruit.contracts.store.transaction import Actor, ContractRequest, ContractTransaction, fingerprint
from meruit.errors import WrongState
from meruit.log.entries import InputReadEntry, StartEntry
from meruit.model.events import EventType
from meruit.store.transaction import WriteTransaction


class RecordInputRead(msgspec.Struct, frozen=True):
    """Record that an agent is given the input of its work; the first time counts, on each of its open contracts."""

    actor: Actor
    work_id: str

    def __call__(self, writing: WriteTransaction) -> int:
        """Write the reads that are not recorded yet; returns their number. Raises RecordTampered."""
        step = ContractTransaction(writing, self.actor)
        agent_id = self.actor.scope.agent_id or ""
        unread = find_unread(writing, step.tenant, self.work_id, agent_id)
        return sum(self._read(step, contract_id) for contract_id in unread)

    def _read(self, step: ContractTransaction, contract_id: str) -> bool:
        before = step.load(contract_id)
        require_untampered(step, before)
        try:
            contract = lifecycle.read_input(before, step.now)
        except WrongState:
            # Another request of the same group ended the contract first.
            return False
        if contract is before:
            return False
        step.append(InputReadEntry(*step.entry_header(contract), step.actor.by))
        step.save(contract)
        step.record_operation(contract, Operation.READ, 0, fingerprint("read"))
        return True


class StartContract(msgspec.Struct, frozen=True):
    """Start a contract; under `latency_from: start`, the agent's time counts from here."""

    request: ContractRequest
    contract_id: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the start; a repeated request changes nothing."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        # Otherwise a database writer who changes the agent for a moment could start its time.
        require_untampered(step, contract)
        mark = fingerprint("start")
        try:
            contract = lifecycle.start(contract, step.now)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.START, 0, mark, problem)
        step.append(StartEntry(*step.entry_header(contract), step.actor.by))
        step.save(contract)
        step.record_operation(contract, Operation.START, 0, mark)
        step.emit_event(contract, EventType.CONTRACT_STARTED)
        return ContractSnapshot(contract)
