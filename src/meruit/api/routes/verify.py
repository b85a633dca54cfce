"""`/v1/verify`: judge work by criteria; the outcome is recorded unless the request says otherwise."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.auth import allow, allow_only
from meruit.api.direct_routes import DirectRequest, DirectRoute
from meruit.api.request import ApiRequest, EncodedReply, ServedRequest, Service
from meruit.api.wire.common import Body, CriteriaReference, Key, Label, Payload, json_response
from meruit.contracts.records import RecordTries
from meruit.errors import ApiProblem, Unavailable
from meruit.log.entries import OUR_CONTRACT
from meruit.model.access import AgentScore, Caller, Role, show_score
from meruit.model.contract import AgentTries
from meruit.model.outcome import Labels
from meruit.model.record import Record
from meruit.model.verdict import Verdict, VerificationResult
from meruit.model.work import PRIVATE_INPUTS
from meruit.outcomes.records import RecordedVersion
from meruit.outcomes.service import JudgedWork, Submission
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.verify.catalogue import CompiledCriteria
from meruit.web.parameters import JSONBody
from meruit.web.responses import Response
from meruit.web.routing import post

MAX_BATCH = 100
SMALL_BYTES = 16 * 1024
"""Criteria of requests up to this size are looked up in the event loop."""
_SUBMITTING_ROLES = (Role.AGENT, Role.OPERATOR, Role.ADMIN)
SUBMITTERS = allow(*_SUBMITTING_ROLES)


class VerifyItem(Body, frozen=True):
    """One piece of work."""

    output: Payload
    """What the agent returned."""
    input: Payload = msgspec.field(default_factory=dict)
    """What the agent got, references included."""
    metadata: Payload = msgspec.field(default_factory=dict)
    """Measurements of the run by the operator: `duration_ms` and so on."""
    contract_id: Label | None = None
    agent_id: Label | None = None
    consumer_id: Label | None = None
    domain: Label | None = None


class VerifyRequest(VerifyItem, frozen=True, kw_only=True):
    """One piece of work and its criteria."""

    criteria: CriteriaReference | dict[str, Any]
    """Registered criteria by name, or criteria as in a file."""
    record: bool | None = None
    """Whether to record the outcome (default: as configured)."""


class BatchRequest(Body, frozen=True):
    """Up to a hundred pieces of work, judged by the same criteria."""

    criteria: CriteriaReference | dict[str, Any]
    items: Annotated[list[VerifyItem], Meta(min_length=1, max_length=MAX_BATCH)]
    record: bool | None = None


class VerifyReply(Record, frozen=True):
    """The verdict, and where it is recorded."""

    outcome_id: str | None
    """Null when it was not recorded."""
    version: int | None
    recorded: bool
    result: VerificationResult


class AgentReply(Record, frozen=True):
    """What an agent sees: how its work ended, and nothing else."""

    outcome_id: str | None
    version: int | None
    recorded: bool
    verdict: Verdict
    success: bool
    score: float | None
    """Rounded down to 0, 0.5 or 1, unless the terms or the service show all of it; null where they show none."""
    tries: AgentTries | None = None
    """How often the agent may verify its work by these criteria; null within a batch, which counts as a whole."""


class BatchSummary(Record, frozen=True):
    """Number of items by verdict."""

    total: int
    succeeded: int
    verdicts: dict[str, int]


class BatchReply(Record, frozen=True):
    """Every verdict, in the order of the items."""

    summary: BatchSummary
    results: list[VerifyReply]


class AgentBatchReply(Record, frozen=True):
    """What an agent sees of its items, in their order."""

    summary: BatchSummary
    results: list[AgentReply]
    tries: AgentTries
    """How often the agent may verify its work by these criteria; each item is one try."""


@post(
    "/v1/verify",
    status_code=200,
    guards=[SUBMITTERS],
    summary="Judge one piece of work",
    tags=["verify"],
)
async def verify_work(
    data: JSONBody[VerifyRequest], request: ApiRequest, key: Key = None
) -> Response[VerifyReply | AgentReply]:
    """Judge work by criteria. A recorded outcome is durable before the reply."""
    return json_response(*await reply_to(data, [data], request, key))


@post(
    "/v1/verify/batch",
    status_code=200,
    guards=[SUBMITTERS],
    summary="Judge a batch of work",
    tags=["verify"],
)
async def verify_batch(
    data: JSONBody[BatchRequest], request: ApiRequest, key: Key = None
) -> Response[BatchReply | AgentBatchReply]:
    """Judge up to 100 pieces of work by the same criteria; all are recorded together, or none."""
    return json_response(*await reply_to(data, data.items, request, key))


async def verify_directly(request: DirectRequest) -> EncodedReply:
    """Answer as `verify_work` does, for a request that is served past the framework."""
    data = request.parse(VerifyRequest)
    return await reply_to(data, [data], request, request.headers.get("idempotency-key"))


VERIFY_DIRECTLY = DirectRoute(
    method="POST", path="/v1/verify", handler=verify_directly, allow=allow_only(*_SUBMITTING_ROLES)
)


async def reply_to(
    data: VerifyRequest | BatchRequest,
    items: Sequence[VerifyItem],
    request: ServedRequest,
    key: str | None,
) -> EncodedReply:
    """Reply to a request, and free what a large one brought in a thread of its own."""
    try:
        return await _reply_to(data, items, request, key)
    finally:
        await request.free_payloads(items)


async def _reply_to(
    data: VerifyRequest | BatchRequest,
    items: Sequence[VerifyItem],
    request: ServedRequest,
    key: str | None,
) -> EncodedReply:
    """Judge the items, record them where the request says so, and encode the reply."""
    caller, service = request.caller, request.service
    instruments = service.instruments
    recording = service.record_by_default if data.record is None else data.record
    if caller.role is Role.AGENT and not recording:
        # Otherwise it could search for a threshold without leaving a record.
        raise ApiProblem(403, "forbidden", "the work of an agent is always recorded; leave record out")
    size = len(await request.body())
    labels = [_labels(caller, item) for item in items]

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        ready = await load_criteria(caller, data.criteria, service, size)
        judged = [
            await service.registrar.judge(
                ready,
                Submission(input=item.input, output=item.output, metadata=item.metadata, labels=label, size=size),
                caller.tenant,
            )
            for item, label in zip(items, labels, strict=True)
        ]
        for one in judged:
            instruments.count(instruments.verdicts_total, one.result.verdict.value, caller.tenant)
        single = isinstance(data, VerifyRequest)
        if not recording:
            return _reply(judged, recorded=False, single=single)
        key_used = None if once is None else once.key
        write = await service.registrar.draft_all(
            caller.tenant,
            judged,
            by_agent=caller.role is Role.AGENT,
            idempotency_key=key_used,
            in_segment=not single,
        )

        def complete(written: Sequence[RecordedVersion]) -> list[JudgedWork]:
            return [one.as_recorded(where) for one, where in zip(judged, written, strict=True)]

        if caller.role is Role.AGENT:
            limits = service.settings
            counted = RecordTries(caller.agent_id or "", ready.digest, limits.agent_tries, limits.agent_score, write)
            answer = await request.write_once(
                once,
                counted,
                lambda done: _agent_reply(complete(done.versions), done.tries, done.shown, single=single),
            )
        else:
            answer = await request.write_once(
                once, write, lambda written: _reply(complete(written), recorded=True, single=single)
            )
        if not isinstance(answer, IdempotentReplay):
            instruments.count(instruments.recorded_total, caller.tenant, by=len(judged))
        return answer

    return await request.reply_once(key if recording else None, 200, act)


def _labels(caller: Caller, item: VerifyItem) -> Labels:
    """The labels of an item. An agent may label only its own work, and may not send measurements."""
    agent_id = item.agent_id
    if caller.role is Role.AGENT:
        if agent_id not in (None, caller.agent_id):
            raise ApiProblem(403, "forbidden", "an agent may submit only its own work; leave agent_id out")
        if item.contract_id is not None or item.consumer_id is not None:
            why = "only operators may set contract_id and consumer_id; leave them out"
            raise ApiProblem(403, "forbidden", why)
        if item.metadata:
            why = "only operators may send metadata; leave it out"
            raise ApiProblem(403, "forbidden", why)
        private = sorted(PRIVATE_INPUTS & item.input.keys())
        if private:
            raise ApiProblem(403, "forbidden", f"an agent may not send references; leave out {', '.join(private)}")
        agent_id = caller.agent_id
    if item.contract_id is not None and OUR_CONTRACT.fullmatch(item.contract_id):
        # Such a verdict would be mistaken for the one that pays.
        why = "contract_id is a contract of this service; use POST /v1/contracts/ID/complete instead"
        raise ApiProblem(422, "complete_the_contract", why)
    return Labels(item.contract_id, agent_id, item.consumer_id, item.domain)


async def load_criteria(
    caller: Caller, wanted: str | Mapping[str, Any], service: Service, size: int
) -> CompiledCriteria:
    """Registered criteria by name, or criteria as in a file; agents may only name them. `size` is that of the body."""
    if isinstance(wanted, str):
        name, _, version = wanted.partition("@")
        if version and caller.role is Role.AGENT:
            raise ApiProblem(403, "forbidden", "an agent is judged by the latest criteria; leave @version out")
        try:
            _, named = await asyncio.to_thread(
                service.registrar.load_named, caller.tenant, name, int(version or 0) or None
            )
        except Unavailable:
            if caller.role is not Role.AGENT:
                raise
            # Each problem names a metric or a threshold.
            why = "these criteria do not run here; report it to the operator"
            raise ApiProblem(422, "unavailable_here", why) from None
        return named
    if caller.role is Role.AGENT:
        raise ApiProblem(403, "forbidden", "an agent is judged by registered criteria; send their name as criteria")
    found = service.registrar.find_compiled(wanted) if size <= SMALL_BYTES else None
    # Compiling patterns and schemas, and loading code in its sandbox, would block the event loop.
    return await asyncio.to_thread(service.registrar.compile, wanted) if found is None else found


def _reply(judged: Sequence[JudgedWork], *, recorded: bool, single: bool) -> bytes:
    shown = [
        _EncodedReply(
            outcome_id=one.outcome_id if recorded else None,
            version=1 if recorded else None,
            recorded=recorded,
            result=_raw(one),
        )
        for one in judged
    ]
    if single:
        return msgspec.json.encode(shown[0], order="deterministic")
    return msgspec.json.encode({"summary": _summary(judged), "results": shown}, order="deterministic")


def _agent_reply(judged: Sequence[JudgedWork], tries: AgentTries, shown: AgentScore, *, single: bool) -> bytes:
    replies = [
        AgentReply(
            outcome_id=one.outcome_id,
            version=1,
            recorded=True,
            verdict=one.result.verdict,
            success=one.result.success,
            score=show_score(one.result.score, shown),
            tries=tries if single else None,
        )
        for one in judged
    ]
    if single:
        return msgspec.json.encode(replies[0], order="deterministic")
    return msgspec.json.encode(AgentBatchReply(_summary(judged), replies, tries), order="deterministic")


def _summary(judged: Sequence[JudgedWork]) -> BatchSummary:
    verdicts = Counter(one.result.verdict.value for one in judged)
    return BatchSummary(len(judged), sum(one.result.success for one in judged), dict(sorted(verdicts.items())))


class _EncodedReply(msgspec.Struct, frozen=True):
    """A VerifyReply whose result is encoded already."""

    outcome_id: str | None
    version: int | None
    recorded: bool
    result: msgspec.Raw


def _raw(one: JudgedWork) -> msgspec.Raw:
    return msgspec.Raw(one.result_json)
