"""`/v1/agent-runs`: runs of agents and teams. Workers run them; this process only queues and reads.

Operators queue, cancel and resume; readers see everything. An agent's key sees the runs of its own agent, and of those
only what the model saw: no payload, no result, no evidence, no event.
"""

from typing import Annotated

import msgspec
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire.agent_runs import (
    AgentRunBrief,
    AgentRunDetail,
    AgentRunEvents,
    AgentRunPage,
    AgentRunRequest,
    OwnAgentRun,
    OwnSubmission,
    ResumeRequest,
    SubmissionDetail,
    agents_lacking_worker,
    public_fields,
    to_brief,
    to_detail,
    to_own_run,
)
from meruit.api.wire.common import Key, LabelQuery, Limit, PageCursor, anchor_pattern, json_response
from meruit.errors import ApiProblem, NotFound, Problem
from meruit.events.records import list_events
from meruit.gate import records as agent_reading
from meruit.gate.limits import DEFAULT_ATTEMPTS, GateLimits
from meruit.gate.records import CancelRun, QueueRun, ResumeRun
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.model.access import Scope
from meruit.model.events import OutboxEvent
from meruit.model.time import to_micros
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.suggestions import nearest
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

RUN_ID = anchor_pattern("[A-Za-z0-9][A-Za-z0-9._:@~-]{0,199}")
AgentRunId = Annotated[str, PathParameter(pattern=RUN_ID)]
ParentQuery = Annotated[str | None, QueryParameter(pattern=RUN_ID, required=False)]
STATES = [state.value for state in RunState]
# A string, so that our own error can list the states.
StatusQuery = Annotated[str | None, QueryParameter(required=False, schema_extra={"enum": STATES})]
Number = Annotated[int, PathParameter(ge=1, le=2**31 - 1, description="Number of the submission in its run, from 1.")]


@post("/v1/agent-runs", status_code=201, guards=[OPERATORS], summary="Queue an agent run", tags=["agents"])
async def create_agent_run(
    data: JSONBody[AgentRunRequest], request: ApiRequest, key: Key = None
) -> Response[AgentRunBrief]:
    """Queue a run; a worker that has the agent starts it.

    The request is refused when workers are running and none of them has an agent of this name. When no worker is
    running, the run waits for one; see `has_worker` of the run.
    """
    actor, surroundings = request.actor, request.service.store.surroundings
    wish = RunRequest(
        query=data.query,
        payload=data.payload,
        max_attempts=data.max_attempts,
        max_seconds=data.max_seconds,
        labels=data.labels,
    )
    limits = GateLimits(max_attempts=data.max_attempts or DEFAULT_ATTEMPTS)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        await _check_agent_has_worker(request, data.agent)
        queue = QueueRun(
            tenant=actor.tenant,
            by=actor.by,
            id=surroundings.new_id("run"),
            agent=data.agent,
            request=wish,
            limits=limits,
        )
        return await request.write_once(once, queue, _render_brief)

    return await request.answer_once(key, 201, act)


