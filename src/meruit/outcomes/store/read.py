"""Reading outcomes: pages by their place, one by its id, its versions, and what it rests on."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import ColumnElement, Connection, Select, func, select

from meruit.documents.json_slices import load_json
from meruit.errors import NotFound
from meruit.model.access import AgentScore, Scope, show_score
from meruit.model.canonical import from_canonical
from meruit.model.criterion import SuccessCriteria
from meruit.model.decoding import decode_json
from meruit.model.money import Bill
from meruit.model.numbers import in_units
from meruit.model.outcome import AgentOutcome, OutcomeRecord, OutcomeSummary, VerdictVersion
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.model.verdict import Verdict, VerificationResult
from meruit.outcomes.store.versions import RunPlace, VersionReader, VersionRow
from meruit.outcomes.store.write import result_from
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.database import MAX_PAGE
from meruit.store.paging import ListFilter, ListPage, read_page
from meruit.store.sorting import IndexGroups, ListOrder, SortedPage, SortKey, read_sorted

INDEXED = ("contract_id", "agent_id", "verdict", "criteria_digest")
"""Filters with an index of their own."""
UNINDEXED = ("consumer_id", "domain")
FEW_ROWS = 5_000
"""Fewer rows than these are sorted rather than found by walking all rows in order."""


class OutcomeFilter(Record, frozen=True):
    """The filters of a list of outcomes; those that are given must all hold."""

    contract_id: str | None = None
    agent_id: str | None = None
    consumer_id: str | None = None
    domain: str | None = None
    verdict: str | None = None
    criteria_digest: str | None = None
    since: datetime | None = None
    """Recorded at this time or later."""
    until: datetime | None = None
    """Recorded before this time."""


class OutcomeWork(NamedTuple):
    """The work of an outcome, as bytes; None where it was erased."""

    input: bytes | None
    output: bytes | None
    metadata: bytes | None


def _visible(scope: Scope) -> Select[Any]:
    """Outcomes that the scope reaches."""
    query = select(tables.outcomes).where(tables.outcomes.c.tenant == scope.tenant)
    # An agent without a name owns nothing: comparing with NULL finds no row.
    return query.where(tables.outcomes.c.agent_id == _text(scope.agent_id)) if scope.only_own else query


def _text(agent_id: str | None) -> str:
    # No recorded agent has an empty name.
    return agent_id or ""


def page(
    connection: Connection,
    scope: Scope,
    *,
    narrowed: OutcomeFilter | None = None,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[OutcomeSummary]:
    """The newest first; `before` is the `next` of the page before."""
    wanted = narrowed or OutcomeFilter()
    if scope.only_own:
        if wanted.agent_id not in (None, scope.agent_id):
            return ListPage([], None)
        wanted = msgspec.structs.replace(wanted, agent_id=_text(scope.agent_id))
    filters = ListFilter(
        indexed=_filters_of(wanted, INDEXED),
        dated="created_at",
        since=wanted.since,
        until=wanted.until,
        unindexed=_filters_of(wanted, UNINDEXED),
    )
    found = read_page(connection, tables.outcomes, scope.tenant, filters, before=before, limit=limit)
    return found.convert(_summary)


_of = tables.outcomes.c
SORTS = {
    "score": SortKey(_of.score, float, _of.seq, grouped=IndexGroups(_of.verdict, tuple(Verdict))),
    "agent": SortKey(_of.agent_id, str, _of.seq, nullable=True),
    "recorded": SortKey(_of.seq, int, _of.seq),
}
"""What a list of outcomes can be sorted by."""


def page_sorted(
    connection: Connection, scope: Scope, order: ListOrder, *, narrowed: OutcomeFilter | None = None, limit: int = 50
) -> SortedPage[OutcomeSummary]:
    """A page of outcomes in one of the orders SORTS."""
    wanted, key = narrowed or OutcomeFilter(), SORTS[order.by]
    query, by = _visible(scope).where(*fitting(narrowed)), _filters_of(wanted, INDEXED)
    if key.grouped is not None and by.pop("verdict", None) is not None:
        # One group of the index is the list.
        key = msgspec.structs.replace(key, grouped=None)
    if by and connection.dialect.name == "sqlite" and count_up_to(connection, scope, wanted, FEW_ROWS) < FEW_ROWS:
        key = key.without_index()
    return read_sorted(connection, query, {order.by: key}, order, limit).convert(_summary)


def count_up_to(connection: Connection, scope: Scope, narrowed: OutcomeFilter, most: int) -> int:
    """How many outcomes there are, counted up to a number."""
    query = _visible(scope).with_only_columns(tables.outcomes.c.seq).where(*fitting(narrowed)).limit(most)
    return int(connection.execute(select(func.count()).select_from(query.subquery())).scalar_one())


def _filters_of(wanted: OutcomeFilter, names: Sequence[str]) -> dict[str, str]:
    return {name: value for name in names if (value := getattr(wanted, name)) is not None}


def forward(
    connection: Connection,
    scope: Scope,
    *,
    narrowed: OutcomeFilter | None = None,
    after: int = 0,
    limit: int = MAX_PAGE,
) -> list[OutcomeSummary]:
    """The oldest first, for work that goes through all of them."""
    query = _visible(scope).where(tables.outcomes.c.seq > after, *fitting(narrowed))
    return [_summary(row) for row in connection.execute(query.order_by(tables.outcomes.c.seq).limit(limit))]


def fitting(narrowed: OutcomeFilter | None) -> Iterator[ColumnElement[bool]]:
    """The conditions of a filter."""
    wanted, of = narrowed or OutcomeFilter(), tables.outcomes.c
    for name, value in _filters_of(wanted, (*INDEXED, *UNINDEXED)).items():
        yield of[name] == value
    if wanted.since is not None:
        yield of.created_at >= to_micros(wanted.since)
    if wanted.until is not None:
        yield of.created_at < to_micros(wanted.until)


def summary(connection: Connection, scope: Scope, outcome_id: str) -> OutcomeSummary:
    """One outcome's line; raises NotFound."""
    return _summary(_row(connection, scope, outcome_id))


