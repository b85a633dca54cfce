"""The ledger: write transfers and balances; read balances, statements and everything that invariants need."""

from collections.abc import Iterator, Sequence
from datetime import date, datetime, timedelta
from hashlib import sha256
from itertools import islice

import msgspec
from sqlalchemy import ColumnElement, Connection, and_, case, distinct, func, or_, select, tuple_

from meruit.contracts.invariants import Books, Settlement, Transfer
from meruit.contracts.postings import AGENT, CONSUMER, ESCROW, PLATFORM, Parties, Posting
from meruit.contracts.replay import transfer_from_entry
from meruit.contracts.store.read import contract_from
from meruit.contracts.store.work import titles_of
from meruit.errors import StoreError, UnknownAccount
from meruit.log.entries import AwardEntry, MoneyEntry, SettlementEntry, VerdictEntry, read_entry
from meruit.model.contract import Contract
from meruit.model.money import Bill
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.transaction import MergeRule, WriteTransaction
from meruit.suggestions import nearest

MAX_LINES = 1_000_000
"""Most lines of one statement."""
PAGE = 2_000
MAX_SIMILAR = 5_000
"""Most accounts among which a misspelt one is searched for."""
DAY_MICROS = 86_400 * 1_000_000
KINDS = (AGENT, CONSUMER, ESCROW)
PAYING, REVERSING = ("settle",), ("reverse",)
"""Operations that pay an agent, and that take a payment back."""


class Movement(msgspec.Struct, frozen=True):
    """A movement of money to write."""

    tenant: str
    contract: Contract
    operation: str
    number: int
    postings: tuple[Posting, ...]


class Balance(Record, frozen=True):
    """The balance of an account."""

    account: str
    currency: str
    micros: int


class StatementLine(Record, frozen=True):
    """One movement on an account."""

    at: datetime
    contract_id: str
    operation: str
    micros: int
    balance: int
    """The balance after it."""
    leaf: int
    """Its entry in the audit log."""
    title: str | None = None
    """Of the work."""
    counterparty: str | None = None
    """The account on the other side: the consumer's for an agent, the agent's for others."""
    gross: int = 0
    """What the movement pays for the work; below 0 when it takes a payment back."""
    fee: int = 0
    """The platform's part of it."""
    net: int = 0
    """The agent's part of it."""


class Statement(Record, frozen=True):
    """The movements on an account in a period."""

    account: str
    currency: str
    since: datetime | None
    until: datetime | None
    opening: int
    closing: int
    lines: list[StatementLine]


def parties_of(contract: Contract) -> Parties:
    """The parties between whom the contract moves money."""
    return Parties(contract_id=contract.id, consumer_id=contract.consumer_id, agent_id=contract.agent_id)


def move_money(writing: WriteTransaction, movement: Movement, leaf: int) -> None:
    """Write a transfer with its postings, and update the balances."""
    tenant, currency, at = movement.tenant, movement.contract.currency, writing.now.micros
    writing.insert(
        tables.transfers,
        leaf=leaf,
        tenant=tenant,
        contract_id=movement.contract.id,
        operation=movement.operation,
        number=movement.number,
        currency=currency,
        at=at,
    )
    for account, micros in movement.postings:
        writing.insert(
            tables.postings,
            leaf=leaf,
            account=account,
            tenant=tenant,
            currency=currency,
            micros=micros,
            at=at,
        )
        writing.merge(
            tables.balances,
            MergeRule.ADDED,
            tenant=tenant,
            currency=currency,
            account=account,
            micros=micros,
        )


def tenants(connection: Connection) -> list[str]:
    """Every tenant with contracts, transfers or balances."""
    of = (tables.balances, tables.contracts, tables.transfers)
    return sorted({row.tenant for table in of for row in connection.execute(select(table.c.tenant).distinct())})


def balances(connection: Connection, tenant: str, *, escrows: bool = False) -> list[Balance]:
    """The balance of every account; the escrow accounts of single contracts only with `escrows`."""
    return [*iterate_balances(connection, tenant, escrows=escrows)]


