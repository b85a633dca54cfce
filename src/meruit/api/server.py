"""The server process: one uvicorn, which finishes open replies before it ends."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from meruit.api.bodies.gc import freeze_gc
from meruit.api.http_limits import KEEP_ALIVE_S, MAX_HEAD_BYTES
from meruit.api.logging import Level
from meruit.errors import PortUnavailable, ServerFailed

GRACE_S = 10
"""Longest time for open replies after a shutdown began."""
MAX_CONCURRENT = 1024
"""Most connections and requests at once; further ones get 503."""
MAX_WAITING = 2048
"""Most connections that wait to be accepted."""
SWITCH_S = 0.0005
"""How long a busy thread may run while another waits: with Python's 5 ms, ten changes of threads take 50 ms."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class ShutdownSignal:
    """Signals that the service is shutting down, so that event streams end."""

    def __init__(self) -> None:
        self._begun = False
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Begin the shutdown; may be called from any thread, or from a signal handler."""
        self._begun = True
        # A closed loop runs no callbacks.
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)

    def is_set(self) -> bool:
        """Whether the shutdown began."""
        return self._begun

    async def wait(self) -> None:
        """Return as soon as the shutdown begins."""
        self._loop = asyncio.get_running_loop()
        if not self._begun:
            await self._event.wait()


class _ApiServer(uvicorn.Server):
    """Uvicorn that stops on a ShutdownSignal or a signal; a second signal ends the process at once."""

    def __init__(self, config: uvicorn.Config, stopping: ShutdownSignal, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._stopping = stopping
        self._on_started = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()

    async def on_tick(self, counter: int) -> bool:
        return await super().on_tick(counter) or self._stopping.is_set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stopping.begin()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving. Unlike in uvicorn, a requested stop is not a failure."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        earlier = {number: signal.signal(number, self.handle_exit) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of signal handlers
        if self._stopping.is_set():
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        self._stopping.begin()


@contextlib.contextmanager
def _switch_threads_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run(  # noqa: PLR0913 - one per setting
    app: ASGIApp,
    host: str,
    port: int,
    *,
    ready: Callable[[str], None],
    log_level: Level = "info",
    stopping: ShutdownSignal | None = None,
    listener: socket.socket | None = None,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve until a signal or `stopping`. Calls `ready` with the URL; raises ServerFailed when it cannot start."""
    listener = bind_port(host, port) if listener is None else listener
    listener.listen(MAX_WAITING)
    url = url_of(host, listener)
    config = uvicorn.Config(
        app,
        http=_choose_protocol(trusted_proxies),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level=log_level,
        access_log=False,
        server_header=False,
        workers=1,
        # Otherwise a client on this machine could choose the address that its failed attempts count for.
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=list(trusted_proxies),
        limit_concurrency=MAX_CONCURRENT,
        backlog=MAX_WAITING,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
    )
    with contextlib.ExitStack() as meanwhile:

        def on_startup() -> None:
            # Objects that exist now stay until the end.
            meanwhile.enter_context(freeze_gc())
            meanwhile.enter_context(_switch_threads_often())
            ready(url)

        try:
            _ApiServer(config, stopping or ShutdownSignal(), on_startup).run(sockets=[listener])
        except SystemExit:
            raise ServerFailed("the service could not start; the log above says why") from None
        finally:
            listener.close()


@lru_cache(maxsize=1024)
def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def bind_port(host: str, port: int) -> socket.socket:
    """Bind the port without accepting connections; raises PortUnavailable when that fails."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # On Windows this would let two servers share a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        listener.bind((host.strip("[]"), port))
    except (OSError, OverflowError, UnicodeError) as problem:
        listener.close()
        raise PortUnavailable(_explain_listen_error(host, port, problem)) from None
    return listener


def _explain_listen_error(host: str, port: int, problem: Exception) -> str:
    """Explain why the port cannot be used, and what to do."""
    match getattr(problem, "errno", None):
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use; stop what uses it or choose another with --port (0 for any free)"
        case errno.EACCES:
            return f"port {port} on {host} needs more rights; choose one above 1023 with --port"
        case _:
            reason = getattr(problem, "strerror", None) or problem
            return f"cannot listen on {host}, port {port}: {reason}; choose others with --host and --port"


def url_of(host: str, listener: socket.socket) -> str:
    """The URL of a bound port."""
    name = f"[{host.strip('[]')}]" if ":" in host else host
    return f"http://{name}:{listener.getsockname()[1]}"


# Any: uvicorn takes the class of a protocol, or its name.
def _choose_protocol(trusted_proxies: Sequence[str] = ()) -> Any:
    """Choose the fast parser where it is installed, with the limits on headers that only the slow one has."""
    try:
        from meruit.api.http_protocol import LimitedHttpProtocol
    except ImportError:
        return "h11"
    # Many clients share the address of a proxy.
    return type("ServiceHttpProtocol", (LimitedHttpProtocol,), {"proxies": frozenset(trusted_proxies)})
