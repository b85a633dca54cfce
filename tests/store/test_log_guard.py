"""A process that signs notices when the log is not the one that it knows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from meruit.errors import KeyNotAdmitted, LogRewritten
from meruit.log.entries import CriteriaEntry
from meruit.log.key_chain import admit_key
from meruit.log.merkle import Frontier, leaf_hash
from meruit.log.note import SigningKey
from meruit.store import tables
from meruit.store.key_admission import insert_key
from meruit.store.location import Location
from meruit.store.log_guard import find_forged_leaf, read_frontier
from meruit.store.log_tiles import Tiles
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

ENTRIES = 600


def add(writing: WriteTransaction, count: int = 1) -> None:
    for number in range(count):
        writing.append(CriteriaEntry(writing.now.written, "acme", f"{number:064x}"), "acme")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path))
    opened.recorder.write(lambda writing: add(writing, ENTRIES), sign_now=True)
    yield opened
    opened.close()


def leaves_of(store: Store) -> list[Any]:
    with store.database.reading() as connection:
        return [*connection.execute(select(tables.log_leaves).order_by(tables.log_leaves.c.seq))]


def rewrite(store: Store, seq: int, *, state: bool = True) -> None:
    """Change an entry, and all hashes that follow from it."""
    leaves, bodies = tables.log_leaves, [bytes(row.body) for row in leaves_of(store)]
    bodies[seq] = bodies[seq].replace(b'"digest":"0', b'"digest":"f')
    hashes = [leaf_hash(body) for body in bodies]
    with store.database.writer.begin() as connection:
        connection.execute(update(leaves).where(leaves.c.seq == seq).values(body=bodies[seq], hash=hashes[seq]))
        for tile in range(len(hashes) // 256):
            root = Frontier(0, ()).extend(hashes[tile * 256 : tile * 256 + 256]).root()
            connection.execute(update(tables.log_tiles).where(tables.log_tiles.c.seq == tile).values(hash=root))
        if state:
            connection.execute(update(tables.log_state).values(peaks=Frontier(0, ()).extend(hashes).to_bytes()))


def test_a_rewritten_log_is_not_signed_by_a_running_service(store: Store) -> None:
    rewrite(store, 3)
    with pytest.raises(LogRewritten) as refused:
        store.recorder.write(add, sign_now=True)
    assert refused.value.code == "log_rewritten"
    assert store.recorder.blocked_by is refused.value


def test_a_rewritten_log_is_not_signed_after_a_restart(store: Store) -> None:
    rewrite(store, 3)
    again = Store(store.database, store.signer, store.surroundings)
    with pytest.raises(LogRewritten):
        again.recorder.write(add)
    again.recorder.close()


def test_a_log_that_was_cut_off_is_not_signed(store: Store) -> None:
    shorter = Frontier(0, ()).extend([bytes(row.hash) for row in leaves_of(store)[:300]])
    with store.database.writer.begin() as connection:
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq >= 300))
        connection.execute(update(tables.log_state).values(size=300, peaks=shorter.to_bytes()))
    with pytest.raises(LogRewritten):
        store.recorder.write(add)


@pytest.mark.parametrize("note", ["forged", ""])
def test_a_forged_checkpoint_is_no_beginning(store: Store, note: str) -> None:
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.checkpoints).values(note=note))
    again = Store(store.database, store.signer, store.surroundings)
    with pytest.raises(LogRewritten):
        again.recorder.write(add)
    again.recorder.close()
    # Whoever has seen the log goes on.
    store.recorder.write(add)


def test_a_log_that_lacks_entries_is_not_signed(store: Store) -> None:
    with store.database.writer.begin() as connection:
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq == 599))
    again = Store(store.database, store.signer, store.surroundings)
    with pytest.raises(LogRewritten):
        again.recorder.write(add)
    again.recorder.close()


def test_two_processes_follow_each_other(store: Store) -> None:
    other = Store(store.database, store.signer, store.surroundings)
    for _ in range(3):
        store.recorder.write(lambda writing: add(writing, 7))
        other.recorder.write(lambda writing: add(writing, 300))
    assert len(leaves_of(store)) == ENTRIES + 1 + 3 * 307
    # What the other one adds is followed entry by entry, so its leaves must be there.
    other.recorder.write(add)
    with store.database.writer.begin() as connection:
        last = tables.log_leaves.c.seq == ENTRIES + 1 + 3 * 307
        connection.execute(update(tables.log_leaves).where(last).values(hash=bytes(32)))
    with pytest.raises(LogRewritten):
        store.recorder.write(add)
    other.recorder.close()


def test_a_running_service_notices_that_its_key_was_retired(store: Store) -> None:
    other = Store(store.database, store.signer, store.surroundings)
    new = SigningKey.generate(store.signer.name, bytes(32))

    def replace(writing: WriteTransaction) -> None:
        insert_key(
            writing,
            admit_key(store.signer, writing.now.written, store.signer.name, new.vkey, retires=store.signer.vkey),
        )

    other.recorder.write(replace)
    with pytest.raises(KeyNotAdmitted) as refused:
        store.recorder.write(add, sign_now=True)
    assert refused.value.code == "key_not_admitted"
    assert isinstance(store.recorder.blocked_by, KeyNotAdmitted)
    with pytest.raises(KeyNotAdmitted):
        store.recorder.write(add)
    other.recorder.close()


def test_another_key_does_not_stop_this_one(store: Store) -> None:
    other = Store(store.database, store.signer, store.surroundings)
    new = SigningKey.generate(store.signer.name, bytes(32))
    other.recorder.write(
        lambda writing: insert_key(writing, admit_key(store.signer, writing.now.written, store.signer.name, new.vkey))
    )
    store.recorder.write(add)
    assert store.recorder.blocked_by is None
    other.recorder.close()


@pytest.mark.parametrize("size", [0, 1, 2, 255, 256, 257, 511, 600])
def test_the_frontier_of_any_size_is_read_from_stored_hashes(store: Store, size: int) -> None:
    hashes = [bytes(row.hash) for row in leaves_of(store)]
    with store.database.reading() as connection:
        assert read_frontier(size, Tiles(connection)) == Frontier(0, ()).extend(hashes[:size])


def forged(store: Store, *places: int) -> int | None:
    """What a transaction thinks of leaves as the database has them."""
    rows = leaves_of(store)
    return store.recorder.write(
        lambda writing: find_forged_leaf(writing, [(place, bytes(rows[place].body)) for place in places])
    )


def test_leaves_are_proven_to_be_in_the_log(store: Store) -> None:
    assert forged(store) is None
    assert forged(store, 0, 255, 256, 599, 600) is None
    # Once more, from what is remembered of whole tiles.
    assert forged(store, 3, 300) is None


@pytest.mark.parametrize("place", [3, 255, 300, 599])
@pytest.mark.parametrize("remembered", [False, True])
def test_a_leaf_that_was_changed_with_its_hashes_is_found(store: Store, place: int, *, remembered: bool) -> None:
    if remembered:
        assert forged(store, 3, 255, 300, 599) is None
    rewrite(store, place, state=False)
    assert forged(store, place) == place


def test_a_leaf_with_another_body_than_its_hash_is_found(store: Store) -> None:
    with store.database.writer.begin() as connection:
        connection.execute(update(tables.log_leaves).where(tables.log_leaves.c.seq == 5).values(body=b"{}"))
    assert forged(store, 5) == 5
    with store.database.writer.begin() as connection:
        connection.execute(delete(tables.log_tiles))
    assert forged(store, 300) == 300
    rows = leaves_of(store)
    with store.database.writer.begin() as connection:
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq == 599))
    assert store.recorder.write(lambda writing: find_forged_leaf(writing, [(599, bytes(rows[599].body))])) == 599
