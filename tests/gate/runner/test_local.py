"""The engine for one process, in this one: who may have the file, and what becomes of runs when it stumbles."""

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pydantic import BaseModel
from tests.golden import check_golden

from meruit.errors import (
    AgentError,
    AgentRunConflict,
    CouldNotVerify,
    StoreError,
    StoreUnavailable,
    VerificationRejected,
    WorkerRefused,
)
from meruit.gate.agent import Agent
from meruit.gate.context import ExecutionContext
from meruit.gate.journal import StoreJournal
from meruit.gate.loop import drive
from meruit.gate.run import AgentRun, RunRequest, RunState
from meruit.gate.runner.engine import MAX_ERRORS, AgentRoster
from meruit.gate.runner.local import InlineEngine, hold_worker_lock
from meruit.gate.runner.polling import NOTHING_CAME, PollingIntervals
from meruit.gate.runner.worker import run_worker
from meruit.gate.store import read as agent_reading
from meruit.gate.store.read import DueRun
from meruit.gate.store.runs import CancelRun, ClaimRun, EndRun, ParkRun, QueueRun, ResumeRun
from meruit.gate.team import Team, WorkItem
from meruit.gate.tools import Deferred, Pause, call_author_function
from meruit.model.chat import MOST_TOKENS, ModelAnswer, Usage
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.testing import ScriptedModel, ScriptLine, calls, says, submits

TENANT = "acme"
QUICK = PollingIntervals(poll_s=0.01, beat_s=0.01)


class Out(BaseModel):
    """Passes as it is."""

    n: int

    async def verify(self) -> "Out":
        """All is well."""
        return self


def agent(*script: Any, name: str = "writer", tools: tuple[Callable[..., Any], ...] = ()) -> Agent:
    return Agent(name, "", ScriptedModel(script or [submits(n=1)]), [*tools], Out)


