"""Task runs and benchmark runs: each move once, from the right state only, durable with the outcome it leads to."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Row, Select, Update, bindparam, func, select, update

from meruit.judge.benchmark import highest
from meruit.model.access import Scope
from meruit.model.errors import MeruitError
from meruit.model.events import EventType
from meruit.model.outcome import from_micros, in_micros
from meruit.model.record import Record
from meruit.model.run import ENDED, BenchmarkRun, CriterionStatus, RunStatus, TaskRun
from meruit.model.task import Reveal
from meruit.model.verdict import AxisScore, Bounds, Verdict, VerificationResult
from meruit.stores import tables
from meruit.stores.blobs import Part
from meruit.stores.database import NotFound
from meruit.stores.erasing import release
from meruit.stores.outcomes import MAX_PAGE
from meruit.stores.records import AddVersions, NewOutcome, Recorded
from meruit.stores.writing import Writing

OPEN = (RunStatus.PENDING, RunStatus.RUNNING)
MAX_OVERDUE = 500
"""Runs that are declared timed out at a time."""


class RunMoved(MeruitError):
    """The run is in a state from which that cannot be done."""


class Standing(Record, frozen=True):
    """How a completed run ended, as its row keeps it."""

    verdict: Verdict
    score: float
    exact: str
    exact_high: str
    bounds: Bounds
    coverage: float
    axes: dict[str, AxisScore]
    judged_version: int | None = None


class Kept(NamedTuple):
    """A run, and what of its row is nobody's to read."""

    run: TaskRun
    input_address: str | None
    """Where the world before is kept."""


class CriterionRow(NamedTuple):
    """One criterion of a run, to be written."""

    id: str
    position: int
    status: CriterionStatus
    score: float | None
    took_us: int | None


class NewTaskRun(NamedTuple):
    """A run to be."""

    id: str
    task: str
    attempt: int
    reveal: Reveal


class CreateRuns(NamedTuple):
    """Task runs, alone or as a benchmark run."""

    tenant: str
    by: str
    slug: str
    version: int
    runs: tuple[NewTaskRun, ...]
    scored: bool
    agent_id: str | None = None
    benchmark_run_id: str | None = None
    repeats: int = 1

    def __call__(self, writing: Writing) -> list[TaskRun]:
        """Write them down, not begun."""
        about = {"benchmark": self.slug, "version": self.version, "agent_id": self.agent_id}
        if self.benchmark_run_id is not None:
            seq = writing.emit(
                *(
                    self.tenant,
                    EventType.BENCHMARK_RUN_CREATED,
                    self.benchmark_run_id,
                    f"{self.benchmark_run_id}:created",
                ),
                {"benchmark_run_id": self.benchmark_run_id, **about, "task_runs": len(self.runs)},
            )
            writing.insert(
                *(
                    tables.benchmark_runs,
                    self.tenant,
                    self.benchmark_run_id,
                    seq,
                    self.slug,
                    self.version,
                    self.agent_id,
                ),
                *(self.repeats, int(self.scored), writing.now.micros, self.by, None),
            )
        return [self._one(writing, new, about) for new in self.runs]

    def _one(self, writing: Writing, new: NewTaskRun, about: Mapping[str, Any]) -> TaskRun:
        subject = self.benchmark_run_id or new.id
        seq = writing.emit(
            *(self.tenant, EventType.TASK_RUN_CREATED, subject, f"{new.id}:created"),
            {"task_run_id": new.id, "benchmark_run_id": self.benchmark_run_id, **about, "task": new.task},
        )
        run = TaskRun(
            id=new.id,
            seq=seq,
            benchmark=self.slug,
            version=self.version,
            task=new.task,
            attempt=new.attempt,
            status=RunStatus.PENDING,
            scored=self.scored,
            reveal=new.reveal,
            created_at=from_micros(writing.now.micros),
            created_by=self.by,
            agent_id=self.agent_id,
            benchmark_run_id=self.benchmark_run_id,
        )
        writing.insert(
            *(tables.task_runs, self.tenant, run.id, seq, run.benchmark_run_id, run.benchmark, run.version, run.task),
            *(run.attempt, run.agent_id, run.status.value, int(run.scored), run.reveal.value),
            *(writing.now.micros, run.created_by, None, None, None, None, None, None, None, None),
        )
        writing.learn(_key(self.tenant, run.id), Kept(run, None))
        return run


