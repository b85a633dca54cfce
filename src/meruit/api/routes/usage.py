"""`/v1/usage/runs`: token usage as runs report it and as providers count it, and the status of both."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
from sqlalchemy import Connection

from meruit.api.auth import OPERATORS, READERS
from meruit.api.bodies.json_body import SMALL_BYTES
from meruit.api.request import ApiRequest
from meruit.api.wire.common import PRINTABLE, Key, LabelQuery, Limit, PageCursor, json_response
from meruit.api.wire.usage import (
    AcknowledgeRequest,
    EndRequest,
    StepRequest,
    UsageBrief,
    UsageDetail,
    UsagePage,
    UsageRunRequest,
    to_brief,
    to_detail,
)
from meruit.api.wire.usage_requests import parse_run, parse_step
from meruit.config import UsageSettings
from meruit.errors import ApiProblem, InvalidUsage, Problem
from meruit.model.metering import MAX_NAME, MAX_STEPS, MeteredRun, MeteredStep, UsageRecord
from meruit.model.usage import Acknowledgement, UsagePolicy, UsageStatus
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.store.recorder import Write
from meruit.store.transaction import WriteTransaction
from meruit.usage import records as usage_reading
from meruit.usage.followers import UsageWrite
from meruit.usage.records import Acknowledge, ObserveNow, RecordRun, find_run, load_run
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

UsageRunId = Annotated[str, PathParameter(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
STATUSES = [status.value for status in UsageStatus]
StatusQuery = Annotated[str | None, QueryParameter(required=False, schema_extra={"enum": STATUSES})]


@post("/v1/usage/runs", status_code=201, guards=[OPERATORS], summary="Record a usage run", tags=["usage"])
async def record_usage_run(
    data: JSONBody[UsageRunRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Record a run, complete or just started. The same run twice has one effect; an ended run cannot be changed.

    For an open run, steps are added or replaced; steps that the request does not name stay.
    """
    actor, surroundings = request.actor, request.service.store.surroundings
    run_id = data.id or surroundings.new_id("use")
    # Parsing many calls would block the event loop.
    is_large = len(await request.body()) > SMALL_BYTES
    run = await asyncio.to_thread(parse_run, data, run_id) if is_large else parse_run(data, run_id)
    write = _RecordReportedRun(
        tenant=actor.tenant,
        by=actor.by,
        run=run,
        now=surroundings.clock(),
        policy=request.service.usage_policy,
        sharers=request.service.configuration.usage.sharers(actor.tenant, run.source),
    )
    return await _answer_write(request, key, write, status=201)


