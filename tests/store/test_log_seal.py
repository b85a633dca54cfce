"""Entries that a database writer adds, with all hashes right, are not taken for the service's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select, update

from meruit.audit.check import check_store
from meruit.errors import KeyNotAdmitted, LogRewritten
from meruit.log.entries import CriteriaEntry, KeyEntry, entry_bytes
from meruit.log.key_chain import ROOT, admit_key
from meruit.log.merkle import Frontier, leaf_hash
from meruit.log.note import SigningKey
from meruit.store import tables
from meruit.store.checkpoint_file import CheckpointFile
from meruit.store.location import KEY_FILE, Location
from meruit.store.log_seal import seal_end
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

AT = "2026-01-01T00:00:00Z"


def add(writing: WriteTransaction, count: int = 1) -> None:
    for number in range(count):
        writing.append(CriteriaEntry(writing.now.written, "acme", f"{number:064x}"), "acme")


def forge(store: Store, seal: bytes | None = None, *entries: Any) -> Frontier:
    """Append entries as a database writer can; the end of the log afterwards."""
    bodies = [*map(entry_bytes, entries or [CriteriaEntry(AT, "acme", "f" * 64)])]
    with store.database.writer.begin() as connection:
        state = connection.execute(select(tables.log_state)).one()
        end = Frontier.from_bytes(state.size, bytes(state.peaks))
        for place, body in enumerate(bodies):
            seq, hashed = state.size + place, leaf_hash(body)
            tenant = "" if b'"kind":"key"' in body else "acme"
            connection.execute(insert(tables.log_leaves).values(seq=seq, hash=hashed, tenant=tenant, body=body))
            end = end.extend([hashed])
        new = {"size": end.size, "peaks": end.to_bytes()} | ({} if seal is None else {"seal": seal})
        connection.execute(update(tables.log_state).values(**new))
    return end


def seal_of(store: Store) -> bytes:
    with store.database.reading() as connection:
        return bytes(connection.execute(select(tables.log_state.c.seal)).scalar_one())


@pytest.mark.parametrize("seal", [None, b"", b"c" + bytes(32), b"s" + bytes(64), b"x"])
def test_entries_that_a_database_writer_adds_are_refused(store: Store, seal: bytes | None) -> None:
    """By the process that runs, by the next one, and by the check."""
    store.recorder.write(add, sign_now=True)
    forge(store, seal)
    again = Store(store.database, store.signer, store.surroundings)
    for one in (store, again):
        with pytest.raises(LogRewritten) as refused:
            one.recorder.write(add, sign_now=True)
        assert refused.value.code == "log_rewritten"
    again.recorder.close()
    assert ("root", "3") in {(one.code, one.where) for one in check_store(store).problems}


def test_the_seal_of_another_key_is_refused(store: Store) -> None:
    mine = SigningKey.generate(store.signer.name, bytes(32))
    end = forge(store)
    for is_shared in (False, True):
        seal = seal_end(mine, end, is_shared=is_shared)
        with store.database.writer.begin() as connection:
            connection.execute(update(tables.log_state).values(seal=seal))
        with pytest.raises(LogRewritten):
            store.recorder.write(add)


def test_processes_of_one_folder_follow_each_other(store: Store) -> None:
    other = Store(store.database, store.signer, store.surroundings)
    for one in (store, other, store, other):
        one.recorder.write(add)
    assert seal_of(store)[:1] == b"c"
    assert ("root", "5") not in {(one.code, one.where) for one in check_store(store).problems}
    other.recorder.close()


def test_the_end_is_sealed_where_all_checkpoints_are_deleted(store: Store) -> None:
    store.recorder.write(add)
    with store.database.writer.begin() as connection:
        connection.execute(tables.checkpoints.delete())
    CheckpointFile(store.database.location).path.unlink()
    again = Store(store.database, store.signer, store.surroundings)
    again.recorder.write(add)
    forge(store)
    with pytest.raises(LogRewritten):
        again.recorder.write(add)
    again.recorder.close()


@pytest.fixture
def machines(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two machines on one database, of which the second is not admitted."""
    one, two = (Store.open(Location(tmp_path / name, postgres_url)) for name in ("one", "two"))
    yield one, two
    one.close()
    two.close()