class StartRun(NamedTuple):
    """A run begins: its world stands, and was read."""

    tenant: str
    id: str
    playground_id: str | None
    input: Part
    time_limit_s: int

    def __call__(self, writing: Writing) -> TaskRun:
        """Write what the agent starts from; the clock runs from here."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status is not RunStatus.PENDING:
            raise RunMoved(f"task run {self.id} is {found.run.status}; only a pending one can be started")
        writing.keep(self.input.blob(self.tenant))
        now = writing.now.micros
        run = msgspec.structs.replace(
            found.run,
            status=RunStatus.RUNNING,
            started_at=from_micros(now),
            deadline=from_micros(now + self.time_limit_s * 1_000_000),
            playground_id=self.playground_id,
        )
        _save(writing, self.tenant, Kept(run, self.input.address))
        _tell(writing, self.tenant, EventType.TASK_RUN_STARTED, run, "started")
        return run


class CompleteRun(NamedTuple):
    """A run ends with a verdict."""

    tenant: str
    id: str
    outcome: NewOutcome
    criteria: tuple[CriterionRow, ...]
    asked_at: int | None = None
    """When its agent said that it was done, in microseconds; now when not given."""

    def __call__(self, writing: Writing) -> TaskRun:
        """Record the outcome and a criterion run each; whoever comes second is told what the first was."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status in ENDED:
            return found.run
        if found.run.status is RunStatus.PENDING:
            raise RunMoved(f"task run {self.id} was never started; start it, act, then complete it")
        done_at = writing.now.micros if self.asked_at is None else self.asked_at
        if found.run.deadline is not None and in_micros(found.run.deadline) < done_at:
            return _end(writing, self.tenant, found, RunStatus.TIMED_OUT, EventType.TASK_RUN_TIMED_OUT)
        run = _decided(writing, self.tenant, found, self.outcome, self.criteria)
        return _end(writing, self.tenant, found._replace(run=run), RunStatus.COMPLETED, EventType.TASK_RUN_COMPLETED)


class RecheckRun(NamedTuple):
    """A completed run that could not be judged whole is judged again on a world that could be read."""

    tenant: str
    id: str
    expected: str
    """The outcome that it replaces."""
    outcome: NewOutcome
    criteria: tuple[CriterionRow, ...]

    def __call__(self, writing: Writing) -> TaskRun:
        """Record the new outcome beside the old one; a second caller is told what the first decided."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status is not RunStatus.COMPLETED:
            raise RunMoved(f"task run {self.id} is {found.run.status}; only a completed one can be checked again")
        if found.run.outcome_id != self.expected:
            return found.run
        run = _decided(writing, self.tenant, found, self.outcome, self.criteria)
        _save(writing, self.tenant, found._replace(run=run))
        _tell_again(writing, self.tenant, run)
        return run


class RejudgeRun(NamedTuple):
    """A completed run is judged anew on what was found then: one more version of its verdict."""

    tenant: str
    id: str
    versions: AddVersions
    """Of the run's outcome alone."""
    criteria: tuple[CriterionRow, ...]
    benchmark_version: int
    """Whose criteria it was judged by."""

    def __call__(self, writing: Writing) -> TaskRun:
        """Record the version; a run whose verdict somebody else has changed meanwhile stays as it is."""
        found = _load(writing, self.tenant, self.id)
        (new,) = self.versions.versions
        if found.run.status is not RunStatus.COMPLETED or found.run.outcome_id != new.outcome_id:
            raise RunMoved(f"task run {self.id} is {found.run.status}; only a completed one can be judged again")
        recorded = self.versions(writing)
        if not recorded:
            return found.run
        run = _judged(writing, self.tenant, found, recorded[0], new.result, self.criteria)
        other = self.benchmark_version if self.benchmark_version != run.version else None
        run = msgspec.structs.replace(run, judged_version=other)
        _save(writing, self.tenant, found._replace(run=run))
        _tell_again(writing, self.tenant, run)
        return run


