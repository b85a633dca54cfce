"""Writing many later versions of verdicts at once: as a segment, or one by one where a contract was awarded."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import msgspec

from meruit.errors import VersionOvertaken
from meruit.judge.result_template import ResultTemplate
from meruit.log.commitment import commitment
from meruit.log.entries import OUR_CONTRACT, write_verdict
from meruit.log.merkle import LEAF
from meruit.log.segment import MAX_CASES, version_form
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.verdict import Status, Verdict, VerificationResult
from meruit.outcomes.segment import (
    PackedVersion,
    PackedVersions,
    ResultParts,
    SegmentDraft,
    VersionContent,
    describe_verdict,
    pack_version,
    write_line,
)
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.batches import OutcomePlace
from meruit.outcomes.store.segments import gathered_outcomes, write_segment
from meruit.outcomes.store.versions import can_form_run, pack_offsets
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
    """What is hashed of such a version into the tree of its segment, without the gaps."""
    event: bytes
    """The same in the event of the segment."""

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
            form=LEAF + version_form(*judged),
            event=b'{"outcome_id":"%%b","contract_id":%%b,"version":%%d,"verdict":"%b","success":%b}'
            % (result.verdict.value.encode(), b"true" if result.success else b"false"),
        )


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


@dataclass(frozen=True, slots=True)
class RescoredDraft:
    """A segment, ready to be written, and what its event says of each version."""

    segment: SegmentDraft
    events: bytes
    """A list, as JSON."""


def is_awarded(contract_id: str) -> bool:
    """Whether the contract was awarded here: its versions are entries of their own, which payments rest on."""
    # Most begin otherwise, and a pattern takes longer.
    return contract_id.startswith("con_") and OUR_CONTRACT.fullmatch(contract_id) is not None


class RescoredVersions:
    """Versions on their way into one write: of each column, one value for each version."""

    __slots__ = ("events", "outcomes", "packed", "singles", "verdicts")

    def __init__(self) -> None:
        self.outcomes: list[OutcomePlace] = []
        """As they were read; where one has another version by now, another process was quicker."""
        self.verdicts: list[RescoredVerdict] = []
        self.singles: dict[int, SingleVersion] = {}
        """By place: where a contract was awarded, whose every entry is a leaf of its own."""
        self.packed = PackedVersions()
        """All others, in order."""
        self.events: list[bytes] = []
        """What the event says of them."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.outcomes)

    def add(
        self,
        outcome: OutcomePlace,
        result: RescoredResult,
        salt: bytes,
        read: Callable[[], tuple[bytes | None, ...]] = lambda: (None,),
    ) -> None:
        """Add a version; `read` is asked only where a contract was awarded."""
        outcome_id, _, version, _, _, _, _, contract_id, _ = outcome
        if is_awarded(contract_id):
            self.singles[len(self)] = SingleVersion(result.written, salt, read())
        else:
            self.packed.add(_pack(outcome, result, salt))
            self.events.append(
                result.verdict.event % (outcome_id.encode(), msgspec.json.encode(contract_id), version + 1)
            )
        self.outcomes.append(outcome)
        self.verdicts.append(result.verdict)

    def together(self) -> Iterator[tuple[OutcomePlace, RescoredVerdict]]:
        """Those that share a segment, in its order."""
        pairs = zip(self.outcomes, self.verdicts, strict=True)
        # Most often all.
        return (pair for place, pair in enumerate(pairs) if place not in self.singles) if self.singles else pairs

    def pick(self, places: Sequence[int]) -> "RescoredVersions":
        """Some of them; raises VersionOvertaken where they were packed elsewhere, and only all can be written."""
        if len(self.packed) + len(self.singles) < len(self):
            raise VersionOvertaken
        made = RescoredVersions()
        made.outcomes, made.verdicts = [self.outcomes[one] for one in places], [self.verdicts[one] for one in places]
        made.singles = {new: self.singles[old] for new, old in enumerate(places) if old in self.singles}
        packed = [place for place in range(len(self)) if place not in self.singles]
        wanted = [bisect_left(packed, one) for one in places if one not in self.singles]
        made.packed, made.events = self.packed.pick(wanted), [self.events[one] for one in wanted]
        return made

    def draft(self) -> RescoredDraft | None:
        """The segment of those that share one."""
        return RescoredDraft(self.packed.draft(), b"[%b]" % b",".join(self.events)) if self.packed else None


