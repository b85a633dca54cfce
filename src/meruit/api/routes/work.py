"""`/v1/work`: published work with its criteria and terms."""

import asyncio
from typing import Annotated, Any

from msgspec import Meta
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS
from meruit.api.listing import SinceQuery, UntilQuery, parse_span
from meruit.api.problems import MAX_ERRORS
from meruit.api.request import ApiRequest, Service
from meruit.api.wire.common import (
    WORK_ID,
    Amount,
    Body,
    Key,
    Label,
    LabelQuery,
    Limit,
    PageCursor,
    Reason,
    json_response,
    to_document,
)
from meruit.contracts import records as contracts
from meruit.contracts import records as works
from meruit.contracts.records import Actor, SubmitWork, WorkFilter, WorkRow, WorkView
from meruit.contracts.transitions import RecordInputRead
from meruit.documents.authoring import parse_work
from meruit.errors import (
    AmountTooLarge,
    ApiProblem,
    DocumentError,
    MeruitError,
    NullAgentPasses,
    StoreError,
    UnknownName,
)
from meruit.model.access import MAX_AGENT_TRIES, AgentScore, Role
from meruit.model.contract import (
    FINDING_CODE,
    MAX_CANARIES,
    MAX_DEADLINE_HOURS,
    MAX_DISPUTE_HOURS,
    MAX_FINDING_CODE,
    MAX_FINDINGS,
    MAX_TEXT,
    AgentWork,
    BonusOnFailure,
    CapSplit,
    LatencyFrom,
    SettleWhen,
)
from meruit.model.limits import MIN_CANARY
from meruit.model.outcome import MAX_LABEL
from meruit.model.record import Record
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.verify.faults import examine_with
from meruit.web.parameters import JSONBody, PathParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

WorkId = Annotated[str, PathParameter(pattern=WORK_ID)]
Share = Annotated[float | int | str, Meta(description="From 0 to 1; a number, or a decimal string for exactness.")]
FindingCode = Annotated[str, Meta(pattern=FINDING_CODE, max_length=MAX_FINDING_CODE)]
Canary = Annotated[str, Meta(min_length=MIN_CANARY, max_length=MAX_LABEL)]


class BonusCap(Body, frozen=True, omit_defaults=True):
    """A cap on bonuses."""

    max_total: Amount | None = None


class BudgetRequest(Body, frozen=True, omit_defaults=True):
    """The budget of the consumer. The cap on bonuses has four names; use one of them."""

    max_cpc: Amount | None = None
    """Highest payment for completion that an award may set."""
    max_cpa_total: Amount | None = None
    """Highest sum of bonuses; 0 for none."""
    max_cpa_bonus: Amount | None = None
    max_bonus: Amount | None = None
    cpa_bonus: BonusCap | None = None


class TokenRatesRequest(Body, frozen=True, omit_defaults=True):
    """Rates per million tokens."""

    input_per_million: Amount
    output_per_million: Amount
    """Includes reasoning tokens."""
    cached_per_million: Amount | None = None
    """Input read from a cache (default: as other input)."""


class TermsRequest(Body, frozen=True, omit_defaults=True):
    """Payment terms of contracts on the work; each has a default."""

    currency: Annotated[str, Meta(examples=["USD", "EUR"], description="An ISO 4217 code.")] | None = None
    cpc_rate: Amount | None = None
    """Payment for completion; an award may set it instead."""
    max_cpa_total: Amount | None = None
    max_penalty_rate: Share | None = None
    """Highest share of the CPC that penalties take."""
    bonus_on_failure: BonusOnFailure | None = None
    cap_split: CapSplit | None = None
    claimed_may_earn: bool | None = None
    """Whether metrics that the agent claims may earn bonuses."""
    settle: SettleWhen | None = None
    latency_from: LatencyFrom | None = None
    """From when an agent's time counts (default: `input`, its first read of the input)."""
    pay_per_run: bool | None = None
    """Whether each payment is for one run: work that names no `run_id` is held."""
    agent_tries: Annotated[int, Meta(ge=0, le=MAX_AGENT_TRIES)] | None = None
    """How often the agent may have its work verified by the same criteria before it completes (default: 10)."""
    agent_score: AgentScore | None = None
    """What the agent sees of the score until it is paid (default: `coarse`, which is 0, 0.5 or 1)."""
    dispute_window_hours: Annotated[int, Meta(ge=1, le=MAX_DISPUTE_HOURS)] | None = None
    deadline_hours: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_HOURS)] | None = None
    platform_fee_rate: Share | None = None
    token_rates: TokenRatesRequest | None = None
    """Rates at which verified tokens are paid."""
    tokens_at_cost: bool | None = None
    """Whether verified tokens are paid at the provider's prices."""
    max_token_cost: Amount | None = None
    """The most that is paid for tokens; put into escrow."""
    rules: Annotated[list[str], Meta(min_length=1, max_length=32)] | None = None
    """Settlement rules, in order."""


