"""The transitions of a contract; each writes its log entry, money, events and reply in one transaction."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import msgspec
from sqlalchemy import select

from meruit.contracts import lifecycle
from meruit.contracts import postings as ledger
from meruit.contracts.bill import hold_for
from meruit.contracts.latency import ContractTimes, times_of
from meruit.contracts.lifecycle import Decision, Operation
from meruit.contracts.payment_decision import PAYABLE, PaymentFacts
from meruit.contracts.settlement import (
    add_version,
    adjust_payment,
    criteria_body,
    criteria_of,
    follow_usage,
    load_payment_facts,
    pay_or_hold,
    record_verdict,
    release_escrow,
    renew_verdict,
    require_payment,
    reverse_payment,
    write_settlement,
)
from meruit.contracts.store.input_reads import find_unread, has_read_input
from meruit.contracts.store.ledger import Movement, move_money, parties_of
from meruit.contracts.store.read import ContractJudgement, ContractSnapshot, row_of, terms_body, terms_of
from meruit.contracts.store.tampering import JudgedBy
from meruit.contracts.store.transaction import (
    CONTRACTS,
    Actor,
    ContractRequest,
    ContractTransaction,
    fingerprint,
)
from meruit.contracts.store.work import WorkRow, find_for_writing
from meruit.errors import BadAmount, NotFound, WrongState
from meruit.governance.evaluate import combine_results, govern, rule_versions
from meruit.governance.history import SubmissionFingerprints
from meruit.governance.records import add_history, find_paid_contract, record_history
from meruit.judge.verdict import apply_governance, rejudge
from meruit.log.commitment import commitment
from meruit.log.entries import AwardEntry, DisputeEntry, GovernanceEntry, InputReadEntry, ResolutionEntry, StartEntry
from meruit.model.access import Scope
from meruit.model.contract import Contract, ContractState, Escrow, Terms
from meruit.model.events import EventType
from meruit.model.governance import Disposition, Dossier, GovernanceCheck, GovernanceResult, Policy
from meruit.model.money import as_micros
from meruit.model.numbers import Number, in_units
from meruit.model.verdict import GovernanceStatus, Reason, ReasonCode, VerificationResult
from meruit.outcomes.records import NewOutcome, criteria_from
from meruit.store import tables
from meruit.store.transaction import WriteTransaction

UNAVAILABLE = "governance_unavailable"


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
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        work = find_for_writing(step.writing, step.tenant, self.work_id)
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
                *(work.id, sha256(work.body).hexdigest(), self.agent_id, work.consumer_id, work.criteria_digest or ""),
                *(sha256(body).hexdigest(), terms.currency, hold, step.actor.by),
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


class RecordInputRead(msgspec.Struct, frozen=True):
    """Record that an agent is given the input of its work; the first time counts, on each of its open contracts."""

    actor: Actor
    work_id: str

    def __call__(self, writing: WriteTransaction) -> int:
        """Write the reads that are not recorded yet; returns their number."""
        step = ContractTransaction(writing, self.actor)
        agent_id = self.actor.scope.agent_id or ""
        unread = find_unread(writing, step.tenant, self.work_id, agent_id)
        return sum(self._read(step, contract_id) for contract_id in unread)

    def _read(self, step: ContractTransaction, contract_id: str) -> bool:
        before = step.load(contract_id)
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
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        contract = step.load(self.contract_id)
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


class CompleteContract(msgspec.Struct, frozen=True):
    """Complete a contract: record the output and its verdict, ask governance, and settle or hold."""

    request: ContractRequest
    contract_id: str
    outcome: NewOutcome
    dossier: Dossier
    fingerprints: SubmissionFingerprints
    completion: str
    """A fingerprint that is equal for equal completions."""
    salt: bytes
    policy: Policy | None
    judged_by: JudgedBy
    remote: GovernanceResult | None = None
    criteria: bytes | None = None
    """The criteria of the work in canonical form; None for work that is paid for completion alone."""
    times: ContractTimes | None = None
    """The times that the agent's latency was measured by; None where an operator reports."""

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the completion; a repeated request with the same output gets the same reply."""
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        contract = step.load(self.contract_id)
        if contract.completion is not None:
            if contract.completion == self.completion:
                return step.load_snapshot(contract)
            raise WrongState(
                "already_completed",
                f"contract {contract.id} was already completed with another output or other metadata",
            )
        if self.times not in (None, times_of(contract)):
            raise WrongState(
                "changed_meanwhile",
                f"contract {contract.id} was started, or its input read, while its output was judged; submit it again",
            )
        contract = lifecycle.complete(contract, step.now, self.outcome.id, self.completion, self.fingerprints.evidence)
        step.record_operation(contract, Operation.COMPLETE, 0, self.completion)
        step.emit_event(contract, EventType.CONTRACT_COMPLETED)
        checked = self._check_governance(step, contract)
        result = self.outcome.result if checked is None else _apply_governance(self.outcome.result, checked.result)
        msgspec.structs.replace(
            self.outcome, result=result, result_json=result.to_json(), idempotency_key=self.request.idempotency_key
        ).write(step.writing)
        if checked is not None:
            _record_check(step, contract, 1, checked, self.salt)
        if checked is None:
            paid_under = find_paid_contract(step.writing, step.tenant, contract, contract.evidence)
        else:
            paid_under = checked.dossier.history.settled_under
        contract, paid = pay_or_hold(
            step, contract, result, self.judged_by, criteria=self.criteria, paid_under=paid_under
        )
        self._remember(step, contract, checked)
        step.save(contract)
        return ContractSnapshot(contract=contract, judgement=ContractJudgement(1, result), bill=paid)

    def _check_governance(self, step: ContractTransaction, contract: Contract) -> GovernanceCheck | None:
        if self.policy is None and self.remote is None:
            return None
        dossier = add_history(
            *(step.writing, step.tenant, contract, self.dossier, self.fingerprints), self.outcome.result.criteria_digest
        )
        answers = [] if self.policy is None else [govern(dossier, self.policy)]
        answers += [] if self.remote is None else [self.remote]
        result = answers[0] if len(answers) == 1 else combine_results(*answers)
        return GovernanceCheck(
            dossier=dossier, policy=self.policy, rules=rule_versions(self.policy), remote=self.remote, result=result
        )

    def _remember(self, step: ContractTransaction, contract: Contract, checked: GovernanceCheck | None) -> None:
        flags = [] if checked is None else checked.result.names
        record_history(
            *(step.writing, step.tenant, contract, self.dossier, self.fingerprints),
            mismatch="latency_mismatch" in flags,
            result=None if checked is None else checked.result,
        )


def _apply_governance(result: VerificationResult, governance: GovernanceResult) -> VerificationResult:
    """The result with the conclusion of governance."""
    named = ", ".join(governance.names)
    match governance.conclusion:
        case Disposition.CLEAR:
            return apply_governance(result, GovernanceStatus.CLEAR, governance.names)
        case Disposition.INVALID:
            reason = Reason(ReasonCode.GOVERNANCE_INVALID, f"governance rejects the outcome: {named}")
            return apply_governance(result, GovernanceStatus.INVALID, governance.names, reason)
        case Disposition.HOLD if UNAVAILABLE in governance.names:
            reason = Reason(
                ReasonCode.GOVERNANCE_UNAVAILABLE, "governance gave no clear answer; a person must review the outcome"
            )
            return apply_governance(result, GovernanceStatus.REVIEW, governance.names, reason)
        case Disposition.HOLD:
            reason = Reason(ReasonCode.GOVERNANCE_HOLD, f"a person must review the outcome: {named}")
            return apply_governance(result, GovernanceStatus.REVIEW, governance.names, reason)


def _record_check(
    step: ContractTransaction, contract: Contract, version: int, checked: GovernanceCheck, salt: bytes
) -> None:
    body = checked.to_json()
    disposition = str(checked.result.conclusion)
    leaf = step.append(
        GovernanceEntry(
            *step.entry_header(contract), version, disposition, tuple(checked.result.names), commitment(salt, body)
        )
    )
    step.writing.insert(
        tables.governance_checks,
        tenant=step.tenant,
        outcome_id=contract.outcome_id,
        version=version,
        disposition=disposition,
        at=step.writing.now.micros,
        leaf=leaf,
        salt=salt,
        body=body,
    )


class SettleContract(msgspec.Struct, frozen=True):
    """Settle a contract: pay its clear verdict."""

    request: ContractRequest
    contract_id: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the settlement; a settled contract is returned unchanged."""
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
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
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
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


