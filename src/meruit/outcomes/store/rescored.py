"""Writing many later versions of verdicts at once: as a segment, or one by one where a contract was awarded."""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from meruit.judge.result_template import ResultTemplate
from meruit.log.commitment import commitment
from meruit.log.entries import OUR_CONTRACT, write_verdict
from meruit.log.segment import MAX_CASES, version_form
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.verdict import Status, Verdict, VerificationResult
from meruit.outcomes.segment import (
    PackedVersion,
    ResultParts,
    SegmentDraft,
    VersionContent,
    describe_verdict,
    pack,
    pack_version,
    write_line,
)
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.batches import OutcomePlace
from meruit.outcomes.store.segments import write_segment
from meruit.outcomes.store.write import ERASED, LATEST_RESULTS, LatestResult, RecordedVersion, commit_criteria
from meruit.store import tables
from meruit.store.transaction import WriteTransaction


@dataclass(frozen=True, slots=True, eq=False)
class RescoredVerdict:
    """What a new result says besides its gaps; shared by all that are alike."""

    verdict: Verdict
    success: bool
    score: float
    exact: str
    bonus_micros: int
    penalty_micros: int
    statuses: Mapping[str, Status]
    """By the id of the criterion."""
    success_column: int
    """Whether it succeeds, as rows hold it."""
    name: str
    """Of the verdict."""
    line: bytes
    """How the line of a version ends in its segment."""
    form: bytes
    """What a segment says of such a version, without the gaps."""

    @classmethod
    def of(cls, result: VerificationResult) -> Self:
        """Of any result."""
        judged = result.verdict.value, result.success, result.exact, result.bonus_micros, result.penalty_micros
        return cls(
            verdict=result.verdict,
            success=result.success,
            score=result.score,
            exact=result.exact,
            bonus_micros=result.bonus_micros,
            penalty_micros=result.penalty_micros,
            statuses={judged.criterion_id: judged.status for judged in result.criterion_results},
            success_column=int(result.success),
            name=result.verdict.value,
            line=describe_verdict(*judged),
            form=version_form(*judged),
        )

    def stays(self, outcome: OutcomePlace) -> bool:
        """Whether the outcome was judged so before."""
        return self.name == outcome.verdict and self.score == outcome.score and self.success == outcome.success


class RescoredResult(Record, frozen=True):
    """A new result as it is to be kept."""

    written: bytes
    verdict: RescoredVerdict
    template: ResultTemplate | None = None
    """Where it shares one with others."""
    parts: ResultParts | None = None
    """What fills the template."""

    @classmethod
    def of(cls, result: VerificationResult) -> Self:
        """Of a result that shares nothing with others."""
        return cls(result.to_json(), RescoredVerdict.of(result))


class SingleVersion(Record, frozen=True):
    """What a version needs that has an entry of its own."""

    written: bytes
    """The result, as JSON."""
    salt: bytes
    read: tuple[bytes | None, ...]
    """What it was judged from: the result before, and the input, output and metadata where they were measured."""


class RescoredVersion(Record, frozen=True):
    """Another verdict on an outcome that is recorded."""

    outcome: OutcomePlace
    """As it was read; where it has another version by now, another process was quicker."""
    verdict: RescoredVerdict
    packed: PackedVersion | None
    """For its segment; None where a contract was awarded, whose every entry is a leaf of its own."""
    single: SingleVersion | None = None
    """For that leaf."""

    @classmethod
    def of(
        cls,
        outcome: OutcomePlace,
        result: RescoredResult,
        salt: bytes,
        read: Callable[[], tuple[bytes | None, ...]] = lambda: (None,),
    ) -> Self:
        """Prepare a version for its segment; `read` is asked only where a contract was awarded."""
        # Most have no such contract, and a pattern takes longer.
        if outcome.contract_id.startswith("con_") and OUR_CONTRACT.fullmatch(outcome.contract_id):
            return cls(outcome, result.verdict, None, SingleVersion(result.written, salt, read()))
        return cls(outcome, result.verdict, _pack(outcome, result, salt))