def for_agent(found: OutcomeSummary, shown: AgentScore = AgentScore.COARSE) -> AgentOutcome:
    """What of it the agent itself may see."""
    return AgentOutcome(
        id=found.id,
        contract_id=found.contract_id,
        created_at=found.created_at,
        version=found.version,
        verdict=found.verdict,
        success=found.success,
        score=show_score(found.score, shown),
    )


def versions(connection: Connection, scope: Scope, outcome_id: str) -> list[VerdictVersion]:
    """Every verdict on an outcome, oldest first."""
    seq = _row(connection, scope, outcome_id).seq
    reader = VersionReader(connection, scope.tenant)
    return [_version(one, reader) for one in reader.of(outcome_id, seq)]


def version(connection: Connection, scope: Scope, outcome_id: str, number: int) -> VerdictVersion:
    """One verdict on an outcome; raises NotFound."""
    seq = _row(connection, scope, outcome_id).seq
    reader = VersionReader(connection, scope.tenant)
    found = next((one for one in reader.of(outcome_id, seq) if one.version == number), None)
    if found is None:
        raise NotFound(f"{outcome_id} has no version {number}")
    return _version(found, reader)


def evidence(connection: Connection, scope: Scope, outcome_id: str, shelf: BlobStore) -> OutcomeWork:
    """The work that an outcome was judged on."""
    row = _row(connection, scope, outcome_id)
    addresses = (row.input_address, row.output_address, row.metadata_address)
    return OutcomeWork(
        *(None if address is None else shelf.content(connection, scope.tenant, address) for address in addresses)
    )


def criteria_body(connection: Connection, tenant: str, digest: str) -> bytes:
    """Criteria in canonical form, by their digest; raises NotFound."""
    query = select(tables.criteria.c.body).where(tables.criteria.c.tenant == tenant, tables.criteria.c.digest == digest)
    body: bytes | None = connection.execute(query).scalar()
    if body is None:
        raise NotFound(f"no criteria have the digest {digest}")
    return body


def criteria_from(body: bytes) -> SuccessCriteria:
    """Criteria from their canonical form."""
    return SuccessCriteria.model_validate(from_canonical(body))


def full_record(
    connection: Connection, scope: Scope, outcome_id: str, shelf: BlobStore, number: int | None = None
) -> OutcomeRecord:
    """The whole record, in its latest version unless another is asked for."""
    record, work = _record_without_work(connection, scope, outcome_id, shelf, number)
    parts = {name: _decode_part(part) for name, part in _parts_of(work).items()}
    return record.model_copy(update=parts)


def full_record_json(
    connection: Connection, scope: Scope, outcome_id: str, shelf: BlobStore, number: int | None = None
) -> bytes:
    """The whole record as JSON. The work is taken as it is stored: other threads wait while a large one is decoded."""
    record, work = _record_without_work(connection, scope, outcome_id, shelf, number)
    members = decode_json(record.model_dump_json(), dict[str, msgspec.Raw])
    members |= {name: msgspec.Raw(b"null" if part is None else part) for name, part in _parts_of(work).items()}
    return msgspec.json.encode(members)


def _parts_of(work: OutcomeWork) -> dict[str, bytes | None]:
    return {"execution_metadata": work.metadata, "work_input": work.input, "work_output": work.output}


