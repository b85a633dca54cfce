"""Which runs share a lane at the same time, so that the provider counts them together."""

from array import array
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from importlib.util import find_spec
from typing import NamedTuple

from meruit.model.metering import LaneKind, Window
from meruit.model.outcome import from_micros, in_micros
from meruit.model.usage import Cohort, Tokens
from meruit.usage.attribution.columns import OPEN, UNKNOWN, Arithmetic, Column, Groups, Plain, Sums

GUARD = timedelta(minutes=2)
"""After the end of a run, in which a provider may still write down what the run has used."""
MOST_MODELS = 100
"""Of runs that share a lane; more are not compared."""
_GUARD = GUARD // timedelta(microseconds=1)
_PLAIN = Plain()
TOLD_APART = frozenset({LaneKind.KEY, LaneKind.PROJECT, LaneKind.SESSION})
"""Lanes in which a provider counts."""
_ACCOUNT = 0
"""The lane of everybody, where there is none but the account."""


class LightRun(NamedTuple):
    """What must be known of every run of an account to tell whose tokens are whose; times in microseconds."""

    id: str
    kind: str
    """A LaneKind."""
    lane: str
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
    next_look_at: int | None
    status: str = ""
    models: str = ""
    """The models that the run names, one a line; empty where it names none."""


class Shared(NamedTuple):
    """Runs that the provider counts together."""

    start: int
    end: int
    """OPEN where one of them has not ended."""
    cohort: Cohort


class Spans(NamedTuple):
    """Some runs as columns: the time over which each is counted, that of its neighbours included."""

    starts: Column
    ends: Column
    shared: Column
    """By which number `Neighbours.shared` knows the runs that are counted together, UNKNOWN where it is alone."""


def arithmetic() -> Arithmetic:
    """By numpy (`pip install 'meruit[bulk]'`), or else one by one: the same results, in several times the time."""
    if find_spec("numpy") is None:
        return _PLAIN
    # It takes longer to load than most commands to run.
    from meruit.usage.attribution.columns_numpy import Swift

    return Swift()


def window_of(started_at: int, ended_at: int | None, bucket: timedelta) -> tuple[int, int]:
    """The whole buckets that a run may have used, and the guard after them, in microseconds; the end is exclusive."""
    ends = array("q", [OPEN if ended_at is None else ended_at])
    (start,), (end,) = _PLAIN.windows(array("q", [started_at]), ends, width_of(bucket), _GUARD)
    return start, end


