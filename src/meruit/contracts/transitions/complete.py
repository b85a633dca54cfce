"""Complete a contract: record the outcome, govern it, pay or hold."""

import msgspec

from meruit.contracts import lifecycle
from meruit.contracts.latency import ContractTimes, times_of
from meruit.contracts.lifecycle import Operation
from meruit.contracts.settlement import pay_or_hold
from meruit.contracts.store.read import ContractJudgement, ContractSnapshot
from meruit.contracts.store.tampering import JudgedBy
from meruit.contracts.store.transaction import ContractRequest, ContractTransaction
from meruit.errors import WrongState
from meruit.governance.evaluate import combine_results, govern, rule_versions
from meruit.governance.history import SubmissionFingerprints
from meruit.governance.records import add_history, find_paid_contract, record_history
from meruit.governance.resemblance import describe_output
from meruit.judge.verdict import apply_governance
from meruit.log.commitment import commitment
from meruit.log.entries import GovernanceEntry
from meruit.model.contract import Contract
from meruit.model.events import EventType
from meruit.model.governance import Disposition, Dossier, GovernanceCheck, GovernanceResult, Policy
from meruit.model.verdict import GovernanceStatus, Reason, ReasonCode, VerificationResult
from meruit.outcomes.records import NewOutcome
from meruit.store import tables
from meruit.store.transaction import WriteTransaction

UNAVAILABLE = "governance_unavailable"


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
        step = ContractTransaction(writing, self.request.actor)
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
            self.outcome,
            result=result,
            result_json=result.to_json(),
            idempotency_key=self.request.idempotency_key,
            run=contract.evidence,
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
            step.writing, step.tenant, contract, self.dossier, self.fingerprints, self.outcome.result.criteria_digest
        )
        answers = [] if self.policy is None else [govern(dossier, self.policy)]
        answers += [] if self.remote is None else [self.remote]
        result = answers[0] if len(answers) == 1 else combine_results(*answers)
        return GovernanceCheck(
            dossier=dossier,
            policy=self.policy,
            rules=rule_versions(self.policy),
            remote=self.remote,
            result=result,
            output=describe_output(self.fingerprints, result),
        )

    def _remember(self, step: ContractTransaction, contract: Contract, checked: GovernanceCheck | None) -> None:
        flags = [] if checked is None else checked.result.names
        record_history(
            step.writing,
            step.tenant,
            contract,
            self.dossier,
            self.fingerprints,
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