def _pack(outcome: OutcomePlace, result: RescoredResult, salt: bytes) -> PackedVersion:
    outcome_id, _, version, _, _, _, _, contract_id, evidence_leaf = outcome
    parts, verdict = result.parts, result.verdict
    if parts is None:
        return pack_version(
            VersionContent(
                outcome=outcome_id,
                contract=contract_id,
                version=version + 1,
                verdict=verdict.name,
                success=verdict.success,
                score=verdict.exact,
                bonus_micros=verdict.bonus_micros,
                penalty_micros=verdict.penalty_micros,
                result=result.written,
                salt=salt,
                evidence_index=evidence_leaf,
            )
        )
    name, contract = outcome_id.encode(), parts.contract
    committed = commitment(salt, result.written).encode()
    form = verdict.form.removeprefix(LEAF)
    return PackedVersion(
        result.template,
        write_line(name, contract, version + 1, evidence_leaf, parts.known(), verdict.line),
        salt + parts.digests,
        form % (contract, evidence_leaf, name, committed, version + 1),
    )


@dataclass(frozen=True, slots=True)
class AddRescored:
    """Later versions under the same criteria and of the same time, durable together."""

    tenant: str
    criteria: bytes
    criteria_digest: str
    versions: RescoredVersions
    reason: str
    verified_at: int
    """In microseconds since 1970."""
    draft: RescoredDraft | None
    """Of all versions that go into a segment; made before the transaction, which holds up others."""

    @classmethod
    def of(
        cls,
        tenant: str,
        criteria: tuple[bytes, str],
        versions: RescoredVersions,
        reason: str,
        verified_at: int,
    ) -> Self:
        """Prepare the write; criteria are given in canonical form with their digest."""
        body, digest = criteria
        return cls(tenant, body, digest, versions, reason, verified_at, versions.draft())

    def __call__(self, writing: WriteTransaction) -> list[RecordedVersion]:
        """Write those that still follow the version they expect; the others were rescored or erased meanwhile.

        Raises RecordTampered for the outcome of a contract that was read otherwise than the log commits to.
        """
        versions, draft = self.versions, self.draft
        fit, places = _find_fit(writing, self.tenant, versions.outcomes)
        taken = self._find_taken(writing)
        if taken:
            fit = [one for one in fit if versions.outcomes[one][0] not in taken]
        if not fit:
            return []
        if len(fit) < len(versions):
            versions = versions.pick(fit)
            draft = versions.draft()
        criteria = commit_criteria(writing, self.tenant, self.criteria, self.criteria_digest)
        leaf = None if draft is None else self._write_segment(writing, versions, draft, criteria)
        leaves = self._write_singles(writing, versions, criteria) if versions.singles else {}
        self._write_latest(writing, versions, places)
        if leaf is not None and not leaves:
            # Most often all share the entry.
            return [RecordedVersion(outcome[0], outcome[2] + 1, leaf) for outcome in versions.outcomes]
        return [
            RecordedVersion(outcome[0], outcome[2] + 1, leaves[place] if leaf is None else leaves.get(place, leaf))
            for place, outcome in enumerate(versions.outcomes)
        ]

    def _find_taken(self, writing: WriteTransaction) -> set[str]:
        """The outcomes that another caller of the group has erased, or given a version.

        Their rows do not say so yet. What is erased stays so: a result would say again what is forgotten.
        """
        ids = [outcome[0] for outcome in self.versions.outcomes]
        taken = gathered_outcomes(writing, ids)
        for marked in (ERASED, LATEST_RESULTS):
            if marked.any(writing):
                taken.update(one for one in ids if marked.has(writing, self.tenant, one))
        return taken

    def _write_segment(
        self,
        writing: WriteTransaction,
        versions: RescoredVersions,
        draft: RescoredDraft,
        criteria: tuple[str, int],
    ) -> int:
        """The versions that share an entry of the log: their segment, its event, and where each is found."""
        together = [*versions.together()]
        ids = [outcome[0] for outcome, _ in together]
        leaf = write_segment(
            writing, self.tenant, draft.segment, criteria, reason=self.reason, outcomes=ids, evidence=False
        )
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
                "outcomes": msgspec.Raw(draft.events),
            },
        )
        seqs, numbers = [outcome[1] for outcome, _ in together], {outcome[2] for outcome, _ in together}
        if len(numbers) > 1 or not can_form_run(seqs):
            writing.insert_all(tables.verdicts, _VERDICT_COLUMNS, self._rows(together, leaf))
            return leaf
        writing.insert(
            tables.verdict_runs,
            tenant=self.tenant,
            first_seq=seqs[0],
            version=numbers.pop() + 1,
            last_seq=seqs[-1],
            leaf=leaf,
            criteria_digest=self.criteria_digest,
            reason=self.reason,
            created_at=self.verified_at,
            offsets=pack_offsets(seqs),
        )
        return leaf

    def _rows(self, together: Sequence[tuple[OutcomePlace, RescoredVerdict]], leaf: int) -> list[tuple[Any, ...]]:
        """The rows of versions that form no run."""
        tenant, digest, reason, at = self.tenant, self.criteria_digest, self.reason, self.verified_at
        # Written out: a tuple that is put together from others takes twice as long.
        return [
            (
                tenant,
                outcome[0],
                outcome[2] + 1,
                digest,
                verdict.name,
                verdict.success_column,
                verdict.score,
                reason,
                at,
                leaf,
                None,
                None,
                place,
            )
            for place, (outcome, verdict) in enumerate(together)
        ]

    def _write_singles(
        self, writing: WriteTransaction, versions: RescoredVersions, criteria: tuple[str, int]
    ) -> dict[int, int]:
        """The versions that have entries of their own; by place where each entry is."""
        outcomes = {place: OutcomePlace(*versions.outcomes[place]) for place in versions.singles}
        for place, own in versions.singles.items():
            # Money may follow from verdicts on a contract.
            result, *parts = own.read
            basis = VersionBasis.of_content(outcomes[place].version, result, tuple(parts))
            basis.require_committed(writing, self.tenant, outcomes[place].id)
        writing.look_up_contracts(self.tenant, [one.contract_id for one in outcomes.values()])
        return {
            place: self._write_single(writing, outcomes[place], versions.verdicts[place], own, criteria)
            for place, own in versions.singles.items()
        }

    def _write_single(
        self,
        writing: WriteTransaction,
        outcome: OutcomePlace,
        verdict: RescoredVerdict,
        own: SingleVersion,
        criteria: tuple[str, int],
    ) -> int:
        """A version that has an entry of its own; where that is."""
        tenant, written = self.tenant, own.written
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
        writing.insert(
            tables.verdicts,
            tenant=tenant,
            outcome_id=outcome.id,
            version=version,
            criteria_digest=self.criteria_digest,
            verdict=verdict.name,
            success=verdict.success_column,
            score=verdict.score,
            reason=self.reason,
            created_at=self.verified_at,
            leaf=leaf,
            salt=own.salt,
            result=written,
            place=None,
        )
        return leaf

    def _write_latest(self, writing: WriteTransaction, versions: RescoredVersions, places: Sequence[int]) -> None:
        """How the outcomes stand now; `places` are those that outcomes of the tenant may have between these.

        A verdict that stays is not written: it would move in its indexes. Neighbours are written by one statement.
        """
        tenant = self.tenant
        changed = [
            (new.name, new.score, new.success_column, tenant, name)
            for (name, _, _, verdict, score, success, _, _, _), new in zip(
                versions.outcomes, versions.verdicts, strict=True
            )
            if new.name != verdict or new.score != score or new.success != success
        ]
        runs = _find_runs(sorted([outcome[1] for outcome in versions.outcomes]), places)
        for statement, rows in (
            (_NEW_VERSION, [(self.criteria_digest, tenant, *run) for run in runs]),
            (_NEW_VERDICT, changed),
        ):
            if rows:
                writing.rewrite_all(statement, rows)


