"""Serves many playgrounds at once, each to the clients that have its secret."""

import asyncio
import base64
import contextlib
import errno
import fcntl
import hmac
import ipaddress
import json
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote, urlsplit
from uuid import UUID

import msgspec

from meruit.errors import AlreadyServed, MeruitError, TooManyPlaygrounds, UnknownPlayground, Unreachable
from meruit.model.environment import EnvironmentState
from meruit.model.record import Record
from meruit.model.time import to_micros
from meruit.playground.asgi import Application, Receive, Scope, Send, headers_of
from meruit.playground.descriptors import plan_descriptors, raise_descriptor_limit
from meruit.playground.seed import Seed, apply_seed
from meruit.playground.state import QUOTA_BYTES, START, Clock, PlaygroundState, utc_now
from meruit.web.fair_threads import CALLER

if TYPE_CHECKING:
    from meruit.playground.mllp import MllpListener
    from meruit.playground.sftp import SftpServer

PREFIX = "/playgrounds"
"""The path of the systems that speak HTTP."""
BACKLOG = 200
"""Connections that wait to be accepted."""
GRACE_S = 5
"""How long running requests may take when a host ends."""
MAX_CONNECTIONS = 256
"""Connections over HTTP at once; a request on one more gets 503."""
REQUEST_S = 60
"""A connection over HTTP without a new request for this time, at most twice this time, is closed."""
SNAPSHOT_WAIT_S = 30
"""How long to wait for a playground that is in use before it counts as unreadable."""
LEFT_S = 3600
"""How old an unfinished folder is before no process can still be making it."""
FOLDER = "playgrounds"
"""The folder of playgrounds in a data folder; those of a benchmark run have a folder of their own there."""
FILE = "state.db"
LOCK = "lock"
ID = "pg_[0-9a-f]{24}"
"""The pattern of an id; later ones sort later."""
HOST_KEY = "sftp_host_key"
PORTAL = "portal"
"""The system whose visitors log in on a page."""
UNKNOWN_PLAYGROUND = "unknown playground"
"""Where callers share threads: all who ask for a playground that is not served."""
_SCOPE_KEYS = (
    *("type", "asgi", "http_version", "method", "scheme", "query_string"),
    *("headers", "client", "server", "extensions"),
)
"""What of a request the systems get; the rest belongs to the application around them."""
_UNAUTHORIZED = "send `Authorization: Bearer` and the playground's secret"

_T = TypeVar("_T")


def new_id(clock: Clock, entropy: Callable[[int], bytes]) -> str:
    """Make a new id."""
    return f"pg_{to_micros(clock()):014x}{entropy(5).hex()}"


def new_secret(entropy: Callable[[int], bytes]) -> str:
    """Make a new secret."""
    return base64.urlsafe_b64encode(entropy(24)).decode()


_locks: set[int] = set()


def _close_locks() -> None:
    """Close the locks in a forked child: it would keep the lock of a host that has ended."""
    for descriptor in _locks:
        os.close(descriptor)
    _locks.clear()


os.register_at_fork(after_in_child=_close_locks)


@contextlib.contextmanager
def lock_directory(directory: Path) -> Iterator[None]:
    """Lock the playgrounds of a directory for this process; two hosts would take each other's ports.

    Raises AlreadyServed while another process has the lock.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    _locks.add(descriptor)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyServed(f"another process serves the playgrounds in {directory}; end that one first") from None
        yield
    finally:
        # A forked child has closed it already.
        if descriptor in _locks:
            _locks.discard(descriptor)
            os.close(descriptor)


@contextlib.contextmanager
def staging_file(directory: Path, playground_id: str) -> Iterator[Path]:
    """Yield the path for a new playground's file, under another name, so that an unfinished one is never served."""
    unfinished = directory / f".{playground_id}"
    unfinished.mkdir(mode=0o700)
    try:
        yield unfinished / FILE
        unfinished.rename(directory / playground_id)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


