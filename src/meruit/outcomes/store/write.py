"""Writing what was decided: outcomes and later versions of their verdicts, each with its entries in the audit log."""

from typing import NamedTuple, Self

import msgspec

from meruit.errors import StoreError
from meruit.governance.records import OutputAttempt, VerifiedWork, compare_verified, record_attempt
from meruit.governance.rule_governance import RuleGovernance
from meruit.judge.governance import add_answer
from meruit.log.commitment import SALT_BYTES, commitment, commitment_to
from meruit.log.entries import OUR_CONTRACT, PARTS, RESULT, CriteriaEntry, EvidenceEntry, VerdictEntry
from meruit.model.events import EventType
from meruit.model.outcome import Labels
from meruit.model.time import to_micros
from meruit.model.verdict import VerificationResult
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.segments import find_gathered
from meruit.store import tables
from meruit.store.blobs import EvidencePart
from meruit.store.rows import RowMarks, Rows
from meruit.store.transaction import WriteTransaction

_SALTED = (*PARTS, RESULT)
SALTS = len(_SALTED)
"""One each for input, output, metadata and the result."""


class LatestResult(msgspec.Struct, frozen=True):
    """The newest version of an outcome's verdict."""

    version: int
    result: bytes | None
    """As JSON; None where it was erased."""


_CRITERIA_LEAVES = Rows[int]("criteria_leaf", lasting=True)
LATEST_RESULTS = Rows[LatestResult]("latest_result")
ERASED = RowMarks("erased_outcome")


class RecordedVersion(msgspec.Struct, frozen=True):
    """Where an outcome's verdict stands."""

    outcome_id: str
    version: int
    leaf: int
    result: VerificationResult | None = None
    """As recorded, where the agent's history added to it."""


class HistoryCheck(msgspec.Struct, frozen=True):
    """The rules of governance that compare with earlier work, and the work."""

    governance: RuleGovernance
    work: VerifiedWork

    def add_flags(self, writing: WriteTransaction, tenant: str, result: VerificationResult) -> VerificationResult:
        """The result with what these rules find; the same result where they find nothing."""
        answer = self.governance.check_history(compare_verified(writing, tenant, self.work))
        return add_answer(result, answer) if answer.flags else result


class NewOutcome(msgspec.Struct, frozen=True):
    """Work and the first verdict on it, ready to be written."""

    tenant: str
    id: str
    labels: Labels
    input: EvidencePart
    output: EvidencePart
    metadata: EvidencePart
    criteria: bytes
    """In canonical form; their digest is the result's."""
    result: VerificationResult
    salts: bytes
    """Random: without them the content could be guessed from its hash."""
    result_json: bytes | None = None
    """The result as it is kept, where the caller has encoded it already."""
    idempotency_key: str | None = None
    """Of the request that it came with: whose kept answer holds the result too."""
    history_check: HistoryCheck | None = None
    """None where governance is off, is asked elsewhere, or does not know the agent."""
    by_agent: bool = False
    """Whether the agent handed it in itself, without a contract."""
    run: str | None = None
    """The fingerprint of the run that a contract is to be paid for."""

    def write(self, writing: WriteTransaction) -> RecordedVersion:
        """The outcome, its evidence and its first verdict."""
        checked = self.check_history(writing)
        if checked is not self:
            return msgspec.structs.replace(checked.write(writing), result=checked.result)
        tenant, labels, contract = self.tenant, self.labels, self.contract
        criteria_digest, criteria_index = commit_criteria(writing, tenant, self.criteria, self.result.criteria_digest)
        fresh = contract == self.id
        contract_seq = 1 if fresh else writing.next_in_contract(tenant, contract)
        evidence_index = writing.append(
            EvidenceEntry(
                writing.now.written,
                tenant,
                self.id,
                contract,
                contract_seq,
                *self.commit_to_evidence(),
                self._commit_to_run(),
            ),
            tenant,
            contract,
            contract_seq,
        )
        version = _NewVersion(
            outcome_id=self.id,
            contract_id=contract,
            version=1,
            criteria_digest=criteria_digest,
            criteria_index=criteria_index,
            evidence_index=evidence_index,
            reason="",
        )
        result_json = self.result_json or self.result.to_json()
        leaf = _write_version(writing, tenant, version, self.result, result_json, self.salt(RESULT), contract_seq + 1)
        result = self.result
        self.insert_row(writing, evidence_index)
        writing.emit(
            tenant,
            EventType.OUTCOME_RECORDED,
            contract,
            f"{self.id}:1",
            {
                "outcome_id": self.id,
                "contract_id": contract,
                "agent_id": labels.agent_id,
                "consumer_id": labels.consumer_id,
                "domain": labels.domain,
                "version": 1,
                "verdict": result.verdict,
                "success": result.success,
                "criteria_digest": criteria_digest,
            },
        )
        return RecordedVersion(outcome_id=self.id, version=1, leaf=leaf)

    def check_history(self, writing: WriteTransaction) -> Self:
        """The outcome with what the agent's history adds to its result; itself where that adds nothing."""
        if self.history_check is None:
            return self
        result = self.history_check.add_flags(writing, self.tenant, self.result)
        if result is self.result:
            return self
        return msgspec.structs.replace(self, result=result, result_json=None, history_check=None)

    @property
    def contract(self) -> str:
        """The contract that the client names, or the outcome itself."""
        return self.labels.contract_id or self.id

    def salt(self, part: str) -> bytes:
        """The salt of input, output, metadata or the result."""
        return self.salts[_SALTED.index(part) * SALT_BYTES :][:SALT_BYTES]

    def commit_to_evidence(self) -> tuple[str, str, str]:
        """Salted hashes of input, output and metadata."""
        return (
            commitment_to(self.salt("input"), self.input.address),
            commitment_to(self.salt("output"), self.output.address),
            commitment_to(self.salt("metadata"), self.metadata.address),
        )

    def _commit_to_run(self) -> str:
        return "" if self.run is None else commitment(self.salt("metadata"), self.run.encode())

    def insert_row(self, writing: WriteTransaction, evidence_leaf: int) -> None:
        """Write the row of the outcome and what it refers to; the leaf is the one that commits to its evidence."""
        result, labels = self.result, self.labels
        for part in (self.input, self.output, self.metadata):
            writing.keep(part.blob(self.tenant))
        writing.insert(
            tables.outcomes,
            tenant=self.tenant,
            id=self.id,
            seq=writing.next_outcome(),
            contract_id=self.contract,
            agent_id=labels.agent_id,
            consumer_id=labels.consumer_id,
            domain=labels.domain,
            created_at=to_micros(result.verified_at),
            evidence_leaf=evidence_leaf,
            input_address=self.input.address,
            input_salt=self.salt("input"),
            output_address=self.output.address,
            output_salt=self.salt("output"),
            metadata_address=self.metadata.address,
            metadata_salt=self.salt("metadata"),
            version=1,
            verdict=result.verdict.value,
            success=int(result.success),
            score=result.score,
            criteria_digest=result.criteria_digest,
            idempotency_key=self.idempotency_key,
            by_agent=int(self.by_agent),
        )


