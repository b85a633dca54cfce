"""The differences of a comparison as a plot: one row each, all on one scale. Pure."""

from collections.abc import Sequence

from meruit.evaluations.compare import Difference
from meruit.pages.drawing import Box, Dot, Drawing, Label, Shape, Stroke
from meruit.pages.number_format import format_difference
from meruit.pages.scale import Axis, difference_tick

ROW = 30.0
LEAST = 0.05
"""The scale shows at least five points to each side."""


def draw_differences(found: Sequence[Difference]) -> tuple[Drawing, list[Drawing]]:
    """The scale, and a row for each difference with its interval and what could be detected."""
    edges = [
        abs(edge)
        for one in found
        for edge in (one.difference, one.detectable, *((one.interval.low, one.interval.high) if one.interval else ()))
        if edge is not None
    ]
    most = min(1.0, max([LEAST, *edges])) * 1.05
    x = Axis(-most, most, 2.0, 98.0)
    tick = difference_tick(most)
    words = (f"−{100 * tick:.3g}", "0", f"+{100 * tick:.3g}")
    marks = tuple(Label(x.at(at), 14, word, "middle") for at, word in zip((-tick, 0.0, tick), words, strict=True))
    return Drawing("Scale", "", 18, marks), [_row(one, x, most, tick) for one in found]


def _row(one: Difference, x: Axis, most: float, tick: float) -> Drawing:
    shapes: list[Shape] = []
    if one.detectable is not None:
        reach = min(one.detectable, most)
        low, high = x.at(-reach), x.at(reach)
        shapes.append(Box(low, 4, high - low, ROW - 8, "mde", "too small to be found with so many cases"))
    shapes += [Stroke(x.at(at), 0, x.at(at), ROW, "grid") for at in (-tick, tick)]
    shapes.append(Stroke(x.at(0.0), 0, x.at(0.0), ROW, "zero"))
    if one.interval is not None:
        shapes.append(Stroke(x.at(one.interval.low), ROW / 2, x.at(one.interval.high), ROW / 2, "b"))
    if one.difference is not None:
        style = "estimate" if one.is_significant else "estimate unclear"
        shapes.append(Dot(x.at(one.difference), ROW / 2, 4.5, style, f"{format_difference(one.difference)} points"))
    return Drawing(title="", finding="", height=ROW, shapes=tuple(shapes), tone=tone_of(one))


def tone_of(one: Difference) -> str:
    """The tone of a difference that chance does not explain; empty for any other."""
    if one.difference is None or not one.is_significant:
        return ""
    return "pass" if one.difference > 0 else "fail"
