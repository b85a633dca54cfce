"""Usage: which runs match the provider's bill, which do not, and what would change that."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from sqlalchemy import Connection

from meruit.api.file_stream import stream_table
from meruit.api.listing import table_response
from meruit.api.routes.contracts import validate_reason
from meruit.console.background import Computing, Progress
from meruit.console.live import Live
from meruit.console.page import OPERATORS, NavEntry, PageRequest, action, page, read_field
from meruit.console.pages.home import SIGN
from meruit.console.query import Choice, Filter, Query
from meruit.console.sorting import read_beside
from meruit.console.table import Column, Table, read_once
from meruit.console.usage_chart import draw_observations
from meruit.errors import ApiProblem
from meruit.model.metering import UsageRecord
from meruit.model.usage import Acknowledgement, Observation, UsageCode, UsageStatus
from meruit.store.lru import LruCache
from meruit.store.transaction import WriteTransaction
from meruit.usage import records as usage
from meruit.usage.cost import quote_cost
from meruit.usage.followers import UsageWrite
from meruit.usage.records import AccountTotal, Acknowledge, ObserveNow
from meruit.web.parameters import FromPath
from meruit.web.responses import Response

PAGE_SIZE = 30
MANY_RUNS = 20_000
"""From so many runs on, counts are kept for COUNTS_KEPT."""
COUNTS_KEPT = timedelta(seconds=5)
COLUMNS = (
    Column("run", "Run"),
    Column("status", "Status"),
    Column("agent", "Agent"),
    Column("why", "Why", wide=True, minor=True),
    Column(
        "run_tokens",
        "Run, in / out",
        numeric=True,
        minor=True,
        sortable=True,
        hint="Input and output tokens that the run reports",
    ),
    Column(
        "tokens",
        "Provider, in / out",
        numeric=True,
        sortable=True,
        hint="Input and output tokens that the provider counts",
    ),
    Column("cost", "Cost", numeric=True, sortable=True, hint="At the prices of the time, once the tokens are verified"),
    Column("account", "Account", usual=False),
    Column("task", "Task", usual=False),
    Column("ended", "Ended", numeric=True, minor=True, sortable=True),
)
HEADINGS = (
    *("run_id", "status", "code", "framework", "account", "task", "run_input", "run_output"),
    *("provider_input", "provider_output", "cost_usd", "ended_at"),
)
ACCOUNT_COLUMNS = (
    Column("account", "Account", sortable=True),
    *(Column(str(one), str(one).replace("data_not_available", "no data"), numeric=True) for one in UsageStatus),
    Column("tokens", "Tokens", numeric=True, sortable=True, hint="As the provider counted them last"),
    Column("unattributed", "Unattributed", numeric=True, sortable=True, hint="Runs with tokens that belong to no step"),
    Column("asked", "Asked", numeric=True, sortable=True, hint="When the provider was asked last"),
)
# Any: a value that has an order.
ACCOUNT_ORDER: dict[str, Callable[[AccountTotal], Any]] = {
    "account": lambda one: one.account,
    "tokens": lambda one: one.tokens,
    "unattributed": lambda one: one.unattributed,
    "asked": lambda one: one.asked_at,
}
STATUS_TONES = {
    UsageStatus.VERIFIED: "pass",
    UsageStatus.WARNING: "partial",
    UsageStatus.PENDING: "open",
    UsageStatus.DATA_NOT_AVAILABLE: "error",
}


@page("/usage", nav=NavEntry("Money", "Usage", keys="u", order=40))
async def list_runs(request: PageRequest) -> Response[Any]:
    """List usage runs by status, newest first."""
    query, tenant = Query.of(request), request.caller.tenant
    status = UsageStatus(query.get("status")) if query.get("status") in [*UsageStatus] else None
    code = UsageCode(query.get("code")) if query.get("code") in [*UsageCode] else None
    names = {name: query.get(name) or None for name in ("framework", "account", "task")}
    table = Table.of(query, "Usage runs, newest first", COLUMNS)

    def read(connection: Connection, at: Table) -> tuple[list[UsageRecord], Query | None]:
        limit = at.limit(PAGE_SIZE)
        if at.order is not None:
            ordered = usage.page_sorted(connection, tenant, at.order, status=status, code=code, limit=limit, **names)
            return ordered.entries, at.following(ordered)
        before = at.query.number("before")
        newest = usage.page(connection, tenant, status=status, code=code, before=before, limit=limit, **names)
        return newest, at.before(newest[-1].seq if len(newest) == limit else None)

    if table.file is not None:
        every = table.read_all(partial(read_once, request.service.store, read))
        return await stream_table(request, table.file, HEADINGS, lambda: map(_cells, every))
    made = await read_beside(request, table, read)
    if isinstance(made, Computing):
        return request.show("sorting.html", computing=made, title="Usage")
    found, following = made
    counts, accounts = await request.service.read(lambda connection: _count(connection, request))
    statuses = [Choice(str(one), _word(one), counts.get(one, 0), STATUS_TONES[one]) for one in UsageStatus]
    filters = [
        Filter("status", "Status", [one for one in statuses if one.count]),
        Filter("account", "Account", [Choice(name, name, number) for name, number in accounts.items()]),
        Filter("code", "Rule", [Choice(str(one), str(one).replace("_", " ")) for one in _SHOWN_CODES]),
    ]
    total = sum(counts.values())
    return request.show(
        "usage.html",
        live=Live(),
        query=query,
        filters=filters,
        table=table,
        runs=found,
        counts={str(one): counts.get(one, 0) for one in UsageStatus},
        total=total,
        tones={str(one): tone for one, tone in STATUS_TONES.items()},
        next=following,
    )


@page("/usage/accounts")
async def list_accounts(request: PageRequest) -> Response[Any]:
    """List the provider accounts: their runs by status, and which have tokens that belong to no step."""
    query = Query.of(request)
    table = Table.of(query, "Provider accounts by name", ACCOUNT_COLUMNS)
    service, tenant = request.service, request.caller.tenant
    counts, _ = await service.read(lambda connection: _count(connection, request))

    def compute(_: Progress) -> list[AccountTotal]:
        with service.store.database.reading() as connection:
            return usage.sum_accounts(connection, tenant)

    if sum(counts.values()) < MANY_RUNS:
        made: list[AccountTotal] | Computing = await asyncio.to_thread(compute, Progress())
    else:
        key, figures = ("accounts", service.store.signer.vkey, tenant), request.console.figures
        ask = figures.ask if table.file is None else figures.wait_for
        made = await ask(key, compute, changing=True)
    if isinstance(made, Computing):
        return request.show("usage-accounts-computing.html", computing=made)
    found = made
    if table.file is not None:
        headings = ("account", *map(str, UsageStatus), "tokens", "unattributed_runs", "asked_at")
        rows = [
            (
                one.account,
                *(one.runs.get(status, 0) for status in UsageStatus),
                one.tokens,
                one.unattributed,
                one.asked_at,
            )
            for one in found
        ]
        return await table_response(request, table.file, headings, rows)
    settings = request.service.configuration.usage.accounts
    return request.show(
        "usage-accounts.html",
        table=table,
        accounts=table.sort_rows(found, ACCOUNT_ORDER),
        configured=[name for name in settings if name not in {one.account for one in found}],
    )


def _count(connection: Connection, request: PageRequest) -> tuple[dict[UsageStatus, int], dict[str, int]]:
    """The runs of each status and account; where there are very many, as they were a few seconds ago."""
    tenant, now = request.caller.tenant, request.now
    key = (request.service.store.signer.vkey, tenant)
    known = _counted.get(key)
    if known is not None and now - known[0] < COUNTS_KEPT:
        return known[1], known[2]
    counts, accounts = usage.count_by_status(connection, tenant), usage.count_by_account(connection, tenant)
    if sum(counts.values()) > MANY_RUNS:
        _counted.put(key, (now, counts, accounts))
    return counts, accounts


_counted = LruCache[tuple[str, str], tuple[datetime, dict[UsageStatus, int], dict[str, int]]](1_000)

_SHOWN_CODES = (
    UsageCode.UNATTRIBUTED,
    UsageCode.DISCREPANCY,
    UsageCode.DECREASED,
    UsageCode.ZERO_TOKENS,
    UsageCode.API_ERROR,
)
"""Rules that people look for."""


@page("/usage/{run_id:str}")
async def show_run(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Show one run: both counts, the rule that decided, and what would change it."""
    tenant = request.caller.tenant

    def ask(connection: Connection) -> tuple[UsageRecord, list[Observation]]:
        return usage.find(connection, tenant, run_id), usage.find_observations(connection, tenant, run_id)

    record, observations = await request.service.read(ask)
    last = next((one for one in reversed(observations) if one.total is not None), None)
    return request.show(
        "usage-run.html",
        live=Live(subject=run_id),
        record=record,
        run=record.run,
        verdict=record.verdict,
        # Without the sign before it: the page has a mark of its own.
        message=SIGN.sub("", record.verdict.message),
        local=record.run.local,
        observations=observations,
        by_step={} if last is None or last.steps is None else last.steps,
        last=last,
        chart=draw_observations(record, observations),
        tone=STATUS_TONES[record.verdict.status],
        cost=quote_cost(record.run, record.verdict, record.quotes),
        can_acknowledge=record.verdict.code is UsageCode.DECREASED,
    )


