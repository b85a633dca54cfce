"""`/v1/contracts`: who works for whom, every move of it, and what waits for a person."""

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import BaseRouteHandler
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, OPERATORS, READERS, ApiConnection, allow
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.request import ApiRequest, Service
from meruit.api.wire import (
    CONTRACT_ID,
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
)
from meruit.contracts import lifecycle
from meruit.contracts.lifecycle import Decision, Operation
from meruit.contracts.marketplace import ContractWithWork, Marketplace, completion_fingerprint
from meruit.contracts.rejudge import rejudge as judge_again
from meruit.contracts.store import read as contracts
from meruit.contracts.store import transaction as stepping
from meruit.contracts.store.read import ContractFilter, ContractFilterValue, ContractSnapshot, ContractView
from meruit.contracts.store.transaction import Actor, ContractReply, new_salt
from meruit.contracts.transitions import (
    AwardContract,
    DisputeContract,
    ReleaseContract,
    ResolveDispute,
    ReverseContract,
    SettleContract,
    StartContract,
    VoidContract,
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
from meruit.governance.dossier import OF_AGENTS, HandedIn
from meruit.model.access import Role
from meruit.model.canonical import payload_bytes
from meruit.model.contract import AgentContract, Contract, ContractState
from meruit.model.numbers import Number
from meruit.model.record import Record
from meruit.model.threshold import money
from meruit.outcomes.service import SMALL_BYTES
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest
from meruit.store.recorder import Write

PARTIES = allow(Role.AGENT, Role.OPERATOR, Role.ADMIN)
MAX_CLAIMS = 1_000
MAX_LENGTH_DIGITS = 9
"""Of a Content-Length that is read as a number."""
MAX_NAMED, MAX_NAME_SHOWN = 10, 60
"""How many fields that are refused a reply names, and how much of each."""
ContractId = Annotated[str, PathParameter(pattern=CONTRACT_ID)]
WorkQuery = Annotated[str | None, QueryParameter(pattern=WORK_ID, required=False)]
# Litestar hands something else of its own to whatever is named `state`.
State = Annotated[ContractState | None, QueryParameter(name="state", required=False)]
VisibleContract = ContractView | AgentContract

# Any: work is whatever JSON the agent gives back.
Payload = Annotated[dict[str, Any], Meta(description="A JSON object.")]


class AwardRequest(Body, frozen=True):
    """A contract to be made."""

    work_id: Annotated[str, Meta(pattern=WORK_ID)]
    agent_id: Label
    cpc_rate: Amount | None = None
    """What this agent is paid for completion; what the work offers when not given."""


class CompletionRequest(Body, frozen=True):
    """What an agent made of its work."""

    output: Payload
    metadata: Payload = msgspec.field(default_factory=dict)
    """How the run went; an agent may tell times, tokens and the run's name, which are taken for claims."""
    claimed_metrics: Annotated[dict[Label, float], Meta(max_length=MAX_CLAIMS)] = msgspec.field(default_factory=dict)
    """What the agent says that its metrics are."""


class ReasonRequest(Body, frozen=True):
    """Why."""

    reason: Reason


class ResolutionRequest(Body, frozen=True):
    """How a dispute ends, and why."""

    decision: Decision
    reason: Reason


class ContractPage(Record, frozen=True):
    """Contracts, newest first."""

    contracts: list[ContractView]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


class AgentContractPage(Record, frozen=True):
    """An agent's own contracts, newest first."""

    contracts: list[AgentContract]
    next: int | None


async def check_before_body(request: ApiConnection, _handler: BaseRouteHandler) -> None:
    """A guard that reads no large output for a contract that is not the caller's, or that can take none."""
    length = request.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and len(length) <= MAX_LENGTH_DIGITS and int(length) <= SMALL_BYTES:
        return
    service: Service = request.app.state["service"]
    scope, contract_id = request.user.scope, str(request.path_params["contract_id"])
    if not re.fullmatch(CONTRACT_ID, contract_id):
        raise NotFound("no such contract")
    contract = await service.read(lambda connection: contracts.find(connection, scope, contract_id))
    # What was completed may be told again, to whoever hands the same in.
    if contract.completion is None:
        lifecycle.check(contract, Operation.COMPLETE)


@post("/v1/contracts", status_code=201, guards=[OPERATORS], summary="Award work to an agent", tags=["contracts"])
async def award_contract(data: JSONBody[AwardRequest], request: ApiRequest, key: Key = None) -> Response[ContractView]:
    """Make a contract, and put aside the most that it can cost."""
    rate = None if data.cpc_rate is None else _parse_amount("cpc_rate", data.cpc_rate)
    contract_id = request.service.store.surroundings.new_id("con")
    return await _apply_transition(
        request, key, lambda asked: AwardContract(asked, contract_id, data.work_id, data.agent_id, rate), status=201
    )


@get("/v1/contracts", guards=[ANYONE], summary="List contracts", tags=["contracts"])
async def list_contracts(
    request: ApiRequest,
    agent_id: LabelQuery = None,
    consumer_id: LabelQuery = None,
    work_id: WorkQuery = None,
    standing: State = None,
    before: PageCursor = None,
    limit: Limit = 50,
) -> Response[ContractPage | AgentContractPage]:
    """The newest contracts, at most one filter; an agent sees its own."""
    given = {
        ContractFilter.AGENT: agent_id,
        ContractFilter.CONSUMER: consumer_id,
        ContractFilter.WORK: work_id,
        ContractFilter.STATE: standing,
    }
    wanted = [ContractFilterValue(by, str(value)) for by, value in given.items() if value is not None]
    if len(wanted) > 1:
        raise ApiProblem(400, "too_many_filters", f"give one of {', '.join(ContractFilter)}, not {len(wanted)}")
    if request.caller.role is Role.AGENT and consumer_id is not None:
        raise ApiProblem(403, "forbidden", "an agent does not ask who pays")
    return await _page(request, wanted[0] if wanted else None, before, limit)


@get("/v1/holds", guards=[READERS], summary="List what waits for a person", tags=["contracts"])
async def list_holds(request: ApiRequest, before: PageCursor = None, limit: Limit = 50) -> Response[ContractPage]:
    """Contracts that are completed and not paid, the newest first, each with the reason and governance's flags."""
    held = ContractFilterValue(ContractFilter.STATE, ContractState.VERIFICATION_PENDING)
    return await _page(request, held, before, limit)


@get("/v1/contracts/{contract_id:str}", guards=[ANYONE], summary="Read a contract", tags=["contracts"])
async def read_contract(contract_id: ContractId, request: ApiRequest) -> Response[ContractView | AgentContract]:
    """How it stands: its verdict and what was paid; to an agent, of its own, without what it was judged by."""
    scope = request.caller.scope
    found = await request.service.read(
        lambda connection: contracts.load_snapshot_with_history(connection, scope, contract_id)
    )
    return json_response(_render_contract(request, found))


@post("/v1/contracts/{contract_id:str}/start", status_code=200, guards=[PARTIES], summary="Begin", tags=["contracts"])
async def start_contract(
    contract_id: ContractId, request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Say that the agent begins; from here on its time is taken."""
    await request.require_no_body()
    return await _apply_transition(request, key, lambda asked: StartContract(asked, contract_id))


@post(
    "/v1/contracts/{contract_id:str}/complete",
    status_code=200,
    guards=[PARTIES, check_before_body],
    summary="Hand the output in",
    tags=["contracts"],
)
async def complete_contract(
    contract_id: ContractId, data: JSONBody[CompletionRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Judge the output, ask whether it can be believed, and settle or hold: all of it durable before this answers."""
    caller, service = request.caller, request.service
    by_agent = caller.role is Role.AGENT
    if by_agent:
        _check_agent_metadata(data)
    handed = HandedIn(data.output, data.metadata, data.claimed_metrics, by_agent, len(await request.body()))

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        asked = _transition_request(request, once)
        case, input_size = await run_in_reader_thread(_load_case, service.marketplace, asked.actor, contract_id)
        mark = await _completion_mark(handed)
        # Only a first look, which saves work; what counts is what the store finds when it writes.
        if _is_same_completion(case.contract, mark):
            return await request.store_reply(
                once, _render_contract(request, await _read_contract_state(request, contract_id))
            )
        lifecycle.complete(case.contract, service.store.surroundings.clock(), "", mark)
        with _hide_details(by_agent):
            await asyncio.to_thread(_compile_criteria, service.marketplace, case)
            # A long reference takes as long to compare with as a long output.
            all_of_it = handed._replace(size=handed.size + input_size)
            move = await service.marketplace.completion(asked, case, all_of_it)
            done = await service.store.recorder.record(move)
        if isinstance(done, ContractSnapshot) and done.contract.outcome_id == move.outcome.id:
            _count_verdict(request, done)
        return done if isinstance(done, IdempotentReplay) else asked.render(done)

    return await request.answer_once(key, 200, act)


@post(
    "/v1/contracts/{contract_id:str}/settle",
    status_code=200,
    guards=[OPERATORS],
    summary="Pay a clear verdict",
    tags=["contracts"],
)
async def settle_contract(contract_id: ContractId, request: ApiRequest, key: Key = None) -> Response[ContractView]:
    """Pay what the verdict is worth; what is settled already is told as it was."""
    await request.require_no_body()
    return await _apply_transition(request, key, lambda asked: SettleContract(asked, contract_id))


@post(
    "/v1/contracts/{contract_id:str}/release",
    status_code=200,
    guards=[OPERATORS],
    summary="Pay what was held",
    tags=["contracts"],
)
async def release_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Say that a person has looked and lets it be paid."""
    reason, salt = validate_reason(data.reason), new_salt(request.service.store.surroundings.entropy)
    return await _apply_transition(request, key, lambda asked: ReleaseContract(asked, contract_id, reason, salt))


@post(
    "/v1/contracts/{contract_id:str}/void",
    status_code=200,
    guards=[OPERATORS],
    summary="Call it off",
    tags=["contracts"],
)
async def void_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Pay nothing; the escrow goes back."""
    reason = validate_reason(data.reason)
    return await _apply_transition(request, key, lambda asked: VoidContract(asked, contract_id, reason))


@post(
    "/v1/contracts/{contract_id:str}/reverse",
    status_code=200,
    guards=[OPERATORS],
    summary="Take back what was paid",
    tags=["contracts"],
)
async def reverse_payment(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Move what was paid back into escrow, to be settled by a later verdict or called off."""
    reason = validate_reason(data.reason)
    return await _apply_transition(request, key, lambda asked: ReverseContract(asked, contract_id, reason))


@post(
    "/v1/contracts/{contract_id:str}/dispute", status_code=200, guards=[PARTIES], summary="Object", tags=["contracts"]
)
async def dispute_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView | AgentContract]:
    """Object to how it was judged or paid; what is held is frozen until that is resolved."""
    reason = validate_reason(data.reason)
    return await _apply_transition(request, key, lambda asked: DisputeContract(asked, contract_id, reason))


@post(
    "/v1/contracts/{contract_id:str}/resolve",
    status_code=200,
    guards=[OPERATORS],
    summary="End a dispute",
    tags=["contracts"],
)
async def resolve_dispute(
    contract_id: ContractId, data: JSONBody[ResolutionRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Let it stand, take back what was paid, or call it off."""
    reason = validate_reason(data.reason)
    return await _apply_transition(
        request, key, lambda asked: ResolveDispute(asked, contract_id, data.decision, reason)
    )


@post(
    "/v1/contracts/{contract_id:str}/rejudge",
    status_code=200,
    guards=[OPERATORS],
    summary="Judge the output again",
    tags=["contracts"],
)
async def rejudge_contract(
    contract_id: ContractId, data: JSONBody[ReasonRequest], request: ApiRequest, key: Key = None
) -> Response[ContractView]:
    """Measure and judge the output anew by the contract's own criteria, as one more version of its verdict."""
    reason = validate_reason(data.reason)

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        standing = await asyncio.to_thread(judge_again, request.service.marketplace, request.actor, contract_id, reason)
        return await request.store_reply(once, _render_contract(request, standing))

    return await request.answer_once(key, 200, act)


async def _apply_transition(
    request: ApiRequest,
    key: str | None,
    move: Callable[[stepping.ContractRequest], Write[ContractReply]],
    *,
    status: int = 200,
) -> Response[Any]:
    """Have a contract moved once, and answer how it stands."""

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        asked = _transition_request(request, once)
        with _hide_details(request.caller.role is Role.AGENT):
            done = await request.service.store.recorder.record(move(asked))
        return done if isinstance(done, IdempotentReplay) else asked.render(done)

    return await request.answer_once(key, status, act)


def _transition_request(request: ApiRequest, once: IdempotentRequest | None) -> stepping.ContractRequest:
    return stepping.ContractRequest(request.actor, once, lambda standing: _render_contract(request, standing))


def _render_contract(request: ApiRequest, standing: ContractSnapshot) -> bytes:
    return contracts.encode(_visible_contract(request, standing))


def _visible_contract(request: ApiRequest, standing: ContractSnapshot) -> VisibleContract:
    if request.caller.role is Role.AGENT:
        return contracts.to_agent_contract(standing)
    return contracts.to_contract_view(standing)


async def _read_contract_state(request: ApiRequest, contract_id: str) -> ContractSnapshot:
    scope = request.caller.scope
    return await request.service.read(lambda connection: contracts.load_snapshot(connection, scope, contract_id))


async def _page(
    request: ApiRequest, wanted: ContractFilterValue | None, before: int | None, limit: int
) -> Response[Any]:
    scope = request.caller.scope

    def ask(connection: Connection) -> list[ContractSnapshot]:
        found = contracts.page(connection, scope, wanted=wanted, before=before, limit=limit)
        return contracts.load_snapshots(connection, scope.tenant, found)

    found = await request.service.read(ask)
    last = found[-1].contract.seq if len(found) == limit else None
    return json_response({"contracts": [_visible_contract(request, one) for one in found], "next": last})


def _load_case(marketplace: Marketplace, actor: Actor, contract_id: str) -> tuple[ContractWithWork, int]:
    """The contract with its work, and the size of what the agent was given."""
    case = marketplace.find_contract(actor, contract_id)
    return case, len(payload_bytes(case.input) or b"")


def _compile_criteria(marketplace: Marketplace, case: ContractWithWork) -> None:
    """Make the criteria ready beside the event loop; the registrar remembers them."""
    work = case.work
    if work.criteria is not None and work.criteria_digest is not None:
        marketplace.registrar.load_committed(work.criteria_digest, work.criteria)


def _is_same_completion(contract: Contract, mark: str) -> bool:
    """Whether just this was handed in before; raises WrongState for another output."""
    if contract.completion not in (None, mark):
        raise WrongState(
            "already_completed", f"contract {contract.id} was completed with another output; that one counts"
        )
    return contract.completion == mark


async def _completion_mark(handed: HandedIn) -> str:
    if handed.size > SMALL_BYTES:
        return await asyncio.to_thread(completion_fingerprint, handed)
    return completion_fingerprint(handed)


def _count_verdict(request: ApiRequest, done: ContractSnapshot) -> None:
    instruments = request.service.instruments
    instruments.recorded_total.inc()
    if done.judgement is not None and done.judgement.result is not None:
        instruments.verdicts_total.labels(done.judgement.result.verdict.value).inc()


@contextmanager
def _hide_details(by_agent: bool) -> Iterator[None]:  # noqa: FBT001 - the one thing that it depends on
    """Tell what cannot be judged or billed here; an agent hears only that, for every problem names a criterion."""
    try:
        yield
    except (NotFound, WrongState, IdempotencyConflict, StoreError):
        # Each tells of the contract's state or of the store, and of nothing that a contract is judged by.
        raise
    except (DocumentError, AuthorError, UnknownName) as refused:
        if not by_agent and isinstance(refused, DocumentError):
            raise
        why = "what this contract is judged or paid by does not run here; tell whoever awarded it"
        raise ApiProblem(422, "unavailable_here", why if by_agent else str(refused)) from None
    except MeruitError as refused:
        # Whatever else has a kind of its own is told by its own handler.
        if not by_agent and type(refused) is not MeruitError:
            raise
        why = "this output cannot be judged; hand in another"
        raise ApiProblem(422, "cannot_be_judged", why if by_agent else str(refused)) from None


def _check_agent_metadata(data: CompletionRequest) -> None:
    # Not all of them: there may be a million.
    others = list(islice((name for name in data.metadata if name not in OF_AGENTS), MAX_NAMED))
    if others:
        named = ", ".join(name[:MAX_NAME_SHOWN] for name in sorted(others))
        told = ", ".join(sorted(OF_AGENTS))
        raise ApiProblem(403, "forbidden", f"of its run an agent tells only {told}; leave out {named}")


def validate_reason(reason: str) -> str:
    """The reason, if a person can read it; raises ApiProblem."""
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
