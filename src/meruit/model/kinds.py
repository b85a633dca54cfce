"""The fixed vocabularies of criteria: types, operators, aggregations."""

from enum import StrEnum

DEFAULT_AXIS = "__default__"
"""The axis of criteria without one; authors may not use this name."""


class MetricType(StrEnum):
    """The type of a metric's value."""

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
    """How a value is compared with its threshold."""

    GTE = "gte"
    GT = "gt"
    LTE = "lte"
    LT = "lt"
    EQ = "eq"
    NEQ = "neq"
    IN_RANGE = "in_range"
    CONTAINS_ALL = "contains_all"
    CONTAINS_ANY = "contains_any"


COMPARISON_SIGNS = {
    ComparisonOperator.GTE: "≥",
    ComparisonOperator.GT: ">",
    ComparisonOperator.LTE: "≤",
    ComparisonOperator.LT: "<",
    ComparisonOperator.EQ: "=",
    ComparisonOperator.NEQ: "≠",
    ComparisonOperator.IN_RANGE: "in",
    ComparisonOperator.CONTAINS_ALL: "all of",
    ComparisonOperator.CONTAINS_ANY: "any of",
}
"""How an operator is shown before its threshold."""
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
    """It is left out of the mean, as its author explicitly set."""


class Tier(StrEnum):
    """Where user-written metric code runs, from the narrowest to the widest."""

    EXPR = "expr"
    """One expression in CEL."""
    PYTHON = "python"
    """Metric code in a small, isolated Python interpreter."""
    PYTHON_FULL = "python-full"
    """CPython in a jail, for numpy and the rest of the language; the operator must allow it."""
