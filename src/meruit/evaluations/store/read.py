"""Reading evaluations: by name or id, their cases by filter, and one case with all that is kept of it."""

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, func, not_, or_, select

from meruit.errors import NotFound
from meruit.evaluations.compare import CaseChange, PairKind, describe_change
from meruit.evaluations.evaluation import CaseError, CaseSummary, EvaluationRecord, EvaluationStatus
from meruit.evaluations.segment import CaseContent, OpenSegment, entries_of, open_segment, unpack
from meruit.model.evidence import Fault
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.verdict import Verdict
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.database import MAX_PAGE, in_style
from meruit.store.sorting import ListOrder, SortKey, iterate_sorted
from meruit.suggestions import nearest

FEWEST_ROWS = 64
FETCH_ROWS = 2_048
"""Cases that a scan holds at a time."""


class CaseFilter(Record, frozen=True):
    """The filters of a list of cases; those that are given must all hold."""

    verdicts: tuple[Verdict, ...] = ()
    failing: bool = False
    """Only cases that did not pass, or could not be judged."""
    criteria: tuple[int, ...] = ()
    """Positions of criteria; only cases that do not meet at least one of them."""
    tags: tuple[tuple[str, str], ...] = ()
    """Of several values of one tag, one must hold."""
    groups: tuple[str, ...] = ()
    case_ids: tuple[str, ...] = ()
    faults: tuple[Fault, ...] = ()
    """Only cases where one of these is responsible for what was not met or not measured."""
    error: bool | None = None
    """Whether the case had nothing to be judged."""
    disputed: bool = False
    """Only cases whose origin claimed another verdict."""
    text: str | None = None
    """Only cases with this text in their id, input, output, metadata or error; upper and lower case are alike."""


