"""The result of a verification: per criterion, per axis, and overall."""

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from meruit.model.evidence import Cause, Fault, Provenance, Value
from meruit.model.kinds import ComparisonOperator, MetricType
from meruit.model.record import Record


class Status(StrEnum):
    """How one criterion ended."""

    MET = "met"
    NOT_MET = "not_met"
    INDETERMINATE = "indeterminate"
    """Not measurable: neither a pass nor a failure."""
    EXCLUDED = "excluded"
    """Left out of the mean, as its author set."""


class Verdict(StrEnum):
    """The overall result, used by every part of Meruit."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    PARTIAL = "partial"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """A missing measurement could still change the outcome."""
    ERROR = "error"
    """Nothing could be judged at all."""


class ReasonCode(StrEnum):
    """Why the outcome is not a plain pass."""

    NO_CRITERIA = "no_criteria"
    NO_WEIGHT = "no_weight"
    NOTHING_REQUIRED = "nothing_required"
    NOTHING_MEASURED = "nothing_measured"
    NOT_MET = "not_met"
    REQUIRED_NOT_MET = "required_not_met"
    INDETERMINATE = "indeterminate"
    BELOW_MINIMUM = "below_minimum"
    GOVERNANCE_INVALID = "governance_invalid"
    GOVERNANCE_HOLD = "governance_hold"
    GOVERNANCE_UNAVAILABLE = "governance_unavailable"
    BAD_INPUT = "bad_input"
    NO_OUTPUT = "no_output"
    """A case of an evaluation whose output could not be made."""
    TOO_MANY_CRITERIA = "too_many_criteria"
    INTERNAL = "internal"


OF_GOVERNANCE = frozenset(
    {ReasonCode.GOVERNANCE_INVALID, ReasonCode.GOVERNANCE_HOLD, ReasonCode.GOVERNANCE_UNAVAILABLE}
)
"""Reasons that do not come from the judge, and stay when work is judged again."""


class Reason(Record, frozen=True, omit_defaults=True):
    """One sentence of the explanation."""

    code: ReasonCode
    message: str
    criterion_id: str | None = None


class GovernanceStatus(StrEnum):
    """Whether governance checked the outcome, and its answer."""

    NOT_CHECKED = "not_checked"
    CLEAR = "clear"
    INVALID = "invalid"
    REVIEW = "review"
    """The check failed, or found something that a person must review; payment waits for that."""
    RELEASED = "released"
    """A person reviewed it and confirmed the verdict."""


BELIEVED = frozenset({GovernanceStatus.CLEAR, GovernanceStatus.RELEASED})
"""Checked and accepted."""


class Bounds(Record, frozen=True):
    """The score if all that is missing were failed, and if it were met."""

    low: float
    high: float

    def __iter__(self) -> Iterator[float]:
        """Low, then high: `low, high = result.bounds`."""
        return iter((self.low, self.high))


class AxisScore(Record, frozen=True):
    """One axis: its own weighted mean."""

    score: float
    weight: float
    passed: int
    total: int
    bounds: Bounds


class CriterionResult(Record, frozen=True):
    """One criterion, judged."""

    metric: str
    """The metric's name, or the assertion's."""
    value: Value | None
    threshold: Any
    comparison: ComparisonOperator | None
    met: bool
    weight: float
    bonus: float | None
    """What this criterion earns; None once it is not met."""
    penalty: float | None
    """What this criterion costs; None once it is met."""
    error: str | None
    """Why it could not be judged."""
    criterion_id: str
    index: int
    status: Status
    score: float
    exact: str
    """The score as a fraction: `2/3`."""
    required: bool
    """Whether it gates success, after the rules of the aggregation."""
    axis: str
    cause: Cause | None = None
    fault: Fault = Fault.NONE
    provenance: Provenance | None = None
    details: Mapping[str, Any] | None = None
    natural: MetricType | None = None
    """The metric's own type, where we computed it; needed to judge percentages again."""


class VerificationResult(Record, frozen=True):
    """One piece of work, judged."""

    contract_id: str
    success: bool
    metrics: dict[str, Value]
    criterion_results: list[CriterionResult]
    weighted_score: float | None
    bonus: float
    """The sum over met criteria; what of it is payable is decided at settlement."""
    penalty: float
    governance_flags: list[str]
    verified_at: datetime
    verdict: Verdict
    score: float
    """The proven score: a missing measurement counts as 0 here, and shows in the bounds."""
    exact: str
    axes: dict[str, AxisScore]
    bounds: Bounds
    coverage: float
    """The share of the weight that could be measured."""
    reasons: list[Reason] = msgspec.field(default_factory=list)
    governance: GovernanceStatus = GovernanceStatus.NOT_CHECKED
    criteria_digest: str | None = None
    input_digest: str | None = None
    output_digest: str | None = None
    metadata_digest: str | None = None
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    """The versions of the metrics used and of the engine."""
    bonus_micros: int = 0
    """The bonus in whole millionths, for settlement."""
    penalty_micros: int = 0
