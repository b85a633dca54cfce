"""Hot routes that are served past the framework: the same checks and the same replies, with fewer layers.

A direct route takes only plain requests: one value for each header, no query, and a small body of declared size.
The framework serves all others, by the route of the same path. `tests/api/test_direct_routes.py` compares the two.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from starlette.types import Receive, Scope, Send

from meruit.api.auth import HOST, Authenticator
from meruit.api.bodies.json_body import JSON_TYPE, SMALL_BYTES, convert_body, parse_strict_json
from meruit.api.problems import handle_error
from meruit.api.request import ApiRequest, EncodedReply, ServedRequest, Service
from meruit.errors import BodyError
from meruit.model.access import Caller
from meruit.web.app import WebApp
from meruit.web.requests import TOO_SHORT

_JSON_HEADER = (b"content-type", b"application/json")

T = TypeVar("T")


class DirectRequest(ServedRequest):
    """A plain request of a direct route."""

    __slots__ = ("_caller", "_service", "client", "content", "headers", "scope")

    # Any: ASGI scopes hold values of many types.
    def __init__(self, service: Service, scope: Any, headers: Mapping[str, str]) -> None:
        self._service = service
        self._caller: Caller | None = None
        self.scope = scope
        self.headers = headers
        address = scope.get("client")
        self.client = None if address is None else _Client(*address)
        self.content = b""

    @property
    def service(self) -> Service:
        """The service that handles it."""
        return self._service

    @property
    def caller(self) -> Caller:
        """The caller; only of a route that is not public."""
        if self._caller is None:
            raise RuntimeError("a public route has no caller")
        return self._caller

    @property
    def target(self) -> str:
        """The path; a direct route takes no query."""
        return str(self.scope["path"])

    async def body(self) -> bytes:
        """The body, which was read before the route was called."""
        return self.content

    def parse(self, kind: type[T]) -> T:
        """Parse the body strictly into a struct; raises BodyError."""
        value: T = convert_body(parse_strict_json(self.content), kind)
        return value

    async def identify(self, authenticator: Authenticator) -> None:
        """Find the caller, and count the request; raises ApiProblem 401 or 429."""
        self._caller = self.scope["user"] = self.scope["state"]["caller"] = await authenticator.authenticate(self)

    async def read_body(self, receive: Receive, size: int) -> None:
        """Read a body of the declared size; raises ApiProblem for a caller that may not send as much."""
        self.check_size_of(self._caller, size)
        self.count_bytes_of(self._caller, size)
        parts = list[bytes]()
        while True:
            message: Any = await receive()
            if message["type"] == "http.disconnect":
                raise BodyError(TOO_SHORT)
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        self.content = parts[0] if len(parts) == 1 else b"".join(parts)


class _Client(NamedTuple):
    host: str
    port: int


Handler = Callable[[DirectRequest], Awaitable[EncodedReply]]


class DirectRoute(msgspec.Struct, frozen=True):
    """A route that is served past the framework."""

    method: str
    path: str
    handler: Handler
    has_body: bool = True
    is_public: bool = False
    allow: Callable[[Caller], None] = lambda _caller: None
    """Raises ApiProblem for a caller whose role may not use the route."""


class DirectRoutes:
    """An ASGI app in front of the framework's: serves plain requests of hot routes itself."""

    def __init__(self, app: WebApp, routes: tuple[DirectRoute, ...]) -> None:
        self._app = app
        self._routes = {(route.method, route.path): route for route in routes}

    @property
    def _service(self) -> Service:
        return cast("Service", self._app.state["service"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        route = self._routes.get((scope["method"], scope["path"])) if scope["type"] == "http" else None
        headers = None if route is None else self._read_plain_headers(scope, route)
        if route is None or headers is None:
            await self._app(scope, receive, send)
            return
        # Any: a scope is a mapping of many types.
        known: Any = scope
        known["path_template"] = route.path
        try:
            reply = await self._answer(DirectRequest(self._service, known, headers), route, receive)
        except Exception as error:  # noqa: BLE001 - answered as the framework answers it
            known["app"] = self._app
            await handle_error(ApiRequest(known, receive, send), error)(scope, receive, send)
            return
        sent = [_JSON_HEADER, (b"content-length", str(len(reply.body)).encode())]
        if reply.headers:
            sent[:0] = [(name.lower().encode(), value.encode()) for name, value in reply.headers.items()]
        await send({"type": "http.response.start", "status": reply.status, "headers": sent})
        await send({"type": "http.response.body", "body": reply.body, "more_body": False})

    async def _answer(self, request: DirectRequest, route: DirectRoute, receive: Receive) -> EncodedReply:
        if not route.is_public:
            await request.identify(self._service.authenticator)
            route.allow(request.caller)
        if route.has_body:
            await request.read_body(receive, int(request.headers["content-length"]))
            await request.take_loop_turn()
        return await route.handler(request)

    def _read_plain_headers(self, scope: Any, route: DirectRoute) -> dict[str, str] | None:
        """The headers of a request that the route can take itself; None for the framework."""
        if scope["query_string"] or scope.get("root_path"):
            return None
        pairs = scope["headers"]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in pairs}
        if len(headers) != len(pairs) or not HOST.fullmatch(headers.get("host", "")):
            return None
        size = headers.get("content-length", "")
        if "transfer-encoding" in headers or not route.has_body:
            return None if size or "transfer-encoding" in headers else headers
        if headers.get("content-type") != JSON_TYPE or not (size.isdecimal() and size.isascii()):
            return None
        return headers if 0 < int(size) <= min(SMALL_BYTES, self._service.settings.max_evidence_bytes) else None
