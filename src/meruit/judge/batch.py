"""Judges many works at once, column by column, with the same plan and results as one by one.

Needs numpy (`pip install meruit[bulk]`). Columns only say which criteria each work meets; works that meet the same
ones share an outcome, which is computed once by the very function that judges a single work. So the two cannot
differ, and a million rows cost what a few distinct outcomes cost, plus a few comparisons each.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from meruit.errors import BatchUnsupported
from meruit.judge.aggregate import aggregate
from meruit.judge.compare import EXACT_INTEGERS, Bracket, FloatInterval
from meruit.judge.plan import CriterionRule, Plan
from meruit.model.verdict import Status, Verdict

BLOCK_ROWS = 65_536
"""Rows compared at a time, so that a block stays in the processor's cache."""
MAX_CRITERIA = 39
"""The most criteria whose three states fit a 64-bit code."""
MAX_TABLE = 3**12
"""Up to this many possible combinations are looked up in a table; more are sorted, block by block."""

VERDICTS = (Verdict.FAIL, Verdict.PARTIAL, Verdict.PASS, Verdict.INCONCLUSIVE)

Codes = npt.NDArray[Any]
"""Integers of the smallest sufficient width."""


class BatchResult(NamedTuple):
    """One entry a work, in the order of the columns."""

    success: npt.NDArray[np.bool_]
    verdict: npt.NDArray[np.int8]
    """An index into VERDICTS."""
    low: npt.NDArray[np.float64]
    high: npt.NDArray[np.float64]
    bonus_micros: npt.NDArray[np.int64]
    penalty_micros: npt.NDArray[np.int64]
    states: npt.NDArray[np.uint8]
    """One row a criterion: 0 not met, 1 met, 2 unknown."""


class _CriterionState(msgspec.Struct, frozen=True):
    """A criterion's state in one combination, as the tally reads it."""

    status: Status
    exact: str


_NOT_MET, _MET, _UNKNOWN = range(3)
_STATE_BY_CODE = {
    _NOT_MET: _CriterionState(Status.NOT_MET, "0"),
    _MET: _CriterionState(Status.MET, "1"),
    _UNKNOWN: _CriterionState(Status.INDETERMINATE, "0"),
}
_EXCLUDED = _CriterionState(Status.EXCLUDED, "0")


_DTYPES: tuple[type[np.generic], ...] = (np.bool_, np.int8, np.float64, np.float64, np.int64, np.int64)
"""Of success, verdict, low, high, bonus and penalty."""


class _Question(NamedTuple):
    """A criterion, its interval, and its column of values."""

    rule: CriterionRule
    bracket: Bracket
    values: npt.NDArray[Any]


def judge_columns(plan: Plan, columns: Mapping[str, Any]) -> BatchResult:
    """Judge many works from their metrics: one column per metric, NaN or None where a value is missing."""
    questions = _questions(plan, columns)
    rows = len(questions[0].values)
    states = np.empty((len(questions), rows), np.uint8)
    arrays: list[npt.NDArray[Any]] = [np.empty(rows, dtype) for dtype in _DTYPES]
    outcomes = _OutcomeTables(plan, 3 ** len(questions))
    for block in _blocks(rows):
        which = outcomes.places(_codes(questions, block, states))
        for table, array in zip(outcomes.tables, arrays, strict=True):
            # Written in place: a temporary array of this size would cost more than reading the table.
            table.take(which, out=array[block], mode="clip")
    success, verdict, low, high, bonus, penalty = arrays
    return BatchResult(
        success=success, verdict=verdict, low=low, high=high, bonus_micros=bonus, penalty_micros=penalty, states=states
    )


class _OutcomeTables:
    """The outcomes of the combinations that occurred so far: one table for each array of the result."""

    def __init__(self, plan: Plan, possible: int) -> None:
        self._plan = plan
        self._is_direct = possible <= MAX_TABLE
        """Whether a combination's code is its place; otherwise places are given in the order of occurrence."""
        self._known = np.zeros(possible if self._is_direct else 0, np.bool_)
        self._places: dict[int, int] = {}
        self.tables: list[npt.NDArray[Any]] = [np.zeros(len(self._known), dtype) for dtype in _DTYPES]

    def places(self, codes: Codes) -> Codes:
        """Where the outcomes of a block's combinations are; what did not occur before is judged now."""
        if self._is_direct:
            if not self._known.take(codes).all():
                for code in np.unique(codes[~self._known.take(codes)]).tolist():
                    self._known[code] = True
                    for table, value in zip(self.tables, _outcome(self._plan, code), strict=True):
                        table[code] = value
            # Once, and not in each of six lookups.
            return codes.astype(np.intp)
        distinct, inverse = np.unique(codes, return_inverse=True)
        new = [code for code in distinct.tolist() if code not in self._places]
        if new:
            self._places.update(zip(new, range(len(self._places), len(self._places) + len(new)), strict=True))
            columns = zip(*(_outcome(self._plan, code) for code in new), strict=True)
            self.tables = [
                np.concatenate((table, np.array(column, table.dtype)))
                for table, column in zip(self.tables, columns, strict=True)
            ]
        found = np.array([self._places[code] for code in distinct.tolist()], np.intp)
        return found[inverse]


