"""`/v1/benchmark-runs`, `/v1/task-runs` and `/v1/criterion-runs`: agents at their tasks, and how they did.

What a run that counts is judged by is nobody's to learn from its completion, and no agent's to learn at all.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import Connection

from meruit.api.access import ANYONE, OPERATORS, READERS
from meruit.api.benchmarks import BENCHMARK_NAME, BENCHMARK_SLUG
from meruit.api.contracts import PARTIES, readable
from meruit.api.problems import ApiProblem
from meruit.api.reading import beside
from meruit.api.service import Asked
from meruit.api.wire import Body, Key, Label, LabelQuery, Limit, Place, Reason, encoded, whole
from meruit.engine.benchmarks import MAX_REPEATS, Started
from meruit.engine.evidence_shapes import completion as told_of
from meruit.model.access import Role, Scope
from meruit.model.errors import DocumentError, MeruitError, Unreachable
from meruit.model.record import Record
from meruit.model.run import BenchmarkRun, Completion, CriterionRun, RunStatus, TaskRun
from meruit.model.task import MAX_TASKS, Reveal
from meruit.model.verdict import Verdict
from meruit.stores import runs
from meruit.stores.benchmarks import BenchmarkTaken
from meruit.stores.database import NotFound, StoreError, StoreUnavailable
from meruit.stores.records import IdempotencyConflict, Idempotent, Replay
from meruit.stores.runs import RunFilter, RunMoved

TASK_RUN_ID, BENCHMARK_RUN_ID, CRITERION_RUN_ID = (whole(f"{kind}_[0-9a-f]{{34}}") for kind in ("trn", "brn", "crn"))
TaskRunId = Annotated[str, PathParameter(pattern=TASK_RUN_ID)]
BenchmarkRunId = Annotated[str, PathParameter(pattern=BENCHMARK_RUN_ID)]
BenchmarkRunQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_RUN_ID, required=False)]
CriterionRunId = Annotated[str, PathParameter(pattern=CRITERION_RUN_ID)]
SlugQuery = Annotated[str | None, QueryParameter(pattern=BENCHMARK_SLUG, required=False)]
StatusQuery = Annotated[RunStatus | None, QueryParameter(required=False)]
BenchmarkName = Annotated[str, Meta(pattern=BENCHMARK_NAME, description="`slug@version`, or `slug` for the newest.")]
TaskId = Annotated[str, Meta(pattern=BENCHMARK_SLUG)]


class BenchmarkRunRequest(Body, frozen=True):
    """An agent to be put to the tasks of a benchmark."""

    benchmark: BenchmarkName
    tasks: Annotated[list[TaskId], Meta(min_length=1, max_length=MAX_TASKS)] | None = None
    """Only these; all when not given."""
    repeats: Annotated[int, Meta(ge=1, le=MAX_REPEATS)] = 1
    scored: bool = True
    """Whether it counts; then what the agent is judged by stays hidden."""
    agent_id: Label | None = None
    """Whose key may start and complete the runs, beside operators'."""


class TaskRunRequest(Body, frozen=True):
    """An agent to be put to one task."""

    benchmark: BenchmarkName
    task: TaskId
    scored: bool = True
    agent_id: Label | None = None


class RejudgeRequest(Body, frozen=True):
    """Why a run is judged anew, and by which version."""

    reason: Reason
    benchmark: BenchmarkName | None = None
    """Another version of its benchmark; the run's own when not given."""


class CreatedTaskRun(Record, frozen=True):
    """A task run that can be started."""

    id: str
    task: str
    attempt: int


class CreatedBenchmarkRun(Record, frozen=True):
    """A benchmark run, and the task runs that it is made of."""

    id: str
    benchmark: str
    version: int
    repeats: int
    scored: bool
    agent_id: str | None
    task_runs: list[CreatedTaskRun]


class AgentBenchmarkRun(Record, frozen=True, omit_defaults=True):
    """What an agent sees of its own; how it ended only where each of its task runs tells that."""

    id: str
    benchmark: str
    version: int
    repeats: int
    scored: bool
    created_at: datetime
    counts: dict[str, int]
    ended: bool
    verdict: Verdict | None = None
    score: float | None = None


class AgentTaskRun(Record, frozen=True, omit_defaults=True):
    """What an agent sees of its own; how it ended as far as its task reveals that."""

    id: str
    benchmark: str
    version: int
    task: str
    attempt: int
    status: RunStatus
    scored: bool
    created_at: datetime
    benchmark_run_id: str | None = None
    started_at: datetime | None = None
    deadline: datetime | None = None
    ended_at: datetime | None = None
    verdict: Verdict | None = None
    score: float | None = None
    # Any: as the completion has them.
    axes: dict[str, Any] | None = None