class NewVersion(msgspec.Struct, frozen=True):
    """Another verdict on an outcome that is recorded."""

    outcome_id: str
    expected: int
    """The version that it follows; anything else means that another process was quicker."""
    result: VerificationResult
    salt: bytes
    is_measured: bool = False
    """Whether the work was measured again, rather than a recorded result changed."""


class _NewVersion(msgspec.Struct, frozen=True):
    outcome_id: str
    contract_id: str
    version: int
    criteria_digest: str
    criteria_index: int
    evidence_index: int
    reason: str


class _Standing(NamedTuple):
    """What a later version of an outcome follows."""

    id: str
    contract_id: str
    version: int
    evidence_leaf: int
    input_address: str | None


_STANDING = (
    "SELECT id, contract_id, version, evidence_leaf, input_address FROM outcomes WHERE tenant = ? AND id IN ({marks})"
)


class RecordAll(msgspec.Struct, frozen=True):
    """Outcomes that become durable together."""

    tenant: str
    outcomes: tuple[NewOutcome, ...]
    attempts: tuple[OutputAttempt, ...] = ()
    """Of agents that hand in their own work, where governance does not record them."""
    idempotency_key: str | None = None
    """Key of the HTTP request whose stored reply quotes the results."""

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write all of them."""
        self.prepare(writing)
        if self.idempotency_key is None:
            return [outcome.write(writing) for outcome in self.outcomes]
        return [
            msgspec.structs.replace(outcome, idempotency_key=self.idempotency_key).write(writing)
            for outcome in self.outcomes
        ]

    def prepare(self, writing: WriteTransaction) -> None:
        """Count the attempts; raises StoreError for an outcome of a contract, which only completing it may record."""
        for outcome in self.outcomes:
            contract_id = outcome.labels.contract_id
            if contract_id is not None and OUR_CONTRACT.fullmatch(contract_id):
                raise StoreError(f"{contract_id} is a contract: complete it, so that it is paid for as well")
        for attempt in self.attempts:
            record_attempt(writing, self.tenant, attempt)


def commit_criteria(writing: WriteTransaction, tenant: str, body: bytes, digest: str | None) -> tuple[str, int]:
    """The criteria's digest and their place in the log, where they stand once for a tenant."""
    if digest is None:
        raise StoreError("a result that was judged by no criteria cannot be recorded")
    index = _CRITERIA_LEAVES.get(writing, tenant, digest)
    if index is None:
        rows = writing.fetch("SELECT leaf FROM criteria WHERE tenant = ? AND digest = ?", tenant, digest)
        index = rows[0][0] if rows else None
        if index is None:
            index = writing.append(CriteriaEntry(writing.now.written, tenant, digest), tenant)
            writing.insert(
                tables.criteria,
                tenant=tenant,
                digest=digest,
                leaf=index,
                created_at=writing.now.micros,
                body=body,
            )
        _CRITERIA_LEAVES.put(writing, index, tenant, digest)
    return digest, int(index)


