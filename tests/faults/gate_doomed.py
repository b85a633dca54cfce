"""A process that drives a gated run until it dies: its agents, its worker, and whoever asks for the run."""

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, NoReturn

import msgspec
from pydantic import BaseModel
from tests.faults.gate_killing import Killer, Say, Step
from tests.faults.gate_stories import ITEMS, SHORT_TURNS, Move, Story, call_id

from meruit.errors import Unreachable, VerificationRejected
from meruit.gate.agent import Agent
from meruit.gate.context import AgentContext
from meruit.gate.run import FINAL_STATES, AgentRun, RunRequest, RunState
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.local import GATHER_S, InlineEngine, hold_worker_lock
from meruit.gate.runner.polling import PollingEngine, PollingIntervals
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import MEMBERS, CancelRun, QueueRun, ResumeRun
from meruit.gate.team import Team, WorkItem
from meruit.gate.tools import Deferred, Pause
from meruit.model.chat import ModelAnswer, ToolSpec
from meruit.store.recorder import CommitNotice
from meruit.store.store import Store
from meruit.testing import calls, says

TENANT = "acme"
POLL_S = 0.02
PACE = PollingIntervals(poll_s=POLL_S, beat_s=5.0, alive_s=60.0, reap_s=0.1)
LONG_S = 60.0
"""Longer than any life."""


class World:
    """What agents, tools and verifiers touch outside the store: all of it is told to whoever watches."""

    def __init__(self, killer: Killer, say: Say, asked: Counter[str]) -> None:
        self.killer, self.say = killer, say
        self.asked = asked
        """How often each thing was done by those who died before."""
        self.verifying = asyncio.Event()

    def do(self, what: str, run: str, place: str, **about: Any) -> None:
        """Something happens that cannot be undone."""
        step = Step(what, run, place)
        self.killer.reach(step, "asked")
        self.say(did=f"{run} {what} {place}", **about)
        self.killer.reach(step, "done")

    def leave(self) -> NoReturn:
        """All is done: say so, and go as one who dies."""
        self.say(passed=self.killer.passed)
        os._exit(0)


class Final(BaseModel):
    """What passes, with what tools have left in the context."""

    n: int
    attempt: int
    seen: list[str]


class Out(BaseModel):
    """A candidate that says itself what becomes of it."""

    n: int
    verdict: str
    breaks: int
    doubts: str

    async def verify(
        self, agent_ctx: AgentContext, attempt: int, submission_id: str, deps: World, answer: str | None = None
    ) -> Final | Deferred:
        """Asks first where it must, breaks as often as it must, then says what it must."""
        turn = submission_id.split(":")[1]
        deps.do("verify", agent_ctx.run_id, turn)
        if STORIES[agent_ctx.query].cancel == "verifying":
            deps.verifying.set()
            await asyncio.sleep(LONG_S)
        if self.doubts in ("ask", "hope") and answer is None:
            return Deferred("an answer", None if self.doubts == "ask" else 1e-6)
        if agent_ctx.verification.system_errors < self.breaks:
            raise OSError("the verifier's own world is away")
        if self.verdict != "pass":
            raise VerificationRejected(f"{self.n} will not do", retryable=self.verdict != "final", code="no")
        return Final(n=self.n, attempt=attempt, seen=agent_ctx.payload.get("seen", []))


def look(n: int, agent_ctx: AgentContext, submission_id: str, deps: World) -> int:
    """Look something up, in a thread of its own, and remember it."""
    place = submission_id.rpartition(":")[2]
    deps.do("tool", agent_ctx.run_id, place)
    agent_ctx.payload["seen"] = [*agent_ctx.payload.get("seen", []), place]
    return n


async def nap(agent_ctx: AgentContext, submission_id: str, deps: World) -> Pause:
    """Rest for no time."""
    deps.do("tool", agent_ctx.run_id, submission_id.rpartition(":")[2])
    return Pause(0.0)


async def ask(agent_ctx: AgentContext, submission_id: str, deps: World) -> Deferred:
    """Ask somebody who answers."""
    deps.do("tool", agent_ctx.run_id, submission_id.rpartition(":")[2])
    return Deferred("an answer")


async def hope(agent_ctx: AgentContext, submission_id: str, deps: World) -> Deferred:
    """Ask somebody who does not."""
    deps.do("tool", agent_ctx.run_id, submission_id.rpartition(":")[2])
    return Deferred("an answer", 0.0)


class Model:
    """Says what the story has next; the story is what the run was asked for."""

    world: World

    async def answer(
        self,
        messages: Sequence[dict[str, Any]],
        tools: Sequence[ToolSpec],
        force: str | None = None,
    ) -> ModelAnswer:
        """The next turn; what was said before is told, to be compared."""
        run, story = messages[0]["content"], STORIES[messages[1]["content"]]
        turn = 1 + sum(message["role"] == "assistant" for message in messages)
        heard = hashlib.sha256(msgspec.json.encode(messages[1:])).hexdigest()
        self.world.do("model", run, str(turn), heard=heard)
        if story.unreachable and turn == 1 and not self.world.asked[f"{run} model 1"]:
            self.world.asked[f"{run} model 1"] += 1
            raise Unreachable("the model is away")
        return says("", *(_call(place, move) for place, move in enumerate(story.turns[turn - 1])))


