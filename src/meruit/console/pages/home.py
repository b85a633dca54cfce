"""Home: who needs you, how the last 30 days went, what runs now."""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Any
from urllib.parse import quote

from litestar import Response
from sqlalchemy import Connection

from meruit.console.live import Live
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.shape import plural, short_id, span
from meruit.contracts import records as contracts
from meruit.evaluations.evaluation import EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import EvaluationFilter, Evaluations
from meruit.evaluations.summary import Rate
from meruit.events import records as events
from meruit.gate import records as agent_runs
from meruit.gate.run import AgentRun, RunState
from meruit.model.access import Role
from meruit.model.contract import ContractState
from meruit.model.numbers import in_units
from meruit.model.usage import UsageStatus
from meruit.model.verdict import Bounds, Verdict
from meruit.outcomes import records as outcomes
from meruit.outcomes.records import DailyVerdicts
from meruit.pages.drawing import Box, Drawing, Label, Stroke
from meruit.pages.scale import round_up
from meruit.reports.statistics import wilson
from meruit.usage import records as usage

DAYS = 30
MOST = 10
"""Entries of each kind that the page lists."""
_WORDS = {"Hold": "hold", "Dispute": "dispute", "Usage": "usage warning", "Webhook": "dead letter", "Run": "run"}
TONES = {"pass": "pass", "partial": "partial", "fail": "fail", "inconclusive": "open", "error": "error"}


@dataclass(frozen=True, slots=True)
class Need:
    """Something that waits for a person."""

    kind: str
    tone: str
    what: str
    who: str
    href: str
    why: str
    since: datetime
    stake: str = ""
    act: str = "Show"


@dataclass(frozen=True, slots=True)
class Overview:
    """What the home page shows."""

    needs: list[Need]
    daily: DailyVerdicts
    running: list[EvaluationRecord]
    runs: list[AgentRun]
    usage: Mapping[str, int]


@page("/", roles=ANYONE, nav=NavEntry("Home", "Home", keys="h", order=0))
async def show_home(request: PageRequest) -> Response[Any]:
    """Show what needs attention; an agent is led to its own outcomes."""
    if request.caller.role is Role.AGENT:
        return request.go_to("/outcomes")
    now = request.now
    found = await asyncio.to_thread(_overview, request, now)
    needs = sorted(found.needs, key=lambda one: one.since)
    return request.show(
        "home.html",
        live=Live(),
        needs=needs,
        answer=_answer(needs, now),
        rate=_rate(found.daily),
        verdicts=_sum(found.daily),
        daily=found.daily,
        chart=draw_days(found.daily, now.date()),
        running=found.running,
        runs=found.runs,
        usage=found.usage,
        is_new=not found.daily.days and not found.running and not found.usage,
    )


def _overview(request: PageRequest, now: datetime) -> Overview:
    tenant, scope = request.caller.tenant, request.caller.scope
    evaluations = Evaluations(request.service.store, tenant)
    with request.service.store.database.reading() as connection:
        return Overview(
            needs=[
                *_holds(connection, request),
                *_usage_warnings(connection, tenant, now),
                *_dead_letters(connection, tenant),
                *_stuck_runs(connection, tenant, now),
            ],
            daily=outcomes.count_by_day(connection, scope, now, DAYS),
            running=evaluations.page(EvaluationFilter(statuses=(EvaluationStatus.RUNNING,)), limit=MOST),
            runs=[
                one
                for state in (RunState.RUNNING, RunState.QUEUED)
                for one in agent_runs.page(connection, tenant, status=state, limit=MOST)
            ],
            usage=Counter(str(one.verdict.status) for one in usage.page(connection, tenant, limit=200)),
        )


def _holds(connection: Connection, request: PageRequest) -> Iterator[Need]:
    tenant = request.caller.tenant
    found = contracts.page_holds(connection, request.caller.scope, limit=MOST).entries
    titles = contracts.titles_of(connection, tenant, {one.contract.work_id for one in found})
    for one in contracts.add_holds(connection, tenant, found):
        contract, hold = one.contract, one.on_hold
        disputed = contract.state is ContractState.DISPUTED
        micros = contract.total_micros or contract.hold_micros
        yield Need(
            kind="Dispute" if disputed else "Hold",
            tone="partial",
            what=titles.get(contract.work_id, contract.work_id),
            who=contract.agent_id,
            href=f"/contracts/{contract.id}",
            why=(hold.reason if hold is not None else contract.hold_reason) or "no reason is recorded",
            since=hold.since if hold is not None else contract.completed_at or contract.awarded_at,
            stake=f"{in_units(micros)} {contract.currency}",
            act="Decide",
        )


