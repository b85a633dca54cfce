"""What the small HTTP systems of a playground share: finding the playground, and refusing requests."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from starlette.types import ASGIApp

from meruit.errors import BodyError, HttpRefusal, PlaygroundFull, PlaygroundRefusal, Unreachable
from meruit.playground.state import PlaygroundState
from meruit.web.app import ExceptionHandlers, WebApp
from meruit.web.requests import Request
from meruit.web.responses import Response
from meruit.web.routing import Route

PROBLEM_TYPE = "application/problem+json"

Find = Callable[[str], PlaygroundState | None]
"""Finds the playground of an id, if there is one."""
PlaygroundRequest = Request


def serve(
    find: Find,
    routes: Sequence[Route],
    *,
    max_body_bytes: int,
    handlers: ExceptionHandlers | None = None,
) -> ASGIApp:
    """Build an application of routes that begin with `/{playground_id:str}`."""
    return WebApp(
        routes,
        state={"find": find},
        exception_handlers={
            PlaygroundRefusal: _render_refusal,
            HttpRefusal: _render_http_error,
            BodyError: _render_bad_body,
            Unreachable: _render_unavailable,
            PlaygroundFull: _render_quota_exceeded,
            **(handlers or {}),
        },
        max_body_bytes=max_body_bytes,
    )


def playground_id_of(request: PlaygroundRequest) -> str:
    """Return the id of the playground that a request is for, whether there is one or not."""
    # A request without a route has no parameters; its path still begins with the id.
    return str((request.scope.get("path_params") or {}).get("playground_id") or request.scope["path"].split("/")[1])


def playground_of(request: PlaygroundRequest) -> PlaygroundState:
    """Return the playground that a request is for; raises PlaygroundRefusal."""
    found: PlaygroundState | None = request.app.state["find"](playground_id_of(request))
    if found is None:
        raise PlaygroundRefusal(404, "this playground does not exist")
    return found


def answer(content: msgspec.Struct | dict[str, Any], status: int = 200) -> Response[bytes]:
    """Build a reply in JSON."""
    return Response(msgspec.json.encode(content), status_code=status, media_type="application/json")


def _render_refusal(request: PlaygroundRequest, refusal: PlaygroundRefusal) -> Response[bytes]:  # noqa: ARG001 - what handlers are given
    body = {
        "type": "about:blank",
        "title": HTTPStatus(refusal.status).phrase,
        "status": refusal.status,
        "detail": refusal.detail,
        **refusal.more,
    }
    return Response(msgspec.json.encode(body), status_code=refusal.status, media_type=PROBLEM_TYPE)


def _render_http_error(request: PlaygroundRequest, error: HttpRefusal) -> Response[bytes]:
    reply = _render_refusal(request, PlaygroundRefusal(error.status, HTTPStatus(error.status).phrase.lower()))
    # The allowed methods, if it was the method.
    reply.headers.update(error.headers)
    return reply


def _render_bad_body(request: PlaygroundRequest, error: BodyError) -> Response[bytes]:
    return _render_refusal(request, PlaygroundRefusal(error.status, str(error)))


def _render_unavailable(request: PlaygroundRequest, error: Unreachable) -> Response[bytes]:  # noqa: ARG001 - it names a path of ours
    return _render_refusal(request, PlaygroundRefusal(503, "the playground is busy; try again"))


def _render_quota_exceeded(request: PlaygroundRequest, error: PlaygroundFull) -> Response[bytes]:
    return _render_refusal(request, PlaygroundRefusal(507, str(error), quota_bytes=error.quota_bytes))