class EvaluationFilter(Record, frozen=True):
    """The filters of a list of evaluations; those that are given must all hold."""

    text: str | None = None
    """Part of the name; upper and lower case are alike."""
    statuses: tuple[EvaluationStatus, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()
    """Of several values of one tag, one must hold."""
    criteria_digest: str | None = None
    dataset_digest: str | None = None
    since: datetime | None = None
    """Started then or later."""
    until: datetime | None = None
    """Started before."""


def has_tags(tags: Mapping[str, str], wanted: Collection[tuple[str, str]]) -> bool:
    """Whether each tag that is asked for has one of the values that are asked for."""
    if not wanted:
        return True
    values: dict[str, list[str]] = {}
    for name, value in wanted:
        values.setdefault(name, []).append(value)
    return all(tags.get(name) in several for name, several in values.items())


_VERDICTS = {verdict.value: verdict for verdict in Verdict}


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def evaluation_of(row: Any) -> EvaluationRecord:
    """An evaluation from its row."""
    return EvaluationRecord(
        id=row.id,
        name=row.name,
        status=EvaluationStatus(row.status),
        criteria_digest=row.criteria_digest,
        cases=row.cases,
        segments=row.segments,
        started_at=from_micros(row.started_at),
        ended_at=None if row.ended_at is None else from_micros(row.ended_at),
        planned=row.planned,
        dataset_digest=row.dataset_digest,
        tags=msgspec.json.decode(row.tags),
    )


def case_of(row: Any) -> CaseSummary:
    """A case from its slim row."""
    return CaseSummary(
        case_id=row.case_id,
        repeat=row.repeat,
        seq=row.seq,
        outcome_id=row.outcome_id,
        version=row.version,
        verdict=_VERDICTS[row.verdict],
        success=bool(row.success),
        score=row.score,
        statuses=row.statuses,
        group=row.group_id,
        tags={} if row.tags is None else msgspec.json.decode(row.tags),
        claimed=row.claimed,
        error=None if row.error is None else CaseError(row.error),
        faults=_to_faults(row.faults),
        latency_ms=row.latency_ms,
        cost_micros=row.cost_micros,
    )


def _to_faults(written: str | None) -> tuple[Fault, ...]:
    return () if written is None else tuple(map(Fault, written.split()))


def find(connection: Connection, tenant: str, name_or_id: str) -> EvaluationRecord:
    """The evaluation of that name or id; raises NotFound, naming the nearest."""
    table = tables.evaluations
    for column in (table.c.name, table.c.id):
        row = connection.execute(select(table).where(table.c.tenant == tenant, column == name_or_id)).first()
        if row is not None:
            return evaluation_of(row)
    names = connection.execute(select(table.c.name).where(table.c.tenant == tenant).limit(MAX_PAGE)).scalars()
    raise NotFound(
        f"no evaluation is named {name_or_id!r}{nearest(name_or_id, [*names])}; `meruit eval list` shows them"
    )


def page(
    connection: Connection,
    tenant: str,
    wanted: EvaluationFilter = EvaluationFilter(),  # noqa: B008 - frozen
    *,
    before: str | None = None,
    limit: int = 50,
) -> list[EvaluationRecord]:
    """The newest evaluations that fit, of those older than the id `before`."""
    table = tables.evaluations
    query = select(table).where(table.c.tenant == tenant, *_describing(wanted)).order_by(table.c.id.desc())
    if before is not None:
        query = query.where(table.c.id < before)
    found: list[EvaluationRecord] = []
    with closing(connection.execute(query, execution_options={"yield_per": MAX_PAGE})) as rows:
        for row in rows:
            if len(found) == min(limit, MAX_PAGE):
                break
            one = evaluation_of(row)
            if _has_tags_and_text(one, wanted):
                found.append(one)
    return found


_evaluations, _figures = tables.evaluations.c, tables.evaluation_figures.c
SORTS = {
    "name": SortKey(func.lower(_evaluations.name), str, _evaluations.id, str),
    "rate": SortKey(_figures.rate, float, _evaluations.id, str, nullable=True),
    "cases": SortKey(_evaluations.cases, int, _evaluations.id, str),
    "cost": SortKey(_figures.cost_micros, int, _evaluations.id, str, nullable=True),
    "started": SortKey(_evaluations.id, str, _evaluations.id, str),
}
"""What a list of evaluations can be sorted by; rate and cost are known of finished ones."""


def evaluations_sorted(
    connection: Connection, tenant: str, wanted: EvaluationFilter, order: ListOrder
) -> Iterator[tuple[EvaluationRecord, str]]:
    """Stream the evaluations that fit in one of the orders SORTS, each with the cursor behind it."""
    kept = (_figures.tenant == _evaluations.tenant) & (_figures.evaluation_id == _evaluations.id)
    query = (
        select(tables.evaluations)
        .outerjoin(tables.evaluation_figures, kept)
        .where(_evaluations.tenant == tenant, *_describing(wanted))
    )
    for row, cursor in iterate_sorted(connection, query, SORTS, order):
        one = evaluation_of(row)
        if _has_tags_and_text(one, wanted):
            yield one, cursor


def _has_tags_and_text(one: EvaluationRecord, wanted: EvaluationFilter) -> bool:
    # Tags are JSON in a blob, and names fold their case as Unicode does: the database knows neither.
    return has_tags(one.tags, wanted.tags) and (wanted.text or "").casefold() in one.name.casefold()


def _describing(wanted: EvaluationFilter) -> Iterator[ColumnElement[bool]]:
    table = tables.evaluations
    if wanted.statuses:
        yield table.c.status.in_([status.value for status in wanted.statuses])
    if wanted.criteria_digest is not None:
        yield table.c.criteria_digest == wanted.criteria_digest
    if wanted.dataset_digest is not None:
        yield table.c.dataset_digest == wanted.dataset_digest
    if wanted.since is not None:
        yield table.c.started_at >= to_micros(wanted.since)
    if wanted.until is not None:
        yield table.c.started_at < to_micros(wanted.until)


def cases(
    connection: Connection,
    tenant: str,
    evaluation_id: str,
    wanted: CaseFilter = CaseFilter(),  # noqa: B008 - frozen
    *,
    after: int = 0,
    limit: int | None = None,
) -> Generator[CaseSummary, None, None]:
    """The cases that fit, in their order, of those behind the position `after`; streamed."""
    table = tables.evaluation_cases
    # A sum is not in an index: cases that are asked for by their ids are found by them, not by walking all in order.
    place = table.c.seq + 0 if wanted.case_ids else table.c.seq
    query = (
        select(table)
        .where(table.c.tenant == tenant, table.c.evaluation_id == evaluation_id, place > after, *_fitting(wanted))
        .order_by(place)
    )
    batch = FETCH_ROWS
    if limit is not None:
        # Tags are looked at here, so that more rows may be needed than cases are wanted.
        query, batch = (query if wanted.tags else query.limit(limit)), min(FETCH_ROWS, max(FEWEST_ROWS, limit))
    # Closed also when the caller has seen enough: the cursor is the database's.
    with closing(connection.execute(query, execution_options={"yield_per": batch})) as rows:
        for row in rows:
            case = case_of(row)
            # Tags are JSON in a blob: no index helps, and each case has few.
            if has_tags(case.tags, wanted.tags):
                yield case


_cases = tables.evaluation_cases.c
CASE_SORTS = {
    "case": SortKey(_cases.case_id, str, _cases.seq),
    "score": SortKey(_cases.score, float, _cases.seq),
    "ms": SortKey(_cases.latency_ms, float, _cases.seq, nullable=True),
    "cost": SortKey(_cases.cost_micros, int, _cases.seq, nullable=True),
}
"""What a list of cases can be sorted by."""


def cases_sorted(
    connection: Connection,
    tenant: str,
    evaluation_id: str,
    wanted: CaseFilter,
    order: ListOrder,
    *,
    limit: int | None = None,
) -> Generator[tuple[CaseSummary, str], None, None]:
    """Stream the cases that fit in one of the orders CASE_SORTS, each with the cursor behind it."""
    query = select(tables.evaluation_cases).where(
        _cases.tenant == tenant, _cases.evaluation_id == evaluation_id, *_fitting(wanted)
    )
    # Tags are looked at here, so that more rows may be needed than cases are wanted.
    for row, cursor in iterate_sorted(connection, query, CASE_SORTS, order, None if wanted.tags else limit):
        case = case_of(row)
        if has_tags(case.tags, wanted.tags):
            yield case, cursor


def find_same_case(
    connection: Connection, tenant: str, evaluation_ids: Collection[str], case_id: str, repeat: int
) -> dict[str, CaseSummary]:
    """One try of a case in several evaluations, by their ids; those that do not have it are left out."""
    query = select(tables.evaluation_cases).where(
        _cases.tenant == tenant,
        _cases.evaluation_id.in_(evaluation_ids),
        _cases.case_id == case_id,
        _cases.repeat == repeat,
    )
    return {row.evaluation_id: case_of(row) for row in connection.execute(query)}


def positions(connection: Connection, tenant: str, evaluation_id: str, wanted: CaseFilter) -> Iterator[int]:
    """The positions of the cases that fit, in order; texts are not searched for."""
    query = (
        select(_cases.seq, _cases.tags)
        .where(_cases.tenant == tenant, _cases.evaluation_id == evaluation_id, *_fitting(wanted))
        .order_by(_cases.seq)
    )
    with closing(connection.execute(query, execution_options={"yield_per": FETCH_ROWS})) as rows:
        for seq, tags in rows:
            if not wanted.tags or has_tags({} if tags is None else msgspec.json.decode(tags), wanted.tags):
                yield seq


def case_at(connection: Connection, tenant: str, evaluation_id: str, position: int) -> CaseSummary:
    """The case at a position; raises NotFound."""
    query = select(tables.evaluation_cases).where(
        _cases.tenant == tenant, _cases.evaluation_id == evaluation_id, _cases.seq == position
    )
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"the evaluation {evaluation_id} has no case at the position {position}")
    return case_of(row)


