"""How often intervals of judged pass rates hold the truth: raw, corrected by labels, and by the judge's error.

`python -m speed.label_coverage [WORLDS]` prints the tables of docs/review.md; `few [WORLDS]` only that of few labels.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import numpy as np

from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import wilson
from meruit.review.corrected import CorrectedMean, RatedCase, Target, correct_difference, correct_rate
from meruit.review.rogan_gladen import correct_by_error_rates

WORLDS = 400
CASES = 2_000
SHARES = (0.01, 0.05, 0.20)
ERRORS = ((0.05, 0.05), (0.15, 0.15), (0.30, 0.30), (0.05, 0.30))
"""The judge's false negatives and false positives."""
RATES = (0.05, 0.5, 0.95)
FEW_LABELS = (50, 75, 99)
ALIKE = 3.0
"""How alike the cases of a group are; the correlation is 1 / (1 + ALIKE)."""


class World(NamedTuple):
    """Cases with the truth, the judge's answers, and the labels that were drawn."""

    cases: list[RatedCase]
    truth: float
    """The share of these cases that are met."""


class LabelCoverage(NamedTuple):
    """The share of worlds in which each interval holds the truth."""

    raw: float
    corrected: float
    by_error: float
    """Rogan and Gladen's, of the worlds in which it is not refused."""
    refused: float
    width: float
    """Of the corrected interval, on average."""


