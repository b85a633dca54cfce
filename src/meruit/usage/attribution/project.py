"""Which of the provider's rows belong to which run: in detail for one, by sums for a million.

One pass over an account: every run is told to `lanes.Neighbours`, in blocks; what the provider has counted is told to
`Counted`, page by page; then `due` says, block by block, which runs must be looked at, and `look` looks at each.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from msgspec.structs import astuple, replace

from meruit.model.canonical import digest
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import CallState, LaneKind, MeteredRun, UsageRow, Window
from meruit.model.outcome import from_micros, in_micros, written
from meruit.model.usage import Assurance, Attempt, Cohort, FetchError, Tokens
from meruit.usage.attribution.cohorts import (
    GUARD,
    TOLD_APART,
    LightRun,
    Neighbours,
    Shared,
    arithmetic,
    width_of,
    window_of,
)
from meruit.usage.attribution.columns import OPEN, UNKNOWN, Arithmetic, Column, Sums
from meruit.usage.attribution.steps import SEVERAL, spans_of, touched

NAMED = 3
"""How many calls a sentence names."""
MOST_REMEMBERED = 10_000
"""Sums of runs that share a lane: those that do come one soon after the other."""
ID_LENGTH = 32
"""Of the digest that names a look."""
_GUARD = GUARD // timedelta(microseconds=1)
_WHOLE = (LaneKind.WINDOW, "")
_WHOLE_CODE = 0
_STRANGER = -2
"""The code of a lane that no row is of."""
_COMPARED = 3
"""Input, output, requests: by these a run is known to have changed before it is looked at in detail."""


class Fetch(NamedTuple):
    """One asking of an account: when, and for what it can be found again."""

    account: str
    at: datetime
    """By the provider's clock, where it says."""
    digest: str = ""
    """Of all its pages."""
    watermark: datetime | None = None


class Due(NamedTuple):
    """A run that must be looked at in detail, with those that are counted together with it."""

    run: LightRun
    shared: Shared | None


