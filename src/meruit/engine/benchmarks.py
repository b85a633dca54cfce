"""Benchmarks and runs: tasks published for all time, agents in worlds of their own, judged by what they changed."""

import asyncio
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from meruit.engine.catalogue import Prepared, Slot
from meruit.engine.evidence_shapes import completion, criterion_run, hit_by_the_world, status_of
from meruit.engine.ground import Ground, Place
from meruit.engine.registrar import Judged, Ready, Registrar, Submission, Unsupported
from meruit.judge.benchmark import Ended, benchmark_score
from meruit.model.access import Scope
from meruit.model.canonical import canonical, digest, payload_bytes
from meruit.model.errors import MeruitError, Problem, Unreachable
from meruit.model.evidence import Evidence
from meruit.model.outcome import Labels, in_micros
from meruit.model.run import (
    ENDED,
    BenchmarkRun,
    Completion,
    CriterionRun,
    CriterionStatus,
    RunStatus,
    TaskRun,
)
from meruit.model.task import Benchmark, Reveal, Task, split_name
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import Work
from meruit.model.world import FACTS, compacted, in_work, world_of
from meruit.registry import faults_of
from meruit.stores import benchmarks as published
from meruit.stores import outcomes, runs
from meruit.stores.benchmarks import BenchmarkView, Publish, Published
from meruit.stores.blobs import Part
from meruit.stores.database import NotFound, StoreError
from meruit.stores.erasing import Discard
from meruit.stores.records import AddVersions, NewVersion
from meruit.stores.runs import (
    CancelRuns,
    CompleteRun,
    CreateRuns,
    CriterionRow,
    Kept,
    NewTaskRun,
    RecheckRun,
    RejudgeRun,
    RunMoved,
    StartRun,
    TimeOut,
)
from meruit.stores.store import Store
from meruit.trust.commitment import SALT_BYTES

MAX_KNOWN = 256
"""Tasks that are kept compiled."""
MAX_READ = 8
"""Benchmarks that are kept as they were read."""
MAX_REPEATS = 100
MAX_RUNS = 10_000
"""Task runs of one benchmark run."""


class Started(NamedTuple):
    """What an agent needs to begin."""

    run: TaskRun
    instruction: str
    access: dict[str, Any]


class _Known(NamedTuple):
    """A task that somebody has run, and its criteria compiled."""

    benchmark: Benchmark
    task: Task
    ready: Ready


class _Judging:
    """Runs that are being judged by this process, each by one caller at a time."""

    def __init__(self) -> None:
        self._locks: dict[tuple[str, str], asyncio.Lock] = {}
        self._callers: Counter[tuple[str, str]] = Counter()

    @asynccontextmanager
    async def alone(self, tenant: str, run_id: str) -> AsyncIterator[None]:
        """Wait until nobody else judges the run, and keep others waiting."""
        key = (tenant, run_id)
        self._callers[key] += 1
        try:
            async with self._locks.setdefault(key, asyncio.Lock()):
                yield
        finally:
            self._callers[key] -= 1
            if not self._callers[key]:
                del self._callers[key], self._locks[key]

    def holds(self, tenant: str, run_id: str) -> bool:
        """Whether somebody judges the run now."""
        return (tenant, run_id) in self._locks


