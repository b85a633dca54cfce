"""The environments of task runs: a playground each, and the systems that a task names itself."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import httpx
import msgspec

from meruit.checks.framework.assertion import SettleSettings
from meruit.errors import AddressFault, InvalidAddress, MeruitError, UnknownPlayground, Unreachable
from meruit.model.criterion import Assertion
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind
from meruit.model.task import Benchmark, Task, TaskSource
from meruit.model.task_run import ActLog
from meruit.playground.events import read_acts
from meruit.playground.host import Endpoints, Host
from meruit.playground.seed import Seed, is_of_seed, read_seed
from meruit.playground.state import NAMES
from meruit.registry import checks
from meruit.sources.open import open_source
from meruit.sources.retry import Source, read_until_settled

CONFIGURED = "config:"
"""The prefix of a source that the operator has configured."""
_SYSTEM = {kind: name for name, kind in NAMES.items()}


class PlaygroundEnvironment(msgspec.Struct, frozen=True):
    """An environment that an agent can act in."""

    id: str | None
    access: dict[str, Any]
    facts: Mapping[str, Any]


class PlaygroundProvider:
    """Prepares, reads and discards the environments of task runs.

    Tasks reach `configured` sources by their names. `any_address` is only for your own benchmarks: other authors could
    make a service read what only the service can reach.
    """

    def __init__(
        self,
        host: Host,
        *,
        client: httpx.AsyncClient,
        environment: Mapping[str, str],
        configured: Mapping[str, TaskSource] | None = None,
        any_address: bool = False,
    ) -> None:
        self.host = host
        self._client = client
        self._environment = environment
        self._configured = configured or {}
        self._any_address = any_address

    async def prepare(self, benchmark: Benchmark, task: Task) -> PlaygroundEnvironment:
        """Prepare an environment for a task; raises MeruitError for an invalid seed or a source that may not be read.

        Raises Unreachable if a system that the criteria read cannot be served here.
        """
        seed = seed_of(benchmark, task)
        for source in task.sources.values():
            if source.at is not None:
                self._open(source)
        if all(source.at is not None for source in task.sources.values()):
            return PlaygroundEnvironment(id=None, access={}, facts=seed.facts)
        made = await self.host.create(seed, task=f"{benchmark.name}/{task.id}")
        if _is_missing_system(task, made.endpoints):
            # No agent could do the task here, so none is judged by it.
            await self.host.remove(made.id)
            raise Unreachable(f"the environment lacks a system that the criteria read: {made.endpoints.trouble}")
        return PlaygroundEnvironment(id=made.id, access=made.to_dict(), facts=seed.facts)

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Read every source of the task; one that cannot be read says so in its snapshot."""
        own = await self._read_playground(place_id) if place_id is not None else {}
        names = list(task.sources)
        found = await asyncio.gather(*(self._read_source(task, name, own, (before or {}).get(name)) for name in names))
        return dict(zip(names, found, strict=True))

    async def access(self, place_id: str) -> dict[str, Any]:
        """Return how an agent gets into an environment that was prepared before."""
        found = self.host.find(place_id)
        if found is None:
            raise UnknownPlayground(f"the playground {place_id} is not served here")
        return found.to_dict()

    async def last_event(self, place_id: str) -> str | None:
        """Return the newest event of an environment, in words; None before the first."""
        state = self.host.state_of(place_id)
        found = None if state is None else await asyncio.to_thread(state.last_event)
        return None if found is None or is_of_seed(found) else " ".join(filter(None, (found.type, found.key)))

    async def acts(self, place_id: str) -> ActLog:
        """Return what was done in an environment; why not, where that cannot be read."""
        state = self.host.state_of(place_id)
        if state is None:
            return ActLog(trouble=f"playground {place_id} is not served here")
        try:
            return await asyncio.to_thread(read_acts, state)
        except (MeruitError, OSError) as problem:
            return ActLog(trouble=f"the playground cannot be read: {problem}")

    async def discard(self, place_id: str) -> None:
        """Remove an environment; one that is gone already is fine."""
        try:
            await self.host.remove(place_id)
        except UnknownPlayground:
            return

    async def _read_playground(self, place_id: str) -> EnvironmentState:
        try:
            return await self.host.snapshots(place_id)
        except (MeruitError, OSError) as problem:
            return {
                name: Snapshot(kind, trouble=f"the playground cannot be read: {problem}")
                for name, kind in NAMES.items()
            }

    async def _read_source(self, task: Task, name: str, own: EnvironmentState, before: Snapshot | None) -> Snapshot:
        asked = task.sources[name]
        if asked.at is None:
            return own[_SYSTEM[asked.kind]]
        try:
            source = self._open(asked, () if before is None else before.manifest())
        except MeruitError as problem:
            return Snapshot(asked.kind, trouble=str(problem))
        stable, within_s = settle_requirement(task, name)
        return await read_until_settled(source, stable=stable, within_s=within_s)

    def _open(self, asked: TaskSource, known: Collection[str] = ()) -> Source:
        """Open the reader of a source; raises MeruitError."""
        resolved = self._resolve(asked)
        return open_source(resolved, client=self._client, environment=self._environment, known=known)

    def _resolve(self, asked: TaskSource) -> TaskSource:
        """Return the source itself, or the configured one that it names."""
        address = asked.at or ""
        if not address.startswith(CONFIGURED):
            if not self._any_address:
                raise InvalidAddress(
                    AddressFault.NOT_ALLOWED,
                    f"{address} may not be read, only sources that are configured: write at: config:NAME "
                    "(on your own machine, --allow-sources lets any address be read)",
                )
            return asked
        name = address.removeprefix(CONFIGURED)
        found = self._configured.get(name)
        if found is None:
            raise InvalidAddress(AddressFault.NOT_CONFIGURED, f"no source is configured as {name!r}")
        if found.kind is not asked.kind:
            raise InvalidAddress(
                AddressFault.OTHER_KIND, f"the source that is configured as {name!r} is {found.kind}, not {asked.kind}"
            )
        return found


