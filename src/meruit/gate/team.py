"""Teams: a plan of work items, each the run of a member behind its own gate."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec

from meruit.errors import AgentError
from meruit.gate.definition import AgentDefinition
from meruit.gate.limits import MAX_ATTEMPTS, GateLimits, validate_count
from meruit.gate.loop import DriveResult, RunDone, RunFailed, RunSuspended
from meruit.gate.run import FINAL_STATES, AgentRun, RunFailureReason, RunRequest, RunState
from meruit.gate.store import read as agent_reading
from meruit.gate.store.runs import MEMBERS, QueueRun, remaining_s
from meruit.model.chat import Usage
from meruit.store.store import Store

MAX_ITEMS = 200
ITEM_NAME = re.compile("[A-Za-z0-9_-]{1,64}")
"""It is part of a run's id, which is used in URLs."""

PLACEHOLDERS = re.compile(r"\{query\}|\{results\}")
"""What a query of a work item may contain."""


class Signal(StrEnum):
    """The status of an item for the scheduler of its team."""

    WAITING = "waiting"
    """Not started: a result it needs is missing, or no worker has claimed it."""
    WORKING = "working"
    REVISION = "revision"
    """Its last candidate was rejected; its agent revises."""
    SUCCESS = "success"
    FAILURE = "failure"


class WorkItem(msgspec.Struct, frozen=True):
    """One item of a plan."""

    name: str
    agent: AgentDefinition
    query: str
    """Query of the member. `{results}` becomes the results that it needs, as JSON; `{query}` the team's query."""
    needs: Sequence[str] = ()
    """Items whose results it needs."""


class Team:
    """Several agents with a plan; each output passes its own gate before other items use it."""

    def __init__(
        self,
        name: str,
        plan: Iterable[WorkItem],
        *,
        output: str | None = None,
        verify_max_attempts: int | None = None,
    ) -> None:
        self.name = name
        items = [*plan]
        self.plan = {item.name: item for item in items}
        self.output = output
        """The item whose result is the team's; None for all results by name."""
        most = MAX_ATTEMPTS * MAX_ITEMS
        attempts = most if verify_max_attempts is None else validate_count(verify_max_attempts, "the team's budget")
        self._limits = GateLimits(max_attempts=attempts)
        twice = [item.name for item in items if self.plan[item.name] is not item]
        if twice:
            raise AgentError(f"two items of team {name!r} are named {twice[0]!r}; rename one")
        _check(self)

    def limits(self, max_attempts: int | None = None) -> GateLimits:
        """The limits of all members together."""
        if max_attempts is None:
            return self._limits
        return GateLimits(max_attempts=validate_count(max_attempts, "the run's budget"))

    def agents(self) -> list[AgentDefinition]:
        """The members."""
        return [item.agent for item in self.plan.values()]


def _check(team: Team) -> None:
    if not team.plan or len(team.plan) > MAX_ITEMS:
        raise AgentError(f"team {team.name!r} has {len(team.plan)} items; a plan has 1 to {MAX_ITEMS}")
    if team.output is not None and team.output not in team.plan:
        raise AgentError(f"team {team.name!r} takes its output from {team.output!r}, which is not in its plan")
    done: set[str] = set()
    left = dict(team.plan)
    for item in team.plan.values():
        if not ITEM_NAME.fullmatch(item.name):
            raise AgentError(
                f"an item of team {team.name!r} is named {item.name!r}; write 1 to 64 letters, digits, - and _"
            )
        if isinstance(item.needs, str):
            raise AgentError(
                f"item {item.name!r} of team {team.name!r} has text as needs; write needs=({item.needs!r},)"
            )
        unknown = [name for name in item.needs if name not in team.plan]
        if unknown:
            raise AgentError(f"item {item.name!r} of team {team.name!r} needs {unknown[0]!r}, which is not in its plan")
    while left:
        ready = [name for name, item in left.items() if done.issuperset(item.needs)]
        if not ready:
            raise AgentError(f"in team {team.name!r}, {', '.join(sorted(left))} need each other; remove the cycle")
        done.update(ready)
        for name in ready:
            del left[name]


def signal_of(run: AgentRun | None) -> Signal:
    """The status of an item for the scheduler."""
    if run is None or (run.status is RunState.QUEUED and run.started_at is None):
        return Signal.WAITING
    if run.status is RunState.COMPLETED:
        return Signal.SUCCESS
    if run.status in FINAL_STATES:
        return Signal.FAILURE
    return Signal.REVISION if run.verification.attempts_used else Signal.WORKING


async def drive_team(team: Team, store: Store, tenant: str, run: AgentRun) -> tuple[DriveResult, tuple[str, ...]]:
    """Queue the items that can start; return the state of the team and the runs that it waits for."""
    with store.database.reading() as connection:
        found = {one.item: one for one in agent_reading.members(connection, tenant, run.id)}
    usage = sum((one.usage for one in found.values()), Usage())
    signals = {name: signal_of(found.get(name)) for name in team.plan}
    lost = [name for name, signal in signals.items() if signal is Signal.FAILURE]
    open_ids = tuple(one.id for one in found.values() if one.status not in FINAL_STATES)
    if lost:
        if open_ids:
            # Started items finish; no new item starts.
            return RunSuspended(pause_s=None, waiting_for=MEMBERS, usage=usage, turn=0), open_ids
        first = found[lost[0]]
        why = f"{lost[0]}: {first.error or first.ending or first.status}"
        return RunFailed(ending=RunFailureReason.MEMBER.value, error=why, usage=usage, turn=0), ()
    if all(signal is Signal.SUCCESS for signal in signals.values()):
        results = {name: found[name].result for name in team.plan}
        whole = results if team.output is None else results[team.output]
        return RunDone(result=msgspec.json.encode(whole), usage=usage, turn=0), ()
    results = {name: found[name].result for name, signal in signals.items() if signal is Signal.SUCCESS}
    for item in team.plan.values():
        if item.name not in found and results.keys() >= set(item.needs):
            queued = await store.recorder.record(
                _queue_item(item, tenant, run, results, remaining_s(run, store.surroundings.clock()))
            )
            open_ids = (*open_ids, queued.id)
    return RunSuspended(pause_s=None, waiting_for=MEMBERS, usage=usage, turn=0), open_ids


def _queue_item(
    item: WorkItem, tenant: str, run: AgentRun, results: Mapping[str, Any], left_s: float | None
) -> QueueRun:
    given = msgspec.json.encode({name: results[name] for name in item.needs}).decode()
    # Not str.format, and in one pass: a query may contain braces.
    values = {"{query}": run.request.query, "{results}": given}
    query = PLACEHOLDERS.sub(lambda match: values[match[0]], item.query)
    request = RunRequest(query, dict(run.request.payload), max_seconds=left_s)
    member = f"{run.id}.{item.name}"
    return QueueRun(
        tenant=tenant,
        by=run.created_by,
        id=member,
        agent=item.agent.name,
        request=request,
        limits=item.agent.limits(),
        parent_id=run.id,
        item=item.name,
    )
