"""Writing many later versions of verdicts at once: the same rows, entries and events as one by one, without detours."""

from typing import Any

from meruit.log.commitment import commitment
from meruit.log.entries import OUR_CONTRACT, write_verdict
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.write import ERASED, LATEST_RESULTS, LatestResult, RecordedVersion, commit_criteria
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


class RescoredVersion(Record, frozen=True):
    """Another verdict on an outcome that is recorded."""

    outcome_id: str
    expected: int
    """The version that it follows; anything else means that another process was quicker."""
    written: bytes
    """The result as it is kept."""
    verdict: str
    success: bool
    score: float
    exact: str
    bonus_micros: int
    penalty_micros: int
    salt: bytes
    read: tuple[bytes | None, ...]
    """What it was judged from: the result before, and the input, output and metadata where they were measured."""


class AddRescored(Record, frozen=True):
    """Later versions under the same criteria and of the same time, durable together."""

    tenant: str
    criteria: bytes
    criteria_digest: str
    versions: tuple[RescoredVersion, ...]
    reason: str
    verified_at: int
    """In microseconds since 1970."""

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write those that still follow the version they expect; the others were rescored or erased meanwhile.

        Raises RecordTampered for the outcome of a contract that was read otherwise than the log commits to.
        """
        wanted = [new.outcome_id for new in self.versions]
        found = {
            # Any: columns of several types.
            row[0]: row
            for row in writing.fetch(f"{_OUTCOMES} ({', '.join('?' * len(wanted))})", self.tenant, *wanted)
        }
        writing.look_up_contracts(self.tenant, [row[1] for row in found.values()])
        pairs = [
            (new, row) for new in self.versions if (row := found.get(new.outcome_id)) and self._fits(writing, new, row)
        ]
        if not pairs:
            return []
        for new, row in pairs:
            # Money may follow from verdicts on a contract.
            if OUR_CONTRACT.fullmatch(row[1]):
                result, *parts = new.read
                basis = VersionBasis.of_content(new.expected, result, tuple(parts))
                basis.require_committed(writing, self.tenant, row[0])
        digest, index = commit_criteria(writing, self.tenant, self.criteria, self.criteria_digest)
        rows = [self._write(writing, new, row, digest, index) for new, row in pairs]
        writing.insert_all(tables.verdicts, _VERDICT_COLUMNS, rows)
        return [RecordedVersion(row[1], row[2], row[_LEAF]) for row in rows]

    def _fits(self, writing: WriteTransaction, new: RescoredVersion, row: tuple[Any, ...]) -> bool:
        # What was erased stays so, also by a caller of this group: a result would say again what is forgotten.
        return row[2] == new.expected and row[4] is not None and not ERASED.has(writing, self.tenant, new.outcome_id)

    def _write(
        self, writing: WriteTransaction, new: RescoredVersion, row: tuple[Any, ...], digest: str, index: int
    ) -> tuple[Any, ...]:
        tenant, (outcome_id, contract_id, before, evidence_leaf, _) = self.tenant, row
        version = before + 1
        contract_seq = writing.next_in_contract(tenant, contract_id)
        body = write_verdict(
            writing.now.written,
            tenant,
            outcome_id,
            contract_id,
            contract_seq,
            version,
            digest,
            index,
            evidence_leaf,
            commitment(new.salt, new.written),
            new.verdict,
            new.success,
            new.exact,
            new.bonus_micros,
            new.penalty_micros,
            self.reason,
        )
        leaf = writing.append_bytes(body, tenant, contract_id, contract_seq)
        LATEST_RESULTS.put(writing, LatestResult(version, new.written), tenant, outcome_id)
        success = int(new.success)
        writing.rewrite(_LATEST, version, new.verdict, success, new.score, digest, tenant, outcome_id)
        writing.emit(
            *(tenant, EventType.OUTCOME_RESCORED, contract_id, f"{outcome_id}:{version}"),
            {
                "outcome_id": outcome_id,
                "contract_id": contract_id,
                "version": version,
                "verdict": new.verdict,
                "success": new.success,
                "criteria_digest": digest,
                "reason": self.reason,
            },
        )
        return (
            *(tenant, outcome_id, version, digest, new.verdict, success, new.score),
            *(self.reason, self.verified_at, leaf, new.salt, new.written),
        )


# As text: building a query of 500 parameters costs more than answering it.
_OUTCOMES = "SELECT id, contract_id, version, evidence_leaf, input_address FROM outcomes WHERE tenant = ? AND id IN"
_LATEST = (
    "UPDATE outcomes SET version = ?, verdict = ?, success = ?, score = ?, criteria_digest = ? "
    "WHERE tenant = ? AND id = ?"
)
_VERDICT_COLUMNS = (
    *("tenant", "outcome_id", "version", "criteria_digest", "verdict", "success", "score"),
    *("reason", "created_at", "leaf", "salt", "result"),
)
_LEAF = _VERDICT_COLUMNS.index("leaf")
