"""What the small HTTP systems of a playground share: finding the playground, and refusing requests."""

from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import Any

import msgspec
from litestar import Litestar, Request, Response
from litestar.datastructures import State as Shared
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.types import ASGIApp, ExceptionHandlersMap

from meruit.errors import PlaygroundFull, PlaygroundRefusal, Unreachable
from meruit.playground.state import PlaygroundState

PROBLEM_TYPE = "application/problem+json"

Find = Callable[[str], PlaygroundState | None]
"""Finds the playground of an id, if there is one."""
PlaygroundRequest = Request[Any, Any, Any]


def serve(
    find: Find,
    routes: Sequence[BaseRouteHandler],
    *,
    max_body_bytes: int,
    handlers: "ExceptionHandlersMap | None" = None,
) -> ASGIApp:
    """Build an application of routes that begin with `/{playground_id:str}`."""
    return Litestar(
        route_handlers=routes,
        state=Shared({"find": find}),
        exception_handlers={
            PlaygroundRefusal: _render_refusal,
            HTTPException: _render_http_error,
            Unreachable: _render_unavailable,
            PlaygroundFull: _render_quota_exceeded,
            **(handlers or {}),
        },
        request_max_body_size=max_body_bytes,
        openapi_config=None,
        logging_config=None,
        debug=False,
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


def _render_http_error(request: PlaygroundRequest, error: HTTPException) -> Response[bytes]:
    """Replace Litestar's own refusals, which may quote the request."""
    phrase = HTTPStatus(error.status_code).phrase.lower()
    reply = _render_refusal(request, PlaygroundRefusal(error.status_code, phrase))
    # The allowed methods, if it was the method.
    reply.headers.update(error.headers or {})
    return reply


def _render_unavailable(request: PlaygroundRequest, error: Unreachable) -> Response[bytes]:  # noqa: ARG001 - it names a path of ours
    return _render_refusal(request, PlaygroundRefusal(503, "the playground is busy; try again"))


def _render_quota_exceeded(request: PlaygroundRequest, error: PlaygroundFull) -> Response[bytes]:
    return _render_refusal(request, PlaygroundRefusal(507, str(error), quota_bytes=error.quota_bytes))
