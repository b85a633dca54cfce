"""What the commands about benchmarks open: the records, the playgrounds beside them, and the engine over both."""

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from meruit.app import build_benchmarks, build_environments, open_store
from meruit.benchmarks.rollouts import AgentLogs
from meruit.benchmarks.service import Benchmarks, needs_environment
from meruit.cli.terminal import StoreAddress
from meruit.config import Settings, load_benchmark, location_of
from meruit.errors import BenchmarkTaken, MeruitError
from meruit.model.access import Scope
from meruit.model.task import Benchmark, split_name
from meruit.model.task_run import TaskRun
from meruit.playground.host import FOLDER, Host, lock_directory
from meruit.store.store import Store

LOGS = "logs"
FILE_ENDINGS = (".yaml", ".yml", ".json")
RUN_PREFIX = "brn_"
"""What ids of benchmark runs begin with."""
OUTCOME_PREFIX = "out_"
"""What ids of outcomes begin with, which are easily taken for those of runs."""


class BenchmarkSession(NamedTuple):
    """Benchmarks and runs in the records, with no playground open."""

    store: Store
    settings: Settings
    folder: Path
    tenant: str
    benchmarks: Benchmarks
    any_address: bool = False
    """Whether tasks may name systems of their own, wherever those are."""

    @property
    def scope(self) -> Scope:
        """All that the tenant has."""
        return Scope(self.tenant)

    @property
    def logs(self) -> AgentLogs:
        """What agents said."""
        return AgentLogs(self.folder / LOGS)

    @property
    def _quota(self) -> int:
        return self.settings.benchmarks.playground_quota_mb * 1024 * 1024

    @asynccontextmanager
    async def open_playgrounds(self, home: Path) -> AsyncIterator[Benchmarks]:
        """The same with the playgrounds of a folder open; a run's own folder goes with the last of them.

        Raises Served where another process has them.
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
        """Take down what a process that was killed left: worlds of a benchmark run that none of its runs needs."""
        run_id = host.directory.name
        if not run_id.startswith(RUN_PREFIX):
            return
        needed = {one.playground_id for one in self.benchmarks.task_runs(self.scope, run_id) if needs_environment(one)}
        for left in host.listing():
            if left.id not in needed:
                await host.remove(left.id)

    def home_of_run(self, run_id: str) -> Path:
        """Where the playgrounds of a benchmark run are: apart, so that no other host serves them too."""
        return self.folder / FOLDER / run_id

    def home_of(self, run: TaskRun) -> Path:
        """Where the playground of a task run is."""
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
    """Benchmarks and runs in the records there, closed in the end."""
    settings = Settings.load(config)
    location = location_of(place.data, place.database_url)
    store = open_store(location, make=make)
    try:
        # Neither the host, which is never entered, nor the client reaches anything.
        nowhere = Host(location.folder / FOLDER)
        nobody = httpx.AsyncClient(transport=httpx.AsyncBaseTransport(), trust_env=False)
        ground = build_environments(nowhere, settings, nobody, {}, for_others=False)
        benchmarks = build_benchmarks(settings, store, ground)
        yield BenchmarkSession(store, settings, location.folder, place.tenant, benchmarks, any_address)
    finally:
        store.close()


def is_file_name(name: str) -> bool:
    """Whether somebody means a file, rather than a benchmark that was published."""
    return name == "-" or name.endswith(FILE_ENDINGS) or os.sep in name or split_name(name) is None


def read_benchmark_file(name: str) -> Benchmark | None:
    """The benchmark in a file, whole and sound; None where a published one is meant. Raises DocumentError."""
    return load_benchmark(name) if is_file_name(name) else None


async def find_or_publish(at: BenchmarkSession, by: str, name: str, found: Benchmark | None) -> Benchmark:
    """The benchmark under its name, published where it comes from a file; MeruitError for one that has changed."""
    if found is None:
        return at.benchmarks.find(at.tenant, name).benchmark
    try:
        await at.benchmarks.publish(at.tenant, by, found)
    except BenchmarkTaken:
        newest = at.benchmarks.find(at.tenant, found.benchmark).view.version
        raise MeruitError(
            f"{'standard input' if name == '-' else name}: {found.name} was published before and says something else; "
            f"write `version: {newest + 1}`, so that earlier runs keep what they were measured by"
        ) from None
    return found