class WorkRequest(Body, frozen=True, omit_defaults=True):
    """Work to publish. Agents see title, description, domain and the public part of the input."""

    title: Label
    description: Annotated[str, Meta(max_length=MAX_TEXT)] = ""
    """Instructions for the agent."""
    domain: Label | None = None
    consumer_id: Label | None = None
    """Who pays (default: the tenant)."""
    # Any: the input is any JSON object.
    input: Annotated[dict[str, Any], Meta(description="Agents do not see its references and schemas.")] | None = None
    private: Annotated[dict[str, Any], Meta(description="Input for judging that agents never see.")] | None = None
    success_criteria: Annotated[dict[str, Any], Meta(description="As in a criteria file.")] | None = None
    """Bonuses and penalties; may be left out."""
    budget: BudgetRequest | None = None
    terms: TermsRequest | None = None
    canaries: Annotated[list[Canary], Meta(max_length=MAX_CANARIES)] | None = None
    """Strings planted in references; an output that contains one has seen them."""
    impossible: bool = False
    """Whether no honest agent can pass; used as a trap."""
    accept_null_agent: Reason | None = None
    """Why criteria that an agent passes by doing nothing are intended; recorded."""
    accept_findings: Annotated[list[FindingCode], Meta(max_length=MAX_FINDINGS)] | None = None
    """Codes of proven errors of the criteria that are intended, such as `never_met`; recorded."""


class WorkPage(Record, frozen=True):
    """Work without criteria and input, newest first."""

    work: list[WorkView]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


@post("/v1/work", status_code=201, guards=[OPERATORS], summary="Publish work", tags=["work"])
async def submit_work(data: JSONBody[WorkRequest], request: ApiRequest, key: Key = None) -> Response[WorkView]:
    """Publish work. First its criteria are compiled, proven on paper, and tested against agents that do nothing.

    Criteria that are proven wrong are refused with a list of findings, each with its `code`; `accept_findings` insists.
    """
    service = request.service

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        # Compiling and testing would block the event loop.
        submission = await asyncio.to_thread(_prepare_submission, service, request.actor, data)
        return await request.write_once(once, submission, _render_work)

    return await request.answer_once(key, 201, act)


def _render_work(work: WorkRow) -> bytes:
    return contracts.encode(works.to_work_view(work))


def _prepare_submission(service: Service, actor: Actor, data: WorkRequest) -> SubmitWork:
    marketplace = service.marketplace
    catalogue = marketplace.registrar.engine.catalogue
    try:
        submission = parse_work(
            to_document(data),
            known_metrics=catalogue.names(),
            max_criteria=service.max_criteria,
            examine=examine_with(catalogue),
        )
    except DocumentError as refused:
        detail = "; ".join(str(problem) for problem in refused.problems[:MAX_ERRORS])
        raise ApiProblem(400, "bad_work", detail, errors=refused.problems) from None
    try:
        return marketplace.publish(actor, submission)
    except UnknownName as refused:
        raise ApiProblem(422, "unknown_rule", f"terms.rules: {refused}") from None
    except (DocumentError, StoreError, AmountTooLarge, NullAgentPasses):
        # Each has a code and a status of its own.
        raise
    except MeruitError as refused:
        raise ApiProblem(422, "cannot_be_published", str(refused)) from None


@get("/v1/work", guards=[READERS], summary="List work", tags=["work"])
async def list_work(
    request: ApiRequest,
    consumer_id: LabelQuery = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[WorkPage]:
    """List the newest work. Several filters must all hold."""
    tenant = request.caller.tenant
    wanted = WorkFilter(consumer_id, *parse_span(since, until))
    found, following = await request.service.read(
        lambda connection: works.page_work(connection, tenant, wanted=wanted, before=before, limit=limit)
    )
    return json_response(WorkPage([works.to_work_view(one) for one in found], following))


@get("/v1/work/{work_id:str}", guards=[ANYONE], summary="Read work", tags=["work"])
async def read_work(work_id: WorkId, request: ApiRequest) -> Response[WorkView | AgentWork]:
    """Read work; an agent with a contract on it sees what it needs to do it, and its first read is recorded."""
    caller, service = request.caller, request.service

    def ask(connection: Connection) -> tuple[WorkView | AgentWork, bool]:
        work = works.find_visible(connection, caller.scope, work_id)
        given = works.input_of(connection, caller.tenant, work, service.store.blobs)
        if caller.role is not Role.AGENT:
            return works.to_work_view(work, given), False
        return works.to_agent_work(work, given), works.is_first_read(connection, caller.scope, work_id)

    found, is_first = await service.read(ask)
    if is_first:
        # Durable before the agent has the input: its time may count from here.
        await service.store.recorder.record(RecordInputRead(request.actor, work_id))
    return json_response(contracts.encode(found))
