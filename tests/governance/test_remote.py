"""Governance over HTTP: a valid answer is read, everything else is unreachable."""

import asyncio
import ipaddress
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from meruit.errors import Unreachable
from meruit.governance.remote import RemoteGovernance
from meruit.model.governance import MAX_FLAGS, Action, Disposition, Flag, GovernanceResult
from meruit.sources.http_guard import MAX_REPLY_BYTES

LOOPBACK = [ipaddress.ip_network("127.0.0.0/8")]
CLEAR = b'{"valid": true, "disposition": "clear", "confidence": 0.5}'
DEEP = b'{"valid": true, "flags": [{"rule": "x", "version": "1", "action": "flag", "evidence": {"a": %s1%s}}]}'


class Handler(BaseHTTPRequestHandler):
    """Answers in the way that the path names."""

    server: "Server"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
        try:
            self.reply(unquote(self.path.strip("/")))
        except OSError:
            self.close_connection = True

    def reply(self, how: str) -> None:
        match how:
            case "slow":
                self.server.released.wait(30)
            case "moved":
                self.answer(307, Location="/clear")
            case "broken":
                self.answer(500, CLEAR)
            case "created":
                self.answer(201, CLEAR)
            case "huge":
                self.answer(200, b'{"valid": true, "flags": ["%s"]}' % (b"x" * MAX_REPLY_BYTES))
            case "deep":
                self.answer(200, DEEP % (b"[" * 9_000, b"]" * 9_000))
            case _:
                self.answer(200, self.server.answers[how])

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


class Server(ThreadingHTTPServer):
    """Remembers what it was asked."""

    answers = {  # noqa: RUF012 - never written to
        "clear": CLEAR,
        "plain": b'{"valid": true}',
        "invalid": b'{"valid": false, "flags": ["odd"]}',
        "held": b'{"valid": true, "disposition": "hold", "flags": [{"rule": "odd", "version": "2", "action": "hold"}]}',
        "more": b'{"valid": true, "disposition": "clear", "explanation": "fine"}',
        "waved through": b'{"valid": true, "flags": [{"rule": "odd", "version": "2", "action": "invalidate"}]}',
        "many": b'{"valid": true, "flags": [%s{"rule": "odd", "version": "2", "action": "hold"}]}' % (b'"x", ' * 999),
        "empty": b"",
        "words": b"all is well",
        "list": b"[true]",
        "nothing": b"{}",
        "number": b'{"valid": 1}',
        "text": b'{"valid": "true"}',
        "unknown": b'{"valid": true, "disposition": "fine"}',
        "flagless": b'{"valid": true, "flags": "none"}',
        "latin": b'{"valid": true, "flags": ["\xff"]}',
        "half": b'{"valid": true, "flags": ["\\ud800"]}',
        "cut": b'{"valid": true',
        "two": b'{"valid": true}{"valid": true}',
    }

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, str], bytes]] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    # A client that hangs up is what we came to see.
    def handle_error(self, request: Any, client_address: Any) -> None: ...


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    thread.join()
    made.server_close()


def ask(server: Server, path: str, **options: Any) -> GovernanceResult:
    client = RemoteGovernance(
        f"http://127.0.0.1:{server.server_port}/{path}", **{"allowed_networks": LOOPBACK, **options}
    )
    return asyncio.run(
        client.validate_outcome(
            contract_id="c1", claimed_metrics={"accuracy": 0.9}, execution_context={"agent_id": "a1", "dossier": {}}
        )
    )


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("clear", GovernanceResult(valid=True, disposition=Disposition.CLEAR, confidence=0.5)),
        ("plain", GovernanceResult(valid=True)),
        ("invalid", GovernanceResult(valid=False, flags=["odd"])),
        ("held", GovernanceResult(valid=True, disposition=Disposition.HOLD, flags=[Flag("odd", "2", Action.HOLD)])),
        ("more", GovernanceResult(valid=True, disposition=Disposition.CLEAR)),
        (
            "many",
            GovernanceResult(valid=True, disposition=Disposition.HOLD, flags=["x"] * MAX_FLAGS),
        ),
    ],
)
def test_an_answer_is_read(server: Server, path: str, expected: GovernanceResult) -> None:
    assert ask(server, path) == expected


