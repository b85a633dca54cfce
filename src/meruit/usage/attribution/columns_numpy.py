"""Columns of integers by numpy; each result is what `columns.Plain` gives, one by one.

A lane and a moment become one integer, so that sorting and searching by both is sorting and searching by one. Columns
for which that integer, or a sum, would not fit 64 bits go the plain way.
"""

from array import array
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from meruit.model.chat import MOST_TOKENS
from meruit.usage.attribution.columns import OPEN, UNKNOWN, Column, Found, Groups, Plain, Sums, between

Numbers = npt.NDArray[np.int64]
_LARGEST = 2**62
_PLAIN = Plain()


class Swift:
    """Whole columns at a time."""

    def windows(self, starts: Column, ends: Column, width: int, guard: int) -> tuple[Column, Column]:
        """See Arithmetic."""
        begun = _numbers(starts)
        ended = np.maximum(begun, _numbers(ends))
        closed = np.where(ended >= OPEN, OPEN, -(-ended // width) * width + guard)
        return _column(begun - begun % width), _column(closed)

    def cohorts(self, lanes: Column, starts: Column, ends: Column) -> Column:
        """See Arithmetic."""
        keys = _Keys.over(lanes, starts)
        if keys is None:
            return _PLAIN.cohorts(lanes, starts, ends)
        order, new = _joined(keys, lanes, starts, ends)
        numbers = np.empty(len(order), np.int64)
        numbers[order] = np.cumsum(new) - 1
        return _column(numbers)

    def groups(self, lanes: Column, starts: Column, ends: Column, counts: Sequence[Column]) -> Groups:
        """See Arithmetic."""
        keys = _Keys.over(lanes, starts)
        if keys is None or not all(_fits(_numbers(column)) for column in counts):
            return _PLAIN.groups(lanes, starts, ends, counts)
        order, new = _joined(keys, lanes, starts, ends)
        first = np.flatnonzero(new)
        runs = np.diff(first, append=len(order))
        shared = runs > 1
        places = np.empty(len(order), np.int64)
        places[order] = np.where(shared, np.cumsum(shared) - 1, UNKNOWN)[np.cumsum(new) - 1]
        until = np.maximum.reduceat(_numbers(ends)[order], first)
        return Groups(
            _column(_numbers(lanes)[order[first[shared]]]),
            _column(_numbers(starts)[order[first[shared]]]),
            _column(until[shared]),
            _column(runs[shared]),
            tuple(_column(_added(_numbers(column)[order], first)[shared]) for column in counts),
            _column(places),
        )

    def found(self, groups: Groups) -> Found:
        """See Arithmetic."""
        keys = _Keys.over(groups.lanes, groups.starts)
        return _PLAIN.found(groups) if keys is None else _SwiftFound(keys, groups)

    def sums(self, lanes: Column, moments: Column, counts: Sequence[Column]) -> Sums:
        """See Arithmetic."""
        keys = _Keys.over(lanes, moments)
        if keys is None or not all(_fits(_numbers(column)) for column in counts):
            return _PLAIN.sums(lanes, moments, counts)
        return _SwiftSums(keys, lanes, moments, counts)

    def taken(self, column: Column, places: Column, otherwise: Column) -> Column:
        """See Arithmetic."""
        if not column:
            return otherwise
        wanted = _numbers(places)
        return _column(np.where(wanted < 0, _numbers(otherwise), _numbers(column)[wanted]))

    def differing(self, some: Sequence[Column], others: Sequence[Column]) -> Column:
        """See Arithmetic."""
        pairs = [(_numbers(one), _numbers(other)) for one, other in zip(some, others, strict=True)]
        differ = np.logical_or.reduce([one != other for one, other in pairs])
        return _column(np.flatnonzero(differ & (pairs[0][0] != UNKNOWN)))


class _Keys:
    """How a lane and a moment become one integer that sorts as both."""

    def __init__(self, first: int, stride: int) -> None:
        self._first, self._stride = first, stride

    @classmethod
    def over(cls, lanes: Column, moments: Column) -> "_Keys | None":
        """For these; None where there are none, or the integers would be too large."""
        if not lanes:
            return None
        known = _numbers(moments)
        first, last = int(known.min()), int(known.max())
        # One more than the last: what comes later stands after all of its lane, and before the next.
        stride = last - first + 2
        widest = int(np.abs(_numbers(lanes)).max()) + 2
        return cls(first, stride) if widest * stride < _LARGEST else None

    def of(self, lanes: "Column | Numbers", moments: "Column | Numbers") -> Numbers:
        return _numbers(lanes) * self._stride + np.clip(_numbers(moments) - self._first, 0, self._stride - 1)


class _SwiftFound:
    """One search for all spans of a block."""

    def __init__(self, keys: _Keys, groups: Groups) -> None:
        self._keys = keys
        self._lanes, self._ends = _numbers(groups.lanes), _numbers(groups.ends)
        self._sorted = keys.of(groups.lanes, groups.starts)

    def places(self, lanes: Column, starts: Column) -> Column:
        """See Found."""
        asked, begun = _numbers(lanes), _numbers(starts)
        place = np.searchsorted(self._sorted, self._keys.of(asked, begun + 1)) - 1
        inside = (place >= 0) & (self._lanes[place] == asked) & (begun < self._ends[place])
        return _column(np.where(inside, place, UNKNOWN))


class _SwiftSums:
    """Sorted once; spans are then two searches and a difference, all of them together."""

    def __init__(self, keys: _Keys, lanes: Column, moments: Column, counts: Sequence[Column]) -> None:
        self._keys = keys
        unsorted = keys.of(lanes, moments)
        order = np.argsort(unsorted, kind="stable")
        self._sorted = unsorted[order]
        self._order, self._lanes = _column(order), _column(_numbers(lanes)[order])
        self._moments = _column(_numbers(moments)[order])
        self._running = [_running(_numbers(column)[order]) for column in counts]

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
        first = np.searchsorted(self._sorted, self._keys.of(lanes, starts))
        last = np.maximum(first, np.searchsorted(self._sorted, self._keys.of(lanes, ends)))
        return tuple(_column(_differences(known, unknown, first, last)) for known, unknown in self._running)


def _joined(keys: _Keys, lanes: Column, starts: Column, ends: Column) -> tuple[Numbers, npt.NDArray[np.bool_]]:
    """The places of spans by lane and start, and which of them begin a group."""
    begun = keys.of(lanes, starts)
    order = np.argsort(begun, kind="stable")
    begun = begun[order]
    # A lane's ends lie before the next lane's starts: the highest so far needs no beginning anew.
    until = np.maximum.accumulate(keys.of(lanes, ends)[order])
    new = np.ones(len(order), np.bool_)
    np.greater_equal(begun[1:], until[:-1], out=new[1:])
    return order, new


def _running(column: Numbers) -> tuple[Numbers, Numbers | None]:
    unknown = column < 0
    some = np.concatenate(([0], np.cumsum(unknown))) if unknown.any() else None
    return np.concatenate(([0], np.cumsum(np.where(unknown, 0, column)))), some


def _differences(known: Numbers, unknown: Numbers | None, first: Numbers, last: Numbers) -> Numbers:
    found = np.minimum(known[last] - known[first], MOST_TOKENS)
    return found if unknown is None else np.where(unknown[last] > unknown[first], UNKNOWN, found)


def _added(column: Numbers, first: Numbers) -> Numbers:
    """The sums of what begins at these places."""
    total = np.minimum(np.add.reduceat(np.maximum(column, 0), first), MOST_TOKENS)
    return np.where(np.minimum.reduceat(column, first) < 0, UNKNOWN, total)


def _fits(column: Numbers) -> bool:
    """Whether no sum of these can be too large."""
    return not len(column) or int(column.max()) * len(column) < _LARGEST


def _numbers(column: "Column | Numbers") -> Numbers:
    """A view where the memory is laid out for it, else a copy."""
    if isinstance(column, np.ndarray):
        return column
    return np.frombuffer(column, np.int64) if column else np.zeros(0, np.int64)


def _column(numbers: Numbers) -> Column:
    column = array("q")
    column.frombytes(numbers.astype(np.int64, copy=False).tobytes())
    return column
