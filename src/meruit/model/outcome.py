"""A recorded outcome: the criteria, the work, the verdict, and every version of it."""

from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from meruit.model.criterion import SuccessCriteria, criteria_digest
from meruit.model.record import Record
from meruit.model.verdict import Verdict, VerificationResult

MAX_LABEL = 200
"""Characters of an id or label that a caller gives."""


class Labels(Record, frozen=True):
    """The ids and labels that the client records with an outcome."""

    contract_id: str | None = None
    """The outcome's own id when no contract is named."""
    agent_id: str | None = None
    consumer_id: str | None = None
    domain: str | None = None


class OutcomeSummary(Record, frozen=True):
    """One line of a list: the latest version, without evidence."""

    id: str
    seq: int
    """Its position among all outcomes, for paging."""
    contract_id: str
    agent_id: str | None
    consumer_id: str | None
    domain: str | None
    created_at: datetime
    version: int
    verdict: Verdict
    success: bool
    score: float
    criteria_digest: str
    by_agent: bool = False
    """Whether the agent submitted it itself, without a contract."""


class VerdictVersion(Record, frozen=True):
    """One verdict on an outcome; a later one never changes it."""

    version: int
    criteria_digest: str
    verdict: Verdict
    success: bool
    score: float
    reason: str
    created_at: datetime
    leaf: int
    """Its place in the audit log."""
    result: VerificationResult | None
    """None once erased."""


class AgentOutcome(Record, frozen=True):
    """What an agent may see of its own outcome: the verdict and nothing else."""

    id: str
    contract_id: str
    created_at: datetime
    version: int
    verdict: Verdict
    success: bool
    score: float | None
    """Rounded down to 0, 0.5 or 1, unless the contract is paid; null where the terms show the verdict only."""


class OutcomeRecord(BaseModel):
    """An outcome, persisted for audit and training."""

    model_config = ConfigDict(defer_build=True, frozen=True)

    id: str
    contract_id: str
    agent_id: str | None
    consumer_id: str | None
    domain: str | None
    success_criteria: SuccessCriteria
    verification_result: VerificationResult | None
    """None once erased."""
    execution_metadata: dict[str, Any] | None
    billing_impact: dict[str, Any]
    """`cpc_base`, `bonus`, `penalty`, `total`; base and total are None where no contract prices the work."""
    created_at: datetime
    """In UTC where no zone is given."""
    version: int = 1
    reason: str = ""
    criteria_digest: str = Field(default_factory=lambda given: criteria_digest(given["success_criteria"]))
    work_input: dict[str, Any] | None = None
    work_output: dict[str, Any] | None = None

    @field_validator("created_at")
    @classmethod
    def _in_utc(cls, at: datetime) -> datetime:
        return at.replace(tzinfo=UTC) if at.tzinfo is None else at
