"""What must hold of the books after every step: one function each, for tests, crash harness and auditors alike."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import NamedTuple

from meruit.contracts.postings import Parties, Posting, hold, release, reverse, settle
from meruit.model.contract import OPEN, Contract, ContractState, Escrow
from meruit.model.money import Bill


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
    digest: str
    """SHA-256 of the bill as it is kept."""


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
    operations: frozenset[tuple[str, str, int]]
    """Contract, operation and number of what was done, each of which answers a second request."""
    logged: Sequence[Transfer]
    """The transfers as the audit log tells them."""
    terms: Mapping[str, str]
    """By contract, the digest of its terms that the log tells."""
    bills: Mapping[tuple[str, int], str]
    """By contract and number of the settlement, the digest of its bill that the log tells."""


def amounts_are_whole(books: Books) -> Iterator[str]:
    """Every amount is a whole number of millionths."""
    amounts = [
        *((f"the balance of {account} in {currency}", found) for (currency, account), found in books.balances.items()),
        *((f"the hold of {one.id}", one.hold_micros) for one in books.contracts),
        *((f"what {one.id} says that is paid", one.total_micros) for one in books.contracts),
        *(
            (f"the {one.operation} of {one.contract_id} on {account}", micros)
            for one in books.transfers
            for account, micros in one.postings
        ),
    ]
    yield from (f"{what} is {found!r}, no whole number" for what, found in amounts if type(found) is not int)


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


def payments_stay_within_hold(books: Books) -> Iterator[str]:
    """Nobody is paid less than nothing, or more than was held; the rest is released, and the contract says so."""
    holds = {contract.id: contract.hold_micros for contract in books.contracts}
    for one in books.settlements:
        bill, most = one.bill, holds.get(one.contract_id)
        if most is None:
            yield f"settlement {one.number} of {one.contract_id} is of no contract"
        elif not 0 <= bill.total <= most:
            yield f"settlement {one.number} of {one.contract_id} pays {bill.total}"
        elif bill.total + bill.released != most:
            done = f"pays {bill.total} and releases {bill.released} of {most}"
            yield f"settlement {one.number} of {one.contract_id} {done}"
    totals = {(one.contract_id, one.number): one.bill.total for one in books.settlements}
    for contract in books.contracts:
        paid = totals.get((contract.id, contract.settlement), 0)
        if contract.total_micros != paid:
            yield f"{contract.id} says that {contract.total_micros} is paid, its settlements say {paid}"


def one_live_settlement(books: Books) -> Iterator[str]:
    """At most one settlement of a contract is live; each is reversed at most once, and by exactly what it paid."""
    yield from _duplicate_settlements(books)
    settles, reverses = (
        {(one.contract_id, one.number): one for one in books.transfers if one.operation == operation}
        for operation in ("settle", "reverse")
    )
    for key, one in reverses.items():
        if key not in settles or sorted(reverse(settles[key].postings)) != sorted(one.postings):
            yield f"a reversal of {one.contract_id} is of something that was not paid"
    live: dict[str, list[int]] = {}
    for contract_id, number in settles.keys() - reverses.keys():
        live.setdefault(contract_id, []).append(number)
    for contract in books.contracts:
        found, paid = sorted(live.get(contract.id, [])), contract.escrow is Escrow.PAID
        if found != ([contract.settlement] if paid else []) or bool(contract.settlement) != paid:
            numbers = ", ".join(map(str, found)) or "none"
            told = f"has the live settlements {numbers}, and goes by {contract.settlement}"
            yield f"{contract.id}, {contract.escrow}, {told}"
        if contract.state is ContractState.SETTLED and not paid:
            yield f"{contract.id} is settled, and nothing is paid"


def _duplicate_settlements(books: Books) -> Iterator[str]:
    """Settlements and reversals that stand there more than once."""
    words = {"settle": "made", "reverse": "reversed"}
    times = Counter((one.operation, one.contract_id, one.number) for one in books.transfers if one.operation in words)
    for (operation, contract_id, number), count in times.items():
        if count > 1:
            yield f"settlement {number} of {contract_id} is {words[operation]} twice"


def transfers_have_grounds(books: Books) -> Iterator[str]:
    """Every transfer moves what its contract or bill says, and has its verdict and the row that answers a second."""
    contracts = {contract.id: contract for contract in books.contracts}
    grounds = {(one.contract_id, one.number): one for one in books.settlements}
    for one in books.transfers:
        contract, ground = contracts.get(one.contract_id), grounds.get((one.contract_id, one.number))
        if contract is None:
            yield f"the {one.operation} of {one.contract_id} is of no contract"
        elif one.operation == "settle":
            if ground is None or (ground.outcome_id, ground.version) not in books.verdicts:
                yield f"settlement {one.number} of {one.contract_id} has no verdict"
            elif sorted(one.postings) != sorted(settle(_parties(contract), ground.bill)):
                yield f"settlement {one.number} of {one.contract_id} moves something else than its bill"
        elif one.operation != "reverse":
            agreed = hold if one.operation == "hold" else release
            if sorted(one.postings) != sorted(agreed(_parties(contract), contract.hold_micros)):
                yield f"the {one.operation} of {one.contract_id} moves something else than was held"
        if not any((one.contract_id, move, number) in books.operations for move, number in _operations_behind(one)):
            yield f"the {one.operation} of {one.contract_id} has no row that answers a second request"


def _parties(contract: Contract) -> Parties:
    return Parties(contract.id, contract.consumer_id, contract.agent_id)


def _operations_behind(transfer: Transfer) -> list[tuple[str, int]]:
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
            bill.base + bill.bonus - bill.penalty + bill.tokens,
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


def documents_are_those_logged(books: Books) -> Iterator[str]:
    """Terms and bills are, to the byte, those that the log commits to."""
    for contract in books.contracts:
        if books.terms.get(contract.id) != sha256(contract.terms).hexdigest():
            yield f"the terms of {contract.id} are not those that the log tells"
    for one in books.settlements:
        if books.bills.get((one.contract_id, one.number)) != one.digest:
            yield f"the bill of settlement {one.number} of {one.contract_id} is not the one that the log tells"


def states_fit_the_money(books: Books) -> Iterator[str]:
    """A contract's state says of its money and its outcome what is recorded of them."""
    for contract in books.contracts:
        handed_in = contract.outcome_id is not None
        if (contract.escrow, handed_in) not in _consistent_escrows(contract):
            told = f"its escrow is {contract.escrow}, {'with an' if handed_in else 'without an'} outcome"
            yield f"{contract.id} is {contract.state}, and {told}"


