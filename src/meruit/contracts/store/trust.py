"""Count how an agent's recorded work ended, for its trust score."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, and_, exists, func, or_, select

from meruit.contracts.trust import TrustScore, WorkEnd, WorkFacts, classify_work, compute_trust
from meruit.log.entries import NO_CRITERIA
from meruit.model.contract import ContractState, Escrow
from meruit.model.decoding import decode_json
from meruit.model.governance import Disposition
from meruit.model.time import to_micros
from meruit.model.verdict import GovernanceStatus, Verdict
from meruit.outcomes.records import VersionReader, VersionRow
from meruit.store import tables
from meruit.suggestions import nearest

PAGE = 2_000
MAX_SIMILAR = 5_000
"""Most agents among which a misspelt one is searched for."""
OBJECTIONS = frozenset({GovernanceStatus.REVIEW, GovernanceStatus.INVALID})
_outcomes, _contracts, _runs, _checks = tables.outcomes, tables.contracts, tables.task_runs, tables.governance_checks


class _GovernanceOnly(msgspec.Struct):
    """What governance said of a stored result."""

    governance: GovernanceStatus = GovernanceStatus.NOT_CHECKED


def load_trust(
    connection: Connection, tenant: str, agent_id: str, since: datetime | None = None, until: datetime | None = None
) -> TrustScore:
    """The trust score of an agent, from what is recorded of it; times are of the outcome, or else of the award."""
    return compute_trust(agent_id, count_work(connection, tenant, agent_id, since, until), since, until)


def count_work(
    connection: Connection, tenant: str, agent_id: str, since: datetime | None = None, until: datetime | None = None
) -> Counter[WorkEnd]:
    """How much of an agent's work ended in which way."""
    found: Counter[WorkEnd] = Counter()
    mine = (_outcomes.c.tenant == tenant, _outcomes.c.agent_id == agent_id, *_inside(_outcomes.c, since, until))
    # These need the result itself: a later version may be by other criteria, and governance may have objected.
    singly = or_(
        _outcomes.c.version > 1,
        and_(_contracts.c.id.is_(None), _outcomes.c.verdict == Verdict.PARTIAL.value, _outcomes.c.success == 0),
    )
    facts = (*_FACTS, _outcomes.c.verdict, _outcomes.c.success, _outcomes.c.criteria_digest)
    grouped = _with_contract(select(*facts, func.count())).where(*mine, ~singly).group_by(*facts)
    for row in connection.execute(grouped):
        found[classify_work(_facts(row, row.verdict, row.criteria_digest, success=row.success))] += row[-1]
    by_own = _with_contract(select(_outcomes.c.seq, _outcomes.c.id, *_FACTS)).where(*mine, singly)
    for row, version, result in _iterate_singly(connection, tenant, by_own):
        objected = result is not None and _has_objection(result)
        facts_of = _facts(row, version.verdict, version.criteria_digest, success=version.success)
        found[classify_work(msgspec.structs.replace(facts_of, objected=objected))] += 1
    states = (_contracts.c.state, _contracts.c.escrow, _contracts.c.started_at.is_not(None).label("started"))
    never = (
        select(*states, func.count())
        .where(_contracts.c.tenant == tenant, _contracts.c.agent_id == agent_id, _contracts.c.outcome_id.is_(None))
        .where(*_inside(_contracts.c, since, until, "awarded_at"))
        .group_by(*states)
    )
    for state, escrow, started, number in connection.execute(never):
        facts_of = WorkFacts(state=ContractState(state), escrow=Escrow(escrow), started=bool(started))
        found[classify_work(facts_of)] += number
    return found


_FACTS = (
    *(_contracts.c.state, _contracts.c.escrow, _contracts.c.started_at.is_not(None).label("started")),
    *(_outcomes.c.by_agent, _runs.c.id.is_not(None).label("is_benchmark")),
    exists()
    .where(
        _checks.c.tenant == _outcomes.c.tenant,
        _checks.c.outcome_id == _outcomes.c.id,
        _contracts.c.escrow == Escrow.RELEASED.value,
        _checks.c.disposition == Disposition.INVALID.value,
    )
    .label("rejected"),
)


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def _with_contract(query: Select[Any]) -> Select[Any]:
    """Outcomes with the contract that each completed, and the task run that each judged."""
    return (
        query.select_from(_outcomes)
        .outerjoin(
            _contracts,
            (_contracts.c.tenant == _outcomes.c.tenant)
            & (_contracts.c.id == _outcomes.c.contract_id)
            & (_contracts.c.outcome_id == _outcomes.c.id),
        )
        .outerjoin(_runs, (_runs.c.tenant == _outcomes.c.tenant) & (_runs.c.id == _outcomes.c.contract_id))
    )


def _iterate_singly(
    connection: Connection, tenant: str, query: Select[Any]
) -> Iterator[tuple[Row[Any], VersionRow, bytes | None]]:
    """Outcomes with the latest verdict by their own criteria, which are those of the first verdict."""
    after, reader = 0, VersionReader(connection, tenant)
    while rows := connection.execute(query.where(_outcomes.c.seq > after).order_by(_outcomes.c.seq).limit(PAGE)).all():
        versions = reader.of_many({row.id: row.seq for row in rows})
        for row in rows:
            several = versions[row.id]
            own = [one for one in several if one.criteria_digest == several[0].criteria_digest]
            if own:
                version = reader.complete(own[-1])
                yield row, version, reader.segments.result_of(version)
        after = rows[-1].seq


def _facts(row: Row[Any], verdict: str, criteria_digest: str, *, success: int) -> WorkFacts:
    return WorkFacts(
        verdict=Verdict(verdict),
        success=bool(success),
        state=None if row.state is None else ContractState(row.state),
        escrow=None if row.escrow is None else Escrow(row.escrow),
        started=bool(row.started),
        by_agent=bool(row.by_agent),
        is_benchmark=bool(row.is_benchmark),
        rejected=bool(row.rejected),
        has_criteria=criteria_digest != NO_CRITERIA,
    )


def _has_objection(result: bytes) -> bool:
    return decode_json(result, _GovernanceOnly).governance in OBJECTIONS


def _inside(
    columns: Any, since: datetime | None, until: datetime | None, dated: str = "created_at"
) -> Iterator[ColumnElement[bool]]:
    if since is not None:
        yield columns[dated] >= to_micros(since)
    if until is not None:
        yield columns[dated] < to_micros(until)


def find_similar_agent(connection: Connection, tenant: str, agent_id: str) -> str:
    """A recorded agent with a similar name, as a question; empty where there is none."""
    known: set[str] = set()
    for table in (_outcomes, _contracts):
        query = select(table.c.agent_id).where(table.c.tenant == tenant, table.c.agent_id.is_not(None)).distinct()
        known |= {*connection.execute(query.limit(MAX_SIMILAR)).scalars()}
    return nearest(agent_id, sorted(known - {agent_id}))
