"""`/v1/events` and `/v1/webhooks`: events as a stream, or delivered to a URL."""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from msgspec import Meta

from meruit.api.auth import OPERATORS, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire.common import PRINTABLE, Body, Limit, PageCursor, anchor_pattern, json_response
from meruit.errors import ApiProblem, MeruitError, StoreError
from meruit.events import records as events
from meruit.events.records import AddWebhook, DeadLetter, IssuedWebhook, Redeliver, RemoveWebhook, Webhook
from meruit.model.events import EventType, OutboxEvent
from meruit.model.record import Record
from meruit.sources.http_guard import check_url
from meruit.web.parameters import HeaderParameter, JSONBody, PathParameter, QueryParameter
from meruit.web.responses import Response, Stream
from meruit.web.routing import ResponseSpec, delete, get, post

STREAM = "text/event-stream"
MAX_URL = 2_000
MAX_SUBJECT = 500
MAX_OPEN_STREAMS = 32
"""Most event streams that one key may have open."""
_WEBHOOK = anchor_pattern("whk_[0-9a-f]{34}")
WebhookId = Annotated[str, PathParameter(pattern=_WEBHOOK)]
WebhookQuery = Annotated[str | None, QueryParameter(pattern=_WEBHOOK, required=False)]
Seq = Annotated[int, PathParameter(ge=1, le=2**53)]
Types = Annotated[
    str | None,
    QueryParameter(required=False, max_length=1_000, description="Event types, separated by commas (default: all)."),
]
Subject = Annotated[
    str | None,
    QueryParameter(
        required=False,
        min_length=1,
        max_length=MAX_SUBJECT,
        pattern=PRINTABLE,
        description=(
            "Id of what the events are about, such as an agent run (default: everything). "
            "A member of a team run is its own subject."
        ),
    ),
]
LastEventId = Annotated[
    str | None,
    HeaderParameter(
        name="Last-Event-ID",
        required=False,
        pattern=anchor_pattern("[0-9]{1,15}"),
        description="Id of the last event that you received; a browser sends it automatically.",
    ),
]
After = Annotated[
    int | None,
    QueryParameter(
        ge=0, le=2**53, required=False, description="Cursor: events after this one (default: only new events)."
    ),
]


class WebhookRequest(Body, frozen=True):
    """A webhook to create."""

    url: Annotated[str, Meta(min_length=1, max_length=MAX_URL)]
    types: Annotated[list[EventType], Meta(max_length=len(EventType))] = msgspec.field(default_factory=list)
    """Empty for every type."""


class WebhookPage(Record, frozen=True):
    """Webhooks sorted by id, without secrets."""

    webhooks: list[Webhook]
    next: str | None


class DeadLetterPage(Record, frozen=True):
    """Events that could not be delivered, oldest first."""

    dead: list[DeadLetter]
    next: int | None


@get(
    "/v1/events",
    guards=[READERS],
    summary="Stream events",
    tags=["events"],
    media_type=STREAM,
    responses={
        200: ResponseSpec(
            bytes,
            media_type=STREAM,
            description="Server-sent events; each `data` is an event.",
        )
    },
)
async def stream_events(
    request: ApiRequest,
    after: After = None,
    types: Types = None,
    subject: Subject = None,
    last: LastEventId = None,
) -> Stream:
    """Stream the events of your tenant as server-sent events. Each has an id; pass it as `after` to continue."""
    service, tenant = request.service, request.caller.tenant
    wanted = _parse_types(types)
    start = int(last) if last is not None else after
    if start is None:
        start = await service.read(events.newest_event)
    # Counted before anything else is awaited, and until the request ends, also where the stream never begins.
    service.open_streams.open_stream(request.caller.key_id, MAX_OPEN_STREAMS, request.scope["state"])
    about = None if subject is None else frozenset({subject})
    following = service.dispatcher.follow(tenant, start, wanted, service.ended, subjects=about)

    async def lines() -> AsyncIterator[bytes]:
        # Sent at once, so that a client knows that it is connected.
        yield b": following\n\n"
        async for numbered in following:
            # The key may be revoked while the stream is open.
            if not await _is_still_authorized(request):
                return
            yield b": still here\n\n" if numbered is None else _encode_event(numbered)

    return Stream(lines(), media_type=STREAM)


