"""A report as data, built from recorded runs alone; the same runs in any order give the same bytes."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import msgspec

from meruit.errors import ReportError
from meruit.model.decoding import convert_to
from meruit.model.metering import UsageRecord
from meruit.model.record import Record
from meruit.model.usage import INTERVAL_MIN, Moment, Observation, UsageStatus
from meruit.reports.agent_summary import AgentSummary, CostBasis, Measure, consumption, geometric_mean, summarize_agent
from meruit.reports.answer import PopulationCounts, answer_question, describe_basis
from meruit.reports.compare import (
    Comparison,
    MeasureColumns,
    Point,
    RunPopulation,
    comparisons,
    measure_columns,
    pareto_front,
    rank_ranges,
    tasks_to_compare,
)
from meruit.reports.population import (
    IMPORTED,
    CostKind,
    ExcludedRun,
    ExclusionCount,
    ReportRow,
    by_agent,
    by_task,
    currency_of,
    exclusion_counts,
    list_exclusions,
    unique_rows,
)
from meruit.reports.reconciliation import (
    AgentSteps,
    LedgerLine,
    ObservationLookup,
    StepCollector,
    Timeline,
    Waterfall,
    WaterfallCollector,
    ledger_lines,
    most_contested,
    timeline,
)
from meruit.reports.statistics import RESAMPLES, SEED
from meruit.suggestions import nearest

QUESTION = "Which agent does the work, how surely, and at what cost, as far as that is verified?"
MOST_AGENTS = 30
"""The most agents of one report: every pair of them is compared."""
_DIGITS = 10
"""Significant digits of numbers; further digits differ between machines."""
FORMAT = 1


class PriceTableUse(Record, frozen=True):
    """A version of a price table that verified runs are quoted by."""

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
    """The mean over its verified runs; None where one of them is unknown."""


class TaskLine(Record, frozen=True):
    """One task."""

    task: str
    compared: bool
    """Whether every agent has a verified run of it."""
    cells: tuple[Cell, ...]


class Report(Record, frozen=True):
    """The comparison of agents, with what is excluded or unknown."""

    format: int
    question: str
    answer: str
    """One sentence that answers the question."""
    basis: str
    """What the answer rests on: whose counts are in it, and how many runs are not."""
    command: str
    """The command that builds the report again."""
    digest: str
    """Digest of all its sources."""
    as_of: Moment | None
    """The latest time in the data."""
    made_by: str
    cost: CostKind
    currency: str
    measure: Measure | None
    """The measure that ranks agents: score where all of them have one, else success."""
    runs: int
    finished: int
    verified: int
    """Runs that are counted for tokens and cost."""
    verified_by_provider: int
    verified_by_file: int
    """Runs whose counts are verified by observations in a file only; counted with `include_imported` alone."""
    tasks: int
    tasks_compared: int
    """Tasks of which every agent with verified runs has one; none where fewer than two of several agents have any."""
    intervals_min: tuple[float, ...]
    """The intervals between equal observations that runs were judged with, in minutes."""
    prices: tuple[PriceTableUse, ...]
    resamples: int
    seed: int
    agents: tuple[AgentSummary, ...]
    comparisons: tuple[Comparison, ...]
    points: tuple[Point, ...]
    steps: tuple[AgentSteps, ...]
    timeline: Timeline
    waterfalls: tuple[Waterfall, ...]
    ledger: tuple[LedgerLine, ...]
    task_lines: tuple[TaskLine, ...]
    exclusions: tuple[ExclusionCount, ...]
    excluded: tuple[ExcludedRun, ...]
    imported: int
    """Runs whose count comes from a file, so that the provider was not asked."""
    include_imported: bool
    """Whether the verified figures include imported counts."""
    on_trust: int
    """Runs whose verdicts could not be computed again, because their observations are not in the file."""
    notes: tuple[str, ...]
    """What a reader must know before relying on the report."""


def build_report(
    records: Iterable[UsageRecord],
    attempts: Mapping[str, Sequence[Observation]] | ObservationLookup | None = None,
    *,
    agents: Sequence[str] = (),
    cost: CostKind = CostKind.QUOTED,
    question: str = QUESTION,
    command: str = "",
    include_imported: bool = False,
) -> Report:
    """Build the report on these runs; `attempts` finds the observations of a run, and `agents` selects agents.

    Verified figures are the provider's alone. `include_imported` adds what is verified by a file only.
    """
    observations = _DigestedObservations(attempts)
    seen = _RunCollector(observations, include_imported=include_imported)
    chosen = most_contested(
        seen.collect(unique_rows(seen.filter_agents(records, agents), include_imported=include_imported))
    )
    grouped = by_agent(seen.rows)
    _check_agents(seen.agents, agents)
    # Pairs follow the order in which agents were named.
    grouped = {agent: grouped[agent] for agent in agents or grouped}
    money = CostBasis(cost, currency_of(seen.rows, cost))
    fields = _fields(grouped, money)
    measure = _measure(grouped)
    standings = _rank_agents([summarize_agent(agent, rows, money) for agent, rows in grouped.items()], fields, measure)
    observed = timeline(seen.rows, chosen, observations)
    on_trust = sum(not observations.knows(row.id) for row in seen.rows)
    shared = tasks_to_compare(grouped)
    by_file = sum(row.imported and row.status is UsageStatus.VERIFIED for row in seen.rows)
    verified = sum(row.is_verified for row in seen.rows)
    compared = tuple(one for field in fields.values() for one in comparisons(field))
    counts = PopulationCounts(
        runs=len(seen.rows),
        by_provider=verified - by_file if include_imported else verified,
        by_file=by_file,
        include_imported=include_imported,
    )
    report = Report(
        format=FORMAT,
        question=question,
        answer=answer_question(standings, compared, measure, money.currency),
        basis=describe_basis(counts),
        command=command,
        digest=_digest(seen.rows, observations),
        as_of=seen.as_of,
        made_by=f"meruit {version('meruit')}",
        cost=cost,
        currency=money.currency,
        measure=measure,
        runs=len(seen.rows),
        finished=sum(row.finished for row in seen.rows),
        verified=verified,
        verified_by_provider=counts.by_provider,
        verified_by_file=by_file,
        tasks=len({row.task for row in seen.rows if row.task}),
        tasks_compared=len(shared),
        intervals_min=tuple(sorted(seen.intervals)),
        prices=seen.price_tables(),
        resamples=RESAMPLES,
        seed=SEED,
        agents=standings,
        comparisons=compared,
        points=_points(standings, fields[Measure.COST, RunPopulation.VERIFIED], measure),
        steps=seen.steps.steps(),
        timeline=observed,
        waterfalls=seen.waterfalls.waterfalls(),
        ledger=ledger_lines(grouped, money.currency),
        task_lines=_task_lines(grouped, money, set(shared)),
        exclusions=exclusion_counts(grouped),
        excluded=list_exclusions(seen.rows),
        imported=sum(row.imported for row in seen.rows),
        include_imported=include_imported,
        on_trust=on_trust,
        notes=(
            *_import_notes(seen.rows, include_imported=include_imported),
            *_trust_notes(on_trust, len(seen.rows)),
            *_notes(seen, grouped, money, shared),
        ),
    )
    return convert_to(_round_floats(msgspec.to_builtins(report)), Report)


# Any: JSON values.
def _round_floats(value: Any) -> Any:
    """Round floats to their significant digits."""
    match value:
        case float():
            return float(f"{value:.{_DIGITS}g}")
        case dict():
            return {name: _round_floats(one) for name, one in value.items()}
        case list() | tuple():
            return [_round_floats(one) for one in value]
        case _:
            return value


class _DigestedObservations:
    """Finds observations, and remembers the digest of each run's."""

    def __init__(self, attempts: Mapping[str, Sequence[Observation]] | ObservationLookup | None) -> None:
        self._give: Callable[[str], Sequence[Observation]] = _observation_lookup(attempts)
        self.knows: Callable[[str], bool] = _knows_observations(attempts)
        """Whether the observations of a run are known, even if there are none."""
        self.digests: dict[str, str] = {}

    def __call__(self, run_id: str) -> Sequence[Observation]:
        found = sorted(self._give(run_id), key=lambda one: (one.at, one.id))
        self.digests[run_id] = hashlib.sha256(b"".join(one.to_json() for one in found)).hexdigest()
        return found


