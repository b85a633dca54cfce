"""The charts of a report, as SVG without scripts, fonts or external files."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import UsageStatus
from meruit.reports.compare import Comparison, ComparisonScale, Point
from meruit.reports.markup import Child, Markup, tag
from meruit.reports.number_format import format_difference, format_factor, format_number, format_p, format_share
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

WIDTH = 460.0
"""The width of every chart; about as many pixels as a phone has, so that its text stays readable."""
LEFT = 46.0
RIGHT = WIDTH - 14.0
LONGEST_LABEL = 26
MOST_PAIRS = 60
"""How many rows a forest plot has."""
MOST_TICKS = 7
SIGNIFICANT = 0.05

CLASS_WORDS = {
    TokenClass.CACHED: "read from cache",
    TokenClass.CACHE_WRITE: "written to cache",
    TokenClass.INPUT: "other input",
    TokenClass.REASONING: "reasoning",
    TokenClass.OUTPUT: "other output",
}
PART_WORDS = {
    DiscrepancyCause.UNCOUNTED: "runs without a count of their own",
    DiscrepancyCause.UNATTRIBUTED: "in no declared step",
    DiscrepancyCause.ABORTED: "calls broken off",
    DiscrepancyCause.RETRIES: "retries",
    DiscrepancyCause.CACHE: "cache",
    DiscrepancyCause.UNEXPLAINED: "unexplained",
}


class Axis(NamedTuple):
    """Maps values to positions between two edges."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value; beyond the edges, the edge."""
        part = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)


# Cost against score.


def cost_against_value(points: Sequence[Point], measure: str, currency: str) -> Markup:
    """Draw each agent by the cost of a typical task and its result, with the Pareto front."""
    height, bottom = 330.0, 284.0
    costs = [edge for one in points for edge in (one.cost, *_edges(one.cost_interval))]
    low, high = _decades(costs)
    x, y = Axis(low, high, LEFT, RIGHT), Axis(0.0, 1.0, bottom, 18.0)
    ticks = _log_ticks(low, high)
    drawn: list[Child] = [
        [_line(LEFT, y.at(one), RIGHT, y.at(one), "grid") for one in (0, 0.25, 0.5, 0.75, 1)],
        [_text(LEFT - 6, y.at(one) + 4, f"{100 * one:.0f} %", "end") for one in (0, 0.25, 0.5, 0.75, 1)],
        [_line(x.at(one), bottom, x.at(one), 18, "grid") for one in ticks],
        [_text(x.at(one), bottom + 17, f"{10**one:g}", "middle") for one in ticks],
        _text((LEFT + RIGHT) / 2, bottom + 38, f"cost of a typical task, {currency} (log scale)", "middle"),
        _front_line([one for one in points if one.on_front], x, y),
        [_point(one, x, y) for one in points],
        _point_labels(points, x, y),
    ]
    description = "; ".join(
        f"{one.agent}: {format_number(one.cost)} {currency}, {format_share(one.value)}" for one in points
    )
    return _drawing(f"Cost against {measure}, with the Pareto front", f"{description}.", height, drawn)


def _front_line(points: Sequence[Point], x: Axis, y: Axis) -> Child:
    """Draw the front in steps: between two agents, the cheaper one is the best known."""
    corners, before = [], None
    for one in points:
        place = (x.at(math.log10(one.cost)), y.at(one.value))
        if before is not None:
            corners.append((place[0], before[1]))
        corners.append(place)
        before = place
    description = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
    return tag("polyline", points=description, class_="front") if len(points) > 1 else None


def _point(one: Point, x: Axis, y: Axis) -> Child:
    across, up = x.at(math.log10(one.cost)), y.at(one.value)
    low, high = (x.at(math.log10(edge)) for edge in _edges(one.cost_interval) or (one.cost, one.cost))
    bottom, top = (y.at(edge) for edge in _edges(one.value_interval) or (one.value, one.value))
    return [
        _line(low, up, high, up, "reach"),
        _line(across, bottom, across, top, "reach"),
        tag(
            "circle",
            tag("title", f"{one.agent}: {format_number(one.cost)}, {format_share(one.value)}"),
            cx=across,
            cy=up,
            r=6.0,
            class_="dot on" if one.on_front else "dot off",
        ),
    ]


