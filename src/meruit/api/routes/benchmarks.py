"""`/v1/benchmarks`: published, immutable benchmarks with their tasks and criteria. Agents may not read them.

An edit publishes a new version. Deleting one hides it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.auth import OPERATORS, READERS
from meruit.api.problems import MAX_ERRORS
from meruit.api.request import ApiRequest, Service
from meruit.api.wire.common import (
    BENCHMARK_NAME,
    BENCHMARK_SLUG,
    Body,
    Key,
    Limit,
    PageCursor,
    json_response,
    to_document,
)
from meruit.benchmarks import records as benchmarks
from meruit.benchmarks.edits import BenchmarkChanges, apply_changes
from meruit.benchmarks.published import plan_deletion
from meruit.benchmarks.records import BenchmarkView, DeletedBenchmark
from meruit.documents.authoring import parse_benchmark
from meruit.errors import ApiProblem, DocumentError, NotFound, Problem, UnsupportedCriteria
from meruit.model.canonical import canonical
from meruit.model.decoding import convert_to
from meruit.model.record import Record
from meruit.model.task import MAX_ATTACHMENTS, MAX_TASKS, MAX_VERSION, Benchmark, Task, TaskSource
from meruit.playground.environment import CONFIGURED, seed_of
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.store.recorder import Write
from meruit.web.parameters import JSONBody, PathParameter
from meruit.web.responses import Response
from meruit.web.routing import delete, get, patch, post, put

BenchmarkPath = Annotated[
    str, PathParameter(pattern=BENCHMARK_NAME, description="`slug@version`, or `slug` for the newest.")
]
SlugPath = Annotated[str, PathParameter(pattern=BENCHMARK_SLUG, description="The name, without a version.")]
# Any: the parser of benchmark files checks what a task and an attachment may contain.
Attachments = Annotated[dict[str, str | dict[str, Any]], Meta(max_length=MAX_ATTACHMENTS)]
BaseVersion = Annotated[
    int,
    Meta(ge=0, le=MAX_VERSION, description="The version that you have read; 409 if it is not the newest any more."),
]
TaskPath = Annotated[str, PathParameter(pattern=BENCHMARK_SLUG)]


class BenchmarkRequest(Body, frozen=True, omit_defaults=True):
    """A benchmark, as in its file."""

    benchmark: Annotated[str, Meta(pattern=BENCHMARK_SLUG, description="Its name.")]
    # Any: the parser of benchmark files checks what a task may contain.
    tasks: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_TASKS)]
    version: Annotated[int, Meta(ge=1, le=MAX_VERSION)] = 1
    title: str = ""
    description: str = ""
    attachments: Attachments = msgspec.field(default_factory=dict)
    """The files that seeds refer to: text, or `{"base64": …}`."""


class BenchmarkReplacement(Body, frozen=True, omit_defaults=True):
    """The whole content of a benchmark's next version."""

    # Any: as above.
    tasks: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MAX_TASKS)]
    title: str = ""
    description: str = ""
    attachments: Attachments = msgspec.field(default_factory=dict)
    """The files that seeds refer to: text, or `{"base64": …}`."""
    base_version: BaseVersion | None = None


class BenchmarkPatch(Body, frozen=True, omit_defaults=True):
    """Changes to a benchmark's newest version; what is not named stays as it is."""

    title: str | None = None
    description: str | None = None
    # Any: as above.
    tasks: Annotated[list[dict[str, Any]], Meta(max_length=MAX_TASKS)] = msgspec.field(default_factory=list)
    """Tasks that are added, or replace those of the same id."""
    remove_tasks: Annotated[list[str], Meta(max_length=MAX_TASKS)] = msgspec.field(default_factory=list)
    attachments: Attachments = msgspec.field(default_factory=dict)
    """Files that are added, or replace those of the same name."""
    remove_attachments: Annotated[list[str], Meta(max_length=MAX_ATTACHMENTS)] = msgspec.field(default_factory=list)
    base_version: BaseVersion | None = None


class BenchmarkReply(Record, frozen=True):
    """A benchmark with its document."""

    benchmark: str
    version: int
    digest: str
    title: str
    created_at: str
    created_by: str
    deleted_at: str | None
    """When it was hidden; its runs keep it."""
    # Any: as its author wrote it.
    document: dict[str, Any]


class BenchmarkPage(Record, frozen=True):
    """Benchmarks without their tasks, the last published first."""

    benchmarks: list[BenchmarkView]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


