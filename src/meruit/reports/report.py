"""A report as data: all that a page shows, out of recorded runs alone; the same runs in any order, the same bytes."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec

from meruit.errors import nearest
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.usage import INTERVAL_MIN, Attempt, Moment
from meruit.reports.agent_summary import Measure, Money, Standing, amount, standing, typical
from meruit.reports.compare import (
    Among,
    Comparison,
    Field,
    Point,
    compared_tasks,
    comparisons,
    field_of,
    front,
    places,
)
from meruit.reports.population import (
    CostKind,
    Counted,
    Excluded,
    ExclusionCount,
    ReportError,
    by_agent,
    by_task,
    currency_of,
    distinct,
    excluded,
    exclusion_counts,
)
from meruit.reports.reconciliation import (
    Attempts,
    LedgerLine,
    StepsOf,
    StepsSeen,
    Timeline,
    Waterfall,
    Waterfalls,
    argued,
    ledger,
    timeline,
)
from meruit.reports.statistics import RESAMPLES, SEED

QUESTION = "Which agent does the work, how surely, and at what cost, as far as that is verified?"
MOST_AGENTS = 30
"""Of one report: every pair of them is compared."""
_DIGITS = 10
"""Of a number in a report; what lies behind differs from machine to machine, and means nothing."""
FORMAT = 1


class PriceTable(Record, frozen=True):
    """A version of a table of prices that verified runs are quoted by."""

    source: str
    version: str
    sha256: str
    runs: int


class Cell(Record, frozen=True):
    """One agent's runs of one task."""

    agent: str
    runs: int
    finished: int
    verified: int
    successes: int
    score: float | None
    cost: float | None
    """The mean of its verified runs; None where one of them is unknown."""


class TaskLine(Record, frozen=True):
    """One task."""

    task: str
    compared: bool
    """Whether every agent has a verified run of it."""
    cells: tuple[Cell, ...]


class Report(Record, frozen=True):
    """What may be said of agents, and of how much of it nothing may be said."""

    format: int
    question: str
    command: str
    """Makes it again."""
    digest: str
    """Of all that it was made from."""
    as_of: Moment | None
    """The latest moment that anything in it tells of."""
    made_by: str
    cost: CostKind
    currency: str
    measure: Measure | None
    """By what agents are placed: score where all of them have one, else success."""
    runs: int
    finished: int
    verified: int
    tasks: int
    tasks_compared: int
    """Those where every agent that has a verified run has one; none where fewer than two of several have any."""
    intervals_min: tuple[float, ...]
    """Minutes between equal looks that runs were judged with."""
    prices: tuple[PriceTable, ...]
    resamples: int
    seed: int
    agents: tuple[Standing, ...]
    comparisons: tuple[Comparison, ...]
    points: tuple[Point, ...]
    steps: tuple[StepsOf, ...]
    timeline: Timeline
    waterfalls: tuple[Waterfall, ...]
    ledger: tuple[LedgerLine, ...]
    task_lines: tuple[TaskLine, ...]
    exclusions: tuple[ExclusionCount, ...]
    excluded: tuple[Excluded, ...]
    on_trust: int
    """Runs whose verdicts stand as they were given, since no look came with them by which to judge again."""
    notes: tuple[str, ...]
    """What a reader must know before believing any of it."""


def build(
    records: Iterable[UsageRecord],
    attempts: Mapping[str, Sequence[Attempt]] | Attempts | None = None,
    *,
    agents: Sequence[str] = (),
    cost: CostKind = CostKind.QUOTED,
    question: str = QUESTION,
    command: str = "",
) -> Report:
    """The report on these runs; `attempts` gives the looks at a run by its id, and `agents` narrows it to some."""
    looks = _Looks(attempts)
    seen = _Seen(looks)
    chosen = argued(seen.passing(distinct(seen.of_agents(records, agents))))
    grouped = by_agent(seen.rows)
    _check_agents(seen.agents, agents)
    # Pairs are told in the order in which agents were named.
    grouped = {agent: grouped[agent] for agent in agents or grouped}
    money = Money(cost, currency_of(seen.rows, cost))
    fields = _fields(grouped, money)
    measure = _measure(grouped)
    standings = _placed([standing(agent, rows, money) for agent, rows in grouped.items()], fields, measure)
    told = timeline(seen.rows, chosen, looks)
    on_trust = sum(not looks.knows(row.id) for row in seen.rows)
    shared = compared_tasks(grouped)
    report = Report(
        format=FORMAT,
        question=question,
        command=command,
        digest=_digest(seen.rows, looks),
        as_of=seen.as_of,
        made_by=f"meruit {version('meruit')}",
        cost=cost,
        currency=money.currency,
        measure=measure,
        runs=len(seen.rows),
        finished=sum(row.finished for row in seen.rows),
        verified=sum(row.verified for row in seen.rows),
        tasks=len({row.task for row in seen.rows if row.task}),
        tasks_compared=len(shared),
        intervals_min=tuple(sorted(seen.intervals)),
        prices=seen.price_tables(),
        resamples=RESAMPLES,
        seed=SEED,
        agents=standings,
        comparisons=tuple(one for field in fields.values() for one in comparisons(field)),
        points=_points(standings, fields[Measure.COST, Among.VERIFIED], measure),
        steps=seen.steps.steps(),
        timeline=told,
        waterfalls=seen.waterfalls.waterfalls(),
        ledger=ledger(grouped, money.currency),
        task_lines=_task_lines(grouped, money, set(shared)),
        exclusions=exclusion_counts(grouped),
        excluded=excluded(seen.rows),
        on_trust=on_trust,
        notes=(*_trusted(on_trust, len(seen.rows)), *_notes(seen, grouped, money, shared)),
    )
    return msgspec.convert(_short(msgspec.to_builtins(report)), type=Report)


