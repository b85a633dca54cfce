"""The check of a whole store: what an insider changes in rows, leaves or hashes is found."""

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import delete, select, update
from tests.audit.failing import check_with_failures
from tests.contracts.trading import GOOD, WEAK, Trading

from meruit.audit.check import LogCheck, begin_check, check_log
from meruit.log.merkle import Frontier, leaf_hash
from meruit.store import tables
from meruit.store.location import Location
from meruit.store.store import Store


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Contracts that were paid, held and reversed, in a log of more than one tile."""
    store = Store.open(Location(tmp_path_factory.mktemp("filled")))
    trading = Trading(store)
    for number in range(64):
        contract = trading.given(input={"reference": "the reference", "n": number})
        trading.complete(contract.id, f"{GOOD if number % 3 else WEAK} {number}")
    store.recorder.write(lambda _: None, sign_now=True)
    yield store
    store.close()


def checked(store: Store) -> LogCheck:
    with store.database.reading() as connection:
        return check_log(connection, begin_check(store))


# Any: statements of SQLAlchemy.
def tampered(store: Store, *statements: Any) -> LogCheck:
    """What the check says after changes that are undone again."""
    with store.database.writer.connect() as connection:
        begun = connection.begin()
        for statement in statements:
            connection.execute(statement)
        try:
            return check_log(connection, begin_check(store))
        finally:
            begun.rollback()


def codes(found: LogCheck) -> set[str]:
    return {one.code for one in found.problems}


def test_a_store_that_was_left_alone_is_sound(filled: Store) -> None:
    found = checked(filled)
    assert found.problems == []
    assert found.size > 256
    assert (found.unsigned, found.checkpoints > 0, found.rows > 100) == (0, True, True)


def test_a_slice_that_fails_anywhere_may_be_tried_again(filled: Store) -> None:
    assert check_with_failures(filled) == checked(filled)


def row_of(store: Store, table: Any) -> Any:
    with store.database.reading() as connection:
        return connection.execute(select(table).limit(1)).one()


@pytest.mark.parametrize(
    ("table", "change"),
    [
        (tables.contracts, {"agent_id": "thief"}),
        (tables.contracts, {"hold_micros": 1}),
        (tables.contracts, {"terms": b"{}"}),
        (tables.settlements, {"bill": b"{}"}),
        (tables.verdicts, {"verdict": "fail"}),
        (tables.verdicts, {"result": b"{}"}),
        (tables.governance_checks, {"disposition": "hold"}),
        (tables.governance_checks, {"body": b"{}"}),
        (tables.outcomes, {"output_address": "0" * 64}),
        (tables.criteria, {"body": b"{}"}),
        (tables.works, {"body": b"{}"}),
        (tables.works, {"input_address": "0" * 64}),
        (tables.works, {"input_salt": b"x" * 16}),
        (tables.works, {"input_salt": b""}),
        (tables.contracts, {"escrow": "held"}),
        (tables.contracts, {"total_micros": 1}),
        (tables.transfers, {"operation": "release"}),
        (tables.postings, {"micros": 1}),
        (tables.balances, {"micros": 1}),
        (tables.log_keys, {"vkey": "other"}),
        # As if they were erased, of which the log knows nothing.
        (tables.governance_checks, {"body": None, "salt": None}),
        (tables.verdicts, {"result": None, "salt": None}),
        (tables.outcomes, {"output_address": None, "output_salt": None}),
        (tables.outcomes, {"metadata_salt": None}),
    ],
)
def test_a_changed_row_is_found(filled: Store, table: Any, change: dict[str, Any]) -> None:
    assert codes(tampered(filled, update(table).values(**change))) - {"derived"} == {"row"}


@pytest.mark.parametrize(
    "table", [tables.contracts, tables.settlements, tables.verdicts, tables.criteria, tables.transfers, tables.postings]
)
def test_a_deleted_row_is_found(filled: Store, table: Any) -> None:
    first = row_of(filled, table)
    keys = [column == getattr(first, column.name) for column in table.primary_key.columns]
    assert codes(tampered(filled, delete(table).where(*keys))) - {"derived"} == {"row"}


def test_a_changed_leaf_is_found(filled: Store) -> None:
    leaves = tables.log_leaves
    body = b'{"kind":"key","at":"now","vkey":"x"}'
    assert "leaf" in codes(tampered(filled, update(leaves).where(leaves.c.seq == 260).values(body=body)))
    # Of an entry without a contract: rows of a contract are compared with all entries of its tenant.
    assert codes(tampered(filled, update(leaves).where(leaves.c.seq == 1).values(tenant="other"))) == {"leaf"}
    assert "leaf" in codes(tampered(filled, delete(leaves).where(leaves.c.seq == 10)))
    assert codes(tampered(filled, update(tables.log_tiles).values(hash=bytes(32)))) == {"tile"}
    assert codes(tampered(filled, update(tables.log_state).values(peaks=b""))) == {"root"}


def test_a_log_that_is_rewritten_whole_is_found(filled: Store) -> None:
    """A payee is changed in rows and leaves, and every hash after it is computed again."""
    leaves = tables.log_leaves
    with filled.database.reading() as connection:
        rows = connection.execute(select(leaves).order_by(leaves.c.seq)).all()
    agent = row_of(filled, tables.contracts).agent_id
    bodies = [bytes(row.body).replace(f'"agent":"{agent}"'.encode(), b'"agent":"thief"') for row in rows]
    hashes = [leaf_hash(body) for body in bodies]
    changes: list[Any] = [
        update(leaves).where(leaves.c.seq == row.seq).values(body=body, hash=one)
        for row, body, one in zip(rows, bodies, hashes, strict=True)
        if bytes(row.body) != body
    ]
    first = Frontier(0, ()).extend(hashes[:256]).root()
    changes += [
        *(
            update(table).where(table.c.agent_id == agent).values(agent_id="thief")
            for table in (tables.contracts, tables.outcomes)
        ),
        *(
            update(table).where(table.c.account == f"agent:{agent}").values(account="agent:thief")
            for table in (tables.postings, tables.balances)
        ),
        update(tables.log_tiles).where(tables.log_tiles.c.seq == 0).values(hash=first),
        update(tables.log_state).values(peaks=Frontier(0, ()).extend(hashes).to_bytes()),
    ]
    found = tampered(filled, *changes)
    assert codes(found) == {"checkpoint", "root", "derived"}


def test_a_log_that_is_cut_short_is_found(filled: Store) -> None:
    leaves = tables.log_leaves
    with filled.database.reading() as connection:
        rows = connection.execute(select(leaves.c.hash).order_by(leaves.c.seq).limit(200)).all()
    shorter = Frontier(0, ()).extend([bytes(row.hash) for row in rows])
    found = tampered(
        filled,
        delete(leaves).where(leaves.c.seq >= 200),
        update(tables.log_state).values(size=200, peaks=shorter.to_bytes()),
    )
    assert "checkpoint" in codes(found)


def test_a_checkpoint_of_another_key_is_found(filled: Store) -> None:
    assert codes(tampered(filled, update(tables.checkpoints).values(note="forged"))) == {"checkpoint"}
