"""Stored outcomes judged again by other criteria: each gets one more version of its verdict, none loses an old one."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import msgspec
from sqlalchemy import Connection

from meruit.errors import MeruitError, RecordTampered, StoreError
from meruit.judge.bulk import NumberedEvidence, NumberlessConclusion
from meruit.judge.governance import carry_answer
from meruit.judge.result_template import encode_time, write_numbers
from meruit.judge.verdict import Circumstances, conclude, evidence_of
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import Scope
from meruit.model.canonical import canonical
from meruit.model.criterion import SuccessCriteria
from meruit.model.evidence import Evidence, Measured, Missing
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import Work
from meruit.outcomes.rescore.alike import MAX_ALIKE, AlikeResult, AlikeResults, StoredResult
from meruit.outcomes.rescore.in_bulk import JudgedPage, PlainOutcome, judge_page, measure_page
from meruit.outcomes.rescore.reuse import OWN_FLAW, EvidenceSources
from meruit.outcomes.segment import ResultParts
from meruit.outcomes.store import batches
from meruit.outcomes.store.batches import KeptResult, LatestVersion, OutcomePlace, PlacedOutcome
from meruit.outcomes.store.read import OutcomeFilter, criteria_body, criteria_from
from meruit.outcomes.store.read import OutcomeWork as StoredWork
from meruit.outcomes.store.rescored import AddRescored, AddSeveral, RescoredResult, RescoredVerdict, RescoredVersions
from meruit.outcomes.store.segments import SegmentReader
from meruit.outcomes.store.write import RecordedVersion
from meruit.store.blobs import BlobStore
from meruit.store.database import Database
from meruit.store.lru import LruCache
from meruit.store.store import ClockAndEntropy, Store
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.engine import VerificationEngine

MAX_SETS = 256
"""How many sets of old criteria are remembered, compared with the new ones."""

TOGETHER = 4
"""Batches that one transaction writes: what comes with each transaction costs as much as a tenth of a batch."""

Progress = Callable[[int, int], None]
"""Told how many outcomes are done, and of how many, each time that some became durable."""


class Skip(StrEnum):
    """Why an outcome got no new version."""

    ALREADY = "already judged by these criteria"
    NO_RESULT = "its result was erased"
    NO_VERSION = "its latest version is not in the store; run `meruit audit check`"
    ERASED = "its work was erased, and its record does not answer these criteria"
    UNREADABLE = "its work cannot be read from the store"
    NOT_MEASURED = "it could not be measured again"
    QUICKER = "rescored or erased by another process meanwhile"


class VerdictChange(Record, frozen=True):
    """How often one verdict became another."""

    before: Verdict
    after: Verdict
    count: int


class RescoreSummary(Record, frozen=True):
    """What a rescore did, or would do."""

    criteria_digest: str
    dry_run: bool
    examined: int
    rescored: int
    from_evidence: int
    """Judged from what was measured before."""
    measured: int
    """Measured again from the stored work."""
    unchanged: int
    """Verdicts that stayed what they were."""
    changed: tuple[VerdictChange, ...]
    success_gained: int
    success_lost: int
    criteria: dict[str, int]
    """For each criterion that both versions have, how many outcomes it ended differently for."""
    skipped: dict[Skip, int]
    seconds: float


class RescoreRow(Record, frozen=True):
    """One outcome on its way to its next version: all that judging it takes."""

    stored: VerificationResult | StoredResult
    """The latest result so far, decoded or as it is kept."""
    sources: tuple[int, ...] | None
    """For each new criterion the old one whose evidence answers it; None when the work must be measured."""
    work: StoredWork = StoredWork(None, None, None)
    """Read only where it must be measured."""

    @property
    def result(self) -> VerificationResult:
        """The latest result so far."""
        stored = self.stored
        return stored if isinstance(stored, VerificationResult) else VerificationResult.from_json(stored.written)

    @property
    def verdict_before(self) -> VerificationResult:
        """A result that says the same of the criteria; id, time, digests and numbers may be another outcome's."""
        stored = self.stored
        return stored if isinstance(stored, VerificationResult) else stored.alike.result

    # Any: a value of any metric.
    def value_of(self, position: int) -> Any:
        """The value of one criterion in the latest result so far."""
        stored = self.stored
        if isinstance(stored, StoredResult) and position in stored.alike.places:
            return stored.parts.numbers[stored.alike.places[position]]
        return self.verdict_before.criterion_results[position].value


