"""What holds of benchmarks and runs, whatever database they are on."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from sqlalchemy import select
from tests.benchmarks.benching import (
    DONE,
    RUBRIC,
    UNTOUCHED,
    Bench,
    asked,
    bench,
    benchmark,
    create_one,
    find_row,
    task,
)
from tests.conformance.counting import rows_of
from tests.events.emitting import Clock
from tests.outcomes.making import together

from meruit.benchmarks.published import plan_deletion
from meruit.benchmarks.store import published
from meruit.benchmarks.store import read as runs
from meruit.benchmarks.store import transitions as run_moves
from meruit.benchmarks.store.published import BenchmarkView, PublishBenchmark
from meruit.benchmarks.store.read import TaskRunFilter
from meruit.errors import (
    BadBenchmark,
    BenchmarkChanged,
    BenchmarkInUse,
    BenchmarkTaken,
    MeruitError,
    NotFound,
    StoreError,
    TaskRunStateError,
    Unreachable,
    UnsupportedCriteria,
)
from meruit.model.access import Scope
from meruit.model.canonical import canonical, digest
from meruit.model.environment import as_work_part
from meruit.model.task import MAX_VERSION, Benchmark
from meruit.model.task_run import CriterionStatus, RunStatus, TaskRun
from meruit.model.time import to_micros
from meruit.model.verdict import Verdict
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.basis import VersionBasis
from meruit.outcomes.store.erase import erase
from meruit.outcomes.store.write import NewOutcome
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

AT_ONCE = 200
RUNS, CRITERIA, WORKERS = 300, 20, 32
WEAK = {"prior_auth/1": {"member": "M1", "cpt": "other"}}
_NUMBERS = count()


@pytest.fixture(scope="module")
def clock() -> Clock:
    return Clock()


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, clock: Clock) -> Iterator[Store]:
    """One of each kind; every test is a tenant of its own."""
    url = request.getfixturevalue("new_postgres")() if request.param == "postgresql" else None
    opened = Store.open(Location(tmp_path_factory.mktemp("runs"), url), ClockAndEntropy(clock=clock))
    yield opened
    opened.close()


@pytest.fixture
def here(store: Store) -> Bench:
    """A tenant whom nobody else is, with worlds of its own."""
    return bench(store, f"tenant-{next(_NUMBERS)}")


def told(here: Bench) -> list[tuple[str, str, dict[str, Any]]]:
    """Type, subject and content of every event of the tenant, in order."""
    of = tables.events
    query = select(of.c.type, of.c.subject, of.c.data).where(of.c.tenant == here.tenant).order_by(of.c.seq)
    with here.store.database.reading() as connection:
        return [(kind, subject, json.loads(data)) for kind, subject, data in connection.execute(query)]


def types_told(here: Bench) -> list[str]:
    return [kind for kind, _, _ in told(here)]


def rows(here: Bench, *wanted: str) -> dict[str, int]:
    """How many rows of some tables are the tenant's."""
    return rows_of(here.store, here.tenant, wanted)


EVERYTHING = (
    *("benchmarks", "benchmark_runs", "task_runs", "criterion_runs"),
    *("outcomes", "verdicts", "events", "log_leaves", "criteria", "blobs"),
)


def found(here: Bench, run_id: str) -> TaskRun:
    return here.benchmarks.reader.run(here.scope, run_id)


# Publishing


def publish(here: Bench, of: Benchmark) -> PublishBenchmark:
    return here.benchmarks.library.publication(here.tenant, "author", of)


def test_what_is_published_stays_so_for_all_time(here: Bench) -> None:
    store = here.store
    first = store.recorder.write(publish(here, benchmark()))
    before = rows(here, *EVERYTHING)
    assert store.recorder.write(publish(here, benchmark())) == first
    assert rows(here, *EVERYTHING) == before
    with pytest.raises(BenchmarkTaken, match="demo@1"):
        store.recorder.write(publish(here, benchmark(title="another")))
    assert rows(here, *EVERYTHING) == before
    assert types_told(here) == ["benchmark.published"]


def test_what_is_found_is_what_was_published(here: Bench) -> None:
    made = benchmark(task("t1"), task("t2", facts={"a": 1.5}), attachments={"x": "y"}, title="Title")
    view = here.store.recorder.write(publish(here, made))
    again = here.benchmarks.find(here.tenant, "demo@1")
    assert again == (view, made)
    written = made.model_dump(exclude_defaults=True, mode="json", by_alias=True)
    assert (view.digest, view.tasks, view.title, view.created_by) == (digest(written), 2, "Title", "author")
    with here.store.database.reading() as connection:
        assert published.content(connection, here.tenant, view) == made
        body = connection.execute(
            select(tables.benchmarks.c.body).where(tables.benchmarks.c.tenant == here.tenant)
        ).scalar_one()
    assert body == canonical(written)


def test_publishers_at_the_same_time_keep_one(here: Bench) -> None:
    ours, theirs = publish(here, benchmark()), publish(here, benchmark(title="another"))
    answers = together(here.store, [ours, theirs, ours, theirs])
    assert [type(answer) for answer in answers] == [BenchmarkView, BenchmarkTaken, BenchmarkView, BenchmarkTaken]
    assert answers[0] == answers[2] == here.benchmarks.find(here.tenant, "demo").view
    assert rows(here, "benchmarks", "events", "criteria") == {"benchmarks": 1, "events": 1, "criteria": 1}


def test_the_criteria_of_a_benchmark_are_committed_to_once(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark(task("t1"), task("t2"), task("t3", UNTOUCHED))))
    assert rows(here, "criteria", "log_leaves") == {"criteria": 2, "log_leaves": 2}
    here.store.recorder.write(publish(here, benchmark(task("t1"), version=2)))
    assert rows(here, "criteria", "log_leaves") == {"criteria": 2, "log_leaves": 2}


