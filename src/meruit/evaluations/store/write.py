"""Writing evaluations: begun by name, filled segment by segment, then finished."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import select

from meruit.errors import EvaluationConflict, NoCases, NotFound
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord, EvaluationStatus
from meruit.evaluations.store.read import KeptFigures, evaluation_of
from meruit.log.entries import SegmentEntry
from meruit.model.events import EventType
from meruit.model.time import from_micros
from meruit.model.verdict import Verdict
from meruit.outcomes.records import commit_criteria
from meruit.store import tables
from meruit.store.blobs import EvidencePart
from meruit.store.transaction import WriteTransaction


@dataclass(frozen=True, slots=True)
class StartEvaluation:
    """Begin an evaluation, or go on with one of the same name that is about the same."""

    tenant: str
    name: str
    criteria: bytes
    """In canonical form."""
    criteria_digest: str
    dataset_digest: str | None = None
    planned: int | None = None
    tags: tuple[tuple[str, str], ...] = ()

    def __call__(self, writing: WriteTransaction) -> EvaluationRecord:
        """Write it, or find it; raises EvaluationConflict where the name is taken by another."""
        table = tables.evaluations
        found = writing.read(select(table).where(table.c.tenant == self.tenant, table.c.name == self.name))
        if found:
            return self._go_on(evaluation_of(found[0]))
        # Before any case, so that an auditor sees that the criteria were not chosen by the results.
        commit_criteria(writing, self.tenant, self.criteria, self.criteria_digest)
        new_id = writing.new_id("ev")
        started = EvaluationRecord(
            id=new_id,
            name=self.name,
            status=EvaluationStatus.RUNNING,
            criteria_digest=self.criteria_digest,
            cases=0,
            segments=0,
            started_at=from_micros(writing.now.micros),
            planned=self.planned,
            dataset_digest=self.dataset_digest,
            tags=dict(self.tags),
        )
        writing.insert(
            table,
            tenant=self.tenant,
            id=new_id,
            name=self.name,
            status=EvaluationStatus.RUNNING.value,
            criteria_digest=self.criteria_digest,
            dataset_digest=self.dataset_digest,
            tags=msgspec.json.encode(started.tags),
            planned=self.planned,
            cases=0,
            segments=0,
            started_at=writing.now.micros,
            ended_at=None,
        )
        writing.emit(
            self.tenant,
            EventType.EVALUATION_STARTED,
            new_id,
            f"{new_id}:started",
            {"evaluation_id": new_id, "name": self.name, "criteria_digest": self.criteria_digest},
        )
        return started

    def is_about(self, found: EvaluationRecord) -> bool:
        """Whether an evaluation has the same criteria, data and tags."""
        wanted = (self.criteria_digest, self.dataset_digest, dict(self.tags))
        return (found.criteria_digest, found.dataset_digest, dict(found.tags)) == wanted

    def _go_on(self, found: EvaluationRecord) -> EvaluationRecord:
        if found.status is EvaluationStatus.FINISHED:
            raise EvaluationConflict(
                f"the evaluation {self.name!r} is finished, and does not change; choose another name"
            )
        if not self.is_about(found):
            begun = f"the evaluation {self.name!r} was begun with other {self._describe_difference(found)}"
            recorded = f", and {found.cases:,} cases are recorded" if found.cases else ""
            raise EvaluationConflict(f"{begun}{recorded}; choose another name, or continue with the same")
        return found

    def _describe_difference(self, found: EvaluationRecord) -> str:
        differs = {
            "criteria": found.criteria_digest != self.criteria_digest,
            "data": found.dataset_digest != self.dataset_digest,
            "tags": dict(found.tags) != dict(self.tags),
        }
        return " and ".join(name for name, is_other in differs.items() if is_other)


@dataclass(frozen=True, slots=True)
class DropEmptyEvaluation:
    """Free the name of an evaluation that was begun about something else, and that has no case."""

    tenant: str
    start: StartEvaluation

    def __call__(self, writing: WriteTransaction) -> None:
        """Drop it; one that has cases, or that is about the same, is left as it is."""
        table = tables.evaluations
        found = writing.read(select(table).where(table.c.tenant == self.tenant, table.c.name == self.start.name))
        if found and not self.start.is_about(evaluation_of(found[0])):
            writing.rewrite(_DROP_EMPTY, self.tenant, found[0].id, EvaluationStatus.RUNNING.value)


@dataclass(frozen=True, slots=True)
class RecordSegment:
    """Cases that become durable together: their blob, one entry of the log, and one slim row each."""

    tenant: str
    evaluation_id: str
    cases: tuple[CaseSummary, ...]
    """Their positions are given when they are written."""
    root: bytes
    """Of the tree over the cases, which the log commits to."""
    blob: EvidencePart
    recorded: int | None = None
    """Cases that the caller knows of; where there are no more, none of these can be recorded already."""

    def __call__(self, writing: WriteTransaction) -> int:
        """Write the segment and return its number; raises EvaluationConflict where a case is there already."""
        return self.append(writing, _read_growing(writing, self.tenant, self.evaluation_id)).segments

    def append(self, writing: WriteTransaction, before: "_Growing") -> "_Growing":
        """Write the segment behind what is there; what is there then."""
        if before.cases != self.recorded:
            self._refuse_known(writing)
        name, number, first = before.name, before.segments + 1, before.cases + 1
        digest, criteria_index = commit_criteria(writing, self.tenant, b"", before.criteria_digest)
        leaf = writing.append(
            SegmentEntry(
                writing.now.written,
                tenant=self.tenant,
                evaluation=self.evaluation_id,
                number=number,
                criteria=digest,
                criteria_index=criteria_index,
                cases=len(self.cases),
                root=self.root.hex(),
            ),
            self.tenant,
        )
        writing.keep(self.blob.blob(self.tenant))
        writing.insert(
            tables.evaluation_segments,
            tenant=self.tenant,
            evaluation_id=self.evaluation_id,
            number=number,
            leaf=leaf,
            address=self.blob.address,
            cases=len(self.cases),
            created_at=writing.now.micros,
        )
        writing.insert_all(tables.evaluation_cases, _CASE_COLUMNS, self._rows(number, first))
        writing.rewrite(_GROW, first + len(self.cases) - 1, number, self.tenant, self.evaluation_id)
        writing.emit(
            self.tenant,
            EventType.EVALUATION_SEGMENT_RECORDED,
            self.evaluation_id,
            f"{self.evaluation_id}:{number}",
            {"evaluation_id": self.evaluation_id, "name": name, "segment": number, "cases": len(self.cases)},
        )
        return before._replace(cases=before.cases + len(self.cases), segments=number)

    def _rows(self, segment: int, first: int) -> list[tuple[Any, ...]]:
        """The slim rows of the cases, as _CASE_COLUMNS name them."""
        tenant, evaluation = self.tenant, self.evaluation_id
        # Written out: a tuple that is put together from others takes twice as long.
        return [
            (
                tenant,
                evaluation,
                case.case_id,
                case.repeat,
                first + place,
                segment,
                place,
                case.outcome_id,
                case.version,
                _VERDICTS[case.verdict],
                int(case.success),
                case.score,
                case.statuses,
                case.group,
                msgspec.json.encode(case.tags) if case.tags else None,
                case.claimed,
                case.error,
                " ".join(case.faults) if case.faults else None,
                case.latency_ms,
                case.cost_micros,
            )
            for place, case in enumerate(self.cases)
        ]

    def _refuse_known(self, writing: WriteTransaction) -> None:
        ids = [*{case.case_id for case in self.cases}]
        # As text: building a query of 512 parameters costs more than answering it.
        known = {*writing.fetch(f"{_KNOWN} ({', '.join('?' * len(ids))})", self.tenant, self.evaluation_id, *ids)}
        twice = next((case for case in self.cases if (case.case_id, case.repeat) in known), None)
        if twice is not None:
            raise EvaluationConflict(
                f"the case {twice.case_id!r} is recorded already; another process records the same evaluation"
            )


@dataclass(frozen=True, slots=True)
class RecordSegments:
    """Several segments of one evaluation that become durable together."""

    segments: tuple[RecordSegment, ...]
    """Of different cases."""

    def __call__(self, writing: WriteTransaction) -> int:
        """Write them and return the number of the last; raises EvaluationConflict where a case is there already."""
        first = self.segments[0]
        growing = _read_growing(writing, first.tenant, first.evaluation_id)
        for segment in self.segments:
            growing = segment.append(writing, growing)
        return growing.segments


class _Growing(NamedTuple):
    """An evaluation that is not finished."""

    name: str
    status: str
    cases: int
    segments: int
    criteria_digest: str


def _read_growing(writing: WriteTransaction, tenant: str, evaluation_id: str) -> _Growing:
    # As text: building a query costs as much as recording some of the cases.
    found = writing.fetch(_STATE, tenant, evaluation_id)
    if not found:
        raise _not_found(evaluation_id)
    growing = _Growing(*found[0])
    if growing.status != EvaluationStatus.RUNNING.value:
        raise EvaluationConflict(f"the evaluation {growing.name!r} is finished, and does not change")
    return growing


@dataclass(frozen=True, slots=True)
class FinishEvaluation:
    """From here on, the evaluation does not change."""

    tenant: str
    evaluation_id: str
    figures: KeptFigures | None = None
    """What its cases add up to; not kept where another process recorded more of them meanwhile."""

    def __call__(self, writing: WriteTransaction) -> EvaluationRecord:
        """Finish it; a second time does nothing. Raises NoCases where it has none, so that its name is not used up."""
        found = evaluation_of(_row_of(writing, self.tenant, self.evaluation_id))
        if found.status is EvaluationStatus.FINISHED:
            return found
        if not found.cases:
            raise NoCases(
                f"there are no cases in the data; the evaluation {found.name!r} is not finished, and its name can be "
                "used again"
            )
        if self.figures is not None and self.figures.cases == found.cases:
            writing.insert(
                tables.evaluation_figures,
                tenant=self.tenant,
                evaluation_id=self.evaluation_id,
                cases=self.figures.cases,
                rate=self.figures.rate,
                cost_micros=self.figures.cost_micros,
                content=self.figures.content,
                signature=self.figures.signature,
            )
        writing.rewrite(_FINISH, EvaluationStatus.FINISHED.value, writing.now.micros, self.tenant, self.evaluation_id)
        writing.emit(
            self.tenant,
            EventType.EVALUATION_FINISHED,
            self.evaluation_id,
            f"{self.evaluation_id}:finished",
            {"evaluation_id": self.evaluation_id, "name": found.name, "cases": found.cases},
        )
        ended_at = from_micros(writing.now.micros)
        return msgspec.structs.replace(found, status=EvaluationStatus.FINISHED, ended_at=ended_at)


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _row_of(writing: WriteTransaction, tenant: str, evaluation_id: str) -> Any:
    table = tables.evaluations
    rows = writing.read(select(table).where(table.c.tenant == tenant, table.c.id == evaluation_id))
    if not rows:
        raise _not_found(evaluation_id)
    return rows[0]


def _not_found(evaluation_id: str) -> NotFound:
    return NotFound(f"no evaluation {evaluation_id!r}")


_VERDICTS = {verdict: verdict.value for verdict in Verdict}
_STATE = "SELECT name, status, cases, segments, criteria_digest FROM evaluations WHERE tenant = ? AND id = ?"
_KNOWN = "SELECT case_id, repeat FROM evaluation_cases WHERE tenant = ? AND evaluation_id = ? AND case_id IN"
_CASE_COLUMNS = (
    *("tenant", "evaluation_id", "case_id", "repeat", "seq", "segment", "place"),
    *("outcome_id", "version", "verdict", "success", "score", "statuses"),
    *("group_id", "tags", "claimed", "error"),
    *("faults", "latency_ms", "cost_micros"),
)
_GROW = "UPDATE evaluations SET cases = ?, segments = ? WHERE tenant = ? AND id = ?"
_DROP_EMPTY = "DELETE FROM evaluations WHERE tenant = ? AND id = ? AND status = ? AND cases = 0"
_FINISH = "UPDATE evaluations SET status = ?, ended_at = ? WHERE tenant = ? AND id = ?"
