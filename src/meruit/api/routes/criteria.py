"""`/v1/criteria`: named criteria with immutable versions, each committed to the audit log."""

import asyncio
from typing import Annotated, Any

import msgspec

from meruit.api.auth import OPERATORS, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire.common import CRITERIA_NAME, Body, CriteriaName, Key, Limit, VersionPath
from meruit.errors import CriteriaError
from meruit.model.record import Record
from meruit.outcomes import records as criteria
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import NamedCriteria, RegisterCriteria
from meruit.store.idempotency import IdempotentReplay, IdempotentRequest
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get, post

NamePath = Annotated[str, PathParameter(pattern=CRITERIA_NAME)]
NameQuery = Annotated[str | None, QueryParameter(pattern=CRITERIA_NAME, required=False)]


class CriteriaRequest(Body, frozen=True):
    """Criteria to register under a name."""

    name: CriteriaName
    criteria: dict[str, Any]
    """As in a criteria file."""


class CriteriaDraft(Body, frozen=True):
    """Criteria to check."""

    criteria: dict[str, Any]


class CriteriaReply(Record, frozen=True):
    """One version of named criteria, with its content."""

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
    """Pass it as `after` to get the next page; null on the last page."""


class CriteriaHistory(Record, frozen=True):
    """The versions of one name, newest first."""

    versions: list[NamedCriteria]


class CriteriaProblem(Record, frozen=True):
    """One problem of criteria."""

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
    """Register criteria as the next version of a name. The same criteria again keep their version."""
    caller, service = request.caller, request.service

    async def act(once: IdempotentRequest | None) -> bytes | IdempotentReplay:
        ready = await asyncio.to_thread(service.registrar.compile, data.criteria)
        await asyncio.to_thread(service.registrar.validate, ready)
        registration = RegisterCriteria(
            tenant=caller.tenant, name=data.name, body=ready.body, digest=ready.digest, created_by=caller.key_id
        )
        return await request.write_once(once, registration, NamedCriteria.to_json)

    return await request.answer_once(key, 201, act)


@post("/v1/criteria/validate", status_code=200, guards=[OPERATORS], summary="Check criteria", tags=["criteria"])
async def validate_criteria(data: JSONBody[CriteriaDraft], request: ApiRequest) -> Validation:
    """List every problem of criteria; nothing is stored."""
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
    """List the latest version of each name, sorted by name."""
    tenant = request.caller.tenant
    found = await request.service.read(
        lambda connection: criteria.page_criteria(connection, tenant, after=after, limit=limit)
    )
    return CriteriaPage(found, found[-1].name if len(found) == limit else None)


@get("/v1/criteria/{name:str}", guards=[READERS], summary="Read criteria", tags=["criteria"])
async def read_criteria(name: NamePath, request: ApiRequest) -> CriteriaReply:
    """Read the latest version of a name."""
    return await _read_stored(request, name, None)


@get("/v1/criteria/{name:str}/versions", guards=[READERS], summary="List versions of criteria", tags=["criteria"])
async def list_criteria_versions(name: NamePath, request: ApiRequest) -> CriteriaHistory:
    """List every version of a name, newest first."""
    tenant = request.caller.tenant
    return CriteriaHistory(await request.service.read(lambda connection: criteria.history(connection, tenant, name)))


@get(
    "/v1/criteria/{name:str}/versions/{version:int}",
    guards=[READERS],
    summary="Read a version of criteria",
    tags=["criteria"],
)
async def read_criteria_version(name: NamePath, version: VersionPath, request: ApiRequest) -> CriteriaReply:
    """Read one version of a name."""
    return await _read_stored(request, name, version)


async def _read_stored(request: ApiRequest, name: str, version: int | None) -> CriteriaReply:
    tenant = request.caller.tenant

    def ask(connection: Any) -> CriteriaReply:
        found = criteria.find(connection, tenant, name, version)
        body = outcomes.criteria_from(outcomes.criteria_body(connection, tenant, found.digest))
        written = body.model_dump(mode="json", exclude_defaults=True)
        return CriteriaReply(**msgspec.to_builtins(found), criteria=written)

    return await request.service.read(ask)
