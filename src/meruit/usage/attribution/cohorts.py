"""Which runs share an attribution key at the same time, so that the provider counts them together."""

from array import array
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import NamedTuple

from meruit.model.metering import AttributionKind, Window
from meruit.model.time import from_micros, to_micros
from meruit.model.usage import Cohort, Tokens
from meruit.usage.attribution.columns import (
    OPEN,
    UNKNOWN,
    CohortGroups,
    Column,
    ColumnArithmetic,
    ReferenceColumns,
    SpanSums,
)

GUARD = timedelta(minutes=2)
"""After the end of a run, in which a provider may still write down what the run has used."""
MOST_MODELS = 100
"""Of runs that share an attribution key; more are not compared."""
_GUARD = GUARD // timedelta(microseconds=1)
_REFERENCE = ReferenceColumns()
ATTRIBUTABLE_KINDS = frozenset({AttributionKind.KEY, AttributionKind.PROJECT, AttributionKind.SESSION})
"""Lanes in which a provider counts."""
_ACCOUNT = 0
"""The attribution key of everybody, where there is none but the account."""


class AttributionRun(NamedTuple):
    """What must be known of every run of an account to tell whose tokens are whose; times in microseconds."""

    id: str
    kind: str
    """A AttributionKind."""
    attribution_key: str
    started_at: int | None
    """Where nobody knows it, the run counts as of no length, at its end."""
    ended_at: int | None
    """None while it is open: it overlaps with everything that comes after its start."""
    local_input: int | None
    local_output: int | None
    local_requests: int | None
    last_input: int | None
    """What the last look that succeeded has found; None before the first."""
    last_output: int | None
    last_requests: int | None
    next_observation_at: int | None
    status: str = ""
    models: str = ""
    """The models that the run names, one a line; empty where it names none."""


class CohortSpan(NamedTuple):
    """Runs that the provider counts together."""

    start: int
    end: int
    """OPEN where one of them has not ended."""
    cohort: Cohort


class RunSpans(NamedTuple):
    """Some runs as columns: the time over which each is counted, that of its neighbours included."""

    starts: Column
    ends: Column
    cohort_numbers: Column
    """By which number `Neighbours.shared` knows the runs that are counted together, UNKNOWN where it is alone."""


def column_arithmetic() -> ColumnArithmetic:
    """By numpy (`pip install 'meruit[bulk]'`), or else one by one: the same results, in several times the time."""
    if find_spec("numpy") is None:
        return _REFERENCE
    # It takes longer to load than most commands to run.
    from meruit.usage.attribution.columns_numpy import NumpyColumns

    return NumpyColumns()


def window_of(started_at: int, ended_at: int | None, bucket: timedelta) -> tuple[int, int]:
    """The whole buckets that a run may have used, and the guard after them, in microseconds; the end is exclusive."""
    ends = array("q", [OPEN if ended_at is None else ended_at])
    (start,), (end,) = _REFERENCE.windows(array("q", [started_at]), ends, width_of(bucket), _GUARD)
    return start, end


