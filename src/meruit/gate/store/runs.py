"""Writes of agent runs: each transition once, only from a valid status, only by the owner of the run."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import select

from meruit.errors import AgentRunConflict, RunCancelled, RunFenced
from meruit.gate.limits import GateLimits
from meruit.gate.run import FINAL_STATES, AgentRun, RunRequest, RunState
from meruit.gate.state import VerificationEnding, VerificationState
from meruit.gate.store.rows import (
    RUN_ROWS,
    AgentRunRow,
    batch_reads,
    find_run_row,
    find_step,
    insert_step,
    load_run_row,
    micros_of,
    result_of_pass,
    save,
    with_submissions,
)
from meruit.model.chat import Usage
from meruit.model.events import EventType
from meruit.model.time import from_micros
from meruit.store import tables
from meruit.store.rows import RowMarks
from meruit.store.transaction import WriteTransaction

MAX_TAKEOVERS = 5
"""Workers in a row that die while they have a run, without a new step, after which the run fails."""
WAIT = "wait:"
"""Prefix of the keys of steps that a client provides."""
MEMBERS = "members"
"""Key that a team run waits for."""


@batch_reads
class QueueRun(msgspec.Struct, frozen=True):
    """Queue a run for a worker."""

    tenant: str
    by: str
    id: str
    agent: str
    request: RunRequest
    limits: GateLimits = GateLimits()
    parent_id: str | None = None
    item: str | None = None
    owner: str | None = None
    """Token of a host's own loop, which starts the run at once; None for a worker to claim it."""

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """Record it; for an id that exists, return that run."""
        known = find_run_row(writing, self.tenant, self.id)
        if known is not None:
            return with_submissions(writing, self.tenant, known.run, known.submissions)
        return self.write(writing)

    def write(self, writing: WriteTransaction) -> AgentRun:
        """Record a new run; raises RunCancelled for a member of a team that is cancelled or over."""
        team = None if self.parent_id is None else find_run_row(writing, self.tenant, self.parent_id)
        if team is not None and (team.cancel or team.run.status in FINAL_STATES):
            raise RunCancelled(f"run {team.run.id} was cancelled or is over; it cannot get a new member")
        now = writing.now.micros
        status = RunState.QUEUED if self.owner is None else RunState.RUNNING
        kind = EventType.AGENT_RUN_QUEUED if self.owner is None else EventType.AGENT_RUN_STARTED
        about = {"run_id": self.id, "agent": self.agent, "status": status, "parent_id": self.parent_id}
        seq = writing.emit(self.tenant, kind, self.id, f"{self.id}:{status}", about)
        state = VerificationState(limits=self.limits)
        run = AgentRun(
            id=self.id,
            seq=seq,
            agent=self.agent,
            status=status,
            request=self.request,
            created_at=from_micros(now),
            created_by=self.by,
            parent_id=self.parent_id,
            item=self.item,
            started_at=None if self.owner is None else from_micros(now),
            wake_at=from_micros(now) if self.owner is None else None,
            verification=state,
            is_hosted=self.owner is not None,
        )
        started, wake = (None, now) if self.owner is None else (now, None)
        writing.insert(
            tables.agent_runs,
            tenant=self.tenant,
            id=run.id,
            seq=seq,
            agent=run.agent,
            status=status.value,
            parent_id=run.parent_id,
            item=run.item,
            created_at=now,
            created_by=self.by,
            request=self.request.to_json(),
            started_at=started,
            ended_at=None,
            wake_at=wake,
            owner=self.owner,
            worker=None,
            cancel=0,
            turn=0,
            retries=0,
            takeovers=0,
            submissions=0,
            tokens=run.usage.input_tokens + run.usage.output_tokens,
            state=state.to_json(),
            usage=run.usage.to_json(),
            result=None,
            ending=None,
            error=None,
            waiting_for=None,
            note=None,
        )
        row = AgentRunRow(run=run, submissions=0, owner=self.owner, worker=None, cancel=False)
        RUN_ROWS.put(writing, row, self.tenant, run.id)
        return run


