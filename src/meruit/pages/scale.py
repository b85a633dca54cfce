"""From values to positions, and the round numbers to mark on the way."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

MOST_TICKS = 6


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to positions between two edges."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """The position of a value; beyond the edges, the edge."""
        part = (value - self.low) / (self.high - self.low)
        return self.start + min(1.0, max(0.0, part)) * (self.end - self.start)


def span_decades(values: Sequence[float]) -> tuple[float, float]:
    """The range of positive values as powers of ten, with a margin."""
    low, high = math.log10(min(values)), math.log10(max(values))
    room = max(0.15, (high - low) * 0.12)
    return low - room, high + room


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten at 1, 2 and 5, fewer where they would be too close."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [math.log10(step) + power for power in powers for step in (1, 2, 5)]
    shown = [one for one in fine if low <= one <= high]
    if len(shown) > MOST_TICKS:
        shown = [one for one in map(float, powers) if low <= one <= high]
    return shown[:: math.ceil(len(shown) / MOST_TICKS) or 1]


def round_up(value: float) -> float:
    """The next round number."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if step * power >= value)


def difference_tick(most: float) -> float:
    """The largest round number up to `most`, which is marked on either side of zero."""
    power = 10.0 ** math.floor(math.log10(most))
    return max(step * power for step in (1, 2, 2.5, 5) if step * power <= most)


def ratio_tick(most: float) -> float:
    """The logarithm of the largest round factor up to exp(most), which is marked on either side of one."""
    easy = (1.01, 1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 100, 1e3, 1e6, 1e9)
    fit = [math.log(one) for one in easy if math.log(one) <= most]
    return fit[-1] if fit else most