class TaskReply(Record, frozen=True):
    """One task with its document."""

    benchmark: str
    version: int
    # Any: as its author wrote it.
    task: dict[str, Any]


@post("/v1/benchmarks", status_code=201, guards=[OPERATORS], summary="Publish a benchmark", tags=["benchmarks"])
async def publish_benchmark(
    data: JSONBody[BenchmarkRequest], request: ApiRequest, key: Key = None
) -> Response[BenchmarkView]:
    """Publish a benchmark under its name and version. It cannot be changed; the same document again has no effect."""
    service = request.service

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        # A large benchmark would block the event loop.
        benchmark = await asyncio.to_thread(_parse_benchmark, to_document(data), service)
        view = await service.benchmarks.publish(request.caller.tenant, request.actor.by, benchmark)
        return await request.store_reply(once, msgspec.json.encode(view))

    return await request.answer_once(key, 201, act)


@get("/v1/benchmarks", guards=[READERS], summary="List benchmarks", tags=["benchmarks"])
async def list_benchmarks(request: ApiRequest, before: PageCursor = None, limit: Limit = 50) -> Response[BenchmarkPage]:
    """List every version of every benchmark, the last published first."""
    tenant = request.caller.tenant
    found = await request.service.read(
        lambda connection: benchmarks.page_published(connection, tenant, before=before, limit=limit)
    )
    return json_response(BenchmarkPage(found, found[-1].seq if len(found) == limit else None))


@get("/v1/benchmarks/{benchmark:str}", guards=[READERS], summary="Read a benchmark", tags=["benchmarks"])
async def read_benchmark(benchmark: BenchmarkPath, request: ApiRequest) -> Response[BenchmarkReply]:
    """Read a benchmark with its tasks, seeds and criteria."""

    def ask() -> bytes:
        view, found = request.service.benchmarks.find(request.caller.tenant, benchmark)
        document = found.model_dump(exclude_defaults=True, mode="json", by_alias=True)
        fields = {name: getattr(view, name) for name in BenchmarkReply.__struct_fields__ if name != "document"}
        return msgspec.json.encode(fields | {"document": {**document, "version": view.version}})

    return json_response(await asyncio.to_thread(ask))


@put("/v1/benchmarks/{benchmark:str}", guards=[OPERATORS], summary="Replace a benchmark", tags=["benchmarks"])
async def replace_benchmark(
    benchmark: SlugPath, data: JSONBody[BenchmarkReplacement], request: ApiRequest, key: Key = None
) -> Response[BenchmarkView]:
    """Publish the next version of a benchmark. Earlier versions and their runs stay as they are.

    The content of the newest version again has no effect.
    """
    written = to_document(data)
    written.pop("base_version", None)

    def replace(_before: Benchmark | None) -> dict[str, Any]:
        return {**written, "benchmark": benchmark}

    return await _edit(request, benchmark, replace, data.base_version, key)


@patch("/v1/benchmarks/{benchmark:str}", guards=[OPERATORS], summary="Change a benchmark", tags=["benchmarks"])
async def change_benchmark(
    benchmark: SlugPath, data: JSONBody[BenchmarkPatch], request: ApiRequest, key: Key = None
) -> Response[BenchmarkView]:
    """Publish the next version of a benchmark with some changes: texts, and tasks or attachments by their names."""
    changes = convert_to({name: getattr(data, name) for name in BenchmarkChanges.__struct_fields__}, BenchmarkChanges)

    def change(before: Benchmark | None) -> dict[str, Any]:
        if before is None:
            raise NotFound(f"no benchmark {benchmark}")
        return apply_changes(before, changes)

    return await _edit(request, benchmark, change, data.base_version, key)


@delete(
    "/v1/benchmarks/{benchmark:str}",
    status_code=200,
    guards=[OPERATORS],
    summary="Delete a benchmark",
    tags=["benchmarks"],
)
async def delete_benchmark(
    benchmark: BenchmarkPath, request: ApiRequest, key: Key = None
) -> Response[DeletedBenchmark]:
    """Hide one version of a benchmark, or all. It is not listed and not run any more.

    Its runs stay on record with their version, which can still be read by `slug@version`. Refused with 409 while
    task runs of it have not ended. A version that was deleted is not given out again.
    """
    await request.require_no_body()
    plan = plan_deletion(request.caller.tenant, benchmark)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.write_once(once, plan, msgspec.json.encode)

    return await request.answer_once(key, 200, act)