class RescoreLine(Record, frozen=True):
    """A row, and the outcome that it is of."""

    outcome: OutcomePlace
    row: RescoreRow
    read: bytes | None = None
    """The latest result, as the store holds it."""

    def what_was_read(self) -> tuple[bytes | None, ...]:
        """The latest result, and the work where it was measured."""
        return self.read, *self.row.work


class RescoreBatch(msgspec.Struct, frozen=True):
    """Outcomes that are judged and recorded together."""

    lines: list[RescoreLine]
    examined: int
    """How many outcomes are done once this batch is."""
    ready: JudgedPage = msgspec.field(default_factory=JudgedPage)
    """Those that are judged already."""


class RescoreTask:
    """New criteria and what judges by them: made once in each process that takes part."""

    def __init__(self, engine: VerificationEngine, criteria: SuccessCriteria, now: datetime) -> None:
        # What governance said of the work is carried over; it is not asked again about the past.
        self.engine = engine.without_governance()
        self.compiled = self.engine.compile(criteria)
        self.now = now
        self.written_now = encode_time(now)
        self._conclusions = self.engine.conclusions(self.compiled, lambda result: result)
        self.may_measure = self._conclusions is not None
        """Whether what is alike can be measured once: nothing has to be awaited."""
        self._from_evidence: dict[AlikeResult, NumberedEvidence[RescoredVerdict]] = {}
        self._measured: dict[tuple[AlikeResult, _Measured], _Rescored | None] = {}

    @property
    def criteria(self) -> SuccessCriteria:
        """The criteria as they are recorded."""
        return self.compiled.plan.criteria

    def judge(self, row: RescoreRow) -> RescoredResult:
        """Judge a row; what is alike is judged once. To the byte what `judge_rows` gives."""
        stored = row.stored
        if isinstance(stored, StoredResult):
            found = self._judge_alike(row, stored)
            if found is not None:
                shared, numbers = found
                old = stored.parts
                hexes = old.in_hex()
                written = shared.write(old.contract[1:-1], self.written_now, write_numbers(numbers), *hexes)
                parts = ResultParts(old.contract, self.written_now, old.digests, numbers)
                return RescoredResult(written, shared.shared, shared.template, parts)
        return RescoredResult.of(_judge_row(self, row))

    def _judge_alike(self, row: RescoreRow, stored: StoredResult) -> tuple["_Rescored", Sequence[float]] | None:
        """The new result and the numbers that it lacks; None where the row has to be judged for itself."""
        if row.sources is None:
            return self.measure(stored.alike, row.work, stored.parts.in_hex()) if self.may_measure else None
        numbers, known = stored.parts.numbers, self.evidence_of(stored.alike)
        shared = known.of(numbers)
        return None if shared is None else (shared, known.pick(numbers))

    def evidence_of(self, alike: AlikeResult) -> NumberedEvidence[RescoredVerdict]:
        """The evidence in stored results, which answers the new criteria."""
        known = self._from_evidence.get(alike)
        if known is None:
            if len(self._from_evidence) >= MAX_ALIKE:
                self._from_evidence.clear()
            known = self._from_evidence[alike] = self._read_evidence(alike, alike.sources or ())
        return known

    def _read_evidence(self, alike: AlikeResult, sources: Sequence[int]) -> NumberedEvidence[RescoredVerdict]:
        evidence = _evidence_from(self.compiled, alike.result, sources)
        places = {
            position: alike.places[source]
            for position, source in enumerate(sources)
            if source in alike.places and isinstance(evidence[position], Measured)
        }
        plan, versions = self.compiled.plan, self.compiled.versions
        return NumberedEvidence(
            plan, versions, evidence, places, RescoredVerdict.of, lambda result: carry_answer(alike.result, result)
        )

    def measure(
        self, alike: AlikeResult, work: StoredWork, digests: tuple[bytes, bytes, bytes]
    ) -> tuple["_Rescored", Sequence[float]] | None:
        """The new result of work, and the numbers that it lacks; None where the work has to be judged for itself."""
        if self._conclusions is None:
            return None
        # The work is what it was, and so are its digests: the store has compared them with what it read.
        given, done, run = work
        found = self._conclusions.without_numbers(Work(_read_part(done), _read_part(given), _read_part(run)), digests)
        if found is None:
            return None
        measured, numbers = found
        shared = self._measured.get((alike, measured)) or self._carry_answer(alike, measured)
        return None if shared is None else (shared, numbers)

    def _carry_answer(self, alike: AlikeResult, measured: "_Measured") -> "_Rescored | None":
        """What was measured, with what governance said before."""
        if len(self._measured) >= MAX_ALIKE:
            self._measured.clear()
        result = carry_answer(alike.result, measured.result)
        made = self._measured[alike, measured] = measured.with_numbers_of(result, RescoredVerdict.of)
        return made


