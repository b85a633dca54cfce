"""Whole columns of integers, computed with numpy.

An attribution key and a moment become one integer, so that one sort and one search order by both. Sums that may exceed
64 bits are computed with Python's integers instead.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from meruit.errors import MissingExtra
from meruit.model.chat import MOST_TOKENS

try:
    import numpy as np
    import numpy.typing as npt
except ModuleNotFoundError:
    raise MissingExtra("reconciling token usage needs numpy: pip install 'meruit[reconcile]'") from None

Column: TypeAlias = "array[int]"
"""Signed integers of 64 bits."""
Numbers: TypeAlias = npt.NDArray[np.int64]
UNKNOWN = -1
"""A count that is not known; a sum that includes it is not known either."""
OPEN = 2**62
"""The end of a span that has not ended."""
_LARGEST = 2**62


class CohortGroups(msgspec.Struct, frozen=True):
    """Spans that overlap, directly or through others, as one group each; only groups of at least two."""

    key_codes: Column
    starts: Column
    ends: Column
    """Groups are sorted by attribution key and start."""
    runs: Column
    counts: tuple[Column, ...]
    """The sums of what the members counted."""
    members: Column
    """For each span the index of its group; UNKNOWN where it is alone."""


def windows(starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
    """Widen each span to whole buckets, and by a guard at its end; one that ends before its start ends there."""
    first = _to_array(starts)
    last = np.maximum(first, _to_array(ends))
    closed = np.where(last >= OPEN, OPEN, -(-last // width) * width + guard)
    return _to_column(first - first % width), _to_column(closed)


def group_spans(key_codes: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> CohortGroups:
    """Find the groups of at least two spans, with the sums of what their members counted."""
    keys = _SortKeys(key_codes, starts)
    order, is_first = _find_group_starts(keys, key_codes, starts, ends)
    first = np.flatnonzero(is_first)
    runs = np.diff(first, append=len(order))
    is_shared = runs > 1
    members = np.empty(len(order), np.int64)
    members[order] = np.where(is_shared, np.cumsum(is_shared) - 1, UNKNOWN)[np.cumsum(is_first) - 1]
    until = np.maximum.reduceat(_to_array(ends)[order], first) if len(first) else first
    shared = first[is_shared]
    return CohortGroups(
        key_codes=_to_column(_to_array(key_codes)[order[shared]]),
        starts=_to_column(_to_array(starts)[order[shared]]),
        ends=_to_column(until[is_shared]),
        runs=_to_column(runs[is_shared]),
        counts=tuple(_to_column(_sum_groups(_to_array(column)[order], first)[is_shared]) for column in counts),
        members=_to_column(members),
    )


def take(column: Column, indices: Column, otherwise: Column) -> Column:
    """Pick the value at each index, and the value of `otherwise` where the index is UNKNOWN."""
    if not column:
        return otherwise
    wanted = _to_array(indices)
    return _to_column(np.where(wanted < 0, _to_array(otherwise), _to_array(column)[wanted]))


def find_differences(some: Sequence[Column], others: Sequence[Column]) -> Column:
    """Find the rows where a column differs from its counterpart; not those that are UNKNOWN in the first column."""
    pairs = [(_to_array(one), _to_array(other)) for one, other in zip(some, others, strict=True)]
    is_different = np.logical_or.reduce([one != other for one, other in pairs])
    return _to_column(np.flatnonzero(is_different & (pairs[0][0] != UNKNOWN)))


class CohortIndex:
    """Groups, ready for looking up the spans of many blocks."""

    def __init__(self, groups: CohortGroups) -> None:
        self._keys = _SortKeys(groups.key_codes, groups.starts)
        self._key_codes, self._ends = _to_array(groups.key_codes), _to_array(groups.ends)
        self._sorted = self._keys.encode(groups.key_codes, groups.starts)

    def group_indices(self, key_codes: Column, starts: Column) -> Column:
        """The index of the group that each span belongs to; UNKNOWN where it is alone."""
        asked, first = _to_array(key_codes), _to_array(starts)
        if not len(self._sorted):
            return _to_column(np.full(len(asked), UNKNOWN))
        index = np.searchsorted(self._sorted, self._keys.encode(asked, first + 1)) - 1
        is_inside = (index >= 0) & (self._key_codes[index] == asked) & (first < self._ends[index])
        return _to_column(np.where(is_inside, index, UNKNOWN))


class SpanSums:
    """Counts by attribution key and moment, sorted once: the sum over a span is then two searches and a difference."""

    def __init__(self, key_codes: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._keys = _SortKeys(key_codes, moments)
        unsorted = self._keys.encode(key_codes, moments)
        order = np.argsort(unsorted, kind="stable")
        self._sorted = unsorted[order]
        self._order, self._key_codes = _to_column(order), _to_column(_to_array(key_codes)[order])
        self._moments = _to_column(_to_array(moments)[order])
        self._running = [_prefix_sums(_to_array(column)[order]) for column in counts]

    def rows(self, key_code: int, start: int, end: int) -> Column:
        """The indices of the rows of an attribution key in a span, by moment."""
        first, last = self._row_range(key_code, start, end)
        return self._order[first:last]

    def count(self, key_code: int, start: int, end: int) -> int:
        """How many rows an attribution key has in a span."""
        first, last = self._row_range(key_code, start, end)
        return last - first

    def totals(self, key_codes: Column, starts: Column, ends: Column) -> tuple[Column, ...]:
        """For each attribution key and span the sum of every count, in the order of the columns given."""
        first = np.searchsorted(self._sorted, self._keys.encode(key_codes, starts))
        last = np.maximum(first, np.searchsorted(self._sorted, self._keys.encode(key_codes, ends)))
        return tuple(_to_column(_span_sums(known, unknown, first, last)) for known, unknown in self._running)

    def _row_range(self, key_code: int, start: int, end: int) -> tuple[int, int]:
        low, high = bisect_left(self._key_codes, key_code), bisect_right(self._key_codes, key_code)
        return bisect_left(self._moments, start, low, high), bisect_left(self._moments, end, low, high)


class _SortKeys:
    """One integer for an attribution key and a moment, which sorts as both."""

    def __init__(self, key_codes: Column, moments: Column) -> None:
        known = _to_array(moments)
        self._first = int(known.min()) if len(known) else 0
        # One more than the last: a later moment sorts after all of its attribution key, and before the next.
        self._stride = int(known.max()) - self._first + 2 if len(known) else 2
        self._ranks: Numbers | None = None
        self._widest = int(np.abs(_to_array(key_codes)).max()) + 2 if key_codes else 2
        """Beyond all key codes; a code that no row has is as good as this one."""
        if self._widest * self._stride >= _LARGEST:
            # Moments too far apart for 64 bits are replaced by their ranks, which sort the same.
            self._ranks = np.unique(known)
            self._first, self._stride = 0, len(self._ranks) + 1

    def encode(self, key_codes: "Column | Numbers", moments: "Column | Numbers") -> Numbers:
        places = _to_array(moments)
        if self._ranks is not None:
            places = np.searchsorted(self._ranks, places)
        codes = np.clip(_to_array(key_codes), -self._widest, self._widest)
        return codes * self._stride + np.clip(places - self._first, 0, self._stride - 1)


def _find_group_starts(
    keys: _SortKeys, key_codes: Column, starts: Column, ends: Column
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """Sort spans by attribution key and start, and mark those that begin a group."""
    begin = keys.encode(key_codes, starts)
    order = np.argsort(begin, kind="stable")
    begin = begin[order]
    # The ends of an attribution key sort before the starts of the next one, so the highest so far runs through all.
    until = np.maximum.accumulate(keys.encode(key_codes, ends)[order])
    is_first = np.ones(len(order), np.bool_)
    np.greater_equal(begin[1:], until[:-1], out=is_first[1:])
    return order, is_first


def _prefix_sums(column: Numbers) -> tuple[Numbers, Numbers | None]:
    """The sums up to each row, and how many rows up to there are unknown; None where all are known."""
    is_unknown = column < 0
    unknown = np.concatenate(([0], np.cumsum(is_unknown))) if is_unknown.any() else None
    return np.concatenate(([0], np.cumsum(_summable(np.where(is_unknown, 0, column))))), unknown


def _span_sums(known: Numbers, unknown: Numbers | None, first: Numbers, last: Numbers) -> Numbers:
    found = np.minimum(known[last] - known[first], MOST_TOKENS)
    return found if unknown is None else np.where(unknown[last] > unknown[first], UNKNOWN, found)


def _sum_groups(column: Numbers, first: Numbers) -> Numbers:
    """The sums of the groups that begin at these rows."""
    if not len(first):
        return column
    total = np.minimum(np.add.reduceat(_summable(np.maximum(column, 0)), first), MOST_TOKENS)
    return np.where(np.minimum.reduceat(column, first) < 0, UNKNOWN, total)


def _summable(column: Numbers) -> Numbers:
    """The column; as Python's integers where a sum of it may exceed 64 bits."""
    is_small = not len(column) or int(column.max()) * len(column) < _LARGEST
    return column if is_small else column.astype(object)


def _to_array(column: "Column | Numbers") -> Numbers:
    """A copy of the column: an array cannot grow while a view of it is alive anywhere, in a kept frame for example."""
    return column if isinstance(column, np.ndarray) else np.array(column, np.int64)


def _to_column(numbers: Numbers) -> Column:
    column = array("q")
    column.frombytes(numbers.astype(np.int64, copy=False).tobytes())
    return column
