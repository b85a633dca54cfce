"""The environments of task runs, as the runner of benchmarks uses them: prepared, read and discarded."""

from collections.abc import Mapping
from typing import Any, Protocol

from meruit.errors import Unreachable
from meruit.model.environment import EnvironmentState
from meruit.model.task import Benchmark, Task
from meruit.model.task_run import ActLog


def asks_for_answer(task: Task) -> bool:
    """Return whether a criterion of the task judges the agent's answer."""
    return any(one.assertion is not None and one.assertion.check == "answer-match" for one in task.criteria)


class TaskEnvironment(Protocol):
    """An environment that an agent can act in."""

    @property
    def id(self) -> str | None:
        """None if the environment is only the author's own systems."""

    @property
    def access(self) -> dict[str, Any]:
        """What the agent needs to get in: addresses and credentials."""

    @property
    def facts(self) -> Mapping[str, Any]:
        """Facts that the seed provides."""


class EnvironmentProvider(Protocol):
    """Prepares, reads and discards environments."""

    async def prepare(self, benchmark: Benchmark, task: Task) -> TaskEnvironment:
        """Prepare an environment for a task; raises MeruitError for an invalid seed, Unreachable if it cannot."""

    async def read(self, task: Task, place_id: str | None, before: EnvironmentState | None = None) -> EnvironmentState:
        """Read every source of the task; one that cannot be read says so in its snapshot.

        Items of `before` that are not listed any more are requested by their key.
        """

    async def access(self, place_id: str) -> dict[str, Any]:
        """Return how an agent gets into an environment that was prepared before."""

    async def last_event(self, place_id: str) -> str | None:
        """Return the newest event of an environment, in words; None before the first."""

    async def acts(self, place_id: str) -> ActLog:
        """Return what was done in an environment; why not, where that cannot be read."""

    async def discard(self, place_id: str) -> None:
        """Remove an environment; one that is gone already is fine."""


class NoEnvironments:
    """For a process that serves no environments: it creates, judges again and cancels runs, but starts none."""

    async def prepare(self, benchmark: Benchmark, task: Task) -> TaskEnvironment:
        """Raise Unreachable."""
        raise Unreachable(f"no playgrounds are served here, so task {task.id} of {benchmark.name} cannot start")

    async def read(
        self,
        task: Task,
        place_id: str | None,  # noqa: ARG002 - the protocol's name
        before: EnvironmentState | None = None,  # noqa: ARG002 - the protocol's name
    ) -> EnvironmentState:
        """Raise Unreachable."""
        raise Unreachable(f"no playgrounds are served here, so the environment of task {task.id} cannot be read")

    async def access(self, place_id: str) -> dict[str, Any]:
        """Raise Unreachable."""
        raise Unreachable(f"playground {place_id} is not served here")

    async def last_event(self, place_id: str) -> str | None:  # noqa: ARG002 - the protocol's name
        """Return None."""
        return None

    async def acts(self, place_id: str) -> ActLog:
        """Return that none can be read."""
        return ActLog(trouble=f"playground {place_id} is not served here")

    async def discard(self, place_id: str) -> None:
        """Leave the environment to the process that serves it."""