def _questions(plan: Plan, columns: Mapping[str, Any]) -> list[_Question]:
    if not plan.rules or len(plan.rules) > MAX_CRITERIA:
        raise BatchUnsupported(f"columns support 1 to {MAX_CRITERIA} criteria, not {len(plan.rules)}; judge one by one")
    arrays: dict[str, npt.NDArray[Any]] = {}
    questions: list[_Question] = []
    for rule in plan.rules:
        if rule.bracket is None:
            raise BatchUnsupported(f"criterion {rule.id!r} does not compare numbers; judge one by one")
        if rule.slot not in columns:
            raise BatchUnsupported(f"the column {rule.slot!r} is missing")
        if rule.slot not in arrays:
            arrays[rule.slot] = _array(rule.slot, columns[rule.slot])
        questions.append(_Question(rule=rule, bracket=rule.bracket, values=arrays[rule.slot]))
    lengths = {len(array) for array in arrays.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise BatchUnsupported(f"the columns must be of one length above 0, not {sorted(lengths)}")
    return questions


def _array(name: str, column: Any) -> npt.NDArray[Any]:
    """The column as numbers or truth values; refuses values that a single judgement would refuse."""
    if isinstance(column, np.ma.MaskedArray):
        column = np.ma.filled(column.astype(np.float64), np.nan)
    array = np.asarray(column)
    if array.ndim != 1:
        raise BatchUnsupported(f"column {name!r} has {array.ndim} dimensions, not 1")
    if array.dtype == np.bool_:
        return array
    if array.dtype.kind == "O":
        if not all(item is None or type(item) in (float, int) for item in array):
            raise BatchUnsupported(f"column {name!r} has values other than numbers and None; judge one by one")
        return np.array([np.nan if item is None or _too_large(item) else item for item in array], np.float64)
    if array.dtype.kind not in "iuf":
        raise BatchUnsupported(f"column {name!r} has the type {array.dtype}, which is not numeric; judge one by one")
    if array.dtype.kind == "f":
        return array.astype(np.float64, copy=False)
    numbers = array.astype(np.float64)
    numbers[(array > EXACT_INTEGERS) | (array < -EXACT_INTEGERS)] = np.nan
    return numbers


def _too_large(item: float) -> bool:
    """Whether a number is too large to be an exact integer, as for a single value."""
    return isinstance(item, int) and abs(item) > EXACT_INTEGERS


def _codes(questions: list[_Question], block: slice, states: npt.NDArray[np.uint8]) -> Codes:
    """Each work's states as one number in base three; the states of each criterion are written to `states`."""
    possible = 3 ** len(questions)
    code: Codes = np.zeros(block.stop - block.start, np.uint16 if possible <= np.iinfo(np.uint16).max else np.uint64)
    for number, (_, bracket, values) in enumerate(questions):
        state = _compare(values[block], bracket)
        states[number, block] = state
        code *= 3
        code += state
    return code


def _blocks(rows: int) -> Iterator[slice]:
    for start in range(0, rows, BLOCK_ROWS):
        yield slice(start, min(start + BLOCK_ROWS, rows))


def _compare(values: npt.NDArray[Any], bracket: Bracket) -> npt.NDArray[np.uint8]:
    """The state of each value; values that cannot be judged are found before comparing."""
    if values.dtype == np.bool_:
        if not bracket.yes_or_no:
            return np.full(len(values), _UNKNOWN, np.uint8)
        values = values.astype(np.float64)
    # No comparison with NaN is true, so a missing value is never known.
    known = _inside(values, bracket.possible)
    if bracket.whole:
        known &= values == np.floor(values)
    met = _inside(values, bracket.meets)
    if bracket.meets.negated:
        np.logical_not(met, out=met)
    # Met is 1 and unknown 2: adding bytes is faster than selecting by a mask.
    met &= known
    state: npt.NDArray[np.uint8] = met.view(np.uint8)
    state += np.logical_not(known).view(np.uint8) * np.uint8(_UNKNOWN)
    return state


def _inside(values: npt.NDArray[np.float64], interval: FloatInterval) -> npt.NDArray[np.bool_]:
    """Which values are in the interval; an infinite end is not compared."""
    if interval.high == math.inf:
        return values >= interval.low
    inside = values <= interval.high
    if interval.low != -math.inf:
        inside &= values >= interval.low
    return inside


def _outcome(plan: Plan, code: int) -> tuple[bool, int, float, float, int, int]:
    """One combination of met, not met and unknown, judged like a single work."""
    held: list[_CriterionState] = []
    for rule in reversed(plan.rules):
        code, state = divmod(code, 3)
        held.append(_EXCLUDED if state == _UNKNOWN and rule.excludable else _STATE_BY_CODE[state])
    whole = aggregate(plan, list(zip(plan.rules, reversed(held), strict=True)))
    bounds = whole.bounds
    return whole.success, VERDICTS.index(whole.verdict), bounds.low, bounds.high, whole.bonus, whole.penalty
