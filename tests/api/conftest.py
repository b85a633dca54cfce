"""The whole service in a test: on a store of its own, asked without a socket."""

import asyncio
import atexit
import shutil
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import cache, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from sqlalchemy import func, select

from meruit.api.app import PageRoutes, assemble_service, build_app
from meruit.api.playground_host import PlaygroundHosting
from meruit.api.processes.inheritance import WorkerProcess
from meruit.api.server import ShutdownSignal
from meruit.app import build_engine
from meruit.config import BenchmarkSettings, ServiceSettings, Settings
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.model.environment import SourceKind
from meruit.model.task import TaskSource
from meruit.store import tables
from meruit.store.access.keys import NewKey
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.verify.engine import VerificationEngine

PATIENCE_S = 60.0
PROBLEM = "urn:meruit:problem:"
"""The prefix of the type of every problem."""
HERE = ("127.0.0.1", 1)
"""The address that requests come from unless a test says otherwise."""
ROUGE = {"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5}
CRITERIA: dict[str, Any] = {"criteria": [ROUGE]}
WORK: dict[str, Any] = {"input": {"reference": "the cat sat"}, "output": {"text": "the cat sat"}}


@cache
def unsteady() -> Path:
    """A system that tasks read, of this process alone, and that `out_of_reach` takes away."""
    folder = Path(tempfile.mkdtemp(prefix="meruit-unsteady-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def unsteady_sources() -> BenchmarkSettings:
    """What a service of these tests may read."""
    return BenchmarkSettings(sources={"down": TaskSource(kind=SourceKind.FILES, at=str(unsteady()))})


@contextmanager
def out_of_reach() -> Iterator[None]:
    """While this lasts, the system cannot be read; before a run starts it must be."""
    away = unsteady().rename(unsteady().with_suffix(".away"))
    try:
        yield
    finally:
        away.rename(unsteady())


HOUSEKEEPING = {"cursors", "leases", "checkpoints", "key_use"}
# One question for all tables: it is asked before and after every request that must leave nothing.
COUNTS = select(
    *(
        select(func.count()).select_from(table).scalar_subquery().label(name)
        for name, table in tables.metadata.tables.items()
        if name not in HOUSEKEEPING
    )
)

OPEN: "list[Deployment]" = []
"""Services that are not closed."""
_numbers = count(1)
T = TypeVar("T")


class Deployment:
    """A service that lives in a thread of its own, from its start to its end."""

    def __init__(
        self,
        location: Location,
        engine: VerificationEngine,
        settings: Settings | None = None,
        surroundings: ClockAndEntropy = ClockAndEntropy(),  # noqa: B008 - frozen
        *,
        living: bool = True,
        hosting: Callable[[Store], PlaygroundHosting] | None = None,
        pages: Callable[[Store], PageRoutes] | None = None,
        process: WorkerProcess | None = None,
    ) -> None:
        """With `living` false it is left to a server to begin and end its life."""
        self.store = Store.open(location, surroundings)
        hosted = None if hosting is None else hosting(self.store)
        self.service = assemble_service(engine, settings or Settings(), self.store, ShutdownSignal(), hosted, process)
        # Any: httpx and Starlette write the type of one and the same ASGI app in two ways.
        self.app: Any = build_app(self.service, None if pages is None else pages(self.store))
        OPEN.append(self)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="deployment", daemon=True)
        self._thread.start()
        self._told: asyncio.Queue[str] = asyncio.Queue()
        self._heard: asyncio.Queue[str] = asyncio.Queue()
        self._living = asyncio.run_coroutine_threadsafe(self._live(), self._loop) if living else None
        if living:
            assert self.tell("lifespan.startup") == "lifespan.startup.complete"

    async def _live(self) -> None:
        async def receive() -> Any:
            return {"type": await self._told.get()}

        async def send(message: Any) -> None:
            await self._heard.put(message["type"])

        # Any: the scope of a lifespan is a dict of many optional members.
        scope: Any = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
        await self.app(scope, receive, send)

    def tell(self, what: str) -> str:
        """Send the app a message of its lifespan; what it says to it."""

        async def told() -> str:
            await self._told.put(what)
            return await self._heard.get()

        return self.run(told())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something in the service's own loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def ask(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        client: tuple[str, int] = HERE,
        headers: Any = None,
        **options: Any,
    ) -> httpx.Response:
        """One request and its whole answer; nothing but a reply comes out of the app."""
        return self.run(self.asked(method, path, key=key, client=client, headers=headers, **options))

    async def asked(
        self,
        method: str,
        path: str,
        *,
        key: str | None = None,
        client: tuple[str, int] = HERE,
        headers: Any = None,
        **options: Any,
    ) -> httpx.Response:
        """The same inside the service's loop."""
        sent = httpx.Headers(headers)
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        request = httpx.Request(method, _url(path), headers=sent, **options)
        # Without a client of httpx, which takes twice as long for a request as the service does.
        reply = await httpx.ASGITransport(app=self.app, client=client).handle_async_request(request)
        await reply.aread()
        reply.request = request
        return reply

    def follow(
        self,
        path: str,
        enough: Callable[[bytes], bool],
        *,
        key: str | None = None,
        headers: Any = None,
        client: tuple[str, int] | None = HERE,
    ) -> httpx.Response:
        """An answer that may never end, up to where it is enough; the caller leaves then."""
        return self.run(self.followed(path, enough, key=key, headers=headers, client=client))

    async def followed(
        self,
        path: str,
        enough: Callable[[bytes], bool],
        *,
        key: str | None = None,
        headers: Any = None,
        client: tuple[str, int] | None = HERE,
    ) -> httpx.Response:
        """The same inside the service's loop."""
        sent = httpx.Headers({"host": "127.0.0.1", **(headers or {})})
        if key is not None:
            sent["authorization"] = f"Bearer {key}"
        url = _url(path)
        left, begun, body = asyncio.Event(), list[Any](), bytearray()
        asking = asyncio.Queue[Any]()
        await asking.put({"type": "http.request", "body": b"", "more_body": False})

        async def receive() -> Any:
            if not asking.empty():
                return await asking.get()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                begun.append(message)
            else:
                body.extend(message.get("body", b""))
                if enough(bytes(body)):
                    left.set()

        # Any: the scope of a request is a dict of many members.
        scope: Any = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": url.path,
            "raw_path": url.raw_path.split(b"?")[0],
            "query_string": url.query,
            "root_path": "",
            "headers": [(name.lower(), value) for name, value in sent.raw],
            "server": ("127.0.0.1", 80),
            "client": client,
        }
        await self.app(scope, receive, send)
        return httpx.Response(begun[0]["status"], headers=begun[0]["headers"], content=bytes(body))

    def key(
        self,
        role: Role = Role.ADMIN,
        tenant: str = DEFAULT_TENANT,
        *,
        agent_id: str | None = None,
        name: str = "test",
        expires_at: datetime | None = None,
    ) -> str:
        """A new key's secret."""
        if role is Role.AGENT and agent_id is None:
            agent_id = "robot"
        wish = NewKey(tenant, role, name, agent_id, expires_at, self.store.surroundings.entropy)
        made = self.store.recorder.write(wish)
        self.service.authenticator.clear_cache()
        return made.secret

    def rows(self) -> dict[str, int]:
        """How many rows each table has, but those that the service's own housekeeping writes."""
        with self.store.database.reading() as connection:
            return {**connection.execute(COUNTS).mappings().one()}

    def playgrounds(self) -> set[str]:
        """The ids of the playgrounds that it serves."""
        return set(self.service.hosting._owned)

    def close(self) -> None:
        """End the service as a server would, then the store."""
        OPEN.remove(self)
        if self._living is not None:
            assert self.tell("lifespan.shutdown") == "lifespan.shutdown.complete"
            self._living.result(PATIENCE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        self.store.close()


@lru_cache(maxsize=256)
def _url(path: str) -> httpx.URL:
    """Where a path of the service is; what is a whole URL stays one."""
    return httpx.URL(f"http://127.0.0.1{path}" if path.startswith("/") else path)


Deploy = Callable[..., Deployment]


@pytest.fixture(autouse=True)
def _discard_playgrounds() -> Iterator[None]:
    """Discard the playgrounds that a test added to a shared service; those of module fixtures stay."""
    before = [(made, made.playgrounds()) for made in OPEN]
    yield
    for made, known in before:
        if made in OPEN:
            for added in made.playgrounds() - known:
                made.run(made.service.hosting.discard(added))


# Any: replies of httpx, and of the client of Starlette.
def code_of(reply: Any) -> str:
    """The code of the problem that a reply is about."""
    kind: str = reply.json()["type"]
    return kind.removeprefix(PROBLEM)


def settings_with(**service: Any) -> Settings:
    """The usual settings, with some of the service's."""
    return Settings(service=ServiceSettings(**service))


def new_tenant() -> str:
    """A tenant that nobody else has."""
    return f"tenant-{next(_numbers)}"


@pytest.fixture(scope="session")
def engine() -> Iterator[VerificationEngine]:
    """One engine for all; whether its sandbox is secure is tested elsewhere."""
    made = build_engine(Settings())
    yield made
    sandboxes = made.catalogue.sandboxes
    for sandbox in (*sandboxes._made.values(), *sandboxes._alone.values()):
        sandbox.close()


@pytest.fixture
def deploy(engine: VerificationEngine, tmp_path: Path) -> Iterator[Deploy]:
    """Makes services on a store of this test's own; a second call is a second process on the same records."""
    made: list[Deployment] = []

    def another(
        location: Location | None = None, *, using: VerificationEngine | None = None, **more: Any
    ) -> Deployment:
        made.append(Deployment(location or Location(tmp_path / "data"), using or engine, **more))
        return made[-1]

    yield another
    for one in made:
        if not one._loop.is_closed():
            one.close()


@pytest.fixture(scope="session")
def deployment(engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A service with keys, shared by the tests of one worker: each takes a tenant of its own."""
    made = Deployment(
        Location(tmp_path_factory.mktemp("shared") / "data"), engine, Settings(benchmarks=unsteady_sources())
    )
    made.key(tenant="whoever-came-first")
    yield made
    made.close()


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def either(
    request: pytest.FixtureRequest, engine: VerificationEngine, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """The same, once for each kind of database."""
    if request.param == "sqlite":
        yield request.getfixturevalue("deployment")
        return
    url = request.getfixturevalue("new_postgres")()
    made = Deployment(
        Location(tmp_path_factory.mktemp("shared") / "data", url), engine, Settings(benchmarks=unsteady_sources())
    )
    made.key(tenant="whoever-came-first")
    yield made
    made.close()


@pytest.fixture
def tenant() -> str:
    """A tenant of this test's own."""
    return new_tenant()


@pytest.fixture
def admin(deployment: Deployment, tenant: str) -> str:
    """The key of an admin of the tenant."""
    return deployment.key(Role.ADMIN, tenant)