_Measured = NumberlessConclusion[VerificationResult]
_Rescored = NumberlessConclusion[RescoredVerdict]

_decode = msgspec.json.Decoder().decode
# Any: work without anything in it. Never written to.
_EMPTY: Mapping[str, Any] = {}


# Any: a part of a work.
def _read_part(written: bytes | None) -> Any:
    return _EMPTY if written is None or written == b"{}" else _decode(written)


JudgedBatches = Generator[tuple[RescoreBatch, Sequence[RescoredResult]], None, None]
"""Each batch with a result for each of its lines."""


class StoredRecords(Protocol):
    """What outcomes are read from: a store, or what a worker opens of one."""

    @property
    def database(self) -> Database:
        """The rows."""

    @property
    def blobs(self) -> BlobStore:
        """The work."""

    @property
    def surroundings(self) -> ClockAndEntropy:
        """Where salts come from."""


class RescoreRunner(Protocol):
    """Where batches are judged; its caller reads and writes the records."""

    def judge(self, task: RescoreTask, waiting: Iterator[RescoreBatch]) -> JudgedBatches:
        """Each batch with a result for each of its lines, in the order they come."""
        ...


class LocalRunner:
    """Judges in this process, one batch at a time."""

    def judge(self, task: RescoreTask, waiting: Iterator[RescoreBatch]) -> JudgedBatches:
        """Each batch with a result for each of its lines, in the order they come."""
        for batch in waiting:
            yield batch, [task.judge(line.row) for line in batch.lines]


def rescore(  # noqa: PLR0913 - one a decision
    store: Store,
    engine: VerificationEngine,
    tenant: str,
    criteria: SuccessCriteria,
    *,
    narrowed: OutcomeFilter | None,
    reason: str,
    runner: RescoreRunner,
    now: datetime,
    progress: Progress,
    dry_run: bool = False,
    again: bool = False,
) -> RescoreSummary:
    """Judge stored outcomes by these criteria, oldest first; what is judged by them already is left alone.

    With `again`, that is judged again too, and everything is measured again from the stored work. A few batches become
    durable at a time, and before the next ones are written, so that an interrupted command can be started again.
    """
    started = time.monotonic()
    task = RescoreTask(engine, criteria, now)
    reading = OutcomeScan(store, tenant, task, narrowed, again=again)
    write = None
    if not dry_run:
        write = VersionWriter(store.surroundings, partial(write_together, store.recorder.write), tenant, task, reason)
    judge_scan(reading, task, runner, write, lambda examined: progress(examined, reading.total))
    return reading.tally.summary(task, reading.examined, dry_run=dry_run, seconds=time.monotonic() - started)


def judge_scan(
    reading: "OutcomeScan",
    task: RescoreTask,
    runner: RescoreRunner,
    write: "VersionWriter | None",
    progress: Callable[[int], None],
) -> None:
    """Judge what is read, and write it; `progress` is told how many outcomes are done."""
    # In this process, most versions are ready at once.
    quick = write is not None and isinstance(runner, LocalRunner)
    writing = _BatchWriter(reading.tally, write, progress)
    with closing(runner.judge(task, reading.batches(ready=quick))) as judged:
        try:
            for batch, results in judged:
                writing.add(batch, results)
        finally:
            # Also where reading on failed: the command goes on there when it is started again.
            writing.flush()


class _JudgedBatch(NamedTuple):
    batch: RescoreBatch
    fit: list[tuple[RescoreLine, RescoredResult]]
    """Those that were judged one by one, and have a verdict."""
    versions: AddRescored | None
    """All of them; None where nothing is to be written."""


