"""Home: who needs you, how the last 30 days went, what runs now."""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection

from meruit.api.integrity import IntegrityState
from meruit.console.daily import DAYS, count_days, rate_of, sum_verdicts
from meruit.console.live import Live
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.reference_operations import write_curl
from meruit.console.shape import plural, short_id, span_in_words
from meruit.console.waiting import STUCK_FOR, WaitingCounts, missing_labels
from meruit.contracts import records as contracts
from meruit.evaluations.evaluation import EvaluationRecord, EvaluationStatus
from meruit.evaluations.reader import EvaluationFilter, Evaluations
from meruit.events import records as events
from meruit.gate import records as agent_runs
from meruit.gate.run import AgentRun, RunState
from meruit.model.access import Role
from meruit.model.contract import ContractState
from meruit.model.metering import UsageRecord
from meruit.model.numbers import in_units
from meruit.model.usage import UsageStatus
from meruit.outcomes.records import DailyVerdicts
from meruit.pages.drawing import Box, Drawing, Label, Stroke
from meruit.pages.scale import difference_tick, round_up
from meruit.review.service import Reviews
from meruit.usage import records as usage
from meruit.web.responses import Response

MOST = 10
"""Entries of each kind that the page lists."""
SPENT_RUNS = 50
"""Usage runs whose spend is summed up: the newest."""
SIGN = re.compile(r"^\W+")
"""The sign before a message about usage: the page has marks of its own."""
OPEN_REVIEWS = 20
"""Reviews that are searched for one that waits: the newest."""
FIRST_WORK = {
    "criteria": {"criteria": [{"metric": "word_count", "comparison": "in_range", "threshold": {"min": 3, "max": 20}}]},
    "output": {"text": "The ninth weir is still closed to trout."},
    "agent_id": "heron",
}
"""What a new service is asked to judge first."""
_WORDS = {
    "Log": "a broken audit log",
    "Review": "a review",
    "Hold": "a hold",
    "Dispute": "a dispute",
    "Usage": "a usage warning",
    "Webhook": "a dead letter",
    "Run": "an agent run",
}
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
    spend: list["Spend"]
    has_evaluations: bool


@dataclass(frozen=True, slots=True)
class Spend:
    """Usage runs of one status, among the newest."""

    status: UsageStatus
    runs: int
    tokens: int
    """As the provider counts, or as the runs do where it has not."""
    cost: Decimal | None
    """Only verified tokens have one."""
    currency: str


@page("/", roles=ANYONE, nav=NavEntry("Home", "Home", keys="h", order=0))
async def show_home(request: PageRequest) -> Response[Any]:
    """Show what needs attention; an agent is led to its own outcomes."""
    if request.caller.role is Role.AGENT:
        return request.go_to("/outcomes")
    now = request.now
    found = await asyncio.to_thread(_overview, request, now)
    needs = sorted(found.needs, key=lambda one: one.since)
    broken = sum(one.kind == "Log" for one in needs)
    waiting = request.waiting.total + broken
    is_new = not needs and not found.daily.days and not found.running and not found.spend and not found.has_evaluations
    left_out = _left_out(needs, request.waiting)
    return request.show(
        "home.html",
        live=Live(),
        needs=needs,
        answer="Nothing is recorded yet." if is_new else _answer(needs, max(len(needs), waiting), now),
        left_out=left_out,
        rate=rate_of(found.daily),
        verdicts=sum_verdicts(found.daily),
        daily=found.daily,
        chart=draw_days(found.daily, now.date()),
        running=found.running,
        runs=found.runs,
        spend=found.spend,
        spent_runs=SPENT_RUNS,
        integrity=request.service.integrity.state,
        first=_write_first(request) if is_new else "",
        is_new=is_new,
    )


def _overview(request: PageRequest, now: datetime) -> Overview:
    tenant = request.caller.tenant
    evaluations = Evaluations(request.service.store, tenant)
    with request.service.store.database.reading() as connection:
        return Overview(
            needs=[
                *_describe_broken_log(request, now),
                *_reviews(request),
                *_holds(connection, request),
                *_usage_warnings(connection, tenant, now),
                *_dead_letters(connection, tenant),
                *_stuck_runs(connection, tenant, now),
            ],
            daily=count_days(connection, request, now),
            running=evaluations.page(EvaluationFilter(statuses=(EvaluationStatus.RUNNING,)), limit=MOST),
            runs=[
                one
                for state in (RunState.RUNNING, RunState.QUEUED)
                for one in agent_runs.page(connection, tenant, status=state, limit=MOST)
            ],
            spend=_spend(usage.page(connection, tenant, limit=SPENT_RUNS)),
            has_evaluations=bool(evaluations.page(limit=1)),
        )


def _describe_broken_log(request: PageRequest, now: datetime) -> Iterator[Need]:
    found = request.service.integrity
    if found.state is IntegrityState.BROKEN:
        message = (
            f"{plural(len(found.problems), 'record differs', 'records differ')} from the log; run meruit audit check"
        )
        yield Need(
            kind="Log",
            tone="fail",
            what="The database contradicts its audit log",
            who="",
            href="/audit",
            why=message,
            since=now,
        )


def _reviews(request: PageRequest) -> Iterator[Need]:
    reviews = Reviews(request.service.store, request.caller.tenant)
    for one in reviews.page(limit=OPEN_REVIEWS):
        missing = missing_labels(one)
        if not missing:
            continue
        yield Need(
            kind="Review",
            tone="open",
            what=f"{plural(missing, 'label')} of {one.evaluation}",
            who=one.criterion or "whole verdict",
            href=f"/reviews/{quote(one.id)}{'/label' if request.can_operate else ''}",
            why=one.terms.question,
            since=one.created_at,
            act="Label" if request.can_operate else "Show",
        )