def _fitting(wanted: CaseFilter) -> Iterator[ColumnElement[bool]]:
    table = tables.evaluation_cases
    if wanted.verdicts:
        yield table.c.verdict.in_([verdict.value for verdict in wanted.verdicts])
    if wanted.failing:
        yield table.c.success == 0
    if wanted.criteria:
        yield or_(*(func.substr(table.c.statuses, place + 1, 1).in_(["n", "i"]) for place in wanted.criteria))
    if wanted.groups:
        yield table.c.group_id.in_(wanted.groups)
    if wanted.faults:
        yield or_(*(table.c.faults.contains(fault.value) for fault in wanted.faults))
    if wanted.case_ids:
        yield table.c.case_id.in_(wanted.case_ids)
    if wanted.error is not None:
        yield table.c.error.is_not(None) if wanted.error else table.c.error.is_(None)
    if wanted.disputed:
        # As CaseSummary.is_disputed says it.
        claimed, is_partial = table.c.claimed, table.c.verdict == Verdict.PARTIAL.value
        yield claimed.is_not(None)
        yield claimed != table.c.verdict
        yield not_(and_(is_partial, claimed == Verdict.FAIL.value, table.c.success == 0))
        yield not_(and_(is_partial, claimed == Verdict.PASS.value, table.c.success == 1))


