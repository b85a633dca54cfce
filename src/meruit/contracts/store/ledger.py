"""The ledger: write transfers and balances; read balances, statements and everything that invariants need."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import msgspec
from sqlalchemy import Connection, func, select

from meruit.contracts.invariants import Books, Settlement, Transfer
from meruit.contracts.postings import Parties, Posting
from meruit.contracts.replay import transfer_from_entry
from meruit.contracts.store.read import contract_from
from meruit.errors import StoreError
from meruit.log.entries import AwardEntry, MoneyEntry, SettlementEntry, VerdictEntry, read_entry
from meruit.model.contract import Contract
from meruit.model.money import Bill
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.transaction import MergeRule, WriteTransaction

MAX_LINES = 1_000_000
"""Most lines of one statement."""
PAGE = 2_000


class Movement(NamedTuple):
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
    return Parties(contract.id, contract.consumer_id, contract.agent_id)


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
    table = tables.balances
    query = select(table).where(table.c.tenant == tenant)
    if escrows:
        found = connection.execute(query.order_by(table.c.currency, table.c.account))
        return [Balance(row.account, row.currency, row.micros) for row in found]
    query = query.where(~table.c.account.like("escrow:%")).order_by(table.c.currency, table.c.account)
    rows = connection.execute(query)
    known = [Balance(row.account, row.currency, row.micros) for row in rows]
    # Transfers sum to zero, so what the other accounts lack is in escrow.
    sums: dict[str, int] = {}
    for one in known:
        sums[one.currency] = sums.get(one.currency, 0) - one.micros
    return [*known, *(Balance("escrow", currency, micros) for currency, micros in sorted(sums.items()))]


def statement(
    connection: Connection,
    tenant: str,
    account: str,
    currency: str,
    since: datetime | None = None,
    until: datetime | None = None,
) -> Statement:
    """The movements on an account from `since` to before `until`."""
    table, transfers = tables.postings, tables.transfers
    mine = (table.c.tenant == tenant, table.c.account == account, table.c.currency == currency)
    inside = [table.c.at >= to_micros(since)] if since is not None else []
    inside += [table.c.at < to_micros(until)] if until is not None else []
    opening = 0
    if since is not None:
        # Computed backwards from the current balance: most statements are about the recent past.
        of = tables.balances
        today = select(of.c.micros).where(of.c.tenant == tenant, of.c.currency == currency, of.c.account == account)
        later = select(func.sum(table.c.micros)).where(*mine, table.c.at >= to_micros(since))
        opening = int(connection.execute(today).scalar() or 0) - int(connection.execute(later).scalar() or 0)
    query = (
        select(table.c.leaf, table.c.micros, table.c.at, transfers.c.contract_id, transfers.c.operation)
        .join(transfers, transfers.c.leaf == table.c.leaf)
        .where(*mine, *inside)
        .order_by(table.c.at, table.c.leaf)
        .limit(MAX_LINES)
    )
    lines, balance = [], opening
    for row in connection.execute(query):
        balance += row.micros
        lines.append(StatementLine(from_micros(row.at), row.contract_id, row.operation, row.micros, balance, row.leaf))
    return Statement(account, currency, since, until, opening, balance, lines)


def books(connection: Connection, tenant: str) -> Books:
    """Read everything that is recorded about a tenant's money, for the invariants."""
    of = tables.balances
    kept = {
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
                parties[entry.contract] = Parties(entry.contract, entry.consumer, entry.agent)
                terms[entry.contract] = entry.terms
            elif isinstance(entry, SettlementEntry):
                bills[entry.contract, entry.number] = entry.bill
            # The first entry of a contract is its award; without it, the accounts are unknown.
            between = parties.get(entry.contract, Parties(entry.contract, "", ""))
            logged.append(transfer_from_entry(index, entry, between, settled))
    return Books(
        balances=kept,
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
            *(row.leaf, row.contract_id, row.operation, row.number, row.currency),
            tuple(sorted(postings.get(row.leaf, ()))),
        )
        for row in rows
    ]


def _settlements(connection: Connection, tenant: str) -> Sequence[Settlement]:
    table = tables.settlements
    rows = connection.execute(select(table).where(table.c.tenant == tenant))
    return [
        Settlement(
            *(row.contract_id, row.number, row.outcome_id, row.version, _bill(row.contract_id, row.bill), row.leaf),
            sha256(row.bill).hexdigest(),
        )
        for row in rows
    ]


def _bill(contract_id: str, kept: bytes) -> Bill:
    try:
        return Bill.from_json(kept)
    except msgspec.DecodeError:
        raise StoreError(f"a bill of {contract_id} cannot be read: the database was changed from outside") from None
