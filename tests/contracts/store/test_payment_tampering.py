"""What a database writer changes behind the service's back pays nothing, and waits for a person."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, insert, select, update
from tests.contracts.trading import COPY, GOOD, Hands, Trading

from meruit.contracts.store import work as works
from meruit.contracts.store.holds import load_hold
from meruit.contracts.transitions import ExpireContracts
from meruit.errors import RecordTampered
from meruit.log.merkle import leaf_hash
from meruit.model.access import Scope
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


def rows_of(trading: Trading, table: Any) -> list[Any]:
    with trading.store.database.reading() as connection:
        return [*connection.execute(select(table))]


def restore_row(trading: Trading, table: Any, row: Any) -> None:
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(table).where(table.c.id == row.id).values(**row._mapping))


def restore(trading: Trading, work: Any, blobs: list[Any]) -> None:
    """Put back what was there before."""
    restore_row(trading, tables.works, work)
    with trading.store.database.writer.begin() as connection:
        connection.execute(delete(tables.blobs))
        connection.execute(insert(tables.blobs), [dict(row._mapping) for row in blobs])


def point_elsewhere(trading: Trading) -> None:
    """Let the work be judged by a reference that the cheat knows: that of other work of the same tenant."""
    other = trading.publish(input={"reference": EASY})
    change(trading, tables.works, input_address=other.input_address)


def damage_input(trading: Trading) -> None:
    """Change the content, and leave its address."""
    blobs = tables.blobs
    address = first(trading, tables.works).input_address
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(blobs).where(blobs.c.address == address).values(content=INPUT))


def delete_input(trading: Trading) -> None:
    with trading.store.database.writer.begin() as connection:
        connection.execute(delete(tables.blobs))


EASY = "an easy reference that nobody agreed on " * 4
INPUT = b'{"reference":"easy"}'
INPUTS: dict[str, Callable[[Trading], None]] = {
    "address": point_elsewhere,
    "content": damage_input,
    "gone": delete_input,
}

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
    "input": point_elsewhere,
    "salt": lambda trading: change(trading, tables.works, input_salt=b"x" * 16),
    "no salt": lambda trading: change(trading, tables.works, input_salt=b""),
    "no address": lambda trading: change(trading, tables.works, input_address="nowhere"),
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


@pytest.mark.parametrize("what", INPUTS)
def test_nothing_is_judged_by_an_input_that_was_not_agreed_on(trading: Trading, what: str) -> None:
    contract = trading.given("brief")
    before = first(trading, tables.works), [*rows_of(trading, tables.blobs)]
    INPUTS[what](trading)
    with pytest.raises(RecordTampered) as refused:
        trading.complete(contract.id, EASY)
    assert (refused.value.code, refused.value.status) == ("record_tampered", 409)
    assert rows_of(trading, tables.outcomes) == []
    # The agent could not hand in, so its time does not run out, and the buyer gets nothing back.
    with pytest.raises(RecordTampered):
        trading.do("void", contract.id)
    HANDS.pass_h(2)
    assert trading.store.recorder.write(ExpireContracts("clock")) == 0
    assert state_of(trading, contract) == (ContractState.AWARDED, Escrow.HELD)
    restore(trading, *before)
    assert trading.store.recorder.write(ExpireContracts("clock")) == 1


@pytest.mark.parametrize("what", INPUTS)
def test_the_agent_is_not_shown_an_input_that_was_not_agreed_on(trading: Trading, what: str) -> None:
    contract = trading.given()
    INPUTS[what](trading)
    with trading.store.database.reading() as connection:
        work = works.find(connection, trading.tenant, contract.work_id)
        with pytest.raises(RecordTampered):
            works.input_of(connection, trading.tenant, work, trading.store.blobs)


@pytest.mark.parametrize("what", INPUTS)
def test_an_input_that_is_restored_is_judged(trading: Trading, what: str) -> None:
    contract = trading.given()
    before = first(trading, tables.works), [*rows_of(trading, tables.blobs)]
    INPUTS[what](trading)
    with pytest.raises(RecordTampered):
        trading.complete(contract.id, GOOD)
    restore(trading, *before)
    trading.complete(contract.id, GOOD)
    assert state_of(trading, contract) == (ContractState.SETTLED, Escrow.PAID)


def test_an_address_that_changes_while_the_output_is_judged_holds_it(trading: Trading) -> None:
    contract = trading.given()
    judged = trading.handed_in(contract.id, GOOD)
    point_elsewhere(trading)
    done = trading.done(judged).contract
    assert (done.state, done.escrow, done.settlement) == (ContractState.VERIFICATION_PENDING, Escrow.HELD, 0)
    assert "input" in done.hold_reason
    with pytest.raises(RecordTampered):
        trading.do("release", contract.id)
    with trading.store.database.reading() as connection:
        found = load_hold(connection, Scope(trading.tenant), contract.id, trading.store.blobs).on_hold
    assert found is not None
    assert [one.code for one in found.reasons or ()] == ["record_tampered"]


def swap_work(trading: Trading) -> dict[str, Any]:
    """Other work in its place: its traps, its input and what commits to it agree with each other."""
    other = trading.publish(input={"reference": EASY}, canaries=["another canary"])
    return {"body": other.body, "input_address": other.input_address, "input_salt": other.input_salt}


SWAPS: dict[str, tuple[Any, Callable[[Trading], dict[str, Any]]]] = {
    "work": (tables.works, swap_work),
    "terms": (tables.contracts, lambda trading: {"terms": bytes(first(trading, tables.contracts).terms) + b" "}),
    "criteria": (tables.works, lambda trading: {"criteria_digest": trading.publish("timed").criteria_digest}),
}


@pytest.mark.parametrize("what", SWAPS)
def test_what_is_changed_only_while_the_output_is_judged_holds_it(trading: Trading, what: str) -> None:
    contract = trading.given()
    table, values = SWAPS[what]
    before = first(trading, table)
    change(trading, table, **values(trading))
    judged = trading.handed_in(contract.id, EASY)
    restore_row(trading, table, before)
    done = trading.done(judged).contract
    assert (done.state, done.escrow, done.settlement) == (ContractState.VERIFICATION_PENDING, Escrow.HELD, 0)
    assert what in done.hold_reason


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