class _BatchWriter:
    """Writes judged batches, a few in one transaction, and counts them."""

    def __init__(self, tally: "RescoreTally", write: "VersionWriter | None", progress: Callable[[int], None]) -> None:
        self._tally, self._write, self._progress = tally, write, progress
        self._waiting: list[_JudgedBatch] = []

    def add(self, batch: RescoreBatch, results: Sequence[RescoredResult]) -> None:
        """Write a batch, now or with the next ones."""
        pairs = zip(batch.lines, results, strict=True)
        fit = [pair for pair in pairs if self._tally.is_fit(pair[1].verdict.verdict)]
        versions = None if self._write is None else self._write.prepare(batch.ready.versions, fit)
        self._waiting.append(_JudgedBatch(batch, fit, versions))
        # Lines may hold work, which can be large.
        if batch.lines or len(self._waiting) >= TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        waiting, self._waiting = self._waiting, []
        versions = [one.versions for one in waiting if one.versions is not None]
        recorded = iter(self._write.write(versions) if self._write is not None and versions else ())
        for batch, fit, prepared in waiting:
            if self._write is None:
                written = {line.outcome.id for line, _ in fit}
            else:
                written = set[str]() if prepared is None else {one.outcome_id for one in next(recorded)}
            self._tally.add_page(batch.ready, written)
            self._tally.add_all(fit, written)
            self._progress(batch.examined)


def write_together(
    write: Callable[[AddSeveral], Sequence[Sequence[RecordedVersion]]], versions: Sequence[AddRescored]
) -> Sequence[Sequence[RecordedVersion]]:
    """Write versions in one transaction; where some are refused, those before them all the same."""
    try:
        return write(AddSeveral(versions))
    except RecordTampered:
        if len(versions) == 1:
            raise
    return [write(AddSeveral([one]))[0] for one in versions]


class VersionWriter:
    """Writes the versions of one rescore."""

    def __init__(
        self,
        surroundings: ClockAndEntropy,
        write: Callable[[Sequence[AddRescored]], Sequence[Sequence[RecordedVersion]]],
        tenant: str,
        task: RescoreTask,
        reason: str,
    ) -> None:
        self._surroundings, self._tenant, self._reason = surroundings, tenant, reason
        self.write = write
        """What it prepared; returns the versions that were written: one that another process wrote first stays."""
        body = canonical(task.criteria.model_dump(exclude_defaults=True))
        self._criteria = body, task.compiled.plan.digest
        self._at = to_micros(task.now)

    def prepare(
        self, versions: RescoredVersions, judged: Sequence[tuple[RescoreLine, RescoredResult]]
    ) -> AddRescored | None:
        """The write of these versions, to which those that were judged one by one are added; None for nothing."""
        salts = self._surroundings.entropy(SALT_BYTES * len(judged))
        for number, (line, result) in enumerate(judged):
            versions.add(line.outcome, result, salts[number * SALT_BYTES :][:SALT_BYTES], line.what_was_read)
        if not len(versions):
            return None
        seqs = [outcome[1] for outcome in versions.outcomes]
        if judged and seqs != (in_order := sorted(seqs)):
            # Those that were judged one by one belong among the others: only in their order do they form a run.
            place_of = {seq: place for place, seq in enumerate(seqs)}
            versions = versions.pick([place_of[seq] for seq in in_order])
        return AddRescored.of(self._tenant, self._criteria, versions, reason=self._reason, verified_at=self._at)


# Judging.


def judge_rows(task: RescoreTask, rows: Sequence[RescoreRow]) -> list[VerificationResult]:
    """Each row judged by the new criteria; the same wherever it is called."""
    return [_judge_row(task, row) for row in rows]


def _judge_row(task: RescoreTask, row: RescoreRow) -> VerificationResult:
    old = row.result
    sources = row.sources
    result = _measure_again(task, old, row.work) if sources is None else _from_evidence(task, old, sources)
    return carry_answer(old, result)


def _from_evidence(task: RescoreTask, old: VerificationResult, sources: Sequence[int]) -> VerificationResult:
    return conclude(
        task.compiled.plan,
        _evidence_from(task.compiled, old, sources),
        Circumstances(
            contract_id=old.contract_id,
            verified_at=task.now,
            input_digest=old.input_digest,
            output_digest=old.output_digest,
            metadata_digest=old.metadata_digest,
            versions=task.compiled.versions.copy(),
        ),
    )


def _evidence_from(compiled: CompiledCriteria, old: VerificationResult, sources: Sequence[int]) -> list[Evidence]:
    """The evidence for each new criterion."""
    judged = old.criterion_results
    return [
        evidence_of(judged[source]) if source != OWN_FLAW else _flaw(compiled, position)
        for position, source in enumerate(sources)
    ]


