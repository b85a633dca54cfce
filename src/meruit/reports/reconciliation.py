"""How runs were verified: tokens by step, observations over time, and local against billed tokens."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from heapq import nsmallest

from meruit.model.metering import CallState, MeteredRun, UsageRecord
from meruit.model.record import Record
from meruit.model.usage import Observation, Tokens, UsageCode, UsageStatus, sum_tokens
from meruit.reports.population import CostKind, ReportRow

MOST_STEPS = 40
"""How many steps of an agent are listed; the others are one sum."""
MOST_ROWS = 24
"""How many runs are shown with each of their observations."""

ObservationLookup = Callable[[str], Sequence[Observation]]
"""Finds the observations of a run by its id."""


class TokenClass(StrEnum):
    """Parts of a step's tokens."""

    CACHED = "cached"
    CACHE_WRITE = "cache_write"
    INPUT = "input"
    """The rest of the input."""
    REASONING = "reasoning"
    OUTPUT = "output"
    """The rest of the output."""


class StepUse(Record, frozen=True):
    """The mean tokens of one step over verified runs."""

    place: int
    """The first, the second, …"""
    label: str
    """The name of the step, where all runs agree on it."""
    runs: int
    tokens: dict[str, float]
    """By class."""


class AgentSteps(Record, frozen=True):
    """An agent's steps, in order."""

    agent: str
    runs: int
    unknown: int
    """Steps of verified runs whose own tokens are unknown."""
    steps: tuple[StepUse, ...]


class TimelineObservationKind(StrEnum):
    """The result of an observation."""

    COUNT = "count"
    ZERO = "zero"
    ERROR = "error"


class TimelineObservation(Record, frozen=True):
    """One observation, in minutes after the end of the run."""

    minutes: float
    kind: TimelineObservationKind
    summary: str
    imported: bool = False
    """Whether it was read from a file."""


class TimelineChange(Record, frozen=True):
    """A change of status, in minutes after the end of the run."""

    minutes: float
    status: UsageStatus
    code: UsageCode
    withdraws: bool


class TimelineRow(Record, frozen=True):
    """The observations and statuses of one run."""

    run: str
    agent: str
    status: UsageStatus
    observations: tuple[TimelineObservation, ...]
    changes: tuple[TimelineChange, ...]
    imported: bool = False
    """Whether its status rests on a file."""


class Timeline(Record, frozen=True):
    """The observations of all runs, counted, and of a few runs one by one."""

    runs: int
    attempts: int
    withdrawn: int
    by_status: dict[str, int]
    rows: tuple[TimelineRow, ...]
    imported: int = 0
    """Runs whose status rests on a file, of any status."""


class DiscrepancyCause(StrEnum):
    """Why a provider's count differs from the run's; of several reasons, the first takes the whole difference."""

    UNCOUNTED = "uncounted"
    """The run has no count of its own."""
    UNATTRIBUTED = "unattributed"
    """Tokens of the run's attribution key outside of its steps."""
    ABORTED = "aborted"
    """The run aborted calls, which have no response with a count."""
    RETRIES = "retries"
    """The provider counts more calls, or the run has failed ones."""
    CACHE = "cache"
    """The difference is the number of cached tokens."""
    UNEXPLAINED = "unexplained"


class Waterfall(Record, frozen=True):
    """The difference between the local and the billed tokens of an agent, by reason."""

    agent: str
    runs: int
    without: int
    """Runs without a count of the provider."""
    local: int
    parts: dict[str, int]
    billed: int


class KnownSum(Record, frozen=True):
    """A sum, and the number of known amounts in it."""

    total: Decimal | None
    known: int


class LedgerLine(Record, frozen=True):
    """The three costs of an agent's runs."""

    agent: str
    verified: bool
    runs: int
    quoted: KnownSum
    billed: KnownSum
    settled: KnownSum


def split_by_class(tokens: Tokens) -> dict[str, int]:
    """Split a count into parts that add up to it."""
    cached = min(tokens.cached or 0, tokens.input)
    written = min(tokens.cache_write or 0, tokens.input - cached)
    reasoned = min(tokens.reasoning or 0, tokens.output)
    return {
        TokenClass.CACHED: cached,
        TokenClass.CACHE_WRITE: written,
        TokenClass.INPUT: tokens.input - cached - written,
        TokenClass.REASONING: reasoned,
        TokenClass.OUTPUT: tokens.output - reasoned,
    }