class Endpoints(Record, frozen=True):
    """The addresses of the systems of one playground."""

    fhir: str
    portal: str | None
    """A page to log in on, as `clerk` with the playground's secret."""
    x12: str
    call: str
    fax: str
    inbox: str
    cds: str
    events: str
    mllp: str
    """Host and port."""
    sftp: str | None
    """Host and port; the user is the playground's id, the password its secret."""
    trouble: str | None = None
    """Why a system is missing, if one is."""
    mllp_secret_in: str | None = None
    """The field of a connection's first message that must have the secret: `MSH-8`; null where none is needed."""


class Playground(Record, frozen=True):
    """One playground, as an agent needs to know it."""

    id: str
    secret: str
    """The bearer token of the systems over HTTP, and the password of `clerk` in the portal and of SFTP."""
    endpoints: Endpoints


class _OpenPlayground(msgspec.Struct, frozen=True):
    """A playground that is served."""

    state: PlaygroundState
    secret: str
    mllp: "MllpListener"


class Host:
    """An async context manager that serves every playground in a directory, those of earlier hosts included."""

    def __init__(
        self,
        directory: Path,
        *,
        clock: Clock = utc_now,
        entropy: Callable[[int], bytes] = os.urandom,
        bind: str = "127.0.0.1",
        sftp_port: int = 0,
        quota_bytes: int = QUOTA_BYTES,
        is_shared: bool = False,
    ) -> None:
        """`quota_bytes` is how much each playground may take, those of earlier hosts included.

        Where several parties use the host (`is_shared`) or other machines reach it, MLLP asks for the secret.
        """
        self.directory = directory
        self.bind = bind
        self.public_url = ""
        """The address of `app`, as `http://127.0.0.1:8000`; set by `serve_http` or by the mounting application."""
        self._clock = clock
        self._entropy = entropy
        self._sftp_port = sftp_port
        self._quota_bytes = quota_bytes
        self.needs_secret = is_shared or not _is_loopback(bind)
        """Whether MLLP asks for the secret."""
        self._served: dict[str, _OpenPlayground] = {}
        self._recent: dict[str, None] = {}
        """Ids of playgrounds whose files may be open, the least recently used first."""
        self._systems: dict[str, Application] = {}
        self._sftp: SftpServer | None = None
        self._descriptor_limit = 0
        self._making = 0
        """How many playgrounds are being made."""
        self._missing: list[str] = []
        """What each system that is not served needs."""
        self._ending = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start serving."""
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._descriptor_limit = raise_descriptor_limit()
        async with contextlib.AsyncExitStack() as beginning:
            beginning.push_async_callback(self._close)
            await asyncio.to_thread(self._remove_leftovers)
            earlier = sorted(self.directory.glob(f"pg_*/{FILE}"))
            self._check_capacity(len(earlier))
            self._systems = self._make_systems()
            await self._serve_sftp()
            for found in earlier:
                await self._serve(found.parent.name)
            self._ending = beginning.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop serving; the playgrounds stay in their directory."""
        await self._ending.aclose()

    async def create(self, seed: Seed | None = None, *, task: str | None = None) -> Playground:
        """Create a playground from a seed; its checkpoint `start` has that state.

        `task` is stored in its settings.
        """
        secret = new_secret(self._entropy)

        def make(path: Path) -> None:
            settings = {"secret": secret, "quota_bytes": self._quota_bytes, "task": task}
            state = PlaygroundState.create(path, clock=self._clock, settings=settings)
            with contextlib.closing(state):
                if seed is not None:
                    apply_seed(state, seed)
                state.checkpoint(START)

        return await self._make(make)

    async def branch(self, playground_id: str) -> Playground:
        """Create a copy of a playground with a secret of its own."""
        state, secret = self._require(playground_id).state, new_secret(self._entropy)

        def make(path: Path) -> None:
            state.branch(path, secret=secret, mllp_port=None, task=None).close()

        return await self._make(make)

    def find(self, playground_id: str) -> Playground | None:
        """Return the playground of an id, if there is one."""
        served = self._served.get(playground_id)
        return self._describe(playground_id, served) if served is not None else None

    def listing(self) -> list[Playground]:
        """List every playground, oldest first."""
        return [self._describe(playground_id, served) for playground_id, served in sorted(self._served.items())]

    def state_of(self, playground_id: str) -> PlaygroundState | None:
        """Return the state of a playground, if there is one of that id."""
        served = self._served.get(playground_id)
        if served is None:
            return None
        self._recent.pop(playground_id, None)
        self._recent[playground_id] = None
        if len(self._recent) > plan_descriptors(self._descriptor_limit).open_states:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            if oldest in self._served:
                self._served[oldest].state.release_if_idle()
        return served.state

    async def checkpoint(self, playground_id: str, name: str) -> None:
        """Save the state of a playground under a name."""
        await asyncio.to_thread(self._require(playground_id).state.checkpoint, name)

    async def reset(self, playground_id: str, name: str = START) -> None:
        """Restore the state of a checkpoint."""
        await asyncio.to_thread(self._require(playground_id).state.reset, name)

    async def snapshots(self, playground_id: str) -> EnvironmentState:
        """Read everything that a playground holds, at one moment."""
        reading = asyncio.to_thread(self._require(playground_id).state.snapshots)
        try:
            return await asyncio.wait_for(reading, SNAPSHOT_WAIT_S)
        except TimeoutError:
            raise Unreachable(f"the playground {playground_id} has been in use for {SNAPSHOT_WAIT_S} seconds") from None

    async def remove(self, playground_id: str) -> None:
        """Remove a playground and everything in it."""
        served = self._require(playground_id)
        del self._served[playground_id]
        self._recent.pop(playground_id, None)
        await _close_server(served.mllp)
        served.state.close()
        await asyncio.to_thread(shutil.rmtree, self.directory / playground_id)

    async def serve_http(self, port: int = 0) -> str:
        """Listen for HTTP until the host ends; returns the URL. Port 0 is any free one."""
        import uvicorn
        from uvicorn.protocols.http.h11_impl import H11Protocol

        class Server(uvicorn.Server):
            """Leaves signals to the owner of the loop."""

            @contextlib.contextmanager
            def capture_signals(self) -> Iterator[None]:
                yield

        class Connection(H11Protocol):
            """Closes a connection whose client is silent or too slow."""

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as its base
                super().connection_made(transport)
                self._watch = self.loop.call_later(REQUEST_S, self._close_if_idle, None)

            def connection_lost(self, exc: Exception | None) -> None:
                self._watch.cancel()
                super().connection_lost(exc)

            def _close_if_idle(self, last: object) -> None:
                if self.cycle is last:
                    self.transport.abort()
                else:
                    self._watch = self.loop.call_later(REQUEST_S, self._close_if_idle, self.cycle)

        listener = _listener(self.bind, port)
        config = uvicorn.Config(
            self.app,
            interface="asgi3",
            lifespan="off",
            http=Connection,
            ws="none",
            limit_concurrency=MAX_CONNECTIONS,
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S,
        )
        server = Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))

        async def stop() -> None:
            server.should_exit = True
            await task
            listener.close()

        self._ending.push_async_callback(stop)
        self.public_url = f"http://{_bracket_ipv6(self.bind)}:{listener.getsockname()[1]}"
        return self.public_url

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve every system that speaks HTTP, as one ASGI application; it may be mounted at `/playgrounds`."""
        if scope["type"] != "http":
            return
        path = str(scope["path"]).removeprefix(PREFIX)
        _, playground_id, system, *_ = (*path.split("/"), "", "")
        if system not in self._systems:
            known = ", ".join(self._systems)
            await _refuse(send, 404, f"a playground's systems are {known}, under {PREFIX}/{{id}}/")
        elif system != PORTAL and not self._is_authorized(playground_id, headers_of(scope).get("authorization", "")):
            await (_refuse_fhir if system == "fhir" else _refuse)(send, 401, _UNAUTHORIZED)
        else:
            # The portal has its own sign-in, so anyone may send any id: unknown ones share one place.
            CALLER.set(playground_id if playground_id in self._served else UNKNOWN_PLAYGROUND)
            inner = {name: scope[name] for name in _SCOPE_KEYS if name in scope}
            inner |= {"path": path, "raw_path": quote(path).encode(), "state": {}}
            inner["root_path"] = scope.get("root_path", "").removesuffix(PREFIX) + PREFIX
            await self._systems[system](inner, receive, send)

    def _is_authorized(self, playground_id: str, authorization: str) -> bool:
        """Return whether a request has the secret; an unknown playground takes as long as a wrong secret."""
        served = self._served.get(playground_id)
        scheme, _, given = authorization.partition(" ")
        secret = served.secret if served is not None else ""
        equal = hmac.compare_digest(given.strip().encode("latin-1", "replace"), secret.encode())
        return equal and served is not None and scheme.lower() == "bearer"

    def _make_systems(self) -> dict[str, Application]:
        # They import a web framework, which readers of a state do not need.
        from meruit.playground import cds, events, fax, inbox
        from meruit.playground import phone_call as call
        from meruit.playground.fhir import app as fhir
        from meruit.playground.portal import app as portal
        from meruit.playground.x12 import app as x12

        def base(playground_id: str) -> str:
            return f"{self.public_url}{PREFIX}/{playground_id}/fhir"

        def new_resource_id() -> str:
            return str(UUID(bytes=self._entropy(16), version=4))

        systems: dict[str, Application] = {
            "fhir": fhir.app(self.state_of, base=base, new_id=new_resource_id),
            "x12": x12.app(self.state_of),
            "call": call.app(self.state_of),
            "fax": fax.app(self.state_of),
            "inbox": inbox.app(self.state_of),
            "cds": cds.app(self.state_of, new_id=new_resource_id),
            "events": events.app(self.state_of),
        }
        try:
            systems[PORTAL] = portal.app(self.state_of)
        except MeruitError as problem:
            # Without its library, a playground has all its other systems.
            self._missing.append(str(problem))
        return systems

    async def _serve_sftp(self) -> None:
        from meruit.playground import sftp

        try:
            self._sftp = await sftp.serve(self.state_of, self.bind, self._sftp_port, self.directory / HOST_KEY)
        except MeruitError as problem:
            self._missing.append(str(problem))

    def _remove_leftovers(self) -> None:
        """Remove what killed processes left unfinished; another process may still be making a recent one."""
        young = self._clock().timestamp() - LEFT_S
        for left in [*self.directory.glob(".pg_*"), *self.directory.glob(f"pg_*/.{FILE}.*")]:
            with contextlib.suppress(FileNotFoundError):
                if left.stat().st_mtime < young:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()

    async def _make(self, make: Callable[[Path], None]) -> Playground:
        self._check_capacity(len(self._served) + self._making + 1)
        playground_id = new_id(self._clock, self._entropy)
        self._making += 1
        try:
            with staging_file(self.directory, playground_id) as path:
                await _finish_despite_cancel(asyncio.to_thread(make, path))
            await self._serve(playground_id)
        except BaseException:
            shutil.rmtree(self.directory / playground_id, ignore_errors=True)
            raise
        finally:
            self._making -= 1
        return self._describe(playground_id, self._require(playground_id))

    async def _serve(self, playground_id: str) -> None:
        from meruit.playground import mllp

        state = PlaygroundState(self.directory / playground_id / FILE, clock=self._clock)
        try:
            settings = state.settings()
            listen = partial(mllp.listen, state, self.bind, secret=settings["secret"], needs_secret=self.needs_secret)
            try:
                listener = await listen(settings.get("mllp_port") or 0, self._clock)
            except OSError as problem:
                if problem.errno != errno.EADDRINUSE:
                    raise
                # Another program has the port that it had before.
                listener = await listen(0, self._clock)
        except BaseException:
            state.close()
            raise
        ours = {"mllp_port": listener.port, "quota_bytes": self._quota_bytes}
        if not ours.items() <= settings.items():
            state.set(**ours)
        self._served[playground_id] = _OpenPlayground(state=state, secret=settings["secret"], mllp=listener)
        self.state_of(playground_id)

    def _check_capacity(self, count: int) -> None:
        """Raise TooManyPlaygrounds unless so many can be served at once."""
        most = plan_descriptors(self._descriptor_limit).playgrounds
        if count > most:
            raise TooManyPlaygrounds(
                f"this host can serve {most:,} playgrounds with a limit of {self._descriptor_limit:,} open files, "
                f"not {count:,}; remove some, or raise the limit (`ulimit -n`)"
            )

    def _require(self, playground_id: str) -> _OpenPlayground:
        if playground_id not in self._served:
            raise UnknownPlayground(f"no playground is named {playground_id[:80]!r}")
        return self._served[playground_id]

    def _describe(self, playground_id: str, served: _OpenPlayground) -> Playground:
        from meruit.playground.mllp import SECURITY

        name = urlsplit(self.public_url).hostname or self.bind
        root = f"{self.public_url}{PREFIX}/{playground_id}"
        return Playground(
            playground_id,
            served.secret,
            Endpoints(
                fhir=f"{root}/fhir",
                portal=f"{root}/{PORTAL}" if PORTAL in self._systems else None,
                x12=f"{root}/x12",
                call=f"{root}/call",
                fax=f"{root}/fax",
                inbox=f"{root}/inbox",
                cds=f"{root}/cds",
                events=f"{root}/events",
                mllp=f"{_bracket_ipv6(name)}:{served.mllp.port}",
                sftp=f"{_bracket_ipv6(name)}:{self._sftp.port}" if self._sftp is not None else None,
                trouble="; ".join(self._missing) or None,
                mllp_secret_in=SECURITY if served.mllp.needs_secret else None,
            ),
        )

    async def _close(self) -> None:
        if self._sftp is not None:
            await _close_server(self._sftp)
            self._sftp = None
        for served in self._served.values():
            await _close_server(served.mllp)
            served.state.close()
        self._served.clear()
        self._recent.clear()


def _is_loopback(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return bind == "localhost"


async def _close_server(server: "MllpListener | SftpServer") -> None:
    server.close()
    await server.wait_closed()


async def _finish_despite_cancel(work: Coroutine[Any, Any, _T]) -> _T:
    """Return its result; a cancelled caller waits until the thread has ended, so that it can clean up."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _listener(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        # On Windows this would let two servers share a port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, os.name == "posix")
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as problem:
        listener.close()
        raise MeruitError(
            f"cannot listen on {host}, port {port}: {problem.strerror}; choose another (0 for any free)"
        ) from None
    return listener


def _bracket_ipv6(host: str) -> str:
    return f"[{host}]" if ":" in host else host


async def _refuse(send: Send, status: int, detail: str) -> None:
    title = HTTPStatus(status).phrase
    body = json.dumps({"type": "about:blank", "title": title, "status": status, "detail": detail}).encode()
    await _say(send, status, b"application/problem+json", body)


async def _refuse_fhir(send: Send, status: int, detail: str) -> None:
    from meruit.playground.fhir.json import write
    from meruit.playground.fhir.resources import outcome

    await _say(send, status, b"application/fhir+json", write(outcome("error", "login", detail)))


async def _say(send: Send, status: int, media_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", media_type), (b"content-length", str(len(body)).encode())]
    if status == HTTPStatus.UNAUTHORIZED:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
