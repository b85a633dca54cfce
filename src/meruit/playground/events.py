"""The event log of a playground over HTTP, in pages."""

from typing import Annotated

import msgspec
from starlette.types import ASGIApp

from meruit.model.record import Record
from meruit.model.task_run import ActLog, AgentAct
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


MAX_ACTS = 500
"""Acts that are kept with a run."""
MAX_FACTS_BYTES = 400
"""Facts of an act that are kept with a run; longer ones are left out."""


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


def read_acts(state: PlaygroundState) -> ActLog:
    """Read what was done in a playground, to be kept with its run."""
    found: list[PlaygroundEvent] = []
    after = 0
    while len(found) <= MAX_ACTS and (events := (read := page(state, after)).events):
        found += events
        after = read.next
    return ActLog(tuple(map(_act, found[:MAX_ACTS])), more=len(found) > MAX_ACTS)


def _act(event: PlaygroundEvent) -> AgentAct:
    try:
        is_short = len(msgspec.json.encode(event.facts)) <= MAX_FACTS_BYTES
    except UnicodeEncodeError:
        # Half of a character, which JSON can escape and UTF-8 cannot hold.
        is_short = False
    return AgentAct(
        at=event.at,
        type=event.type,
        system=None if event.kind is None else event.kind.value,
        key=event.key,
        facts=event.facts if is_short else {},
    )


def page(state: PlaygroundState, after: int, limit: int = MAX_PAGE) -> EventPage:
    """Return the events after one; what a seed brought is not among them."""
    while found := state.events(after, limit):
        after = found[-1].seq
        done = [event for event in found if not is_of_seed(event)]
        if done:
            return EventPage(done, after)
    return EventPage([], after)
