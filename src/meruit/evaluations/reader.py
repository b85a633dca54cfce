"""Reading evaluations: lists, cases with their evidence, summaries and comparisons."""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.errors import MeruitError, NotFound, UnknownName
from meruit.evaluations.compare import (
    MOST_COMPARED,
    CaseChange,
    EvaluationComparison,
    adjust_family,
    compare_counted,
    compare_evaluations,
)
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.segment import CaseContent, payload_of
from meruit.evaluations.store import read
from meruit.evaluations.store.erase import erase_case
from meruit.evaluations.store.read import CaseFilter, EvaluationFilter, KeptCase, KeptFigures, find_case, load_case
from meruit.evaluations.summary import EvaluationFigures, EvaluationSummary, SummaryBuilder
from meruit.judges.records import read_totals
from meruit.judges.vote_records import TokenTotal
from meruit.log.note import SigningKey
from meruit.model.criterion import SuccessCriteria
from meruit.model.decoding import decode_json
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import criteria_body, criteria_from
from meruit.store.sorting import ListOrder, SortedPage, take_page
from meruit.store.store import Store
from meruit.suggestions import nearest

__all__ = [
    "CaseDetail",
    "CaseFilter",
    "CasePage",
    "EvaluationFilter",
    "Evaluations",
    "KeptCase",
    "erase_case",
    "find_case",
    "load_case",
]
OPENED_CASES = 256
"""Cases whose content is read at a time."""
WATCHED_CASES = 1_000
SEARCHED_CASES = 10_000
"""Most cases that one page of a search for a text opens."""


Advance = Callable[[int], None]
"""Hears of cases that were read, a number at a time."""


def _ignore(_cases: int) -> None:
    """Where no caller waits for it."""


class CaseDetail(Record, frozen=True):
    """One case with all that is kept of it; the work is None once erased."""

    summary: CaseSummary
    input: Mapping[str, Any] | None
    output: Mapping[str, Any] | None
    metadata: Mapping[str, Any] | None
    result: VerificationResult | None
    error_message: str = ""


class CasePage(Record, frozen=True):
    """Some cases of an evaluation, in their order."""

    cases: list[CaseDetail]
    next: int | None
    """Pass it as `after` to get the next page; None on the last."""


