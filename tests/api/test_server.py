"""A real server: it says where it listens, ends gracefully, and ends at once when told twice."""

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from queue import Queue
from typing import Any

import httpx
import pytest
import uvicorn

from meruit.api import http_limits, server
from meruit.api.bodies.json_body import StrictRequest
from meruit.api.http_limits import MAX_HEAD_BYTES
from meruit.api.problems import exception_handlers
from meruit.api.server import ShutdownSignal, is_loopback, run
from meruit.errors import PortUnavailable, ServerFailed
from meruit.web.app import WebApp
from meruit.web.parameters import JSONBody
from meruit.web.responses import Stream
from meruit.web.routing import get, post

PATIENCE_S = 30


@get("/")
async def home() -> str:
    return "here"


@post("/things")
async def things(data: JSONBody[list[int]]) -> int:
    return len(data)


def small_app(stopping: ShutdownSignal) -> WebApp:
    @get("/endless")
    async def endless() -> Stream:
        async def words() -> AsyncIterator[bytes]:
            yield b"begun,"
            await stopping.wait()
            yield b"ended"

        return Stream(words())

    return WebApp(
        [home, things, endless],
        request_class=StrictRequest,
        exception_handlers=exception_handlers,
        max_body_bytes=1_000_000,
    )


class Running:
    """A server in a thread of its own."""

    def __init__(self, **options: Any) -> None:
        self.stopping = ShutdownSignal()
        urls: Queue[str] = Queue()
        self.thread = threading.Thread(
            target=run,
            args=(small_app(self.stopping), "127.0.0.1", 0),
            kwargs={"ready": urls.put, "stopping": self.stopping, "log_level": "error", **options},
        )
        self.thread.start()
        self.url = urls.get(timeout=PATIENCE_S)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def stop(self) -> None:
        self.stopping.begin()
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """For all that leave it as it is: each start looks through all that the process holds, for the collector."""
    made = Running()
    yield made
    made.stop()


@pytest.fixture
def alone() -> Iterator[Running]:
    """For one that ends it, or looks at what starting it did."""
    made = Running()
    yield made
    made.stop()


def test_it_says_where_it_listens_and_not_what_it_is(alone: Running) -> None:
    assert alone.port > 0
    response = httpx.get(alone.url)
    assert response.text == "here"
    assert "date" in response.headers
    assert "server" not in response.headers
    assert gc.get_freeze_count() > 0
    assert sys.getswitchinterval() == pytest.approx(server.SWITCH_S)


def test_an_endless_answer_ends_itself(alone: Running) -> None:
    with httpx.stream("GET", f"{alone.url}/endless", timeout=PATIENCE_S) as response:
        parts = response.iter_raw()
        found = next(parts)
        alone.stop()
        assert b"".join([found, *parts]) == b"begun,ended"
    assert gc.get_freeze_count() == 0


