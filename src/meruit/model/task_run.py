"""Benchmark runs: task runs, the criterion runs in each, and their summary."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

import msgspec

from meruit.model.evidence import Fault
from meruit.model.record import Record
from meruit.model.task import Reveal
from meruit.model.verdict import AxisScore, Bounds, Reason, Verdict


class RunStatus(StrEnum):
    """State of a task run."""

    PENDING = "pending"
    """Not started: its environment does not exist yet."""
    RUNNING = "running"
    COMPLETED = "completed"
    TIMED_OUT = "timed_out"
    """Not completed in time, and therefore 0."""
    CANCELLED = "cancelled"
    """Cancelled by the operator; not part of the mean, but listed."""


JUDGING = "judging"
"""Shown for a running task run whose agent has completed it, until its verdict is given."""
ENDED = frozenset({RunStatus.COMPLETED, RunStatus.TIMED_OUT, RunStatus.CANCELLED})


class CriterionStatus(StrEnum):
    """How one criterion of a task run ended."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    """Could not be judged; it has no score."""
    SKIPPED = "skipped"
    """Does not apply; its weight is left out."""


class TaskRunAxis(Record, frozen=True):
    """One axis of a task run."""

    score: float | None
    """Its weighted mean; null where a part of it could not be judged, so that it is open and not 0."""
    weight: float
    passed: int
    total: int
    bounds: Bounds

    @classmethod
    def of(cls, axis: AxisScore) -> Self:
        """Read it from a verdict."""
        is_open = axis.bounds.low != axis.bounds.high
        score = None if is_open else axis.score
        return cls(score=score, weight=axis.weight, passed=axis.passed, total=axis.total, bounds=axis.bounds)


class TaskRunProgress(Record, frozen=True):
    """What happens to a task run now."""

    id: str
    task: str
    attempt: int
    state: str
    """`pending`, `running`, `judging`, `completed`, `timed_out` or `cancelled`."""
    seconds: float | None
    """Since its start, until now or its end; null before it starts."""
    seconds_left: float | None
    """Until its deadline, while it runs."""
    last_event: str | None
    """The newest event of its environment, in words; null before the first, and where it is not served here."""


ACTS_KEY = "acts"
"""The key of the metadata of a task run's outcome with its ActLog."""


class AgentAct(Record, frozen=True):
    """Something that an agent did in its environment, or that a system did in reply."""

    at: str
    type: str
    """As `fhir_create` or `hl7_outbound`."""
    system: str | None = None
    """The kind of system; null for an act that is not about an item."""
    key: str | None = None
    """The item that it happened to, if any."""
    facts: Mapping[str, Any] = {}
    """What the system notes beside it; left out where it is long."""


class ActLog(Record, frozen=True):
    """What was done in the environment of a task run, oldest first, as its playground recorded it."""

    acts: tuple[AgentAct, ...] = ()
    more: bool = False
    """Whether there were more acts than are kept."""
    trouble: str = ""
    """Why the acts could not be read."""


class TaskRun(Record, frozen=True):
    """One agent at one task, in an environment of its own."""

    id: str
    seq: int
    benchmark: str
    version: int
    task: str
    attempt: int
    """Counted from 1 where a task is repeated."""
    status: RunStatus
    scored: bool
    """Whether it counts; then its rubric is hidden."""
    reveal: Reveal
    created_at: datetime
    created_by: str
    agent_id: str | None = None
    benchmark_run_id: str | None = None
    started_at: datetime | None = None
    deadline: datetime | None = None
    ended_at: datetime | None = None
    playground_id: str | None = None
    outcome_id: str | None = None
    """The record of what was found and decided."""
    outcome_version: int | None = None
    """The version of its verdict that counts here."""
    judged_version: int | None = None
    """The version of the benchmark whose criteria gave it, once that is another than the one that was run."""
    verdict: Verdict | None = None
    score: float | None = None
    exact: str | None = None
    exact_high: str | None = None
    """The upper of the bounds as a fraction; the lower is the score."""
    bounds: Bounds | None = None
    coverage: float | None = None
    axes: dict[str, TaskRunAxis] = msgspec.field(default_factory=dict)


class CriterionRun(Record, frozen=True):
    """One criterion of a task run, with all the evidence."""

    id: str
    task_run_id: str
    position: int
    label: str
    check: str
    axis: str
    weight: float
    status: CriterionStatus
    score: float | None
    """None on an error and where it was skipped."""
    passed: bool
    required: bool
    fault: Fault
    details: str | None
    """Why it could not be judged, or what it fails on, in a sentence."""
    evidence: dict[str, Any]
    """The evidence in the form that the check defines."""
    took_ms: float | None = None


class CriterionLine(Record, frozen=True):
    """What the agent sees of one criterion in a run that does not count."""

    id: str
    label: str
    axis: str
    weight: float
    status: CriterionStatus
    score: float | None
    passed: bool
    details: str | None
    evidence: dict[str, Any]


class Completion(Record, frozen=True, omit_defaults=True):
    """The reply to a completion. Hidden fields are absent, not null."""

    task_run_id: str
    status: RunStatus
    verdict: Verdict | None = None
    score: float | None = None
    axes: dict[str, Any] | None = None
    coverage: float | None = None
    bounds: Bounds | None = None
    reasons: list[Reason] | None = None
    passed: dict[str, bool] | None = None
    """By label, where the task reveals criteria and no more."""
    criteria: list[CriterionLine] | None = None
    """Where the run does not count."""


class TaskScore(Record, frozen=True):
    """How one task of a benchmark run went, over its repeats."""

    task: str
    runs: int
    """That count: those that were not cancelled."""
    passes: int
    score: float
    bounds: Bounds
    verdicts: dict[str, int]


class ConfidenceInterval(Record, frozen=True):
    """A 95% confidence interval."""

    low: float
    high: float


class BenchmarkScore(Record, frozen=True):
    """Summary of a benchmark run whose task runs have all ended."""

    verdict: Verdict
    score: float
    exact: str
    bounds: Bounds
    pass_rate: float
    pass_rate_interval: ConfidenceInterval | None
    score_interval: ConfidenceInterval | None
    worst_task: str | None
    coverage: float
    """The share of the weight that could be measured, over all runs."""
    runs: int
    timed_out: int
    cancelled: list[str]
    """Cancelled task runs, which do not count."""
    inconclusive: int
    pass_at_k: dict[str, float]
    """By k: the chance that at least one of k tries passes."""
    pass_hat_k: dict[str, float]
    """By k: the chance that all of k tries pass."""
    tasks: list[TaskScore]
    reasons: list[str] = msgspec.field(default_factory=list)


class BenchmarkRun(Record, frozen=True):
    """One agent at all tasks of a benchmark."""

    id: str
    seq: int
    benchmark: str
    version: int
    repeats: int
    scored: bool
    created_at: datetime
    created_by: str
    agent_id: str | None
    counts: dict[str, int]
    """Task runs by status."""
    ended: bool
    result: BenchmarkScore | None = None
    """Only when every task run has ended."""
