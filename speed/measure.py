"""How a ratio is measured: both sides alternate, and the best block of each counts."""

import gc
import time
from collections.abc import Callable
from typing import NamedTuple

MIN_BLOCK_S = 0.01
"""A block of calls lasts at least this long, so that the clock's grain does not show."""


class Row(NamedTuple):
    """One line of the report."""

    name: str
    ours_us: float
    baseline_us: float
    baseline: str
    target: float | None
    remark: str = ""
    """Whatever else was seen: latencies, sizes."""

    @property
    def ratio(self) -> float:
        return self.baseline_us / self.ours_us


def interleaved(
    ours: Callable[[], object], baseline: Callable[[], object], *, seconds: float = 1.0
) -> tuple[float, float]:
    """The best per-call CPU time of each in microseconds, blocks of one alternating with blocks of the other."""
    sides = (ours, baseline)
    calls = [_calls_for(side, MIN_BLOCK_S) for side in sides]
    best = [float("inf"), float("inf")]
    stop = time.perf_counter() + seconds
    collecting = gc.isenabled()
    gc.disable()
    try:
        while time.perf_counter() < stop or float("inf") in best:
            for number, side in enumerate(sides):
                best[number] = min(best[number], _block_us(side, calls[number]))
            gc.collect(0)
    finally:
        if collecting:
            gc.enable()
    return best[0], best[1]


def _block_us(side: Callable[[], object], calls: int) -> float:
    start = time.process_time_ns()
    for _ in range(calls):
        side()
    return (time.process_time_ns() - start) / calls / 1_000


def _calls_for(side: Callable[[], object], seconds: float) -> int:
    calls = 1
    while calls < 1_000_000:
        start = time.perf_counter()
        for _ in range(calls):
            side()
        if time.perf_counter() - start >= seconds:
            return calls
        calls *= 2
    return calls