def flood(port: int, head: bytes, block: bytes, limit: int) -> tuple[int, bytes]:
    """Send blocks until the other side gives up; how much that was, and what it said."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        sent = 0
        said = b""
        with contextlib.suppress(ConnectionError):
            connection.sendall(head)
            while sent < limit:
                connection.sendall(block)
                sent += len(block)
        with contextlib.suppress(ConnectionError):
            said = connection.recv(1000)
        return sent, said


@pytest.mark.parametrize("framing", [b"Content-Length: 100000000", b"Transfer-Encoding: chunked"])
def test_a_huge_body_is_not_read(running: Running, framing: bytes) -> None:
    head = b"POST /things HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + framing + b"\r\n\r\n"
    block = b"10000\r\n" + b" " * 0x10000 + b"\r\n" if b"chunked" in framing else b" " * 0x10000
    sent, said = flood(running.port, head, block, 100_000_000)
    assert said.startswith(b"HTTP/1.1 413 ")
    assert sent < 50_000_000
    assert httpx.post(f"{running.url}/things", json=[1]).text == "1"


def test_a_slightly_too_large_body_gets_a_reply(running: Running) -> None:
    with httpx.Client(base_url=running.url) as client:
        refused = client.post("/things", content=b" " * 5_000_000, headers={"Content-Type": "application/json"})
        assert refused.status_code == 413
        assert client.post("/things", json=[1, 2]).text == "2"


@pytest.mark.parametrize("parser", ["fast", "slow"])
def test_headers_that_never_end_are_refused(monkeypatch: pytest.MonkeyPatch, parser: str) -> None:
    if parser == "slow":
        monkeypatch.setitem(sys.modules, "uvicorn.protocols.http.httptools_impl", None)
        monkeypatch.delitem(sys.modules, "meruit.api.http_protocol")
    running = Running()
    try:
        sent, said = flood(running.port, b"GET / HTTP/1.1\r\nHost: x\r\nA: ", b"x" * 50_000, 50_000_000)
        assert sent < 50_000_000
        assert said.startswith(b"HTTP/1.1 400 ")
        large = httpx.get(running.url, headers={"X-Large": "x" * (MAX_HEAD_BYTES // 2)})
        assert large.text == "here"
    finally:
        running.stop()


def test_invalid_http_is_refused_once(running: Running) -> None:
    _, said = flood(running.port, b"", b"\x16\x03" * 100_000, 200_000)
    assert said.startswith(b"HTTP/1.1 400 ")
    assert httpx.get(running.url).text == "here"


CHUNKED = b"POST /things HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
SHORT_S = 0.2


def connect(running: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)


def rest(connection: socket.socket) -> bytes:
    """What is said until the other side closes."""
    said = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(10_000):
            said += part
    return said


def hear(connection: socket.socket, end: bytes) -> bytes:
    said = b""
    while not said.endswith(end):
        part = connection.recv(10_000)
        assert part, said
        said += part
    return said


@pytest.mark.parametrize("block", [b"a: bbbb\r\n" * 1000, b"a: " + b"b" * 5000 + b"\r\n", b"a" * 5000])
def test_trailers_that_never_end_are_refused(running: Running, block: bytes) -> None:
    sent, said = flood(running.port, CHUNKED + b"2\r\n[]\r\n0\r\n", block, 20_000_000)
    assert sent < 20_000_000
    assert said.startswith(b"HTTP/1.1 400 ")
    assert httpx.post(f"{running.url}/things", json=[1]).text == "1"


def test_trailers_that_never_end_do_not_spoil_an_answer(running: Running) -> None:
    with connect(running) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n[]\r\n0\r\n")
        assert hear(connection, b"here").startswith(b"HTTP/1.1 200 ")
        with contextlib.suppress(ConnectionError):
            connection.sendall(b"a: bbbb\r\n" * 1000)
        assert rest(connection) == b""


def test_a_few_trailers_are_no_harm(running: Running) -> None:
    with connect(running) as connection:
        for _ in range(3):
            connection.sendall(CHUNKED + b"2\r\n[]\r\n0\r\n" + b"a: b\r\n" * 100 + b"\r\n")
            assert hear(connection, b"\r\n\r\n0").startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET / HTTP/1.1\r\n" + b"Host: x\r\n" + b"a: b\r\n" * (http_limits.MAX_HEADERS - 1), b"200"),
        (b"GET / HTTP/1.1\r\n" + b"Host: x\r\n" + b"a: b\r\n" * http_limits.MAX_HEADERS, b"400"),
        (b"GET / HTTP/1.1\r\nHost: x\r\na: " + b"b" * MAX_HEAD_BYTES + b"\r\n", b"400"),
        (b"GET /?" + b"b" * (MAX_HEAD_BYTES - 10) + b" HTTP/1.1\r\nHost: x\r\n", b"400"),
    ],
    ids=["as many as may be", "too many", "too large", "too long a line"],
)
def test_headers_are_bounded_even_where_they_come_at_once(running: Running, head: bytes, status: bytes) -> None:
    with connect(running) as connection:
        connection.sendall(head + b"Connection: close\r\n\r\n" if status == b"400" else head + b"\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 " + status)


def test_many_small_chunks_are_a_body(running: Running) -> None:
    with connect(running) as connection:
        connection.sendall(CHUNKED + b"1\r\n[\r\n" + b"1\r\n \r\n" * 50_000 + b"1\r\n]\r\n0\r\n\r\n")
        assert hear(connection, b"\r\n\r\n0").startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize(
    ("earlier", "begun"),
    [
        (0, b""), (0, b"\r\n"), (0, b"GET / HT"), (0, b"GET / HTTP/1.1\r\nHost: x\r\n"),
        (2, b"\r\n"), (2, b"GET / HT"), (2, b"GET / HTTP/1.1\r\nHost: x\r\n"),
    ],
)  # fmt: skip
def test_a_head_that_does_not_come_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, running: Running, begun: bytes, earlier: int
) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", SHORT_S)
    with connect(running) as connection:
        for _ in range(earlier):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            hear(connection, b"here")
        connection.sendall(begun)
        assert rest(connection) == b""


def test_a_head_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, running: Running) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", SHORT_S)
    with connect(running) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n")
        connection.settimeout(SHORT_S / 10)
        ended = False
        for _ in range(1000):
            try:
                ended = connection.recv(1) == b""
                break
            except TimeoutError:
                pass
            except ConnectionResetError:
                # It was ended with some of the head still unread.
                ended = True
                break
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                connection.sendall(b"a")
        assert ended


def test_idle_connections_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", SHORT_S)
    monkeypatch.setattr(server, "MAX_CONCURRENT", 5)
    running = Running()
    try:
        with contextlib.ExitStack() as stack:
            idle = [stack.enter_context(connect(running)) for _ in range(10)]
            assert [rest(one) for one in idle] == [b""] * 10
            assert httpx.get(running.url).text == "here"
    finally:
        running.stop()


@pytest.mark.parametrize("more", [b"", b"\r\n", b"GET / HTTP/1.1\r\nHost"])
def test_a_long_answer_is_not_cut(monkeypatch: pytest.MonkeyPatch, alone: Running, more: bytes) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", SHORT_S / 4)
    monkeypatch.setattr(http_limits, "BODY_S", SHORT_S / 4)
    with connect(alone) as connection:
        connection.sendall(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n")
        hear(connection, b"begun,\r\n")
        connection.sendall(more)
        connection.settimeout(SHORT_S)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(PATIENCE_S)
        alone.stopping.begin()
        assert b"ended" in rest(connection)


@pytest.mark.parametrize("begun", [CHUNKED, CHUNKED + b"5\r\n[", CHUNKED + b"2\r\n[]\r\n0\r\na: b\r\n"])
def test_a_body_that_stops_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, running: Running, begun: bytes) -> None:
    monkeypatch.setattr(http_limits, "BODY_S", SHORT_S)
    with connect(running) as connection:
        connection.sendall(begun)
        assert b"201" not in rest(connection)
    assert httpx.post(f"{running.url}/things", json=[1]).text == "1"


def test_a_body_that_goes_on_is_waited_for(monkeypatch: pytest.MonkeyPatch, running: Running) -> None:
    monkeypatch.setattr(http_limits, "HEAD_S", 1.0)
    monkeypatch.setattr(http_limits, "BODY_S", 1.0)
    with connect(running) as connection:
        connection.sendall(CHUNKED + b"1\r\n[\r\n")
        for _ in range(6):
            time.sleep(0.25)
            connection.sendall(b"1\r\n \r\n")
        connection.sendall(b"1\r\n]\r\n0\r\n\r\n")
        assert hear(connection, b"\r\n\r\n0").startswith(b"HTTP/1.1 201 ")


@pytest.mark.parametrize(("proxies", "trusted"), [((), False), (("127.0.0.1",), True)])
def test_only_a_trusted_proxy_names_the_callers_address(proxies: tuple[str, ...], trusted: bool) -> None:
    seen: Queue[str] = Queue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        seen.put(scope["client"][0])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    stopping = ShutdownSignal()
    urls: Queue[str] = Queue()
    thread = threading.Thread(
        target=lambda: run(app, "127.0.0.1", 0, ready=urls.put, stopping=stopping, trusted_proxies=proxies)
    )
    thread.start()
    httpx.get(urls.get(timeout=PATIENCE_S), headers={"X-Forwarded-For": "203.0.113.9"})
    stopping.begin()
    thread.join(PATIENCE_S)
    assert seen.get() == ("203.0.113.9" if trusted else "127.0.0.1")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_gracefully(number: signal.Signals) -> None:
    assert threading.current_thread() is threading.main_thread()
    earlier = signal.getsignal(number)
    answers: list[str] = []

    def use(url: str) -> None:
        answers.append(httpx.get(url).text)
        os.kill(os.getpid(), number)

    def ready(url: str) -> None:
        threading.Thread(target=use, args=(url,)).start()

    run(small_app(ShutdownSignal()), "127.0.0.1", 0, ready=ready)
    assert answers == ["here"]
    assert signal.getsignal(number) is earlier


STUBBORN = """
    import asyncio, sys
    from meruit.web.app import WebApp
    from meruit.web.routing import get
    from meruit.api.server import run

    @get("/")
    async def stubborn() -> None:
        print("asked", flush=True)
        while True:
            try:
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                pass

    run(WebApp([stubborn]), "127.0.0.1", 0, ready=lambda url: print(url, flush=True))
