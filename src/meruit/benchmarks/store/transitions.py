"""Transitions of task runs: each happens once, from the right state only, in one transaction with its outcome."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Update, bindparam, func, select, update

from meruit.benchmarks.score import highest_score
from meruit.benchmarks.store.published import count_new_runs
from meruit.benchmarks.store.read import OPEN, JudgingRequest, TaskRunResult, TaskRunRow, task_run_from_row
from meruit.errors import NotFound, TaskRunStateError
from meruit.model.events import EventType
from meruit.model.task import Reveal
from meruit.model.task_run import ENDED, CriterionStatus, RunStatus, TaskRun, TaskRunAxis
from meruit.model.time import from_micros, to_micros
from meruit.model.verdict import VerificationResult
from meruit.outcomes.records import AddVersions, NewOutcome, RecordedVersion, VersionBasis, release
from meruit.store import tables
from meruit.store.blobs import EvidencePart
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

REREAD = "reread"
"""The reason of a verdict that may include what happened after its run ended."""


class NewCriterionRun(msgspec.Struct, frozen=True):
    """One criterion of a run, to be written."""

    id: str
    position: int
    status: CriterionStatus
    score: float | None
    took_us: int | None


class NewTaskRun(msgspec.Struct, frozen=True):
    """A task run to be created."""

    id: str
    task: str
    attempt: int
    reveal: Reveal


class CreateRuns(msgspec.Struct, frozen=True):
    """Create task runs, alone or as a benchmark run."""

    tenant: str
    by: str
    slug: str
    version: int
    runs: tuple[NewTaskRun, ...]
    scored: bool
    agent_id: str | None = None
    benchmark_run_id: str | None = None
    repeats: int = 1

    def __call__(self, writing: WriteTransaction) -> list[TaskRun]:
        """Write them as pending; raises NotFound for a version that was deleted."""
        count_new_runs(writing, self.tenant, (self.slug, self.version), len(self.runs))
        about = {"benchmark": self.slug, "version": self.version, "agent_id": self.agent_id}
        if self.benchmark_run_id is not None:
            seq = writing.emit(
                self.tenant,
                EventType.BENCHMARK_RUN_CREATED,
                self.benchmark_run_id,
                f"{self.benchmark_run_id}:created",
                {"benchmark_run_id": self.benchmark_run_id, **about, "task_runs": len(self.runs)},
            )
            writing.insert(
                tables.benchmark_runs,
                tenant=self.tenant,
                id=self.benchmark_run_id,
                seq=seq,
                slug=self.slug,
                version=self.version,
                agent_id=self.agent_id,
                repeats=self.repeats,
                scored=int(self.scored),
                created_at=writing.now.micros,
                created_by=self.by,
                ended_at=None,
            )
        return [self._one(writing, new, about) for new in self.runs]

    def _one(self, writing: WriteTransaction, new: NewTaskRun, about: Mapping[str, Any]) -> TaskRun:
        subject = self.benchmark_run_id or new.id
        seq = writing.emit(
            self.tenant,
            EventType.TASK_RUN_CREATED,
            subject,
            f"{new.id}:created",
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
            tables.task_runs,
            tenant=self.tenant,
            id=run.id,
            seq=seq,
            benchmark_run_id=run.benchmark_run_id,
            slug=run.benchmark,
            version=run.version,
            task=run.task,
            attempt=run.attempt,
            agent_id=run.agent_id,
            status=run.status.value,
            scored=int(run.scored),
            reveal=run.reveal.value,
            created_at=writing.now.micros,
            created_by=run.created_by,
            started_at=None,
            deadline=None,
            ended_at=None,
            playground_id=None,
            input_address=None,
            outcome_id=None,
            outcome_version=None,
            body=None,
        )
        _RUNS.put(writing, TaskRunRow(run, None), self.tenant, run.id)
        return run


class StartRun(msgspec.Struct, frozen=True):
    """Start a run: its environment is prepared and was read."""

    tenant: str
    id: str
    playground_id: str | None
    input: EvidencePart
    time_limit_s: int

    def __call__(self, writing: WriteTransaction) -> TaskRun:
        """Write the state that the agent starts from; its time begins here."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status is not RunStatus.PENDING:
            raise TaskRunStateError(f"task run {self.id} is {found.run.status}; only a pending one can be started")
        writing.keep(self.input.blob(self.tenant))
        now = writing.now.micros
        run = msgspec.structs.replace(
            found.run,
            status=RunStatus.RUNNING,
            started_at=from_micros(now),
            deadline=from_micros(now + self.time_limit_s * 1_000_000),
            playground_id=self.playground_id,
        )
        _save(writing, self.tenant, TaskRunRow(run, self.input.address))
        # A run that was interrupted starts more than once.
        _emit_event(writing, self.tenant, EventType.TASK_RUN_STARTED, run, f"started:{now}")
        return run


