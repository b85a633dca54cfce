"""Agent runs: what an agent handed in, why it was refused, and what happened next."""

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection

from meruit.api.file_stream import stream_table
from meruit.api.routes.agent_runs import find_visible_run
from meruit.api.wire.agent_runs import to_own_run
from meruit.console.live import Live
from meruit.console.page import ANYONE, OPERATORS, NavEntry, PageRequest, action, page, read_field
from meruit.console.query import Choice, Filter, Query
from meruit.console.table import Column, Table, read_once
from meruit.errors import ApiProblem
from meruit.gate import records as agent_runs
from meruit.gate.definition import OUTPUT_TOOL
from meruit.gate.records import CancelRun, ResumeRun
from meruit.gate.run import FINAL_STATES, AgentRun, RunState, SubmissionOutcome
from meruit.gate.timeline import TimelineEntry, TimelineKind, load_timeline
from meruit.model.access import Role
from meruit.model.time import to_micros
from meruit.pages.drawing import Box, Drawing, Label, Shape, Stroke
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 50
MAX_TURNS = 200
"""Turns that the chart of tokens shows: the last ones."""
MAX_VALUE = 100_000
"""Characters of an answer to a run that waits."""
COLUMNS = (
    Column("run", "Run"),
    Column("status", "Status"),
    Column("agent", "Agent", sortable=True),
    Column("attempts", "Rejections", numeric=True, hint="Rejected submissions, of those that end the run"),
    Column("turn", "Turns", numeric=True, minor=True, sortable=True),
    Column(
        "tokens",
        "Tokens",
        numeric=True,
        minor=True,
        sortable=True,
        hint="Input and output, as the model's endpoint counts",
    ),
    Column("query", "Query", wide=True, minor=True),
    Column("created", "Created", numeric=True, sortable=True),
)
OWN_COLUMNS = tuple(one for one in COLUMNS if one.key != "tokens")
STATE_TONES = {
    RunState.COMPLETED: "pass",
    RunState.FAILED: "fail",
    RunState.WAITING: "partial",
    RunState.RUNNING: "open",
    RunState.QUEUED: "open",
    RunState.CANCELLED: "error",
}
OUTCOME_TONES = {
    SubmissionOutcome.PASSED: "pass",
    SubmissionOutcome.REJECTED: "fail",
    SubmissionOutcome.SCHEMA_ERROR: "error",
}
TONES = {str(name): tone for name, tone in (STATE_TONES | OUTCOME_TONES).items()}


HEADINGS = ("run_id", "status", "agent", "rejections", "turns", "query", "created_at", "ended_at")


def _cells(run: AgentRun) -> tuple[Any, ...]:
    return (
        *(run.id, str(run.status), run.agent, run.verification.attempts_used, run.turn),
        *(run.request.query, run.created_at, run.ended_at),
    )