class CancelRuns(NamedTuple):
    """Runs that nobody waits for any more."""

    tenant: str
    ids: tuple[str, ...]

    def __call__(self, writing: Writing) -> list[TaskRun]:
        """Cancel those that have not ended; those that have stay as they are."""
        return [self._one(writing, one) for one in self.ids]

    def _one(self, writing: Writing, run_id: str) -> TaskRun:
        found = _load(writing, self.tenant, run_id)
        if found.run.status in ENDED:
            return found.run
        return _end(writing, self.tenant, found, RunStatus.CANCELLED, EventType.TASK_RUN_CANCELLED)


class TimeOut(NamedTuple):
    """Runs whose time is over."""

    tenant: str
    ids: tuple[str, ...]

    def __call__(self, writing: Writing) -> list[TaskRun]:
        """Declare them so; each is looked at again, as it may have been completed meanwhile."""
        ended = []
        for one in self.ids:
            found = _load(writing, self.tenant, one)
            late = found.run.deadline is not None and in_micros(found.run.deadline) < writing.now.micros
            if found.run.status is RunStatus.RUNNING and late:
                ended.append(_end(writing, self.tenant, found, RunStatus.TIMED_OUT, EventType.TASK_RUN_TIMED_OUT))
        return ended


def _decided(
    writing: Writing, tenant: str, found: Kept, outcome: NewOutcome, criteria: Iterable[CriterionRow]
) -> TaskRun:
    return _judged(writing, tenant, found, outcome.write(writing), outcome.result, criteria)


def _judged(
    writing: Writing,
    tenant: str,
    found: Kept,
    recorded: Recorded,
    result: VerificationResult,
    criteria: Iterable[CriterionRow],
) -> TaskRun:
    """The run with a verdict, and a criterion run each."""
    for one in criteria:
        writing.insert(
            *(tables.criterion_runs, tenant, one.id, found.run.id, recorded.outcome_id, recorded.version),
            *(one.position, one.status.value, one.score, one.took_us),
        )
    standing = standing_of(result)
    return msgspec.structs.replace(
        found.run,
        outcome_id=recorded.outcome_id,
        outcome_version=recorded.version,
        verdict=standing.verdict,
        score=standing.score,
        exact=standing.exact,
        exact_high=standing.exact_high,
        bounds=standing.bounds,
        coverage=standing.coverage,
        axes=standing.axes,
    )


def standing_of(result: VerificationResult) -> Standing:
    """What of a result a run's row keeps."""
    high = str(highest(result))
    return Standing(result.verdict, result.score, result.exact, high, result.bounds, result.coverage, result.axes)


def _end(writing: Writing, tenant: str, found: Kept, status: RunStatus, event: EventType) -> TaskRun:
    run = msgspec.structs.replace(found.run, status=status, ended_at=from_micros(writing.now.micros))
    if found.input_address is not None:
        # From here on it is the outcome's, with which it can be erased; without an outcome it is nobody's.
        release(writing, tenant, [found.input_address])
    _save(writing, tenant, found._replace(run=run))
    _tell(writing, tenant, event, run, status.value)
    if run.benchmark_run_id is not None:
        _count_down(writing, tenant, run)
    return run


def _count_down(writing: Writing, tenant: str, run: TaskRun) -> None:
    """Tell when the last run of a benchmark run has ended."""
    of = tables.task_runs
    key = ("open_runs", tenant, run.benchmark_run_id or "")
    left: int | None = writing.fresh.get(key)
    if left is None:
        query = select(func.count()).where(
            of.c.tenant == tenant, of.c.benchmark_run_id == run.benchmark_run_id, of.c.status.in_(OPEN)
        )
        left = int(writing.read(query)[0][0])
    writing.learn(key, left - 1)
    if left > 1:
        return
    writing.change(_ENDED, of_tenant=tenant, of_id=run.benchmark_run_id, at=writing.now.micros)
    writing.emit(
        *(tenant, EventType.BENCHMARK_RUN_ENDED, run.benchmark_run_id or "", f"{run.benchmark_run_id}:ended"),
        {
            "benchmark_run_id": run.benchmark_run_id,
            "benchmark": run.benchmark,
            "version": run.version,
            "agent_id": run.agent_id,
        },
    )


