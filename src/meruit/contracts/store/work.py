"""Published work: write and read it, and the views for consumers and agents."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, select

from meruit.contracts.store.read import format_terms
from meruit.errors import EvidenceDamaged, NotFound, RecordTampered
from meruit.log.commitment import commitment_to, matches_digest
from meruit.model.access import Scope
from meruit.model.canonical import from_canonical
from meruit.model.contract import AgentWork, WorkSubmission, parse_stored_work, work_body
from meruit.model.decoding import decode_json
from meruit.model.events import EventType
from meruit.model.money import as_micros
from meruit.model.numbers import in_units
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.model.work import PRIVATE_INPUTS
from meruit.outcomes.records import commit_criteria, criteria_body
from meruit.store import tables
from meruit.store.blobs import BlobStore, EvidencePart
from meruit.store.paging import ListFilter, ListPage, read_page
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction


class WorkRow(msgspec.Struct, frozen=True):
    """Recorded work."""

    id: str
    seq: int
    consumer_id: str
    criteria_digest: str | None
    criteria: bytes | None
    """In canonical form."""
    has_cpa: bool
    """Whether some criterion has a bonus or a penalty."""
    input_address: str
    input_salt: bytes
    input_commitment: str
    """What the body says of the input."""
    created_at: datetime
    created_by: str
    submission: WorkSubmission
    """Without criteria and input."""
    private: frozenset[str]
    """Further names of the input that agents are not shown."""
    body: bytes
    """The stored form, which contracts commit to."""

    @property
    def has_agreed_input(self) -> bool:
        """Whether the address is that of the input which the body, and so every award, commits to."""
        return matches_digest(self.input_commitment, self.input_salt, self.input_address)

    def public(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The part of the input that agents see."""
        hidden = PRIVATE_INPUTS | self.private
        return {name: value for name, value in given.items() if name not in hidden}


_WORKS = Rows[WorkRow]("work")
_FIND = (
    "SELECT works.*, criteria.body AS criteria FROM works LEFT JOIN criteria "
    "ON criteria.tenant = works.tenant AND criteria.digest = works.criteria_digest "
    "WHERE works.tenant = ? AND works.id = ?"
)


class WorkFilter(Record, frozen=True):
    """The filters of a list of work; those that are given must all hold."""

    consumer_id: str | None = None
    since: datetime | None = None
    """Published at this time or later."""
    until: datetime | None = None
    """Published before this time."""


class _Titled(msgspec.Struct):
    """The title of stored work."""

    title: str


class WorkView(Record, frozen=True):
    """Work as consumers and auditors see it."""

    id: str
    seq: int
    title: str
    description: str
    domain: str | None
    consumer_id: str
    criteria_digest: str | None
    has_cpa: bool
    has_criteria: bool
    created_at: datetime
    created_by: str
    terms: dict[str, Any]
    impossible: bool
    canaries: list[str]
    accept_null_agent: str | None
    accept_findings: list[str]
    """Codes of proven errors that the publisher insists on."""
    success_criteria: dict[str, Any] | None = None
    """Only where one work is read; lists leave it out."""
    input: dict[str, Any] | None = None
    private: list[str] = msgspec.field(default_factory=list)
    """Further names of the input that agents are not shown."""


class SubmitWork(msgspec.Struct, frozen=True):
    """Publish work."""

    tenant: str
    by: str
    id: str
    submission: WorkSubmission
    input: EvidencePart
    input_salt: bytes
    criteria: bytes | None
    digest: str | None
    has_cpa: bool
    findings: tuple[str, ...] = ()
    """Codes of the proven errors that were found, and accepted."""

    def __call__(self, writing: WriteTransaction) -> WorkRow:
        """Record the work; its criteria are committed to in the log before any output is judged by them."""
        if self.criteria is not None:
            commit_criteria(writing, self.tenant, self.criteria, self.digest)
        writing.keep(self.input.blob(self.tenant))
        consumer = self.submission.consumer_id or self.tenant
        seq = writing.emit(
            self.tenant,
            EventType.WORK_SUBMITTED,
            self.id,
            f"{self.id}:submitted",
            {
                "work_id": self.id,
                "has_cpa": self.has_cpa,
                "has_criteria": self.criteria is not None,
                "consumer_id": consumer,
                "criteria_digest": self.digest,
                "null_agent_accepted": self.submission.accept_null_agent,
                "findings_accepted": [*self.findings],
            },
        )
        committed = commitment_to(self.input_salt, self.input.address)
        body = work_body(self.submission, committed)
        writing.insert(
            tables.works,
            tenant=self.tenant,
            id=self.id,
            seq=seq,
            consumer_id=consumer,
            criteria_digest=self.digest,
            has_cpa=int(self.has_cpa),
            input_address=self.input.address,
            input_salt=self.input_salt,
            created_at=writing.now.micros,
            created_by=self.by,
            body=body,
        )
        found = WorkRow(
            id=self.id,
            seq=seq,
            consumer_id=consumer,
            criteria_digest=self.digest,
            criteria=self.criteria,
            has_cpa=self.has_cpa,
            input_address=self.input.address,
            input_salt=self.input_salt,
            input_commitment=committed,
            created_at=from_micros(writing.now.micros),
            created_by=self.by,
            submission=self.submission,
            private=frozenset(self.submission.private),
            body=body,
        )
        _WORKS.put(writing, found, self.tenant, self.id)
        return found


