"""A clearinghouse: an X12 request is answered at once, and every functional group is acknowledged.

What was received is an event; the replies are the items. An acknowledgement that accepts is kept and not sent back,
because the reply itself says as much.
"""

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.types import ASGIApp

from meruit.checks.formats.x12 import Group, Interchange, TransactionSet, read
from meruit.errors import PlaygroundRefusal, UnreadableContent
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.state import PlaygroundState
from meruit.playground.x12 import acknowledge as x12_acknowledging
from meruit.playground.x12 import authorization as x12_authorization
from meruit.playground.x12 import claims as x12_claims
from meruit.playground.x12 import eligibility as x12_eligibility
from meruit.playground.x12 import write as x12_writing
from meruit.playground.x12.write import Line
from meruit.web.parameters import FromPath
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_BODY_BYTES = 256 * 1024
"""Of one request."""
MAX_LOOPS = 500
"""Transaction sets and HL loops in one request."""
MEDIA_TYPE = "application/edi-x12"
REQUEST, RESPONSE = "x12_request", "x12_response"
TA1 = "TA1"
ACCEPTED, REJECTED, NO_TROUBLE = "A", "R", "000"
WANTED = "1"
"""ISA14: the sender asks for a TA1."""


class AnswerRule(msgspec.Struct, frozen=True):
    """How one transaction set is answered."""

    set_id: str
    function: str
    """GS01 of the reply."""
    version: str
    body: Callable[[PlaygroundState, TransactionSet, str, str], list[Line]]


ANSWERS = {
    "270": AnswerRule(set_id="271", function="HB", version="005010X279A1", body=x12_eligibility.answer),
    "276": AnswerRule(set_id="277", function="HN", version="005010X212", body=x12_claims.answer),
    "278": AnswerRule(set_id="278", function="HI", version="005010X217", body=x12_authorization.answer),
}
"""By transaction set."""


class X12AnswerSummary(Record, frozen=True):
    """One reply of the clearinghouse, by its facts."""

    key: str
    set: str
    at: str


def exchange(state: PlaygroundState, content: bytes) -> bytes:
    """Answer a request; raises UnreadableContent if it is not X12, and records that it came."""
    try:
        asked = read(content)
    except UnreadableContent as unreadable:
        state.log(REQUEST, {**_body(content), "trouble": str(unreadable)})
        raise
    if sum(1 + len(one.loops) for each in asked for one in each.transactions) > MAX_LOOPS:
        raise PlaygroundRefusal(413, f"one request may have at most {MAX_LOOPS} transaction sets and loops")
    with state.change():
        state.log(REQUEST, {**_body(content), "sets": [one.set_id for each in asked for one in each.transactions]})
        return b"".join(part for one in asked for part in _Exchange(state, one).answers())


def _body(content: bytes) -> dict[str, Any]:
    try:
        return {"body": content.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(content).decode()}


class _Exchange:
    """One interchange, answered inside a change of the state."""

    def __init__(self, state: PlaygroundState, asked: Interchange) -> None:
        self.state = state
        self.asked = asked
        self.marks = x12_writing.marks_for(asked.marks)
        self.at = state.clock()

    def answers(self) -> list[bytes]:
        """The replies that are sent back; more are kept."""
        trouble = x12_acknowledging.interchange_trouble(self.asked)
        if trouble is not None:
            return [self._store_ta1(REJECTED, trouble)]
        sent = [self._store_ta1(ACCEPTED, NO_TROUBLE)] if self.asked.isa.get(14) == WANTED else []
        for group in self.asked.groups:
            sent += self._group(group)
        return sent

    def _group(self, group: Group) -> list[bytes]:
        looked_at = x12_acknowledging.acknowledge(group)
        acknowledgement = self._store_answer(group, "999", "FA", x12_acknowledging.GUIDE, [looked_at.body])
        sent = [] if looked_at.whole else [acknowledgement]
        today, time = f"{self.at:%Y%m%d}", f"{self.at:%H%M}"
        for set_id, how in ANSWERS.items():
            bodies = [how.body(self.state, one, today, time) for one in looked_at.accepted if one.set_id == set_id]
            if bodies:
                sent.append(self._store_answer(group, how.set_id, how.function, how.version, bodies))
        return sent

    def _store_answer(self, group: Group, set_id: str, function: str, version: str, bodies: list[list[Line]]) -> bytes:
        control = self._control()
        sets = [
            x12_writing.transaction(self.marks, number, set_id, version, body) for number, body in enumerate(bodies, 1)
        ]
        inside = x12_writing.group(self.marks, group.gs, control, self.at, function, version, sets)
        return self._store(set_id, x12_writing.interchange(self.marks, self.asked.isa, control, self.at, inside))

    def _store_ta1(self, code: str, note: str) -> bytes:
        segments = [x12_writing.interchange_acknowledgement(self.marks, self.asked.isa, code, note)]
        content = x12_writing.interchange(self.marks, self.asked.isa, self._control(), self.at, segments, groups=0)
        return self._store(TA1, content)

    def _store(self, set_id: str, content: bytes) -> bytes:
        facts = {"set": set_id}
        self.state.append(SourceKind.X12, content, facts=facts, event=RESPONSE, noted=facts)
        return content

    def _control(self) -> int:
        """Return our number for the next interchange: that of its item."""
        earlier = self.state.items(SourceKind.X12)
        return int(earlier[-1].key) + 1 if earlier else 1


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/x12`: post a request, list and read the replies."""
    return serve(find, [_exchange, _list_answers, _read_answer], max_body_bytes=MAX_BODY_BYTES)


@post("/{playground_id:str}/x12")
async def _exchange(request: PlaygroundRequest) -> Response[bytes]:
    state, content = playground_of(request), await request.body()
    try:
        answered = await asyncio.to_thread(exchange, state, content)
    except UnreadableContent as unreadable:
        raise PlaygroundRefusal(400, unreadable.why, offset=unreadable.offset, head=unreadable.head) from None
    return Response(answered, status_code=200, media_type=MEDIA_TYPE)


@get("/{playground_id:str}/x12", sync_to_thread=True)
def _list_answers(request: PlaygroundRequest) -> Response[bytes]:
    return answer({"answers": [_summary_of(one) for one in playground_of(request).items(SourceKind.X12)]})


@get("/{playground_id:str}/x12/{key:str}", sync_to_thread=True)
def _read_answer(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    found = playground_of(request).get(SourceKind.X12, key)
    if found is None:
        raise PlaygroundRefusal(404, "this reply does not exist")
    return Response(found.content(), media_type=MEDIA_TYPE)


def _summary_of(one: Item) -> X12AnswerSummary:
    return X12AnswerSummary(one.key, str(one.facts.get("set", "")), str(one.facts.get("at", "")))