def _flaw(compiled: CompiledCriteria, position: int) -> Evidence:
    # Only a criterion that has a flaw is without a source.
    return cast("Missing", compiled.slots[compiled.slot_of[position]].flaw)


def _measure_again(task: RescoreTask, old: VerificationResult, work: StoredWork) -> VerificationResult:
    # msgspec keeps every digit of an integer, where orjson makes a float of a long one.
    given, done, run = (msgspec.json.decode(part or b"{}") for part in work)
    result = task.engine.verify_sync(old.contract_id, given, done, task.compiled, run)
    return msgspec.structs.replace(result, verified_at=task.now)


# Going through the store.


class OutcomeSpan(NamedTuple):
    """Outcomes between two places."""

    after: int
    end: int
    """The place of the last."""


class OutcomeScan:
    """Outcomes of a tenant up to the newest there is now, and what became of them."""

    def __init__(
        self,
        store: StoredRecords,
        tenant: str,
        task: RescoreTask,
        narrowed: OutcomeFilter | None,
        *,
        again: bool = False,
        span: OutcomeSpan | None = None,
    ) -> None:
        """Read all outcomes that fit, or those of a span of them."""
        self.tally = RescoreTally()
        self.examined = 0
        self._store, self._task, self._narrowed, self._again = store, task, narrowed, again
        self._scope = Scope(tenant)
        self._query = batches.PlaceQuery(self._scope, narrowed)
        self._known = LruCache[str, AlikeResults](MAX_SETS)
        self.total = 0
        if span is not None:
            self._after, self._end = span
        else:
            self._after = 0
            with store.database.reading() as connection:
                self._end = batches.end_of(connection, self._scope, narrowed)
                self.total = batches.count(connection, self._scope, narrowed, self._end)
        self._runs = batches.RunScan(tenant, self._end)

    def spans(self, rows: int) -> Iterator[OutcomeSpan]:
        """All outcomes in spans of so many, the last of fewer."""
        after = self._after
        while after < self._end:
            with self._store.database.reading() as connection:
                last = batches.end_of_span(
                    connection, self._scope, self._narrowed, after=after, end=self._end, rows=rows
                )
            yield OutcomeSpan(after, last)
            after = last

    def batches(self, *, ready: bool = False) -> Iterator[RescoreBatch]:
        """All that is to be judged, with what judging it takes; the work is read only where it must be.

        With `ready`, most of it is judged already.
        """
        after = self._after
        while True:
            with self._store.database.reading() as connection:
                segments = SegmentReader(connection, self._scope.tenant)
                page, count, after = self._next_page(connection, segments, after, ready=ready)
                judged, lines = self._read(connection, segments, page, ready=ready)
            if not count:
                return
            answered = [line for line in lines if line.row.sources is not None]
            asking = [line for line in lines if line.row.sources is None]
            self.examined += count - len(asking) - len(judged.asking)
            yield RescoreBatch(answered, self.examined, judged)
            yield from self._measure(judged.asking)
            yield from self._with_work(asking)

    def _next_page(
        self, connection: Connection, segments: SegmentReader, after: int, *, ready: bool
    ) -> tuple[list[LatestVersion], int, int]:
        """The next outcomes that are to be judged, how many were looked at, and the place of the last."""
        known = self._task.compiled.plan.digest
        if ready and self._narrowed is None:
            latest = self._runs.read(connection, segments, after=after)
            if latest is not None:
                # One set of criteria for all.
                fresh = latest if self._again or latest[0][0][6] != known else []
                self.tally.skip(Skip.ALREADY, len(latest) - len(fresh))
                return fresh, len(latest), latest[-1][0][1]
        page = self._query.read(connection, after=after, end=self._end)
        if not page:
            return [], 0, after
        waiting = [one for one in page if self._again or one[6] != known]
        results = batches.find_results(connection, self._scope.tenant, waiting)
        fresh = [(one, kept) for one, kept in zip(waiting, results, strict=True) if kept is not None]
        self.tally.skip(Skip.ALREADY, len(page) - len(waiting))
        self.tally.skip(Skip.NO_VERSION, len(waiting) - len(fresh))
        return fresh, len(page), page[-1][1]

    def _read(
        self, connection: Connection, segments: SegmentReader, fresh: Sequence[LatestVersion], *, ready: bool
    ) -> tuple[JudgedPage, list[RescoreLine]]:
        """What can be judged at once, and all else."""
        task = self._task
        known_alike = {digest: self._alike(connection, digest) for digest in {one[6] for one, _ in fresh}}
        judged = JudgedPage(rest=fresh)
        if ready and (task.may_measure or any(alike.may_answer for alike in known_alike.values())):
            judged = judge_page(fresh, segments, known_alike, task, self._store.surroundings.entropy)
        return judged, [*self._lines(segments, judged.rest, known_alike)]

    def _lines(
        self, segments: SegmentReader, page: Sequence[LatestVersion], known_alike: Mapping[str, AlikeResults]
    ) -> Iterator[RescoreLine]:
        for row, kept in page:
            outcome = OutcomePlace(*row)
            alike = known_alike[outcome.criteria_digest]
            stored = _read_result(alike, segments, outcome, kept)
            if stored is None:
                self.tally.skip(Skip.NO_RESULT)
                continue
            sources = alike.sources_of(stored)
            yield RescoreLine(outcome, RescoreRow(stored, sources), kept[2])

    def _measure(self, asking: Sequence[PlainOutcome]) -> Iterator[RescoreBatch]:
        """Outcomes that are measured in bulk; what has to be judged for itself comes with its work."""
        if not asking:
            return
        with self._store.database.reading() as connection:
            segments = SegmentReader(connection, self._scope.tenant)
            for works in self._works(connection, asking):
                judged = measure_page(asking, works, self._task, self._store.surroundings.entropy)
                known_alike = {one[6]: self._alike(connection, one[6]) for one, _ in judged.rest}
                lines = [
                    RescoreLine(line.outcome, RescoreRow(line.row.stored, None, works[line.outcome.id]), line.read)
                    for line in self._lines(segments, judged.rest, known_alike)
                ]
                yield RescoreBatch(lines, self.examined, judged)

    def _with_work(self, asking: Sequence[RescoreLine]) -> Iterator[RescoreBatch]:
        by_id = {line.outcome.id: line for line in asking}
        if not by_id:
            return
        with self._store.database.reading() as connection:
            for works in self._works(connection, [line.outcome for line in asking]):
                lines = [
                    RescoreLine(by_id[name].outcome, RescoreRow(by_id[name].row.stored, None, work), by_id[name].read)
                    for name, work in works.items()
                ]
                yield RescoreBatch(lines, self.examined)

    def _works(self, connection: Connection, outcomes: Sequence[PlacedOutcome]) -> Iterator[dict[str, StoredWork]]:
        """The work of the outcomes, a few at a time; what cannot be had is counted."""
        for group in batches.works(connection, self._scope.tenant, outcomes, self._store.blobs):
            fit: dict[str, StoredWork] = {}
            for name, work in group.items():
                if isinstance(work, StoreError):
                    self.tally.skip(Skip.UNREADABLE)
                elif None in work:
                    self.tally.skip(Skip.ERASED)
                else:
                    fit[name] = work
            self.examined += len(group)
            yield fit

    def _alike(self, connection: Connection, digest: str) -> AlikeResults:
        """What results by those criteria answer; nothing where the criteria cannot be read any more."""

        def find() -> AlikeResults:
            if self._again:
                return AlikeResults(None)
            try:
                old = criteria_from(criteria_body(connection, self._scope.tenant, digest))
                return AlikeResults(EvidenceSources(self._task.compiled, self._task.engine.catalogue.compile(old)))
            except (MeruitError, ValueError):
                # Another version accepted these criteria and this one refuses them; the work can still be judged.
                return AlikeResults(None)

        return self._known.get_or_make(digest, find)


