"""The HTTP parser with limits: which members of uvicorn it relies on, and when its timer runs."""

import asyncio
import inspect
import re
import tomllib
from asyncio import selector_events
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from meruit.api import http_limits
from meruit.api.http_protocol import LimitedHttpProtocol, SingleWriteCycle

OVERRIDDEN = {
    "connection_made": ["self", "transport"],
    "connection_lost": ["self", "exc"],
    "data_received": ["self", "data"],
    "on_message_begin": ["self"],
    "on_header": ["self", "name", "value"],
    "on_headers_complete": ["self"],
    "on_body": ["self", "body"],
    "on_message_complete": ["self"],
    "send_400_response": ["self", "msg"],
}
"""Methods of uvicorn's parser that ours overrides, with their parameters."""
OF_CONNECTION = {
    "connections",
    "cycle",
    "flow",
    "headers",
    "loop",
    "pipeline",
    "timeout_keep_alive_task",
    "transport",
    "url",
}
"""Attributes of uvicorn's parser that ours reads."""
OF_CYCLE = {
    "access_log",
    "default_headers",
    "disconnected",
    "flow",
    "keep_alive",
    "message_event",
    "on_response",
    "response_complete",
    "response_started",
    "scope",
    "transport",
    "waiting_for_100_continue",
}
"""Attributes of one request and its reply that ours reads or sets."""


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_uvicorn_still_has_each_overridden_method(name: str) -> None:
    assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == OVERRIDDEN[name]


def test_uvicorn_still_sets_each_attribute_that_is_read() -> None:
    connection = set(re.findall(r"self\.(\w+)(?::| =)", inspect.getsource(HttpToolsProtocol)))
    cycle = set(re.findall(r"self\.(\w+)(?::| =)", inspect.getsource(RequestResponseCycle.__init__)))
    assert OF_CONNECTION - connection == set()
    assert OF_CYCLE - cycle == set()


def test_the_lists_above_are_all_that_is_used() -> None:
    for ours, overridden, expected in (
        (LimitedHttpProtocol, OVERRIDDEN.keys(), OF_CONNECTION),
        (SingleWriteCycle, {"send"}, OF_CYCLE),
    ):
        own = set(vars(ours)) - overridden
        assert set(re.findall(r"self\.(\w+)", inspect.getsource(ours))) - own - overridden == expected
    of_cycle = set(re.findall(r"cycle\.(\w+)", inspect.getsource(LimitedHttpProtocol)))
    assert of_cycle - {"__class__"} <= OF_CYCLE
    assert list(inspect.signature(RequestResponseCycle.send).parameters) == ["self", "message"]


def test_the_required_range_of_uvicorn_has_a_ceiling() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project.get("optional-dependencies", {}).values()]
    wanted = [one for group in groups for one in map(Requirement, group) if one.name == "uvicorn"]
    assert wanted
    for one in wanted:
        assert any(part.operator in ("<", "<=", "~=") for part in one.specifier)
        assert uvicorn.__version__ in one.specifier


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    closing = False

    def __init__(self, address: str = "192.0.2.1") -> None:
        super().__init__({"peername": (address, 1)})

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def write(self, data: Any) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


