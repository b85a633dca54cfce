"""What a database writer changes behind the service's back pays nothing, and waits for a person."""

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import delete, insert, select, update
from tests.contracts.trading import CAP, COPY, CPC, GOOD, TENANT, WEAK, Hands, Trading

from meruit.audit.check import check_store
from meruit.contracts.rejudge import rejudge
from meruit.contracts.store import work as works
from meruit.contracts.store.holds import load_hold
from meruit.contracts.store.transaction import Actor
from meruit.contracts.transitions import ExpireContracts, RecordInputRead
from meruit.errors import RecordTampered, WrongState
from meruit.log.entries import AwardEntry, entry_bytes, read_entry
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


def delay(name: str) -> Callable[[Trading], None]:
    """Let a time of the contract be an hour later."""

    def act(trading: Trading) -> None:
        at = getattr(first(trading, tables.contracts), name) or 0
        change(trading, tables.contracts, **{name: at + 3_600_000_000})

    return act


AT_HAND_IN: dict[str, Callable[[Trading], None]] = {
    **{name: CHANGES[name] for name in ("payee", "payer", "hold", "terms", "garbage", "work", "criteria")},
    **{name: delay(name) for name in ("awarded_at", "input_read_at", "started_at", "expires_at")},
}
"""What decides how an output is judged, or for whom."""


@pytest.mark.parametrize("what", AT_HAND_IN)
def test_work_on_a_changed_contract_is_not_judged(trading: Trading, what: str) -> None:
    contract = trading.given()
    trading.do("start", contract.id)
    before = [(table, first(trading, table)) for table in (tables.contracts, tables.works)]
    criteria = first(trading, tables.criteria).body
    AT_HAND_IN[what](trading)
    with pytest.raises(RecordTampered):
        trading.complete(contract.id, GOOD)
    assert rows_of(trading, tables.outcomes) == []
    for table, row in before:
        restore_row(trading, table, row)
    change(trading, tables.criteria, body=criteria)
    # Nothing of the change is remembered.
    trading.complete(contract.id, GOOD)
    assert state_of(trading, contract) == (ContractState.SETTLED, Escrow.PAID)
    assert trading.broken() == []


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
def test_what_is_changed_only_while_the_output_is_judged_decides_nothing(trading: Trading, what: str) -> None:
    """Also where the leaf that commits to it is changed for as long."""
    contract = trading.given("on_request")
    table, values = SWAPS[what]
    before = first(trading, table)
    change(trading, table, **values(trading))
    with pytest.raises(RecordTampered):
        trading.handed_in(contract.id, EASY)
    leaf = forge_award(trading, contract)
    judged = trading.handed_in(contract.id, EASY)
    for restored in (False, True):
        if restored:
            restore_row(trading, table, before)
            restore_leaf(trading, leaf)
        with pytest.raises(RecordTampered):
            trading.done(judged)
    assert rows_of(trading, tables.outcomes) == []
    with pytest.raises(WrongState) as refused:
        trading.do("settle", contract.id)
    assert refused.value.code == "wrong_state"
    trading.complete(contract.id, GOOD)
    trading.do("settle", contract.id)
    assert state_of(trading, contract) == (ContractState.SETTLED, Escrow.PAID)


def forge_award(trading: Trading, contract: Contract) -> Any:
    """Let the award commit to what the rows say now; returns the leaf as it was."""
    leaves = tables.log_leaves
    row, work = first(trading, tables.contracts), first(trading, tables.works)
    with trading.store.database.writer.begin() as connection:
        leaf = connection.execute(select(leaves).where(leaves.c.seq == contract.seq)).one()
        award = read_entry(bytes(leaf.body))
        assert isinstance(award, AwardEntry)
        forged = msgspec.structs.replace(
            award,
            work_digest=sha256(bytes(work.body)).hexdigest(),
            terms=sha256(bytes(row.terms)).hexdigest(),
            criteria=work.criteria_digest,
        )
        body = entry_bytes(forged)
        connection.execute(update(leaves).where(leaves.c.seq == leaf.seq).values(body=body, hash=leaf_hash(body)))
    return leaf


