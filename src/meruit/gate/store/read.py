"""Queries on agent runs: one, a page, their steps and submissions, due and orphaned runs, workers."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, Row, Select, bindparam, delete, func, select, update

from meruit.errors import NotFound
from meruit.gate.accounting import PriorAnswer, payload_hash
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, RunState
from meruit.gate.state import VerificationState
from meruit.gate.store.rows import HISTORY_COLUMNS, add_submissions, run_of
from meruit.gate.store.submissions import submission_of, submission_result_of
from meruit.gate.verdict import VerifierVerdict, parse_verdict
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted
from meruit.store.transaction import MergeRule, WriteTransaction

_runs, _steps, _submissions, _workers = tables.agent_runs, tables.agent_steps, tables.submissions, tables.workers
_HISTORY = [_submissions.c[name] for name in HISTORY_COLUMNS]


class DueRun(msgspec.Struct, frozen=True):
    """A run for a worker to claim."""

    tenant: str
    id: str
    agent: str
    wake_at: int = 0
    """When it became due, in microseconds."""
    worker: str | None = None
    """The worker that had it last, where that one is gone."""
    owner: str | None = None
    """The token of that worker's claim."""


class OverdueWait(msgspec.Struct, frozen=True):
    """A run whose wait for a value has timed out."""

    tenant: str
    id: str
    key: str


class LiveWorker(msgspec.Struct, frozen=True):
    """A worker with the end of its lease."""

    id: str
    agents: tuple[str, ...]
    started_at: datetime
    until: int
    """In microseconds since 1970."""


def find(connection: Connection, tenant: str, run_id: str) -> AgentRun:
    """Find one run; raises NotFound."""
    return _runs_of(connection, tenant, [_find_row(connection, tenant, run_id)])[0]


