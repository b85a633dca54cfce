"""Rounds of the reconciler through the store: every run of a day is due, looked at twice, and verified.

The provider answers from memory, so what is measured is ours: reading runs, separating neighbours, deciding, and
writing each observation with its entry in the audit log. `python -m speed.reconcile 1000000` asks for any size.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

from meruit.model.metering import (
    AttributionKey,
    AttributionKind,
    MeteredCall,
    MeteredRun,
    MeteredStep,
    Page,
    UsageRow,
    Window,
)
from meruit.model.usage import Tokens, UsageStatus
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store
from meruit.usage.reconcile.reconciler import Account, Reconciler
from meruit.usage.store.due import UsageRunFilter
from meruit.usage.store.record_runs import RecordRuns
from speed.measure import Row

SIZES = (10_000, 100_000)
ALONE = 100
"""Runs that are also asked for one by one."""
RUNS_A_LANE = 200
"""In a day, one after the other."""
BLOCK, PAGE = 1_000, 10_000
_DAY = datetime(2026, 7, 1, tzinfo=UTC)
_MINUTE = timedelta(minutes=1)
_APART = timedelta(days=1) / RUNS_A_LANE


class Taken(NamedTuple):
    """How long each part took, of the processor, and the most memory that the process ever had."""

    recorded_s: float
    rounds_s: list[float]
    alone_s: float
    highest_mb: float


class Clock:
    """The time that it is said to be."""

    def __init__(self) -> None:
        self.now = _DAY + timedelta(days=1, hours=1)

    def __call__(self) -> datetime:
        return self.now


class Provider:
    """Counts what the runs of the day used, by key and minute."""

    kinds = frozenset({AttributionKind.KEY})
    bucket = _MINUTE
    longest = timedelta(days=31)

    def __init__(self, runs: int, clock: Clock) -> None:
        self._runs, self._clock = runs, clock

    async def usage(self, window: Window) -> AsyncIterator[Page]:
        rows = (_counted(number) for number in range(self._runs))
        inside = (row for row in rows if window.start <= row.start < window.end)
        while some := tuple(islice(inside, PAGE)):
            yield Page(self._clock(), some)

    async def calls(self, _ids: Sequence[str]) -> AsyncIterator[Page]:
        # It knows minutes, and no calls.
        yield Page(self._clock())

    async def costs(self, window: Window) -> AsyncIterator[Page]:
        yield Page(min(self._clock(), window.end))


def rows() -> Iterator[Row]:
    taken = _taken(SIZES[0])
    each, alone = min(taken.rounds_s) / SIZES[0] * 1e6, taken.alone_s / ALONE * 1e6
    remark = f"{1e6 / each:,.0f} looks kept a second"
    yield Row(f"reconcile, {SIZES[0]:,} runs in a round, each", each, alone, "a round for each run", 50, remark)


def growth() -> Iterator[tuple[str, int, float]]:
    for size in SIZES:
        taken = _taken(size)
        print(f"  {_said(size, taken)}", file=sys.stderr)
        yield "reconcile, runs in a round", size, min(taken.rounds_s) * 1e3


def _taken(size: int) -> Taken:
    """In a process of its own, so that its memory is measured."""
    with ProcessPoolExecutor(1, get_context("spawn")) as alone:
        return alone.submit(_reconciled, size).result()


def _reconciled(size: int) -> Taken:
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)), ClockAndEntropy(clock=clock))
        try:
            start = time.process_time()
            numbers = iter(range(size))
            while some := [*islice(numbers, BLOCK)]:
                store.recorder.write(RecordRuns("acme", "bench", [_run(number) for number in some]))
            recorded = time.process_time() - start
            reconciler = Reconciler(store, {"openai": Account("openai", "openai", Provider(size, clock))})
            rounds = []
            for status in (UsageStatus.PENDING, UsageStatus.VERIFIED):
                start = time.process_time()
                passed = asyncio.run(reconciler.run_once())
                rounds.append(time.process_time() - start)
                assert passed.statuses == {status: size}, passed.statuses
                clock.now += timedelta(minutes=61)
            start = time.process_time()
            for number in range(ALONE if size == SIZES[0] else 0):
                asyncio.run(reconciler.run_once(UsageRunFilter("acme", run_id=f"run-{number}")))
            return Taken(recorded, rounds, time.process_time() - start, _highest_mb())
        finally:
            store.close()


def _run(number: int) -> MeteredRun:
    start = _started(number)
    call = MeteredCall(start, "model", _tokens(number))
    step = MeteredStep("only", start, start + _MINUTE, True, None, (call,))
    attribution_key = AttributionKey(AttributionKind.KEY, _key(number))
    return MeteredRun(f"run-{number}", "agent", "openai", attribution_key, start, start + _MINUTE, (step,))


def _counted(number: int) -> UsageRow:
    start = _started(number)
    return UsageRow(start, start + _MINUTE, _tokens(number), "model", _key(number))


def _started(number: int) -> datetime:
    # On the minute, as the provider counts.
    return _DAY + (number % RUNS_A_LANE) * _APART // _MINUTE * _MINUTE


def _tokens(number: int) -> Tokens:
    return Tokens(number % 1_000 + 1, 1, 1, 0, 0)


def _key(number: int) -> str:
    return f"key-{number // RUNS_A_LANE}"


def _highest_mb() -> float:
    return int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0]) / 1_024


def _said(size: int, taken: Taken) -> str:
    first, second = taken.rounds_s
    return (
        f"{size:,} runs: recorded in {taken.recorded_s:.1f} s, looked at in {first:.1f} s, "
        f"verified in {second:.1f} s of the processor; {taken.highest_mb:.0f} MB at the highest"
    )


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        print(_said(int(argument), _taken(int(argument))), flush=True)
