"""Whose tokens are whose, for a million runs of a day: by columns, against a plain loop over the runs.

The loop is what a careful person writes first: rows by attribution key and minute in a dict; for each run the sum of
its minutes and whether another run with its attribution key overlaps. It finds direct neighbours only; ours also joins
runs that overlap through others.
"""

import sys
import time
from array import array
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from meruit.model.metering import AttributionKind, UsageRow
from meruit.model.time import to_micros
from meruit.model.usage import Tokens
from meruit.usage.attribution.cohorts import GUARD, AccountCohorts
from meruit.usage.attribution.columns import Column, group_spans, take, windows
from meruit.usage.attribution.project import ProviderCounts
from meruit.usage.attribution.run import AttributionRun
from speed.measure import Row

RUNS = 1_000_000
SIZES = (100_000, 1_000_000)
SAMPLE = 20_000
"""Runs that the loop is timed on; it reads the same indexes as for all of them."""
RUNS_A_LANE = 200
"""About as many runs of five minutes as an attribution key can have in a day, one after the other."""
DUE_EVERY = 100
TRIES = 3
BLOCK = 10_000
_DAY = datetime(2026, 7, 1, tzinfo=UTC)
_FIRST = to_micros(_DAY)
_SECOND = 1_000_000
_MINUTE = 60 * _SECOND
_GUARD = GUARD // timedelta(microseconds=1)
_MINUTES_A_DAY = 1_440
_LONGEST_S = 300
_LOOP = "a plain loop over runs, rows and neighbours"
T = TypeVar("T")


class Run(NamedTuple):
    """As the loop knows it, in microseconds; a run of the day's attribution key number so and so."""

    attribution_key: int
    start: int
    end: int
    tokens: int


def runs_of_a_day(count: int) -> Iterator[Run]:
    """The same ones each time; every one has used something in its first minute."""
    chance = Random(8)
    attribution_keys = count // RUNS_A_LANE
    for number in range(count):
        start = _FIRST + int(chance.random() * _MINUTES_A_DAY * _MINUTE)
        yield Run(number % attribution_keys, start, start + int(chance.random() * _LONGEST_S * _SECOND), number % 1_000)


