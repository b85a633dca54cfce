"""Where task runs happen, as the engine sees it: somebody makes a world for a task, and reads it."""

from collections.abc import Mapping
from typing import Any, Protocol

from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark, Task


class TaskEnvironment(Protocol):
    """A world that an agent can act on."""

    @property
    def id(self) -> str | None:
        """None where all of it is the author's own systems."""

    @property
    def access(self) -> dict[str, Any]:
        """What the agent needs to get in: addresses and credentials."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Names that the world's seed brings along."""


class EnvironmentProvider(Protocol):
    """Makes worlds, reads them, and takes them down."""

    async def prepare(self, benchmark: Benchmark, task: Task) -> TaskEnvironment:
        """A new world for a task; raises MeruitError for a seed that is none, Unreachable when it cannot be made."""

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Every source of the task as it stands; one that cannot be read says so in its snapshot.

        With the world before, whatever is not listed any more is looked for by its name.
        """

    async def access(self, place_id: str) -> dict[str, Any]:
        """How an agent gets into a world that was made before."""

    async def discard(self, place_id: str) -> None:
        """Take a world down; one that is gone already is fine."""
