"""The binomial distribution: how likely a count is by chance alone, and which rates a count is consistent with."""

import math

NEGLIGIBLE = 1e-18
"""Terms smaller than this share of the sum are ignored."""
MAX_STEPS = 10_000
"""Most terms to add; a wider distribution is approximated by the normal curve."""
MAX_BITS = 60
"""Larger counts are halved until they fit; with so many trials, the result does not change."""
CONFIDENCE = 0.95
BISECTIONS = 60
"""Halvings of the unit interval: more would not change a float."""
EXACT_FROM = 16
"""From here on, the first terms of Stirling's series are exact to the precision of a float."""


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) for n trials that succeed with probability p each.

    It sums from k away from the middle, so that tiny tails keep their digits. Its time is bounded for any counts.
    """
    if k <= 0 or (p >= 1 and k <= n):
        return 1.0
    if k > n or p <= 0:
        return 0.0
    halvings = max(0, n.bit_length() - MAX_BITS)
    k, n = max(1, k >> halvings), n >> halvings
    if k > n * p:
        return _above(k, n, p, 1 - p)
    # The complement, P(X <= k - 1), is a tail of failures; it is small here, so no digits are lost.
    return max(0.0, 1.0 - _above(n - k + 1, n, 1 - p, p))


def _above(k: int, n: int, p: float, q: float) -> float:
    """P(X >= k) for k above the middle, where each term is smaller than the one before."""
    if k == n:
        return math.exp(n * math.log(p))
    odds = p / q
    if _is_wide(k, n, odds):
        middle = k - 0.5
        return math.erfc(math.sqrt(max(0.0, _deviance(middle, n * p) + _deviance(n - middle, n * q)))) / 2
    term = total = 1.0
    for i in range(k, min(n, k + MAX_STEPS)):
        term *= (n - i) / (i + 1) * odds
        total += term
        if term < total * NEGLIGIBLE:
            break
    return _mass(k, n, p, q) * total


def _is_wide(k: int, n: int, odds: float) -> bool:
    """Whether terms after MAX_STEPS would still change the sum."""
    first = (n - k) / (k + 1) * odds
    # The odds may underflow to 0; then the second term is 0.
    fall = math.log(first) if first > 0 else -math.inf
    return MAX_STEPS * fall - MAX_STEPS**2 / 2 * (1 / (k + 1) + 1 / (n - k)) > math.log(NEGLIGIBLE)


def _mass(k: int, n: int, p: float, q: float) -> float:
    """P(X = k) by Loader's method, which avoids differences of large logarithms."""
    less = _deviance(k, n * p) + _deviance(n - k, n * q)
    error = _stirling_error(n) - _stirling_error(k) - _stirling_error(n - k)
    return math.exp(error - less) * math.sqrt(n / (k * (n - k)) / math.tau)


def _deviance(found: float, expected: float) -> float:
    """The deviance found · ln(found / expected) + expected − found, exact also where the two are close."""
    apart = found - expected
    if abs(apart) < expected / 10:
        return found * math.log1p(apart / expected) - apart
    return found * (math.log(found) - math.log(expected)) - apart


def _stirling_error(n: int) -> float:
    """The difference between ln n! and Stirling's formula."""
    if n < EXACT_FROM:
        return math.lgamma(n + 1) - (n + 0.5) * math.log(n) + n - math.log(math.tau) / 2
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * n * n)) / (n * n)) / (n * n)) / n


def clopper_pearson(successes: int, trials: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """The exact interval of a rate: no rate outside it would give so many or so few successes as often as that.

    Without trials it is everything from 0 to 1.
    """
    tail = (1 - confidence) / 2
    low = 0.0 if successes == 0 else _find_rate(successes, trials, tail)
    high = 1.0 if successes == trials else 1.0 - _find_rate(trials - successes, trials, tail)
    return low, high


def _find_rate(successes: int, trials: int, tail: float) -> float:
    """The rate at which at least so many successes have the probability `tail`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if binomial_tail(successes, trials, middle) < tail:
            low = middle
        else:
            high = middle
    return low