def iterate_balances(connection: Connection, tenant: str, *, escrows: bool = False) -> Iterator[Balance]:
    """The balance of every account, by currency and name; without `escrows`, the sum of all escrows last."""
    table = tables.balances
    query = select(table).where(table.c.tenant == tenant).order_by(table.c.currency, table.c.account)
    if not escrows:
        query = query.where(tables.IS_PARTY)
    # Transfers sum to zero, so what the other accounts lack is in escrow.
    lacking: dict[str, int] = {}
    for row in connection.execute(query, execution_options={"yield_per": PAGE}):
        lacking[row.currency] = lacking.get(row.currency, 0) - row.micros
        yield Balance(row.account, row.currency, row.micros)
    if not escrows:
        yield from (Balance("escrow", currency, micros) for currency, micros in sorted(lacking.items()))


def statement(
    connection: Connection,
    tenant: str,
    account: str,
    currency: str,
    since: datetime | None = None,
    until: datetime | None = None,
    *,
    limit: int = MAX_LINES,
) -> Statement:
    """The movements on an account from `since` to before `until`, at most `limit`."""
    opening = opening_balance(connection, tenant, account, currency, since)
    asked = Statement(
        account=account, currency=currency, since=since, until=until, opening=opening, closing=opening, lines=[]
    )
    lines = [*islice(iterate_lines(connection, tenant, asked, page=min(PAGE, limit)), limit)]
    return msgspec.structs.replace(asked, lines=lines, closing=lines[-1].balance if lines else opening)


def opening_balance(connection: Connection, tenant: str, account: str, currency: str, since: datetime | None) -> int:
    """The balance of an account before a time."""
    if since is None:
        return 0
    table, moment = tables.postings, to_micros(since)
    mine = (table.c.tenant == tenant, table.c.account == account, table.c.currency == currency)
    total = select(func.sum(table.c.micros)).where(*mine)
    first, last = (
        connection.execute(select(table.c.at).where(*mine).order_by(order).limit(1)).scalar()
        for order in (table.c.at, table.c.at.desc())
    )
    # From the nearer end: most statements are about the recent past, and the others begin with the account.
    if first is None or last is None or moment - first <= last - moment:
        return int(connection.execute(total.where(table.c.at < moment)).scalar() or 0)
    of = tables.balances
    today = select(of.c.micros).where(of.c.tenant == tenant, of.c.currency == currency, of.c.account == account)
    later = connection.execute(total.where(table.c.at >= moment)).scalar()
    return int(connection.execute(today).scalar() or 0) - int(later or 0)


def iterate_lines(
    connection: Connection, tenant: str, asked: Statement, *, page: int = PAGE
) -> Iterator[StatementLine]:
    """The movements of a statement, oldest first, a page at a time; its own lines are not read."""
    table, transfers, contracts = tables.postings, tables.transfers, tables.contracts
    query = (
        select(
            table.c.leaf,
            table.c.micros,
            table.c.at,
            transfers.c.contract_id,
            transfers.c.operation,
            contracts.c.work_id,
            contracts.c.agent_id,
            contracts.c.consumer_id,
        )
        .join(transfers, transfers.c.leaf == table.c.leaf)
        # A contract that was deleted from outside leaves its movements without a counterparty.
        .outerjoin(contracts, (contracts.c.tenant == transfers.c.tenant) & (contracts.c.id == transfers.c.contract_id))
        .where(table.c.tenant == tenant, table.c.account == asked.account, table.c.currency == asked.currency)
        .order_by(table.c.at, table.c.leaf)
    )
    if asked.since is not None:
        query = query.where(table.c.at >= to_micros(asked.since))
    if asked.until is not None:
        query = query.where(table.c.at < to_micros(asked.until))
    balance, rows = asked.opening, connection.execute(query.limit(page)).all()
    while rows:
        names = titles_of(connection, tenant, {row.work_id for row in rows if row.work_id is not None})
        paid = _payments(connection, [row.leaf for row in rows])
        for row in rows:
            balance += row.micros
            fee, net = paid.get(row.leaf, (0, 0))
            yield StatementLine(
                at=from_micros(row.at),
                contract_id=row.contract_id,
                operation=row.operation,
                micros=row.micros,
                balance=balance,
                leaf=row.leaf,
                title=names.get(row.work_id),
                counterparty=_counterparty(asked.account, row.agent_id, row.consumer_id),
                gross=fee + net,
                fee=fee,
                net=net,
            )
        if len(rows) < page:
            return
        place = (rows[-1].at, rows[-1].leaf)
        rows = connection.execute(query.where(tuple_(table.c.at, table.c.leaf) > place).limit(page)).all()


