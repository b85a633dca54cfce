"""Success criteria as their author writes them."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictBool,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_serializer,
    model_validator,
)

from meruit.model.assertion import guard_defaults, is_guard
from meruit.model.canonical import digest
from meruit.model.kinds import (
    CONTAINMENT,
    DEFAULT_AXIS,
    EQUALITY,
    SHARES,
    Aggregation,
    ComparisonOperator,
    MetricType,
    MissingPolicy,
    Scale,
    Tier,
)
from meruit.model.limits import MAX_CODE_BYTES, MAX_CUSTOM_METRICS, MAX_EXPRESSION, MAX_METRICS, MAX_NAME
from meruit.model.numbers import Number
from meruit.model.threshold import at_least_zero, check_threshold, money, numbers_in, plain_json, scale_of, share

_POSITIVE_SCHEMA = WithJsonSchema({"type": ["number", "string"], "minimum": 0})
Weight = Annotated[Number, BeforeValidator(at_least_zero), _POSITIVE_SCHEMA]
Amount = Annotated[Number, BeforeValidator(money), _POSITIVE_SCHEMA]
Share = Annotated[
    Number, BeforeValidator(share), WithJsonSchema({"type": ["number", "string"], "minimum": 0, "maximum": 1})
]
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
    """What must be true in the environment; `assert` names the check, which reads the other settings."""

    model_config = ConfigDict(
        defer_build=True, frozen=True, extra="allow", serialize_by_alias=True, validate_by_name=False
    )

    check: str = Field(alias="assert", min_length=1, description="The check that decides.")

    @model_validator(mode="after")
    def _plain(self) -> Self:
        plain_json(dict(self.settings))
        return self

    @property
    def settings(self) -> Mapping[str, Any]:
        """Everything but the name of the check."""
        return self.__pydantic_extra__ or {}


def _printable(name: str) -> str:
    if not name.isprintable():
        raise ValueError("a metric's name must not have control characters")
    return name


MetricName = Annotated[str, Field(min_length=1, max_length=MAX_NAME), AfterValidator(_printable)]


class CustomMetric(BaseModel):
    """Metrics that the author's own code computes: `metric(input, output, metadata)` returns a number for each."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    metrics: tuple[MetricName, ...] = Field(
        min_length=1, max_length=MAX_METRICS, description="The names that criteria use, and the code returns."
    )
    tier: Tier = Field(default=Tier.PYTHON, description="Where the code runs: python, or python-full.")
    code: str = Field(min_length=1, description="Defines `metric(input, output, metadata) -> {name: number}`.")

    @model_validator(mode="before")
    @classmethod
    def _refuse_code_file(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "code_file" in data:
            raise ValueError("code_file works only in a criteria file; put the code itself in `code`")
        return data

    @field_validator("metrics")
    @classmethod
    def _distinct(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        twice = next((name for name, times in Counter(names).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"the metric {twice!r} is listed twice")
        return names

    @field_validator("tier")
    @classmethod
    def _python(cls, tier: Tier) -> Tier:
        if tier is Tier.EXPR:
            raise ValueError("an expression is not a custom metric; write `expr:` on the criterion instead")
        return tier

    @field_validator("code")
    @classmethod
    def _check_code_size(cls, code: str) -> str:
        if not code.strip():
            raise ValueError("the code is empty")
        size = len(code.encode())
        if size > MAX_CODE_BYTES:
            raise ValueError(f"the code has {size:,} bytes; at most {MAX_CODE_BYTES // 1024} KiB are allowed")
        return code


class SuccessCriterion(BaseModel):
    """One condition: a metric or expression with a threshold, or an assertion about the environment."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    COMMON: ClassVar[frozenset[str]] = frozenset(
        {
            "metric",
            "expr",
            "weight",
            "required",
            "bonus",
            "penalty",
            "id",
            "name",
            "label",
            "missing",
            "assertion",
            "axis",
        }
    )
    """The keys that mean the same in every form; in a flat assertion every other key belongs to the check."""

    metric: str | None = Field(default=None, min_length=1, description="The metric's name.")
    expr: str | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_EXPRESSION,
        description="The metric itself: one CEL expression over input, output and metadata that gives a number.",
    )
    metric_type: MetricType | None = Field(default=None, description="What kind of value it has.")
    comparison: ComparisonOperator | None = Field(default=None, description="How value and threshold compare.")
    threshold: Threshold = Field(default=None, description="What the value is compared with, as written.")
    weight: Weight = Field(default=1.0, description="Its share in the score.")
    required: StrictBool | None = Field(
        default=None, description="True gates success in every aggregation; unset gates under `all` only."
    )
    bonus: Amount | None = Field(default=None, description="Earned when met.")
    penalty: Amount | None = Field(default=None, description="Owed when not met.")
    id: str | None = Field(default=None, min_length=1, description="Names the criterion in results.")
    name: str | None = Field(default=None, min_length=1, description="A label for people.")
    params: dict[str, Any] = Field(default_factory=dict, description="Settings of the metric.")
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
        """Accept the flat form too: `assert` and its settings next to the common keys."""
        if not isinstance(data, Mapping) or "assert" not in data or "assertion" in data:
            return data
        common = {key: value for key, value in data.items() if key in cls.COMMON}
        return common | {"assertion": {key: value for key, value in data.items() if key not in cls.COMMON}}

    @model_validator(mode="before")
    @classmethod
    def _accept_label(cls, data: Any) -> Any:
        """Accept `label` for `name`, as tasks write it."""
        if not isinstance(data, Mapping) or "label" not in data or "name" in data:
            return data
        return {"name" if key == "label" else key: value for key, value in data.items()}

    @model_validator(mode="before")
    @classmethod
    def _apply_guard_defaults(cls, data: Any) -> Any:
        """Fill in what the author of a guard left out."""
        assertion = data.get("assertion", data) if isinstance(data, Mapping) else None
        if isinstance(assertion, Assertion):
            return {**guard_defaults(assertion.check, assertion.settings), **data}
        if not isinstance(assertion, Mapping) or not isinstance(name := assertion.get("assert"), str):
            return data
        return {**guard_defaults(name, assertion), **data}

    @model_serializer(mode="wrap")
    def _write_guard_weight(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Keep the weight that the author of a guard wrote, also where it is the default of other criteria."""
        written: dict[str, Any] = serialize(self)
        if "weight" not in written and self.is_guard:
            written["weight"] = self.weight
        return written

    @field_validator("expr")
    @classmethod
    def _check_expr(cls, expr: str | None) -> str | None:
        if expr is None:
            return None
        if not expr.strip():
            raise ValueError("the expression is empty")
        if not expr.translate(_LAYOUT).isprintable():
            raise ValueError("an expression must not have control characters except line breaks and tabs")
        return expr

    @field_validator("threshold", "params", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain_json(value)

    @field_validator("threshold")
    @classmethod
    def _fits(cls, threshold: Any, info: ValidationInfo) -> Any:
        kind, comparison = info.data.get("metric_type"), info.data.get("comparison")
        if kind is None or comparison is None:
            return threshold
        try:
            return check_threshold(threshold, kind, comparison)
        except ValueError as problem:
            named = info.data.get("metric") or info.data.get("expr")
            raise ValueError(f"Invalid threshold for metric: {named}: {problem}") from None

    @field_validator("scale")
    @classmethod
    def _resolve_scale(cls, scale: Scale | None, info: ValidationInfo) -> Scale | None:
        if "metric_type" not in info.data:
            return scale
        kind = info.data["metric_type"]
        if kind not in SHARES:
            if scale is not None:
                raise ValueError(f"scale is for shares such as percentage, not for {kind or 'an assertion'}")
            return None
        if info.data.get("comparison") in CONTAINMENT:
            return Scale.FRACTION
        return scale_of(numbers_in(info.data.get("threshold")), scale)

    @field_validator("axis")
    @classmethod
    def _not_reserved(cls, axis: str | None) -> str | None:
        if axis == DEFAULT_AXIS:
            raise ValueError(f"{DEFAULT_AXIS} is the axis of criteria without one; omit axis instead")
        return axis

    @model_validator(mode="after")
    def _one_form(self) -> Self:
        measured = self.metric is not None or self.expr is not None
        if measured == (self.assertion is not None):
            raise ValueError(
                "a criterion needs exactly one of a metric, an `expr` or an assertion (`assert`); "
                "only an expr may also have a metric, as its name"
            )
        wrong = self._wrong_with_measuring() if measured else self._wrong_with_asserting()
        if wrong is not None:
            raise ValueError(wrong)
        if self.tolerance is not None and self.comparison not in EQUALITY:
            raise ValueError("tolerance is for eq and neq")
        if self.required is True and self.missing is MissingPolicy.EXCLUDE:
            raise ValueError("a required criterion cannot be excluded when missing; remove one of them")
        return self

    def _wrong_with_measuring(self) -> str | None:
        absent = [name for name in ("metric_type", "comparison", "threshold") if getattr(self, name) is None]
        if absent:
            asking = f"metric {self.metric!r}" if self.expr is None else "an expr"
            example = "; `meruit metrics NAME` shows an example" if self.expr is None else ""
            return f"{asking} also needs {', '.join(absent)}{example}"
        if self.expr is None:
            return None
        if self.params:
            return "an expr takes no params; write the values into the expression"
        if self.comparison in CONTAINMENT:
            return f"an expr gives a number, which {self.comparison} cannot search; compare it with gte, lte or eq"
        if isinstance(self.threshold, str):
            return f"an expr gives a number, which is never the text {self.threshold[:MAX_NAME]!r}"
        return None

    def _wrong_with_asserting(self) -> str | None:
        foreign = [
            name
            for name in ("metric_type", "comparison", "threshold", "params", "tolerance")
            if getattr(self, name) not in (None, {})
        ]
        return f"an assertion takes no {', '.join(foreign)}" if foreign else None

    @property
    def is_guard(self) -> bool:
        """Whether it is an assertion that only forbids."""
        return self.assertion is not None and is_guard(self.assertion.check, self.assertion.settings)

    @property
    def label(self) -> str:
        """Its name in results when it has no id."""
        return self.name if self.name is not None else self.subject

    @property
    def subject(self) -> str:
        """The name of the metric, expression or check."""
        if self.metric is not None:
            return self.metric
        if self.expr is not None:
            return self.name if self.name is not None else self.expr.strip()
        return self.assertion.check if self.assertion is not None else ""


_LAYOUT = dict.fromkeys(map(ord, "\n\r\t"))
"""Characters of an expression besides printable ones."""


class SuccessCriteria(BaseModel):
    """All criteria, and how they add up."""

    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid")

    criteria: tuple[SuccessCriterion, ...] = Field(description="What must hold.")
    aggregation: Aggregation = Field(default=Aggregation.ALL, description="How criteria add up to success.")
    minimum_weighted_score: Share | None = Field(
        default=None, description="For weighted: the score that succeeds; 0.5 when not given."
    )
    custom_metrics: tuple[CustomMetric, ...] = Field(
        default=(), max_length=MAX_CUSTOM_METRICS, description="Metrics that the author's own code computes."
    )
    penalize_missing: StrictBool = Field(
        default=False,
        description="Whether an unmeasurable criterion costs its penalty; normally no money moves.",
    )

    @model_validator(mode="before")
    @classmethod
    def _unwrap(cls, data: Any) -> Any:
        """Accept a whole file too, with `success_criteria` as its outer key."""
        if isinstance(data, Mapping) and data.keys() == {"success_criteria"}:
            return data["success_criteria"]
        return data

    @field_validator("criteria")
    @classmethod
    def _weigh_lone_guards(cls, criteria: tuple[SuccessCriterion, ...]) -> tuple[SuccessCriterion, ...]:
        """Weigh guards where there is nothing else that could have a weight."""
        if any(criterion.weight or not criterion.is_guard for criterion in criteria):
            return criteria
        return tuple(criterion.model_copy(update={"weight": 1}) for criterion in criteria)

    @model_validator(mode="after")
    def _coherent(self) -> Self:
        given = Counter(criterion.id for criterion in self.criteria if criterion.id is not None)
        twice = next((name for name, times in given.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"two criteria share the id {twice!r}")
        declared = Counter(name for custom in self.custom_metrics for name in custom.metrics)
        twice = next((name for name, times in declared.items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"two custom metrics are named {twice!r}; give one of them another name")
        if self.criteria and not any(criterion.weight for criterion in self.criteria):
            raise ValueError("every weight is 0, so no score exists; give at least one criterion a weight")
        return self

    @property
    def ids(self) -> tuple[str, ...]:
        """One id per criterion: its own, or its label, numbered where labels repeat."""
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


def criteria_digest(criteria: SuccessCriteria) -> str:
    """SHA-256 of the canonical form: the name of the criteria for all time."""
    return digest(criteria.model_dump(exclude_defaults=True))


def validate_threshold(criterion: SuccessCriterion) -> bool:
    """Whether a criterion's threshold fits its metric type and comparison, as intake asks before it accepts work.

    A SuccessCriterion that was validated always does; one that was built or copied without validation may not.
    """
    kind, comparison = criterion.metric_type, criterion.comparison
    if kind is None or comparison is None:
        return criterion.assertion is not None and criterion.threshold is None
    try:
        check_threshold(criterion.threshold, kind, comparison)
    except ValueError:
        return False
    return True