def settle_requirement(task: Task, name: str) -> tuple[int, float]:
    """Return how many equal readings a source needs, and within which time: the most that any criterion asks for."""
    asked = [
        SettleSettings.model_validate(criterion.assertion.settings.get("settle") or {})
        for criterion in task.criteria
        if criterion.assertion is not None and _reads(criterion.assertion, name, task.sources[name].kind)
    ]
    # A criterion without settings asks for the defaults, which no other criterion can lower.
    several = asked or [SettleSettings()]
    return max(one.stable for one in several), max(one.within_s for one in several)


def _is_missing_system(task: Task, endpoints: Endpoints) -> bool:
    """Return whether criteria read a system that agents cannot reach, except to check that it is unchanged."""
    ways_in = {SourceKind.ROWS: endpoints.portal, SourceKind.FILES: endpoints.sftp}
    gone = [
        name for name, one in task.sources.items() if one.at is None and ways_in.get(one.kind, endpoints.fhir) is None
    ]
    asked = [one.assertion for one in task.criteria if one.assertion is not None]
    only = [one for one in asked if (check := checks.find(one.check)) is not None and len(check.kinds) == 1]
    return any(_reads(one, name, task.sources[name].kind) for one in only for name in gone)


def _reads(assertion: Assertion, name: str, kind: SourceKind) -> bool:
    check = checks.find(assertion.check)
    return check is not None and kind in check.kinds and assertion.settings.get("from", name) == name


def seed_of(benchmark: Benchmark, task: Task) -> Seed:
    """Merge all seeds of a task, later ones over earlier ones; raises DocumentError."""

    def read(name: str) -> bytes:
        try:
            return benchmark.attachment(name)
        except KeyError:
            raise FileNotFoundError(2, "the benchmark has no such attachment", name) from None

    return merge_seeds([read_seed(one, read) for one in task.seeds])


def merge_seeds(seeds: list[Seed]) -> Seed:
    """Merge seeds, later ones over earlier ones."""
    whole = Seed()
    for one in seeds:
        whole = Seed(
            resources=whole.resources | one.resources,
            rows=whole.rows | one.rows,
            files=whole.files | one.files,
            hl7=[*whole.hl7, *one.hl7],
            x12=[*whole.x12, *one.x12],
            call=whole.call | one.call,
            fax=whole.fax | one.fax,
            messages=[*whole.messages, *one.messages],
            cds=[*whole.cds, *one.cds],
            facts=whole.facts | one.facts,
        )
    return whole