def alike_cases(connection: Connection, tenant: str, evaluation_id: str) -> Iterator[tuple[CaseSummary, int]]:
    """Cases that statistics count alike, one of each kind with their number; its cost is that of all of them.

    For evaluations whose cases have no groups and were tried once: ids are left out. So are latencies.
    """
    # As text, here and in `shape`: every run asks this once, and building the query takes longer than a small answer.
    query = in_style(_ALIKE, connection)
    # The options of a connection would hold for every statement after this one.
    options = {"yield_per": FETCH_ROWS}
    with closing(connection.exec_driver_sql(query, (tenant, evaluation_id), options)) as rows:
        for verdict, success, score, statuses, tags, claimed, error, faults, cost, times in rows:
            case = CaseSummary(
                "",
                0,
                0,
                "",
                1,
                _VERDICTS[verdict],
                bool(success),
                score,
                statuses,
                tags={} if tags is None else msgspec.json.decode(tags),
                claimed=claimed,
                error=None if error is None else CaseError(error),
                faults=_to_faults(faults),
                cost_micros=None if cost is None else int(cost),
            )
            yield case, times


_KIND = "verdict, success, score, statuses, tags, claimed, error, faults"
_ALIKE = (
    f"SELECT {_KIND}, sum(cost_micros), count(*) FROM evaluation_cases "  # noqa: S608 - names of our own columns
    f"WHERE tenant = ? AND evaluation_id = ? GROUP BY {_KIND}"
)


class KeptFigures(Record, frozen=True):
    """What a finished evaluation adds up to, as it is kept."""

    cases: int
    content: bytes
    signature: bytes
    rate: float | None = None
    """Of the content, as lists are sorted by it."""
    cost_micros: int | None = None


def find_figures_of(connection: Connection, tenant: str, evaluation_id: str) -> KeptFigures | None:
    """The figures that were kept when the evaluation was finished; None where none were."""
    table = tables.evaluation_figures
    query = select(table).where(table.c.tenant == tenant, table.c.evaluation_id == evaluation_id)
    row = connection.execute(query).first()
    return None if row is None else KeptFigures(row.cases, bytes(row.content), bytes(row.signature))


def latencies(connection: Connection, tenant: str, evaluation_id: str) -> Iterator[float]:
    """The latencies of the cases that have one, in milliseconds."""
    table = tables.evaluation_cases
    query = select(table.c.latency_ms).where(
        table.c.tenant == tenant, table.c.evaluation_id == evaluation_id, table.c.latency_ms.is_not(None)
    )
    with closing(connection.execute(query, execution_options={"yield_per": FETCH_ROWS}).scalars()) as found:
        yield from found


