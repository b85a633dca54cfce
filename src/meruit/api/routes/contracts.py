"""`/v1/contracts`: contracts, their transitions, and the contracts on hold."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS, ApiConnection, allow
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.listing import FormatQuery, SinceQuery, UntilQuery, next_page, parse_span, table_response, wants_table
from meruit.api.request import ApiRequest, Service
from meruit.api.wire.common import (
    CONTRACT_ID,
    WORK_ID,
    Amount,
    Body,
    Key,
    Label,
    LabelQuery,
    Limit,
    PageCursor,
    Payload,
    Reason,
    json_response,
)
from meruit.contracts import lifecycle
from meruit.contracts import records as contracts
from meruit.contracts.lifecycle import Decision, Operation
from meruit.contracts.list_csv import (
    AGENT_CONTRACT_HEADINGS,
    CONTRACT_HEADINGS,
    HOLD_HEADINGS,
    agent_contract_cells,
    contract_rows,
    hold_rows,
)
from meruit.contracts.marketplace import ContractWithWork, Marketplace, completion_fingerprint
from meruit.contracts.records import (
    Actor,
    ContractFilter,
    ContractRequest,
    ContractSnapshot,
    ContractView,
    HoldKind,
    new_salt,
)
from meruit.contracts.rejudge import rejudge as judge_again
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    StartContract,
    VoidContract,
    to_settlement_amount,
)
from meruit.errors import (
    ApiProblem,
    AuthorError,
    DocumentError,
    IdempotencyConflict,
    MeruitError,
    NotFound,
    Problem,
    StoreError,
    UnknownName,
    WrongState,
)
from meruit.governance.dossier import HandedIn
from meruit.governance.metadata import OF_AGENTS
from meruit.model.access import Role
from meruit.model.canonical import payload_bytes
from meruit.model.contract import AgentContract, Contract, ContractState
from meruit.model.numbers import Number
from meruit.model.record import Record
from meruit.model.threshold import money
from meruit.outcomes.service import SMALL_BYTES
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.store.paging import ListPage
from meruit.store.recorder import Write
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import Route, get, post

PARTIES = allow(Role.AGENT, Role.OPERATOR, Role.ADMIN)
MAX_CLAIMS = 1_000
MAX_LENGTH_DIGITS = 9
"""Most digits of a Content-Length that is parsed."""
MAX_NAMED, MAX_NAME_SHOWN = 10, 60
"""Most refused fields that a reply names, and most characters of each."""
ContractId = Annotated[str, PathParameter(pattern=CONTRACT_ID)]
WorkQuery = Annotated[str | None, QueryParameter(pattern=WORK_ID, required=False)]
State = Annotated[ContractState | None, QueryParameter(name="state", required=False)]
HoldState = Annotated[HoldKind | None, QueryParameter(name="state", required=False)]
VisibleContract = ContractView | AgentContract


class AwardRequest(Body, frozen=True):
    """A contract to create."""

    work_id: Annotated[str, Meta(pattern=WORK_ID)]
    agent_id: Label
    cpc_rate: Amount | None = None
    """Payment for completion (default: the offer of the work)."""
    provider_id: Label | None = None
    """Who runs the agent; earnings are summed by it (default: none)."""


class CompletionRequest(Body, frozen=True):
    """The output of an agent."""

    output: Payload
    metadata: Payload = msgspec.field(default_factory=dict)
    """About the run. An agent may report times, tokens and the run's name; they count as claims."""
    claimed_metrics: Annotated[dict[Label, float], Meta(max_length=MAX_CLAIMS)] = msgspec.field(default_factory=dict)
    """Metric values that the agent claims."""


class ReasonRequest(Body, frozen=True):
    """A reason."""

    reason: Reason


class ResolutionRequest(Body, frozen=True):
    """The decision on a dispute, and its reason."""

    decision: Decision
    reason: Reason
    amount: Amount | None = None
    """What to settle on, with the decision `adjust`: at most what is held, or what was paid."""
    currency: Annotated[str, Meta(examples=["USD"], description="Of the amount (default: the contract's).")] | None = (
        None
    )


