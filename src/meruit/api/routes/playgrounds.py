"""`/v1/playgrounds`: create, checkpoint, reset and remove the systems that agents act on; for operators.

The systems themselves are at `/playgrounds/{id}/…`; the secret of the playground is their key.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from msgspec import Meta

from meruit.api.auth import OPERATORS
from meruit.api.db_threads import run_in_reader_thread
from meruit.api.playground_host import PlaygroundHosting
from meruit.api.problems import MAX_ERRORS
from meruit.api.request import ApiRequest
from meruit.api.wire.common import Body, Limit, anchor_pattern, json_response
from meruit.errors import ApiProblem, DocumentError, MeruitError, NotFound, PlaygroundFull
from meruit.model.access import Scope
from meruit.model.record import Record
from meruit.model.task_run import ENDED
from meruit.playground.events import EventPage, page
from meruit.playground.host import ID, Endpoints, Playground
from meruit.playground.seed import Seed, read_seed
from meruit.playground.state import START
from meruit.web.parameters import JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import delete, get, post

PLAYGROUND_ID = anchor_pattern(ID)
PlaygroundId = Annotated[str, PathParameter(pattern=PLAYGROUND_ID)]
PlaygroundQuery = Annotated[str | None, QueryParameter(pattern=PLAYGROUND_ID, required=False)]
EventQuery = Annotated[
    int, QueryParameter(ge=0, le=2**53, required=False, description="Cursor: events after this one.")
]
CheckpointName = Annotated[str, Meta(pattern=anchor_pattern("[a-z0-9][a-z0-9_-]{0,62}"))]


class PlaygroundRequest(Body, frozen=True):
    """A playground to create."""

    # Any: the parser of seeds checks what a seed may contain.
    seed: dict[str, Any] | None = None
    """Its initial content (default: empty)."""


class CheckpointRequest(Body, frozen=True):
    """The name of a checkpoint."""

    name: CheckpointName


class ResetRequest(Body, frozen=True):
    """The checkpoint to reset to."""

    name: CheckpointName = START
    """Name of the checkpoint (default: the start)."""


class PlaygroundView(Record, frozen=True):
    """One playground, and how to access it."""

    id: str
    secret: str
    endpoints: Endpoints
    task_run_id: str | None
    """The task run that it belongs to."""
    checkpoints: list[str] | None = None
    """Names of its checkpoints; null in lists."""


class PlaygroundPage(Record, frozen=True):
    """Playgrounds, oldest first."""

    playgrounds: list[PlaygroundView]
    next: str | None
    """Pass it as `after` to get the next page; null on the last page."""


@post("/v1/playgrounds", status_code=201, guards=[OPERATORS], summary="Create a playground", tags=["playgrounds"])
async def create_playground(data: JSONBody[PlaygroundRequest], request: ApiRequest) -> Response[PlaygroundView]:
    """Create a playground from a seed: FHIR store, HL7 listener, portal, file drop, clearing house and telephone."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    await hosting.begin()
    seed = None if data.seed is None else await asyncio.to_thread(_parse_seed, data.seed)
    with _translate_errors():
        made = await hosting.create(tenant, seed)
    return json_response(await _read_view(hosting, tenant, made), 201)


@get("/v1/playgrounds", guards=[OPERATORS], summary="List playgrounds", tags=["playgrounds"])
async def list_playgrounds(
    request: ApiRequest, after: PlaygroundQuery = None, limit: Limit = 50
) -> Response[PlaygroundPage]:
    """List the playgrounds that this process serves, oldest first, those of task runs included."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    ids = [one for one in hosting.list_ids(tenant) if after is None or one > after][:limit]
    shown = [_to_playground_view(hosting, hosting.find(tenant, one)) for one in ids]
    return json_response(PlaygroundPage(shown, ids[-1] if len(ids) == limit else None))


@get("/v1/playgrounds/{playground_id:str}", guards=[OPERATORS], summary="Read a playground", tags=["playgrounds"])
async def read_playground(playground_id: PlaygroundId, request: ApiRequest) -> Response[PlaygroundView]:
    """Read the addresses, the secret and the checkpoints of a playground."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    return json_response(await _read_view(hosting, tenant, hosting.find(tenant, playground_id)))