def _payments(connection: Connection, leaves: Sequence[int]) -> dict[int, tuple[int, int]]:
    """What each transfer pays to the platform and to the agent."""
    table, found = tables.postings, dict[int, tuple[int, int]]()
    query = select(table.c.leaf, table.c.account, table.c.micros).where(
        table.c.leaf.in_(leaves), or_(table.c.account == PLATFORM, table.c.account.like(f"{AGENT}%"))
    )
    for leaf, account, micros in connection.execute(query):
        fee, net = found.get(leaf, (0, 0))
        found[leaf] = (fee + micros, net) if account == PLATFORM else (fee, net + micros)
    return found


def _counterparty(account: str, agent_id: str | None, consumer_id: str | None) -> str | None:
    if agent_id is None:
        return None
    return f"{CONSUMER}{consumer_id}" if account.startswith(AGENT) else f"{AGENT}{agent_id}"


class ContractPosting(Record, frozen=True):
    """One posting of a contract."""

    at: datetime
    operation: str
    account: str
    micros: int
    """Above zero for a credit."""
    leaf: int


def postings_of(connection: Connection, tenant: str, contract_id: str) -> list[ContractPosting]:
    """Every posting of a contract, oldest first; debits before credits."""
    table, transfers = tables.postings, tables.transfers
    query = (
        select(transfers.c.at, transfers.c.operation, table.c.account, table.c.micros, table.c.leaf)
        .join(table, table.c.leaf == transfers.c.leaf)
        .where(transfers.c.tenant == tenant, transfers.c.contract_id == contract_id)
        .order_by(table.c.leaf, table.c.micros)
    )
    return [
        ContractPosting(
            at=from_micros(row.at), operation=row.operation, account=row.account, micros=row.micros, leaf=row.leaf
        )
        for row in connection.execute(query)
    ]


def time_of_movement(connection: Connection, tenant: str, asked: Statement, number: int) -> datetime | None:
    """When a movement of a statement happened, counted from 0; None when there are fewer."""
    table = tables.postings
    query = select(table.c.at).where(
        table.c.tenant == tenant, table.c.account == asked.account, table.c.currency == asked.currency
    )
    if asked.since is not None:
        query = query.where(table.c.at >= to_micros(asked.since))
    if asked.until is not None:
        query = query.where(table.c.at < to_micros(asked.until))
    found = connection.execute(query.order_by(table.c.at, table.c.leaf).offset(number).limit(1)).scalar()
    return None if found is None else from_micros(found)


def currencies_of(connection: Connection, tenant: str, account: str) -> list[str]:
    """The currencies in which an account ever moved, in order."""
    table, found = tables.postings, [""]
    query = select(func.min(table.c.currency)).where(table.c.tenant == tenant, table.c.account == account)
    # One step in the index for each, however many movements there are.
    while (following := connection.execute(query.where(table.c.currency > found[-1])).scalar()) is not None:
        found.append(str(following))
    return found[1:]


def require_account(connection: Connection, tenant: str, account: str) -> list[str]:
    """The currencies of an account; raises UnknownAccount for one that no contract has."""
    found = currencies_of(connection, tenant, account)
    if found or account == PLATFORM or _has_contract(connection, tenant, account):
        return found
    near = _nearest_account(connection, tenant, account)
    raise UnknownAccount(
        f"no account {account!r}{near}; an account is {AGENT}ID, {CONSUMER}ID, {ESCROW}CONTRACT_ID or {PLATFORM}, "
        "and `meruit ledger balances` lists them"
    )


