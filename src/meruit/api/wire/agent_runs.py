"""Requests and replies of `/v1/agent-runs`, and the part that an agent's own key may see."""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from meruit.api.wire.common import Body, Label
from meruit.gate.limits import MAX_ATTEMPTS
from meruit.gate.records import LiveWorker
from meruit.gate.run import FINAL_STATES, AgentRun, GateSubmission, GateSubmissionSummary, RunRequest, RunState
from meruit.gate.state import VerificationState
from meruit.gate.team import Signal, signal_of
from meruit.gate.verdict import Acceptance, Rejection, SystemErrorVerdict
from meruit.model.chat import Usage
from meruit.model.events import OutboxEvent
from meruit.model.record import Record

MAX_QUERY = 200_000
"""Most characters of a query."""
MAX_RUN_SECONDS = 30 * 24 * 3600
MAX_LABELS = 50


class AgentRunRequest(Body, frozen=True):
    """A run of an agent or a team to queue."""

    agent: Label
    """Name of the agent; a worker that has it runs it."""
    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)]
    # Any: the agent's own context defines what it accepts.
    payload: dict[str, Any] = msgspec.field(default_factory=dict)
    """Initial values of the agent's context."""
    max_attempts: Annotated[int, Meta(ge=1, le=MAX_ATTEMPTS)] | None = None
    """Rejections that end the run (default: the agent's own budget)."""
    max_seconds: Annotated[float, Meta(gt=0, le=MAX_RUN_SECONDS)] | None = None
    """Longest time from start to end, pauses included."""
    labels: Annotated[dict[Label, Label], Meta(max_length=MAX_LABELS)] = msgspec.field(default_factory=dict)


class ResumeRequest(Body, frozen=True):
    """The value that a run waits for."""

    # Any: the waiting tool or verifier defines the value.
    value: Any
    """What the waiting tool returns to its model, or the answer for the waiting verifier."""
    key: Label | None = None
    """The `waiting_for` of the run (default: what it waits for now)."""


class AgentRunBrief(Record, frozen=True):
    """The state of an agent run."""

    id: str
    seq: int
    agent: str
    status: RunState
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    wake_at: datetime | None
    """When it continues, if it pauses or waits."""
    parent_id: str | None
    """The team run that it belongs to."""
    item: str | None
    turn: int
    attempts_used: int
    max_attempts: int | None
    """Null for a team without its own budget."""
    ending: str | None
    """Why it failed."""
    waiting_for: str | None
    """Key of the value that it waits for; `members` when a team waits for its members."""
    note: str | None
    """What the waiting tool or verifier says about that value."""


class MemberRun(Record, frozen=True):
    """A member of a team run, as the scheduler of the team sees it."""

    id: str
    item: str | None
    agent: str
    status: RunState
    signal: Signal
    attempts_used: int
    ending: str | None


class AgentRunDetail(AgentRunBrief, frozen=True, kw_only=True):
    """An agent run without its journal; candidates and feedback are read per submission."""

    request: RunRequest
    created_by: str
    retries: int
    takeovers: int
    verification: VerificationState
    usage: Usage
    # Any: the verifier defines the result.
    result: Any
    error: str | None
    """The error that ended the run, or the last one if it retries at `wake_at`."""
    submissions: list[GateSubmission]
    members: list[MemberRun]
    """Members of a team run that were started."""
    has_worker: bool
    """Whether a running worker has the agent."""
    is_hosted: bool
    """Whether it is open in a host's own loop, which no worker drives."""


class OwnAgentRun(AgentRunBrief, frozen=True, kw_only=True):
    """What an agent sees of its own run: only what its model saw."""

    query: str
    submissions: list[GateSubmissionSummary]


class OwnSubmission(GateSubmissionSummary, frozen=True, kw_only=True):
    """A submission with its candidate and the feedback that the model got."""

    # Any: the agent defines its candidates.
    candidate: Any


class SubmissionDetail(GateSubmission, frozen=True, kw_only=True):
    """A submission with the whole verdict, private evidence included."""

    # Any: as above.
    candidate: Any
    said: Acceptance | Rejection | SystemErrorVerdict | None
    """Null when the verifier was not called."""


class AgentRunPage(Record, frozen=True):
    """Agent runs, newest first."""

    agent_runs: list[AgentRunBrief]
    next: int | None
    """Pass it as `before` to get the next page; null on the last page."""
    agents_without_worker: list[str]
    """Agents of unfinished runs on this page that no running worker has; empty for agent keys."""


class AgentRunEvents(Record, frozen=True):
    """Events of a run and of its members, oldest first."""

    events: list[OutboxEvent]
    next: int | None
    """Pass it as `after` to get the next page; null on the last page."""


def to_brief(run: AgentRun) -> AgentRunBrief:
    """Convert a run to its brief form."""
    return AgentRunBrief(**_brief_fields(run))


def to_detail(
    run: AgentRun, submissions: list[GateSubmission], members: list[AgentRun], *, has_worker: bool
) -> AgentRunDetail:
    """Convert a run for readers."""
    return AgentRunDetail(
        **_brief_fields(run),
        **{name: getattr(run, name) for name in _DETAIL_FIELDS},
        submissions=[_without_feedback(one) for one in submissions],
        members=[_member(one) for one in members],
        has_worker=has_worker,
    )


def to_own_run(run: AgentRun, submissions: list[GateSubmission]) -> OwnAgentRun:
    """Convert a run for the key of its own agent."""
    return OwnAgentRun(
        **_brief_fields(run),
        query=run.request.query,
        submissions=[GateSubmissionSummary(**public_fields(_without_feedback(one))) for one in submissions],
    )


# Any: fields of a submission by name.
def public_fields(submission: GateSubmission) -> dict[str, Any]:
    """The fields of a submission that its own agent may see."""
    return {name: getattr(submission, name) for name in GateSubmissionSummary.__struct_fields__}


def agents_lacking_worker(runs: Iterable[AgentRun], living: Iterable[LiveWorker]) -> list[str]:
    """Agents of unfinished runs that no running worker has."""
    known = {name for worker in living for name in worker.agents}
    return sorted({run.agent for run in runs if run.status not in FINAL_STATES and not run.is_hosted} - known)


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
_DETAIL_FIELDS = (
    "request",
    "created_by",
    "retries",
    "takeovers",
    "verification",
    "usage",
    "result",
    "error",
    "is_hosted",
)


# Any: fields of a run by name.
def _brief_fields(run: AgentRun) -> dict[str, Any]:
    state = run.verification
    return {
        **{name: getattr(run, name) for name in (*_BRIEF_FIELDS, "ending", "waiting_for", "note")},
        "attempts_used": state.attempts_used,
        "max_attempts": state.limits.max_attempts if state.limits.max_attempts <= MAX_ATTEMPTS else None,
    }


def _without_feedback(submission: GateSubmission) -> GateSubmission:
    """Drop the feedback, which may be long."""
    return msgspec.structs.replace(submission, feedback=None)


def _member(run: AgentRun) -> MemberRun:
    used = run.verification.attempts_used
    return MemberRun(
        id=run.id,
        item=run.item,
        agent=run.agent,
        status=run.status,
        signal=signal_of(run),
        attempts_used=used,
        ending=run.ending,
    )