def _observation_lookup(attempts: Mapping[str, Sequence[Observation]] | ObservationLookup | None) -> ObservationLookup:
    if attempts is None:
        return lambda _run_id: ()
    return (lambda run_id: attempts.get(run_id, ())) if isinstance(attempts, Mapping) else attempts


def _knows_observations(
    attempts: Mapping[str, Sequence[Observation]] | ObservationLookup | None,
) -> Callable[[str], bool]:
    if isinstance(attempts, Mapping):
        return attempts.__contains__
    return lambda _run_id: attempts is not None


class _RunCollector:
    """Collects what a report needs of each run, so that a report on many runs needs little memory."""

    def __init__(self, observations: ObservationLookup, *, include_imported: bool) -> None:
        self._include_imported = include_imported
        self.agents: set[str] = set()
        """All agents, selected or not."""
        self.rows: list[ReportRow] = []
        self.steps = StepCollector(observations)
        self.waterfalls = WaterfallCollector(observations)
        self.as_of: datetime | None = None
        self.intervals: set[float] = set()
        self._prices: dict[tuple[str, str, str], int] = {}

    def filter_agents(self, records: Iterable[UsageRecord], wanted: Sequence[str]) -> Iterator[UsageRecord]:
        """Yield the records of the selected agents, or of all."""
        for record in records:
            self.agents.add(record.run.framework)
            if not wanted or record.run.framework in wanted:
                yield record

    def collect(self, records: Iterable[tuple[UsageRecord, ReportRow]]) -> Iterator[UsageRecord]:
        """Yield each record after it was counted."""
        for record, row in records:
            self.rows.append(row)
            self.waterfalls.add(record, include_imported=self._include_imported)
            self.intervals.add(record.verdict.interval_min)
            moments = [record.run.started_at, record.run.ended_at, record.last_observation_at, self.as_of]
            moments += [change.at for change in record.verdict.history]
            self.as_of = max((one.astimezone(UTC) for one in moments if one is not None), default=None)
            if row.is_verified:
                self.steps.add(record)
                for table in {(quote.source, quote.version, quote.table_sha256) for quote in record.quotes}:
                    self._prices[table] = self._prices.get(table, 0) + 1
            yield record

    def price_tables(self) -> tuple[PriceTableUse, ...]:
        return tuple(PriceTableUse(*table, runs) for table, runs in sorted(self._prices.items()))