def width_of(bucket: timedelta) -> int:
    """In microseconds; where each call is known, one, as no two moments are closer."""
    return max(bucket // timedelta(microseconds=1), 1)


class AccountCohorts:
    """All runs of an account that may have used the same minutes, told in blocks: some 60 bytes of memory each."""

    def __init__(self, bucket: timedelta, by: ColumnArithmetic | None = None) -> None:
        self._bucket = bucket
        self._by = by or column_arithmetic()
        self._codes: dict[tuple[str, str], int] = {}
        self._named = _ModelSets()
        self._keyed_runs, self._others = _RunColumns(), _RunColumns()
        self._has_window_runs = False
        """Whether a run can be told by nothing but the time: then it matters who else was there, in any attribution key."""

    def add(self, runs: Sequence[AttributionRun]) -> None:
        """Take a block of them; all are taken before anything is asked."""
        kinds = {run.kind for run in runs}
        self._has_window_runs = self._has_window_runs or AttributionKind.WINDOW in kinds
        begun = [run for run in runs if run.started_at is not None or run.ended_at is not None]
        laned = begun if kinds <= ATTRIBUTABLE_KINDS else [run for run in begun if run.kind in ATTRIBUTABLE_KINDS]
        others = [] if laned is begun else [run for run in begun if run.kind not in ATTRIBUTABLE_KINDS]
        codes = self._codes
        self._append(
            self._keyed_runs, laned, [codes.setdefault((run.kind, run.attribution_key), len(codes)) for run in laned]
        )
        self._append(self._others, others, [_ACCOUNT] * len(others))

    def spans(self, runs: Sequence[AttributionRun]) -> RunSpans:
        """Over which time each of these is counted, and with whom."""
        starts, ends = self._windows(runs)
        joined = self._cohort_lookup
        codes = self._codes
        attribution_keys = array("q", [codes.get((run.kind, run.attribution_key), UNKNOWN) for run in runs])
        shared = joined.key_index.group_indices(attribution_keys, starts)
        if joined.by_account.key_codes:
            whole = array("q", [_ACCOUNT if run.kind == AttributionKind.WINDOW else UNKNOWN for run in runs])
            shared = self._by.take(joined.numbers, joined.account_index.group_indices(whole, starts), shared)
        return RunSpans(self._by.take(joined.starts, shared, starts), self._by.take(joined.ends, shared, ends), shared)

    def cohort_span(self, number: int) -> CohortSpan | None:
        """The runs of a number of `spans`; None for UNKNOWN."""
        if number < 0:
            return None
        groups, place = self._cohort_lookup.find(number)
        put_in, put_out, requests = (column[place] for column in groups.counts)
        known = min(put_in, put_out) >= 0
        local = Tokens(put_in, put_out, None if requests < 0 else requests) if known else None
        models = self._named.sets[self._model_codes[number]]
        start, end = groups.starts[place], groups.ends[place]
        return CohortSpan(start, end, Cohort(groups.runs[place], local, models, has_open=end >= OPEN))

    @cached_property
    def has_mixed_kinds(self) -> bool:
        """Whether there are attribution keys of several kinds, so that one may lie within another."""
        return len({kind for kind, _ in self._codes}) > 1

    def count_overlapping(self, attribution_keys: Iterable[tuple[str, str]], start: int, end: int) -> int:
        """How many runs of some attribution keys, each by its kind and value, may have used a span of time."""
        known = [self._codes[one] for one in attribution_keys if one in self._codes]
        # All that began before its end, but for those that had ended by its start.
        begun = sum(self._start_counts.count(attribution_key, -OPEN, end) for attribution_key in known)
        return begun - sum(self._end_counts.count(attribution_key, -OPEN, start + 1) for attribution_key in known)

    def window_for(self, runs: Sequence[AttributionRun], now: datetime) -> Window | None:
        """What must be counted to tell what these have used; None for no runs."""
        if not runs:
            return None
        spans = self.spans(runs)
        return Window(from_micros(min(spans.starts)), from_micros(min(max(spans.ends), to_micros(now))))

    def _windows(self, runs: Sequence[AttributionRun]) -> tuple[Column, Column]:
        starts = [(run.ended_at or 0) if run.started_at is None else run.started_at for run in runs]
        ends = [OPEN if run.ended_at is None else run.ended_at for run in runs]
        return self._by.windows(array("q", starts), array("q", ends), width_of(self._bucket), _GUARD)

    def _append(self, told: "_RunColumns", runs: Sequence[AttributionRun], codes: list[int]) -> None:
        starts, ends = self._windows(runs)
        told.key_codes.fromlist(codes)
        told.starts.extend(starts)
        told.ends.extend(ends)
        told_models = self._named.number_of
        told.models.fromlist([told_models(run.models) for run in runs])
        inputs, outputs, requests = told.local
        # An open run may yet use more than it says.
        inputs.fromlist([_count_or_unknown(run.local_input, run.ended_at) for run in runs])
        outputs.fromlist([_count_or_unknown(run.local_output, run.ended_at) for run in runs])
        requests.fromlist([_count_or_unknown(run.local_requests, run.ended_at) for run in runs])

    @cached_property
    def _start_counts(self) -> SpanSums:
        """When the runs of an attribution key began."""
        return self._by.sums(self._keyed_runs.key_codes, self._keyed_runs.starts, ())

    @cached_property
    def _end_counts(self) -> SpanSums:
        """When they ended, those that have."""
        spans = zip(self._keyed_runs.key_codes, self._keyed_runs.ends, strict=True)
        closed = [(attribution_key, end) for attribution_key, end in spans if end < OPEN]
        attribution_keys, ends = (array("q", (one[part] for one in closed)) for part in range(2))
        return self._by.sums(attribution_keys, ends, ())

    @cached_property
    def _cohort_lookup(self) -> "_CohortLookup":
        laned, everybody = self._keyed_runs, self._all_runs
        return _CohortLookup(
            self._by,
            self._by.groups(laned.key_codes, laned.starts, laned.ends, laned.local),
            self._by.groups(everybody.key_codes, everybody.starts, everybody.ends, everybody.local),
        )

    @cached_property
    def _all_runs(self) -> "_RunColumns":
        return self._keyed_runs.merge(self._others) if self._has_window_runs else _RunColumns()

    @cached_property
    def _model_codes(self) -> Column:
        """The code of what the runs of each number name as their models, all together."""
        joined = self._cohort_lookup
        codes = array("q", [UNKNOWN]) * len(joined.starts)
        first = len(joined.by_key.key_codes)
        for groups, told, offset in ((joined.by_key, self._keyed_runs, 0), (joined.by_account, self._all_runs, first)):
            for place, code in zip(groups.members, told.models, strict=True):
                if place >= 0 and codes[place + offset] != code:
                    before = codes[place + offset]
                    codes[place + offset] = code if before == UNKNOWN else self._named.union(before, code)
        return codes


class _ModelSets:
    """Sets of models, each by a number; 0 is that of which nobody knows all."""

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        self._number_by_lines: dict[str, int] = {"": 0}

    def number_of(self, lines: str) -> int:
        """The number of those that a run names."""
        number = self._number_by_lines.get(lines)
        if number is None:
            number = self._number_by_lines[lines] = self._intern(lines.split("\n"))
        return number

    def union(self, one: int, other: int) -> int:
        """The number of two sets together."""
        return self._intern([*self.sets[one], *self.sets[other]]) if one and other else 0

    def _intern(self, models: list[str]) -> int:
        names = tuple(sorted({*models}))
        if len(names) > MOST_MODELS:
            return 0
        if names not in self._numbers:
            self._numbers[names] = len(self.sets)
            self.sets.append(names)
        return self._numbers[names]


class _CohortLookup:
    """Who shares an attribution key; and who shares the account, where that matters to anybody."""

    def __init__(self, by: ColumnArithmetic, in_lane: CohortGroups, in_account: CohortGroups) -> None:
        self.by_key, self.by_account = in_lane, in_account
        self.key_index, self.account_index = by.index_groups(in_lane), by.index_groups(in_account)
        self.starts = in_lane.starts + in_account.starts
        self.ends = in_lane.ends + in_account.ends
        self.numbers = array("q", range(len(in_lane.key_codes), len(self.starts)))
        """By which those of the account are known; those of attribution keys by their place."""

    def find(self, number: int) -> tuple[CohortGroups, int]:
        """The groups that a number is one of, and its place there."""
        attribution_keys = len(self.by_key.key_codes)
        return (self.by_key, number) if number < attribution_keys else (self.by_account, number - attribution_keys)


class _RunColumns:
    """What must be remembered of every run, as columns."""

    def __init__(self) -> None:
        self.key_codes, self.starts, self.ends, self.models = (array("q") for _ in range(4))
        self.local = (array("q"), array("q"), array("q"))

    def merge(self, other: "_RunColumns") -> "_RunColumns":
        """Both, as if there were one attribution key."""
        both = _RunColumns()
        for one in (self, other):
            both.key_codes.extend([_ACCOUNT] * len(one.key_codes))
            both.starts.extend(one.starts)
            both.ends.extend(one.ends)
            both.models.extend(one.models)
            for column, more in zip(both.local, one.local, strict=True):
                column.extend(more)
        return both


def _count_or_unknown(count: int | None, ended_at: int | None) -> int:
    return UNKNOWN if count is None or ended_at is None else count
