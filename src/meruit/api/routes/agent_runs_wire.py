"""Runs of agents as they go over the wire, and the part of them that an agent's own key is shown."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire import Body, Label
from meruit.gate.limits import MAX_ATTEMPTS
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, GateSubmissionSummary, RunRequest, RunState
from meruit.gate.state import VerificationState
from meruit.gate.store.read import LiveWorker
from meruit.gate.team import Signal, signal_of
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict
from meruit.model.chat import Usage
from meruit.model.events import OutboxEvent
from meruit.model.record import Record

MAX_QUERY = 200_000
"""Characters of what an agent is asked."""
MAX_RUN_SECONDS = 30 * 24 * 3600
MAX_LABELS = 50


class AgentRunRequest(Body, frozen=True):
    """What an agent or a team is asked to do."""

    agent: Label
    """By its name; a worker that knows it takes the run."""
    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)]
    # Any: whatever the agent's own context takes.
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    """What the agent's context begins with."""
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    """Rejections that end the run; the agent's own budget when not given."""
    max_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_SECONDS)] | None = None
    """From its start to its end, rests included."""
    labels: Annotated[dict[Label, Label], Meta(max_length=MAX_LABELS)] = msgspec.field(default_factory=dict)


class ResumeRequest(Body, frozen=True):
    """What a run waits for."""

    # Any: whatever the tool that waits is to answer.
    value: Any
    """What the waiting tool answers its model."""
    key: Label | None = None
    """As the run's `waiting_for` says it, so that nothing else is answered; what it waits for when not given."""


class AgentRunBrief(Record, frozen=True):
    """Where a run stands."""

    id: str
    seq: int
    agent: str
    status: RunState
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    wake_at: datetime | None
    """When it is taken up again, where it pauses or waits."""
    parent_id: str | None
    """The team run that it is a part of."""
    item: str | None
    turn: int
    attempts_used: int
    max_attempts: int | None
    """None for a team without a budget of its own."""
    ending: str | None
    """Why it failed."""
    waiting_for: str | None
    """The key of what must be handed in before it goes on; `members` where a team waits for those."""
    note: str | None
    """What that is, in the words of the tool that asks for it."""


class MemberRun(Record, frozen=True):
    """A part of a team run, as the team's scheduler sees it."""

    id: str
    item: str | None
    agent: str
    status: RunState
    signal: Signal
    attempts_used: int
    ending: str | None


class AgentRunDetail(AgentRunBrief, frozen=True, kw_only=True):
    """All of a run but its journal; a submission's candidate and feedback are read one by one."""

    request: RunRequest
    created_by: str
    retries: int
    takeovers: int
    verification: VerificationState
    usage: Usage
    # Any: whatever the verifier returned.
    result: Any
    error: str | None
    """What went wrong: for good where it failed, the last time where it is tried again at `wake_at`."""
    submissions: list[GateSubmission]
    members: list[MemberRun]
    """Of a team, those that were begun."""
    has_worker: bool
    """Whether a worker lives that knows the agent."""


class OwnAgentRun(AgentRunBrief, frozen=True, kw_only=True):
    """What an agent sees of its own: nothing that its model was not told."""

    query: str
    submissions: list[GateSubmissionSummary]


class OwnSubmission(GateSubmissionSummary, frozen=True, kw_only=True):
    """A submission with the candidate and the feedback that its model was given."""

    # Any: whatever was handed in.
    candidate: Any


class SubmissionDetail(GateSubmission, frozen=True, kw_only=True):
    """The same with what the verifier said, its private evidence included."""

    # Any: as above.
    candidate: Any
    said: Acceptance | Rejection | SystemErrorVerdict | None
    """None where it was never asked."""


class AgentRunPage(Record, frozen=True):
    """Runs, newest first."""

    agent_runs: list[AgentRunBrief]
    next: int | None
    """Give it as `before` for the next page; None at the end."""
    agents_without_worker: list[str]
    """Agents of these runs that are to go on, and for whom no worker works now; an agent's key is not told."""


class AgentRunEvents(Record, frozen=True):
    """What happened to a run and, of a team, to its members; oldest first."""

    events: list[OutboxEvent]
    next: int | None
    """Give it as `after` for the next page; None at the end."""


def to_brief(run: AgentRun) -> AgentRunBrief:
    """Where a run stands, for whoever may know of it."""
    return AgentRunBrief(**_brief_fields(run))


def to_detail(
    run: AgentRun, submissions: list[GateSubmission], members: list[AgentRun], *, has_worker: bool
) -> AgentRunDetail:
    """A run for those who may see all of it."""
    return AgentRunDetail(
        **_brief_fields(run),
        **{name: getattr(run, name) for name in _DETAIL_FIELDS},
        submissions=[_without_feedback(one) for one in submissions],
        members=[_member(one) for one in members],
        has_worker=has_worker,
    )


def to_own_run(run: AgentRun, submissions: list[GateSubmission]) -> OwnAgentRun:
    """A run for the key of the agent whose it is."""
    return OwnAgentRun(
        **_brief_fields(run),
        query=run.request.query,
        submissions=[GateSubmissionSummary(**public_fields(_without_feedback(one))) for one in submissions],
    )


# Any: fields of a submission by name.
def public_fields(submission: GateSubmission) -> dict[str, Any]:
    """What of a submission whoever handed it in may know."""
    return {name: getattr(submission, name) for name in GateSubmissionSummary.__struct_fields__}


def agents_lacking_worker(runs: Iterable[AgentRun], living: Iterable[LiveWorker]) -> list[str]:
    """Agents of runs that are to go on, and that none of the living works for."""
    known = {name for worker in living for name in worker.agents}
    return sorted({run.agent for run in runs if run.status not in FINAL_STATES} - known)


_BRIEF_FIELDS = (
    "id",
    "seq",
    "agent",
    "status",
    "created_at",
    "started_at",
    "ended_at",
    "wake_at",
    "parent_id",
    "item",
    "turn",
)
_DETAIL_FIELDS = ("request", "created_by", "retries", "takeovers", "verification", "usage", "result", "error")


# Any: fields of a run by name.
def _brief_fields(run: AgentRun) -> dict[str, Any]:
    state = run.verification
    return {
        **{name: getattr(run, name) for name in (*_BRIEF_FIELDS, "ending", "waiting_for", "note")},
        "attempts_used": state.attempts_used,
        "max_attempts": state.limits.max_attempts if state.limits.max_attempts <= MAX_ATTEMPTS else None,
    }


def _without_feedback(submission: GateSubmission) -> GateSubmission:
    """Without what is long."""
    return msgspec.structs.replace(submission, feedback=None)


def _member(run: AgentRun) -> MemberRun:
    used = run.verification.attempts_used
    return MemberRun(run.id, run.item, run.agent, run.status, signal_of(run), used, run.ending)
