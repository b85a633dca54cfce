"""`/v1/ledger`: balances, statements of accounts, and earnings."""

from datetime import datetime
from typing import Annotated

import msgspec
from sqlalchemy import Connection

from meruit.api.auth import ANYONE, READERS
from meruit.api.listing import (
    FormatQuery,
    SinceQuery,
    UntilQuery,
    invalid_field,
    parse_span,
    table_response,
    wants_table,
)
from meruit.api.request import ApiRequest
from meruit.api.wire.common import PRINTABLE, LabelQuery, json_response
from meruit.contracts import records as ledger
from meruit.contracts.earnings import EarningsReport, to_earnings_report
from meruit.contracts.list_csv import (
    BALANCE_HEADINGS,
    EARNINGS_HEADINGS,
    STATEMENT_HEADINGS,
    balance_cells,
    earnings_rows,
    statement_rows,
)
from meruit.contracts.postings import AGENT, CONSUMER, ESCROW, PLATFORM
from meruit.contracts.records import Earnings, EarningsFilter, Statement, StatementLine
from meruit.contracts.statement_view import StatementView, to_statement_view
from meruit.errors import ApiProblem
from meruit.model.access import Caller, Role
from meruit.model.money import CURRENCIES
from meruit.model.numbers import in_units
from meruit.model.outcome import MAX_LABEL
from meruit.model.record import Record
from meruit.model.time import to_rfc3339
from meruit.web.parameters import QueryParameter
from meruit.web.responses import Response
from meruit.web.routing import get

MAX_LINES = 10_000
"""Most lines of one page in each currency."""
MAX_ACCOUNTS = 10_000
"""Most accounts of one reply."""
MAX_EARNINGS = 50_000
"""Most days, agents and currencies of one reply."""
KINDS = (AGENT, CONSUMER, ESCROW)
"""Prefixes of the accounts of parties and contracts."""
FROM_TO = ("from", "to")

Account = Annotated[
    str | None,
    QueryParameter(
        min_length=1,
        max_length=MAX_LABEL + len(max(KINDS, key=len)),
        pattern=PRINTABLE,
        required=False,
        description="`agent:ID`, `consumer:ID`, `escrow:CONTRACT` or `platform` (default for agents: their own).",
    ),
]
Currency = Annotated[
    str | None,
    QueryParameter(max_length=10, required=False, description="An ISO 4217 code (default: all of the account)."),
]
Since = Annotated[
    str | None, QueryParameter(name="from", max_length=40, required=False, description="Start, RFC 3339, inclusive.")
]
Until = Annotated[
    str | None, QueryParameter(name="to", max_length=40, required=False, description="End, RFC 3339, exclusive.")
]


class BalanceView(Record, frozen=True):
    """The balance of an account as a decimal string; a consumer is below zero by what it has paid in."""

    account: str
    currency: str
    balance: str


class Balances(Record, frozen=True):
    """Every account, all escrows as one. The balances of a currency sum to zero."""

    balances: list[BalanceView]


class StatementPage(Record, frozen=True):
    """The movements of an account in a period, one statement a currency."""

    account: str
    statements: list[StatementView]
    since: datetime | None = msgspec.field(name="from")
    until: datetime | None = msgspec.field(name="to")
    """The end of this page, if it is not the last."""
    next: str | None
    """Pass it as `from` to get the next page; null on the last page."""


@get("/v1/ledger/balances", guards=[READERS], summary="Read all balances", tags=["ledger"])
async def read_balances(request: ApiRequest, shown_as: FormatQuery = None) -> Response[Balances]:
    """Read the balances of your tenant, sorted by currency and name."""
    tenant = request.caller.tenant
    found = await request.service.read(lambda connection: ledger.balances(connection, tenant))
    if len(found) > MAX_ACCOUNTS:
        why = f"there are more than {MAX_ACCOUNTS:,} accounts; read statements of single accounts instead"
        raise ApiProblem(409, "too_many_accounts", why)
    if (table := wants_table(request, shown_as)) is not None:
        return await table_response(request, table, BALANCE_HEADINGS, map(balance_cells, found))
    return json_response(Balances([BalanceView(one.account, one.currency, in_units(one.micros)) for one in found]))