class RequeueRuns(msgspec.Struct, frozen=True):
    """Return runs that were interrupted to pending: they lose their environments, and may start in new ones."""

    tenant: str
    ids: tuple[str, ...]
    judging_too: bool = False
    """Whether runs that are being judged are returned too, because the process that judged them has ended."""

    def __call__(self, writing: WriteTransaction) -> list[TaskRun]:
        """Write the running ones as pending; returns them as they were. The others stay unchanged."""
        return [was for one in self.ids if (was := self._one(writing, one)) is not None]

    def _one(self, writing: WriteTransaction, run_id: str) -> TaskRun | None:
        found = _load(writing, self.tenant, run_id)
        if found.run.status is not RunStatus.RUNNING or (found.asked_at is not None and not self.judging_too):
            return None
        if found.input_address is not None:
            release(writing, self.tenant, [found.input_address])
        run = msgspec.structs.replace(
            found.run, status=RunStatus.PENDING, started_at=None, deadline=None, playground_id=None
        )
        _save(writing, self.tenant, TaskRunRow(run, None))
        what = f"requeued:{0 if found.run.started_at is None else to_micros(found.run.started_at)}"
        _emit_event(writing, self.tenant, EventType.TASK_RUN_REQUEUED, run, what)
        return found.run


class BeginJudging(msgspec.Struct, frozen=True):
    """Mark a run as completed by its agent: from here on it is judged, and does not time out."""

    tenant: str
    id: str
    asked_at: int
    """When the agent completed it, in microseconds."""

    def __call__(self, writing: WriteTransaction) -> TaskRunRow:
        """Write the mark, or the timeout if it is late; a run that has ended or is being judged stays unchanged."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status is RunStatus.PENDING:
            raise _never_started(self.id)
        if found.run.status in ENDED or found.asked_at is not None:
            return found
        if found.is_overdue(self.asked_at):
            late = _end(writing, self.tenant, found, RunStatus.TIMED_OUT, EventType.TASK_RUN_TIMED_OUT)
            return msgspec.structs.replace(found, run=late)
        asked = msgspec.structs.replace(found, asked_at=self.asked_at)
        _save(writing, self.tenant, asked)
        return asked


class GiveUpJudging(msgspec.Struct, frozen=True):
    """Return a run that could not be judged to running; its deadline is as before."""

    tenant: str
    id: str
    asked_at: int
    """Which attempt to judge is given up; an attempt of another caller goes on."""

    def __call__(self, writing: WriteTransaction) -> None:
        """Remove the mark."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status is RunStatus.RUNNING and found.asked_at == self.asked_at:
            _save(writing, self.tenant, msgspec.structs.replace(found, asked_at=None))


class CompleteRun(msgspec.Struct, frozen=True):
    """End a run with a verdict."""

    tenant: str
    id: str
    outcome: NewOutcome
    criteria: tuple[NewCriterionRun, ...]
    started_at: datetime | None
    """When the run was started whose environment was judged."""

    def __call__(self, writing: WriteTransaction) -> TaskRun:
        """Record the outcome and its criterion runs; a second caller gets the result of the first."""
        found = _load(writing, self.tenant, self.id)
        if found.run.status in ENDED:
            return found.run
        if found.run.status is RunStatus.PENDING:
            raise _never_started(self.id)
        if found.run.started_at != self.started_at:
            raise TaskRunStateError(f"task run {self.id} was started again; what was judged is not its environment")
        if found.asked_at is None and found.is_overdue(writing.now.micros):
            return _end(writing, self.tenant, found, RunStatus.TIMED_OUT, EventType.TASK_RUN_TIMED_OUT)
        run = _record_outcome(writing, self.tenant, found, self.outcome, self.criteria)
        return _end(
            writing,
            self.tenant,
            msgspec.structs.replace(found, run=run),
            RunStatus.COMPLETED,
            EventType.TASK_RUN_COMPLETED,
        )


def _never_started(run_id: str) -> TaskRunStateError:
    return TaskRunStateError(f"task run {run_id} was never started; start it, act, then complete it")


