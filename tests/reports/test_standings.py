"""Leaderboards rank verified runs only, and a difference is called clear only where a test says so."""

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from fractions import Fraction
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmarks.benching import DONE, Bench, bench, task

from meruit.errors import MeruitError, NotFound, TaskRunStateError
from meruit.model.access import Scope
from meruit.model.task import Reveal
from meruit.model.task_run import BenchmarkRun, RunStatus, TaskRun
from meruit.model.verdict import Verdict
from meruit.reports.standings import BenchmarkStandings, Leaderboard, compare_runs, rank_agents
from meruit.store.store import Store

NOW = datetime(2026, 3, 3, tzinfo=UTC)
TASKS = [f"t{number}" for number in range(8)]


# Any: fields of a run.
def run(task_id: str, score: Fraction | None, agent: str | None = "a", **more: Any) -> TaskRun:
    passed = Verdict.PASS if score is not None and score >= Fraction(9, 10) else Verdict.PARTIAL
    given = {
        "benchmark_run_id": f"brn_{agent}",
        "agent_id": agent,
        "status": RunStatus.COMPLETED,
        "scored": True,
        "exact": None if score is None else str(score),
        "verdict": None if score is None else passed,
    }
    return msgspec.convert(
        {
            "id": f"trn_{agent}_{task_id}",
            "seq": 1,
            "benchmark": "demo",
            "version": 1,
            "task": task_id,
            "attempt": 1,
            "reveal": Reveal.AXES,
            "created_at": NOW,
            "created_by": "ops",
            **given,
            **more,
        },
        TaskRun,
    )


def runs(agent: str | None, scores: Sequence[Fraction | int], **more: Any) -> list[TaskRun]:
    return [run(name, Fraction(score), agent, **more) for name, score in zip(TASKS, scores, strict=True)]


def board(*several: list[TaskRun]) -> Leaderboard:
    return rank_agents("demo", 1, TASKS, {f"brn_{number}": one for number, one in enumerate(several)})


def test_agents_are_ranked_by_score_and_equals_share_a_rank() -> None:
    found = board(runs("c", [0] * 8), runs("a", [1] * 8), runs("b", [1] * 8))
    assert [(one.rank, one.agent_id, one.exact) for one in found.standings] == [
        (1, "a", "1"),
        (1, "b", "1"),
        (3, "c", "0"),
    ]
    best = found.standings[0]
    assert (best.tasks, best.task_runs, best.pass_rate, best.recorded_by) == (8, 8, 1.0, ["ops"])
    assert best.tied_with == ["b"]
    assert found.judged_by == "demo@1"


def test_agents_that_chance_could_order_are_tied() -> None:
    close = board(runs("a", [1, 0, 1, 0, 1, 0, 1, 0]), runs("b", [0, 1, 0, 1, 0, 1, 0, 0]))
    assert [one.tied_with for one in close.standings] == [["b"], ["a"]]
    clear = board(runs("a", [1] * 8), runs("b", [Fraction(number, 100) for number in range(8)]))
    assert [one.tied_with for one in clear.standings] == [[], []]
    assert clear.standings[1].score_interval is not None


@pytest.mark.parametrize(
    ("reason", "more"),
    [
        ("practice", {"scored": False}),
        ("not_ended", {"status": RunStatus.RUNNING}),
        ("without_agent_id", {"agent_id": None}),
        ("not_fully_judged", {"status": RunStatus.CANCELLED}),
        ("not_fully_judged", {"verdict": Verdict.INCONCLUSIVE}),
    ],
)
def test_a_run_that_is_not_verified_does_not_count(reason: str, more: dict[str, Any]) -> None:
    found = board(runs("a", [1] * 8), runs("b", [1] * 8, **more))
    assert [one.agent_id for one in found.standings] == ["a"]
    assert found.left_out == {reason: 1}


def test_a_run_of_some_tasks_does_not_count() -> None:
    assert board(runs("a", [1] * 8)[:5]).left_out == {"some_tasks_only": 1}


def test_a_rejudged_run_stands_on_the_board_of_the_version_that_judged_it() -> None:
    again = runs("a", [1] * 8, judged_version=2)
    assert board(again) == Leaderboard("demo", 1, "demo@1", 8, [], {})
    assert rank_agents("demo", 2, TASKS, {"brn": again}).standings[0].agent_id == "a"
    mixed = [*again[:4], *runs("a", [1] * 8)[4:]]
    assert board(mixed).left_out == {"judged_by_several_versions": 1}


