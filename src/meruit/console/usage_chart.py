"""The chart of a usage run: what the provider counted at each observation, and what the run counts itself."""

from collections.abc import Sequence

from meruit.console.shape import span
from meruit.model.metering import UsageRecord
from meruit.model.usage import Observation
from meruit.pages.drawing import Box, Dot, Drawing, Label, Shape, Stroke

MOST = 40
"""Observations that a chart shows: the last ones."""
TOP, BOTTOM, HEIGHT = 30.0, 150.0, 200.0
LEFT, RIGHT = 12.0, 94.0
FEW_LABELS = 8


def draw_observations(record: UsageRecord, observations: Sequence[Observation]) -> Drawing | None:
    """Draw the provider's counts in time order, evenly spaced; None where nothing was counted."""
    counted = [one for one in sorted(observations, key=lambda one: one.at) if one.total is not None][-MOST:]
    if not counted:
        return None
    own = record.run.local
    totals = [one.total.total for one in counted if one.total is not None]
    highest = max([*totals, 0 if own is None else own.total, 1])

    def y(value: int) -> float:
        return BOTTOM - (BOTTOM - TOP) * value / highest

    def x(place: int) -> float:
        return LEFT + (RIGHT - LEFT) * (place + 1) / (len(counted) + 1)

    compared = set(record.verdict.compared)
    shapes: list[Shape] = []
    decided = [x(place) for place, one in enumerate(counted) if one.id in compared]
    if decided:
        shapes.append(Box(min(decided) - 2.5, TOP - 22, max(decided) - min(decided) + 5, BOTTOM - TOP + 26, "tint"))
    shapes += [Stroke(0, y(highest), 100, y(highest), "grid"), Stroke(0, BOTTOM, 100, BOTTOM, "axis")]
    shapes.append(Label(0, y(highest) - 6, f"{highest:,}"))
    if own is not None:
        shapes += [
            Stroke(0, y(own.total), 100, y(own.total), "s-accent dash"),
            Label(100, y(own.total) + 16, f"the run counts {own.total:,}", "end"),
        ]
    for place in range(1, len(counted)):
        left, right, before, after = x(place - 1), x(place), y(totals[place - 1]), y(totals[place])
        shapes.append(Stroke(left, before, right, before, "s-ink"))
        if before != after:
            shapes.append(Stroke(right, before, right, after, "s-ink"))
    end = record.run.ended_at
    for place, (one, total) in enumerate(zip(counted, totals, strict=True)):
        later = "" if end is None or one.at < end else f"{span(one.at - end)} after the end"
        shapes.append(
            Dot(x(place), y(total), 5, "f-ink" if one.id in compared else "f-hollow", f"{total:,} tokens, {later}")
        )
        if end is not None and len(counted) <= FEW_LABELS:
            shapes.append(Label(x(place), BOTTOM + 20, span(max(one.at - end, one.at - one.at)), "middle"))
    finding = (
        f"The provider counted {totals[0]:,} tokens first and {totals[-1]:,} last, in {len(counted)} observations."
    )
    return Drawing(
        title="Observations over time",
        finding=finding,
        height=HEIGHT,
        shapes=tuple(shapes),
        tone="partial" if decided else "",
    )
