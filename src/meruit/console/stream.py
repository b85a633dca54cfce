"""The stream that live pages follow: it says that something changed, and the page asks for itself again."""

from collections.abc import AsyncIterator

from meruit.api.auth import PUBLIC, allow
from meruit.api.query_params import ANY_PARAMETERS
from meruit.console.page import READERS, PageRequest
from meruit.console.session import find_caller
from meruit.errors import ApiProblem
from meruit.events import records as events
from meruit.model.events import EventType
from meruit.web.responses import Stream
from meruit.web.routing import get

STREAM = "text/event-stream"
MAX_OPEN = 32
"""Most streams that one caller may have open."""
MAX_SUBJECT = 500


@get(
    "/live",
    guards=[allow(*READERS)],
    opt={PUBLIC: True, ANY_PARAMETERS: True},
    include_in_schema=False,
    media_type=STREAM,
)
async def follow_changes(request: PageRequest) -> Stream:
    """Say when something changed; never what, which the page itself shows to who may see it."""
    service, caller = request.service, request.caller
    types = frozenset(filter(None, request.query_params.get("types", "").split(",")))
    subject = request.query_params.get("subject", "")[:MAX_SUBJECT]
    if not types <= set(EventType):
        raise ApiProblem(400, "unknown_event_type", "this page follows events of a type that does not exist")
    holder = f"live:{caller.key_id}"
    service.open_streams.open_stream(holder, MAX_OPEN, request.scope["state"])
    last = request.headers.get("last-event-id", "")
    start = int(last) if last.isdecimal() and len(last) < 16 else await service.read(events.newest_event)
    about = frozenset({subject}) if subject else None
    following = service.dispatcher.follow(caller.tenant, start, types or None, service.ended, subjects=about)

    async def lines() -> AsyncIterator[bytes]:
        yield b"event: follow\ndata: 1\n\n"
        async for numbered in following:
            # The session may end while the page is open.
            if not await _is_still_here(request):
                return
            yield b": still here\n\n" if numbered is None else b"id: %d\nevent: change\ndata: 1\n\n" % numbered.seq

    return Stream(lines(), media_type=STREAM, headers={"X-Accel-Buffering": "no"})


async def _is_still_here(request: PageRequest) -> bool:
    try:
        return await find_caller(request) == request.caller
    except ApiProblem:
        return False
