"""The application: routes in groups, guards before them, and a reply to every error."""

import asyncio
import re
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from http import HTTPMethod
from inspect import iscoroutinefunction
from typing import Any

from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from meruit.errors import HttpRefusal
from meruit.web.parameters import compile_arguments
from meruit.web.requests import MAX_BODY_BYTES, Request
from meruit.web.responses import Response
from meruit.web.routing import Guard, Route, RouteTable, documented_path, normalize_path

# Any, here and below: a handler takes its own class of request and of error.
ExceptionHandlers = Mapping[type[Exception], Callable[[Any, Any], Response[Any]]]
"""The reply to each kind of exception; the nearest kind counts."""
Lifespan = Callable[["WebApp"], AbstractAsyncContextManager[None]]
_HOST = re.compile(rb"[0-9A-Za-z!$&'()*+,;=\-._~:\[\]@%]*")


@dataclass(frozen=True, kw_only=True)
class RouteGroup:
    """Routes that share more than the whole application does."""

    routes: Iterable[Route]
    request_class: type[Request] | None = None
    guards: tuple[Guard, ...] = ()
    """After those of the application, before those of the route."""
    exception_handlers: ExceptionHandlers = field(default_factory=dict)
    max_body_bytes: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Endpoint:
    """A route as one application serves it."""

    route: Route
    template: str
    """The path, as metrics name it."""
    guards: tuple[Guard, ...]
    request_class: type[Request]
    exception_handlers: ExceptionHandlers
    max_body_bytes: int
    answer: Callable[[Any], Awaitable[Response[Any]]]


class WebApp:
    """An ASGI application of routes."""

    def __init__(
        self,
        routes: Iterable[Route | RouteGroup],
        *,
        request_class: type[Request] = Request,
        guards: Iterable[Guard] = (),
        exception_handlers: ExceptionHandlers | None = None,
        state: Mapping[str, Any] | None = None,
        lifespan: Iterable[Lifespan] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        """`guards` are called in their order before those of a route; `lifespan` runs around all requests."""
        self.state: dict[str, Any] = dict(state or {})
        self.routes: list[Route] = []
        self._request_class = request_class
        self._guards = tuple(guards)
        self._exception_handlers = dict(exception_handlers or {})
        self._lifespan = tuple(lifespan)
        self._max_body_bytes = max_body_bytes
        self._table: RouteTable[_Endpoint] = RouteTable()
        for one in routes:
            group = one if isinstance(one, RouteGroup) else RouteGroup(routes=(one,))
            for route in group.routes:
                self._add(route, group)

    def _add(self, route: Route, group: RouteGroup) -> None:
        self.routes.append(route)
        for path in route.paths:
            if HTTPMethod.OPTIONS not in self._table.methods(path):
                self._table.add(path, HTTPMethod.OPTIONS, self._bind(self._describe_methods(path), path, group))
            self._table.add(path, route.method, self._bind(route, path, group))

    def _describe_methods(self, path: str) -> Route:
        async def options() -> Response[None]:
            return Response(b"", headers={"Allow": ", ".join(sorted(self._table.methods(path)))})

        return Route(fn=options, method=HTTPMethod.OPTIONS, paths=(path,), status_code=204, include_in_schema=False)

    def _bind(self, route: Route, path: str, group: RouteGroup) -> _Endpoint:
        return _Endpoint(
            route=route,
            template=documented_path(path),
            # Anyone may know which methods a path has: OpenAPI names them.
            guards=() if route.method is HTTPMethod.OPTIONS else (*self._guards, *group.guards, *route.guards),
            request_class=group.request_class or self._request_class,
            exception_handlers={**self._exception_handlers, **group.exception_handlers},
            max_body_bytes=self._max_body_bytes if group.max_body_bytes is None else group.max_body_bytes,
            answer=_compile(route),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self
        scope.setdefault("state", {})
        try:
            endpoint = self._find(scope)
        except HttpRefusal as refused:
            request = self._request_class(scope, receive, send)
            await answer_error(self._exception_handlers, request, refused)(scope, receive, send)
            return
        request = endpoint.request_class(scope, receive, send)
        request.max_body_bytes = endpoint.max_body_bytes
        try:
            response = await self._answer(endpoint, request)
            await response(scope, receive, send)
        finally:
            await request.close()

    def _find(self, scope: Scope) -> _Endpoint:
        path: str = scope["path"]
        scope.setdefault("path_params", {})
        if root := scope.get("root_path"):
            path = path.split(root, maxsplit=1)[-1]
        for name, value in scope["headers"]:
            if name == b"host" and not _HOST.fullmatch(value):
                raise HttpRefusal(400)
        path = normalize_path(path)
        endpoint, scope["path_params"] = self._table.find(path, scope["method"])
        scope["path"] = path
        scope["path_template"] = endpoint.template
        return endpoint

    @staticmethod
    async def _answer(endpoint: _Endpoint, request: Request) -> Response[Any]:
        try:
            for guard in endpoint.guards:
                await guard(request, endpoint.route)
            return await endpoint.answer(request)
        except Exception as error:  # noqa: BLE001 - each kind has its reply; one without is raised again
            return answer_error(endpoint.exception_handlers, request, error)

    async def _live(self, receive: Receive, send: Send) -> None:
        phase = "startup"
        await receive()
        try:
            async with AsyncExitStack() as running:
                for begin in self._lifespan:
                    await running.enter_async_context(begin(self))
                await send({"type": "lifespan.startup.complete"})
                phase = "shutdown"
                await receive()
        except BaseException:
            await send({"type": f"lifespan.{phase}.failed", "message": traceback.format_exc()})
            raise
        await send({"type": "lifespan.shutdown.complete"})


def answer_error(handlers: ExceptionHandlers, request: Request, error: Exception) -> Response[Any]:
    """The reply to an error; raises the error again where no handler knows its kind."""
    if isinstance(error, HTTPException):
        # Starlette refuses a form; its words may quote it.
        error = HttpRefusal(error.status_code)
    for kind in type(error).__mro__:
        handler = handlers.get(kind)
        if handler is not None:
            return handler(request, error)
    raise error


def _compile(route: Route) -> Callable[[Any], Awaitable[Response[Any]]]:
    """Build the function that answers a request with a route."""
    read = compile_arguments(list(route.arguments), takes_request=route.takes_request)
    fn, is_async = route.fn, iscoroutinefunction(route.fn)

    async def answer(request: Request) -> Response[Any]:
        values = await read(request)
        if is_async:
            returned = await fn(**values)
        elif route.sync_to_thread:
            returned = await asyncio.to_thread(fn, **values)
        else:
            returned = fn(**values)
        response: Response[Any] = returned if isinstance(returned, Response) else Response(returned)
        await response.make()
        response.complete(route.status_code, route.media_type)
        return response

    return answer
