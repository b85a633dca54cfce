"""How often intervals of evaluations hold the truth, and equal ones are called different.

`python -m speed.evaluation_coverage [WORLDS]` prints the tables of docs/evaluations.md.
"""

import sys
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from meruit.evaluations.compare import compare_evaluations
from meruit.evaluations.evaluation import CaseSummary
from meruit.evaluations.summary import SummaryBuilder
from meruit.model.task_run import ConfidenceInterval
from meruit.model.verdict import Verdict

WORLDS = 2_000
SIZES = (50, 200, 2_000)
GROUP = 5
"""Cases of a group, where there are groups."""
ALIKE = 3.0
"""How alike the cases of a group are: a smaller number is more alike. The correlation is 1 / (1 + ALIKE)."""


class Coverage(NamedTuple):
    """What a number of worlds showed."""

    held: float
    """The share of intervals that hold the truth, of those that there are."""
    alarms: float
    """The share of worlds in which a difference is called significant."""
    missing: float
    """The share of worlds without an interval."""


Ends = list[bool]


def draw(chance: Random, cases: int, rate: float, *, grouped: bool) -> Ends:
    """Whether each case passes; those of a group share a rate of their own."""
    if not grouped:
        return [chance.random() < rate for _ in range(cases)]
    found: Ends = []
    while len(found) < cases:
        own = chance.betavariate(ALIKE * rate, ALIKE * (1 - rate))
        found += [chance.random() < own for _ in range(min(GROUP, cases - len(found)))]
    return found


def draw_pair(chance: Random, cases: int, rate: float, lead: float, *, grouped: bool) -> tuple[Ends, Ends]:
    """Two evaluations of the same cases; both find the same cases easy, and the second is better by `lead`."""
    before: Ends = []
    after: Ends = []
    own = shift = 0.0
    for number in range(cases):
        if not grouped or number % GROUP == 0:
            # Room for the lead above every rate, so that the true difference is the lead itself.
            own = (1 - lead) * chance.betavariate(ALIKE * rate, ALIKE * (1 - rate))
            # What a group's cases share is also how they differ between the two.
            room = min(own, 1 - lead - own)
            shift = chance.uniform(-room, room) / 2 if grouped else 0.0
        before.append(chance.random() < own)
        after.append(chance.random() < own + shift + lead)
    return before, after


def to_cases(ends: Ends, *, grouped: bool) -> list[CaseSummary]:
    return [
        CaseSummary(
            str(number),
            0,
            number,
            str(number),
            1,
            Verdict.PASS if end else Verdict.FAIL,
            end,
            float(end),
            "m" if end else "n",
            str(number // GROUP) if grouped else None,
        )
        for number, end in enumerate(ends)
    ]


def measure_rate(chance: Random, cases: int, rate: float, *, grouped: bool) -> ConfidenceInterval | None:
    """The interval of a pass rate in one world."""
    builder = SummaryBuilder(("one",), clustered=grouped)
    for one in to_cases(draw(chance, cases, rate, grouped=grouped), grouped=grouped):
        builder.add(one)
    return builder.overall().interval


def repeat_rate(cases: int, rate: float, *, grouped: bool, worlds: int, seed: int = 8) -> Coverage:
    """Coverage of the interval of a pass rate."""
    chance = Random(seed)
    found = [measure_rate(chance, cases, rate, grouped=grouped) for _ in range(worlds)]
    return _coverage([(one, False) for one in found], rate)


def repeat_difference(cases: int, rate: float, lead: float, *, grouped: bool, worlds: int, seed: int = 8) -> Coverage:
    """Coverage of the interval of a difference, and how often it is called significant."""
    chance = Random(seed)
    found = []
    for _ in range(worlds):
        before, after = draw_pair(chance, cases, rate, lead, grouped=grouped)
        compared = compare_evaluations(
            ("a", to_cases(before, grouped=grouped), ("one",)), ("b", to_cases(after, grouped=grouped), ("one",))
        ).overall
        found.append((compared.interval, compared.is_significant))
    return _coverage(found, lead)


def _coverage(found: list[tuple[ConfidenceInterval | None, bool]], truth: float) -> Coverage:
    intervals = [interval for interval, _ in found if interval is not None]
    held = sum(one.low <= truth <= one.high for one in intervals)
    alarms = sum(alarm for _, alarm in found)
    return Coverage(held / max(1, len(intervals)), alarms / len(found), 1 - len(intervals) / len(found))


def tables(worlds: int) -> Iterator[str]:
    """The lines of the two tables."""
    yield "| pass rate | cases | alone | in groups of 5 |"
    yield "|---|---|---|---|"
    for rate in (0.5, 0.9, 0.98):
        for cases in SIZES:
            few = _fewer(worlds, cases)
            alone = repeat_rate(cases, rate, grouped=False, worlds=few)
            shared = repeat_rate(cases, rate, grouped=True, worlds=few)
            yield f"| {rate:.0%} | {cases:,} | {alone.held:.1%} | {shared.held:.1%}{_missing(shared)} |"
    yield ""
    yield "| pass rate | cases | groups | false alarms | interval holds 0 | interval holds +5 points |"
    yield "|---|---|---|---|---|---|"
    for rate in (0.5, 0.9):
        for grouped in (False, True):
            for cases in SIZES:
                few = _fewer(worlds, cases)
                equal = repeat_difference(cases, rate, 0.0, grouped=grouped, worlds=few)
                apart = repeat_difference(cases, rate, 0.05, grouped=grouped, worlds=few)
                yield (
                    f"| {rate:.0%} | {cases:,} | {'of 5' if grouped else 'none'} | {equal.alarms:.1%} | "
                    f"{equal.held:.1%}{_missing(equal)} | {apart.held:.1%}{_missing(apart)} |"
                )


def _fewer(worlds: int, cases: int) -> int:
    return worlds if cases < SIZES[-1] else max(1, worlds // 4)


def _missing(one: Coverage) -> str:
    return f" ({one.missing:.1%} without one)" if one.missing else ""


def main(worlds: int, write: Callable[[str], object] = print) -> None:
    for line in tables(worlds):
        write(line)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else WORLDS)
