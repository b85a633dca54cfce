"""A request: Starlette's, with a limit on the size of its body."""

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from starlette.requests import Request as StarletteRequest

from meruit.errors import BodyError, HttpRefusal
from meruit.model.decoding import decode_json
from meruit.web.validation import field_problem

MAX_BODY_BYTES = 10_000_000
"""The largest body of a route that sets no other limit."""
TOO_SHORT = "the body is shorter than its Content-Length"


class Request(StarletteRequest):
    """A request to a route."""

    max_body_bytes: int = MAX_BODY_BYTES
    """The largest body; the application sets that of the route."""

    @property
    def content_type(self) -> tuple[str, dict[str, str]]:
        """The media type in small letters, and its options."""
        media_type, *options = self.headers.get("content-type", "").split(";")
        pairs = (one.partition("=") for one in options)
        return media_type.strip().lower(), {name.strip().lower(): value.strip(' "') for name, _, value in pairs}

    @property
    def content_length(self) -> int | None:
        """The declared size of the body; raises HttpRefusal for one that is not a number."""
        declared = self.headers.get("content-length")
        if declared is None:
            return None
        try:
            return int(declared)
        except ValueError:
            raise HttpRefusal(400) from None

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body in pieces; raises HttpRefusal 413, and BodyError when the client leaves before the end."""
        if hasattr(self, "_body"):
            yield self._body
            return
        if self._stream_consumed:
            raise RuntimeError("the body was read before")
        if (self.content_length or 0) > self.max_body_bytes:
            raise HttpRefusal(413)
        size = 0
        while not self._stream_consumed:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._is_disconnected = True
                raise BodyError(TOO_SHORT)
            piece: bytes = message.get("body", b"")
            self._stream_consumed = not message.get("more_body", False)
            size += len(piece)
            if size > self.max_body_bytes:
                raise HttpRefusal(413)
            if piece:
                yield piece

    # Any: Starlette's form is awaited, or a context manager; the type of that is private.
    def form(self, **limits: Any) -> Any:
        """The posted form. Its texts may be as large as the body may be."""
        return super().form(**{"max_part_size": self.max_body_bytes, **limits})

    # Any, here and below: a handler declares any type, and gets an instance of it.
    async def read_json(self, kind: Any) -> Any:
        """Parse a body that is not empty; raises BodyError."""
        try:
            return decode_json(await self.body(), kind)
        except msgspec.ValidationError as refused:
            problem = field_problem(str(refused))
            raise BodyError(f"{problem.where or 'the body'}: {problem.message}", [problem]) from None
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BodyError("the body is not valid JSON", reason="not_json") from None

    async def close(self) -> None:
        """Remove the files of a form."""
        if self._form is not None:
            await super().close()
