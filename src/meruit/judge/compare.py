"""Compares a value with a threshold: every numeric comparison is a test whether the value is in an interval.

A float stands for its shortest decimal text, and that reading keeps the order of floats. So each exact bound,
strict or not, has one float that decides it, found once when criteria are compiled; comparing is then two float
comparisons, and the same two columns decide ten million rows.
"""

import math
import sys
from collections.abc import Callable
from fractions import Fraction
from typing import Any, NamedTuple

import msgspec

from meruit.model.criterion import SuccessCriterion
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.kinds import CONTAINMENT, SHARES, YES_OR_NO, ComparisonOperator, MetricType, Scale
from meruit.model.numbers import Number, exact

Test = Callable[[Any], bool | Missing]
"""Whether a value meets its criterion, or why that is unknown."""

DEFAULT_TOLERANCE = Fraction(1, 10_000)
"""Floats closer than this are equal; a criterion's own `tolerance` replaces it."""

LARGEST_FLOAT = sys.float_info.max
EXACT_INTEGERS = 2**53
"""The largest integer that a JSON number holds exactly."""


class FloatInterval(NamedTuple):
    """The floats from low to high, both included; all others when negated."""

    low: float
    high: float
    negated: bool = False

    def holds(self, number: float) -> bool:
        """Whether the number lies in it."""
        return (self.low <= number <= self.high) is not self.negated


class Bracket(msgspec.Struct, frozen=True):
    """A numeric criterion as intervals: the values that meet it, and the values that are possible."""

    meets: FloatInterval
    possible: FloatInterval
    whole: bool
    """Whether only whole numbers are possible."""
    yes_or_no: bool
    """Whether true and false count as 1 and 0."""
    kind: MetricType


def _is_whole(kind: MetricType, natural: MetricType | None, threshold: Any) -> bool:
    if kind is MetricType.BOOLEAN:
        # A metric of shares may give 0.5, which is a valid value that is not met.
        return natural is not MetricType.CONTAINS
    return kind is MetricType.COUNT or (kind is MetricType.CUSTOM and isinstance(threshold, bool))


def compile_test(criterion: SuccessCriterion, bracket: Bracket | None, blame: Fault) -> Test:
    """Compile the criterion to a function of the value; `blame` is responsible for an invalid value."""
    comparison = criterion.comparison
    if bracket is None:
        return _text_test(criterion.threshold, blame, negated=comparison is ComparisonOperator.NEQ)
    numeric = _numeric_test(bracket, blame)
    if comparison in CONTAINMENT:
        return _containment_test(
            items_to_contain(criterion), numeric, every=comparison is ComparisonOperator.CONTAINS_ALL
        )
    return numeric


def bracket(criterion: SuccessCriterion, natural: MetricType | None) -> Bracket | None:
    """The intervals of a criterion; None where text is compared.

    `natural` is the metric's own type.
    """
    kind = criterion.metric_type or MetricType.NUMERIC
    if isinstance(criterion.threshold, str) and criterion.comparison not in CONTAINMENT:
        return None
    return Bracket(
        meets=_interval(criterion, natural),
        possible=_domain(criterion, natural),
        whole=criterion.comparison not in CONTAINMENT and _is_whole(kind, natural, criterion.threshold),
        yes_or_no=kind in YES_OR_NO or kind is MetricType.CUSTOM,
        kind=kind,
    )


def items_to_contain(criterion: SuccessCriterion) -> tuple[str, ...]:
    """The values that the criterion's threshold requires to be contained; empty where it lists none."""
    threshold = criterion.threshold
    if isinstance(threshold, str):
        return (threshold,)
    return tuple(str(item) for item in threshold) if isinstance(threshold, list) else ()