def _tell(writing: Writing, tenant: str, event: EventType, run: TaskRun, what: str) -> None:
    """Names, states and verdicts; nothing of a rubric."""
    writing.emit(
        *(tenant, event, run.benchmark_run_id or run.id, f"{run.id}:{what}"),
        {
            "task_run_id": run.id,
            "benchmark_run_id": run.benchmark_run_id,
            "benchmark": run.benchmark,
            "version": run.version,
            "task": run.task,
            "agent_id": run.agent_id,
            "status": run.status,
            "outcome_id": run.outcome_id,
            "verdict": run.verdict,
        },
    )


def _tell_again(writing: Writing, tenant: str, run: TaskRun) -> None:
    """Another verdict counts from here on."""
    _tell(writing, tenant, EventType.TASK_RUN_RECHECKED, run, f"rechecked:{run.outcome_id}:{run.outcome_version}")


def _key(tenant: str, run_id: str) -> tuple[str, ...]:
    return ("task_run", tenant, run_id)


def _load(writing: Writing, tenant: str, run_id: str) -> Kept:
    # Only what this group has taught: another process may have moved the run since an earlier one.
    known: Kept | None = writing.fresh.get(_key(tenant, run_id))
    if known is not None:
        return known
    rows = writing.read(select(tables.task_runs).where(*_where(Scope(tenant)), tables.task_runs.c.id == run_id))
    if not rows:
        raise NotFound(f"no task run {run_id!r}")
    return _row(rows[0])


def _save(writing: Writing, tenant: str, row: Kept) -> None:
    run = row.run
    standing = None
    if run.verdict is not None and run.bounds is not None:
        standing = Standing(
            *(run.verdict, run.score or 0.0, run.exact or "0", run.exact_high or "0"),
            *(run.bounds, run.coverage or 0.0, run.axes, run.judged_version),
        ).to_json()
    writing.change(
        _MOVED,
        of_tenant=tenant,
        of_id=run.id,
        new_status=run.status.value,
        new_started=None if run.started_at is None else in_micros(run.started_at),
        new_deadline=None if run.deadline is None else in_micros(run.deadline),
        new_ended=None if run.ended_at is None else in_micros(run.ended_at),
        new_playground=run.playground_id,
        new_input=row.input_address,
        new_outcome=run.outcome_id,
        new_outcome_version=run.outcome_version,
        new_body=standing,
    )
    writing.learn(_key(tenant, run.id), row)


_MOVED: Update = (
    update(tables.task_runs)
    .where(tables.task_runs.c.tenant == bindparam("of_tenant"), tables.task_runs.c.id == bindparam("of_id"))
    .values(
        status=bindparam("new_status"),
        started_at=bindparam("new_started"),
        deadline=bindparam("new_deadline"),
        ended_at=bindparam("new_ended"),
        playground_id=bindparam("new_playground"),
        input_address=bindparam("new_input"),
        outcome_id=bindparam("new_outcome"),
        outcome_version=bindparam("new_outcome_version"),
        body=bindparam("new_body"),
    )
)
_ENDED: Update = (
    update(tables.benchmark_runs)
    .where(tables.benchmark_runs.c.tenant == bindparam("of_tenant"), tables.benchmark_runs.c.id == bindparam("of_id"))
    .values(ended_at=bindparam("at"))
)


