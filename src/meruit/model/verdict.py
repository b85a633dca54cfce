"""The result of a verification: per criterion, per axis, and overall."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from fractions import Fraction
from typing import Any

import msgspec

from meruit.model.evidence import Cause, Fault, Provenance, Value
from meruit.model.kinds import DEFAULT_AXIS, ComparisonOperator, MetricType, Scale
from meruit.model.numbers import MICRO, exact_decimal
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


PASS_SCORE = Fraction(9, 10)
"""The score from which work passes."""


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
    weight: float = 1.0
    bonus: float | None = None
    """What this criterion earns; None once it is not met."""
    penalty: float | None = None
    """What this criterion costs; None once it is met."""
    error: str | None = None
    """Why it could not be judged."""
    criterion_id: str = ""
    """The metric's name where none is given."""
    index: int = 0
    status: Status = Status.INDETERMINATE
    score: float = 0.0
    exact: str = ""
    """The score as a fraction: `2/3`. Where none is given, score and status follow from `met` and `error`."""
    required: bool = True
    """Whether it gates success, after the rules of the aggregation."""
    axis: str = DEFAULT_AXIS
    cause: Cause | None = None
    fault: Fault = Fault.NONE
    provenance: Provenance | None = None
    details: Mapping[str, Any] | None = None
    natural: MetricType | None = None
    """The metric's own type, where we computed it; needed to judge percentages again."""
    scale: Scale | None = None
    """The threshold's scale, where shares are compared: whether one whole is 1 or 100."""
    value_scale: Scale | None = None
    """The value's scale; what we compute is a fraction, also where the threshold is in percent."""

    @property
    def is_judged(self) -> bool:
        """Whether a model judge was to decide the criterion."""
        return self.provenance is Provenance.JUDGED

    @property
    def value_on_scale(self) -> Value | None:
        """The value on the threshold's scale, to be shown beside it."""
        if self.scale is not Scale.PERCENT or self.value_scale is not Scale.FRACTION:
            return self.value
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            return self.value
        # In decimals, because 0.07 * 100 is 7.000000000000001 in floats.
        return float(exact_decimal(self.value) * 100)

    def __post_init__(self) -> None:
        """Complete a result that was built by hand from what it must say."""
        if self.exact:
            return
        if self.met:
            _complete(self, status=Status.MET, score=1.0, exact="1")
        elif self.error is None and self.value is not None:
            _complete(self, status=Status.NOT_MET, exact="0")
        else:
            _complete(self, exact="0", cause=self.cause or Cause.METRIC_MISSING)
        if not self.criterion_id:
            _complete(self, criterion_id=self.metric)


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
    verdict: Verdict = Verdict.INCONCLUSIVE
    score: float = 0.0
    """The proven score: a missing measurement counts as 0 here, and shows in the bounds."""
    exact: str = ""
    """The score as a fraction. Where none is given, the verdict follows from the criteria's results and `success`."""
    axes: dict[str, AxisScore] = msgspec.field(default_factory=dict)
    bounds: Bounds = Bounds(0.0, 1.0)
    coverage: float = 1.0
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

    def __post_init__(self) -> None:
        """Complete a result that was built by hand from what it must say."""
        if self.exact:
            return
        low, high, coverage = _weigh(self.criterion_results, success=self.success)
        worst, best = _verdict_of(low), _verdict_of(high)
        _complete(
            self,
            verdict=worst if worst is best else Verdict.INCONCLUSIVE,
            score=float(low),
            exact=str(low),
            bounds=Bounds(float(low), float(high)),
            coverage=float(coverage),
            bonus_micros=self.bonus_micros or round(Fraction(str(self.bonus)) * MICRO),
            penalty_micros=self.penalty_micros or round(Fraction(str(self.penalty)) * MICRO),
        )
        if self.verified_at.tzinfo is None:
            # The usual way to write it is `utcnow()`.
            _complete(self, verified_at=self.verified_at.replace(tzinfo=UTC))


def _complete(result: Record, **fields: Any) -> None:
    """Set fields of a record that is being built."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(result, name, value)


def _weigh(results: Sequence[CriterionResult], *, success: bool) -> tuple[Fraction, Fraction, Fraction]:
    """The lowest and the highest possible score, and the share of the weight that was measured."""
    counted = [one for one in results if one.status != Status.EXCLUDED]
    total = sum((Fraction(str(one.weight)) for one in counted), Fraction(0))
    if not total:
        return Fraction(success), Fraction(success), Fraction(1)
    met = sum((Fraction(str(one.weight)) * Fraction(one.exact) for one in counted), Fraction(0))
    open_ = sum((Fraction(str(one.weight)) for one in counted if one.status == Status.INDETERMINATE), Fraction(0))
    return met / total, (met + open_) / total, 1 - open_ / total


def _verdict_of(score: Fraction) -> Verdict:
    if score >= PASS_SCORE:
        return Verdict.PASS
    return Verdict.PARTIAL if score else Verdict.FAIL
