"""Secure messages between a practice, its patients and other offices: an inbox, replies and new messages."""

import asyncio
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.types import ASGIApp

from meruit.checks.message import MessageFolder
from meruit.errors import PlaygroundRefusal
from meruit.model.decoding import convert_to, decode_json
from meruit.model.environment import Item, SourceKind
from meruit.model.record import Record
from meruit.playground.http import Find, PlaygroundRequest, answer, playground_of, serve
from meruit.playground.state import PlaygroundState
from meruit.web.parameters import FromPath
from meruit.web.responses import Response
from meruit.web.routing import get, post

MAX_BODY_BYTES = 128 * 1024
MAX_TEXT = 20_000
"""Characters of one message."""
MAX_MESSAGES = 10_000
PRACTICE = "practice"
"""Who the agent writes as."""
SENT, READ = "message_sent", "message_read"

Name = Annotated[str, Meta(min_length=1, max_length=200)]
Text = Annotated[str, Meta(min_length=1, max_length=MAX_TEXT)]


class SeedMessage(Record, frozen=True, forbid_unknown_fields=True, rename={"sender": "from"}):
    """A message that is in the inbox from the start."""

    sender: Name
    body: Text
    subject: Annotated[str, Meta(max_length=200)] = ""
    patient: Name | None = None
    """Whom it is about, as `Patient/ann`."""
    to: Name = PRACTICE


class NewMessage(Record, frozen=True, forbid_unknown_fields=True):
    """A message that the agent writes."""

    body: Text
    to: Name | None = None
    """May be left out of a reply."""
    subject: Annotated[str, Meta(max_length=200)] = ""
    patient: Name | None = None
    in_reply_to: Name | None = None
    """The id of the message that it answers."""


# Any: a seed's value, not validated yet.
def read_messages(written: Any) -> list[SeedMessage]:
    """Read the `messages` of a seed; raises msgspec.ValidationError."""
    return convert_to(written, list[SeedMessage])


def receive(state: PlaygroundState, message: SeedMessage, *, event: str) -> Item:
    """Put a message into the inbox."""
    return _keep(
        state,
        {
            "folder": MessageFolder.INBOX.value,
            "from": message.sender,
            "to": message.to,
            "patient": message.patient,
            "subject": message.subject,
            "body": message.body,
            "in_reply_to": None,
        },
        event,
    )


def write_message(state: PlaygroundState, message: NewMessage) -> Item:
    """Send a message. A reply goes to the sender of what it answers, about the same patient, unless it says more."""
    with state.change():
        if state.count(SourceKind.MESSAGES) >= MAX_MESSAGES:
            raise PlaygroundRefusal(507, f"there are {MAX_MESSAGES:,} messages already")
        answered = _find(state, message.in_reply_to) if message.in_reply_to is not None else {}
        to = message.to or answered.get("from")
        if to is None:
            raise PlaygroundRefusal(400, "say who the message is to: to, or in_reply_to")
        return _keep(
            state,
            {
                "folder": MessageFolder.SENT.value,
                "from": PRACTICE,
                "to": to,
                "patient": message.patient or answered.get("patient"),
                "subject": message.subject or (f"Re: {answered['subject']}" if answered.get("subject") else ""),
                "body": message.body,
                "in_reply_to": message.in_reply_to,
            },
            SENT,
        )


def read_message(state: PlaygroundState, key: str) -> dict[str, Any]:
    """Return a message. Reading is an event and changes nothing, so no check takes it for an act."""
    with state.change():
        found = _find(state, key)
        state.log(READ, {"id": key})
        return found


# Any: messages are JSON.
def _find(state: PlaygroundState, key: str) -> dict[str, Any]:
    found = state.get(SourceKind.MESSAGES, key)
    if found is None:
        raise PlaygroundRefusal(404, "this message does not exist")
    message: dict[str, Any] = msgspec.json.decode(found.content())
    return message


def _keep(state: PlaygroundState, message: dict[str, Any], event: str) -> Item:
    with state.change():
        content = msgspec.json.encode({**message, "at": state.moment()})
        return state.append(SourceKind.MESSAGES, content, event=event)


def app(find: Find) -> ASGIApp:
    """Build the application that serves `/{playground_id}/inbox/messages`."""
    return serve(find, [_write, _list, _read], max_body_bytes=MAX_BODY_BYTES)


@get("/{playground_id:str}/inbox/messages", sync_to_thread=True)
def _list(request: PlaygroundRequest) -> Response[bytes]:
    folder = request.query_params.get("folder", MessageFolder.INBOX.value)
    if folder not in [*MessageFolder]:
        raise PlaygroundRefusal(400, f"folder is {' or '.join(MessageFolder)}")
    every = [_to_json(one) for one in playground_of(request).items(SourceKind.MESSAGES)]
    return answer({"messages": [one for one in every if one["folder"] == folder]})


@get("/{playground_id:str}/inbox/messages/{key:str}", sync_to_thread=True)
def _read(request: PlaygroundRequest, key: FromPath[str]) -> Response[bytes]:
    return answer({"id": key, **read_message(playground_of(request), key)})


# A coroutine awaits the body; the rest is done in a thread.
@post("/{playground_id:str}/inbox/messages")
async def _write(request: PlaygroundRequest) -> Response[bytes]:
    state = playground_of(request)
    try:
        message = decode_json(await request.body(), NewMessage)
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise PlaygroundRefusal(400, f'send {{"to": "ann.smith", "body": "…"}} as JSON: {problem}') from None
    return answer(_to_json(await asyncio.to_thread(write_message, state, message)), 201)


def _to_json(one: Item) -> dict[str, Any]:
    return {"id": one.key, **msgspec.json.decode(one.content())}
