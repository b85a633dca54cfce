"""Read task runs and benchmark runs from the store."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Row, Select, func, or_, select

from meruit.errors import NotFound
from meruit.model.access import Scope
from meruit.model.record import Record
from meruit.model.task import Reveal
from meruit.model.task_run import BenchmarkRun, CriterionStatus, RunStatus, TaskRun, TaskRunAxis
from meruit.model.time import from_micros, to_micros
from meruit.model.verdict import Bounds, Verdict
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.paging import ListFilter, ListPage, read_page
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted

OPEN = (RunStatus.PENDING, RunStatus.RUNNING)
MAX_OVERDUE = 500
"""How many runs time out in one transaction."""
MAX_COMPARED = 50_000
"""Task runs of one benchmark that a leaderboard reads."""
JUDGING_S = 900
"""How long after its deadline a run may still be judged that was completed in time; then its judge is assumed dead."""


class TaskRunResult(Record, frozen=True):
    """How a completed run ended, as its row stores it."""

    verdict: Verdict
    score: float
    exact: str
    exact_high: str
    bounds: Bounds
    coverage: float
    axes: dict[str, TaskRunAxis]
    judged_version: int | None = None


class JudgingRequest(Record, frozen=True):
    """The mark on a running run that is being judged, as its row stores it."""

    at: int
    """When its agent completed it, in microseconds."""


class TaskRunRow(msgspec.Struct, frozen=True):
    """A run, and the fields of its row that no caller sees."""

    run: TaskRun
    input_address: str | None
    """The address of the recorded state at the start."""
    asked_at: int | None = None
    """When the agent completed it in time; set only while the run is being judged."""

    def is_overdue(self, now_micros: int) -> bool:
        """Return whether a running run has timed out; one that was completed in time has time to be judged."""
        if self.run.status is not RunStatus.RUNNING or self.run.deadline is None:
            return False
        more = 0 if self.asked_at is None else JUDGING_S * 1_000_000
        return to_micros(self.run.deadline) + more < now_micros


def task_run_from_row(row: Row[Any]) -> TaskRunRow:
    """Build a run from its row."""
    status = RunStatus(row.status)
    judging = status is RunStatus.RUNNING and row.body is not None
    standing = None if row.body is None or judging else TaskRunResult.from_json(row.body)
    run = TaskRun(
        id=row.id,
        seq=row.seq,
        benchmark=row.slug,
        version=row.version,
        task=row.task,
        attempt=row.attempt,
        status=status,
        scored=bool(row.scored),
        reveal=Reveal(row.reveal),
        created_at=from_micros(row.created_at),
        created_by=row.created_by,
        agent_id=row.agent_id,
        benchmark_run_id=row.benchmark_run_id,
        started_at=None if row.started_at is None else from_micros(row.started_at),
        deadline=None if row.deadline is None else from_micros(row.deadline),
        ended_at=None if row.ended_at is None else from_micros(row.ended_at),
        playground_id=row.playground_id,
        outcome_id=row.outcome_id,
        outcome_version=row.outcome_version,
        judged_version=None if standing is None else standing.judged_version,
        verdict=None if standing is None else standing.verdict,
        score=None if standing is None else standing.score,
        exact=None if standing is None else standing.exact,
        exact_high=None if standing is None else standing.exact_high,
        bounds=None if standing is None else standing.bounds,
        coverage=None if standing is None else standing.coverage,
        axes={} if standing is None else standing.axes,
    )
    return TaskRunRow(
        run=run, input_address=row.input_address, asked_at=JudgingRequest.from_json(row.body).at if judging else None
    )


class TaskRunFilter(Record, frozen=True):
    """The filters of a list of task runs; those that are given must all hold."""

    benchmark_run_id: str | None = None
    agent_id: str | None = None
    status: str | None = None
    benchmark: str | None = None
    """Its name, in any version."""
    task: str | None = None
    since: datetime | None = None
    """Created at this time or later."""
    until: datetime | None = None
    """Created before this time."""


def _where(scope: Scope) -> list[Any]:
    of = tables.task_runs
    return [of.c.tenant == scope.tenant, *([of.c.agent_id == (scope.agent_id or "")] if scope.only_own else [])]


def find(connection: Connection, scope: Scope, run_id: str) -> TaskRunRow:
    """Return one run within the scope; raises NotFound."""
    row = connection.execute(select(tables.task_runs).where(*_where(scope), tables.task_runs.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no task run {run_id!r}")
    return task_run_from_row(row)


def find_several(connection: Connection, tenant: str, ids: Sequence[str]) -> list[TaskRun]:
    """Return a tenant's runs by id, at most a page."""
    of = tables.task_runs
    query = select(of).where(of.c.tenant == tenant, of.c.id.in_(ids[:MAX_PAGE]))
    return [task_run_from_row(row).run for row in connection.execute(query)]


