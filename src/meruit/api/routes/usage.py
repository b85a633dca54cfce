"""`/v1/usage/runs`: what runs used by their own account, what providers counted, and what may be claimed of both."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, NamedTuple

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter
from sqlalchemy import Connection

from meruit.api.auth import OPERATORS, READERS
from meruit.api.json_body import SMALL_BYTES
from meruit.api.request import ApiRequest
from meruit.api.routes.usage_requests import parse_run, parse_step
from meruit.api.routes.usage_wire import (
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
from meruit.api.wire import PRINTABLE, Key, LabelQuery, Limit, PageCursor, json_response
from meruit.errors import ApiProblem, InvalidUsage, Problem
from meruit.model.metering import MAX_NAME, MAX_STEPS, MeteredRun, MeteredStep, UsageRecord
from meruit.model.usage import Acknowledgement, UsagePolicy, UsageStatus
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest
from meruit.store.recorder import Write
from meruit.store.transaction import WriteTransaction
from meruit.usage.followers import UsageWrite
from meruit.usage.store import read as usage_reading
from meruit.usage.store.rows import find_run, load_run
from meruit.usage.store.write import Acknowledge, ObserveNow, RecordRun

UsageRunId = Annotated[str, PathParameter(min_length=1, max_length=MAX_NAME, pattern=PRINTABLE)]
STATUSES = [status.value for status in UsageStatus]
StatusQuery = Annotated[str | None, QueryParameter(required=False, schema_extra={"enum": STATUSES})]


@post("/v1/usage/runs", status_code=201, guards=[OPERATORS], summary="Record a run's usage", tags=["usage"])
async def record_usage_run(
    data: JSONBody[UsageRunRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Record a run, whole or just begun; the same run twice is once, and one that has ended stays as it is.

    Of an open run it says how it goes on: steps that it does not name stay.
    """
    actor, surroundings = request.actor, request.service.store.surroundings
    run_id = data.id or surroundings.new_id("use")
    # Reading many calls takes long enough to hold up everybody else.
    is_large = len(await request.body()) > SMALL_BYTES
    run = await asyncio.to_thread(parse_run, data, run_id) if is_large else parse_run(data, run_id)
    write = _RecordReportedRun(actor.tenant, actor.by, run, surroundings.clock(), request.service.usage_policy)
    return await _answer_write(request, key, write, status=201)


