"""Which runs share an attribution key at the same time, so that the provider counts them together."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property

from meruit.model.metering import AttributionKind, Window
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Cohort, Tokens
from meruit.usage.attribution.columns import (
    OPEN,
    UNKNOWN,
    CohortGroups,
    CohortIndex,
    Column,
    SpanSums,
    group_spans,
    take,
    windows,
)
from meruit.usage.attribution.run import AttributionRun

GUARD = timedelta(minutes=2)
"""Time after the end of a run in which a provider may still count what the run has used."""
_GUARD = GUARD // timedelta(microseconds=1)
ATTRIBUTABLE_KINDS = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Kinds of attribution key by which a provider counts."""
_ACCOUNT = 0
"""The key code of every run where runs are grouped by account alone."""


@dataclass(frozen=True, slots=True)
class CohortSpan:
    """Runs that the provider counts together, and the time over which it does."""

    start: int
    end: int
    """OPEN where one of the runs has not ended."""
    cohort: Cohort


@dataclass(frozen=True, slots=True)
class RunSpans:
    """Some runs as columns: the time over which each is counted, including the runs that are counted with it."""

    starts: Column
    ends: Column
    cohort_numbers: Column
    """The number under which `AccountCohorts.cohort_span` finds the cohort; UNKNOWN where the run is alone."""


def window_of(started_at: int, ended_at: int | None, bucket: timedelta) -> tuple[int, int]:
    """The whole buckets that a run may have used, and the guard after them, in microseconds; the end is exclusive."""
    ends = array("q", [OPEN if ended_at is None else ended_at])
    (start,), (end,) = windows(array("q", [started_at]), ends, width_of(bucket), _GUARD)
    return start, end


