"""Lists of contracts, holds, balances, statements and earnings as rows of CSV.

The first column says what a row is: an entry, or a `total` of one currency at the end. Amounts are exact decimal text.
"""

from collections.abc import Iterable, Iterator, Mapping

from meruit.contracts.store.ledger import Balance, Earnings, Statement, StatementLine
from meruit.contracts.store.read import ContractSnapshot
from meruit.documents.csv_table import Cell
from meruit.model.contract import OPEN, AgentContract
from meruit.model.money import TOTAL, CurrencyTotals
from meruit.model.numbers import in_units

CONTRACT_HEADINGS = (
    *("record", "contract_id", "awarded_at", "completed_at", "settled_at", "title", "work_id"),
    *("agent_id", "provider_id", "consumer_id", "domain", "state", "escrow", "verdict", "score"),
    *("currency", "held", "gross", "fee", "net", "hold_reason"),
)
"""Held is what is in escrow now, gross what was paid, net the agent's part of it."""
HOLD_HEADINGS = (
    *("record", "contract_id", "state", "since", "by", "title", "work_id", "agent_id", "provider_id", "consumer_id"),
    *("currency", "held", "gross", "fee", "net", "reason"),
)
AGENT_CONTRACT_HEADINGS = (
    *("contract_id", "awarded_at", "completed_at", "settled_at", "work_id", "state", "verdict", "score"),
    *("currency", "gross", "fee", "net"),
)
"""The columns that an agent sees of its own contracts."""
BALANCE_HEADINGS = ("account", "currency", "balance")
STATEMENT_HEADINGS = (
    *("record", "at", "account", "currency", "contract_id", "title", "counterparty", "operation"),
    *("gross", "fee", "net", "amount", "balance", "leaf"),
)
"""Gross, fee and net are what the movement pays; amount is what it changes on the account."""
EARNINGS_HEADINGS = (
    *("record", "day", "provider_id", "agent_id", "currency", "settlements", "reversals"),
    *("gross", "fee", "net", "reversed"),
)


def contract_rows(found: Iterable[ContractSnapshot], titles: Mapping[str, str]) -> Iterator[tuple[Cell, ...]]:
    """One row a contract, then the totals; `titles` may grow while the rows are read."""
    totals = CurrencyTotals()
    for one in found:
        contract = one.contract
        result = None if one.judgement is None else one.judgement.result
        yield (
            *("contract", contract.id, contract.awarded_at, contract.completed_at, contract.settled_at),
            *(titles.get(contract.work_id), contract.work_id, contract.agent_id, contract.provider_id),
            *(contract.consumer_id, contract.domain, str(contract.state), str(contract.escrow)),
            *((None, None) if result is None else (str(result.verdict), result.score)),
            *(contract.currency, *totals.add(contract.currency, *_money(one)), contract.hold_reason),
        )
    for currency, sums in totals:
        yield (TOTAL, *(None,) * 14, currency, *sums, None)


def hold_rows(found: Iterable[ContractSnapshot], titles: Mapping[str, str]) -> Iterator[tuple[Cell, ...]]:
    """One row a held or disputed contract, then the totals."""
    totals = CurrencyTotals()
    for one in found:
        contract, hold = one.contract, one.on_hold
        if hold is None:
            continue
        yield (
            *("hold", contract.id, str(hold.kind), hold.since, hold.by),
            *(titles.get(contract.work_id), contract.work_id, contract.agent_id, contract.provider_id),
            *(contract.consumer_id, contract.currency, *totals.add(contract.currency, *_money(one)), hold.reason),
        )
    for currency, sums in totals:
        yield (TOTAL, *(None,) * 9, currency, *sums, None)


def _money(one: ContractSnapshot) -> tuple[int, int, int, int]:
    """What is in escrow, and gross, fee and net of what was paid."""
    held = one.contract.hold_micros if one.contract.escrow in OPEN else 0
    bill = one.bill
    return (held, 0, 0, 0) if bill is None else (held, bill.total, bill.fee, bill.payout)


def agent_contract_cells(one: AgentContract) -> tuple[Cell, ...]:
    """The row of a contract as its agent sees it."""
    return (
        *(one.id, one.awarded_at, one.completed_at, one.settled_at, one.work_id, str(one.state)),
        *(None if one.verdict is None else str(one.verdict), one.score),
        *(one.currency, one.total, one.fee, one.payout),
    )


def balance_cells(one: Balance) -> tuple[Cell, ...]:
    """The row of an account; without a total, because the balances of a currency sum to zero."""
    return one.account, one.currency, in_units(one.micros)


def statement_rows(found: Statement, lines: Iterable[StatementLine]) -> Iterator[tuple[Cell, ...]]:
    """The opening balance, one row a movement, and the total with the closing balance."""
    where = (found.account, found.currency)
    yield ("opening", found.since, *where, *(None,) * 8, in_units(found.opening), None)
    totals, closing = CurrencyTotals(), found.opening
    for line in lines:
        closing = line.balance
        yield (
            *("line", line.at, *where, line.contract_id, line.title, line.counterparty, line.operation),
            *totals.add(found.currency, line.gross, line.fee, line.net, line.micros),
            *(in_units(line.balance), line.leaf),
        )
    sums = next((sums for _, sums in totals), ("0",) * 4)
    yield (TOTAL, found.until, *where, *(None,) * 4, *sums, in_units(closing), None)


def earnings_rows(found: Iterable[Earnings]) -> Iterator[tuple[Cell, ...]]:
    """One row a day, provider, agent and currency, then the totals."""
    totals = CurrencyTotals()
    for one in found:
        yield (
            *("day", one.day.isoformat(), one.provider_id, one.agent_id, one.currency, one.settlements, one.reversals),
            *totals.add(one.currency, one.gross, one.fee, one.net, one.reversed),
        )
    for currency, sums in totals:
        yield (TOTAL, None, None, None, currency, None, None, *sums)
