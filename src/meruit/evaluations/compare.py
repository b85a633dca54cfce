"""Two evaluations, paired case by case: what changed, by how much, and whether chance alone could explain it. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec

from meruit.evaluations.evaluation import CaseSummary
from meruit.evaluations.summary import OPEN
from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.model.verdict import Verdict
from meruit.reports.statistics import (
    FEWEST_TASKS,
    Mean,
    cluster_robust_error,
    holm,
    mde,
    mean_of,
    mean_of_counts,
    t_p_value,
    t_quantile,
)

MOST_COMPARED = 4
"""Evaluations that are compared at once, the first included."""
SIGNIFICANT = 0.05
"""The level of all tests."""
LEAST_SPREAD = 1e-12
MOST_VALUES = 12
"""Values of one tag that are compared: a tag may be different in every case."""
TestName = TypeVar("TestName", bound=Hashable)
Pairs = TypeVar("Pairs")
_DECIDED = frozenset("mn")


class Difference(Record, frozen=True):
    """The second evaluation minus the first, over the cases that both judged."""

    cases: int
    groups: int
    first: float | None
    """The first one's share on these cases."""
    second: float | None
    difference: float | None
    interval: ConfidenceInterval | None
    """At 95 %."""
    p: float | None
    """The probability of a difference this large by chance."""
    p_holm: float | None
    """The same, allowing for all tests of its kind: those of the criteria, and those of several evaluations."""
    detectable: float | None
    """The smallest true difference that so many cases show in 80 % of tries."""
    why_not: str = ""
    """Why the interval is missing."""

    @property
    def is_significant(self) -> bool:
        """Whether chance alone is an unlikely explanation."""
        p = self.p if self.p_holm is None else self.p_holm
        return p is not None and p < SIGNIFICANT


class EvaluationComparison(Record, frozen=True):
    """Two evaluations, case by case."""

    first: str
    second: str
    overall: Difference
    criteria: Mapping[str, Difference]
    """Criteria that both have, by their id."""
    tags: Mapping[str, Mapping[str, Difference]]
    """Pass rates by the name and value of a tag: the MOST_VALUES values of each name that most cases have."""
    fixed: tuple[str, ...]
    """Cases that fail in the first and pass in the second."""
    broken: tuple[str, ...]
    """Cases that pass in the first and fail in the second."""
    open: int
    """Common cases that at least one of the two could not judge; they are not compared."""
    only_first: int
    """Cases that only the first has."""
    only_second: int
    sentence: str


class PairKind(Record, frozen=True):
    """Cases of two evaluations that statistics count alike: one try each, without groups."""

    times: int
    first: Verdict
    first_success: bool
    first_statuses: str
    second: Verdict
    second_success: bool
    second_statuses: str
    tags: Mapping[str, str]
    """As the second evaluation tags them."""


class CaseChange(Record, frozen=True):
    """What became of one case between two evaluations."""

    case_id: str
    change: str
    """`fixed`, `broken`, `both pass`, `both fail` or `not judged`."""
    difference: float
    """The second score less the first."""
    statuses: tuple[str, str]
    """One letter for each criterion, in the first and in the second."""


class _CaseMeans:
    """What is known of one case: its share of passes over repeats, and that of each criterion."""

    __slots__ = ("criteria", "group", "passed", "tags", "tries")

    def __init__(self, group: str, criteria: int, tags: Mapping[str, str]) -> None:
        self.group = group
        self.tags = tags
        self.tries = self.passed = 0
        self.criteria = [[0, 0] for _ in range(criteria)]


def compare_evaluations(
    first: tuple[str, Iterable[CaseSummary], Sequence[str]], second: tuple[str, Iterable[CaseSummary], Sequence[str]]
) -> EvaluationComparison:
    """Compare two evaluations, each given as its name, its cases, and the ids of its criteria in order."""
    (name_a, cases_a, criteria_a), (name_b, cases_b, criteria_b) = first, second
    one, other = _collect(cases_a, len(criteria_a)), _collect(cases_b, len(criteria_b))
    common = [case for case in one if case in other]
    judged = [case for case in common if one[case].tries and other[case].tries]
    overall = _difference([(_share(one[case]), _share(other[case]), other[case].group) for case in judged])
    places = {name: (criteria_a.index(name), criteria_b.index(name)) for name in criteria_a if name in criteria_b}
    by_criterion = {
        name: _difference(
            [
                (_share_of(one[case], a), _share_of(other[case], b), other[case].group)
                for case in common
                if one[case].criteria[a][0] and other[case].criteria[b][0]
            ]
        )
        for name, (a, b) in places.items()
    }
    return EvaluationComparison(
        first=name_a,
        second=name_b,
        overall=overall,
        criteria=_adjust(by_criterion),
        tags=_by_tag([(one[case], other[case]) for case in judged]),
        fixed=tuple(case for case in judged if _share(one[case]) < 0.5 <= _share(other[case])),
        broken=tuple(case for case in judged if _share(one[case]) >= 0.5 > _share(other[case])),
        open=len(common) - len(judged),
        only_first=len(one) - len(common),
        only_second=len(other) - len(common),
        sentence=_sentence(name_a, name_b, overall),
    )