def test_a_slug_finds_the_newest_version(here: Bench) -> None:
    for version in (2, 10, 1):
        here.store.recorder.write(publish(here, benchmark(version=version, title=f"v{version}")))
    assert here.benchmarks.find(here.tenant, "demo").benchmark.version == 10
    assert here.benchmarks.find(here.tenant, "demo@2").benchmark.title == "v2"
    for name in ("demo@3", "other", "Demo", "demo@", "demo@1@1"):
        with pytest.raises(NotFound):
            here.benchmarks.find(here.tenant, name)
    with pytest.raises(NotFound):
        here.benchmarks.find("stranger", "demo")


def test_benchmarks_are_listed_newest_first_in_pages(here: Bench) -> None:
    for version in range(1, 6):
        here.store.recorder.write(publish(here, benchmark(version=version)))
    with here.store.database.reading() as connection:
        first = published.page(connection, here.tenant, limit=3)
        rest = published.page(connection, here.tenant, before=first[-1].seq, limit=3)
    assert [one.version for one in (*first, *rest)] == [5, 4, 3, 2, 1]


def test_an_assertion_that_cannot_run_is_not_published(here: Bench) -> None:
    with pytest.raises(UnsupportedCriteria) as refused:
        asyncio.run(here.publish(task("t1", asked(), {"assert": "portal-state-mach"})))
    (problem,) = refused.value.problems
    assert problem.where.startswith("tasks[0].criteria[1]")
    assert "portal-state-match" in problem.message


# Every move from every state

MOVES: dict[str, Callable[[Bench, str], Coroutine[Any, Any, Any]]] = {
    "start": lambda here, run_id: here.benchmarks.start(here.scope, run_id),
    "access": lambda here, run_id: here.benchmarks.access(here.scope, run_id),
    "complete": lambda here, run_id: here.benchmarks.complete(here.scope, run_id),
    "cancel": lambda here, run_id: here.benchmarks.cancel(here.tenant, [run_id]),
    "recheck": lambda here, run_id: here.benchmarks.recheck(here.tenant, run_id),
    "reread": lambda here, run_id: here.benchmarks.recheck(here.tenant, run_id, reread=True),
    "rejudge": lambda here, run_id: here.benchmarks.rejudge(here.tenant, run_id, "again"),
}
ALLOWED = {
    "pending": {"start": "running", "cancel": "cancelled"},
    "running": {"access": "running", "complete": "completed", "cancel": "cancelled"},
    "overdue": {"access": "running", "complete": "timed_out", "cancel": "cancelled"},
    "completed": {"complete": "completed", "cancel": "completed", "rejudge": "completed"},
    "unread": {
        **dict.fromkeys(("complete", "cancel", "recheck", "reread", "rejudge"), "completed"),
    },
    "timed_out": {"complete": "timed_out", "cancel": "timed_out"},
    "cancelled": {"complete": "cancelled", "cancel": "cancelled"},
}
"""What may be done from each situation, and where it leads."""
SILENT = {
    *(("running", "access"), ("overdue", "access")),
    *(("completed", "complete"), ("completed", "cancel"), ("unread", "complete"), ("unread", "cancel")),
    *((ended, move) for ended in ("timed_out", "cancelled") for move in ("complete", "cancel")),
}
"""What changes nothing."""


async def reached(here: Bench, clock: Clock, situation: str) -> str:
    """A run in this situation."""
    run = await here.created()
    if situation == "pending":
        return run.id
    run = (await here.benchmarks.start(here.scope, run.id)).run
    here.ground.act(run)
    match situation:
        case "overdue" | "timed_out":
            clock.pass_s(901)
            if situation == "timed_out":
                assert await here.benchmarks.sweep(here.tenant) == 1
        case "completed":
            await here.benchmarks.complete(here.scope, run.id)
        case "unread":
            here.ground.trouble[run.playground_id] = "the portal is down"
            await here.benchmarks.complete(here.scope, run.id)
            here.ground.trouble.clear()
        case "cancelled":
            await here.benchmarks.cancel(here.tenant, [run.id])
        case _:
            assert situation == "running"
    return run.id


# Any: each move answers in its own way.
def _run_in(answer: Any) -> TaskRun:
    """The run in whatever a move answers."""
    several = answer if isinstance(answer, list) else [getattr(answer, "run", answer)]
    assert isinstance(several[0], TaskRun)
    return several[0]


@pytest.mark.parametrize("situation", ALLOWED)
def test_each_transition_needs_the_right_state(here: Bench, clock: Clock, situation: str) -> None:
    async def moves() -> None:
        await here.publish()
        for move, made in MOVES.items():
            run_id = await reached(here, clock, situation)
            before = rows(here, *EVERYTHING), found(here, run_id)
            leads_to = ALLOWED[situation].get(move)
            if leads_to is None:
                with pytest.raises(TaskRunStateError, match=f"task run {run_id}"):
                    await made(here, run_id)
                assert (rows(here, *EVERYTHING), found(here, run_id)) == before, move
                continue
            answer = await made(here, run_id)
            run = found(here, run_id)
            assert run.status == leads_to, move
            assert run == _run_in(answer), move
            changed = (rows(here, *EVERYTHING), run) != before
            assert changed is ((situation, move) not in SILENT), move

    asyncio.run(moves())


@pytest.mark.parametrize("move", MOVES)
def test_an_unknown_run_is_not_found(here: Bench, move: str) -> None:
    with pytest.raises(NotFound, match="'trn_nothing'"):
        asyncio.run(MOVES[move](here, "trn_nothing"))