def _read_result(
    alike: AlikeResults, segments: SegmentReader, outcome: OutcomePlace, kept: KeptResult
) -> StoredResult | VerificationResult | None:
    """The latest result of an outcome; None once erased. Raises RecordTampered for that of another."""
    leaf, place, result = kept
    if place is None:
        return None if result is None else alike.read(result)
    segment = segments.segment(leaf)
    if not segment.is_of(place, outcome.id, outcome.version):
        raise RecordTampered(f"the segment of leaf {leaf} holds no version {outcome.version} of {outcome.id}")
    found = segment.split(place)
    if isinstance(found, tuple):
        number, parts = found
        return alike.fit(segment.templates[number], parts)
    return None if found is None else alike.read(found)


class RescoreTally:
    """Counts what happened."""

    def __init__(self) -> None:
        self._skipped: Counter[Skip] = Counter()
        self._turns: Counter[tuple[Verdict, Verdict]] = Counter()
        self._criteria: Counter[str] = Counter()
        self._success: Counter[bool] = Counter()
        self._from_evidence: Counter[bool] = Counter()

    def merge(self, other: "RescoreTally") -> None:
        """Count as well what another counted."""
        for mine, theirs in zip(vars(self).values(), vars(other).values(), strict=True):
            mine.update(theirs)

    def skip(self, reason: Skip, times: int = 1) -> None:
        """So many outcomes got no new version."""
        if times:
            self._skipped[reason] += times

    def is_fit(self, verdict: Verdict) -> bool:
        """Whether there is a verdict to record; an error result is not recorded."""
        if verdict is Verdict.ERROR:
            self.skip(Skip.NOT_MEASURED)
            return False
        return True

    def add_all(self, judged: Sequence[tuple[RescoreLine, RescoredResult]], recorded: Collection[str]) -> None:
        """Outcomes were judged; those that are alike are counted together."""
        alike: Counter[tuple[AlikeResult, RescoredVerdict]] = Counter()
        rows: dict[AlikeResult, RescoreRow] = {}
        for line, result in judged:
            if line.outcome.id not in recorded:
                self.skip(Skip.QUICKER)
            elif isinstance(line.row.stored, StoredResult):
                alike[line.row.stored.alike, result.verdict] += 1
                rows[line.row.stored.alike] = line.row
            else:
                self.add(line.row, result.verdict)
        for (shared, verdict), times in alike.items():
            self.add(rows[shared], verdict, times)

    def add_page(self, page: JudgedPage, recorded: Collection[str]) -> None:
        """Outcomes were judged in bulk."""
        if not page.before:
            return
        counted = page.count(recorded)
        self.skip(Skip.QUICKER, len(page.before) - counted.total())
        for (alike, verdict), times in counted.items():
            self._add(alike.result, verdict, from_evidence=page.from_evidence, times=times)

    def add(self, row: RescoreRow, result: RescoredVerdict, times: int = 1) -> None:
        """So many outcomes were judged alike."""
        self._add(row.verdict_before, result, from_evidence=row.sources is not None, times=times)

    def _add(self, old: VerificationResult, result: RescoredVerdict, *, from_evidence: bool, times: int) -> None:
        for judged in old.criterion_results:
            if result.statuses.get(judged.criterion_id, judged.status) is not judged.status:
                self.count_criterion_change(judged.criterion_id, times)
        self.count_verdict(old.verdict, result.verdict, from_evidence=from_evidence, times=times)
        if result.success is not old.success:
            self.count_success_change(result.success, times)

    def count_verdict(self, before: Verdict, after: Verdict, *, from_evidence: bool, times: int = 1) -> None:
        """So many outcomes went from one verdict to another, or stayed."""
        self._turns[before, after] += times
        self._from_evidence[from_evidence] += times

    def count_success_change(self, success: bool, times: int = 1) -> None:  # noqa: FBT001 - it is what is counted
        """So many outcomes now succeed that did not, or no longer do."""
        self._success[success] += times

    def count_criterion_change(self, criterion_id: str, times: int = 1) -> None:
        """One criterion has another status for so many outcomes."""
        self._criteria[criterion_id] += times

    def summary(self, task: RescoreTask, examined: int, *, dry_run: bool, seconds: float) -> RescoreSummary:
        """All of it, in an order that depends on nothing but the counts."""
        turns = [VerdictChange(*pair, count) for pair, count in sorted(self._turns.items())]
        return RescoreSummary(
            criteria_digest=task.compiled.plan.digest,
            dry_run=dry_run,
            examined=examined,
            rescored=sum(self._turns.values()),
            from_evidence=self._from_evidence[True],
            measured=self._from_evidence[False],
            unchanged=sum(turn.count for turn in turns if turn.before is turn.after),
            changed=tuple(turn for turn in turns if turn.before is not turn.after),
            success_gained=self._success[True],
            success_lost=self._success[False],
            criteria=dict(sorted(self._criteria.items())),
            skipped=dict(sorted(self._skipped.items())),
            seconds=seconds,
        )
