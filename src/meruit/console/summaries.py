"""Numbers of evaluations, counted once for each state of an evaluation."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meruit.evaluations.compare import EvaluationComparison
from meruit.evaluations.evaluation import CaseSummary, EvaluationRecord
from meruit.evaluations.reader import Evaluations
from meruit.evaluations.summary import OPEN, EvaluationSummary
from meruit.store.lru import LruCache

MAX_KEPT = 256
MAX_PAIRED = 8
"""Pairs of evaluations whose cases are kept side by side; one may have 50,000."""
COUNTED_IN_LISTS = 20_000
"""A list counts evaluations up to this size; a larger one is counted once it was opened."""
SCORE_STEPS = 10


@dataclass(frozen=True, slots=True)
class Counted:
    """The numbers of an evaluation, and what its filters count."""

    summary: EvaluationSummary
    scores: tuple[int, ...]
    """Judged cases by score, in ten steps."""
    faults: dict[str, int]
    """Cases that did not pass, by who is at fault."""


@dataclass(frozen=True, slots=True)
class CasePair:
    """One case in two evaluations."""

    case_id: str
    first: CaseSummary
    second: CaseSummary
    change: str
    """`fixed`, `broken`, `both pass`, `both fail` or `not judged`."""
    difference: float
    """The second score less the first."""


_counted = LruCache[tuple[str, int], Counted](MAX_KEPT)
_paired = LruCache[tuple[tuple[str, int], tuple[str, int]], Sequence[CasePair]](MAX_PAIRED)
_compared = LruCache[tuple[tuple[str, int], ...], list[EvaluationComparison]](MAX_KEPT)


def _state_of(evaluation: EvaluationRecord) -> tuple[str, int]:
    # Cases are only added, so their number says whether something changed.
    return evaluation.id, evaluation.cases


def find_counted(evaluation: EvaluationRecord) -> Counted | None:
    """The numbers of an evaluation, if they were counted before."""
    return _counted.get(_state_of(evaluation))


def count(evaluations: Evaluations, evaluation: EvaluationRecord) -> Counted:
    """The numbers of an evaluation."""
    known = find_counted(evaluation)
    if known is not None:
        return known
    scores, faults = [0] * SCORE_STEPS, Counter[str]()
    for case in evaluations.cases(evaluation):
        if case.verdict not in OPEN:
            scores[min(int(case.score * SCORE_STEPS), SCORE_STEPS - 1)] += 1
        if not case.success:
            faults.update(str(fault) for fault in case.faults)
    made = Counted(evaluations.summary(evaluation), tuple(scores), dict(faults))
    _counted.put(_state_of(evaluation), made)
    return made


def count_listed(evaluations: Evaluations, listed: Sequence[EvaluationRecord]) -> dict[str, Counted]:
    """The numbers of the evaluations of a list, but for the large ones that were not opened yet."""
    found: dict[str, Counted] = {}
    for one in listed:
        known = find_counted(one)
        if known is None and 0 < one.cases <= COUNTED_IN_LISTS:
            known = count(evaluations, one)
        if known is not None:
            found[one.id] = known
    return found


def compare(
    evaluations: Evaluations, first: EvaluationRecord, others: Sequence[EvaluationRecord]
) -> list[EvaluationComparison]:
    """Each of the others against the first."""
    key = tuple(_state_of(one) for one in (first, *others))
    known = _compared.get(key)
    if known is None:
        known = evaluations.compare_several(first, others)
        _compared.put(key, known)
    return known


def pair_cases(evaluations: Evaluations, first: EvaluationRecord, second: EvaluationRecord) -> Sequence[CasePair]:
    """The first try of each case that both have."""
    key = (_state_of(first), _state_of(second))
    known = _paired.get(key)
    if known is None:
        known = _pair_cases(evaluations, first, second)
        _paired.put(key, known)
    return known


def _pair_cases(evaluations: Evaluations, first: EvaluationRecord, second: EvaluationRecord) -> list[CasePair]:
    one = {case.case_id: case for case in evaluations.cases(first) if case.repeat == 0}
    return [
        CasePair(
            case_id=case.case_id,
            first=before,
            second=case,
            change=_change(before, case),
            difference=case.score - before.score,
        )
        for case in evaluations.cases(second)
        if case.repeat == 0 and (before := one.get(case.case_id)) is not None
    ]


def _change(first: CaseSummary, second: CaseSummary) -> str:
    if first.verdict in OPEN or second.verdict in OPEN:
        return "not judged"
    if first.success == second.success:
        return "both pass" if first.success else "both fail"
    return "fixed" if second.success else "broken"