class AddVersions(msgspec.Struct, frozen=True):
    """Later versions of verdicts under the same criteria, durable together."""

    tenant: str
    criteria: bytes
    versions: tuple[NewVersion, ...]
    reason: str

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write those that still follow the version they expect; others were rescored by another process meanwhile.

        Raises RecordTampered for work that was measured again, and is not what the log commits to.
        """
        wanted = [version.outcome_id for version in self.versions]
        asked = _STANDING.format(marks=", ".join("?" * len(wanted)))
        found = {row[0]: _Standing(*row) for row in writing.fetch(asked, self.tenant, *wanted)} if wanted else {}
        writing.look_up_contracts(self.tenant, (row.contract_id for row in found.values()))
        recorded: list[RecordedVersion] = []
        for new in self.versions:
            row = found.get(new.outcome_id)
            if row is None or row.version != new.expected:
                continue
            # What was erased stays so, also by a caller of this group: a result would say again what is forgotten.
            if row.input_address is None or ERASED.has(writing, self.tenant, new.outcome_id):
                continue
            if find_gathered(writing, new.outcome_id) or LATEST_RESULTS.has(writing, self.tenant, new.outcome_id):
                continue
            if new.is_measured:
                result = new.result
                measured = (result.input_digest or "", result.output_digest or "", result.metadata_digest or "")
                VersionBasis(new.expected, digests=measured).require_committed(writing, self.tenant, row.id)
            digest, index = commit_criteria(writing, self.tenant, self.criteria, new.result.criteria_digest)
            version = _NewVersion(
                outcome_id=row.id,
                contract_id=row.contract_id,
                version=row.version + 1,
                criteria_digest=digest,
                criteria_index=index,
                evidence_index=row.evidence_leaf,
                reason=self.reason,
            )
            contract_seq = writing.next_in_contract(self.tenant, row.contract_id)
            leaf = _write_version(
                writing, self.tenant, version, new.result, new.result.to_json(), new.salt, contract_seq
            )
            recorded.append(RecordedVersion(outcome_id=row.id, version=version.version, leaf=leaf))
            _emit_rescored(writing, self.tenant, version, new.result)
        return recorded


def _emit_rescored(writing: WriteTransaction, tenant: str, version: _NewVersion, result: VerificationResult) -> None:
    writing.rewrite(
        _LATEST,
        version.version,
        result.verdict.value,
        int(result.success),
        result.score,
        version.criteria_digest,
        tenant,
        version.outcome_id,
    )
    writing.emit(
        tenant,
        EventType.OUTCOME_RESCORED,
        version.contract_id,
        f"{version.outcome_id}:{version.version}",
        {
            "outcome_id": version.outcome_id,
            "contract_id": version.contract_id,
            "version": version.version,
            "verdict": result.verdict,
            "success": result.success,
            "criteria_digest": version.criteria_digest,
            "reason": version.reason,
        },
    )


_LATEST = (
    "UPDATE outcomes SET version = ?, verdict = ?, success = ?, score = ?, criteria_digest = ? "
    "WHERE tenant = ? AND id = ?"
)


def _write_version(
    writing: WriteTransaction,
    tenant: str,
    version: _NewVersion,
    result: VerificationResult,
    result_json: bytes,
    salt: bytes,
    contract_seq: int,
) -> int:
    """The verdict's entry in the log, and its row."""
    leaf = writing.append(
        VerdictEntry(
            writing.now.written,
            tenant,
            version.outcome_id,
            version.contract_id,
            contract_seq,
            version.version,
            version.criteria_digest,
            version.criteria_index,
            version.evidence_index,
            commitment(salt, result_json),
            result.verdict.value,
            result.success,
            result.exact,
            result.bonus_micros,
            result.penalty_micros,
            version.reason,
        ),
        tenant,
        version.contract_id,
        contract_seq,
    )
    LATEST_RESULTS.put(writing, LatestResult(version.version, result_json), tenant, version.outcome_id)
    writing.insert(
        tables.verdicts,
        tenant=tenant,
        outcome_id=version.outcome_id,
        version=version.version,
        criteria_digest=version.criteria_digest,
        verdict=result.verdict.value,
        success=int(result.success),
        score=result.score,
        reason=version.reason,
        created_at=to_micros(result.verified_at),
        leaf=leaf,
        salt=salt,
        result=result_json,
        place=None,
    )
    return leaf


def result_from(stored: bytes | None) -> VerificationResult | None:
    """A result as its row holds it."""
    return None if stored is None else VerificationResult.from_json(stored)
