"""A fax machine: a PDF or TIFF is sent to a number, and stays in the outbox with how the sending ended."""

import asyncio
import re
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp

from meruit.checks.fax import normalize_number
from meruit.checks.formats.fax_pages import read_pages
from meruit.errors import MissingExtra, PlaygroundRefusal, UnreadableContent
from meruit.model.decoding import convert_to
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.state import PlaygroundState
from meruit.web.parameters import FromPath
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_BODY_BYTES = 4 * 1024 * 1024
"""Of one document."""
MAX_SUBJECT = 200
SENT, BUSY = "sent", "busy"
EVENT = "fax_sent"
_NUMBER = re.compile(r"\+?[0-9]{3,20}")
Number = Annotated[str, Meta(min_length=3, max_length=40)]


class FaxLine(Record, frozen=True, forbid_unknown_fields=True):
    """How the fax line behaves."""

    number: Number = "+15550100000"
    """Our own number."""
    busy: list[Number] = msgspec.field(default_factory=list)
    """Numbers that do not answer: a fax to one of them ends as `busy`."""


class FaxReceipt(Record, frozen=True):
    """One fax, as its sender sees it."""

    key: str
    to: str
    status: str
    pages: int
    subject: str
    at: str


class FaxReceipts(Record, frozen=True):
    """The outbox, in order."""

    faxes: list[FaxReceipt]


# Any: a seed's value, not validated yet.
def read_line(written: Any) -> FaxLine:
    """Read the `fax` of a seed; raises msgspec.ValidationError."""
    return convert_to(written or {}, FaxLine)


def send_fax(state: PlaygroundState, number: str, content: bytes, subject: str = "") -> Item:
    """Send a document and keep it; raises PlaygroundRefusal for a number or document that cannot be sent."""
    dialled = normalize_number(number)
    if not _NUMBER.fullmatch(dialled):
        raise PlaygroundRefusal(400, f"{number[:40]!r} is not a fax number; send ?to=+15550100199")
    if len(subject) > MAX_SUBJECT:
        raise PlaygroundRefusal(400, f"a subject has at most {MAX_SUBJECT} characters")
    try:
        pages = read_pages(content)
    except MissingExtra as missing:
        raise PlaygroundRefusal(501, str(missing)) from None
    except UnreadableContent as problem:
        raise PlaygroundRefusal(415, f"the document cannot be faxed: it {problem.why}; send a PDF or TIFF") from None
    line = read_line(state.settings().get("fax"))
    status = BUSY if dialled in map(normalize_number, line.busy) else SENT
    facts = {
        "to": dialled,
        "from": normalize_number(line.number),
        "subject": subject,
        "status": status,
        "pages": len(pages.texts),
    }
    return state.append(SourceKind.FAX, content, facts=facts, event=EVENT, noted=facts)


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/fax`."""
    return serve(find, [_send, _list, _show], max_body_bytes=MAX_BODY_BYTES)


# A coroutine awaits the body; the rest is done in a thread.
@post("/{playground_id:str}/fax")
async def _send(request: PlaygroundRequest) -> Response[bytes]:
    state = playground_of(request)
    asked = request.query_params
    content = await request.body()
    sent = await asyncio.to_thread(send_fax, state, asked.get("to", ""), content, asked.get("subject", ""))
    return answer(_receipt(sent), 201)


@get("/{playground_id:str}/fax", sync_to_thread=True)
def _list(request: PlaygroundRequest) -> Response[bytes]:
    return answer(FaxReceipts([_receipt(one) for one in playground_of(request).items(SourceKind.FAX)]))


@get("/{playground_id:str}/fax/{key:str}", sync_to_thread=True)
def _show(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    found = playground_of(request).get(SourceKind.FAX, key)
    if found is None:
        raise PlaygroundRefusal(404, "this fax does not exist")
    content = found.content()
    return Response(content, media_type="application/pdf" if content[:5] == b"%PDF-" else "image/tiff")


def _receipt(one: Item) -> FaxReceipt:
    facts = one.facts
    return FaxReceipt(
        key=one.key,
        to=facts["to"],
        status=facts["status"],
        pages=facts["pages"],
        subject=facts["subject"],
        at=str(facts.get("at", "")),
    )