def _pack(outcome: OutcomePlace, result: RescoredResult, salt: bytes) -> PackedVersion:
    parts, verdict, version = result.parts, result.verdict, outcome.version + 1
    if parts is None:
        return pack_version(
            VersionContent(
                outcome=outcome.id,
                contract=outcome.contract_id,
                version=version,
                verdict=verdict.name,
                success=verdict.success,
                score=verdict.exact,
                bonus_micros=verdict.bonus_micros,
                penalty_micros=verdict.penalty_micros,
                result=result.written,
                salt=salt,
                evidence_index=outcome.evidence_leaf,
            )
        )
    outcome_id, evidence_leaf, contract = outcome.id.encode(), outcome.evidence_leaf, parts.contract
    committed = commitment(salt, result.written).encode()
    return PackedVersion(
        result.template,
        write_line(outcome_id, contract, version, evidence_leaf, parts.known(), verdict.line),
        salt + parts.digests,
        verdict.form % (contract, evidence_leaf, outcome_id, committed, version),
    )


@dataclass(frozen=True, slots=True)
class AddRescored:
    """Later versions under the same criteria and of the same time, durable together."""

    tenant: str
    criteria: bytes
    criteria_digest: str
    versions: Sequence[RescoredVersion]
    reason: str
    verified_at: int
    """In microseconds since 1970."""
    draft: SegmentDraft | None
    """Of all versions that go into a segment; made before the transaction, which holds up others."""

    @classmethod
    def of(
        cls,
        tenant: str,
        criteria: tuple[bytes, str],
        versions: Sequence[RescoredVersion],
        reason: str,
        verified_at: int,
    ) -> Self:
        """Prepare the write; criteria are given in canonical form with their digest."""
        body, digest = criteria
        return cls(tenant, body, digest, versions, reason, verified_at, _draft(versions))

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write those that still follow the version they expect; the others were rescored or erased meanwhile.

        Raises RecordTampered for the outcome of a contract that was read otherwise than the log commits to.
        """
        fit, places = _find_fit(writing, self.tenant, self.versions)
        if ERASED.any(writing):
            # What was erased stays so, also by a caller of this group: a result would say again what is forgotten.
            fit = [new for new in fit if not ERASED.has(writing, self.tenant, new.outcome.id)]
        if not fit:
            return []
        criteria = commit_criteria(writing, self.tenant, self.criteria, self.criteria_digest)
        together = [new for new in fit if new.packed is not None]
        leaf = self._write_segment(writing, together, criteria, whole=len(fit) == len(self.versions))
        neighbours = _find_neighbours(together, places) if len(together) == len(fit) else None
        rows = self._rows(together, leaf) if neighbours is None else []
        single = [(new, new.single) for new in fit if new.single is not None]
        for new, own in single:
            # Money may follow from verdicts on a contract.
            result, *parts = own.read
            basis = VersionBasis.of_content(new.outcome.version, result, tuple(parts))
            basis.require_committed(writing, self.tenant, new.outcome.id)
        writing.look_up_contracts(self.tenant, [new.outcome.contract_id for new, _ in single])
        rows += [self._write_single(writing, new, own, criteria) for new, own in single]
        writing.insert_all(tables.verdicts, _VERDICT_COLUMNS, rows)
        self._write_latest(writing, fit, places)
        if neighbours is None:
            return [RecordedVersion(row[1], row[2], row[_LEAF]) for row in rows]
        # Last, when the outcomes stand as these versions say: copying that takes half the time of binding each row.
        version, first, last = neighbours
        copied = (version, self.reason, self.verified_at, leaf, first, self.tenant, first, last)
        writing.rewrite_all(_COPY, [copied])
        return [RecordedVersion(new.outcome.id, version, leaf) for new in fit]

    def _write_segment(
        self,
        writing: WriteTransaction,
        versions: Sequence[RescoredVersion],
        criteria: tuple[str, int],
        *,
        whole: bool,
    ) -> int:
        """The position of the log's entry that the versions share; 0, and nothing written, where there are none."""
        draft = self.draft if whole else _draft(versions)
        if draft is None:
            return 0
        ids = [new.outcome.id for new in versions]
        leaf = write_segment(writing, self.tenant, draft, criteria, reason=self.reason, outcomes=ids, evidence=False)
        segment = f"segment:{leaf}"
        writing.emit(
            self.tenant,
            EventType.OUTCOMES_RESCORED,
            segment,
            segment,
            {
                "leaf": leaf,
                "criteria_digest": criteria[0],
                "reason": self.reason,
                "outcomes": [
                    {
                        "outcome_id": new.outcome.id,
                        "contract_id": new.outcome.contract_id,
                        "version": new.outcome.version + 1,
                        "verdict": new.verdict.name,
                        "success": new.verdict.success,
                    }
                    for new in versions
                ],
            },
        )
        return leaf

    def _rows(self, versions: Sequence[RescoredVersion], leaf: int) -> list[tuple[Any, ...]]:
        """The rows of the versions that share an entry of the log."""
        tenant, digest, reason, at = self.tenant, self.criteria_digest, self.reason, self.verified_at
        # Written out: a tuple that is put together from others takes twice as long.
        return [
            (
                tenant,
                new.outcome.id,
                new.outcome.version + 1,
                digest,
                new.verdict.name,
                new.verdict.success_column,
                new.verdict.score,
                reason,
                at,
                leaf,
                None,
                None,
                place,
            )
            for place, new in enumerate(versions)
        ]

    def _write_single(
        self, writing: WriteTransaction, new: RescoredVersion, own: SingleVersion, criteria: tuple[str, int]
    ) -> tuple[Any, ...]:
        """The row of a version that has an entry of its own."""
        tenant, outcome, verdict, written = self.tenant, new.outcome, new.verdict, own.written
        version = outcome.version + 1
        contract_seq = writing.next_in_contract(tenant, outcome.contract_id)
        body = write_verdict(
            writing.now.written,
            tenant,
            outcome.id,
            outcome.contract_id,
            contract_seq,
            version,
            self.criteria_digest,
            criteria[1],
            outcome.evidence_leaf,
            commitment(own.salt, written),
            verdict.name,
            verdict.success,
            verdict.exact,
            verdict.bonus_micros,
            verdict.penalty_micros,
            self.reason,
        )
        leaf = writing.append_bytes(body, tenant, outcome.contract_id, contract_seq)
        LATEST_RESULTS.put(writing, LatestResult(version, written), tenant, outcome.id)
        writing.emit(
            tenant,
            EventType.OUTCOME_RESCORED,
            outcome.contract_id,
            f"{outcome.id}:{version}",
            {
                "outcome_id": outcome.id,
                "contract_id": outcome.contract_id,
                "version": version,
                "verdict": verdict.verdict,
                "success": verdict.success,
                "criteria_digest": self.criteria_digest,
                "reason": self.reason,
            },
        )
        return (
            *(tenant, outcome.id, version, self.criteria_digest),
            *(verdict.name, verdict.success_column, verdict.score),
            *(self.reason, self.verified_at, leaf, own.salt, written, None),
        )

    def _write_latest(
        self, writing: WriteTransaction, versions: Sequence[RescoredVersion], places: Sequence[int]
    ) -> None:
        """How the outcomes stand now; `places` are those that outcomes of the tenant may have between these.

        A verdict that stays is not written: it would move in its indexes. Neighbours are written by one statement.
        """
        tenant = self.tenant
        changed = [
            (new.verdict.name, new.verdict.score, new.verdict.success_column, tenant, new.outcome.id)
            for new in versions
            if not new.verdict.stays(new.outcome)
        ]
        runs = _find_runs(sorted([new.outcome.seq for new in versions]), places)
        for statement, rows in (
            (_NEW_VERSION, [(self.criteria_digest, tenant, *run) for run in runs]),
            (_NEW_VERDICT, changed),
        ):
            if rows:
                writing.rewrite_all(statement, rows)