def _point_labels(points: Sequence[Point], x: Axis, y: Axis) -> Child:
    """Place labels beside the points, apart from each other."""
    lowest, drawn = -math.inf, []
    for one in sorted(points, key=lambda one: (y.at(one.value), one.agent)):
        across = x.at(math.log10(one.cost))
        lowest = max(lowest + 14, y.at(one.value) - 9)
        left = across < (LEFT + RIGHT) / 2
        drawn.append(_text(across + (9 if left else -9), lowest, one.agent, "start" if left else "end", "name"))
    return drawn


# Forest plot.


def forest(comparisons: Sequence[Comparison], title: str) -> Markup:
    """Draw pairs of agents with their intervals, the minimal detectable difference, and what holds after Holm."""
    shown = [one for one in comparisons if one.estimate is not None][:MOST_PAIRS]
    ratio = any(one.scale is ComparisonScale.RATIO for one in shown)
    scaled: Callable[[float], float] = math.log if ratio else float
    reaches = [abs(scaled(edge)) for one in shown for edge in (one.estimate or 1.0, *_edges(one.interval))]
    reaches += [abs(scaled(one.mde)) for one in shown if one.mde is not None]
    most = max([*reaches, 0.05]) * 1.05
    x, row = Axis(-most, most, 14.0, RIGHT), 46.0
    bottom = 14 + row * len(shown)
    ticks = _ratio_ticks(most) if ratio else _even_ticks(most)
    drawn: list[Child] = [
        [_line(x.at(one), 8, x.at(one), bottom, "zero" if not one else "grid") for one in ticks],
        [_text(x.at(one), bottom + 17, _tick(one, ratio=ratio), "middle") for one in ticks],
        _text(WIDTH / 2, bottom + 36, "ratio (log scale)" if ratio else "difference, percentage points", "middle"),
        [_forest_row(one, x, 14 + row * place, scaled) for place, one in enumerate(shown)],
    ]
    description = "; ".join(f"{one.a} against {one.b}: {_describe_comparison(one)}" for one in shown)
    return _drawing(title, f"{description}.", bottom + 46, drawn)


def _tick(value: float, *, ratio: bool) -> str:
    if ratio:
        return f"× {math.exp(value):.3g}"
    return f"{100 * value:+.3g}" if value else "0"


def _forest_row(one: Comparison, x: Axis, top: float, scaled: Callable[[float], float]) -> Child:
    middle = top + 28
    holds = one.p_holm is not None and one.p_holm < SIGNIFICANT
    at = x.at(scaled(one.estimate or 1.0)) if one.estimate else x.at(0.0)
    band = None if one.mde is None else (x.at(-scaled(one.mde)), x.at(scaled(one.mde)))
    sign = "÷" if one.scale is ComparisonScale.RATIO else "−"
    return [
        band and tag("rect", x=band[0], y=middle - 9, width=band[1] - band[0], height=18.0, class_="band"),
        _text(14, top + 10, f"{_truncate(one.a)} {sign} {_truncate(one.b)}", "start", "name"),
        _text(RIGHT, top + 10, f"p {format_p(one.p_holm)}{' *' if holds else ''}", "end"),
        None
        if one.interval is None
        else _line(x.at(scaled(one.interval.low)), middle, x.at(scaled(one.interval.high)), middle, "reach strong"),
        tag(
            "rect",
            tag("title", f"{one.a} against {one.b}: {_describe_comparison(one)}"),
            x=at - 5,
            y=middle - 5,
            width=10.0,
            height=10.0,
            class_="dot on" if holds else "dot off",
        ),
    ]


def _describe_comparison(one: Comparison) -> str:
    word = format_factor if one.scale is ComparisonScale.RATIO else format_difference
    interval = f" ({word(one.interval.low)} to {word(one.interval.high)})" if one.interval else " (no interval)"
    return f"{word(one.estimate)}{interval}, p after Holm {format_p(one.p_holm)}"


# Tokens per step.


def tokens_per_step(agents: Sequence[AgentSteps]) -> Iterable[Markup]:
    """Draw one chart for each agent, all on one scale."""
    most = max((_sum(step) for agent in agents for step in agent.steps), default=0.0)
    return [_steps(agent, _round_up(most)) for agent in agents if agent.steps and most]


def _sum(step: StepUse) -> float:
    return math.fsum(step.tokens.values())


