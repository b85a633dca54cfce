"""The score of a benchmark run: mean, verdict, and how certain they are."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import groupby

import msgspec

from meruit.model.numbers import exact
from meruit.model.task_run import BenchmarkScore, ConfidenceInterval, RunStatus, TaskScore
from meruit.model.verdict import PASS_SCORE, Bounds, Status, Verdict, VerificationResult

# Student's t at 97.5 % for 1 to 10 degrees of freedom; scores of a few tasks are not normally distributed.
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281)
_Z = 1.959964


class TaskRunOutcome(msgspec.Struct, frozen=True):
    """One ended task run, as the score uses it."""

    id: str
    task: str
    status: RunStatus
    verdict: Verdict | None = None
    low: Fraction = Fraction(0)
    """Its score if everything that is missing had failed."""
    high: Fraction = Fraction(0)
    """Its score if everything that is missing had passed."""
    coverage: float = 1.0
    begun: bool = True
    """Whether an agent started: the result of a run that was cancelled after that is unknown."""


def benchmark_score(ended: Sequence[TaskRunOutcome], tasks: Sequence[str]) -> BenchmarkScore:
    """Compute the score of runs that have all ended. Timed-out runs count 0, cancelled ones do not count.

    Cancelling a run never helps: a verdict is given only if it is the same for every result that run could have had.
    The verdict is by the mean, unless every run failed; pass rate and worst task beside it show what the mean hides.
    """
    counted = [run for run in ended if run.status is not RunStatus.CANCELLED]
    by_task = _by_task(counted, tasks)
    low, high = (_mean([getattr(run, side) for run in counted]) for side in ("low", "high"))
    scores = [_task_score(task, runs) for task, runs in by_task.items() if runs]
    pass_rate = float(_mean([Fraction(run.verdict is Verdict.PASS) for run in counted]))
    worst = min(scores, key=lambda score: (score.score, score.passes / score.runs), default=None)
    most = max((score.runs for score in scores), default=0)
    return BenchmarkScore(
        verdict=_verdict(counted, _count_abandoned(ended, by_task)),
        score=float(low),
        exact=str(low),
        bounds=Bounds(float(low), float(high)),
        pass_rate=pass_rate,
        pass_rate_interval=_wilson(pass_rate, len(scores)) if scores else None,
        score_interval=score_interval([[run.low for run in runs] for runs in by_task.values() if runs]),
        worst_task=None if worst is None else worst.task,
        coverage=float(_mean([Fraction(run.coverage) for run in counted])),
        runs=len(counted),
        timed_out=sum(run.status is RunStatus.TIMED_OUT for run in counted),
        cancelled=sorted(run.id for run in ended if run.status is RunStatus.CANCELLED),
        inconclusive=sum(run.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR) for run in counted),
        pass_at_k=_over_tasks(scores, most, pass_at_k),
        pass_hat_k=_over_tasks(scores, most, pass_hat_k),
        tasks=scores,
        reasons=_reasons(counted, by_task),
    )


def _count_abandoned(ended: Sequence[TaskRunOutcome], by_task: Mapping[str, list[TaskRunOutcome]]) -> int:
    """Count the runs with an unknown result: those cancelled after the start, and one per task without another."""
    begun = [run.task for run in ended if run.status is RunStatus.CANCELLED and run.begun]
    return len(begun) + sum(not runs and task not in begun for task, runs in by_task.items())


def _verdict(counted: Sequence[TaskRunOutcome], given_up: int) -> Verdict:
    """Return the verdict by the lowest and the highest possible mean; an unknown run is between 0 and 1."""
    number = len(counted) + given_up
    if not number:
        return Verdict.FAIL
    worst = sum((run.low for run in counted), Fraction(0)) / number
    best = (sum((run.high for run in counted), Fraction(0)) + given_up) / number
    if all(run.verdict is Verdict.FAIL for run in counted) and not given_up:
        # Points of runs that all broke a rule add up to nothing.
        return Verdict.FAIL
    return _band(worst) if _band(worst) is _band(best) else Verdict.INCONCLUSIVE


def _band(score: Fraction) -> Verdict:
    """Return the band of a mean."""
    if score >= PASS_SCORE:
        return Verdict.PASS
    return Verdict.PARTIAL if score > 0 else Verdict.FAIL


def pass_at_k(tries: int, passes: int, k: int) -> float:
    """Estimate without bias the chance that at least one of k tries passes."""
    return 1 - math.comb(tries - passes, k) / math.comb(tries, k)


def pass_hat_k(tries: int, passes: int, k: int) -> float:
    """Estimate without bias the chance that all of k tries pass."""
    return math.comb(passes, k) / math.comb(tries, k)


def _by_task(counted: Sequence[TaskRunOutcome], tasks: Sequence[str]) -> Mapping[str, list[TaskRunOutcome]]:
    grouped = {task: list(runs) for task, runs in groupby(sorted(counted, key=_task_of), key=_task_of)}
    return {task: grouped.get(task, []) for task in tasks}


def _task_of(run: TaskRunOutcome) -> str:
    return run.task


def _mean(numbers: Sequence[Fraction]) -> Fraction:
    return sum(numbers, Fraction(0)) / len(numbers) if numbers else Fraction(0)


def _task_score(task: str, runs: Sequence[TaskRunOutcome]) -> TaskScore:
    low, high = (float(_mean([getattr(run, side) for run in runs])) for side in ("low", "high"))
    verdicts = Counter(str(run.verdict or run.status) for run in runs)
    passes = sum(run.verdict is Verdict.PASS for run in runs)
    return TaskScore(
        task=task,
        runs=len(runs),
        passes=passes,
        score=low,
        bounds=Bounds(low, high),
        verdicts=dict(sorted(verdicts.items())),
    )


def _over_tasks(scores: Sequence[TaskScore], most: int, chance: Callable[[int, int, int], float]) -> dict[str, float]:
    """Return the mean over the tasks that were tried at least k times."""
    found = {}
    for k in range(1, most + 1):
        tried = [chance(score.runs, score.passes, k) for score in scores if score.runs >= k]
        found[str(k)] = math.fsum(tried) / len(tried)
    return found


def _wilson(rate: float, number: int) -> ConfidenceInterval:
    """Return Wilson's interval; a task counts once, because its repeats add little information."""
    spread = _Z * _Z / number
    middle = (rate + spread / 2) / (1 + spread)
    reach = _Z * math.sqrt(rate * (1 - rate) / number + spread / (4 * number)) / (1 + spread)
    # At 0 and at 1 the last digit may be on the wrong side.
    return ConfidenceInterval(max(0.0, min(rate, middle - reach)), min(1.0, max(rate, middle + reach)))


