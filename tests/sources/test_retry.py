"""Retries, rest and limits, whatever is read."""

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import SourceError
from meruit.model.environment import Read, Snapshot, SourceKind, make_item
from meruit.sources.retry import (
    MAX_READINGS,
    BackoffSchedule,
    ReadPolicy,
    SourceReading,
    describe_difference,
    for_each,
    read_until_settled,
    take_snapshot,
    with_retries,
)


class Naps:
    """Sleeps no time at all, and keeps time by that."""

    def __init__(self) -> None:
        self.taken_s: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken_s.append(seconds)

    def time(self) -> float:
        return sum(self.taken_s)


class Told:
    """A source that holds one thing after another, the last for good."""

    kind = SourceKind.ROWS

    def __init__(self, states: Sequence[str]) -> None:
        self.states = list(states)
        self.times = 0

    async def read(self) -> Snapshot:
        state = self.states[min(self.times, len(self.states) - 1)]
        self.times += 1
        reads = [Read(f"reading {self.times}")]
        if state.startswith("!"):
            return Snapshot(self.kind, reads=reads, trouble=state[1:])
        return Snapshot(self.kind, [make_item(f"a/{sign}", sign.encode()) for sign in state], reads)


def rest(source: Told, naps: Naps, stable: int = 2, within_s: float = 30.0) -> Snapshot:
    return asyncio.run(read_until_settled(source, stable=stable, within_s=within_s, sleep=naps, timer=naps.time))


@given(
    st.lists(st.sampled_from(["a", "b", "ab", "!incomplete_read: x", "!unsettled: y"]), max_size=12), st.integers(1, 4)
)
def test_what_is_settled_was_read_so_often_in_a_row(states: list[str], stable: int) -> None:
    source, naps = Told([*states, "abc"]), Naps()
    found = rest(source, naps, stable)
    assert found.trouble is None
    last = [source.states[min(place, len(source.states) - 1)] for place in range(source.times)][-stable:]
    assert len(set(last)) == 1
    assert len(last) == stable
    assert found.settled_after_ms == round(naps.time() * 1000)


def test_one_reading_is_enough_when_that_is_asked_for() -> None:
    source, naps = Told(["a"]), Naps()
    assert rest(source, naps, stable=1).settled_after_ms == 0
    assert (source.times, naps.taken_s) == (1, [])


def test_an_unsettled_source_names_the_difference() -> None:
    found = rest(Told(["a", "b"] * 50), Naps(), within_s=5)
    assert found.trouble is not None
    assert found.trouble.startswith("unsettled: ")
    assert "(appeared a/" in found.trouble
    assert "; gone a/" in found.trouble
    assert len(found.reads) == 2


def test_trouble_that_does_not_pass_ends_the_waiting() -> None:
    source = Told(["!the server is down"])
    assert rest(source, Naps()).trouble == "the server is down"
    assert source.times == 1


def test_trouble_that_may_pass_is_given_the_time() -> None:
    source = Told(["!incomplete_read: saw 1 of 2"])
    assert rest(source, Naps(), within_s=2).trouble == "incomplete_read: saw 1 of 2"
    assert source.times == 5
    late = rest(Told([*["!unsettled: lags"] * 4, "a"]), Naps(), within_s=2)
    assert late.trouble is not None
    assert "had trouble (unsettled: lags)" in late.trouble


def test_too_little_time_and_a_stopped_clock_both_end() -> None:
    found = rest(Told(["a"]), Naps(), within_s=0)
    assert found.trouble is not None
    assert found.trouble.startswith("unsettled: 0 s")
    source = Told(["a", "b"] * MAX_READINGS)
    still = asyncio.run(read_until_settled(source, sleep=Naps(), timer=lambda: 0.0))
    assert still.trouble is not None
    assert source.times == MAX_READINGS + 1


def test_a_long_difference_is_cut() -> None:
    empty = Snapshot(SourceKind.ROWS)
    many = Snapshot(SourceKind.ROWS, [make_item(f"a/{place}", b"") for place in range(9)])
    assert describe_difference(empty, many) == "appeared a/0, a/1, a/2 and 6 more"


@pytest.mark.parametrize("fails", [0, 1, 2, 3])
def test_only_trouble_that_may_pass_is_tried_again(fails: int) -> None:
    naps, tries = Naps(), 0

    async def attempt() -> str:
        nonlocal tries
        tries += 1
        if tries <= fails:
            raise SourceError("later", again=True)
        return "done"

    async def tried() -> str:
        return await with_retries(attempt, ReadPolicy(BackoffSchedule(tries=3, first_wait_s=1, factor=3), sleep=naps))

    if fails < 3:
        assert asyncio.run(tried()) == "done"
    else:
        with pytest.raises(SourceError, match="later"):
            asyncio.run(tried())
    assert naps.taken_s == [1.0, 3.0][:fails]


def test_trouble_that_stays_is_not_tried_again() -> None:
    async def attempt() -> None:
        raise SourceError("never")

    naps = Naps()
    with pytest.raises(SourceError, match="never"):
        asyncio.run(with_retries(attempt, ReadPolicy(sleep=naps)))
    assert naps.taken_s == []


def test_what_had_come_in_before_the_trouble_is_kept() -> None:
    async def gather(reading: SourceReading) -> None:
        for key in "ba":
            reading.add(make_item(key, b""))
        raise SourceError("then it broke")

    found = asyncio.run(take_snapshot(SourceKind.FILES, "here", ReadPolicy(), gather))
    assert ([one.key for one in found.items], found.trouble) == (["a", "b"], "then it broke")


def test_our_own_bugs_are_raised() -> None:
    async def gather(reading: SourceReading) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(take_snapshot(SourceKind.FILES, "here", ReadPolicy(), gather))


@given(st.sets(st.integers(0, 19)))
def test_each_does_all_or_raises_the_first_trouble(bad: set[int]) -> None:
    done: list[int] = []

    async def do(number: int) -> None:
        await asyncio.sleep(0)
        if number in bad:
            raise SourceError(str(number))
        done.append(number)

    if bad:
        with pytest.raises(SourceError):
            asyncio.run(for_each(range(20), do))
        assert not set(done) & bad
    else:
        asyncio.run(for_each(range(20), do))
        assert sorted(done) == list(range(20))
