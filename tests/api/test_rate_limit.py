"""Token buckets: a burst, then a steady rate, whatever the memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.api import rate_limit as throttle
from meruit.api.rate_limit import Throttle, TokenBuckets, TrafficLimits
from meruit.errors import ApiProblem


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@given(st.integers(1, 6000), st.integers(1, 50), st.lists(st.floats(0, 30, allow_nan=False), min_size=1, max_size=200))
def test_no_more_pass_than_the_burst_and_the_rate_allow(rate: int, burst: int, pauses: list[float]) -> None:
    clock = Clock()
    buckets = TokenBuckets(rate, burst, clock)
    begun = clock.now
    passed = 0
    for pause in pauses:
        clock.now += pause
        expected = buckets.wait("k")
        waited = buckets.take("k")
        assert waited == expected
        passed += waited == 0.0
        assert passed <= burst + (clock.now - begun) * rate / 60 + 1e-3
    clock.now += buckets.wait("k") + 1e-3
    assert buckets.take("k") == 0.0


def test_a_full_bucket_holds_the_whole_burst() -> None:
    clock = Clock()
    limits = Throttle(60, 5, clock=clock)
    for _ in range(5):
        limits.admit("k1")
    with pytest.raises(ApiProblem) as refused:
        limits.admit("k1")
    assert (refused.value.status, refused.value.code) == (429, "too_many_requests")
    assert refused.value.headers == {"Retry-After": "1"}
    limits.admit("k2")
    clock.now += 1
    limits.admit("k1")
    with pytest.raises(ApiProblem):
        limits.admit("k1")


def test_retry_after_is_long_enough() -> None:
    clock = Clock()
    limits = Throttle(1.5, 1, clock=clock)
    limits.admit("k")
    clock.now += 0.5
    with pytest.raises(ApiProblem) as refused:
        limits.admit("k")
    assert refused.value.headers == {"Retry-After": "40"}
    clock.now += 40
    limits.admit("k")


def test_an_address_with_many_failures_must_wait() -> None:
    clock = Clock()
    limits = Throttle(60, 5, failures_per_minute=6, failure_burst=3, clock=clock)
    for _ in range(3):
        limits.count_failure("10.0.0.1")
    with pytest.raises(ApiProblem, match="failed attempts") as refused:
        limits.count_failure("10.0.0.1")
    assert refused.value.headers == {"Retry-After": "10"}
    limits.count_failure("10.0.0.2")
    clock.now += 10
    limits.count_failure("10.0.0.1")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("2001:db8::1", "2001:db8::2:3", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("", "", True),
        ("unix:/x", "testclient", False),
    ],
)
def test_who_holds_a_network_is_one_guesser(one: str, other: str, same: bool) -> None:
    limits = Throttle(60, 5, failures_per_minute=1, failure_burst=1, clock=Clock())
    limits.count_failure(one)
    if same:
        with pytest.raises(ApiProblem):
            limits.count_failure(other)
    else:
        limits.count_failure(other)


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "MAX_BUCKETS", 3)
    buckets = TokenBuckets(60, 1, Clock())
    for name in "abcd":
        assert buckets.take(name) == 0.0
    assert len(buckets) == 3
    assert buckets.take("d") > 0
    assert buckets.take("a") == 0.0


def test_a_tenant_has_limits_over_all_its_keys() -> None:
    clock = Clock()
    limits = Throttle(600, 600, traffic=TrafficLimits(tenant_requests=12), clock=clock)
    for key in ("k1", "k2"):
        limits.admit(key, "t")
    with pytest.raises(ApiProblem) as refused:
        limits.admit("k3", "t")
    assert refused.value.status == 429
    limits.admit("k1", "another")


def test_bytes_are_counted_for_key_and_tenant() -> None:
    clock = Clock()
    traffic = TrafficLimits(key_bytes=6_000, tenant_bytes=12_000, burst_bytes=1_000)
    limits = Throttle(600, 600, traffic=traffic, clock=clock)
    limits.admit_bytes("k1", "t", 1_000)
    for key, tenant, size in (("k1", "t", 100), ("k2", "t", 1_001)):
        with pytest.raises(ApiProblem):
            limits.admit_bytes(key, tenant, size)
    limits.admit_bytes("k2", "t", 1_000)
    with pytest.raises(ApiProblem):
        limits.admit_bytes("k3", "t", 500)
    limits.admit_bytes("k4", "another", 1_000)
    Throttle(1, 1, clock=clock).admit_bytes("k", "t", 10**9)
