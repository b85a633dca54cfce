"""How often a key may ask, and how often an address may guess: token buckets in memory.

A bucket is one number, the moment at which it will be full again. (The library `limits` has no token bucket, takes no
clock, and starts a thread on most hits of its memory storage, at some 160 µs.)
"""

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from meruit.errors import ApiProblem

SECONDS_A_MINUTE = 60.0
MAX_BUCKETS = 10_000
"""How many keys or addresses are remembered; the one not seen for longest is forgotten, and starts anew."""
FAILURES_A_MINUTE = 10
FAILURE_BURST = 10
IPV6_SITE_BITS = 64
"""Whoever holds one IPv6 address holds its whole network of this prefix."""


class TokenBuckets:
    """Token buckets, one for each name: `burst` at once, then `rate_per_minute`."""

    def __init__(self, rate_per_minute: float, burst: int, clock: Callable[[], float]) -> None:
        self._interval = SECONDS_A_MINUTE / rate_per_minute
        self._depth = self._interval * burst
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, name: str) -> float:
        """Take a token and answer 0, or take none and answer the seconds until there is one."""
        then, wait = self._next(name)
        if wait > 0:
            return wait
        self._full_at[name] = then
        self._full_at.move_to_end(name)
        if len(self._full_at) > MAX_BUCKETS:
            self._full_at.popitem(last=False)
        return 0.0

    def wait(self, name: str) -> float:
        """The seconds until there is a token; takes none."""
        return self._next(name)[1]

    def _next(self, name: str) -> tuple[float, float]:
        """When the bucket will be full after one more token, and the seconds until that one is there."""
        now = self._clock()
        then = max(self._full_at.get(name, now), now) + self._interval
        wait = then - now - self._depth
        return then, wait if wait > _ROUNDING else 0.0

    def __len__(self) -> int:
        return len(self._full_at)


# A full bucket must not be one token short because a sum of floats is a hair too large.
_ROUNDING = 1e-6


class Throttle:
    """Who has to wait; knows keys by their public id, and strangers by their address."""

    def __init__(
        self,
        rate_per_minute: float,
        burst: int,
        *,
        failures_per_minute: float = FAILURES_A_MINUTE,
        failure_burst: int = FAILURE_BURST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keys = TokenBuckets(rate_per_minute, burst, clock)
        self._strangers = TokenBuckets(failures_per_minute, failure_burst, clock)

    def admit(self, key_id: str) -> None:
        """Count one request of a key; raises ApiProblem 429 when there were too many."""
        _refuse_for(self._keys.take(key_id), "this key asked too often")

    def count_failure(self, address: str) -> None:
        """Count one failed authentication of an address; raises ApiProblem 429 when there were too many."""
        _refuse_for(self._strangers.take(_network_of(address)), _GUESSING)


_GUESSING = "too many failed attempts to authenticate from this address"


def _refuse_for(seconds: float, why: str) -> None:
    if seconds > 0:
        whole = max(1, math.ceil(seconds))
        detail = f"{why}; try again in {whole} s"
        raise ApiProblem(429, "too_many_requests", detail, headers={"Retry-After": str(whole)})


def _network_of(address: str) -> str:
    """Who an address belongs to; what is no address, such as a socket's path, stands for itself."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found.packed, IPV6_SITE_BITS), strict=False))