class RereadRun(msgspec.Struct, frozen=True):
    """Judge a run again on an environment that was read later, after it could not be judged completely."""

    tenant: str
    id: str
    expected: str
    """The outcome that it replaces."""
    basis: VersionBasis
    """What was taken from that."""
    outcome: NewOutcome
    criteria: tuple[NewCriterionRun, ...]
    read_at: str
    """When the environment was read; everything until then is judged with it."""

    def __call__(self, writing: WriteTransaction) -> TaskRun:
        """Record the new outcome beside the old one; a second caller gets the result of the first.

        Raises RecordTampered where the evidence of the old one is not what the log commits to.
        """
        found = _load(writing, self.tenant, self.id)
        if found.run.status is not RunStatus.COMPLETED:
            raise TaskRunStateError(
                f"task run {self.id} is {found.run.status}; only a completed one can be checked again"
            )
        if found.run.outcome_id != self.expected:
            return found.run
        self.basis.require_committed(writing, self.tenant, self.expected)
        run = _record_outcome(writing, self.tenant, found, self.outcome, self.criteria)
        _save(writing, self.tenant, msgspec.structs.replace(found, run=run))
        _emit_rechecked(writing, self.tenant, run, {"reason": REREAD, "read_at": self.read_at})
        return run


class RejudgeRun(msgspec.Struct, frozen=True):
    """Judge a completed run again on the evidence recorded then: one more version of its verdict."""

    tenant: str
    id: str
    versions: AddVersions
    """Of the run's outcome only."""
    criteria: tuple[NewCriterionRun, ...]
    benchmark_version: int
    """The benchmark version whose criteria were used."""

    def __call__(self, writing: WriteTransaction) -> TaskRun:
        """Record the version; a run whose verdict has changed in the meantime stays unchanged."""
        found = _load(writing, self.tenant, self.id)
        (new,) = self.versions.versions
        if found.run.status is not RunStatus.COMPLETED or found.run.outcome_id != new.outcome_id:
            raise TaskRunStateError(
                f"task run {self.id} is {found.run.status}; only a completed one can be judged again"
            )
        recorded = self.versions(writing)
        if not recorded:
            return found.run
        run = _record_verdict(writing, self.tenant, found, recorded[0], new.result, self.criteria)
        other = self.benchmark_version if self.benchmark_version != run.version else None
        run = msgspec.structs.replace(run, judged_version=other)
        _save(writing, self.tenant, msgspec.structs.replace(found, run=run))
        _emit_rechecked(writing, self.tenant, run)
        return run


class CancelRuns(msgspec.Struct, frozen=True):
    """Cancel runs."""

    tenant: str
    ids: tuple[str, ...]

    def __call__(self, writing: WriteTransaction) -> list[TaskRun]:
        """Cancel those that have not ended; the others stay unchanged."""
        return [self._one(writing, one) for one in self.ids]

    def _one(self, writing: WriteTransaction, run_id: str) -> TaskRun:
        found = _load(writing, self.tenant, run_id)
        if found.run.status in ENDED:
            return found.run
        return _end(writing, self.tenant, found, RunStatus.CANCELLED, EventType.TASK_RUN_CANCELLED)


class TimeOutRuns(msgspec.Struct, frozen=True):
    """Time out runs."""

    tenant: str
    ids: tuple[str, ...]

    def __call__(self, writing: WriteTransaction) -> list[TaskRun]:
        """Time them out; each is checked again, as it may have been completed in the meantime."""
        ended = []
        for one in self.ids:
            found = _load(writing, self.tenant, one)
            if found.is_overdue(writing.now.micros):
                ended.append(_end(writing, self.tenant, found, RunStatus.TIMED_OUT, EventType.TASK_RUN_TIMED_OUT))
        return ended


def _record_outcome(
    writing: WriteTransaction, tenant: str, found: TaskRunRow, outcome: NewOutcome, criteria: Iterable[NewCriterionRun]
) -> TaskRun:
    return _record_verdict(writing, tenant, found, outcome.write(writing), outcome.result, criteria)


def _record_verdict(
    writing: WriteTransaction,
    tenant: str,
    found: TaskRunRow,
    recorded: RecordedVersion,
    result: VerificationResult,
    criteria: Iterable[NewCriterionRun],
) -> TaskRun:
    """Write the verdict of a run and its criterion runs."""
    for one in criteria:
        writing.insert(
            tables.criterion_runs,
            tenant=tenant,
            id=one.id,
            task_run_id=found.run.id,
            outcome_id=recorded.outcome_id,
            version=recorded.version,
            position=one.position,
            status=one.status.value,
            score=one.score,
            took_us=one.took_us,
        )
    standing = task_run_result_of(result)
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


def task_run_result_of(result: VerificationResult) -> TaskRunResult:
    """Return the part of a result that a run's row stores."""
    high = str(highest_score(result))
    return TaskRunResult(
        verdict=result.verdict,
        score=result.score,
        exact=result.exact,
        exact_high=high,
        bounds=result.bounds,
        coverage=result.coverage,
        axes={name: TaskRunAxis.of(axis) for name, axis in result.axes.items()},
    )