async def _edit(
    request: ApiRequest,
    slug: str,
    # Any: a document that has not been parsed yet.
    make: Callable[[Benchmark | None], dict[str, Any]],
    base: int | None,
    key: str | None,
) -> Response[Any]:
    """Publish an edit as the next version, once per idempotency key."""
    service = request.service

    def parse(before: Benchmark | None) -> Benchmark:
        return _parse_benchmark(make(before), service)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        def record(plan: Write[BenchmarkView]) -> Awaitable[bytes | IdempotentReplay]:
            return request.write_once(once, plan, msgspec.json.encode)

        library = service.benchmarks.library
        return await library.edit(request.caller.tenant, request.actor.by, slug, parse, record=record, base=base)

    return await request.answer_once(key, 200, act)


@get("/v1/tasks/{benchmark:str}/{task:str}", guards=[READERS], summary="Read a task", tags=["benchmarks"])
async def read_task(benchmark: BenchmarkPath, task: TaskPath, request: ApiRequest) -> Response[TaskReply]:
    """Read one task of a benchmark: its instruction and its criteria."""

    def ask() -> bytes:
        found = request.service.benchmarks.find(request.caller.tenant, benchmark).benchmark
        one = found.task(task)
        if one is None:
            raise NotFound(f"no task {task!r} in {found.name}")
        document = one.model_dump(exclude_defaults=True, mode="json", by_alias=True)
        return msgspec.json.encode({"benchmark": found.benchmark, "version": found.version, "task": document})

    return json_response(await asyncio.to_thread(ask))


def _parse_benchmark(written: Mapping[str, Any], service: Service) -> Benchmark:
    """Parse a benchmark; raises ApiProblem, or UnsupportedCriteria for assertions that do not run."""
    try:
        benchmark = parse_benchmark(written)
    except DocumentError as refused:
        if _is_benchmark(written):
            # Only its assertions are wrong.
            raise UnsupportedCriteria(refused.name, refused.problems) from None
        detail = "; ".join(str(problem) for problem in refused.problems[:MAX_ERRORS])
        raise ApiProblem(400, "bad_benchmark", detail, errors=refused.problems) from None
    problems = [*_source_problems(benchmark, service.hosting.sources)]
    if problems:
        detail = "a published benchmark may read only playgrounds and sources that the operator configured"
        raise ApiProblem(422, "unknown_source", detail, errors=problems)
    problems = [*_seed_problems(benchmark)]
    if problems:
        raise ApiProblem(422, "bad_seed", "the seed of a task is not valid", errors=problems)
    return benchmark


def _is_benchmark(written: Mapping[str, Any]) -> bool:
    try:
        Benchmark.model_validate(written)
    except ValueError:
        return False
    return True


def _source_problems(benchmark: Benchmark, configured: Mapping[str, TaskSource]) -> Iterator[Problem]:
    """Problems of each source that is not a playground."""
    for number, task in enumerate(benchmark.tasks):
        for name, source in task.sources.items():
            if source.at is not None and (why := _source_problem(source, configured)) is not None:
                yield Problem(f"tasks[{number}].sources.{name}", why)


def _source_problem(source: TaskSource, configured: Mapping[str, TaskSource]) -> str | None:
    address = source.at or ""
    if not address.startswith(CONFIGURED):
        return f"a benchmark may not name an address; write at: {CONFIGURED}NAME"
    found = configured.get(address.removeprefix(CONFIGURED))
    if found is None:
        return f"no configured source is named {address.removeprefix(CONFIGURED)[:100]!r}"
    if found.kind is not source.kind:
        return f"the configured source has the kind {found.kind}, not {source.kind}"
    if source.model_dump(exclude_defaults=True, exclude={"kind", "at"}):
        return "a configured source has only a kind here; remove the other fields"
    return None


def _seed_problems(benchmark: Benchmark) -> Iterator[Problem]:
    """Problems of each seed; a seed that several tasks share is read once."""
    read = set[bytes]()
    for number, task in enumerate(benchmark.tasks):
        mark = canonical(task.seed)
        if mark not in read:
            read.add(mark)
            yield from _task_seed_problems(benchmark, task, f"tasks[{number}].seed")


def _task_seed_problems(benchmark: Benchmark, task: Task, where: str) -> Iterator[Problem]:
    try:
        seed_of(benchmark, task)
    except DocumentError as refused:
        yield from (Problem(f"{where}: {one.where}" if one.where else where, one.message) for one in refused.problems)