def _overrule_governance(step: ContractTransaction, facts: PaymentFacts) -> PaymentFacts:
    """The facts with a released result where governance objects; else the same facts."""
    result = facts.result
    if result is None or result.governance in PAYABLE:
        return facts
    criteria = criteria_from(criteria_body(step, result.criteria_digest or ""))
    unheld = msgspec.structs.replace(result, governance=GovernanceStatus.NOT_CHECKED, verified_at=step.now)
    again = apply_governance(rejudge(criteria, unheld), GovernanceStatus.RELEASED, result.governance_flags)
    return replace(facts, result=again)


class VoidContract(msgspec.Struct, frozen=True):
    """Void a contract: the escrow goes back to the consumer."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the release of the escrow; a repeated request changes nothing."""
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        contract = step.load(self.contract_id)
        mark = fingerprint("void", self.reason)
        try:
            lifecycle.check(contract, Operation.VOID)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.VOID, 0, mark, problem)
        contract = _void(step, contract, mark, self.reason)
        step.save(contract)
        return step.load_snapshot(contract)


def _void(step: ContractTransaction, contract: Contract, mark: str, reason: str) -> Contract:
    contract = lifecycle.void(contract)
    release_escrow(step, contract, "void", reason)
    step.record_operation(contract, Operation.VOID, 0, mark, reason)
    step.emit_event(contract, EventType.CONTRACT_VOIDED, reason=reason, by=step.actor.by)
    return contract


class ReverseContract(msgspec.Struct, frozen=True):
    """Reverse a payment into escrow; a later verdict can be settled, or the contract voided."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the reversal; a repeated request changes nothing."""
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        contract = step.load(self.contract_id)
        mark = fingerprint("reverse", self.reason)
        try:
            lifecycle.check(contract, Operation.REVERSE)
        except WrongState as problem:
            return step.refuse_or_replay(contract, Operation.REVERSE, contract.settlements, mark, problem)
        contract = reverse_payment(step, contract, mark, self.reason)
        step.save(contract)
        return step.load_snapshot(contract)


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


class DisputeContract(msgspec.Struct, frozen=True):
    """Dispute how a contract was judged or paid."""

    request: ContractRequest
    contract_id: str
    reason: str

    def __call__(self, writing: WriteTransaction) -> ContractSnapshot:
        """Write the dispute; a repeated request changes nothing."""
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        contract = step.load(self.contract_id)
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
        return self._act(ContractTransaction(writing, self.request.actor))

    def _act(self, step: ContractTransaction) -> ContractSnapshot:
        lifecycle.check_amount_given(self.decision, given=self.amount is not None)
        contract = step.load(self.contract_id)
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
                *(str(self.decision), step.actor.by, self.reason),
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
            *(contract, EventType.CONTRACT_RESOLVED, contract.disputes),
            decision=str(self.decision),
            reason=self.reason,
            by=step.actor.by,
            **settled_on,
        )
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