def _record_without_work(
    connection: Connection, scope: Scope, outcome_id: str, shelf: BlobStore, number: int | None
) -> tuple[OutcomeRecord, OutcomeWork]:
    found = summary(connection, scope, outcome_id)
    verdict = version(connection, scope, outcome_id, found.version if number is None else number)
    work = evidence(connection, scope, outcome_id, shelf)
    bill = live_bills(connection, scope.tenant, [found.contract_id]).get((found.contract_id, verdict.version))
    record = OutcomeRecord(
        id=found.id,
        contract_id=found.contract_id,
        agent_id=found.agent_id,
        consumer_id=found.consumer_id,
        domain=found.domain,
        success_criteria=criteria_from(criteria_body(connection, scope.tenant, verdict.criteria_digest)),
        verification_result=verdict.result,
        execution_metadata=None,
        billing_impact=billing_impact(bill, *_money_of(verdict.result)),
        created_at=found.created_at,
        version=verdict.version,
        reason=verdict.reason,
        criteria_digest=verdict.criteria_digest,
    )
    return record, work


def live_bills(connection: Connection, tenant: str, contract_ids: Iterable[str]) -> dict[tuple[str, int], Bill]:
    """The bills that were paid and not reversed, by contract and version of the verdict."""
    of, contracts = tables.settlements, tables.contracts
    query = (
        select(of.c.contract_id, of.c.version, of.c.bill)
        .join(
            contracts,
            (contracts.c.tenant == of.c.tenant)
            & (contracts.c.id == of.c.contract_id)
            & (contracts.c.settlement == of.c.number),
        )
        .where(of.c.tenant == tenant, of.c.contract_id.in_(sorted(set(contract_ids))))
    )
    return {(row.contract_id, row.version): Bill.from_json(row.bill) for row in connection.execute(query)}


class _WorkTitle(msgspec.Struct):
    """The title of stored work; nothing else of it is decoded."""

    title: str


def contract_titles(connection: Connection, tenant: str, contract_ids: Iterable[str]) -> dict[str, str]:
    """The title of the work of each contract."""
    contracts, works = tables.contracts, tables.works
    query = (
        select(contracts.c.id, works.c.body)
        .join(works, (works.c.tenant == contracts.c.tenant) & (works.c.id == contracts.c.work_id))
        .where(contracts.c.tenant == tenant, contracts.c.id.in_(sorted(set(contract_ids))))
    )
    return {row.id: decode_json(row.body, _WorkTitle).title for row in connection.execute(query)}


def billing_impact(bill: Bill | None, bonus_micros: int | None, penalty_micros: int | None) -> dict[str, str | None]:
    """What a version was paid for; without a live payment, what its result says, None once that is erased."""
    if bill is None:
        bonus, penalty = (None if one is None else in_units(one) for one in (bonus_micros, penalty_micros))
        return {"cpc_base": None, "bonus": bonus, "penalty": penalty, "total": None}
    return {
        "cpc_base": in_units(bill.base),
        "bonus": in_units(bill.bonus),
        "penalty": in_units(bill.penalty),
        "total": in_units(bill.total),
    }


def _money_of(result: VerificationResult | None) -> tuple[int | None, int | None]:
    return (None, None) if result is None else (result.bonus_micros, result.penalty_micros)


def _decode_part(content: bytes | None) -> dict[str, Any] | None:
    if content is None:
        return None
    # Unlike others, it keeps every digit of an integer.
    found: dict[str, Any] = load_json(content, msgspec.json.decode)
    return found


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _row(connection: Connection, scope: Scope, outcome_id: str) -> Any:
    row = connection.execute(_visible(scope).where(tables.outcomes.c.id == outcome_id)).first()
    if row is None:
        raise NotFound(f"no outcome {outcome_id!r}")
    return row


def _summary(row: Any) -> OutcomeSummary:
    return OutcomeSummary(
        id=row.id,
        seq=row.seq,
        contract_id=row.contract_id,
        agent_id=row.agent_id,
        consumer_id=row.consumer_id,
        domain=row.domain,
        created_at=from_micros(row.created_at),
        version=row.version,
        verdict=Verdict(row.verdict),
        success=bool(row.success),
        score=row.score,
        criteria_digest=row.criteria_digest,
        by_agent=bool(row.by_agent),
    )


def _version(found: VersionRow | RunPlace, reader: VersionReader) -> VerdictVersion:
    row = reader.complete(found)
    return VerdictVersion(
        version=row.version,
        criteria_digest=row.criteria_digest,
        verdict=Verdict(row.verdict),
        success=bool(row.success),
        score=row.score,
        reason=row.reason,
        created_at=from_micros(row.created_at),
        leaf=row.leaf,
        result=result_from(reader.segments.result_of(row)),
    )
