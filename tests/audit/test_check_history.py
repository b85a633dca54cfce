"""What governance remembers is compared with the dossiers that the log commits to."""

from collections.abc import Iterator
from typing import Any

import pytest
from speed.settle import fill
from sqlalchemy import delete, insert, select, update
from tests.audit.failing import check_with_failures
from tests.contracts.trading import ENGINE, GOOD, TENANT, WEAK, Hands, Trading

from meruit.audit import check_history
from meruit.audit.check import LogCheck, StoreCheck, begin_check, check_log, check_store
from meruit.contracts.marketplace import Marketplace
from meruit.outcomes.service import Registrar
from meruit.outcomes.store.erase import erase
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy, Store

LONG = "A long answer of its own, so that it is recognised when it is given again: {} of {} in all."
PAIRS = (("a1", "buyer"), ("a2", "buyer"), ("a1", "shop"))


def trade(trading: Trading, number: int, *, text: str | None = None) -> str:
    """Complete one contract; its id."""
    agent, consumer = PAIRS[number % len(PAIRS)]
    contract = trading.given(agent=agent, consumer_id=consumer, input={"reference": "the reference", "n": number})
    usual = LONG.format(number, agent) if number % 4 else f"{GOOD if number % 3 else WEAK} {number}"
    trading.complete(contract.id, text or usual, {"duration_ms": 100 + number})
    return contract.id


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Contracts of several pairs, over several days."""
    hands = Hands()
    store = Store.open(Location(tmp_path_factory.mktemp("filled")), ClockAndEntropy(clock=hands))
    trading = Trading(store)
    for number in range(20):
        trade(trading, number)
        hands.pass_h(7)
    store.recorder.write(lambda _: None, sign_now=True)
    yield store
    store.close()


# Any, here and below: tables and statements of SQLAlchemy.
def tampered(store: Store, *statements: Any) -> set[tuple[str, str]]:
    """Code and table of each problem after changes that are undone again."""
    check = begin_check(store)
    with store.database.writer.connect() as connection:
        begun = connection.begin()
        for statement in statements:
            connection.execute(statement)
        try:
            found = check_log(connection, check)
        finally:
            begun.rollback()
    return {(one.code, one.where.split(" ")[0]) for one in found.problems}


def test_a_history_that_was_left_alone_is_sound(store: Store) -> None:
    trading = Trading(store)
    for number in range(9):
        trade(trading, number)
    found: LogCheck = check_store(store)
    assert found.problems == []
    dealings, outputs = tables.dealings, tables.first_outputs
    with store.database.reading() as connection:
        assert len(connection.execute(select(dealings)).all()) == 3 + 2 + 2 + 1
        assert connection.execute(select(outputs)).first() is not None


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (tables.agent_histories, {"body": b"{}"}),
        (tables.agent_histories, {"body": b"no JSON"}),
        (tables.agent_histories, {"agent_id": "a3"}),
        (tables.dealings, {"outcomes": tables.dealings.c.outcomes + 1}),
        (tables.dealings, {"with_bonus": tables.dealings.c.with_bonus - 1}),
        (tables.dealings, {"consumer_id": "other"}),
        (tables.first_outputs, {"signature": "0" * 256}),
        (tables.first_outputs, {"input_hash": "0" * 64}),
        (tables.first_outputs, {"agent_id": "a3"}),
    ],
)
def test_a_changed_row_is_named(filled: Store, table: Any, change: dict[str, Any]) -> None:
    with filled.database.reading() as connection:
        first = connection.execute(select(table).limit(1)).one()
    keys = [column == getattr(first, column.name) for column in table.primary_key.columns]
    assert tampered(filled) == set()
    assert tampered(filled, update(table).where(*keys).values(**change)) == {("derived", table.name)}


@pytest.mark.parametrize(
    "table", [tables.agent_histories, tables.dealings, tables.first_outputs], ids=lambda one: one.name
)
def test_deleted_rows_are_named(filled: Store, table: Any) -> None:
    with filled.database.reading() as connection:
        first = connection.execute(select(table).limit(1)).one()
    keys = [column == getattr(first, column.name) for column in table.primary_key.columns]
    for statement in (delete(table).where(*keys), delete(table)):
        assert tampered(filled, statement) == {("derived", table.name)}


def test_a_pair_that_never_dealt_is_named(filled: Store) -> None:
    row = {"tenant": TENANT, "agent_id": "a9", "consumer_id": "buyer", "outcomes": 90, "with_bonus": 0}
    assert tampered(filled, insert(tables.dealings).values(**row)) == {("derived", "dealings")}


def test_a_history_that_was_changed_for_a_while_is_named(store: Store) -> None:
    """The dossier of the outcome that was governed meanwhile commits to what it was given."""
    trading, table = Trading(store), tables.agent_histories
    for number in range(6):
        trade(trading, number)
    own = table.c.agent_id == "a1"
    with store.database.writer.begin() as connection:
        before = connection.execute(select(table).where(own)).one()
        connection.execute(update(table).where(own).values(body=b"{}"))
    again = Store(store.database, store.signer, store.surroundings)
    contract = trade(Trading(again), 6)
    with again.database.writer.begin() as connection:
        connection.execute(update(table).where(own).values(body=bytes(before.body)))
    places = {(one.code, one.where.split(" ")[0]) for one in check_store(again).problems}
    assert places == {("derived", "governance_checks"), ("derived", "agent_histories")}
    assert contract
    again.recorder.close()


@pytest.mark.parametrize("way", ["ungoverned", "erased"])
def test_of_outcomes_without_a_dossier_less_is_compared(store: Store, way: str) -> None:
    trading, table = Trading(store), tables.dealings
    contracts = [trade(trading, number) for number in range(6)]
    if way == "ungoverned":
        trading.market = Marketplace(Registrar(ENGINE, store), policy=None)
        trade(trading, 6)
    else:
        outcome = trading.standing(contracts[0]).contract.outcome_id
        assert outcome is not None
        assert "governance" in erase(store, TENANT, outcome, "asked to").parts
    assert check_store(store).problems == []
    own = (table.c.agent_id == "a1") & (table.c.consumer_id == "buyer")
    with store.database.reading() as connection:
        bonuses = connection.execute(select(table.c.with_bonus).where(own)).scalar_one()
    for change in ({"outcomes": table.c.outcomes + 1}, {"with_bonus": bonuses + 2}):
        assert tampered(store, update(table).where(own).values(**change)) == {("derived", "dealings")}


def test_contracts_that_are_completed_meanwhile_are_no_problem(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_history, "PAGE", 2)
    trading = Trading(store)
    for number in range(5):
        trade(trading, number)
    check: StoreCheck = begin_check(store)
    more, slices = True, 0
    while more:
        with store.database.reading() as connection:
            more = check.check_slice(connection)
        slices += 1
        if slices % 8 == 0:
            trade(trading, slices)
    assert check.result().problems == []


def test_a_slice_that_fails_anywhere_may_be_tried_again(filled: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_history, "PAGE", 3)
    assert check_with_failures(filled) == check_store(filled)


@pytest.mark.parametrize("page", [1, 256])
def test_of_many_consumers_each_is_compared(store: Store, monkeypatch: pytest.MonkeyPatch, page: int) -> None:
    trading, table = Trading(store), tables.dealings
    for number in range(9):
        contract = trading.given(agent="a1", consumer_id=f"c{number}", input={"reference": "the reference"})
        trading.complete(contract.id, f"{GOOD} {number}", {"duration_ms": 100})
    monkeypatch.setattr(check_history, "MAX_CONSUMERS", 3)
    monkeypatch.setattr(check_history, "PAGE", page)
    assert check_store(store).problems == []
    for number in (0, 4, 8):
        of_pair = (table.c.agent_id == "a1") & (table.c.consumer_id == f"c{number}")
        for change in (
            {"outcomes": table.c.outcomes + 1},
            {"with_bonus": table.c.with_bonus - 1},
            {"consumer_id": "other"},
        ):
            # The sums of all agents are changed with it.
            everywhere = table.c.consumer_id == f"c{number}"
            assert tampered(store, update(table).where(everywhere).values(**change)) == {("derived", "dealings")}
            assert tampered(store, update(table).where(of_pair).values(**change)) == {("derived", "dealings")}
    last = (table.c.agent_id == "a1") & (table.c.consumer_id == "c8")
    assert tampered(store, delete(table).where(last)) == {("derived", "dealings")}


def test_rows_of_an_agent_without_contracts_are_named(filled: Store) -> None:
    row = {"tenant": TENANT, "outcomes": 1, "with_bonus": 0}
    history = {"tenant": TENANT, "kind": "contract", "body": b"{}"}
    for agent in ("0", "a11", "z"):
        forged = insert(tables.dealings).values(**row, agent_id=agent, consumer_id="buyer")
        assert tampered(filled, forged) == {("derived", "dealings")}
        assert tampered(filled, insert(tables.agent_histories).values(**history, agent_id=agent)) == {
            ("derived", "agent_histories")
        }


def test_dealings_that_are_all_gone_are_named(store: Store) -> None:
    for number in range(3):
        trade(Trading(store), number)
    assert tampered(store, delete(tables.dealings).where(tables.dealings.c.agent_id == "")) == {("derived", "dealings")}


@pytest.mark.parametrize("agent", [None, "a2"])
def test_an_outcome_that_is_hidden_from_its_agent_is_named(filled: Store, agent: str | None) -> None:
    """Outcomes are replayed agent by agent."""
    table = tables.outcomes
    with filled.database.reading() as connection:
        last = connection.execute(select(table.c.id).where(table.c.agent_id == "a1").order_by(table.c.seq.desc()))
        hidden = last.scalars().first()
    found = tampered(filled, update(table).where(table.c.id == hidden).values(agent_id=agent))
    assert ("row", "contracts") in found


def test_outcomes_that_are_numbered_otherwise_are_named(filled: Store) -> None:
    table = tables.outcomes
    own = update(table).where(table.c.agent_id == "a1").values(seq=-table.c.seq)
    assert ("derived", "outcomes") in tampered(filled, own)


def test_a_past_of_copies_is_sound(store_location: Location) -> None:
    fill(store_location, 70)
    copied = Store.open(store_location)
    assert check_store(copied).problems == []
    copied.close()


def test_a_copy_is_not_remembered_as_an_output_of_its_agent(store: Store) -> None:
    trading = Trading(store)
    text = LONG.format("the same", "copies")
    for number in range(6):
        trade(trading, number, text=text)
    assert check_store(store).problems == []