def width_of(bucket: timedelta) -> int:
    """The bucket in microseconds; 1 where each call is known, as no two moments are closer."""
    return max(bucket // timedelta(microseconds=1), 1)


class AccountCohorts:
    """All runs of an account that may have used the same minutes, added in blocks; about 60 bytes of memory each."""

    def __init__(self, bucket: timedelta) -> None:
        self._bucket = bucket
        self._codes: dict[tuple[str, str], int] = {}
        self._keyed_runs, self._others = _RunColumns(), _RunColumns()
        self._has_window_runs = False
        """Whether a run is attributed by time alone: then every run of the account matters to it."""

    def add(self, runs: Sequence[AttributionRun]) -> None:
        """Add a block of runs; add all blocks before any lookup."""
        kinds = {run.attribution_kind for run in runs}
        self._has_window_runs = self._has_window_runs or AttributionKind.WINDOW in kinds
        begun = [run for run in runs if run.started_at is not None or run.ended_at is not None]
        keyed = begun
        if not kinds <= ATTRIBUTABLE_KINDS:
            keyed = [run for run in begun if run.attribution_kind in ATTRIBUTABLE_KINDS]
            others = [run for run in begun if run.attribution_kind not in ATTRIBUTABLE_KINDS]
            self._append(self._others, others, [_ACCOUNT] * len(others))
        codes = self._codes
        self._append(
            self._keyed_runs,
            keyed,
            [codes.setdefault((run.attribution_kind, run.attribution_key), len(codes)) for run in keyed],
        )

    def spans(self, runs: Sequence[AttributionRun]) -> RunSpans:
        """The time over which each of these runs is counted, and the number of its cohort."""
        starts, ends = self._windows(runs)
        lookup = self._cohort_lookup
        codes = self._codes
        key_codes = array("q", [codes.get((run.attribution_kind, run.attribution_key), UNKNOWN) for run in runs])
        numbers = lookup.key_index.group_indices(key_codes, starts)
        if lookup.by_account.key_codes:
            by_time = [_ACCOUNT if run.attribution_kind == AttributionKind.WINDOW else UNKNOWN for run in runs]
            in_account = lookup.account_index.group_indices(array("q", by_time), starts)
            numbers = take(lookup.account_numbers, in_account, numbers)
        return RunSpans(take(lookup.starts, numbers, starts), take(lookup.ends, numbers, ends), numbers)

    def cohort_span(self, number: int) -> CohortSpan | None:
        """The cohort of a number from `spans`; None for UNKNOWN."""
        if number < 0:
            return None
        groups, index = self._cohort_lookup.find(number)
        put_in, put_out, requests = (column[index] for column in groups.counts)
        is_known = min(put_in, put_out) >= 0
        local = Tokens(put_in, put_out, None if requests < 0 else requests) if is_known else None
        start, end = groups.starts[index], groups.ends[index]
        return CohortSpan(start, end, Cohort(groups.runs[index], local, has_open=end >= OPEN))

    @cached_property
    def has_mixed_kinds(self) -> bool:
        """Whether there are attribution keys of several kinds, so that one may lie within another."""
        return len({kind for kind, _ in self._codes}) > 1

    def count_overlapping(self, attribution_keys: Iterable[tuple[str, str]], start: int, end: int) -> int:
        """Count the runs of these attribution keys (kind and value) that may have used a span of time."""
        known = [self._codes[one] for one in attribution_keys if one in self._codes]
        # All that began before the end of the span, except those that had ended by its start.
        begun = sum(self._start_counts.count(code, -OPEN, end) for code in known)
        return begun - sum(self._end_counts.count(code, -OPEN, start + 1) for code in known)

    def window_for(self, runs: Sequence[AttributionRun], now: datetime) -> Window | None:
        """The time that the provider's counts must cover to attribute tokens to these runs; None for no runs."""
        if not runs:
            return None
        spans = self.spans(runs)
        return Window(from_micros(min(spans.starts)), from_micros(min(max(spans.ends), to_micros(now))))

    def _windows(self, runs: Sequence[AttributionRun]) -> tuple[Column, Column]:
        starts = [(run.ended_at or 0) if run.started_at is None else run.started_at for run in runs]
        ends = [OPEN if run.ended_at is None else run.ended_at for run in runs]
        return windows(array("q", starts), array("q", ends), width_of(self._bucket), _GUARD)

    def _append(self, columns: "_RunColumns", runs: Sequence[AttributionRun], key_codes: list[int]) -> None:
        starts, ends = self._windows(runs)
        columns.key_codes.fromlist(key_codes)
        columns.starts.extend(starts)
        columns.ends.extend(ends)
        inputs, outputs, requests = columns.local
        # An open run may still use more than it reports.
        inputs.fromlist([_count_or_unknown(run.local_input, run.ended_at) for run in runs])
        outputs.fromlist([_count_or_unknown(run.local_output, run.ended_at) for run in runs])
        requests.fromlist([_count_or_unknown(run.local_requests, run.ended_at) for run in runs])

    @cached_property
    def _start_counts(self) -> SpanSums:
        """The starts of the runs of each attribution key."""
        return SpanSums(self._keyed_runs.key_codes, self._keyed_runs.starts, ())

    @cached_property
    def _end_counts(self) -> SpanSums:
        """The ends of the runs of each attribution key; open runs have none."""
        spans = zip(self._keyed_runs.key_codes, self._keyed_runs.ends, strict=True)
        closed = [(code, end) for code, end in spans if end < OPEN]
        return SpanSums(array("q", (code for code, _ in closed)), array("q", (end for _, end in closed)), ())

    @cached_property
    def _cohort_lookup(self) -> "_CohortLookup":
        everything = self._keyed_runs.merge(self._others) if self._has_window_runs else _RunColumns()
        return _CohortLookup(self._keyed_runs.groups(), everything.groups())


class _CohortLookup:
    """The cohorts of attribution keys, then those of the whole account, numbered in this order."""

    def __init__(self, by_key: CohortGroups, by_account: CohortGroups) -> None:
        self.by_key, self.by_account = by_key, by_account
        self.key_index, self.account_index = CohortIndex(by_key), CohortIndex(by_account)
        self.starts = by_key.starts + by_account.starts
        self.ends = by_key.ends + by_account.ends
        self.account_numbers = array("q", range(len(by_key.key_codes), len(self.starts)))
        """The numbers of the account's cohorts; a cohort of an attribution key has its index as its number."""

    def find(self, number: int) -> tuple[CohortGroups, int]:
        """The groups that a cohort belongs to, and its index there."""
        first = len(self.by_key.key_codes)
        return (self.by_key, number) if number < first else (self.by_account, number - first)


def _new_column() -> Column:
    return array("q")


@dataclass(slots=True)
class _RunColumns:
    """What must be remembered of every run, as columns that grow block by block."""

    key_codes: Column = field(default_factory=_new_column)
    starts: Column = field(default_factory=_new_column)
    ends: Column = field(default_factory=_new_column)
    local: tuple[Column, Column, Column] = field(default_factory=lambda: (_new_column(), _new_column(), _new_column()))
    """Input, output and requests that the runs report themselves."""

    def groups(self) -> CohortGroups:
        return group_spans(self.key_codes, self.starts, self.ends, self.local)

    def merge(self, other: "_RunColumns") -> "_RunColumns":
        """Both together, as if all runs shared one attribution key."""
        both = _RunColumns()
        for one in (self, other):
            both.key_codes.extend([_ACCOUNT] * len(one.key_codes))
            both.starts.extend(one.starts)
            both.ends.extend(one.ends)
            for column, more in zip(both.local, one.local, strict=True):
                column.extend(more)
        return both


def _count_or_unknown(count: int | None, ended_at: int | None) -> int:
    return UNKNOWN if count is None or ended_at is None else count
