"""Whoever changes the database behind the books is found out by `meruit ledger check`."""

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
    """One contract that was paid, one that was awarded, one that nobody paid yet."""
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
    """What is found once somebody has changed the rows for which this holds."""
    with party.store.database.writer.begin() as connection:
        assert connection.execute(update(table).where(text(of)).values(**values)).rowcount
    return party.broken()


def test_other_terms_are_found(party: Trading) -> None:
    found = altered(party, tables.contracts, "agent_id = 'a2'", terms=b'{"currency":"USD"}')
    assert len(found) == 1
    assert found[0].startswith("documents_are_those_logged: the terms of con_")


def test_another_bill_is_found_that_adds_up(party: Trading) -> None:
    with party.store.database.reading() as connection:
        kept = connection.execute(text("SELECT bill FROM settlements")).scalar_one()
    found = altered(party, tables.settlements, "1 = 1", bill=kept.replace(b"is met", b"is mad"))
    assert len(found) == 1
    assert found[0].startswith("documents_are_those_logged: the bill of settlement 1 of con_")


def test_a_bill_that_cannot_be_read_is_told(party: Trading) -> None:
    with pytest.raises(StoreError, match=r"a bill of con_.* cannot be read: somebody changed the database"):
        altered(party, tables.settlements, "1 = 1", bill=b"{}")


def test_an_amount_that_is_no_whole_number_is_found(party: Trading) -> None:
    found = altered(party, tables.balances, "account = 'platform'", micros=text("10.5"))
    assert [one.split(" in ")[0] for one in found] == ["amounts_are_whole: the balance of platform"]
    # What is no number at all the database itself may refuse.
    found = altered(party, tables.contracts, "agent_id = 'a2'", hold_micros=text("'many'"))
    assert any("amounts_are_whole: the hold of con_" in one for one in found)


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
    assert [one.partition(":")[0] for one in found] == ["states_fit_the_money"]
