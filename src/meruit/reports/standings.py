"""How agents stand at a benchmark: a leaderboard of verified runs, and two runs compared task by task."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

import msgspec

from meruit.benchmarks.published import BenchmarkLibrary
from meruit.benchmarks.records import runs_of_benchmark
from meruit.benchmarks.run_reader import RunReader
from meruit.benchmarks.score import score_interval
from meruit.errors import MeruitError, TaskRunStateError
from meruit.model.access import Scope
from meruit.model.record import Record
from meruit.model.task_run import BenchmarkRun, ConfidenceInterval, RunStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.reports.statistics import (
    FEWEST_TASKS,
    Mean,
    SignedRanks,
    cliffs_delta,
    holm,
    mean_of,
    share_interval,
    wilcoxon_signed_rank,
)

SIGNIFICANT = 0.05
"""The level of all tests."""
_UNDECIDED = (Verdict.INCONCLUSIVE, Verdict.ERROR)
_DECIMALS = 12
"""Differences that are equal to so many decimals are ties."""


class Standing(Record, frozen=True):
    """One agent's place on a leaderboard."""

    rank: int
    """Agents with the same score share a rank."""
    agent_id: str
    score: float
    """The mean over tasks of the mean score of its attempts."""
    exact: str
    score_interval: ConfidenceInterval | None
    pass_rate: float
    pass_rate_interval: ConfidenceInterval | None
    tasks: int
    task_runs: int
    timed_out: int
    benchmark_runs: list[str]
    recorded_by: list[str]
    """Who had the runs recorded and judged: names of API keys, or the command line."""
    tied_with: list[str]
    """Agents that are tied with this one: the difference could be chance."""


class Leaderboard(Record, frozen=True):
    """The agents of one benchmark version by score, verified runs only."""

    benchmark: str
    version: int
    judged_by: str
    """The benchmark version whose criteria gave every verdict here."""
    tasks: int
    standings: list[Standing]
    left_out: dict[str, int]
    """Benchmark runs that do not count here, by reason."""


class TaskDifference(Record, frozen=True):
    """One task in both runs."""

    task: str
    first: float
    second: float
    first_passes: int
    second_passes: int


class RunComparison(Record, frozen=True):
    """Two benchmark runs, task by task; differences are the second minus the first."""

    first: str
    second: str
    benchmark: str
    first_agent: str | None
    second_agent: str | None
    first_judged_by: str
    second_judged_by: str
    score: Mean
    """Of the differences in score; its interval and probability are missing for too few tasks."""
    pass_rate: Mean
    ranks: SignedRanks | None
    delta: float | None
    """Cliff's delta: how much more often a task of the second is above one of the first than below."""
    won: int
    """Tasks at which the second is better."""
    lost: int
    tied: int
    tasks: list[TaskDifference]
    only_first: list[str]
    only_second: list[str]
    undecided: list[str]
    """Common tasks that at least one of the two has no verdict on; they are not compared."""
    sentence: str


class BenchmarkStandings:
    """Reads leaderboards and comparisons; an agent's scope sees its own runs only."""

    def __init__(self, library: BenchmarkLibrary, reader: RunReader) -> None:
        self._library = library
        self._reader = reader

    def leaderboard(self, scope: Scope, name: str) -> Leaderboard:
        """Rank the agents of `slug@version`, or of the newest version; raises NotFound."""
        benchmark = self._library.find(scope.tenant, name).benchmark
        with self._reader.store.database.reading() as connection:
            found = runs_of_benchmark(connection, scope, benchmark.benchmark)
        return rank_agents(benchmark.benchmark, benchmark.version, [task.id for task in benchmark.tasks], found)

    def compare(self, scope: Scope, first: str, second: str) -> RunComparison:
        """Compare two ended runs of one benchmark; raises NotFound, TaskRunStateError, MeruitError."""
        one, other = (self._require_ended(scope, run_id) for run_id in (first, second))
        if one.benchmark != other.benchmark:
            raise MeruitError(f"{first} is a run of {one.benchmark}, {second} of {other.benchmark}; compare equal ones")
        return compare_runs((one, self._reader.task_runs(scope, first)), (other, self._reader.task_runs(scope, second)))

    def _require_ended(self, scope: Scope, run_id: str) -> BenchmarkRun:
        found = self._reader.benchmark_run(scope, run_id)
        if not found.ended:
            raise TaskRunStateError(f"benchmark run {run_id} has not ended; compare it when all its task runs have")
        return found