def _row(row: Row[Any]) -> Kept:
    standing = None if row.body is None else Standing.from_json(row.body)
    run = TaskRun(
        id=row.id,
        seq=row.seq,
        benchmark=row.slug,
        version=row.version,
        task=row.task,
        attempt=row.attempt,
        status=RunStatus(row.status),
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
    return Kept(run, row.input_address)


# Reading


class RunFilter(StrEnum):
    """By what a list of task runs can be narrowed; each has an index."""

    BENCHMARK_RUN = "benchmark_run_id"
    AGENT = "agent_id"
    STATUS = "status"


def _where(scope: Scope) -> list[Any]:
    of = tables.task_runs
    return [of.c.tenant == scope.tenant, *([of.c.agent_id == (scope.agent_id or "")] if scope.only_own else [])]


def find(connection: Connection, scope: Scope, run_id: str) -> Kept:
    """One run that the scope reaches; raises NotFound."""
    row = connection.execute(select(tables.task_runs).where(*_where(scope), tables.task_runs.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no task run {run_id!r}")
    return _row(row)


def several(connection: Connection, tenant: str, ids: Sequence[str]) -> list[TaskRun]:
    """Those of a tenant's runs, at most a page of them."""
    of = tables.task_runs
    query = select(of).where(of.c.tenant == tenant, of.c.id.in_(ids[:MAX_PAGE]))
    return [_row(row).run for row in connection.execute(query)]


def inputs(connection: Connection, tenant: str, run_ids: Sequence[str]) -> list[str]:
    """Where the worlds before some runs are or were kept."""
    of = tables.task_runs
    query = select(of.c.input_address).where(
        of.c.tenant == tenant, of.c.id.in_(run_ids), of.c.input_address.is_not(None)
    )
    return list(connection.execute(query).scalars())


def page(
    connection: Connection,
    scope: Scope,
    *,
    by: tuple[RunFilter, str] | None = None,
    before: int | None = None,
    limit: int = 50,
) -> list[TaskRun]:
    """The newest first."""
    of = tables.task_runs
    query = select(of).where(*_where(scope))
    if by is not None:
        query = query.where(of.c[by[0].value] == by[1])
    if before is not None:
        query = query.where(of.c.seq < before)
    return [_row(row).run for row in connection.execute(query.order_by(of.c.seq.desc()).limit(min(limit, MAX_PAGE)))]


def of_benchmark_run(connection: Connection, tenant: str, run_id: str) -> list[TaskRun]:
    """All task runs of a benchmark run, in their order."""
    of = tables.task_runs
    query = select(of).where(of.c.tenant == tenant, of.c.benchmark_run_id == run_id).order_by(of.c.seq)
    return [_row(row).run for row in connection.execute(query)]


def overdue(connection: Connection, now_micros: int, tenant: str | None = None) -> list[tuple[str, str]]:
    """Tenant and id of runs whose time is over and of whom nobody has said so."""
    of = tables.task_runs
    query = select(of.c.tenant, of.c.id).where(of.c.status == RunStatus.RUNNING.value, of.c.deadline < now_micros)
    if tenant is not None:
        query = query.where(of.c.tenant == tenant)
    return [(row.tenant, row.id) for row in connection.execute(query.order_by(of.c.deadline).limit(MAX_OVERDUE))]


class CriterionFound(NamedTuple):
    """A criterion run's row."""

    id: str
    task_run_id: str
    outcome_id: str
    version: int
    position: int
    status: CriterionStatus
    score: float | None
    took_us: int | None


def criterion_run(connection: Connection, tenant: str, run_id: str) -> CriterionFound:
    """One criterion run; raises NotFound."""
    of = tables.criterion_runs
    row = connection.execute(_criteria().where(of.c.tenant == tenant, of.c.id == run_id)).first()
    if row is None:
        raise NotFound(f"no criterion run {run_id!r}")
    return _criterion(row)


def criterion_runs(connection: Connection, tenant: str, run: TaskRun) -> list[CriterionFound]:
    """Those of a task run's present verdict, in the order of the criteria."""
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
    return select(*(of.c[name] for name in CriterionFound._fields))


def _criterion(row: Row[Any]) -> CriterionFound:
    return CriterionFound(**row._asdict())._replace(status=CriterionStatus(row.status))


def benchmark_run(connection: Connection, scope: Scope, run_id: str) -> BenchmarkRun:
    """One benchmark run, not yet brought to a result; raises NotFound."""
    of = tables.benchmark_runs
    query = select(of).where(*_own(scope), of.c.id == run_id)
    row = connection.execute(query).first()
    if row is None:
        raise NotFound(f"no benchmark run {run_id!r}")
    return _benchmark_runs(connection, scope.tenant, [row])[0]


def benchmark_run_page(
    connection: Connection, scope: Scope, *, slug: str | None = None, before: int | None = None, limit: int = 50
) -> list[BenchmarkRun]:
    """The newest first."""
    of = tables.benchmark_runs
    query = select(of).where(*_own(scope))
    if slug is not None:
        query = query.where(of.c.slug == slug)
    if before is not None:
        query = query.where(of.c.seq < before)
    rows = connection.execute(query.order_by(of.c.seq.desc()).limit(min(limit, MAX_PAGE))).all()
    return _benchmark_runs(connection, scope.tenant, rows)


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
