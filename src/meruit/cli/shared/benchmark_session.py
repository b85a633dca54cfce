"""What the benchmark commands open: the store, its playgrounds, and the engine over both."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import msgspec

from meruit.app import build_benchmarks, build_environments, open_store
from meruit.benchmarks.environment import NoEnvironments
from meruit.benchmarks.rollouts import AgentLogs
from meruit.benchmarks.run_reader import RunReader
from meruit.benchmarks.service import Benchmarks, needs_environment
from meruit.cli.terminal import StoreAddress
from meruit.config import Settings, location_of
from meruit.errors import BenchmarkTaken, MeruitError
from meruit.model.access import Scope
from meruit.model.task import Benchmark, split_name
from meruit.model.task_run import TaskRun
from meruit.playground.host import FOLDER, Host, lock_directory
from meruit.playground.load import load_benchmark
from meruit.store.store import Store

LOGS = "logs"
FILE_ENDINGS = (".yaml", ".yml", ".json")
RUN_PREFIX = "brn_"
"""Prefix of benchmark run ids."""
OUTCOME_PREFIX = "out_"
"""Prefix of outcome ids, which are easily confused with run ids."""


class BenchmarkSession(msgspec.Struct, frozen=True):
    """Benchmarks and runs in the store, with no playground open."""

    store: Store
    settings: Settings
    folder: Path
    tenant: str
    benchmarks: Benchmarks
    """Creates, judges again and cancels runs; `open_playgrounds` yields one that also starts them."""
    reader: RunReader
    any_address: bool = False
    """Whether tasks may name systems of their own, at any address."""

    @property
    def scope(self) -> Scope:
        """Access to all records of the tenant."""
        return Scope(self.tenant)

    @property
    def logs(self) -> AgentLogs:
        """Folder of the agents' logs."""
        return AgentLogs(self.folder / LOGS)

    @property
    def _quota(self) -> int:
        return self.settings.benchmarks.playground_quota_mb * 1024 * 1024

    @asynccontextmanager
    async def open_playgrounds(self, home: Path) -> AsyncIterator[Benchmarks]:
        """Open the playgrounds of a folder; the folder of a run is removed with its last playground.

        Raises AlreadyServed if another process serves them.
        """
        with lock_directory(home):
            try:
                async with httpx.AsyncClient() as client, Host(home, quota_bytes=self._quota) as host:
                    await self._discard_orphans(host)
                    await host.serve_http(0)
                    worlds = build_environments(
                        host, self.settings, client, os.environ, for_others=not self.any_address
                    )
                    yield build_benchmarks(self.settings, self.store, worlds)
            finally:
                _remove_if_empty(home)

    async def _discard_orphans(self, host: Host) -> None:
        """Remove playgrounds that a killed process left and that no task run needs."""
        run_id = host.directory.name
        if not run_id.startswith(RUN_PREFIX):
            return
        needed = {one.playground_id for one in self.reader.task_runs(self.scope, run_id) if needs_environment(one)}
        for left in host.listing():
            if left.id not in needed:
                await host.remove(left.id)

    def home_of_run(self, run_id: str) -> Path:
        """Folder of a benchmark run's playgrounds: a folder of its own, so that no other host serves them."""
        return self.folder / FOLDER / run_id

    def home_of(self, run: TaskRun) -> Path:
        """Folder of a task run's playground."""
        own = self.home_of_run(run.benchmark_run_id or "")
        together = self.folder / FOLDER
        return together if (together / (run.playground_id or "")).is_dir() and run.playground_id else own


def _remove_if_empty(home: Path) -> None:
    if home.name.startswith(RUN_PREFIX) and not any(home.glob("pg_*")):
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def open_session(
    place: StoreAddress, config: str | None, *, make: bool = False, any_address: bool = False
) -> Iterator[BenchmarkSession]:
    """Open benchmarks and runs in the store for a while."""
    settings = Settings.load(config)
    location = location_of(place.data, place.database_url)
    store = open_store(location, make=make)
    try:
        benchmarks = build_benchmarks(settings, store, NoEnvironments())
        reader = RunReader(store)
        yield BenchmarkSession(
            store=store,
            settings=settings,
            folder=location.folder,
            tenant=place.tenant,
            benchmarks=benchmarks,
            reader=reader,
            any_address=any_address,
        )
    finally:
        store.close()


def is_file_name(name: str) -> bool:
    """Whether the argument names a file rather than a published benchmark."""
    return name == "-" or name.endswith(FILE_ENDINGS) or os.sep in name or split_name(name) is None


def read_benchmark_file(name: str) -> Benchmark | None:
    """Load and validate the benchmark of a file; None for a published one. Raises DocumentError."""
    return load_benchmark(name) if is_file_name(name) else None


async def find_or_publish(
    at: BenchmarkSession, by: str, name: str, found: Benchmark | None, *, practice: bool = False
) -> Benchmark:
    """Find the benchmark by name; one from a file is published first. Raises MeruitError if it has changed.

    For practice, nothing is published: a file gets a name of its own.
    """
    if found is None:
        return at.benchmarks.find(at.tenant, name).benchmark
    if practice:
        return await at.benchmarks.practise(at.tenant, by, found)
    try:
        await at.benchmarks.publish(at.tenant, by, found)
    except BenchmarkTaken:
        newest = at.benchmarks.library.newest(at.tenant, found.benchmark)
        raise MeruitError(
            f"{'standard input' if name == '-' else name}: {found.name} was published with other content or deleted; "
            f"write `version: {newest + 1}`, so that earlier runs keep their version"
        ) from None
    return found
