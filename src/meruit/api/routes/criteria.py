"""`/v1/criteria`: named criteria, each version immutable and committed to the audit log."""

import asyncio
from typing import Annotated, Any

import msgspec
from litestar import Response, get, post
from litestar.params import JSONBody, PathParameter, QueryParameter

from meruit.api.auth import OPERATORS, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire import CRITERIA_NAME, Body, CriteriaName, Key, Limit, VersionPath
from meruit.errors import CriteriaError
from meruit.model.record import Record
from meruit.outcomes.store import criteria
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.criteria import NamedCriteria, RegisterCriteria
from meruit.outcomes.store.write import IdempotentReplay, IdempotentRequest

NamePath = Annotated[str, PathParameter(pattern=CRITERIA_NAME)]
NameQuery = Annotated[str | None, QueryParameter(pattern=CRITERIA_NAME, required=False)]


class CriteriaRequest(Body, frozen=True):
    """Criteria to be kept under a name."""

    name: CriteriaName
    criteria: dict[str, Any]
    """As a criteria file holds them."""


class CriteriaDraft(Body, frozen=True):
    """Criteria to be looked at."""

    criteria: dict[str, Any]


class CriteriaReply(Record, frozen=True):
    """One version of named criteria, with what they say."""

    name: str
    version: int
    digest: str
    created_at: str
    created_by: str
    criteria: dict[str, Any]


class CriteriaPage(Record, frozen=True):
    """The latest version of each name."""

    criteria: list[NamedCriteria]
    next: str | None
    """The name to go on after; None at the end."""


class CriteriaHistory(Record, frozen=True):
    """The versions of one name, newest first."""

    versions: list[NamedCriteria]


class CriteriaProblem(Record, frozen=True):
    """One thing that is wrong with criteria."""

    where: str
    message: str


class Validation(Record, frozen=True):
    """Whether criteria could be registered."""

    valid: bool
    digest: str | None
    problems: list[CriteriaProblem]


@post("/v1/criteria", status_code=201, guards=[OPERATORS], summary="Register criteria", tags=["criteria"])
async def register_criteria(
    data: JSONBody[CriteriaRequest], request: ApiRequest, key: Key = None
) -> Response[NamedCriteria]:
    """Keep criteria under a name: the next version, or the one that they already are. Their own code is tried first."""
    caller, service = request.caller, request.service

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        ready = await asyncio.to_thread(service.registrar.compile, data.criteria)
        await asyncio.to_thread(service.registrar.validate, ready)
        wish = RegisterCriteria(caller.tenant, data.name, ready.body, ready.digest, caller.key_id, once)
        made = await service.store.recorder.record(wish)
        return made if isinstance(made, IdempotentReplay) else made.to_json()

    return await request.answer_once(key, 201, act)


@post("/v1/criteria/validate", status_code=200, guards=[OPERATORS], summary="Check criteria", tags=["criteria"])
async def validate_criteria(data: JSONBody[CriteriaDraft], request: ApiRequest) -> Validation:
    """Say everything that is wrong with criteria; nothing is kept."""
    registrar = request.service.registrar
    try:
        ready = await asyncio.to_thread(registrar.compile, data.criteria)
        await asyncio.to_thread(registrar.validate, ready)
    except CriteriaError as refused:
        problems = [CriteriaProblem(problem.where, problem.message) for problem in refused.problems]
        return Validation(valid=False, digest=None, problems=problems)
    return Validation(valid=True, digest=ready.digest, problems=[])


@get("/v1/criteria", guards=[READERS], summary="List criteria", tags=["criteria"])
async def list_criteria(request: ApiRequest, after: NameQuery = None, limit: Limit = 50) -> CriteriaPage:
    """The latest version of each name, by name."""
    tenant = request.caller.tenant
    found = await request.service.read(lambda connection: criteria.page(connection, tenant, after=after, limit=limit))
    return CriteriaPage(found, found[-1].name if len(found) == limit else None)


@get("/v1/criteria/{name:str}", guards=[READERS], summary="Read criteria", tags=["criteria"])
async def read_criteria(name: NamePath, request: ApiRequest) -> CriteriaReply:
    """The latest version of a name."""
    return await _read_stored(request, name, None)


@get("/v1/criteria/{name:str}/versions", guards=[READERS], summary="List versions", tags=["criteria"])
async def list_criteria_versions(name: NamePath, request: ApiRequest) -> CriteriaHistory:
    """Every version of a name, newest first."""
    tenant = request.caller.tenant
    return CriteriaHistory(await request.service.read(lambda connection: criteria.history(connection, tenant, name)))


@get("/v1/criteria/{name:str}/versions/{version:int}", guards=[READERS], summary="Read a version", tags=["criteria"])
async def read_criteria_version(name: NamePath, version: VersionPath, request: ApiRequest) -> CriteriaReply:
    """One version of a name."""
    return await _read_stored(request, name, version)


async def _read_stored(request: ApiRequest, name: str, version: int | None) -> CriteriaReply:
    tenant = request.caller.tenant

    def ask(connection: Any) -> CriteriaReply:
        found = criteria.find(connection, tenant, name, version)
        body = outcomes.criteria_from(outcomes.criteria_body(connection, tenant, found.digest))
        written = body.model_dump(mode="json", exclude_defaults=True)
        told = msgspec.to_builtins(found)
        return CriteriaReply(**told, criteria=written)

    return await request.service.read(ask)