def compare_counted(
    first: tuple[str, Sequence[str]],
    second: tuple[str, Sequence[str]],
    kinds: Sequence[PairKind],
    flips: Sequence[CaseChange],
    *,
    only_first: int,
    only_second: int,
) -> EvaluationComparison:
    """The same for cases that were counted by their kind; each evaluation is its name and the ids of its criteria."""
    (name_a, criteria_a), (name_b, criteria_b) = first, second
    overall, tags = Counter[tuple[bool, bool]](), dict[tuple[str, str], Counter[tuple[bool, bool]]]()
    places = {name: (criteria_a.index(name), criteria_b.index(name)) for name in criteria_a if name in criteria_b}
    by_criterion = {name: Counter[tuple[bool, bool]]() for name in places}
    open_ = 0
    for kind in kinds:
        for name, (a, b) in places.items():
            before, after = kind.first_statuses[a : a + 1], kind.second_statuses[b : b + 1]
            if before in _DECIDED and after in _DECIDED:
                by_criterion[name][before == "m", after == "m"] += kind.times
        if kind.first in OPEN or kind.second in OPEN:
            open_ += kind.times
            continue
        change = (kind.first_success, kind.second_success)
        overall[change] += kind.times
        for tag in kind.tags.items():
            tags.setdefault(tag, Counter())[change] += kind.times
    found = _count_difference(overall)
    return EvaluationComparison(
        first=name_a,
        second=name_b,
        overall=found,
        criteria=_adjust({name: _count_difference(counts) for name, counts in by_criterion.items()}),
        tags=_most_frequent({tag: (counts.total(), counts) for tag, counts in tags.items()}, _count_difference),
        fixed=tuple(one.case_id for one in flips if one.change == "fixed"),
        broken=tuple(one.case_id for one in flips if one.change == "broken"),
        open=open_,
        only_first=only_first,
        only_second=only_second,
        sentence=_sentence(name_a, name_b, found),
    )


def _count_difference(counts: Mapping[tuple[bool, bool], int]) -> Difference:
    """The mean difference over cases that are counted by whether they pass in the first and in the second."""
    number = sum(counts.values())
    if not number:
        return _difference([])
    first, second = (sum(times for pair, times in counts.items() if pair[place]) / number for place in (0, 1))
    changes = Counter[float]()
    for (before, after), times in counts.items():
        changes[float(after) - float(before)] += times
    return _of_mean(mean_of_counts(changes), first, second)


def describe_change(first: Verdict, second: Verdict, *, first_success: bool, second_success: bool) -> str:
    """What became of a case, in a word or two."""
    if first in OPEN or second in OPEN:
        return "not judged"
    if first_success == second_success:
        return "both pass" if first_success else "both fail"
    return "fixed" if second_success else "broken"


def adjust_family(compared: Sequence[EvaluationComparison]) -> list[EvaluationComparison]:
    """Several evaluations compared with the same first one: each further test is one more chance to err."""
    if len(compared) < 2:
        return [*compared]
    overall = _adjust({place: one.overall for place, one in enumerate(compared)})
    criteria = _adjust({(place, name): d for place, one in enumerate(compared) for name, d in one.criteria.items()})
    tags = _adjust({(place, *key): d for place, one in enumerate(compared) for key, d in _flat(one.tags).items()})
    return [
        msgspec.structs.replace(
            one,
            overall=overall[place],
            criteria={name: criteria[place, name] for name in one.criteria},
            tags={name: {value: tags[place, name, value] for value in values} for name, values in one.tags.items()},
            sentence=_sentence(one.first, one.second, overall[place]),
        )
        for place, one in enumerate(compared)
    ]


def _by_tag(judged: Sequence[tuple[_CaseMeans, _CaseMeans]]) -> dict[str, dict[str, Difference]]:
    """The difference among the cases of each tag, as the second evaluation tags them."""
    pairs: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for before, after in judged:
        for tag in after.tags.items():
            pairs.setdefault(tag, []).append((_share(before), _share(after), after.group))
    return _most_frequent({tag: (len(several), several) for tag, several in pairs.items()}, _difference)


def _most_frequent(
    counted: Mapping[tuple[str, str], tuple[int, Pairs]], compare: Callable[[Pairs], Difference]
) -> dict[str, dict[str, Difference]]:
    """The difference of the values of each tag that most cases have."""
    by_name: dict[str, list[tuple[str, str]]] = {}
    for tag in sorted(counted, key=lambda one: (-counted[one][0], one)):
        by_name.setdefault(tag[0], []).append(tag)
    kept = {tag: compare(counted[tag][1]) for several in by_name.values() for tag in several[:MOST_VALUES]}
    found: dict[str, dict[str, Difference]] = {}
    for (name, value), one in _adjust(kept).items():
        found.setdefault(name, {})[value] = one
    return found