def rank_agents(
    benchmark: str, version: int, tasks: Sequence[str], found: Mapping[str, Sequence[TaskRun]]
) -> Leaderboard:
    """Rank agents by the runs that count; `found` has the task runs of each benchmark run."""
    left_out: Counter[str] = Counter()
    by_agent: dict[str, list[TaskRun]] = {}
    for runs in found.values():
        # A version that did not judge the run has a leaderboard of its own.
        if any(_version_judged(run) != version for run in runs):
            if any(_version_judged(run) == version for run in runs):
                left_out["judged_by_several_versions"] += 1
            continue
        reason = _why_left_out(runs, tasks)
        if reason is None:
            by_agent.setdefault(str(runs[0].agent_id), []).extend(runs)
        else:
            left_out[reason] += 1
    standings = [_standing(agent, runs, tasks) for agent, runs in by_agent.items()]
    standings.sort(key=lambda one: (-Fraction(one.exact), one.agent_id))
    scores = [Fraction(one.exact) for one in standings]
    ties = _ties({agent: _column(runs, tasks, _score) for agent, runs in by_agent.items()})
    ranked = [
        msgspec.structs.replace(one, rank=1 + sum(other > score for other in scores), tied_with=ties[one.agent_id])
        for one, score in zip(standings, scores, strict=True)
    ]
    name = f"{benchmark}@{version}"
    return Leaderboard(
        benchmark=benchmark,
        version=version,
        judged_by=name,
        tasks=len(tasks),
        standings=ranked,
        left_out=dict(sorted(left_out.items())),
    )


def _version_judged(run: TaskRun) -> int:
    return run.version if run.judged_version is None else run.judged_version


def _why_left_out(runs: Sequence[TaskRun], tasks: Sequence[str]) -> str | None:
    """Why a benchmark run does not count; None where it does."""
    if not all(run.scored for run in runs):
        return "practice"
    if any(run.status in (RunStatus.PENDING, RunStatus.RUNNING) for run in runs):
        return "not_ended"
    if runs[0].agent_id is None:
        return "without_agent_id"
    if any(run.status is RunStatus.CANCELLED or run.verdict in _UNDECIDED for run in runs):
        return "not_fully_judged"
    return None if {run.task for run in runs} >= {*tasks} else "some_tasks_only"


def _standing(agent: str, runs: Sequence[TaskRun], tasks: Sequence[str]) -> Standing:
    by_task = [[run for run in runs if run.task == task] for task in tasks]
    means = [sum(map(_score, tries), Fraction(0)) / len(tries) for tries in by_task]
    exact = sum(means, Fraction(0)) / len(means)
    passes = [[float(run.verdict is Verdict.PASS) for run in tries] for tries in by_task]
    return Standing(
        rank=0,
        agent_id=agent,
        score=float(exact),
        exact=str(exact),
        score_interval=score_interval([[one] for one in means]) if len(means) >= FEWEST_TASKS else None,
        pass_rate=sum(sum(tries) / len(tries) for tries in passes) / len(passes),
        pass_rate_interval=share_interval(passes),
        tasks=len(tasks),
        task_runs=len(runs),
        timed_out=sum(run.status is RunStatus.TIMED_OUT for run in runs),
        benchmark_runs=sorted({str(run.benchmark_run_id) for run in runs}),
        recorded_by=sorted({run.created_by for run in runs}),
        tied_with=[],
    )


def _score(run: TaskRun) -> Fraction:
    return Fraction(run.exact or 0)


def _column(runs: Sequence[TaskRun], tasks: Sequence[str], value: Callable[[TaskRun], Fraction]) -> list[float]:
    """One mean for each task, in their order."""
    several = [[value(run) for run in runs if run.task == task] for task in tasks]
    return [float(sum(tries, Fraction(0)) / len(tries)) for tries in several]


