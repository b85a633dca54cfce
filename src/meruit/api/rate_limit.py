"""Rate limits per key and per address: token buckets in memory.

A bucket is one number, the time when it is full again. (The library `limits` has no token bucket, accepts no clock, and
starts a thread on most hits of its memory storage, which takes about 160 µs.)
"""

import ipaddress
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from meruit.errors import ApiProblem
from meruit.store.lru import LruCache

SECONDS_A_MINUTE = 60.0
BURSTS_A_MINUTE = 6
"""A tenant's requests and all bytes: this part of a minute's share may come at once."""
MAX_BUCKETS = 10_000
"""Most keys or addresses in memory. The least recently seen is dropped and starts with a full bucket."""
FAILURES_A_MINUTE = 10
FAILURE_BURST = 10
IPV6_SITE_BITS = 64
"""A client with one IPv6 address usually has the whole network of this prefix."""


class BucketTimes(Protocol):
    """When buckets are full again, by name; for several processes, of which one at a time may hold a name."""

    def hold(self, name: str) -> AbstractContextManager[None]:
        """Let no other process change the name's time meanwhile."""
        ...

    def get(self, name: str) -> float | None:
        """The time of a name; None where it is not known."""
        ...

    def put(self, name: str, time: float) -> None:
        """Set the time of a name."""
        ...


class TokenBuckets:
    """Token buckets, one per name: `burst` at once, then `rate_per_minute`."""

    def __init__(
        self, rate_per_minute: float, burst: int, clock: Callable[[], float], shared: BucketTimes | None = None
    ) -> None:
        """With `shared`, several processes take from the same buckets."""
        self._interval = SECONDS_A_MINUTE / rate_per_minute
        self._depth = self._interval * burst
        self._clock = clock
        self._shared = shared
        self._local = LruCache[str, float](MAX_BUCKETS)
        self._full_at: BucketTimes | LruCache[str, float] = shared or self._local

    def take(self, name: str, tokens: int = 1) -> float:
        """Take tokens and return 0, or return the seconds until there are as many."""
        if self._shared is None:
            return self._take(name, tokens)
        with self._shared.hold(name):
            return self._take(name, tokens)

    def _take(self, name: str, tokens: int) -> float:
        then, wait = self._next(name, tokens)
        if wait > 0:
            return wait
        self._full_at.put(name, then)
        return 0.0

    def wait(self, name: str) -> float:
        """Return the seconds until there is a token, without taking it."""
        return self._next(name)[1]

    def _next(self, name: str, tokens: int = 1) -> tuple[float, float]:
        """When the bucket is full after so many tokens are taken, and the seconds until they exist."""
        now = self._clock()
        # Never later than an empty bucket's: a time that another process wrote in part must not lock a key out.
        full_at = min(self._full_at.get(name) or now, now + self._depth)
        then = max(full_at, now) + self._interval * tokens
        wait = then - now - self._depth
        return then, wait if wait > _ROUNDING else 0.0

    def __len__(self) -> int:
        """Buckets in this process's own memory."""
        return len(self._local)


# A full bucket must not be one token short because a sum of floats is a hair too large.
_ROUNDING = 1e-6


class TrafficLimits(msgspec.Struct, frozen=True):
    """What keys and tenants may send in a minute; None where it is not limited."""

    tenant_requests: int | None = None
    key_bytes: int | None = None
    tenant_bytes: int | None = None
    burst_bytes: int = 0
    """What may come at once, at least; the largest body must fit."""


class Throttle:
    """Limits requests and bytes per key and per tenant, and failed authentications per address."""

    def __init__(
        self,
        rate_per_minute: float,
        burst: int,
        *,
        failures_per_minute: float = FAILURES_A_MINUTE,
        failure_burst: int = FAILURE_BURST,
        traffic: TrafficLimits = TrafficLimits(),  # noqa: B008 - frozen
        clock: Callable[[], float] = time.monotonic,
        shared: Callable[[int], BucketTimes | None] = lambda _number: None,
    ) -> None:
        """`shared` gives the times of each of the five kinds of buckets, where several processes share them."""
        self._keys = TokenBuckets(rate_per_minute, burst, clock, shared(0))
        self._addresses = TokenBuckets(failures_per_minute, failure_burst, clock, shared(1))

        def buckets(rate: int | None, least: int, number: int) -> TokenBuckets | None:
            if rate is None:
                return None
            return TokenBuckets(rate, max(rate // BURSTS_A_MINUTE, least), clock, shared(number))

        self._tenants = buckets(traffic.tenant_requests, 1, 2)
        self._key_bytes = buckets(traffic.key_bytes, traffic.burst_bytes, 3)
        self._tenant_bytes = buckets(traffic.tenant_bytes, traffic.burst_bytes, 4)

    def admit(self, key_id: str, tenant: str = "") -> None:
        """Count one request of a key and its tenant; raises ApiProblem 429 when there were too many."""
        _refuse_for(self._keys.take(key_id), "too many requests with this key")
        if self._tenants is not None:
            _refuse_for(self._tenants.take(tenant), "too many requests of this tenant")

    def admit_bytes(self, key_id: str, tenant: str, size: int) -> None:
        """Count the bytes of a body for its key and tenant; raises ApiProblem 429 when there were too many."""
        for buckets, name, why in (
            (self._key_bytes, key_id, "too many bytes with this key"),
            (self._tenant_bytes, tenant, "too many bytes of this tenant"),
        ):
            if buckets is not None:
                _refuse_for(buckets.take(name, size), why)

    def count_failure(self, address: str) -> None:
        """Count one failed authentication of an address; raises ApiProblem 429 when there were too many."""
        _refuse_for(self._addresses.take(network_of(address)), _GUESSING)


_GUESSING = "too many failed attempts to authenticate from this address"


def _refuse_for(seconds: float, why: str) -> None:
    if seconds > 0:
        whole = max(1, math.ceil(seconds))
        detail = f"{why}; retry in {whole} s"
        raise ApiProblem(429, "too_many_requests", detail, headers={"Retry-After": str(whole)})


def network_of(address: str) -> str:
    """The network of an address. Other text, such as the path of a socket, is returned unchanged."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return address
    return str(found.ipv4_mapped or ipaddress.ip_network((found.packed, IPV6_SITE_BITS), strict=False))
