"""Which runs are counted: each run once, reduced to what a report needs; and which are excluded, with the reason."""

import hashlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from itertools import groupby

import msgspec

from meruit.errors import ReportError
from meruit.model.metering import RunCosts, UsageRecord
from meruit.model.record import Record
from meruit.model.usage import Assurance, Tokens, UsageCode, UsageStatus
from meruit.reports.statistics import fisher, holm
from meruit.usage.cost import quote_cost

IMPORTED = "imported"
"""The rule that excludes a run which is verified by a file only."""
_NOT_ASKED = "; imported from a file, the provider was not asked"


class CostKind(StrEnum):
    """Which of a run's three costs is compared; the same one for all runs."""

    QUOTED = "quoted"
    BILLED = "billed"
    SETTLED = "settled"


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One run, reduced to what a report needs."""

    agent: str
    task: str
    id: str
    finished: bool
    success: bool | None
    score: float | None
    status: UsageStatus
    code: UsageCode
    message: str
    assurance: Assurance
    tokens: Tokens | None
    ledger: RunCosts
    cost_unknown: str
    """Why the quoted cost is missing; empty where it is known."""
    attempts: int
    withdrawn: int
    imported: bool
    """Whether an observation that decided was read from a file, so that the provider was not asked."""
    is_verified: bool
    """Whether its tokens are counted as verified: by the provider alone, unless imported counts were asked for."""
    digest: str
    """Digest of the whole record."""

    @property
    def exclusion(self) -> str:
        """The rule by which it is excluded from tokens and cost; empty where it is counted."""
        if self.is_verified:
            return ""
        return IMPORTED if self.status is UsageStatus.VERIFIED else str(self.code)

    def cost(self, kind: CostKind, currency: str) -> Decimal | None:
        """The cost; None where it is unknown or in another currency."""
        found: Decimal | None = getattr(self.ledger, kind)
        if found is None or self.ledger.currency != currency:
            return None
        return found if found.is_finite() and math.isfinite(float(found)) else None


def row_order(row: ReportRow) -> tuple[str, str, str]:
    """The order of runs in a report: by agent, task and id, not by arrival."""
    return row.agent, row.task, row.id


class ExclusionCount(Record, frozen=True):
    """How many runs of an agent are excluded from tokens and cost, and by which rule."""

    agent: str
    runs: int
    verified: int
    excluded: int
    share: float
    by_status: dict[str, int]
    by_code: dict[str, int]
    """By rule; `imported` for runs that are verified by a file only."""
    imported: int = 0
    """How many of all its runs have a count from a file."""
    p: float | None = None
    """The probability that its share differs so much from the other agents' by chance (Fisher)."""
    p_holm: float | None = None


class ExcludedRun(Record, frozen=True):
    """One run that is excluded from tokens and cost."""

    run: str
    agent: str
    task: str
    status: UsageStatus
    code: UsageCode
    message: str
    finished: bool
    success: bool | None
    imported: bool = False
    """Whether its count comes from a file."""


def to_report_row(record: UsageRecord, *, include_imported: bool = False) -> ReportRow:
    """Reduce a record to a row; `include_imported` counts what is verified by a file only."""
    run, verdict = record.run, record.verdict
    imported = bool(verdict.reported_by)
    return ReportRow(
        agent=run.framework,
        task=run.task,
        id=run.id,
        finished=run.ended_at is not None,
        success=run.success,
        score=run.score,
        status=verdict.status,
        code=verdict.code,
        message=verdict.message,
        assurance=verdict.assurance,
        tokens=verdict.tokens,
        ledger=record.ledger,
        cost_unknown=""
        if record.ledger.quoted is not None
        else str(quote_cost(run, verdict, record.quotes).code or ""),
        attempts=record.attempts,
        withdrawn=verdict.withdrawn,
        imported=imported,
        is_verified=verdict.status is UsageStatus.VERIFIED and (include_imported or not imported),
        digest=hashlib.sha256(record.to_json()).hexdigest(),
    )


def unique_rows(
    records: Iterable[UsageRecord], *, include_imported: bool = False
) -> Iterator[tuple[UsageRecord, ReportRow]]:
    """Return each run once; raises ReportError for a run with two different contents."""
    seen: dict[str, str] = {}
    for record in records:
        row = to_report_row(record, include_imported=include_imported)
        before = seen.get(row.id)
        if before is None:
            seen[row.id] = row.digest
            yield record, row
        elif before != row.digest:
            raise ReportError(f"run {row.id!r} is given twice, with different contents; remove one of them")


def currency_of(rows: Iterable[ReportRow], kind: CostKind) -> str:
    """The currency of most known costs; others cannot be added to them."""
    found = Counter(row.ledger.currency for row in rows if row.is_verified and getattr(row.ledger, kind) is not None)
    return min(found, key=lambda one: (-found[one], one), default="USD")


def by_agent(rows: Sequence[ReportRow]) -> dict[str, list[ReportRow]]:
    """Group runs by agent, both sorted."""
    return {agent: list(several) for agent, several in groupby(sorted(rows, key=row_order), key=lambda row: row.agent)}


def by_task(rows: Iterable[ReportRow]) -> dict[str, list[ReportRow]]:
    """Group runs by task; runs without a task are left out."""
    named = sorted((row for row in rows if row.task), key=lambda row: (row.task, row.id))
    return {task: list(several) for task, several in groupby(named, key=lambda row: row.task)}


def clusters(rows: Sequence[ReportRow]) -> list[list[ReportRow]]:
    """Group runs that depend on each other: those of one task; a run without a task is alone."""
    return [*by_task(rows).values(), *([row] for row in rows if not row.task)]


def list_exclusions(rows: Iterable[ReportRow]) -> tuple[ExcludedRun, ...]:
    """List every run that is not counted as verified."""
    return tuple(
        ExcludedRun(
            run=row.id,
            agent=row.agent,
            task=row.task,
            status=row.status,
            code=row.code,
            message=row.message + (_NOT_ASKED if row.imported else ""),
            finished=row.finished,
            success=row.success,
            imported=row.imported,
        )
        for row in sorted(rows, key=row_order)
        if not row.is_verified
    )


def exclusion_counts(agents: dict[str, list[ReportRow]]) -> tuple[ExclusionCount, ...]:
    """Count the excluded runs of each agent by rule, and test whether their share differs by more than chance."""
    counts = [_count_exclusions(agent, rows) for agent, rows in agents.items()]
    runs, out = sum(one.runs for one in counts), sum(one.excluded for one in counts)
    chances = [
        fisher(one.excluded, one.verified, out - one.excluded, runs - out - one.verified)
        for one in counts
        if len(counts) > 1
    ]
    # For two agents both tests are the same.
    adjusted = holm(chances) if len(chances) > 2 else chances
    if not chances:
        return tuple(counts)
    return tuple(
        msgspec.structs.replace(one, p=p, p_holm=p_holm)
        for one, p, p_holm in zip(counts, chances, adjusted, strict=True)
    )


def _count_exclusions(agent: str, rows: Sequence[ReportRow]) -> ExclusionCount:
    out = [row for row in rows if not row.is_verified]
    return ExclusionCount(
        agent=agent,
        runs=len(rows),
        verified=len(rows) - len(out),
        excluded=len(out),
        share=len(out) / len(rows),
        by_status=dict(sorted(Counter(str(row.status) for row in out).items())),
        by_code=dict(sorted(Counter(row.exclusion for row in out).items())),
        imported=sum(row.imported for row in rows),
    )