def _find_neighbours(versions: Sequence[RescoredVersion], places: Sequence[int]) -> tuple[int, int, int] | None:
    """The new version of all of them, and the first and the last place.

    None where they have several versions, or are not in order, or do not stand beside each other.
    """
    asked = [new.outcome.seq for new in versions]
    numbers = {new.outcome.version for new in versions}
    if len(numbers) != 1 or asked != [*range(asked[0], asked[-1] + 1)] or asked != places:
        return None
    return numbers.pop() + 1, asked[0], asked[-1]


def _find_runs(wanted: Sequence[int], places: Sequence[int]) -> list[tuple[int, int]]:
    """The first and the last of neighbours that are wanted, none between them being left out; both in order."""
    runs: list[tuple[int, int]] = []
    start = 0
    while start < len(wanted):
        at = bisect_left(places, wanted[start])
        end = start + 1
        # Most often all of them.
        if places[at : at + len(wanted) - start] == wanted[start:]:
            end = len(wanted)
        while end < len(wanted) and places[at + end - start] == wanted[end]:
            end += 1
        runs.append((wanted[start], wanted[end - 1]))
        start = end
    return runs


def _draft(versions: Iterable[RescoredVersion]) -> SegmentDraft | None:
    packed = [new.packed for new in versions if new.packed is not None]
    return pack(packed) if packed else None


