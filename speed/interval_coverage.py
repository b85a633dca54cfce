"""How often the intervals of a report hold the truth: `python -m speed.interval_coverage [WORLDS]`."""

import math
import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import bootstrap_totals, mean_of, ratio_interval, share_interval, wilson

WORLDS = 2_000
"""Simulated of each kind; the bootstrap, which is slow, gets a fifth."""


class Setting(NamedTuple):
    """One kind of world, and the interval that is asked of it."""

    name: str
    sizes: str
    ask: Callable[[Random], tuple[ConfidenceInterval | None, float]]
    """The interval of one world, and the truth."""
    slow: bool = False


def success_difference(tasks: int, repeats: int) -> Callable[[Random], tuple[ConfidenceInterval | None, float]]:
    """Tasks of every difficulty; one agent is better by a tenth on average, and not on every task."""

    def ask(chance: Random) -> tuple[ConfidenceInterval | None, float]:
        differences = []
        for _ in range(tasks):
            # Between 0.2 and 0.8, so that neither agent leaves the range in which a difference of 0.1 is possible.
            middle, apart = chance.uniform(0.2, 0.8), chance.uniform(-0.2, 0.4)
            ours, theirs = (min(1.0, max(0.0, middle + sign * apart / 2)) for sign in (1, -1))
            differences.append((passes(chance, ours, repeats) - passes(chance, theirs, repeats)) / repeats)
        return mean_of(differences).interval, 0.1

    return ask


def passes(chance: Random, rate: float, repeats: int) -> int:
    return sum(chance.random() < rate for _ in range(repeats))


def cost_ratio(tasks: int, repeats: int) -> Callable[[Random], tuple[ConfidenceInterval | None, float]]:
    """Costs that differ hundredfold between tasks and by a third between repeats; one agent costs 1.5 times as much."""

    def ask(chance: Random) -> tuple[ConfidenceInterval | None, float]:
        logs = []
        for _ in range(tasks):
            size, factor = chance.gauss(0, 1.2), chance.gauss(math.log(1.5), 0.3)
            ours = math.fsum(math.exp(size + factor + chance.gauss(0, 0.3)) for _ in range(repeats)) / repeats
            theirs = math.fsum(math.exp(size + chance.gauss(0, 0.3)) for _ in range(repeats)) / repeats
            logs.append(math.log(ours) - math.log(theirs))
        return mean_of(logs).interval, math.log(1.5)

    return ask


def total_ratio(tasks: int) -> Callable[[Random], tuple[ConfidenceInterval | None, float]]:
    """The same costs, by their totals; the truth is the ratio of expectations."""

    def ask(chance: Random) -> tuple[ConfidenceInterval | None, float]:
        ours, theirs = [], []
        for _ in range(tasks):
            size, factor = chance.gauss(0, 0.8), chance.gauss(math.log(1.5), 0.3)
            ours.append(math.exp(size + factor + chance.gauss(0, 0.3)))
            theirs.append(math.exp(size + chance.gauss(0, 0.3)))
        return ratio_interval(*bootstrap_totals([ours, theirs])), 1.5 * math.exp(0.3**2 / 2)

    return ask


def share(tasks: int, repeats: int, *, even: bool) -> Callable[[Random], tuple[ConfidenceInterval | None, float]]:
    """Success over all runs: tasks of every difficulty, or nearly all easy ones."""

    def ask(chance: Random) -> tuple[ConfidenceInterval | None, float]:
        rates = [chance.random() if even else chance.betavariate(9, 1) for _ in range(tasks)]
        groups = [[float(chance.random() < rate) for _ in range(repeats)] for rate in rates]
        return share_interval(groups), 0.5 if even else 0.9

    return ask


def naive_share(tasks: int, repeats: int) -> Callable[[Random], tuple[ConfidenceInterval | None, float]]:
    """What Wilson's interval says when repeats are taken for independent runs, which we do not do."""

    def ask(chance: Random) -> tuple[ConfidenceInterval | None, float]:
        rates = [chance.random() for _ in range(tasks)]
        met = sum(passes(chance, rate, repeats) for rate in rates)
        return wilson(met / (tasks * repeats), tasks * repeats), 0.5

    return ask


SETTINGS = (
    *(
        Setting("difference of success", f"{tasks} × {repeats}", success_difference(tasks, repeats))
        for tasks, repeats in ((5, 5), (10, 5), (20, 5), (50, 5), (200, 3))
    ),
    *(
        Setting("ratio of costs", f"{tasks} × {repeats}", cost_ratio(tasks, repeats))
        for tasks, repeats in ((5, 3), (20, 3), (50, 3))
    ),
    *(Setting("ratio of total costs", f"{tasks} × 1", total_ratio(tasks), slow=True) for tasks in (30, 100)),
    *(
        Setting("success, every difficulty", f"{tasks} × {repeats}", share(tasks, repeats, even=True))
        for tasks, repeats in ((30, 1), (10, 5), (50, 5))
    ),
    *(
        Setting("success, mostly easy", f"{tasks} × {repeats}", share(tasks, repeats, even=False))
        for tasks, repeats in ((30, 1), (10, 5), (50, 5))
    ),
    Setting("success, repeats as if independent (not done)", "10 × 20", naive_share(10, 20)),
    Setting("success, every difficulty", "10 × 20", share(10, 20, even=True)),
)


def rows(worlds: int) -> Iterator[str]:
    """The table, line by line."""
    yield "| interval | tasks × repeats | worlds | holds the truth |"
    yield "|---|---|---|---|"
    for one in SETTINGS:
        number = worlds // 5 if one.slow else worlds
        chance = Random(8)
        asked = [one.ask(chance) for _ in range(number)]
        held = sum(interval is not None and interval.low <= truth <= interval.high for interval, truth in asked)
        yield f"| {one.name} | {one.sizes} | {number:,} | {100 * held / number:.1f} % |"


if __name__ == "__main__":
    for line in rows(int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS):
        print(line, flush=True)
