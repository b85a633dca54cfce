"""What tools and verifiers are given: what a run carries with it, and what only this worker knows."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, Field

from meruit.gate.state import VerificationState
from meruit.model.record import Record
from meruit.model.verdict import VerificationResult


class CriteriaJudgement(Record, frozen=True):
    """What criteria said of a candidate, with all that it rests on."""

    criteria: dict[str, Any]
    input: dict[str, Any]
    output: dict[str, Any]
    metadata: dict[str, Any]
    result: VerificationResult


class AgentContext(BaseModel):
    """What a run carries from turn to turn and from worker to worker; subclass it to carry more."""

    run_id: str = ""
    agent: str = ""
    query: str = ""
    """What was asked for."""
    messages: list[dict[str, Any]] = Field(default_factory=list)
    """The conversation so far, as chat models have it."""
    turn: int = 0
    payload: dict[str, Any] = Field(default_factory=dict)
    """Whatever tools want to remember; kept with every turn."""
    verification: VerificationState = Field(default_factory=VerificationState)


@dataclass(frozen=True)
class ExecutionContext:
    """What this worker knows of a run; gone when it stops."""

    run_id: str = ""
    owner: str = ""
    """Of the run, for as long as nobody takes it over."""
    retries: int = 0
    """How often the run was taken up again after an error."""
    # Any: whatever the worker was started with.
    deps: Any = None
    progress: Callable[[str], None] = field(default=lambda _text: None)
    """Tells whoever watches what goes on."""
    record: Callable[[CriteriaJudgement], None] = field(default=lambda _judgement: None)
    """Takes what criteria said of a candidate; it becomes an outcome together with the verdict."""

    def with_record(self, record: Callable[[CriteriaJudgement], None]) -> "ExecutionContext":
        """The same, with somebody else to take what criteria say."""
        return ExecutionContext(self.run_id, self.owner, self.retries, self.deps, self.progress, record)
