"""A run of an agent, its request, its status, and its submissions with their answers."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from meruit.gate.state import VerificationEnding, VerificationState
from meruit.model.chat import Usage
from meruit.model.record import Record


class RunState(StrEnum):
    """The status of a run."""

    QUEUED = "queued"
    """Waits for a worker, or for the end of a pause."""
    RUNNING = "running"
    WAITING = "waiting"
    """Waits for a value that a client must provide."""
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINAL_STATES = frozenset({RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED})


class RunFailureReason(StrEnum):
    """Why a run failed, besides the endings of its verification."""

    ERROR = "error"
    """The agent's own code or its model failed, permanently or too often."""
    TURNS = "turns"
    DEADLINE = "deadline"
    POISON = "poison"
    """Several workers in a row died while they had the run."""
    MEMBER = "member"
    """A member of a team failed."""


class RunRequest(Record, frozen=True):
    """The request of a run, as the client sent it."""

    query: str
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    """Initial values of the agent's context."""
    max_attempts: int | None = None
    """The run's own budget; overrides its agent's."""
    max_seconds: float | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)


class SubmissionOutcome(StrEnum):
    """The outcome of a submission."""

    PASSED = "passed"
    REJECTED = "rejected"
    SCHEMA_ERROR = "schema_error"
    """Does not match the schema of the output; not an attempt."""


class GateSubmissionSummary(Record, frozen=True):
    """One submission and its outcome, without what the agent may not see."""

    submission_id: str
    number: int
    """From 1, in its run."""
    turn: int
    candidate_hash: str | None
    outcome: SubmissionOutcome
    counted: bool
    attempt: int
    at: datetime
    code: str | None = None
    retryable: bool = True
    ending: VerificationEnding | None = None
    """Set where it ended its run."""
    feedback: str | None = None


class GateSubmission(GateSubmissionSummary, frozen=True):
    """A submission with its verifier, for operators: the digest of private criteria could be guessed."""

    verifier_version: str | None = None
    outcome_id: str | None = None
    """The outcome that was recorded with it."""


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
    """The team run that it is a member of."""
    item: str | None = None
    """Its item in the team's plan."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    wake_at: datetime | None = None
    """When it continues, where it pauses or waits."""
    turn: int = 0
    retries: int = 0
    takeovers: int = 0
    """Times in a row that a worker took it over from a dead one, without a new step."""
    verification: VerificationState = VerificationState()
    usage: Usage = Usage()
    result: Any = None
    """The return value of the verifier, after a pass."""
    ending: str | None = None
    """Code of why it failed."""
    error: str | None = None
    """The final error where it failed, or the last one where it is retried at `wake_at`."""
    waiting_for: str | None = None
    """The key of the value that a client must provide."""
    note: str | None = None
    """What that value is, in the words of the tool or verifier that asks for it."""
    is_hosted: bool = False
    """Whether it is open in a host's own loop; no worker drives it."""