class StartedTaskRun(Record, frozen=True):
    """What an agent needs to begin."""

    task_run_id: str
    status: RunStatus
    instruction: str
    started_at: datetime | None
    deadline: datetime | None
    # Any: whatever systems there are, each has an address of its own.
    access: dict[str, Any]
    """The playground's id, secret and endpoints; empty where the task is done elsewhere."""


class BenchmarkRunPage(Record, frozen=True):
    """Benchmark runs, newest first, without what they came to."""

    benchmark_runs: list[BenchmarkRun]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


class AgentBenchmarkRunPage(Record, frozen=True):
    """An agent's own benchmark runs, newest first."""

    benchmark_runs: list[AgentBenchmarkRun]
    next: int | None


class TaskRunPage(Record, frozen=True):
    """Task runs, newest first."""

    task_runs: list[TaskRun]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


class AgentTaskRunPage(Record, frozen=True):
    """An agent's own task runs, newest first."""

    task_runs: list[AgentTaskRun]
    next: int | None


class CriterionRuns(Record, frozen=True):
    """Every criterion of a task run, in their order."""

    criterion_runs: list[CriterionRun]


# Benchmark runs


@post("/v1/benchmark-runs", status_code=201, guards=[OPERATORS], summary="Begin a benchmark run", tags=["runs"])
async def create_benchmark_run(
    data: JSONBody[BenchmarkRunRequest], request: Asked, key: Key = None
) -> Response[CreatedBenchmarkRun]:
    """Make a run of each task, as often as it is repeated; none of them is started by this."""
    service, actor = request.service, request.actor

    def plan() -> runs.CreateRuns:
        return service.benchmarks.plan(
            *(actor.tenant, actor.by, data.benchmark),
            tasks=data.tasks,
            repeats=data.repeats,
            scored=data.scored,
            agent_id=data.agent_id,
        )

    async def act(once: Idempotent | None) -> bytes | Replay:
        with _told(request):
            wish = await beside(plan)
        return await request.written(once, wish, lambda made: _created(wish, made))

    return await request.answer_once(key, 201, act)


@get("/v1/benchmark-runs", guards=[ANYONE], summary="List benchmark runs", tags=["runs"])
async def list_benchmark_runs(
    request: Asked, benchmark: SlugQuery = None, before: Place = None, limit: Limit = 50
) -> Response[BenchmarkRunPage | AgentBenchmarkRunPage]:
    """The newest, of one benchmark if it is named; an agent sees its own."""
    scope = request.caller.scope

    def ask(connection: Connection) -> list[BenchmarkRun]:
        return runs.benchmark_run_page(connection, scope, slug=benchmark, before=before, limit=limit)

    found = await request.service.read(ask)
    last = found[-1].seq if len(found) == limit else None
    if request.caller.role is Role.AGENT:
        return encoded(AgentBenchmarkRunPage([_to_agent(one) for one in found], last))
    return encoded(BenchmarkRunPage(found, last))


@get("/v1/benchmark-runs/{benchmark_run_id:str}", guards=[ANYONE], summary="Read a benchmark run", tags=["runs"])
async def read_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: Asked
) -> Response[BenchmarkRun | AgentBenchmarkRun]:
    """How far it is and, once every task run has ended, what it came to."""
    return encoded(await beside(_benchmark_run, request, benchmark_run_id))


@post(
    "/v1/benchmark-runs/{benchmark_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Give up a benchmark run",
    tags=["runs"],
)
async def cancel_benchmark_run(
    benchmark_run_id: BenchmarkRunId, request: Asked, key: Key = None
) -> Response[BenchmarkRun]:
    """Cancel those of its task runs that have not ended; they do not count."""
    await request.no_body()
    service, scope = request.service, request.caller.scope

    async def act(once: Idempotent | None) -> bytes | Replay:
        several = await beside(service.benchmarks.task_runs, scope, benchmark_run_id)
        await service.benchmarks.cancel(scope.tenant, [run.id for run in several])
        found = await beside(service.benchmarks.benchmark_run, scope, benchmark_run_id)
        return await request.kept(once, msgspec.json.encode(found))

    return await request.answer_once(key, 200, act)


# Task runs