def test_machines_with_keys_of_their_own_follow_each_other(machines: tuple[Store, Store]) -> None:
    one, two = machines
    one.recorder.write(add)
    assert seal_of(one)[:1] == b"c"
    with pytest.raises(KeyNotAdmitted):
        two.require_known_log()
    one.admit_key(one.signer, two.signer.vkey, "")
    assert seal_of(one)[:1] == b"s"
    two.admit_own_key()
    again = Store(two.database, two.signer, two.surroundings)
    for machine in (two, one, again, one, two):
        machine.recorder.write(lambda writing: add(writing, 3))
        assert seal_of(one)[:1] == b"s"
        assert not [found for found in check_store(machine).problems if found.code != "row"]
    forge(one)
    for machine in (one, two, again):
        with pytest.raises(LogRewritten):
            machine.recorder.write(add)
    again.recorder.close()


def test_a_machine_that_was_retired_seals_nothing(machines: tuple[Store, Store]) -> None:
    one, two = machines
    one.admit_key(one.signer, two.signer.vkey, "")
    two.admit_own_key()
    two.recorder.write(add)
    root = SigningKey.generate("meruit-root", bytes(range(32)))
    one.admit_key(one.signer, root.vkey, "", role=ROOT)
    third = SigningKey.generate(one.signer.name, bytes(32))
    one.admit_key(root, third.vkey, two.signer.vkey)
    one.recorder.write(add)
    with pytest.raises(KeyNotAdmitted):
        two.recorder.write(add)
    end = forge(one)
    with one.database.writer.begin() as connection:
        connection.execute(update(tables.log_state).values(seal=seal_end(two.signer, end, is_shared=True)))
    with pytest.raises(LogRewritten):
        one.recorder.write(add)


def test_a_key_that_an_insider_admits_seals_nothing(machines: tuple[Store, Store]) -> None:
    one, _ = machines
    mine = SigningKey.generate(one.signer.name, bytes(32))
    for entry in (KeyEntry(AT, mine.vkey), admit_key(mine, AT, one.signer.name, mine.vkey)):
        end = forge(one, None, entry)
        with one.database.writer.begin() as connection:
            seq = end.size - 1
            connection.execute(insert(tables.log_keys).values(vkey=f"{mine.vkey}{seq}", seq=seq, at=1))
            connection.execute(update(tables.log_state).values(seal=seal_end(mine, end, is_shared=True)))
        with pytest.raises(LogRewritten):
            one.recorder.write(add)


@pytest.mark.parametrize("way", ["rotated", "lost"])
def test_a_key_that_was_replaced_goes_on(tmp_path: Path, way: str) -> None:
    location = Location(tmp_path)
    store = Store.open(location)
    root = SigningKey.generate("meruit-root", bytes(range(32)))
    store.admit_key(store.signer, root.vkey, "", role=ROOT)
    again = Store(store.database, store.signer, store.surroundings)
    again.recorder.write(add)
    again.recorder.close()
    if way == "rotated":
        made = SigningKey.generate(store.signer.name, bytes(32))
        store.admit_key(store.signer, made.vkey, store.signer.vkey)
        store.close()
        (tmp_path / KEY_FILE).write_bytes(made.to_pem())
    else:
        store.close()
        (tmp_path / KEY_FILE).unlink()
        replaced = Store.open(location, new_key=True)
        replaced.admit_key(root, replaced.signer.vkey, "")
        replaced.close()
    for _ in range(3):
        following = Store.open(location)
        following.recorder.write(add)
        assert not [found for found in check_store(following).problems if found.code != "row"]
        following.close()
