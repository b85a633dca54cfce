"""A verdict as the message of a failed test: what was asked for, what was measured, and the work."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from meruit.evaluations.evaluation import Case
from meruit.judge.explain import explain_difference
from meruit.model.kinds import COMPARISON_SIGNS
from meruit.model.text import escape_control_characters
from meruit.model.verdict import CriterionResult, Status, VerificationResult

HEADINGS = ("criterion", "status", "measured", "asked for", "why")
MAX_CELL = 40
MAX_WHY = 200
MAX_WORK = 500
"""Characters of an input, an output or a reference."""


def describe_verdict(result: VerificationResult, case: Case) -> str:
    """Several lines: the verdict, a table of the criteria, and the work that was judged."""
    judged = result.criterion_results
    missed = sum(one.status is not Status.MET for one in judged)
    lines = [
        f"verdict {result.verdict}, score {result.score:.3g}: {missed} of {len(judged)} criteria not met",
        "",
        *_table([HEADINGS, *map(_row, judged)]),
    ]
    difference = explain_difference(result)
    if difference is not None:
        lines.append(difference)
    if not judged:
        lines += [reason.message for reason in result.reasons]
    return "\n".join([*lines, "", *_work(case)])


def _row(one: CriterionResult) -> tuple[str, ...]:
    asked = "–" if one.comparison is None else f"{COMPARISON_SIGNS[one.comparison]} {_cell(one.threshold)}"
    measured = one.score if one.comparison is None else one.value_on_scale
    optional = "" if one.required else " (optional)"
    return (
        _shorten(one.criterion_id + optional, MAX_CELL),
        one.status.replace("_", " "),
        "–" if one.status is Status.INDETERMINATE else _shorten(_cell(measured), MAX_CELL),
        _shorten(asked, MAX_CELL),
        _shorten(_why(one), MAX_WHY),
    )


def _why(one: CriterionResult) -> str:
    if one.error is not None:
        return f"{one.error} (fault: {one.fault})"
    details = one.details or {}
    if details.get("missing"):
        return "missing: " + ", ".join(map(str, details["missing"]))
    return str(details.get("message", ""))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    # A column in which no criterion says anything is left out.
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _work(case: Case) -> Iterator[str]:
    references = [case.input[name] for name in ("reference", "references") if name in case.input]
    yield f"case: {case.id}"
    yield f"output: {_shorten(_text(case.output), MAX_WORK)}"
    for reference in references:
        yield f"reference: {_shorten(_text(reference), MAX_WORK)}"


# Any: parts of the work are JSON.
def _text(part: Any) -> str:
    if isinstance(part, dict) and part.keys() == {"text"}:
        part = part["text"]
    return part if isinstance(part, str) else msgspec.json.encode(part).decode()


def _cell(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shorten(text: str, longest: int) -> str:
    shown = escape_control_characters(text)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"