@pytest.fixture(autouse=True)
def _counted_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections of another test, or of a service that tests share, do not count."""
    monkeypatch.setattr(LimitedHttpProtocol, "open_by_address", Counter())
    monkeypatch.setattr(LimitedHttpProtocol, "in_bodies", set())


def wired(app: Any, address: str = "192.0.2.1") -> Any:
    """A connection, as the loop makes it."""
    config = uvicorn.Config(app, log_config=None, lifespan="off", interface="asgi3")
    made = LimitedHttpProtocol(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    made.connection_made(Wire(address))
    return made


async def silent(scope: Any, receive: Any, send: Any) -> None:
    """Answers without asking for the body."""
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


def test_no_timer_outlives_what_it_waits_for() -> None:
    async def use() -> None:
        made = wired(silent)
        opened = made.timer
        made.data_received(b"GET / HTTP/1.1\r\n")
        assert made.timer is opened
        made.data_received(b"Host: x\r\n\r\n")
        assert (opened.cancelled(), made.timer) == (True, None)
        await asyncio.gather(*made.tasks)
        made.data_received(b"POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n")
        body = made.timer
        made.data_received(b"a")
        # A part more begins no timer more.
        assert made.timer is body
        made.data_received(b"bc")
        assert (body.cancelled(), made.timer) == (True, None)
        await asyncio.gather(*made.tasks)
        made.data_received(b"GET")
        last = made.timer
        made.connection_lost(OSError("gone"))
        assert (last.cancelled(), made.timer) == (True, None)
        made._unset_keepalive_if_required()

    asyncio.run(use())


@pytest.mark.parametrize("why", ["paused", "continue"])
def test_a_body_that_was_not_asked_for_is_not_missed(why: str) -> None:
    async def use() -> None:
        made = wired(silent)
        expect = b"Expect: 100-continue\r\n" if why == "continue" else b""
        made.data_received(b"POST / HTTP/1.1\r\n" + expect + b"Content-Length: 1000000\r\n\r\n")
        if why == "paused":
            made.data_received(b" " * 500_000)
        made.body_at = -http_limits.BODY_S
        made.timer.cancel()
        made.give_up()
        assert made.timer is not None
        assert not made.transport.is_closing()
        await asyncio.gather(*made.tasks)
        # It was answered; now nothing excuses the silence.
        made.timer.cancel()
        made.give_up()
        assert made.transport.is_closing()
        made.connection_lost(None)

    asyncio.run(use())


def test_a_body_has_a_deadline_however_steadily_it_comes() -> None:
    async def use() -> None:
        made = wired(silent)
        made.data_received(b"POST / HTTP/1.1\r\nContent-Length: 1000\r\n\r\n")
        made.data_received(b"a")
        made.timer.cancel()
        made.give_up()
        assert not made.transport.is_closing()
        made.timer.cancel()
        made.body_began -= http_limits.BODY_TOTAL_S
        made.give_up()
        assert made.transport.is_closing()
        made.connection_lost(None)

    asyncio.run(use())


def test_the_connections_of_one_address_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "MAX_CONNECTIONS_PER_ADDRESS", 2)
    monkeypatch.setattr(LimitedHttpProtocol, "proxies", frozenset({"192.0.2.9"}))

    async def use() -> None:
        several = [wired(silent) for _ in range(3)]
        assert [one.transport.is_closing() for one in several] == [False, False, True]
        # Others are served, one IPv6 network counts as one address, and a proxy has many clients.
        others = [wired(silent, address) for address in ("192.0.2.2", "2001:db8::1", "2001:db8::2", "2001:db8::3")]
        assert [one.transport.is_closing() for one in others] == [False, False, False, True]
        behind = [wired(silent, "192.0.2.9") for _ in range(5)]
        assert not any(one.transport.is_closing() for one in behind)
        several[0].connection_lost(None)
        again = wired(silent)
        assert not again.transport.is_closing()
        for one in (*several, *others, *behind, again):
            one.connection_lost(None)

    asyncio.run(use())
    assert LimitedHttpProtocol.open_by_address == {}


class Recording(Wire):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))


def reply_of(messages: list[dict[str, Any]], request: bytes, cycle: type[RequestResponseCycle]) -> tuple[Any, ...]:
    """What a client gets when an application sends these messages and then returns, and whether that is the end."""

    async def answer(_scope: Any, _receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    async def use() -> tuple[Any, ...]:
        made = wired(answer)
        made.transport, made.access_log = Recording(), False
        made.data_received(request)
        made.cycle.__class__ = cycle
        await asyncio.gather(*made.tasks)
        made.connection_lost(None)
        return made.transport.written, made.transport.closing, made.server_state.total_requests

    return asyncio.run(use())


HEADERS = st.lists(
    st.sampled_from(
        [
            (b"content-length", b"2"),
            (b"content-length", b"3"),
            (b"Content-Length", b"2"),
            (b"content-type", b"text/plain"),
            (b"Content-Type", b"text/plain"),
            (b"connection", b"close"),
            (b"transfer-encoding", b"chunked"),
            (b"x-name", b"with\r\nbreak"),
            (b"x name", b"v"),
        ]
    ),
    max_size=4,
)
STARTS = st.builds(
    lambda status, headers: {"type": "http.response.start", "status": status, "headers": headers},
    st.sampled_from([200, 204, 404]),
    HEADERS,
)
PARTS = st.builds(
    lambda body, more: {"type": "http.response.body", "body": body, "more_body": more},
    st.sampled_from([b"", b"a", b"ab"]),
    st.booleans(),
)
REQUESTS = st.sampled_from(
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"HEAD / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\n",
    ]
)


@given(STARTS, st.lists(PARTS, min_size=1, max_size=3), REQUESTS)
def test_a_reply_is_the_same_in_one_write(start: dict[str, Any], parts: list[dict[str, Any]], request: bytes) -> None:
    *whole, end = parts
    messages = [start, *({**part, "more_body": True} for part in whole), end]
    written, closing, count = reply_of(messages, request, SingleWriteCycle)
    expected, was_closing, expected_count = reply_of(messages, request, RequestResponseCycle)
    if b"".join(written) == b"".join(expected):
        assert (closing, count) == (was_closing, expected_count)
    else:
        # The head was not sent when the application failed, so that the client gets a reply all the same.
        assert b"".join(written).startswith(b"HTTP/1.1 500 ")
        assert was_closing


def test_head_and_body_are_written_together() -> None:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]}
    body = {"type": "http.response.body", "body": b"ok"}
    get = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    assert len(reply_of([start, body], get, SingleWriteCycle)[0]) == 1
    # A reply without a length may be a stream, whose head must not wait.
    stream = {**start, "headers": []}
    assert len(reply_of([stream, body], get, SingleWriteCycle)[0]) == 2


def test_requests_that_wait_on_one_connection_are_limited() -> None:
    async def use() -> tuple[bool, bool]:
        one = b"GET / HTTP/1.1\r\n\r\n"
        few, many = wired(silent), wired(silent)
        few.data_received(one * (1 + http_limits.MAX_PIPELINED))
        many.data_received(one * (2 + http_limits.MAX_PIPELINED))
        closed = few.transport.closing, many.transport.closing
        assert len(many.pipeline) <= 1 + http_limits.MAX_PIPELINED
        for made in (few, many):
            made.connection_lost(None)
            await asyncio.gather(*made.tasks)
        return closed

    assert asyncio.run(use()) == (False, True)


def test_asyncio_reads_as_much_as_a_transport_says() -> None:
    assert isinstance(vars(selector_events)["_SelectorSocketTransport"].max_size, int)


def test_many_connections_read_less_at_once() -> None:
    async def use() -> list[int]:
        several = [wired(silent) for _ in range(2)]
        for made in several:
            made.transport.max_size = 0
        read = list[int]()
        for others in (0, 3, 10_000):
            several[0].connections.update(object() for _ in range(others))
            several[0].data_received(b"GET")
            read.append(several[0].transport.max_size)
        for made in several:
            made.stop_waiting()
        return read

    least, most = http_limits.MIN_READ_BYTES, http_limits.READ_BYTES
    assert asyncio.run(use()) == [most, most // 4, least]


def test_a_body_shares_reading_with_other_bodies_only() -> None:
    async def use() -> list[int]:
        one, other = (wired(silent) for _ in range(2))
        read = list[int]()
        for made in (one, other):
            made.transport.max_size = 0
            made.connections.update(object() for _ in range(10_000))

        def receive(made: Any, data: bytes) -> None:
            made.data_received(data)
            read.append(made.transport.max_size)

        for data in (b"POST / HTTP/1.1\r\n", b"Content-Length: 4\r\n\r\n", b"a"):
            receive(one, data)
        receive(other, b"POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n")
        receive(one, b"b")
        other.connection_lost(None)
        receive(one, b"c")
        receive(one, b"d")
        await asyncio.gather(*one.tasks, *other.tasks)
        one.connection_lost(None)
        return read

    least, most = http_limits.MIN_READ_BYTES, http_limits.READ_BYTES
    assert asyncio.run(use()) == [least, most, most, most // 2, most // 2, most, least]
    assert LimitedHttpProtocol.in_bodies == set()
