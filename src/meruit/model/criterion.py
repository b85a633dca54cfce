"""What success means, as its author writes it."""

import re
from collections import Counter
from collections.abc import Mapping
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from meruit.model.canonical import canonical
from meruit.model.numbers import MICRO, Number, exact, plain

DEFAULT_AXIS = "__default__"
"""Where criteria without an axis are gathered; nobody may name an axis so."""

MONEY_PLACES = 6

LARGEST = 10**300
"""The largest number that an author may write; one over it is the smallest."""
MAX_DIGITS = 400
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d{1,4})?", re.ASCII)
"""A number as JSON writes it."""


class MetricType(StrEnum):
    """What kind of thing a metric's value is."""

    NUMERIC = "numeric"
    PERCENTAGE = "percentage"
    LATENCY = "latency"
    COUNT = "count"
    ACCURACY = "accuracy"
    BLEU_SCORE = "bleu_score"
    ROUGE_SCORE = "rouge_score"
    F1_SCORE = "f1_score"
    BOOLEAN = "boolean"
    CONTAINS = "contains"
    MATCHES_SCHEMA = "matches_schema"
    CUSTOM = "custom"


SHARES = frozenset(
    {
        MetricType.PERCENTAGE,
        MetricType.ACCURACY,
        MetricType.BLEU_SCORE,
        MetricType.ROUGE_SCORE,
        MetricType.F1_SCORE,
    }
)
"""Types whose values are shares of a whole, so that a scale must be known."""

YES_OR_NO = frozenset({MetricType.BOOLEAN, MetricType.MATCHES_SCHEMA, MetricType.CONTAINS})
"""Types that may be compared with true and false."""


class ComparisonOperator(StrEnum):
    """How a value is held against its threshold."""

    GTE = "gte"
    GT = "gt"
    LTE = "lte"
    LT = "lt"
    EQ = "eq"
    NEQ = "neq"
    IN_RANGE = "in_range"
    CONTAINS_ALL = "contains_all"
    CONTAINS_ANY = "contains_any"


CONTAINMENT = frozenset({ComparisonOperator.CONTAINS_ALL, ComparisonOperator.CONTAINS_ANY})
EQUALITY = frozenset({ComparisonOperator.EQ, ComparisonOperator.NEQ})


class Aggregation(StrEnum):
    """How criteria add up to success."""

    ALL = "all"
    ANY = "any"
    WEIGHTED = "weighted"


class Scale(StrEnum):
    """Whether one whole is written 1 or 100."""

    FRACTION = "fraction"
    PERCENT = "percent"


class MissingPolicy(StrEnum):
    """What an unmeasurable criterion does to the whole."""

    BOUNDS = "bounds"
    """It stays in the mean, as 0 in the low bound and 1 in the high one."""
    EXCLUDE = "exclude"
    """It leaves the mean, by its author's explicit wish."""


