"""The HTTP parser of uvicorn, with limits on the head of a request and on the time that a client may take.

uvicorn limits headers only in its slow parser, and has no limit on time. This class overrides methods that are not part
of uvicorn's public interface. So the package requires a range of versions of uvicorn, and `test_http_protocol.py` names
each member that the class relies on.
"""

import asyncio
from collections import Counter
from functools import lru_cache
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import (
    HEADER_RE,
    HEADER_VALUE_RE,
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from meruit.api import http_limits
from meruit.api.rate_limit import network_of

LENGTH = b"content-length"
TOO_LARGE = "The request's headers are too large."


class LimitedHttpProtocol(HttpToolsProtocol):
    """A connection that closes when a head is too large, or when a client sends nothing for too long."""

    in_body = False
    """Whether the head is complete and the body is not."""
    is_complete = False
    """Whether the last request is complete and the next one has not started."""
    field_bytes = 0
    """Bytes of the headers and trailers that were parsed."""
    unparsed_bytes = 0
    """Bytes received since the parser last reported a header or a part of the body; it keeps a line until it ends."""
    body_at = 0.0
    """When the last part of the body arrived."""
    body_began = 0.0
    """When the head was complete."""
    address: str | None = None
    """Where the connection comes from, while it counts."""
    open_by_address: ClassVar[Counter[str]] = Counter()
    """Open connections by address; of one event loop."""
    in_bodies: ClassVar[set["LimitedHttpProtocol"]] = set()
    """Connections whose body is being read; of one event loop."""
    proxies: ClassVar[frozenset[str]] = frozenset()
    """Addresses behind which many clients are, and which count for nothing."""
    timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and not self.count_connection(network_of(str(peer[0]))):
            transport.close()
            return
        self.share_reading()
        self.wait_for_more()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer, and share with the others no more."""
        self.stop_waiting()
        self.in_bodies.discard(self)
        if self.address is not None:
            self.open_by_address[self.address] -= 1
            if not self.open_by_address[self.address]:
                del self.open_by_address[self.address]
            self.address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived; refuse a line that is longer than any head may be."""
        # Even an empty line, which does not start a request, ends uvicorn's wait for the next one.
        self.is_complete = False
        self.unparsed_bytes += len(data)
        super().data_received(data)
        self.share_reading()
        if self.is_complete or self.transport.is_closing():
            return
        if self.unparsed_bytes > http_limits.MAX_HEAD_BYTES:
            self.send_400_response(TOO_LARGE)
        else:
            self.wait_for_more()

    def on_message_begin(self) -> None:
        """Count the headers of a new request from zero."""
        self.is_complete = False
        self.field_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count one header; refuse a head that is too large."""
        self.field_bytes += len(name) + len(value) + 4
        if self.field_bytes > http_limits.MAX_HEAD_BYTES or len(self.headers) >= http_limits.MAX_HEADERS:
            self.refuse()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Count the request line, and start to wait for the body."""
        self.field_bytes += len(self.url)
        if self.field_bytes > http_limits.MAX_HEAD_BYTES:
            self.refuse()
        self.stop_waiting()
        super().on_headers_complete()
        # uvicorn takes no class of ours; the cycle begins its work in a later turn of the loop.
        self.cycle.__class__ = SingleWriteCycle
        if len(self.pipeline) > http_limits.MAX_PIPELINED:
            # Each takes thousands of bytes until its turn, and comes in twenty.
            self.refuse()
        self.in_body = True
        self.body_began = self.loop.time()
        self.unparsed_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self.unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Wait for nothing while the reply is made."""
        self.stop_waiting()
        self.in_body = False
        self.is_complete = True
        self.unparsed_bytes = 0
        super().on_message_complete()

    def count_connection(self, address: str) -> bool:
        """Count the connection until it is lost; false for one too many of its address."""
        if address in self.proxies:
            return True
        if self.open_by_address[address] >= http_limits.MAX_CONNECTIONS_PER_ADDRESS:
            return False
        self.open_by_address[address] += 1
        self.address = address
        return True

    def share_reading(self) -> None:
        """Read less at once while there are many connections, so that a round of the loop stays short.

        A body is shared with other bodies only: of connections that wait for a request, few begin one at a time.
        """
        if self.in_body:
            self.in_bodies.add(self)
        else:
            self.in_bodies.discard(self)
        # The loop of asyncio has this attribute; that of uvloop reads little at once anyway.
        if hasattr(self.transport, "max_size"):
            others = self.in_bodies if self.in_body else self.connections
            share = http_limits.READ_BYTES // max(1, len(others))
            self.transport.max_size = max(http_limits.MIN_READ_BYTES, share)

    def refuse(self) -> None:
        """Answer 400, and make the parser stop."""
        self.send_400_response(TOO_LARGE)
        raise ValueError(TOO_LARGE)

    def send_400_response(self, msg: str) -> None:
        """Answer 400, or only close where a reply is being sent."""
        if self.transport.is_closing():
            return
        # Any: None before the first head, although uvicorn declares otherwise.
        cycle: Any = self.cycle
        if cycle is not None and (
            self.pipeline or (cycle.response_started and (self.in_body or not cycle.response_complete))
        ):
            # A client that is reading another reply would take this for a part of it, or for the next one.
            self.transport.close()
        else:
            super().send_400_response(msg)

    def wait_for_more(self) -> None:
        """Start the timer. Parts of a body do not restart it; it checks when the last one arrived."""
        if self.in_body:
            self.body_at = self.loop.time()
        if self.timer is None:
            self.timer = self.loop.call_later(http_limits.BODY_S if self.in_body else http_limits.HEAD_S, self.give_up)

    def stop_waiting(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def give_up(self) -> None:
        """Close the connection, unless the client is the one that waits."""
        self.timer = None
        cycle: Any = self.cycle
        if self.in_body:
            until = min(self.body_at + http_limits.BODY_S, self.body_began + http_limits.BODY_TOTAL_S)
            left = until - self.loop.time()
            if left <= 0 and (self.flow.read_paused or cycle.waiting_for_100_continue):
                left = http_limits.BODY_S
        elif cycle is not None and not cycle.response_complete:
            left = http_limits.HEAD_S
        elif self.timeout_keep_alive_task is not None:
            # A reply just ended, and uvicorn waits for the next request.
            return
        else:
            left = 0
        if left > 0:
            self.timer = self.loop.call_later(left, self.give_up)
        else:
            self.transport.close()


@lru_cache(maxsize=1024)
def is_plain_head(names: tuple[bytes, ...]) -> bool:
    """Whether a head with these headers needs no more than to be written; few combinations of names are in use."""
    together = b"".join(names)
    return (
        names.count(LENGTH) == 1
        and b"connection" not in names
        and b"transfer-encoding" not in names
        and together.islower()
        and not HEADER_RE.search(together)
    )


class SingleWriteCycle(RequestResponseCycle):
    """One request and its reply, whose head and body are written together: another write wakes the client twice."""

    # Any: a message of ASGI, here and below.
    head: Any = None
    """Of a reply that declares its length: held back until the body comes."""

    async def send(self, message: Any) -> None:
        """Send a message of the reply."""
        head, self.head = self.head, None
        if head is None:
            if message["type"] == "http.response.start":
                for name, _ in message.get("headers", ()):
                    if name == LENGTH:
                        self.head = message
                        return
        # Another head instead of a body takes the place of the first one: the application failed.
        elif message["type"] == "http.response.body":
            if self.send_at_once(head, message):
                return
            await super().send(head)
        await super().send(message)

    def send_at_once(self, head: Any, message: Any) -> bool:
        """Write a plain reply whole; false for any other."""
        body = message.get("body", b"")
        headers = [*self.default_headers, *head.get("headers", ())]
        names, values = zip(*headers, strict=True)
        if (
            message.get("more_body", False)
            or not self.keep_alive
            or self.response_started
            or self.disconnected
            or self.access_log
            or self.flow.write_paused
            or self.scope["method"] == "HEAD"
            or not is_plain_head(names)
            or values[names.index(LENGTH)] != b"%d" % len(body)
            or HEADER_VALUE_RE.search(b"".join(values))
        ):
            return False
        self.response_started = self.response_complete = True
        self.waiting_for_100_continue = False
        lines = [b"%b: %b\r\n" % header for header in headers]
        self.transport.write(b"".join((STATUS_LINE[head["status"]], *lines, b"\r\n", body)))
        self.message_event.set()
        self.on_response()
        return True