@batch_reads
class ClaimRun(msgspec.Struct, frozen=True):
    """Claim a run for a worker."""

    tenant: str
    id: str
    owner: str
    """A unique token; every later write of the run must present it."""
    worker: str
    takeover: bool = False
    """Whether to take it over from a worker that is gone."""
    gone: str | None = None
    """That worker; None for any."""
    most_takeovers: int = MAX_TAKEOVERS
    limits: Callable[[int | None], GateLimits] | None = None
    """The agent's limits, given the run's own budget; the client that queued it need not know the agent."""

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """Claim it; raises AgentRunConflict where it is not available."""
        held = load_run_row(writing, self.tenant, self.id)
        if held.cancel and held.run.status not in FINAL_STATES:
            run = end_run(writing, self.tenant, held, RunState.CANCELLED)
            return with_submissions(writing, self.tenant, run, held.submissions)
        if held.run.status is RunState.RUNNING and held.owner == self.owner:
            # It was claimed, and the reply was lost.
            return with_submissions(writing, self.tenant, held.run, held.submissions)
        if held.run.status is RunState.RUNNING and self.takeover and self.gone in (None, held.worker):
            return with_submissions(writing, self.tenant, self._take_over(writing, held), held.submissions)
        if held.run.status is not RunState.QUEUED:
            raise AgentRunConflict(f"run {self.id} is {held.run.status}; only a queued run can be claimed")
        first = held.run.started_at is None
        run = msgspec.structs.replace(
            held.run,
            status=RunState.RUNNING,
            started_at=from_micros(writing.now.micros) if first else held.run.started_at,
            wake_at=None,
            verification=self._initial_verification(held.run),
        )
        save(writing, self.tenant, msgspec.structs.replace(held, run=run, owner=self.owner, worker=self.worker))
        if first:
            emit_run_event(writing, self.tenant, EventType.AGENT_RUN_STARTED, run, "started")
        return with_submissions(writing, self.tenant, run, held.submissions)

    def _initial_verification(self, run: AgentRun) -> VerificationState:
        if self.limits is None or run.started_at is not None:
            return run.verification
        return msgspec.structs.replace(run.verification, limits=self.limits(run.request.max_attempts))

    def _take_over(self, writing: WriteTransaction, held: AgentRunRow) -> AgentRun:
        takeovers = held.run.takeovers + 1
        run = msgspec.structs.replace(held.run, takeovers=takeovers)
        if takeovers >= self.most_takeovers:
            failure = RunFailure("poison", f"{takeovers} workers in a row died while they had this run")
            return end_run(writing, self.tenant, msgspec.structs.replace(held, run=run), RunState.FAILED, failure)
        save(writing, self.tenant, msgspec.structs.replace(held, run=run, owner=self.owner, worker=self.worker))
        return run


class RunFailure(msgspec.Struct, frozen=True):
    """Code and message of a failed run."""

    ending: str
    error: str


@batch_reads
class EndRun(msgspec.Struct, frozen=True):
    """End a run."""

    tenant: str
    id: str
    owner: str
    status: RunState
    result: bytes | None = None
    """As JSON; None for the result of a verifier, which its submission has."""
    failure: RunFailure | None = None
    usage: Usage = Usage()
    turn: int = 0

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """End it once; a second caller gets the end of the first."""
        held = load_run_row(writing, self.tenant, self.id)
        if held.run.status in FINAL_STATES:
            return with_submissions(writing, self.tenant, held.run, held.submissions)
        # It is done, even if an operator has just cancelled it.
        check_owner(msgspec.structs.replace(held, cancel=False), self.owner)
        used = msgspec.structs.replace(held.run, usage=self.usage, turn=self.turn)
        row = msgspec.structs.replace(held, run=used)
        run = end_run(writing, self.tenant, row, self.status, self.failure, self.result)
        return with_submissions(writing, self.tenant, run, held.submissions)


