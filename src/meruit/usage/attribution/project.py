"""Which of the provider's rows belong to which run: in detail for one run, by sums for a million.

One pass over an account: add every run to `AccountCohorts`, in blocks; add what the provider has counted to
`ProviderCounts`, page by page; then `due_runs` finds, block by block, the runs to observe, and `observe` observes each.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import msgspec
from msgspec.structs import astuple, replace

from meruit.errors import FetchError
from meruit.model.canonical import digest
from meruit.model.chat import MOST_TOKENS
from meruit.model.metering import AttributionKind, CallState, MeteredRun, UsageRow, Window
from meruit.model.time import from_micros, to_micros, to_rfc3339
from meruit.model.usage import Assurance, Cohort, Observation, Tokens
from meruit.usage.attribution.cohorts import (
    ATTRIBUTABLE_KINDS,
    GUARD,
    AccountCohorts,
    CohortSpan,
    width_of,
    window_of,
)
from meruit.usage.attribution.columns import OPEN, UNKNOWN, Column, SpanSums, find_differences, take
from meruit.usage.attribution.run import AttributionRun
from meruit.usage.attribution.steps import SEVERAL, spans_of, steps_by_bucket

MAX_NAMED_CALLS = 3
"""How many missing calls an error names."""
MAX_MEMOISED_SUMS = 10_000
"""Sums of cohorts that are remembered; the runs of one cohort are observed soon after each other."""
ID_LENGTH = 32
"""Characters of the digest that is an observation's id."""
_GUARD = GUARD // timedelta(microseconds=1)
_ACCOUNT_KEY = (AttributionKind.WINDOW, "")
_ACCOUNT_KEY_CODE = 0
_UNKNOWN_KEY_CODE = -2
"""The code of an attribution key that no row has."""
_COMPARED_COUNTS = 3
"""Input, output and requests: a change of these makes a run due before its time."""


class Fetch(msgspec.Struct, frozen=True):
    """One request to an account: when it was made, and by which digest its pages are found again."""

    account: str
    at: datetime
    """By the provider's clock, where the response has a date."""
    digest: str = ""
    """Of all pages."""
    watermark: datetime | None = None


@dataclass(frozen=True, slots=True)
class DueUsageRun:
    """A run to observe, with the runs that the provider counts together with it."""

    run: AttributionRun
    cohort_span: CohortSpan | None


