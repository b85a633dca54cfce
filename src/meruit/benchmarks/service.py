"""Run benchmarks: create task runs, start them in environments of their own, and judge what the agents changed."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from meruit.benchmarks.environment import EnvironmentProvider, TaskEnvironment, asks_for_answer
from meruit.benchmarks.evidence import has_unreadable_source, status_of
from meruit.benchmarks.published import BenchmarkLibrary, CompiledTask, plan_deletion, select_tasks
from meruit.benchmarks.run_reader import RunReader
from meruit.benchmarks.store import published
from meruit.benchmarks.store import read as runs
from meruit.benchmarks.store.published import BenchmarkView, DeletedBenchmark, PublishedBenchmark
from meruit.benchmarks.store.read import TaskRunRow
from meruit.benchmarks.store.transitions import (
    REREAD,
    BeginJudging,
    CancelRuns,
    CompleteRun,
    CreateRuns,
    GiveUpJudging,
    NewCriterionRun,
    NewTaskRun,
    RejudgeRun,
    RequeueRuns,
    RereadRun,
    StartRun,
    TimeOutRuns,
)
from meruit.errors import MeruitError, StoreError, TaskRunStateError, Unreachable
from meruit.judge.governance import carry_answer
from meruit.log.commitment import SALT_BYTES
from meruit.model.access import Scope
from meruit.model.canonical import payload_bytes, payload_digest
from meruit.model.decoding import decode_json
from meruit.model.environment import (
    ANSWER_SOURCE,
    FACTS_KEY,
    MAX_ANSWER_BYTES,
    EnvironmentState,
    answer_snapshot,
    as_work_part,
    compact_state,
    environment_in,
)
from meruit.model.evidence import Evidence
from meruit.model.outcome import Labels
from meruit.model.task import Benchmark, Reveal, Task
from meruit.model.task_run import (
    ACTS_KEY,
    ENDED,
    JUDGING,
    BenchmarkRun,
    CriterionStatus,
    RunStatus,
    TaskRun,
    TaskRunProgress,
)
from meruit.model.time import to_micros
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import Work
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import AddVersions, Discard, NewVersion, VersionBasis
from meruit.outcomes.service import JudgedWork, Registrar, Submission
from meruit.store.blobs import EvidencePart
from meruit.verify.catalogue import CompiledCriteria, Slot

MAX_REPEATS = 100
MAX_RUNS = 10_000
"""Task runs of one benchmark run."""


RECHECK = "recheck"
"""The reason for judging a run again that could not be judged completely."""
VerdictListener = Callable[[Verdict], None]
"""Called with each verdict that is given."""


def _ignore_verdict(_verdict: Verdict) -> None:
    """Do nothing."""


class TaskRunStart(msgspec.Struct, frozen=True):
    """What an agent needs to begin."""

    run: TaskRun
    instruction: str
    access: dict[str, Any]


class _JudgingLocks:
    """Locks on the runs that this process judges, one caller at a time."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._callers: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def exclusive(self, tenant: str, run_id: str) -> AsyncIterator[None]:
        """Lock the run, and wait while another caller has the lock."""
        key = (tenant, run_id)
        self._callers[key] += 1
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key], self._locks[key]

    def is_held(self, tenant: str, run_id: str) -> bool:
        """Return whether a caller judges the run now."""
        return (tenant, run_id) in self._locks


