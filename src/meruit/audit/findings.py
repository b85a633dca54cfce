"""What checking a bundle comes to: step by step, and where it first fails."""

from enum import StrEnum

from meruit.errors import AuditStep
from meruit.model.record import Record


class AuditStepState(StrEnum):
    """How a step ended."""

    OK = "ok"
    FAILED = "failed"
    SKIPPED = "skipped"
    """There was nothing left that could be checked."""
    NOT_REACHED = "not reached"


class StepFinding(Record, frozen=True):
    """One step, and what was found."""

    step: AuditStep
    state: AuditStepState
    message: str


class Findings(Record, frozen=True):
    """What checking a bundle came to."""

    outcome: str | None
    """None when the bundle could not be read so far."""
    failed: AuditStep | None
    """The first step that fails; None when all is as it should be."""
    steps: list[StepFinding]
    notes: list[str]
    """What was not checked, and what the checks rest on."""


def step_ok(step: AuditStep, message: str) -> StepFinding:
    """A step that holds."""
    return StepFinding(step, AuditStepState.OK, message)
