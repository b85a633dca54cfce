"""What an engine must do for a run to outlive whoever drives it: six calls, the same on a laptop and on a cluster."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar

from meruit.errors import MeruitError, nearest
from meruit.gate.context import ExecutionContext
from meruit.gate.definition import AgentError, Definition
from meruit.gate.journal import StoreJournal, Work
from meruit.gate.loop import Done, End, Failed, Resting, drive
from meruit.gate.run import OVER, AgentRun, FailedFor, RunState
from meruit.gate.state import pause_s
from meruit.gate.store.read import Due
from meruit.gate.store.runs import (
    ClaimRun,
    EndRun,
    Failure,
    Fenced,
    Once,
    ParkRun,
    RecordWrite,
    RunCancelled,
    RunMoved,
    left_s_of,
)
from meruit.gate.team import Team, drive_team
from meruit.model.outcome import in_micros
from meruit.model.record import Record
from meruit.store.database import StoreUnavailable
from meruit.store.store import Store
from meruit.verify.sanitize import describe

MAX_ERRORS = 5
"""Errors in a row after which a run is given up."""
STORE_PAUSE_S = 1.0
"""The rest before a database that did not answer is asked again."""
R = TypeVar("R", bound=Record)


class Crew:
    """The agents and teams that a worker knows, by name."""

    def __init__(self, several: Iterable[Definition | Team]) -> None:
        self.by_name: dict[str, Definition | Team] = {}
        for one in several:
            members: list[Definition] = one.agents() if isinstance(one, Team) else []
            for each in (one, *members):
                if self.by_name.setdefault(each.name, each) is not each:
                    raise AgentError(f"two agents are named {each.name!r}; rename one")
        if not self.by_name:
            raise AgentError("a worker needs at least one agent")

    def get(self, name: str) -> Definition | Team:
        """The agent or team of that name; raises AgentError."""
        found = self.by_name.get(name)
        if found is None:
            raise AgentError(f"no agent is named {name!r}{nearest(name, self.by_name)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """Every name."""
        return tuple(sorted(self.by_name))


class WorkerRefused(MeruitError):
    """A worker cannot work here; says why, and what to do next."""


class Hold(NamedTuple):
    """A run in this worker's hands."""

    tenant: str
    run: AgentRun
    owner: str
    """The token that each write must show."""


