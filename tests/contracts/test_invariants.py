"""Sound books pass, and a book with one wrong number in it does not."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.golden import check_golden

from meruit.contracts import invariants
from meruit.contracts.invariants import INVARIANTS, Books, Settlement, Transfer, find_violations
from meruit.contracts.postings import Posting
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.model.money import Bill, Line, PricePart

R = TypeVar("R", Bill, Line, Contract)
WHEN = datetime(2026, 3, 1, tzinfo=UTC)
BILL_NUMBERS = ("base", "bonus", "penalty", "total", "fee", "payout", "released")


class Clerk:
    """Keeps books by hand, a contract at a time, without asking the code that is tested."""

    def __init__(self) -> None:
        self.leaf = 0
        self.transfers: list[Transfer] = []
        self.contracts: dict[str, Contract] = {}
        self.settlements: list[Settlement] = []
        self.verdicts: set[tuple[str, int]] = set()
        self.moves: set[tuple[str, str, int]] = set()

    def move(self, contract: Contract, operation: str, number: int, **changes: int) -> None:
        names = {"escrow": f"escrow:{contract.id}", "consumer": f"consumer:{contract.consumer_id}"}
        names |= {"agent": f"agent:{contract.agent_id}", "platform": "platform"}
        self.leaf += 1
        postings = tuple(sorted(Posting(names[name], micros) for name, micros in changes.items() if micros))
        self.transfers.append(Transfer(self.leaf, contract.id, operation, number, contract.currency, postings))

    def change(self, contract: Contract, **parts: Any) -> None:
        self.contracts[contract.id] = msgspec.structs.replace(contract, **parts)

    def award(self, name: str, currency: str, hold: int) -> None:
        contract = Contract(
            name,
            self.leaf,
            "w",
            f"agent-of-{name}",
            "buyer",
            None,
            ContractState.AWARDED,
            Escrow.HELD,
            currency,
            hold,
            b"{}",
            WHEN,
            WHEN,
        )
        self.contracts[name] = contract
        self.move(contract, "hold", 0, consumer=-hold, escrow=hold)
        self.moves.add((name, "award", 0))

    def settle(self, name: str, base: int, bonus: int, penalty: int, fee: int) -> None:
        contract = self.contracts[name]
        number = contract.settlements + 1
        total = base + bonus - penalty
        released = contract.hold_micros - total
        lines = [
            Line("cpc", PricePart.CPC, base, "completed"),
            Line("cpa_bonus", PricePart.BONUS, bonus, "met", "x"),
            Line("cpa_penalty", PricePart.PENALTY, -penalty, "not met", "y"),
        ]
        bill = Bill(contract.currency, lines, base, bonus, penalty, total, fee, total - fee, released)
        self.move(
            contract,
            "settle",
            number,
            escrow=-contract.hold_micros,
            agent=total - fee,
            platform=fee,
            consumer=released,
        )
        digest = sha256(bill.to_json()).hexdigest()
        self.settlements.append(Settlement(name, number, f"o-{name}", number, bill, self.leaf, digest))
        self.verdicts.add((f"o-{name}", number))
        self.moves.add((name, "settle", number))
        self.change(
            contract,
            state=ContractState.SETTLED,
            escrow=Escrow.PAID,
            settlement=number,
            settlements=number,
            version=number,
            total_micros=total,
            outcome_id=f"o-{name}",
        )

    def reverse(self, name: str) -> None:
        contract = self.contracts[name]
        bill = self.settlements[-1].bill
        self.move(
            contract,
            "reverse",
            contract.settlement,
            escrow=contract.hold_micros,
            agent=-bill.payout,
            platform=-bill.fee,
            consumer=-bill.released,
        )
        self.moves.add((name, "reverse", contract.settlement))
        pending = ContractState.VERIFICATION_PENDING
        self.change(contract, state=pending, escrow=Escrow.HELD, settlement=0, total_micros=0)

    def give_back(self, name: str, why: str) -> None:
        contract = self.contracts[name]
        self.move(contract, "release", 0, escrow=-contract.hold_micros, consumer=contract.hold_micros)
        self.moves.add((name, why, 0))
        state = ContractState.EXPIRED if why == "expire" else ContractState.FAILED
        self.change(contract, state=state, escrow=Escrow.RELEASED)

    def complete(self, name: str) -> None:
        self.change(self.contracts[name], state=ContractState.VERIFIED, outcome_id=f"o-{name}")

    def dispute(self, name: str) -> None:
        contract = self.contracts[name]
        frozen = Escrow.FROZEN if contract.escrow is Escrow.HELD else contract.escrow
        self.change(contract, state=ContractState.DISPUTED, escrow=frozen, disputed_from=contract.state)

    def books(self) -> Books:
        balances: Counter[tuple[str, str]] = Counter()
        for transfer in self.transfers:
            for account, micros in transfer.postings:
                balances[transfer.currency, account] += micros
        return Books(
            balances=dict(balances),
            transfers=[*self.transfers],
            contracts=[*self.contracts.values()],
            settlements=[*self.settlements],
            verdicts=frozenset(self.verdicts),
            operations=frozenset(self.moves),
            logged=[*self.transfers],
            terms=dict.fromkeys(self.contracts, sha256(b"{}").hexdigest()),
            bills={(one.contract_id, one.number): one.digest for one in self.settlements},
        )


AMOUNTS = st.integers(0, 3) | st.integers(0, 10**9)


@st.composite
def histories(draw: st.DrawFn) -> Books:
    """The books after some contracts went some legal way."""
    clerk = Clerk()
    for number in range(draw(st.integers(0, 3))):
        name = f"c{number}"
        base, bonus = draw(AMOUNTS), draw(AMOUNTS)
        clerk.award(name, draw(st.sampled_from(["EUR", "USD"])), base + bonus)
        for _ in range(draw(st.integers(0, 3))):
            penalty = draw(st.integers(0, base))
            earned = draw(st.integers(0, bonus))
            clerk.settle(name, base, earned, penalty, draw(st.integers(0, base + earned - penalty)))
            if draw(st.booleans()):
                break
            clerk.reverse(name)
        contract = clerk.contracts[name]
        if contract.escrow is Escrow.HELD and draw(st.booleans()):
            clerk.give_back(name, "void" if contract.settlements else draw(st.sampled_from(["void", "expire"])))
        elif draw(st.booleans()):
            if contract.outcome_id is None:
                clerk.complete(name)
            clerk.dispute(name)
    return clerk.books()


def numbers(books: Books) -> Iterator[Callable[[int], Books]]:
    """Every number in the books, as a way to make it another."""
    for key in books.balances:
        yield partial(_balanced, books, key)
    for field in ("transfers", "logged"):
        for place, transfer in enumerate(getattr(books, field)):
            for within in range(len(transfer.postings)):
                yield partial(_posted, books, field, place, within)
    for place, one in enumerate(books.settlements):
        for name in BILL_NUMBERS:
            yield partial(_billed, books, place, name)
        for within in range(len(one.bill.lines)):
            yield partial(_lined, books, place, within)
    for place in range(len(books.contracts)):
        for name in ("hold_micros", "settlement", "total_micros"):
            yield partial(_agreed, books, place, name)


def _balanced(books: Books, key: tuple[str, str], by: int) -> Books:
    return msgspec.structs.replace(books, balances={**books.balances, key: books.balances[key] + by})


def _posted(books: Books, field: str, place: int, within: int, by: int) -> Books:
    several = getattr(books, field)
    postings = several[place].postings
    wrong = postings[within]._replace(micros=postings[within].micros + by)
    transfer = msgspec.structs.replace(several[place], postings=replaced(postings, within, wrong))
    return msgspec.structs.replace(books, **{field: replaced(several, place, transfer)})


def _billed(books: Books, place: int, name: str, by: int) -> Books:
    return with_bill(books, place, more(books.settlements[place].bill, name, by))


def _lined(books: Books, place: int, within: int, by: int) -> Books:
    bill = books.settlements[place].bill
    lines = replaced(bill.lines, within, more(bill.lines[within], "micros", by))
    return with_bill(books, place, msgspec.structs.replace(bill, lines=lines))


def _agreed(books: Books, place: int, name: str, by: int) -> Books:
    return msgspec.structs.replace(
        books, contracts=replaced(books.contracts, place, more(books.contracts[place], name, by))
    )


def more(record: R, name: str, by: int) -> R:
    return msgspec.structs.replace(record, **{name: getattr(record, name) + by})


def replaced(several: Sequence[Any], place: int, value: Any) -> Any:
    return type(several)([*several[:place], value, *several[place + 1 :]])  # type: ignore[call-arg]


def with_bill(books: Books, place: int, bill: Bill) -> Books:
    return msgspec.structs.replace(
        books,
        settlements=replaced(books.settlements, place, msgspec.structs.replace(books.settlements[place], bill=bill)),
    )


# Properties.


@given(histories())
def test_consistent_books_have_no_violations(books: Books) -> None:
    assert find_violations(books) == []


@settings(max_examples=40)
@given(histories(), st.integers(-(10**12), 10**12).filter(bool) | st.sampled_from([-1, 1]))
def test_one_wrong_number_anywhere_is_found(books: Books, by: int) -> None:
    for corrupted in numbers(books):
        assert find_violations(corrupted(by))


@given(histories(), st.data())
def test_a_missing_or_doubled_entry_anywhere_is_found(books: Books, data: st.DataObject) -> None:
    lists = [name for name in ("transfers", "logged", "settlements") if getattr(books, name)]
    sets = [name for name in ("verdicts", "operations") if getattr(books, name)]
    if not lists:
        return
    name = data.draw(st.sampled_from(lists + sets))
    kept = sorted(getattr(books, name)) if name in sets else [*getattr(books, name)]
    place = data.draw(st.integers(0, len(kept) - 1))
    lacking = [*kept[:place], *kept[place + 1 :]]
    # Any: one of several fields, each of its own type.
    other: dict[str, Any] = {name: frozenset(lacking) if name in sets else lacking}
    assert find_violations(msgspec.structs.replace(books, **other))
    if name in ("transfers", "logged"):
        other = {name: [*kept[: place + 1], kept[place], *kept[place + 1 :]]}
        assert find_violations(msgspec.structs.replace(books, **other))


# Each rule finds what it is there for.


def story() -> Clerk:
    """A contract paid, one reversed and paid again, one given back, one open, one frozen."""
    clerk = Clerk()
    for name, currency in (("paid", "USD"), ("twice", "USD"), ("back", "USD"), ("open", "EUR"), ("frozen", "EUR")):
        clerk.award(name, currency, 15)
    clerk.settle("twice", 10, 5, 0, 3)
    clerk.reverse("twice")
    clerk.settle("twice", 10, 2, 1, 2)
    clerk.settle("paid", 10, 5, 2, 1)
    clerk.give_back("back", "expire")
    clerk.complete("frozen")
    clerk.dispute("frozen")
    return clerk


def changed(books: Books, name: str, **parts: Any) -> Books:
    kinds: dict[str, Callable[[Any], Any]] = {"state": ContractState, "escrow": Escrow, "disputed_from": ContractState}
    parts = {field: kinds[field](value) if field in kinds else value for field, value in parts.items()}
    contracts = [msgspec.structs.replace(one, **parts) if one.id == name else one for one in books.contracts]
    return msgspec.structs.replace(books, contracts=contracts)


def moved(books: Books, contract: str, named: str, **parts: Any) -> Books:
    """The same mistake in the books and in the log."""
    transfers = [
        msgspec.structs.replace(one, **parts) if (one.contract_id, one.operation) == (contract, named) else one
        for one in books.transfers
    ]
    return msgspec.structs.replace(books, transfers=transfers, logged=transfers)


def doubled(books: Books, contract: str, operation: str) -> Books:
    twice = next(one for one in books.transfers if (one.contract_id, one.operation) == (contract, operation))
    return msgspec.structs.replace(books, transfers=[*books.transfers, twice], logged=[*books.logged, twice])


def paying(books: Books, **parts: Any) -> Books:
    place = next(place for place, one in enumerate(books.settlements) if one.contract_id == "paid")
    return with_bill(books, place, msgspec.structs.replace(books.settlements[place].bill, **parts))


def balanced(books: Books, **changes: float) -> Books:
    """Other balances, by account with `_` for its colon."""
    known: dict[tuple[str, str], Any] = dict(books.balances)
    for account, by in changes.items():
        known["USD", account.replace("_", ":")] += by
    return msgspec.structs.replace(books, balances=known)


def without_row(move: tuple[str, str, int], books: Books) -> Books:
    return msgspec.structs.replace(books, operations=books.operations - {move})


def named(function: Callable[..., Any], corruption: Callable[[Books], Books], *values: str) -> Any:
    """A corruption of the books, the invariant that finds it, and values that its violation names."""
    return pytest.param(function, corruption, values, id=f"{function.__name__}: {' '.join(values)}")


def owed(books: Books, **parts: Any) -> Books:
    place = next(place for place, one in enumerate(books.settlements) if one.contract_id == "paid")
    return msgspec.structs.replace(
        books,
        settlements=replaced(books.settlements, place, msgspec.structs.replace(books.settlements[place], **parts)),
    )


CORRUPTIONS = [
    named(
        invariants.amounts_are_whole,
        lambda books: balanced(books, platform=0.5),
        "platform",
        "USD",
        "3.5",
    ),
    named(
        invariants.amounts_are_whole,
        lambda books: msgspec.structs.replace(
            books, balances=dict[Any, Any](books.balances) | {("USD", "platform"): "3"}
        ),
        "platform",
        "USD",
        "'3'",
    ),
    named(
        invariants.amounts_are_whole,
        lambda books: changed(books, "open", hold_micros=15.0),
        "hold",
        "open",
        "15.0",
    ),
    named(
        invariants.amounts_are_whole,
        lambda books: changed(books, "paid", total_micros=True),
        "paid",
        "True",
    ),
    named(
        invariants.amounts_are_whole,
        lambda books: moved(books, "open", "hold", postings=(("escrow:open", None),)),
        "hold",
        "open",
        "escrow:open",
        "None",
    ),
    named(
        invariants.documents_are_those_logged,
        lambda books: changed(books, "open", terms=b"{ }"),
        "open",
    ),
    named(
        invariants.documents_are_those_logged,
        lambda books: msgspec.structs.replace(books, terms={}),
        "paid",
    ),
    named(
        invariants.documents_are_those_logged,
        lambda books: owed(books, digest="0" * 64),
        "settlement",
        "1",
        "paid",
    ),
    named(
        invariants.documents_are_those_logged,
        lambda books: msgspec.structs.replace(books, bills={}),
        "settlement",
        "1",
        "paid",
    ),
    *(
        named(
            invariants.states_fit_the_money,
            partial(changed, name=name, **parts),
            name,
            state,
            escrow,
            outcome,
        )
        for name, parts, state, escrow, outcome in (
            ("open", {"outcome_id": "o"}, "awarded", "held", "with "),
            ("open", {"state": "executing", "escrow": "paid"}, "executing", "paid", "without "),
            ("open", {"state": "verified"}, "verified", "held", "without "),
            ("open", {"state": "failed"}, "failed", "held", "without "),
            ("paid", {"state": "verification_pending"}, "verification_pending", "paid", "with "),
            ("paid", {"outcome_id": None}, "settled", "paid", "without "),
            ("paid", {"state": "disputed"}, "disputed", "paid", "with "),
            ("frozen", {"outcome_id": None}, "disputed", "frozen", "without "),
            ("frozen", {"disputed_from": "settled"}, "disputed", "frozen", "with "),
            ("back", {"outcome_id": "o"}, "expired", "released", "with "),
        )
    ),
    named(invariants.balances_sum_to_zero, lambda books: balanced(books, platform=1), "USD", "1"),
    named(
        invariants.transfers_sum_to_zero,
        lambda books: moved(books, "open", "hold", postings=(Posting("escrow:open", 15),)),
        "hold",
        "open",
        "15",
    ),
    named(
        invariants.escrow_is_whole_or_empty,
        lambda books: balanced(books, escrow_paid=2, platform=-2),
        "paid",
        "2",
        "0",
    ),
    named(
        invariants.escrow_is_whole_or_empty,
        lambda books: balanced(books, escrow_back=-2, platform=2),
        "back",
        "-2",
        "0",
    ),
    named(
        invariants.escrow_is_whole_or_empty,
        lambda books: changed(books, "frozen", hold_micros=16),
        "frozen",
        "15",
        "16",
    ),
    named(
        invariants.escrow_is_whole_or_empty,
        lambda books: changed(books, "open", escrow=Escrow.RELEASED),
        "open",
        "15",
        "0",
    ),
    named(invariants.payments_stay_within_hold, lambda books: paying(books, total=16), "settlement", "1", "paid", "16"),
    named(invariants.payments_stay_within_hold, lambda books: paying(books, total=-1), "settlement", "1", "paid", "-1"),
    named(
        invariants.payments_stay_within_hold,
        lambda books: paying(books, released=3),
        "settlement",
        "1",
        "paid",
        "13",
        "3",
        "15",
    ),
    named(
        invariants.payments_stay_within_hold,
        lambda books: msgspec.structs.replace(books, contracts=[one for one in books.contracts if one.id != "paid"]),
        "settlement",
        "1",
        "paid",
    ),
    named(
        invariants.payments_stay_within_hold,
        lambda books: changed(books, "paid", total_micros=12),
        "paid",
        "12",
        "13",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: doubled(books, "twice", "reverse"),
        "settlement",
        "1",
        "twice",
        "reversed",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: moved(books, "twice", "reverse", postings=()),
        "reversal",
        "twice",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: moved(books, "twice", "reverse", number=7),
        "reversal",
        "twice",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: moved(books, "twice", "reverse", operation="release"),
        "twice",
        "paid",
        "1",
        "2",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: changed(books, "paid", settlement=0),
        "paid",
        "1",
        "0",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: changed(books, "open", state=ContractState.SETTLED),
        "open",
        "settled",
    ),
    named(
        invariants.one_live_settlement,
        lambda books: doubled(books, "paid", "settle"),
        "settlement",
        "1",
        "paid",
        "twice",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: msgspec.structs.replace(books, verdicts=books.verdicts - {("o-paid", 1)}),
        "settlement",
        "1",
        "paid",
        "verdict",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: msgspec.structs.replace(
            books, settlements=[one for one in books.settlements if one.contract_id != "paid"]
        ),
        "settlement",
        "1",
        "paid",
        "verdict",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: paying(books, total=14, payout=13, released=1),
        "settlement",
        "1",
        "paid",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: msgspec.structs.replace(books, contracts=[one for one in books.contracts if one.id != "open"]),
        "hold",
        "open",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: changed(books, "open", hold_micros=14),
        "hold",
        "open",
    ),
    named(
        invariants.transfers_have_grounds,
        lambda books: changed(books, "back", hold_micros=14),
        "release",
        "back",
    ),
    *(
        named(
            invariants.transfers_have_grounds,
            partial(without_row, move),
            transfer,
            move[0],
            "operation",
        )
        for transfer, move in (
            ("hold", ("open", "award", 0)),
            ("settle", ("paid", "settle", 1)),
            ("reverse", ("twice", "reverse", 1)),
            ("release", ("back", "expire", 0)),
        )
    ),
    named(
        invariants.lines_sum_to_total,
        lambda books: paying(books, payout=13),
        "settlement",
        "1",
        "paid",
        "13",
        "14",
    ),
    named(
        invariants.replaying_gives_the_balances,
        lambda books: balanced(books, platform=1, escrow_paid=-1),
        "platform",
        "USD",
        "4",
        "3",
    ),
    named(
        invariants.replaying_gives_the_balances,
        lambda books: msgspec.structs.replace(books, logged=books.logged[:-1]),
        "9",
        "10",
    ),
    named(
        invariants.replaying_gives_the_balances,
        lambda books: msgspec.structs.replace(
            books, logged=[msgspec.structs.replace(books.logged[0], contract_id="other"), *books.logged[1:]]
        ),
        "hold",
        "other",
        "1",
    ),
]


@pytest.mark.parametrize(("function", "corruption", "values"), CORRUPTIONS)
def test_each_invariant_finds_its_corruptions(
    function: Callable[[Books], Iterator[str]], corruption: Callable[[Books], Books], values: tuple[str, ...]
) -> None:
    books = story().books()
    assert [*function(books)] == []
    found = [*function(corruption(books))]
    assert any(all(value in violation for value in values) for violation in found), found
    assert {f"{function.__name__}: {violation}" for violation in found} <= {*find_violations(corruption(books))}


@pytest.mark.golden
def test_violations_are_worded_as_in_the_golden_file() -> None:
    books = story().books()
    lines = [
        f"{function.__name__}: {violation}"
        for function, corruption, _ in (param.values for param in CORRUPTIONS)
        for violation in sorted(function(corruption(books)))
    ]
    check_golden("contracts/violations", "\n".join(lines) + "\n")


def test_every_invariant_has_a_corruption_that_it_finds() -> None:
    assert {param.values[0] for param in CORRUPTIONS} == {*INVARIANTS}
    assert all((rule.__doc__ or "").endswith(".") for rule in INVARIANTS)


def test_empty_books_have_no_violations() -> None:
    assert find_violations(Clerk().books()) == []
