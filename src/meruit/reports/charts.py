"""The charts of a report, as drawings that templates write as SVG."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import UsageStatus
from meruit.pages.drawing import Box, Dot, Drawing, Label, Shape, Stroke
from meruit.pages.number_format import format_difference, format_factor, format_number, format_p, format_share
from meruit.pages.scale import Axis, difference_tick, log_ticks, ratio_tick, round_up, span_decades
from meruit.reports.compare import Comparison, ComparisonScale, Point, describe_reading, is_clear
from meruit.reports.reconciliation import (
    AgentSteps,
    DiscrepancyCause,
    StepUse,
    Timeline,
    TimelineObservationKind,
    TimelineRow,
    TokenClass,
    Waterfall,
)

LONGEST_LABEL = 26
ROW = 28.0
"""The height of a plot in a row of a table."""

STATUS_TONES = {
    UsageStatus.VERIFIED: "pass",
    UsageStatus.WARNING: "partial",
    UsageStatus.PENDING: "open",
    UsageStatus.DATA_NOT_AVAILABLE: "error",
}
CLASS_STYLES = {
    TokenClass.CACHED: "k1",
    TokenClass.CACHE_WRITE: "k2",
    TokenClass.INPUT: "k3",
    TokenClass.REASONING: "k4",
    TokenClass.OUTPUT: "k5",
}
CLASS_WORDS = {
    TokenClass.CACHED: "read from cache",
    TokenClass.CACHE_WRITE: "written to cache",
    TokenClass.INPUT: "other input",
    TokenClass.REASONING: "reasoning",
    TokenClass.OUTPUT: "other output",
}
CAUSE_WORDS = {
    DiscrepancyCause.UNCOUNTED: "runs without a count of their own",
    DiscrepancyCause.UNATTRIBUTED: "in no declared step",
    DiscrepancyCause.ABORTED: "calls broken off",
    DiscrepancyCause.RETRIES: "retries",
    DiscrepancyCause.CACHE: "cache",
    DiscrepancyCause.UNEXPLAINED: "unexplained",
}


# Cost against score.


def cost_against_value(points: Sequence[Point], measure: str, currency: str) -> Drawing:
    """Draw each agent by the cost of a typical task and its result, with the Pareto front."""
    top, bottom = 20.0, 260.0
    low, high = span_decades([edge for one in points for edge in (one.cost, *_edges(one.cost_interval))])
    x, y = Axis(low, high, 8.0, 97.0), Axis(0.0, 1.0, bottom, top)
    shapes: list[Shape] = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        shapes += [Stroke(0, y.at(share), 100, y.at(share), "axis" if not share else "grid")]
        shapes += [Label(0, y.at(share) - 4, f"{100 * share:.0f} %")]
    for tick in log_ticks(low, high):
        shapes += [Stroke(x.at(tick), top, x.at(tick), bottom + 4, "grid")]
        shapes += [Label(x.at(tick), bottom + 18, f"{10**tick:g}", "middle")]
    shapes += [Label(52.5, bottom + 38, f"cost of a typical task, {currency} (log scale)", "middle")]
    shapes += _front_line([one for one in points if one.on_front], x, y)
    for one in points:
        shapes += _point(one, x, y)
    shapes += _point_labels(points, x, y)
    finding = "; ".join(
        f"{one.agent}: {format_number(one.cost)} {currency}, {format_share(one.value)}" for one in points
    )
    return Drawing(f"Cost against {measure}, with the Pareto front", f"{finding}.", bottom + 44, tuple(shapes))


def _front_line(points: Sequence[Point], x: Axis, y: Axis) -> list[Shape]:
    """Draw the front in steps: between two agents, the cheaper one is the best known."""
    places = [(x.at(math.log10(one.cost)), y.at(one.value)) for one in points]
    shapes: list[Shape] = []
    for (across, up), (next_across, next_up) in pairwise(places):
        shapes.append(Stroke(across, up, next_across, up, "front"))
        shapes.append(Stroke(next_across, up, next_across, next_up, "front"))
    return shapes


def _point(one: Point, x: Axis, y: Axis) -> list[Shape]:
    across, up = x.at(math.log10(one.cost)), y.at(one.value)
    low, high = (x.at(math.log10(edge)) for edge in _edges(one.cost_interval) or (one.cost, one.cost))
    bottom, top = (y.at(edge) for edge in _edges(one.value_interval) or (one.value, one.value))
    return [
        Stroke(low, up, high, up, "reach"),
        Stroke(across, bottom, across, top, "reach"),
        Dot(
            across,
            up,
            5.0,
            "on" if one.on_front else "off",
            f"{one.agent}: {format_number(one.cost)}, {format_share(one.value)}",
        ),
    ]


def _point_labels(points: Sequence[Point], x: Axis, y: Axis) -> list[Shape]:
    """Place labels beside the points, apart from each other."""
    lowest = -math.inf
    shapes: list[Shape] = []
    for one in sorted(points, key=lambda one: (y.at(one.value), one.agent)):
        across = x.at(math.log10(one.cost))
        lowest = max(lowest + 14, y.at(one.value) - 8)
        name = _truncate(one.agent)
        shapes.append(
            Label(across, lowest, name, "start", "strong", 9)
            if across < 50
            else Label(across, lowest, name, "end", "strong", -9)
        )
    return shapes


# Forest plot.


@dataclass(frozen=True, slots=True)
class PlotColumn:
    """A column of plots that share one scale."""

    scale: Drawing
    rows: tuple[Drawing, ...]


def forest(comparisons: Sequence[Comparison]) -> PlotColumn:
    """Draw pairs of agents with their intervals and the minimal detectable difference, on one scale."""
    ratio = any(one.scale is ComparisonScale.RATIO for one in comparisons)
    scaled: Callable[[float], float] = math.log if ratio else float
    known = [edge for one in comparisons for edge in (one.estimate, one.mde, *_edges(one.interval)) if edge is not None]
    most = max([abs(scaled(one)) for one in known] + [0.05]) * 1.05
    x = Axis(-most, most, 2.0, 98.0)
    tick = ratio_tick(most) if ratio else difference_tick(most)
    labels = (
        (f"÷ {math.exp(tick):.3g}", "1", f"× {math.exp(tick):.3g}")
        if ratio
        else (f"−{100 * tick:.3g}", "0", f"+{100 * tick:.3g}")
    )
    marks = tuple(Label(x.at(at), 14, word, "middle") for at, word in zip((-tick, 0.0, tick), labels, strict=True))
    return PlotColumn(
        Drawing("Scale", "", 18, marks), tuple(_forest_row(one, x, scaled, (-tick, tick)) for one in comparisons)
    )


def _forest_row(one: Comparison, x: Axis, scaled: Callable[[float], float], ticks: tuple[float, float]) -> Drawing:
    middle = ROW / 2
    shapes: list[Shape] = []
    if one.mde is not None:
        low, high = x.at(-scaled(one.mde)), x.at(scaled(one.mde))
        shapes.append(Box(low, 4, high - low, ROW - 8, "mde", "too small to be found with so many tasks"))
    shapes += [Stroke(x.at(tick), 0, x.at(tick), ROW, "grid") for tick in ticks]
    shapes.append(Stroke(x.at(0.0), 0, x.at(0.0), ROW, "zero"))
    if one.interval is not None:
        shapes.append(Stroke(x.at(scaled(one.interval.low)), middle, x.at(scaled(one.interval.high)), middle, "b"))
    if one.estimate is not None:
        style = "estimate" if is_clear(one) else "estimate unclear"
        finding = f"{one.a} against {one.b}: {_describe_comparison(one)}"
        shapes.append(Dot(x.at(scaled(one.estimate)), middle, 4.5, style, finding))
    return Drawing(title="", finding="", height=ROW, shapes=tuple(shapes), tone=describe_reading(one)[0])


def _describe_comparison(one: Comparison) -> str:
    word = format_factor if one.scale is ComparisonScale.RATIO else format_difference
    interval = f" ({word(one.interval.low)} to {word(one.interval.high)})" if one.interval else " (no interval)"
    return f"{word(one.estimate)}{interval}, p after Holm {format_p(one.p_holm)}"


# Tokens per step.


def tokens_per_step(agents: Sequence[AgentSteps]) -> list[Drawing]:
    """Draw one chart for each agent, all on one scale."""
    most = max((_sum(step) for agent in agents for step in agent.steps), default=0.0)
    return [_steps(agent, round_up(most)) for agent in agents if agent.steps and most]


def _sum(step: StepUse) -> float:
    return math.fsum(step.tokens.values())


def _steps(agent: AgentSteps, most: float) -> Drawing:
    bottom, top = 160.0, 20.0
    y = Axis(0.0, most, bottom, top)
    left = 14.0
    room = (100.0 - left) / len(agent.steps)
    every = math.ceil(len(agent.steps) / 14)
    shapes: list[Shape] = []
    for share in (0.0, 0.5, 1.0):
        shapes.append(Stroke(0, y.at(most * share), 100, y.at(most * share), "grid" if share else "axis"))
        if share:
            shapes.append(Label(0, y.at(most * share) - 4, _short(most * share)))
    for place, step in enumerate(agent.steps):
        shapes += _bar(step, y, left + room * (place + 0.1), room * 0.8)
        if place % every == 0:
            shapes.append(Label(left + room * (place + 0.5), bottom + 16, str(step.place), "middle"))
    finding = "; ".join(f"step {step.place}: {format_number(_sum(step))}" for step in agent.steps)
    return Drawing(f"Tokens per step of {agent.agent}", f"{finding}.", bottom + 22, tuple(shapes))


def _bar(step: StepUse, y: Axis, left: float, width: float) -> list[Shape]:
    below = 0.0
    parts: list[Shape] = []
    for name in TokenClass:
        tokens = step.tokens.get(name, 0.0)
        if tokens:
            upper, lower = y.at(below + tokens), y.at(below)
            title = f"step {step.place} {step.label}: {format_number(tokens)} {CLASS_WORDS[name]}"
            parts.append(Box(left, upper, width, lower - upper, CLASS_STYLES[name], title))
        below += tokens
    return parts


# Observations of runs.

_TIME_TICKS = ((10, "10 min"), (60, "1 h"), (360, "6 h"), (1440, "1 d"), (10080, "7 d"))


def observations(timeline: Timeline) -> PlotColumn:
    """Draw runs from their end on: each observation, the status after it, and withdrawals."""
    marks = [one.minutes for line in timeline.rows for one in line.observations]
    changes = [one.minutes for line in timeline.rows for one in line.changes]
    last = max([*marks, *changes, 120.0])
    x = Axis(0.0, math.log10(1 + last), 1.0, 98.0)
    ticks = [(_after(x, minutes), word) for minutes, word in _TIME_TICKS if minutes <= last]
    scale = tuple(Label(at, 14, word, "middle") for at, word in ticks)
    rows = tuple(_timeline_row(line, x, [at for at, _ in ticks]) for line in timeline.rows)
    return PlotColumn(Drawing("Scale", "", 18, scale), rows)


def _timeline_row(line: TimelineRow, x: Axis, ticks: Sequence[float]) -> Drawing:
    middle = ROW / 2
    starts = [(0.0, UsageStatus.PENDING), *((one.minutes, one.status) for one in line.changes)]
    ends = [*(minutes for minutes, _ in starts[1:]), math.inf]
    shapes: list[Shape] = [Stroke(at, 0, at, ROW, "grid") for at in ticks]
    for (minutes, status), end in zip(starts, ends, strict=True):
        left, right = _after(x, minutes), _after(x, end)
        if right > left:
            shapes.append(Box(left, middle - 4, right - left, 8, f"f {STATUS_TONES[status]}", f"{line.run}: {status}"))
    for one in line.observations:
        style = "look" if one.kind is TimelineObservationKind.COUNT else "look none"
        shapes.append(
            Dot(
                _after(x, one.minutes),
                middle,
                4.0,
                f"{style} imported" if one.imported else style,
                f"{one.minutes:.0f} min: {one.summary}",
            )
        )
    shapes += [Label(_after(x, one.minutes), middle - 4, "✕", "middle", "bad") for one in line.changes if one.withdraws]
    return Drawing("", "", ROW, tuple(shapes))


def _after(x: Axis, minutes: float) -> float:
    return x.at(math.log10(1 + max(0.0, minutes)) if math.isfinite(minutes) else math.inf)


# From local to billed.


@dataclass(frozen=True, slots=True)
class WaterfallStep:
    """One bar from the runs' own count to the provider's."""

    word: str
    tokens: str
    plot: Drawing


def local_to_billed(several: Sequence[Waterfall]) -> list[WaterfallStep]:
    """Draw the runs' own count, each reason for a difference, and the provider's count."""
    local, billed = sum(one.local for one in several), sum(one.billed for one in several)
    steps: list[tuple[str, int, int, str]] = [("counted by the runs", 0, local, "total")]
    so_far = local
    for cause in DiscrepancyCause:
        change = sum(one.parts.get(cause, 0) for one in several)
        if change:
            steps.append((CAUSE_WORDS[cause], so_far, so_far + change, "up" if change > 0 else "down"))
            so_far += change
    steps.append(("counted by the provider", 0, billed, "total"))
    x = Axis(0.0, float(max(1, *(edge for _, start, end, _ in steps for edge in (start, end)))), 0.0, 100.0)
    return [_waterfall_step(word, start, end, style, x) for word, start, end, style in steps]


def _waterfall_step(word: str, start: int, end: int, style: str, x: Axis) -> WaterfallStep:
    left, right = sorted((x.at(start), x.at(end)))
    tokens = f"{end:,}" if style == "total" else f"{end - start:+,}"
    bar = Box(left, 7, max(0.4, right - left), ROW - 14, style, f"{word}: {tokens}")
    return WaterfallStep(word, tokens, Drawing("", "", ROW, (bar,)))


# Shared parts.


def _truncate(words: str) -> str:
    return words if len(words) <= LONGEST_LABEL else f"{words[: LONGEST_LABEL - 1]}…"


def _edges(interval: ConfidenceInterval | None) -> tuple[float, ...]:
    return () if interval is None else (interval.low, interval.high)


def _short(tokens: float) -> str:
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{word}"
    return f"{tokens:.0f}"