@page("/agent-runs", roles=ANYONE, nav=NavEntry("Agents", "Agent runs", keys="a", order=10))
async def list_runs(request: PageRequest) -> Response[Any]:
    """List runs, newest first; an agent sees its own."""
    query, scope = Query.of(request), request.caller.scope
    status = RunState(query.get("status")) if query.get("status") in [*RunState] else None
    # A key without an agent id matches no run: no recorded agent is empty.
    agent = (scope.agent_id or "") if scope.only_own else query.get("agent") or None
    table = Table.of(query, "Agent runs, newest first", OWN_COLUMNS if scope.only_own else COLUMNS)

    def read(connection: Connection, at: Table) -> tuple[list[AgentRun], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = agent_runs.page_sorted(
                connection, scope.tenant, at.order, status=status, agent=agent, limit=limit
            )
            return ordered.entries, at.following(ordered)
        before = at.query.number("before")
        newest = agent_runs.page(connection, scope.tenant, status=status, agent=agent, before=before, limit=limit)
        return newest, at.before(newest[-1].seq if len(newest) == limit else None)

    if table.file is not None:
        every = table.read_all(partial(read_once, request.service.store, read))
        return await stream_table(request, table.file, HEADINGS, lambda: map(_cells, every))
    (found, following), counts = await request.service.read(
        lambda connection: (read(connection, table), agent_runs.count_by_status(connection, scope.tenant, agent))
    )
    choices = [Choice(str(one), str(one), counts.get(one, 0), STATE_TONES[one]) for one in RunState]
    total = sum(counts.values())
    return request.show(
        "agent-runs.html",
        live=None if scope.only_own else Live(),
        query=query,
        filters=[Filter("status", "Status", [one for one in choices if one.count])],
        table=table,
        runs=found,
        total=total,
        waiting=counts.get(RunState.WAITING, 0),
        failed=counts.get(RunState.FAILED, 0),
        tones=TONES,
        is_own=scope.only_own,
        next=following,
    )


@page("/agent-runs/{run_id:str}", roles=ANYONE)
async def show_run(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Show a run: its timeline with every submission; an agent sees what its model saw."""
    scope = request.caller.scope
    if request.caller.role is Role.AGENT:
        return await _show_own_run(request, run_id)

    def ask(connection: Connection) -> dict[str, Any]:
        run = find_visible_run(connection, scope, run_id)
        workers = agent_runs.live_workers(connection, to_micros(request.now))
        return {
            "run": run,
            "timeline": load_timeline(connection, scope.tenant, run),
            "members": agent_runs.members(connection, scope.tenant, run.id),
            "has_worker": any(run.agent in one.agents for one in workers),
        }

    values = await request.service.read(ask)
    run: AgentRun = values["run"]
    submissions = [one.submission for one in values["timeline"] if one.kind is TimelineKind.SUBMISSION]
    return request.show(
        "agent-run.html",
        live=None if run.status in FINAL_STATES else Live(subject=run.id),
        submissions=submissions,
        turns=draw_turns(values["timeline"]),
        is_over=run.status in FINAL_STATES,
        tones=TONES,
        as_text=as_text,
        output_tool=OUTPUT_TOOL,
        **values,
    )


def draw_turns(timeline: Sequence[TimelineEntry]) -> Drawing | None:
    """The tokens of each turn, input and output; None where fewer than two turns are counted."""
    counted = [(one.turn, one.usage) for one in timeline if one.usage is not None and one.usage.requests][-MAX_TURNS:]
    most = max((usage.input_tokens + usage.output_tokens for _, usage in counted), default=0)
    if len(counted) < 2 or not most:
        return None
    step, shapes = 100 / len(counted), list[Shape]()
    for place, (turn, usage) in enumerate(counted):
        y, said = 70.0, f"turn {turn}: {usage.input_tokens:,} in, {usage.output_tokens:,} out"
        for tokens, style in ((usage.input_tokens, "f"), (usage.output_tokens, "f-accent")):
            height = 60 * tokens / most
            y -= height
            shapes.append(Box(place * step + 0.3, y, max(step - 0.6, 0.4), height, style, said))
    shapes += [Stroke(0, 70.5, 100, 70.5, "axis"), Label(0, 86, f"turn {counted[0][0]}")]
    shapes.append(Label(100, 86, f"turn {counted[-1][0]}", "end"))
    finding = f"the largest of {len(counted)} turns has {most:,} tokens"
    return Drawing("Tokens of each turn, input below and output above", finding, 92, tuple(shapes))


async def _show_own_run(request: PageRequest, run_id: str) -> Response[Any]:
    scope = request.caller.scope

    def ask(connection: Connection) -> dict[str, Any]:
        run = find_visible_run(connection, scope, run_id)
        handed_in = agent_runs.submissions(connection, scope.tenant, run.id)
        candidates = [agent_runs.candidate(connection, scope.tenant, run.id, one.submission_id) for one in handed_in]
        # The feedback is what the model saw; `to_own_run` drops it only because it may be long.
        feedback = [one.feedback for one in handed_in]
        return {"run": to_own_run(run, handed_in), "candidates": candidates, "feedback": feedback}

    values = await request.service.read(ask)
    return request.show("agent-run-own.html", tones=TONES, as_text=as_text, **values)


@page("/agent-runs/{run_id:str}/cancel", roles=OPERATORS)
async def ask_cancel(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Ask before a run is cancelled."""
    run = await _find(request, run_id)
    return request.show(
        "agent-run-cancel.html",
        run=run,
        title="Cancel this run?",
        post_to=f"/agent-runs/{run_id}/cancel",
        back=f"/agent-runs/{run_id}",
    )


@action("/agent-runs/{run_id:str}/cancel")
async def cancel(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Cancel a run and its members."""
    await request.service.store.recorder.record(CancelRun(request.caller.tenant, run_id))
    return request.go_to(f"/agent-runs/{run_id}", "Cancelled. A running step ends first.")


@page("/agent-runs/{run_id:str}/resume", roles=OPERATORS)
async def ask_answer(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Ask for the value that a run waits for."""
    run = await _find(request, run_id)
    if run.waiting_for is None:
        raise ApiProblem(409, "wrong_state", f"the run is {run.status} and waits for no answer; nothing was done")
    return request.show(
        "agent-run-resume.html",
        run=run,
        title="Answer this run",
        post_to=f"/agent-runs/{run_id}/resume",
        back=f"/agent-runs/{run_id}",
    )


@action("/agent-runs/{run_id:str}/resume")
async def resume(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Give a run the value that it waits for: JSON where it is JSON, else the text itself."""
    text = await read_field(request, "value", longest=MAX_VALUE)
    key = await read_field(request, "key", longest=200)
    if not text:
        raise ApiProblem(400, "invalid", "value: write the answer")
    value = text.encode() if await read_field(request, "as") == "json" else msgspec.json.encode(text)
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError as refused:
        raise ApiProblem(400, "invalid", f"value: this is not JSON ({refused}); choose text, or correct it") from None
    await request.service.store.recorder.record(ResumeRun(request.caller.tenant, run_id, key, value))
    return request.go_to(f"/agent-runs/{run_id}", "Answered. The run continues when a worker takes it.")


async def _find(request: PageRequest, run_id: str) -> AgentRun:
    tenant = request.caller.tenant
    return await request.service.read(lambda connection: agent_runs.find(connection, tenant, run_id))


# Any: a candidate is any JSON.
def as_text(value: Any) -> str:
    """A candidate as text whose lines can be compared."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True)