def _find_fit(
    writing: WriteTransaction, tenant: str, versions: Sequence[RescoredVersion]
) -> tuple[Sequence[RescoredVersion], Sequence[int]]:
    """The versions that still follow the one they expect, of outcomes whose work is not erased.

    And the places that outcomes of the tenant may have between these, in order.
    """
    asked = [new.outcome.seq for new in versions]
    first, last = min(asked), max(asked)
    if last - first >= 2 * len(asked):
        # Other outcomes may be at any place between them.
        known = dict(_by_id(writing, tenant, [new.outcome.id for new in versions]))
        return _choose(versions, known), range(first, last + 1)
    expected = {new.outcome.version for new in versions}
    if len(expected) == 1:
        # The usual case is counted: all that are there are asked for, and none has changed.
        ((there, unchanged),) = writing.fetch(_COUNT, *expected, tenant, first, last)
        if there == unchanged == len({*asked}):
            return versions, sorted(asked)
    rows = writing.fetch(_IN_ORDER, tenant, first, last)
    return _choose(versions, {name: version for name, version, _, gone in rows if not gone}), [row[2] for row in rows]


def _choose(versions: Sequence[RescoredVersion], known: Mapping[str, int]) -> list[RescoredVersion]:
    """Those that follow the version that is known of their outcome."""
    return [new for new in versions if known.get(new.outcome.id) == new.outcome.version]


def _by_id(writing: WriteTransaction, tenant: str, ids: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    # As text: building a query of 500 parameters costs more than answering it.
    for start in range(0, len(ids), MAX_CASES):
        some = ids[start : start + MAX_CASES]
        yield from writing.fetch(f"{_BY_ID} ({', '.join('?' * len(some))})", tenant, *some)


_COUNT = (
    "SELECT count(*), count(CASE WHEN version = ? AND input_address IS NOT NULL THEN 1 END) "
    "FROM outcomes WHERE tenant = ? AND seq BETWEEN ? AND ?"
)
_IN_ORDER = (
    "SELECT id, version, seq, input_address IS NULL FROM outcomes WHERE tenant = ? AND seq BETWEEN ? AND ? ORDER BY seq"
)
_BY_ID = "SELECT id, version FROM outcomes WHERE tenant = ? AND input_address IS NOT NULL AND id IN"
_NEW_VERSION = "UPDATE outcomes SET version = version + 1, criteria_digest = ? WHERE tenant = ? AND seq BETWEEN ? AND ?"
_COPY = (
    "INSERT INTO verdicts (tenant, outcome_id, version, criteria_digest, verdict, success, score, reason, created_at, "
    "leaf, place) SELECT tenant, id, ?, criteria_digest, verdict, success, score, ?, ?, ?, seq - ? "
    "FROM outcomes WHERE tenant = ? AND seq BETWEEN ? AND ?"
)
_NEW_VERDICT = "UPDATE outcomes SET verdict = ?, score = ?, success = ? WHERE tenant = ? AND id = ?"
_VERDICT_COLUMNS = (
    *("tenant", "outcome_id", "version", "criteria_digest", "verdict", "success", "score"),
    *("reason", "created_at", "leaf", "salt", "result", "place"),
)
_LEAF = _VERDICT_COLUMNS.index("leaf")
