"""What checking a bundle comes to: step by step, and where it first fails."""

from enum import StrEnum

from meruit.errors import MeruitError
from meruit.model.record import Record

FIRST_EXIT_CODE = 10
"""Of a check that fails at the first step; each later step has the next one."""


class AuditStep(StrEnum):
    """What is checked, in this order; each step may rely on those before it."""

    BUNDLE = "bundle"
    """It can be read at all."""
    SIGNATURE = "signature"
    """The checkpoints and the statement are signed by the key."""
    INCLUSION = "inclusion"
    """Every entry is in the log that the checkpoint signs."""
    CONSISTENCY = "consistency"
    """The log of today continues the log of then."""
    SEQUENCE = "sequence"
    """Nothing is left out, added or out of order."""
    BLOBS = "blobs"
    """Criteria, work and results are those that the entries commit to."""
    METRICS = "metrics"
    """The work has the values that the results say."""
    JUDGE = "judge"
    """The values lead to the verdicts."""
    STATEMENT = "statement"
    """The statement says what the latest verdict says."""
    GOVERNANCE = "governance"
    """What was known leads to the flags that were raised."""
    SETTLEMENT = "settlement"
    """The verdicts and the terms lead to what was paid, and no money was made or lost."""

    @property
    def exit_code(self) -> int:
        """How `meruit audit verify` ends when this is the first step that fails."""
        return FIRST_EXIT_CODE + [*AuditStep].index(self)


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


class BundleFlaw(MeruitError):
    """What is wrong with a bundle, and at which step it shows."""

    def __init__(self, step: AuditStep, what: str) -> None:
        self.step = step
        super().__init__(what)