def draw_world(
    chance: Random, cases: int, labels: int, rate: float, errors: tuple[float, float], group: int = 1
) -> World:
    """A judge with these errors over so many cases; those of a group share a rate of their own."""
    truths: list[bool] = []
    while len(truths) < cases:
        own = rate if group == 1 else chance.betavariate(ALIKE * rate, ALIKE * (1 - rate))
        truths += [chance.random() < own for _ in range(min(group, cases - len(truths)))]
    drawn = {*chance.sample(range(cases), labels)}
    missed, invented = errors
    found = [
        RatedCase(
            float(chance.random() >= missed if truth else chance.random() < invented),
            float(truth) if place in drawn else None,
            labels / cases,
            group=str(place // group) if group > 1 else "",
        )
        for place, truth in enumerate(truths)
    ]
    return World(found, sum(truths) / cases)


def repeat_rate(
    rate: float,
    errors: tuple[float, float],
    labels: int,
    *,
    worlds: int,
    target: Target = Target.THESE,
    cases: int = CASES,
    group: int = 1,
    seed: int = 8,
) -> LabelCoverage:
    """Coverage of the three intervals in so many worlds."""
    chance = Random(seed)
    raw = corrected = by_error = refused = 0
    width = 0.0
    for _ in range(worlds):
        world = draw_world(chance, cases, labels, rate, errors, group)
        truth = world.truth if target is Target.THESE else rate
        met = round(sum(case.judged for case in world.cases))
        raw += _holds(wilson(met / cases, cases), truth)
        interval = correct_rate(world.cases, target).interval
        corrected += _holds(interval, truth)
        width += 0.0 if interval is None else interval.high - interval.low
        by_rates = _correct_by_error_rates(world, met)
        refused += by_rates is None
        # Its interval allows for chance in the cases: it is about cases like these.
        by_error += by_rates is not None and _holds(by_rates, rate)
    return LabelCoverage(
        raw / worlds, corrected / worlds, by_error / max(1, worlds - refused), refused / worlds, width / worlds
    )


def repeat_equal(
    rate: float,
    errors: tuple[float, float],
    other_errors: tuple[float, float],
    labels: int,
    *,
    worlds: int,
    cases: int = 600,
    seed: int = 8,
) -> tuple[float, float]:
    """How often two equally good agents are called different: by the raw difference, and by the corrected one."""
    chance = Random(seed)
    raw = corrected = 0
    for _ in range(worlds):
        first = draw_world(chance, cases, labels, rate, errors)
        second = draw_world(chance, cases, labels, rate, other_errors)
        pairs = [
            RatedCase(
                b.judged - a.judged,
                None if a.truth is None or b.truth is None else b.truth - a.truth,
                labels / cases,
            )
            for a, b in zip(_labelled_first(first), _labelled_first(second), strict=True)
        ]
        raw += _is_different([RatedCase(one.judged, one.judged) for one in pairs])
        corrected += _is_different(pairs)
    return raw / worlds, corrected / worlds


def repeat_few_labels(
    rate: float, errors: tuple[float, float], labels: int, *, worlds: int, cases: int = CASES, seed: int = 8
) -> tuple[float, float]:
    """Coverage of Rogan and Gladen's interval for cases like these, and how often it is refused.

    Only counts matter to it, so that they are drawn instead of cases.
    """
    chance = np.random.default_rng(seed)
    missed, invented = errors
    holds = refused = 0
    for _ in range(worlds):
        truths = int(chance.binomial(cases, rate))
        drawn = int(chance.hypergeometric(truths, cases - truths, labels))
        true_positive = int(chance.binomial(drawn, 1 - missed))
        false_positive = int(chance.binomial(labels - drawn, invented))
        others = chance.binomial(truths - drawn, 1 - missed) + chance.binomial(
            cases - truths - labels + drawn, invented
        )
        found = correct_by_error_rates(
            met=int(others) + true_positive + false_positive,
            cases=cases,
            true_positive=true_positive,
            false_negative=drawn - true_positive,
            true_negative=labels - drawn - false_positive,
            false_positive=false_positive,
        ).interval
        refused += found is None
        holds += _holds(found, rate)
    return holds / max(1, worlds - refused), refused / worlds


def few_labels(worlds: int) -> Iterator[str]:
    """The lines of the table of few labels."""
    yield "| truth | false negatives, positives | 50 labels | 75 labels | 99 labels |"
    yield "|---|---|---|---|---|"
    for rate in RATES:
        for errors in ERRORS:
            cells = []
            for labels in FEW_LABELS:
                holds, refused = repeat_few_labels(rate, errors, labels, worlds=worlds)
                cells.append(f"{holds:.1%}" + (f" ({refused:.0%} refused)" if round(refused, 2) else ""))
            yield f"| {rate:.0%} | {errors[0]:.0%}, {errors[1]:.0%} | {' | '.join(cells)} |"


def _labelled_first(world: World) -> list[RatedCase]:
    """The labelled cases first, so that those of two worlds are the same cases."""
    return sorted(world.cases, key=lambda case: case.truth is None)


def _is_different(pairs: list[RatedCase]) -> bool:
    found: CorrectedMean = correct_difference(pairs, Target.LIKE_THESE)
    return found.p is not None and found.p < 0.05


def _correct_by_error_rates(world: World, met: int) -> ConfidenceInterval | None:
    counts = Counter((case.judged, case.truth) for case in world.cases if case.truth is not None)
    return correct_by_error_rates(
        met=met,
        cases=len(world.cases),
        true_positive=counts[(1.0, 1.0)],
        false_negative=counts[(0.0, 1.0)],
        true_negative=counts[(0.0, 0.0)],
        false_positive=counts[(1.0, 0.0)],
    ).interval


def _holds(interval: ConfidenceInterval | None, truth: float) -> bool:
    return interval is not None and interval.low - 1e-12 <= truth <= interval.high + 1e-12


def tables(worlds: int) -> Iterator[str]:
    """The lines of the tables."""
    yield "| truth | false negatives, positives | labels of 2,000 | raw | corrected | width | by error rates |"
    yield "|---|---|---|---|---|---|---|"
    for rate in RATES:
        for errors in ERRORS:
            for share in SHARES:
                labels = round(CASES * share)
                one = repeat_rate(rate, errors, labels, worlds=worlds)
                refused = f" ({one.refused:.0%} refused)" if one.refused else ""
                by_error = "refused" if one.refused == 1 else f"{one.by_error:.1%}{refused}"
                yield (
                    f"| {rate:.0%} | {errors[0]:.0%}, {errors[1]:.0%} | {labels} | {one.raw:.1%} | "
                    f"{one.corrected:.1%} | {one.width:.3f} | {by_error} |"
                )
    yield ""
    yield "| cases in a group | labels of 2,000 | raw | corrected |"
    yield "|---|---|---|---|"
    for group in (1, 5, 20):
        for share in SHARES[1:]:
            labels = round(CASES * share)
            one = repeat_rate(0.7, (0.15, 0.15), labels, worlds=worlds, target=Target.LIKE_THESE, group=group)
            yield f"| {group} | {labels} | {one.raw:.1%} | {one.corrected:.1%} |"
    yield ""
    yield "| errors of the judge on A | on B | labels of 600 | raw: called different | corrected: called different |"
    yield "|---|---|---|---|---|"
    for other in ((0.15, 0.15), (0.05, 0.30)):
        for labels in (30, 60, 120):
            raw, corrected = repeat_equal(0.7, (0.15, 0.15), other, labels, worlds=worlds)
            yield f"| 15%, 15% | {other[0]:.0%}, {other[1]:.0%} | {labels} | {raw:.1%} | {corrected:.1%} |"


def main(arguments: list[str], write: Callable[[str], object] = print) -> None:
    """Print all tables, or with `few` that of few labels."""
    few = arguments[:1] == ["few"]
    worlds = int(arguments[few]) if len(arguments) > few else WORLDS
    for line in few_labels(worlds) if few else tables(worlds):
        write(line)


if __name__ == "__main__":
    main(sys.argv[1:])