def restore_leaf(trading: Trading, leaf: Any) -> None:
    leaves = tables.log_leaves
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(leaves).where(leaves.c.seq == leaf.seq).values(body=leaf.body, hash=leaf.hash))


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
    paid = first(trading, tables.settlements)
    change(trading, table, **values)
    with pytest.raises(RecordTampered):
        trading.do("reverse", contract.id)
    with pytest.raises(RecordTampered):
        trading.do("dispute", contract.id)
    change(trading, tables.contracts, agent_id=contract.agent_id, total_micros=CPC + CAP)
    change(trading, tables.settlements, bill=paid.bill)
    trading.do("dispute", contract.id)
    change(trading, table, **values)
    for decision in ("uphold", "take back", "undo"):
        with pytest.raises(RecordTampered):
            trading.do(decision, contract.id)
    assert first(trading, tables.contracts).escrow == "paid"


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


@pytest.mark.parametrize("state", ["awarded", "executing"])
def test_a_contract_with_an_output_does_not_expire(trading: Trading, state: str) -> None:
    contract = trading.given("brief")
    trading.complete(contract.id, COPY)
    change(trading, tables.contracts, state=state)
    HANDS.pass_h(2)
    trading.store.recorder.write(ExpireContracts("clock"))
    assert first(trading, tables.contracts).escrow == "held"
    assert [one.where for one in check_store(trading.store).problems] == [f"contracts {TENANT}/{contract.id}"]


def test_a_bill_that_cannot_be_read_is_said_to_be_tampered(trading: Trading) -> None:
    contract = trading.given()
    trading.complete(contract.id, GOOD)
    change(trading, tables.settlements, bill=b"")
    with pytest.raises(RecordTampered):
        trading.standing(contract.id)


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


def swap_evidence(trading: Trading, contract: Contract, part: str) -> Callable[[], None]:
    """Let an outcome show the evidence of another; returns what restores it."""
    outcomes = tables.outcomes
    better = trading.given(input={"reference": WEAK * 4})
    trading.complete(better.id, GOOD, {"note": "another"})
    by_contract = {row.contract_id: row for row in rows_of(trading, outcomes)}
    own, other = by_contract[contract.id], by_contract[better.id]
    names = (f"{part}_address", f"{part}_salt")

    def write(row: Any) -> None:
        with trading.store.database.writer.begin() as connection:
            values = {name: getattr(row, name) for name in names}
            connection.execute(update(outcomes).where(outcomes.c.id == own.id).values(**values))

    write(other)
    return lambda: write(own)


@pytest.mark.parametrize("part", ["input", "output", "metadata"])
def test_a_contract_is_not_judged_again_on_other_evidence(trading: Trading, part: str) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, WEAK)
    restore = swap_evidence(trading, contract, part)
    with pytest.raises(RecordTampered):
        rejudge(trading.market, trading.actor, contract.id, "look again")
    restore()
    again = rejudge(trading.market, trading.actor, contract.id, "look again")
    assert again.judgement is not None
    assert again.judgement.version == 2
    assert again.judgement.result is not None
    assert not again.judgement.result.success


def test_a_contract_is_not_judged_again_from_a_forged_result(trading: Trading) -> None:
    """Evidence is taken from the result before where criteria are the same; so is what governance said."""
    contract = trading.given("on_request")
    trading.complete(contract.id, COPY)
    verdicts = tables.verdicts
    row = first(trading, verdicts)
    forged = bytes(row.result).replace(b'"review"', b'"clear"')
    assert forged != bytes(row.result)
    change(trading, verdicts, result=forged)
    with pytest.raises(RecordTampered):
        rejudge(trading.market, trading.actor, contract.id, "look again")
    change(trading, verdicts, result=row.result)
    with pytest.raises(WrongState) as refused:
        trading.do("settle", contract.id)
    assert refused.value.code == "on_hold"


MONEY_ROWS = (
    *(tables.contracts, tables.outcomes, tables.verdicts, tables.governance_checks, tables.settlements),
    *(tables.transfers, tables.postings, tables.contract_transitions),
)
"""What is written from the completion to the payment."""