class Counted:
    """What a provider has counted for one account, in one window; pages are told in any order."""

    def __init__(self, bucket: timedelta, window: Window | None = None, by: Arithmetic | None = None) -> None:
        self._bucket, self._width = bucket, width_of(bucket)
        self._from = -OPEN if window is None else in_micros(window.start)
        self._until = OPEN if window is None else in_micros(window.end)
        self._by = by or arithmetic()
        self._moments, self._model_of = array("q"), array("q")
        self._counts = tuple(array("q") for _ in Tokens.__struct_fields__)
        self._models: dict[str, int] = {}
        self._codes: dict[tuple[str, str], int] = {_WHOLE: _WHOLE_CODE}
        self._lanes, self._row_of = array("q"), array("q")
        """Each lane that a row is of, and that row."""
        self._by_request: dict[str, list[int]] = {}
        self._request_of: dict[int, str] = {}
        self._claimed: set[int] = set()
        self._whole_asked = False
        self._indexes: dict[bool, _Index] = {}
        self._together: dict[tuple[int, int, int], _Found] = {}
        self._crossing: dict[_Span, frozenset[tuple[str, str]]] = {}
        self._named: list[tuple[str, str]] = []
        """Each lane at the place that is its code."""

    def add(self, rows: Iterable[UsageRow], claimed: Container[str] = ()) -> None:
        """Take a page; what is counted for calls that a run has claimed by their ids is no lane's any more."""
        self._indexes.clear()
        self._together.clear()
        self._crossing.clear()
        before, moment = None, 0
        for row in rows:
            if row.start is not before:
                before, moment = row.start, in_micros(row.start)
            self._take(row, moment, is_claimed=bool(row.request_id) and row.request_id in claimed)

    @property
    def has_claimed(self) -> bool:
        """Whether lanes lack something that was counted in them."""
        return bool(self._claimed)

    def code(self, kind: str, lane: str) -> int:
        """By which number `totals` knows a lane; one that nothing was counted for has one as well."""
        if kind == LaneKind.WINDOW:
            self._whole_asked = True
            return _WHOLE_CODE
        return self._codes.get((kind, lane), _STRANGER)

    def totals(self, lanes: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """Input, output and requests for each lane and span, in microseconds; UNKNOWN where a row does not say."""
        return self._index.sums.totals(lanes, starts, ends)

    def due(self, runs: Sequence[LightRun], neighbours: Neighbours, now: datetime) -> list[Due]:
        """Those whose time has come, or of which something else is counted than when they were last looked at."""
        spans = neighbours.spans(runs)
        lanes = array("q", [self.code(run.kind, run.lane) for run in runs])
        last = self._last(runs, spans.starts, spans.ends)
        changed = {*self._by.differing(last, self.totals(lanes, spans.starts, spans.ends))}
        moment = in_micros(now)
        return [
            Due(
                run, self._sharing(run, neighbours, _Span(lanes[place], spans.starts[place], spans.ends[place]), number)
            )
            for place, (run, number) in enumerate(zip(runs, spans.shared, strict=True))
            if place in changed or (run.next_look_at is not None and run.next_look_at <= moment)
        ]

    def look(self, run: MeteredRun, fetch: Fetch, shared: Shared | None = None) -> Attempt:
        """What was counted for a run, or for all that it shares its lane with."""
        if run.lane.kind is LaneKind.REQUESTS:
            return self._by_calls(run, fetch)
        if run.started_at is None:
            return missed(run.id, fetch, FetchError.MALFORMED, _NO_START)
        ended_at = None if run.ended_at is None else in_micros(run.ended_at)
        alone = window_of(in_micros(run.started_at), ended_at, self._bucket)
        start, end = alone if shared is None else (shared.start, shared.end)
        if not self._covers(start, end):
            return missed(run.id, fetch, FetchError.NOT_READY, self._short(start, end))
        lane = self.code(run.lane.kind, run.lane.value)
        if shared is not None:
            found = self._found_together(lane, start, end)
            return found.attempt(run.id, fetch, Assurance.COHORT, cohort=shared.cohort)
        rows = self._rows(lane, start, end)
        found, split = self._found(rows), self._split(run, rows, end)
        if run.lane.kind is LaneKind.WINDOW:
            return found.attempt(run.id, fetch, Assurance.COHORT, split, _with_strangers(run))
        return found.attempt(run.id, fetch, Assurance.LANE, split)

    def _sharing(self, run: LightRun, neighbours: Neighbours, span: "_Span", number: int) -> Shared | None:
        """Those that are counted together with a run: in its lane, and by lanes of other kinds that its rows are of."""
        shared = neighbours.shared(number)
        if run.kind not in TOLD_APART or not neighbours.is_mixed:
            return shared
        more = neighbours.overlapping(self._other_lanes(run.kind, span), span.start, span.end)
        if not more:
            return shared
        inside = Cohort(1, has_open=run.ended_at is None) if shared is None else shared.cohort
        # Not even a sum can tie out: the same rows are counted for several.
        return Shared(span.start, span.end, Cohort(inside.runs + more, has_open=inside.has_open))

    def _other_lanes(self, kind: str, span: "_Span") -> frozenset[tuple[str, str]]:
        """Of other kinds than one, those that its rows are of as well."""
        if span not in self._crossing:
            if len(self._crossing) >= MOST_REMEMBERED:
                self._crossing.clear()
            if len(self._named) < len(self._codes):
                self._named = [*self._codes]
            codes: set[int] = set()
            for row in self._rows(*span):
                first, last = bisect_left(self._row_of, row), bisect_right(self._row_of, row)
                codes.update(self._lanes[first:last])
            named = (self._named[code] for code in codes)
            self._crossing[span] = frozenset(lane for lane in named if lane[0] != kind)
        return self._crossing[span]

    def _take(self, row: UsageRow, moment: int, *, is_claimed: bool) -> None:
        place = len(self._moments)
        if is_claimed:
            self._claimed.add(place)
        self._moments.append(moment)
        self._model_of.append(self._models.setdefault(row.model, len(self._models)))
        for column, count in zip(self._counts, astuple(row.tokens), strict=True):
            column.append(UNKNOWN if count is None else count)
        for kind, lane in ((LaneKind.KEY, row.key), (LaneKind.PROJECT, row.project), (LaneKind.SESSION, row.session)):
            if lane and not is_claimed:
                self._lanes.append(self._codes.setdefault((kind, lane), len(self._codes)))
                self._row_of.append(place)
        if row.request_id:
            self._by_request.setdefault(row.request_id, []).append(place)
            self._request_of[place] = row.request_id

    @property
    def _index(self) -> "_Index":
        """By lane and moment; with the whole account only where somebody asks, as it holds every row once more."""
        whole = self._whole_asked
        if whole not in self._indexes:
            lanes, rows = self._lanes, self._row_of
            if whole:
                every = array("q", (place for place in range(len(self._moments)) if place not in self._claimed))
                lanes, rows = lanes + array("q", [_WHOLE_CODE]) * len(every), rows + every
            columns = (self._moments, *self._counts[:_COMPARED])
            moments, *counts = (self._by.taken(column, rows, rows) for column in columns)
            self._indexes = {whole: _Index(self._by.sums(lanes, moments, counts), rows)}
        return self._indexes[whole]

    def _last(self, runs: Sequence[LightRun], starts: Column, ends: Column) -> tuple[Column, ...]:
        """What the last look has found; input is UNKNOWN where that cannot be compared with what is counted here."""
        inputs = [self._last_input(*one) for one in zip(runs, starts, ends, strict=True)]
        outputs = [UNKNOWN if run.last_output is None else run.last_output for run in runs]
        requests = [UNKNOWN if run.last_requests is None else run.last_requests for run in runs]
        return array("q", inputs), array("q", outputs), array("q", requests)

    def _last_input(self, run: LightRun, start: int, end: int) -> int:
        if run.last_input is None or run.ended_at is None or run.kind == LaneKind.REQUESTS:
            return UNKNOWN
        return run.last_input if self._covers(start, end) else UNKNOWN

    def _covers(self, start: int, end: int) -> bool:
        """Whether all of a span was asked for; of what has not ended, all that there is so far."""
        return self._from <= start and (end <= self._until or end >= OPEN)

    def _short(self, start: int, end: int) -> str:
        until = "now" if end >= OPEN else written(from_micros(end))
        return (
            f"the run, and those that share its lane, need what was counted from {written(from_micros(start))} to "
            f"{until}; asked for was {written(from_micros(self._from))} to {written(from_micros(self._until))}"
        )

    def _rows(self, lane: int, start: int, end: int) -> list[int]:
        index = self._index
        return [index.rows[place] for place in index.sums.rows(lane, start, end)]

    def _found_together(self, lane: int, start: int, end: int) -> "_Found":
        """Added up once for all runs that share it."""
        asked = (lane, start, end)
        if asked not in self._together:
            if len(self._together) >= MOST_REMEMBERED:
                self._together.clear()
            self._together[asked] = self._found(self._rows(*asked))
        return self._together[asked]

    def _found(self, rows: Iterable[int]) -> "_Found":
        several = [*rows]
        names = [*self._models]
        models = {names[self._model_of[row]] for row in several if self._uses_tokens(row)}
        return _Found(self._tokens(several), tuple(sorted(models - {""})), self._by_model(several, names))

    def _by_model(self, rows: Sequence[int], names: Sequence[str]) -> dict[str, Tokens] | None:
        """What was counted of each model; None where something was counted of one without a name."""
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(names[self._model_of[row]], []).append(row)
        used = {model: self._tokens(some) for model, some in found.items() if any(map(self._is_used, some))}
        return None if "" in used else used

    def _tokens(self, rows: Sequence[int]) -> Tokens:
        known = [
            None if any(column[row] < 0 for row in rows) else sum(column[row] for row in rows)
            for column in self._counts
        ]
        put_in, put_out, *others = (None if count is None else min(count, MOST_TOKENS) for count in known)
        return Tokens(put_in or 0, put_out or 0, *others)

    def _uses_tokens(self, row: int) -> bool:
        return self._counts[0][row] > 0 or self._counts[1][row] > 0

    def _by_calls(self, run: MeteredRun, fetch: Fetch) -> Attempt:
        """By the id of each call, which belongs to a step."""
        rows: dict[str, list[int]] = {}
        missing: list[str] = []
        seen: set[str] = set()
        for step in run.steps:
            for call in step.calls:
                if call.id in self._by_request:
                    if call.id not in seen:
                        rows.setdefault(step.id, []).extend(self._by_request[call.id])
                    seen.add(call.id)
                elif call.state is not CallState.FAILED:
                    missing.append(call.id)
        if missing:
            return missed(run.id, fetch, FetchError.NOT_READY, _without_row(missing, len(run.calls)))
        steps = {step: self._tokens(some) for step, some in rows.items()}
        found = self._found(row for some in rows.values() for row in some)
        return found.attempt(run.id, fetch, Assurance.REQUEST, _Split(steps))

    def _split(self, run: MeteredRun, rows: Sequence[int], end: int) -> "_Split":
        """What each step has used, where its minutes are no other's; and what was used while there was none."""
        spans = spans_of(run.steps)
        if spans is None:
            return _NO_SPLIT
        belongs = self._step_by_call(run, rows)
        moments = sorted({self._moments[row] for row in rows if row not in belongs and self._is_used(row)})
        step_at = dict(touched(moments, spans, self._width, closed=end - _GUARD))
        used: dict[str, list[int]] = {}
        outside: list[int] = []
        ambiguous = False
        for row in rows:
            if not self._is_used(row):
                continue
            step = belongs[row] if row in belongs else step_at[self._moments[row]]
            if step is None:
                outside.append(row)
            elif step == SEVERAL:
                ambiguous = True
            else:
                used.setdefault(run.steps[step].id, []).append(row)
        steps = None if ambiguous else {step: self._tokens(some) for step, some in used.items()}
        return _Split(steps, self._tokens(outside).total)

    def _is_used(self, row: int) -> bool:
        return any(column[row] > 0 for column in self._counts)

    def _step_by_call(self, run: MeteredRun, rows: Iterable[int]) -> dict[int, int]:
        """Of rows that are calls which the run knows by their ids, the steps."""
        if not self._request_of:
            return {}
        steps = {call.id: number for number, step in enumerate(run.steps) for call in step.calls if call.id}
        calls = ((row, self._request_of.get(row, "")) for row in rows)
        return {row: steps[call] for row, call in calls if call in steps}


def missed(run_id: str, fetch: Fetch, error: FetchError, detail: str) -> Attempt:
    """A look that found nothing out, and why."""
    at = fetch.at.astimezone(UTC)
    look = Attempt("", at, watermark=fetch.watermark, error=error, detail=detail, digest=fetch.digest)
    return _identified(look, run_id, fetch.account)


class _Index(NamedTuple):
    """Sums by lane and moment, and which row each of its entries is of."""

    sums: Sums
    rows: Column


class _Span(NamedTuple):
    """A lane, by its code, and a time."""

    lane: int
    start: int
    end: int


class _Split(NamedTuple):
    """What was counted by step, where that can be told, and outside of all."""

    steps: dict[str, Tokens] | None = None
    unattributed: int = 0


_NO_SPLIT = _Split()


class _Found(NamedTuple):
    """What some rows come to."""

    total: Tokens
    models: tuple[str, ...]
    by_model: dict[str, Tokens] | None

    def attempt(
        self,
        run_id: str,
        fetch: Fetch,
        assurance: Assurance,
        split: _Split = _NO_SPLIT,
        cohort: Cohort | None = None,
    ) -> Attempt:
        """The look that found it."""
        look = Attempt(
            "",
            fetch.at.astimezone(UTC),
            self.total,
            split.steps,
            unattributed=split.unattributed,
            models=self.models,
            cohort=cohort,
            assurance=assurance,
            watermark=fetch.watermark,
            digest=fetch.digest,
            by_model=self.by_model,
        )
        return _identified(look, run_id, fetch.account)


def _with_strangers(run: MeteredRun) -> Cohort:
    """A run told by nothing but the time: whether it was alone in its account, only its own count can show."""
    local = None if run.ended_at is None else run.local
    return Cohort(1, None if local is None else Tokens(local.input, local.output, local.requests))


_NO_START = "the run does not say when it started, so no minute is known to be its own; record `started_at`"


def _identified(look: Attempt, run_id: str, account: str) -> Attempt:
    """Named by all it says: the same look recorded twice is one, and another projection of the same pages another."""
    content = digest([account, run_id, look.to_json().decode()])
    return replace(look, id=content[:ID_LENGTH])


def _without_row(missing: Sequence[str], calls: int) -> str:
    named = [one for one in missing if one][:NAMED]
    unnamed = sum(not one for one in missing)
    told = f", as of {', '.join(named)}" if named else ""
    without = (
        f"; {unnamed:,} were recorded without the provider's id of the call, and cannot be found" if unnamed else ""
    )
    return f"the provider has no record of {len(missing):,} of {calls:,} calls yet{told}{without}"
