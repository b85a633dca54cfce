"""The playgrounds of a service: one host per data folder, started with the first playground; each has a tenant.

A playground runs in the process that created it. Another process on the same database answers `elsewhere`.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from meruit.api.logging import log
from meruit.api.problems import problem_response
from meruit.app import build_environments
from meruit.benchmarks.environment import TaskEnvironment
from meruit.config import Settings
from meruit.errors import AlreadyServed, ApiProblem, MeruitError, NotFound
from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark, Task, TaskSource
from meruit.model.task_run import ActLog
from meruit.playground.asgi import Receive, Scope, Send
from meruit.playground.environment import PlaygroundProvider
from meruit.playground.host import FILE, FOLDER, LEFT_S, PREFIX, Host, Playground, lock_directory
from meruit.playground.seed import Seed
from meruit.playground.state import QUOTA_BYTES, PlaygroundState, rfc3339
from meruit.web.requests import Request

_TENANT, _TASK_RUN = "tenant", "task_run"
"""Settings of a playground that name its owner."""


class PlaygroundOwner(msgspec.Struct, frozen=True):
    """The owner of a playground."""

    tenant: str
    task_run_id: str | None
    """The task run that uses it, if any."""


class PlaygroundHosting:
    """Serves playgrounds, and provides the environments of task runs; an async context manager."""

    def __init__(  # noqa: PLR0913 - settings from several places
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
        """`bind` is the address of MLLP and SFTP; `quota_bytes` is the quota of each playground."""
        self.enabled = enabled
        self._clock = clock
        # Tenants and their agents share it.
        self._host = Host(
            folder / FOLDER, clock=clock, entropy=entropy, bind=bind, quota_bytes=quota_bytes, is_shared=True
        )
        self._host.public_url = "http://127.0.0.1"
        self._settings = settings
        self._environ = environ or {}
        self._begun = False
        self._beginning = asyncio.Lock()
        self._ending = AsyncExitStack()
        self._provider: PlaygroundProvider | None = None
        self._owned: dict[str, PlaygroundOwner] = {}

    async def __aenter__(self) -> Self:
        """Serve existing playgrounds; if that fails, the rest of the service still starts."""
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
        """Start to serve playgrounds, once; raises ApiProblem 503 when that fails."""
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
                    why = "another process serves the playgrounds of this data folder; send the request there"
                    raise ApiProblem(503, "elsewhere", why) from None
                except (MeruitError, OSError) as problem:
                    # The message names a folder of the service, and nothing that a client sent.
                    log("playgrounds_failed", level="error", error=RuntimeError(str(problem)))
                    why = "the playgrounds cannot be served; see the log of the service"
                    raise ApiProblem(503, "playgrounds_off", why) from None
                self._ending.push_async_exit(beginning.pop_all())
            self._begun = True

    @property
    def public_url(self) -> str:
        """The URL of `app`; known once the service listens."""
        return self._host.public_url

    @public_url.setter
    def public_url(self, url: str) -> None:
        self._host.public_url = url

    @property
    def sources(self) -> Mapping[str, TaskSource]:
        """Systems beside playgrounds that the operator lets tasks read."""
        return self._settings.benchmarks.sources

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the HTTP systems of playgrounds; the secret of a playground is its key."""
        if self.enabled:
            await self._host.app(scope, receive, send)
        else:
            await problem_response(Request(scope), _playgrounds_off_problem())(scope, receive, send)

    # Owners

    async def create(self, tenant: str, seed: Seed | None) -> Playground:
        """Create a playground of a tenant."""
        await self.begin()
        made = await self._host.create(seed)
        await self.record_owner(made.id, tenant)
        return made

    async def branch(self, tenant: str, playground_id: str) -> Playground:
        """Create a copy of a playground of the tenant; the copy belongs to no task run."""
        self.find(tenant, playground_id)
        made = await self._host.branch(playground_id)
        await self.record_owner(made.id, tenant)
        return made

    async def record_owner(self, playground_id: str, tenant: str, task_run_id: str | None = None) -> None:
        """Store the owner of a playground."""
        owner = {_TENANT: tenant, _TASK_RUN: task_run_id}
        await asyncio.to_thread(self._state(playground_id).set, **owner)
        self._owned[playground_id] = PlaygroundOwner(tenant, task_run_id)

    def find(self, tenant: str, playground_id: str) -> Playground:
        """Find a playground of the tenant; raises NotFound, or ApiProblem 503 when playgrounds are off."""
        self._require_enabled()
        owned = self._owned.get(playground_id)
        found = self._host.find(playground_id) if owned is not None and owned.tenant == tenant else None
        if found is None:
            raise NotFound(f"no playground {playground_id!r} is served here")
        return found

    def task_run_of(self, playground_id: str) -> str | None:
        """The task run that uses a playground."""
        owned = self._owned.get(playground_id)
        return None if owned is None else owned.task_run_id

    def list_ids(self, tenant: str) -> list[str]:
        """The ids of the tenant's playgrounds, oldest first."""
        self._require_enabled()
        return sorted(one for one, owned in self._owned.items() if owned.tenant == tenant)

    def task_runs_by_tenant(self) -> dict[str, list[str]]:
        """The task runs that have a playground here, by tenant."""
        found: dict[str, list[str]] = {}
        for owned in self._owned.values():
            if owned.task_run_id is not None:
                found.setdefault(owned.tenant, []).append(owned.task_run_id)
        return found

    def state_of(self, tenant: str, playground_id: str) -> PlaygroundState:
        """The state of a playground of the tenant; raises NotFound."""
        self.find(tenant, playground_id)
        return self._state(playground_id)

    async def checkpoint(self, tenant: str, playground_id: str, name: str) -> None:
        """Save a checkpoint of a playground of the tenant."""
        self.find(tenant, playground_id)
        await self._host.checkpoint(playground_id, name)

    async def reset(self, tenant: str, playground_id: str, name: str) -> None:
        """Restore a checkpoint of a playground of the tenant."""
        self.find(tenant, playground_id)
        await self._host.reset(playground_id, name)

    # Environments of task runs

    async def prepare(self, benchmark: Benchmark, task: Task) -> TaskEnvironment:
        """Create an environment for a task; raises ApiProblem 503 when it needs a playground and they are off."""
        if any(source.at is None for source in task.sources.values()):
            await self.begin()
        return await self._environments().prepare(benchmark, task)

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Read every source of a task; raises ApiProblem 503 for a playground of another process."""
        self._require_local(place_id)
        return await self._environments().read(task, place_id, before)

    async def access(self, place_id: str) -> dict[str, Any]:
        """How an agent accesses an environment; raises ApiProblem 503 for a playground of another process."""
        self._require_local(place_id)
        return await self._environments().access(place_id)

    async def last_event(self, place_id: str) -> str | None:
        """Return the newest event of an environment, in words; None before the first, or if it is not here."""
        return await self._environments().last_event(place_id)

    async def acts(self, place_id: str) -> ActLog:
        """Return what was done in an environment; why not, where that cannot be read."""
        return await self._environments().acts(place_id)

    async def discard(self, place_id: str) -> None:
        """Remove an environment; has no effect for one that does not exist here."""
        self._owned.pop(place_id, None)
        await self._environments().discard(place_id)

    def _require_local(self, place_id: str | None) -> None:
        if place_id is None or self._host.find(place_id) is not None:
            return
        why = "the playground of this run is in another process or was removed; ask that process, or cancel the run"
        raise ApiProblem(503, "elsewhere", why)

    def _environments(self) -> PlaygroundProvider:
        """Create the provider on first use, because its HTTP client loads all certificates."""
        if self._provider is None:
            client = httpx.AsyncClient()
            self._ending.push_async_callback(client.aclose)
            self._provider = build_environments(self._host, self._settings, client, self._environ, for_others=True)
        return self._provider

    def _require_enabled(self) -> None:
        if not self.enabled:
            raise _playgrounds_off_problem()

    def _state(self, playground_id: str) -> PlaygroundState:
        found = self._host.state_of(playground_id)
        if found is None:
            raise NotFound(f"no playground {playground_id!r} is served here")
        return found

    async def _discard_orphans(self) -> None:
        """Remove environments without an owner, left by a process that died.

        A young one may belong to a run that was just started, whose agent asks for it again.
        """
        old = rfc3339(self._clock() - timedelta(seconds=LEFT_S))
        gone = 0
        for left in self._host.listing():
            settings = await asyncio.to_thread(self._state(left.id).settings)
            if left.id not in self._owned and settings.get("task") is not None and settings["created_at"] < old:
                await self._host.remove(left.id)
                gone += 1
        if gone:
            log("playgrounds_left", level="warning", count=gone)

    def _read_owners(self) -> dict[str, PlaygroundOwner]:
        found = {}
        for playground in self._host.listing():
            settings = self._state(playground.id).settings()
            if isinstance(settings.get(_TENANT), str):
                found[playground.id] = PlaygroundOwner(settings[_TENANT], settings.get(_TASK_RUN))
        return found


def _playgrounds_off_problem() -> ApiProblem:
    return ApiProblem(503, "playgrounds_off", "this service was started without playgrounds")


def is_playground_path(path: str) -> bool:
    """Whether a path belongs to a system of a playground."""
    return path.startswith(f"{PREFIX}/")
