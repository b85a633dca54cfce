"""Whole columns of integers, one by one: what needs nothing, and what `swift`, with numpy, is held to."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeAlias

from meruit.model.chat import MOST_TOKENS

Column: TypeAlias = "array[int]"
"""Of 64 bits each."""
UNKNOWN = -1
"""A count that nobody told. Everything that is added to it is unknown as well."""
OPEN = 2**62
"""The end of what has not ended."""


class Groups(NamedTuple):
    """Spans that overlap, directly or through others, as one; only where there are at least two."""

    lanes: Column
    starts: Column
    ends: Column
    """In order of lane and start."""
    runs: Column
    counts: tuple[Column, ...]
    """The sums of what each member counted."""
    members: Column
    """For each span the place of its group, UNKNOWN where it is alone."""


class Found(Protocol):
    """Groups, ready to be found."""

    def places(self, lanes: Column, starts: Column) -> Column:
        """The place of the group that each span belongs to, UNKNOWN where it is alone."""
        ...


class Sums(Protocol):
    """Counts of many lanes and moments, ready to be summed over any span."""

    def rows(self, lane: int, start: int, end: int) -> Column:
        """The places of those in a lane and a span, by moment."""
        ...

    def number(self, lane: int, start: int, end: int) -> int:
        """How many there are in a lane and a span."""
        ...

    def totals(self, lanes: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """For each lane and span the sum of every count, in the order of the columns given."""
        ...


class Arithmetic(Protocol):
    """What is done with whole columns."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """Each span widened to whole buckets, and by a guard at its end; one that ends too early ends at its start."""
        ...

    def cohorts(self, lanes: Column, starts: Column, ends: Column) -> Column:
        """The number of each span's group: those of a lane that overlap, directly or through others, share one."""
        ...

    def groups(self, lanes: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> Groups:
        """The groups of at least two, with the sums of what their members counted."""
        ...

    def found(self, groups: Groups) -> Found:
        """Groups that many blocks of spans are looked up in."""
        ...

    def sums(self, lanes: Column, moments: Column, counts: Sequence[Column]) -> Sums:
        """Counts by lane and moment, in any order."""
        ...

    def taken(self, column: Column, places: Column, otherwise: Column) -> Column:
        """What stands at each place, and otherwise where the place is UNKNOWN."""
        ...

    def differing(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """The places where any of some columns differs from its counterpart; not where that is UNKNOWN in the first."""
        ...


class Plain:
    """One by one."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """See Arithmetic."""
        closed = (max(start, end) for start, end in zip(starts, ends, strict=True))
        return (
            array("q", (start - start % width for start in starts)),
            array("q", (OPEN if end >= OPEN else -(-end // width) * width + guard for end in closed)),
        )

    def cohorts(self, lanes: Column, starts: Column, ends: Column) -> Column:
        """See Arithmetic."""
        numbers = filled(len(lanes))
        number, lane, until = UNKNOWN, None, 0
        for place in _ordered(lanes, starts):
            if lanes[place] != lane or starts[place] >= until:
                number, lane, until = number + 1, lanes[place], ends[place]
            until = max(until, ends[place])
            numbers[place] = number
        return numbers

    def groups(self, lanes: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> Groups:
        """See Arithmetic."""
        members: dict[int, list[int]] = {}
        for place, number in enumerate(self.cohorts(lanes, starts, ends)):
            members.setdefault(number, []).append(place)
        shared = [members[number] for number in sorted(members) if len(members[number]) > 1]
        belongs = array("q", [UNKNOWN]) * len(lanes)
        for number, some in enumerate(shared):
            for place in some:
                belongs[place] = number
        return Groups(
            array("q", (lanes[some[0]] for some in shared)),
            array("q", (min(starts[place] for place in some) for some in shared)),
            array("q", (max(ends[place] for place in some) for some in shared)),
            array("q", (len(some) for some in shared)),
            tuple(array("q", (_added(column[place] for place in some) for some in shared)) for column in counts),
            belongs,
        )

    def found(self, groups: Groups) -> Found:
        """See Arithmetic."""
        return _PlainFound(groups)

    def sums(self, lanes: Column, moments: Column, counts: Sequence[Column]) -> Sums:
        """See Arithmetic."""
        return _PlainSums(lanes, moments, counts)

    def taken(self, column: Column, places: Column, otherwise: Column) -> Column:
        """See Arithmetic."""
        return array(
            "q",
            (other if place < 0 else column[place] for place, other in zip(places, otherwise, strict=True)),
        )

    def differing(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """See Arithmetic."""
        pairs = zip(zip(*some, strict=True), zip(*others, strict=True), strict=True)
        return array("q", (place for place, (one, other) in enumerate(pairs) if one[0] != UNKNOWN and one != other))


class _PlainFound:
    """A search for each span."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    def places(self, lanes: Column, starts: Column) -> Column:
        """See Found."""
        return array("q", (self._place(lane, start) for lane, start in zip(lanes, starts, strict=True)))

    def _place(self, lane: int, start: int) -> int:
        low, high = bisect_left(self._groups.lanes, lane), bisect_right(self._groups.lanes, lane)
        place = bisect_right(self._groups.starts, start, low, high) - 1
        return place if place >= low and start < self._groups.ends[place] else UNKNOWN


class _PlainSums:
    """Sorted once; a span is then two searches and a difference."""

    def __init__(self, lanes: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._order = array("q", _ordered(lanes, moments))
        self._lanes = array("q", (lanes[place] for place in self._order))
        self._moments = array("q", (moments[place] for place in self._order))
        self._running = [_running([column[place] for place in self._order]) for column in counts]

    def rows(self, lane: int, start: int, end: int) -> Column:
        """See Sums."""
        first, last = between(self._lanes, self._moments, lane, start, end)
        return self._order[first:last]

    def number(self, lane: int, start: int, end: int) -> int:
        """See Sums."""
        first, last = between(self._lanes, self._moments, lane, start, end)
        return last - first

    def totals(self, lanes: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """See Sums."""
        spans = [
            between(self._lanes, self._moments, lane, start, end)
            for lane, start, end in zip(lanes, starts, ends, strict=True)
        ]
        return tuple(array("q", (_difference(known, *span) for span in spans)) for known in self._running)


def between(lanes: Column, moments: Column, lane: int, start: int, end: int) -> tuple[int, int]:
    """From which to which place those of a lane and a span stand, in columns that are sorted by both."""
    low, high = bisect_left(lanes, lane), bisect_right(lanes, lane)
    return bisect_left(moments, start, low, high), bisect_left(moments, end, low, high)


def filled(length: int) -> Column:
    """A column of zeros."""
    return array("q", bytes(8 * length))


def _ordered(lanes: Column, moments: Column) -> list[int]:
    return sorted(range(len(lanes)), key=lambda place: (lanes[place], moments[place]))


class _Running(NamedTuple):
    """Sums up to each place, and how many up to there are unknown."""

    known: list[int]
    unknown: list[int]


def _running(column: list[int]) -> _Running:
    return _Running(
        [*accumulate((max(count, 0) for count in column), initial=0)],
        [*accumulate((count < 0 for count in column), initial=0)],
    )


def _difference(running: _Running, first: int, last: int) -> int:
    last = max(first, last)
    if running.unknown[last] > running.unknown[first]:
        return UNKNOWN
    return min(running.known[last] - running.known[first], MOST_TOKENS)


def _added(counts: Iterable[int]) -> int:
    several = [*counts]
    return UNKNOWN if min(several) < 0 else min(sum(several), MOST_TOKENS)
