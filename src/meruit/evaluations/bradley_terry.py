"""Who is preferred to whom: Bradley and Terry's model with Davidson's ties, and intervals by resampling cases.

The strength of each agent is a positive number. Of two agents with strengths a and b, the first is preferred with a
weight of a, the second with b, and a tie has the weight `tie * sqrt(a * b)`.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.reports.statistics import bootstrap_samples, percentile_interval

RESAMPLES = 500
FEWEST_CASES = 10
"""The fewest cases for an interval."""
MAX_STEPS = 500
CLOSE = 1e-10
"""How little strengths may change in the last step."""
ONLY_TIES = 1e6
"""The weight of ties where there is nothing else."""

Comparison = tuple[int, int, int | None]
"""Two agents by their places, and the preferred one; None for a tie."""
Counts = Mapping[tuple[int, int, int | None], int]


class Preference(Record, frozen=True):
    """One agent among those that were compared."""

    name: str
    wins: int
    losses: int
    ties: int
    strength: float | None
    """The logarithm of its strength, 0 for the first agent; None where the model cannot be fitted."""
    preferred: float | None
    """The probability of being preferred to the first agent, a tie counted as half; 0.5 for the first itself."""
    interval: ConfidenceInterval | None = None
    """Of that probability."""


class PreferenceModel(Record, frozen=True):
    """All agents, in the order in which they were given."""

    agents: list[Preference]
    cases: int
    tie: float | None = None
    """The weight of ties; 0 means that there are none."""
    why_not: str = ""
    """Why the model, or its intervals, are missing."""


def fit_preferences(names: Sequence[str], cases: Sequence[Sequence[Comparison]]) -> PreferenceModel:
    """Fit the model to the comparisons of each case; refused where they do not connect all agents both ways."""
    counts = Counter(one for case in cases for one in case)
    if not is_connected(len(names), counts):
        why = "the comparisons do not connect all agents both ways: some were never preferred, or never compared"
        return PreferenceModel([_describe(names, place, counts) for place in range(len(names))], len(cases), None, why)
    strengths, tie = _fit(len(names), counts)
    intervals: list[ConfidenceInterval | None] = [None] * len(names)
    why = "" if len(cases) >= FEWEST_CASES else f"an interval needs {FEWEST_CASES} cases"
    if not why:
        samples = [
            _fit(len(names), Counter(one for place in drawn for one in cases[place]))
            for drawn in islice(bootstrap_samples(len(cases)), RESAMPLES)
        ]
        for place in range(1, len(names)):
            intervals[place] = percentile_interval([_probability(one[place], one[0], tied) for one, tied in samples])
    agents = [
        _describe(
            names,
            place,
            counts,
            strength=math.log(strengths[place] / strengths[0]),
            preferred=_probability(strengths[place], strengths[0], tie),
            interval=intervals[place],
        )
        for place in range(len(names))
    ]
    return PreferenceModel(agents, len(cases), tie, why)


def is_connected(agents: int, counts: Counts) -> bool:
    """Whether each agent is reached from each other by preferences; a tie goes both ways."""
    beats: dict[int, set[int]] = {place: set() for place in range(agents)}
    for one, other, preferred in counts:
        if preferred != other:
            beats[one].add(other)
        if preferred != one:
            beats[other].add(one)
    beaten_by = {place: {other for other in beats if place in beats[other]} for place in beats}
    return all(_find_reachable(0, edges) == set(beats) for edges in (beats, beaten_by))


def _find_reachable(start: int, edges: Mapping[int, Iterable[int]]) -> set[int]:
    found, waiting = {start}, [start]
    while waiting:
        for following in edges[waiting.pop()]:
            if following not in found:
                found.add(following)
                waiting.append(following)
    return found


def _fit(agents: int, counts: Counts) -> tuple[list[float], float]:
    """Strengths of the highest likelihood, by the usual iteration, which never lowers it."""
    score = [0.0] * agents
    played: Counter[tuple[int, int]] = Counter()
    ties = 0.0
    for (one, other, preferred), number in counts.items():
        played[one, other] += number
        for place in (one, other):
            score[place] += number if preferred == place else number / 2 if preferred is None else 0.0
        ties += number if preferred is None else 0
    if ties == played.total():
        # Nothing else happened, so the weight of ties has no limit.
        return [1.0] * agents, ONLY_TIES
    strengths, tie = [1.0] * agents, 1.0 if ties else 0.0
    for _ in range(MAX_STEPS):
        expected, tied = [0.0] * agents, 0.0
        for (one, other), number in played.items():
            root = math.sqrt(strengths[one] * strengths[other])
            whole = strengths[one] + strengths[other] + tie * root
            for place in (one, other):
                expected[place] += number * (1 + tie * root / strengths[place] / 2) / whole
            tied += number * root / whole
        new = [max(score[place], CLOSE) / expected[place] if expected[place] else 1.0 for place in range(agents)]
        # Only ratios mean anything.
        mean = math.exp(sum(map(math.log, new)) / agents)
        new = [one / mean for one in new]
        new_tie = ties / tied if tied else 0.0
        moved = max(abs(math.log(one / two)) for one, two in zip(new, strengths, strict=True)) + abs(new_tie - tie)
        strengths, tie = new, new_tie
        if moved < CLOSE:
            break
    return strengths, tie


def _probability(one: float, other: float, tie: float) -> float:
    tied = tie * math.sqrt(one * other)
    return (one + tied / 2) / (one + other + tied)


def _describe(
    names: Sequence[str],
    place: int,
    counts: Counts,
    *,
    strength: float | None = None,
    preferred: float | None = None,
    interval: ConfidenceInterval | None = None,
) -> Preference:
    own = [(one, number) for one, number in counts.items() if place in one[:2]]
    wins = sum(number for one, number in own if one[2] == place)
    ties = sum(number for one, number in own if one[2] is None)
    losses = sum(number for _, number in own) - wins - ties
    return Preference(
        name=names[place],
        wins=wins,
        losses=losses,
        ties=ties,
        strength=strength,
        preferred=preferred,
        interval=interval,
    )