def _flat(tags: Mapping[str, Mapping[str, Difference]]) -> dict[tuple[str, str], Difference]:
    return {(name, value): one for name, values in tags.items() for value, one in values.items()}


def _collect(cases: Iterable[CaseSummary], criteria: int) -> dict[str, _CaseMeans]:
    found: dict[str, _CaseMeans] = {}
    for case in cases:
        means = found.get(case.case_id)
        if means is None:
            means = found[case.case_id] = _CaseMeans(case.group or case.case_id, criteria, case.tags)
        if case.verdict not in OPEN:
            means.tries += 1
            means.passed += case.success
        for counts, letter in zip(means.criteria, case.statuses, strict=False):
            if letter in "mn":
                counts[0] += 1
                counts[1] += letter == "m"
    return found


def _share(means: _CaseMeans) -> float:
    return means.passed / means.tries


def _share_of(means: _CaseMeans, criterion: int) -> float:
    tries, met = means.criteria[criterion]
    return met / tries


def _difference(pairs: Sequence[tuple[float, float, str]]) -> Difference:
    """The mean difference over cases; cases of one group count as one observation of it."""
    number = len(pairs)
    if not number:
        return Difference(
            cases=0,
            groups=0,
            first=None,
            second=None,
            difference=None,
            interval=None,
            p=None,
            p_holm=None,
            detectable=None,
            why_not="no case was judged by both",
        )
    first, second = math.fsum(pair[0] for pair in pairs) / number, math.fsum(pair[1] for pair in pairs) / number
    groups: dict[str, list[float]] = {}
    for before, after, group in pairs:
        groups.setdefault(group, []).append(after - before)
    if len(groups) == number:
        return _of_mean(mean_of([change for several in groups.values() for change in several]), first, second)
    change, freedom = second - first, len(groups) - 1
    error = 0.0 if len(groups) < FEWEST_TASKS else cluster_robust_error([*groups.values()])
    interval = p = detectable = None
    why = ""
    if len(groups) < FEWEST_TASKS:
        why = f"{len(groups)} of the {FEWEST_TASKS} groups that an interval needs"
    elif error <= LEAST_SPREAD:
        why = "no spread: all cases changed alike"
    else:
        reach = t_quantile(freedom) * error
        interval = _within_reach(change - reach, change + reach)
        p, detectable = t_p_value(change / error, freedom), mde(error)
    return Difference(
        cases=number,
        groups=len(groups),
        first=first,
        second=second,
        difference=change,
        interval=interval,
        p=p,
        p_holm=None,
        detectable=detectable,
        why_not=why,
    )


def _of_mean(mean: Mean, first: float, second: float) -> Difference:
    interval = None if mean.interval is None else _within_reach(mean.interval.low, mean.interval.high)
    return Difference(
        cases=mean.tasks,
        groups=mean.tasks,
        first=first,
        second=second,
        difference=mean.mean,
        interval=interval,
        p=mean.p,
        p_holm=None,
        detectable=mean.mde,
        why_not=mean.why_not.replace("tasks", "cases"),
    )


def _within_reach(low: float, high: float) -> ConfidenceInterval:
    """An interval of a difference of shares, which cannot be larger than one."""
    return ConfidenceInterval(max(-1.0, low), min(1.0, high))


def _adjust(found: Mapping[TestName, Difference]) -> dict[TestName, Difference]:
    """With the probabilities adjusted for how many tests there are."""
    tested = [name for name, one in found.items() if one.p is not None]
    adjusted = dict(zip(tested, holm([found[name].p or 0.0 for name in tested]), strict=True))
    return {name: msgspec.structs.replace(one, p_holm=adjusted.get(name)) for name, one in found.items()}


def _sentence(first: str, second: str, found: Difference) -> str:
    """The answer in one sentence, for someone who does not know statistics."""
    if found.difference is None:
        return f"{first} and {second} cannot be compared: {found.why_not}."
    points = abs(found.difference) * 100
    direction = "better" if found.difference > 0 else "worse"
    cases = f"{found.cases:,} common case{'s' if found.cases != 1 else ''}"
    if points < 0.05:
        sentence = f"{second} and {first} pass equally often on {cases}"
    else:
        sentence = f"{second} is {direction} than {first} by {points:.1f} points on {cases}"
    if found.is_significant:
        interval = ""
        if found.interval is not None:
            interval = f" (95 % interval {found.interval.low * 100:+.1f} to {found.interval.high * 100:+.1f})"
        return f"{sentence}{interval}; chance alone does not explain that."
    if found.difference == 0 and found.detectable is None and found.groups == found.cases >= FEWEST_TASKS:
        return f"{sentence}, and each of them ended alike in both."
    if found.detectable is None:
        return f"{sentence}; these are too few cases to tell a difference from chance ({found.why_not})."
    return (
        f"{sentence}, but with {found.cases:,} cases a difference under {found.detectable * 100:.1f} points "
        "cannot be told from chance."
    )
