"""The HTTP side of a witness: c2sp.org/tlog-witness, and nothing else."""

import asyncio
from http import HTTPMethod, HTTPStatus
from typing import Any

from meruit.api.logging import log
from meruit.audit.witness import Witness, WitnessReply
from meruit.log.witness_request import MAX_REQUEST_BYTES

BODY_S = 30.0
"""Seconds within which a whole body must come."""


class WitnessApp:
    """An ASGI application around a witness."""

    def __init__(self, witness: Witness) -> None:
        self._witness = witness

    # Any, here and below: messages of ASGI.
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        try:
            reply = await self._answer(scope["method"], scope["path"], receive)
        except Exception as problem:  # noqa: BLE001 - a damaged file is the operator's to know, not the client's
            log("witness_failed", level="error", error=problem)
            reply = WitnessReply(HTTPStatus.INTERNAL_SERVER_ERROR, "the witness failed; its operator can see why\n")
        body = reply.body.encode()
        headers = [(b"content-type", reply.content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": int(reply.status), "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, method: str, path: str, receive: Any) -> WitnessReply:
        *_, parent, name = ("", *path.split("/"))
        if name == "add-checkpoint":
            return await self._add_checkpoint(method, receive)
        found = None
        if method == HTTPMethod.GET:
            match name:
                case "checkpoint":
                    found = await asyncio.to_thread(self._witness.latest, parent)
                case "key":
                    found = f"{self._witness.key.vkey}\n"
                case "health":
                    found = "ok\n"
                case _:
                    pass
        if found is None:
            return WitnessReply(HTTPStatus.NOT_FOUND, "there is nothing here\n")
        return WitnessReply(HTTPStatus.OK, found)

    async def _add_checkpoint(self, method: str, receive: Any) -> WitnessReply:
        if method != HTTPMethod.POST:
            return WitnessReply(HTTPStatus.METHOD_NOT_ALLOWED, "POST a checkpoint here\n")
        body = await _body(receive)
        if body is None:
            too_long = f"a request has {MAX_REQUEST_BYTES} bytes at most\n"
            return WitnessReply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, too_long)
        return await asyncio.to_thread(self._witness.add_checkpoint, body)


async def _body(receive: Any) -> bytes | None:
    """The whole body; None if it is too long."""
    body = b""
    async with asyncio.timeout(BODY_S):
        while True:
            message = await receive()
            body += bytes(message.get("body", b""))
            if len(body) > MAX_REQUEST_BYTES:
                return None
            if message["type"] != "http.request" or not message.get("more_body"):
                return body


async def _live(receive: Any, send: Any) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
