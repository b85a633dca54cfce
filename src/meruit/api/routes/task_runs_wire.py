"""Runs as they go over the wire: what is asked for, what is answered, and the little of it that agents are shown."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.routes.benchmarks import BENCHMARK_NAME, BENCHMARK_SLUG
from meruit.api.wire import Body, Label, Reason
from meruit.benchmarks.evidence import completion as told_of
from meruit.benchmarks.service import MAX_REPEATS, TaskRunStart
from meruit.benchmarks.store.transitions import CreateRuns
from meruit.model.record import Record
from meruit.model.task import MAX_TASKS
from meruit.model.task_run import BenchmarkRun, CriterionRun, RunStatus, TaskRun
from meruit.model.verdict import Verdict

BenchmarkName = Annotated[str, Meta(pattern=BENCHMARK_NAME, description="`slug@version`, or `slug` for the newest.")]
TaskId = Annotated[str, Meta(pattern=BENCHMARK_SLUG)]


class BenchmarkRunRequest(Body, frozen=True):
    """An agent to be put to the tasks of a benchmark."""

    benchmark: BenchmarkName
    tasks: Annotated[list[TaskId], Meta(min_length=1, max_length=MAX_TASKS)] | None = None
    """Only these; all when not given."""
    repeats: Annotated[int, Meta(ge=1, le=MAX_REPEATS)] = 1
    scored: bool = True
    """Whether it counts; then what the agent is judged by stays hidden."""
    agent_id: Label | None = None
    """Whose key may start and complete the runs, beside operators'."""


class TaskRunRequest(Body, frozen=True):
    """An agent to be put to one task."""

    benchmark: BenchmarkName
    task: TaskId
    scored: bool = True
    agent_id: Label | None = None


class RejudgeRequest(Body, frozen=True):
    """Why a run is judged anew, and by which version."""

    reason: Reason
    benchmark: BenchmarkName | None = None
    """Another version of its benchmark; the run's own when not given."""


class CreatedTaskRun(Record, frozen=True):
    """A task run that can be started."""

    id: str
    task: str
    attempt: int


class CreatedBenchmarkRun(Record, frozen=True):
    """A benchmark run, and the task runs that it is made of."""

    id: str
    benchmark: str
    version: int
    repeats: int
    scored: bool
    agent_id: str | None
    task_runs: list[CreatedTaskRun]


class AgentBenchmarkRun(Record, frozen=True, omit_defaults=True):
    """What an agent sees of its own; how it ended only where each of its task runs tells that."""

    id: str
    benchmark: str
    version: int
    repeats: int
    scored: bool
    created_at: datetime
    counts: dict[str, int]
    ended: bool
    verdict: Verdict | None = None
    score: float | None = None


class AgentTaskRun(Record, frozen=True, omit_defaults=True):
    """What an agent sees of its own; how it ended as far as its task reveals that."""

    id: str
    benchmark: str
    version: int
    task: str
    attempt: int
    status: RunStatus
    scored: bool
    created_at: datetime
    benchmark_run_id: str | None = None
    started_at: datetime | None = None
    deadline: datetime | None = None
    ended_at: datetime | None = None
    verdict: Verdict | None = None
    score: float | None = None
    # Any: as the completion has them.
    axes: dict[str, Any] | None = None


class StartedTaskRun(Record, frozen=True):
    """What an agent needs to begin."""

    task_run_id: str
    status: RunStatus
    instruction: str
    started_at: datetime | None
    deadline: datetime | None
    # Any: whatever systems there are, each has an address of its own.
    access: dict[str, Any]
    """The playground's id, secret and endpoints; empty where the task is done elsewhere."""


class BenchmarkRunPage(Record, frozen=True):
    """Benchmark runs, newest first, without what they came to."""

    benchmark_runs: list[BenchmarkRun]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


class AgentBenchmarkRunPage(Record, frozen=True):
    """An agent's own benchmark runs, newest first."""

    benchmark_runs: list[AgentBenchmarkRun]
    next: int | None


class TaskRunPage(Record, frozen=True):
    """Task runs, newest first."""

    task_runs: list[TaskRun]
    next: int | None
    """Give it as `before` for the next page; None at the end."""


class AgentTaskRunPage(Record, frozen=True):
    """An agent's own task runs, newest first."""

    task_runs: list[AgentTaskRun]
    next: int | None


class CriterionRuns(Record, frozen=True):
    """Every criterion of a task run, in their order."""

    criterion_runs: list[CriterionRun]


def render_created_benchmark_run(wish: CreateRuns, made: list[TaskRun]) -> bytes:
    """A benchmark run that was made, as it is answered."""
    created = CreatedBenchmarkRun(
        wish.benchmark_run_id or "",
        *(wish.slug, wish.version, wish.repeats, wish.scored, wish.agent_id),
        [CreatedTaskRun(run.id, run.task, run.attempt) for run in made],
    )
    return msgspec.json.encode(created)


def benchmark_run_to_agent(run: BenchmarkRun, *, tells: bool = False) -> AgentBenchmarkRun:
    """What an agent is shown of its own benchmark run; how it ended only where that is told."""
    result = run.result if tells else None
    return AgentBenchmarkRun(
        *(run.id, run.benchmark, run.version, run.repeats, run.scored, run.created_at, run.counts, run.ended),
        *((None, None) if result is None else (result.verdict, result.score)),
    )


def task_run_to_agent(run: TaskRun) -> AgentTaskRun:
    """What an agent is shown of its own task run."""
    told = told_of(run, None, [])
    return AgentTaskRun(
        *(run.id, run.benchmark, run.version, run.task, run.attempt, run.status, run.scored, run.created_at),
        *(run.benchmark_run_id, run.started_at, run.deadline, run.ended_at),
        *(told.verdict, told.score, told.axes),
    )


def render_started_task_run(started: TaskRunStart) -> bytes:
    """A task run that was started, as it is answered."""
    run = started.run
    return msgspec.json.encode(
        StartedTaskRun(run.id, run.status, started.instruction, run.started_at, run.deadline, started.access)
    )