class ContractPage(Record, frozen=True):
    """Contracts, newest first."""

    contracts: list[ContractView]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


class AgentContractPage(Record, frozen=True):
    """An agent's own contracts, newest first."""

    contracts: list[AgentContract]
    next: int | None


async def check_before_body(request: ApiConnection, _handler: Route) -> None:
    """Refuse a large output before it is read, when the caller may not complete the contract."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS and int(length) <= SMALL_BYTES:
        return
    service: Service = request.app.state["service"]
    scope, contract_id = request.user.scope, str(request.path_params["contract_id"])
    if not re.fullmatch(CONTRACT_ID, contract_id):
        raise NotFound("no such contract")
    contract = await service.read(lambda connection: contracts.find(connection, scope, contract_id))
    # A completed contract answers the same output with the same reply.
    if contract.completion is None:
        lifecycle.check(contract, Operation.COMPLETE)


@post("/v1/contracts", status_code=201, guards=[OPERATORS], summary="Award a contract", tags=["contracts"])
async def award_contract(data: JSONBody[AwardRequest], request: ApiRequest, key: Key = None) -> Response[ContractView]:
    """Create a contract for an agent, and put its maximum cost into escrow."""
    rate = None if data.cpc_rate is None else _parse_amount("cpc_rate", data.cpc_rate)
    contract_id = request.service.store.surroundings.new_id("con")
    return await _apply_transition(
        request,
        key,
        lambda asked: AwardContract(
            request=asked,
            contract_id=contract_id,
            work_id=data.work_id,
            agent_id=data.agent_id,
            cpc_rate=rate,
            provider_id=data.provider_id,
        ),
        status=201,
    )


@get("/v1/contracts", guards=[ANYONE], summary="List contracts", tags=["contracts"])
async def list_contracts(  # noqa: PLR0913 - one a filter
    request: ApiRequest,
    agent_id: LabelQuery = None,
    consumer_id: LabelQuery = None,
    provider_id: LabelQuery = None,
    work_id: WorkQuery = None,
    domain: LabelQuery = None,
    standing: State = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
    shown_as: FormatQuery = None,
) -> Response[ContractPage | AgentContractPage]:
    """List the newest contracts. Several filters must all hold; times are of the award. An agent sees its own."""
    if request.caller.role is Role.AGENT and consumer_id is not None:
        raise ApiProblem(403, "forbidden", "agent keys may not filter by consumer_id")
    begin, end = parse_span(since, until)
    wanted = ContractFilter(
        agent_id=agent_id,
        consumer_id=consumer_id,
        work_id=work_id,
        state=None if standing is None else str(standing),
        provider_id=provider_id,
        domain=domain,
        since=begin,
        until=end,
    )
    scope = request.caller.scope

    def ask(connection: Connection) -> tuple[ListPage[ContractSnapshot], dict[str, str]]:
        found, following = contracts.page(connection, scope, wanted=wanted, before=before, limit=limit)
        titles = contracts.titles_of(connection, scope.tenant, {one.work_id for one in found})
        return ListPage(contracts.load_snapshots(connection, scope.tenant, found), following), titles

    (found, following), titles = await request.service.read(ask)
    if (table := wants_table(request, shown_as)) is None:
        return json_response({"contracts": [_visible_contract(request, one) for one in found], "next": following})
    if request.caller.role is Role.AGENT:
        own = map(agent_contract_cells, map(contracts.to_agent_contract, found))
        return await table_response(request, table, AGENT_CONTRACT_HEADINGS, own, next_page(following))
    return await table_response(request, table, CONTRACT_HEADINGS, contract_rows(found, titles), next_page(following))


@get("/v1/holds", guards=[READERS], summary="List contracts on hold", tags=["contracts"])
async def list_holds(  # noqa: PLR0913 - one a filter
    request: ApiRequest,
    agent_id: LabelQuery = None,
    consumer_id: LabelQuery = None,
    provider_id: LabelQuery = None,
    work_id: WorkQuery = None,
    standing: HoldState = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    before: PageCursor = None,
    limit: Limit = 50,
    shown_as: FormatQuery = None,
) -> Response[ContractPage]:
    """List held and disputed contracts, newest first; `on_hold` says who stopped each, when and why.

    Several filters must all hold; times are of the award.
    """
    begin, end = parse_span(since, until)
    wanted = ContractFilter(agent_id, consumer_id, work_id, None, provider_id, since=begin, until=end)
    scope = request.caller.scope

    def ask(connection: Connection) -> tuple[ListPage[ContractSnapshot], dict[str, str]]:
        found = contracts.page_holds(connection, scope, kind=standing, wanted=wanted, before=before, limit=limit)
        titles = contracts.titles_of(connection, scope.tenant, {one.contract.work_id for one in found.entries})
        return found, titles

    (found, following), titles = await request.service.read(ask)
    if (table := wants_table(request, shown_as)) is not None:
        return await table_response(request, table, HOLD_HEADINGS, hold_rows(found, titles), next_page(following))
    return json_response({"contracts": [contracts.to_contract_view(one) for one in found], "next": following})


@get("/v1/holds/{contract_id:str}", guards=[READERS], summary="Read a hold", tags=["contracts"])
async def read_hold(contract_id: ContractId, request: ApiRequest) -> Response[ContractView]:
    """Read a held or disputed contract; `on_hold.reasons` has every reason with its evidence."""
    scope, shelf = request.caller.scope, request.service.store.blobs
    found = await request.service.read(lambda connection: contracts.load_hold(connection, scope, contract_id, shelf))
    return json_response(contracts.encode(contracts.to_contract_view(found)))


@get("/v1/contracts/{contract_id:str}", guards=[ANYONE], summary="Read a contract", tags=["contracts"])
async def read_contract(contract_id: ContractId, request: ApiRequest) -> Response[ContractView | AgentContract]:
    """Read a contract with its verdict and payment. An agent sees its own, without criteria."""
    scope = request.caller.scope
    found = await request.service.read(
        lambda connection: contracts.load_snapshot_in_full(connection, scope, contract_id)
    )
    return json_response(_render_contract(request, found))


@post(
    "/v1/contracts/{contract_id:str}/start",
    status_code=200,
    guards=[PARTIES],
    summary="Start a contract",
    tags=["contracts"],
)
async def start_contract(
    contract_id: ContractId, request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Record that the agent starts; its time is measured from now on."""
    await request.require_no_body()
    return await _apply_transition(request, key, lambda asked: StartContract(asked, contract_id))