def _interval(criterion: SuccessCriterion, natural: MetricType | None) -> FloatInterval:  # noqa: PLR0911 - one an operator
    """The values that meet a numeric criterion."""
    # A threshold in percent for a metric in fractions must be converted.
    unit = Fraction(1, 100) if _in_percent(criterion) and _counts_in_fractions(natural) else Fraction(1)
    threshold = criterion.threshold
    match criterion.comparison:
        case ComparisonOperator.GTE:
            return FloatInterval(_at_least(_exact(threshold) * unit), math.inf)
        case ComparisonOperator.GT:
            return FloatInterval(_above(_exact(threshold) * unit), math.inf)
        case ComparisonOperator.LTE:
            return FloatInterval(-math.inf, _at_most(_exact(threshold) * unit))
        case ComparisonOperator.LT:
            return FloatInterval(-math.inf, _below(_exact(threshold) * unit))
        case ComparisonOperator.IN_RANGE:
            low, high = threshold["min"], threshold["max"]
            return FloatInterval(
                -math.inf if low is None else _at_least(_exact(low) * unit),
                math.inf if high is None else _at_most(_exact(high) * unit),
            )
        case ComparisonOperator.EQ | ComparisonOperator.NEQ:
            negated = criterion.comparison is ComparisonOperator.NEQ
            return _around(threshold, criterion.tolerance, unit)._replace(negated=negated)
        case ComparisonOperator.CONTAINS_ALL:
            return FloatInterval(1.0, math.inf)
        case _:  # CONTAINS_ANY: the metric gives the share that it found.
            return FloatInterval(math.nextafter(0.0, 1.0), math.inf)


def _domain(criterion: SuccessCriterion, natural: MetricType | None) -> FloatInterval:
    """The possible values of the criterion's type, on the metric's scale."""
    if criterion.comparison in CONTAINMENT:
        # For every type, the number is then the share that was found.
        return FloatInterval(0.0, 1.0)
    if _in_percent(criterion) and not _counts_in_fractions(natural):
        return FloatInterval(0.0, 100.0)
    return domain_of(criterion.metric_type or MetricType.NUMERIC)


def domain_of(kind: MetricType) -> FloatInterval:
    """The possible values of a type; shares on the scale of 1."""
    if kind in SHARES or kind in YES_OR_NO:
        return FloatInterval(0.0, 1.0)
    if kind in (MetricType.LATENCY, MetricType.COUNT):
        return FloatInterval(0.0, LARGEST_FLOAT)
    return FloatInterval(-LARGEST_FLOAT, LARGEST_FLOAT)


def usual_numbers(bracket: Bracket) -> tuple[FloatInterval, FloatInterval]:
    """The floats and the integers that need no further look; no interval contains NaN or infinity."""
    low, high, _ = bracket.possible
    floats = FloatInterval(math.inf, -math.inf) if bracket.whole else FloatInterval(low, high)
    return floats, FloatInterval(max(low, -EXACT_INTEGERS), min(high, EXACT_INTEGERS))


def _numeric_test(bracket: Bracket, blame: Fault) -> Test:
    low, high, negated = bracket.meets
    (float_low, float_high, _), (integer_low, integer_high, _) = usual_numbers(bracket)

    def test(value: Any) -> bool | Missing:
        # The usual cases first.
        if value.__class__ is float:
            usual = float_low <= value <= float_high
        else:
            usual = value.__class__ is int and integer_low <= value <= integer_high
        if usual:
            return (low <= value <= high) is not negated
        number = _as_number(value, blame, yes_or_no=bracket.yes_or_no)
        if isinstance(number, Missing):
            return number
        impossible = _find_impossible(number, bracket.possible, bracket.kind, blame, whole=bracket.whole)
        return impossible if impossible is not None else (low <= number <= high) is not negated

    return test


def _text_test(expected: str, blame: Fault, *, negated: bool) -> Test:
    def test(value: Any) -> bool | Missing:
        if not isinstance(value, str):
            return Missing(f"the value is {type(value).__name__}, not a text", Cause.WRONG_TYPE, blame)
        return (value == expected) is not negated

    return test


