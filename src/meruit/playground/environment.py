"""The worlds of task runs: a playground each, and whatever systems of its own a task names."""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import httpx

from meruit.checks.framework.assertion import SettleSettings
from meruit.errors import AuthorError, MeruitError, UnknownPlayground, Unreachable
from meruit.model.criterion import Assertion
from meruit.model.environment import EnvironmentState, Snapshot, SourceKind
from meruit.model.task import Benchmark, Task, TaskSource
from meruit.playground.host import Endpoints, Host
from meruit.playground.seed import Seed, read_seed
from meruit.playground.state import NAMES
from meruit.registry import checks
from meruit.sources.open import open_source
from meruit.sources.retry import Source, read_until_settled

CONFIGURED = "config:"
"""Before the name of a source that the operator has configured."""
_SYSTEM = {kind: name for name, kind in NAMES.items()}


class PlaygroundEnvironment(NamedTuple):
    """A world that an agent can act on."""

    id: str | None
    access: dict[str, Any]
    facts: Mapping[str, Any]


class PlaygroundProvider:
    """Makes and reads the worlds of task runs.

    Tasks reach `configured` sources by their names. Only where benchmarks are one's own may they name `any_address`:
    others could have a service read what only the service can reach.
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
        """A new world for a task; raises MeruitError for a seed that is none, or a source that nobody may read.

        Unreachable where a system that its criteria look at cannot be served here.
        """
        seed = seed_of(benchmark, task)
        for source in task.sources.values():
            if source.at is not None:
                self._open(source)
        if all(source.at is not None for source in task.sources.values()):
            return PlaygroundEnvironment(None, {}, seed.facts)
        made = await self.host.create(seed, task=f"{benchmark.name}/{task.id}")
        if _is_missing_system(task, made.endpoints):
            # Nobody could do what is asked for here, so nobody is judged by it.
            await self.host.remove(made.id)
            raise Unreachable(f"its world lacks a system that its criteria look at: {made.endpoints.trouble}")
        return PlaygroundEnvironment(made.id, made.to_dict(), seed.facts)

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Every source of the task as it stands; one that cannot be read says so in its snapshot."""
        own = await self._read_playground(place_id) if place_id is not None else {}
        names = list(task.sources)
        found = await asyncio.gather(*(self._read_source(task, name, own, (before or {}).get(name)) for name in names))
        return dict(zip(names, found, strict=True))

    async def access(self, place_id: str) -> dict[str, Any]:
        """How an agent gets into a world that was made before."""
        found = self.host.find(place_id)
        if found is None:
            raise UnknownPlayground(f"the playground {place_id} is not served here any more")
        return found.to_dict()

    async def discard(self, place_id: str) -> None:
        """Take a world down; one that is gone already is fine."""
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
        """The reader of a source; raises MeruitError."""
        meant = self._resolve(asked)
        return open_source(meant, client=self._client, environment=self._environment, known=known)

    def _resolve(self, asked: TaskSource) -> TaskSource:
        """The source itself, or the one that the operator calls so."""
        address = asked.at or ""
        if not address.startswith(CONFIGURED):
            if not self._any_address:
                raise AuthorError(
                    f"{address} may not be read, only sources that are configured: write at: config:NAME "
                    "(on your own machine, --allow-sources lets any address be read)"
                )
            return asked
        name = address.removeprefix(CONFIGURED)
        found = self._configured.get(name)
        if found is None:
            raise AuthorError(f"no source is configured as {name!r}")
        if found.kind is not asked.kind:
            raise AuthorError(f"the source that is configured as {name!r} is {found.kind}, not {asked.kind}")
        return found


def settle_requirement(task: Task, name: str) -> tuple[int, float]:
    """How often a source must read the same, and for how long to try: the most that any criterion asks of it."""
    asked = [
        SettleSettings.model_validate(criterion.assertion.settings.get("settle") or {})
        for criterion in task.criteria
        if criterion.assertion is not None and _reads(criterion.assertion, name, task.sources[name].kind)
    ]
    # Whoever says nothing asks for what is usual: no other criterion can take that away.
    several = asked or [SettleSettings()]
    return max(one.stable for one in several), max(one.within_s for one in several)


def _is_missing_system(task: Task, endpoints: Endpoints) -> bool:
    """Whether criteria look at a system that agents cannot reach; what only must not change may be missing."""
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
    """All seeds of a task as one, later ones over earlier ones; raises DocumentError."""

    def read(name: str) -> bytes:
        try:
            return benchmark.attachment(name)
        except KeyError:
            raise FileNotFoundError(2, "the benchmark has no such attachment", name) from None

    return merge_seeds([read_seed(one, read) for one in task.seeds])


def merge_seeds(seeds: list[Seed]) -> Seed:
    """Several seeds as one, later ones over earlier ones."""
    whole = Seed()
    for one in seeds:
        whole = Seed(
            resources=whole.resources | one.resources,
            rows=whole.rows | one.rows,
            files=whole.files | one.files,
            hl7=[*whole.hl7, *one.hl7],
            x12=[*whole.x12, *one.x12],
            call=whole.call | one.call,
            facts=whole.facts | one.facts,
        )
    return whole