class Benchmarks:
    """Publishes benchmarks, and takes their runs from creation to a verdict. `reader` reads them."""

    def __init__(
        self, registrar: Registrar, environments: EnvironmentProvider, timer: Callable[[], int] = time.perf_counter_ns
    ) -> None:
        self.store = registrar.store
        self.reader = RunReader(registrar.store)
        self.registrar = registrar
        self.library = BenchmarkLibrary(registrar)
        self.environments = environments
        self._timer = timer
        self._judging = _JudgingLocks()

    async def publish(self, tenant: str, by: str, benchmark: Benchmark) -> BenchmarkView:
        """Publish a benchmark; raises UnsupportedCriteria for criteria that cannot be judged, and BenchmarkTaken."""
        return await self.library.publish(tenant, by, benchmark)

    async def practise(self, tenant: str, by: str, benchmark: Benchmark) -> Benchmark:
        """Keep a benchmark for practice, without publishing it; returns it under the name of its runs."""
        return await self.library.practise(tenant, by, benchmark)

    def find(self, tenant: str, name: str) -> PublishedBenchmark:
        """Find a benchmark by `slug@version`, or the newest version of `slug`; raises NotFound."""
        return self.library.find(tenant, name)

    async def delete(self, tenant: str, name: str) -> DeletedBenchmark:
        """Hide `slug@version`, or all versions of `slug`; raises NotFound, and BenchmarkInUse while runs go on."""
        return await self.store.recorder.record(plan_deletion(tenant, name))

    def _find_runnable(self, tenant: str, name: str) -> Benchmark:
        view, benchmark = self.find(tenant, name)
        if view.deleted_at is not None:
            raise published.deleted_error(view.benchmark, view.version)
        return benchmark

    # Start

    async def create(
        self,
        tenant: str,
        by: str,
        name: str,
        *,
        tasks: Sequence[str] | None = None,
        repeats: int = 1,
        scored: bool = True,
        agent_id: str | None = None,
    ) -> tuple[BenchmarkRun, list[TaskRun]]:
        """Create a benchmark run with all its task runs, not started; raises NotFound, MeruitError."""
        transition = self.plan(tenant, by, name, tasks=tasks, repeats=repeats, scored=scored, agent_id=agent_id)
        created = await self.store.recorder.record(transition)
        return self.reader.benchmark_run(Scope(tenant), transition.benchmark_run_id or ""), created

    def plan(
        self,
        tenant: str,
        by: str,
        name: str,
        *,
        tasks: Sequence[str] | None = None,
        repeats: int = 1,
        scored: bool = True,
        agent_id: str | None = None,
    ) -> CreateRuns:
        """Plan a benchmark run, without recording it; raises NotFound, MeruitError."""
        found = self._find_runnable(tenant, name)
        selected = select_tasks(found, tasks)
        if not 1 <= repeats <= MAX_REPEATS or repeats * len(selected) > MAX_RUNS:
            raise MeruitError(f"repeats: 1 to {MAX_REPEATS}, and at most {MAX_RUNS:,} task runs in all")
        run_id = self.store.surroundings.new_id("brn")
        return CreateRuns(
            tenant=tenant,
            by=by,
            slug=found.benchmark,
            version=found.version,
            runs=tuple(
                NewTaskRun(id=self.store.surroundings.new_id("trn"), task=task.id, attempt=attempt, reveal=task.reveal)
                for attempt in range(1, repeats + 1)
                for task in selected
            ),
            scored=scored,
            agent_id=agent_id,
            benchmark_run_id=run_id,
            repeats=repeats,
        )

    def plan_one(
        self, tenant: str, by: str, name: str, task_id: str, *, scored: bool, agent_id: str | None
    ) -> CreateRuns:
        """Plan one task run, without recording it; raises NotFound."""
        found = self._find_runnable(tenant, name)
        (task,) = select_tasks(found, [task_id])
        new = NewTaskRun(id=self.store.surroundings.new_id("trn"), task=task.id, attempt=1, reveal=task.reveal)
        return CreateRuns(
            tenant=tenant,
            by=by,
            slug=found.benchmark,
            version=found.version,
            runs=(new,),
            scored=scored,
            agent_id=agent_id,
        )

    async def start(self, scope: Scope, run_id: str) -> TaskRunStart:
        """Prepare the run's environment, read it, and start the clock.

        Raises TaskRunStateError for a run that was started before, and Unreachable when a part of the environment
        cannot be read: the run then stays pending, and can be started again.
        """
        run = await asyncio.to_thread(self.reader.run, scope, run_id)
        if run.status is not RunStatus.PENDING:
            raise TaskRunStateError(f"task run {run_id} is {run.status}; only a pending one can be started")
        compiled = await asyncio.to_thread(self.library.task_of, scope.tenant, run)
        benchmark, task = compiled.benchmark, compiled.task
        environment = await self.environments.prepare(benchmark, task)
        try:
            before = await self._read_before(scope.tenant, benchmark, task, environment)
        except BaseException:
            await self._abandon(environment)
            raise
        try:
            transition = StartRun(
                tenant=scope.tenant,
                id=run.id,
                playground_id=environment.id,
                input=before,
                time_limit_s=task.time_limit_s,
            )
            started = await self.store.recorder.record(transition)
        except Exception:
            # Another caller was first, or nothing could be written; the run of a caller that stops waiting is started.
            await self._abandon(environment)
            raise
        return TaskRunStart(run=started, instruction=task.instruction, access=environment.access)

    async def _abandon(self, environment: TaskEnvironment) -> None:
        """Remove an environment that no run will use."""
        if environment.id is not None:
            await self.environments.discard(environment.id)

    async def _read_before(
        self, tenant: str, benchmark: Benchmark, task: Task, environment: TaskEnvironment
    ) -> EvidencePart:
        """Store the state that the agent starts from; raises Unreachable unless all of it was read."""
        before = await self.environments.read(task, environment.id)
        # A criterion that compares with it could never be judged, however long the agent works.
        unread = [f"{name}: {found.trouble}" for name, found in before.items() if found.trouble is not None]
        if unread:
            raise Unreachable(
                f"task {task.id} was not started because its environment cannot be read: {'; '.join(unread)}. "
                "Fix that, or wait a moment, and start it again"
            )
        given: dict[str, Any] = {"task": f"{benchmark.name}/{task.id}", "instruction": task.instruction}
        given[FACTS_KEY] = {**environment.facts, **task.facts}
        written = payload_bytes(given | as_work_part(before))
        if written is None:
            raise MeruitError("the start state cannot be written as JSON")
        return await asyncio.to_thread(self.store.blobs.part, tenant, written)

    async def access(self, scope: Scope, run_id: str) -> TaskRunStart:
        """Return the same again for an agent that lost it; raises TaskRunStateError unless the run is running."""
        run = await asyncio.to_thread(self.reader.run, scope, run_id)
        if run.status is not RunStatus.RUNNING:
            raise TaskRunStateError(f"task run {run_id} is {run.status}; only a running one has an environment")
        task = (await asyncio.to_thread(self.library.task_of, scope.tenant, run)).task
        return TaskRunStart(
            run=run,
            instruction=task.instruction,
            access=await self.environments.access(run.playground_id) if run.playground_id else {},
        )

    async def progress(self, scope: Scope, run_id: str) -> TaskRunProgress:
        """Return what happens to a task run now; raises NotFound."""
        row = await asyncio.to_thread(self.reader.row, scope, run_id)
        run, now = row.run, self.store.surroundings.clock()
        seen = None
        if run.playground_id is not None and run.status is RunStatus.RUNNING:
            seen = await self.environments.last_event(run.playground_id)
        ended = now if run.ended_at is None else run.ended_at
        going = run.status is RunStatus.RUNNING and row.asked_at is None
        return TaskRunProgress(
            id=run.id,
            task=run.task,
            attempt=run.attempt,
            state=JUDGING if run.status is RunStatus.RUNNING and not going else run.status.value,
            seconds=None if run.started_at is None else max(0.0, (ended - run.started_at).total_seconds()),
            seconds_left=max(0.0, (run.deadline - now).total_seconds()) if going and run.deadline else None,
            last_event=seen,
        )

    # End

    # Any: an answer is text or JSON.
    async def complete(
        self, scope: Scope, run_id: str, *, answer: Any = None, judged: VerdictListener = _ignore_verdict
    ) -> TaskRun:
        """Judge the state that the agent left, and its answer; a run that has ended is returned unchanged.

        `judged` is called with the verdict if this call gives it. Raises MeruitError for an answer that is too large.
        """
        snapshot = answer_snapshot(answer)
        if any(len(one.content()) > MAX_ANSWER_BYTES for one in snapshot.items):
            raise MeruitError(f"answer: at most {MAX_ANSWER_BYTES:,} bytes")
        # The agent's time ends here; the time that judging takes is ours.
        asked_at = to_micros(self.store.surroundings.clock())
        async with self._judging.exclusive(scope.tenant, run_id):
            run = await asyncio.to_thread(self.reader.run, scope, run_id)
            if run.status in ENDED:
                return run
            judging = await self.store.recorder.record(BeginJudging(tenant=scope.tenant, id=run_id, asked_at=asked_at))
            if judging.run.status in ENDED:
                await self._tidy(scope.tenant, [judging.run])
                return judging.run
            try:
                given = await asyncio.to_thread(self._input, scope.tenant, judging)
                after = await self._read_after(scope.tenant, judging.run, given)
                if snapshot.items or asks_for_answer((await self._task_of(scope.tenant, judging.run)).task):
                    after = {**after, ANSWER_SOURCE: snapshot}
                place_id = judging.run.playground_id
                acts = (
                    {} if place_id is None else {ACTS_KEY: msgspec.to_builtins(await self.environments.acts(place_id))}
                )
                found, rows = await self._judge(scope.tenant, judging.run, given, as_work_part(after), acts)
            except BaseException as problem:
                # So that an early request, or one to the wrong process, gains no time.
                await self.store.recorder.record(GiveUpJudging(tenant=scope.tenant, id=run_id, asked_at=asked_at))
                # The caller who cancelled the run may have removed its environment in the meantime.
                run = await asyncio.to_thread(self.reader.run, scope, run_id)
                if run.status in ENDED and isinstance(problem, Exception):
                    return run
                raise
            draft = await asyncio.to_thread(self.registrar.draft, scope.tenant, found)
            ended = await self.store.recorder.record(
                CompleteRun(
                    tenant=scope.tenant, id=run_id, outcome=draft, criteria=rows, started_at=judging.run.started_at
                )
            )
            if ended.outcome_id == draft.id:
                judged(found.result.verdict)
            await self._tidy(scope.tenant, [ended])
            return ended

    async def recheck(
        self, tenant: str, run_id: str, *, reread: bool = False, judged: VerdictListener = _ignore_verdict
    ) -> TaskRun:
        """Judge a run again that could not be judged completely, on the evidence recorded then.

        With `reread`, sources that could not be read then are read now. That may show what happened after the run
        ended, so the record says so, with the time. What was read then stays.
        """
        async with self._judging.exclusive(tenant, run_id):
            run = await asyncio.to_thread(self.reader.run, Scope(tenant), run_id)
            result = await asyncio.to_thread(self.reader.result, tenant, run)
            undecided = run.status is RunStatus.COMPLETED and needs_environment(run)
            if not undecided or result is None or not has_unreadable_source(result):
                raise TaskRunStateError(f"task run {run_id}: a recheck could not decide anything more")
            if reread:
                checked = await self._reread(tenant, run, result, judged)
            else:
                checked = await self.rejudge(tenant, run_id, RECHECK, judged=judged)
            await self._tidy(tenant, [checked])
            return checked

    async def _reread(self, tenant: str, run: TaskRun, before: VerificationResult, judged: VerdictListener) -> TaskRun:
        given, done, metadata = await asyncio.to_thread(self._load_evidence, tenant, run)
        recorded_state = environment_in(done)
        unread = [name for name, found in recorded_state.items() if found.trouble is not None]
        if not unread:
            raise TaskRunStateError(f"task run {run.id}: all of its environment was read; recheck it without `reread`")
        read_at = self.store.surroundings.clock().isoformat()
        reread = await self._read_after(tenant, run, given, unread)
        reread_note = {REREAD: {"at": read_at, "sources": unread}}
        work = as_work_part(recorded_state | reread) | reread_note
        found, rows = await self._judge(tenant, run, given, work, metadata)
        if found.result.coverage < before.coverage:
            raise Unreachable(f"task run {run.id}: less of its environment can be read than before; try again later")
        draft = await asyncio.to_thread(self.registrar.draft, tenant, found)
        transition = RereadRun(
            tenant=tenant,
            id=run.id,
            expected=run.outcome_id or "",
            # What was read then is part of the new evidence.
            basis=VersionBasis(
                run.outcome_version or 1,
                digests=tuple(payload_digest(part) or "" for part in (given, done, metadata)),
            ),
            outcome=draft,
            criteria=rows,
            read_at=read_at,
        )
        checked = await self.store.recorder.record(transition)
        if checked.outcome_id == draft.id:
            judged(found.result.verdict)
        return checked

    async def rejudge(
        self,
        tenant: str,
        run_id: str,
        reason: str,
        benchmark: str | None = None,
        *,
        judged: VerdictListener = _ignore_verdict,
    ) -> TaskRun:
        """Judge a run again on the evidence recorded then, by its own criteria or by those of another version.

        The earlier verdict stays on record. Raises TaskRunStateError, NotFound, and StoreError for erased evidence.
        """
        transition = await asyncio.to_thread(self._build_rejudge, tenant, run_id, reason, benchmark)
        (new,) = transition.versions.versions
        ended = await self.store.recorder.record(transition)
        if ended.outcome_version == new.expected + 1:
            judged(new.result.verdict)
        return ended

    def _build_rejudge(self, tenant: str, run_id: str, reason: str, benchmark: str | None) -> RejudgeRun:
        run = self.reader.run(Scope(tenant), run_id)
        if run.status is not RunStatus.COMPLETED or run.outcome_id is None:
            raise TaskRunStateError(f"task run {run_id} is {run.status}; only a completed one can be judged again")
        named = run if benchmark is None else _of_version(run, self.find(tenant, benchmark).benchmark)
        known, outcome_id = self.library.task_of(tenant, named), run.outcome_id
        ready = known.ready
        with self.store.database.reading() as connection:
            version = outcomes.summary(connection, Scope(tenant), outcome_id).version
        given, done, metadata = self._load_evidence(tenant, run)
        recorded = given.get(FACTS_KEY, {})
        if any(recorded.get(name) != value for name, value in known.task.facts.items()):
            # The verdict depends on them, and a third party that verifies it has only the record.
            raise MeruitError(f"task run {run.id} was recorded with other facts; run the task again instead")
        again = self.registrar.engine.without_governance().verify_sync(run.id, given, done, ready, metadata)
        before = self.reader.result(tenant, run)
        result = again if before is None else carry_answer(before, again)
        new = NewVersion(outcome_id, version, result, self.store.surroundings.entropy(SALT_BYTES), is_measured=True)
        rows = self._criterion_rows(result, ready, {})
        return RejudgeRun(
            tenant=tenant,
            id=run.id,
            versions=AddVersions(tenant, ready.body, (new,), reason),
            criteria=rows,
            benchmark_version=named.version,
        )

    async def cancel(self, tenant: str, run_ids: Sequence[str]) -> list[TaskRun]:
        """Cancel runs that have not ended."""
        ended = await self.store.recorder.record(CancelRuns(tenant, tuple(run_ids)))
        await self._tidy(tenant, ended)
        return ended

    async def requeue(self, tenant: str, run_ids: Sequence[str], *, judging_too: bool = False) -> list[TaskRun]:
        """Return running runs whose agents are gone to pending; returns them as they were.

        They start again in new environments. Runs that have ended, and those that are being judged unless
        `judging_too`, stay unchanged.
        """
        lost = [one for one in run_ids if not self._judging.is_held(tenant, one)]
        discard = await asyncio.to_thread(self._build_discard, tenant, lost)
        requeued = await self.store.recorder.record(
            RequeueRuns(tenant=tenant, ids=tuple(lost), judging_too=judging_too)
        )
        for run in requeued:
            if run.playground_id is not None:
                await self.environments.discard(run.playground_id)
        if requeued:
            await self.store.recorder.record(discard)
        return requeued

    async def sweep(self, tenant: str | None = None) -> int:
        """End the runs whose deadline has passed; returns how many."""
        late = await asyncio.to_thread(self._overdue, tenant)
        ended = list[TaskRun]()
        # Runs that were completed in time are being judged.
        late = [(owner, run_id) for owner, run_id in late if not self._judging.is_held(owner, run_id)]
        for one in sorted({owner for owner, _ in late}):
            transition = TimeOutRuns(one, tuple(run_id for owner, run_id in late if owner == one))
            timed_out = await self.store.recorder.record(transition)
            await self._tidy(one, timed_out)
            ended += timed_out
        return len(ended)

    def _overdue(self, tenant: str | None) -> list[tuple[str, str]]:
        now = to_micros(self.store.surroundings.clock())
        with self.store.database.reading() as connection:
            return runs.overdue(connection, now, tenant)

    async def _tidy(self, tenant: str, ended: Sequence[TaskRun]) -> None:
        """Remove environments that no run needs, and the recorded input of runs that have no outcome."""
        for run in ended:
            if run.playground_id is not None and not needs_environment(run):
                await self.environments.discard(run.playground_id)
        without = [run.id for run in ended if run.status is not RunStatus.COMPLETED and run.started_at is not None]
        if without:
            await self.store.recorder.record(await asyncio.to_thread(self._build_discard, tenant, without))

    def _build_discard(self, tenant: str, run_ids: Sequence[str]) -> Discard:
        with self.store.database.reading() as connection:
            return Discard(tenant, tuple(runs.inputs(connection, tenant, run_ids)), self.store.blobs)

    async def _task_of(self, tenant: str, run: TaskRun) -> CompiledTask:
        return await asyncio.to_thread(self.library.task_of, tenant, run)

    # Any, here and below: evidence is JSON.
    async def _read_after(
        self, tenant: str, run: TaskRun, given: Mapping[str, Any], only: Sequence[str] | None = None
    ) -> EnvironmentState:
        """Read the environment now, or some of its sources, without what has not changed since the start."""
        task = (await asyncio.to_thread(self.library.task_of, tenant, run)).task
        if only is not None:
            task = task.model_copy(update={"sources": {name: task.sources[name] for name in only}})
        before = environment_in(given)
        return compact_state(before, await self.environments.read(task, run.playground_id, before))

    async def _judge(
        self,
        tenant: str,
        run: TaskRun,
        given: Mapping[str, Any],
        done: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> tuple[JudgedWork, tuple[NewCriterionRun, ...]]:
        ready = (await asyncio.to_thread(self.library.task_of, tenant, run)).ready
        # An agent sees its own outcomes, but not those of a run that reveals nothing.
        hidden = run.scored and run.reveal is Reveal.NONE
        labels = Labels(run.id, None if hidden else run.agent_id, None, f"{run.benchmark}@{run.version}/{run.task}")
        took: dict[int, int] = {}
        timed = _with_timing(ready, took, self._timer)
        work = Submission(input=given, output=done, metadata=metadata or {}, labels=labels)
        judged = await asyncio.to_thread(self.registrar.judge_sync, timed, work, tenant)
        return judged, self._criterion_rows(judged.result, timed, took)

    def _load_evidence(self, tenant: str, run: TaskRun) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        """Load what a completed run was judged on; raises StoreError if it was erased."""
        with self.store.database.reading() as connection:
            found = outcomes.evidence(connection, Scope(tenant), run.outcome_id or "", self.store.blobs)
        if found.input is None or found.output is None:
            raise StoreError(f"the evidence of task run {run.id} was erased; it cannot be judged again")
        parts = (found.input, found.output, found.metadata or b"{}")
        given, done, metadata = (decode_json(part, dict[str, Any]) for part in parts)
        return given, done, metadata

    def _criterion_rows(
        self, result: VerificationResult, ready: CompiledCriteria, took: Mapping[int, int]
    ) -> tuple[NewCriterionRun, ...]:
        return tuple(
            NewCriterionRun(
                id=self.store.surroundings.new_id("crn"),
                position=position,
                status=status_of(one),
                score=one.score if status_of(one) in (CriterionStatus.PASSED, CriterionStatus.FAILED) else None,
                took_us=took.get(ready.slot_of[position]),
            )
            for position, one in enumerate(result.criterion_results)
        )

    def _input(self, tenant: str, row: TaskRunRow) -> dict[str, Any]:
        with self.store.database.reading() as connection:
            content = self.store.blobs.content(connection, tenant, row.input_address or "")
        return decode_json(content, dict[str, Any])


def needs_environment(run: TaskRun) -> bool:
    """Return whether an agent may still act in the run's environment, or a recheck may read it."""
    undecided = run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR)
    return run.status not in ENDED or (run.status is RunStatus.COMPLETED and undecided)


def _of_version(run: TaskRun, benchmark: Benchmark) -> TaskRun:
    if benchmark.benchmark != run.benchmark:
        raise MeruitError(f"task run {run.id} is of {run.benchmark}; {benchmark.name} is another benchmark")
    return msgspec.structs.replace(run, version=benchmark.version)


def _with_timing(compiled: CompiledCriteria, took: dict[int, int], timer: Callable[[], int]) -> CompiledCriteria:
    """Return the same criteria, with a timer in microseconds around each."""

    def with_timer(number: int, slot: Slot) -> Slot:
        measure = slot.measure
        if measure is None:
            return slot

        def noting(work: Work) -> Evidence:
            began = timer()
            try:
                return measure(work)
            finally:
                took[number] = (timer() - began) // 1000

        return msgspec.structs.replace(slot, measure=noting)

    return compiled.with_slots(tuple(with_timer(number, slot) for number, slot in enumerate(compiled.slots)))