"""


def test_a_second_signal_ends_it_at_once() -> None:
    command = [sys.executable, "-c", textwrap.dedent(STUBBORN)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=PATIENCE_S) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert process.stdout.readline() == "asked\n"
            process.send_signal(signal.SIGTERM)
            # It still waits for the answer, however long that takes within the grace.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.5)
            process.send_signal(signal.SIGTERM)
            # Sooner than the answer comes.
            assert process.wait(PATIENCE_S) == -signal.SIGTERM


def test_the_second_signal_is_left_to_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[Any] = []
    monkeypatch.setattr(signal, "signal", lambda *call: done.append(call))
    monkeypatch.setattr(signal, "raise_signal", done.append)
    told = server._ApiServer(
        uvicorn.Config(small_app(ShutdownSignal()), log_config=None), ShutdownSignal(), lambda: None
    )
    told.handle_exit(signal.SIGTERM, None)
    assert done == []
    told.handle_exit(signal.SIGTERM, None)
    assert done == [(signal.SIGTERM, signal.SIG_DFL), signal.SIGTERM]


def test_a_service_that_cannot_start_says_so() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def failing(_: WebApp) -> AsyncIterator[None]:
        if seen:
            yield
        raise OSError("no disk")

    with pytest.raises(ServerFailed):
        run(WebApp([], lifespan=[failing]), "127.0.0.1", 0, ready=print, log_level="error")


def refusal(host: str, port: int) -> str:
    with pytest.raises(PortUnavailable) as refused:
        run(small_app(ShutdownSignal()), host, port, ready=print)
    return str(refused.value)


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        said = refusal("127.0.0.1", port)
    assert f"port {port} on 127.0.0.1" in said
    assert "--port" in said


def test_what_cannot_be_listened_on_is_named() -> None:
    assert "192.0.2.1" in refusal("192.0.2.1", 0)
    assert "port 70000" in refusal("127.0.0.1", 70_000)
    assert "more rights" in server._explain_listen_error("127.0.0.1", 80, PermissionError(errno.EACCES, "denied"))


def test_the_url_of_an_ipv6_host_has_brackets() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert server.url_of("::1", listener) == server.url_of("[::1]", listener) == f"http://[::1]:{port}"
        assert server.url_of("localhost", listener) == f"http://localhost:{port}"


def test_stopping_is_heard_from_any_thread() -> None:
    stopping = ShutdownSignal()
    assert not stopping.is_set()

    async def waiting() -> None:
        threading.Timer(0.01, stopping.begin).start()
        await asyncio.gather(stopping.wait(), stopping.wait())
        await stopping.wait()

    asyncio.run(asyncio.wait_for(waiting(), PATIENCE_S))
    assert stopping.is_set()
    # Its loop is closed now; that is no error.
    stopping.begin()


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("[::1]", True), ("localhost", True),
        ("LOCALHOST", True), ("0.0.0.0", False), ("::", False), ("192.168.0.1", False), ("example.com", False),
        ("localhost.example.com", False), ("", False),
    ],
)  # fmt: skip
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