@dataclass(slots=True)
class _StepTotals:
    """One step of an agent, added up."""

    runs: int = 0
    labels: set[str] = field(default_factory=set)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, label: str, parts: dict[str, int]) -> None:
        self.runs += 1
        self.tokens.update(parts)
        # Only whether there are two or more names matters later.
        if len(self.labels) < 2:
            self.labels.add(label)


@dataclass(slots=True)
class _AgentStepTotals:
    """The steps of one agent, added up."""

    runs: int = 0
    unknown: int = 0
    by_position: defaultdict[int, _StepTotals] = field(default_factory=lambda: defaultdict(_StepTotals))


class StepCollector:
    """Adds up the steps of verified runs."""

    def __init__(self, attempts: ObservationLookup) -> None:
        self._attempts = attempts
        self._agents: defaultdict[str, _AgentStepTotals] = defaultdict(_AgentStepTotals)

    def add(self, record: UsageRecord) -> None:
        """Add a verified run."""
        seen, by_step = self._agents[record.run.framework], self._by_provider(record.run)
        seen.runs += 1
        later: Counter[str] = Counter()
        for place, step in enumerate(record.run.steps, start=1):
            tokens = step.local or by_step.get(step.id)
            if tokens is None:
                seen.unknown += step.expects_usage is not False
            elif place <= MOST_STEPS:
                seen.by_position[place].add(step.id, split_by_class(tokens))
            else:
                later.update(split_by_class(tokens))
        if later:
            seen.by_position[MOST_STEPS + 1].add(f"all after step {MOST_STEPS}", later)

    def _by_provider(self, run: MeteredRun) -> dict[str, Tokens]:
        if all(step.local is not None or step.expects_usage is False for step in run.steps):
            return {}
        split = [observation for observation in self._attempts(run.id) if observation.steps is not None]
        return max(split, key=lambda observation: (observation.at, observation.id)).steps or {} if split else {}

    def steps(self) -> tuple[AgentSteps, ...]:
        """The result of each agent, in order."""
        return tuple(
            AgentSteps(agent, seen.runs, seen.unknown, tuple(_step(*one) for one in sorted(seen.by_position.items())))
            for agent, seen in sorted(self._agents.items())
        )


def _step(number: int, place: _StepTotals) -> StepUse:
    (label,) = place.labels if len(place.labels) == 1 else ("",)
    means = {str(name): place.tokens[name] / place.runs for name in TokenClass}
    return StepUse(number, label, place.runs, means)


def timeline(rows: Sequence[ReportRow], chosen: Iterable[UsageRecord], attempts: ObservationLookup) -> Timeline:
    """Build the timeline: the observations of all runs, counted, and of a few runs one by one."""
    counts = [str(row.status) for row in rows]
    return Timeline(
        runs=len(rows),
        attempts=sum(row.attempts for row in rows),
        withdrawn=sum(row.withdrawn for row in rows),
        by_status={str(status): counts.count(status) for status in UsageStatus if status in counts},
        rows=tuple(_row(record, attempts(record.run.id)) for record in chosen),
        imported=sum(row.imported for row in rows),
    )


def most_contested(records: Iterable[UsageRecord]) -> list[UsageRecord]:
    """Choose the runs to show: withdrawn first, then not verified, then those with the most observations."""
    looked = (one for one in records if one.attempts and one.run.ended_at is not None)
    return nsmallest(MOST_ROWS, looked, key=_contest_order)


def _contest_order(record: UsageRecord) -> tuple[int, bool, int, str]:
    verdict = record.verdict
    return (-verdict.withdrawn, verdict.status is UsageStatus.VERIFIED, -record.attempts, record.run.id)


def _row(record: UsageRecord, attempts: Sequence[Observation]) -> TimelineRow:
    ended, before = record.run.ended_at, UsageStatus.PENDING
    changes = []
    for change in sorted(record.verdict.history, key=lambda one: one.at):
        withdraws = before is UsageStatus.VERIFIED and change.status is not UsageStatus.VERIFIED
        changes.append(TimelineChange(_minutes(change.at, ended), change.status, change.code, withdraws))
        before = change.status
    return TimelineRow(
        run=record.run.id,
        agent=record.run.framework,
        status=record.verdict.status,
        observations=tuple(
            _timeline_observation(one, ended) for one in sorted(attempts, key=lambda one: (one.at, one.id))
        ),
        changes=tuple(changes),
        imported=bool(record.verdict.reported_by),
    )