def _has_contract(connection: Connection, tenant: str, account: str) -> bool:
    """Whether an account without movements is that of a contract or of its parties."""
    of, (kind, _, name) = tables.contracts.c, account.partition(":")
    column = {AGENT: of.agent_id, CONSUMER: of.consumer_id, ESCROW: of.id}.get(f"{kind}:")
    if column is None:
        return False
    return connection.execute(select(of.id).where(of.tenant == tenant, column == name).limit(1)).first() is not None


def _nearest_account(connection: Connection, tenant: str, account: str) -> str:
    """The account that was probably meant, as a question: one of the same name and another kind, or a similar one."""
    of, name = tables.balances.c, account.rpartition(":")[2]
    same = select(of.account).where(of.tenant == tenant, of.account.in_([f"{kind}{name}" for kind in KINDS])).limit(1)
    found = connection.execute(same).scalar()
    if found is not None:
        return f" (did you mean {found!r}?)"
    others = select(of.account).where(of.tenant == tenant, ~of.account.like(f"{ESCROW}%")).distinct()
    return nearest(account, connection.execute(others.limit(MAX_SIMILAR)).scalars())


class Earnings(Record, frozen=True):
    """What an agent earned on one day in one currency, in millionths; reversals of that day are taken off."""

    day: date
    """UTC, of the payment or the reversal."""
    provider_id: str
    """Who runs the agent; the agent itself where no award named a provider."""
    agent_id: str
    currency: str
    settlements: int
    reversals: int
    gross: int
    """What consumers paid."""
    fee: int
    """The platform's part."""
    net: int
    """The agent's part."""
    reversed: int
    """What of earlier net payments was taken back; at least 0, and taken off already."""


