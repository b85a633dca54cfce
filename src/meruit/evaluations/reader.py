"""Reading evaluations: lists, cases with their evidence, summaries and comparisons."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from typing import Any

from sqlalchemy import Connection

from meruit.errors import UnknownName, nearest
from meruit.evaluations.compare import EvaluationComparison, compare_evaluations
from meruit.evaluations.segment import CaseContent, payload_of
from meruit.evaluations.store import read
from meruit.evaluations.store.erase import erase_case
from meruit.evaluations.store.read import CaseFilter, KeptCase, find_case, load_case
from meruit.evaluations.summary import EvaluationSummary, SummaryBuilder
from meruit.model.criterion import SuccessCriteria
from meruit.model.evaluation import CaseSummary, EvaluationRecord
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import criteria_body, criteria_from
from meruit.store.store import Store

__all__ = ["CaseDetail", "CaseFilter", "Evaluations", "KeptCase", "erase_case", "find_case", "load_case"]
OPENED_CASES = 256
"""Cases whose content is read at a time."""


class CaseDetail(Record, frozen=True):
    """One case with all that is kept of it; the work is None once erased."""

    summary: CaseSummary
    input: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    result: VerificationResult | None
    error_message: str = ""


class Evaluations:
    """The evaluations of one tenant."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._store.database.reading() as connection:
            yield connection

    def find(self, name_or_id: str) -> EvaluationRecord:
        """The evaluation of that name or id; raises NotFound, naming the nearest."""
        with self._reading() as connection:
            return read.find(connection, self._tenant, name_or_id)

    def page(self, *, before: str | None = None, limit: int = 50) -> list[EvaluationRecord]:
        """The newest evaluations, of those older than the id `before`."""
        with self._reading() as connection:
            return read.page(connection, self._tenant, before=before, limit=limit)

    def criteria(self, evaluation: EvaluationRecord) -> SuccessCriteria:
        """What its cases are judged by."""
        with self._reading() as connection:
            return criteria_from(criteria_body(connection, self._tenant, evaluation.criteria_digest))

    def criterion_position(self, evaluation: EvaluationRecord, criterion: str) -> int:
        """The position of a criterion by its id; raises UnknownName, naming the nearest."""
        known = self.criteria(evaluation).ids
        if criterion not in known:
            raise UnknownName(
                f"the evaluation {evaluation.name!r} has no criterion {criterion!r}{nearest(criterion, known)}; "
                f"it has {', '.join(known)}"
            )
        return known.index(criterion)

    def cases(
        self,
        evaluation: EvaluationRecord,
        wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[CaseSummary]:
        """The cases that fit, in their order; streamed."""
        with (
            self._reading() as connection,
            closing(read.cases(connection, self._tenant, evaluation.id, wanted, after=after)) as found,
        ):
            yield from found if limit is None else islice(found, limit)

    def details(
        self,
        evaluation: EvaluationRecord,
        wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[CaseDetail]:
        """The same cases with their work and evidence; streamed."""
        chosen = self.cases(evaluation, wanted, after=after, limit=limit)
        while group := [*islice(chosen, OPENED_CASES)]:
            with self._reading() as connection:
                opened = [*read.contents(connection, self._store.blobs, self._tenant, evaluation.id, group)]
            for case, content in opened:
                yield _detail(case, content)

    def summary(self, evaluation: EvaluationRecord) -> EvaluationSummary:
        """Its numbers."""
        with self._reading() as connection:
            shape = read.shape(connection, self._tenant, evaluation.id)
        builder = SummaryBuilder(self.criteria(evaluation).ids, clustered=shape.clustered, repeated=shape.repeated)
        for case in self.cases(evaluation):
            builder.add(case)
        return builder.build()

    def compare(self, first: EvaluationRecord, second: EvaluationRecord) -> EvaluationComparison:
        """Two evaluations, paired by the ids of their cases."""
        return compare_evaluations(self._side(first), self._side(second))

    def _side(self, evaluation: EvaluationRecord) -> tuple[str, Iterator[CaseSummary], Sequence[str]]:
        return evaluation.name, self.cases(evaluation), self.criteria(evaluation).ids


def _detail(case: CaseSummary, content: CaseContent) -> CaseDetail:
    kept = bytes(content.result)
    return CaseDetail(
        case,
        *(payload_of(content.input), payload_of(content.output), payload_of(content.metadata)),
        VerificationResult.from_json(kept) if kept else None,
        content.error_message,
    )
