"""What tools and verifiers are given: what a run carries with it, and what only this worker knows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from meruit.gate.state import VerificationState
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult


class CriteriaJudgement(Record, frozen=True):
    """The judgement of criteria on a candidate, with the work that they judged."""

    criteria: dict[str, Any]
    input: dict[str, Any]
    output: dict[str, Any]
    metadata: dict[str, Any]
    result: VerificationResult


class AgentContext(BaseModel):
    """State that a run carries from turn to turn and from worker to worker; subclass it to carry more."""

    run_id: str = ""
    agent: str = ""
    query: str = ""
    """The request of the caller."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The conversation so far, as chat messages."""
    turn: int = 0
    payload: dict[str, Any] = Field(default_factory=dict)
    """Values for tools to read and write; recorded with every turn."""
    verification: VerificationState = Field(default_factory=VerificationState)


@dataclass(frozen=True)
class ExecutionContext:
    """What only this worker knows of a run; not stored."""

    run_id: str = ""
    owner: str = ""
    """Token of the worker that drives the run."""
    retries: int = 0
    """Retries of the run after an error."""
    # Any: dependencies that the worker was started with.
    deps: Any = None
    progress: Callable[[str], None] = field(default=lambda _text: None)
    """Report progress, in one line, to the log of the worker."""
    record: Callable[[CriteriaJudgement], None] = field(default=lambda _judgement: None)
    """Record the judgement of criteria; it becomes an outcome together with the verdict."""

    def with_record(self, record: Callable[[CriteriaJudgement], None]) -> "ExecutionContext":
        """Return a copy with another `record` function."""
        return ExecutionContext(
            run_id=self.run_id,
            owner=self.owner,
            retries=self.retries,
            deps=self.deps,
            progress=self.progress,
            record=record,
        )
