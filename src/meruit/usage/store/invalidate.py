"""Make the runs due again that a provider counts together with a run that was recorded or changed."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple

import msgspec

from meruit.model.metering import NAMED, AttributionKind, MeteredRun
from meruit.model.time import from_micros, to_micros
from meruit.store.transaction import WriteTransaction
from meruit.usage.store.rows import RUN_ROWS, save

_MICROSECOND = timedelta(microseconds=1)
NEAR = timedelta(minutes=5) // _MICROSECOND
"""Time before and after a run in which a provider may count its tokens."""
LONGEST = timedelta(days=8) // _MICROSECOND
"""A longer run is never verified, because no request covers so many days."""
OPEN = 2**62
"""The end of a span that has not ended."""


class _AccountKey(NamedTuple):
    account: str
    kind: str
    value: str = ""


class _TimeSpan(NamedTuple):
    """A span in microseconds, both ends included."""

    start: int
    end: int


def invalidate_cohorts(writing: WriteTransaction, tenants: Sequence[str], runs: Iterable[MeteredRun]) -> None:
    """Make observed runs of these tenants due now that are counted together with one of the runs.

    What a tenant records changes nothing for others, unless the operator says that they share the account. A run
    without an observation keeps its time: it has no status that could be wrong.
    """
    by_key: dict[_AccountKey, list[_TimeSpan]] = {}
    for run in runs:
        span = _span(run)
        if span is not None:
            for attribution_key in _keys_of(run):
                by_key.setdefault(attribution_key, []).append(span)
    for attribution_key, spans in by_key.items():
        merged = _merge(spans)
        for tenant in tenants:
            _invalidate_key(writing, tenant, attribution_key, merged)


def _invalidate_key(
    writing: WriteTransaction, tenant: str, attribution_key: _AccountKey, spans: list[_TimeSpan]
) -> None:
    """Query once for all spans of an attribution key, then compare each run with the spans."""
    first, last = spans[0].start - NEAR, spans[-1].end + NEAR
    starts = [one.start for one in spans]
    # Also runs that are due: a reconciler may be observing them without knowing of the new runs.
    for run_id, start, end in writing.fetch(_OBSERVED_RUNS, tenant, *attribution_key, first, last + LONGEST, last):
        place = bisect_right(starts, end + NEAR) - 1
        if place >= 0 and spans[place].end >= start - NEAR:
            _make_due(writing, tenant, run_id)


def _make_due(writing: WriteTransaction, tenant: str, run_id: str) -> None:
    now, known = writing.now.micros, RUN_ROWS.get(writing, tenant, run_id)
    if known is None:
        writing.rewrite(_MAKE_DUE, now, tenant, run_id)
    else:
        # Later writes of this group continue from the state that is remembered.
        record = msgspec.structs.replace(known.record, next_observation_at=from_micros(now), waits="")
        save(writing, tenant, msgspec.structs.replace(known, record=record))


def _keys_of(run: MeteredRun) -> Iterable[_AccountKey]:
    """The attribution keys in which the run is counted: its own, and `window`, which covers the whole account."""
    yield _AccountKey(run.source, AttributionKind.WINDOW.value)
    if run.attribution_key.kind in NAMED:
        yield _AccountKey(run.source, run.attribution_key.kind.value, run.attribution_key.value)


def _span(run: MeteredRun) -> _TimeSpan | None:
    """The time in which the run used tokens; None where it has no times."""
    known = run.ended_at if run.started_at is None else run.started_at
    if known is None:
        return None
    return _TimeSpan(to_micros(known), OPEN if run.ended_at is None else to_micros(run.ended_at))


def _merge(spans: Iterable[_TimeSpan]) -> list[_TimeSpan]:
    """Sort the spans, and merge those that touch."""
    found: list[_TimeSpan] = []
    for one in sorted(spans):
        if found and one.start <= found[-1].end:
            found[-1] = _TimeSpan(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


_OBSERVED_RUNS = (
    "SELECT id, COALESCE(started_at, ended_at), ended_at FROM usage_runs "
    "WHERE tenant = ? AND account = ? AND attribution_kind = ? AND attribution_key = ? "
    "AND ended_at >= ? AND ended_at <= ? AND COALESCE(started_at, ended_at) <= ? AND observations > 0"
)
_MAKE_DUE = "UPDATE usage_runs SET next_observation_at = ?, waiting_for = '' WHERE tenant = ? AND id = ?"
