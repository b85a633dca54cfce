"""Publish benchmarks, find them by name, and compile their tasks when needed. A published version never changes."""

import asyncio
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from meruit.benchmarks.formula_names import find_unknown_names
from meruit.benchmarks.store import published
from meruit.benchmarks.store.published import BenchmarkView, PublishBenchmark, PublishedBenchmark
from meruit.documents.document import MAX_PROBLEMS
from meruit.documents.tree import format_path
from meruit.errors import MeruitError, NotFound, Problem, UnsupportedCriteria
from meruit.model.canonical import canonical, digest
from meruit.model.task import Benchmark, Task, practice_slug, practised_slug, split_name
from meruit.model.task_run import TaskRun
from meruit.outcomes.service import Registrar
from meruit.registry import faults_of
from meruit.store.lru import LruCache
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria

MAX_KNOWN = 256
"""How many compiled tasks are cached."""
MAX_READ = 8
"""How many benchmarks are cached."""


class CompiledTask(NamedTuple):
    """A task with its compiled criteria."""

    benchmark: Benchmark
    task: Task
    ready: CompiledCriteria


class BenchmarkLibrary:
    """Publishes and finds benchmarks."""

    def __init__(self, registrar: Registrar) -> None:
        self.registrar = registrar
        self._known = LruCache[tuple[str, str, str], CompiledTask](MAX_KNOWN)
        self._read = LruCache[str, Benchmark](MAX_READ)

    @property
    def store(self) -> Store:
        """The store that holds them."""
        return self.registrar.store

    async def publish(self, tenant: str, by: str, benchmark: Benchmark) -> BenchmarkView:
        """Publish a benchmark; raises UnsupportedCriteria for criteria that cannot be judged, and BenchmarkTaken."""
        # Compiling many tasks takes long enough to hold up every other request.
        return await self.store.recorder.record(await asyncio.to_thread(self.publication, tenant, by, benchmark))

    async def practise(self, tenant: str, by: str, benchmark: Benchmark) -> Benchmark:
        """Keep a benchmark for practice under a name of its own, unless it is published as it is; returns that one."""
        plan = await asyncio.to_thread(self._plan, tenant, by, benchmark)
        try:
            if (await asyncio.to_thread(self.find, tenant, benchmark.name)).view.digest == plan.digest:
                return benchmark
        except NotFound:
            pass
        own = benchmark.model_copy(update={"benchmark": practice_slug(benchmark.benchmark, plan.digest)})
        kept = (await asyncio.to_thread(self._plan, tenant, by, own))._replace(practice=True)
        await self.store.recorder.record(kept)
        return own

    def publication(self, tenant: str, by: str, benchmark: Benchmark) -> PublishBenchmark:
        """Plan a publication, without recording it."""
        if practised_slug(benchmark.benchmark) is not None:
            raise MeruitError(f"{benchmark.benchmark} is a name of practice; publish it under another name")
        return self._plan(tenant, by, benchmark)

    def _plan(self, tenant: str, by: str, benchmark: Benchmark) -> PublishBenchmark:
        validate_benchmark(benchmark)
        ready = [self.registrar.compile(task.success_criteria) for task in benchmark.tasks]
        written = benchmark.model_dump(exclude_defaults=True, mode="json", by_alias=True)
        criteria = tuple({one.digest: (one.body, one.digest) for one in ready}.values())
        return PublishBenchmark(
            tenant=tenant,
            by=by,
            benchmark=benchmark,
            body=canonical(written),
            digest=digest(written),
            criteria=criteria,
        )

    def find(self, tenant: str, name: str) -> PublishedBenchmark:
        """Find a benchmark by `slug@version`, or the newest version of `slug`; raises NotFound."""
        parts = split_name(name)
        if parts is None:
            raise NotFound(f"no benchmark {name!r}; write slug@version")
        with self.store.database.reading() as connection:
            view = published.look_up(connection, tenant, *parts)
            known = self._read.get(view.digest)
            if known is None:
                # A large one takes a second to read, and is needed for each of its runs.
                known = published.content(connection, tenant, view)
        self._read.put(view.digest, known)
        return PublishedBenchmark(view, known)

    def task_of(self, tenant: str, run: TaskRun) -> CompiledTask:
        """Return the run's task, compiled; a published task never changes, so it is cached."""
        key = (tenant, f"{run.benchmark}@{run.version}", run.task)
        known = self._known.get(key)
        if known is not None:
            return known
        benchmark = self.find(tenant, key[1]).benchmark
        task = benchmark.task(run.task)
        if task is None:
            raise NotFound(f"no task {run.task!r} in {benchmark.name}")
        known = CompiledTask(benchmark, task, self.registrar.compile(task.success_criteria))
        self._known.put(key, known)
        return known


def select_tasks(benchmark: Benchmark, wanted: Sequence[str] | None) -> list[Task]:
    """Select tasks by id, or all when none is named; raises NotFound."""
    if wanted is None:
        return list(benchmark.tasks)
    found = [benchmark.task(name) for name in dict.fromkeys(wanted)]
    lacking = [name for name, task in zip(dict.fromkeys(wanted), found, strict=True) if task is None]
    if lacking or not found:
        known = ", ".join(task.id for task in benchmark.tasks)
        raise NotFound(f"{benchmark.name} has no task {', '.join(map(repr, lacking)) or 'chosen'}; it has {known}")
    return [task for task in found if task is not None]


def validate_benchmark(benchmark: Benchmark) -> None:
    """Raise UnsupportedCriteria if an assertion of a task cannot run, or uses a name that nothing defines."""
    problems = [
        Problem(f"tasks[{number}].criteria[{place}].{'.'.join(map(str, where))}", why)
        for number, task in enumerate(benchmark.tasks)
        for place, criterion in enumerate(task.criteria)
        if criterion.assertion is not None
        for where, why in faults_of(criterion.assertion)
    ] or [Problem(format_path(path), why) for path, why in islice(find_unknown_names(benchmark), MAX_PROBLEMS)]
    if problems:
        raise UnsupportedCriteria("benchmark", problems)
