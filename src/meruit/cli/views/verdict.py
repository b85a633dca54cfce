"""A verification result as text."""

from typing import Any

from meruit.cli.terminal import escape_control_characters, format_cell, paint, print_table, say
from meruit.judge.explain import explain_difference
from meruit.model.kinds import COMPARISON_SIGNS, ComparisonOperator, Scale
from meruit.model.numbers import exact, exact_decimal
from meruit.model.verdict import AxisScore, CriterionResult, GovernanceStatus, Status, VerificationResult

HEADINGS = ("criterion", "value", "threshold", "met", "weight", "money", "why")
LONGEST_CELL = 40
LONGEST_WHY = 400


def print_verification(result: VerificationResult) -> None:
    """Print the table of criteria, then the verdict and its reasons."""
    if result.criterion_results:
        gated = any(judged.required for judged in result.criterion_results)
        print_table(HEADINGS, [_row(judged, gated=gated) for judged in result.criterion_results], painted=3)
        say()
    low, high = format_cell(result.bounds.low), format_cell(result.bounds.high)
    say(
        f"verdict {paint(str(result.verdict))}, success {str(result.success).lower()}, "
        f"score {low if low == high else f'{low} to {high}'}, coverage {_coverage(result)}%, "
        f"bonus {format_full_amount(result.bonus)}, penalty {format_full_amount(result.penalty)}"
    )
    if (difference := explain_difference(result)) is not None:
        say(escape_control_characters(_truncate(difference, LONGEST_WHY)))
    axes = [f"{escape_control_characters(name)} {_axis(axis)}" for name, axis in sorted(result.axes.items())]
    if len(axes) > 1:
        say(f"axes: {', '.join(axes)}")
    for reason in result.reasons:
        say(f"  - {escape_control_characters(_truncate(reason.message, LONGEST_WHY))}")
    if result.governance is GovernanceStatus.NOT_CHECKED:
        say("governance: not checked")
    else:
        flags = f" ({', '.join(result.governance_flags)})" if result.governance_flags else ""
        say(f"governance: {result.governance}{escape_control_characters(flags)}")


def _axis(axis: AxisScore) -> str:
    """The mean of an axis; open where a part of it could not be judged."""
    return "open" if axis.bounds.low != axis.bounds.high else format_cell(axis.score if axis.weight else None)


def _coverage(result: VerificationResult) -> int:
    """Percent, cut and not rounded, so that 99.9 is never printed as 100."""
    lacks = any(judged.status is Status.INDETERMINATE and judged.weight for judged in result.criterion_results)
    return min(int(exact(result.coverage) * 100), 99 if lacks else 100)


def format_threshold(
    comparison: ComparisonOperator | None, threshold: Any, scale: Scale | None, *, longest: int | None = None
) -> str:
    """Format what a value is held against, with the sign of its scale; `longest` cuts a list of words."""
    if comparison is None:
        return "–"
    if scale is Scale.PERCENT and isinstance(threshold, dict):
        held = f"{_add_unit(threshold.get('min'), scale)} to {_add_unit(threshold.get('max'), scale)}"
    else:
        held = _add_unit(threshold, scale)
    return f"{COMPARISON_SIGNS[comparison]} {held if longest is None else _truncate(held, longest)}"


def format_value(judged: CriterionResult) -> str:
    """Format a criterion's value on the scale of its threshold; of an assertion, its score."""
    return format_cell(judged.score) if judged.comparison is None else _add_unit(judged.value_on_scale, judged.scale)


def _add_unit(number: Any, scale: Scale | None) -> str:
    shown = format_cell(number)
    return f"{shown}%" if scale is Scale.PERCENT and number is not None else shown


def _row(judged: CriterionResult, *, gated: bool) -> tuple[str, ...]:
    label = f"{judged.criterion_id} (optional)" if gated and not judged.required else judged.criterion_id
    return (
        _truncate(label),
        _truncate(format_value(judged)),
        format_threshold(judged.comparison, judged.threshold, judged.scale, longest=LONGEST_CELL),
        str(judged.status).replace("_", " "),
        format_cell(judged.weight),
        _money(judged),
        _truncate(_why(judged), LONGEST_WHY),
    )


def _money(judged: CriterionResult) -> str:
    """The money of a criterion: earned, owed or open."""
    match judged.status:
        case Status.MET:
            return f"+{format_full_amount(judged.bonus)}" if judged.bonus else "–"
        case Status.NOT_MET:
            return f"-{format_full_amount(judged.penalty)}" if judged.penalty else "–"
        case Status.INDETERMINATE | Status.EXCLUDED:
            return "open" if judged.bonus or judged.penalty else "–"


def format_full_amount(amount: float) -> str:
    """Format money to its millionths, never cut."""
    return f"{exact_decimal(amount):.6f}".rstrip("0").rstrip(".")


def _why(judged: CriterionResult) -> str:
    if judged.error is not None:
        return f"{judged.error} (fault: {judged.fault})"
    details = judged.details or {}
    missing = details.get("missing")
    if missing:
        return "missing: " + ", ".join(map(str, missing))
    errors = details.get("errors")
    if errors:
        return "; ".join(f"{error.get('path') or '/'}: {error.get('message')}" for error in errors)
    return str(details.get("message", ""))


def _truncate(text: str, longest: int = LONGEST_CELL) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"