@get("/v1/usage/runs", guards=[READERS], summary="List runs and what may be claimed of them", tags=["usage"])
async def list_usage_runs(
    request: ApiRequest,
    framework: LabelQuery = None,
    status: StatusQuery = None,
    source: LabelQuery = None,
    task: LabelQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[UsagePage]:
    """The newest first."""
    tenant, wanted = request.caller.tenant, _parse_status(status)

    def ask(connection: Connection) -> UsagePage:
        found = usage_reading.page(
            *(connection, tenant),
            framework=framework,
            status=wanted,
            account=source,
            task=task,
            before=before,
            limit=limit,
        )
        return UsagePage([to_brief(one) for one in found], found[-1].seq if len(found) == limit else None)

    return json_response(await request.service.read(ask))


@get("/v1/usage/runs/{usage_run_id:str}", guards=[READERS], summary="Read a run's usage", tags=["usage"])
async def read_usage_run(usage_run_id: UsageRunId, request: ApiRequest) -> Response[UsageDetail]:
    """All of it: what the run says, every look at the provider, the rule that decided, prices and costs."""
    tenant = request.caller.tenant

    def ask(connection: Connection) -> UsageDetail:
        record = usage_reading.find(connection, tenant, usage_run_id)
        return to_detail(record, usage_reading.find_observations(connection, tenant, usage_run_id))

    return json_response(await request.service.read(ask))


@post(
    "/v1/usage/runs/{usage_run_id:str}/steps",
    status_code=200,
    guards=[OPERATORS],
    summary="Add a step to an open run",
    tags=["usage"],
)
async def add_usage_step(
    usage_run_id: UsageRunId, data: JSONBody[StepRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Add it, or put it in the place of the step of that id."""
    step = parse_step(data)

    def add_step(run: MeteredRun, _now: datetime) -> MeteredRun:
        return _with_steps(run, run.steps, [step])

    return await _answer_write(request, key, _build_change(request, usage_run_id, add_step))


@post(
    "/v1/usage/runs/{usage_run_id:str}/end",
    status_code=200,
    guards=[OPERATORS],
    summary="End an open run",
    tags=["usage"],
)
async def end_usage_run(
    usage_run_id: UsageRunId, data: JSONBody[EndRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """From then on it can be looked at, and no longer be changed; to end it once more changes nothing."""

    def end_run(run: MeteredRun, now: datetime) -> MeteredRun:
        if run.ended_at is not None and data == EndRequest():
            return run
        return msgspec.structs.replace(
            run,
            # Whose clock is ahead of ours may have begun later than now.
            ended_at=data.ended_at or run.ended_at or max(now, run.started_at or now),
            success=run.success if data.success is None else data.success,
            score=run.score if data.score is None else data.score,
        )

    return await _answer_write(request, key, _build_change(request, usage_run_id, end_run))


@post(
    "/v1/usage/runs/{usage_run_id:str}/acknowledge",
    status_code=200,
    guards=[OPERATORS],
    summary="Accept a count that fell",
    tags=["usage"],
)
async def acknowledge_usage(
    usage_run_id: UsageRunId, data: JSONBody[AcknowledgeRequest], request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Let the lower count stand, for a reason that is recorded for good."""
    actor, now = request.actor, request.service.store.surroundings.clock()
    accepted = Acknowledgement(now, actor.by, data.reason)
    return await _answer_write(
        request, key, Acknowledge(actor.tenant, usage_run_id, accepted, request.service.usage_policy)
    )


@post(
    "/v1/usage/runs/{usage_run_id:str}/look",
    status_code=200,
    guards=[OPERATORS],
    summary="Have a run looked at soon",
    tags=["usage"],
)
async def request_usage_observation(
    usage_run_id: UsageRunId, request: ApiRequest, key: Key = None
) -> Response[UsageBrief]:
    """Make it due at once: whoever reconciles next asks its provider."""
    await request.require_no_body()

    def schedule_now(writing: WriteTransaction) -> UsageRecord:
        (record,) = ObserveNow(request.caller.tenant, [usage_run_id])(writing)
        if record.run.ended_at is None:
            raise ApiProblem(
                409, "wrong_state", f"run {usage_run_id} is open; end it first, as nobody looks before the end"
            )
        return record

    return await _answer_write(request, key, schedule_now)


class _RecordReportedRun(NamedTuple):
    """What is told of a run: that it is there, or how it goes on."""

    tenant: str
    by: str
    run: MeteredRun
    now: datetime
    policy: UsagePolicy

    def __call__(self, writing: WriteTransaction) -> UsageRecord | IdempotentReplay:
        """Record it; raises UsageRunEnded, BadUsage."""
        held = find_run(writing, self.tenant, self.run.id)
        run = self._with_start() if held is None else self._merge_with(held.record.run)
        return RecordRun(self.tenant, self.by, run, policy=self.policy)(writing)

    def _with_start(self) -> MeteredRun:
        run = self.run
        is_beginning = run.ended_at is None and not run.steps
        return msgspec.structs.replace(run, started_at=self.now) if is_beginning and run.started_at is None else run

    def _merge_with(self, before: MeteredRun) -> MeteredRun:
        # Whoever opens a run once more, because the answer was lost, must not lose the steps that came since.
        started_at = self.run.started_at or before.started_at
        return _with_steps(msgspec.structs.replace(self.run, started_at=started_at), before.steps, self.run.steps)


class _ChangeRun(NamedTuple):
    """The next state of a run, made from the one in which this transaction finds it."""

    tenant: str
    by: str
    run_id: str
    transform: Callable[[MeteredRun, datetime], MeteredRun]
    now: datetime
    policy: UsagePolicy

    def __call__(self, writing: WriteTransaction) -> UsageRecord | IdempotentReplay:
        """Record it; raises NotFound, UsageRunEnded."""
        run = load_run(writing, self.tenant, self.run_id).record.run
        return RecordRun(self.tenant, self.by, self.transform(run, self.now), policy=self.policy)(writing)


def _build_change(request: ApiRequest, run_id: str, made: Callable[[MeteredRun, datetime], MeteredRun]) -> _ChangeRun:
    actor, service = request.actor, request.service
    return _ChangeRun(actor.tenant, actor.by, run_id, made, service.store.surroundings.clock(), service.usage_policy)


async def _answer_write(
    request: ApiRequest, key: str | None, write: Write[UsageRecord | IdempotentReplay], *, status: int = 200
) -> Response[UsageBrief]:
    # A contract that pays for tokens moves with them, in the same transaction.
    followed = UsageWrite(request.caller.tenant, request.actor.by, write)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.write_once(once, followed, _render_brief)

    return await request.answer_once(key, status, act)


def _render_brief(record: UsageRecord | IdempotentReplay) -> bytes:
    # Only a write that was given a key of its own answers with what it answered before.
    assert isinstance(record, UsageRecord)  # noqa: S101
    return msgspec.json.encode(to_brief(record))


def _parse_status(status: str | None) -> UsageStatus | None:
    """What `status` names; raises ApiProblem with what it may name."""
    if status is not None and status not in STATUSES:
        raise _invalid_field("status", f"one of {', '.join(STATUSES)}")
    return None if status is None else UsageStatus(status)


def _invalid_field(where: str, message: str) -> ApiProblem:
    problem = Problem(where, message)
    return ApiProblem(400, "invalid", str(problem), errors=[problem])


def _with_steps(run: MeteredRun, before: Sequence[MeteredStep], now: Sequence[MeteredStep]) -> MeteredRun:
    """The run with steps as they were, those replaced or added that are told now; raises BadUsage."""
    steps = {one.id: one for one in (*before, *now)}
    if len(steps) > MAX_STEPS:
        raise InvalidUsage(f"run {run.id!r} would have more than {MAX_STEPS:,} steps; make them larger")
    return msgspec.structs.replace(run, steps=tuple(steps.values()))