def _usage_warnings(connection: Connection, tenant: str, now: datetime) -> Iterator[Need]:
    for one in usage.page(connection, tenant, status=UsageStatus.WARNING, limit=MOST):
        yield Need(
            *("Usage", "partial", f"Run {one.run.id}", one.run.framework, f"/usage/{quote(one.run.id, safe='')}"),
            *(one.verdict.message, one.run.ended_at or one.run.started_at or now, "unknown", "Explain"),
        )


def _dead_letters(connection: Connection, tenant: str) -> Iterator[Need]:
    for webhook in events.list_webhooks(connection, tenant, after=None, limit=MOST):
        dead = events.list_dead_letters(connection, tenant, webhook.id, after=0, limit=MOST)
        if dead:
            yield Need(
                *(
                    "Webhook",
                    "error",
                    f"{plural(len(dead), 'dead letter')} to {webhook.url}",
                    "",
                    f"/webhooks/{webhook.id}",
                ),
                *(dead[-1].error, dead[0].dead_at, "", "Replay"),
            )


def _stuck_runs(connection: Connection, tenant: str, now: datetime) -> Iterator[Need]:
    for state, said in ((RunState.WAITING, "it waits for a value"), (RunState.FAILED, "it failed")):
        for one in agent_runs.page(connection, tenant, status=state, limit=MOST):
            since = one.ended_at or one.started_at or one.created_at
            if now - since < timedelta(days=7):
                tone = "open" if state is RunState.WAITING else "error"
                yield Need(
                    *("Run", tone, f"Agent run {short_id(one.id)}", one.agent, f"/agent-runs/{quote(one.id)}"),
                    *(one.note or one.error or said, since, "", "Answer" if state is RunState.WAITING else "Show"),
                )


def _answer(needs: list[Need], now: datetime) -> str:
    if not needs:
        return "Nothing needs you."
    oldest = needs[0]
    waited = f"the oldest is a {_WORDS[oldest.kind]} that has waited {span(now - oldest.since)}"
    return f"{plural(len(needs), 'thing needs', 'things need')} you; {waited}."


def _sum(daily: DailyVerdicts) -> dict[str, int]:
    total: Counter[str] = Counter()
    for one in daily.days.values():
        total.update(one)
    return {verdict.value: total[verdict.value] for verdict in Verdict}


def _rate(daily: DailyVerdicts) -> Rate:
    """The pass rate of the time; what could not be judged is outside of it."""
    total = _sum(daily)
    passed, failed = total["pass"], total["partial"] + total["fail"]
    open_, judged = total["inconclusive"] + total["error"], passed + failed
    every = judged + open_
    return Rate(
        *(every, passed, failed, open_, passed / judged if judged else None),
        wilson(passed / judged, judged) if judged else None,
        Bounds(passed / every, (passed + open_) / every) if every else None,
    )


def draw_days(daily: DailyVerdicts, today: date) -> Drawing:
    """Verdicts of each day, one column a day."""
    days = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    most = max((sum(daily.days.get(day, {}).values()) for day in days), default=0)
    shapes: list[Any] = []
    if most:
        top = round_up(most)
        line = 119 - 105 * (most / top)
        shapes += [Stroke(0, line, 100, line, "grid"), Label(100, line - 3, f"{most:,}", "end")]
        for place, day in enumerate(days):
            y = 119.0
            for verdict, number in ((one, daily.days.get(day, {}).get(one, 0)) for one in TONES):
                if number:
                    height = 105 * number / top
                    y -= height
                    said = f"{day.day} {day:%B}: {number:,} {verdict}"
                    shapes.append(
                        Box(place * 100 / DAYS + 0.25, y, 2.8, max(height - 1, 0.8), f"f {TONES[verdict]}", said)
                    )
    shapes.append(Stroke(0, 120, 100, 120, "axis"))
    shapes += [Label(0, 136, f"{days[0].day} {days[0]:%b}"), Label(100, 136, f"{days[-1].day} {days[-1]:%b}", "end")]
    total = _sum(daily)
    return Drawing(
        "Verdicts of each day", ", ".join(f"{number:,} {name}" for name, number in total.items()), 142, tuple(shapes)
    )