@get("/v1/ledger/statement", guards=[ANYONE], summary="Read a statement of an account", tags=["ledger"])
async def read_statement(
    request: ApiRequest,
    account: Account = None,
    currency: Currency = None,
    since: Since = None,
    until: Until = None,
    shown_as: FormatQuery = None,
) -> Response[StatementPage]:
    """Read the movements of an account in a period, oldest first; an agent sees its own account."""
    caller = request.caller
    named = resolve_account(caller, account)
    check_currency(currency)
    begin, end = parse_span(since, until, FROM_TO)

    def ask(connection: Connection) -> tuple[list[Statement], datetime | None]:
        # An agent that was never paid has an account all the same.
        find = ledger.currencies_of if caller.role is Role.AGENT else ledger.require_account
        known = find(connection, caller.tenant, named)
        asked = [_statement(named, one, begin, end) for one in (known if currency is None else [currency])]
        following = _next_page_start(connection, caller.tenant, asked)
        until = end if following is None else following
        return [
            ledger.statement(connection, caller.tenant, named, one.currency, begin, until) for one in asked
        ], following

    found, following = await request.service.read(ask)
    for_agent = caller.role is Role.AGENT
    if (table := wants_table(request, shown_as)) is not None:
        if for_agent:
            found = [without_counterparties(one) for one in found]
        rows = (row for one in found for row in statement_rows(one, one.lines))
        more = None if following is None else ("from", to_rfc3339(following))
        return await table_response(request, table, STATEMENT_HEADINGS, rows, more)
    return json_response(
        StatementPage(
            account=named,
            statements=[to_statement_view(one, for_agent=for_agent) for one in found],
            since=begin,
            until=end if following is None else following,
            next=None if following is None else to_rfc3339(following),
        )
    )


@get("/v1/ledger/earnings", guards=[ANYONE], summary="Read earnings by day", tags=["ledger"])
async def read_earnings(
    request: ApiRequest,
    agent_id: LabelQuery = None,
    provider_id: LabelQuery = None,
    currency: Currency = None,
    since: SinceQuery = None,
    until: UntilQuery = None,
    shown_as: FormatQuery = None,
) -> Response[EarningsReport]:
    """Sum what agents and providers earned by UTC day. Several filters must all hold. An agent sees its own."""
    caller = request.caller
    if caller.role is Role.AGENT:
        if agent_id not in (None, caller.agent_id):
            raise ApiProblem(403, "forbidden", "an agent may read only its own earnings; leave agent_id out")
        # A key without an agent id matches no contract: no recorded agent id is empty.
        agent_id = caller.agent_id or ""
    check_currency(currency)
    wanted = EarningsFilter(agent_id, provider_id, currency, *parse_span(since, until))

    def ask(connection: Connection) -> list[Earnings]:
        return ledger.sum_earnings(connection, caller.tenant, wanted)

    found = await request.service.read(ask)
    if len(found) > MAX_EARNINGS:
        why = f"there are more than {MAX_EARNINGS:,} rows; ask for a shorter time, or for one agent or provider"
        raise ApiProblem(409, "too_many_rows", why)
    if (table := wants_table(request, shown_as)) is not None:
        return await table_response(request, table, EARNINGS_HEADINGS, earnings_rows(found))
    return json_response(to_earnings_report(found))


def resolve_account(caller: Caller, asked: str | None) -> str:
    """The account to read; an agent has only its own."""
    if caller.role is Role.AGENT:
        own = f"{AGENT}{caller.agent_id or ''}"
        if asked not in (None, own):
            raise ApiProblem(403, "forbidden", "an agent may read only its own account; leave account out")
        return own
    if asked is None:
        raise invalid_field("account", "is required")
    if asked != PLATFORM and not asked.startswith(KINDS):
        raise invalid_field("account", f"expected {PLATFORM}, or a name that starts with {', '.join(KINDS)}")
    return asked


def check_currency(currency: str | None) -> None:
    """Check that a currency exists; raises ApiProblem."""
    if currency is not None and currency not in CURRENCIES:
        raise invalid_field("currency", "expected a currency code, such as USD or EUR")


def _statement(account: str, currency: str, begin: datetime | None, end: datetime | None) -> Statement:
    return Statement(account, currency, begin, end, 0, 0, [])


def _next_page_start(connection: Connection, tenant: str, asked: list[Statement]) -> datetime | None:
    """When the next page starts; None when this page holds everything."""
    starts = []
    for one in asked:
        beyond = ledger.time_of_movement(connection, tenant, one, MAX_LINES)
        if beyond is None:
            continue
        # Movements at one time stay together, so that a time is a valid cursor.
        if ledger.time_of_movement(connection, tenant, one, 0) == beyond:
            raise ApiProblem(409, "too_many_lines", f"more than {MAX_LINES:,} movements have the same time")
        starts.append(beyond)
    return min(starts, default=None)


def without_counterparties(found: Statement) -> Statement:
    """A statement as its agent sees it: not by whom it was paid."""
    return msgspec.structs.replace(found, lines=[*map(without_counterparty, found.lines)])


def without_counterparty(line: StatementLine) -> StatementLine:
    """A movement as its agent sees it."""
    return msgspec.structs.replace(line, counterparty=None)