def _timeline_observation(observation: Observation, ended: datetime | None) -> TimelineObservation:
    minutes, imported = _minutes(observation.at, ended), bool(observation.reported_by)
    if observation.total is None or observation.error is not None:
        text = str(observation.error or "no result")
        return TimelineObservation(minutes, TimelineObservationKind.ERROR, text, imported)
    kind = TimelineObservationKind.COUNT if observation.total.total else TimelineObservationKind.ZERO
    text = f"{observation.total.input:,} in, {observation.total.output:,} out"
    return TimelineObservation(minutes, kind, text, imported)


def _minutes(at: datetime, ended: datetime | None) -> float:
    return 0.0 if ended is None else (at - ended).total_seconds() / 60


class WaterfallCollector:
    """Adds up the local and the billed tokens of runs."""

    def __init__(self, attempts: ObservationLookup) -> None:
        self._attempts = attempts
        self._found: dict[str, Waterfall] = {}

    def add(self, record: UsageRecord, *, include_imported: bool = False) -> None:
        """Add a run; a count from a file is not the provider's, unless `include_imported`."""
        agent, is_billed = record.run.framework, include_imported or not record.verdict.reported_by
        billed = record.verdict.tokens if is_billed else None
        so_far = self._found.get(agent) or Waterfall(agent=agent, runs=0, without=0, local=0, parts={}, billed=0)
        if billed is None:
            more = Waterfall(agent=agent, runs=0, without=1, local=0, parts={}, billed=0)
        else:
            local = _local_tokens(record.run)
            more = Waterfall(
                agent=agent,
                runs=1,
                without=0,
                local=local.total,
                parts=self._parts(record, local, billed),
                billed=billed.total,
            )
        parts = {
            str(part): so_far.parts.get(part, 0) + more.parts.get(part, 0)
            for part in DiscrepancyCause
            if part in so_far.parts or part in more.parts
        }
        self._found[agent] = Waterfall(
            agent=agent,
            runs=so_far.runs + more.runs,
            without=so_far.without + more.without,
            local=so_far.local + more.local,
            parts=parts,
            billed=so_far.billed + more.billed,
        )

    def _parts(self, record: UsageRecord, local: Tokens, billed: Tokens) -> dict[str, int]:
        missing = billed.total - local.total
        if not missing:
            return {}
        observations = sorted(self._attempts(record.run.id), key=lambda one: (one.at, one.id))
        outside = next((one.unattributed for one in reversed(observations) if one.total is not None), 0)
        outside = min(outside, max(missing, 0))
        parts = {DiscrepancyCause.UNATTRIBUTED: outside} if outside else {}
        if missing - outside:
            parts[_cause_of(record.run, local, billed, missing - outside)] = missing - outside
        return {str(part): number for part, number in parts.items()}

    def waterfalls(self) -> tuple[Waterfall, ...]:
        """The result of each agent, in order."""
        return tuple(found for _, found in sorted(self._found.items()))


def _local_tokens(run: MeteredRun) -> Tokens:
    """The sum of all counts in responses, also where some responses have none."""
    counts = [one.tokens for one in run.calls if one.tokens is not None]
    return sum_tokens([*counts, *(step.tokens for step in run.steps if step.tokens is not None and not step.calls)])


def _cause_of(run: MeteredRun, local: Tokens, billed: Tokens, missing: int) -> DiscrepancyCause:
    calls = run.calls
    if not local.total:
        return DiscrepancyCause.UNCOUNTED
    if missing > 0 and any(one.state is CallState.ABORTED and one.tokens is None for one in calls):
        return DiscrepancyCause.ABORTED
    more_calls = local.requests is not None and billed.requests is not None and billed.requests > local.requests
    if missing > 0 and (more_calls or any(one.state is CallState.FAILED for one in calls)):
        return DiscrepancyCause.RETRIES
    cached, written = billed.cached or 0, billed.cache_write or 0
    if abs(missing) in {cached, written, cached + written} and billed.output == local.output:
        return DiscrepancyCause.CACHE
    return DiscrepancyCause.UNEXPLAINED


def ledger_lines(agents: dict[str, list[ReportRow]], currency: str) -> tuple[LedgerLine, ...]:
    """Add up the costs of each agent: of its verified runs, and of its other runs."""
    return tuple(
        LedgerLine(
            agent, verified, len(some), *(_sum(some, kind, currency) for kind in ("quoted", "billed", "settled"))
        )
        for agent, rows in agents.items()
        for verified in (True, False)
        if (some := [row for row in rows if row.is_verified is verified])
    )


def _sum(rows: Sequence[ReportRow], kind: str, currency: str) -> KnownSum:
    found = [row.cost(CostKind(kind), currency) for row in rows]
    known = sorted(one for one in found if one is not None)
    return KnownSum(sum(known, Decimal(0)) if known else None, len(known))