class Benchmarks:
    """Everything that can be done with benchmarks and runs."""

    def __init__(self, registrar: Registrar, ground: Ground, timer: Callable[[], int] = time.perf_counter_ns) -> None:
        self.registrar = registrar
        self.ground = ground
        self._timer = timer
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()
        self._read: OrderedDict[str, Benchmark] = OrderedDict()
        self._remembering = threading.Lock()
        self._judging = _Judging()

    @property
    def store(self) -> Store:
        """Where all of it is kept."""
        return self.registrar.store

    # Publishing

    async def publish(self, tenant: str, by: str, benchmark: Benchmark) -> BenchmarkView:
        """Keep a benchmark for all time; raises Unsupported for criteria that cannot be judged, BenchmarkTaken."""
        # Compiling many tasks takes long enough to hold up everybody else.
        return await self.store.recorder.record(await asyncio.to_thread(self._publication, tenant, by, benchmark))

    def _publication(self, tenant: str, by: str, benchmark: Benchmark) -> Publish:
        sound(benchmark)
        ready = [self.registrar.ready(task.success_criteria) for task in benchmark.tasks]
        written = benchmark.model_dump(exclude_defaults=True, mode="json", by_alias=True)
        criteria = tuple({one.digest: (one.body, one.digest) for one in ready}.values())
        return Publish(tenant, by, benchmark, canonical(written), digest(written), criteria)

    def find(self, tenant: str, name: str) -> Published:
        """A benchmark by `slug@version`, or the newest of `slug`; raises NotFound."""
        parts = split_name(name)
        if parts is None:
            raise NotFound(f"no benchmark {name!r}; write slug@version")
        with self.store.database.reading() as connection:
            view = published.look_up(connection, tenant, *parts)
            known = self._recalled(view.digest)
            if known is None:
                # A large one takes a second to read, and is asked for with each of its runs.
                known = published.content(connection, tenant, view)
        with self._remembering:
            self._read[view.digest] = known
            while len(self._read) > MAX_READ:
                self._read.popitem(last=False)
        return Published(view, known)

    def _recalled(self, digest: str) -> Benchmark | None:
        with self._remembering:
            found = self._read.get(digest)
            if found is not None:
                self._read.move_to_end(digest)
            return found

    # Beginning

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
        """A benchmark run with all its task runs, not begun; raises NotFound, MeruitError."""
        wish = self.plan(tenant, by, name, tasks=tasks, repeats=repeats, scored=scored, agent_id=agent_id)
        created = await self.store.recorder.record(wish)
        return self.benchmark_run(Scope(tenant), wish.benchmark_run_id or ""), created

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
        """A benchmark run that is only to be recorded; raises NotFound, MeruitError."""
        found = self.find(tenant, name).benchmark
        chosen = _chosen(found, tasks)
        if not 1 <= repeats <= MAX_REPEATS or repeats * len(chosen) > MAX_RUNS:
            raise MeruitError(f"repeats: 1 to {MAX_REPEATS}, and at most {MAX_RUNS:,} task runs in all")
        run_id = self.store.surroundings.new_id("brn")
        return CreateRuns(
            *(tenant, by, found.benchmark, found.version),
            tuple(
                NewTaskRun(self.store.surroundings.new_id("trn"), task.id, attempt, task.reveal)
                for attempt in range(1, repeats + 1)
                for task in chosen
            ),
            *(scored, agent_id, run_id, repeats),
        )

    async def create_one(
        self, tenant: str, by: str, name: str, task_id: str, *, scored: bool, agent_id: str | None
    ) -> TaskRun:
        """One task run on its own."""
        wish = self.plan_one(tenant, by, name, task_id, scored=scored, agent_id=agent_id)
        return (await self.store.recorder.record(wish))[0]

    def plan_one(
        self, tenant: str, by: str, name: str, task_id: str, *, scored: bool, agent_id: str | None
    ) -> CreateRuns:
        """The same, only to be recorded; raises NotFound."""
        found = self.find(tenant, name).benchmark
        (task,) = _chosen(found, [task_id])
        new = NewTaskRun(self.store.surroundings.new_id("trn"), task.id, 1, task.reveal)
        return CreateRuns(tenant, by, found.benchmark, found.version, (new,), scored, agent_id)

    async def start(self, scope: Scope, run_id: str) -> Started:
        """Make the run's world, read it, and let the clock run; raises RunMoved for a run that has begun."""
        run = await asyncio.to_thread(self.run, scope, run_id)
        if run.status is not RunStatus.PENDING:
            raise RunMoved(f"task run {run_id} is {run.status}; only a pending one can be started")
        benchmark, task, _ = await asyncio.to_thread(self._task_of, scope.tenant, run)
        place = await self.ground.prepare(benchmark, task)
        try:
            before = await self._before(scope.tenant, benchmark, task, place)
        except BaseException:
            await self._abandon(place)
            raise
        try:
            wish = StartRun(scope.tenant, run.id, place.id, before, task.time_limit_s)
            begun = await self.store.recorder.record(wish)
        except Exception:
            # Somebody else was quicker, or nothing could be written; a caller who only stops waiting has begun.
            await self._abandon(place)
            raise
        return Started(begun, task.instruction, place.access)

    async def _abandon(self, place: Place) -> None:
        """Take down a world that nobody will ever use."""
        if place.id is not None:
            await self.ground.discard(place.id)

    async def _before(self, tenant: str, benchmark: Benchmark, task: Task, place: Place) -> Part:
        """What the agent starts from, as it is kept."""
        before = await self.ground.read(task, place.id)
        given: dict[str, Any] = {"task": f"{benchmark.name}/{task.id}", "instruction": task.instruction}
        given[FACTS] = {**place.facts, **task.facts}
        written = payload_bytes(given | in_work(before))
        if written is None:
            raise MeruitError("the world before cannot be written as JSON")
        return await asyncio.to_thread(self.store.shelf.part, tenant, written)

    async def access(self, scope: Scope, run_id: str) -> Started:
        """The same again for an agent that lost what it was told; raises RunMoved unless the run is under way."""
        run = await asyncio.to_thread(self.run, scope, run_id)
        if run.status is not RunStatus.RUNNING:
            raise RunMoved(f"task run {run_id} is {run.status}; it has no world to get into")
        _, task, _ = await asyncio.to_thread(self._task_of, scope.tenant, run)
        return Started(run, task.instruction, await self.ground.access(run.playground_id) if run.playground_id else {})

    # Ending

    async def complete(self, scope: Scope, run_id: str) -> TaskRun:
        """Judge what the agent left behind; a run that has ended is only told how."""
        # The agent's time ends here; how long we take to look is not its fault.
        asked_at = in_micros(self.store.surroundings.clock())
        async with self._judging.alone(scope.tenant, run_id):
            kept = await asyncio.to_thread(self._find, scope, run_id)
            if kept.run.status in ENDED:
                return kept.run
            if kept.run.status is RunStatus.PENDING:
                raise RunMoved(f"task run {run_id} was never started; start it, act, then complete it")
            try:
                judged, rows = await self._judged(scope.tenant, kept)
            except Exception:
                # Somebody who gave the run up may have taken its world down meanwhile.
                run = await asyncio.to_thread(self.run, scope, run_id)
                if run.status in ENDED:
                    return run
                raise
            draft = await asyncio.to_thread(self.registrar.draft, scope.tenant, judged)
            ended = await self.store.recorder.record(CompleteRun(scope.tenant, run_id, draft, rows, asked_at))
            await self._tidy(scope.tenant, [ended])
            return ended

    async def recheck(self, tenant: str, run_id: str) -> TaskRun:
        """Read the world again for a run that could not be judged because a source could not be read."""
        async with self._judging.alone(tenant, run_id):
            kept = await asyncio.to_thread(self._find, Scope(tenant), run_id)
            result = await asyncio.to_thread(self.result, tenant, kept.run)
            undecided = kept.run.status is RunStatus.COMPLETED and needs_world(kept.run)
            if not undecided or result is None or not hit_by_the_world(result):
                raise RunMoved(f"task run {run_id}: nothing is left that reading the world again could decide")
            judged, rows = await self._judged(tenant, kept)
            if judged.result.coverage < result.coverage:
                raise Unreachable(f"task run {run_id}: less of its world can be read than before; try again later")
            draft = await asyncio.to_thread(self.registrar.draft, tenant, judged)
            wish = RecheckRun(tenant, run_id, kept.run.outcome_id or "", draft, rows)
            checked = await self.store.recorder.record(wish)
            await self._tidy(tenant, [checked])
            return checked

    async def rejudge(self, tenant: str, run_id: str, reason: str, benchmark: str | None = None) -> TaskRun:
        """Judge a run anew on what was found then, by its own criteria or by those of another version.

        The earlier verdict stays on record. Raises RunMoved, NotFound, and StoreError where the evidence was erased.
        """
        wish = await asyncio.to_thread(self._rejudged, tenant, run_id, reason, benchmark)
        return await self.store.recorder.record(wish)

    def _rejudged(self, tenant: str, run_id: str, reason: str, benchmark: str | None) -> RejudgeRun:
        run = self._find(Scope(tenant), run_id).run
        if run.status is not RunStatus.COMPLETED or run.outcome_id is None:
            raise RunMoved(f"task run {run_id} is {run.status}; only a completed one can be judged again")
        named = run if benchmark is None else _of_version(run, self.find(tenant, benchmark).benchmark)
        known, outcome_id = self._task_of(tenant, named), run.outcome_id
        ready = known.ready
        with self.store.database.reading() as connection:
            version = outcomes.summary(connection, Scope(tenant), outcome_id).version
            found = outcomes.evidence(connection, Scope(tenant), outcome_id, self.store.shelf)
        if found.input is None or found.output is None:
            raise StoreError(f"the evidence of task run {run.id} was erased; it can be judged no more")
        given, done = (msgspec.json.decode(part, type=dict[str, Any]) for part in (found.input, found.output))
        recorded = given.get(FACTS, {})
        if any(recorded.get(name) != value for name, value in known.task.facts.items()):
            # They are part of what the verdict rests on, and a stranger who checks it has only the record.
            raise MeruitError(f"task run {run.id} was recorded with other facts; run the task again instead")
        result = self.registrar.engine.verify_sync(run.id, given, done, ready.prepared, {})
        new = NewVersion(outcome_id, version, result, self.store.surroundings.entropy(SALT_BYTES))
        rows = self._criterion_rows(result, ready, {})
        return RejudgeRun(tenant, run.id, AddVersions(tenant, ready.body, (new,), reason), rows, named.version)

    async def cancel(self, tenant: str, run_ids: Sequence[str]) -> list[TaskRun]:
        """Give up runs that have not ended."""
        ended = await self.store.recorder.record(CancelRuns(tenant, tuple(run_ids)))
        await self._tidy(tenant, ended)
        return ended

    async def sweep(self, tenant: str | None = None) -> int:
        """Declare timed out whoever is; answers how many were."""
        late = await asyncio.to_thread(self._overdue, tenant)
        ended = list[TaskRun]()
        # Whoever completed in time is being judged.
        late = [(owner, run_id) for owner, run_id in late if not self._judging.holds(owner, run_id)]
        for one in sorted({owner for owner, _ in late}):
            wish = TimeOut(one, tuple(run_id for owner, run_id in late if owner == one))
            timed_out = await self.store.recorder.record(wish)
            await self._tidy(one, timed_out)
            ended += timed_out
        return len(ended)

    def _overdue(self, tenant: str | None) -> list[tuple[str, str]]:
        now = in_micros(self.store.surroundings.clock())
        with self.store.database.reading() as connection:
            return runs.overdue(connection, now, tenant)

    async def _tidy(self, tenant: str, ended: Sequence[TaskRun]) -> None:
        """Take down worlds that nobody reads again; what is known of one without an outcome is nobody's either."""
        for run in ended:
            if run.playground_id is not None and not needs_world(run):
                await self.ground.discard(run.playground_id)
        without = [run.id for run in ended if run.status is not RunStatus.COMPLETED and run.started_at is not None]
        if without:
            await self.store.recorder.record(await asyncio.to_thread(self._forgetting, tenant, without))

    def _forgetting(self, tenant: str, run_ids: Sequence[str]) -> Discard:
        with self.store.database.reading() as connection:
            return Discard(tenant, tuple(runs.inputs(connection, tenant, run_ids)), self.store.shelf)

    async def _judged(self, tenant: str, kept: Kept) -> tuple[Judged, tuple[CriterionRow, ...]]:
        run = kept.run
        _, task, ready = await asyncio.to_thread(self._task_of, tenant, run)
        given = await asyncio.to_thread(self._input, tenant, kept)
        after = await self.ground.read(task, run.playground_id, world_of(given))
        # An agent sees its own outcomes, of which a run that reveals nothing is none.
        hidden = run.scored and run.reveal is Reveal.NONE
        labels = Labels(run.id, None if hidden else run.agent_id, None, f"{run.benchmark}@{run.version}/{run.task}")
        took: dict[int, int] = {}
        timed = ready._replace(prepared=_timed(ready.prepared, took, self._timer))
        return await asyncio.to_thread(self._measured, timed, given, after, labels, took)

    def _measured(
        self, ready: Ready, given: Mapping[str, Any], after: Any, labels: Labels, took: Mapping[int, int]
    ) -> tuple[Judged, tuple[CriterionRow, ...]]:
        done = in_work(compacted(world_of(given), after))
        judged = self.registrar.judge_sync(ready, Submission(given, done, {}, labels))
        return judged, self._criterion_rows(judged.result, ready, took)

    def _criterion_rows(
        self, result: VerificationResult, ready: Ready, took: Mapping[int, int]
    ) -> tuple[CriterionRow, ...]:
        return tuple(
            CriterionRow(
                self.store.surroundings.new_id("crn"),
                position,
                status_of(one),
                one.score if status_of(one) in (CriterionStatus.PASSED, CriterionStatus.FAILED) else None,
                took.get(ready.prepared.slot_of[position]),
            )
            for position, one in enumerate(result.criterion_results)
        )

    def _input(self, tenant: str, kept: Kept) -> dict[str, Any]:
        with self.store.database.reading() as connection:
            content = self.store.shelf.content(connection, tenant, kept.input_address or "")
        return msgspec.json.decode(content, type=dict[str, Any])

    # Reading

    def _find(self, scope: Scope, run_id: str) -> Kept:
        with self.store.database.reading() as connection:
            return runs.find(connection, scope, run_id)

    def run(self, scope: Scope, run_id: str) -> TaskRun:
        """One task run; raises NotFound."""
        return self._find(scope, run_id).run

    def _task_of(self, tenant: str, run: TaskRun) -> "_Known":
        """The run's task, compiled; published for all time, so it need not be read twice."""
        key = (tenant, f"{run.benchmark}@{run.version}", run.task)
        with self._remembering:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                return known
        benchmark = self.find(tenant, key[1]).benchmark
        task = benchmark.task(run.task)
        if task is None:
            raise NotFound(f"no task {run.task!r} in {benchmark.name}")
        known = _Known(benchmark, task, self.registrar.ready(task.success_criteria))
        with self._remembering:
            self._known[key] = known
            while len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return known

    def result(self, tenant: str, run: TaskRun) -> VerificationResult | None:
        """The verdict on a run with all the evidence; None where it has none, or it was erased."""
        if run.outcome_id is None or run.outcome_version is None:
            return None
        with self.store.database.reading() as connection:
            return outcomes.version(connection, Scope(tenant), run.outcome_id, run.outcome_version).result

    def completion(self, tenant: str, run: TaskRun) -> Completion:
        """What whoever completed a run may be told of it."""
        result = self.result(tenant, run)
        return completion(run, result, self._criteria_of(tenant, run, result))

    def criterion_runs(self, tenant: str, run: TaskRun) -> list[CriterionRun]:
        """Every criterion of a run, with all the evidence; none before it is completed."""
        return self._criteria_of(tenant, run, self.result(tenant, run))

    def _criteria_of(self, tenant: str, run: TaskRun, result: VerificationResult | None) -> list[CriterionRun]:
        if result is None:
            return []
        with self.store.database.reading() as connection:
            found = runs.criterion_runs(connection, tenant, run)
        return [criterion_run(one, result.criterion_results[one.position]) for one in found]

    def criterion_run(self, tenant: str, run_id: str) -> CriterionRun:
        """One criterion run with all its evidence; raises NotFound."""
        with self.store.database.reading() as connection:
            found = runs.criterion_run(connection, tenant, run_id)
            result = outcomes.version(connection, Scope(tenant), found.outcome_id, found.version).result
        if result is None:
            raise NotFound(f"the evidence of {run_id!r} was erased")
        return criterion_run(found, result.criterion_results[found.position])

    def benchmark_run(self, scope: Scope, run_id: str) -> BenchmarkRun:
        """A benchmark run, with its result once every task run has ended; raises NotFound."""
        with self.store.database.reading() as connection:
            found = runs.benchmark_run(connection, scope, run_id)
            several = runs.of_benchmark_run(connection, scope.tenant, run_id) if found.ended else []
        if not found.ended:
            return found
        tasks = list(dict.fromkeys(run.task for run in several))
        return msgspec.structs.replace(found, result=benchmark_score(list(map(ended_run, several)), tasks))

    def task_runs(self, scope: Scope, benchmark_run_id: str) -> list[TaskRun]:
        """All task runs of a benchmark run; raises NotFound."""
        with self.store.database.reading() as connection:
            runs.benchmark_run(connection, scope, benchmark_run_id)
            return runs.of_benchmark_run(connection, scope.tenant, benchmark_run_id)