@post(
    "/v1/playgrounds/{playground_id:str}/checkpoint",
    status_code=200,
    guards=[OPERATORS],
    summary="Checkpoint a playground",
    tags=["playgrounds"],
)
async def checkpoint_playground(
    playground_id: PlaygroundId, data: JSONBody[CheckpointRequest], request: ApiRequest
) -> Response[PlaygroundView]:
    """Save the content of a playground under a name; an earlier checkpoint of that name is replaced."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    with _translate_errors():
        await hosting.checkpoint(tenant, playground_id, data.name)
    return json_response(await _read_view(hosting, tenant, hosting.find(tenant, playground_id)))


@post(
    "/v1/playgrounds/{playground_id:str}/reset",
    status_code=200,
    guards=[OPERATORS],
    summary="Reset a playground",
    tags=["playgrounds"],
)
async def reset_playground(
    playground_id: PlaygroundId, data: JSONBody[ResetRequest], request: ApiRequest
) -> Response[PlaygroundView]:
    """Restore a checkpoint (default: the start)."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    known = await asyncio.to_thread(hosting.state_of(tenant, playground_id).checkpoints)
    if data.name not in known:
        raise NotFound(f"no checkpoint {data.name!r}; the checkpoints are {', '.join(known)}")
    await hosting.reset(tenant, playground_id, data.name)
    return json_response(await _read_view(hosting, tenant, hosting.find(tenant, playground_id)))


@post(
    "/v1/playgrounds/{playground_id:str}/branch",
    status_code=201,
    guards=[OPERATORS],
    summary="Branch a playground",
    tags=["playgrounds"],
)
async def branch_playground(playground_id: PlaygroundId, request: ApiRequest) -> Response[PlaygroundView]:
    """Create a copy of a playground with its own secret."""
    await request.require_no_body()
    hosting, tenant = request.service.hosting, request.caller.tenant
    with _translate_errors():
        made = await hosting.branch(tenant, playground_id)
    return json_response(await _read_view(hosting, tenant, made), 201)


@delete(
    "/v1/playgrounds/{playground_id:str}",
    status_code=200,
    guards=[OPERATORS],
    summary="Remove a playground",
    tags=["playgrounds"],
)
async def remove_playground(playground_id: PlaygroundId, request: ApiRequest) -> Response[PlaygroundView]:
    """Remove a playground and its content. The playground of a running task run is not removed."""
    hosting, tenant = request.service.hosting, request.caller.tenant
    found = _to_playground_view(hosting, hosting.find(tenant, playground_id))
    run_id = found.task_run_id
    if run_id is not None:
        run = await run_in_reader_thread(request.service.benchmarks.reader.run, Scope(tenant), run_id)
        if run.status not in ENDED:
            raise ApiProblem(409, "in_use", f"task run {run_id} uses this playground; cancel the run first")
    await hosting.discard(playground_id)
    return json_response(found)


@get(
    "/v1/playgrounds/{playground_id:str}/events",
    guards=[OPERATORS],
    summary="List the events of a playground",
    tags=["playgrounds"],
)
async def list_playground_events(
    playground_id: PlaygroundId, request: ApiRequest, after: EventQuery = 0, limit: Limit = 50
) -> Response[EventPage]:
    """List what agents and systems did, oldest first. The seed creates no events."""
    state = request.service.hosting.state_of(request.caller.tenant, playground_id)
    return json_response(await asyncio.to_thread(page, state, after, limit))


async def _read_view(hosting: PlaygroundHosting, tenant: str, found: Playground) -> PlaygroundView:
    known = await asyncio.to_thread(hosting.state_of(tenant, found.id).checkpoints)
    return _to_playground_view(hosting, found, known)


def _to_playground_view(
    hosting: PlaygroundHosting, found: Playground, checkpoints: list[str] | None = None
) -> PlaygroundView:
    return PlaygroundView(
        id=found.id,
        secret=found.secret,
        endpoints=found.endpoints,
        task_run_id=hosting.task_run_of(found.id),
        checkpoints=checkpoints,
    )


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Translate errors of creating and changing playgrounds."""
    try:
        yield
    except (ApiProblem, NotFound, PlaygroundFull):
        raise
    except MeruitError as refused:
        raise ApiProblem(503, "cannot_be_made", str(refused)) from None


def _parse_seed(written: dict[str, Any]) -> Seed:
    """Parse a seed that refers to no files; raises ApiProblem."""

    def none(name: str) -> bytes:
        raise MeruitError(f"{name!r} cannot be read: a seed in a request has no files; write their content instead")

    try:
        return read_seed(written, none)
    except DocumentError as refused:
        detail = "; ".join(str(problem) for problem in refused.problems[:MAX_ERRORS])
        raise ApiProblem(422, "bad_seed", detail, errors=refused.problems) from None
