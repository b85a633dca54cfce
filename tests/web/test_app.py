"""An application: guards, errors, bodies, streams and its lifespan."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from meruit.errors import BodyError, HttpRefusal, MeruitError
from meruit.web.app import RouteGroup, WebApp
from meruit.web.parameters import FromPath
from meruit.web.requests import Request
from meruit.web.responses import Cookie, Response, Stream
from meruit.web.routing import Route, get, post

FORM = [(b"content-type", b"application/x-www-form-urlencoded")]


async def ask(
    app: WebApp,
    method: str,
    path: str,
    *messages: dict[str, Any],
    headers: list[tuple[bytes, bytes]] | None = None,
    on_send: Callable[[Any], None] = lambda _message: None,
    **more: Any,
) -> list[Any]:
    coming = iter(messages or [{"type": "http.request", "body": b""}])
    sent: list[Any] = []

    async def receive() -> Any:
        found = next(coming, None)
        if found is None:
            await asyncio.Event().wait()
        return found

    async def send(message: Any) -> None:
        sent.append(message)
        on_send(message)

    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": headers or [], **more}
    await app(scope, receive, send)
    return sent


def reply_of(app: WebApp, method: str, path: str, *messages: dict[str, Any], **more: Any) -> tuple[int, bytes]:
    sent = asyncio.run(ask(app, method, path, *messages, **more))
    return sent[0]["status"], b"".join(one.get("body", b"") for one in sent[1:])


def say(request: Request, error: MeruitError) -> Response[str]:
    return Response(f"{error.code} {error.status}", status_code=error.status, media_type="text/plain")


@get("/plain")
async def plain() -> dict[str, int]:
    return {"a": 1}


@get("/thread", sync_to_thread=True)
def threaded() -> Response[None]:
    return Response(None)


@get("/here")
def at_once() -> str:
    return "text"


@post("/echo")
async def echo(request: Request) -> Response[bytes]:
    return Response(await request.body(), media_type="text/plain")


@post("/form")
async def form(request: Request) -> Response[bytes]:
    sent = await request.form()
    return Response("|".join(f"{name}={value}" for name, value in sent.multi_items()), headers={"X-Own": "1"})


@get("/bug")
async def bug() -> None:
    raise ZeroDivisionError


def build(*routes: Route | RouteGroup, **more: Any) -> WebApp:
    more = {"exception_handlers": {MeruitError: say}, "max_body_bytes": 10, **more}
    return WebApp(routes or [plain, threaded, at_once, echo, form, bug], **more)


def test_what_a_handler_returns_is_encoded() -> None:
    app = build()
    assert reply_of(app, "GET", "/plain") == (200, b'{"a":1}')
    assert reply_of(app, "GET", "/thread") == (200, b"null")
    assert reply_of(app, "GET", "//here/") == (200, b"text")


@pytest.mark.parametrize(
    ("messages", "headers", "reply"),
    [
        ([{"body": b"12345", "more_body": True}, {"body": b"67890"}], [], (201, b"1234567890")),
        ([{"body": b"12345", "more_body": True}, {"body": b"678901"}], [], (413, b"refused 413")),
        ([{"body": b"1"}], [(b"content-length", b"11")], (413, b"refused 413")),
        ([{"body": b"1"}], [(b"content-length", b"x")], (400, b"refused 400")),
        ([{"body": b"1", "more_body": True}, {"type": "http.disconnect"}], [], (400, b"bad_body 400")),
    ],
)
def test_a_body_has_a_limit_and_an_end(
    messages: list[dict[str, Any]], headers: list[tuple[bytes, bytes]], reply: tuple[int, bytes]
) -> None:
    sent = [{"type": "http.request", **one} for one in messages]
    assert reply_of(build(), "POST", "/echo", *sent, headers=headers) == reply


def test_a_body_is_read_once() -> None:
    async def use() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"ab"}

        request = Request({"type": "http", "headers": []}, receive)
        assert await request.body() == b"ab"
        assert [part async for part in request.stream()] == [b"ab"]
        again = Request({"type": "http", "headers": []}, receive)
        assert [part async for part in again.stream()] == [b"ab"]
        with pytest.raises(RuntimeError):
            await again.body()

    asyncio.run(use())


def test_forms_are_read_and_bad_ones_refused() -> None:
    app = build(max_body_bytes=2_000_000)
    body = {"type": "http.request", "body": b"a=1&b=%C3%A9&a=2"}
    assert reply_of(app, "POST", "/form", body, headers=FORM) == (201, "a=1|b=é|a=2".encode())
    large = {"type": "http.request", "body": b"a=" + b"x" * 1_500_000}
    assert reply_of(app, "POST", "/form", large, headers=FORM)[0] == 201
    parts = b'--x\r\nContent-Disposition: form-data; name="a"\r\n\r\n1\r\n--x--\r\n'
    multipart = [(b"content-type", b"multipart/form-data; boundary=x")]
    whole = {"type": "http.request", "body": parts}
    assert reply_of(app, "POST", "/form", whole, headers=multipart) == (201, b"a=1")
    assert reply_of(app, "POST", "/form", whole, headers=[(b"content-type", b"multipart/form-data")])[0] == 400
    assert reply_of(app, "POST", "/form", body) == (201, b"")


def test_an_error_without_a_handler_is_the_servers() -> None:
    with pytest.raises(ZeroDivisionError):
        reply_of(build(), "GET", "/bug")


def test_the_nearest_handler_answers_and_that_of_a_group_comes_first() -> None:
    @get("/grouped")
    async def grouped() -> None:
        raise BodyError("x")

    def other(_request: Request, _error: BodyError) -> Response[bytes]:
        return Response(b"group", status_code=418)

    group = RouteGroup(routes=[grouped], exception_handlers={BodyError: other})
    assert reply_of(build(group), "GET", "/grouped") == (418, b"group")
    assert reply_of(build(grouped), "GET", "/grouped") == (400, b"bad_body 400")


def test_guards_run_from_the_outside_in_and_the_first_that_refuses_ends_it() -> None:
    called: list[str] = []

    def note(name: str, *, refuse: bool = False) -> Callable[[Request, Route], Any]:
        async def guard(_request: Request, route: Route) -> None:
            called.append(f"{name} {route.name}")
            if refuse:
                raise HttpRefusal(403)

        return guard

    @get("/guarded", guards=[note("own", refuse=True), note("never")])
    async def guarded() -> None: ...

    app = build(RouteGroup(routes=[guarded], guards=(note("group"),)), guards=[note("app")])
    assert reply_of(app, "GET", "/guarded") == (403, b"refused 403")
    assert called == ["app guarded", "group guarded", "own guarded"]
    called.clear()
    sent = asyncio.run(ask(app, "OPTIONS", "/guarded"))
    assert (sent[0]["status"], sent[0]["headers"], called) == (204, [(b"allow", b"GET, OPTIONS")], [])


def test_paths_hosts_and_roots() -> None:
    app = build()
    assert reply_of(app, "GET", "/nowhere") == (404, b"refused 404")
    assert reply_of(app, "PUT", "/plain") == (405, b"refused 405")
    assert reply_of(app, "GET", "/plain", headers=[(b"host", b"a b")]) == (400, b"refused 400")
    assert reply_of(app, "GET", "/under/plain", root_path="/under") == (200, b'{"a":1}')


def test_a_route_sees_its_template_and_its_application() -> None:
    @get("/a/{name:str}")
    async def seen(request: Request, name: FromPath[str]) -> list[str]:
        return [request.scope["path_template"], name, request.app.state["own"]]

    assert reply_of(build(seen, state={"own": "yes"}), "GET", "/a/b") == (200, b'["/a/{name}","b","yes"]')


def test_headers_and_cookies() -> None:
    @get("/cookie", media_type="text/html")
    async def cookie() -> Response[bytes]:
        one = Cookie(key="k", value="v", max_age=5, httponly=True, secure=True, path="/p")
        return Response(b"x", headers={"X-A": "é", "Content-Length": "1"}, cookies=[one, Cookie(key="b", value="")])

    sent = asyncio.run(ask(build(cookie), "GET", "/cookie"))
    found = sent[0]["headers"]
    assert found[:3] == [
        (b"x-a", b"\xe9"),
        (b"content-length", b"1"),
        (b"content-type", b"text/html; charset=utf-8"),
    ]
    assert sorted(found[3][1].decode().split("; ")) == [
        *("HttpOnly", "Max-Age=5", "Path=/p", "SameSite=lax", "Secure", "k=v"),
    ]
    assert b'b=""' in found[4][1]


class Watched:
    """A stream that says how it ended."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.ended = ""

    async def make(self) -> AsyncIterator[bytes]:
        try:
            for number in range(self.pieces):
                yield b"%d" % number
            if self.pieces == 2:
                await asyncio.Event().wait()
            if self.pieces == 3:
                raise ValueError("broken")
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        finally:
            self.ended = self.ended or "over"