# Any: a report in plain values.
def _short(value: Any) -> Any:
    """Floats with the digits that mean something."""
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {name: _short(one) for name, one in value.items()}
        case list() | tuple():
            return [_short(one) for one in value]
        case _:
            return value


class _Looks:
    """The looks at runs, and which of them were asked for."""

    def __init__(self, attempts: Mapping[str, Sequence[Attempt]] | Attempts | None) -> None:
        self._give: Callable[[str], Sequence[Attempt]] = _given(attempts)
        self.knows: Callable[[str], bool] = _known(attempts)
        """Whether the looks at a run were given at all, if only that there are none."""
        self.digests: dict[str, str] = {}

    def __call__(self, run_id: str) -> Sequence[Attempt]:
        found = sorted(self._give(run_id), key=lambda one: (one.at, one.id))
        self.digests[run_id] = hashlib.sha256(b"".join(one.to_json() for one in found)).hexdigest()
        return found


def _given(attempts: Mapping[str, Sequence[Attempt]] | Attempts | None) -> Attempts:
    if attempts is None:
        return lambda _run_id: ()
    return (lambda run_id: attempts.get(run_id, ())) if isinstance(attempts, Mapping) else attempts


def _known(attempts: Mapping[str, Sequence[Attempt]] | Attempts | None) -> Callable[[str], bool]:
    if isinstance(attempts, Mapping):
        return attempts.__contains__
    return lambda _run_id: attempts is not None


class _Seen:
    """What is kept of runs as they pass by, so that a report on many needs little room."""

    def __init__(self, looks: Attempts) -> None:
        self.agents: set[str] = set()
        """All that were met, wanted or not."""
        self.rows: list[Counted] = []
        self.steps = StepsSeen(looks)
        self.waterfalls = Waterfalls(looks)
        self.as_of: datetime | None = None
        self.intervals: set[float] = set()
        self._prices: dict[tuple[str, str, str], int] = {}

    def of_agents(self, records: Iterable[UsageRecord], wanted: Sequence[str]) -> Iterator[UsageRecord]:
        """Those of the agents that are wanted, or all."""
        for record in records:
            self.agents.add(record.run.framework)
            if not wanted or record.run.framework in wanted:
                yield record

    def passing(self, records: Iterable[tuple[UsageRecord, Counted]]) -> Iterator[UsageRecord]:
        """Each record again, once it was counted."""
        for record, row in records:
            self.rows.append(row)
            self.waterfalls.take(record)
            self.intervals.add(record.verdict.interval_min)
            moments = [record.run.started_at, record.run.ended_at, record.last_look_at, self.as_of]
            moments += [change.at for change in record.verdict.history]
            self.as_of = max((one.astimezone(UTC) for one in moments if one is not None), default=None)
            if row.verified:
                self.steps.take(record)
                for table in {(quote.source, quote.version, quote.table_sha256) for quote in record.quotes}:
                    self._prices[table] = self._prices.get(table, 0) + 1
            yield record

    def price_tables(self) -> tuple[PriceTable, ...]:
        return tuple(PriceTable(*table, runs) for table, runs in sorted(self._prices.items()))


def _check_agents(recorded: set[str], wanted: Sequence[str]) -> None:
    missing = [one for one in wanted if one not in recorded]
    if missing:
        raise ReportError(f"no run of {missing[0]!r} is recorded{nearest(missing[0], sorted(recorded))}")
    if not recorded:
        raise ReportError("no run is recorded, so there is nothing to report on; record some first")
    number = len(wanted or recorded)
    if number > MOST_AGENTS:
        raise ReportError(f"{number:,} agents are more than the {MOST_AGENTS} of one report; name some of them")


def _measure(grouped: Mapping[str, Sequence[Counted]]) -> Measure | None:
    """Score where every agent has one, else success where any has it."""
    if all(any(row.finished and row.score is not None for row in rows) for rows in grouped.values()):
        return Measure.SCORE
    known = any(row.finished and row.success is not None for rows in grouped.values() for row in rows)
    return Measure.SUCCESS if known else None


