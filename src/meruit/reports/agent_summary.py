"""One agent: how often it succeeds over all its runs, and what its verified runs used and cost."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from meruit.benchmarks.score import pass_at_k, pass_hat_k
from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.model.usage import sum_tokens
from meruit.model.verdict import Bounds
from meruit.reports.population import CostKind, ReportRow, by_task, clusters
from meruit.reports.statistics import (
    FEWEST_TASKS,
    cluster_robust_error,
    mean_of,
    over_tasks,
    share_interval,
    t_quantile,
)

MOST_TRIES = 10
"""The highest k of pass@k and pass^k."""


class Measure(StrEnum):
    """What agents are compared by."""

    SUCCESS = "success"
    SCORE = "score"
    COST = "cost"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class CostBasis:
    """Which cost, in which currency."""

    kind: CostKind
    currency: str


class Share(Record, frozen=True):
    """The share of successes, or the mean score; a run without a recorded result counts as 0."""

    runs: int
    met: float
    """Successes, or the sum of scores."""
    unknown: int
    rate: float | None
    """None where no result was recorded."""
    interval: ConfidenceInterval | None
    bounds: Bounds | None
    """The lowest and highest possible value, given the runs without a known result."""


class GeometricMean(Record, frozen=True):
    """The geometric mean over tasks: the amount of a typical task."""

    tasks: int
    mean: float | None
    interval: ConfidenceInterval | None = None
    left_out: int = 0
    """Tasks with an amount that is zero or unknown, which has no logarithm."""
    why_not: str = ""


class Spend(Record, frozen=True):
    """What an agent's verified runs cost."""

    runs: int
    unknown: int
    """Runs with an unknown cost; it does not count as zero."""
    total: Decimal | None
    """The sum of the known costs."""
    typical: GeometricMean
    per_success: Decimal | None
    """The cost of all runs, including failures, for each success."""
    why_not: str = ""


class AgentTokenUse(Record, frozen=True):
    """What an agent's verified runs used."""

    runs: int
    input: int
    output: int
    cached: int | None
    reasoning: int | None
    typical: GeometricMean


class AgentSummary(Record, frozen=True):
    """One agent."""

    agent: str
    runs: int
    finished: int
    verified: int
    tasks: int
    success: Share
    """Over all finished runs."""
    success_verified: Share
    """Over verified runs only, which leaves out runs that failed half-way."""
    score: Share
    pass_at_k: dict[str, float]
    pass_hat_k: dict[str, float]
    spend: Spend
    tokens: AgentTokenUse
    assurance: dict[str, int]
    """Verified runs by how closely the provider's count belongs to them."""
    place: ConfidenceInterval | None = None
    """The interval of its rank by success or score."""
    place_by_cost: ConfidenceInterval | None = None


def outcome_value(row: ReportRow, measure: Measure) -> float | None:
    """A run's success or score as a number; None where it was not recorded."""
    if measure is Measure.SCORE:
        return row.score
    return None if row.success is None else float(row.success)


def consumption(row: ReportRow, measure: Measure, money: CostBasis) -> float | None:
    """The cost or the tokens of a run; None where unknown."""
    if measure is Measure.TOKENS:
        return None if row.tokens is None else float(row.tokens.total)
    cost = row.cost(money.kind, money.currency)
    return None if cost is None else float(cost)


def summarize_agent(agent: str, rows: Sequence[ReportRow], money: CostBasis) -> AgentSummary:
    """Summarise one agent."""
    finished = [row for row in rows if row.finished]
    verified = [row for row in rows if row.is_verified]
    tries = [(len(several), sum(row.success is True for row in several)) for several in by_task(finished).values()]
    known = any(row.success is not None for row in finished)
    success_verified = _share(verified, len(finished), Measure.SUCCESS)
    levels = sorted(str(row.assurance) for row in verified)
    return AgentSummary(
        agent=agent,
        runs=len(rows),
        finished=len(finished),
        verified=len(verified),
        tasks=len(by_task(rows)),
        success=_share(finished, len(rows), Measure.SUCCESS),
        success_verified=success_verified,
        score=_share(finished, len(rows), Measure.SCORE),
        pass_at_k=over_tasks(tries, MOST_TRIES, pass_at_k) if known else {},
        pass_hat_k=over_tasks(tries, MOST_TRIES, pass_hat_k) if known else {},
        spend=_spend(verified, success_verified, money),
        tokens=_tokens(verified, money),
        assurance={level: levels.count(level) for level in dict.fromkeys(levels)},
    )


