"""A verification result as text."""

from meruit.cli.terminal import escape_control_characters, format_cell, paint, print_table, say
from meruit.model.numbers import exact, exact_decimal
from meruit.model.verdict import CriterionResult, GovernanceStatus, Status, VerificationResult

SYMBOLS = {
    "gte": "≥",
    "gt": ">",
    "lte": "≤",
    "lt": "<",
    "eq": "=",
    "neq": "≠",
    "in_range": "in",
    "contains_all": "all of",
    "contains_any": "any of",
}
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
    axes = [
        f"{escape_control_characters(name)} {format_cell(axis.score if axis.weight else None)}"
        for name, axis in sorted(result.axes.items())
    ]
    if len(axes) > 1:
        say(f"axes: {', '.join(axes)}")
    for reason in result.reasons:
        say(f"  - {escape_control_characters(_truncate(reason.message, LONGEST_WHY))}")
    if result.governance is GovernanceStatus.NOT_CHECKED:
        say("governance: not checked")
    else:
        flags = f" ({', '.join(result.governance_flags)})" if result.governance_flags else ""
        say(f"governance: {result.governance}{escape_control_characters(flags)}")


def _coverage(result: VerificationResult) -> int:
    """Percent, cut and not rounded, so that 99.9 is never printed as 100."""
    lacks = any(judged.status is Status.INDETERMINATE and judged.weight for judged in result.criterion_results)
    return min(int(exact(result.coverage) * 100), 99 if lacks else 100)


def _row(judged: CriterionResult, *, gated: bool) -> tuple[str, ...]:
    symbol = SYMBOLS.get(str(judged.comparison), "") if judged.comparison is not None else ""
    threshold = f"{symbol} {_truncate(format_cell(judged.threshold))}" if symbol else "–"
    label = f"{judged.criterion_id} (optional)" if gated and not judged.required else judged.criterion_id
    return (
        _truncate(label),
        _truncate(format_cell(judged.value)) if judged.comparison is not None else format_cell(judged.score),
        threshold,
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