@post(
    "/v1/contracts/{contract_id:str}/complete",
    status_code=200,
    guards=[PARTIES, check_before_body],
    summary="Complete a contract",
    tags=["contracts"],
)
async def complete_contract(
    contract_id: ContractId, data: JSONBody[CompletionRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Judge the output, check governance, then settle or hold. All of it is durable before the reply."""
    caller, service = request.caller, request.service
    by_agent = caller.role is Role.AGENT
    if by_agent:
        _check_agent_metadata(data)
    handed = HandedIn(
        output=data.output,
        metadata=data.metadata,
        claims=data.claimed_metrics,
        by_agent=by_agent,
        size=len(await request.body()),
    )
    render = partial(_render_contract, request)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        asked = _transition_request(request, once)
        case, input_size = await run_in_reader_thread(_load_case, service.marketplace, asked.actor, contract_id)
        mark = await _completion_mark(handed)
        # An early check that saves work; the write checks again.
        if _is_same_completion(case.contract, mark):
            return await request.store_reply(
                once, _render_contract(request, await _read_contract_state(request, contract_id))
            )
        lifecycle.complete(case.contract, service.store.surroundings.clock(), "", mark)
        with _hide_details(by_agent):
            await asyncio.to_thread(_compile_criteria, service.marketplace, case)
            # A long reference takes as long to compare as a long output.
            all_of_it = msgspec.structs.replace(handed, size=handed.size + input_size)
            transition = await service.marketplace.completion(asked, case, all_of_it)
            done = await request.record_once(once, transition, render)
        if isinstance(done, IdempotentReplay):
            return done
        if done.contract.outcome_id == transition.outcome.id:
            _count_verdict(request, done)
        return render(done)

    return await request.answer_once(key, 200, act)


@post(
    "/v1/contracts/{contract_id:str}/settle",
    status_code=200,
    guards=[OPERATORS],
    summary="Settle a contract",
    tags=["contracts"],
)
async def settle_contract(contract_id: ContractId, request: ApiRequest, key: Key = None) -> Response[ContractView]:
    """Pay what the verdict is worth. A settled contract is returned unchanged."""
    await request.require_no_body()
    return await _apply_transition(request, key, lambda asked: SettleContract(asked, contract_id))


@post(
    "/v1/contracts/{contract_id:str}/release",
    status_code=200,
    guards=[OPERATORS],
    summary="Release a hold",
    tags=["contracts"],
)
async def release_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Approve a payment on hold, for a recorded reason."""
    reason, salt = validate_reason(data.reason), new_salt(request.service.store.surroundings.entropy)
    return await _apply_transition(
        request, key, lambda asked: ReleaseContract(request=asked, contract_id=contract_id, reason=reason, salt=salt)
    )


@post(
    "/v1/contracts/{contract_id:str}/void",
    status_code=200,
    guards=[OPERATORS],
    summary="Void a contract",
    tags=["contracts"],
)
async def void_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Cancel a contract: nothing is paid, and the escrow is returned."""
    reason = validate_reason(data.reason)
    return await _apply_transition(
        request, key, lambda asked: VoidContract(request=asked, contract_id=contract_id, reason=reason)
    )


@post(
    "/v1/contracts/{contract_id:str}/reverse",
    status_code=200,
    guards=[OPERATORS],
    summary="Reverse a payment",
    tags=["contracts"],
)
async def reverse_payment(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Move a payment back into escrow, to be settled by a later verdict or voided."""
    reason = validate_reason(data.reason)
    return await _apply_transition(
        request, key, lambda asked: ReverseContract(request=asked, contract_id=contract_id, reason=reason)
    )


@post(
    "/v1/contracts/{contract_id:str}/dispute",
    status_code=200,
    guards=[PARTIES],
    summary="Dispute a contract",
    tags=["contracts"],
)
async def dispute_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Dispute a verdict or a payment. The escrow is frozen until the dispute is resolved."""
    reason = validate_reason(data.reason)
    return await _apply_transition(
        request, key, lambda asked: DisputeContract(request=asked, contract_id=contract_id, reason=reason)
    )


@post(
    "/v1/contracts/{contract_id:str}/resolve",
    status_code=200,
    guards=[OPERATORS],
    summary="Resolve a dispute",
    tags=["contracts"],
)
async def resolve_dispute(
    contract_id: ContractId, data: JSONBody[ResolutionRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Uphold the contract, reverse the payment, void it, or settle it on another amount."""
    reason = validate_reason(data.reason)
    given = None if data.amount is None else _parse_amount("amount", data.amount)
    amount = to_settlement_amount(given, data.currency)
    return await _apply_transition(
        request,
        key,
        lambda asked: ResolveDispute(
            request=asked, contract_id=contract_id, decision=data.decision, reason=reason, amount=amount
        ),
    )


@post(
    "/v1/contracts/{contract_id:str}/rejudge",
    status_code=200,
    guards=[OPERATORS],
    summary="Rejudge a contract",
    tags=["contracts"],
)
async def rejudge_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Measure and judge the output again by the contract's own criteria, as a new version of its verdict."""
    reason = validate_reason(data.reason)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        return await request.act_once(once, judge)

    async def judge() -> bytes:
        standing = await asyncio.to_thread(judge_again, request.service.marketplace, request.actor, contract_id, reason)
        return _render_contract(request, standing)

    return await request.answer_once(key, 200, act)


async def _apply_transition(
    request: ApiRequest,
    key: str | None,
    transition: Callable[[ContractRequest], Write[ContractSnapshot]],
    *,
    status: int = 200,
) -> Response[Any]:
    """Apply a transition once, and answer with the contract."""

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        write = transition(_transition_request(request, once))
        with _hide_details(request.caller.role is Role.AGENT):
            return await request.write_once(once, write, partial(_render_contract, request))

    return await request.answer_once(key, status, act)


def _transition_request(request: ApiRequest, once: IdempotentRequest | None) -> ContractRequest:
    return ContractRequest(request.actor, None if once is None else once.key)


def _render_contract(request: ApiRequest, standing: ContractSnapshot) -> bytes:
    return contracts.encode(_visible_contract(request, standing))


def _visible_contract(request: ApiRequest, standing: ContractSnapshot) -> VisibleContract:
    if request.caller.role is Role.AGENT:
        return contracts.to_agent_contract(standing)
    return contracts.to_contract_view(standing)


async def _read_contract_state(request: ApiRequest, contract_id: str) -> ContractSnapshot:
    scope = request.caller.scope
    return await request.service.read(lambda connection: contracts.load_snapshot(connection, scope, contract_id))


def _load_case(marketplace: Marketplace, actor: Actor, contract_id: str) -> tuple[ContractWithWork, int]:
    """Load the contract with its work, and the size of the input."""
    case = marketplace.find_contract(actor, contract_id)
    return case, len(payload_bytes(case.input) or b"")


def _compile_criteria(marketplace: Marketplace, case: ContractWithWork) -> None:
    """Compile the criteria outside the event loop; the registrar caches them."""
    work = case.work
    if work.criteria is not None and work.criteria_digest is not None:
        marketplace.registrar.load_committed(work.criteria_digest, work.criteria)


def _is_same_completion(contract: Contract, mark: str) -> bool:
    """Whether this output completed the contract before; raises WrongState for another output."""
    if contract.completion not in (None, mark):
        raise WrongState("already_completed", f"contract {contract.id} was already completed with another output")
    return contract.completion == mark


async def _completion_mark(handed: HandedIn) -> str:
    if handed.size > SMALL_BYTES:
        return await asyncio.to_thread(completion_fingerprint, handed)
    return completion_fingerprint(handed)


def _count_verdict(request: ApiRequest, done: ContractSnapshot) -> None:
    instruments = request.service.instruments
    instruments.recorded_total.labels(request.caller.tenant).inc()
    if done.judgement is not None and done.judgement.result is not None:
        instruments.verdicts_total.labels(done.judgement.result.verdict.value, request.caller.tenant).inc()


@contextmanager
def _hide_details(by_agent: bool) -> Iterator[None]:  # noqa: FBT001 - the one thing that it depends on
    """Translate errors of judging and billing. An agent gets no details, because they name criteria."""
    try:
        yield
    except (NotFound, WrongState, IdempotencyConflict, StoreError):
        # These describe the contract's state or the store, and reveal no criteria.
        raise
    except (DocumentError, AuthorError, UnknownName) as refused:
        if not by_agent and isinstance(refused, DocumentError):
            raise
        why = "the criteria or rules of this contract do not run here; report it to the operator"
        raise ApiProblem(422, "unavailable_here", why if by_agent else str(refused)) from None
    except MeruitError as refused:
        # Other kinds of error have their own code and status.
        if not by_agent and type(refused) is not MeruitError:
            raise
        why = "this output cannot be judged; submit another one"
        raise ApiProblem(422, "cannot_be_judged", why if by_agent else str(refused)) from None


def _check_agent_metadata(data: CompletionRequest) -> None:
    # A few of them: there may be a million.
    others = list(islice((name for name in data.metadata if name not in OF_AGENTS), MAX_NAMED))
    if others:
        named = ", ".join(name[:MAX_NAME_SHOWN] for name in sorted(others))
        allowed = ", ".join(sorted(OF_AGENTS))
        raise ApiProblem(403, "forbidden", f"an agent may report only {allowed}; leave out {named}")


def validate_reason(reason: str) -> str:
    """Check that a reason is printable text; raises ApiProblem."""
    if not reason.strip() or not reason.isprintable():
        problem = Problem("reason", "expected one line of text without control characters")
        raise ApiProblem(400, "bad_body", str(problem), errors=[problem])
    return reason


def _parse_amount(field: str, value: float | str) -> Number:
    try:
        return money(value)
    except ValueError as refused:
        problem = Problem(field, str(refused))
        raise ApiProblem(400, "bad_amount", str(problem), errors=[problem]) from None
