"""A run of an agent as others see it: where it stands, what it submitted, and how each submission was answered."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from meruit.gate.state import VerificationEnding, VerificationState
from meruit.model.chat import Usage
from meruit.model.record import Record


class RunState(StrEnum):
    """Where a run stands."""

    QUEUED = "queued"
    """Waits for a worker, or for the end of a pause."""
    RUNNING = "running"
    WAITING = "waiting"
    """For something that only others can do."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class RunFailureReason(StrEnum):
    """Why a run failed, besides what its verifier may end it for."""

    ERROR = "error"
    """The agent's own code or its model broke, too often or for good."""
    TURNS = "turns"
    DEADLINE = "deadline"
    POISON = "poison"
    """Worker after worker died of it."""
    MEMBER = "member"
    """A member of a team failed, and the team cannot go on."""


class RunRequest(Record, frozen=True):
    """What a run is asked to do, kept as it was asked."""

    query: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the agent's context begins with."""
    max_attempts: int | None = None
    """The run's own budget, before its agent's."""
    max_seconds: float | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class SubmissionOutcome(StrEnum):
    """How a submission was answered."""

    PASSED = "passed"
    REJECTED = "rejected"
    SCHEMA_ERROR = "schema_error"
    """Not of the output's shape; no attempt."""


class GateSubmissionSummary(Record, frozen=True):
    """One candidate and what became of it, as far as whoever handed it in may know."""

    submission_id: str
    number: int
    """Counted from 1 in its run."""
    turn: int
    candidate_hash: str | None
    outcome: SubmissionOutcome
    counted: bool
    attempt: int
    at: datetime
    code: str | None = None
    retryable: bool = True
    ending: VerificationEnding | None = None
    """Where it ended its run."""
    feedback: str | None = None


class GateSubmission(GateSubmissionSummary, frozen=True):
    """The same with what it was judged by: the digest of private criteria could be guessed at."""

    verifier_version: str | None = None
    outcome_id: str | None = None
    """Of the outcome that was recorded with it."""


class AgentRun(Record, frozen=True):
    """One run of an agent or a team."""

    id: str
    seq: int
    agent: str
    status: RunState
    request: RunRequest
    created_at: datetime
    created_by: str
    parent_id: str | None = None
    """The team run that it is a part of."""
    item: str | None = None
    """Its place in the team's plan."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    wake_at: datetime | None = None
    """When it is taken up again, where it pauses or waits."""
    turn: int = 0
    retries: int = 0
    takeovers: int = 0
    """How often in a row, without a step done, a worker took it over from one that died."""
    verification: VerificationState = VerificationState()
    usage: Usage = Usage()
    result: Any = None
    """What the verifier returned, once it passed."""
    ending: str | None = None
    """Why it failed."""
    error: str | None = None
    """What went wrong: for good where it failed, the last time where it is tried again at `wake_at`."""
    waiting_for: str | None = None
    """The key under which others must hand something in before it goes on."""
    note: str | None = None
    """What that is, in the words of the tool that asks for it."""