async def _is_still_authorized(request: ApiRequest) -> bool:
    try:
        return await request.service.authenticator.identify(request) == request.caller
    except ApiProblem:
        return False


def _encode_event(numbered: OutboxEvent) -> bytes:
    kind, data = numbered.event.event_type.encode(), numbered.event.to_json()
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (numbered.seq, kind, data)


def _parse_types(types: str | None) -> frozenset[str] | None:
    if types is None:
        return None
    wanted = frozenset(types.split(","))
    if unknown := wanted - set(EventType):
        known = ", ".join(EventType)
        raise ApiProblem(400, "unknown_event_type", f"{len(unknown)} unknown event types; the known ones are {known}")
    return wanted


@post("/v1/webhooks", status_code=201, guards=[OPERATORS], summary="Create a webhook", tags=["events"])
async def create_webhook(data: JSONBody[WebhookRequest], request: ApiRequest) -> Response[IssuedWebhook]:
    """Send the events of your tenant to a URL from now on. Only this reply shows the signing secret."""
    service = request.service
    try:
        check_url(data.url, service.settings.webhook_networks)
        wish = AddWebhook(request.caller.tenant, data.url, frozenset(data.types), service.store.surroundings.entropy)
        made = await service.store.recorder.record(wish)
    except StoreError:
        # An error of the service, not of the URL.
        raise
    except MeruitError as refused:
        raise ApiProblem(400, "bad_webhook", str(refused)) from None
    return json_response(made, 201)


@get("/v1/webhooks", guards=[READERS], summary="List webhooks", tags=["events"])
async def list_webhooks(request: ApiRequest, after: WebhookQuery = None, limit: Limit = 50) -> WebhookPage:
    """List the webhooks of your tenant, without their secrets."""
    tenant = request.caller.tenant
    found = await request.service.read(
        lambda connection: events.list_webhooks(connection, tenant, after=after, limit=limit)
    )
    return WebhookPage(found, found[-1].id if len(found) == limit else None)


@delete("/v1/webhooks/{webhook_id:str}", guards=[OPERATORS], summary="Delete a webhook", tags=["events"])
async def delete_webhook(webhook_id: WebhookId, request: ApiRequest) -> None:
    """Delete a webhook; pending deliveries are dropped."""
    await request.service.store.recorder.record(RemoveWebhook(request.caller.tenant, webhook_id))


@get("/v1/webhooks/{webhook_id:str}/dead", guards=[READERS], summary="List dead letters", tags=["events"])
async def list_dead_letters(
    webhook_id: WebhookId, request: ApiRequest, after: PageCursor = None, limit: Limit = 50
) -> DeadLetterPage:
    """List the events that were not delivered although all retries were used."""
    tenant = request.caller.tenant
    found = await request.service.read(
        lambda connection: events.list_dead_letters(connection, tenant, webhook_id, after=after or 0, limit=limit)
    )
    return DeadLetterPage(found, found[-1].seq if len(found) == limit else None)


@post(
    "/v1/webhooks/{webhook_id:str}/dead/{seq:int}/redeliver",
    status_code=202,
    guards=[OPERATORS],
    summary="Redeliver a dead letter",
    tags=["events"],
)
async def redeliver_dead_letter(webhook_id: WebhookId, seq: Seq, request: ApiRequest) -> Response[None]:
    """Deliver a dead letter now. Later events of its subject may already have been delivered."""
    await request.service.store.recorder.record(Redeliver(request.caller.tenant, webhook_id, seq))
    return Response(None, status_code=202)