def stream_of(watched: Watched) -> WebApp:
    @get("/stream", media_type="text/event-stream")
    async def stream() -> Stream:
        return Stream(watched.make(), headers={"X-A": "b"})

    return build(stream)


def test_a_stream_is_sent_to_its_end() -> None:
    watched = Watched(4)
    assert reply_of(stream_of(watched), "GET", "/stream") == (200, b"0123")
    assert watched.ended == "over"


def test_a_stream_ends_when_its_reader_leaves() -> None:
    watched = Watched(2)

    async def use() -> list[Any]:
        leave = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> Any:
            await leave.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body") == b"1":
                leave.set()

        scope = {"type": "http", "method": "GET", "path": "/stream", "query_string": b"", "headers": []}
        await asyncio.wait_for(stream_of(watched)(scope, receive, send), 30)
        return sent

    sent = asyncio.run(use())
    assert [one.get("body") for one in sent[1:]] == [b"0", b"1"]
    assert watched.ended == "cancelled"
    assert dict(sent[0]["headers"]) == {b"x-a": b"b", b"content-type": b"text/event-stream; charset=utf-8"}


def test_a_stream_that_breaks_is_broken_off() -> None:
    watched = Watched(3)
    with pytest.raises(ValueError, match="broken"):
        reply_of(stream_of(watched), "GET", "/stream")
    assert watched.ended == "over"


