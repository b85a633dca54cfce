"""The columns computed one value at a time: the oracle for `meruit.usage.attribution.columns`."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import NamedTuple

from meruit.model.chat import MOST_TOKENS
from meruit.usage.attribution.columns import OPEN, UNKNOWN, CohortGroups, Column


def windows(starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
    closed = (max(start, end) for start, end in zip(starts, ends, strict=True))
    return (
        array("q", (start - start % width for start in starts)),
        array("q", (OPEN if end >= OPEN else -(-end // width) * width + guard for end in closed)),
    )


def cohorts(attribution_keys: Column, starts: Column, ends: Column) -> Column:
    numbers = zeros(len(attribution_keys))
    number, attribution_key, until = UNKNOWN, None, 0
    for place in _sort_order(attribution_keys, starts):
        if attribution_keys[place] != attribution_key or starts[place] >= until:
            number, attribution_key, until = number + 1, attribution_keys[place], ends[place]
        until = max(until, ends[place])
        numbers[place] = number
    return numbers


def group_spans(attribution_keys: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> CohortGroups:
    members: dict[int, list[int]] = {}
    for place, number in enumerate(cohorts(attribution_keys, starts, ends)):
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


def take(column: Column, places: Column, otherwise: Column) -> Column:
    return array(
        "q",
        (other if place < 0 else column[place] for place, other in zip(places, otherwise, strict=True)),
    )


def find_differences(some: Sequence[Column], others: Sequence[Column]) -> Column:
    pairs = zip(zip(*some, strict=True), zip(*others, strict=True), strict=True)
    return array("q", (place for place, (one, other) in enumerate(pairs) if one[0] != UNKNOWN and one != other))


class CohortIndex:
    """A search for each span."""

    def __init__(self, groups: CohortGroups) -> None:
        self._groups = groups

    def group_indices(self, attribution_keys: Column, starts: Column) -> Column:
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


class SpanSums:
    """Sorted once; a span is then two searches and a difference."""

    def __init__(self, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._order = array("q", _sort_order(attribution_keys, moments))
        self._key_codes = array("q", (attribution_keys[place] for place in self._order))
        self._moments = array("q", (moments[place] for place in self._order))
        self._running = [_prefix_sums([column[place] for place in self._order]) for column in counts]

    def rows(self, attribution_key: int, start: int, end: int) -> Column:
        first, last = row_range(self._key_codes, self._moments, attribution_key, start, end)
        return self._order[first:last]

    def count(self, attribution_key: int, start: int, end: int) -> int:
        first, last = row_range(self._key_codes, self._moments, attribution_key, start, end)
        return last - first

    def totals(self, attribution_keys: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
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