def _steps(agent: AgentSteps, most: float) -> Markup:
    bottom, top = 180.0, 34.0
    y = Axis(0.0, most, bottom, top)
    room = (RIGHT - LEFT) / len(agent.steps)
    every = math.ceil(len(agent.steps) / 14)
    ticks = [most * part for part in (0, 0.5, 1)]
    drawn: list[Child] = [
        _text(14, 16, agent.agent, "start", "name"),
        [_line(LEFT, y.at(one), RIGHT, y.at(one), "grid") for one in ticks],
        [_text(LEFT - 6, y.at(one) + 4, _short(one), "end") for one in ticks],
        [_bar(step, y, LEFT + room * place + room * 0.1, room * 0.8) for place, step in enumerate(agent.steps)],
        [
            _text(LEFT + room * (place + 0.5), bottom + 16, str(step.place), "middle")
            for place, step in enumerate(agent.steps)
            if place % every == 0
        ],
        _text((LEFT + RIGHT) / 2, bottom + 34, f"step; mean of {agent.runs:,} verified runs", "middle"),
    ]
    description = "; ".join(f"step {step.place}: {format_number(_sum(step))}" for step in agent.steps)
    return _drawing(f"Tokens per step of {agent.agent}", f"{description}.", bottom + 44, drawn)


def _bar(step: StepUse, y: Axis, left: float, width: float) -> Child:
    below, parts = 0.0, []
    for name in TokenClass:
        tokens = step.tokens.get(name, 0.0)
        if tokens:
            upper, lower = y.at(below + tokens), y.at(below)
            title = tag("title", f"step {step.place} {step.label}: {format_number(tokens)} {CLASS_WORDS[name]}")
            parts.append(tag("rect", title, x=left, y=upper, width=width, height=lower - upper, class_=f"fill-{name}"))
        below += tokens
    return parts


# Observations of runs.


def reconciliation(timeline: Timeline) -> Markup:
    """Draw runs from their end on: each observation, the status after it, and withdrawals."""
    row, top = 34.0, 12.0
    marks = [one.minutes for line in timeline.rows for one in line.observations]
    changes = [one.minutes for line in timeline.rows for one in line.changes]
    last = max([*marks, *changes, 120.0])
    x = Axis(0.0, math.log10(1 + last), 14.0, RIGHT)
    bottom = top + row * len(timeline.rows)
    ticks = [(10, "10 min"), (60, "1 h"), (360, "6 h"), (1440, "1 d"), (10080, "7 d")]
    drawn: list[Child] = [
        [_line(_after(x, one), top - 6, _after(x, one), bottom, "grid") for one, _ in ticks if one <= last],
        [_text(_after(x, one), bottom + 17, word, "middle") for one, word in ticks if one <= last],
        _text(WIDTH / 2, bottom + 36, "since the run's end (log scale)", "middle"),
        [_timeline_row(line, x, top + row * place) for place, line in enumerate(timeline.rows)],
    ]
    description = "; ".join(f"{one.run}: {len(one.observations)} observations, {one.status}" for one in timeline.rows)
    return _drawing("Observations of runs, and the status after each", f"{description}.", bottom + 46, drawn)


def _timeline_row(line: TimelineRow, x: Axis, top: float) -> Child:
    middle = top + 22
    starts = [(0.0, UsageStatus.PENDING), *((one.minutes, one.status) for one in line.changes)]
    ends = [*(minutes for minutes, _ in starts[1:]), math.inf]
    spans = [
        tag(
            "rect",
            tag("title", f"{line.run}: {status}"),
            x=_after(x, minutes),
            y=middle - 4,
            width=_after(x, end) - _after(x, minutes),
            height=8.0,
            class_=f"fill-{status}",
        )
        for (minutes, status), end in zip(starts, ends, strict=True)
    ]
    marks = [
        tag(
            "circle",
            tag("title", f"{one.minutes:.0f} min: {one.summary}"),
            cx=_after(x, one.minutes),
            cy=middle,
            r=4.0,
            class_="look" if one.kind is TimelineObservationKind.COUNT else "look none",
        )
        for one in line.observations
    ]
    withdrawn = [
        _text(_after(x, one.minutes), middle + 6, "✕", "middle", "bad") for one in line.changes if one.withdraws
    ]
    return [
        _text(14, top + 12, f"{_truncate(line.run)} · {_truncate(line.agent)}", "start", "name"),
        spans,
        marks,
        withdrawn,
    ]


