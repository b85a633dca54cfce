"""The invariants of the ledger, one function each; tests, fault tests and auditors use the same ones."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256

import msgspec

from meruit.contracts.postings import Parties, Posting, hold, release, reverse, settle
from meruit.model.contract import OPEN, Contract, ContractState, Escrow
from meruit.model.money import Bill


class Transfer(msgspec.Struct, frozen=True):
    """A recorded movement of money."""

    leaf: int
    """Its index in the audit log, which orders all transfers."""
    contract_id: str
    operation: str
    """hold, settle, release or reverse."""
    number: int
    """The settlement that it makes or reverses; 0 for other operations."""
    currency: str
    postings: tuple[Posting, ...]


class Settlement(msgspec.Struct, frozen=True):
    """A paid bill."""

    contract_id: str
    number: int
    outcome_id: str
    version: int
    bill: Bill
    leaf: int
    digest: str
    """SHA-256 of the stored bill."""


class Books(msgspec.Struct, frozen=True):
    """Everything that is recorded about the money of one tenant or one contract."""

    balances: Mapping[tuple[str, str], int]
    """By currency and account."""
    transfers: Sequence[Transfer]
    """In the order of the log."""
    contracts: Sequence[Contract]
    settlements: Sequence[Settlement]
    verdicts: frozenset[tuple[str, int]]
    """Outcome and version of every verdict in the log."""
    operations: frozenset[tuple[str, str, int]]
    """Contract, operation and number of each recorded operation; a repeated request is answered from them."""
    logged: Sequence[Transfer]
    """The transfers as the audit log records them."""
    terms: Mapping[str, str]
    """By contract: the digest of its terms in the log."""
    bills: Mapping[tuple[str, int], str]
    """By contract and number of the settlement: the digest of its bill in the log."""


def amounts_are_whole(books: Books) -> Iterator[str]:
    """Every amount is a whole number of millionths."""
    amounts = [
        *((f"the balance of {account} in {currency}", found) for (currency, account), found in books.balances.items()),
        *((f"the hold of {one.id}", one.hold_micros) for one in books.contracts),
        *((f"the recorded total of {one.id}", one.total_micros) for one in books.contracts),
        *(
            (f"the {one.operation} of {one.contract_id} on {account}", micros)
            for one in books.transfers
            for account, micros in one.postings
        ),
    ]
    yield from (
        f"{what} is {found!r}, which is not a whole number" for what, found in amounts if type(found) is not int
    )


def balances_sum_to_zero(books: Books) -> Iterator[str]:
    """All balances of a currency sum to zero."""
    sums: Counter[str] = Counter()
    for (currency, _), micros in books.balances.items():
        sums[currency] += micros
    yield from (f"the balances in {currency} sum to {micros}" for currency, micros in sums.items() if micros)


def transfers_sum_to_zero(books: Books) -> Iterator[str]:
    """The postings of each transfer sum to zero."""
    for transfer in books.transfers:
        if rest := sum(posting.micros for posting in transfer.postings):
            yield f"the {transfer.operation} of {transfer.contract_id} sums to {rest}"


def escrow_is_whole_or_empty(books: Books) -> Iterator[str]:
    """The escrow of a contract is its whole hold while the contract is open, and zero afterwards."""
    for contract in books.contracts:
        balance = books.balances.get((contract.currency, f"escrow:{contract.id}"), 0)
        expected = contract.hold_micros if contract.escrow in OPEN else 0
        if balance < 0 or balance != expected:
            yield f"the escrow of {contract.id} ({contract.escrow}) has {balance}, not {expected}"


def payments_stay_within_hold(books: Books) -> Iterator[str]:
    """A payment is between zero and the hold; the rest is released, and the contract records the total."""
    holds = {contract.id: contract.hold_micros for contract in books.contracts}
    for one in books.settlements:
        bill, most = one.bill, holds.get(one.contract_id)
        if most is None:
            yield f"settlement {one.number} of {one.contract_id} has no contract"
        elif not 0 <= bill.total <= most:
            yield f"settlement {one.number} of {one.contract_id} pays {bill.total}"
        elif bill.total + bill.released != most:
            done = f"pays {bill.total} and releases {bill.released} of {most}"
            yield f"settlement {one.number} of {one.contract_id} {done}"
    totals = {(one.contract_id, one.number): one.bill.total for one in books.settlements}
    for contract in books.contracts:
        paid = totals.get((contract.id, contract.settlement), 0)
        if contract.total_micros != paid:
            yield f"{contract.id} records a total of {contract.total_micros}, its settlement pays {paid}"


def one_live_settlement(books: Books) -> Iterator[str]:
    """At most one settlement of a contract is live; each is reversed at most once, and in full."""
    yield from _duplicate_settlements(books)
    settles, reverses = (
        {(one.contract_id, one.number): one for one in books.transfers if one.operation == operation}
        for operation in ("settle", "reverse")
    )
    for key, one in reverses.items():
        if key not in settles or sorted(reverse(settles[key].postings)) != sorted(one.postings):
            yield f"a reversal of {one.contract_id} does not match a payment"
    live: dict[str, list[int]] = {}
    for contract_id, number in settles.keys() - reverses.keys():
        live.setdefault(contract_id, []).append(number)
    for contract in books.contracts:
        found, paid = sorted(live.get(contract.id, [])), contract.escrow is Escrow.PAID
        if found != ([contract.settlement] if paid else []) or bool(contract.settlement) != paid:
            numbers = ", ".join(map(str, found)) or "none"
            live_ones = f"has the live settlements {numbers}, and records {contract.settlement}"
            yield f"{contract.id} ({contract.escrow}) {live_ones}"
        if contract.state is ContractState.SETTLED and not paid:
            yield f"{contract.id} is settled without a payment"


def _duplicate_settlements(books: Books) -> Iterator[str]:
    """Settlements and reversals that are recorded more than once."""
    words = {"settle": "made", "reverse": "reversed"}
    times = Counter((one.operation, one.contract_id, one.number) for one in books.transfers if one.operation in words)
    for (operation, contract_id, number), count in times.items():
        if count > 1:
            yield f"settlement {number} of {contract_id} is {words[operation]} twice"


def transfers_have_grounds(books: Books) -> Iterator[str]:
    """Each transfer moves what its contract or bill says, and has its verdict and its recorded operation."""
    contracts = {contract.id: contract for contract in books.contracts}
    grounds = {(one.contract_id, one.number): one for one in books.settlements}
    for one in books.transfers:
        contract, ground = contracts.get(one.contract_id), grounds.get((one.contract_id, one.number))
        if contract is None:
            yield f"the {one.operation} of {one.contract_id} has no contract"
        elif one.operation == "settle":
            if ground is None or (ground.outcome_id, ground.version) not in books.verdicts:
                yield f"settlement {one.number} of {one.contract_id} has no verdict"
            elif sorted(one.postings) != sorted(settle(_parties(contract), ground.bill)):
                yield f"settlement {one.number} of {one.contract_id} does not move what its bill says"
        elif one.operation != "reverse":
            agreed = hold if one.operation == "hold" else release
            if sorted(one.postings) != sorted(agreed(_parties(contract), contract.hold_micros)):
                yield f"the {one.operation} of {one.contract_id} does not move the amount of the hold"
        if not any((one.contract_id, move, number) in books.operations for move, number in _operations_behind(one)):
            yield f"the {one.operation} of {one.contract_id} has no recorded operation"


def _parties(contract: Contract) -> Parties:
    return Parties(contract_id=contract.id, consumer_id=contract.consumer_id, agent_id=contract.agent_id)


def _operations_behind(transfer: Transfer) -> list[tuple[str, int]]:
    """The operations that may have made the transfer."""
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
    """The lines of a bill sum to its total; so do its parts, and fee and payout."""
    for one in books.settlements:
        bill = one.bill
        sums = {
            sum(line.micros for line in bill.lines),
            bill.base + bill.bonus - bill.penalty + bill.tokens + bill.adjustment,
            bill.fee + bill.payout,
            bill.total,
        }
        if len(sums) > 1:
            yield f"settlement {one.number} of {one.contract_id} does not add up: {sorted(sums)}"


def replaying_gives_the_balances(books: Books) -> Iterator[str]:
    """Replaying the log gives the recorded transfers and balances."""
    for logged, recorded in zip(books.logged, books.transfers, strict=False):
        if logged != msgspec.structs.replace(recorded, postings=tuple(sorted(recorded.postings))):
            yield f"the log has another {logged.operation} of {logged.contract_id} at {logged.leaf}"
    if len(books.logged) != len(books.transfers):
        yield f"the log has {len(books.logged)} transfers, {len(books.transfers)} are recorded"
    replayed: Counter[tuple[str, str]] = Counter()
    for transfer in books.logged:
        for account, micros in transfer.postings:
            replayed[transfer.currency, account] += micros
    for key in replayed.keys() | books.balances.keys():
        if replayed[key] != books.balances.get(key, 0):
            yield f"the balance of {key[1]} in {key[0]} is {books.balances.get(key, 0)}, the log gives {replayed[key]}"


def documents_are_those_logged(books: Books) -> Iterator[str]:
    """Terms and bills are exactly those that the log commits to."""
    for contract in books.contracts:
        if books.terms.get(contract.id) != sha256(contract.terms).hexdigest():
            yield f"the terms of {contract.id} are not those in the log"
    for one in books.settlements:
        if books.bills.get((one.contract_id, one.number)) != one.digest:
            yield f"the bill of settlement {one.number} of {one.contract_id} is not the one in the log"


def states_fit_the_money(books: Books) -> Iterator[str]:
    """The state of a contract matches its escrow and its outcome."""
    for contract in books.contracts:
        has_outcome = contract.outcome_id is not None
        if (contract.escrow, has_outcome) not in _consistent_escrows(contract):
            outcome = "with an outcome" if has_outcome else "without an outcome"
            yield f"{contract.id} is {contract.state}, its escrow {contract.escrow}, {outcome}"


def _consistent_escrows(contract: Contract) -> set[tuple[Escrow, bool]]:
    """The states of the escrow that fit, each with whether there is an outcome."""
    match contract.state:
        case ContractState.AWARDED | ContractState.EXECUTING:
            return {(Escrow.HELD, False)}
        case ContractState.VERIFICATION_PENDING | ContractState.VERIFIED:
            return {(Escrow.HELD, True)}
        case ContractState.FAILED:
            # Voided, with an output or before there was one; or judged, and not paid yet.
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
    """Every violation, each after the name of its invariant; empty for a consistent ledger."""
    found: list[str] = []
    for rule in INVARIANTS:
        found += [f"{rule.__name__}: {what}" for what in rule(books)]
        if found and rule is amounts_are_whole:
            # Other invariants cannot be computed with values that are not numbers.
            break
    return found