def test_events_of_a_run_show_nothing_of_its_rubric(here: Bench) -> None:
    async def moves() -> None:
        await here.publish(task("t1", asked("canary-label", axis="canary-axis"), scenario="canary-scenario"))
        _, (run,) = await here.benchmarks.create(here.tenant, "me", "demo", agent_id="a1")
        await here.benchmarks.start(here.scope, run.id)
        here.ground.trouble[None] = "down"
        await here.benchmarks.complete(here.scope, run.id)
        here.ground.trouble.clear()
        await here.benchmarks.recheck(here.tenant, run.id)
        await here.benchmarks.recheck(here.tenant, run.id, reread=True)
        await here.benchmarks.rejudge(here.tenant, run.id, "again")
        _, (late,) = await here.benchmarks.create(here.tenant, "me", "demo", agent_id="a1")
        await here.benchmarks.cancel(here.tenant, [late.id])

    asyncio.run(moves())
    assert types_told(here) == [
        *("benchmark.published", "benchmark_run.created", "task_run.created", "task_run.started"),
        *("outcome.recorded", "task_run.completed", "benchmark_run.ended"),
        *("outcome.rescored", "task_run.rechecked"),
        *("outcome.recorded", "task_run.rechecked", "outcome.rescored", "task_run.rechecked"),
        *("benchmark_run.created", "task_run.created", "task_run.cancelled", "benchmark_run.ended"),
    ]
    again = [data.get("reason") for kind, _, data in told(here) if kind == "task_run.rechecked"]
    assert again == [None, "reread", None]
    written = json.dumps(told(here))
    assert RUBRIC not in written
    assert "canary" not in written
    keys = select(tables.events.c.idempotency_key).where(tables.events.c.tenant == here.tenant)
    with here.store.database.reading() as connection:
        every = connection.execute(keys).scalars().all()
    assert len(every) == len(set(every))


# What a completion writes


def test_a_completion_is_one_outcome_and_a_criterion_run_each(here: Bench) -> None:
    async def moves() -> TaskRun:
        await here.publish(
            task(
                "t1",
                asked(weight=2, axis="correctness"),
                UNTOUCHED,
                {"assert": "state-unchanged", "label": "other", "except": ["x"]},
            )
        )
        return await here.completed()

    run = asyncio.run(moves())
    assert (run.status, run.verdict, run.exact, run.exact_high) == (RunStatus.COMPLETED, Verdict.PASS, "1", "1")
    counted = rows(here, "outcomes", "verdicts", "criterion_runs")
    assert counted == {"outcomes": 1, "verdicts": 1, "criterion_runs": 3}
    # Its criteria when published; evidence and verdict when completed.
    assert rows(here, "log_leaves") == {"log_leaves": 3}
    criteria = here.benchmarks.reader.criterion_runs(here.tenant, run)
    assert [one.label for one in criteria] == ["requested", "untouched", "other"]
    assert [one.position for one in criteria] == [0, 1, 2]
    assert all(one.status is CriterionStatus.PASSED and one.took_ms is not None for one in criteria)
    assert [here.benchmarks.reader.criterion_run(here.tenant, one.id) for one in criteria] == criteria
    assert here.ground.discarded == [run.playground_id]