def _check_agents(recorded: set[str], wanted: Sequence[str]) -> None:
    missing = [one for one in wanted if one not in recorded]
    if missing:
        raise ReportError(f"no run of {missing[0]!r} is recorded{nearest(missing[0], sorted(recorded))}")
    if not recorded:
        raise ReportError("no run is recorded, so there is nothing to report on; record some first")
    number = len(wanted or recorded)
    if number > MOST_AGENTS:
        raise ReportError(f"{number:,} agents are more than the {MOST_AGENTS} of one report; name some of them")


def _measure(grouped: Mapping[str, Sequence[ReportRow]]) -> Measure | None:
    """Choose score where every agent has one, else success where any agent has it."""
    if all(any(row.finished and row.score is not None for row in rows) for rows in grouped.values()):
        return Measure.SCORE
    known = any(row.finished and row.success is not None for rows in grouped.values() for row in rows)
    return Measure.SUCCESS if known else None


def _fields(
    grouped: Mapping[str, list[ReportRow]], money: CostBasis
) -> dict[tuple[Measure, RunPopulation], MeasureColumns]:
    """Compare all measures."""
    families = (
        (Measure.SUCCESS, RunPopulation.FINISHED),
        (Measure.SCORE, RunPopulation.FINISHED),
        (Measure.SUCCESS, RunPopulation.VERIFIED),
        (Measure.COST, RunPopulation.VERIFIED),
        (Measure.TOKENS, RunPopulation.VERIFIED),
    )
    return {(measure, among): measure_columns(grouped, measure, among, money) for measure, among in families}


def _rank_agents(
    standings: Sequence[AgentSummary],
    fields: Mapping[tuple[Measure, RunPopulation], MeasureColumns],
    measure: Measure | None,
) -> tuple[AgentSummary, ...]:
    """Sort agents with their ranks, the best first, then by name."""
    by_value = rank_ranges(fields[measure, RunPopulation.FINISHED]) if measure is not None else {}
    by_cost = rank_ranges(fields[Measure.COST, RunPopulation.VERIFIED])
    placed = [
        msgspec.structs.replace(one, place=by_value.get(one.agent), place_by_cost=by_cost.get(one.agent))
        for one in standings
    ]
    return tuple(sorted(placed, key=lambda one: (-(_value(one, measure) or 0.0), one.agent)))


def _value(one: AgentSummary, measure: Measure | None) -> float | None:
    return (one.score if measure is Measure.SCORE else one.success).rate


def _points(standings: Sequence[AgentSummary], costs: MeasureColumns, measure: Measure | None) -> tuple[Point, ...]:
    """Place agents by their cost on common tasks, and their success or score over all finished runs."""
    found = []
    for one in standings:
        means = geometric_mean(dict(zip(costs.tasks, costs.columns.get(one.agent, ()), strict=False)))
        achieved = one.score if measure is Measure.SCORE else one.success
        if means.mean is not None and achieved.rate is not None:
            found.append(
                Point(
                    agent=one.agent,
                    cost=means.mean,
                    cost_interval=means.interval,
                    value=achieved.rate,
                    value_interval=achieved.interval,
                    on_front=False,
                )
            )
    return pareto_front(found)