@post("/v1/task-runs", status_code=201, guards=[OPERATORS], summary="Make a task run", tags=["runs"])
async def create_task_run(data: JSONBody[TaskRunRequest], request: Asked, key: Key = None) -> Response[TaskRun]:
    """One run of one task, on its own and not started."""
    service, actor = request.service, request.actor

    def plan() -> runs.CreateRuns:
        about = (actor.tenant, actor.by, data.benchmark, data.task)
        return service.benchmarks.plan_one(*about, scored=data.scored, agent_id=data.agent_id)

    async def act(once: Idempotent | None) -> bytes | Replay:
        return await request.written(once, await beside(plan), lambda made: msgspec.json.encode(made[0]))

    return await request.answer_once(key, 201, act)


@get("/v1/task-runs", guards=[ANYONE], summary="List task runs", tags=["runs"])
async def list_task_runs(
    request: Asked,
    benchmark_run_id: BenchmarkRunQuery = None,
    agent_id: LabelQuery = None,
    status: StatusQuery = None,
    before: Place = None,
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
    return encoded({"task_runs": [_shown(request, one) for one in found], "next": last})


@get("/v1/task-runs/{task_run_id:str}", guards=[ANYONE], summary="Read a task run", tags=["runs"])
async def read_task_run(task_run_id: TaskRunId, request: Asked) -> Response[TaskRun | AgentTaskRun]:
    """How it stands; to an agent, of its own, as far as the task reveals it."""
    found = await beside(request.service.benchmarks.run, request.caller.scope, task_run_id)
    return encoded(_shown(request, found))


@post(
    "/v1/task-runs/{task_run_id:str}/start",
    status_code=200,
    guards=[PARTIES],
    summary="Start a task run",
    tags=["runs"],
)
async def start_task_run(task_run_id: TaskRunId, request: Asked, key: Key = None) -> Response[StartedTaskRun]:
    """Make the world that the agent acts on, and let its time run."""
    await request.no_body()
    service, caller = request.service, request.caller

    async def act(once: Idempotent | None) -> bytes | Replay:
        with _told(request):
            started = await service.benchmarks.start(caller.scope, task_run_id)
        if started.run.playground_id is not None:
            await service.hosting.own(started.run.playground_id, caller.tenant, task_run_id)
        kept = await request.kept(once, b"")
        return kept if isinstance(kept, Replay) else _started(started)

    # The playground's secret is not kept with the key.
    return await request.answer_once(key, 200, act, anew=lambda: _access(request, task_run_id))


@get("/v1/task-runs/{task_run_id:str}/access", guards=[PARTIES], summary="Get in again", tags=["runs"])
async def read_access(task_run_id: TaskRunId, request: Asked) -> Response[StartedTaskRun]:
    """What starting it answered, for as long as it runs."""
    return encoded(await _access(request, task_run_id))


@post(
    ["/v1/task-runs/{task_run_id:str}/complete", "/task-runs/{task_run_id:str}/complete"],
    status_code=200,
    guards=[PARTIES],
    summary="Complete a task run",
    tags=["runs"],
)
async def complete_task_run(task_run_id: TaskRunId, request: Asked, key: Key = None) -> Response[Completion]:
    """Judge what the agent left behind. What has ended is told as it was; a run that counts tells no details."""
    await request.no_body()
    service, caller = request.service, request.caller

    async def anew() -> bytes:
        run = await beside(service.benchmarks.run, caller.scope, task_run_id)
        return await _completed(request, run)

    async def act(once: Idempotent | None) -> bytes | Replay:
        with _told(request):
            run = await service.benchmarks.complete(caller.scope, task_run_id)
        kept = await request.kept(once, b"")
        return kept if isinstance(kept, Replay) else await _completed(request, run)

    # Evidence that is kept twice would have to be erased twice.
    return await request.answer_once(key, 200, act, anew=anew)


@post(
    "/v1/task-runs/{task_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Give up a task run",
    tags=["runs"],
)
async def cancel_task_run(task_run_id: TaskRunId, request: Asked, key: Key = None) -> Response[TaskRun]:
    """End it without a verdict, so that it does not count; what has ended stays as it is."""
    await request.no_body()

    async def act(once: Idempotent | None) -> bytes | Replay:
        (run,) = await request.service.benchmarks.cancel(request.caller.tenant, [task_run_id])
        return await request.kept(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/task-runs/{task_run_id:str}/recheck",
    status_code=200,
    guards=[OPERATORS],
    summary="Read the world again",
    tags=["runs"],
)
async def recheck_task_run(task_run_id: TaskRunId, request: Asked, key: Key = None) -> Response[TaskRun]:
    """Judge a run again that could not be judged whole, because some system could not be read then."""
    await request.no_body()

    async def act(once: Idempotent | None) -> bytes | Replay:
        with _told(request):
            run = await request.service.benchmarks.recheck(request.caller.tenant, task_run_id)
        return await request.kept(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@post(
    "/v1/task-runs/{task_run_id:str}/rejudge",
    status_code=200,
    guards=[OPERATORS],
    summary="Judge a run anew",
    tags=["runs"],
)
async def rejudge_task_run(
    task_run_id: TaskRunId, data: JSONBody[RejudgeRequest], request: Asked, key: Key = None
) -> Response[TaskRun]:
    """Judge what was found then once more, by its own criteria or another version's; the first verdict stays too."""
    reason = readable(data.reason)

    async def act(once: Idempotent | None) -> bytes | Replay:
        with _told(request):
            tenant, benchmarks = request.caller.tenant, request.service.benchmarks
            run = await benchmarks.rejudge(tenant, task_run_id, reason, data.benchmark)
        return await request.kept(once, msgspec.json.encode(run))

    return await request.answer_once(key, 200, act)


@get("/v1/task-runs/{task_run_id:str}/criterion-runs", guards=[READERS], summary="List criterion runs", tags=["runs"])
async def list_criterion_runs(task_run_id: TaskRunId, request: Asked) -> Response[CriterionRuns]:
    """Every criterion of a completed run, with all the evidence; never for agents."""
    tenant, benchmarks = request.caller.tenant, request.service.benchmarks

    def ask() -> list[CriterionRun]:
        return benchmarks.criterion_runs(tenant, benchmarks.run(Scope(tenant), task_run_id))

    return encoded(CriterionRuns(await beside(ask)))


@get(
    ["/v1/criterion-runs/{criterion_run_id:str}", "/criterion-runs/{criterion_run_id:str}"],
    guards=[READERS],
    summary="Read a criterion run",
    tags=["runs"],
)
async def read_criterion_run(criterion_run_id: CriterionRunId, request: Asked) -> Response[CriterionRun]:
    """One criterion with all the evidence; never for agents."""
    return encoded(await beside(request.service.benchmarks.criterion_run, request.caller.tenant, criterion_run_id))


# What is shown


def _created(wish: runs.CreateRuns, made: list[TaskRun]) -> bytes:
    created = CreatedBenchmarkRun(
        wish.benchmark_run_id or "",
        *(wish.slug, wish.version, wish.repeats, wish.scored, wish.agent_id),
        [CreatedTaskRun(run.id, run.task, run.attempt) for run in made],
    )
    return msgspec.json.encode(created)


def _benchmark_run(request: Asked, run_id: str) -> BenchmarkRun | AgentBenchmarkRun:
    benchmarks, scope = request.service.benchmarks, request.caller.scope
    found = benchmarks.benchmark_run(scope, run_id)
    if request.caller.role is not Role.AGENT:
        return found
    tells = not found.scored or all(run.reveal is not Reveal.NONE for run in benchmarks.task_runs(scope, run_id))
    return _to_agent(found, tells=tells)


def _to_agent(run: BenchmarkRun, *, tells: bool = False) -> AgentBenchmarkRun:
    result = run.result if tells else None
    return AgentBenchmarkRun(
        *(run.id, run.benchmark, run.version, run.repeats, run.scored, run.created_at, run.counts, run.ended),
        *((None, None) if result is None else (result.verdict, result.score)),
    )


def _shown(request: Asked, run: TaskRun) -> TaskRun | AgentTaskRun:
    if request.caller.role is not Role.AGENT:
        return run
    told = told_of(run, None, [])
    return AgentTaskRun(
        *(run.id, run.benchmark, run.version, run.task, run.attempt, run.status, run.scored, run.created_at),
        *(run.benchmark_run_id, run.started_at, run.deadline, run.ended_at),
        *(told.verdict, told.score, told.axes),
    )


async def _access(request: Asked, run_id: str) -> bytes:
    with _told(request):
        return _started(await request.service.benchmarks.access(request.caller.scope, run_id))


def _started(started: Started) -> bytes:
    run = started.run
    return msgspec.json.encode(
        StartedTaskRun(run.id, run.status, started.instruction, run.started_at, run.deadline, started.access)
    )


async def _completed(request: Asked, run: TaskRun) -> bytes:
    completed = await beside(request.service.benchmarks.completion, request.caller.tenant, run)
    return msgspec.json.encode(completed)


@contextmanager
def _told(request: Asked) -> Iterator[None]:
    """Tell what cannot be done here; an agent hears only that, for a problem may name a criterion or a seed."""
    by_agent = request.caller.role is Role.AGENT
    try:
        yield
    except (NotFound, RunMoved, BenchmarkTaken, ApiProblem, IdempotencyConflict, StoreUnavailable):
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