def _spend(runs: Sequence[UsageRecord]) -> list[Spend]:
    found = []
    for status in UsageStatus:
        several = [one for one in runs if one.verdict.status is status]
        if not several:
            continue
        counts = [one.verdict.tokens or one.run.local for one in several]
        quoted = [one.ledger.quoted for one in several if one.ledger.quoted is not None]
        found.append(
            Spend(
                status,
                len(several),
                sum(one.total for one in counts if one is not None),
                sum(quoted, Decimal()) if quoted else None,
                several[0].ledger.currency,
            )
        )
    return found


def _holds(connection: Connection, request: PageRequest) -> Iterator[Need]:
    tenant = request.caller.tenant
    found = contracts.page_holds(connection, request.caller.scope, limit=MOST).entries
    titles = contracts.titles_of(connection, tenant, {one.contract.work_id for one in found})
    for one in found:
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
            "Usage",
            "partial",
            f"Run {one.run.id}",
            one.run.framework,
            f"/usage/{quote(one.run.id, safe='')}",
            SIGN.sub("", one.verdict.message),
            one.run.ended_at or one.run.started_at or now,
            "unknown",
            "Explain",
        )


def _dead_letters(connection: Connection, tenant: str) -> Iterator[Need]:
    for webhook in events.list_webhooks(connection, tenant, after=None, limit=MOST):
        dead = events.list_dead_letters(connection, tenant, webhook.id, after=0, limit=MOST)
        if dead:
            yield Need(
                "Webhook",
                "error",
                f"{plural(len(dead), 'dead letter')} to {webhook.url}",
                "",
                f"/webhooks/{webhook.id}",
                dead[-1].error,
                dead[0].dead_at,
                "",
                "Replay",
            )


def _stuck_runs(connection: Connection, tenant: str, now: datetime) -> Iterator[Need]:
    for state, why in ((RunState.WAITING, "it waits for a value"), (RunState.FAILED, "it failed")):
        for one in agent_runs.page(connection, tenant, status=state, limit=MOST):
            since = one.ended_at or one.started_at or one.created_at
            if now - since < STUCK_FOR:
                tone = "open" if state is RunState.WAITING else "error"
                yield Need(
                    "Run",
                    tone,
                    f"Agent run {short_id(one.id)}",
                    one.agent,
                    f"/agent-runs/{quote(one.id)}",
                    one.note or one.error or why,
                    since,
                    "",
                    "Answer" if state is RunState.WAITING else "Show",
                )


def _write_first(request: PageRequest) -> str:
    """A command that records the first outcome of this service; empty where it only shows records."""
    if not request.can_operate:
        return ""
    return write_curl("POST", f"{request.origin}/v1/verify", FIRST_WORK, with_key=request.needs_key)


def _answer(needs: list[Need], total: int, now: datetime) -> str:
    if not needs:
        return "Nothing needs you."
    oldest = needs[0]
    listed = "the oldest" if total == len(needs) else "the oldest of those below"
    waited = f"{listed} is {_WORDS[oldest.kind]} that has waited {span_in_words(now - oldest.since)}"
    return f"{plural(total, 'thing needs', 'things need')} you; {waited}."


def _left_out(needs: list[Need], waiting: WaitingCounts) -> list[tuple[str, str]]:
    """What the list leaves out of each kind: words, and where they are all listed."""
    listed = Counter(one.kind for one in needs)
    kinds = (
        ("/holds", "hold or dispute", "holds and disputes", waiting.holds - listed["Hold"] - listed["Dispute"]),
        ("/usage?status=warning", "usage warning", "usage warnings", waiting.warnings - listed["Usage"]),
        ("/reviews", "review", "reviews", waiting.reviews - listed["Review"]),
        ("/webhooks", "webhook", "webhooks", waiting.webhooks - listed["Webhook"]),
        ("/agent-runs", "agent run", "agent runs", waiting.runs - listed["Run"]),
    )
    return [(path, f"{more:,} more {one if more == 1 else several}") for path, one, several, more in kinds if more > 0]


def draw_days(daily: DailyVerdicts, today: date) -> Drawing:
    """Verdicts of each day, one column a day."""
    days = [today - timedelta(days=back) for back in range(DAYS - 1, -1, -1)]
    most = max((sum(daily.days.get(day, {}).values()) for day in days), default=0)
    shapes: list[Any] = []
    if most:
        top = round_up(most)
        marked = difference_tick(most)
        line = 119 - 105 * (marked / top)
        shapes += [Stroke(0, line, 100, line, "grid"), Label(0, line - 4, f"{marked:,.0f}")]
        for place, day in enumerate(days):
            y = 119.0
            for verdict, number in ((one, daily.days.get(day, {}).get(one, 0)) for one in TONES):
                if number:
                    height = 105 * number / top
                    y -= height
                    label = f"{day.day} {day:%B}: {number:,} {verdict}"
                    shapes.append(
                        Box(place * 100 / DAYS + 0.3, y, 2.6, max(height - 1, 0.8), f"f {TONES[verdict]}", label)
                    )
    shapes.append(Stroke(0, 120, 100, 120, "axis"))
    shapes += [Label(0, 136, f"{days[0].day} {days[0]:%b}"), Label(100, 136, f"{days[-1].day} {days[-1]:%b}", "end")]
    total = sum_verdicts(daily)
    return Drawing(
        "Verdicts of each day", ", ".join(f"{number:,} {name}" for name, number in total.items()), 142, tuple(shapes)
    )