def test_a_second_completion_returns_the_first(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        first = await here.completed()
        reads, before = here.ground.reads, rows(here, *EVERYTHING)
        assert await here.benchmarks.complete(here.scope, first.id) == first
        assert (here.ground.reads, rows(here, *EVERYTHING)) == (reads, before)

    asyncio.run(moves())


def test_parallel_completions_give_one_outcome(here: Bench) -> None:
    async def moves() -> list[TaskRun]:
        await here.publish()
        run = await here.started()
        here.ground.act(run)
        other = bench(here.store, here.tenant).benchmarks
        # As another process has it: without what this one knows of who is judging.
        other.environments = here.ground
        callers = [here.benchmarks if number % 2 else other for number in range(AT_ONCE)]
        return await asyncio.gather(*(one.complete(here.scope, run.id) for one in callers))

    answers = asyncio.run(moves())
    assert answers == [answers[0]] * AT_ONCE
    assert answers[0].verdict is Verdict.PASS
    assert rows(here, "outcomes", "criterion_runs", "verdicts") == {"outcomes": 1, "criterion_runs": 2, "verdicts": 1}
    assert Counter(types_told(here))["task_run.completed"] == 1


def test_one_of_many_starts_wins_and_the_others_clean_up(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        run = await here.created()
        answers = await asyncio.gather(
            *(here.benchmarks.start(here.scope, run.id) for _ in range(20)), return_exceptions=True
        )
        (begun,) = (one for one in answers if not isinstance(one, BaseException))
        assert {type(one) for one in answers if isinstance(one, BaseException)} == {TaskRunStateError}
        assert list(here.ground.rows) == [begun.run.playground_id]
        assert (
            begun.access == (await here.benchmarks.access(here.scope, run.id)).access == {"at": begun.run.playground_id}
        )

    asyncio.run(moves())


def test_hundreds_of_runs_complete_at_once_without_loss(here: Bench) -> None:
    async def moves() -> list[TaskRun]:
        await here.publish(task("t1", *(asked(f"c{number}") for number in range(CRITERIA - 1)), UNTOUCHED))
        limit = asyncio.Semaphore(WORKERS)

        async def one(run: TaskRun) -> TaskRun:
            async with limit:
                begun = (await here.benchmarks.start(here.scope, run.id)).run
                here.ground.act(begun)
                return await here.benchmarks.complete(here.scope, run.id)

        created = [
            run
            for _ in range(RUNS // 100)
            for run in (await here.benchmarks.create(here.tenant, "me", "demo", repeats=100, agent_id="a1"))[1]
        ]
        return await asyncio.gather(*map(one, created))

    done = asyncio.run(moves())
    assert len({run.outcome_id for run in done}) == RUNS
    assert {run.verdict for run in done} == {Verdict.PASS}
    assert rows(here, "task_runs", "outcomes", "verdicts", "criterion_runs", "log_leaves") == {
        "task_runs": RUNS,
        "outcomes": RUNS,
        "verdicts": RUNS,
        "criterion_runs": RUNS * CRITERIA,
        # Evidence and verdict of each, and the criteria once.
        "log_leaves": 2 * RUNS + 1,
    }
    assert Counter(types_told(here)) == {
        "benchmark.published": 1,
        "benchmark_run.created": RUNS // 100,
        "benchmark_run.ended": RUNS // 100,
        **{f"task_run.{what}": RUNS for what in ("created", "started", "completed")},
        "outcome.recorded": RUNS,
    }
    assert here.ground.rows == {}


# Time


def test_a_run_that_is_not_completed_in_time_counts_nothing(here: Bench, clock: Clock) -> None:
    async def moves() -> None:
        await here.publish(task("t1", time_limit_s=60))
        benchmark_run, several = await here.benchmarks.create(here.tenant, "me", "demo", repeats=3)
        early, late, waiting = several
        for run in (early, late):
            here.ground.act((await here.benchmarks.start(here.scope, run.id)).run)
        clock.pass_s(60)
        assert (await here.benchmarks.complete(here.scope, early.id)).status is RunStatus.COMPLETED
        assert await here.benchmarks.sweep(here.tenant) == 0
        clock.pass_s(1)
        assert await here.benchmarks.sweep("stranger") == 0
        assert await here.benchmarks.sweep(here.tenant) == 1
        assert await here.benchmarks.sweep(here.tenant) == 0
        ended = found(here, late.id)
        assert (ended.status, ended.verdict, ended.outcome_id) == (RunStatus.TIMED_OUT, None, None)
        assert here.ground.rows == {}
        # Whoever has not begun has all the time of the world.
        assert found(here, waiting.id).status is RunStatus.PENDING
        assert not here.benchmarks.reader.benchmark_run(here.scope, benchmark_run.id).ended
        await here.benchmarks.cancel(here.tenant, [waiting.id])
        result = here.benchmarks.reader.benchmark_run(here.scope, benchmark_run.id).result
        assert result is not None
        assert (result.exact, result.timed_out, result.cancelled) == ("1/2", 1, [waiting.id])

    asyncio.run(moves())


def test_how_long_judging_takes_is_not_the_agents_time(here: Bench, clock: Clock) -> None:
    class Slow(type(here.ground)):  # type: ignore[misc]  # a ground that takes its time
        async def read(self, *arguments: Any) -> Any:
            clock.pass_s(50)
            return await super().read(*arguments)

    async def moves() -> None:
        await here.publish(task("t1", time_limit_s=60))
        run = await here.started()
        here.ground.act(run)
        clock.pass_s(59)
        here.ground.__class__ = Slow
        sweeping = asyncio.create_task(here.benchmarks.sweep(here.tenant))
        ended = await here.benchmarks.complete(here.scope, run.id)
        assert (ended.status, await sweeping) == (RunStatus.COMPLETED, 0)

    asyncio.run(moves())


def test_a_run_being_judged_does_not_time_out(here: Bench, clock: Clock) -> None:
    # As another process has it: without what this one knows of who is judging.
    other = bench(here.store, here.tenant).benchmarks
    swept = []

    class Slow(type(here.ground)):  # type: ignore[misc]  # a ground that takes its time
        async def read(self, *arguments: Any) -> Any:
            clock.pass_s(runs.JUDGING_S)
            swept.append(await other.sweep(here.tenant))
            return await super().read(*arguments)

    async def moves() -> None:
        await here.publish(task("t1", time_limit_s=60))
        run = await here.started()
        here.ground.act(run)
        clock.pass_s(59)
        here.ground.__class__ = Slow
        ended = await here.benchmarks.complete(here.scope, run.id)
        assert (ended.status, ended.verdict, swept) == (RunStatus.COMPLETED, Verdict.PASS, [0])

    asyncio.run(moves())


def test_a_run_whose_judge_died_times_out_after_a_while(here: Bench, clock: Clock) -> None:
    async def moves() -> None:
        await here.publish(task("t1", time_limit_s=60))
        saved, lost = await here.started(), await here.started()
        for run in (saved, lost):
            here.ground.act(run)
            in_time = to_micros(clock())
            here.store.recorder.write(run_moves.BeginJudging(here.tenant, run.id, in_time))
        clock.pass_s(60 + runs.JUDGING_S)
        assert await here.benchmarks.sweep(here.tenant) == 0
        assert (await here.benchmarks.complete(here.scope, saved.id)).status is RunStatus.COMPLETED
        clock.pass_s(1)
        assert await here.benchmarks.sweep(here.tenant) == 1
        assert found(here, lost.id).status is RunStatus.TIMED_OUT

    asyncio.run(moves())


def test_a_completion_that_cannot_be_judged_wins_no_time(here: Bench, clock: Clock) -> None:
    class Elsewhere(type(here.ground)):  # type: ignore[misc]  # a ground that another process has
        async def read(self, *arguments: Any) -> Any:
            raise Unreachable("it lives elsewhere")

    async def moves() -> None:
        await here.publish(task("t1", time_limit_s=60))
        run = await here.started()
        here.ground.__class__ = Elsewhere
        with pytest.raises(Unreachable):
            await here.benchmarks.complete(here.scope, run.id)
        clock.pass_s(61)
        late = run_moves.GiveUpJudging(here.tenant, run.id, 1)
        here.store.recorder.write(late)
        assert (await here.benchmarks.complete(here.scope, run.id)).status is RunStatus.TIMED_OUT

    asyncio.run(moves())


# Benchmark runs


def test_the_end_of_a_benchmark_run_is_one_event(here: Bench, clock: Clock) -> None:
    async def moves() -> str:
        await here.publish(task("t1", time_limit_s=60), task("t2"), task("t3"))
        benchmark_run, several = await here.benchmarks.create(here.tenant, "me", "demo", repeats=2)
        for run in several:
            here.ground.act((await here.benchmarks.start(here.scope, run.id)).run)
        clock.pass_s(100)
        ending = [
            here.benchmarks.sweep(here.tenant),
            *(here.benchmarks.complete(here.scope, run.id) for run in several if run.task == "t2"),
            here.benchmarks.cancel(here.tenant, [run.id for run in several if run.task == "t3"]),
            here.benchmarks.cancel(here.tenant, [run.id for run in several if run.task == "t3"]),
        ]
        await asyncio.gather(*ending)
        return benchmark_run.id

    run_id = asyncio.run(moves())
    ends = [subject for kind, subject, _ in told(here) if kind == "benchmark_run.ended"]
    assert ends == [run_id]
    ended = here.benchmarks.reader.benchmark_run(here.scope, run_id)
    assert ended.counts == {"completed": 2, "timed_out": 2, "cancelled": 2}
    assert ended.result is not None
    assert (ended.result.runs, ended.result.timed_out, len(ended.result.cancelled)) == (4, 2, 2)
    assert [one.task for one in ended.result.tasks] == ["t1", "t2"]
    assert len(ended.result.reasons) == 1
    assert " t3 " in ended.result.reasons[0]
    with here.store.database.reading() as connection:
        row = connection.execute(
            select(tables.benchmark_runs.c.ended_at).where(tables.benchmark_runs.c.id == run_id)
        ).scalar_one()
    assert row is not None


def test_runs_may_end_in_one_transaction(here: Bench) -> None:
    async def moves() -> list[str]:
        await here.publish(task("t1"), task("t2"))
        _, several = await here.benchmarks.create(here.tenant, "me", "demo", repeats=3)
        return [run.id for run in several]

    ids = asyncio.run(moves())
    refused = run_moves.CancelRuns(here.tenant, (ids[0], "trn_nothing"))
    writes = [run_moves.CancelRuns(here.tenant, (one,)) for one in ids]
    answers = together(here.store, [refused, *writes[:5], refused, writes[5], *writes])
    assert [type(answer) for answer in answers[:1] + answers[6:7]] == [NotFound] * 2
    assert types_told(here)[-2:] == ["task_run.cancelled", "benchmark_run.ended"]
    assert Counter(types_told(here))["benchmark_run.ended"] == 1


def test_a_benchmark_run_has_a_result_after_its_last_run(here: Bench) -> None:
    async def moves() -> None:
        await here.publish(task("t1"), task("t2"))
        benchmark_run, (first, second) = await here.benchmarks.create(here.tenant, "me", "demo", agent_id="a1")
        assert (benchmark_run.counts, benchmark_run.ended, benchmark_run.result) == ({"pending": 2}, False, None)
        for run, does in ((first, DONE), (second, WEAK)):
            assert here.benchmarks.reader.benchmark_run(here.scope, benchmark_run.id).result is None
            here.ground.act((await here.benchmarks.start(here.scope, run.id)).run, does)
            await here.benchmarks.complete(here.scope, run.id)
        ended = here.benchmarks.reader.benchmark_run(here.scope, benchmark_run.id)
        assert ended.result is not None
        # That the weak one left everything else alone earns nothing.
        assert (ended.result.exact, ended.result.verdict, ended.result.worst_task) == ("1/2", Verdict.PARTIAL, "t2")
        assert [run.task for run in here.benchmarks.reader.task_runs(here.scope, benchmark_run.id)] == ["t1", "t2"]

    asyncio.run(moves())


@pytest.mark.parametrize(("tasks", "repeats"), [(["nothing"], 1), ([], 1), (None, 0), (None, 101)])
def test_a_benchmark_run_of_nothing_or_too_much_is_refused(here: Bench, tasks: Any, repeats: int) -> None:
    async def moves() -> None:
        await here.publish()
        before = rows(here, *EVERYTHING)
        with pytest.raises(MeruitError, match="repeats" if tasks is None else "demo@1"):
            await here.benchmarks.create(here.tenant, "me", "demo", tasks=tasks, repeats=repeats)
        assert rows(here, *EVERYTHING) == before

    asyncio.run(moves())


def test_chosen_tasks_run_once_each_and_attempts_are_counted(here: Bench) -> None:
    async def moves() -> None:
        await here.publish(task("t1"), task("t2"), task("t3"))
        _, several = await here.benchmarks.create(here.tenant, "me", "demo", tasks=["t3", "t1", "t3"], repeats=2)
        assert [(run.task, run.attempt) for run in several] == [("t3", 1), ("t1", 1), ("t3", 2), ("t1", 2)]

    asyncio.run(moves())


# Judged again


def test_a_recheck_decides_what_a_source_in_trouble_left_open(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        run = await here.started()
        here.ground.act(run)
        here.ground.trouble[run.playground_id] = "the portal is down"
        first = await here.benchmarks.complete(here.scope, run.id)
        assert (first.verdict, first.exact, first.exact_high, first.coverage) == (Verdict.INCONCLUSIVE, "0", "1", 0.0)
        assert here.ground.discarded == []
        here.ground.trouble.clear()
        answers = await asyncio.gather(
            *(here.benchmarks.recheck(here.tenant, run.id, reread=True) for _ in range(3)), return_exceptions=True
        )
        assert [type(one) for one in answers] == [TaskRun, TaskRunStateError, TaskRunStateError]
        second = found(here, run.id)
        assert (second.verdict, second.status) == (Verdict.PASS, RunStatus.COMPLETED)
        assert second.outcome_id != first.outcome_id
        assert (second.ended_at, second.started_at) == (first.ended_at, first.started_at)
        assert here.ground.discarded == [run.playground_id]
        # What was found first stays on record, with its own criterion runs.
        assert rows(here, "outcomes", "criterion_runs") == {"outcomes": 2, "criterion_runs": 4}
        assert [one.status for one in here.benchmarks.reader.criterion_runs(here.tenant, first)] == ["error", "error"]
        assert [one.status for one in here.benchmarks.reader.criterion_runs(here.tenant, second)] == [
            "passed",
            "passed",
        ]

    asyncio.run(moves())


async def judged(here: Bench, run_id: str) -> tuple[NewOutcome, tuple[run_moves.NewCriterionRun, ...]]:
    """What would be recorded of a run as its world stands."""
    kept = find_row(here.benchmarks, here.scope, run_id)
    given = here.benchmarks._input(here.tenant, kept)
    after = await here.benchmarks._read_after(here.tenant, kept.run, given)
    found, criteria = await here.benchmarks._judge(here.tenant, kept.run, given, as_work_part(after))
    return here.benchmarks.registrar.draft(here.tenant, found), criteria


def test_two_rereads_of_one_run_record_one(here: Bench) -> None:
    async def moves() -> tuple[TaskRun, list[Any]]:
        await here.publish()
        run = await here.started()
        here.ground.act(run)
        here.ground.trouble[run.playground_id] = "down"
        first = await here.benchmarks.complete(here.scope, run.id)
        here.ground.trouble.clear()
        wishes = []
        for _ in range(2):
            draft, criteria = await judged(here, run.id)
            wishes.append(
                run_moves.RereadRun(
                    here.tenant, run.id, first.outcome_id or "", VersionBasis(1), draft, criteria, "now"
                )
            )
        return first, wishes

    _, wishes = asyncio.run(moves())
    one, two = together(here.store, wishes)
    assert one == two
    assert rows(here, "outcomes", "criterion_runs") == {"outcomes": 2, "criterion_runs": 4}


def test_rejudging_adds_a_version(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        stricter = asked(assertion={**asked()["assertion"], "fields": {"cpt": "other"}})
        await here.publish(task("t1", stricter), version=2)
        await here.publish(task("t2"), version=3)
        await here.publish(name="elsewhere")
        first = await here.benchmarks.complete(here.scope, (await _acted(here, "demo@1")).id)
        again = await here.benchmarks.rejudge(here.tenant, first.id, "as it was")
        assert (again.verdict, again.outcome_id, again.outcome_version) == (first.verdict, first.outcome_id, 2)
        other = await here.benchmarks.rejudge(here.tenant, first.id, "stricter", "demo@2")
        assert (again.judged_version, other.judged_version) == (None, 2)
        assert here.benchmarks.reader.run(Scope(here.tenant), first.id).judged_version == 2
        assert (other.verdict, other.outcome_version, other.version) == (Verdict.FAIL, 3, 1)
        assert found(here, first.id) == other
        for version, statuses in ((first, ["passed"] * 2), (again, ["passed"] * 2), (other, ["failed"])):
            assert [one.status for one in here.benchmarks.reader.criterion_runs(here.tenant, version)] == statuses
        assert rows(here, "outcomes", "verdicts", "criterion_runs") == {
            "outcomes": 1,
            "verdicts": 3,
            "criterion_runs": 5,
        }
        for name, words in (("demo@3", "no task 't1'"), ("elsewhere", "another benchmark"), ("demo@9", "no benchmark")):
            with pytest.raises(Exception, match=words):
                await here.benchmarks.rejudge(here.tenant, first.id, "no", name)

    asyncio.run(moves())


async def _acted(here: Bench, name: str) -> TaskRun:
    run = await create_one(here.benchmarks, here.tenant, "me", name, "t1", scored=True, agent_id=None)
    begun = (await here.benchmarks.start(here.scope, run.id)).run
    here.ground.act(begun)
    return begun


def test_later_versions_of_an_outcome_are_not_the_runs(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        run = await here.completed()
        wishes = [here.benchmarks._build_rejudge(here.tenant, run.id, "one", None) for _ in range(2)]
        assert len(here.store.recorder.write(wishes[0].versions)) == 1
        assert found(here, run.id) == run
        # Somebody was quicker: nothing is written, and the run stays as it is.
        assert here.store.recorder.write(wishes[1]) == run
        assert rows(here, "criterion_runs") == {"criterion_runs": 2}
        # The next one follows what stands.
        assert (await here.benchmarks.rejudge(here.tenant, run.id, "two")).outcome_version == 3

    asyncio.run(moves())


def test_of_two_rejudgings_in_one_transaction_one_counts(here: Bench) -> None:
    async def moves() -> TaskRun:
        await here.publish()
        return await here.completed()

    run = asyncio.run(moves())
    wishes = [here.benchmarks._build_rejudge(here.tenant, run.id, "again", None) for _ in range(2)]
    answers = together(here.store, wishes)
    assert [answer.outcome_version for answer in answers] == [2, 2]
    assert rows(here, "verdicts", "criterion_runs") == {"verdicts": 2, "criterion_runs": 4}


def test_erased_evidence_cannot_be_judged_again(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        run = await here.completed(scored=False)
        (first, _) = here.benchmarks.reader.criterion_runs(here.tenant, run)
        erase(here.store, here.tenant, run.outcome_id or "", "asked to")
        assert rows(here, "blobs") == {"blobs": 0}
        with pytest.raises(StoreError, match="erased"):
            await here.benchmarks.rejudge(here.tenant, run.id, "again")
        with pytest.raises(NotFound, match="erased"):
            here.benchmarks.reader.criterion_run(here.tenant, first.id)
        assert found(here, run.id) == run
        assert here.benchmarks.reader.criterion_runs(here.tenant, run) == []
        told = here.benchmarks.reader.completion(here.tenant, run)
        assert (told.verdict, told.criteria) == (Verdict.PASS, [])

    asyncio.run(moves())


@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("ending", ["cancel", "time out", "complete late", "complete and erase"])
def test_start_states_without_an_outcome_are_erased(here: Bench, clock: Clock, ending: str, size: int) -> None:
    async def moves() -> TaskRun:
        await here.publish(task("t1", seed={"rows": {"member": {"M1": {"name": "A" * size}}}}))
        run = await here.started()
        here.ground.act(run)
        assert rows(here, "blobs") == {"blobs": 1}
        if ending != "complete and erase":
            clock.pass_s(901)
        match ending:
            case "cancel":
                (run,) = await here.benchmarks.cancel(here.tenant, [run.id])
            case "time out":
                assert await here.benchmarks.sweep(here.tenant) == 1
            case _:
                run = await here.benchmarks.complete(here.scope, run.id)
        return run

    run = asyncio.run(moves())
    if ending == "complete and erase":
        erase(here.store, here.tenant, run.outcome_id or "", "asked to")
    assert rows(here, "blobs") == {"blobs": 0}
    folder = here.store.database.location.folder / "blobs" / here.tenant
    left = [path for path in folder.rglob("*") if path.is_file()]
    # What a completion that came too late found is written before anybody knows that it did.
    assert len(left) <= (ending == "complete late")


def test_a_transition_checks_the_state_when_written(here: Bench, clock: Clock) -> None:
    async def moves() -> None:
        await here.publish()
        first, second = await here.started(), await here.started()
        for run in (first, second):
            here.ground.act(run)
        draft, criteria = await judged(here, first.id)
        pending = await here.created()
        writes: list[Any] = [
            run_moves.CompleteRun(here.tenant, pending.id, draft, criteria, None),
            run_moves.BeginJudging(here.tenant, pending.id, 1),
            run_moves.RereadRun(here.tenant, first.id, "out_x", VersionBasis(1), draft, criteria, "now"),
        ]
        for write in writes:
            with pytest.raises(TaskRunStateError):
                here.store.recorder.write(write)
        # Completed in the same moment in which somebody finds that its time is over.
        here.store.recorder.write(run_moves.BeginJudging(here.tenant, first.id, 1))
        clock.pass_s(901)
        complete = run_moves.CompleteRun(here.tenant, first.id, draft, criteria, first.started_at)
        late = run_moves.TimeOutRuns(here.tenant, (first.id, second.id))
        done, timed_out = together(here.store, [complete, late])
        assert (done.status, [run.id for run in timed_out]) == (RunStatus.COMPLETED, [second.id])
        rejudge = here.benchmarks._build_rejudge(here.tenant, first.id, "again", None)
        with pytest.raises(TaskRunStateError):
            here.store.recorder.write(msgspec.structs.replace(rejudge, id=second.id))

    asyncio.run(moves())


# Reading


def test_runs_are_listed_newest_first_in_pages_and_narrowed(here: Bench) -> None:
    async def moves() -> list[TaskRun]:
        await here.publish()
        return [await here.created(agent_id=f"a{number % 2}") for number in range(5)]

    created = asyncio.run(moves())
    asyncio.run(here.benchmarks.cancel(here.tenant, [created[4].id]))
    with here.store.database.reading() as connection:

        def ids(**narrowed: Any) -> list[str]:
            return [run.id for run in runs.page(connection, here.scope, **narrowed).entries]

        newest = [run.id for run in reversed(created)]
        assert ids() == newest
        assert ids(limit=2) == newest[:2]
        assert ids(before=created[3].seq) == newest[2:]
        assert ids(wanted=TaskRunFilter(agent_id="a1")) == [created[3].id, created[1].id]
        assert ids(wanted=TaskRunFilter(status="cancelled")) == [created[4].id]
        assert ids(wanted=TaskRunFilter(benchmark_run_id="brn_nothing")) == []
        assert ids(wanted=TaskRunFilter(agent_id="a0", status="cancelled", benchmark="demo")) == [created[4].id]
        assert ids(wanted=TaskRunFilter(agent_id="a1", status="cancelled")) == []
        assert ids(wanted=TaskRunFilter(task="nothing")) == ids(wanted=TaskRunFilter(until=created[0].created_at)) == []
        assert ids(wanted=TaskRunFilter(since=created[0].created_at)) == newest


def test_benchmark_runs_are_listed_newest_first(here: Bench) -> None:
    async def moves() -> list[str]:
        await here.publish()
        await here.publish(name="other")
        names = ("demo", "other", "demo")
        return [(await here.benchmarks.create(here.tenant, "me", name, agent_id="a1"))[0].id for name in names]

    created = asyncio.run(moves())
    with here.store.database.reading() as connection:

        def ids(**narrowed: Any) -> list[str]:
            return [run.id for run in runs.benchmark_run_page(connection, here.scope, **narrowed)]

        assert ids() == created[::-1]
        assert ids(slug="demo") == [created[2], created[0]]
        page = runs.benchmark_run_page(connection, here.scope, limit=1)
        assert ids(before=page[0].seq, limit=5) == created[1::-1]
        assert page[0].counts == {"pending": 1}


def test_tenants_and_agents_are_apart(here: Bench, store: Store) -> None:
    async def moves() -> tuple[TaskRun, str]:
        await here.publish()
        mine = await here.completed(agent_id="a1")
        return mine, (await here.benchmarks.create(here.tenant, "me", "demo", agent_id="a1"))[0].id

    mine, benchmark_run = asyncio.run(moves())
    own, others = Scope(here.tenant, "a1", only_own=True), Scope(here.tenant, "a2", only_own=True)
    nameless, stranger = Scope(here.tenant, None, only_own=True), Scope("stranger")
    assert here.benchmarks.reader.run(own, mine.id) == mine
    assert here.benchmarks.reader.benchmark_run(own, benchmark_run).id == benchmark_run
    (criterion, _) = here.benchmarks.reader.criterion_runs(here.tenant, mine)
    with pytest.raises(NotFound):
        here.benchmarks.reader.criterion_run("stranger", criterion.id)
    for scope in (others, nameless, stranger):
        with pytest.raises(NotFound):
            here.benchmarks.reader.run(scope, mine.id)
        for move in (here.benchmarks.start, here.benchmarks.complete, here.benchmarks.access):
            with pytest.raises(NotFound):
                asyncio.run(move(scope, mine.id))
        for ask in (here.benchmarks.reader.benchmark_run, here.benchmarks.reader.task_runs):
            with pytest.raises(NotFound):
                ask(scope, benchmark_run)
        with store.database.reading() as connection:
            assert runs.page(connection, scope).entries == []
            assert runs.benchmark_run_page(connection, scope) == []
    for asking in (here.benchmarks.recheck("stranger", mine.id), here.benchmarks.cancel("stranger", [mine.id])):
        with pytest.raises(NotFound):
            asyncio.run(asking)


def test_the_outcome_of_a_run_has_its_labels(here: Bench) -> None:
    async def moves() -> TaskRun:
        await here.publish()
        return await here.completed(agent_id="a1")

    run = asyncio.run(moves())
    with here.store.database.reading() as connection:
        found = outcomes.summary(connection, here.scope, run.outcome_id or "")
    assert (found.contract_id, found.agent_id, found.domain) == (run.id, "a1", "demo@1/t1")


def test_an_interrupted_run_starts_again_and_counts_once(here: Bench, clock: Clock) -> None:
    async def moves() -> None:
        await here.publish()
        lost = await here.started()
        here.ground.act(lost)
        stale, criteria = await judged(here, lost.id)
        assert [run.id for run in await here.benchmarks.requeue(here.tenant, [lost.id])] == [lost.id]
        assert lost.playground_id in here.ground.discarded
        run = here.benchmarks.reader.run(here.scope, lost.id)
        assert (run.status, run.started_at, run.deadline, run.playground_id) == (RunStatus.PENDING, None, None, None)
        assert await here.benchmarks.requeue(here.tenant, [lost.id]) == []
        clock.pass_s(1)
        again = (await here.benchmarks.start(here.scope, lost.id)).run
        assert again.playground_id != lost.playground_id
        # What was judged before the interruption does not count for the new environment.
        with pytest.raises(TaskRunStateError):
            here.store.recorder.write(run_moves.CompleteRun(here.tenant, lost.id, stale, criteria, lost.started_at))
        here.ground.act(again)
        ended = await here.benchmarks.complete(here.scope, lost.id)
        assert (ended.status, ended.attempt, ended.verdict) == (RunStatus.COMPLETED, lost.attempt, Verdict.PASS)
        assert await here.benchmarks.requeue(here.tenant, [lost.id], judging_too=True) == []

    asyncio.run(moves())
    kinds = Counter(types_told(here))
    assert [kinds[f"task_run.{what}"] for what in ("started", "requeued", "completed")] == [2, 1, 1]


def test_a_run_that_is_judged_is_not_taken_away(here: Bench) -> None:
    async def moves() -> None:
        await here.publish()
        run = await here.started()
        here.store.recorder.write(run_moves.BeginJudging(here.tenant, run.id, to_micros(run.created_at)))
        assert await here.benchmarks.requeue(here.tenant, [run.id]) == []
        assert len(await here.benchmarks.requeue(here.tenant, [run.id], judging_too=True)) == 1

    asyncio.run(moves())


# Edits


def titled(text: str) -> Callable[[Benchmark | None], Benchmark]:
    """An edit that adds a word to the title."""

    def edit(before: Benchmark | None) -> Benchmark:
        assert before is not None
        return before.model_copy(update={"title": f"{before.title} {text}".strip()})

    return edit


def test_editors_at_the_same_time_both_count(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark()))
    library = here.benchmarks.library

    async def edit_both() -> list[BenchmarkView]:
        record = here.store.recorder.record
        edits = [library.edit(here.tenant, "author", "demo", titled(one), record=record) for one in ("a", "b", "c")]
        return await asyncio.gather(*edits)

    made = asyncio.run(edit_both())
    assert sorted(one.version for one in made) == [2, 3, 4]
    newest = here.benchmarks.find(here.tenant, "demo").benchmark
    assert sorted(newest.title.split()) == ["a", "b", "c"]


def test_a_plan_that_was_overtaken_is_not_recorded(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark()))
    plans = [here.benchmarks.library.plan_edit(here.tenant, "author", "demo", titled(one)) for one in ("a", "b")]
    answers = together(here.store, plans)
    assert [type(answer) for answer in answers] == [BenchmarkView, BenchmarkChanged]


def test_an_editor_who_never_wins_is_refused(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark()))

    async def lose(_plan: Any) -> None:
        raise BenchmarkChanged("again")

    with pytest.raises(BenchmarkChanged):
        asyncio.run(here.benchmarks.library.edit(here.tenant, "author", "demo", titled("a"), record=lose))


def test_the_highest_version_has_no_next_one(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark(version=MAX_VERSION)))
    with pytest.raises(BadBenchmark):
        here.benchmarks.library.plan_edit(here.tenant, "author", "demo", titled("a"))


def test_a_run_and_a_deletion_at_the_same_time_do_not_both_happen(here: Bench) -> None:
    here.store.recorder.write(publish(here, benchmark()))
    plan = here.benchmarks.plan(here.tenant, "author", "demo")
    first = together(here.store, [plan, plan_deletion(here.tenant, "demo")])
    assert type(first[1]) is BenchmarkInUse
    asyncio.run(here.benchmarks.cancel(here.tenant, [run.id for run in first[0]]))
    late = here.benchmarks.plan(here.tenant, "author", "demo")
    answers = together(here.store, [plan_deletion(here.tenant, "demo"), late])
    assert (answers[0].versions, type(answers[1])) == ([1], NotFound)
    with pytest.raises(NotFound):
        plan_deletion(here.tenant, "Not a name")


def test_a_run_that_is_being_judged_says_so(here: Bench) -> None:
    async def judge() -> str:
        await here.publish()
        run = await here.started()
        at = to_micros(here.store.surroundings.clock())
        await here.store.recorder.record(run_moves.BeginJudging(here.tenant, run.id, at))
        found = await here.benchmarks.progress(here.scope, run.id)
        assert found.seconds_left is None
        return found.state

    assert asyncio.run(judge()) == "judging"
