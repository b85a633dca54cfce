"""Settle a completed contract, or release what is held; pay the difference when usage changes."""

from dataclasses import replace

import msgspec

from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import Operation
from meruit.contracts.payment_decision import PAYABLE, PaymentFacts
from meruit.contracts.settlement import (
    add_version,
    criteria_body,
    follow_usage,
    load_payment_facts,
    record_verdict,
    renew_verdict,
    require_payment,
    write_settlement,
)
from meruit.contracts.store.read import ContractJudgement, ContractSnapshot
from meruit.contracts.store.transaction import Actor, ContractRequest, ContractTransaction, fingerprint
from meruit.errors import NotFound, WrongState
from meruit.judge.verdict import apply_governance, rejudge
from meruit.model.contract import Contract, ContractState
from meruit.model.events import EventType
from meruit.model.verdict import GovernanceStatus
from meruit.outcomes.records import criteria_from
from meruit.store.transaction import WriteTransaction


class SettleContract(msgspec.Struct, frozen=True):
    """Settle a contract: pay its clear verdict."""

    request: ContractRequest
    contract_id: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the settlement; a settled contract is returned unchanged."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        if contract.state is ContractState.SETTLED:
            return step.load_snapshot(contract)
        lifecycle.check(contract, Operation.SETTLE)
        facts = load_payment_facts(step, contract)
        bill = require_payment(contract, facts)
        facts = renew_verdict(step, contract, facts)
        assert facts.result is not None  # noqa: S101 - decided to be paid
        if contract.state is ContractState.VERIFICATION_PENDING:
            contract = record_verdict(step, contract, facts.result)
        contract = write_settlement(step, contract, facts.version, bill)
        step.save(contract)
        return ContractSnapshot(contract=contract, judgement=ContractJudgement(facts.version, facts.result), bill=bill)


class ReleaseContract(msgspec.Struct, frozen=True):
    """Release a held contract: a person overrules the review, and it is paid."""

    request: ContractRequest
    contract_id: str
    reason: str
    salt: bytes

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the release and the settlement; over governance, as a new version of the verdict."""
        step = ContractTransaction(writing, self.request.actor)
        contract = step.load(self.contract_id)
        number, mark = contract.settlements + 1, fingerprint("release", self.reason)
        try:
            lifecycle.check(contract, Operation.RELEASE)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.RELEASE, contract.settlements, mark, problem)
        loaded = load_payment_facts(step, contract, released=True)
        facts = _overrule_governance(step, loaded)
        bill = require_payment(contract, facts)
        if facts is not loaded:
            facts = add_version(step, contract, facts, self.salt, f"released by {step.actor.by}: {self.reason}")
        facts = renew_verdict(step, contract, facts)
        assert facts.result is not None  # noqa: S101 - decided to be paid
        step.record_operation(contract, Operation.RELEASE, number, mark, self.reason)
        step.emit_event(contract, EventType.CONTRACT_RELEASED, number, reason=self.reason, by=step.actor.by)
        contract = record_verdict(step, contract, facts.result)
        contract = write_settlement(step, contract, facts.version, bill, f"released: {self.reason}")
        step.save(contract)
        return ContractSnapshot(contract=contract, judgement=ContractJudgement(facts.version, facts.result), bill=bill)


class FollowUsage(msgspec.Struct, frozen=True):
    """Pay, hold or reverse a contract that pays for tokens, by what is known of them now."""

    actor: Actor
    contract_id: str

    def __call__(self, writing: WriteTransaction) -> Contract | None:
        """Write what changes; None where the run names a contract that does not exist."""
        step = ContractTransaction(writing, self.actor)
        try:
            contract = step.load(self.contract_id)
        except NotFound:
            return None
        after = follow_usage(step, contract)
        if after != contract:
            step.save(after)
        return after


def _overrule_governance(step: ContractTransaction, facts: PaymentFacts) -> PaymentFacts:
    """The facts with a released result where governance objects; else the same facts."""
    result = facts.result
    if result is None or result.governance in PAYABLE:
        return facts
    criteria = criteria_from(criteria_body(step, result.criteria_digest or ""))
    unheld = msgspec.structs.replace(result, governance=GovernanceStatus.NOT_CHECKED, verified_at=step.now)
    again = apply_governance(rejudge(criteria, unheld), GovernanceStatus.RELEASED, result.governance_flags)
    return replace(facts, result=again)