def roll_back(trading: Trading, before: dict[Any, list[Any]]) -> None:
    """Take all rows of a contract back to an earlier state; the log is left alone."""
    with trading.store.database.writer.begin() as connection:
        for table, rows in before.items():
            connection.execute(delete(table))
            if rows:
                connection.execute(insert(table), [dict(row._mapping) for row in rows])


def hide(trading: Trading, *wanted: Any) -> None:
    """Let entries of the log not be found by their contract; their bytes and hashes stay."""
    leaves = tables.log_leaves
    with trading.store.database.writer.begin() as connection:
        connection.execute(
            update(leaves).where(leaves.c.contract_id.is_not(None), *wanted).values(contract_id=None, contract_seq=None)
        )


def log_size(trading: Trading) -> int:
    return len(rows_of(trading, tables.log_leaves))


@pytest.mark.parametrize("move", ["settle", "void", "dispute"])
def test_a_payment_that_is_hidden_is_not_made_again(trading: Trading, move: str) -> None:
    """Rows and entries look as they did before the payment; the process remembers how many entries there were."""
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    before, size = {table: rows_of(trading, table) for table in MONEY_ROWS}, log_size(trading)
    trading.do("settle", contract.id)
    roll_back(trading, before)
    hide(trading, tables.log_leaves.c.seq >= size)
    with pytest.raises(RecordTampered):
        trading.do(move, contract.id)


def test_an_entry_that_is_missing_in_the_middle_is_noticed_by_any_process(tmp_path: Path) -> None:
    """A dispute that is hidden with its row does not let the contract be paid."""
    store = Store.open(Location(tmp_path), ClockAndEntropy(HANDS))
    trading = Trading(store)
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    before, size = first(trading, tables.contracts), log_size(trading)
    trading.do("dispute", contract.id)
    store.recorder.write(trading.rescored(contract.id), sign_now=True)
    hide(trading, tables.log_leaves.c.seq == size)
    restore_row(trading, tables.contracts, before)
    store.close()
    store = Store.open(Location(tmp_path), ClockAndEntropy(HANDS))
    with pytest.raises(RecordTampered):
        Trading(store).do("settle", contract.id)
    store.close()


def test_another_process_remembers_what_it_saw_added(tmp_path: Path) -> None:
    stores = [Store.open(Location(tmp_path), ClockAndEntropy(HANDS)) for _ in range(2)]
    trading, other = map(Trading, stores)
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    before, size = {table: rows_of(trading, table) for table in MONEY_ROWS}, log_size(trading)
    trading.do("settle", contract.id)
    # It writes something of its own, and follows the log first.
    other.publish()
    roll_back(trading, before)
    hide(trading, tables.log_leaves.c.seq >= size)
    with pytest.raises(RecordTampered):
        other.do("settle", contract.id)
    for store in stores:
        store.close()


def test_a_check_of_the_store_tells_a_new_process_what_there_is(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path), ClockAndEntropy(HANDS))
    trading = Trading(store)
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    before, size = {table: rows_of(trading, table) for table in MONEY_ROWS}, log_size(trading)
    trading.do("settle", contract.id)
    store.recorder.write(lambda _: None, sign_now=True)
    store.close()
    store = Store.open(Location(tmp_path), ClockAndEntropy(HANDS))
    trading = Trading(store)
    assert check_store(store).sound
    roll_back(trading, before)
    hide(trading, tables.log_leaves.c.seq >= size)
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)
    store.close()


@pytest.mark.parametrize("body", [b"", b"{}", b'{"criteria":[{"metric":"word_count"}]}'])
def test_nothing_is_released_by_other_criteria_than_none(trading: Trading, body: bytes) -> None:
    """Work that is paid for completion alone names no criteria, and its verdict those that are empty."""
    contract = trading.given("plain")
    trading.complete(contract.id, COPY)
    assert state_of(trading, contract)[0] is ContractState.VERIFICATION_PENDING
    change(trading, tables.criteria, body=body)
    with pytest.raises(RecordTampered):
        trading.do("release", contract.id)


ON_A_RUN = {"run_id": "r1"}


@pytest.mark.parametrize("run", [None, "f" * 64])
def test_a_contract_whose_run_is_changed_is_not_settled(trading: Trading, run: str | None) -> None:
    """Under another run, nobody would see that this one is paid already."""
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD, ON_A_RUN)
    change(trading, tables.contracts, evidence=run)
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)
    assert [one.where for one in check_store(trading.store).problems] == [f"contracts {TENANT}/{contract.id}"]


