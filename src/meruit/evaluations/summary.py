"""The numbers of one evaluation: pass rate with its interval, per criterion and tag, latency and cost. Pure."""

import math
from array import array
from bisect import insort
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

from meruit.benchmarks.score import pass_at_k, pass_hat_k
from meruit.evaluations.evaluation import CaseSummary
from meruit.model.record import Record
from meruit.model.task_run import ConfidenceInterval
from meruit.model.verdict import Bounds, Verdict
from meruit.reports.statistics import over_tasks, share_interval, wilson

OPEN = frozenset({Verdict.INCONCLUSIVE, Verdict.ERROR})
"""Verdicts that decide nothing: neither a pass nor a failure."""
MOST_TRIES = 10
"""The highest k of pass@k and pass^k."""
SCORE_STEPS = 10
MAX_TAG_VALUES = 200
"""Distinct values of one tag; a tag with more is an id, not a category. Of those, the first by name are counted."""


class Rate(Record, frozen=True):
    """A share of cases that passed."""

    cases: int
    passed: int
    failed: int
    open: int
    """Cases that could not be judged; they are in neither of the two."""
    rate: float | None
    """Passed of those that were judged; None where none was."""
    interval: ConfidenceInterval | None
    """At 95 %; None where there are too few groups to say."""
    bounds: Bounds | None
    """The rate over all cases if every open one had failed, and if it had passed."""


class Spread(Record, frozen=True):
    """How a quantity is spread over the cases that have it."""

    cases: int
    mean: float
    p50: float
    p95: float


class EvaluationSummary(Record, frozen=True):
    """The numbers of one evaluation."""

    verdicts: Mapping[str, int]
    overall: Rate
    mean_score: float | None
    """Of the cases that were judged."""
    criteria: Mapping[str, Rate]
    tags: Mapping[str, Mapping[str, Rate]]
    """For each tag, by its value."""
    errors: Mapping[str, int]
    """Cases without an output, by the reason."""
    groups: int
    """How many independent groups there are; cases that share nothing are a group each."""
    latency_ms: Spread | None
    cost_micros: int | None
    pass_at_k: Mapping[str, float]
    """Where cases were repeated: the probability that at least one of k tries passes."""
    pass_hat_k: Mapping[str, float]
    """The probability that all of k tries pass."""
    claimed: int = 0
    """Cases whose origin had a verdict of its own."""
    disputed: int = 0
    """Those of them where ours differs."""


class EvaluationFigures(Record, frozen=True):
    """The numbers of one evaluation, and what a page of it counts beside them."""

    summary: EvaluationSummary
    scores: tuple[int, ...]
    """Judged cases by score, in SCORE_STEPS steps."""
    faults: Mapping[str, int]
    """Cases that did not pass, by who is at fault."""


class RateTally:
    """Counts one kind of case while they go by; memory grows with groups only, where there are any."""

    def __init__(self, *, clustered: bool) -> None:
        self.passed = self.failed = self.open = 0
        self._groups: dict[str, list[int]] | None = {} if clustered else None

    def add(self, *, passed: bool, open_: bool, group: str, times: int = 1) -> None:
        """Count one more, or several that are alike."""
        if open_:
            self.open += times
            return
        if passed:
            self.passed += times
        else:
            self.failed += times
        if self._groups is not None:
            counts = self._groups.setdefault(group, [0, 0])
            counts[passed] += times

    @property
    def groups(self) -> int:
        """Groups of cases; each case is one where they have none."""
        return self.passed + self.failed if self._groups is None else len(self._groups)

    def rate(self) -> Rate:
        """What was counted, as a rate with its interval."""
        judged = self.passed + self.failed
        cases = judged + self.open
        return Rate(
            cases=cases,
            passed=self.passed,
            failed=self.failed,
            open=self.open,
            rate=self.passed / judged if judged else None,
            interval=self._interval(judged),
            bounds=Bounds(self.passed / cases, (self.passed + self.open) / cases) if cases else None,
        )

    def _interval(self, judged: int) -> ConfidenceInterval | None:
        if not judged:
            return None
        if self._groups is None:
            return wilson(self.passed / judged, judged)
        return share_interval([[0.0] * failed + [1.0] * passed for failed, passed in self._groups.values()])


class _TagTally:
    """Counts the cases of one tag by its value: the same values are counted in whatever order cases come."""

    def __init__(self, *, clustered: bool) -> None:
        self.values: dict[str, RateTally] = {}
        self._clustered = clustered
        self._names: list[str] = []
        """The values in order. Only a smaller one makes the last give way, so what gave way never comes back."""

    def find(self, value: str) -> RateTally | None:
        """The tally of a value; None where enough values come before it."""
        found = self.values.get(value)
        if found is None:
            if len(self._names) == MAX_TAG_VALUES:
                if value > self._names[-1]:
                    return None
                del self.values[self._names.pop()]
            insort(self._names, value)
            found = self.values[value] = RateTally(clustered=self._clustered)
        return found