def _task_lines(grouped: Mapping[str, list[ReportRow]], money: CostBasis, shared: set[str]) -> tuple[TaskLine, ...]:
    tasks: dict[str, list[Cell]] = {}
    for agent, rows in grouped.items():
        for task, several in by_task(rows).items():
            tasks.setdefault(task, []).append(_cell(agent, several, money))
    return tuple(TaskLine(task, task in shared, tuple(cells)) for task, cells in sorted(tasks.items()))


def _cell(agent: str, rows: Sequence[ReportRow], money: CostBasis) -> Cell:
    finished = [row for row in rows if row.finished]
    scores = [row.score for row in finished]
    costs = [consumption(row, Measure.COST, money) for row in rows if row.is_verified]
    return Cell(
        agent=agent,
        runs=len(rows),
        finished=len(finished),
        verified=sum(row.is_verified for row in rows),
        successes=sum(row.success is True for row in finished),
        score=math.fsum(one or 0.0 for one in scores) / len(scores) if any(one is not None for one in scores) else None,
        cost=math.fsum(one or 0.0 for one in costs) / len(costs) if costs and None not in costs else None,
    )


def _digest(rows: Sequence[ReportRow], observations: _DigestedObservations) -> str:
    """Digest every record, and every observation that was read."""
    lines = sorted(
        [*(row.digest for row in rows), *(f"{run} {digest}" for run, digest in observations.digests.items())]
    )
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()


def _import_notes(rows: Sequence[ReportRow], *, include_imported: bool) -> Iterator[str]:
    imported = sum(row.imported for row in rows)
    if include_imported:
        yield (
            f"--include-imported: the verified figures include counts that were read from files, of {imported:,} of "
            f"{len(rows):,} runs; the provider was not asked for these"
        )
    elif imported:
        left_out = sum(row.exclusion == IMPORTED for row in rows)
        yield (
            f"the counts of {imported:,} of {len(rows):,} runs were imported from files: the provider was not asked. "
            f"{left_out:,} of them would be verified, and are excluded; --include-imported counts them"
        )


def _unknown_costs(rows: Sequence[ReportRow], money: CostBasis) -> list[tuple[str, int]]:
    """Why runs have no quoted cost, counted; the other costs are what others say."""
    reasons = [row.cost_unknown for row in rows if row.cost_unknown and money.kind is CostKind.QUOTED]
    return sorted(Counter(reasons).items())


def _trust_notes(on_trust: int, runs: int) -> Iterator[str]:
    if on_trust:
        yield (
            f"the verdicts of {on_trust:,} of {runs:,} runs are taken from the file unchecked: it does not have their "
            "observations"
        )


def _notes(
    seen: _RunCollector, grouped: Mapping[str, Sequence[ReportRow]], money: CostBasis, shared: Sequence[str]
) -> Iterator[str]:
    rows = seen.rows
    weak = [one for one in sorted(seen.intervals) if one < INTERVAL_MIN]
    if weak:
        yield (
            f"some runs were judged with {weak[0]:g} minutes between equal observations instead of {INTERVAL_MIN:g}: "
            "their `verified` is weaker"
        )
    for agent, several in grouped.items():
        if not any(row.is_verified for row in several):
            yield f"{agent} has no verified run: its tokens and cost are unknown"
    if len(grouped) > 1 and not shared:
        yield "no task has a verified run of every agent: tokens and cost are not compared"
    taskless = sum(not row.task for row in rows)
    if taskless:
        yield f"runs without a task: {taskless:,}. They count for their agent, but are not compared"
    unknown = sum(row.finished and row.success is None for row in rows)
    if unknown:
        yield (
            f"finished runs without a recorded success: {unknown:,}. They count as failed; "
            "the bounds show the best case"
        )
    verified = [row for row in rows if row.is_verified]
    priceless = sum(row.cost(money.kind, money.currency) is None for row in verified)
    if priceless:
        why = ", ".join(f"{code} {count:,}" for code, count in _unknown_costs(verified, money))
        yield (
            f"the {money.kind} cost of {priceless:,} of {len(verified):,} verified runs is unknown, not zero"
            + (f" ({why})" if why else "")
        )
    foreign = sum(
        row.ledger.currency != money.currency and getattr(row.ledger, money.kind) is not None for row in verified
    )
    if foreign:
        yield f"{foreign:,} of them have a cost in another currency than {money.currency}, which is not converted"
