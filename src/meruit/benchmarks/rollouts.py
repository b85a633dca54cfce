"""Rollouts: run an agent on each task of a benchmark run, in its own environment, and judge it when it ends."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from meruit.benchmarks.agent_process import AgentCommand, AgentExit, run_agent
from meruit.benchmarks.service import Benchmarks, TaskRunStart
from meruit.documents.sanitize import describe
from meruit.errors import AuthorError, MeruitError, TaskRunStateError, Unreachable
from meruit.model.access import Scope
from meruit.model.environment import MAX_ANSWER_BYTES
from meruit.model.record import Record
from meruit.model.task_run import RunStatus, TaskRun
from meruit.sources.retry import BackoffSchedule

RETRY = BackoffSchedule(tries=3, first_wait_s=0.5)
"""How often an environment that does not answer is tried before its run is left for later."""
LATE_S = 0.05
"""How long after the deadline an agent is stopped, so that its clock and ours agree that it has passed."""


class Rollout(Record, frozen=True):
    """One task run that has ended, and how its agent ended."""

    run: TaskRun
    agent: AgentExit | None = None
    """None if no agent ran."""
    trouble: str | None = None
    """Why the run could not be started or judged; it does not count as the agent's failure."""


class AgentLogs(msgspec.Struct, frozen=True):
    """The folder of the agents' output and exit codes."""

    folder: Path

    def of(self, run: TaskRun) -> Path:
        """Return the log file of one task run."""
        return self.folder / (run.benchmark_run_id or "alone") / f"{run.id}.log"

    def save_exit(self, run: TaskRun, ran: AgentExit) -> None:
        """Store how an agent ended."""
        self.of(run).with_suffix(".json").write_bytes(ran.to_json())

    def load_exit(self, run: TaskRun) -> AgentExit | None:
        """Return how the agent of a task run ended; None if it did not run here."""
        try:
            found = AgentExit.from_json(self.of(run).with_suffix(".json").read_bytes())
        except (OSError, ValueError):
            return None
        return AgentExit(found.exit_code, found.seconds, str(self.of(run)))


def read_answer(file: Path) -> str | None:
    """Read an agent's answer: None if it said nothing, or more than an answer may have."""
    content = file.read_bytes()
    if not content.strip() or len(content) > MAX_ANSWER_BYTES:
        return None
    return content.decode("utf-8", "replace")


class RolloutState(StrEnum):
    """What happens to a task run that has not ended."""

    STARTING = "starting"
    """Its environment is prepared."""
    RUNNING = "running"
    """Its agent works."""
    JUDGING = "judging"


class Observer(msgspec.Struct, frozen=True):
    """Called with the progress."""

    entered: Callable[[TaskRun, RolloutState], None]
    """A task run enters a state."""
    ended: Callable[[Rollout], None]


class Rollouts(msgspec.Struct, frozen=True):
    """How agents are run."""

    benchmarks: Benchmarks
    tenant: str
    command: AgentCommand
    environment: Mapping[str, str]
    logs: AgentLogs
    observer: Observer
    parallel: int = 1
    timeout_s: float | None = None
    """When an agent is stopped, if its task allows more time; its work until then is judged."""
    answers: bool = False
    """Whether an agent's standard output is its answer."""

    async def run_all(self, runs: Sequence[TaskRun]) -> list[Rollout]:
        """Run an agent on each; after an error or an interruption those that have not ended are pending."""
        at_once = asyncio.Semaphore(self.parallel)
        running: list[str] = []

        async def in_turn(run: TaskRun) -> Rollout:
            await at_once.acquire()
            running.append(run.id)
            self.observer.entered(run, RolloutState.STARTING)
            done = await self._run_one(run)
            running.remove(run.id)
            self.observer.ended(done)
            # A failed one keeps its slot, so that no other starts before all have ended.
            at_once.release()
            return done

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(in_turn(run)) for run in runs]
        except BaseExceptionGroup as several:
            await self.benchmarks.requeue(self.tenant, running, judging_too=True)
            # The first error ended all others.
            raise several.exceptions[0] from None
        except BaseException:
            await self.benchmarks.requeue(self.tenant, running, judging_too=True)
            raise
        return [task.result() for task in tasks]

    async def _run_one(self, run: TaskRun) -> Rollout:
        """Run one task; an error is recorded with its run and does not stop the others.

        Raises AuthorError for a command that cannot run at all: it would fail for every task.
        """
        try:
            started = await self._start(run)
        except TaskRunStateError:
            # The run was cancelled, or started by another process.
            return Rollout(self.benchmarks.reader.run(self._scope, run.id))
        except Unreachable as problem:
            # It was not started, so it can be started once the environment answers.
            return Rollout(self.benchmarks.reader.run(self._scope, run.id), trouble=str(problem))
        except Exception as problem:  # noqa: BLE001 - a world may break in any way
            return await self._cancel_run(run, problem)
        try:
            return await self._run_and_complete(started)
        except AuthorError:
            raise
        except Exception as problem:  # noqa: BLE001 - as above
            return await self._cancel_run(run, problem)

    @property
    def _scope(self) -> Scope:
        return Scope(self.tenant)

    async def _start(self, run: TaskRun) -> TaskRunStart:
        """Complete a running run, with retries while its environment does not answer."""
        for wait_s in RETRY.waits_s():
            try:
                return await self.benchmarks.start(self._scope, run.id)
            except Unreachable:
                await asyncio.sleep(wait_s)
        return await self.benchmarks.start(self._scope, run.id)

    async def _run_and_complete(self, started: TaskRunStart) -> Rollout:
        run = started.run
        answer_file = self.logs.of(run).with_suffix(".answer") if self.answers else None
        self.observer.entered(run, RolloutState.RUNNING)
        ran = await run_agent(
            self.command,
            started,
            environment=self.environment,
            log=self.logs.of(run),
            within_s=self._seconds(started),
            answer=answer_file,
        )
        self.logs.save_exit(run, ran)
        answer = None if answer_file is None else read_answer(answer_file)
        self.observer.entered(run, RolloutState.JUDGING)
        ended = await self.benchmarks.complete(self._scope, run.id, answer=answer)
        if ended.status is RunStatus.CANCELLED:
            # Cancelled by a caller that could not remove its environment.
            await self.benchmarks.cancel(self.tenant, [run.id])
        return Rollout(ended, ran)

    async def _cancel_run(self, run: TaskRun, problem: Exception) -> Rollout:
        (given_up,) = await self.benchmarks.cancel(self.tenant, [run.id])
        return Rollout(given_up, trouble=str(problem) if isinstance(problem, MeruitError) else describe(problem))

    def _seconds(self, started: TaskRunStart) -> float:
        deadline = started.run.deadline
        # A run that was started has one.
        assert deadline is not None  # noqa: S101
        left = (deadline - self.benchmarks.store.surroundings.clock()).total_seconds() + LATE_S
        return left if self.timeout_s is None else min(left, self.timeout_s)
