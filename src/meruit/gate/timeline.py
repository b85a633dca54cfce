"""What happened in a run, in order: answers of the model, tools, waits, submissions with their candidates."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.gate.run import AgentRun, GateSubmission
from meruit.gate.store import read as runs
from meruit.gate.store.runs import WAIT
from meruit.gate.verdict import VerifierVerdict
from meruit.model.chat import ModelAnswer, ToolCall, Usage
from meruit.model.decoding import decode_json
from meruit.model.record import Record

TURN, TOOL = "turn:", "tool:"
"""What the keys of recorded steps begin with."""
MAX_ENTRIES = 1_000
"""Steps of a run that a timeline holds: the last ones."""


class TimelineKind(StrEnum):
    """What happened."""

    ANSWER = "answer"
    """The model answered, in text or by calling tools."""
    TOOL = "tool"
    WAIT = "wait"
    """A client gave the value that the run waited for."""
    SUBMISSION = "submission"


class TimelineEntry(Record, frozen=True):
    """One thing that happened in a run."""

    kind: TimelineKind
    at: datetime
    turn: int
    text: str = ""
    """The answer of the model, the reply of a tool, or the value of a client."""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage | None = None
    name: str = ""
    """Of the tool."""
    waits: bool = False
    """Whether the tool asked for a value and the run waited for it."""
    submission: GateSubmission | None = None
    # Any: the agent defines its candidates.
    candidate: Any = None
    before: Any = None
    """The candidate of the submission before."""
    said: VerifierVerdict | None = None


class _ToolStep(msgspec.Struct):
    reply: str = ""
    waits: bool = False


def load_timeline(connection: Connection, tenant: str, run: AgentRun) -> list[TimelineEntry]:
    """Everything that is recorded of a run, oldest first, with private evidence: for readers, not for agents."""
    entries = [*_submissions(connection, tenant, run)]
    names: dict[tuple[int, int], str] = {}
    steps = runs.steps_in_order(connection, tenant, run.id, limit=MAX_ENTRIES)
    for step in steps:
        if step.key.startswith(TURN):
            answer = ModelAnswer.from_json(step.body)
            turn = int(step.key.removeprefix(TURN))
            names |= {(turn, place): call.name for place, call in enumerate(answer.calls)}
            entries.append(
                TimelineEntry(
                    TimelineKind.ANSWER, step.at, turn, text=answer.text, calls=answer.calls, usage=answer.usage
                )
            )
    for step in steps:
        if step.key.startswith(TOOL):
            place = _place(step.key.removeprefix(TOOL))
            tool = decode_json(step.body, _ToolStep)
            entries.append(
                TimelineEntry(
                    TimelineKind.TOOL,
                    step.at,
                    place[0],
                    text=tool.reply,
                    name=names.get(place, "tool"),
                    waits=tool.waits,
                )
            )
        elif step.key.startswith(WAIT):
            place = _place(step.key.removeprefix(WAIT))
            text = step.body.decode("utf-8", "replace")
            entries.append(TimelineEntry(TimelineKind.WAIT, step.at, place[0], text=text))
    order = [*TimelineKind]
    return sorted(entries, key=lambda one: (one.at, one.turn, order.index(one.kind)))


def _submissions(connection: Connection, tenant: str, run: AgentRun) -> list[TimelineEntry]:
    found, before = list[TimelineEntry](), None
    for one in runs.submissions(connection, tenant, run.id):
        candidate = runs.candidate(connection, tenant, run.id, one.submission_id)
        verdict = runs.find_verdict(connection, tenant, run.id, one.submission_id)
        found.append(
            TimelineEntry(
                TimelineKind.SUBMISSION,
                one.at,
                one.turn,
                submission=one,
                candidate=candidate,
                before=before,
                said=verdict,
            )
        )
        before = candidate
    return found


def _place(key: str) -> tuple[int, int]:
    """The turn and the number of the call in it; waits of verifiers have other keys."""
    turn, _, place = key.partition(".")
    return (int(turn), int(place)) if turn.isdecimal() and place.isdecimal() else (0, 0)
