"""How likely it is that chance alone did it: the tail of the binomial distribution."""

import math

NEGLIGIBLE = 1e-18
"""A term this small beside the sum no longer changes it, nor do the smaller ones behind it."""


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k) for n trials that succeed with probability p each.

    Sums from k away from the middle, so that tiny tails keep their digits; the steps grow with the square root of n.
    """
    if k <= 0 or (p >= 1 and k <= n):
        return 1.0
    if k > n or p <= 0:
        return 0.0
    if k > n * p:
        return _mass(k, n, p) * _outward(k, n, p)
    # P(X <= k - 1) is the same question about failures; beside it the tail is large, so nothing is lost.
    failures, q = n - k + 1, 1 - p
    return max(0.0, 1.0 - _mass(failures, n, q) * _outward(failures, n, q))


def _mass(k: int, n: int, p: float) -> float:
    """P(X = k)."""
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))


def _outward(k: int, n: int, p: float) -> float:
    """P(X >= k) as a multiple of P(X = k), for k above the middle, where every term is smaller than the last."""
    odds = p / (1 - p)
    term = total = 1.0
    for i in range(k, n):
        term *= (n - i) / (i + 1) * odds
        total += term
        if term < total * NEGLIGIBLE:
            break
    return total
