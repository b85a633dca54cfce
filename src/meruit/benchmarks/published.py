"""Publish benchmarks, find them by name, and compile their tasks when needed. A published version never changes."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import TypeVar

import msgspec

from meruit.benchmarks.formula_names import find_unknown_names
from meruit.benchmarks.store import published
from meruit.benchmarks.store.published import BenchmarkView, DeleteBenchmark, PublishBenchmark, PublishedBenchmark
from meruit.documents.document import MAX_PROBLEMS
from meruit.documents.tree import format_path
from meruit.errors import BadBenchmark, BenchmarkChanged, NotFound, Problem, UnsupportedCriteria
from meruit.model.canonical import canonical, digest
from meruit.model.task import MAX_VERSION, Benchmark, Task, practice_slug, slug_of_practice, split_name
from meruit.model.task_run import TaskRun
from meruit.outcomes.service import Registrar
from meruit.registry import faults_of
from meruit.store.lru import LruCache
from meruit.store.recorder import Write
from meruit.store.store import Store
from meruit.verify.catalogue import CompiledCriteria

MAX_KNOWN = 256
"""How many compiled tasks are cached."""
MAX_READ = 8
"""How many benchmarks are cached."""
MAX_EDIT_TRIES = 5
"""How often an edit starts again because another version was published meanwhile."""

BenchmarkEdit = Callable[[Benchmark | None], Benchmark]
"""Makes the next version from the newest one; None if there is none, or it was deleted."""
_T = TypeVar("_T")


class CompiledTask(msgspec.Struct, frozen=True):
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
        practice = msgspec.structs.replace(await asyncio.to_thread(self._plan, tenant, by, own), practice=True)
        await self.store.recorder.record(practice)
        return own

    def publication(self, tenant: str, by: str, benchmark: Benchmark) -> PublishBenchmark:
        """Plan a publication, without recording it."""
        if slug_of_practice(benchmark.benchmark) is not None:
            raise BadBenchmark(f"{benchmark.benchmark} is a name of practice; publish it under another name")
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

    def plan_edit(
        self, tenant: str, by: str, slug: str, edit: BenchmarkEdit, *, base: int | None = None
    ) -> PublishBenchmark:
        """Plan the next version of a benchmark; an edit that changes nothing plans the newest one again.

        `base` is the version that the editor has read. Raises BenchmarkChanged if it is not the newest any more,
        NotFound, and what `publication` and the edit raise.
        """
        newest = self.newest(tenant, slug)
        if not newest:
            raise NotFound(f"no benchmark {slug}; publish its first version, then edit it")
        try:
            before = self.find(tenant, slug)
        except NotFound:
            before = None
        visible = 0 if before is None else before.view.version
        if base is not None and base != visible:
            raise BenchmarkChanged(f"the newest version of {slug} is {visible}, not {base}; read it, and edit that one")
        edited = edit(None if before is None else before.benchmark)
        if before is not None and newest == visible:
            same = self.publication(tenant, by, edited.model_copy(update={"version": visible}))
            if same.digest == before.view.digest:
                return same
        if newest >= MAX_VERSION:
            raise BadBenchmark(f"{slug}@{newest} has the highest version there is; publish it under another name")
        return msgspec.structs.replace(
            self.publication(tenant, by, edited.model_copy(update={"version": newest + 1})), follows=newest
        )

    async def edit(
        self,
        tenant: str,
        by: str,
        slug: str,
        edit: BenchmarkEdit,
        *,
        record: Callable[[Write[BenchmarkView]], Awaitable[_T]],
        base: int | None = None,
    ) -> _T:
        """Record an edit as the next version. An editor who was overtaken, and named no base, edits the newer one."""
        for _ in range(MAX_EDIT_TRIES):
            plan = await asyncio.to_thread(lambda: self.plan_edit(tenant, by, slug, edit, base=base))
            try:
                return await record(plan)
            except BenchmarkChanged:
                if base is not None:
                    raise
        raise BenchmarkChanged(f"{slug} is being edited by others; try again in a moment")

    def newest(self, tenant: str, slug: str) -> int:
        """Return the newest version of a benchmark, deleted ones included; 0 if there is none."""
        with self.store.database.reading() as connection:
            return published.newest_version(connection, tenant, slug)

    def find(self, tenant: str, name: str) -> PublishedBenchmark:
        """Find a benchmark by `slug@version`, or the newest version of `slug` that is not deleted; raises NotFound."""
        parts = _split(name)
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
        known = CompiledTask(benchmark=benchmark, task=task, ready=self.registrar.compile(task.success_criteria))
        self._known.put(key, known)
        return known


def plan_deletion(tenant: str, name: str) -> DeleteBenchmark:
    """Plan the deletion of `slug@version`, or of all versions of `slug`; raises NotFound for another name."""
    return DeleteBenchmark(tenant, *_split(name))


def _split(name: str) -> tuple[str, int | None]:
    parts = split_name(name)
    if parts is None:
        raise NotFound(f"no benchmark {name!r}; write slug@version")
    return parts


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
