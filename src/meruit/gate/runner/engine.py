"""Claim a run, drive it to its end or next pause, and record how it was left, so that it outlives its worker."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import msgspec

from meruit.documents.sanitize import describe
from meruit.errors import AgentError, AgentRunConflict, RunCancelled, RunFenced, StoreUnavailable
from meruit.gate.context import ExecutionContext
from meruit.gate.definition import AgentDefinition
from meruit.gate.journal import StoreJournal
from meruit.gate.loop import DriveResult, RunDone, RunFailed, RunSuspended, drive
from meruit.gate.run import FINAL_STATES, AgentRun, RunFailureReason, RunState
from meruit.gate.state import pause_s
from meruit.gate.store.read import DueRun
from meruit.gate.store.runs import ClaimRun, EndRun, ParkRun, RunFailure, remaining_s
from meruit.gate.team import Team, drive_team
from meruit.model.time import to_micros
from meruit.store.store import Store
from meruit.suggestions import nearest

RELEASED = "released"
"""What a watcher reads of a run that this worker leaves to the next."""
MAX_ERRORS = 5
"""Errors in a row after which a run fails."""
STORE_PAUSE_S = 1.0
"""Pause before a database that did not answer is retried."""


class AgentRoster:
    """The agents and teams of a worker, by name."""

    def __init__(self, several: Iterable[AgentDefinition | Team]) -> None:
        self.by_name: dict[str, AgentDefinition | Team] = {}
        for one in several:
            members: list[AgentDefinition] = one.agents() if isinstance(one, Team) else []
            for each in (one, *members):
                if self.by_name.setdefault(each.name, each) is not each:
                    raise AgentError(f"two agents are named {each.name!r}; rename one")
        if not self.by_name:
            raise AgentError("a worker needs at least one agent")

    def get(self, name: str) -> AgentDefinition | Team:
        """Find an agent or team by name; raises AgentError."""
        found = self.by_name.get(name)
        if found is None:
            raise AgentError(f"no agent is named {name!r}{nearest(name, self.by_name)}")
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """All names, sorted."""
        return tuple(sorted(self.by_name))


class RunLease(msgspec.Struct, frozen=True):
    """A run that this worker has claimed."""

    tenant: str
    run: AgentRun
    owner: str
    """The token that each write must present."""


class DurableEngine(ABC):
    """Drives runs, records their steps, and takes over runs of dead workers."""

    def __init__(
        self,
        store: Store,
        agents: AgentRoster,
        *,
        worker: str,
        deps: Any = None,
        watch: Callable[[str, str], None] = lambda _run, _text: None,
    ) -> None:
        self.store, self.agents, self.worker, self.deps, self.watch = store, agents, worker, deps, watch
        self.stopped: set[str] = set()
        """Runs to cancel, as `tenant/id`."""
        self._running: dict[str, asyncio.Task[Any]] = {}

    async def run(self, due: DueRun, *, takeover: bool = False) -> AgentRun | None:
        """Drive a run to its end or next pause; None where it was not available, or another worker has it by now."""
        try:
            lease = await self._claim(due, takeover=takeover)
        except AgentRunConflict:
            return None
        if lease.run.status in FINAL_STATES:
            self.watch(lease.run.id, _describe_end(lease.run))
            return lease.run
        name = f"{due.tenant}/{due.id}"
        task = asyncio.current_task()
        if task is not None:
            self._running[name] = task
        try:
            return await self._drive(lease)
        except RunFenced:
            return None
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as crash:  # noqa: BLE001 - no other worker takes a run of a living one
            return await self._end(lease, RunState.FAILED, RunFailure(RunFailureReason.ERROR, describe(crash)))
        finally:
            self._running.pop(name, None)
            self.stopped.discard(name)

    async def suspend(
        self, lease: RunLease, rest: RunSuspended, members: tuple[str, ...] = (), retries: int | None = None
    ) -> AgentRun:
        """Release a run until some time has passed, or until a client provides the value it waits for."""
        wake = None if rest.pause_s is None else self._micros_from_now(rest.pause_s)
        park = ParkRun(
            tenant=lease.tenant,
            id=lease.run.id,
            owner=lease.owner,
            wake_at=wake,
            waiting_for=rest.waiting_for,
            unless_over=members,
            retries=retries,
            usage=rest.usage,
            turn=rest.turn,
            error=rest.error,
            note=rest.note,
        )
        parked = await self._write_until_stored(park)
        if rest.error is not None:
            self.watch(parked.id, f"{rest.error}; retry in {rest.pause_s or 0.0:g} s")
        elif parked.status is RunState.WAITING:
            self.watch(parked.id, f"waits for {rest.note or rest.waiting_for}")
        return parked

    @abstractmethod
    async def enqueue(self, due: DueRun) -> None:
        """Let a queued run be driven at least once, by this worker or another."""

    @abstractmethod
    async def resume(self, due: DueRun) -> None:
        """Let a run continue whose worker is gone."""

    def stop(self, due: DueRun) -> None:
        """Stop a run that this worker drives and an operator has cancelled."""
        name = f"{due.tenant}/{due.id}"
        task = self._running.get(name)
        if task is not None and name not in self.stopped:
            self.stopped.add(name)
            task.cancel()

    async def _claim(self, due: DueRun, *, takeover: bool) -> RunLease:
        """Claim the run; raises AgentRunConflict. A caller that is cancelled meanwhile lets go of what was claimed."""
        owner = self.store.surroundings.new_id("own")
        found = self.agents.by_name.get(due.agent)
        claim = ClaimRun(
            tenant=due.tenant,
            id=due.id,
            owner=owner,
            worker=self.worker,
            takeover=takeover,
            gone=due.worker,
            limits=None if found is None else found.limits,
        )
        claiming = asyncio.ensure_future(self._write_until_stored(claim))
        try:
            return RunLease(tenant=due.tenant, run=await asyncio.shield(claiming), owner=owner)
        except asyncio.CancelledError:
            with suppress(AgentRunConflict):
                run = await claiming
                if run.status not in FINAL_STATES:
                    await self._let_go(RunLease(tenant=due.tenant, run=run, owner=owner))
            raise

    async def _drive(self, lease: RunLease) -> AgentRun:
        journal: StoreJournal | None = None
        left_s = remaining_s(lease.run, self.store.surroundings.clock())
        limit = asyncio.timeout(left_s)

        def lease_so_far() -> RunLease:
            return lease if journal is None else msgspec.structs.replace(lease, run=journal.usage_so_far(lease.run))

        try:
            journal = await asyncio.to_thread(
                StoreJournal.for_worker, self.store, lease.tenant, lease.run.id, lease.owner
            )
            if left_s == 0.0:
                return await self._fail_at_deadline(lease_so_far())
            async with limit:
                end, members = await self._drive_agent_or_team(lease, journal)
            return await self._finish(lease, end, members)
        except RunFenced:
            raise
        except RunCancelled:
            return await self._end(lease_so_far(), RunState.CANCELLED)
        except GeneratorExit:
            raise
        except BaseException as crash:
            if isinstance(crash, asyncio.CancelledError) and _is_cancelled():
                if f"{lease.tenant}/{lease.run.id}" in self.stopped:
                    return await self._end(lease_so_far(), RunState.CANCELLED)
                await asyncio.shield(self._let_go(lease_so_far()))
                raise
            if isinstance(crash, TimeoutError) and limit.expired():
                return await self._fail_at_deadline(lease_so_far())
            return await self._retry_later(lease_so_far(), crash, moved=journal is not None and journal.has_new_steps)

    async def _drive_agent_or_team(self, lease: RunLease, journal: StoreJournal) -> tuple[DriveResult, tuple[str, ...]]:
        found = self.agents.get(lease.run.agent)
        if isinstance(found, Team):
            return await drive_team(found, self.store, lease.tenant, lease.run)

        def watch(text: str) -> None:
            self.watch(lease.run.id, text)

        execution = ExecutionContext(
            run_id=lease.run.id, owner=lease.owner, retries=lease.run.retries, deps=self.deps, progress=watch
        )
        return await drive(found, lease.run, journal, execution, watch), ()

    async def _let_go(self, lease: RunLease) -> AgentRun:
        """Release a run to other workers at once: this worker stops."""
        parked = await self.suspend(
            lease, RunSuspended(pause_s=0.0, waiting_for=None, usage=lease.run.usage, turn=lease.run.turn)
        )
        self.watch(parked.id, RELEASED if parked.status is RunState.QUEUED else _describe_end(parked))
        return parked

    async def _finish(self, lease: RunLease, end: DriveResult, members: tuple[str, ...]) -> AgentRun:
        match end:
            case RunDone():
                return await self._end(lease, RunState.COMPLETED, None, end)
            case RunFailed():
                return await self._end(lease, RunState.FAILED, RunFailure(end.ending, end.error), end)
            case RunSuspended():
                return await self.suspend(lease, end, members)

    async def _end(
        self,
        lease: RunLease,
        status: RunState,
        failure: RunFailure | None = None,
        end: RunDone | RunFailed | None = None,
    ) -> AgentRun:
        usage, turn = (end.usage, end.turn) if end is not None else (lease.run.usage, lease.run.turn)
        result = end.result if isinstance(end, RunDone) else None
        write = EndRun(
            tenant=lease.tenant,
            id=lease.run.id,
            owner=lease.owner,
            status=status,
            result=result,
            failure=failure,
            usage=usage,
            turn=turn,
        )
        over = await self._write_until_stored(write)
        self.watch(over.id, _describe_end(over))
        return over

    async def _fail_at_deadline(self, lease: RunLease) -> AgentRun:
        failure = RunFailure(RunFailureReason.DEADLINE, f"not done in {lease.run.request.max_seconds:g} s")
        return await self._end(lease, RunState.FAILED, failure)

    async def _retry_later(self, lease: RunLease, crash: BaseException, *, moved: bool) -> AgentRun:
        """Retry a run later after an error that is not a verdict, a limited number of times."""
        retries = 1 if moved else lease.run.retries + 1
        if isinstance(crash, AgentError) or retries > MAX_ERRORS:
            return await self._end(lease, RunState.FAILED, RunFailure(RunFailureReason.ERROR, describe(crash)))
        rest = RunSuspended(
            pause_s=pause_s(retries),
            waiting_for=None,
            usage=lease.run.usage,
            turn=lease.run.turn,
            error=describe(crash),
        )
        return await self.suspend(lease, rest, retries=retries)

    async def _write_until_stored(self, write: ClaimRun | EndRun | ParkRun) -> AgentRun:
        """Retry the write of a claim, pause or end until it is stored: no other worker may drive the run meanwhile."""
        while True:
            try:
                return await self.store.recorder.record(write)
            except StoreUnavailable:
                await asyncio.sleep(STORE_PAUSE_S)

    def _micros_from_now(self, seconds: float) -> int:
        return to_micros(self.store.surroundings.clock() + timedelta(seconds=seconds))


def _describe_end(run: AgentRun) -> str:
    """Describe the end of a run in one line."""
    if run.status is not RunState.FAILED:
        return run.status.value
    return f"{run.status} ({run.ending}): {' '.join((run.error or '').split())}"


def _is_cancelled() -> bool:
    """Whether this task itself was cancelled; an agent's code may raise its own CancelledError."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def find_agents(found: Mapping[str, Any]) -> list[AgentDefinition | Team]:
    """List the agents and teams among the names of a module."""
    return [one for one in found.values() if isinstance(one, AgentDefinition | Team)]
