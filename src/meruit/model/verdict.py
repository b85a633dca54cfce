"""What was decided: per criterion, per axis, and for the whole."""

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
    """Left out of the mean, by its author's wish."""


class Verdict(StrEnum):
    """How the whole ended; the one vocabulary of every part of Meruit."""

    PASS = "pass"  # noqa: S105 - a verdict, no password
    PARTIAL = "partial"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """What is missing could still change the outcome."""
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
    TOO_MANY_CRITERIA = "too_many_criteria"
    INTERNAL = "internal"


OF_GOVERNANCE = frozenset(
    {ReasonCode.GOVERNANCE_INVALID, ReasonCode.GOVERNANCE_HOLD, ReasonCode.GOVERNANCE_UNAVAILABLE}
)
"""Reasons that are no part of the judge's own, and stay when work is judged again."""


class Reason(Record, frozen=True, omit_defaults=True):
    """One sentence of the explanation."""

    code: ReasonCode
    message: str
    criterion_id: str | None = None


class GovernanceStatus(StrEnum):
    """Whether anyone asked if the outcome is plausible, and the answer."""

    NOT_CHECKED = "not_checked"
    CLEAR = "clear"
    INVALID = "invalid"
    REVIEW = "review"
    """It could not be made, or found something that only a person can judge: money waits for that."""
    RELEASED = "released"
    """A person looked, and lets the verdict stand."""


BELIEVED = frozenset({GovernanceStatus.CLEAR, GovernanceStatus.RELEASED})
"""Asked about, and let stand."""


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
    """One criterion, judged. The first nine fields are the specification's."""

    metric: str
    """The metric's name, or the assertion's."""
    value: Value | None
    threshold: Any
    comparison: ComparisonOperator | None
    met: bool
    weight: float
    bonus: float | None
    """What this criterion earns; kept while it is still open, None once lost."""
    penalty: float | None
    """What this criterion costs; kept while it is still open, None once met."""
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
    """The type that the metric had by itself, where we computed it; without it, percent could not be judged again."""


class VerificationResult(Record, frozen=True):
    """One piece of work, judged. The first nine fields are the specification's."""

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
    """What is proven: a missing measurement earns nothing here, and shows in the bounds."""
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
    """The version of each metric that was asked, and of the engine."""
    bonus_micros: int = 0
    """The bonus in whole millionths, for whoever settles."""
    penalty_micros: int = 0
