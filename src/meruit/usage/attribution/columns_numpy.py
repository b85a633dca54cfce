"""Columns of integers by numpy; each result is what `columns.Plain` gives, one by one.

An attribution key and a moment become one integer, so that sorting and searching by both is sorting and searching by one. Columns
for which that integer, or a sum, would not fit 64 bits go the plain way.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meruit.model.chat import MOST_TOKENS
from meruit.usage.attribution.columns import (
    OPEN,
    UNKNOWN,
    CohortGroups,
    CohortIndex,
    Column,
    ReferenceColumns,
    SpanSums,
    row_range,
)

Numbers = npt.NDArray[np.int64]
_LARGEST = 2**62
_REFERENCE = ReferenceColumns()


class NumpyColumns:
    """Whole columns at a time."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """See Arithmetic."""
        begun = _to_array(starts)
        ended = np.maximum(begun, _to_array(ends))
        closed = np.where(ended >= OPEN, OPEN, -(-ended // width) * width + guard)
        return _to_column(begun - begun % width), _to_column(closed)

    def cohorts(self, attribution_keys: Column, starts: Column, ends: Column) -> Column:
        """See Arithmetic."""
        keys = _SortKeys.build(attribution_keys, starts)
        if keys is None:
            return _REFERENCE.cohorts(attribution_keys, starts, ends)
        order, new = _find_group_starts(keys, attribution_keys, starts, ends)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(new) - 1
        return _to_column(numbers)

    def groups(self, attribution_keys: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> CohortGroups:
        """See Arithmetic."""
        keys = _SortKeys.build(attribution_keys, starts)
        if keys is None or not all(_can_sum(_to_array(column)) for column in counts):
            return _REFERENCE.groups(attribution_keys, starts, ends, counts)
        order, new = _find_group_starts(keys, attribution_keys, starts, ends)
        first = np.flatnonzero(new)
        runs = np.diff(first, append=len(order))
        shared = runs > 1
        places = np.empty(len(order), np.int64)
        places[order] = np.where(shared, np.cumsum(shared) - 1, UNKNOWN)[np.cumsum(new) - 1]
        until = np.maximum.reduceat(_to_array(ends)[order], first)
        return CohortGroups(
            _to_column(_to_array(attribution_keys)[order[first[shared]]]),
            _to_column(_to_array(starts)[order[first[shared]]]),
            _to_column(until[shared]),
            _to_column(runs[shared]),
            tuple(_to_column(_sum_groups(_to_array(column)[order], first)[shared]) for column in counts),
            _to_column(places),
        )

    def index_groups(self, groups: CohortGroups) -> CohortIndex:
        """See Arithmetic."""
        keys = _SortKeys.build(groups.key_codes, groups.starts)
        return _REFERENCE.index_groups(groups) if keys is None else _NumpyCohortIndex(keys, groups)

    def sums(self, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> SpanSums:
        """See Arithmetic."""
        keys = _SortKeys.build(attribution_keys, moments)
        if keys is None or not all(_can_sum(_to_array(column)) for column in counts):
            return _REFERENCE.sums(attribution_keys, moments, counts)
        return _NumpySums(keys, attribution_keys, moments, counts)

    def take(self, column: Column, places: Column, otherwise: Column) -> Column:
        """See Arithmetic."""
        if not column:
            return otherwise
        wanted = _to_array(places)
        return _to_column(np.where(wanted < 0, _to_array(otherwise), _to_array(column)[wanted]))

    def find_differences(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """See Arithmetic."""
        pairs = [(_to_array(one), _to_array(other)) for one, other in zip(some, others, strict=True)]
        differ = np.logical_or.reduce([one != other for one, other in pairs])
        return _to_column(np.flatnonzero(differ & (pairs[0][0] != UNKNOWN)))


class _SortKeys:
    """How an attribution key and a moment become one integer that sorts as both."""

    def __init__(self, first: int, stride: int) -> None:
        self._first, self._stride = first, stride

    @classmethod
    def build(cls, attribution_keys: Column, moments: Column) -> "_SortKeys | None":
        """For these; None where there are none, or the integers would be too large."""
        if not attribution_keys:
            return None
        known = _to_array(moments)
        first, last = int(known.min()), int(known.max())
        # One more than the last: what comes later stands after all of its attribution key, and before the next.
        stride = last - first + 2
        widest = int(np.abs(_to_array(attribution_keys)).max()) + 2
        return cls(first, stride) if widest * stride < _LARGEST else None

    def encode(self, attribution_keys: "Column | Numbers", moments: "Column | Numbers") -> Numbers:
        return _to_array(attribution_keys) * self._stride + np.clip(
            _to_array(moments) - self._first, 0, self._stride - 1
        )


class _NumpyCohortIndex:
    """One search for all spans of a block."""

    def __init__(self, keys: _SortKeys, groups: CohortGroups) -> None:
        self._keys = keys
        self._key_codes, self._ends = _to_array(groups.key_codes), _to_array(groups.ends)
        self._sorted = keys.encode(groups.key_codes, groups.starts)

    def group_indices(self, attribution_keys: Column, starts: Column) -> Column:
        """See Found."""
        asked, begun = _to_array(attribution_keys), _to_array(starts)
        place = np.searchsorted(self._sorted, self._keys.encode(asked, begun + 1)) - 1
        inside = (place >= 0) & (self._key_codes[place] == asked) & (begun < self._ends[place])
        return _to_column(np.where(inside, place, UNKNOWN))


class _NumpySums:
    """Sorted once; spans are then two searches and a difference, all of them together."""

    def __init__(self, keys: _SortKeys, attribution_keys: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._keys = keys
        unsorted = keys.encode(attribution_keys, moments)
        order = np.argsort(unsorted, kind="stable")
        self._sorted = unsorted[order]
        self._order, self._key_codes = _to_column(order), _to_column(_to_array(attribution_keys)[order])
        self._moments = _to_column(_to_array(moments)[order])
        self._running = [_prefix_sums(_to_array(column)[order]) for column in counts]

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
        first = np.searchsorted(self._sorted, self._keys.encode(attribution_keys, starts))
        last = np.maximum(first, np.searchsorted(self._sorted, self._keys.encode(attribution_keys, ends)))
        return tuple(_to_column(_span_sums(known, unknown, first, last)) for known, unknown in self._running)


def _find_group_starts(
    keys: _SortKeys, attribution_keys: Column, starts: Column, ends: Column
) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The places of spans by attribution key and start, and which of them begin a group."""
    begun = keys.encode(attribution_keys, starts)
    order = np.argsort(begun, kind="stable")
    begun = begun[order]
    # An attribution key's ends lie before the next attribution key's starts: the highest so far needs no beginning anew.
    until = np.maximum.accumulate(keys.encode(attribution_keys, ends)[order])
    new = np.ones(len(order), np.bool_)
    np.greater_equal(begun[1:], until[:-1], out=new[1:])
    return order, new