class Desk:
    """A store with somebody who asks for runs."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.heard: list[str] = []
        """What its workers told."""

    def queue(self, *ids: str, name: str = "writer") -> None:
        for one in ids:
            self.store.recorder.write(QueueRun(TENANT, "me", one, name, RunRequest("go")))

    def run(self, run_id: str) -> AgentRun:
        with self.store.database.reading() as connection:
            return agent_reading.find(connection, TENANT, run_id)

    def engine(self, *agents: Agent | Team, **chosen: Any) -> InlineEngine:
        return InlineEngine(self.store, AgentRoster(agents or [agent()]), pace=QUICK, watch=self.hear, **chosen)

    def hear(self, who: str, text: str) -> None:
        self.heard.append(f"{who}: {text}")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    store = Store.open(Location(tmp_path))
    yield Desk(store)
    store.close()


def done(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


async def served(engine: InlineEngine, enough: Callable[[], bool]) -> None:
    """Work until something is so."""
    stopping = asyncio.Event()
    serving = asyncio.create_task(engine.serve(stopping))
    while not enough():  # noqa: ASYNC110 - the store is asked, as another process would
        await asyncio.sleep(0.005)
    stopping.set()
    await serving


def test_a_second_worker_on_the_same_file_is_refused_with_who_has_it(desk: Desk, tmp_path: Path) -> None:
    with (
        hold_worker_lock(tmp_path),
        pytest.raises(WorkerRefused, match=r"process \d+ .*--database-url"),
    ):
        done(run_worker(desk.store, AgentRoster([agent()]), until_idle=True))
    desk.queue("one")
    done(run_worker(desk.store, AgentRoster([agent()]), until_idle=True))
    assert desk.run("one").status is RunState.COMPLETED


def test_a_worker_drives_at_least_one_run_at_a_time(desk: Desk) -> None:
    with pytest.raises(WorkerRefused, match="0"):
        desk.engine(concurrency=0)


def test_the_model_learns_that_a_value_did_not_come_in_time(desk: Desk) -> None:
    def ask() -> Deferred:
        """Ask a person."""
        return Deferred("approval", 0.02)

    heard: list[Any] = []

    def hears(messages: Any) -> ModelAnswer:
        heard.append(messages[-1]["content"])
        return submits(n=1)

    desk.queue("one")

    engine = desk.engine(agent(says("", calls("ask")), hears, tools=(ask,)))
    done(served(engine, lambda: desk.run("one").status is RunState.COMPLETED))
    assert heard == [NOTHING_CAME.decode().strip('"')]


def test_a_verifier_that_pauses_is_called_again_and_counts_nothing(desk: Desk) -> None:
    asked: list[int] = []

    def verify(output: Out) -> int | Pause:
        asked.append(output.n)
        return Pause(0.01) if len(asked) < 3 else output.n

    pausing = Agent("writer", "", ScriptedModel([submits(n=1)]), output_type=Out, verify=verify)
    desk.queue("one")
    done(served(desk.engine(pausing), lambda: desk.run("one").status is RunState.COMPLETED))
    assert (asked, desk.run("one").verification.attempts_used) == ([1, 1, 1], 0)


def test_who_is_stopped_while_it_claims_a_run_lets_go_of_it(desk: Desk) -> None:
    desk.queue("one")
    engine = desk.engine()

    async def stopped() -> None:
        task = asyncio.create_task(engine.run(DueRun(TENANT, "one", "writer")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    done(stopped())
    run = desk.run("one")
    assert (run.status, run.takeovers) == (RunState.QUEUED, 0)
    assert run.started_at is not None


def test_a_stopped_worker_leaves_a_run_of_another_alone(desk: Desk) -> None:
    desk.queue("one")
    desk.store.recorder.write(ClaimRun(TENANT, "one", "theirs", "another"))

    async def stopped() -> None:
        task = asyncio.create_task(desk.engine().run(DueRun(TENANT, "one", "writer")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    done(stopped())
    assert desk.run("one").status is RunState.RUNNING


def test_a_claim_whose_answer_was_lost_is_made_again_and_is_one(desk: Desk) -> None:
    desk.queue("one")
    claim = ClaimRun(TENANT, "one", "mine", "worker")
    assert desk.store.recorder.write(claim) == desk.store.recorder.write(claim)
    with pytest.raises(AgentRunConflict):
        desk.store.recorder.write(ClaimRun(TENANT, "one", "other", "worker"))


def test_a_run_is_taken_over_only_from_the_worker_that_is_gone(desk: Desk) -> None:
    desk.queue("one")
    desk.store.recorder.write(ClaimRun(TENANT, "one", "mine", "first"))
    taken = ClaimRun(TENANT, "one", "second", "second", takeover=True, gone="first")
    assert desk.store.recorder.write(taken).takeovers == 1
    with pytest.raises(AgentRunConflict):
        desk.store.recorder.write(msgspec.structs.replace(taken, owner="third", worker="third"))


def test_a_database_that_does_not_answer_delays_a_run_and_loses_none(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meruit.gate.runner.engine.STORE_PAUSE_S", 0.01)
    record, failing = desk.store.recorder.record, iter([True, True, False, True, False, True])

    async def seldom(write: Any) -> Any:
        if next(failing, False):
            raise StoreUnavailable("the database is away")
        return await record(write)

    desk.queue("one")
    monkeypatch.setattr(desk.store.recorder, "record", seldom)
    done(desk.engine().serve(asyncio.Event(), until_idle=True))
    assert desk.run("one").status is RunState.COMPLETED


def test_an_agent_whose_end_cannot_be_written_fails_and_holds_no_worker(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meruit.gate.runner.engine.pause_s", lambda _retries: 0.0)
    record = desk.store.recorder.record

    async def refusing(write: Any) -> Any:
        if isinstance(write, EndRun) and write.status is RunState.COMPLETED:
            raise StoreError("it contradicts what is recorded already")
        return await record(write)

    desk.queue("one")
    monkeypatch.setattr(desk.store.recorder, "record", refusing)
    done(desk.engine(Agent("writer", "", ScriptedModel([says("done")]))).serve(asyncio.Event(), until_idle=True))
    run = desk.run("one")
    assert (run.status, run.ending, run.retries) == (RunState.FAILED, "error", MAX_ERRORS)
    assert run.error is not None
    assert "contradicts" in run.error


def test_more_runs_than_one_worker_drives_are_all_taken_over(desk: Desk) -> None:
    names = [f"run-{number}" for number in range(5)]
    desk.queue(*names)
    for name in names[:4]:
        desk.store.recorder.write(ClaimRun(TENANT, name, f"owner-{name}", "dead"))
    done(desk.engine(concurrency=2).serve(asyncio.Event(), until_idle=True))
    assert {desk.run(name).status for name in names} == {RunState.COMPLETED}


def test_a_worker_says_that_it_lives_and_when_it_goes(desk: Desk) -> None:
    seen: set[int] = set()

    def beaten() -> bool:
        with desk.store.database.reading() as connection:
            seen.update(one.until for one in agent_reading.live_workers(connection, 0))
        return len(seen) > 2

    done(served(desk.engine(), beaten))
    with desk.store.database.reading() as connection:
        assert agent_reading.live_workers(connection, 0) == []


def stuck() -> tuple[Agent, list[str]]:
    """An agent whose model never answers, and the runs that asked it."""
    asked: list[str] = []

    class Silent:
        async def answer(self, messages: Any, tools: Any, force: str | None = None) -> ModelAnswer:
            asked.append(messages[-1]["content"])
            await asyncio.Event().wait()
            raise AssertionError

    return Agent("writer", "", Silent(), [], Out), asked


def test_a_cancelled_run_is_ended_by_its_worker(desk: Desk) -> None:
    desk.queue("one")
    silent, asked = stuck()

    def ended() -> bool:
        if asked:
            desk.store.recorder.write(CancelRun(TENANT, "one"))
        return desk.run("one").status is RunState.CANCELLED

    done(served(desk.engine(silent), ended))
    assert asked == ["go"]


def test_a_run_that_was_cancelled_between_two_steps_is_ended_by_the_next(desk: Desk) -> None:
    def cancels() -> str:
        """Nobody wants it any more."""
        desk.store.recorder.write(CancelRun(TENANT, "one"))
        return "done"

    desk.queue("one")
    engine = desk.engine(agent(says("", calls("cancels")), submits(n=1), tools=(cancels,)))
    run = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert run.status is RunState.CANCELLED


def test_a_worker_that_stops_lets_go_of_what_it_drives(desk: Desk) -> None:
    desk.queue("one")
    silent, asked = stuck()
    done(served(desk.engine(silent), lambda: bool(asked)))
    assert (desk.run("one").status, desk.run("one").takeovers) == (RunState.QUEUED, 0)
    done(desk.engine().serve(asyncio.Event(), until_idle=True))
    assert desk.run("one").status is RunState.COMPLETED


def test_a_run_past_its_deadline_fails(desk: Desk) -> None:
    silent, _ = stuck()
    desk.store.recorder.write(QueueRun(TENANT, "me", "one", "writer", RunRequest("go", max_seconds=0.01)))
    done(desk.engine(silent).serve(asyncio.Event(), until_idle=True))
    assert desk.run("one").ending == "deadline"
    assert "0.01 s" in (desk.run("one").error or "")


def test_a_run_taken_over_meanwhile_is_left_to_its_new_worker(desk: Desk) -> None:
    def robbed() -> str:
        """Somebody takes the run."""
        desk.store.recorder.write(ClaimRun(TENANT, "one", "theirs", "another", takeover=True))
        return "done"

    desk.queue("one")
    engine = desk.engine(agent(says("", calls("robbed")), submits(n=1), tools=(robbed,)))
    assert done(engine.run(DueRun(TENANT, "one", "writer"))) is None
    assert done(engine.run(DueRun(TENANT, "one", "writer"))) is None
    assert desk.run("one").status is RunState.RUNNING


def test_a_run_of_an_agent_that_is_gone_fails_with_its_name(desk: Desk) -> None:
    desk.queue("one", name="writr")
    run = done(desk.engine().run(DueRun(TENANT, "one", "writr")))
    assert run.ending == "error"
    assert "'writer'" in run.error


def test_a_roster_has_unique_names_and_at_least_one_agent() -> None:
    with pytest.raises(AgentError, match="'writer'"):
        AgentRoster([agent(), agent()])
    with pytest.raises(AgentError):
        AgentRoster([])


class Blocking:
    """A plain verifier that does not answer until it is let go."""

    def __init__(self) -> None:
        self.asked: list[threading.Thread] = []
        self.answer = threading.Event()

    def verify(self, _output: Out) -> int:
        self.asked.append(threading.current_thread())
        self.answer.wait(60)
        return 1

    def agent(self, **limits: Any) -> Agent:
        return Agent("writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=self.verify, **limits)


@pytest.fixture
def blocking() -> Iterator[Blocking]:
    made = Blocking()
    yield made
    made.answer.set()


def test_a_verifier_that_timed_out_is_not_awaited(blocking: Blocking) -> None:
    began = time.monotonic()
    with pytest.raises(CouldNotVerify, match=r"longer than 0\.02 s"):
        blocking.agent(verify_timeout_s=0.02, system_error_limit=1).run_sync("go")
    assert time.monotonic() - began < 40
    # It still runs, and the process may end.
    (left,) = blocking.asked
    assert left.is_alive()
    assert left.daemon


def test_a_deadline_is_kept_though_the_verifier_blocks(desk: Desk, blocking: Blocking) -> None:
    desk.store.recorder.write(QueueRun(TENANT, "me", "one", "writer", RunRequest("go", max_seconds=0.1)))
    began = time.monotonic()
    done(desk.engine(blocking.agent()).serve(asyncio.Event(), until_idle=True))
    assert desk.run("one").ending == "deadline"
    assert time.monotonic() - began < 40


def test_a_worker_with_blocking_verifiers_can_be_stopped(desk: Desk, blocking: Blocking) -> None:
    names = [f"run-{number}" for number in range(40)]
    desk.queue(*names)
    seen: set[int] = set()

    def beaten() -> bool:
        if len(blocking.asked) < len(names):
            return False
        with desk.store.database.reading() as connection:
            seen.update(one.until for one in agent_reading.live_workers(connection, 0))
        return len(seen) > 2

    done(served(desk.engine(blocking.agent(), concurrency=len(names)), beaten))
    assert {desk.run(name).status for name in names} == {RunState.QUEUED}
    assert desk.heard.count("run-1: released") == 1


COLOUR = ContextVar("COLOUR", default="none")


def test_a_plain_function_sees_the_context_of_who_calls_it() -> None:
    async def call() -> str:
        COLOUR.set("blue")
        return str(await call_author_function(COLOUR.get))

    assert asyncio.run(call()) == "blue"


@pytest.mark.parametrize(
    "raised", [StopIteration(), KeyboardInterrupt(), SystemExit(3), OSError("no disk"), KeyError()]
)
def test_an_exception_of_a_plain_verifier_is_named(desk: Desk, raised: BaseException) -> None:
    def verify(_output: Out) -> int:
        raise raised

    desk.queue("one")
    broken = Agent("writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=verify, system_error_limit=1)
    done(desk.engine(broken).serve(asyncio.Event(), until_idle=True))
    run = desk.run("one")
    assert run.ending == "system_error"
    assert type(raised).__name__ in (run.error or "")
    assert desk.heard[-1] == f"one: failed (system_error): {run.error}"


def test_a_run_that_pauses_after_an_error_says_which_and_until_when(desk: Desk) -> None:
    troubles: list[ScriptLine] = [ConnectionError("connection refused")]
    model = ScriptedModel(troubles)
    engine = desk.engine(Agent("writer", "", model, [], Out))
    desk.queue("one")
    paused = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (paused.status, paused.retries) == (RunState.QUEUED, 1)
    assert paused.error == "ConnectionError: connection refused"
    assert paused.wake_at > desk.store.surroundings.clock()
    assert desk.run("one") == paused
    assert desk.heard == ["one: turn 1", "one: ConnectionError: connection refused; retry in 1 s"]
    model.script = [says("hm"), ConnectionError("again")]
    again = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (again.error, again.retries) == ("ConnectionError: again", 1)
    model.script[1] = submits(n=1)
    over = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (over.status, over.error) == (RunState.COMPLETED, None)


def test_a_run_that_has_moved_on_no_longer_tells_its_error(desk: Desk) -> None:
    first = desk.engine(Agent("writer", "", ScriptedModel([OSError("away")]), [], Out))
    desk.queue("one")
    assert done(first.run(DueRun(TENANT, "one", "writer"))).error == "OSError: away"
    between: list[str | None] = []

    class Slow:
        async def answer(self, messages: Any, tools: Any, force: str | None = None) -> ModelAnswer:
            between.append(desk.run("one").error)
            if len(between) > 1:
                await asyncio.Event().wait()
            return says("hm")

    done(served(desk.engine(Agent("writer", "", Slow(), [], Out)), lambda: len(between) > 1))
    # While it is asked again the trouble is not over; once it has answered, it is.
    assert between == ["OSError: away", None]


def test_a_verifier_that_breaks_is_reported_and_retried(desk: Desk) -> None:
    broke: list[int] = []

    def verify(output: Out) -> int:
        if not broke:
            broke.append(1)
            raise OSError("no disk")
        return output.n

    engine = desk.engine(Agent("writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=verify))
    desk.queue("one")
    paused = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (paused.status, paused.error, paused.retries) == (RunState.QUEUED, "OSError: no disk", 0)
    assert paused.wake_at > desk.store.surroundings.clock()
    assert desk.heard[-1] == "one: OSError: no disk; retry in 1 s"
    over = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (over.status, over.error) == (RunState.COMPLETED, None)


@pytest.mark.golden
def test_a_worker_reports_each_turn_and_the_end(desk: Desk) -> None:
    def verify(output: Out) -> int:
        if output.n < 2:
            raise VerificationRejected("too few", code="few")
        return output.n

    script = [says("hm"), submits(n="x"), submits(n=1), submits(n=2)]
    engine = desk.engine(Agent("writer", "", ScriptedModel(script), [], Out, verify=verify))
    desk.queue("one")
    done(engine.run(DueRun(TENANT, "one", "writer")))
    told = [line.removeprefix("one: ") for line in desk.heard]
    # What Pydantic says about the value is not ours.
    told[3] = told[3].partition(" n: ")[0]
    check_golden("gate/progress", "\n".join(told) + "\n")


def test_a_line_is_reported_once_when_the_run_continues(desk: Desk) -> None:
    def ask() -> Deferred:
        """Ask a person."""
        return Deferred("approval by a person")

    desk.queue("one")
    script = [says("hm"), submits(n="x"), says("", calls("ask"))]
    engine = desk.engine(agent(*script, tools=(ask,)))
    waits = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (waits.status, waits.waiting_for, waits.note) == (RunState.WAITING, "3.0", "approval by a person")
    assert desk.heard[-1] == "one: waits for approval by a person"
    desk.heard.clear()
    assert desk.run("one").note == waits.note
    resumed = desk.store.recorder.write(ResumeRun(TENANT, "one", "3.0", b"1"))
    assert (resumed.status, resumed.note) == (RunState.QUEUED, None)
    failed = done(engine.run(DueRun(TENANT, "one", "writer")))
    assert (failed.status, desk.heard[0]) == (RunState.FAILED, "one: turn 4")


@pytest.mark.parametrize("name", ["one", "team"])
def test_a_worker_for_one_run_drives_that_and_its_members_only(desk: Desk, name: str) -> None:
    writer = agent()
    desk.queue("one", "other")
    desk.queue("team", name="pair")
    desk.store.recorder.write(QueueRun(TENANT, "me", "left", "writer", RunRequest("go")))
    desk.store.recorder.write(ClaimRun(TENANT, "left", "theirs", "dead"))
    crew = AgentRoster([Team("pair", [WorkItem("a", writer, "go"), WorkItem("b", writer, "go", ("a",))])])
    done(run_worker(desk.store, crew, until_idle=True, only=name, pace=QUICK))
    assert desk.run(name).status is RunState.COMPLETED
    others = {"one", "other", "team", "left"} - {name}
    assert {one: desk.run(one).status for one in others if one != "left"} == dict.fromkeys(
        others - {"left"}, RunState.QUEUED
    )
    assert desk.run("left").takeovers == 0


def test_a_database_outage_is_reported_once_and_so_is_its_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    see, failing = InlineEngine._read_store, iter([True] * 5)

    def seldom(engine: InlineEngine) -> Any:
        if next(failing, False):
            raise StoreUnavailable("here: nobody answers")
        return see(engine)

    desk.queue("one")
    monkeypatch.setattr(InlineEngine, "_read_store", seldom)
    engine = desk.engine()
    done(engine.serve(asyncio.Event(), until_idle=True))
    told = [line for line in desk.heard if line.startswith(engine.worker)]
    assert ["here: nobody answers" in line for line in told] == [True, False]


class Leaving(BaseException):
    """What is no Exception, as some test runners raise it."""


async def _leaves_in_a_child() -> None:
    async def leaves() -> None:
        sys.exit(3)

    await asyncio.gather(asyncio.create_task(leaves()))


async def _waits_for_what_is_cancelled() -> None:
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    never.cancel()
    await never


def _raising(crash: BaseException) -> Callable[[], Coroutine[Any, Any, None]]:
    async def raises() -> None:
        raise crash

    return raises


BREAKS = {
    "its own class": (_raising(Leaving("gone")), "Leaving: gone"),
    "sys.exit": (_raising(SystemExit(3)), "SystemExit: 3"),
    "an interrupt": (_raising(KeyboardInterrupt()), "RuntimeError: it raised KeyboardInterrupt"),
    "a child that leaves": (_leaves_in_a_child, "RuntimeError: it raised SystemExit: 3"),
    "a cancelled future": (_waits_for_what_is_cancelled, "RuntimeError: it raised CancelledError"),
}


@pytest.mark.parametrize("how", BREAKS)
def test_whatever_a_verifier_raises_is_a_breakage_and_the_worker_goes_on(desk: Desk, how: str) -> None:
    breaks, said = BREAKS[how]

    async def verify(_output: Out) -> Out:
        await breaks()
        raise AssertionError

    desk.queue("one")
    broken = Agent("writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=verify, system_error_limit=1)
    done(desk.engine(broken).serve(asyncio.Event(), until_idle=True))
    run = desk.run("one")
    assert (run.status, run.ending, run.error) == (RunState.FAILED, "system_error", said)


@pytest.mark.parametrize("how", BREAKS)
def test_an_exception_of_a_tool_is_its_reply(desk: Desk, how: str) -> None:
    breaks, said = BREAKS[how]
    heard: list[str] = []

    async def look() -> None:
        """Look."""
        await breaks()

    def hears(messages: Any) -> ModelAnswer:
        heard.append(messages[-1]["content"])
        return submits(n=1)

    desk.queue("one")
    done(desk.engine(agent(says("", calls("look")), hears, tools=(look,))).serve(asyncio.Event(), until_idle=True))
    assert (desk.run("one").status, heard) == (RunState.COMPLETED, [f"error: {said}"])


@pytest.mark.parametrize("crash", [Leaving("gone"), SystemExit(3), asyncio.CancelledError()])
def test_whatever_a_model_raises_its_run_is_let_go_of_and_at_last_fails(
    desk: Desk, crash: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meruit.gate.runner.engine.pause_s", lambda _retries: 0.0)

    class Odd:
        async def answer(self, messages: Any, tools: Any, force: str | None = None) -> ModelAnswer:
            raise crash

    desk.queue("one")
    done(desk.engine(Agent("writer", "", Odd(), [], Out)).serve(asyncio.Event(), until_idle=True))
    assert (desk.run("one").ending, desk.run("one").retries) == ("error", MAX_ERRORS)


def test_a_run_that_cannot_be_parked_or_ended_properly_still_ends(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    record = desk.store.recorder.record

    async def refusing(write: Any) -> Any:
        if isinstance(write, ParkRun) or (isinstance(write, EndRun) and write.status is RunState.COMPLETED):
            raise OverflowError("too large")
        return await record(write)

    desk.queue("one")
    monkeypatch.setattr(desk.store.recorder, "record", refusing)
    run = done(desk.engine(Agent("writer", "", ScriptedModel([says("done")]))).run(DueRun(TENANT, "one", "writer")))
    assert (run.status, run.error) == (RunState.FAILED, "OverflowError: too large")


def test_a_provider_that_counts_nonsense_does_not_keep_a_run_from_ending(desk: Desk) -> None:
    most = Usage(2**63 - 1, 2**63 - 1, 2**63 - 1, 1)
    script = [msgspec.structs.replace(says("hm"), usage=most), msgspec.structs.replace(submits(n=1), usage=most)]
    desk.queue("one")
    done(desk.engine(agent(*script)).serve(asyncio.Event(), until_idle=True))
    assert (desk.run("one").status, desk.run("one").usage.input_tokens) == (RunState.COMPLETED, MOST_TOKENS)


def test_a_verifier_that_does_not_let_itself_be_cancelled_is_left_behind(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meruit.gate.tools.GRACE_S", 0.05)

    async def verify(_output: Out) -> Out:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    desk.queue("one")
    deaf = Agent(
        "writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=verify, verify_timeout_s=0.05, system_error_limit=1
    )
    # That this returns at all: who ends a loop waits for its tasks.
    done(desk.engine(deaf).serve(asyncio.Event(), until_idle=True))
    assert "0.05 s" in (desk.run("one").error or "")


def test_a_run_that_waits_past_its_deadline_fails(desk: Desk) -> None:
    def ask() -> Deferred:
        """Ask a person."""
        return Deferred("approval")

    desk.store.recorder.write(QueueRun(TENANT, "me", "one", "writer", RunRequest("go", max_seconds=0.3)))
    engine = desk.engine(agent(says("", calls("ask")), submits(n=1), tools=(ask,)))
    done(served(engine, lambda: desk.run("one").status is RunState.FAILED))
    assert desk.run("one").ending == "deadline"


def test_a_team_has_until_its_deadline_and_so_have_its_members(desk: Desk) -> None:
    silent, _ = stuck()
    desk.store.recorder.write(QueueRun(TENANT, "me", "team", "pair", RunRequest("go", max_seconds=1)))
    engine = desk.engine(Team("pair", [WorkItem("a", silent, "go")]))
    done(served(engine, lambda: desk.run("team").status is RunState.FAILED is desk.run("team.a").status))
    assert desk.run("team.a").ending == "deadline"
    assert 0 < (desk.run("team.a").request.max_seconds or 0) <= 1


def test_a_pass_counts_even_if_the_deadline_passes_before_the_end(desk: Desk) -> None:
    desk.store.recorder.write(QueueRun(TENANT, "me", "one", "writer", RunRequest("go", max_seconds=0.05)))
    engine = desk.engine()

    async def lost() -> None:
        run = await desk.store.recorder.record(ClaimRun(TENANT, "one", "theirs", "dead"))
        journal = StoreJournal.for_worker(desk.store, TENANT, "one", "theirs")
        await drive(agent(), run, journal, ExecutionContext("one"))
        await asyncio.sleep(0.06)

    done(lost())
    run = done(engine.run(DueRun(TENANT, "one", "writer"), takeover=True))
    assert (run.status, run.result, run.usage.requests) == (RunState.COMPLETED, {"n": 1}, 1)


def test_a_run_s_error_is_the_rejection_in_plain_words(desk: Desk) -> None:
    def verify(_output: Out) -> Out:
        raise VerificationRejected("never <this>", retryable=False)

    desk.queue("one")
    done(
        desk.engine(Agent("writer", "", ScriptedModel([submits(n=1)]), [], Out, verify=verify)).serve(
            asyncio.Event(), until_idle=True
        )
    )
    assert desk.run("one").error == "never <this>"


def test_a_child_that_was_forked_does_not_keep_the_lock(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    there, is_there = os.pipe()
    with hold_worker_lock(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.write(is_there, b".")
            os.read(reading, 1)
            os._exit(0)
        os.read(there, 1)
    with hold_worker_lock(tmp_path):
        pass
    for descriptor in (writing, reading, there, is_there):
        os.close(descriptor)
    os.waitpid(child, 0)