def test_the_question_is_that_of_our_own_contract(server: Server) -> None:
    ask(server, "clear", token="secret-token")
    ((headers, body),) = server.seen
    assert json.loads(body) == {
        "contract_id": "c1",
        "claimed_metrics": {"accuracy": 0.9},
        "execution_context": {"agent_id": "a1", "dossier": {}},
    }
    assert headers["content-type"] == headers["accept"] == "application/json"
    assert headers["authorization"] == "Bearer secret-token"


def test_without_a_token_none_is_sent(server: Server) -> None:
    ask(server, "clear")
    assert "authorization" not in server.seen[0][0]


@pytest.mark.parametrize(("path", "status"), [("broken", 500), ("moved", 307), ("created", 201)])
def test_an_answer_of_another_status_is_refused(server: Server, path: str, status: int) -> None:
    with pytest.raises(Unreachable, match=rf"\b{status}\b"):
        ask(server, path)
    assert len(server.seen) == 1


@pytest.mark.parametrize(
    "path",
    [
        *("empty", "words", "list", "nothing", "number", "text", "unknown", "flagless", "latin", "half", "cut", "two"),
        *("huge", "deep"),
    ],
)
def test_an_answer_that_is_not_valid_is_refused(server: Server, path: str) -> None:
    with pytest.raises(Unreachable) as refused:
        ask(server, path)
    assert refused.value.code == "unreachable"
    assert len(server.seen) == 1


def test_no_answer_in_time_is_refused(server: Server) -> None:
    with pytest.raises(Unreachable):
        ask(server, "slow", timeout_s=0.1)


def test_a_network_that_is_not_public_is_not_asked(server: Server) -> None:
    with pytest.raises(Unreachable):
        ask(server, "clear", allowed_networks=())
    assert server.seen == []


def test_a_server_that_is_not_there_is_unreachable(server: Server) -> None:
    client = RemoteGovernance("http://127.0.0.1:1/", allowed_networks=LOOPBACK, timeout_s=2)
    with pytest.raises(Unreachable):
        asyncio.run(client.validate_outcome(contract_id="c", claimed_metrics={}, execution_context={}))


@pytest.mark.parametrize("context", [{"n": object()}, {"text": "\ud800"}])
def test_a_question_that_cannot_be_written_is_not_asked(server: Server, context: dict[str, Any]) -> None:
    client = RemoteGovernance(f"http://127.0.0.1:{server.server_port}/clear", allowed_networks=LOOPBACK)
    with pytest.raises(Unreachable):
        asyncio.run(client.validate_outcome(contract_id="c", claimed_metrics={}, execution_context=context))
    assert server.seen == []


def test_one_client_can_be_asked_from_one_loop_after_another(server: Server) -> None:
    client = RemoteGovernance(f"http://127.0.0.1:{server.server_port}/plain", allowed_networks=LOOPBACK)
    for _ in range(2):
        answer = asyncio.run(client.validate_outcome(contract_id="c", claimed_metrics={}, execution_context={}))
        assert answer.valid


def test_a_flag_that_acts_decides_the_conclusion(server: Server) -> None:
    assert ask(server, "waved%20through").conclusion is Disposition.INVALID


def test_certificates_are_read_once_and_not_on_the_loop(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    read_in: list[threading.Thread] = []
    real = httpx.create_ssl_context

    def reading(*args: Any, **options: Any) -> Any:
        read_in.append(threading.current_thread())
        time.sleep(0.3)
        return real(*args, **options)

    monkeypatch.setattr(httpx, "create_ssl_context", reading)
    monkeypatch.setattr("httpx._config.create_ssl_context", reading)
    client = RemoteGovernance(f"http://127.0.0.1:{server.server_port}/plain", allowed_networks=LOOPBACK)
    assert read_in == []

    async def several() -> None:
        asked = [client.validate_outcome(contract_id="c", claimed_metrics={}, execution_context={}) for _ in range(3)]
        assert all(one.valid for one in await asyncio.gather(*asked))

    asyncio.run(several())
    asyncio.run(several())
    assert len(read_in) == 1
    assert read_in[0] is not threading.current_thread()