class Evaluations:
    """The evaluations of one tenant."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    @property
    def signer(self) -> SigningKey:
        """The key that signs for this store."""
        return self._store.signer

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        with self._store.database.reading() as connection:
            yield connection

    def find(self, name_or_id: str) -> EvaluationRecord:
        """The evaluation of that name or id; raises NotFound, naming the nearest."""
        with self._reading() as connection:
            return read.find(connection, self._tenant, name_or_id)

    def page(
        self,
        wanted: EvaluationFilter = EvaluationFilter(),  # noqa: B008 - frozen
        *,
        before: str | None = None,
        limit: int = 50,
    ) -> list[EvaluationRecord]:
        """The newest evaluations that fit, of those older than the id `before`."""
        with self._reading() as connection:
            return read.page(connection, self._tenant, wanted, before=before, limit=limit)

    def page_sorted(self, wanted: EvaluationFilter, order: ListOrder, limit: int = 50) -> SortedPage[EvaluationRecord]:
        """The evaluations that fit in an order: name, rate, cases, cost or started."""
        with self._reading() as connection:
            return take_page(read.evaluations_sorted(connection, self._tenant, wanted, order), limit)

    def criteria(self, evaluation: EvaluationRecord) -> SuccessCriteria:
        """What its cases are judged by."""
        with self._reading() as connection:
            return criteria_from(criteria_body(connection, self._tenant, evaluation.criteria_digest))

    def criterion_positions(self, evaluation: EvaluationRecord, criteria: Iterable[str]) -> tuple[int, ...]:
        """The positions of criteria by their ids; raises UnknownName, naming the nearest."""
        known = self.criteria(evaluation).ids
        found = [*dict.fromkeys(criteria)]
        for criterion in found:
            if criterion not in known:
                raise UnknownName(
                    f"the evaluation {evaluation.name!r} has no criterion {criterion!r}{nearest(criterion, known)}; "
                    f"it has {', '.join(known)}"
                )
        return tuple(map(known.index, found))

    def cases(
        self,
        evaluation: EvaluationRecord,
        wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[CaseSummary]:
        """The cases that fit, in their order; streamed."""
        if wanted.text is None:
            yield from islice(self._index(evaluation, wanted, after, limit), limit)
        else:
            yield from (one.summary for one in self.details(evaluation, wanted, after=after, limit=limit))

    def _index(
        self, evaluation: EvaluationRecord, wanted: CaseFilter, after: int, limit: int | None = None
    ) -> Iterator[CaseSummary]:
        """The cases that pass every filter on their index rows."""
        with (
            self._reading() as connection,
            closing(read.cases(connection, self._tenant, evaluation.id, wanted, after=after, limit=limit)) as found,
        ):
            yield from found

    def details(
        self,
        evaluation: EvaluationRecord,
        wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[CaseDetail]:
        """The same cases with their work and evidence; streamed."""
        chosen = self._index(evaluation, wanted, after, limit if wanted.text is None else None)
        if wanted.text is None:
            chosen = islice(chosen, limit)
        yield from islice(_with_text(self._open(evaluation, chosen), wanted.text), limit)

    def _open(self, evaluation: EvaluationRecord, chosen: Iterator[CaseSummary]) -> Iterator[CaseDetail]:
        while group := [*islice(chosen, OPENED_CASES)]:
            with self._reading() as connection:
                opened = [*read.contents(connection, self._store.blobs, self._tenant, evaluation.id, group)]
            for case, content in opened:
                yield _detail(case, content)

    def open_cases(self, evaluation: EvaluationRecord, chosen: Sequence[CaseSummary]) -> Iterator[CaseDetail]:
        """These cases with their work and evidence, in this order."""
        return self._open(evaluation, iter(chosen))

    def page_details(
        self,
        evaluation: EvaluationRecord,
        wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
        *,
        after: int = 0,
        limit: int = 50,
    ) -> CasePage:
        """One page of cases with their work and evidence.

        A search for a text opens at most SEARCHED_CASES, so a page may hold fewer cases than asked for, or none, and
        still have a next one.
        """
        most = SEARCHED_CASES if wanted.text is not None else limit
        chosen = [*islice(self._index(evaluation, wanted, after, most), most)]
        found = [*islice(_with_text(self._open(evaluation, iter(chosen)), wanted.text), limit)]
        if len(found) == limit:
            return CasePage(found, found[-1].summary.seq)
        return CasePage(found, chosen[-1].seq if len(chosen) == SEARCHED_CASES else None)

    def cases_sorted(
        self, evaluation: EvaluationRecord, wanted: CaseFilter, order: ListOrder, limit: int
    ) -> SortedPage[CaseSummary]:
        """The cases that fit in an order: case, score, ms or cost.

        A search for a text opens at most SEARCHED_CASES, as `page_details` does.
        """
        most = limit if wanted.text is None else max(limit, SEARCHED_CASES)
        with (
            self._reading() as connection,
            closing(read.cases_sorted(connection, self._tenant, evaluation.id, wanted, order, limit=most + 1)) as rows,
        ):
            chosen = [*islice(rows, most + 1)]
        if wanted.text is None:
            return take_page(iter(chosen), limit)
        cursors = {case.seq: cursor for case, cursor in chosen[:most]}
        opened = self._open(evaluation, (case for case, _ in chosen[:most]))
        found = [*islice(_with_text(opened, wanted.text), limit)]
        unread = chosen[most - 1][1] if len(chosen) > most else None
        last = cursors[found[-1].summary.seq] if len(found) == limit else unread
        return SortedPage([one.summary for one in found], last)

    def positions(self, evaluation: EvaluationRecord, wanted: CaseFilter) -> "array[int]":
        """The positions of all cases that fit, in their order; texts are not searched for."""
        with self._reading() as connection:
            return array("q", read.positions(connection, self._tenant, evaluation.id, wanted))

    def case_at(self, evaluation: EvaluationRecord, position: int) -> CaseSummary:
        """The case at a position; raises NotFound."""
        with self._reading() as connection:
            return read.case_at(connection, self._tenant, evaluation.id, position)

    def case(self, evaluation: EvaluationRecord, case_id: str, repeat: int = 0) -> CaseDetail:
        """One case with its work and evidence; raises NotFound."""
        for one in self.details(evaluation, CaseFilter(case_ids=(case_id,))):
            if one.summary.repeat == repeat:
                return one
        tried = f" with the repeat {repeat}" if repeat else ""
        raise NotFound(f"the evaluation {evaluation.name!r} has no case {case_id!r}{tried}")

    def outputs(
        self, evaluation: EvaluationRecord, chosen: Sequence[CaseSummary]
    ) -> Iterator[tuple[Mapping[str, Any] | None, str]]:
        """The output of each of these cases, in this order, or why there is none; None where it was erased."""
        with self._reading() as connection:
            for _, content in read.contents(connection, self._store.blobs, self._tenant, evaluation.id, chosen):
                yield payload_of(content.output), content.error_message

    def same_case(
        self, evaluations: Sequence[EvaluationRecord], case_id: str, repeat: int = 0
    ) -> list[tuple[EvaluationRecord, CaseSummary]]:
        """One try of a case in each of these evaluations that has it."""
        with self._reading() as connection:
            ids = [one.id for one in evaluations]
            found = read.find_same_case(connection, self._tenant, ids, case_id, repeat)
        return [(one, found[one.id]) for one in evaluations if one.id in found]

    def judge_tokens(self, evaluation: EvaluationRecord) -> list[TokenTotal]:
        """The tokens that judges used for it, by model; empty where none was asked."""
        with self._reading() as connection:
            return read_totals(connection, self._tenant, evaluation.id)

    def summary(self, evaluation: EvaluationRecord) -> EvaluationSummary:
        """Its numbers, counted from its cases."""
        return self._count(evaluation).build()

    def figures(self, evaluation: EvaluationRecord, advance: Advance = _ignore) -> EvaluationFigures:
        """Its numbers as they were kept and signed when it was finished; else counted from its cases."""
        return self.find_figures(evaluation) or self._count(evaluation, advance).build_figures()

    def find_figures(self, evaluation: EvaluationRecord) -> EvaluationFigures | None:
        """Its numbers as they were kept when it was finished; None where they were not, or not signed by our key."""
        with self._reading() as connection:
            kept = read.find_figures_of(connection, self._tenant, evaluation.id)
        if kept is not None and kept.cases == evaluation.cases:
            signed = _figures_text(self._tenant, evaluation.id, kept.cases, kept.content)
            if self._store.signer.verifier.verify(signed, kept.signature):
                with suppress(msgspec.ValidationError, msgspec.DecodeError):
                    return decode_json(kept.content, EvaluationFigures)
        return None

    def draft_figures(self, evaluation: EvaluationRecord) -> KeptFigures:
        """What its cases add up to now, signed, to be kept when it is finished."""
        made = self._count(evaluation).build_figures()
        cases, content = made.summary.overall.cases, msgspec.json.encode(made)
        signed = _figures_text(self._tenant, evaluation.id, cases, content)
        return KeptFigures(
            cases,
            content,
            self._store.signer.sign_bytes(signed),
            made.summary.overall.rate,
            made.summary.cost_micros,
        )

    def _count(self, evaluation: EvaluationRecord, advance: Advance = _ignore) -> SummaryBuilder:
        with self._reading() as connection:
            return _count_cases(connection, self._tenant, evaluation, advance)

    def compare(
        self, first: EvaluationRecord, second: EvaluationRecord, advance: Advance = _ignore
    ) -> EvaluationComparison:
        """Two evaluations, paired by the ids of their cases."""
        with self._reading() as connection:
            before, after = (read.shape(connection, self._tenant, one.id) for one in (first, second))
            # One try each, and each case a group of its own: then only kinds of pairs are counted.
            if not (before.repeated or after.repeated or after.clustered):
                kinds = read.pair_kinds(connection, self._tenant, first.id, second.id)
                flips = read.case_changes(connection, self._tenant, first.id, second.id, flips=True)
                common = sum(kind.times for kind in kinds)
                alone = [read.count_cases(connection, self._tenant, one.id) - common for one in (first, second)]
                return compare_counted(
                    (first.name, self.criteria(first).ids),
                    (second.name, self.criteria(second).ids),
                    kinds,
                    flips,
                    only_first=alone[0],
                    only_second=alone[1],
                )
        return compare_evaluations(self._side(first, advance), self._side(second, advance))

    def changes(self, first: EvaluationRecord, second: EvaluationRecord) -> list[CaseChange]:
        """What became of the first try of each case that both have."""
        with self._reading() as connection:
            return read.case_changes(connection, self._tenant, first.id, second.id)

    def compare_several(
        self, first: EvaluationRecord, others: Sequence[EvaluationRecord], advance: Advance = _ignore
    ) -> list[EvaluationComparison]:
        """Up to three others, each compared with the first; the probabilities allow for all tests together."""
        if not 0 < len(others) < MOST_COMPARED:
            raise MeruitError(f"2 to {MOST_COMPARED} evaluations are compared at once, not {len(others) + 1}")
        return adjust_family([self.compare(first, other, advance) for other in others])

    def _side(self, evaluation: EvaluationRecord, advance: Advance) -> tuple[str, Iterator[CaseSummary], Sequence[str]]:
        return evaluation.name, _watch(self.cases(evaluation), advance), self.criteria(evaluation).ids


def _count_cases(
    connection: Connection, tenant: str, evaluation: EvaluationRecord, advance: Advance = _ignore
) -> SummaryBuilder:
    shape = read.shape(connection, tenant, evaluation.id)
    criteria = criteria_from(criteria_body(connection, tenant, evaluation.criteria_digest))
    builder = SummaryBuilder(criteria.ids, clustered=shape.clustered, repeated=shape.repeated)
    if shape.clustered or shape.repeated:
        with closing(read.cases(connection, tenant, evaluation.id)) as found:
            for case in _watch(found, advance):
                builder.add(case)
        return builder
    for case, times in read.alike_cases(connection, tenant, evaluation.id):
        builder.add(case, times)
    if shape.timed:
        builder.add_latencies(read.latencies(connection, tenant, evaluation.id))
    return builder


# Any: a row of SQLAlchemy.
def differing_figures(connection: Connection, tenant: str, row: Any) -> Iterator[str]:
    """What the kept figures of an evaluation say otherwise than its cases add up to."""
    evaluation = read.find(connection, tenant, row.evaluation_id)
    made = _count_cases(connection, tenant, evaluation).build_figures()
    overall = made.summary.overall
    if decode_json(row.content, EvaluationFigures) != _as_kept(made):
        yield "content"
    recorded = {"cases": row.cases, "rate": row.rate, "cost_micros": row.cost_micros}
    counted = {"cases": overall.cases, "rate": overall.rate, "cost_micros": made.summary.cost_micros}
    yield from (name for name, value in recorded.items() if value != counted[name])


def _as_kept(made: EvaluationFigures) -> EvaluationFigures:
    return decode_json(msgspec.json.encode(made), EvaluationFigures)


def _watch(cases: Iterator[CaseSummary], advance: Advance) -> Iterator[CaseSummary]:
    """The cases, while `advance` hears of every WATCHED_CASES of them."""
    while group := [*islice(cases, WATCHED_CASES)]:
        yield from group
        advance(len(group))


def _figures_text(tenant: str, evaluation_id: str, cases: int, content: bytes) -> bytes:
    """What the signature of kept figures is about."""
    return msgspec.json.encode(["evaluation figures", tenant, evaluation_id, cases, sha256(content).hexdigest()])


def _detail(case: CaseSummary, content: CaseContent) -> CaseDetail:
    result = bytes(content.result)
    return CaseDetail(
        case,
        payload_of(content.input),
        payload_of(content.output),
        payload_of(content.metadata),
        VerificationResult.from_json(result) if result else None,
        content.error_message,
    )


def _with_text(details: Iterator[CaseDetail], text: str | None) -> Iterator[CaseDetail]:
    if text is None:
        return details
    needle = text.casefold()
    return (one for one in details if any(needle in found.casefold() for found in _texts_of(one)))


def _texts_of(detail: CaseDetail) -> Iterator[str]:
    yield detail.summary.case_id
    yield detail.error_message
    # A list instead of recursion: work may be nested deeply.
    waiting: list[Any] = [detail.input, detail.output, detail.metadata]
    while waiting:
        value = waiting.pop()
        if isinstance(value, Mapping):
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
        elif isinstance(value, str):
            yield value
        elif isinstance(value, int | float):
            yield str(value)