class ParkRun(msgspec.Struct, frozen=True):
    """Pause a run, for some time or until a client provides a value."""

    tenant: str
    id: str
    owner: str
    wake_at: int | None
    """In microseconds; None for no limit."""
    waiting_for: str | None = None
    unless_over: tuple[str, ...] = ()
    """Member runs of a team: if one of them is over by now, the team does not wait."""
    retries: int | None = None
    usage: Usage | None = None
    turn: int | None = None
    error: str | None = None
    """The error that it pauses after, if any."""
    note: str | None = None
    """What it waits for, in the words of the tool."""

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """Release it; a value that was provided meanwhile lets it continue at once."""
        held = load_run_row(writing, self.tenant, self.id)
        check_owner(msgspec.structs.replace(held, cancel=False), self.owner)
        if held.cancel:
            run = end_run(writing, self.tenant, held, RunState.CANCELLED)
            return with_submissions(writing, self.tenant, run, held.submissions)
        here = self.waiting_for
        if here is not None and self._has_arrived(writing, here):
            here = None
        wake = self.wake_at if here is not None or self.waiting_for is None else writing.now.micros
        # Its deadline also holds while it pauses.
        wake = min((one for one in (wake, micros_of(deadline_of(held.run))) if one is not None), default=None)
        run = msgspec.structs.replace(
            held.run,
            status=RunState.QUEUED if here is None else RunState.WAITING,
            wake_at=None if wake is None else from_micros(wake),
            waiting_for=here,
            retries=held.run.retries if self.retries is None else self.retries,
            usage=self.usage or held.run.usage,
            turn=held.run.turn if self.turn is None else self.turn,
            error=_writable(self.error),
            note=None if here is None else _writable(self.note),
        )
        save(writing, self.tenant, msgspec.structs.replace(held, run=run, owner=None, worker=None))
        if here is not None:
            # A team waits for its members more than once; each time is an event of its own.
            emit_run_event(
                writing, self.tenant, EventType.AGENT_RUN_WAITING, run, f"waiting:{here}:{writing.events + 1}"
            )
        return with_submissions(writing, self.tenant, run, held.submissions)

    def _has_arrived(self, writing: WriteTransaction, key: str) -> bool:
        if find_step(writing, self.tenant, self.id, f"{WAIT}{key}") is not None:
            return True
        return any(load_run_row(writing, self.tenant, one).run.status in FINAL_STATES for one in self.unless_over)


class ResumeRun(msgspec.Struct, frozen=True):
    """Provide the value that a run waits for."""

    tenant: str
    id: str
    key: str
    value: bytes
    """As JSON."""

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """Record it and let the run continue; the same value twice counts once, another value is refused."""
        held = load_run_row(writing, self.tenant, self.id)
        known = find_step(writing, self.tenant, self.id, f"{WAIT}{self.key}")
        if known is not None:
            if known != self.value:
                raise AgentRunConflict(f"run {self.id} already has another value for {self.key!r}")
            return with_submissions(writing, self.tenant, held.run, held.submissions)
        if held.run.status in FINAL_STATES:
            raise AgentRunConflict(f"run {self.id} is {held.run.status}; it takes no more values")
        if held.run.waiting_for != self.key or self.key == MEMBERS:
            waits = held.run.waiting_for
            raise AgentRunConflict(
                f"run {self.id} waits for {waits!r}" if waits else f"run {self.id} waits for nothing"
            )
        insert_step(writing, self.tenant, self.id, f"{WAIT}{self.key}", self.value)
        run = wake_run(writing, self.tenant, held, f"resumed:{self.key}")
        return with_submissions(writing, self.tenant, run, held.submissions)