def _after(x: Axis, minutes: float) -> float:
    return x.at(math.log10(1 + max(0.0, minutes)))


# From local to billed.


def local_to_billed(several: Sequence[Waterfall]) -> Markup:
    """Draw the runs' own count, each reason for a difference, and the provider's count."""
    steps: list[tuple[str, float, float, str]] = []
    local, billed = sum(one.local for one in several), sum(one.billed for one in several)
    steps.append(("counted by the runs", 0, local, "total"))
    so_far = local
    for part in DiscrepancyCause:
        change = sum(one.parts.get(part, 0) for one in several)
        if change:
            steps.append((PART_WORDS[part], so_far, so_far + change, "up" if change > 0 else "down"))
            so_far += change
    steps.append(("counted by the provider", 0, billed, "total"))
    x, row = Axis(0.0, max([1.0, *(edge for _, *edges, _ in steps for edge in map(float, edges))]), 14.0, RIGHT), 44.0
    drawn = [_waterfall_bar(step, x, 8 + row * place) for place, step in enumerate(steps)]
    description = "; ".join(f"{word}: {format_number(int(end - start))}" for word, start, end, _ in steps)
    return _drawing("From local to billed tokens", f"{description}.", 16 + row * len(steps), drawn)


def _waterfall_bar(step: tuple[str, float, float, str], x: Axis, top: float) -> Child:
    word, start, end, kind = step
    left, right = sorted((x.at(start), x.at(end)))
    description = f"{int(end - start):+,}" if kind != "total" else f"{int(end):,}"
    return [
        _text(14, top + 12, word, "start", "name"),
        _text(RIGHT, top + 12, description, "end"),
        tag("rect", x=left, y=top + 18, width=max(1.5, right - left), height=16.0, class_=f"fill-{kind}"),
    ]


# Shared parts.


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """Draw the legend: pairs of a CSS class and a word."""
    return tag(
        "ul",
        [tag("li", tag("span", class_=f"swatch fill-{name}", aria_hidden="true"), word) for name, word in entries],
        class_="legend",
    )


def _drawing(title: str, description: str, height: float, children: Iterable[Child]) -> Markup:
    return tag(
        "svg",
        tag("title", title),
        tag("desc", description),
        *children,
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        role="img",
    )


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _text(x: float, y: float, words: str, anchor: str, kind: str = "") -> Markup:
    title = tag("title", words) if len(words) > 2 * LONGEST_LABEL + 3 else None
    return tag(
        "text", _truncate(words, 2 * LONGEST_LABEL + 3), title, x=x, y=y, text_anchor=anchor, class_=kind or None
    )


def _truncate(words: str, longest: int = LONGEST_LABEL) -> str:
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def _edges(interval: ConfidenceInterval | None) -> tuple[float, ...]:
    return () if interval is None else (interval.low, interval.high)


def _decades(costs: Sequence[float]) -> tuple[float, float]:
    """The range of costs, with a margin."""
    low, high = math.log10(min(costs)), math.log10(max(costs))
    room = max(0.15, (high - low) * 0.12)
    return low - room, high + room


def _log_ticks(low: float, high: float) -> list[float]:
    """Ticks at 1, 2 and 5, fewer where they would be too close."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [math.log10(step) + power for power in powers for step in (1, 2, 5)]
    shown = [one for one in fine if low <= one <= high]
    if len(shown) > MOST_TICKS:
        shown = [one for one in map(float, powers) if low <= one <= high]
    return shown[:: math.ceil(len(shown) / MOST_TICKS) or 1]


def _round_up(value: float) -> float:
    """The next round number."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= value)


def _even_ticks(most: float) -> list[float]:
    """One or two round numbers on either side of zero."""
    step = _round_up(most / 2.5)
    sides = [step * place for place in (1, 2) if step * place <= most] or [step / 2]
    return [*(-one for one in reversed(sides)), 0.0, *sides]


def _ratio_ticks(most: float) -> list[float]:
    """Round factors on either side of one, as logarithms."""
    easy = (1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 100, 1e3, 1e6, 1e9)
    fit = [math.log(one) for one in easy if math.log(one) <= most * 0.95][-1:] or [most * 0.9]
    return [-fit[0], 0.0, fit[0]]


def _short(tokens: float) -> str:
    for size, word in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if tokens >= size:
            return f"{tokens / size:.3g}{word}"
    return f"{tokens:.0f}"