def _ties(columns: Mapping[str, Sequence[float]]) -> dict[str, list[str]]:
    """By agent, those whose difference from it could be chance, all pairs tested together."""
    pairs = list(combinations(sorted(columns), 2))
    chances = [mean_of(_apart(columns[a], columns[b])).p for a, b in pairs]
    tested = [(pair, p) for pair, p in zip(pairs, chances, strict=True) if p is not None]
    adjusted = dict(zip((pair for pair, _ in tested), holm([p for _, p in tested]), strict=True))
    ties: dict[str, list[str]] = {agent: [] for agent in columns}
    for a, b in pairs:
        # Too few tasks for a test separate no agents.
        if adjusted.get((a, b), 1.0) >= SIGNIFICANT:
            ties[a].append(b)
            ties[b].append(a)
    return ties


def _apart(first: Sequence[float], second: Sequence[float]) -> list[float]:
    return [round(other - one, _DECIMALS) for one, other in zip(first, second, strict=True)]


def compare_runs(
    first: tuple[BenchmarkRun, Sequence[TaskRun]], second: tuple[BenchmarkRun, Sequence[TaskRun]]
) -> RunComparison:
    """Compare two benchmark runs on the tasks that both have a verdict on."""
    (run_a, runs_a), (run_b, runs_b) = first, second
    tasks_a, tasks_b = (list(dict.fromkeys(run.task for run in runs)) for runs in (runs_a, runs_b))
    common = [task for task in tasks_a if task in tasks_b]
    undecided = [task for task in common if not _is_decided(runs_a, task) or not _is_decided(runs_b, task)]
    tasks = [task for task in common if task not in undecided]
    scores_a, scores_b = _column(runs_a, tasks, _score), _column(runs_b, tasks, _score)
    apart = _apart(scores_a, scores_b)
    score = mean_of(apart)
    pass_rates = _apart(_column(runs_a, tasks, _passes), _column(runs_b, tasks, _passes))
    return RunComparison(
        first=run_a.id,
        second=run_b.id,
        benchmark=run_a.benchmark,
        first_agent=run_a.agent_id,
        second_agent=run_b.agent_id,
        first_judged_by=_judges(run_a, runs_a),
        second_judged_by=_judges(run_b, runs_b),
        score=score,
        pass_rate=mean_of(pass_rates),
        ranks=wilcoxon_signed_rank(apart) if apart else None,
        delta=cliffs_delta(scores_b, scores_a) if apart else None,
        won=sum(one > 0 for one in apart),
        lost=sum(one < 0 for one in apart),
        tied=sum(one == 0 for one in apart),
        tasks=[
            TaskDifference(
                task=task,
                first=one,
                second=other,
                first_passes=_count_passes(runs_a, task),
                second_passes=_count_passes(runs_b, task),
            )
            for task, one, other in zip(tasks, scores_a, scores_b, strict=True)
        ],
        only_first=[task for task in tasks_a if task not in tasks_b],
        only_second=[task for task in tasks_b if task not in tasks_a],
        undecided=undecided,
        sentence=_sentence(run_a.id, run_b.id, score),
    )


def _is_decided(runs: Sequence[TaskRun], task: str) -> bool:
    tries = [run for run in runs if run.task == task]
    return all(run.status is not RunStatus.CANCELLED and run.verdict not in _UNDECIDED for run in tries)


def _passes(run: TaskRun) -> Fraction:
    return Fraction(run.verdict is Verdict.PASS)


def _count_passes(runs: Sequence[TaskRun], task: str) -> int:
    return sum(run.verdict is Verdict.PASS for run in runs if run.task == task)


def _judges(run: BenchmarkRun, runs: Sequence[TaskRun]) -> str:
    """The benchmark versions whose criteria judged a run."""
    versions = sorted({_version_judged(one) for one in runs})
    return ", ".join(f"{run.benchmark}@{version}" for version in versions)


def _sentence(first: str, second: str, score: Mean) -> str:
    if not score.tasks:
        return f"{first} and {second} have no task with a verdict in both"
    sentence = f"{second} scores {score.mean:+.3f} against {first} over {score.tasks:,} tasks"
    if score.p is None:
        return f"{sentence}; not tested: {score.why_not or 'every task is equal'}"
    clear = "a clear difference" if score.p < SIGNIFICANT else "which could be chance"
    return f"{sentence}, {clear} (p = {score.p:.3g})"
