"""The event log of a playground over HTTP, in pages."""

from typing import Annotated

from starlette.types import ASGIApp

from meruit.model.record import Record
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.seed import is_of_seed
from meruit.playground.state import PlaygroundEvent, PlaygroundState
from meruit.web.parameters import QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get

MAX_PAGE = 500
"""Events on one page."""
MAX_BODY_BYTES = 1024

After = Annotated[int, QueryParameter(ge=0, le=2**53)]
Limit = Annotated[int, QueryParameter(ge=1, le=MAX_PAGE)]


class EventPage(Record, frozen=True):
    """Events, oldest first."""

    events: list[PlaygroundEvent]
    next: int
    """Cursor: pass it as `after` to read the events that follow, now or later."""


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/events`."""
    return serve(find, [_list_events], max_body_bytes=MAX_BODY_BYTES)


@get("/{playground_id:str}/events", sync_to_thread=True)
def _list_events(request: PlaygroundRequest, after: After = 0, limit: Limit = MAX_PAGE) -> Response[bytes]:
    return answer(page(playground_of(request), after, limit))


def page(state: PlaygroundState, after: int, limit: int = MAX_PAGE) -> EventPage:
    """Return the events after one; what a seed brought is not among them."""
    while found := state.events(after, limit):
        after = found[-1].seq
        done = [event for event in found if not is_of_seed(event)]
        if done:
            return EventPage(done, after)
    return EventPage([], after)