def _prefix_sums(column: Numbers) -> tuple[Numbers, Numbers | None]:
    unknown = column < 0
    some = np.concatenate(([0], np.cumsum(unknown))) if unknown.any() else None
    return np.concatenate(([0], np.cumsum(np.where(unknown, 0, column)))), some


def _span_sums(known: Numbers, unknown: Numbers | None, first: Numbers, last: Numbers) -> Numbers:
    found = np.minimum(known[last] - known[first], MOST_TOKENS)
    return found if unknown is None else np.where(unknown[last] > unknown[first], UNKNOWN, found)


def _sum_groups(column: Numbers, first: Numbers) -> Numbers:
    """The sums of what begins at these places."""
    total = np.minimum(np.add.reduceat(np.maximum(column, 0), first), MOST_TOKENS)
    return np.where(np.minimum.reduceat(column, first) < 0, UNKNOWN, total)


def _can_sum(column: Numbers) -> bool:
    """Whether no sum of these can be too large."""
    return not len(column) or int(column.max()) * len(column) < _LARGEST


def _to_array(column: "Column | Numbers") -> Numbers:
    """A view where the memory is laid out for it, else a copy."""
    if isinstance(column, np.ndarray):
        return column
    return np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)


def _to_column(numbers: Numbers) -> Column:
    column = array("q")
    column.frombytes(numbers.astype(np.int64, copy=False).tobytes())
    return column