@given(st.lists(st.lists(st.integers(0, 4), min_size=8, max_size=8), min_size=1, max_size=5))
def test_ranks_follow_scores_and_ties_are_mutual(scores: list[list[int]]) -> None:
    found = board(*(runs(f"a{n}", [Fraction(one, 4) for one in each]) for n, each in enumerate(scores)))
    standings = {one.agent_id: one for one in found.standings}
    for one in found.standings:
        assert one.rank == 1 + sum(Fraction(other.exact) > Fraction(one.exact) for other in found.standings)
        assert all(one.agent_id in standings[other].tied_with for other in one.tied_with)
        low, high = (0.0, 1.0) if one.score_interval is None else (one.score_interval.low, one.score_interval.high)
        assert low <= one.score <= high


def ended(agent: str) -> BenchmarkRun:
    return BenchmarkRun(f"brn_{agent}", 1, "demo", 1, 1, True, NOW, "ops", agent, {"completed": 8}, True)


def test_two_runs_are_compared_task_by_task() -> None:
    first, second = runs("a", [0] * 8), runs("b", [1] * 7 + [0])
    found = compare_runs((ended("a"), first), (ended("b"), second))
    assert (found.won, found.lost, found.tied) == (7, 0, 1)
    assert found.score.mean == pytest.approx(7 / 8)
    assert found.score.interval is not None
    assert found.ranks is not None
    assert found.ranks.p < 0.05
    assert "a clear difference" in found.sentence
    assert next((one.task, one.first, one.second, one.second_passes) for one in found.tasks) == ("t0", 0, 1, 1)
    back = compare_runs((ended("b"), second), (ended("a"), first))
    assert back.score.mean == -found.score.mean
    assert (back.won, back.lost) == (found.lost, found.won)


def test_tasks_without_a_verdict_in_both_are_listed_and_not_compared() -> None:
    first = runs("a", [1] * 8)[:6]
    second = [run("t0", None, "b", status=RunStatus.CANCELLED), *runs("b", [1] * 8)[1:]]
    found = compare_runs((ended("a"), first), (ended("b"), second))
    assert (found.undecided, found.only_first, found.only_second) == (["t0"], [], ["t6", "t7"])
    assert [one.task for one in found.tasks] == TASKS[1:6]
    nothing = compare_runs((ended("a"), first[:1]), (ended("b"), second[:1]))
    assert (nothing.tasks, nothing.ranks, nothing.delta) == ([], None, None)
    assert "no task" in nothing.sentence


async def perform(at: Bench, agent: str, acting: Sequence[bool]) -> str:
    created, several = await at.benchmarks.create(at.tenant, "ops", "demo", agent_id=agent)
    for one, acts in zip(several, acting, strict=True):
        started = (await at.benchmarks.start(at.scope, one.id)).run
        at.ground.act(started, DONE if acts else {})
        await at.benchmarks.complete(at.scope, one.id)
    return created.id


def test_the_service_reads_boards_and_comparisons_within_a_scope(store: Store) -> None:
    async def use() -> None:
        at = bench(store)
        standings = BenchmarkStandings(at.benchmarks.library, at.benchmarks.reader)
        await at.publish(task("t1"), task("t2"))
        first = await perform(at, "slow", [True, False])
        second = await perform(at, "quick", [True, True])
        waiting, _ = await at.benchmarks.create(at.tenant, "ops", "demo", agent_id="late")
        found = standings.leaderboard(at.scope, "demo")
        assert [(one.rank, one.agent_id, one.score) for one in found.standings] == [(1, "quick", 1.0), (2, "slow", 0.5)]
        assert found.left_out == {"not_ended": 1}
        own = standings.leaderboard(Scope(at.tenant, "slow", only_own=True), "demo@1")
        assert [one.agent_id for one in own.standings] == ["slow"]
        assert standings.compare(at.scope, first, second).won == 1
        with pytest.raises(TaskRunStateError):
            standings.compare(at.scope, first, waiting.id)
        with pytest.raises(NotFound):
            standings.compare(Scope("other"), first, second)
        with pytest.raises(NotFound):
            standings.leaderboard(at.scope, "nothing")
        await at.publish(task("t1"), name="demo2")
        other, _ = await at.benchmarks.create(at.tenant, "ops", "demo2", agent_id="slow")
        await at.benchmarks.cancel(at.tenant, [one.id for one in at.benchmarks.reader.task_runs(at.scope, other.id)])
        with pytest.raises(MeruitError):
            standings.compare(at.scope, first, other.id)

    asyncio.run(use())
