"""`/v1/ledger`: balances and statements of accounts."""

import re
from datetime import datetime
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.params import QueryParameter
from sqlalchemy import Connection, select

from meruit.api.auth import ANYONE, READERS
from meruit.api.request import ApiRequest
from meruit.api.wire import PRINTABLE, anchor_pattern, json_response
from meruit.contracts import records as ledger
from meruit.contracts.postings import PLATFORM
from meruit.contracts.records import Statement
from meruit.errors import ApiProblem, Problem
from meruit.model.access import Caller, Role
from meruit.model.money import CURRENCIES
from meruit.model.numbers import in_units
from meruit.model.outcome import MAX_LABEL
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros, to_rfc3339
from meruit.store import tables

MAX_LINES = 10_000
"""Most lines of one page."""
MAX_ACCOUNTS = 10_000
"""Most accounts of one reply."""
KINDS = ("agent:", "consumer:", "escrow:")
"""Prefixes of the accounts of parties and contracts."""
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII | re.IGNORECASE)

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
Currency = Annotated[str, QueryParameter(pattern=anchor_pattern("[A-Z]{3}"), description="An ISO 4217 code.")]
# A string, because Litestar would accept times without a zone, which are ambiguous.
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


class MovementView(Record, frozen=True):
    """One movement of an account, as decimal strings."""

    at: datetime
    contract_id: str
    operation: str
    amount: str
    balance: str
    """Balance after the movement."""
    leaf: int
    """Its entry in the audit log."""


class StatementView(Record, frozen=True):
    """The movements of an account in a period."""

    account: str
    currency: str
    opening: str
    closing: str
    lines: list[MovementView]
    since: datetime | None = msgspec.field(name="from")
    until: datetime | None = msgspec.field(name="to")
    """The end of this page, if it is not the last."""
    next: str | None
    """Pass it as `from` to get the next page; null on the last page."""


@get("/v1/ledger/balances", guards=[READERS], summary="Read all balances", tags=["ledger"])
async def read_balances(request: ApiRequest) -> Response[Balances]:
    """Read the balances of your tenant, sorted by currency and name."""
    tenant = request.caller.tenant
    found = await request.service.read(lambda connection: ledger.balances(connection, tenant))
    if len(found) > MAX_ACCOUNTS:
        why = f"there are more than {MAX_ACCOUNTS:,} accounts; read statements of single accounts instead"
        raise ApiProblem(409, "too_many_accounts", why)
    return json_response(Balances([BalanceView(one.account, one.currency, in_units(one.micros)) for one in found]))


@get("/v1/ledger/statement", guards=[ANYONE], summary="Read a statement of an account", tags=["ledger"])
async def read_statement(
    request: ApiRequest, currency: Currency, account: Account = None, since: Since = None, until: Until = None
) -> Response[StatementView]:
    """Read the movements of an account in a period, oldest first; an agent sees its own account."""
    caller = request.caller
    named = _resolve_account(caller, account)
    if currency not in CURRENCIES:
        raise _invalid_field("currency", "expected a currency code, such as USD or EUR")
    begin, end = _parse_moment("from", since), _parse_moment("to", until)
    if begin is not None and end is not None and begin > end:
        raise _invalid_field("from", "must not be after `to`")

    def ask(connection: Connection) -> StatementView:
        following = _next_page_start(connection, caller.tenant, named, currency, begin, end)
        until = end if following is None else following
        found = ledger.statement(connection, caller.tenant, named, currency, begin, until)
        return _to_statement_view(found, following)

    return json_response(await request.service.read(ask))


def _resolve_account(caller: Caller, asked: str | None) -> str:
    """The account to read; an agent has only its own."""
    if caller.role is Role.AGENT:
        own = f"agent:{caller.agent_id or ''}"
        if asked not in (None, own):
            raise ApiProblem(403, "forbidden", "an agent may read only its own account; leave account out")
        return own
    if asked is None:
        raise _invalid_field("account", "is required")
    if asked != PLATFORM and not asked.startswith(KINDS):
        raise _invalid_field("account", f"expected {PLATFORM}, or a name that starts with {', '.join(KINDS)}")
    return asked


def _parse_moment(field: str, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        # `fromisoformat` alone accepts weeks, days without a time and times without a zone.
        if _MOMENT.fullmatch(text):
            moment = datetime.fromisoformat(text.upper())
            to_rfc3339(moment)
            return moment
    except (ValueError, OverflowError):
        pass
    raise _invalid_field(field, "expected a time with a zone, such as 2026-01-31T00:00:00Z; write a plus sign as %2B")


def _invalid_field(field: str, message: str) -> ApiProblem:
    problem = Problem(field, message)
    return ApiProblem(400, "invalid", str(problem), errors=[problem])


def _next_page_start(
    connection: Connection, tenant: str, account: str, currency: str, begin: datetime | None, end: datetime | None
) -> datetime | None:
    """When the next page starts; None when this page holds everything."""
    table = tables.postings
    query = select(table.c.at).where(table.c.tenant == tenant, table.c.account == account, table.c.currency == currency)
    if begin is not None:
        query = query.where(table.c.at >= to_micros(begin))
    if end is not None:
        query = query.where(table.c.at < to_micros(end))
    query = query.order_by(table.c.at, table.c.leaf)
    beyond = connection.execute(query.offset(MAX_LINES).limit(1)).scalar()
    if beyond is None:
        return None
    # Movements at one time stay together, so that a time is a valid cursor.
    if connection.execute(query.limit(1)).scalar() == beyond:
        raise ApiProblem(409, "too_many_lines", f"more than {MAX_LINES:,} movements have the same time")
    return from_micros(beyond)


def _to_statement_view(found: Statement, following: datetime | None) -> StatementView:
    return StatementView(
        account=found.account,
        currency=found.currency,
        opening=in_units(found.opening),
        closing=in_units(found.closing),
        lines=[
            MovementView(
                *(line.at, line.contract_id, line.operation),
                *(in_units(line.micros), in_units(line.balance), line.leaf),
            )
            for line in found.lines
        ],
        since=found.since,
        until=found.until,
        next=None if following is None else to_rfc3339(following),
    )