def find(connection: Connection, tenant: str, work_id: str) -> WorkRow:
    """One work; raises NotFound."""
    row = connection.execute(
        select(tables.works).where(tables.works.c.tenant == tenant, tables.works.c.id == work_id)
    ).first()
    if row is None:
        raise NotFound(f"no work {work_id!r}")
    digest = row.criteria_digest
    return _work_from_row(row, None if digest is None else criteria_body(connection, tenant, digest))


def find_for_writing(writing: WriteTransaction, tenant: str, work_id: str) -> WorkRow:
    """One work, also when an earlier request of the same group published it; raises NotFound and RecordTampered."""
    known = _WORKS.get(writing, tenant, work_id)
    if known is not None:
        return known
    found = writing.ask(_FIND, tenant, work_id)
    if not found:
        raise NotFound(f"no work {work_id!r}")
    row = found[0]
    if row.criteria_digest is not None and row.criteria is None:
        raise RecordTampered(f"the criteria of work {work_id} are gone")
    work = _work_from_row(row, None if row.criteria is None else bytes(row.criteria))
    # Work is never changed, and a group often has many contracts on the same.
    _WORKS.put(writing, work, tenant, work_id)
    return work


def find_visible(connection: Connection, scope: Scope, work_id: str) -> WorkRow:
    """One work that the scope may see; an agent sees work that it has a contract on. Raises NotFound."""
    if scope.only_own:
        of = tables.contracts
        query = select(of.c.id).where(
            of.c.tenant == scope.tenant, of.c.work_id == work_id, of.c.agent_id == (scope.agent_id or "")
        )
        if connection.execute(query.limit(1)).first() is None:
            raise NotFound(f"no work {work_id!r}")
    return find(connection, scope.tenant, work_id)


def page(
    connection: Connection,
    tenant: str,
    *,
    wanted: WorkFilter | None = None,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[WorkRow]:
    """The newest first, without their criteria; `before` is the `next` of the page before."""
    asked = wanted or WorkFilter()
    consumer = {} if asked.consumer_id is None else {"consumer_id": asked.consumer_id}
    filters = ListFilter(indexed=consumer, dated="created_at", since=asked.since, until=asked.until)
    found = read_page(connection, tables.works, tenant, filters, before=before, limit=limit)
    return found.convert(lambda row: _work_from_row(row, None))


def titles_of(connection: Connection, tenant: str, work_ids: Iterable[str]) -> dict[str, str]:
    """The titles of some works, by their ids."""
    query = select(tables.works.c.id, tables.works.c.body).where(
        tables.works.c.tenant == tenant, tables.works.c.id.in_(sorted(work_ids))
    )
    # Only the title is decoded: a list may name very many works.
    return {row.id: decode_json(row.body, _Titled).title for row in connection.execute(query)}


def input_of(connection: Connection, tenant: str, work: WorkRow, shelf: BlobStore) -> dict[str, Any]:
    """The whole input, including its private parts; raises RecordTampered where it is not the one agreed on."""
    if not work.has_agreed_input:
        raise RecordTampered(f"work {work.id} refers to another input than the one that was published")
    try:
        content = shelf.content(connection, tenant, work.input_address)
    except EvidenceDamaged as problem:
        raise RecordTampered(f"the input of work {work.id} is damaged: {problem}") from None
    return decode_json(content, dict[str, Any])


def to_work_view(work: WorkRow, given: Mapping[str, Any] | None = None) -> WorkView:
    """The view for consumers and auditors."""
    submission = work.submission
    criteria = None if work.criteria is None else from_canonical(work.criteria)
    return WorkView(
        id=work.id,
        seq=work.seq,
        title=submission.title,
        description=submission.description,
        domain=submission.domain,
        consumer_id=work.consumer_id,
        criteria_digest=work.criteria_digest,
        has_cpa=work.has_cpa,
        has_criteria=work.criteria_digest is not None,
        created_at=work.created_at,
        created_by=work.created_by,
        terms=format_terms(submission.terms_in_force()),
        impossible=submission.impossible,
        canaries=[*submission.canaries],
        accept_null_agent=submission.accept_null_agent,
        accept_findings=[*submission.accept_findings],
        success_criteria=criteria,
        input=None if given is None else dict(given),
        private=sorted(work.private),
    )


def to_agent_work(work: WorkRow, given: Mapping[str, Any]) -> AgentWork:
    """The view for the agent."""
    submission = work.submission
    terms = submission.terms_in_force()
    return AgentWork(
        id=work.id,
        title=submission.title,
        description=submission.description,
        domain=submission.domain,
        input=work.public(given),
        currency=terms.currency,
        cpc_rate=None if terms.cpc_rate is None else in_units(as_micros(terms.cpc_rate)),
        dispute_window_hours=terms.dispute_window_hours,
        deadline_hours=terms.deadline_hours,
        latency_from=terms.latency_from,
        pay_per_run=terms.pay_per_run,
        agent_tries=terms.agent_tries,
        agent_score=terms.agent_score,
    )


def _work_from_row(row: Row[Any], criteria: bytes | None) -> WorkRow:
    try:
        stored = parse_stored_work(row.body)
    except (ValueError, msgspec.DecodeError):
        raise RecordTampered(f"work {row.id} cannot be read") from None
    return WorkRow(
        id=row.id,
        seq=row.seq,
        consumer_id=row.consumer_id,
        criteria_digest=row.criteria_digest,
        criteria=criteria,
        has_cpa=bool(row.has_cpa),
        input_address=row.input_address,
        input_salt=bytes(row.input_salt),
        input_commitment=stored.input_commitment,
        created_at=from_micros(row.created_at),
        created_by=row.created_by,
        submission=stored.submission,
        private=stored.private,
        body=row.body,
    )
