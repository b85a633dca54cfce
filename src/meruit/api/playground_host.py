"""The playgrounds of a service: one host a data folder, begun with the first of them, and each of them some tenant's.

A playground lives in the process that made it. Where several processes serve one database, whoever asks another of
them about it hears `elsewhere`.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx
from litestar import Request

from meruit.api.logging import log
from meruit.api.problems import problem_response
from meruit.app import build_environments
from meruit.benchmarks.environment import TaskEnvironment
from meruit.config import Settings
from meruit.errors import AlreadyServed, ApiProblem, MeruitError, NotFound
from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark, Task, TaskSource
from meruit.playground.asgi import Receive, Scope, Send
from meruit.playground.environment import PlaygroundProvider
from meruit.playground.host import FILE, FOLDER, LEFT_S, PREFIX, Host, Playground, lock_directory
from meruit.playground.seed import Seed
from meruit.playground.state import QUOTA_BYTES, PlaygroundState, rfc3339

_TENANT, _TASK_RUN = "tenant", "task_run"
"""What a playground's own settings say of whose it is."""


class PlaygroundOwner(NamedTuple):
    """Whose a playground is."""

    tenant: str
    task_run_id: str | None
    """Where it is the world of one."""


class PlaygroundHosting:
    """An async context manager that serves playgrounds, and the ground on which task runs happen."""

    def __init__(  # noqa: PLR0913 - each is somebody else's to choose
        self,
        folder: Path,
        settings: Settings,
        *,
        clock: Callable[[], datetime],
        entropy: Callable[[int], bytes],
        bind: str = "127.0.0.1",
        environ: Mapping[str, str] | None = None,
        enabled: bool = True,
        quota_bytes: int = QUOTA_BYTES,
    ) -> None:
        """`bind` is where MLLP and SFTP listen; `quota_bytes` how much each playground may take."""
        self.enabled = enabled
        self._clock = clock
        self._host = Host(folder / FOLDER, clock=clock, entropy=entropy, bind=bind, quota_bytes=quota_bytes)
        self._host.public_url = "http://127.0.0.1"
        self._settings = settings
        self._environ = environ or {}
        self._begun = False
        self._beginning = asyncio.Lock()
        self._ending = AsyncExitStack()
        self._worlds: PlaygroundProvider | None = None
        self._owned: dict[str, PlaygroundOwner] = {}

    async def __aenter__(self) -> Self:
        """Serve at once what there is from before; what is broken in it keeps nobody from the rest of the service."""
        if self.enabled and any(self._host.directory.glob(f"pg_*/{FILE}")):
            try:
                await self.begin()
            except ApiProblem as problem:
                log("playgrounds_not_served", level="warning", error=problem)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop serving; the playgrounds stay in their folder."""
        await self._ending.aclose()

    async def begin(self) -> None:
        """Serve playgrounds, where that has not begun; raises ApiProblem 503 where it cannot."""
        if not self.enabled:
            raise _playgrounds_off_problem()
        async with self._beginning:
            if self._begun:
                return
            async with AsyncExitStack() as beginning:
                try:
                    beginning.enter_context(lock_directory(self._host.directory))
                    await beginning.enter_async_context(self._host)
                    self._owned = await asyncio.to_thread(self._read_owners)
                    await self._discard_orphans()
                except AlreadyServed:
                    why = "another process serves the playgrounds of this data folder; ask that one"
                    raise ApiProblem(503, "elsewhere", why) from None
                except (MeruitError, OSError) as problem:
                    # It tells of a folder of ours, and of nothing that a caller sent.
                    log("playgrounds_failed", level="error", error=RuntimeError(str(problem)))
                    why = "the playgrounds cannot be served; the service's log says why"
                    raise ApiProblem(503, "playgrounds_off", why) from None
                self._ending.push_async_exit(beginning.pop_all())
            self._begun = True

    @property
    def public_url(self) -> str:
        """Where `app` is reached; known once the service listens."""
        return self._host.public_url

    @public_url.setter
    def public_url(self, url: str) -> None:
        self._host.public_url = url

    @property
    def sources(self) -> Mapping[str, TaskSource]:
        """The systems that the operator lets tasks read beside playgrounds."""
        return self._settings.benchmarks.sources

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Their systems that speak HTTP; each playground's secret is the key to it."""
        if self.enabled:
            await self._host.app(scope, receive, send)
        else:
            # Any: Litestar types what a server sends more narrowly.
            request: Any = Request(scope)  # type: ignore[arg-type]
            answer: Any = problem_response(request, _playgrounds_off_problem()).to_asgi_response(None, request)
            await answer(scope, receive, send)

    # Whose they are

    async def create(self, tenant: str, seed: Seed | None) -> Playground:
        """A new playground of a tenant."""
        await self.begin()
        made = await self._host.create(seed)
        await self.record_owner(made.id, tenant)
        return made

    async def branch(self, tenant: str, playground_id: str) -> Playground:
        """Another playground of the tenant that goes on from where one is; nobody's task run, whatever that one is."""
        self.find(tenant, playground_id)
        made = await self._host.branch(playground_id)
        await self.record_owner(made.id, tenant)
        return made

    async def record_owner(self, playground_id: str, tenant: str, task_run_id: str | None = None) -> None:
        """Write down whose a playground is."""
        said = {_TENANT: tenant, _TASK_RUN: task_run_id}
        await asyncio.to_thread(self._state(playground_id).set, **said)
        self._owned[playground_id] = PlaygroundOwner(tenant, task_run_id)

    def find(self, tenant: str, playground_id: str) -> Playground:
        """One of the tenant's; raises NotFound, and ApiProblem 503 where none are served."""
        self._require_enabled()
        owned = self._owned.get(playground_id)
        found = self._host.find(playground_id) if owned is not None and owned.tenant == tenant else None
        if found is None:
            raise NotFound(f"no playground {playground_id!r} is served here")
        return found

    def task_run_of(self, playground_id: str) -> str | None:
        """The task run whose world a playground is."""
        owned = self._owned.get(playground_id)
        return None if owned is None else owned.task_run_id

    def list_ids(self, tenant: str) -> list[str]:
        """The ids of the tenant's, oldest first."""
        self._require_enabled()
        return sorted(one for one, owned in self._owned.items() if owned.tenant == tenant)

    def task_runs_by_tenant(self) -> dict[str, list[str]]:
        """By tenant, the task runs that have their world here."""
        found: dict[str, list[str]] = {}
        for owned in self._owned.values():
            if owned.task_run_id is not None:
                found.setdefault(owned.tenant, []).append(owned.task_run_id)
        return found

    def state_of(self, tenant: str, playground_id: str) -> PlaygroundState:
        """What one of the tenant's holds; raises NotFound."""
        self.find(tenant, playground_id)
        return self._state(playground_id)

    async def checkpoint(self, tenant: str, playground_id: str, name: str) -> None:
        """Remember what one of the tenant's holds."""
        self.find(tenant, playground_id)
        await self._host.checkpoint(playground_id, name)

    async def reset(self, tenant: str, playground_id: str, name: str) -> None:
        """Put one of the tenant's back to what a checkpoint remembers."""
        self.find(tenant, playground_id)
        await self._host.reset(playground_id, name)

    # The ground of task runs

    async def prepare(self, benchmark: Benchmark, task: Task) -> TaskEnvironment:
        """A new world for a task; raises ApiProblem 503 where it needs a playground, and none are served."""
        if any(source.at is None for source in task.sources.values()):
            await self.begin()
        return await self._environments().prepare(benchmark, task)

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Every source of a task as it stands; raises ApiProblem 503 for a playground that lives elsewhere."""
        self._require_local(place_id)
        return await self._environments().read(task, place_id, before)

    async def access(self, place_id: str) -> dict[str, Any]:
        """How an agent gets into a world; raises ApiProblem 503 for a playground that lives elsewhere."""
        self._require_local(place_id)
        return await self._environments().access(place_id)

    async def discard(self, place_id: str) -> None:
        """Take a world down; one that is gone already, or lives elsewhere, is fine."""
        self._owned.pop(place_id, None)
        await self._environments().discard(place_id)

    def _require_local(self, place_id: str | None) -> None:
        if place_id is None or self._host.find(place_id) is not None:
            return
        why = "the playground of this run lives in another process, or is gone; ask where it was started, or cancel it"
        raise ApiProblem(503, "elsewhere", why)

    def _environments(self) -> PlaygroundProvider:
        """Made when it is first needed: a client reads all certificates, which takes a while."""
        if self._worlds is None:
            client = httpx.AsyncClient()
            self._ending.push_async_callback(client.aclose)
            self._worlds = build_environments(self._host, self._settings, client, self._environ, for_others=True)
        return self._worlds

    def _require_enabled(self) -> None:
        if not self.enabled:
            raise _playgrounds_off_problem()

    def _state(self, playground_id: str) -> PlaygroundState:
        found = self._host.state_of(playground_id)
        if found is None:
            raise NotFound(f"no playground {playground_id!r} is served here")
        return found

    async def _discard_orphans(self) -> None:
        """Take down worlds of tasks that a process left which died before it could say whose they are.

        A young one may be that of a run that was just started, whose agent asks for it again.
        """
        old = rfc3339(self._clock() - timedelta(seconds=LEFT_S))
        gone = 0
        for left in self._host.listing():
            said = await asyncio.to_thread(self._state(left.id).settings)
            if left.id not in self._owned and said.get("task") is not None and said["created_at"] < old:
                await self._host.remove(left.id)
                gone += 1
        if gone:
            log("playgrounds_left", level="warning", count=gone)

    def _read_owners(self) -> dict[str, PlaygroundOwner]:
        found = {}
        for playground in self._host.listing():
            said = self._state(playground.id).settings()
            if isinstance(said.get(_TENANT), str):
                found[playground.id] = PlaygroundOwner(said[_TENANT], said.get(_TASK_RUN))
        return found


def _playgrounds_off_problem() -> ApiProblem:
    return ApiProblem(503, "playgrounds_off", "this service was started without playgrounds")


def is_playground_path(path: str) -> bool:
    """Whether a request is for a system of some playground."""
    return path.startswith(f"{PREFIX}/")