def count_cases(connection: Connection, tenant: str, evaluation_id: str) -> int:
    """How many cases are recorded."""
    table = tables.evaluation_cases
    query = select(func.count()).where(table.c.tenant == tenant, table.c.evaluation_id == evaluation_id)
    return int(connection.execute(query).scalar_one())


_FIRST, _SECOND = tables.evaluation_cases.alias("a"), tables.evaluation_cases.alias("b")
_PAIRED = _FIRST.join(
    _SECOND,
    (_SECOND.c.tenant == _FIRST.c.tenant)
    & (_SECOND.c.case_id == _FIRST.c.case_id)
    & (_SECOND.c.repeat == _FIRST.c.repeat),
)


def pair_kinds(connection: Connection, tenant: str, first: str, second: str) -> list[PairKind]:
    """The cases that two evaluations have in common, counted by their kind; for cases that were tried once."""
    columns = [one.c[name] for one in (_FIRST, _SECOND) for name in ("verdict", "success", "statuses")]
    query = (
        select(func.count(), *columns, _SECOND.c.tags)
        .select_from(_PAIRED)
        .where(_FIRST.c.tenant == tenant, _FIRST.c.evaluation_id == first, _SECOND.c.evaluation_id == second)
        .group_by(*columns, _SECOND.c.tags)
    )
    return [
        PairKind(
            times,
            _VERDICTS[verdict],
            bool(success),
            statuses,
            _VERDICTS[verdict_b],
            bool(success_b),
            statuses_b,
            {} if tags is None else msgspec.json.decode(tags),
        )
        for times, verdict, success, statuses, verdict_b, success_b, statuses_b, tags in connection.execute(query)
    ]


def case_changes(
    connection: Connection, tenant: str, first: str, second: str, *, flips: bool = False
) -> list[CaseChange]:
    """What became of the first try of each case that both have, in the order of the first; or only of what flipped."""
    columns = [one.c[name] for one in (_FIRST, _SECOND) for name in ("verdict", "success", "score", "statuses")]
    query = (
        select(_FIRST.c.case_id, *columns)
        .select_from(_PAIRED)
        .where(_FIRST.c.tenant == tenant, _FIRST.c.evaluation_id == first, _SECOND.c.evaluation_id == second)
        .where(_FIRST.c.repeat == 0)
        .order_by(_FIRST.c.seq)
    )
    if flips:
        query = query.where(_FIRST.c.success != _SECOND.c.success)
    # Few pairs of statuses differ, and these lists are kept: cases share them.
    kinds: dict[tuple[str, str], tuple[str, str]] = {}
    return [
        CaseChange(
            case_id,
            describe_change(_VERDICTS[a], _VERDICTS[b], first_success=bool(passed), second_success=bool(passed_b)),
            score_b - score,
            kinds.setdefault((statuses, statuses_b), (statuses, statuses_b)),
        )
        for case_id, a, passed, score, statuses, b, passed_b, score_b, statuses_b in connection.execute(query)
    ]


def find_known_cases(
    connection: Connection, tenant: str, evaluation_id: str, ids: Sequence[str]
) -> set[tuple[str, int]]:
    """Which of these cases are recorded already, as id and repeat."""
    table = tables.evaluation_cases
    query = select(table.c.case_id, table.c.repeat).where(
        table.c.tenant == tenant, table.c.evaluation_id == evaluation_id, table.c.case_id.in_(ids)
    )
    return {(row.case_id, row.repeat) for row in connection.execute(query)}


def shape(connection: Connection, tenant: str, evaluation_id: str) -> "EvaluationShape":
    """Whether cases have groups, whether some were tried more than once, and whether some have a latency."""
    query = in_style(_SHAPE, connection)
    group, repeat, latencies = connection.exec_driver_sql(query, (tenant, evaluation_id)).one()
    return EvaluationShape(clustered=group is not None, repeated=bool(repeat), timed=bool(latencies))


