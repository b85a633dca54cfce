"""The ledger: balances of all accounts, and the statement of one."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from meruit.api.file_stream import stream_table
from meruit.api.listing import invalid_field
from meruit.api.routes.ledger import (
    check_currency,
    resolve_account,
    without_counterparties,
    without_counterparty,
)
from meruit.console.background import Computing, Progress
from meruit.console.contract_words import table_format
from meruit.console.live import Live
from meruit.console.page import ANYONE, NavEntry, PageRequest, page
from meruit.console.query import Choice, Filter, Query
from meruit.console.table import Column, Table
from meruit.contracts import records as contracts
from meruit.contracts.list_csv import BALANCE_HEADINGS, STATEMENT_HEADINGS, balance_cells, statement_rows
from meruit.contracts.records import Balance, Statement
from meruit.documents.csv_table import Cell
from meruit.model.access import Role
from meruit.web.responses import Response

SHOWN_ACCOUNTS = 500
LINES = 200
"""Movements of one page in each currency."""


COLUMNS = (
    Column("account", "Account", sortable=True),
    Column("currency", "Currency", sortable=True),
    Column("balance", "Balance", numeric=True, sortable=True),
)
# Any: a value that has an order.
ORDER: dict[str, Callable[[Balance], Any]] = {
    "account": lambda one: one.account,
    "currency": lambda one: one.currency,
    "balance": lambda one: one.micros,
}


@page("/ledger", nav=NavEntry("Money", "Ledger", keys="m", order=30))
async def show_balances(request: PageRequest) -> Response[Any]:
    """Show the balance of every account; those of a currency sum to zero."""
    query, service, tenant = Query.of(request), request.service, request.caller.tenant
    asked, currency = query.get("account").lower(), query.get("currency")
    table = Table.of(query, "Balances by currency and account", COLUMNS)

    def fits(one: Balance) -> bool:
        return asked in one.account.lower() and (not currency or one.currency == currency)

    def rows_of_file() -> Iterator[tuple[Cell, ...]]:
        with service.store.database.reading() as connection:
            every = filter(fits, contracts.iterate_balances(connection, tenant))
            yield from map(balance_cells, table.sort_rows([*every], ORDER) if table.is_sorted else every)

    def compute(_: Progress) -> list[Balance]:
        with service.store.database.reading() as connection:
            return contracts.balances(connection, tenant)

    if table.file is not None:
        return await stream_table(request, table.file, BALANCE_HEADINGS, rows_of_file)
    key = ("balances", service.store.signer.vkey, tenant)
    found = await request.console.figures.ask(key, compute, changing=True)
    if isinstance(found, Computing):
        return request.show("sorting.html", computing=found, title="Ledger")
    rows = table.sort_rows([*filter(fits, found)], ORDER)
    counts: dict[str, int] = {}
    for one in found:
        counts[one.currency] = counts.get(one.currency, 0) + 1
    return request.show(
        "ledger.html",
        live=Live(),
        query=query,
        table=table,
        filters=[Filter("currency", "Currency", [Choice(code, code, number) for code, number in counts.items()])],
        balances=rows[:SHOWN_ACCOUNTS],
        left_out=max(0, len(rows) - SHOWN_ACCOUNTS),
        total=len(found),
        escrow=[one for one in found if one.account == "escrow"],
        platform=[one for one in found if one.account == "platform"],
        paid=_sums(one for one in found if one.account.startswith("agent:")),
    )


@page("/ledger/statement", roles=ANYONE)
async def show_statement(request: PageRequest) -> Response[Any]:
    """Show the movements of an account, oldest first, with the balance after each."""
    query, caller = Query.of(request), request.caller
    is_agent = caller.role is Role.AGENT
    account = resolve_account(caller, query.get("account") or None)
    currency = query.get("currency") or None
    check_currency(currency)
    since, until = _parse_day("from", query.get("from")), _parse_day("to", query.get("to"))

    def ask(connection: Connection, limit: int) -> list[Statement]:
        find = contracts.currencies_of if is_agent else contracts.require_account
        known = find(connection, caller.tenant, account)
        wanted = known if currency is None else [currency]
        return [
            contracts.statement(connection, caller.tenant, account, one, since, until, limit=limit) for one in wanted
        ]

    kind = table_format(query)
    if kind is not None:

        def rows() -> Iterator[tuple[Cell, ...]]:
            # One transaction: each balance is the sum of all movements before it.
            with request.service.store.database.reading() as connection:
                for one in ask(connection, 0):
                    lines = contracts.iterate_lines(connection, caller.tenant, one)
                    yield from statement_rows(one, map(without_counterparty, lines) if is_agent else lines)

        return await stream_table(request, kind, STATEMENT_HEADINGS, rows)
    found = await request.service.read(lambda connection: ask(connection, LINES + 1))
    if is_agent:
        found = [without_counterparties(one) for one in found]
    return request.show(
        "statement.html",
        query=query,
        account=account,
        statements=found,
        limit=LINES,
        following={
            one.currency: query.choose("currency", one.currency).choose("from", one.lines[LINES].at.isoformat())
            for one in found
            if len(one.lines) > LINES and one.lines[LINES].at != one.lines[0].at
        },
        is_agent=is_agent,
    )


@page("/statement", roles=frozenset({Role.AGENT}), nav=NavEntry("Money", "Statement", keys="m", order=30))
async def show_own_statement(request: PageRequest) -> Response[Any]:
    """Lead an agent to its own account."""
    return request.go_to("/ledger/statement")


def _parse_day(name: str, text: str) -> datetime | None:
    """Parse a day or a time; the day `to` is included."""
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise invalid_field(name, "expected a day, such as 2026-01-31") from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    is_day = len(text) <= len("2026-01-31")
    try:
        return moment + timedelta(days=1) if name == "to" and is_day else moment
    except OverflowError:
        raise invalid_field(name, "expected a day before 9999-12-31") from None


def _sums(several: Any) -> list[Balance]:
    sums: dict[str, int] = {}
    for one in several:
        sums[one.currency] = sums.get(one.currency, 0) + one.micros
    return [Balance("agents", currency, micros) for currency, micros in sums.items()]