@get("/v1/usage/runs", guards=[READERS], summary="List usage runs", tags=["usage"])
async def list_usage_runs(
    request: ApiRequest,
    framework: LabelQuery = None,
    status: StatusQuery = None,
    source: LabelQuery = None,
    task: LabelQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[UsagePage]:
    """List usage runs and their status, newest first."""
    tenant, wanted = request.caller.tenant, _parse_status(status)

    def ask(connection: Connection) -> UsagePage:
        found = usage_reading.page(
            connection,
            tenant,
            framework=framework,
            status=wanted,
            account=source,
            task=task,
            before=before,
            limit=limit,
        )
        return UsagePage([to_brief(one) for one in found], found[-1].seq if len(found) == limit else None)

    return json_response(await request.service.read(ask))


@get("/v1/usage/runs/{usage_run_id:str}", guards=[READERS], summary="Read a usage run", tags=["usage"])
async def read_usage_run(usage_run_id: UsageRunId, request: ApiRequest) -> Response[UsageDetail]:
    """Read a run with its own counts, every observation, the deciding rule, prices and costs."""
    tenant, usage = request.caller.tenant, request.service.configuration.usage

    def ask(connection: Connection) -> UsageDetail:
        record = usage_reading.find(connection, tenant, usage_run_id)
        others = [one for one in usage.sharers(tenant, record.run.source) if one != tenant]
        return to_detail(record, usage_reading.find_observations(connection, tenant, usage_run_id), others)

    return json_response(await request.service.read(ask))


@post(
    "/v1/usage/runs/{usage_run_id:str}/steps",
    status_code=200,
    guards=[OPERATORS],
    summary="Add a step to a usage run",
    tags=["usage"],
)
async def add_usage_step(
    usage_run_id: UsageRunId, data: JSONBody[StepRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Add a step to an open run, or replace the step with that id."""
    step = parse_step(data)

    def add_step(run: MeteredRun, _now: datetime) -> MeteredRun:
        return _with_steps(run, run.steps, [step])

    return await _answer_write(request, key, _build_change(request, usage_run_id, add_step))


@post(
    "/v1/usage/runs/{usage_run_id:str}/end",
    status_code=200,
    guards=[OPERATORS],
    summary="End a usage run",
    tags=["usage"],
)
async def end_usage_run(
    usage_run_id: UsageRunId, data: JSONBody[EndRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """End an open run. From then on it is observed and cannot be changed; ending it again has no effect."""

    def end_run(run: MeteredRun, now: datetime) -> MeteredRun:
        if run.ended_at is not None and data == EndRequest():
            return run
        return msgspec.structs.replace(
            run,
            # A client whose clock is ahead may have started later than now.
            ended_at=data.ended_at or run.ended_at or max(now, run.started_at or now),
            success=run.success if data.success is None else data.success,
            score=run.score if data.score is None else data.score,
        )

    return await _answer_write(request, key, _build_change(request, usage_run_id, end_run))


@post(
    "/v1/usage/runs/{usage_run_id:str}/acknowledge",
    status_code=200,
    guards=[OPERATORS],
    summary="Acknowledge a count that fell",
    tags=["usage"],
)
async def acknowledge_usage(
    usage_run_id: UsageRunId, data: JSONBody[AcknowledgeRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Accept the lower count of the provider, for a reason that is stored permanently."""
    actor, now = request.actor, request.service.store.surroundings.clock()
    accepted = Acknowledgement(now, actor.by, data.reason)
    return await _answer_write(
        request, key, Acknowledge(actor.tenant, usage_run_id, accepted, request.service.usage_policy)
    )


@post(
    "/v1/usage/runs/{usage_run_id:str}/look",
    status_code=200,
    guards=[OPERATORS],
    summary="Request an observation of a usage run",
    tags=["usage"],
)
async def request_usage_observation(
    usage_run_id: UsageRunId, request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Make a run due now: the next reconciler asks its provider."""
    await request.require_no_body()

    def schedule_now(writing: WriteTransaction) -> UsageRecord:
        (record,) = ObserveNow(request.caller.tenant, [usage_run_id])(writing)
        if record.run.ended_at is None:
            raise ApiProblem(
                409, "wrong_state", f"run {usage_run_id} is open; end it first, because only ended runs are observed"
            )
        return record

    return await _answer_write(request, key, schedule_now)


class _RecordReportedRun(msgspec.Struct, frozen=True):
    """A run as a client reports it: new, or the next state of an open run."""

    tenant: str
    by: str
    run: MeteredRun
    now: datetime
    policy: UsagePolicy
    sharers: tuple[str, ...]
    """The tenants that share the account."""

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Record it; raises UsageRunEnded, InvalidUsage."""
        stored = find_run(writing, self.tenant, self.run.id)
        run = self._with_start() if stored is None else self._merge_with(stored.record.run)
        return RecordRun(self.tenant, self.by, run, policy=self.policy, sharers=self.sharers)(writing)

    def _with_start(self) -> MeteredRun:
        run = self.run
        is_beginning = run.ended_at is None and not run.steps
        return msgspec.structs.replace(run, started_at=self.now) if is_beginning and run.started_at is None else run

    def _merge_with(self, before: MeteredRun) -> MeteredRun:
        # A client that repeats a request, because the reply was lost, must not lose later steps.
        started_at = self.run.started_at or before.started_at
        return _with_steps(msgspec.structs.replace(self.run, started_at=started_at), before.steps, self.run.steps)


class _ChangeRun(msgspec.Struct, frozen=True):
    """The next state of a run, computed from its state in this transaction."""

    tenant: str
    by: str
    run_id: str
    transform: Callable[[MeteredRun, datetime], MeteredRun]
    now: datetime
    policy: UsagePolicy
    usage: UsageSettings

    def __call__(self, writing: WriteTransaction) -> UsageRecord:
        """Record it; raises NotFound, UsageRunEnded."""
        run = load_run(writing, self.tenant, self.run_id).record.run
        changed, sharers = self.transform(run, self.now), self.usage.sharers(self.tenant, run.source)
        return RecordRun(self.tenant, self.by, changed, policy=self.policy, sharers=sharers)(writing)


def _build_change(
    request: ApiRequest, run_id: str, transform: Callable[[MeteredRun, datetime], MeteredRun]
) -> _ChangeRun:
    actor, service = request.actor, request.service
    return _ChangeRun(
        tenant=actor.tenant,
        by=actor.by,
        run_id=run_id,
        transform=transform,
        now=service.store.surroundings.clock(),
        policy=service.usage_policy,
        usage=service.configuration.usage,
    )


async def _answer_write(
    request: ApiRequest, key: str | None, write: Write[UsageRecord], *, status: int = 200
) -> Response[UsageBrief]:
    # A contract that pays for tokens changes in the same transaction.
    with_followers = UsageWrite(tenant=request.caller.tenant, by=request.actor.by, write=write)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.write_once(once, with_followers, _render_brief)

    return await request.answer_once(key, status, act)


def _render_brief(record: UsageRecord) -> bytes:
    return msgspec.json.encode(to_brief(record))


def _parse_status(status: str | None) -> UsageStatus | None:
    """Parse `status`; raises ApiProblem with the valid values."""
    if status is not None and status not in STATUSES:
        raise _invalid_field("status", f"one of {', '.join(STATUSES)}")
    return None if status is None else UsageStatus(status)


def _invalid_field(where: str, message: str) -> ApiProblem:
    problem = Problem(where, message)
    return ApiProblem(400, "invalid", str(problem), errors=[problem])


def _with_steps(run: MeteredRun, before: Sequence[MeteredStep], now: Sequence[MeteredStep]) -> MeteredRun:
    """The run with its earlier steps, and the new ones added or replaced; raises InvalidUsage."""
    steps = {one.id: one for one in (*before, *now)}
    if len(steps) > MAX_STEPS:
        raise InvalidUsage(f"run {run.id!r} would have more than {MAX_STEPS:,} steps; use fewer, larger steps")
    return msgspec.structs.replace(run, steps=tuple(steps.values()))
