"""What must hold of the books after every step: one function each, for tests, crash harness and auditors alike."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from meruit.model.contract import OPEN, Contract, ContractState, Escrow
from meruit.model.money import Bill
from meruit.money.ledger import Posting


class Transfer(NamedTuple):
    """Money that moved, as it is recorded."""

    leaf: int
    """Its entry in the audit log, hence its place among all."""
    contract_id: str
    operation: str
    """hold, settle, release or reverse."""
    number: int
    """Of the settlement that it makes or reverses; 0 for others."""
    currency: str
    postings: tuple[Posting, ...]


class Settlement(NamedTuple):
    """A bill that was paid."""

    contract_id: str
    number: int
    outcome_id: str
    version: int
    bill: Bill
    leaf: int


class Books(NamedTuple):
    """All that is recorded about money, of one tenant or one contract."""

    balances: Mapping[tuple[str, str], int]
    """By currency and account."""
    transfers: Sequence[Transfer]
    """In the order of the log."""
    contracts: Sequence[Contract]
    settlements: Sequence[Settlement]
    verdicts: frozenset[tuple[str, int]]
    """Outcome and version of every verdict in the log."""
    moves: frozenset[tuple[str, str, int]]
    """Contract, operation and number of what was done, each of which answers a second request."""
    logged: Sequence[Transfer]
    """The transfers as the audit log tells them."""


def balances_sum_to_zero(books: Books) -> Iterator[str]:
    """All balances of a currency sum to zero."""
    sums: Counter[str] = Counter()
    for (currency, _), micros in books.balances.items():
        sums[currency] += micros
    yield from (f"the balances in {currency} sum to {micros}" for currency, micros in sums.items() if micros)


def transfers_sum_to_zero(books: Books) -> Iterator[str]:
    """No transfer makes or loses money."""
    for transfer in books.transfers:
        if rest := sum(posting.micros for posting in transfer.postings):
            yield f"the {transfer.operation} of {transfer.contract_id} leaves {rest}"


def escrow_is_whole_or_empty(books: Books) -> Iterator[str]:
    """Escrow is never negative, equal to the hold while the contract is open, and zero after."""
    for contract in books.contracts:
        kept = books.balances.get((contract.currency, f"escrow:{contract.id}"), 0)
        expected = contract.hold_micros if contract.escrow in OPEN else 0
        if kept < 0 or kept != expected:
            yield f"the escrow of {contract.id}, {contract.escrow}, holds {kept}, not {expected}"


def paid_within_hold(books: Books) -> Iterator[str]:
    """Nobody is paid less than nothing, or more than was held."""
    holds = {contract.id: contract.hold_micros for contract in books.contracts}
    for one in books.settlements:
        if not 0 <= one.bill.total <= holds.get(one.contract_id, -1):
            yield f"settlement {one.number} of {one.contract_id} pays {one.bill.total}"


def one_live_settlement(books: Books) -> Iterator[str]:
    """At most one settlement of a contract is live; each is reversed at most once, and by exactly what it paid."""
    settles = {(one.contract_id, one.number): one for one in books.transfers if one.operation == "settle"}
    reverses: dict[tuple[str, int], Transfer] = {}
    for one in books.transfers:
        if one.operation != "reverse":
            continue
        key = (one.contract_id, one.number)
        if key in reverses:
            yield f"settlement {one.number} of {one.contract_id} is reversed twice"
        reverses[key] = one
        made = settles.get(key)
        if made is None or Counter(dict(made.postings)) != Counter({a: -m for a, m in one.postings}):
            yield f"a reversal of {one.contract_id} is of something that was not paid"
    live: Counter[str] = Counter(contract for contract, number in settles if (contract, number) not in reverses)
    for contract in books.contracts:
        expected = 1 if contract.escrow is Escrow.PAID else 0
        if live[contract.id] != expected or bool(contract.settlement) != bool(expected):
            yield f"{contract.id}, {contract.escrow}, has {live[contract.id]} live settlements"
        if contract.state is ContractState.SETTLED and not expected:
            yield f"{contract.id} is settled, and nothing is paid"


def transfers_have_grounds(books: Books) -> Iterator[str]:
    """Every settlement has its verdict in the log, and every transfer the row that answers a second request."""
    grounds = {(one.contract_id, one.number): one for one in books.settlements}
    for one in books.transfers:
        if one.operation == "settle":
            bill = grounds.get((one.contract_id, one.number))
            if bill is None or (bill.outcome_id, bill.version) not in books.verdicts:
                yield f"settlement {one.number} of {one.contract_id} has no verdict"
        if not any((one.contract_id, move, number) in books.moves for move, number in _moves(one)):
            yield f"the {one.operation} of {one.contract_id} has no row that answers a second request"


def _moves(transfer: Transfer) -> list[tuple[str, int]]:
    """What may have moved the money."""
    number = transfer.number
    match transfer.operation:
        case "hold":
            return [("award", 0)]
        case "settle":
            return [("settle", number)]
        case "reverse":
            return [("reverse", number)]
        case _:
            return [("void", 0), ("expire", 0)]


def lines_sum_to_total(books: Books) -> Iterator[str]:
    """The lines of a bill sum to its total, and so do its parts, and where the money goes."""
    for one in books.settlements:
        bill = one.bill
        sums = {
            sum(line.micros for line in bill.lines),
            bill.base + bill.bonus - bill.penalty,
            bill.fee + bill.payout,
            bill.total,
        }
        if len(sums) > 1:
            yield f"settlement {one.number} of {one.contract_id} does not add up: {sorted(sums)}"


def replaying_gives_the_balances(books: Books) -> Iterator[str]:
    """What the log tells, replayed, gives the transfers and the balances that are recorded."""
    for told, recorded in zip(books.logged, books.transfers, strict=False):
        if told != recorded._replace(postings=tuple(sorted(recorded.postings))):
            yield f"the log tells another {told.operation} of {told.contract_id} at {told.leaf}"
    if len(books.logged) != len(books.transfers):
        yield f"the log tells of {len(books.logged)} transfers, there are {len(books.transfers)}"
    replayed: Counter[tuple[str, str]] = Counter()
    for transfer in books.logged:
        for account, micros in transfer.postings:
            replayed[transfer.currency, account] += micros
    for key in replayed.keys() | books.balances.keys():
        if replayed[key] != books.balances.get(key, 0):
            yield f"the balance of {key[1]} in {key[0]} is {books.balances.get(key, 0)}, the log gives {replayed[key]}"


INVARIANTS: tuple[Callable[[Books], Iterator[str]], ...] = (
    balances_sum_to_zero,
    transfers_sum_to_zero,
    escrow_is_whole_or_empty,
    paid_within_hold,
    one_live_settlement,
    transfers_have_grounds,
    lines_sum_to_total,
    replaying_gives_the_balances,
)


def broken(books: Books) -> list[str]:
    """Every violation, a sentence each; none in sound books."""
    return [f"{rule.__name__}: {what}" for rule in INVARIANTS for what in rule(books)]
