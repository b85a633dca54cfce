"""A FHIR R4 server over HTTP: requests in, replies out."""

import asyncio
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from meruit.errors import FhirRefusal, PlaygroundFull, Unreachable, UnreadableContent
from meruit.playground.asgi import Application, Receive, Scope, Send, headers_of
from meruit.playground.fhir.bundles import execute_bundle
from meruit.playground.fhir.endpoint import FhirCall, FhirEndpoint, FhirReply, query_of
from meruit.playground.fhir.json import parse, write
from meruit.playground.fhir.resources import refusal_outcome, storage_refusal
from meruit.playground.state import PlaygroundState

MAX_BODY_BYTES = 16 * 1024 * 1024
"""Of one request."""
MEDIA_TYPE = "application/fhir+json"
JSON_TYPES = (MEDIA_TYPE, "application/json")
PATCH_TYPES = ("application/json-patch+json", *JSON_TYPES)
FORM_TYPE = "application/x-www-form-urlencoded"
_XML = ("xml", "turtle", "ttl", "html")

Find = Callable[[str], PlaygroundState | None]


class _FhirRequest(msgspec.Struct, frozen=True):
    """A request as it came."""

    method: str
    path: tuple[str, ...]
    query: str
    headers: Mapping[str, str]
    body: bytes


def app(
    find: Find, *, base: Callable[[str], str], new_id: Callable[[], str] = lambda: str(uuid.uuid4())
) -> Application:
    """Build the application that serves `/{playground_id}/fhir/…`; `base` returns the URL of a playground's server."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        _, playground_id, _, *path = scope["path"].split("/")
        state = find(playground_id)
        try:
            if state is None:
                reply = refusal_reply(FhirRefusal(404, "not-found", "this playground does not exist"))
            else:
                headers = headers_of(scope)
                body = await _receive_body(receive, headers)
                if body is None:
                    return
                below = tuple(part for part in path if part)
                sent = _FhirRequest(
                    method=scope["method"],
                    path=below,
                    query=scope["query_string"].decode("latin-1"),
                    headers=headers,
                    body=body,
                )
                # A search may read every resource; other requests must not wait for it.
                reply = await asyncio.to_thread(_answer, FhirEndpoint(state, base(playground_id), new_id), sent)
        except FhirRefusal as refused:
            reply = refusal_reply(refused)
        except PlaygroundFull as full:
            reply = refusal_reply(storage_refusal(full))
        except Unreachable:
            reply = refusal_reply(FhirRefusal(503, "transient", "the playground is busy; try again"))
        await respond(send, reply, head_only=scope["method"] == "HEAD")

    return serve


def refusal_reply(refused: FhirRefusal) -> FhirReply:
    """Build the reply to a refused request."""
    headers = {"Allow": refused.allow} if refused.allow else {}
    return FhirReply(status=refused.status, content=write(refusal_outcome(refused)), headers=headers)


async def respond(send: Send, reply: FhirReply, *, head_only: bool = False) -> None:
    """Send a reply."""
    headers = {**reply.headers, "Content-Length": str(len(reply.content))}
    if reply.content:
        headers["Content-Type"] = f"{MEDIA_TYPE}; charset=utf-8"
    if reply.status in (204, 304):
        del headers["Content-Length"]
    encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": encoded})
    await send({"type": "http.response.body", "body": b"" if head_only else reply.content, "more_body": False})


async def _receive_body(receive: Receive, headers: Mapping[str, str]) -> bytes | None:
    """Read the body; None if the client went away before its end."""
    too_large = FhirRefusal(413, "too-long", f"a request may have {MAX_BODY_BYTES:,} bytes")
    declared = headers.get("content-length", "")
    if declared.isdigit() and int(declared[:20]) > MAX_BODY_BYTES:
        raise too_large
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY_BYTES:
            raise too_large
        more = message.get("more_body", False)
    return b"".join(parts)


def _answer(endpoint: FhirEndpoint, sent: _FhirRequest) -> FhirReply:
    method, path, headers = sent.method, sent.path, sent.headers
    prefer = headers.get("prefer", "").replace(" ", "").lower()
    strict = "handling=strict" in prefer
    parameters = query_of(sent.query)
    _refuse_other_formats(headers.get("accept", ""), [value for name, value in parameters if name == "_format"])
    searched = path[1:] == ("_search",)
    if searched and method == "POST":
        _refuse_type(headers, (FORM_TYPE,))
        parameters += query_of(_text(sent.body))
    # Any: a client may send any JSON.
    resource: Any = None
    if method in ("POST", "PUT", "PATCH") and not searched:
        resource = _resource(headers, sent.body, PATCH_TYPES if method == "PATCH" else JSON_TYPES)
    if not path:
        if method != "POST":
            raise FhirRefusal(405, "not-supported", "send a Bundle here, or ask for one type of resource", allow="POST")
        bundle = execute_bundle(endpoint, resource, strict=strict, with_resources="return=representation" in prefer)
        return FhirReply(200, write(bundle))
    reply = endpoint.perform(
        FhirCall(
            method=method,
            path=path,
            query=parameters,
            resource=resource,
            if_match=headers.get("if-match"),
            if_none_match=headers.get("if-none-match"),
            if_none_exist=headers.get("if-none-exist"),
            strict=strict,
        )
    )
    if "return=minimal" in prefer and method in ("POST", "PUT", "PATCH") and not searched:
        return msgspec.structs.replace(reply, content=b"")
    return reply


def _resource(headers: Mapping[str, str], body: bytes, types: tuple[str, ...]) -> Any:
    _refuse_type(headers, types)
    if not body.strip():
        raise FhirRefusal(400, "structure", "the body is empty; send JSON")
    try:
        return parse(body)
    except UnreadableContent as problem:
        raise FhirRefusal(400, "structure", f"the body {problem}") from None


def _refuse_type(headers: Mapping[str, str], types: tuple[str, ...]) -> None:
    kind, *parameters = (part.strip().lower() for part in headers.get("content-type", "").split(";"))
    charset = "".join(part.removeprefix("charset=").strip('"') for part in parameters if part.startswith("charset="))
    if kind not in types or charset not in ("", "utf-8", "utf8", "us-ascii"):
        given = headers.get("content-type", "nothing")[:100]
        raise FhirRefusal(415, "not-supported", f"the Content-Type is {given!r}; send {' or '.join(types)} in UTF-8")
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise FhirRefusal(415, "not-supported", "send the body without a Content-Encoding")


def _refuse_other_formats(accept: str, formats: list[str]) -> None:
    wanted = formats[-1:] or [accept]
    other = any(word in part for part in wanted for word in _XML)
    if other and not any(word in part for part in wanted for word in ("json", "*/*")):
        raise FhirRefusal(406, "not-supported", f"{wanted[0][:100]!r} is not supported; ask for {MEDIA_TYPE}")


def _text(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as fault:
        raise FhirRefusal(400, "structure", f"the body is not UTF-8, at byte {fault.start}") from None