def needs_world(run: TaskRun) -> bool:
    """Whether somebody may act on the run's world, or want to read it again."""
    undecided = run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR)
    return run.status not in ENDED or (run.status is RunStatus.COMPLETED and undecided)


def ended_run(run: TaskRun) -> Ended:
    """A run as the benchmark's result sees it."""
    if run.exact is None or run.exact_high is None:
        return Ended(run.id, run.task, run.status, begun=run.started_at is not None)
    low, high = Fraction(run.exact), Fraction(run.exact_high)
    return Ended(run.id, run.task, run.status, run.verdict, low, high, run.coverage or 0.0)


def _of_version(run: TaskRun, benchmark: Benchmark) -> TaskRun:
    if benchmark.benchmark != run.benchmark:
        raise MeruitError(f"task run {run.id} is of {run.benchmark}; {benchmark.name} is another benchmark")
    return msgspec.structs.replace(run, version=benchmark.version)


def sound(benchmark: Benchmark) -> None:
    """Raise Unsupported where an assertion of some task cannot be run."""
    problems = [
        Problem(f"tasks[{number}].criteria[{place}].{'.'.join(map(str, where))}", why)
        for number, task in enumerate(benchmark.tasks)
        for place, criterion in enumerate(task.criteria)
        if criterion.assertion is not None
        for where, why in faults_of(criterion.assertion)
    ]
    if problems:
        raise Unsupported("benchmark", problems)


def _chosen(benchmark: Benchmark, wanted: Sequence[str] | None) -> list[Task]:
    if wanted is None:
        return list(benchmark.tasks)
    found = [benchmark.task(name) for name in dict.fromkeys(wanted)]
    lacking = [name for name, task in zip(dict.fromkeys(wanted), found, strict=True) if task is None]
    if lacking or not found:
        known = ", ".join(task.id for task in benchmark.tasks)
        raise NotFound(f"{benchmark.name} has no task {', '.join(map(repr, lacking)) or 'chosen'}; it has {known}")
    return [task for task in found if task is not None]


def _timed(prepared: Prepared, took: dict[int, int], timer: Callable[[], int]) -> Prepared:
    """The same criteria, noting how many microseconds each question took."""

    def timed(number: int, slot: Slot) -> Slot:
        measure = slot.measure
        if measure is None:
            return slot

        def noting(work: Work) -> Evidence:
            began = timer()
            try:
                return measure(work)
            finally:
                took[number] = (timer() - began) // 1000

        return slot._replace(measure=noting)

    return prepared._replace(slots=tuple(timed(number, slot) for number, slot in enumerate(prepared.slots)))