@get("/v1/agent-runs", guards=[ANYONE], summary="List agent runs", tags=["agents"])
async def list_agent_runs(
    request: ApiRequest,
    status: StatusQuery = None,
    agent: LabelQuery = None,
    parent: ParentQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[AgentRunPage]:
    """List the newest runs; an agent sees its own. `parent` selects the members of a team run."""
    scope = request.caller.scope
    if scope.only_own and (scope.agent_id is None or agent not in (None, scope.agent_id)):
        return json_response(AgentRunPage([], None, []))
    wanted = scope.agent_id if scope.only_own else agent
    state = _parse_state(status)

    def ask(connection: Connection) -> AgentRunPage:
        found = agent_reading.page(
            connection,
            scope.tenant,
            status=state,
            agent=wanted,
            parent_id=parent,
            before=before,
            limit=limit,
        )
        following = found[-1].seq if len(found) == limit else None
        left = (
            []
            if scope.only_own
            else agents_lacking_worker(found, agent_reading.live_workers(connection, _now(request)))
        )
        return AgentRunPage([to_brief(one) for one in found], following, left)

    return json_response(await request.service.read(ask))


@get("/v1/agent-runs/{agent_run_id:str}", guards=[ANYONE], summary="Read an agent run", tags=["agents"])
async def read_agent_run(agent_run_id: AgentRunId, request: ApiRequest) -> Response[AgentRunDetail | OwnAgentRun]:
    """Read the state of a run and its submissions; for a team run, also the state of each member."""
    scope = request.caller.scope

    def ask(connection: Connection) -> AgentRunDetail | OwnAgentRun:
        run = find_visible_run(connection, scope, agent_run_id)
        handed_in = agent_reading.submissions(connection, scope.tenant, run.id)
        if scope.only_own:
            return to_own_run(run, handed_in)
        members = agent_reading.members(connection, scope.tenant, run.id)
        known = any(run.agent in one.agents for one in agent_reading.live_workers(connection, _now(request)))
        return to_detail(run, handed_in, members, has_worker=known)

    return json_response(await request.service.read(ask))


@get(
    "/v1/agent-runs/{agent_run_id:str}/submissions/{number:int}",
    guards=[ANYONE],
    summary="Read a submission",
    tags=["agents"],
)
async def read_submission(
    agent_run_id: AgentRunId, number: Number, request: ApiRequest
) -> Response[SubmissionDetail | OwnSubmission]:
    """Read the candidate, the verdict of the verifier, and the feedback that the model got."""
    scope = request.caller.scope

    def ask(connection: Connection) -> SubmissionDetail | OwnSubmission:
        run = find_visible_run(connection, scope, agent_run_id)
        found = [one for one in agent_reading.submissions(connection, scope.tenant, run.id) if one.number == number]
        if not found:
            raise NotFound(f"no submission {number} of run {run.id!r}")
        place = (connection, scope.tenant, run.id, found[0].submission_id)
        candidate = agent_reading.candidate(*place)
        if scope.only_own:
            return OwnSubmission(**public_fields(found[0]), candidate=candidate)
        verdict = agent_reading.find_verdict(*place)
        return SubmissionDetail(**msgspec.structs.asdict(found[0]), candidate=candidate, said=verdict)

    return json_response(await request.service.read(ask))


@post(
    "/v1/agent-runs/{agent_run_id:str}/cancel",
    status_code=200,
    guards=[OPERATORS],
    summary="Cancel an agent run",
    tags=["agents"],
)
async def cancel_agent_run(agent_run_id: AgentRunId, request: ApiRequest, key: Key = None) -> Response[AgentRunBrief]:
    """Cancel a run and, for a team run, its members. A running one ends when its worker next checks."""
    await request.require_no_body()

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.write_once(once, CancelRun(request.caller.tenant, agent_run_id), _render_brief)

    return await request.answer_once(key, 200, act)


@post(
    "/v1/agent-runs/{agent_run_id:str}/resume",
    status_code=200,
    guards=[OPERATORS],
    summary="Resume an agent run",
    tags=["agents"],
)
async def resume_agent_run(
    agent_run_id: AgentRunId, data: JSONBody[ResumeRequest], request: ApiRequest, key: Key = None
) -> Response[AgentRunBrief]:
    """Give a run the value that it waits for. With a `key`, sending it twice has one effect."""
    tenant, value = request.caller.tenant, msgspec.json.encode(data.value)

    def find_wait_key(connection: Connection) -> str:
        # A run that waits for nothing is refused by the write itself.
        return agent_reading.find(connection, tenant, agent_run_id).waiting_for or ""

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        asked = data.key if data.key is not None else await request.service.read(find_wait_key)
        return await request.write_once(once, ResumeRun(tenant, agent_run_id, asked, value), _render_brief)

    return await request.answer_once(key, 200, act)


@get(
    "/v1/agent-runs/{agent_run_id:str}/events",
    guards=[READERS],
    summary="List the events of an agent run",
    tags=["agents"],
)
async def list_agent_run_events(
    agent_run_id: AgentRunId, request: ApiRequest, after: PageCursor = None, limit: Limit = 50
) -> Response[AgentRunEvents]:
    """List the events of a run and of its members, oldest first. `/v1/events?subject=ID&after=0` streams them."""
    tenant = request.caller.tenant

    def ask(connection: Connection) -> list[OutboxEvent]:
        run = agent_reading.find(connection, tenant, agent_run_id)
        subjects = frozenset({run.id, *(one.id for one in agent_reading.members(connection, tenant, run.id))})
        # The number of a run is that of its first event.
        start = run.seq - 1 if after is None else after
        return list_events(connection, tenant, after=start, limit=limit, subjects=subjects)

    found = await request.service.read(ask)
    return json_response(AgentRunEvents(found, found[-1].seq if len(found) == limit else None))


async def _check_agent_has_worker(request: ApiRequest, agent: str) -> None:
    """Refuse an agent that no worker has, while other workers are running; raises ApiProblem."""
    living = await request.service.read(lambda connection: agent_reading.live_workers(connection, _now(request)))
    known = {name for worker in living for name in worker.agents}
    if known and agent not in known:
        detail = f"no worker has the agent {agent!r}{nearest(agent, known)}; start `meruit worker MODULE:AGENT`"
        raise ApiProblem(422, "unknown_agent", detail)


def _parse_state(status: str | None) -> RunState | None:
    """Parse `status`; raises ApiProblem with the valid values."""
    if status is not None and status not in STATES:
        problem = Problem("status", f"one of {', '.join(STATES)}")
        raise ApiProblem(400, "invalid", str(problem), errors=[problem])
    return None if status is None else RunState(status)


def _now(request: ApiRequest) -> int:
    return to_micros(request.service.store.surroundings.clock())


def find_visible_run(connection: Connection, scope: Scope, run_id: str) -> AgentRun:
    """Find a run that the caller may see; raises NotFound for the run of another agent."""
    run = agent_reading.find(connection, scope.tenant, run_id)
    if scope.only_own and run.agent != scope.agent_id:
        raise NotFound(f"no agent run {run_id!r}")
    return run


def _render_brief(run: AgentRun) -> bytes:
    return msgspec.json.encode(to_brief(run))