def _call(place: int, move: Move) -> Any:
    match move.kind:
        case "submit":
            told = {"n": move.n, "verdict": move.verdict, "breaks": move.breaks, "doubts": move.doubts}
            return calls("agent_output", call_id(place), **told)
        case "misfit":
            return calls("agent_output", call_id(place), n="none")
        case "look":
            return calls("look", call_id(place), n=move.n)
        case _:
            return calls(move.kind, call_id(place))


class Named(Agent):
    """An agent whose model is told which run it answers in: a model has no other way to know."""

    def context(self, run: AgentRun) -> AgentContext:
        """What a run begins with."""
        context = super().context(run)
        context.messages.insert(0, {"role": "system", "content": run.id})
        return context


STORIES: dict[str, Story] = {}
"""By what their runs are asked for."""
MODEL = Model()
# Any: each takes what it takes.
TOOLS: list[Callable[..., Any]] = [look, nap, ask, hope]
WRITER = Named("writer", "", MODEL, TOOLS, Out)
HASTY = Named("hasty", "", MODEL, TOOLS, Out, max_turns=SHORT_TURNS)
TEAM = Team("team", [WorkItem(name, WRITER, f"{{query}}/{name}", needs) for name, needs in ITEMS.items()])
CREW = AgentRoster([HASTY, TEAM])


def queue(run_id: str, story: Story) -> QueueRun:
    """Ask for a run."""
    found = CREW.get(story.agent)
    own = None if story.members else story.attempts
    return QueueRun(TENANT, "me", run_id, story.agent, RunRequest(story.name, max_attempts=own), found.limits(own))


class Life:
    """Drives one story to its end, unless it dies."""

    def __init__(self, store: Store, run_id: str, story: Story, world: World, *, dbos: bool) -> None:
        self.store, self.run_id, self.story, self.world, self.dbos = store, run_id, story, world, dbos
        self._handed: set[str] = set()

    async def live(self) -> None:
        """Ask for the run, work, and answer whoever waits, until it is over."""
        loop, news, stopping = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()

        def heard(_done: CommitNotice) -> None:
            # What a worker writes when it stops is no news to anybody.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(news.set)

        self.store.recorder.listen(heard)
        await self.store.recorder.record(queue(self.run_id, self.story))
        if self.story.cancel == "queued":
            await self._cancel()
        working = asyncio.create_task(self._engine().serve(stopping))
        while not await self._over():
            news.clear()
            noticed = [asyncio.create_task(event.wait()) for event in (news, self.world.verifying)]
            await asyncio.wait([*noticed, working], timeout=POLL_S, return_when=asyncio.FIRST_COMPLETED)
            for task in noticed:
                task.cancel()
            if working.done():
                working.result()
            await asyncio.sleep(GATHER_S)
        if self.dbos:
            # How DBOS comes to rest takes seconds, and is no matter of who dies.
            self.world.leave()
        stopping.set()
        await working

    def _engine(self) -> PollingEngine:
        if self.dbos:
            # Slow to import, and here only where it is wanted.
            from meruit.gate.runner.dbos import DbosEngine

            return DbosEngine(self.store, CREW, concurrency=4, deps=self.world, pace=PACE, watch=self._watch)
        return InlineEngine(self.store, CREW, concurrency=4, deps=self.world, pace=PACE, watch=self._watch)

    def _watch(self, run: str, text: str) -> None:
        if "could not" in text:
            self.world.say(broken=f"{run}: {text}")

    async def _over(self) -> bool:
        """Whether all runs of the story are; does what others have to do for that."""
        with self.store.database.reading() as connection:
            runs = [agent_reading.find(connection, TENANT, self.run_id)]
            if self.story.members:
                runs += agent_reading.members(connection, TENANT, self.run_id)
        if self.world.verifying.is_set():
            self.world.verifying.clear()
            await self._cancel()
        for run in runs:
            waits = run.status is RunState.WAITING and run.wake_at is None and run.waiting_for != MEMBERS
            if waits and self.story.cancel == "waiting":
                await self._cancel()
            elif waits and run.waiting_for is not None:
                answer = msgspec.json.encode(f"the answer to {run.waiting_for}")
                await self.store.recorder.record(ResumeRun(TENANT, run.id, run.waiting_for, answer))
        return all(run.status in FINAL_STATES for run in runs)

    async def _cancel(self) -> None:
        await self.store.recorder.record(CancelRun(TENANT, self.run_id))


def live(store: Store, run_id: str, story: Story, world: World, *, dbos: bool = False) -> None:
    """What a process does until it dies."""
    MODEL.world = world
    location = store.database.location
    # As a worker: nobody else works on the file.
    with hold_worker_lock(location.folder) if location.url is None else nullcontext():
        asyncio.run(Life(store, run_id, story, world, dbos=dbos).live())
    store.close()