def _number(value: Any) -> Number:
    """A finite number as written; numeric text keeps every digit."""
    if isinstance(value, str) and len(value) <= MAX_DIGITS and _NUMBER.fullmatch(value):
        value = Decimal(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        found = f"the text {value[:40]!r}" if isinstance(value, str) else _kind(value)
        raise ValueError(f"expected a number, got {found}")  # noqa: TRY004 - pydantic collects ValueErrors
    number: Number = value
    # The limits keep exact arithmetic small, whatever an author writes.
    usual = not _is_nan(number)
    if usual:
        size: Number = -number if number < 0 else number
        usual = size <= LARGEST and (size == 0 or size * LARGEST >= 1)
    if not usual:
        raise ValueError(f"expected a finite number of common size (up to 1e300), got {str(number)[:40]}")
    return plain(number) if isinstance(number, Decimal) else number


def _is_nan(number: Number) -> bool:
    """Decimals refuse to be compared when they are NaN, so this comes first."""
    return number.is_nan() if isinstance(number, Decimal) else number != number


def _json(value: Any) -> Any:
    """The value, if it can be written down; criteria are digested and stored."""
    try:
        canonical(value)
    except (TypeError, ValueError, RecursionError) as problem:
        why = "it contains itself or is nested too deeply" if isinstance(problem, RecursionError) else str(problem)
        raise ValueError(f"expected plain JSON: {why}") from None
    return value


def _kind(value: Any) -> str:
    """What a value is, in words."""
    names = {type(None): "nothing", bool: "true or false", list: "a list", dict: "a mapping"}
    return names.get(type(value), type(value).__name__)


def _at_least_zero(value: Any) -> Number:
    number = _number(value)
    if number < 0:
        raise ValueError(f"expected a number of at least 0, got {number}")
    return number


def _money(value: Any) -> Number:
    amount = _at_least_zero(value)
    if (exact(amount) * MICRO).denominator != 1:
        raise ValueError(f"money has at most {MONEY_PLACES} decimal places, got {amount}")
    return amount


def _share(value: Any) -> Number:
    number = _at_least_zero(value)
    if number > 1:
        raise ValueError(f"expected a score between 0 and 1, got {number}")
    return number


_POSITIVE_SCHEMA = WithJsonSchema({"type": ["number", "string"], "minimum": 0})
Weight = Annotated[Number, BeforeValidator(_at_least_zero), _POSITIVE_SCHEMA]
Amount = Annotated[Number, BeforeValidator(_money), _POSITIVE_SCHEMA]
Share = Annotated[Number, BeforeValidator(_share), WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]
# A threshold is checked against its metric type and operator below; pydantic alone cannot say it.
Threshold = Annotated[
    Any,
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number"},
                {"type": "boolean"},
                {"type": "string"},
                {"type": "array", "items": {"type": ["number", "string", "boolean", "null"]}},
                {
                    "type": "object",
                    "properties": {"min": {"type": ["number", "null"]}, "max": {"type": ["number", "null"]}},
                    "additionalProperties": False,
                },
            ]
        }
    ),
]