@page("/usage/{run_id:str}/acknowledge", roles=OPERATORS)
async def ask_acknowledgement(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Ask for the reason why a count that fell is accepted."""
    record = await request.service.read(lambda connection: usage.find(connection, request.caller.tenant, run_id))
    return request.show(
        "usage-acknowledge.html",
        record=record,
        title="Accept the lower count?",
        post_to=f"/usage/{run_id}/acknowledge",
        back=f"/usage/{run_id}",
    )


@action("/usage/{run_id:str}/acknowledge")
async def acknowledge(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Accept a count that fell."""
    actor, service = request.actor, request.service
    reason = validate_reason(await read_field(request, "reason"))
    accepted = Acknowledgement(request.now, actor.by, reason)
    write = Acknowledge(actor.tenant, run_id, accepted, service.usage_policy)
    await service.store.recorder.record(UsageWrite(tenant=actor.tenant, by=actor.by, write=write))
    return request.go_to(f"/usage/{run_id}", "Accepted. The run is decided again.")


@action("/usage/{run_id:str}/observe")
async def observe(request: PageRequest, run_id: FromPath[str]) -> Response[Any]:
    """Make a run due now."""
    actor = request.actor

    def schedule_now(writing: WriteTransaction) -> UsageRecord:
        (record,) = ObserveNow(actor.tenant, [run_id])(writing)
        if record.run.ended_at is None:
            raise ApiProblem(409, "wrong_state", "the run is open; only ended runs are observed")
        return record

    await request.service.store.recorder.record(UsageWrite(tenant=actor.tenant, by=actor.by, write=schedule_now))
    return request.go_to(f"/usage/{run_id}", "The run is due: the next reconciler asks its provider.")


def _word(status: UsageStatus) -> str:
    return "no data" if status is UsageStatus.DATA_NOT_AVAILABLE else str(status)


def _cells(record: UsageRecord) -> tuple[str | int | float | datetime | None, ...]:
    run, verdict, own = record.run, record.verdict, record.run.local
    tokens = verdict.tokens
    quoted = record.ledger.quoted
    return (
        *(run.id, str(verdict.status), str(verdict.code), run.framework, run.source, run.task),
        *((None, None) if own is None else (own.input, own.output)),
        *((None, None) if tokens is None else (tokens.input, tokens.output)),
        None if quoted is None else str(quoted),
        None if run.ended_at is None else run.ended_at.astimezone(UTC),
    )
