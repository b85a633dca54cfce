"""Compare agents on the tasks that all of them have: pairs, families of tests, ranks, and the Pareto front."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

import msgspec

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.agent_summary import CostBasis, Measure, consumption, outcome_value, task_means
from meruit.reports.population import ReportRow
from meruit.reports.statistics import (
    FEWEST_TASKS,
    FEWEST_TO_RESAMPLE,
    SignedRanks,
    bootstrap_totals,
    cliffs_delta,
    holm,
    mean_of,
    rank_intervals,
    ratio_interval,
    wilcoxon_signed_rank,
)

CONSUMPTION_MEASURES = (Measure.COST, Measure.TOKENS)
"""Amounts: less is better, they are compared by ratio, and only verified runs count."""
SIGNIFICANT = 0.05
"""The level of all tests."""


class RunPopulation(StrEnum):
    """The runs that are compared."""

    FINISHED = "finished"
    """All finished runs, on tasks where every compared agent has one (intention to treat)."""
    VERIFIED = "verified"
    """Verified runs only, on tasks where every compared agent has one."""


class ComparisonScale(StrEnum):
    """How two agents are compared."""

    DIFFERENCE = "difference"
    """The first minus the second; 0 means equal."""
    RATIO = "ratio"
    """The ratio of geometric means; 1 means equal."""


class TotalsRatio(Record, frozen=True):
    """The ratio of the totals over all tasks."""

    ratio: float
    interval: ConfidenceInterval
    """The bootstrap interval over tasks."""


class Comparison(Record, frozen=True):
    """Two agents by one measure, task by task."""

    a: str
    b: str
    measure: Measure
    among: RunPopulation
    scale: ComparisonScale
    tasks: int
    runs_a: int
    runs_b: int
    value_a: float | None
    """The mean over tasks; the geometric mean for a ratio."""
    value_b: float | None
    estimate: float | None
    interval: ConfidenceInterval | None
    p: float | None
    """The probability of this difference by chance."""
    p_holm: float | None
    """Adjusted for all pairs of this measure."""
    mde: float | None
    """The smallest difference that so many tasks detect in 80 % of cases; for ratios, the factor."""
    ranks: SignedRanks | None
    delta: float | None
    """Cliff's: how much more often a task of `a` is above one of `b` than below."""
    won: int
    """Tasks where `a` is the better one."""
    lost: int
    tied: int
    totals: TotalsRatio | None = None
    left_out: int = 0
    """Common tasks without a ratio: an amount is zero or unknown."""
    took_nothing: int = 0
    """Those of them with an amount of zero, which has no logarithm."""
    why_not: str = ""
    """Why the interval is missing."""


def describe_left_out(one: Comparison) -> str:
    """Describe how many tasks have no ratio, and why; empty where all have one."""
    unknown = one.left_out - one.took_nothing
    reasons = [f"{one.took_nothing:,} took nothing"] if one.took_nothing else []
    reasons += [f"of {unknown:,} it is unknown"] if unknown else []
    tasks = "task" if one.left_out == 1 else "tasks"
    return f"{one.left_out:,} {tasks} left out: {', '.join(reasons)}" if one.left_out else ""


def is_clear(one: Comparison) -> bool:
    """Whether the difference holds after Holm's adjustment."""
    return one.p_holm is not None and one.p_holm < SIGNIFICANT


def describe_reading(one: Comparison) -> tuple[str, str]:
    """What a comparison says of the first agent: a tone, and a word."""
    if one.estimate is None or one.p_holm is None:
        return "", "not tested"
    if not is_clear(one):
        return "", "no clear difference"
    if one.measure in CONSUMPTION_MEASURES:
        return ("pass", "less") if one.estimate < 1 else ("fail", "more")
    return ("pass", "better") if one.estimate > 0 else ("fail", "worse")


class Point(Record, frozen=True):
    """An agent by its cost and its result."""

    agent: str
    cost: float
    cost_interval: ConfidenceInterval | None
    value: float
    value_interval: ConfidenceInterval | None
    on_front: bool


@dataclass(frozen=True, slots=True)
class MeasureColumns:
    """One measure of all compared agents, on their common tasks."""

    measure: Measure
    among: RunPopulation
    columns: dict[str, list[float]]
    """One number for each task, by agent, in the same order."""
    runs: dict[str, int]
    tasks: tuple[str, ...]
    unknown: int = 0
    """Common tasks that are left out because an amount is unknown."""


def common_tasks(agents: Mapping[str, Sequence[ReportRow]], among: RunPopulation) -> tuple[str, ...]:
    """The tasks of which every agent has such a run; an agent without any such run is ignored."""
    several = [{row.task for row in rows if row.task and _is_among(row, among)} for rows in agents.values()]
    present = [tasks for tasks in several if tasks]
    return tuple(sorted(set[str].intersection(*present))) if present else ()


def tasks_to_compare(agents: Mapping[str, Sequence[ReportRow]]) -> tuple[str, ...]:
    """The tasks on which tokens and cost are compared; none where only one of several agents has a verified run."""
    verified = sum(any(_is_among(row, RunPopulation.VERIFIED) for row in rows) for rows in agents.values())
    return common_tasks(agents, RunPopulation.VERIFIED) if verified >= min(2, len(agents)) else ()


