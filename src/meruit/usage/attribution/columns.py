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


class CohortGroups(NamedTuple):
    """Spans that overlap, directly or through others, as one; only where there are at least two."""

    key_codes: Column
    starts: Column
    ends: Column
    """In order of attribution key and start."""
    runs: Column
    counts: tuple[Column, ...]
    """The sums of what each member counted."""
    members: Column
    """For each span the place of its group, UNKNOWN where it is alone."""


class CohortIndex(Protocol):
    """Groups, ready to be found."""

    def group_indices(self, attribution_keys: Column, starts: Column) -> Column:
        """The place of the group that each span belongs to, UNKNOWN where it is alone."""
        ...


class SpanSums(Protocol):
    """Counts of many attribution keys and moments, ready to be summed over any span."""

    def rows(self, attribution_key: int, start: int, end: int) -> Column:
        """The places of those in an attribution key and a span, by moment."""
        ...

    def count(self, attribution_key: int, start: int, end: int) -> int:
        """How many there are in an attribution key and a span."""
        ...

    def totals(self, attribution_keys: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """For each attribution key and span the sum of every count, in the order of the columns given."""
        ...


class ColumnArithmetic(Protocol):
    """What is done with whole columns."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """Each span widened to whole buckets, and by a guard at its end; one that ends too early ends at its start."""
        ...

    def cohorts(self, attribution_keys: Column, starts: Column, ends: Column) -> Column:
        """The number of each span's group: those of an attribution key that overlap, directly or through others, share one."""
        ...

    def groups(self, attribution_keys: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> CohortGroups:
        """The groups of at least two, with the sums of what their members counted."""
        ...

    def index_groups(self, groups: CohortGroups) -> CohortIndex:
        """Groups that many blocks of spans are looked up in."""
        ...

    def sums(self, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> SpanSums:
        """Counts by attribution key and moment, in any order."""
        ...

    def take(self, column: Column, places: Column, otherwise: Column) -> Column:
        """What stands at each place, and otherwise where the place is UNKNOWN."""
        ...

    def find_differences(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """The places where any of some columns differs from its counterpart; not where that is UNKNOWN in the first."""
        ...


class ReferenceColumns:
    """One by one."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """See Arithmetic."""
        closed = (max(start, end) for start, end in zip(starts, ends, strict=True))
        return (
            array("q", (start - start % width for start in starts)),
            array("q", (OPEN if end >= OPEN else -(-end // width) * width + guard for end in closed)),
        )

    def cohorts(self, attribution_keys: Column, starts: Column, ends: Column) -> Column:
        """See Arithmetic."""
        numbers = zeros(len(attribution_keys))
        number, attribution_key, until = UNKNOWN, None, 0
        for place in _sort_order(attribution_keys, starts):
            if attribution_keys[place] != attribution_key or starts[place] >= until:
                number, attribution_key, until = number + 1, attribution_keys[place], ends[place]
            until = max(until, ends[place])
            numbers[place] = number
        return numbers

    def groups(self, attribution_keys: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> CohortGroups:
        """See Arithmetic."""
        members: dict[int, list[int]] = {}
        for place, number in enumerate(self.cohorts(attribution_keys, starts, ends)):
            members.setdefault(number, []).append(place)
        shared = [members[number] for number in sorted(members) if len(members[number]) > 1]
        belongs = array("q", [UNKNOWN]) * len(attribution_keys)
        for number, some in enumerate(shared):
            for place in some:
                belongs[place] = number
        return CohortGroups(
            array("q", (attribution_keys[some[0]] for some in shared)),
            array("q", (min(starts[place] for place in some) for some in shared)),
            array("q", (max(ends[place] for place in some) for some in shared)),
            array("q", (len(some) for some in shared)),
            tuple(array("q", (_sum_counts(column[place] for place in some) for some in shared)) for column in counts),
            belongs,
        )

    def index_groups(self, groups: CohortGroups) -> CohortIndex:
        """See Arithmetic."""
        return _ReferenceCohortIndex(groups)

    def sums(self, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> SpanSums:
        """See Arithmetic."""
        return _ReferenceSums(attribution_keys, moments, counts)

    def take(self, column: Column, places: Column, otherwise: Column) -> Column:
        """See Arithmetic."""
        return array(
            "q",
            (other if place < 0 else column[place] for place, other in zip(places, otherwise, strict=True)),
        )

    def find_differences(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """See Arithmetic."""
        pairs = zip(zip(*some, strict=True), zip(*others, strict=True), strict=True)
        return array("q", (place for place, (one, other) in enumerate(pairs) if one[0] != UNKNOWN and one != other))


class _ReferenceCohortIndex:
    """A search for each span."""

    def __init__(self, groups: CohortGroups) -> None:
        self._groups = groups

    def group_indices(self, attribution_keys: Column, starts: Column) -> Column:
        """See Found."""
        return array(
            "q",
            (
                self._group_index(attribution_key, start)
                for attribution_key, start in zip(attribution_keys, starts, strict=True)
            ),
        )

    def _group_index(self, attribution_key: int, start: int) -> int:
        low, high = (
            bisect_left(self._groups.key_codes, attribution_key),
            bisect_right(self._groups.key_codes, attribution_key),
        )
        place = bisect_right(self._groups.starts, start, low, high) - 1
        return place if place >= low and start < self._groups.ends[place] else UNKNOWN


class _ReferenceSums:
    """Sorted once; a span is then two searches and a difference."""

    def __init__(self, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._order = array("q", _sort_order(attribution_keys, moments))
        self._key_codes = array("q", (attribution_keys[place] for place in self._order))
        self._moments = array("q", (moments[place] for place in self._order))
        self._running = [_prefix_sums([column[place] for place in self._order]) for column in counts]

    def rows(self, attribution_key: int, start: int, end: int) -> Column:
        """See Sums."""
        first, last = row_range(self._key_codes, self._moments, attribution_key, start, end)
        return self._order[first:last]

    def count(self, attribution_key: int, start: int, end: int) -> int:
        """See Sums."""
        first, last = row_range(self._key_codes, self._moments, attribution_key, start, end)
        return last - first

    def totals(self, attribution_keys: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """See Sums."""
        spans = [
            row_range(self._key_codes, self._moments, attribution_key, start, end)
            for attribution_key, start, end in zip(attribution_keys, starts, ends, strict=True)
        ]
        return tuple(array("q", (_span_sum(known, *span) for span in spans)) for known in self._running)


def row_range(attribution_keys: Column, moments: Column, attribution_key: int, start: int, end: int) -> tuple[int, int]:
    """From which to which place those of an attribution key and a span stand, in columns that are sorted by both."""
    low, high = bisect_left(attribution_keys, attribution_key), bisect_right(attribution_keys, attribution_key)
    return bisect_left(moments, start, low, high), bisect_left(moments, end, low, high)


def zeros(length: int) -> Column:
    """A column of zeros."""
    return array("q", bytes(8 * length))


def _sort_order(attribution_keys: Column, moments: Column) -> list[int]:
    return sorted(range(len(attribution_keys)), key=lambda place: (attribution_keys[place], moments[place]))


class _PrefixSums(NamedTuple):
    """Sums up to each place, and how many up to there are unknown."""

    known: list[int]
    unknown: list[int]


def _prefix_sums(column: list[int]) -> _PrefixSums:
    return _PrefixSums(
        [*accumulate((max(count, 0) for count in column), initial=0)],
        [*accumulate((count < 0 for count in column), initial=0)],
    )


def _span_sum(running: _PrefixSums, first: int, last: int) -> int:
    last = max(first, last)
    if running.unknown[last] > running.unknown[first]:
        return UNKNOWN
    return min(running.known[last] - running.known[first], MOST_TOKENS)


def _sum_counts(counts: Iterable[int]) -> int:
    several = [*counts]
    return UNKNOWN if min(several) < 0 else min(sum(several), MOST_TOKENS)
