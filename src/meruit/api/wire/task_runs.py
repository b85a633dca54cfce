"""Requests and replies of benchmark runs and task runs, and the part that agents may see."""

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire.common import BENCHMARK_NAME, BENCHMARK_SLUG, Body, Label, Reason
from meruit.benchmarks.evidence import completion as completion_of
from meruit.benchmarks.records import CreateRuns
from meruit.benchmarks.service import MAX_REPEATS, TaskRunStart
from meruit.errors import ApiProblem
from meruit.model.decoding import decode_json
from meruit.model.record import Record
from meruit.model.task import MAX_TASKS
from meruit.model.task_run import BenchmarkRun, CriterionRun, RunStatus, TaskRun
from meruit.model.verdict import Verdict

BenchmarkName = Annotated[str, Meta(pattern=BENCHMARK_NAME, description="`slug@version`, or `slug` for the newest.")]
TaskId = Annotated[str, Meta(pattern=BENCHMARK_SLUG)]


class BenchmarkRunRequest(Body, frozen=True):
    """A benchmark run to create."""

    benchmark: BenchmarkName
    tasks: Annotated[list[TaskId], Meta(min_length=1, max_length=MAX_TASKS)] | None = None
    """Ids of tasks (default: all)."""
    repeats: Annotated[int, Meta(ge=1, le=MAX_REPEATS)] = 1
    scored: bool = True
    """Whether the run counts; the criteria of a scored run stay hidden."""
    agent_id: Label | None = None
    """The agent whose key may start and complete the runs, beside operators."""


class TaskRunRequest(Body, frozen=True):
    """A task run to create."""

    benchmark: BenchmarkName
    task: TaskId
    scored: bool = True
    agent_id: Label | None = None


class RejudgeRequest(Body, frozen=True):
    """Why a run is judged again, and by which version."""

    reason: Reason
    benchmark: BenchmarkName | None = None
    """Version of the benchmark (default: the version of the run)."""


class CreatedTaskRun(Record, frozen=True):
    """A task run that is ready to start."""

    id: str
    task: str
    attempt: int


class CreatedBenchmarkRun(Record, frozen=True):
    """A benchmark run with its task runs."""

    id: str
    benchmark: str
    version: int
    repeats: int
    scored: bool
    agent_id: str | None
    task_runs: list[CreatedTaskRun]


class AgentBenchmarkRun(Record, frozen=True, omit_defaults=True):
    """What an agent sees of its own benchmark run; the result only if every task reveals it."""

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
    """What an agent sees of its own task run; the result as far as the task reveals it."""

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
    # Any: as in the completion.
    axes: dict[str, Any] | None = None


class StartedTaskRun(Record, frozen=True):
    """What an agent needs to start."""

    task_run_id: str
    status: RunStatus
    instruction: str
    started_at: datetime | None
    deadline: datetime | None
    # Any: each system of an environment has its own address.
    access: dict[str, Any]
    """Id, secret and endpoints of the playground; empty if the task uses none."""


class BenchmarkRunPage(Record, frozen=True):
    """Benchmark runs without results, newest first."""

    benchmark_runs: list[BenchmarkRun]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


class AgentBenchmarkRunPage(Record, frozen=True):
    """An agent's own benchmark runs, newest first."""

    benchmark_runs: list[AgentBenchmarkRun]
    next: int | None


class TaskRunPage(Record, frozen=True):
    """Task runs, newest first."""

    task_runs: list[TaskRun]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""


class AgentTaskRunPage(Record, frozen=True):
    """An agent's own task runs, newest first."""

    task_runs: list[AgentTaskRun]
    next: int | None


class CriterionRuns(Record, frozen=True):
    """Every criterion of a task run, in order."""

    criterion_runs: list[CriterionRun]


def render_created_benchmark_run(creation: CreateRuns, made: list[TaskRun]) -> bytes:
    """Render the reply about a created benchmark run."""
    created = CreatedBenchmarkRun(
        id=creation.benchmark_run_id or "",
        benchmark=creation.slug,
        version=creation.version,
        repeats=creation.repeats,
        scored=creation.scored,
        agent_id=creation.agent_id,
        task_runs=[CreatedTaskRun(run.id, run.task, run.attempt) for run in made],
    )
    return msgspec.json.encode(created)


def benchmark_run_to_agent(run: BenchmarkRun, *, shows_result: bool = False) -> AgentBenchmarkRun:
    """Convert a benchmark run for its own agent."""
    result = run.result if shows_result else None
    return AgentBenchmarkRun(
        run.id,
        run.benchmark,
        run.version,
        run.repeats,
        run.scored,
        run.created_at,
        run.counts,
        run.ended,
        *((None, None) if result is None else (result.verdict, result.score)),
    )


def task_run_to_agent(run: TaskRun) -> AgentTaskRun:
    """Convert a task run for its own agent."""
    shown = completion_of(run, None, [])
    return AgentTaskRun(
        id=run.id,
        benchmark=run.benchmark,
        version=run.version,
        task=run.task,
        attempt=run.attempt,
        status=run.status,
        scored=run.scored,
        created_at=run.created_at,
        benchmark_run_id=run.benchmark_run_id,
        started_at=run.started_at,
        deadline=run.deadline,
        ended_at=run.ended_at,
        verdict=shown.verdict,
        score=shown.score,
        axes=shown.axes,
    )


def render_started_task_run(started: TaskRunStart) -> bytes:
    """Render the reply about a started task run."""
    run = started.run
    return msgspec.json.encode(
        StartedTaskRun(
            task_run_id=run.id,
            status=run.status,
            instruction=started.instruction,
            started_at=run.started_at,
            deadline=run.deadline,
            access=started.access,
        )
    )


class CompletionRequest(Body, frozen=True):
    """What an agent sends when it completes a task run."""

    # Any: text or JSON.
    answer: Any = None
    """Its answer, where the task asks a question."""


# Any: as above.
def parse_answer(body: bytes) -> Any:
    """The answer in the body of a completion; None without a body. Raises ApiProblem."""
    if not body.strip():
        return None
    try:
        return decode_json(body, CompletionRequest).answer
    except msgspec.DecodeError as problem:
        raise ApiProblem(400, "bad_body", f'expected {{"answer": …}}: {problem}') from None
