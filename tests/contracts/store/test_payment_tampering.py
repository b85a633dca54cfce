"""What a database writer changes behind the service's back pays nothing, and waits for a person."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from tests.contracts.trading import COPY, GOOD, Hands, Trading

from meruit.contracts.transitions import ExpireContracts
from meruit.errors import RecordTampered
from meruit.log.merkle import leaf_hash
from meruit.model.contract import Contract, ContractState, Escrow
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store


@pytest.fixture
def trading(tmp_path: Path) -> Iterator[Trading]:
    store = Store.open(Location(tmp_path), ClockAndEntropy(HANDS))
    yield Trading(store)
    store.close()


HANDS = Hands()


# Any: a table, and what an insider writes into it.
def change(trading: Trading, table: Any, **values: Any) -> None:
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(table).values(**values))


def first(trading: Trading, table: Any) -> Any:
    with trading.store.database.reading() as connection:
        return connection.execute(select(table).limit(1)).one()


def state_of(trading: Trading, contract: Contract) -> tuple[ContractState, Escrow]:
    found = trading.standing(contract.id).contract
    return found.state, found.escrow


CHANGES: dict[str, Callable[[Trading], None]] = {
    "payee": lambda trading: change(trading, tables.contracts, agent_id="thief"),
    "payer": lambda trading: change(trading, tables.contracts, consumer_id="victim"),
    "hold": lambda trading: change(trading, tables.contracts, hold_micros=10**9),
    "terms": lambda trading: change(
        trading, tables.contracts, terms=bytes(first(trading, tables.contracts).terms) + b" "
    ),
    "garbage": lambda trading: change(trading, tables.contracts, terms=b"{"),
    "verdict": lambda trading: change(
        trading, tables.verdicts, result=bytes(first(trading, tables.verdicts).result) + b" "
    ),
    "broken verdict": lambda trading: change(trading, tables.verdicts, result=b"{"),
    "version": lambda trading: change(trading, tables.verdicts, version=7),
    "work": lambda trading: change(trading, tables.works, body=bytes(first(trading, tables.works).body) + b" "),
    "criteria": lambda trading: change(trading, tables.criteria, body=b'{"criteria":[]}'),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_is_not_settled(trading: Trading, what: str) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    CHANGES[what](trading)
    with pytest.raises(RecordTampered) as refused:
        trading.do("settle", contract.id)
    assert (refused.value.code, refused.value.status) == ("record_tampered", 409)
    assert first(trading, tables.contracts).escrow == "held"


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_record_is_not_released_or_voided(trading: Trading, what: str) -> None:
    contract = trading.given()
    trading.complete(contract.id, COPY)
    assert state_of(trading, contract)[0] is ContractState.VERIFICATION_PENDING
    CHANGES[what](trading)
    with pytest.raises(RecordTampered):
        trading.do("release", contract.id)
    with pytest.raises(RecordTampered):
        trading.do("void", contract.id)
    assert first(trading, tables.contracts).escrow == "held"


@pytest.mark.parametrize("what", ["payee", "payer", "hold", "terms", "work"])
def test_work_on_a_changed_contract_is_held_for_a_person(trading: Trading, what: str) -> None:
    contract = trading.given()
    CHANGES[what](trading)
    done = trading.complete(contract.id, GOOD).contract
    assert (done.state, done.escrow, done.settlement) == (ContractState.VERIFICATION_PENDING, Escrow.HELD, 0)
    assert "audit log" in done.hold_reason


@pytest.mark.parametrize(
    ("table", "values"),
    [
        (tables.contracts, {"agent_id": "thief"}),
        (tables.contracts, {"total_micros": 1}),
        (tables.settlements, {"bill": b"{}"}),
    ],
    ids=["payee", "total", "bill"],
)
def test_a_changed_payment_is_not_reversed(trading: Trading, table: Any, values: dict[str, Any]) -> None:
    contract = trading.given()
    trading.complete(contract.id, GOOD)
    assert state_of(trading, contract) == (ContractState.SETTLED, Escrow.PAID)
    change(trading, table, **values)
    with pytest.raises(RecordTampered):
        trading.do("reverse", contract.id)
    if table is tables.settlements:
        return
    trading.do("dispute", contract.id)
    for decision in ("take back", "undo"):
        with pytest.raises(RecordTampered):
            trading.do(decision, contract.id)


def test_a_paid_contract_is_not_made_payable_again(trading: Trading) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    trading.do("settle", contract.id)
    change(trading, tables.contracts, state="verified", escrow="held", settlement=0, version=0, total_micros=0)
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)


def test_a_row_and_its_leaf_that_agree_are_no_proof(trading: Trading) -> None:
    """The payee is changed in the row and in the leaf with its hash, and the tree above is left alone."""
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    leaves = tables.log_leaves
    with trading.store.database.writer.begin() as connection:
        row = connection.execute(select(leaves).where(leaves.c.seq == contract.seq)).one()
        body = bytes(row.body).replace(f'"agent":"{contract.agent_id}"'.encode(), b'"agent":"thief"')
        assert body != bytes(row.body)
        connection.execute(update(leaves).where(leaves.c.seq == row.seq).values(body=body, hash=leaf_hash(body)))
        connection.execute(update(tables.contracts).values(agent_id="thief"))
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)


def test_a_changed_contract_does_not_expire(trading: Trading) -> None:
    contract = trading.given("brief")
    change(trading, tables.contracts, consumer_id="thief")
    HANDS.pass_h(2)
    expire = ExpireContracts("clock")
    assert trading.store.recorder.write(expire) == 0
    assert first(trading, tables.contracts).escrow == "held"
    change(trading, tables.contracts, consumer_id=contract.consumer_id)
    assert trading.store.recorder.write(expire) == 1


def test_what_is_restored_is_paid(trading: Trading) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    before = first(trading, tables.contracts)
    change(trading, tables.contracts, agent_id="thief")
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)
    change(trading, tables.contracts, agent_id=before.agent_id)
    trading.do("settle", contract.id)
    assert state_of(trading, contract) == (ContractState.SETTLED, Escrow.PAID)
    assert trading.broken() == []