class EarningsFilter(Record, frozen=True):
    """Which earnings are asked for; those fields that are given must all hold."""

    agent_id: str | None = None
    provider_id: str | None = None
    currency: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def sum_earnings(connection: Connection, tenant: str, wanted: EarningsFilter) -> list[Earnings]:
    """What agents earned, by day, provider, agent and currency, in that order; the database sums the postings."""
    transfers, contracts, table = tables.transfers, tables.contracts, tables.postings
    day = (transfers.c.at // DAY_MICROS).label("day")
    provider = func.coalesce(contracts.c.provider_id, contracts.c.agent_id).label("provider")
    to_agent, to_platform = table.c.account.like(f"{AGENT}%"), table.c.account == PLATFORM

    def total(*when: ColumnElement[bool]) -> ColumnElement[int]:
        return func.coalesce(func.sum(case((and_(*when), table.c.micros), else_=0)), 0)

    def count(operations: Sequence[str]) -> ColumnElement[int]:
        return func.count(distinct(case((transfers.c.operation.in_(operations), transfers.c.leaf))))

    keys = (day, provider, contracts.c.agent_id, transfers.c.currency)
    query = (
        select(
            *keys,
            count(PAYING),
            count(REVERSING),
            total(to_platform),
            total(to_agent),
            total(to_agent, table.c.micros < 0),
        )
        .join(contracts, (contracts.c.tenant == transfers.c.tenant) & (contracts.c.id == transfers.c.contract_id))
        .outerjoin(table, (table.c.leaf == transfers.c.leaf) & or_(to_agent, to_platform))
        .where(transfers.c.tenant == tenant, transfers.c.operation.in_((*PAYING, *REVERSING)))
        .group_by(*keys)
        .order_by(*keys)
    )
    if wanted.agent_id is not None:
        query = query.where(contracts.c.agent_id == wanted.agent_id)
    if wanted.provider_id is not None:
        query = query.where(provider == wanted.provider_id)
    if wanted.currency is not None:
        query = query.where(transfers.c.currency == wanted.currency)
    if wanted.since is not None:
        query = query.where(transfers.c.at >= to_micros(wanted.since))
    if wanted.until is not None:
        query = query.where(transfers.c.at < to_micros(wanted.until))
    return [
        Earnings(
            day=date(1970, 1, 1) + timedelta(days=int(row[0])),
            provider_id=row[1],
            agent_id=row[2],
            currency=row[3],
            settlements=int(row[4]),
            reversals=int(row[5]),
            gross=int(row[6]) + int(row[7]),
            fee=int(row[6]),
            net=int(row[7]),
            reversed=-int(row[8]),
        )
        for row in connection.execute(query)
    ]


def books(connection: Connection, tenant: str) -> Books:
    """Read everything that is recorded about a tenant's money, for the invariants."""
    of = tables.balances
    stored = {
        (row.currency, row.account): row.micros for row in connection.execute(select(of).where(of.c.tenant == tenant))
    }
    contracts = [
        contract_from(row)
        for row in connection.execute(select(tables.contracts).where(tables.contracts.c.tenant == tenant))
    ]
    of_moves = tables.contract_transitions
    moves = frozenset(
        (row.contract_id, row.operation, row.number)
        for row in connection.execute(select(of_moves).where(of_moves.c.tenant == tenant))
    )
    verdicts, logged = set(), []
    settled: dict[tuple[str, int], tuple[Posting, ...]] = {}
    parties: dict[str, Parties] = {}
    terms: dict[str, str] = {}
    bills: dict[tuple[str, int], str] = {}
    for index, body in _leaves(connection, tenant):
        entry = read_entry(body)
        if isinstance(entry, VerdictEntry):
            verdicts.add((entry.outcome, entry.version))
        elif isinstance(entry, MoneyEntry):
            if isinstance(entry, AwardEntry):
                parties[entry.contract] = Parties(
                    contract_id=entry.contract, consumer_id=entry.consumer, agent_id=entry.agent
                )
                terms[entry.contract] = entry.terms
            elif isinstance(entry, SettlementEntry):
                bills[entry.contract, entry.number] = entry.bill
            # The first entry of a contract is its award; without it, the accounts are unknown.
            between = parties.get(entry.contract, Parties(contract_id=entry.contract, consumer_id="", agent_id=""))
            logged.append(transfer_from_entry(index, entry, between, settled))
    return Books(
        balances=stored,
        transfers=_transfers(connection, tenant),
        contracts=contracts,
        settlements=_settlements(connection, tenant),
        verdicts=frozenset(verdicts),
        operations=moves,
        logged=logged,
        terms=terms,
        bills=bills,
    )


def _leaves(connection: Connection, tenant: str) -> Iterator[tuple[int, bytes]]:
    table, after = tables.log_leaves, -1
    while True:
        query = select(table.c.seq, table.c.body).where(table.c.tenant == tenant, table.c.seq > after)
        page = connection.execute(query.order_by(table.c.seq).limit(PAGE)).all()
        yield from ((row.seq, row.body) for row in page)
        if len(page) < PAGE:
            return
        after = page[-1].seq


def _transfers(connection: Connection, tenant: str) -> list[Transfer]:
    of = tables.postings
    postings: dict[int, list[Posting]] = {}
    for row in connection.execute(select(of).where(of.c.tenant == tenant)):
        postings.setdefault(row.leaf, []).append(Posting(row.account, row.micros))
    table = tables.transfers
    rows = connection.execute(select(table).where(table.c.tenant == tenant).order_by(table.c.leaf))
    return [
        Transfer(
            leaf=row.leaf,
            contract_id=row.contract_id,
            operation=row.operation,
            number=row.number,
            currency=row.currency,
            postings=tuple(sorted(postings.get(row.leaf, ()))),
        )
        for row in rows
    ]


def _settlements(connection: Connection, tenant: str) -> Sequence[Settlement]:
    table = tables.settlements
    rows = connection.execute(select(table).where(table.c.tenant == tenant))
    return [
        Settlement(
            contract_id=row.contract_id,
            number=row.number,
            outcome_id=row.outcome_id,
            version=row.version,
            bill=_bill(row.contract_id, row.bill),
            leaf=row.leaf,
            digest=sha256(row.bill).hexdigest(),
        )
        for row in rows
    ]


def _bill(contract_id: str, body: bytes) -> Bill:
    try:
        return Bill.from_json(body)
    except msgspec.DecodeError:
        raise StoreError(f"a bill of {contract_id} cannot be read: the database was changed from outside") from None
