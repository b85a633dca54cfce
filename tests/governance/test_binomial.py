"""The binomial tail: exact fractions where they can be had, scipy where they cannot."""

import math
import time
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.governance.binomial import binomial_tail


def exact_tail(k: int, n: int, p: Fraction) -> Fraction:
    """The sum as the definition has it."""
    return sum((math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(max(0, k), n + 1)), Fraction(0))


@given(st.integers(0, 120).flatmap(lambda n: st.tuples(st.integers(-1, n + 1), st.just(n))), st.floats(0.001, 0.999))
def test_it_is_the_exact_sum(counts: tuple[int, int], p: float) -> None:
    k, n = counts
    assert binomial_tail(k, n, p) == pytest.approx(float(exact_tail(k, n, Fraction(p))), rel=1e-11)


@given(st.integers(1, 2000), st.floats(0, 1), st.data())
def test_it_is_a_probability_that_falls_as_more_is_asked(n: int, p: float, data: st.DataObject) -> None:
    k = data.draw(st.integers(0, n))
    more, less = binomial_tail(k + 1, n, p), binomial_tail(k, n, p)
    assert 0 <= more <= less * (1 + 1e-9) + 1e-12
    assert less <= 1 + 1e-9


@pytest.mark.parametrize(
    ("k", "n", "p", "expected"),
    [
        (0, 0, 0.5, 1.0),
        (-3, 5, 0.5, 1.0),
        (6, 5, 0.5, 0.0),
        (1, 0, 1.0, 0.0),
        (6, 5, 1.0, 0.0),
        (5, 5, 1.0, 1.0),
        (5, 5, 1.5, 1.0),
        (1, 5, 0.0, 0.0),
        (1, 5, -1.0, 0.0),
        (1, 1, 5e-324, 5e-324),
        (20, 20, 0.5, 2.0**-20),
        (60, 60, 1 / 3, 3.0**-60),
        (1, 1_000_000, 1e-300, 1e-294),
        (1, 3, 0.5, 0.875),
    ],
)
def test_the_ends_and_the_simple_cases(k: int, n: int, p: float, expected: float) -> None:
    assert binomial_tail(k, n, p) == pytest.approx(expected, rel=1e-9, abs=0)


@pytest.mark.parametrize(
    ("k", "n", "p"),
    [
        (500_000, 1_000_000, 0.5),
        (500_001, 1_000_000, 0.5),
        (499_000, 1_000_000, 0.5),
        (510_000, 1_000_000, 0.5),
        (1_000_500, 10_000_000, 0.1),
        (9_999_999, 10_000_000, 0.999999),
        (40, 5_000_000, 1e-6),
    ],
)
def test_millions_of_trials_take_no_longer(k: int, n: int, p: float) -> None:
    stats = pytest.importorskip("scipy.stats")
    assert binomial_tail(k, n, p) == pytest.approx(float(stats.binom.sf(k - 1, n, p)), rel=1e-6, abs=0)


WHOLE = st.integers(-(10**400), 10**400) | st.integers(0, 10**18) | st.integers(0, 10**6)


@given(WHOLE, WHOLE, st.floats(0, 1) | st.floats(allow_nan=False))
def test_any_counts_give_a_probability_at_once(k: int, n: int, p: float) -> None:
    started = time.thread_time()
    found = binomial_tail(k, n, p)
    assert 0 <= found <= 1 + 1e-9
    assert time.thread_time() - started < 1


@pytest.mark.parametrize("n", [10**9, 10**13, 10**17, 10**30, 10**399])
@pytest.mark.parametrize("k_of", [lambda n: n // 2, lambda n: n // 2 + math.isqrt(n), lambda n: n // 2 - math.isqrt(n)])
def test_counts_beyond_counting_take_milliseconds(n: int, k_of: Callable[[int], int]) -> None:
    took = []
    for _ in range(5):
        started = time.thread_time()
        binomial_tail(k_of(n), n, 0.5)
        took.append(time.thread_time() - started)
    assert min(took) < 0.05


@pytest.mark.parametrize("n", [10**8, 10**10, 10**14, 10**17])
@pytest.mark.parametrize("p", [0.5, 0.01, 0.97])
@pytest.mark.parametrize("deviations", [-7.0, -1.0, 0.0, 0.5, 3.0, 6.0, 12.0])
def test_wide_distributions_match_the_normal_curve(n: int, p: float, deviations: float) -> None:
    spread = math.sqrt(n * p * (1 - p))
    k = round(n * p + deviations * spread)
    # So many trials are as good as normal; what is left of the skew grows with the cube of the distance.
    slack = 1e-3 + (1 + abs(deviations) ** 3) / spread
    assert binomial_tail(k, n, p) == pytest.approx(math.erfc(deviations / math.sqrt(2)) / 2, rel=slack)


@pytest.mark.parametrize(("k", "n", "p"), [(5, 10**18, 1e-17), (25, 10**18, 1e-17), (40, 10**12, 1e-11)])
def test_rare_events_among_very_many_are_counted_one_by_one(k: int, n: int, p: float) -> None:
    mean = n * p
    below = sum(math.exp(i * math.log(mean) - mean - math.lgamma(i + 1)) for i in range(k))
    assert binomial_tail(k, n, p) == pytest.approx(1 - below, rel=1e-6)