def live(app: WebApp) -> list[str]:
    async def use() -> list[str]:
        coming = iter(["lifespan.startup", "lifespan.shutdown"])
        said: list[str] = []

        async def receive() -> Any:
            return {"type": next(coming)}

        async def send(message: Any) -> None:
            said.append(message["type"])

        try:
            await app({"type": "lifespan"}, receive, send)
        except ValueError:
            said.append("raised")
        return said

    return asyncio.run(use())


@pytest.mark.parametrize(
    ("fails_at", "said"),
    [
        ("", ["lifespan.startup.complete", "lifespan.shutdown.complete"]),
        ("begin", ["lifespan.startup.failed", "raised"]),
        ("end", ["lifespan.startup.complete", "lifespan.shutdown.failed", "raised"]),
    ],
)
def test_the_lifespan_surrounds_all_requests(fails_at: str, said: list[str]) -> None:
    @asynccontextmanager
    async def around(_app: WebApp) -> AsyncIterator[None]:
        if fails_at == "begin":
            raise ValueError
        yield
        if fails_at == "end":
            raise ValueError

    assert live(build(plain, lifespan=[around])) == said


def test_a_socket_is_closed() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async def receive() -> Any:
        raise AssertionError

    asyncio.run(build()({"type": "websocket"}, receive, send))
    assert sent == ["websocket.close"]


def test_content_that_takes_long_is_made_once_before_it_is_sent() -> None:
    made = list[str]()

    class Slow(Response[bytes]):
        async def make(self) -> None:
            if not made:
                made.append("content")
                self.content = b"made"

    @get("/slow")
    async def slow() -> Response[bytes]:
        return Slow(b"", media_type="text/plain")

    assert reply_of(WebApp([slow]), "GET", "/slow") == (200, b"made")
    assert made == ["content"]
