"""`/v1/keys`: API keys, managed by the admins of a tenant."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta

from meruit.api.auth import ADMINS
from meruit.api.quotas import MB
from meruit.api.request import ApiRequest
from meruit.api.wire.common import Body, Label, Limit, anchor_pattern, json_response
from meruit.errors import ApiProblem
from meruit.model.access import Role
from meruit.model.record import Record
from meruit.store.access import keys
from meruit.store.access.key_use import KeyUse, read_key_use
from meruit.store.access.keys import IssuedKey, KeyRecord, NewKey, Revoke
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import delete, get, post

MAX_DAYS = 3_650
_KEY = anchor_pattern("mk_[0-9a-f]{12}")
KeyId = Annotated[str, PathParameter(pattern=_KEY)]
KeyQuery = Annotated[str | None, QueryParameter(pattern=_KEY, required=False)]


class KeyRequest(Body, frozen=True):
    """A key to create."""

    name: Label
    role: Role
    agent_id: Label | None = None
    """The agent that the key acts as; required for the role `agent` and not allowed for others."""
    expires_in_days: Annotated[int, Meta(ge=1, le=MAX_DAYS)] | None = None


class KeyPage(Record, frozen=True):
    """Keys sorted by id, without secrets."""

    keys: list[KeyRecord]
    next: str | None


@post("/v1/keys", status_code=201, guards=[ADMINS], summary="Create a key", tags=["keys"])
async def create_key(data: JSONBody[KeyRequest], request: ApiRequest) -> Response[IssuedKey]:
    """Create a key of your tenant. Only this reply shows its secret."""
    if (data.role is Role.AGENT) != (data.agent_id is not None):
        raise ApiProblem(400, "bad_key", "agent_id is required for the role agent, and not allowed for other roles")
    service = request.service
    surroundings = service.store.surroundings
    expires = None if data.expires_in_days is None else surroundings.clock() + timedelta(days=data.expires_in_days)
    wish = NewKey(
        tenant=request.caller.tenant,
        role=data.role,
        name=data.name,
        agent_id=data.agent_id,
        expires_at=expires,
        entropy=surroundings.entropy,
    )
    made = await service.store.recorder.record(wish)
    service.authenticator.clear_cache()
    return json_response(made, 201)


@get("/v1/keys", guards=[ADMINS], summary="List keys", tags=["keys"])
async def list_keys(request: ApiRequest, after: KeyQuery = None, limit: Limit = 50) -> KeyPage:
    """List the keys of your tenant, revoked ones included."""
    tenant = request.caller.tenant
    found = await request.service.read(
        lambda connection: keys.page(connection, tenant=tenant, after=after, limit=limit)
    )
    return KeyPage(found, found[-1].id if len(found) == limit else None)


class QuotaUse(Record, frozen=True):
    """What a tenant has stored by its keys, and what it may store."""

    tenant_bytes: int
    """Of the bodies of all accepted requests that write; counted some seconds later."""
    tenant_limit_bytes: int | None
    """None where it is not limited."""
    agent_key_limit_bytes: int | None
    keys: list[KeyUse]


@get("/v1/quotas", guards=[ADMINS], summary="Read quotas", tags=["keys"])
async def read_quotas(request: ApiRequest) -> QuotaUse:
    """Read what your tenant and each of its keys have stored, and the limits; the operator sets them."""
    tenant, settings = request.caller.tenant, request.service.settings
    found = await request.service.read(lambda connection: read_key_use(connection, tenant))
    return QuotaUse(
        tenant_bytes=sum(one.bytes for one in found),
        tenant_limit_bytes=None if settings.tenant_stored_mb is None else settings.tenant_stored_mb * MB,
        agent_key_limit_bytes=None if settings.agent_key_stored_mb is None else settings.agent_key_stored_mb * MB,
        keys=found,
    )


@delete("/v1/keys/{key_id:str}", status_code=200, guards=[ADMINS], summary="Revoke a key", tags=["keys"])
async def revoke_key(key_id: KeyId, request: ApiRequest) -> KeyRecord:
    """Revoke a key; it stays in the list."""
    service = request.service
    revoked = await service.store.recorder.record(Revoke(key_id, request.caller.tenant))
    service.authenticator.clear_cache()
    return revoked
