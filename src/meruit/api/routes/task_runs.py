"""`/v1/benchmark-runs`, `/v1/task-runs` and `/v1/criterion-runs`: agents at their tasks, and how they did.

What a run that counts is judged by is nobody's to learn from its completion, and no agent's to learn at all.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.request import ApiRequest
from meruit.api.routes.benchmarks import BENCHMARK_SLUG
from meruit.api.routes.contracts import PARTIES, validate_reason
from meruit.api.routes.task_runs_wire import (
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
    render_created_benchmark_run,
    render_started_task_run,
    task_run_to_agent,
)
from meruit.api.wire import Key, LabelQuery, Limit, PageCursor, anchor_pattern, json_response
from meruit.benchmarks.store import read as runs
from meruit.benchmarks.store.read import RunFilter
from meruit.benchmarks.store.transitions import CreateRuns
from meruit.errors import (
    ApiProblem,
    BenchmarkTaken,
    DocumentError,
    IdempotencyConflict,
    MeruitError,
    NotFound,
    StoreError,
    StoreUnavailable,
    TaskRunStateError,
    Unreachable,
)
from meruit.model.access import Role, Scope
from meruit.model.task import Reveal
from meruit.model.task_run import BenchmarkRun, Completion, CriterionRun, RunStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest

TASK_RUN_ID, BENCHMARK_RUN_ID, CRITERION_RUN_ID = (
    anchor_pattern(f"{kind}_[0-9a-f]{{34}}") for kind in ("trn", "brn", "crn")
)
TaskRunId = Annotated[str, PathParameter(pattern=TASK_RUN_ID)]
BenchmarkRunId = Annotated[str, PathParameter(pattern=BENCHMARK_RUN_ID)]
BenchmarkRunQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_RUN_ID, required=False)]
CriterionRunId = Annotated[str, PathParameter(pattern=CRITERION_RUN_ID)]
SlugQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_SLUG, required=False)]
RereadQuery = Annotated[bool, QueryParameter(required=False, description="Read anew what could not be read then.")]
StatusQuery = Annotated[RunStatus | None, QueryParameter(required=False)]


# Benchmark runs


@post("/v1/benchmark-runs", status_code=201, guards=[OPERATORS], summary="Begin a benchmark run", tags=["runs"])
async def create_benchmark_run(
    data: JSONBody[BenchmarkRunRequest], request: ApiRequest, key: Key = None
) -> Response[CreatedBenchmarkRun]:
    """Make a run of each task, as often as it is repeated; none of them is started by this."""
    service, actor = request.service, request.actor

    def plan() -> CreateRuns:
        return service.benchmarks.plan(
            *(actor.tenant, actor.by, data.benchmark),
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
    """The newest, of one benchmark if it is named; an agent sees its own."""
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
    """How far it is and, once every task run has ended, what it came to."""
    return json_response(await run_in_reader_thread(_visible_benchmark_run, request, benchmark_run_id))


@post(
    "/v1/benchmark-runs/{benchmark_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Give up a benchmark run",
    tags=["runs"],
)
async def cancel_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: ApiRequest, key: Key = None
) -> Response[BenchmarkRun]:
    """Cancel those of its task runs that have not ended; they do not count."""
    await request.require_no_body()
    service, scope = request.service, request.caller.scope

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        several = await run_in_reader_thread(service.benchmarks.task_runs, scope, benchmark_run_id)
        await service.benchmarks.cancel(scope.tenant, [run.id for run in several])
        found = await run_in_reader_thread(service.benchmarks.benchmark_run, scope, benchmark_run_id)
        return await request.store_reply(once, msgspec.json.encode(found))

    return await request.answer_once(key, 200, act)


# Task runs


@post("/v1/task-runs", status_code=201, guards=[OPERATORS], summary="Make a task run", tags=["runs"])
async def create_task_run(data: JSONBody[TaskRunRequest], request: ApiRequest, key: Key = None) -> Response[TaskRun]:
    """One run of one task, on its own and not started."""
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
async def list_task_runs(
    request: ApiRequest,
    benchmark_run_id: BenchmarkRunQuery = None,
    agent_id: LabelQuery = None,
    status: StatusQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[TaskRunPage | AgentTaskRunPage]:
    """The newest, at most one filter; an agent sees its own."""
    scope = request.caller.scope
    given = {RunFilter.BENCHMARK_RUN: benchmark_run_id, RunFilter.AGENT: agent_id, RunFilter.STATUS: status}
    wanted = [(by, str(value)) for by, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise ApiProblem(400, "too_many_filters", f"give one of {', '.join(RunFilter)}, not {len(wanted)}")

    def ask(connection: Connection) -> list[TaskRun]:
        return runs.page(connection, scope, by=wanted[0] if wanted else None, before=before, limit=limit)

    found = await request.service.read(ask)
    last = found[-1].seq if len(found) == limit else None
    return json_response({"task_runs": [_visible_task_run(request, one) for one in found], "next": last})


@get("/v1/task-runs/{task_run_id:str}", guards=[ANYONE], summary="Read a task run", tags=["runs"])
async def read_task_run(task_run_id: TaskRunId, request: ApiRequest) -> Response[TaskRun | AgentTaskRun]:
    """How it stands; to an agent, of its own, as far as the task reveals it."""
    found = await run_in_reader_thread(request.service.benchmarks.run, request.caller.scope, task_run_id)
    return json_response(_visible_task_run(request, found))


@post(
    "/v1/task-runs/{task_run_id:str}/start",
    status_code=200,
    guards=[PARTIES],
    summary="Start a task run",
    tags=["runs"],
)
async def start_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[StartedTaskRun]:
    """Make the world that the agent acts on, and let its time run."""
    await request.require_no_body()
    service, caller = request.service, request.caller

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            started = await service.benchmarks.start(caller.scope, task_run_id)
        if started.run.playground_id is not None:
            await service.hosting.record_owner(started.run.playground_id, caller.tenant, task_run_id)
        kept = await request.store_reply(once, b"")
        return kept if isinstance(kept, IdempotentReplay) else render_started_task_run(started)

    # The playground's secret is not kept with the key.
    return await request.answer_once(key, 200, act, anew=lambda: _render_access(request, task_run_id))


@get("/v1/task-runs/{task_run_id:str}/access", guards=[PARTIES], summary="Get in again", tags=["runs"])
async def read_task_run_access(task_run_id: TaskRunId, request: ApiRequest) -> Response[StartedTaskRun]:
    """What starting it answered, for as long as it runs."""
    return json_response(await _render_access(request, task_run_id))


@post(
    ["/v1/task-runs/{task_run_id:str}/complete", "/task-runs/{task_run_id:str}/complete"],
    status_code=200,
    guards=[PARTIES],
    summary="Complete a task run",
    tags=["runs"],
)
async def complete_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[Completion]:
    """Judge what the agent left behind. What has ended is told as it was; a run that counts tells no details."""
    await request.require_no_body()
    service, caller = request.service, request.caller

    async def anew() -> bytes:
        run = await run_in_reader_thread(service.benchmarks.run, caller.scope, task_run_id)
        return await _render_completion(request, run)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            run = await service.benchmarks.complete(caller.scope, task_run_id, judged=_verdict_counter(request))
        kept = await request.store_reply(once, b"")
        return kept if isinstance(kept, IdempotentReplay) else await _render_completion(request, run)

    # Evidence that is kept twice would have to be erased twice.
    return await request.answer_once(key, 200, act, anew=anew)


@post(
    "/v1/task-runs/{task_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Give up a task run",
    tags=["runs"],
)
async def cancel_task_run(task_run_id: TaskRunId, request: ApiRequest, key: Key = None) -> Response[TaskRun]:
    """End it without a verdict, so that it does not count; what has ended stays as it is."""
    await request.require_no_body()

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        (run,) = await request.service.benchmarks.cancel(request.caller.tenant, [task_run_id])
        return await request.store_reply(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/task-runs/{task_run_id:str}/recheck",
    status_code=200,
    guards=[OPERATORS],
    summary="Check a run again",
    tags=["runs"],
)
async def recheck_task_run(
    task_run_id: TaskRunId,
    request: ApiRequest,
    reread: RereadQuery = False,  # noqa: FBT002 - Litestar gives all by name
    key: Key = None,
) -> Response[TaskRun]:
    """Judge a run again that could not be judged whole, on what was found then.

    With `reread=true`, systems that could not be read then are read now. What happened to them since counts too, so the
    record says when they were read.
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
    summary="Judge a run anew",
    tags=["runs"],
)
async def rejudge_task_run(
    task_run_id: TaskRunId, data: JSONBody[RejudgeRequest], request: ApiRequest, key: Key = None
) -> Response[TaskRun]:
    """Judge what was found then once more, by its own criteria or another version's; the first verdict stays too."""
    reason = validate_reason(data.reason)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        with _translate_errors(request):
            tenant, benchmarks = request.caller.tenant, request.service.benchmarks
            judged = _verdict_counter(request, recording=False)
            run = await benchmarks.rejudge(tenant, task_run_id, reason, data.benchmark, judged=judged)
        return await request.store_reply(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@get("/v1/task-runs/{task_run_id:str}/criterion-runs", guards=[READERS], summary="List criterion runs", tags=["runs"])
async def list_criterion_runs(task_run_id: TaskRunId, request: ApiRequest) -> Response[CriterionRuns]:
    """Every criterion of a completed run, with all the evidence; never for agents."""
    tenant, benchmarks = request.caller.tenant, request.service.benchmarks

    def ask() -> list[CriterionRun]:
        return benchmarks.criterion_runs(tenant, benchmarks.run(Scope(tenant), task_run_id))

    return json_response(CriterionRuns(await run_in_reader_thread(ask)))


@get(
    ["/v1/criterion-runs/{criterion_run_id:str}", "/criterion-runs/{criterion_run_id:str}"],
    guards=[READERS],
    summary="Read a criterion run",
    tags=["runs"],
)
async def read_criterion_run(criterion_run_id: CriterionRunId, request: ApiRequest) -> Response[CriterionRun]:
    """One criterion with all the evidence; never for agents."""
    return json_response(
        await run_in_reader_thread(request.service.benchmarks.criterion_run, request.caller.tenant, criterion_run_id)
    )


# What is shown


def _visible_benchmark_run(request: ApiRequest, run_id: str) -> BenchmarkRun | AgentBenchmarkRun:
    benchmarks, scope = request.service.benchmarks, request.caller.scope
    found = benchmarks.benchmark_run(scope, run_id)
    if request.caller.role is not Role.AGENT:
        return found
    tells = not found.scored or all(run.reveal is not Reveal.NONE for run in benchmarks.task_runs(scope, run_id))
    return benchmark_run_to_agent(found, tells=tells)


def _visible_task_run(request: ApiRequest, run: TaskRun) -> TaskRun | AgentTaskRun:
    return task_run_to_agent(run) if request.caller.role is Role.AGENT else run


async def _render_access(request: ApiRequest, run_id: str) -> bytes:
    with _translate_errors(request):
        return render_started_task_run(await request.service.benchmarks.access(request.caller.scope, run_id))


async def _render_completion(request: ApiRequest, run: TaskRun) -> bytes:
    completed = await run_in_reader_thread(request.service.benchmarks.completion, request.caller.tenant, run)
    return msgspec.json.encode(completed)


def _verdict_counter(request: ApiRequest, *, recording: bool = True) -> Callable[[Verdict], None]:
    """Who counts the verdicts that are given, and the outcomes that are recorded with them."""
    instruments = request.service.instruments

    def count(verdict: Verdict) -> None:
        instruments.verdicts_total.labels(verdict.value).inc()
        instruments.recorded_total.inc(int(recording))

    return count


@contextmanager
def _translate_errors(request: ApiRequest) -> Iterator[None]:
    """Tell what cannot be done here; an agent hears only that, for a problem may name a criterion or a seed."""
    by_agent = request.caller.role is Role.AGENT
    try:
        yield
    except (NotFound, TaskRunStateError, BenchmarkTaken, ApiProblem, IdempotencyConflict, StoreUnavailable):
        # Each tells of a state or of the store, and of nothing that a run is judged by.
        raise
    except StoreError as refused:
        raise ApiProblem(410, "erased", "the evidence was erased" if by_agent else str(refused)) from None
    except Unreachable as refused:
        why = "the world of this run does not answer just now; try again"
        raise ApiProblem(503, "unreachable", why if by_agent else str(refused), headers={"Retry-After": "1"}) from None
    except MeruitError as refused:
        problems = refused.problems if isinstance(refused, DocumentError) and not by_agent else ()
        why = "this task cannot be run here; tell whoever made the run"
        raise ApiProblem(422, "cannot_be_run", why if by_agent else str(refused), errors=problems) from None