class ProviderCounts:
    """What a provider has counted for one account in one window; pages are added in any order."""

    def __init__(self, bucket: timedelta, window: Window | None = None) -> None:
        self._bucket, self._width = bucket, width_of(bucket)
        self._from = -OPEN if window is None else to_micros(window.start)
        self._until = OPEN if window is None else to_micros(window.end)
        self._moments, self._model_of = array("q"), array("q")
        self._counts = tuple(array("q") for _ in Tokens.__struct_fields__)
        self._models: dict[str, int] = {}
        self._codes: dict[tuple[str, str], int] = {_ACCOUNT_KEY: _ACCOUNT_KEY_CODE}
        self._key_codes, self._row_of = array("q"), array("q")
        """Pairs of an attribution key and a row that has it."""
        self._by_request: dict[str, list[int]] = {}
        self._request_of: dict[int, str] = {}
        self._claimed: set[int] = set()
        self._whole_asked = False
        self._indexes: dict[bool, _Index] = {}
        self._together: dict[_KeySpan, _RowTotals] = {}
        self._crossing: dict[_KeySpan, frozenset[tuple[str, str]]] = {}
        self._named: list[tuple[str, str]] = []
        """The attribution keys, in the order of their codes."""

    def add(self, rows: Iterable[UsageRow], claimed: Container[str] = ()) -> None:
        """Add a page; a row whose call a run has claimed by its id no longer counts for any attribution key."""
        self._indexes.clear()
        self._together.clear()
        self._crossing.clear()
        before, moment = None, 0
        for row in rows:
            if row.start is not before:
                before, moment = row.start, to_micros(row.start)
            self._append(row, moment, is_claimed=bool(row.request_id) and row.request_id in claimed)

    @property
    def has_claimed(self) -> bool:
        """Whether a row was left out of the sums of attribution keys because a run has claimed its call."""
        return bool(self._claimed)

    def key_code(self, kind: str, attribution_key: str) -> int:
        """The code by which `totals` knows an attribution key, also one without any row."""
        if kind == AttributionKind.WINDOW:
            self._whole_asked = True
            return _ACCOUNT_KEY_CODE
        return self._codes.get((kind, attribution_key), _UNKNOWN_KEY_CODE)

    def totals(self, key_codes: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """Input, output and requests for each attribution key and span; UNKNOWN where a row does not have the count."""
        return self._index.sums.totals(key_codes, starts, ends)

    def due_runs(self, runs: Sequence[AttributionRun], cohorts: AccountCohorts, now: datetime) -> list[DueUsageRun]:
        """Find the runs whose time has come, and those whose count differs from their last observation."""
        spans = cohorts.spans(runs)
        key_codes = array("q", [self.key_code(run.attribution_kind, run.attribution_key) for run in runs])
        last = self._last_counts(runs, spans.starts, spans.ends)
        changed = {*find_differences(last, self.totals(key_codes, spans.starts, spans.ends))}
        moment = to_micros(now)
        return [
            DueUsageRun(
                run,
                self._cohort_span_of(
                    run,
                    cohorts,
                    _KeySpan(key_code=key_codes[index], start=spans.starts[index], end=spans.ends[index]),
                    number,
                ),
            )
            for index, (run, number) in enumerate(zip(runs, spans.cohort_numbers, strict=True))
            if index in changed or (run.next_observation_at is not None and run.next_observation_at <= moment)
        ]

    def observe(self, run: MeteredRun, fetch: Fetch, shared: CohortSpan | None = None) -> Observation:
        """Build the observation of a run: its own count, or that of the cohort it shares an attribution key with."""
        if run.attribution_key.kind is AttributionKind.REQUESTS:
            return self._observe_calls(run, fetch)
        if run.started_at is None:
            return build_failed_observation(run.id, fetch, FetchError.MALFORMED, _NO_START)
        ended_at = None if run.ended_at is None else to_micros(run.ended_at)
        alone = window_of(to_micros(run.started_at), ended_at, self._bucket)
        start, end = alone if shared is None else (shared.start, shared.end)
        if not self._covers(start, end):
            return build_failed_observation(
                run.id, fetch, FetchError.NOT_READY, self._describe_missing_window(start, end)
            )
        span = _KeySpan(
            key_code=self.key_code(run.attribution_key.kind, run.attribution_key.value), start=start, end=end
        )
        if shared is not None:
            found = self._sum_cohort(span)
            return found.to_observation(run.id, fetch, Assurance.COHORT, cohort=shared.cohort)
        rows = self._rows(span)
        found, split = self._sum_rows(rows), self._split_by_step(run, rows, end)
        if run.attribution_key.kind is AttributionKind.WINDOW:
            return found.to_observation(run.id, fetch, Assurance.COHORT, split, _window_cohort(run))
        return found.to_observation(run.id, fetch, Assurance.ATTRIBUTION_KEY, split)

    def _cohort_span_of(
        self, run: AttributionRun, cohorts: AccountCohorts, span: "_KeySpan", number: int
    ) -> CohortSpan | None:
        """The runs counted together with a run: in its attribution key, and in keys of other kinds of the same rows."""
        shared = cohorts.cohort_span(number)
        if run.attribution_kind not in ATTRIBUTABLE_KINDS or not cohorts.has_mixed_kinds:
            return shared
        more = cohorts.count_overlapping(self._other_keys(run.attribution_kind, span), span.start, span.end)
        if not more:
            return shared
        inside = Cohort(1, has_open=run.ended_at is None) if shared is None else shared.cohort
        # No sum can tie out: the same rows are counted for several attribution keys.
        return CohortSpan(span.start, span.end, Cohort(inside.runs + more, has_open=inside.has_open))

    def _other_keys(self, kind: str, span: "_KeySpan") -> frozenset[tuple[str, str]]:
        """The attribution keys of other kinds that the rows of a span have as well."""
        if span not in self._crossing:
            if len(self._crossing) >= MAX_MEMOISED_SUMS:
                self._crossing.clear()
            if len(self._named) < len(self._codes):
                self._named = [*self._codes]
            codes: set[int] = set()
            for row in self._rows(span):
                first, last = bisect_left(self._row_of, row), bisect_right(self._row_of, row)
                codes.update(self._key_codes[first:last])
            named = (self._named[code] for code in codes)
            self._crossing[span] = frozenset((other, value) for other, value in named if other != kind)
        return self._crossing[span]

    def _append(self, row: UsageRow, moment: int, *, is_claimed: bool) -> None:
        index = len(self._moments)
        if is_claimed:
            self._claimed.add(index)
        self._moments.append(moment)
        self._model_of.append(self._models.setdefault(row.model, len(self._models)))
        for column, count in zip(self._counts, astuple(row.tokens), strict=True):
            column.append(UNKNOWN if count is None else count)
        for kind, value in (
            (AttributionKind.KEY, row.key),
            (AttributionKind.PROJECT, row.project),
            (AttributionKind.SESSION, row.session),
        ):
            if value and not is_claimed:
                self._key_codes.append(self._codes.setdefault((kind, value), len(self._codes)))
                self._row_of.append(index)
        if row.request_id:
            self._by_request.setdefault(row.request_id, []).append(index)
            self._request_of[index] = row.request_id

    @property
    def _index(self) -> "_Index":
        """Rows by attribution key and moment; the whole account, a copy of every row, only where a run needs it."""
        whole = self._whole_asked
        if whole not in self._indexes:
            key_codes, rows = self._key_codes, self._row_of
            if whole:
                every = array("q", (row for row in range(len(self._moments)) if row not in self._claimed))
                key_codes, rows = key_codes + array("q", [_ACCOUNT_KEY_CODE]) * len(every), rows + every
            columns = (self._moments, *self._counts[:_COMPARED_COUNTS])
            moments, *counts = (take(column, rows, rows) for column in columns)
            self._indexes = {whole: _Index(SpanSums(key_codes, moments, counts), rows)}
        return self._indexes[whole]

    def _last_counts(self, runs: Sequence[AttributionRun], starts: Column, ends: Column) -> tuple[Column, ...]:
        """The counts of the last observations; input is UNKNOWN where they cannot be compared with the counts here."""
        inputs = [self._last_input(run, start, end) for run, start, end in zip(runs, starts, ends, strict=True)]
        outputs = [UNKNOWN if run.last_output is None else run.last_output for run in runs]
        requests = [UNKNOWN if run.last_requests is None else run.last_requests for run in runs]
        return array("q", inputs), array("q", outputs), array("q", requests)

    def _last_input(self, run: AttributionRun, start: int, end: int) -> int:
        if run.last_input is None or run.ended_at is None or run.attribution_kind == AttributionKind.REQUESTS:
            return UNKNOWN
        return run.last_input if self._covers(start, end) else UNKNOWN

    def _covers(self, start: int, end: int) -> bool:
        """Whether the counts cover a span; of a span that is open, what there is so far."""
        return self._from <= start and (end <= self._until or end >= OPEN)

    def _describe_missing_window(self, start: int, end: int) -> str:
        until = "now" if end >= OPEN else to_rfc3339(from_micros(end))
        return (
            "the run, and those that share its attribution key, need the provider's counts from "
            f"{to_rfc3339(from_micros(start))} to {until}; the request covered "
            f"{to_rfc3339(from_micros(self._from))} to {to_rfc3339(from_micros(self._until))}"
        )

    def _rows(self, span: "_KeySpan") -> list[int]:
        index = self._index
        return [index.rows[entry] for entry in index.sums.rows(span.key_code, span.start, span.end)]

    def _sum_cohort(self, span: "_KeySpan") -> "_RowTotals":
        """The sum of a span, computed once for all runs that share it."""
        if span not in self._together:
            if len(self._together) >= MAX_MEMOISED_SUMS:
                self._together.clear()
            self._together[span] = self._sum_rows(self._rows(span))
        return self._together[span]

    def _sum_rows(self, rows: Iterable[int]) -> "_RowTotals":
        several = [*rows]
        names = [*self._models]
        models = {names[self._model_of[row]] for row in several if self._uses_tokens(row)}
        return _RowTotals(
            total=self._tokens(several), models=tuple(sorted(models - {""})), by_model=self._by_model(several, names)
        )

    def _by_model(self, rows: Sequence[int], names: Sequence[str]) -> dict[str, Tokens] | None:
        """The counts of each model; None where a model without a name has a count."""
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

    def _observe_calls(self, run: MeteredRun, fetch: Fetch) -> Observation:
        """Observe a run by the ids of its calls, each of which belongs to a step."""
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
            return build_failed_observation(
                run.id, fetch, FetchError.NOT_READY, _describe_missing_calls(missing, len(run.calls))
            )
        steps = {step: self._tokens(some) for step, some in rows.items()}
        found = self._sum_rows(row for some in rows.values() for row in some)
        return found.to_observation(run.id, fetch, Assurance.REQUEST, _StepSplit(steps))

    def _split_by_step(self, run: MeteredRun, rows: Sequence[int], end: int) -> "_StepSplit":
        """The tokens of each step, where no two steps share a minute; and the tokens outside of all steps."""
        spans = spans_of(run.steps)
        if spans is None:
            return _NO_SPLIT
        belongs = self._step_by_call(run, rows)
        moments = sorted({self._moments[row] for row in rows if row not in belongs and self._is_used(row)})
        step_at = dict(steps_by_bucket(moments, spans, self._width, closed=end - _GUARD))
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
        return _StepSplit(steps, self._tokens(outside).total)

    def _is_used(self, row: int) -> bool:
        return any(column[row] > 0 for column in self._counts)

    def _step_by_call(self, run: MeteredRun, rows: Iterable[int]) -> dict[int, int]:
        """The step of each row that is a call whose id the run knows."""
        if not self._request_of:
            return {}
        steps = {call.id: number for number, step in enumerate(run.steps) for call in step.calls if call.id}
        calls = ((row, self._request_of.get(row, "")) for row in rows)
        return {row: steps[call] for row, call in calls if call in steps}


def build_failed_observation(run_id: str, fetch: Fetch, error: FetchError, detail: str) -> Observation:
    """Build the observation of a request that failed, with the reason."""
    at = fetch.at.astimezone(UTC)
    failed = Observation("", at, watermark=fetch.watermark, error=error, detail=detail, digest=fetch.digest)
    return _with_id(failed, run_id, fetch.account)


class _Index(msgspec.Struct, frozen=True):
    """Sums by attribution key and moment, and the row of each entry."""

    sums: SpanSums
    rows: Column


class _KeySpan(msgspec.Struct, frozen=True):
    """The code of an attribution key, and a span of time."""

    key_code: int
    start: int
    end: int


class _StepSplit(msgspec.Struct, frozen=True):
    """The tokens of each step, and those outside of all steps."""

    steps: dict[str, Tokens] | None = None
    """None where two steps share a minute."""
    unattributed: int = 0


_NO_SPLIT = _StepSplit()


class _RowTotals(msgspec.Struct, frozen=True):
    """The sums of some rows."""

    total: Tokens
    models: tuple[str, ...]
    by_model: dict[str, Tokens] | None

    def to_observation(
        self,
        run_id: str,
        fetch: Fetch,
        assurance: Assurance,
        split: _StepSplit = _NO_SPLIT,
        cohort: Cohort | None = None,
    ) -> Observation:
        """Build the observation that found these sums."""
        found = Observation(
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
        return _with_id(found, run_id, fetch.account)


def _window_cohort(run: MeteredRun) -> Cohort:
    """The cohort of a run attributed by time alone: only its own count can show that it was alone in its account."""
    local = None if run.ended_at is None else run.local
    return Cohort(1, None if local is None else Tokens(local.input, local.output, local.requests))


_NO_START = "the run has no start time, so no minute is known to be its own; record `started_at`"


def _with_id(observation: Observation, run_id: str, account: str) -> Observation:
    """Give an observation the digest of its content as its id, so that recording it twice records it once."""
    content = digest([account, run_id, observation.to_json().decode()])
    return replace(observation, id=content[:ID_LENGTH])


def _describe_missing_calls(missing: Sequence[str], calls: int) -> str:
    named = [one for one in missing if one][:MAX_NAMED_CALLS]
    unnamed = sum(not one for one in missing)
    examples = f", such as {', '.join(named)}" if named else ""
    without = (
        f"; {unnamed:,} were recorded without the provider's id of the call and cannot be found" if unnamed else ""
    )
    return f"the provider has no record yet of {len(missing):,} of {calls:,} calls{examples}{without}"