def measure_columns(
    agents: Mapping[str, Sequence[ReportRow]], measure: Measure, among: RunPopulation, money: CostBasis
) -> MeasureColumns:
    """Collect a measure task by task, for the agents that have it."""
    taken = measure in CONSUMPTION_MEASURES

    def value(row: ReportRow) -> float | None:
        return consumption(row, measure, money) if taken else outcome_value(row, measure)

    chosen = {agent: [row for row in rows if row.task and _is_among(row, among)] for agent, rows in agents.items()}
    present = {agent: rows for agent, rows in chosen.items() if any(value(row) is not None for row in rows)}
    shared = common_tasks(agents, among)
    # A result that was not recorded counts as 0; an amount that was not recorded is unknown.
    means = {agent: task_means(rows, value, strict=taken) for agent, rows in present.items()}
    known = {task: None for task in shared if all(several[task] is not None for several in means.values())}
    return MeasureColumns(
        measure=measure,
        among=among,
        columns={agent: [several[task] or 0.0 for task in known] for agent, several in means.items()},
        runs={agent: sum(row.task in known for row in rows) for agent, rows in present.items()},
        tasks=tuple(known),
        unknown=len(shared) - len(known),
    )


def _is_among(row: ReportRow, among: RunPopulation) -> bool:
    return row.is_verified if among is RunPopulation.VERIFIED else row.finished


def comparisons(field: MeasureColumns) -> tuple[Comparison, ...]:
    """Compare every pair of agents; the pairs of one measure are one family of tests."""
    enough = field.measure in CONSUMPTION_MEASURES and len(field.tasks) >= FEWEST_TO_RESAMPLE
    drawn = dict(zip(field.columns, bootstrap_totals([*field.columns.values()]), strict=True)) if enough else {}
    found = [_pair(field, a, b, drawn) for a, b in combinations(field.columns, 2)]
    tested = [one for one in found if one.p is not None]
    adjusted = dict(zip(((one.a, one.b) for one in tested), holm([one.p or 0.0 for one in tested]), strict=True))
    return tuple(msgspec.structs.replace(one, p_holm=adjusted.get((one.a, one.b))) for one in found)


def _pair(field: MeasureColumns, a: str, b: str, drawn: Mapping[str, Sequence[float]]) -> Comparison:
    taken = field.measure in CONSUMPTION_MEASURES
    every = [*zip(field.columns[a], field.columns[b], strict=True)]
    both = [(one, other) for one, other in every if not taken or (one > 0 and other > 0)]
    ours, theirs = (
        ([(math.log(one) if taken else one) for one in side] for side in zip(*both, strict=True)) if both else ([], [])
    )
    apart = [one - other for one, other in zip(ours, theirs, strict=True)]
    back = math.exp if taken else float
    found = mean_of(apart)
    signs = [(-1 if taken else 1) * round(one, 12) for one in apart]
    return Comparison(
        a=a,
        b=b,
        measure=field.measure,
        among=field.among,
        scale=ComparisonScale.RATIO if taken else ComparisonScale.DIFFERENCE,
        tasks=len(both),
        runs_a=field.runs[a],
        runs_b=field.runs[b],
        value_a=back(mean_of(ours).mean) if both else None,
        value_b=back(mean_of(theirs).mean) if both else None,
        estimate=back(found.mean) if both else None,
        interval=found.interval and ConfidenceInterval(back(found.interval.low), back(found.interval.high)),
        p=found.p,
        p_holm=None,
        mde=None if found.mde is None else back(found.mde),
        ranks=wilcoxon_signed_rank(apart) if both else None,
        delta=cliffs_delta(ours, theirs) if both else None,
        won=sum(one > 0 for one in signs),
        lost=sum(one < 0 for one in signs),
        tied=sum(one == 0 for one in signs),
        totals=_totals(every, drawn.get(a), drawn.get(b)),
        left_out=field.unknown + len(every) - len(both),
        took_nothing=len(every) - len(both),
        why_not=found.why_not,
    )


def _totals(
    every: Sequence[tuple[float, float]], ours: Sequence[float] | None, theirs: Sequence[float] | None
) -> TotalsRatio | None:
    interval = None if ours is None or theirs is None else ratio_interval(ours, theirs)
    if interval is None:
        return None
    return TotalsRatio(math.fsum(one for one, _ in every) / math.fsum(other for _, other in every), interval)


def rank_ranges(field: MeasureColumns) -> dict[str, ConfidenceInterval]:
    """The interval of each agent's rank; empty for too few tasks, or only one agent."""
    if len(field.tasks) < FEWEST_TASKS or len(field.columns) < 2:
        return {}
    found = rank_intervals(
        bootstrap_totals([*field.columns.values()]), high_is_good=field.measure not in CONSUMPTION_MEASURES
    )
    return dict(zip(field.columns, found, strict=True))


def pareto_front(points: Sequence[Point]) -> tuple[Point, ...]:
    """Sort the points by cost, and mark those on the Pareto front: no other agent is both as cheap and as good."""
    order = sorted(points, key=lambda one: (one.cost, -one.value, one.agent))
    return tuple(
        msgspec.structs.replace(one, on_front=not any(_dominates(other, one) for other in order)) for one in order
    )


def _dominates(one: Point, other: Point) -> bool:
    as_good = one.cost <= other.cost and one.value >= other.value
    return as_good and (one.cost < other.cost or one.value > other.value)
