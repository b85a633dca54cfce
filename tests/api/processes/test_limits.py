"""Limits that several processes share: rates, and slots that the kernel frees when a process dies."""

import math
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.api.idempotency import KeysInFlight
from meruit.api.open_streams import OpenStreams
from meruit.api.processes.limits import MAX_SLOTS, ROWS, SECRET_BYTES, TABLES, WAYS, SharedLimits
from meruit.api.rate_limit import Throttle, TokenBuckets
from meruit.errors import ApiProblem

OTHER = """
import sys
from meruit.api.processes.limits import SharedLimits
limits = SharedLimits(int(sys.argv[1]))
for line in sys.stdin:
    print(eval(line), flush=True)
"""


@pytest.fixture
def limits() -> Iterator[SharedLimits]:
    made = SharedLimits.create()
    yield made
    made.close()


class Other:
    """Another process that has the file open."""

    def __init__(self, limits: SharedLimits) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, str(limits.descriptor)],
            pass_fds=[limits.descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, expression: str) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(expression, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL
        self.process.communicate()


def test_slots_and_times_hold_across_processes_and_a_death_frees_slots(limits: SharedLimits) -> None:
    other = Other(limits)
    assert limits.acquire("a", 2) == 0
    assert other.ask("limits.acquire('a', 2)") == "1"
    assert limits.acquire("a", 2) is None
    assert other.ask("limits.acquire('a', 2)") == "None"
    limits.release("a", 0)
    assert other.ask("limits.acquire('a', 2)") == "0"
    assert other.ask("limits.table(0).put('b', 7.5)") == "None"
    assert (limits.table(0).get("b"), limits.table(1).get("b")) == (7.5, None)
    assert other.ask("limits.secret.hex()") == limits.secret.hex()
    assert limits.acquire("a", 2) is None
    other.kill()
    assert [limits.acquire("a", 2) for _ in range(3)] == [0, 1, None]


def test_a_key_in_use_elsewhere_is_refused_until_it_is_released(limits: SharedLimits) -> None:
    keys, other = KeysInFlight(limits), Other(limits)
    with keys.hold_key("tenant", "k"):
        assert other.ask(r"limits.acquire('key:tenant\nk')") == "None"
        with pytest.raises(ApiProblem) as refused, keys.hold_key("tenant", "k"):
            raise AssertionError
        assert (refused.value.status, refused.value.code) == (409, "still_running")
    assert other.ask(r"limits.acquire('key:tenant\nk')") == "0"
    with pytest.raises(ApiProblem), keys.hold_key("tenant", "k"):
        raise AssertionError
    # A refused request leaves nothing behind.
    with keys.hold_key("other tenant", "k"):
        pass
    other.kill()
    with keys.hold_key("tenant", "k"):
        pass


def test_open_streams_count_those_of_other_processes(limits: SharedLimits) -> None:
    streams, other = OpenStreams(limits), Other(limits)
    assert other.ask("limits.acquire('stream:key_1', 2)") == "0"
    state: dict[str, object] = {}
    streams.open_stream("key_1", 2, state)
    with pytest.raises(ApiProblem) as refused:
        streams.open_stream("key_1", 2, {})
    assert (refused.value.status, refused.value.code) == (429, "too_many_streams")
    streams.on_request_end(state)
    assert (streams.total, state) == (0, {})
    streams.open_stream("key_1", 2, state)
    other.kill()
    streams.open_stream("key_1", 2, {})


@given(takes=st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["a", "b"]), st.floats(0, 3)), max_size=60))
def test_processes_together_get_what_one_gets(takes: list[tuple[int, str, float]]) -> None:
    limits, now = SharedLimits.create(), [0.0]
    alone = TokenBuckets(60, 3, lambda: now[0])
    together = [TokenBuckets(60, 3, lambda: now[0], limits.table(2)) for _ in range(3)]
    for which, name, pause in takes:
        now[0] += pause
        assert together[which].take(name) == alone.take(name)
        assert together[which].wait(name) == alone.wait(name)
    limits.close()


def test_the_throttle_of_two_workers_admits_what_one_does(limits: SharedLimits) -> None:
    first, second = (Throttle(60, 4, clock=lambda: 5.0, shared=limits.table) for _ in range(2))
    for one in (first, second, first, second):
        one.admit("key_1", "tenant")
    for one in (first, second):
        with pytest.raises(ApiProblem) as refused:
            one.admit("key_1", "tenant")
        assert refused.value.status == 429
        one.admit("key_2", "tenant")


@pytest.mark.parametrize("left", [math.nan, math.inf, -math.inf, 1e300, -1.0])
def test_half_a_number_of_a_dead_process_locks_nobody_out(limits: SharedLimits, left: float) -> None:
    times = limits.table(0)
    times.put("a", left)
    buckets = TokenBuckets(60, 2, lambda: 100.0, times)
    assert buckets.take("a") <= 1.0


def test_a_full_row_gives_up_its_earliest_time(limits: SharedLimits) -> None:
    times = limits.table(TABLES - 1)
    row = times._row(limits.digest("n0"))
    names = [f"n{n}" for n in range(60 * ROWS) if times._row(limits.digest(f"n{n}")) == row][: WAYS + 1]
    for number, name in enumerate(names):
        times.put(name, float(number + 1))
    assert [times.get(name) for name in names] == [None, *(float(n + 2) for n in range(WAYS))]


def test_what_cannot_be_is_refused(limits: SharedLimits) -> None:
    for number in (-1, TABLES):
        with pytest.raises(ValueError, match=str(number)):
            limits.table(number)
    assert limits.acquire("a", 0) is None
    assert [limits.acquire("a", MAX_SLOTS) for _ in range(MAX_SLOTS + 1)] == [*range(MAX_SLOTS), None]
    assert limits.acquire("\udc80 \N{SNOWMAN}" * 1000) == 0


def test_the_secret_is_random_and_the_file_is_nowhere() -> None:
    first, second = SharedLimits.create(), SharedLimits.create()
    assert first.secret != second.secret
    assert len(first.secret) == SECRET_BYTES
    assert os.fstat(first.descriptor).st_nlink == 0
    assert struct.calcsize("=16sd") == 24
    first.close()
    second.close()
