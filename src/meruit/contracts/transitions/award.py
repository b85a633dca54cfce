"""Award a contract on published work."""

from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec

from meruit.contracts import postings as ledger
from meruit.contracts.bill import hold_for
from meruit.contracts.lifecycle import Operation
from meruit.contracts.settlement import criteria_of
from meruit.contracts.store.input_reads import has_read_input
from meruit.contracts.store.ledger import Movement, move_money, parties_of
from meruit.contracts.store.read import ContractSnapshot, row_of, terms_body
from meruit.contracts.store.transaction import CONTRACTS, ContractRequest, ContractTransaction, fingerprint
from meruit.contracts.store.work import WorkRow, find_for_writing
from meruit.errors import RecordTampered, WrongState
from meruit.log.entries import AwardEntry, InputReadEntry, criteria_digest_of
from meruit.model.contract import Contract, ContractState, Escrow, Terms
from meruit.model.events import EventType
from meruit.model.numbers import in_units
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


class AwardContract(msgspec.Struct, frozen=True):
    """Award a contract on published work, and put its price into escrow."""

    request: ContractRequest
    contract_id: str
    work_id: str
    agent_id: str
    cpc_rate: Any = None
    """The rate for completion; what the work offers when not given."""
    provider_id: str | None = None
    """Who runs the agent; earnings are summed by it."""

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the award; raises NotFound, and WrongState for a rate that the work does not allow."""
        step = ContractTransaction(writing, self.request.actor)
        work = find_for_writing(step.writing, step.tenant, self.work_id)
        if work.criteria is not None and criteria_digest_of(work.criteria) != work.criteria_digest:
            raise RecordTampered(f"the criteria of work {work.id} are not those that were published")
        terms = self._terms(work)
        criteria = None if work.criteria is None else criteria_of(work.criteria)
        body, hold = terms_body(terms), hold_for(criteria, terms)
        contract = Contract(
            id=self.contract_id,
            seq=0,
            work_id=work.id,
            agent_id=self.agent_id,
            consumer_id=work.consumer_id,
            domain=work.submission.domain,
            state=ContractState.AWARDED,
            escrow=Escrow.HELD,
            currency=terms.currency,
            hold_micros=hold,
            terms=body,
            awarded_at=step.now,
            expires_at=step.now + timedelta(hours=terms.deadline_hours),
            # An agent that had a contract on this work before may know its input.
            input_read_at=step.now if has_read_input(step.writing, step.tenant, work.id, self.agent_id) else None,
            provider_id=self.provider_id,
        )
        leaf = step.append(
            AwardEntry(
                *step.entry_header(contract),
                work.id,
                sha256(work.body).hexdigest(),
                self.agent_id,
                work.consumer_id,
                work.criteria_digest or "",
                sha256(body).hexdigest(),
                terms.currency,
                hold,
                step.actor.by,
            )
        )
        contract = msgspec.structs.replace(contract, seq=leaf)
        step.writing.insert(tables.contracts, tenant=step.tenant, **row_of(contract))
        CONTRACTS.put(step.writing, contract, step.tenant, contract.id)
        move_money(
            step.writing,
            Movement(
                tenant=step.tenant,
                contract=contract,
                operation="hold",
                number=0,
                postings=ledger.hold(parties_of(contract), hold),
            ),
            leaf,
        )
        step.record_operation(contract, Operation.AWARD, 0, fingerprint(work.id, self.agent_id, str(self.cpc_rate)))
        if contract.input_read_at is not None:
            step.append(InputReadEntry(*step.entry_header(contract), step.actor.by))
            step.record_operation(contract, Operation.READ, 0, fingerprint("read"), "the agent read it before")
        step.emit_event(contract, EventType.CONTRACT_AWARDED, hold=in_units(hold), currency=terms.currency)
        return ContractSnapshot(contract)

    def _terms(self, work: WorkRow) -> Terms:
        terms, ceiling = work.submission.terms_in_force(), work.submission.budget.max_cpc
        rate = terms.cpc_rate if self.cpc_rate is None else self.cpc_rate
        if rate is None:
            raise WrongState("no_rate", f"work {work.id} has no terms.cpc_rate; give cpc_rate with the award")
        offered = [one for one in (terms.cpc_rate, ceiling) if one is not None]
        if offered and rate > min(offered):
            raise WrongState("above_budget", f"work {work.id} pays at most {min(offered)} for completion, not {rate}")
        return terms.model_copy(update={"cpc_rate": rate})
