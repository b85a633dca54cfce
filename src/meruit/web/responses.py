"""Replies: content with its headers, and streams that end when the client leaves."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from http.cookies import SimpleCookie
from typing import Any, Generic, Literal, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

JSON = "application/json"
NO_BODY = frozenset({204, 304})
"""Statuses whose replies have no content."""

T = TypeVar("T")


class Cookie(msgspec.Struct, frozen=True, kw_only=True):
    """A cookie that a reply sets."""

    key: str
    value: str
    path: str = "/"
    max_age: int | None = None
    """In seconds; without it the cookie lasts as long as the browser is open."""
    httponly: bool = False
    samesite: Literal["lax", "strict", "none"] = "lax"
    secure: bool = False

    def to_header(self) -> str:
        """The value of the header Set-Cookie."""
        written: SimpleCookie = SimpleCookie({self.key: self.value})
        one = written[self.key]
        one["path"] = self.path
        one["samesite"] = self.samesite
        if self.max_age is not None:
            one["max-age"] = self.max_age
        for flag, is_set in (("httponly", self.httponly), ("secure", self.secure)):
            if is_set:
                one[flag] = True
        return one.OutputString()


class Response(Generic[T]):
    """A reply; its type parameter is what OpenAPI says of its content."""

    __slots__ = ("content", "cookies", "headers", "media_type", "status_code")

    # Any: content may be encoded already, or is what msgspec can encode.
    def __init__(
        self,
        content: Any,
        *,
        status_code: int | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
        cookies: Iterable[Cookie] = (),
    ) -> None:
        """Without `status_code` and `media_type` those of the route are used."""
        self.content = content
        self.status_code = status_code
        self.headers = dict(headers or {})
        self.media_type = media_type
        self.cookies = list(cookies)

    async def make(self) -> None:
        """Make content that takes long, in a thread. Here it is ready."""

    def complete(self, status_code: int, media_type: str | None) -> None:
        """Set what the handler left to its route, and encode the content."""
        self.status_code = self.status_code or status_code
        self.media_type = self.media_type or media_type or JSON
        self.content = encode(self.content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - what ASGI gives
        """Send it."""
        await self.make()
        self.complete(200, None)
        body: bytes = b"" if self.status_code in NO_BODY else self.content
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.encode_headers()})
        await send({"type": "http.response.body", "body": body, "more_body": False})

    def encode_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers as ASGI takes them."""
        raw = [(name.lower().encode("latin-1"), str(value).encode("latin-1")) for name, value in self.headers.items()]
        if self.status_code not in NO_BODY:
            present = {name for name, _ in raw}
            raw += [header for header in self._content_headers() if header[0] not in present]
        raw += [(b"set-cookie", cookie.to_header().encode("latin-1")) for cookie in self.cookies]
        return raw

    def _content_headers(self) -> list[tuple[bytes, bytes]]:
        return [self._content_type(), (b"content-length", str(len(self.content)).encode())]

    def _content_type(self) -> tuple[bytes, bytes]:
        media_type = self.media_type or JSON
        is_text = media_type.startswith("text/")
        return (b"content-type", (f"{media_type}; charset=utf-8" if is_text else media_type).encode("latin-1"))


class Stream(Response[bytes]):
    """A reply whose content is sent while it is made. When the client leaves, the making ends."""

    __slots__ = ("_pieces",)

    def __init__(
        self,
        pieces: AsyncIterator[bytes],
        *,
        status_code: int | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str | None = None,
    ) -> None:
        super().__init__(b"", status_code=status_code, headers=headers, media_type=media_type)
        self._pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - what ASGI gives
        """Send it until its end, or until the client leaves."""
        self.complete(200, None)
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.encode_headers()})
        sending = asyncio.ensure_future(self._send_all(send))
        watching = asyncio.ensure_future(_wait_until_gone(receive))
        try:
            await asyncio.wait((sending, watching), return_when=asyncio.FIRST_COMPLETED)
        finally:
            is_over = sending.done()
            for task in (sending, watching):
                task.cancel()
            await asyncio.gather(sending, watching, return_exceptions=True)
            await _close(self._pieces)
        if is_over:
            # Raises what the making raised: the reply has begun, and only the server can break it off.
            sending.result()

    async def _send_all(self, send: Send) -> None:
        async for piece in self._pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _content_headers(self) -> list[tuple[bytes, bytes]]:
        # Its length is not known.
        return [self._content_type()]


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _close(pieces: AsyncIterator[bytes]) -> None:
    # An iterator that is not a generator has nothing to end.
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()


# Any: what a handler returns.
def encode(content: Any) -> bytes:
    """Encode content as JSON; bytes and text are encoded already."""
    if isinstance(content, bytes):
        return content
    return content.encode() if isinstance(content, str) else msgspec.json.encode(content)
