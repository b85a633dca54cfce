"""A preview says what a transition would do, and leaves nothing behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contracts.trading import COPY, GOOD, TENANT, Trading, everything

from meruit.contracts.preview import PreviewTransition, TransitionPreview, with_balances
from meruit.contracts.records import balances, count_by_state, postings_of
from meruit.errors import WrongState
from meruit.model.access import Scope
from meruit.store.location import Location
from meruit.store.store import Store


@pytest.fixture
def trading(tmp_path: Path) -> Iterator[Trading]:
    store = Store.open(Location(tmp_path))
    yield Trading(store)
    store.close()


def ready_for(trading: Trading, name: str) -> str:
    """A contract with which this can be done."""
    contract = trading.given().id
    if name in ("start", "void"):
        return contract
    trading.complete(contract, COPY if name == "release" else GOOD)
    if name in ("uphold", "take back", "undo", "adjust"):
        trading.do("dispute", contract)
    return contract


@pytest.mark.parametrize("name", ["void", "release", "reverse", "dispute", "uphold", "take back", "undo", "adjust"])
def test_a_preview_is_what_then_happens_and_changes_nothing(trading: Trading, name: str) -> None:
    contract = ready_for(trading, name)
    act = trading.adjust(contract, 10_000) if name == "adjust" else trading.move(name, contract)
    before = everything(trading.store, TENANT)
    preview: TransitionPreview = trading.store.recorder.write(PreviewTransition(act))
    assert everything(trading.store, TENANT) == before
    with trading.store.database.reading() as connection:
        expected = {one.account: one.after for one in with_balances(connection, TENANT, preview)}
    done = trading.done(act)
    assert (preview.after.contract.state, preview.after.contract.escrow) == (done.contract.state, done.contract.escrow)
    assert (preview.after.bill is None) == (done.bill is None)
    with trading.store.database.reading() as connection:
        found = {one.account: one.micros for one in balances(connection, TENANT, escrows=True)}
    assert {account: found[account] for account in expected} == expected
    assert bool(expected) == (name not in ("dispute", "uphold"))
    assert trading.broken() == []


def test_a_preview_of_what_is_refused_is_refused(trading: Trading) -> None:
    contract = ready_for(trading, "void")
    before = everything(trading.store, TENANT)
    with pytest.raises(WrongState):
        trading.store.recorder.write(PreviewTransition(trading.move("reverse", contract)))
    assert everything(trading.store, TENANT) == before


def test_postings_of_a_contract_sum_to_zero_in_order(trading: Trading) -> None:
    contract = ready_for(trading, "reverse")
    trading.do("reverse", contract)
    trading.given()
    with trading.store.database.reading() as connection:
        found = postings_of(connection, TENANT, contract)
        assert postings_of(connection, "other", contract) == []
    assert sum(one.micros for one in found) == 0
    assert [*dict.fromkeys(one.operation for one in found)] == ["hold", "settle", "reverse"]


def test_contracts_are_counted_by_state_and_scope(trading: Trading) -> None:
    ready_for(trading, "reverse")
    ready_for(trading, "release")
    with trading.store.database.reading() as connection:
        assert count_by_state(connection, Scope(TENANT)) == {"settled": 1, "verification_pending": 1}
        assert count_by_state(connection, Scope(TENANT, "other", only_own=True)) == {}
        assert count_by_state(connection, Scope(TENANT, "a1", only_own=True)) == {
            "settled": 1,
            "verification_pending": 1,
        }