class SummaryBuilder:
    """Adds up an evaluation case by case.

    `criteria` are the ids of the criteria, in their order. `clustered` says that cases have groups, `repeated` that
    some were tried more than once: what is known of each group is kept only then.
    """

    def __init__(self, criteria: Sequence[str], *, clustered: bool = False, repeated: bool = False) -> None:
        self._clustered, self._repeated = clustered or repeated, repeated
        self._overall = self._tally()
        self._criteria = {name: self._tally() for name in criteria}
        self._tags: dict[str, _TagTally] = {}
        self._verdicts = {verdict.value: 0 for verdict in Verdict}
        self._errors: dict[str, int] = {}
        self._tries: dict[str, list[int]] = {}
        self._latencies = array("d")
        self._scores: dict[float, int] = {}
        self._cost: int | None = None
        self._claimed = self._disputed = 0
        self._faults: dict[str, int] = {}

    def _tally(self) -> RateTally:
        return RateTally(clustered=self._clustered)

    def add(self, case: CaseSummary, times: int = 1) -> None:
        """Count one more case, or several that are alike: then its cost is that of all of them."""
        group, open_ = case.group or case.case_id, case.verdict in OPEN
        self._verdicts[case.verdict.value] += times
        self._overall.add(passed=case.success, open_=open_, group=group, times=times)
        for tally, letter in zip(self._criteria.values(), case.statuses, strict=False):
            if letter != "x":
                tally.add(passed=letter == "m", open_=letter == "i", group=group, times=times)
        for name, value in case.tags.items():
            tag = self._tags.get(name)
            if tag is None:
                tag = self._tags[name] = _TagTally(clustered=self._clustered)
            if (counted := tag.find(value)) is not None:
                counted.add(passed=case.success, open_=open_, group=group, times=times)
        if not open_:
            self._add_score(case, times)
        self._add_extras(case, times)

    def _add_score(self, case: CaseSummary, times: int) -> None:
        self._scores[case.score] = self._scores.get(case.score, 0) + times
        if self._repeated:
            counts = self._tries.setdefault(case.case_id, [0, 0])
            counts[0] += times
            counts[1] += times * case.success

    def _add_extras(self, case: CaseSummary, times: int) -> None:
        if not case.success:
            for fault in case.faults:
                self._faults[fault.value] = self._faults.get(fault.value, 0) + times
        if case.error is not None:
            self._errors[case.error.value] = self._errors.get(case.error.value, 0) + times
        if case.latency_ms is not None:
            self._latencies.append(case.latency_ms)
        if case.cost_micros is not None:
            self._cost = (self._cost or 0) + case.cost_micros
        if case.claimed is not None:
            self._claimed += times
            self._disputed += times * case.is_disputed

    def add_latencies(self, latencies: Iterable[float]) -> None:
        """Latencies of cases that were counted without theirs."""
        self._latencies.extend(latencies)

    def overall(self) -> Rate:
        """The pass rate so far."""
        return self._overall.rate()

    def build(self) -> EvaluationSummary:
        """All numbers so far."""
        tries = [(number, passes) for number, passes in self._tries.values()]
        return EvaluationSummary(
            verdicts=dict(self._verdicts),
            overall=self._overall.rate(),
            mean_score=_mean(self._scores),
            criteria={name: tally.rate() for name, tally in self._criteria.items()},
            tags={name: {value: one.rate() for value, one in tag.values.items()} for name, tag in self._tags.items()},
            errors=dict(self._errors),
            groups=self._overall.groups,
            latency_ms=_spread(self._latencies),
            cost_micros=self._cost,
            pass_at_k=over_tasks(tries, MOST_TRIES, pass_at_k),
            pass_hat_k=over_tasks(tries, MOST_TRIES, pass_hat_k),
            claimed=self._claimed,
            disputed=self._disputed,
        )

    def build_figures(self) -> EvaluationFigures:
        """All numbers so far, and what a page counts beside them."""
        steps = [0] * SCORE_STEPS
        for score, times in self._scores.items():
            steps[min(int(score * SCORE_STEPS), SCORE_STEPS - 1)] += times
        return EvaluationFigures(self.build(), tuple(steps), dict(self._faults))


def _mean(counted: Mapping[float, int]) -> float | None:
    """The mean of numbers that each occur several times; exact before it is rounded."""
    count = sum(counted.values())
    return float(sum(Fraction(number) * times for number, times in counted.items()) / count) if count else None


def _spread(numbers: "array[float]") -> Spread | None:
    if not numbers:
        return None
    order = sorted(numbers)
    return Spread(len(order), math.fsum(order) / len(order), _quantile(order, 0.5), _quantile(order, 0.95))


def _quantile(order: Sequence[float], share: float) -> float:
    """The smallest number that at least this share of all numbers does not exceed."""
    return order[max(0, math.ceil(len(order) * share) - 1)]