class WakeRun(msgspec.Struct, frozen=True):
    """End the wait of a run that has timed out."""

    tenant: str
    id: str
    key: str
    value: bytes
    """The value that it continues with instead."""

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """Let it continue if it still waits for that; past its deadline it continues only to end."""
        held = load_run_row(writing, self.tenant, self.id)
        due, now = held.run.wake_at, from_micros(writing.now.micros)
        if held.run.waiting_for != self.key or due is None or due > now:
            return with_submissions(writing, self.tenant, held.run, held.submissions)
        deadline = deadline_of(held.run)
        if deadline is None or deadline > now:
            insert_step(writing, self.tenant, self.id, f"{WAIT}{self.key}", self.value)
        run = wake_run(writing, self.tenant, held, f"resumed:{self.key}")
        return with_submissions(writing, self.tenant, run, held.submissions)


class CancelRun(msgspec.Struct, frozen=True):
    """Cancel a run."""

    tenant: str
    id: str

    def __call__(self, writing: WriteTransaction) -> AgentRun:
        """End it, or let its worker end it; a run that is over stays as it is. Members of a team are cancelled too."""
        held = load_run_row(writing, self.tenant, self.id)
        if held.run.status in FINAL_STATES:
            return with_submissions(writing, self.tenant, held.run, held.submissions)
        run = held.run
        # A host's own loop has no worker that could end it.
        if run.status is RunState.RUNNING and held.worker is not None:
            save(writing, self.tenant, msgspec.structs.replace(held, cancel=True))
        else:
            run = end_run(writing, self.tenant, held, RunState.CANCELLED)
        for child in _children(writing, self.tenant, self.id):
            CancelRun(self.tenant, child)(writing)
        return with_submissions(writing, self.tenant, run, held.submissions)


@batch_reads
class RecordStep(msgspec.Struct, frozen=True):
    """Record the result of a step."""

    tenant: str
    id: str
    owner: str
    key: str
    body: bytes
    started: dict[str, Any] | None = None
    """Body of the event that a verification starts, where the step has a candidate."""

    def __call__(self, writing: WriteTransaction) -> bytes:
        """Record it, unless it is recorded: the first result counts."""
        held = load_run_row(writing, self.tenant, self.id)
        # First: a worker that wakes late must stop here and repeat no step that another has done since.
        check_owner(held, self.owner)
        known = find_step(writing, self.tenant, self.id, self.key)
        if known is not None:
            return known
        insert_step(writing, self.tenant, self.id, self.key, self.body)
        clear_errors(writing, self.tenant, held)
        if self.started is not None:
            emit_verification_started(writing, self.tenant, held.run, self.started)
        return self.body


def end_run(
    writing: WriteTransaction,
    tenant: str,
    held: AgentRunRow,
    status: RunState,
    failure: RunFailure | None = None,
    result: bytes | None = None,
) -> AgentRun:
    """Write the end of a run and wake the team that waits for it; a run that has passed is always completed."""
    if held.run.verification.ended is VerificationEnding.PASSED:
        status, failure = RunState.COMPLETED, None
    if result is None and status is RunState.COMPLETED:
        result = result_of_pass(writing, tenant, held.run.id)
    run = msgspec.structs.replace(
        held.run,
        status=status,
        ended_at=from_micros(writing.now.micros),
        wake_at=None,
        waiting_for=None,
        note=None,
        is_hosted=False,
        ending=None if failure is None else failure.ending,
        error=None if failure is None else _writable(failure.error),
        result=None if result is None else msgspec.json.decode(result),
    )
    save(writing, tenant, msgspec.structs.replace(held, run=run, owner=None, worker=None), result)
    emit_run_event(writing, tenant, _END_EVENTS[status], run, status.value)
    if run.parent_id is not None:
        parent = load_run_row(writing, tenant, run.parent_id)
        if parent.run.waiting_for == MEMBERS:
            wake_run(writing, tenant, parent, f"member:{run.id}")
    return run


def wake_run(writing: WriteTransaction, tenant: str, held: AgentRunRow, why: str) -> AgentRun:
    """Let a waiting run continue: a worker takes it, or its host's own loop submits again."""
    status, wake = (RunState.RUNNING, None) if held.is_hosted else (RunState.QUEUED, from_micros(writing.now.micros))
    run = msgspec.structs.replace(held.run, status=status, wake_at=wake, waiting_for=None, note=None)
    save(writing, tenant, msgspec.structs.replace(held, run=run))
    emit_run_event(writing, tenant, EventType.AGENT_RUN_RESUMED, run, why)
    return run