def inputs(connection: Connection, tenant: str, run_ids: Sequence[str]) -> list[str]:
    """Return the addresses of the recorded start states of some runs."""
    of = tables.task_runs
    query = select(of.c.input_address).where(
        of.c.tenant == tenant, of.c.id.in_(run_ids), of.c.input_address.is_not(None)
    )
    return list(connection.execute(query).scalars())


def page(
    connection: Connection,
    scope: Scope,
    *,
    wanted: TaskRunFilter | None = None,
    before: int | None = None,
    limit: int = 50,
) -> ListPage[TaskRun]:
    """List task runs, newest first; `before` is the `next` of the page before."""
    asked = wanted or TaskRunFilter()
    agent_id = asked.agent_id
    if scope.only_own:
        # A scope without an agent id matches no run: no recorded agent id is empty.
        own = scope.agent_id or ""
        if agent_id not in (None, own):
            return ListPage([], None)
        agent_id = own
    indexed = {"benchmark_run_id": asked.benchmark_run_id, "agent_id": agent_id, "status": asked.status}
    unindexed = {"slug": asked.benchmark, "task": asked.task}
    filters = ListFilter(
        indexed={name: value for name, value in indexed.items() if value is not None},
        dated="created_at",
        since=asked.since,
        until=asked.until,
        unindexed={name: value for name, value in unindexed.items() if value is not None},
    )
    found = read_page(connection, tables.task_runs, scope.tenant, filters, before=before, limit=limit)
    return found.convert(lambda row: task_run_from_row(row).run)


def of_benchmark_run(connection: Connection, tenant: str, run_id: str) -> list[TaskRun]:
    """List all task runs of a benchmark run, in order."""
    of = tables.task_runs
    query = select(of).where(of.c.tenant == tenant, of.c.benchmark_run_id == run_id).order_by(of.c.seq)
    return [task_run_from_row(row).run for row in connection.execute(query)]


def runs_of_benchmark(connection: Connection, scope: Scope, slug: str) -> dict[str, list[TaskRun]]:
    """Return the newest task runs of a benchmark in any version, by their benchmark run, each in order."""
    of = tables.task_runs
    newest = (
        select(of)
        .where(*_where(scope), of.c.slug == slug, of.c.benchmark_run_id.is_not(None))
        .order_by(of.c.seq.desc())
        .limit(MAX_COMPARED + 1)
    )
    rows = connection.execute(newest).all()
    found: dict[str, list[TaskRun]] = {}
    for row in reversed(rows[:MAX_COMPARED]):
        found.setdefault(row.benchmark_run_id, []).append(task_run_from_row(row).run)
    if len(rows) > MAX_COMPARED:
        # The oldest benchmark run may have lost some of its task runs.
        del found[next(iter(found))]
    return found


def overdue(connection: Connection, now_micros: int, tenant: str | None = None) -> list[tuple[str, str]]:
    """Return tenant and id of running runs whose time is over."""
    of = tables.task_runs
    # A running run has a body only while it is judged.
    over = or_(of.c.body.is_(None), of.c.deadline < now_micros - JUDGING_S * 1_000_000)
    late = (of.c.status == RunStatus.RUNNING.value, of.c.deadline < now_micros, over)
    query = select(of.c.tenant, of.c.id).where(*late)
    if tenant is not None:
        query = query.where(of.c.tenant == tenant)
    return [(row.tenant, row.id) for row in connection.execute(query.order_by(of.c.deadline).limit(MAX_OVERDUE))]


class CriterionRunRow(msgspec.Struct, frozen=True):
    """A criterion run's row."""

    id: str
    task_run_id: str
    outcome_id: str
    version: int
    position: int
    status: CriterionStatus
    score: float | None
    took_us: int | None