class Durable(ABC):
    """An engine: drives runs, keeps their steps, and takes over what a dead worker left."""

    def __init__(
        self,
        store: Store,
        crew: Crew,
        *,
        worker: str,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
    ) -> None:
        self.store, self.crew, self.worker, self.deps, self.watch = store, crew, worker, deps, watch
        self.stopped: set[str] = set()
        """Runs that somebody wants stopped, as `tenant/id`."""
        self._running: dict[str, asyncio.Task[Any]] = {}

    # The six calls.

    async def run(self, due: Due, *, takeover: bool = False) -> AgentRun | None:
        """Drive a run to its end or its next rest; None where it was not to be had, or is somebody else's by now."""
        try:
            hold = await self._claimed(due, takeover=takeover)
        except RunMoved:
            return None
        if hold.run.status in OVER:
            self.watch(hold.run.id, _how(hold.run))
            return hold.run
        name = f"{due.tenant}/{due.id}"
        task = asyncio.current_task()
        if task is not None:
            self._running[name] = task
        try:
            return await self._driven(hold)
        except Fenced:
            return None
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as crash:  # noqa: BLE001 - nobody else looks after a run that a living worker holds
            return await self._end(hold, RunState.FAILED, Failure(FailedFor.ERROR, describe(crash)))
        finally:
            self._running.pop(name, None)
            self.stopped.discard(name)

    async def step(self, hold: Hold, key: str, work: Work) -> bytes:
        """What a step gave; it is done again only where nobody knows what it gave."""
        return await StoreJournal(self.store, hold.tenant, hold.run, hold.owner).step(key, work)

    async def tx(self, hold: Hold, key: str, write: RecordWrite[R], kind: type[R]) -> R:
        """A write to our own tables that happens once, with its answer kept in the same transaction."""
        return await self.store.recorder.record(Once(hold.tenant, hold.run.id, hold.owner, key, write, kind))

    async def after(
        self, hold: Hold, rest: Resting, members: tuple[str, ...] = (), retries: int | None = None
    ) -> AgentRun:
        """Let go of a run until some time has passed, or until others hand in what it waits for."""
        wake = None if rest.pause_s is None else self._in(rest.pause_s)
        park = ParkRun(
            *(hold.tenant, hold.run.id, hold.owner, wake, rest.waiting_for),
            unless_over=members,
            retries=retries,
            usage=rest.usage,
            turn=rest.turn,
            error=rest.error,
            note=rest.note,
        )
        parked = await self._insist(park)
        if rest.error is not None:
            self.watch(parked.id, f"{rest.error}; again in {rest.pause_s or 0.0:g} s")
        elif parked.status is RunState.WAITING:
            self.watch(parked.id, f"waits for {rest.note or rest.waiting_for}")
        return parked

    @abstractmethod
    async def enqueue(self, due: Due) -> None:
        """Have a queued run driven, here or elsewhere, at least once."""

    @abstractmethod
    async def resume(self, due: Due) -> None:
        """Have a run driven on whose worker is gone."""

    # What they are made of.

    def stop(self, due: Due) -> None:
        """End a run that this worker drives, because somebody wants it stopped."""
        name = f"{due.tenant}/{due.id}"
        task = self._running.get(name)
        if task is not None and name not in self.stopped:
            self.stopped.add(name)
            task.cancel()

    async def _claimed(self, due: Due, *, takeover: bool) -> Hold:
        """The run in our hands; raises RunMoved. Who is cancelled meanwhile lets go of what is claimed by then."""
        owner = self.store.surroundings.new_id("own")
        found = self.crew.by_name.get(due.agent)
        claim = ClaimRun(
            *(due.tenant, due.id, owner, self.worker, takeover, due.worker),
            limits=None if found is None else found.limits,
        )
        claiming = asyncio.ensure_future(self._insist(claim))
        try:
            return Hold(due.tenant, await asyncio.shield(claiming), owner)
        except asyncio.CancelledError:
            with suppress(RunMoved):
                run = await claiming
                if run.status not in OVER:
                    await self._let_go(Hold(due.tenant, run, owner))
            raise

    async def _driven(self, hold: Hold) -> AgentRun:
        journal: StoreJournal | None = None
        left_s = left_s_of(hold.run, self.store.surroundings.clock())
        limit = asyncio.timeout(left_s)

        def left() -> Hold:
            return hold if journal is None else hold._replace(run=journal.so_far())

        try:
            journal = await asyncio.to_thread(StoreJournal, self.store, hold.tenant, hold.run, hold.owner)
            if left_s == 0.0:
                return await self._late(left())
            async with limit:
                end, members = await self._far(hold, journal)
            return await self._ended(hold, end, members)
        except Fenced:
            raise
        except RunCancelled:
            return await self._end(left(), RunState.CANCELLED)
        except GeneratorExit:
            raise
        except BaseException as crash:
            if isinstance(crash, asyncio.CancelledError) and _is_cancelled():
                if f"{hold.tenant}/{hold.run.id}" in self.stopped:
                    return await self._end(left(), RunState.CANCELLED)
                await asyncio.shield(self._let_go(left()))
                raise
            if isinstance(crash, TimeoutError) and limit.expired():
                return await self._late(left())
            return await self._again(left(), crash, moved=journal is not None and journal.moved)

    async def _far(self, hold: Hold, journal: StoreJournal) -> tuple[End, tuple[str, ...]]:
        found = self.crew.get(hold.run.agent)
        if isinstance(found, Team):
            return await drive_team(found, self.store, hold.tenant, hold.run)

        def watch(text: str) -> None:
            self.watch(hold.run.id, text)

        execution = ExecutionContext(hold.run.id, hold.owner, hold.run.retries, self.deps, watch)
        return await drive(found, journal, execution, watch), ()

    async def _let_go(self, hold: Hold) -> AgentRun:
        """Let somebody else go on, at once: this worker stops."""
        parked = await self.after(hold, Resting(0.0, None, hold.run.usage, hold.run.turn))
        self.watch(parked.id, "let go" if parked.status is RunState.QUEUED else _how(parked))
        return parked

    async def _ended(self, hold: Hold, end: End, members: tuple[str, ...]) -> AgentRun:
        match end:
            case Done():
                return await self._end(hold, RunState.COMPLETED, None, end)
            case Failed():
                return await self._end(hold, RunState.FAILED, Failure(end.ending, end.error), end)
            case Resting():
                return await self.after(hold, end, members)

    async def _end(
        self, hold: Hold, status: RunState, failure: Failure | None = None, end: Done | Failed | None = None
    ) -> AgentRun:
        usage, turn = (end.usage, end.turn) if end is not None else (hold.run.usage, hold.run.turn)
        result = end.result if isinstance(end, Done) else None
        write = EndRun(hold.tenant, hold.run.id, hold.owner, status, result, failure, usage, turn)
        over = await self._insist(write)
        self.watch(over.id, _how(over))
        return over

    async def _late(self, hold: Hold) -> AgentRun:
        failure = Failure(FailedFor.DEADLINE, f"not done in {hold.run.request.max_seconds:g} s")
        return await self._end(hold, RunState.FAILED, failure)

    async def _again(self, hold: Hold, crash: BaseException, *, moved: bool) -> AgentRun:
        """Not the agent's judgement but somebody's trouble: try again later, a bounded number of times."""
        retries = 1 if moved else hold.run.retries + 1
        if isinstance(crash, AgentError) or retries > MAX_ERRORS:
            return await self._end(hold, RunState.FAILED, Failure(FailedFor.ERROR, describe(crash)))
        rest = Resting(pause_s(retries), None, hold.run.usage, hold.run.turn, describe(crash))
        return await self.after(hold, rest, retries=retries)

    async def _insist(self, write: ClaimRun | EndRun | ParkRun) -> AgentRun:
        """Write how a run was taken or left, for as long as it takes: nobody else may touch it meanwhile."""
        while True:
            try:
                return await self.store.recorder.record(write)
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _in(self, seconds: float) -> int:
        return in_micros(self.store.surroundings.clock() + timedelta(seconds=seconds))


def _how(run: AgentRun) -> str:
    """How a run ended, in one line."""
    if run.status is not RunState.FAILED:
        return run.status.value
    return f"{run.status} ({run.ending}): {' '.join((run.error or '').split())}"


def _is_cancelled() -> bool:
    """Whether somebody has cancelled this very task; an agent's code may raise CancelledError of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def known_agents(found: Mapping[str, Any]) -> list[Definition | Team]:
    """The agents and teams among the names of a module."""
    return [one for one in found.values() if isinstance(one, Definition | Team)]
