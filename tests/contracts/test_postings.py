"""Double entry: the postings of every movement sum to zero."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.contracts.postings import PLATFORM, Parties, Posting, hold, release, reverse, settle
from meruit.model.money import Bill

PARTIES = Parties("c1", "buyer", "bot")
AMOUNTS = st.integers(0, 3) | st.integers(0, 2**53)


@st.composite
def bills(draw: st.DrawFn) -> Bill:
    fee, payout, released = draw(AMOUNTS), draw(AMOUNTS), draw(AMOUNTS)
    total = fee + payout
    return Bill("USD", [], total, 0, 0, total, fee, payout, released)


def sums(*transfers: tuple[Posting, ...]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for postings in transfers:
        for account, micros in postings:
            found[account] += micros
    return {account: micros for account, micros in found.items() if micros}


@given(bills())
def test_no_transfer_makes_or_loses_money(bill: Bill) -> None:
    held = bill.total + bill.released
    for postings in (
        hold(PARTIES, held),
        settle(PARTIES, bill),
        release(PARTIES, held),
        reverse(settle(PARTIES, bill)),
    ):
        assert sum(posting.micros for posting in postings) == 0
        assert all(posting.micros for posting in postings)
        assert len({posting.account for posting in postings}) == len(postings)


@given(bills())
def test_held_and_settled_money_is_where_the_bill_says(bill: Bill) -> None:
    done = sums(hold(PARTIES, bill.total + bill.released), settle(PARTIES, bill))
    expected = {"consumer:buyer": -bill.total, "agent:bot": bill.payout, PLATFORM: bill.fee}
    assert done == {account: micros for account, micros in expected.items() if micros}


@given(bills())
def test_what_is_reversed_is_as_if_it_had_never_been(bill: Bill) -> None:
    held, paid = hold(PARTIES, bill.total + bill.released), settle(PARTIES, bill)
    assert sums(held, paid, reverse(paid)) == sums(held)
    assert reverse(reverse(paid)) == paid


@given(AMOUNTS)
def test_a_release_returns_the_escrow_to_the_consumer(micros: int) -> None:
    assert sums(hold(PARTIES, micros), release(PARTIES, micros)) == {}


@pytest.mark.parametrize("name", ["platform", "buyer", "x:y", "escrow:c1"])
def test_accounts_of_one_name_and_different_kinds_are_different(name: str) -> None:
    same = Parties(name, name, name)
    assert len({same.consumer, same.agent, same.escrow, PLATFORM}) == 4


def test_a_transfer_of_nothing_touches_no_account() -> None:
    assert hold(PARTIES, 0) == release(PARTIES, 0) == settle(PARTIES, Bill("USD", [], 0, 0, 0, 0, 0, 0, 0)) == ()


def test_a_settlement_as_a_person_would_write_it() -> None:
    bill = Bill("USD", [], 100, 0, 0, 100, 15, 85, 20)
    assert settle(PARTIES, bill) == (
        Posting("escrow:c1", -120),
        Posting("agent:bot", 85),
        Posting("platform", 15),
        Posting("consumer:buyer", 20),
    )