def _find_row(connection: Connection, tenant: str, run_id: str) -> Row[Any]:
    row = connection.execute(select(_runs).where(_runs.c.tenant == tenant, _runs.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no agent run {run_id!r}")
    return row


def _runs_of(connection: Connection, tenant: str, rows: Sequence[Row[Any]]) -> list[AgentRun]:
    """Build runs from their rows, with their submissions, which are read with one query."""
    of, runs = _submissions.c, [run_of(row) for row in rows]
    ids = [row.id for row in rows if row.submissions]
    if not ids:
        return runs
    query = select(of.run_id, *_HISTORY).where(of.tenant == tenant, of.run_id.in_(ids)).order_by(of.number)
    by_run: dict[str, list[Sequence[Any]]] = {}
    for run_id, *columns in connection.execute(query):
        by_run.setdefault(run_id, []).append(columns)
    return [
        msgspec.structs.replace(run, verification=add_submissions(run.verification, by_run.get(run.id, ())))
        for run in runs
    ]


def page(
    connection: Connection,
    tenant: str,
    *,
    status: RunState | None = None,
    agent: str | None = None,
    parent_id: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[AgentRun]:
    """List runs, the newest first."""
    query = select(_runs).where(_runs.c.tenant == tenant)
    if status is not None:
        query = query.where(_runs.c.status == status.value)
    if agent is not None:
        query = query.where(_runs.c.agent == agent)
    if parent_id is not None:
        query = query.where(_runs.c.parent_id == parent_id)
    if before is not None:
        query = query.where(_runs.c.seq < before)
    rows = connection.execute(query.order_by(_runs.c.seq.desc()).limit(min(limit, MAX_PAGE)))
    return _runs_of(connection, tenant, rows.all())


SORTS = {
    "agent": SortKey(_runs.c.agent, str, _runs.c.seq),
    "turn": SortKey(_runs.c.turn, int, _runs.c.seq),
    "tokens": SortKey(_runs.c.tokens, int, _runs.c.seq),
    "created": SortKey(_runs.c.seq, int, _runs.c.seq),
}
"""What a list of runs can be sorted by."""


def page_sorted(
    connection: Connection,
    tenant: str,
    order: ListOrder,
    *,
    status: RunState | None = None,
    agent: str | None = None,
    limit: int = 50,
) -> SortedPage[AgentRun]:
    """List runs in one of the orders SORTS."""
    query = select(_runs).where(_runs.c.tenant == tenant)
    if status is not None:
        query = query.where(_runs.c.status == status.value)
    if agent is not None:
        query = query.where(_runs.c.agent == agent)
    found = read_sorted(connection, query, SORTS, order, limit)
    return SortedPage(_runs_of(connection, tenant, found.entries), found.next)


def members(connection: Connection, tenant: str, run_id: str) -> list[AgentRun]:
    """List the member runs of a team run, in the order in which they were queued."""
    query = select(_runs).where(_runs.c.tenant == tenant, _runs.c.parent_id == run_id).order_by(_runs.c.seq)
    return _runs_of(connection, tenant, connection.execute(query).all())


def find_state(connection: Connection, tenant: str, run_id: str, known: VerificationState) -> VerificationState:
    """Read the state of a run; submissions that are known already are not read again. Raises NotFound."""
    row = _find_row(connection, tenant, run_id)
    state = run_of(row).verification
    earlier = extend_submissions(connection, tenant, run_id, known, row.submissions)
    return msgspec.structs.replace(state, submission_ids=earlier.submission_ids, rejected=earlier.rejected)


def extend_submissions(
    connection: Connection, tenant: str, run_id: str, known: VerificationState, count: int
) -> VerificationState:
    """Return a state with the first submissions of the run, `count` in all, of which it has some."""
    if len(known.submission_ids) >= count:
        return known
    of = _submissions.c
    wanted = (of.tenant == tenant, of.run_id == run_id, of.number > len(known.submission_ids), of.number <= count)
    return add_submissions(known, connection.execute(select(*_HISTORY).where(*wanted).order_by(of.number)))


def steps(connection: Connection, tenant: str, run_id: str) -> dict[str, bytes]:
    """Read the recorded steps of a run, by key."""
    query = select(_steps.c.key, _steps.c.body).where(_steps.c.tenant == tenant, _steps.c.run_id == run_id)
    return {row.key: bytes(row.body) for row in connection.execute(query)}


class RecordedStep(msgspec.Struct, frozen=True):
    """A step of a run as it was recorded."""

    key: str
    at: datetime
    body: bytes


def steps_in_order(connection: Connection, tenant: str, run_id: str, *, limit: int) -> list[RecordedStep]:
    """Read the last steps of a run, oldest first."""
    query = select(_steps).where(_steps.c.tenant == tenant, _steps.c.run_id == run_id)
    rows = connection.execute(query.order_by(_steps.c.at.desc(), _steps.c.key).limit(limit)).all()
    return [RecordedStep(key=row.key, at=from_micros(row.at), body=bytes(row.body)) for row in reversed(rows)]


def count_by_status(connection: Connection, tenant: str, agent: str | None = None) -> dict[RunState, int]:
    """Count the runs of a tenant by status, of one agent or of all."""
    query = select(_runs.c.status, func.count()).where(_runs.c.tenant == tenant).group_by(_runs.c.status)
    if agent is not None:
        query = query.where(_runs.c.agent == agent)
    return {RunState(status): count for status, count in connection.execute(query)}


def count_stuck(connection: Connection, tenant: str, since: datetime, most: int) -> int:
    """Count the runs that wait for a value or failed after a time, among the newest of each up to a number."""
    found = 0
    for state in (RunState.WAITING, RunState.FAILED):
        newest = select(_runs.c.ended_at, _runs.c.started_at, _runs.c.created_at).where(
            _runs.c.tenant == tenant, _runs.c.status == state.value
        )
        few = newest.order_by(_runs.c.seq.desc()).limit(most).subquery()
        reached = func.coalesce(few.c.ended_at, few.c.started_at, few.c.created_at) > to_micros(since)
        found += int(connection.execute(select(func.count()).select_from(few).where(reached)).scalar_one())
    return found


def find_step(connection: Connection, tenant: str, run_id: str, key: str) -> bytes | None:
    """Read one recorded step of a run."""
    query = select(_steps.c.body).where(_steps.c.tenant == tenant, _steps.c.run_id == run_id, _steps.c.key == key)
    found = connection.execute(query).scalar()
    return None if found is None else bytes(found)


def submissions(connection: Connection, tenant: str, run_id: str) -> list[GateSubmission]:
    """List the submissions of a run, in order."""
    return [submission_of(row) for row in connection.execute(_submissions_query(tenant, run_id))]


def find_verdict(connection: Connection, tenant: str, run_id: str, submission_id: str) -> VerifierVerdict | None:
    """Find the verdict on a submission; None where the verifier was not called."""
    query = select(_submissions.c.said, _submissions.c.candidate_hash).where(
        _submissions.c.tenant == tenant,
        _submissions.c.run_id == run_id,
        _submissions.c.submission_id == submission_id,
    )
    row = connection.execute(query).first()
    return None if row is None or row.candidate_hash is None else parse_verdict(row.said)


def find_answer(connection: Connection, tenant: str, run_id: str, submission_id: str) -> PriorAnswer | None:
    """Find the answer to a submission; None where it does not exist."""
    query = _submissions_query(tenant, run_id).where(_submissions.c.submission_id == submission_id)
    row = connection.execute(query).first()
    if row is None:
        return None
    verdict = None if row.candidate_hash is None else parse_verdict(row.said)
    return PriorAnswer(
        done=submission_result_of(row),
        verdict=verdict,
        content=row.candidate_hash or payload_hash(bytes(row.candidate)),
    )


def candidate(connection: Connection, tenant: str, run_id: str, submission_id: str) -> Any:
    """Read a candidate as it was submitted; raises NotFound."""
    query = _submissions_query(tenant, run_id).where(_submissions.c.submission_id == submission_id)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no submission {submission_id!r} of run {run_id!r}")
    return msgspec.json.decode(row.candidate)


def due_runs(
    connection: Connection, now: int, agents: Sequence[str], limit: int, *, only: str | None = None
) -> list[DueRun]:
    """List queued runs of these agents, the longest waiting first; with `only`, that run and its members."""
    query = (
        select(_runs.c.tenant, _runs.c.id, _runs.c.agent, _runs.c.wake_at)
        .where(_runs.c.status == RunState.QUEUED.value, _runs.c.wake_at <= now, _runs.c.agent.in_(agents))
        .where(*_only_run(only))
        .order_by(_runs.c.wake_at, _runs.c.seq)
        .limit(limit)
    )
    return [
        DueRun(tenant=row.tenant, id=row.id, agent=row.agent, wake_at=row.wake_at) for row in connection.execute(query)
    ]


def has_unfinished_runs(connection: Connection, agents: Sequence[str], *, only: str | None = None) -> bool:
    """Whether any run of these agents is queued, pausing, or claimed by a worker."""
    driven = (_runs.c.status == RunState.RUNNING.value) & _runs.c.worker.is_not(None)
    open_runs = select(_runs.c.id).where((_runs.c.status == RunState.QUEUED.value) | driven, _runs.c.agent.in_(agents))
    return connection.execute(open_runs.where(*_only_run(only)).limit(1)).first() is not None


def overdue_waits(
    connection: Connection, now: int, limit: int = MAX_PAGE, *, only: str | None = None
) -> list[OverdueWait]:
    """List runs whose wait for a value has timed out."""
    query = (
        select(_runs.c.tenant, _runs.c.id, _runs.c.waiting_for)
        .where(_runs.c.status == RunState.WAITING.value, _runs.c.wake_at <= now, *_only_run(only))
        .limit(limit)
    )
    return [OverdueWait(tenant=row.tenant, id=row.id, key=row.waiting_for) for row in connection.execute(query)]


def runs_to_cancel(connection: Connection, worker: str) -> list[DueRun]:
    """List the runs of a worker that are to be cancelled."""
    query = select(_runs.c.tenant, _runs.c.id, _runs.c.agent).where(
        _runs.c.worker == worker, _runs.c.status == RunState.RUNNING.value, _runs.c.cancel == 1
    )
    return [DueRun(tenant=row.tenant, id=row.id, agent=row.agent) for row in connection.execute(query)]


def orphan_runs(
    connection: Connection,
    now: int,
    agents: Sequence[str],
    *,
    all_but: str | None = None,
    limit: int = MAX_PAGE,
    only: str | None = None,
) -> list[DueRun]:
    """List running runs whose worker is gone: its lease is over, or, with `all_but`, it is another than that one."""
    query = select(_runs.c.tenant, _runs.c.id, _runs.c.agent, _runs.c.worker, _runs.c.owner).where(
        _runs.c.status == RunState.RUNNING.value,
        _runs.c.worker.is_not(None),
        _runs.c.agent.in_(agents),
        *_only_run(only),
    )
    if all_but is None:
        alive = select(_workers.c.id).where(_workers.c.until > now)
        query = query.where(_runs.c.worker.not_in(alive))
    else:
        query = query.where(_runs.c.worker != all_but)
    rows = connection.execute(query.order_by(_runs.c.seq).limit(limit))
    return [DueRun(tenant=row.tenant, id=row.id, agent=row.agent, worker=row.worker, owner=row.owner) for row in rows]


def live_workers(connection: Connection, now: int) -> list[LiveWorker]:
    """List workers whose lease is not over."""
    query = select(_workers).where(_workers.c.until > now).order_by(_workers.c.started_at)
    return [
        LiveWorker(
            id=row.id,
            agents=tuple(msgspec.json.decode(row.agents)),
            started_at=from_micros(row.started_at),
            until=row.until,
        )
        for row in connection.execute(query)
    ]


def dead_worker_ids(connection: Connection, before: int, limit: int = MAX_PAGE) -> list[str]:
    """List workers whose lease ended before that time."""
    return [row.id for row in connection.execute(select(_workers.c.id).where(_workers.c.until < before).limit(limit))]


def count_by_state(connection: Connection) -> dict[tuple[str, RunState], int]:
    """Count the unfinished runs of all tenants by tenant and status."""
    open_states = [state.value for state in RunState if state not in FINAL_STATES]
    query = select(_runs.c.tenant, _runs.c.status, func.count()).where(_runs.c.status.in_(open_states))
    found = connection.execute(query.group_by(_runs.c.tenant, _runs.c.status))
    return {(tenant, RunState(status)): count for tenant, status, count in found}


class RecordHeartbeat(msgspec.Struct, frozen=True):
    """Extend the lease of a worker."""

    id: str
    agents: tuple[str, ...]
    seconds: float

    def __call__(self, writing: WriteTransaction) -> None:
        """Extend it by so many seconds."""
        until = writing.now.micros + int(self.seconds * 1_000_000)
        known = writing.read(select(_workers.c.id).where(_workers.c.id == self.id))
        if known:
            writing.change(_EXTEND_LEASE, of_id=self.id, new_until=until)
        else:
            agents = msgspec.json.encode(self.agents).decode()
            writing.merge(
                tables.workers,
                MergeRule.REPLACED,
                id=self.id,
                agents=agents,
                started_at=writing.now.micros,
                until=until,
            )


class ForgetWorker(msgspec.Struct, frozen=True):
    """Remove a worker that stops, or is long gone."""

    id: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Remove its row."""
        writing.change(_DELETE_WORKER, of_id=self.id)


def _only_run(only: str | None) -> tuple[ColumnElement[bool], ...]:
    """Restrict a query to a run and the members of a team run."""
    return () if only is None else ((_runs.c.id == only) | (_runs.c.parent_id == only),)


def _submissions_query(tenant: str, run_id: str) -> Select[Any]:
    of = _submissions
    return select(of).where(of.c.tenant == tenant, of.c.run_id == run_id).order_by(of.c.number)


_EXTEND_LEASE = update(_workers).where(_workers.c.id == bindparam("of_id")).values(until=bindparam("new_until"))
_DELETE_WORKER = delete(_workers).where(_workers.c.id == bindparam("of_id"))