def _end(writing: WriteTransaction, tenant: str, found: TaskRunRow, status: RunStatus, event: EventType) -> TaskRun:
    run = msgspec.structs.replace(found.run, status=status, ended_at=from_micros(writing.now.micros))
    if found.input_address is not None:
        # From here on it belongs to the outcome and is erased with it; without an outcome it belongs to none.
        release(writing, tenant, [found.input_address])
    _save(writing, tenant, msgspec.structs.replace(found, run=run, asked_at=None))
    _emit_event(writing, tenant, event, run, status.value)
    if run.benchmark_run_id is not None:
        _count_down(writing, tenant, run)
    return run


def _count_down(writing: WriteTransaction, tenant: str, run: TaskRun) -> None:
    """Record the event when the last run of a benchmark run has ended."""
    of = tables.task_runs
    left = _OPEN_RUNS.get(writing, tenant, run.benchmark_run_id or "")
    if left is None:
        query = select(func.count()).where(
            of.c.tenant == tenant, of.c.benchmark_run_id == run.benchmark_run_id, of.c.status.in_(OPEN)
        )
        left = int(writing.read(query)[0][0])
    _OPEN_RUNS.put(writing, left - 1, tenant, run.benchmark_run_id or "")
    if left > 1:
        return
    writing.change(_END_BENCHMARK_RUN, of_tenant=tenant, of_id=run.benchmark_run_id, at=writing.now.micros)
    writing.emit(
        tenant,
        EventType.BENCHMARK_RUN_ENDED,
        run.benchmark_run_id or "",
        f"{run.benchmark_run_id}:ended",
        {
            "benchmark_run_id": run.benchmark_run_id,
            "benchmark": run.benchmark,
            "version": run.version,
            "agent_id": run.agent_id,
        },
    )


def _emit_event(
    writing: WriteTransaction,
    tenant: str,
    event: EventType,
    run: TaskRun,
    what: str,
    more: Mapping[str, str] | None = None,
) -> None:
    """Build an event of names, states and verdicts; nothing of a rubric."""
    writing.emit(
        tenant,
        event,
        run.benchmark_run_id or run.id,
        f"{run.id}:{what}",
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
            **(more or {}),
        },
    )


def _emit_rechecked(
    writing: WriteTransaction, tenant: str, run: TaskRun, more: Mapping[str, str] | None = None
) -> None:
    """Record the event that another verdict counts."""
    what = f"rechecked:{run.outcome_id}:{run.outcome_version}"
    _emit_event(writing, tenant, EventType.TASK_RUN_RECHECKED, run, what, more)


_RUNS = Rows[TaskRunRow]("task_run")
_OPEN_RUNS = Rows[int]("open_task_runs")


def _load(writing: WriteTransaction, tenant: str, run_id: str) -> TaskRunRow:
    known = _RUNS.get(writing, tenant, run_id)
    if known is not None:
        return known
    of = tables.task_runs
    rows = writing.read(select(of).where(of.c.tenant == tenant, of.c.id == run_id))
    if not rows:
        raise NotFound(f"no task run {run_id!r}")
    return task_run_from_row(rows[0])


def _save(writing: WriteTransaction, tenant: str, row: TaskRunRow) -> None:
    run = row.run
    body = None if row.asked_at is None else JudgingRequest(row.asked_at).to_json()
    if run.verdict is not None and run.bounds is not None:
        body = TaskRunResult(
            verdict=run.verdict,
            score=run.score or 0.0,
            exact=run.exact or "0",
            exact_high=run.exact_high or "0",
            bounds=run.bounds,
            coverage=run.coverage or 0.0,
            axes=run.axes,
            judged_version=run.judged_version,
        ).to_json()
    writing.change(
        _UPDATE_RUN,
        of_tenant=tenant,
        of_id=run.id,
        new_status=run.status.value,
        new_started=None if run.started_at is None else to_micros(run.started_at),
        new_deadline=None if run.deadline is None else to_micros(run.deadline),
        new_ended=None if run.ended_at is None else to_micros(run.ended_at),
        new_playground=run.playground_id,
        new_input=row.input_address,
        new_outcome=run.outcome_id,
        new_outcome_version=run.outcome_version,
        new_body=body,
    )
    _RUNS.put(writing, row, tenant, run.id)


_UPDATE_RUN: Update = (
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
_END_BENCHMARK_RUN: Update = (
    update(tables.benchmark_runs)
    .where(tables.benchmark_runs.c.tenant == bindparam("of_tenant"), tables.benchmark_runs.c.id == bindparam("of_id"))
    .values(ended_at=bindparam("at"))
)