@dataclass(frozen=True, slots=True)
class AddSeveral:
    """The same of several segments."""

    parts: Sequence[AddRescored]

    def __call__(self, writing: WriteTransaction) -> list[list[RecordedVersion]]:
        """Write them; raises RecordTampered where one is refused."""
        return [one(writing) for one in self.parts]


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


def _find_fit(
    writing: WriteTransaction, tenant: str, outcomes: Sequence[OutcomePlace]
) -> tuple[Sequence[int], Sequence[int]]:
    """Which of them still have the version that was read, their work not being erased.

    And the places that outcomes of the tenant may have between these, in order.
    """
    asked = [outcome[1] for outcome in outcomes]
    first, last = min(asked), max(asked)
    if last - first >= 2 * len(asked):
        # Other outcomes may be at any place between them.
        known = dict(_by_id(writing, tenant, [outcome[0] for outcome in outcomes]))
        return _choose(outcomes, known), range(first, last + 1)
    expected = {outcome[2] for outcome in outcomes}
    if len(expected) == 1:
        # The usual case is counted: all that are there are asked for, and none has changed.
        ((there, unchanged),) = writing.fetch(_COUNT, *expected, tenant, first, last)
        if there == unchanged == len({*asked}):
            return range(len(outcomes)), sorted(asked)
    rows = writing.fetch(_IN_ORDER, tenant, first, last)
    return _choose(outcomes, {name: version for name, version, _, gone in rows if not gone}), [row[2] for row in rows]


def _choose(outcomes: Sequence[OutcomePlace], known: Mapping[str, int]) -> list[int]:
    """Those that have the version that is known of them."""
    return [place for place, outcome in enumerate(outcomes) if known.get(outcome[0]) == outcome[2]]


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
_NEW_VERDICT = "UPDATE outcomes SET verdict = ?, score = ?, success = ? WHERE tenant = ? AND id = ?"
_VERDICT_COLUMNS = (
    *("tenant", "outcome_id", "version", "criteria_digest", "verdict", "success", "score"),
    *("reason", "created_at", "leaf", "salt", "result", "place"),
)