def width_of(bucket: timedelta) -> int:
    """In microseconds; where each call is known, one, as no two moments are closer."""
    return max(bucket // timedelta(microseconds=1), 1)


class Neighbours:
    """All runs of an account that may have used the same minutes, told in blocks: some 60 bytes of memory each."""

    def __init__(self, bucket: timedelta, by: Arithmetic | None = None) -> None:
        self._bucket = bucket
        self._by = by or arithmetic()
        self._codes: dict[tuple[str, str], int] = {}
        self._named = _Models()
        self._laned, self._others = _Told(), _Told()
        self._has_unlaned = False
        """Whether a run can be told by nothing but the time: then it matters who else was there, in any lane."""

    def add(self, runs: Sequence[LightRun]) -> None:
        """Take a block of them; all are taken before anything is asked."""
        kinds = {run.kind for run in runs}
        self._has_unlaned = self._has_unlaned or LaneKind.WINDOW in kinds
        begun = [run for run in runs if run.started_at is not None or run.ended_at is not None]
        laned = begun if kinds <= TOLD_APART else [run for run in begun if run.kind in TOLD_APART]
        others = [] if laned is begun else [run for run in begun if run.kind not in TOLD_APART]
        codes = self._codes
        self._take(self._laned, laned, [codes.setdefault((run.kind, run.lane), len(codes)) for run in laned])
        self._take(self._others, others, [_ACCOUNT] * len(others))

    def spans(self, runs: Sequence[LightRun]) -> Spans:
        """Over which time each of these is counted, and with whom."""
        starts, ends = self._windows(runs)
        joined = self._joined
        codes = self._codes
        lanes = array("q", [codes.get((run.kind, run.lane), UNKNOWN) for run in runs])
        shared = joined.of_lanes.places(lanes, starts)
        if joined.in_account.lanes:
            whole = array("q", [_ACCOUNT if run.kind == LaneKind.WINDOW else UNKNOWN for run in runs])
            shared = self._by.taken(joined.numbers, joined.of_account.places(whole, starts), shared)
        return Spans(self._by.taken(joined.starts, shared, starts), self._by.taken(joined.ends, shared, ends), shared)

    def shared(self, number: int) -> Shared | None:
        """The runs of a number of `spans`; None for UNKNOWN."""
        if number < 0:
            return None
        groups, place = self._joined.find(number)
        put_in, put_out, requests = (column[place] for column in groups.counts)
        known = min(put_in, put_out) >= 0
        local = Tokens(put_in, put_out, None if requests < 0 else requests) if known else None
        models = self._named.sets[self._models[number]]
        start, end = groups.starts[place], groups.ends[place]
        return Shared(start, end, Cohort(groups.runs[place], local, models, has_open=end >= OPEN))

    @cached_property
    def is_mixed(self) -> bool:
        """Whether there are lanes of several kinds, so that one may lie within another."""
        return len({kind for kind, _ in self._codes}) > 1

    def overlapping(self, lanes: Iterable[tuple[str, str]], start: int, end: int) -> int:
        """How many runs of some lanes, each by its kind and value, may have used a span of time."""
        known = [self._codes[one] for one in lanes if one in self._codes]
        # All that began before its end, but for those that had ended by its start.
        begun = sum(self._begun.number(lane, -OPEN, end) for lane in known)
        return begun - sum(self._ended.number(lane, -OPEN, start + 1) for lane in known)

    def needed(self, runs: Sequence[LightRun], now: datetime) -> Window | None:
        """What must be counted to tell what these have used; None for no runs."""
        if not runs:
            return None
        spans = self.spans(runs)
        return Window(from_micros(min(spans.starts)), from_micros(min(max(spans.ends), in_micros(now))))

    def _windows(self, runs: Sequence[LightRun]) -> tuple[Column, Column]:
        starts = [(run.ended_at or 0) if run.started_at is None else run.started_at for run in runs]
        ends = [OPEN if run.ended_at is None else run.ended_at for run in runs]
        return self._by.windows(array("q", starts), array("q", ends), width_of(self._bucket), _GUARD)

    def _take(self, told: "_Told", runs: Sequence[LightRun], codes: list[int]) -> None:
        starts, ends = self._windows(runs)
        told.lanes.fromlist(codes)
        told.starts.extend(starts)
        told.ends.extend(ends)
        told_models = self._named.told
        told.models.fromlist([told_models(run.models) for run in runs])
        inputs, outputs, requests = told.local
        # An open run may yet use more than it says.
        inputs.fromlist([_known(run.local_input, run.ended_at) for run in runs])
        outputs.fromlist([_known(run.local_output, run.ended_at) for run in runs])
        requests.fromlist([_known(run.local_requests, run.ended_at) for run in runs])

    @cached_property
    def _begun(self) -> Sums:
        """When the runs of a lane began."""
        return self._by.sums(self._laned.lanes, self._laned.starts, ())

    @cached_property
    def _ended(self) -> Sums:
        """When they ended, those that have."""
        spans = zip(self._laned.lanes, self._laned.ends, strict=True)
        closed = [(lane, end) for lane, end in spans if end < OPEN]
        lanes, ends = (array("q", (one[part] for one in closed)) for part in range(2))
        return self._by.sums(lanes, ends, ())

    @cached_property
    def _joined(self) -> "_Joined":
        laned, everybody = self._laned, self._everybody
        return _Joined(
            self._by,
            self._by.groups(laned.lanes, laned.starts, laned.ends, laned.local),
            self._by.groups(everybody.lanes, everybody.starts, everybody.ends, everybody.local),
        )

    @cached_property
    def _everybody(self) -> "_Told":
        return self._laned.together(self._others) if self._has_unlaned else _Told()

    @cached_property
    def _models(self) -> Column:
        """The code of what the runs of each number name as their models, all together."""
        joined = self._joined
        codes = array("q", [UNKNOWN]) * len(joined.starts)
        first = len(joined.in_lane.lanes)
        for groups, told, offset in ((joined.in_lane, self._laned, 0), (joined.in_account, self._everybody, first)):
            for place, code in zip(groups.members, told.models, strict=True):
                if place >= 0 and codes[place + offset] != code:
                    before = codes[place + offset]
                    codes[place + offset] = code if before == UNKNOWN else self._named.both(before, code)
        return codes


class _Models:
    """Sets of models, each by a number; 0 is that of which nobody knows all."""

    def __init__(self) -> None:
        self.sets: list[tuple[str, ...]] = [()]
        self._numbers: dict[tuple[str, ...], int] = {(): 0}
        self._told: dict[str, int] = {"": 0}

    def told(self, lines: str) -> int:
        """The number of those that a run names."""
        number = self._told.get(lines)
        if number is None:
            number = self._told[lines] = self._number(lines.split("\n"))
        return number

    def both(self, one: int, other: int) -> int:
        """The number of two sets together."""
        return self._number([*self.sets[one], *self.sets[other]]) if one and other else 0

    def _number(self, models: list[str]) -> int:
        names = tuple(sorted({*models}))
        if len(names) > MOST_MODELS:
            return 0
        if names not in self._numbers:
            self._numbers[names] = len(self.sets)
            self.sets.append(names)
        return self._numbers[names]


class _Joined:
    """Who shares a lane; and who shares the account, where that matters to anybody."""

    def __init__(self, by: Arithmetic, in_lane: Groups, in_account: Groups) -> None:
        self.in_lane, self.in_account = in_lane, in_account
        self.of_lanes, self.of_account = by.found(in_lane), by.found(in_account)
        self.starts = in_lane.starts + in_account.starts
        self.ends = in_lane.ends + in_account.ends
        self.numbers = array("q", range(len(in_lane.lanes), len(self.starts)))
        """By which those of the account are known; those of lanes by their place."""

    def find(self, number: int) -> tuple[Groups, int]:
        """The groups that a number is one of, and its place there."""
        lanes = len(self.in_lane.lanes)
        return (self.in_lane, number) if number < lanes else (self.in_account, number - lanes)


class _Told:
    """What must be remembered of every run, as columns."""

    def __init__(self) -> None:
        self.lanes, self.starts, self.ends, self.models = (array("q") for _ in range(4))
        self.local = (array("q"), array("q"), array("q"))

    def together(self, other: "_Told") -> "_Told":
        """Both, as if there were one lane."""
        both = _Told()
        for one in (self, other):
            both.lanes.extend([_ACCOUNT] * len(one.lanes))
            both.starts.extend(one.starts)
            both.ends.extend(one.ends)
            both.models.extend(one.models)
            for column, more in zip(both.local, one.local, strict=True):
                column.extend(more)
        return both


def _known(count: int | None, ended_at: int | None) -> int:
    return UNKNOWN if count is None or ended_at is None else count
