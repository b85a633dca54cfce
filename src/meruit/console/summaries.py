"""Numbers of evaluations, counted once for each state of an evaluation."""

from bisect import bisect_left, bisect_right
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import chain

from meruit.console.background import Progress
from meruit.evaluations.compare import CaseChange, EvaluationComparison
from meruit.evaluations.evaluation import EvaluationRecord
from meruit.evaluations.reader import CaseFilter, Evaluations
from meruit.evaluations.summary import EvaluationFigures
from meruit.store.lru import LruCache

MAX_KEPT = 256
MAX_PAIRED = 8
"""Pairs of evaluations whose cases are kept side by side; one may have 50,000."""
MAX_WALKED = 200_000
"""Cases of an evaluation that can be walked through one by one."""
MAX_POSITIONS = 2_000_000
"""Positions of cases that are kept, of all evaluations."""
COUNTED_IN_LISTS = 1_000
"""A list counts evaluations up to this size itself; larger ones are counted beside it."""


@dataclass(frozen=True, slots=True)
class PairedCases:
    """The cases of two evaluations by what became of them, each list from the largest loss to the largest gain."""

    by_change: dict[str, list[CaseChange]]

    def count(self, change: str) -> int:
        """How many cases changed so."""
        return len(self.by_change.get(change, ()))

    def choose(self, changes: Sequence[str]) -> Sequence[CaseChange]:
        """The cases that changed in one of these ways; all of them where none is named."""
        chosen = [several for name, several in self.by_change.items() if not changes or name in changes]
        return chosen[0] if len(chosen) == 1 else sorted(chain.from_iterable(chosen), key=_by_difference)

    def find(self, case_id: str) -> CaseChange | None:
        """One case; None where it is not in both."""
        return next((one for several in self.by_change.values() for one in several if one.case_id == case_id), None)


_counted = LruCache[tuple[str, int], EvaluationFigures](MAX_KEPT)
_paired = LruCache[tuple[tuple[str, int], tuple[str, int]], PairedCases](MAX_PAIRED)
_compared = LruCache[tuple[tuple[str, int], ...], list[EvaluationComparison]](MAX_KEPT)


def state_of(evaluation: EvaluationRecord) -> tuple[str, int]:
    """What the figures of an evaluation depend on."""
    # Cases are only added, so their number says whether something changed.
    return evaluation.id, evaluation.cases


def key_of(evaluation: EvaluationRecord) -> Hashable:
    """The key of figures that are computed beside a page: those of a running evaluation change while they are."""
    return evaluation.id if evaluation.ended_at is None else state_of(evaluation)


def find_counted(evaluation: EvaluationRecord) -> EvaluationFigures | None:
    """The numbers of an evaluation, if they were counted before."""
    return _counted.get(state_of(evaluation))


def count(
    evaluations: Evaluations, evaluation: EvaluationRecord, progress: Progress | None = None
) -> EvaluationFigures:
    """The numbers of an evaluation."""
    known = find_counted(evaluation)
    if known is not None:
        return known
    made = evaluations.figures(evaluation, *(() if progress is None else (progress.advance,)))
    _counted.put(state_of(evaluation), made)
    return made


def count_listed(evaluations: Evaluations, listed: Sequence[EvaluationRecord]) -> dict[str, EvaluationFigures]:
    """The numbers of the evaluations of a list that are known or soon counted; large ones are counted beside it."""
    found: dict[str, EvaluationFigures] = {}
    for one in listed:
        known = find_counted(one)
        if known is None and one.cases <= COUNTED_IN_LISTS:
            known = count(evaluations, one)
        elif known is None and (known := evaluations.find_figures(one)) is not None:
            _counted.put(state_of(one), known)
        if known is not None:
            found[one.id] = known
    return found


def compare(
    evaluations: Evaluations, first: EvaluationRecord, others: Sequence[EvaluationRecord], progress: Progress
) -> list[EvaluationComparison]:
    """Each of the others against the first."""
    key = tuple(state_of(one) for one in (first, *others))
    known = _compared.get(key)
    if known is None:
        known = evaluations.compare_several(first, others, progress.advance)
        _compared.put(key, known)
    return known


def pair_cases(evaluations: Evaluations, first: EvaluationRecord, second: EvaluationRecord) -> PairedCases:
    """The first try of each case that both have."""
    key = (state_of(first), state_of(second))
    known = _paired.get(key)
    if known is None:
        by_change: dict[str, list[CaseChange]] = {}
        for one in sorted(evaluations.changes(first, second), key=_by_difference):
            by_change.setdefault(one.change, []).append(one)
        known = PairedCases(by_change)
        _paired.put(key, known)
    return known


@dataclass(frozen=True, slots=True)
class CaseNeighbours:
    """Where a case stands among those that a reader walks through."""

    place: int
    """Its number; 0 where it is not one of them."""
    total: int
    previous: str
    """The outcome of the one before; empty where there is none."""
    following: str


def find_neighbours(
    evaluations: Evaluations, evaluation: EvaluationRecord, wanted: CaseFilter, position: int
) -> CaseNeighbours | None:
    """The cases before and behind a position among those that fit; None where the evaluation is too large for it."""
    if evaluation.cases > MAX_WALKED:
        return None
    key = (state_of(evaluation), wanted)
    found = _positions.get_or_make(key, lambda: evaluations.positions(evaluation, wanted))
    before, behind = bisect_left(found, position), bisect_right(found, position)
    return CaseNeighbours(
        place=behind if behind > before else 0,
        total=len(found),
        previous=evaluations.case_at(evaluation, found[before - 1]).outcome_id if before else "",
        following=evaluations.case_at(evaluation, found[behind]).outcome_id if behind < len(found) else "",
    )


# Sequence: an array of the positions, in order.
_positions = LruCache[tuple[tuple[str, int], CaseFilter], Sequence[int]](
    MAX_KEPT, max_weight=MAX_POSITIONS, weigh=lambda one: float(len(one))
)


def _by_difference(one: CaseChange) -> tuple[float, str]:
    return one.difference, one.case_id