def score_interval(by_task: Sequence[Sequence[Fraction]]) -> ConfidenceInterval | None:
    """Return the 95 % interval of the mean score of two tasks or more, given the scores of each task's runs.

    It is Student's over the tasks, because the runs of one task depend on each other. Where every task passes, or all
    tasks have one score, they show no spread, and Student's would be too narrow: 20 of 20 would be 100 to 100 %. There
    it reaches at least as far as Wilson's over the tasks.
    """
    number = len(by_task)
    if number < 2:
        return None
    runs = sum(map(len, by_task))
    found = _student(by_task, number, runs)
    means = [_mean(scores) for scores in by_task]
    if min(means) < PASS_SCORE and len({*means}) > 1:
        return found
    wide = _wilson(float(_mean([score for scores in by_task for score in scores])), number)
    return ConfidenceInterval(min(found.low, wide.low), max(found.high, wide.high))


def _student(by_task: Sequence[Sequence[Fraction]], number: int, runs: int) -> ConfidenceInterval:
    mean = sum((sum(scores, Fraction(0)) for scores in by_task), Fraction(0)) / runs
    apart = [sum((score - mean for score in scores), Fraction(0)) for scores in by_task]
    variance = Fraction(number, number - 1) * sum((one * one for one in apart), Fraction(0)) / (runs * runs)
    reach = _quantile(number - 1) * math.sqrt(variance)
    return ConfidenceInterval(max(0.0, float(mean) - reach), min(1.0, float(mean) + reach))


def _quantile(freedom: int) -> float:
    """Return Student's t at 97.5 %; beyond the table by the Cornish-Fisher expansion, right to three decimals."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    first = (_Z**3 + _Z) / 4
    second = (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / 96
    third = (3 * _Z**7 + 19 * _Z**5 + 17 * _Z**3 - 15 * _Z) / 384
    return _Z + first / freedom + second / freedom**2 + third / freedom**3


def highest_score(result: VerificationResult) -> Fraction:
    """Return a run's exact score if everything that could not be measured had passed."""
    counted = [one for one in result.criterion_results if one.status is not Status.EXCLUDED]
    total = sum((exact(one.weight) for one in counted), Fraction(0))
    if not total:
        # Nothing of it applied, so the score is unknown.
        return Fraction(result.verdict in (Verdict.INCONCLUSIVE, Verdict.ERROR))
    missing = sum((exact(one.weight) for one in counted if one.status is Status.INDETERMINATE), Fraction(0))
    return Fraction(result.exact) + missing / total


def _reasons(counted: Sequence[TaskRunOutcome], by_task: Mapping[str, list[TaskRunOutcome]]) -> list[str]:
    if not counted:
        return ["no task run counts, so there is nothing that could pass"]
    empty = [task for task, runs in by_task.items() if not runs]
    return [f"no run of {', '.join(empty)} counts"] if empty else []