def _consistent_escrows(contract: Contract) -> set[tuple[Escrow, bool]]:
    """Where the money may be, and whether there is an outcome."""
    match contract.state:
        case ContractState.AWARDED | ContractState.EXECUTING:
            return {(Escrow.HELD, False)}
        case ContractState.VERIFICATION_PENDING | ContractState.VERIFIED:
            return {(Escrow.HELD, True)}
        case ContractState.FAILED:
            # Called off, with an output or before there was one; or judged, and not paid yet.
            return {(Escrow.HELD, True), (Escrow.RELEASED, True), (Escrow.RELEASED, False)}
        case ContractState.SETTLED:
            return {(Escrow.PAID, True)}
        case ContractState.EXPIRED:
            return {(Escrow.RELEASED, False)}
        case ContractState.DISPUTED:
            return {(Escrow.PAID if contract.disputed_from is ContractState.SETTLED else Escrow.FROZEN, True)}


INVARIANTS: tuple[Callable[[Books], Iterator[str]], ...] = (
    amounts_are_whole,
    balances_sum_to_zero,
    transfers_sum_to_zero,
    escrow_is_whole_or_empty,
    payments_stay_within_hold,
    one_live_settlement,
    transfers_have_grounds,
    lines_sum_to_total,
    replaying_gives_the_balances,
    documents_are_those_logged,
    states_fit_the_money,
)


def find_violations(books: Books) -> list[str]:
    """Every violation, a sentence each; none in sound books."""
    found: list[str] = []
    for rule in INVARIANTS:
        found += [f"{rule.__name__}: {what}" for what in rule(books)]
        if found and rule is amounts_are_whole:
            # With what is no number nothing else can be computed.
            break
    return found
