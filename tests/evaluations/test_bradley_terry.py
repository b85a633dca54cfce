"""Preferences: scipy finds the same strengths, and intervals cover what they should."""

import math
import random
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling import IN_FULL

from meruit.evaluations.bradley_terry import Comparison, fit_preferences, is_connected


def draw(chance: random.Random, strengths: list[float], tie: float, one: int, other: int) -> Comparison:
    tied = tie * math.sqrt(strengths[one] * strengths[other])
    drawn = chance.random() * (strengths[one] + strengths[other] + tied)
    if drawn < strengths[one]:
        return one, other, one
    return one, other, other if drawn < strengths[one] + strengths[other] else None


def cases_of(number: int, strengths: list[float], tie: float, seed: int) -> list[list[Comparison]]:
    chance = random.Random(seed)
    pairs = [*combinations(range(len(strengths)), 2)]
    return [[draw(chance, strengths, tie, one, other) for one, other in pairs] for _ in range(number)]


@pytest.mark.parametrize("tie", [0.0, 0.8])
def test_scipy_finds_the_same_strengths(tie: float) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    cases = cases_of(60, [1.0, 2.0, 0.5], tie, 3)
    counts = Counter(one for case in cases for one in case)

    def unlikelihood(given_: list[float]) -> float:
        logs, weight = [0.0, *given_[:2]], math.exp(given_[2]) if tie else 0.0
        total = 0.0
        for (one, other, preferred), number in counts.items():
            first, second = math.exp(logs[one]), math.exp(logs[other])
            tied = weight * math.sqrt(first * second)
            part = tied if preferred is None else first if preferred == one else second
            total -= number * math.log(part / (first + second + tied))
        return total

    best = optimize.minimize(
        unlikelihood, [0.0, 0.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-9}
    )
    model = fit_preferences(["a", "b", "c"], cases)
    assert [one.strength for one in model.agents] == pytest.approx([0.0, *best.x[:2]], abs=1e-4)
    assert model.tie == pytest.approx(math.exp(best.x[2]) if tie else 0.0, rel=1e-3)


def test_two_agents_are_preferred_as_often_as_they_won() -> None:
    preferred: list[int | None] = [1] * 12 + [0] * 5 + [None] * 3
    cases: list[list[Comparison]] = [[(0, 1, one)] for one in preferred]
    model = fit_preferences(["old", "new"], cases)
    first, second = model.agents
    assert second.preferred == pytest.approx((12 + 1.5) / 20)
    assert (second.wins, second.losses, second.ties) == (12, 5, 3)
    assert (first.strength, first.preferred) == (0.0, 0.5)
    assert second.interval is not None
    assert second.interval.low < 0.675 < second.interval.high


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    truth = (2.0 + 0.5 * math.sqrt(2.0) / 2) / (3.0 + 0.5 * math.sqrt(2.0))
    tries, enough = (400, 0.92) if IN_FULL else (12, 0.7)
    covered = 0
    for seed in range(tries):
        interval = fit_preferences(["a", "b"], cases_of(60, [1.0, 2.0], 0.5, seed)).agents[1].interval
        assert interval is not None
        covered += interval.low <= truth <= interval.high
    assert covered / tries >= enough


@pytest.mark.parametrize(
    "several",
    [
        [(0, 1, 0)] * 20,
        [(0, 1, 0), (1, 0, 1), (2, 3, None)],
        [(0, 1, None), (0, 2, 0), (1, 2, 1), (0, 3, None)],
    ],
)
def test_what_is_not_connected_both_ways_is_refused(several: list[Comparison]) -> None:
    names = ["a", "b", "c", "d"][: 1 + max(max(one, other) for one, other, _ in several)]
    model = fit_preferences(names, [[one] for one in several])
    assert model.why_not
    assert all(one.strength is None for one in model.agents)


@given(st.lists(st.tuples(st.just(0), st.just(1), st.sampled_from([0, 1, None])), min_size=1, max_size=30))
def test_strengths_turn_round_with_the_agents(several: list[Comparison]) -> None:
    turned = [(0, 1, None if preferred is None else 1 - preferred) for _, _, preferred in several]
    if not is_connected(2, Counter(several)):
        return
    one = fit_preferences(["a", "b"], [several]).agents[1]
    other = fit_preferences(["a", "b"], [turned]).agents[1]
    assert one.strength == pytest.approx(-(other.strength or 0.0), abs=1e-6)