class Assertion(BaseModel):
    """What must be true in the world; `assert` names the check, which reads the rest."""

    model_config = ConfigDict(frozen=True, extra="allow", serialize_by_alias=True, validate_by_name=False)

    check: str = Field(alias="assert", min_length=1, description="The check that decides.")

    @model_validator(mode="after")
    def _plain(self) -> Self:
        _json(dict(self.settings))
        return self

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything but the name of the check."""
        return self.__pydantic_extra__ or {}


class SuccessCriterion(BaseModel):
    """One thing that must hold: a metric against a threshold, or an assertion about the world."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    COMMON: ClassVar[frozenset[str]] = frozenset(
        {"metric", "weight", "required", "bonus", "penalty", "id", "name", "missing", "assertion", "axis"}
    )
    """The keys that mean the same in both forms; in a flat assertion every other key belongs to the check."""

    metric: str | None = Field(default=None, min_length=1, description="The metric's name.")
    metric_type: MetricType | None = Field(default=None, description="What kind of value it has.")
    comparison: ComparisonOperator | None = Field(default=None, description="How value and threshold compare.")
    threshold: Threshold = Field(default=None, description="What the value is held against, as written.")
    weight: Weight = Field(default=1.0, description="Its share in the score.")
    required: bool | None = Field(
        default=None, description="True gates success in every aggregation; unset gates under `all` only."
    )
    bonus: Amount | None = Field(default=None, description="Earned when met.")
    penalty: Amount | None = Field(default=None, description="Owed when not met.")
    id: str | None = Field(default=None, min_length=1, description="Names the criterion in results.")
    name: str | None = Field(default=None, min_length=1, description="A label for people.")
    params: dict[str, Any] = Field(default_factory=dict, description="What the metric needs to know.")
    scale: Scale | None = Field(
        default=None,
        validate_default=True,
        description="For shares: inferred from the threshold when not given.",
    )
    tolerance: Weight | None = Field(default=None, description="For eq and neq; 0.0001 for floats when not given.")
    missing: MissingPolicy = Field(default=MissingPolicy.BOUNDS, description="What absence does to the score.")
    assertion: Assertion | None = Field(default=None, description="A typed assertion, instead of a metric.")
    axis: str | None = Field(default=None, min_length=1, description="Groups criteria into scores of their own.")

    @model_validator(mode="before")
    @classmethod
    def _gather_assertion(cls, data: Any) -> Any:
        """Take the flat form too: `assert` and its settings beside the common keys."""
        if not isinstance(data, Mapping) or "assert" not in data or "assertion" in data:
            return data
        kept = {key: value for key, value in data.items() if key in cls.COMMON}
        return kept | {"assertion": {key: value for key, value in data.items() if key not in cls.COMMON}}

    @field_validator("threshold", "params", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return _json(value)

    @field_validator("threshold")
    @classmethod
    def _fits(cls, threshold: Any, info: ValidationInfo) -> Any:
        kind, comparison = info.data.get("metric_type"), info.data.get("comparison")
        if kind is None or comparison is None:
            return threshold
        try:
            return _fitting(threshold, kind, comparison)
        except ValueError as problem:
            raise ValueError(f"Invalid threshold for metric: {info.data.get('metric')}: {problem}") from None

    @field_validator("scale")
    @classmethod
    def _scaled(cls, scale: Scale | None, info: ValidationInfo) -> Scale | None:
        if "metric_type" not in info.data:
            return scale
        kind = info.data["metric_type"]
        if kind not in SHARES:
            if scale is not None:
                raise ValueError(f"scale is for shares such as percentage, not for {kind or 'an assertion'}")
            return None
        if info.data.get("comparison") in CONTAINMENT:
            return Scale.FRACTION
        return _scale_of(_numbers_in(info.data.get("threshold")), scale)

    @field_validator("axis")
    @classmethod
    def _not_reserved(cls, axis: str | None) -> str | None:
        if axis == DEFAULT_AXIS:
            raise ValueError(f"{DEFAULT_AXIS} is where criteria without an axis go; leave axis out instead")
        return axis

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        if (self.metric is None) == (self.assertion is None):
            raise ValueError("a criterion has either a metric or an assertion (`assert`), not both and not neither")
        if self.metric is not None:
            absent = [name for name in ("metric_type", "comparison", "threshold") if getattr(self, name) is None]
            if absent:
                raise ValueError(f"metric {self.metric!r} also needs {', '.join(absent)}")
        else:
            foreign = [
                name
                for name in ("metric_type", "comparison", "threshold", "params", "tolerance")
                if getattr(self, name) not in (None, {})
            ]
            if foreign:
                raise ValueError(f"an assertion takes no {', '.join(foreign)}")
        if self.tolerance is not None and self.comparison not in EQUALITY:
            raise ValueError("tolerance is for eq and neq")
        if self.required is True and self.missing is MissingPolicy.EXCLUDE:
            raise ValueError("a required criterion cannot be excluded when missing: drop one of the two")
        return self

    @property
    def label(self) -> str:
        """What it is called when it has no id of its own."""
        if self.name is not None:
            return self.name
        return self.metric if self.metric is not None else self.assertion.check if self.assertion else ""


class SuccessCriteria(BaseModel):
    """All that must hold, and how it adds up."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    criteria: tuple[SuccessCriterion, ...] = Field(description="What must hold.")
    aggregation: Aggregation = Field(default=Aggregation.ALL, description="How criteria add up to success.")
    minimum_weighted_score: Share | None = Field(
        default=None, description="For weighted: the score that succeeds; 0.5 when not given."
    )
    penalize_missing: bool = Field(
        default=False,
        description="Whether an unmeasurable criterion costs its penalty; normally no money moves.",
    )

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, data: Any) -> Any:
        """Take the whole file as well as what stands under its `success_criteria`."""
        if isinstance(data, Mapping) and data.keys() == {"success_criteria"}:
            return data["success_criteria"]
        return data

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        given = Counter(criterion.id for criterion in self.criteria if criterion.id is not None)
        twice = next((name for name, times in given.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"two criteria share the id {twice!r}")
        if self.criteria and not any(criterion.weight for criterion in self.criteria):
            raise ValueError("every weight is 0, so no score exists; give at least one criterion a weight")
        return self

    @property
    def ids(self) -> tuple[str, ...]:
        """One id a criterion: its own, or its label, numbered where labels repeat."""
        taken = {criterion.id for criterion in self.criteria if criterion.id is not None}
        used: Counter[str] = Counter()
        ids: list[str] = []
        for criterion in self.criteria:
            chosen, label = criterion.id, criterion.label
            while chosen is None or (criterion.id is None and chosen in taken):
                used[label] += 1
                chosen = label if used[label] == 1 else f"{label}-{used[label]}"
            taken.add(chosen)
            ids.append(chosen)
        return tuple(ids)


def _fitting(threshold: Any, kind: MetricType, comparison: ComparisonOperator) -> Any:
    """The threshold as the judge will read it, or ValueError saying what would fit."""
    match comparison:
        case ComparisonOperator.IN_RANGE:
            return _range(threshold)
        case ComparisonOperator.CONTAINS_ALL | ComparisonOperator.CONTAINS_ANY:
            return _wanted(threshold)
        case ComparisonOperator.EQ | ComparisonOperator.NEQ:
            if kind is MetricType.CUSTOM and isinstance(threshold, bool | str):
                return threshold
            return _scalar(threshold, kind)
        case ComparisonOperator.GTE | ComparisonOperator.GT | ComparisonOperator.LTE | ComparisonOperator.LT:
            return _scalar(threshold, kind)


def _scalar(threshold: Any, kind: MetricType) -> Any:
    if isinstance(threshold, bool):
        if kind in YES_OR_NO:
            return threshold
        raise ValueError(f"a {kind} is compared with a number, not with {str(threshold).lower()}")
    number = _number(threshold)
    if kind is MetricType.BOOLEAN and number not in (0, 1):
        raise ValueError(f"a boolean is compared with true or false, not with {number}")
    return number


def _range(threshold: Any) -> dict[str, Number | None]:
    """Both specified and short form: {min, max} or [min, max], either side open."""
    if isinstance(threshold, Mapping):
        unknown = sorted(map(str, threshold.keys() - {"min", "max"}))
        if unknown:
            raise ValueError(f"a range has min and max, not {', '.join(unknown)}")
        low, high = threshold.get("min"), threshold.get("max")
    elif isinstance(threshold, list | tuple) and len(threshold) == 2:
        low, high = threshold
    else:
        raise ValueError("a range is written {min: …, max: …} or [min, max]")
    low = None if low is None else _number(low)
    high = None if high is None else _number(high)
    if low is None and high is None:
        raise ValueError("a range open on both sides can never fail; give min or max")
    if low is not None and high is not None and exact(low) > exact(high):
        raise ValueError(f"min {low} is above max {high}, so nothing can match")
    return {"min": low, "max": high}


def _wanted(threshold: Any) -> Any:
    """What must be contained: a list, or one word; anything else leaves it to the work's input."""
    if isinstance(threshold, str) and not threshold.strip():
        raise ValueError("an empty keyword is contained in everything")
    if isinstance(threshold, list | tuple):
        for item in threshold:
            if isinstance(item, str) and not item.strip():
                raise ValueError("an empty keyword is contained in everything")
            if not isinstance(item, str | int | float):
                raise ValueError(f"a keyword is a text or a number, not {_kind(item)}")  # noqa: TRY004 - pydantic collects ValueErrors
        return list(threshold)
    if isinstance(threshold, Mapping):
        raise ValueError("give a list of what must be contained")  # noqa: TRY004 - pydantic collects ValueErrors
    return threshold


def _numbers_in(threshold: Any) -> list[Number]:
    found = threshold.values() if isinstance(threshold, Mapping) else [threshold]
    return [number for number in found if isinstance(number, int | float | Decimal)]


def _scale_of(numbers: list[Number], declared: Scale | None) -> Scale:
    """Which scale a share's thresholds are on; a mixture is refused."""
    if any(number < 0 or number > 100 for number in numbers):
        raise ValueError(f"a share lies between 0 and 1, or 0 and 100; got {', '.join(map(str, numbers))}")
    above_one = any(number > 1 for number in numbers)
    if declared is Scale.FRACTION and above_one:
        raise ValueError("scale is fraction, but a threshold is above 1; write 0.95, or scale: percent")
    if declared is not None:
        return declared
    if above_one and any(0 < number < 1 for number in numbers):
        raise ValueError("one threshold is on the scale of 1 and one on that of 100; declare scale")
    return Scale.PERCENT if above_one else Scale.FRACTION
