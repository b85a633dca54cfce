"""Evaluations: a named set of cases, each judged by the same criteria."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from meruit.model.evidence import Fault
from meruit.model.record import Record
from meruit.model.verdict import Status, Verdict

MAX_NAME = 200
"""Characters of the name of an evaluation, a case, a group or a tag."""
MAX_TAGS = 32
"""Tags of a case or an evaluation."""
STATUS_LETTERS: Mapping[Status, str] = {
    Status.MET: "m",
    Status.NOT_MET: "n",
    Status.INDETERMINATE: "i",
    Status.EXCLUDED: "x",
}
"""How the index of cases writes the status of each criterion: one letter, in the order of the criteria."""


class EvaluationStatus(StrEnum):
    """How far an evaluation is."""

    RUNNING = "running"
    """Cases are still being recorded, or its process ended before it was finished; it can be continued."""
    FINISHED = "finished"
    """Every case is recorded."""


class CaseError(StrEnum):
    """Why a case has nothing to be judged; it is inconclusive, never a failure of the agent."""

    TARGET_ERROR = "target_error"
    """What was to make the output failed."""
    TARGET_TIMEOUT = "target_timeout"
    """It took longer than its limit."""
    ORIGIN_ERROR = "origin_error"
    """The tool that an imported case comes from recorded an error."""


class Case(Record, frozen=True):
    """One case as it is handed in: the work, and what it belongs to."""

    id: str
    """Unique in its evaluation; cases of two evaluations are compared by it."""
    input: Mapping[str, Any] = {}
    output: Mapping[str, Any] | None = None
    """None where a target is still to make it, or could not."""
    metadata: Mapping[str, Any] = {}
    group: str | None = None
    """Cases that share something, such as a document or a conversation; intervals allow for it."""
    tags: Mapping[str, str] = {}
    repeat: int = 0
    """Which of several tries of the same case."""
    claimed: str | None = None
    """The verdict of the tool that it comes from; shown beside ours, never used for it."""
    error: CaseError | None = None
    error_message: str = ""
    cost_micros: int | None = None
    """What making the output cost, in millionths of a dollar."""


class CaseSummary(Record, frozen=True):
    """One line of a list of cases."""

    case_id: str
    repeat: int
    seq: int
    """Its position in the evaluation, from 1."""
    outcome_id: str
    version: int
    verdict: Verdict
    success: bool
    score: float
    statuses: str
    """One letter for each criterion: met, not met, indeterminate, or x for excluded."""
    group: str | None = None
    tags: Mapping[str, str] = {}
    claimed: str | None = None
    error: CaseError | None = None
    faults: tuple[Fault, ...] = ()
    """Who is responsible for what was not met or not measured; empty where all criteria are met."""
    latency_ms: float | None = None
    cost_micros: int | None = None

    @property
    def is_disputed(self) -> bool:
        """Whether the origin claimed another verdict. Most tools have no `partial`: they say whether it was enough."""
        if self.claimed is None or self.claimed == self.verdict.value:
            return False
        enough = (Verdict.PASS if self.success else Verdict.FAIL).value
        return self.verdict is not Verdict.PARTIAL or self.claimed != enough


class DatasetRecord(Record, frozen=True):
    """One version of a dataset: named cases that do not change."""

    name: str
    version: int
    """Counted from 1."""
    digest: str
    """SHA-256 of its cases in canonical form; equal for equal cases from any file."""
    rows: int
    """How many cases it has."""
    created_at: datetime
    source: str = ""
    """The name of the file that it comes from."""

    @property
    def reference(self) -> str:
        """As commands take it: `capitals@2`."""
        return f"{self.name}@{self.version}"


class EvaluationRecord(Record, frozen=True):
    """An evaluation and how far it is."""

    id: str
    name: str
    status: EvaluationStatus
    criteria_digest: str
    cases: int
    """Recorded so far."""
    segments: int
    started_at: datetime
    ended_at: datetime | None = None
    planned: int | None = None
    """How many cases there will be, where that is known."""
    dataset_digest: str | None = None
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Model, prompt, version of the code: what distinguishes it from others."""