def _fields(grouped: Mapping[str, list[Counted]], money: Money) -> dict[tuple[Measure, Among], Field]:
    """All that is compared, the families of pairs."""
    families = (
        (Measure.SUCCESS, Among.FINISHED),
        (Measure.SCORE, Among.FINISHED),
        (Measure.SUCCESS, Among.VERIFIED),
        (Measure.COST, Among.VERIFIED),
        (Measure.TOKENS, Among.VERIFIED),
    )
    return {(measure, among): field_of(grouped, measure, among, money) for measure, among in families}


def _placed(
    standings: Sequence[Standing], fields: Mapping[tuple[Measure, Among], Field], measure: Measure | None
) -> tuple[Standing, ...]:
    """Agents with their places, the best first; those that are equal by name."""
    by_value = places(fields[measure, Among.FINISHED]) if measure is not None else {}
    by_cost = places(fields[Measure.COST, Among.VERIFIED])
    placed = [
        msgspec.structs.replace(one, place=by_value.get(one.agent), place_by_cost=by_cost.get(one.agent))
        for one in standings
    ]
    return tuple(sorted(placed, key=lambda one: (-(_value(one, measure) or 0.0), one.agent)))


def _value(one: Standing, measure: Measure | None) -> float | None:
    return (one.score if measure is Measure.SCORE else one.success).rate


def _points(standings: Sequence[Standing], costs: Field, measure: Measure | None) -> tuple[Point, ...]:
    """Cost on the tasks that all have in common, against success or score over all finished runs."""
    found = []
    for one in standings:
        means = typical(dict(zip(costs.tasks, costs.columns.get(one.agent, ()), strict=False)))
        achieved = one.score if measure is Measure.SCORE else one.success
        if means.mean is not None and achieved.rate is not None:
            found.append(Point(one.agent, means.mean, means.interval, achieved.rate, achieved.interval, on_front=False))
    return front(found)


def _task_lines(grouped: Mapping[str, list[Counted]], money: Money, shared: set[str]) -> tuple[TaskLine, ...]:
    tasks: dict[str, list[Cell]] = {}
    for agent, rows in grouped.items():
        for task, several in by_task(rows).items():
            tasks.setdefault(task, []).append(_cell(agent, several, money))
    return tuple(TaskLine(task, task in shared, tuple(cells)) for task, cells in sorted(tasks.items()))


def _cell(agent: str, rows: Sequence[Counted], money: Money) -> Cell:
    finished = [row for row in rows if row.finished]
    scores = [row.score for row in finished]
    costs = [amount(row, Measure.COST, money) for row in rows if row.verified]
    return Cell(
        agent,
        len(rows),
        len(finished),
        sum(row.verified for row in rows),
        sum(row.success is True for row in finished),
        math.fsum(one or 0.0 for one in scores) / len(scores) if any(one is not None for one in scores) else None,
        math.fsum(one or 0.0 for one in costs) / len(costs) if costs and None not in costs else None,
    )


def _digest(rows: Sequence[Counted], looks: _Looks) -> str:
    """Of every record, and of every look that was asked for."""
    lines = sorted([*(row.digest for row in rows), *(f"{run} {digest}" for run, digest in looks.digests.items())])
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _trusted(on_trust: int, runs: int) -> Iterator[str]:
    if on_trust:
        yield (
            f"the verdicts of {on_trust:,} of {runs:,} runs are taken from the file on trust: it has no looks at the "
            "provider's count by which they could be judged again"
        )


def _notes(seen: _Seen, grouped: Mapping[str, Sequence[Counted]], money: Money, shared: Sequence[str]) -> Iterator[str]:
    rows = seen.rows
    weak = [one for one in sorted(seen.intervals) if one < INTERVAL_MIN]
    if weak:
        yield (
            f"some runs were judged with {weak[0]:g} minutes between equal looks instead of the specified "
            f"{INTERVAL_MIN:g}: their `verified` is weaker"
        )
    for agent, several in grouped.items():
        if not any(row.verified for row in several):
            yield f"{agent} has no verified run: nothing is said of its tokens and cost"
    if len(grouped) > 1 and not shared:
        yield "no task has a verified run of every agent: tokens and cost are not compared"
    taskless = sum(not row.task for row in rows)
    if taskless:
        yield f"{taskless:,} runs name no task: they count for their agent, and are in no comparison"
    unknown = sum(row.finished and row.success is None for row in rows)
    if unknown:
        yield f"{unknown:,} finished runs do not say whether they succeeded: they count as not; at best, see the bounds"
    verified = [row for row in rows if row.verified]
    priceless = sum(row.cost(*money) is None for row in verified)
    if priceless:
        yield f"the {money.kind} cost of {priceless:,} of {len(verified):,} verified runs is unknown, which is not zero"
    foreign = sum(
        row.ledger.currency != money.currency and getattr(row.ledger, money.kind) is not None for row in verified
    )
    if foreign:
        yield f"{foreign:,} of them have a cost in another currency than {money.currency}, which is not converted"
