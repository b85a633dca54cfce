"""Changes to the database from outside are found by the invariants of the ledger."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Table, text, update
from tests.contracts.trading import GOOD, Hands, Trading

from meruit.errors import StoreError
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Trading]:
    """One contract that was paid, one that was awarded, one that is verified and not paid."""
    store = Store.open(Location(tmp_path), ClockAndEntropy(clock=Hands()))
    trading = Trading(store)
    for kind, agent in (("usual", "a1"), ("usual", "a2"), ("on_request", "a3")):
        contract = trading.given(kind, agent)
        if agent != "a2":
            trading.complete(contract.id, f"{GOOD} {agent}")
    assert trading.broken() == []
    yield trading
    store.close()


def altered(party: Trading, table: Table, of: str, **values: Any) -> list[str]:
    """The violations after the rows for which `of` holds were changed."""
    with party.store.database.writer.begin() as connection:
        assert connection.execute(update(table).where(text(of)).values(**values)).rowcount
    return party.broken()


def broken_in(found: list[str]) -> list[str]:
    """The invariants that are violated."""
    return [one.partition(":")[0] for one in found]


def test_other_terms_are_found(party: Trading) -> None:
    found = altered(party, tables.contracts, "agent_id = 'a2'", terms=b'{"currency":"USD"}')
    assert broken_in(found) == ["documents_are_those_logged"]


def test_another_bill_is_found_that_adds_up(party: Trading) -> None:
    with party.store.database.reading() as connection:
        kept = connection.execute(text("SELECT bill FROM settlements")).scalar_one()
    found = altered(party, tables.settlements, "1 = 1", bill=kept.replace(b"is met", b"is mad"))
    assert broken_in(found) == ["documents_are_those_logged"]


def test_a_bill_that_cannot_be_read_is_refused(party: Trading) -> None:
    with pytest.raises(StoreError, match="con_"):
        altered(party, tables.settlements, "1 = 1", bill=b"{}")


def test_an_amount_that_is_not_whole_is_found(party: Trading) -> None:
    found = altered(party, tables.balances, "account = 'platform'", micros=text("10.5"))
    assert broken_in(found) == ["amounts_are_whole"]
    assert "platform" in found[0]
    # A database may refuse text in a column of numbers itself.
    found = altered(party, tables.contracts, "agent_id = 'a2'", hold_micros=text("'many'"))
    assert any("con_" in one and "'many'" in one for one in found)


@pytest.mark.parametrize(
    ("agent", "values"),
    [
        ("a1", {"state": "verified"}),
        ("a1", {"outcome_id": None}),
        ("a2", {"state": "verified"}),
        ("a2", {"outcome_id": "out_x"}),
        ("a3", {"state": "awarded"}),
        ("a3", {"outcome_id": None}),
    ],
)
def test_a_state_that_does_not_fit_is_found(party: Trading, agent: str, values: dict[str, Any]) -> None:
    found = altered(party, tables.contracts, f"agent_id = '{agent}'", **values)
    assert broken_in(found) == ["states_fit_the_money"]
