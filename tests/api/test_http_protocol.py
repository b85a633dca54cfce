"""The HTTP parser with limits: which members of uvicorn it relies on, and when its timer runs."""

import asyncio
import inspect
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from packaging.requirements import Requirement
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from meruit.api import http_limits, http_protocol
from meruit.api.http_protocol import LimitedHttpProtocol

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
OF_CONNECTION = {"cycle", "flow", "headers", "loop", "pipeline", "timeout_keep_alive_task", "transport", "url"}
"""Attributes of uvicorn's parser that ours reads."""
OF_CYCLE = {"response_complete", "response_started", "waiting_for_100_continue"}
"""Attributes of one request and its reply that ours reads."""


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_uvicorn_still_has_each_overridden_method(name: str) -> None:
    assert list(inspect.signature(getattr(HttpToolsProtocol, name)).parameters) == OVERRIDDEN[name]


def test_uvicorn_still_sets_each_attribute_that_is_read() -> None:
    connection = set(re.findall(r"self\.(\w+)(?::| =)", inspect.getsource(HttpToolsProtocol)))
    cycle = set(re.findall(r"self\.(\w+)(?::| =)", inspect.getsource(RequestResponseCycle.__init__)))
    assert OF_CONNECTION - connection == set()
    assert OF_CYCLE - cycle == set()


def test_the_lists_above_are_all_that_is_used() -> None:
    source = inspect.getsource(http_protocol)
    own = set(vars(LimitedHttpProtocol)) - OVERRIDDEN.keys()
    used = set(re.findall(r"self\.(\w+)", source)) - own - OVERRIDDEN.keys()
    assert used == OF_CONNECTION
    assert set(re.findall(r"cycle\.(\w+)", source)) == OF_CYCLE


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

    before = dict(LimitedHttpProtocol.open_by_address)
    asyncio.run(use())
    assert dict(LimitedHttpProtocol.open_by_address) == before