def _share(rows: Sequence[ReportRow], of_all: int, measure: Measure) -> Share:
    values = [[outcome_value(row, measure) for row in several] for several in clusters(rows)]
    unknown = sum(one is None for several in values for one in several)
    numbers = [[one or 0.0 for one in several] for several in values]
    met = math.fsum(one for several in numbers for one in several)
    if unknown == len(rows):
        return Share(runs=len(rows), met=0.0, unknown=unknown, rate=None, interval=None, bounds=None)
    interval = share_interval(numbers) if measure is Measure.SUCCESS else _mean_interval(numbers)
    beyond = max(0, of_all - len(rows))
    bounds = Bounds(met / max(of_all, len(rows)), (met + unknown + beyond) / max(of_all, len(rows)))
    return Share(runs=len(rows), met=met, unknown=unknown, rate=met / len(rows), interval=interval, bounds=bounds)


def _mean_interval(groups: Sequence[Sequence[float]]) -> ConfidenceInterval | None:
    """Student's interval of the mean over runs, by task; None for too few tasks, or where none differs."""
    if len(groups) < FEWEST_TASKS:
        return None
    error = cluster_robust_error(groups)
    mean = math.fsum(one for group in groups for one in group) / sum(map(len, groups))
    reach = t_quantile(len(groups) - 1) * error
    return ConfidenceInterval(max(0.0, mean - reach), min(1.0, mean + reach)) if error else None


def task_means(
    rows: Sequence[ReportRow], value: Callable[[ReportRow], float | None], *, strict: bool
) -> dict[str, float | None]:
    """The mean over the runs of each task; unknown where one run is, or counts as 0 where not strict."""
    return {task: _mean([value(row) for row in several], strict=strict) for task, several in by_task(rows).items()}


def _mean(values: Sequence[float | None], *, strict: bool) -> float | None:
    if strict and None in values:
        return None
    return math.fsum(one or 0.0 for one in values) / len(values)


def geometric_mean(means: Mapping[str, float | None]) -> GeometricMean:
    """The geometric mean over tasks, without those whose amount is zero or unknown."""
    logs = [math.log(one) for one in means.values() if one is not None and one > 0]
    out = len(means) - len(logs)
    if not logs:
        return GeometricMean(
            tasks=0, mean=None, interval=None, left_out=out, why_not="no task has a known amount above zero"
        )
    found = mean_of(logs)
    interval = found.interval and ConfidenceInterval(math.exp(found.interval.low), math.exp(found.interval.high))
    return GeometricMean(
        tasks=found.tasks, mean=math.exp(found.mean), interval=interval, left_out=out, why_not=found.why_not
    )


def _spend(verified: Sequence[ReportRow], success: Share, money: CostBasis) -> Spend:
    costs = [row.cost(money.kind, money.currency) for row in verified]
    known = [one for one in costs if one is not None]
    total = sum(sorted(known), Decimal(0)) if known else None
    unknown, why_not, per_success = len(costs) - len(known), "", None
    if total is None:
        why_not = "no cost is known"
    elif unknown:
        why_not = f"the cost of {unknown:,} of {len(costs):,} verified runs is unknown"
    elif not success.met:
        why_not = "no verified run is known to have succeeded"
    else:
        per_success = total / int(success.met)
    means = task_means(verified, lambda row: consumption(row, Measure.COST, money), strict=True)
    return Spend(
        runs=len(verified),
        unknown=unknown,
        total=total,
        typical=geometric_mean(means),
        per_success=per_success,
        why_not=why_not,
    )


def _tokens(verified: Sequence[ReportRow], money: CostBasis) -> AgentTokenUse:
    used = sum_tokens(row.tokens for row in verified if row.tokens is not None)
    means = task_means(verified, lambda row: consumption(row, Measure.TOKENS, money), strict=True)
    return AgentTokenUse(
        runs=len(verified),
        input=used.input,
        output=used.output,
        cached=used.cached,
        reasoning=used.reasoning,
        typical=geometric_mean(means),
    )