def rows_of_a_day(count: int) -> Iterator[UsageRow]:
    """What the provider counts for these runs, as on its pages."""
    minutes = [_DAY + timedelta(minutes=number) for number in range(_MINUTES_A_DAY)]
    for run in runs_of_a_day(count):
        minute = minutes[(run.start - _FIRST) // _MINUTE]
        yield UsageRow(minute, minute, Tokens(run.tokens, 1, 1), "model", f"key_{run.attribution_key}")


def counted(count: int) -> ProviderCounts:
    found = ProviderCounts(timedelta(minutes=1))
    found.add(rows_of_a_day(count))
    return found


def light_blocks(count: int, last: tuple[Column, ...]) -> Iterator[list[AttributionRun]]:
    """As a store streams them: looked at before, with as much counted as now; the time of a few has come."""
    block: list[AttributionRun] = []
    for number, (run, *seen) in enumerate(zip(runs_of_a_day(count), *last, strict=True)):
        due = None if number % DUE_EVERY else _FIRST
        key = f"key_{run.attribution_key}"
        row = (f"run_{number}", number, "key", key, run.start, run.end, run.tokens, 1, 1, *seen, due, "pending")
        block.append(AttributionRun._make(row))
        if len(block) == BLOCK:
            yield block
            block = []


def rows() -> Iterator[Row]:
    yield from _in_memory()


def _in_memory() -> Iterator[Row]:
    """Neighbours and totals, from columns to columns; and from the light rows that a store streams."""
    provider, runs = counted(RUNS), [*runs_of_a_day(RUNS)]
    columns = _columns(provider, runs)
    loop = _Loop(runs)
    best = dict.fromkeys(("columns", "light", "loop"), float("inf"))
    for _ in range(TRIES):
        took, ours = _each_us(lambda: _projected(provider, *columns), RUNS)
        best["columns"] = min(best["columns"], took)
        took, looped = _each_us(lambda: [loop.total(run) for run in runs[:SAMPLE]], SAMPLE)
        best["loop"] = min(best["loop"], took)
        alone = [place for place, (sharing, _) in enumerate(looped) if sharing == 1]
        assert alone
        assert all((ours[0][place], ours[1][place]) == looped[place][1] for place in alone)
    blocks = [*light_blocks(RUNS, _projected(provider, *columns))]
    best["light"], due = _each_us(lambda: _passed(provider, blocks, blocks), RUNS)
    assert due == RUNS // DUE_EVERY
    said = f"loop on {SAMPLE:,} of them"
    yield Row(f"usage, {RUNS:,} runs projected, each", best["columns"], best["loop"], _LOOP, 50, said)
    yield Row(f"usage, {RUNS:,} light rows passed, each", best["light"], best["loop"], _LOOP, None)


def growth() -> Iterator[tuple[str, int, float]]:
    """Light rows made and passed twice, as streamed; each size in its own process, to measure its memory."""
    for size in SIZES:
        with ProcessPoolExecutor(1, get_context("spawn")) as alone:
            took_ms, more_mb = alone.submit(_streamed, size).result()
        print(f"  {size:,} runs: {more_mb:.0f} MB more at the highest, beside what was counted", file=sys.stderr)
        yield "usage, runs passed", size, took_ms


def _streamed(size: int) -> tuple[float, float]:
    provider = counted(size)
    last = _projected(provider, *_columns(provider, runs_of_a_day(size)))
    # The highest since now, on Linux.
    Path("/proc/self/clear_refs").write_text("5")
    before = _highest_mb()
    took_us, _ = _each_us(lambda: _passed(provider, light_blocks(size, last), light_blocks(size, last)), 1)
    return took_us / 1e3, _highest_mb() - before


def _highest_mb() -> float:
    said = Path("/proc/self/status").read_text()
    return int(said.partition("VmHWM:")[2].split()[0]) / 1_024


def _passed(
    provider: ProviderCounts, told: Iterable[list[AttributionRun]], asked: Iterable[list[AttributionRun]]
) -> int:
    """All runs added as neighbours, then projected; how many must be looked at."""
    neighbours = AccountCohorts(timedelta(minutes=1))
    for block in told:
        neighbours.add(block)
    return sum(len(provider.due_runs(block, neighbours, _DAY)) for block in asked)


def _columns(provider: ProviderCounts, runs: Iterable[Run]) -> tuple[Column, Column, Column]:
    attribution_keys, starts, ends = array("q"), array("q"), array("q")
    for run in runs:
        attribution_keys.append(provider.key_code(AttributionKind.KEY, f"key_{run.attribution_key}"))
        starts.append(run.start)
        ends.append(run.end)
    return attribution_keys, starts, ends


def _projected(provider: ProviderCounts, attribution_keys: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
    begun, ended = windows(starts, ends, _MINUTE, _GUARD)
    groups = group_spans(attribution_keys, begun, ended, [])
    first, last = take(groups.starts, groups.members, begun), take(groups.ends, groups.members, ended)
    return provider.totals(attribution_keys, first, last)


class _Loop:
    """Run after run."""

    def __init__(self, runs: list[Run]) -> None:
        self._rows: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        self._windows: dict[int, list[tuple[int, int]]] = {}
        for run in runs:
            self._rows.setdefault((run.attribution_key, run.start // _MINUTE), []).append((run.tokens, 1, 1))
            self._windows.setdefault(run.attribution_key, []).append(_window(run))

    def total(self, run: Run) -> tuple[int, tuple[int, int]]:
        """How many runs use its minutes, itself included, and what was counted in them."""
        start, end = _window(run)
        sharing = 0
        for begun, ended in self._windows[run.attribution_key]:
            if begun < end and start < ended:
                sharing += 1
        put_in = put_out = 0
        for minute in range(start // _MINUTE, end // _MINUTE):
            for tokens in self._rows.get((run.attribution_key, minute), ()):
                put_in += tokens[0]
                put_out += tokens[1]
        return sharing, (put_in, put_out)


def _window(run: Run) -> tuple[int, int]:
    return run.start - run.start % _MINUTE, -(-run.end // _MINUTE) * _MINUTE + _GUARD


def _each_us(what: Callable[[], T], times: int) -> tuple[float, T]:
    start = time.process_time_ns()
    found = what()
    return (time.process_time_ns() - start) / 1e3 / times, found