def deadline_of(run: AgentRun) -> datetime | None:
    """Deadline of a run; None where it has none, or has not started."""
    if run.request.max_seconds is None or run.started_at is None:
        return None
    try:
        return run.started_at + timedelta(seconds=run.request.max_seconds)
    except (OverflowError, ValueError):
        # Centuries, or not a number.
        return None


def remaining_s(run: AgentRun, now: datetime) -> float | None:
    """Seconds until the deadline of a run; None where it has none."""
    deadline = deadline_of(run)
    return None if deadline is None else max(0.0, (deadline - now).total_seconds())


def clear_errors(writing: WriteTransaction, tenant: str, held: AgentRunRow) -> None:
    """Clear the error and the takeovers of a run that has made a step."""
    if held.run.error is not None or held.run.takeovers:
        save(
            writing,
            tenant,
            msgspec.structs.replace(held, run=msgspec.structs.replace(held.run, error=None, takeovers=0)),
        )


def check_owner(held: AgentRunRow, owner: str) -> None:
    """Check that the caller owns the run; raises RunFenced or RunCancelled."""
    if held.owner != owner:
        raise RunFenced(f"run {held.run.id} was taken over by another worker")
    if held.cancel:
        raise RunCancelled(f"run {held.run.id} was cancelled")


def emit_run_event(writing: WriteTransaction, tenant: str, event: EventType, run: AgentRun, what: str) -> None:
    """Emit an event of a run: names and statuses, no content."""
    writing.emit(
        tenant,
        event,
        run.id,
        f"{run.id}:{what}",
        {
            "run_id": run.id,
            "agent": run.agent,
            "status": run.status,
            "parent_id": run.parent_id,
            "attempts_used": run.verification.attempts_used,
            "ending": run.ending,
            "waiting_for": run.waiting_for,
            "note": run.note,
        },
    )


_START_EVENTS = RowMarks("verification_started")


def emit_verification_started(writing: WriteTransaction, tenant: str, run: AgentRun, about: dict[str, Any]) -> None:
    """Emit the event that a verification starts."""
    key = _start_event_key(run.id, about["submission_id"])
    data = {"run_id": run.id, "agent": run.agent, **about}
    writing.emit(tenant, EventType.VERIFICATION_STARTED, run.id, key, data)
    _START_EVENTS.add(writing, tenant, key)


def has_start_event(writing: WriteTransaction, tenant: str, run_id: str, submission_id: str) -> bool:
    """Whether the event that this verification starts was emitted."""
    of, key = tables.events, _start_event_key(run_id, submission_id)
    if _START_EVENTS.has(writing, tenant, key):
        return True
    known = select(of.c.seq).where(of.c.tenant == tenant, of.c.subject == run_id, of.c.idempotency_key == key)
    return bool(writing.read(known.limit(1)))


def _start_event_key(run_id: str, submission_id: str) -> str:
    return f"{run_id}:{submission_id}:started"


def _writable(text: str | None) -> str | None:
    """Replace null characters, which a database cannot store in text."""
    return None if text is None else text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def _children(writing: WriteTransaction, tenant: str, run_id: str) -> list[str]:
    """List the members of a team run, also those that this transaction queues."""
    of = tables.agent_runs
    known = {
        row.id: None for row in writing.read(select(of.c.id).where(of.c.tenant == tenant, of.c.parent_id == run_id))
    }
    for row in RUN_ROWS.rows_to_write(writing):
        if row.run.parent_id == run_id:
            known[row.run.id] = None
    return [*known]


_END_EVENTS = {
    RunState.COMPLETED: EventType.AGENT_RUN_COMPLETED,
    RunState.FAILED: EventType.AGENT_RUN_FAILED,
    RunState.CANCELLED: EventType.AGENT_RUN_CANCELLED,
}