def test_a_contract_that_claims_no_run_is_given_none(trading: Trading) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    change(trading, tables.contracts, evidence="f" * 64)
    with pytest.raises(RecordTampered):
        trading.do("settle", contract.id)


def test_a_run_is_not_paid_again_where_rows_forget_its_payment(trading: Trading) -> None:
    contract, other = trading.given("on_request"), trading.given()
    before = {table: rows_of(trading, table) for table in MONEY_ROWS}
    trading.complete(contract.id, GOOD, ON_A_RUN)
    trading.do("settle", contract.id)
    roll_back(trading, before)
    trading.complete(other.id, f"{GOOD} again", ON_A_RUN)
    assert state_of(trading, other) == (ContractState.VERIFICATION_PENDING, Escrow.HELD)


def test_no_contract_is_awarded_on_criteria_that_are_gone(trading: Trading) -> None:
    work = trading.publish()
    body = first(trading, tables.criteria).body
    change(trading, tables.criteria, body=b'{"criteria":[]}')
    with pytest.raises(RecordTampered):
        trading.award(work.id)
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(tables.criteria).values(body=body))
        connection.execute(update(tables.works).values(body=b"{"))
    with pytest.raises(RecordTampered):
        trading.award(work.id)
    with trading.store.database.writer.begin() as connection:
        connection.execute(update(tables.works).values(body=work.body))
        connection.execute(delete(tables.criteria))
    with pytest.raises(RecordTampered):
        trading.award(work.id)
    assert rows_of(trading, tables.contracts) == []


NOT_COMPLETED = {name: AT_HAND_IN[name] for name in ("payee", "payer", "terms", "awarded_at", "work")}


@pytest.mark.parametrize("what", NOT_COMPLETED)
def test_a_changed_contract_is_not_started_or_read(trading: Trading, what: str) -> None:
    """Else another agent lets the time begin under which this one is judged."""
    contract = trading.given()
    NOT_COMPLETED[what](trading)
    with pytest.raises(RecordTampered):
        trading.do("start", contract.id)
    agent = first(trading, tables.contracts).agent_id
    reader = Actor(Scope(trading.tenant, agent, only_own=True), "its key")
    with pytest.raises(RecordTampered):
        trading.store.recorder.write(RecordInputRead(reader, contract.work_id))
    assert first(trading, tables.contracts).started_at is None


@pytest.mark.parametrize(
    "values",
    [{"completed_at": None}, {"settled_at": None}, {"settled_at": 1}, {"disputes": 9}, {"disputed_from": "settled"}],
    ids=str,
)
def test_nobody_loses_the_right_to_dispute_by_a_changed_row(trading: Trading, values: dict[str, Any]) -> None:
    contract = trading.given()
    trading.complete(contract.id, GOOD)
    before = first(trading, tables.contracts)
    change(trading, tables.contracts, **values)
    with pytest.raises(RecordTampered):
        trading.do("dispute", contract.id)
    restore_row(trading, tables.contracts, before)
    trading.do("dispute", contract.id)
    assert state_of(trading, contract)[0] is ContractState.DISPUTED


@pytest.mark.parametrize("move", ["settle", "start", "uphold"])
def test_a_verdict_that_is_gone_is_not_looked_for(trading: Trading, move: str) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    with trading.store.database.writer.begin() as connection:
        connection.execute(delete(tables.verdicts))
    with pytest.raises(RecordTampered):
        trading.do(move, contract.id)


def test_an_input_whose_content_is_taken_away_is_gone(trading: Trading) -> None:
    contract = trading.given()
    change(trading, tables.blobs, content=None)
    with pytest.raises(RecordTampered):
        trading.complete(contract.id, GOOD)


def test_a_result_that_cannot_be_read_is_not_judged_again(trading: Trading) -> None:
    contract = trading.given("on_request")
    trading.complete(contract.id, GOOD)
    change(trading, tables.verdicts, result=b"{")
    with pytest.raises(RecordTampered):
        rejudge(trading.market, trading.actor, contract.id, "look again")