def _containment_test(needed: tuple[str, ...], numeric: Test, *, every: bool) -> Test:
    """A share that the metric found, or a list or text that is searched here."""
    decide = all if every else any

    def test(value: Any) -> bool | Missing:
        if not isinstance(value, list | str):
            return numeric(value)
        if not needed:
            return Missing("the threshold names nothing to look for", Cause.AUTHOR_ERROR, Fault.AUTHOR)
        held = value.casefold() if isinstance(value, str) else {str(item).casefold() for item in value}
        return decide(word.casefold() in held for word in needed)

    return test


def _as_number(value: Any, blame: Fault, *, yes_or_no: bool) -> int | float | Missing:
    if isinstance(value, bool):
        if not yes_or_no:
            return Missing(f"the value is {str(value).lower()}, not a number", Cause.WRONG_TYPE, blame)
        return int(value)
    if not isinstance(value, int | float):
        return Missing(f"the value is {type(value).__name__}, not a number", Cause.WRONG_TYPE, blame)
    if isinstance(value, int) and abs(value) > EXACT_INTEGERS:
        return Missing("the integer is beyond 2^53, where numbers are no longer exact", Cause.OUT_OF_DOMAIN, blame)
    if not math.isfinite(value):
        return Missing(f"the value is {value}", Cause.NOT_A_NUMBER, blame)
    return value


def _find_impossible(
    number: float, possible: FloatInterval, kind: MetricType, blame: Fault, *, whole: bool
) -> Missing | None:
    """Why a number is not possible for its type; None where it is."""
    if not possible.holds(number):
        if kind in SHARES:
            why = f"{number!r} is not between 0 and {possible.high:g}; is its scale different from the threshold's?"
            return Missing(why, Cause.OUT_OF_DOMAIN, blame)
        return Missing(f"{number!r} is impossible for {kind}", Cause.OUT_OF_DOMAIN, blame)
    if whole and number != int(number):
        return Missing(f"{number!r} is not a whole number", Cause.WRONG_TYPE, blame)
    return None


def value_scale(criterion: SuccessCriterion, natural: MetricType | None) -> Scale | None:
    """The scale on which a criterion's value is measured; None where it compares no shares."""
    return Scale.FRACTION if criterion.scale is not None and _counts_in_fractions(natural) else criterion.scale


def _in_percent(criterion: SuccessCriterion) -> bool:
    return criterion.scale is Scale.PERCENT


def _counts_in_fractions(natural: MetricType | None) -> bool:
    return natural in SHARES or natural in YES_OR_NO


def _exact(threshold: bool | Number) -> Fraction:  # noqa: FBT001 - a threshold may be true
    return Fraction(int(threshold)) if isinstance(threshold, bool) else exact(threshold)


def _around(threshold: bool | Number, tolerance: Number | None, unit: Fraction) -> FloatInterval:  # noqa: FBT001 - as above
    centre = _exact(threshold) * unit
    if tolerance is not None:
        reach = exact(tolerance) * unit
        return FloatInterval(_at_least(centre - reach), _at_most(centre + reach))
    if isinstance(threshold, bool):
        return FloatInterval(float(centre), float(centre))
    reach = DEFAULT_TOLERANCE * unit
    return FloatInterval(_above(centre - reach), _below(centre + reach))


def _at_least(bound: Fraction) -> float:
    """The smallest float that is not below the bound."""
    nearest = float(bound)
    return nearest if exact(nearest) >= bound else math.nextafter(nearest, math.inf)


def _above(bound: Fraction) -> float:
    """The smallest float that is above the bound."""
    nearest = float(bound)
    return nearest if exact(nearest) > bound else math.nextafter(nearest, math.inf)


def _at_most(bound: Fraction) -> float:
    """The largest float that is not above the bound."""
    return -_at_least(-bound)


def _below(bound: Fraction) -> float:
    """The largest float that is below the bound."""
    return -_above(-bound)
