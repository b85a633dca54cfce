"""`/v1/benchmark-runs`, `/v1/task-runs` and `/v1/criterion-runs`: runs of benchmark tasks.

The completion of a scored run reveals no criteria to any caller, and agents never see them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.listing import SinceQuery, UntilQuery, parse_span
from meruit.api.request import ApiRequest
from meruit.api.routes.contracts import PARTIES, validate_reason
from meruit.api.wire.common import BENCHMARK_SLUG, Key, LabelQuery, Limit, PageCursor, anchor_pattern, json_response
from meruit.api.wire.task_runs import (
    AgentBenchmarkRun,
    AgentBenchmarkRunPage,
    AgentTaskRun,
    AgentTaskRunPage,
    BenchmarkRunPage,
    BenchmarkRunRequest,
    CreatedBenchmarkRun,
    CriterionRuns,
    RejudgeRequest,
    StartedTaskRun,
    TaskRunPage,
    TaskRunRequest,
    benchmark_run_to_agent,
    parse_answer,
    render_created_benchmark_run,
    render_started_task_run,
    task_run_to_agent,
)
from meruit.benchmarks import records as runs
from meruit.benchmarks.records import CreateRuns, TaskRunFilter
from meruit.errors import (
    ApiProblem,
    BenchmarkTaken,
    DocumentError,
    IdempotencyConflict,
    MeruitError,
    NotFound,
    RecordTampered,
    StoreError,
    StoreUnavailable,
    TaskRunStateError,
    Unreachable,
)
from meruit.model.access import Role, Scope
from meruit.model.task import Reveal
from meruit.model.task_run import BenchmarkRun, Completion, CriterionRun, RunStatus, TaskRun, TaskRunProgress
from meruit.model.verdict import Verdict
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.store.paging import ListPage
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

TASK_RUN_ID, BENCHMARK_RUN_ID, CRITERION_RUN_ID = (
    anchor_pattern(f"{kind}_[0-9a-f]{{34}}") for kind in ("trn", "brn", "crn")
)
TaskRunId = Annotated[str, PathParameter(pattern=TASK_RUN_ID)]
BenchmarkRunId = Annotated[str, PathParameter(pattern=BENCHMARK_RUN_ID)]
BenchmarkRunQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_RUN_ID, required=False)]
CriterionRunId = Annotated[str, PathParameter(pattern=CRITERION_RUN_ID)]
SlugQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_SLUG, required=False)]
RereadQuery = Annotated[
    bool, QueryParameter(required=False, description="Read again the systems that could not be read.")
]
StatusQuery = Annotated[RunStatus | None, QueryParameter(required=False)]


# Benchmark runs


@post("/v1/benchmark-runs", status_code=201, guards=[OPERATORS], summary="Create a benchmark run", tags=["runs"])
async def create_benchmark_run(
    data: JSONBody[BenchmarkRunRequest], request: ApiRequest, key: Key = None
) -> Response[CreatedBenchmarkRun]:
    """Create task runs for each task and repeat. They are not started."""
    service, actor = request.service, request.actor

    def plan() -> CreateRuns:
        return service.benchmarks.plan(
            actor.tenant,
            actor.by,
            data.benchmark,
            tasks=data.tasks,
            repeats=data.repeats,
            scored=data.scored,
            agent_id=data.agent_id,
        )

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            wish = await run_in_reader_thread(plan)
        return await request.write_once(once, wish, lambda made: render_created_benchmark_run(wish, made))

    return await request.answer_once(key, 201, act)


@get("/v1/benchmark-runs", guards=[ANYONE], summary="List benchmark runs", tags=["runs"])
async def list_benchmark_runs(
    request: ApiRequest, benchmark: SlugQuery = None, before: PageCursor = None, limit: Limit = 50
) -> Response[BenchmarkRunPage | AgentBenchmarkRunPage]:
    """List the newest benchmark runs, of one benchmark if given; an agent sees its own."""
    scope = request.caller.scope

    def ask(connection: Connection) -> list[BenchmarkRun]:
        return runs.benchmark_run_page(connection, scope, slug=benchmark, before=before, limit=limit)

    found = await request.service.read(ask)
    last = found[-1].seq if len(found) == limit else None
    if request.caller.role is Role.AGENT:
        return json_response(AgentBenchmarkRunPage([benchmark_run_to_agent(one) for one in found], last))
    return json_response(BenchmarkRunPage(found, last))


@get("/v1/benchmark-runs/{benchmark_run_id:str}", guards=[ANYONE], summary="Read a benchmark run", tags=["runs"])
async def read_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: ApiRequest
) -> Response[BenchmarkRun | AgentBenchmarkRun]:
    """Read the progress of a benchmark run and, once every task run has ended, its result."""
    return json_response(await run_in_reader_thread(_visible_benchmark_run, request, benchmark_run_id))


@post(
    "/v1/benchmark-runs/{benchmark_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Cancel a benchmark run",
    tags=["runs"],
)
async def cancel_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: ApiRequest, key: Key = None
) -> Response[BenchmarkRun]:
    """Cancel its task runs that have not ended; they do not count."""
    await request.require_no_body()
    service, scope = request.service, request.caller.scope

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        several = await run_in_reader_thread(service.benchmarks.reader.task_runs, scope, benchmark_run_id)
        await service.benchmarks.cancel(scope.tenant, [run.id for run in several])
        found = await run_in_reader_thread(service.benchmarks.reader.benchmark_run, scope, benchmark_run_id)
        return await request.store_reply(once, msgspec.json.encode(found))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/benchmark-runs/{benchmark_run_id:str}/resume",
    status_code=200,
    guards=[OPERATORS],
    summary="Resume a benchmark run",
    tags=["runs"],
)
async def resume_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: ApiRequest, key: Key = None
) -> Response[BenchmarkRun]:
    """Return its running task runs to pending, for agents that were lost. Each can start again in a new environment.

    Task runs that have ended, or are being judged, stay unchanged, so nothing counts twice.
    """
    await request.require_no_body()
    service, scope = request.service, request.caller.scope

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        several = await run_in_reader_thread(service.benchmarks.reader.task_runs, scope, benchmark_run_id)
        await service.benchmarks.requeue(scope.tenant, [run.id for run in several])
        found = await run_in_reader_thread(service.benchmarks.reader.benchmark_run, scope, benchmark_run_id)
        return await request.store_reply(once, msgspec.json.encode(found))

    return await request.answer_once(key, 200, act)


# Task runs


@post("/v1/task-runs", status_code=201, guards=[OPERATORS], summary="Create a task run", tags=["runs"])
async def create_task_run(data: JSONBody[TaskRunRequest], request: ApiRequest, key: Key = None) -> Response[TaskRun]:
    """Create one run of one task, without starting it."""
    service, actor = request.service, request.actor

    def plan() -> CreateRuns:
        about = (actor.tenant, actor.by, data.benchmark, data.task)
        return service.benchmarks.plan_one(*about, scored=data.scored, agent_id=data.agent_id)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.write_once(
            once, await run_in_reader_thread(plan), lambda made: msgspec.json.encode(made[0])
        )

    return await request.answer_once(key, 201, act)


@get("/v1/task-runs", guards=[ANYONE], summary="List task runs", tags=["runs"])
async def list_task_runs(  # noqa: PLR0913 - one a filter
    request: ApiRequest,
    benchmark_run_id: BenchmarkRunQuery = None,
    agent_id: LabelQuery = None,
    status: StatusQuery = None,
    benchmark: LabelQuery = None,
    task: LabelQuery = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[TaskRunPage | AgentTaskRunPage]:
    """List the newest task runs. Several filters must all hold. An agent sees its own."""
    scope = request.caller.scope
    wanted = TaskRunFilter(
        benchmark_run_id,
        agent_id,
        None if status is None else str(status),
        benchmark,
        task,
        *parse_span(since, until),
    )

    def ask(connection: Connection) -> ListPage[TaskRun]:
        return runs.page(connection, scope, wanted=wanted, before=before, limit=limit)

    found, following = await request.service.read(ask)
    return json_response({"task_runs": [_visible_task_run(request, one) for one in found], "next": following})


@get("/v1/task-runs/{task_run_id:str}", guards=[ANYONE], summary="Read a task run", tags=["runs"])
async def read_task_run(task_run_id: TaskRunId, request: ApiRequest) -> Response[TaskRun | AgentTaskRun]:
    """Read a task run; an agent sees its own, as far as the task reveals it."""
    found = await run_in_reader_thread(request.service.benchmarks.reader.run, request.caller.scope, task_run_id)
    return json_response(_visible_task_run(request, found))


@post(
    "/v1/task-runs/{task_run_id:str}/start",
    status_code=200,
    guards=[PARTIES],
    summary="Start a task run",
    tags=["runs"],
)
async def start_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[StartedTaskRun]:
    """Create the environment that the agent acts on, and start its time."""
    await request.require_no_body()
    service, caller = request.service, request.caller

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            started = await service.benchmarks.start(caller.scope, task_run_id)
        if started.run.playground_id is not None:
            await service.hosting.record_owner(started.run.playground_id, caller.tenant, task_run_id)
        stored = await request.store_reply(once, b"")
        return stored if isinstance(stored, IdempotentReplay) else render_started_task_run(started)

    # The secret of the playground is not stored with the idempotency key.
    return await request.answer_once(key, 200, act, render_again=lambda: _render_access(request, task_run_id))


@get("/v1/task-runs/{task_run_id:str}/access", guards=[PARTIES], summary="Read how to access a task run", tags=["runs"])
async def read_task_run_access(task_run_id: TaskRunId, request: ApiRequest) -> Response[StartedTaskRun]:
    """Read the reply to the start again, while the run is running."""
    return json_response(await _render_access(request, task_run_id))


@get(
    "/v1/task-runs/{task_run_id:str}/progress",
    guards=[ANYONE],
    summary="Read the progress of a task run",
    tags=["runs"],
)
async def read_task_run_progress(task_run_id: TaskRunId, request: ApiRequest) -> Response[TaskRunProgress]:
    """Read what happens to a task run now: its state, its seconds and the last event of its environment.

    Ask again as often as you like, or follow `/v1/events/stream` for changes of state. An agent sees its own runs,
    without the event.
    """
    found = await request.service.benchmarks.progress(request.caller.scope, task_run_id)
    if request.caller.role is Role.AGENT:
        found = msgspec.structs.replace(found, last_event=None)
    return json_response(found)


@post(
    ["/v1/task-runs/{task_run_id:str}/complete", "/task-runs/{task_run_id:str}/complete"],
    status_code=200,
    guards=[PARTIES],
    summary="Complete a task run",
    tags=["runs"],
)
async def complete_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[Completion]:
    """Judge what the agent did, and its `answer` if it sends one. An ended run is returned unchanged.

    The body is optional: `{"answer": …}`, text or JSON. A scored run shows no details.
    """
    answer = parse_answer(await request.body())
    service, caller = request.service, request.caller

    async def render_again() -> bytes:
        run = await run_in_reader_thread(service.benchmarks.reader.run, caller.scope, task_run_id)
        return await _render_completion(request, run)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            run = await service.benchmarks.complete(
                caller.scope, task_run_id, answer=answer, judged=_verdict_counter(request)
            )
        stored = await request.store_reply(once, b"")
        return stored if isinstance(stored, IdempotentReplay) else await _render_completion(request, run)

    # Evidence that is stored twice would have to be erased twice.
    return await request.answer_once(key, 200, act, render_again=render_again)


@post(
    "/v1/task-runs/{task_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Cancel a task run",
    tags=["runs"],
)
async def cancel_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[TaskRun]:
    """End a task run without a verdict; it does not count. An ended run stays unchanged."""
    await request.require_no_body()

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        (run,) = await request.service.benchmarks.cancel(request.caller.tenant, [task_run_id])
        return await request.store_reply(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/task-runs/{task_run_id:str}/recheck",
    status_code=200,
    guards=[OPERATORS],
    summary="Recheck a task run",
    tags=["runs"],
)
async def recheck_task_run(
    task_run_id: TaskRunId,
    request: ApiRequest,
    reread: RereadQuery = False,  # noqa: FBT002 - given by name
    key: Key = None,
) -> Response[TaskRun]:
    """Judge a run again that could not be judged completely, from the recorded evidence.

    With `reread=true`, the systems that could not be read are read now. Later changes in them count too, so the record
    says when they were read.
    """
    await request.require_no_body()

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            tenant, benchmarks = request.caller.tenant, request.service.benchmarks
            run = await benchmarks.recheck(
                tenant, task_run_id, reread=reread, judged=_verdict_counter(request, recording=reread)
            )
        return await request.store_reply(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/task-runs/{task_run_id:str}/rejudge",
    status_code=200,
    guards=[OPERATORS],
    summary="Rejudge a task run",
    tags=["runs"],
)
async def rejudge_task_run(
    task_run_id: TaskRunId, data: JSONBody[RejudgeRequest], request: ApiRequest, key: Key = None
) -> Response[TaskRun]:
    """Judge the recorded evidence again, by the same or another version of the criteria. The first verdict is kept."""
    reason = validate_reason(data.reason)

    async def judge() -> bytes:
        with _translate_errors(request):
            tenant, benchmarks = request.caller.tenant, request.service.benchmarks
            judged = _verdict_counter(request, recording=False)
            run = await benchmarks.rejudge(tenant, task_run_id, reason, data.benchmark, judged=judged)
        return msgspec.json.encode(run)

    return await request.answer_once(key, 200, lambda once: request.act_once(once, judge))


@get(
    "/v1/task-runs/{task_run_id:str}/criterion-runs",
    guards=[READERS],
    summary="List the criterion runs of a task run",
    tags=["runs"],
)
async def list_criterion_runs(task_run_id: TaskRunId, request: ApiRequest) -> Response[CriterionRuns]:
    """List every criterion of a completed run with its evidence; not for agents."""
    tenant, benchmarks = request.caller.tenant, request.service.benchmarks

    def ask() -> list[CriterionRun]:
        return benchmarks.reader.criterion_runs(tenant, benchmarks.reader.run(Scope(tenant), task_run_id))

    return json_response(CriterionRuns(await run_in_reader_thread(ask)))


@get(
    ["/v1/criterion-runs/{criterion_run_id:str}", "/criterion-runs/{criterion_run_id:str}"],
    guards=[READERS],
    summary="Read a criterion run",
    tags=["runs"],
)
async def read_criterion_run(criterion_run_id: CriterionRunId, request: ApiRequest) -> Response[CriterionRun]:
    """Read one criterion with its evidence; not for agents."""
    return json_response(
        await run_in_reader_thread(
            request.service.benchmarks.reader.criterion_run, request.caller.tenant, criterion_run_id
        )
    )


# Replies


def _visible_benchmark_run(request: ApiRequest, run_id: str) -> BenchmarkRun | AgentBenchmarkRun:
    benchmarks, scope = request.service.benchmarks, request.caller.scope
    found = benchmarks.reader.benchmark_run(scope, run_id)
    if request.caller.role is not Role.AGENT:
        return found
    reveals = not found.scored or all(
        run.reveal is not Reveal.NONE for run in benchmarks.reader.task_runs(scope, run_id)
    )
    return benchmark_run_to_agent(found, shows_result=reveals)


def _visible_task_run(request: ApiRequest, run: TaskRun) -> TaskRun | AgentTaskRun:
    return task_run_to_agent(run) if request.caller.role is Role.AGENT else run


async def _render_access(request: ApiRequest, run_id: str) -> bytes:
    with _translate_errors(request):
        return render_started_task_run(await request.service.benchmarks.access(request.caller.scope, run_id))


async def _render_completion(request: ApiRequest, run: TaskRun) -> bytes:
    completed = await run_in_reader_thread(request.service.benchmarks.reader.completion, request.caller.tenant, run)
    return msgspec.json.encode(completed)


def _verdict_counter(request: ApiRequest, *, recording: bool = True) -> Callable[[Verdict], None]:
    """Build the function that counts verdicts and recorded outcomes."""
    instruments, tenant = request.service.instruments, request.caller.tenant

    def count(verdict: Verdict) -> None:
        instruments.verdicts_total.labels(verdict.value, tenant).inc()
        instruments.recorded_total.labels(tenant).inc(int(recording))

    return count


@contextmanager
def _translate_errors(request: ApiRequest) -> Iterator[None]:
    """Translate errors of runs. An agent gets no details, because they may name a criterion or a seed."""
    by_agent = request.caller.role is Role.AGENT
    try:
        yield
    except (
        *(NotFound, TaskRunStateError, BenchmarkTaken, RecordTampered),
        *(ApiProblem, IdempotencyConflict, StoreUnavailable),
    ):
        # These describe a state or the store, and reveal no criteria.
        raise
    except StoreError as refused:
        raise ApiProblem(410, "erased", "the evidence was erased" if by_agent else str(refused)) from None
    except Unreachable as refused:
        why = "the environment of this run does not answer; retry"
        raise ApiProblem(503, "unreachable", why if by_agent else str(refused), headers={"Retry-After": "1"}) from None
    except MeruitError as refused:
        problems = refused.problems if isinstance(refused, DocumentError) and not by_agent else ()
        why = "this task cannot be run here; report it to the operator"
        raise ApiProblem(422, "cannot_be_run", why if by_agent else str(refused), errors=problems) from None