_SHAPE = (
    "SELECT max(group_id), max(repeat), count(latency_ms) FROM evaluation_cases WHERE tenant = ? AND evaluation_id = ?"
)


def find_spending(connection: Connection, tenant: str, evaluation_id: str) -> tuple[int, int]:
    """What the recorded cases cost together, and the dearest of them, in millionths."""
    table = tables.evaluation_cases
    query = select(func.sum(table.c.cost_micros), func.max(table.c.cost_micros)).where(
        table.c.tenant == tenant, table.c.evaluation_id == evaluation_id
    )
    total, dearest = connection.execute(query).one()
    return int(total or 0), int(dearest or 0)


class EvaluationShape(Record, frozen=True):
    """What its statistics have to allow for."""

    clustered: bool
    repeated: bool
    timed: bool


class CasePlace(Record, frozen=True):
    """Where a case lies."""

    evaluation_id: str
    segment: int
    place: int
    address: str
    leaf: int


class KeptCase(Record, frozen=True):
    """A case as its segment keeps it, with what proves it."""

    evaluation_id: str
    segment: int
    place: int
    leaf: int
    """Of the segment in the log."""
    content: CaseContent
    entries: list[bytes]
    """What the log's tree over the segment is made of."""


def find_case(connection: Connection, tenant: str, outcome_id: str) -> tuple[str, CaseSummary] | None:
    """The evaluation and the case of an outcome; None where it is not a case."""
    table = tables.evaluation_cases
    row = connection.execute(select(table).where(table.c.tenant == tenant, table.c.outcome_id == outcome_id)).first()
    return None if row is None else (row.evaluation_id, case_of(row))


def load_case(connection: Connection, blobs: BlobStore, tenant: str, outcome_id: str) -> KeptCase:
    """A case with its segment; raises NotFound."""
    found = find_case(connection, tenant, outcome_id)
    if found is None:
        raise NotFound(f"no outcome {outcome_id!r}")
    evaluation_id, case = found
    place = _places(connection, tenant, evaluation_id, [case.seq])[case.seq]
    cases = unpack(blobs.content(connection, tenant, place.address))
    return KeptCase(
        evaluation_id=evaluation_id,
        segment=place.segment,
        place=place.place,
        leaf=place.leaf,
        content=cases[place.place],
        entries=entries_of(cases),
    )


def contents(
    connection: Connection, blobs: BlobStore, tenant: str, evaluation_id: str, chosen: Sequence[CaseSummary]
) -> Iterator[tuple[CaseSummary, CaseContent]]:
    """What is kept of each of these cases, in this order; each segment is opened once."""
    opened: tuple[int, OpenSegment] | None = None
    places = _places(connection, tenant, evaluation_id, [case.seq for case in chosen])
    found: dict[int, CaseContent] = {}
    for seq, place in sorted(places.items(), key=lambda one: (one[1].segment, one[1].place)):
        if opened is None or opened[0] != place.segment:
            opened = place.segment, open_segment(blobs.content(connection, tenant, place.address))
        found[seq] = opened[1].case(place.place)
    yield from ((case, found[case.seq]) for case in chosen)


def _places(
    connection: Connection, tenant: str, evaluation_id: str, positions: Sequence[int]
) -> Mapping[int, CasePlace]:
    cases, segments = tables.evaluation_cases, tables.evaluation_segments
    query = (
        select(cases.c.seq, cases.c.segment, cases.c.place, segments.c.address, segments.c.leaf)
        .join(
            segments,
            (segments.c.tenant == cases.c.tenant)
            & (segments.c.evaluation_id == cases.c.evaluation_id)
            & (segments.c.number == cases.c.segment),
        )
        .where(cases.c.tenant == tenant, cases.c.evaluation_id == evaluation_id, cases.c.seq.in_(positions))
    )
    return {
        row.seq: CasePlace(
            evaluation_id=evaluation_id, segment=row.segment, place=row.place, address=row.address, leaf=row.leaf
        )
        for row in connection.execute(query)
    }