def criterion_run(connection: Connection, tenant: str, run_id: str) -> CriterionRunRow:
    """Return one criterion run; raises NotFound."""
    of = tables.criterion_runs
    row = connection.execute(_criteria().where(of.c.tenant == tenant, of.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no criterion run {run_id!r}")
    return _criterion(row)


def criterion_runs(connection: Connection, tenant: str, run: TaskRun) -> list[CriterionRunRow]:
    """List the criterion runs of a task run's current verdict, in the order of the criteria."""
    of = tables.criterion_runs
    query = _criteria().where(
        of.c.tenant == tenant,
        of.c.task_run_id == run.id,
        of.c.outcome_id == run.outcome_id,
        of.c.version == run.outcome_version,
    )
    return [_criterion(row) for row in connection.execute(query.order_by(of.c.position))]


def _criteria() -> Select[Any]:
    of = tables.criterion_runs
    return select(*(of.c[name] for name in CriterionRunRow.__struct_fields__))


def _criterion(row: Row[Any]) -> CriterionRunRow:
    return msgspec.structs.replace(CriterionRunRow(**row._asdict()), status=CriterionStatus(row.status))


def benchmark_run(connection: Connection, scope: Scope, run_id: str) -> BenchmarkRun:
    """Return one benchmark run, without its result; raises NotFound."""
    of = tables.benchmark_runs
    query = select(of).where(*_own(scope), of.c.id == run_id)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no benchmark run {run_id!r}")
    return _benchmark_runs(connection, scope.tenant, [row])[0]


def benchmark_run_page(
    connection: Connection, scope: Scope, *, slug: str | None = None, before: int | None = None, limit: int = 50
) -> list[BenchmarkRun]:
    """List benchmark runs, newest first."""
    of = tables.benchmark_runs
    query = select(of).where(*_own(scope))
    if slug is not None:
        query = query.where(of.c.slug == slug)
    if before is not None:
        query = query.where(of.c.seq < before)
    rows = connection.execute(query.order_by(of.c.seq.desc()).limit(min(limit, MAX_PAGE))).all()
    return _benchmark_runs(connection, scope.tenant, rows)


_runs = tables.benchmark_runs.c
RUN_SORTS = {
    "agent": SortKey(_runs.agent_id, str, _runs.seq, nullable=True),
    "benchmark": SortKey(_runs.slug, str, _runs.seq),
    "created": SortKey(_runs.seq, int, _runs.seq),
}
"""What a list of benchmark runs can be sorted by."""


def benchmark_runs_sorted(
    connection: Connection, scope: Scope, order: ListOrder, *, limit: int = 50
) -> SortedPage[BenchmarkRun]:
    """List benchmark runs in one of the orders RUN_SORTS."""
    found = read_sorted(connection, select(tables.benchmark_runs).where(*_own(scope)), RUN_SORTS, order, limit)
    return SortedPage(_benchmark_runs(connection, scope.tenant, found.entries), found.next)


def _own(scope: Scope) -> list[Any]:
    of = tables.benchmark_runs
    return [of.c.tenant == scope.tenant, *([of.c.agent_id == (scope.agent_id or "")] if scope.only_own else [])]


def _benchmark_runs(connection: Connection, tenant: str, rows: Sequence[Row[Any]]) -> list[BenchmarkRun]:
    of = tables.task_runs
    query = (
        select(of.c.benchmark_run_id, of.c.status, func.count())
        .where(of.c.tenant == tenant, of.c.benchmark_run_id.in_([row.id for row in rows]))
        .group_by(of.c.benchmark_run_id, of.c.status)
    )
    counts: dict[str, dict[str, int]] = {row.id: {} for row in rows}
    for run_id, status, number in connection.execute(query):
        counts[run_id][status] = number
    return [
        BenchmarkRun(
            id=row.id,
            seq=row.seq,
            benchmark=row.slug,
            version=row.version,
            repeats=row.repeats,
            scored=bool(row.scored),
            created_at=from_micros(row.created_at),
            created_by=row.created_by,
            agent_id=row.agent_id,
            counts=counts[row.id],
            ended=not any(counts[row.id].get(status.value) for status in OPEN),
        )
        for row in rows
    ]
