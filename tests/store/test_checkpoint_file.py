"""A new process notices a log that lost its end: the data folder knows how far it came."""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, update

from meruit.audit.check import check_store
from meruit.errors import KeptCheckpointDamaged, LogRewritten, LogRolledBack
from meruit.log.entries import CriteriaEntry
from meruit.log.merkle import Frontier
from meruit.log.note import Checkpoint, SigningKey, open_checkpoint
from meruit.store import tables
from meruit.store.checkpoint_file import CheckpointFile
from meruit.store.location import Location
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction, sign_frontier

OTHER = Frontier(0, ()).extend([bytes(32)])


def add(writing: WriteTransaction, count: int = 1) -> None:
    for number in range(count):
        writing.append(CriteriaEntry(writing.now.written, "acme", f"{number:064x}"), "acme")


def frontier_of(store: Store, size: int) -> Frontier:
    leaves = tables.log_leaves
    with store.database.reading() as connection:
        hashes = connection.execute(select(leaves.c.hash).where(leaves.c.seq < size).order_by(leaves.c.seq)).scalars()
        return Frontier(0, ()).extend([bytes(one) for one in hashes])


def cut(store: Store, size: int) -> None:
    """Delete the newest entries with all that speaks of them, as a database writer can."""
    left = frontier_of(store, size)
    with store.database.writer.begin() as connection:
        connection.execute(delete(tables.log_leaves).where(tables.log_leaves.c.seq >= size))
        connection.execute(delete(tables.checkpoints).where(tables.checkpoints.c.size > size))
        connection.execute(delete(tables.log_tiles).where((tables.log_tiles.c.seq + 1) * 256 > size))
        connection.execute(update(tables.log_state).values(size=size, peaks=left.to_bytes()))


@pytest.fixture
def location(store_location: Location) -> Location:
    """A store of 301 entries, of which 201 are signed by a checkpoint."""
    made = Store.open(store_location)
    made.recorder.write(lambda writing: add(writing, 200), sign_now=True)
    made.recorder.write(lambda writing: add(writing, 100))
    made.close()
    return store_location


@pytest.fixture
def again(location: Location) -> Iterator[Store]:
    """The store as a new process opens it."""
    opened = Store.open(location)
    yield opened
    opened.close()


@pytest.mark.parametrize("size", [1, 200, 201, 300])
def test_a_new_process_notices_that_the_end_is_gone(location: Location, size: int) -> None:
    insider = Store.open(location)
    cut(insider, size)
    insider.close()
    opened = Store.open(location)
    with pytest.raises(LogRolledBack) as refused:
        opened.recorder.write(add, sign_now=True)
    assert (refused.value.code, refused.value.status) == ("log_rolled_back", 503)
    with opened.database.reading() as connection:
        assert opened.read_signing(connection).code == "log_rolled_back"
    opened.close()
    # It is not forgotten by closing the store.
    kept = CheckpointFile(location).read()
    assert kept is not None
    assert kept.size == 301


def test_a_log_that_grew_elsewhere_is_followed(again: Store, tmp_path: Path) -> None:
    before = CheckpointFile(again.database.location).read()
    again.recorder.write(lambda writing: add(writing, 300))
    again.close()
    kept = CheckpointFile(again.database.location).read()
    assert before is not None
    assert kept is not None
    assert (before.size, kept.size, kept.root) == (301, 601, frontier_of(again, 601).root())


def test_the_kept_checkpoint_is_signed(again: Store) -> None:
    note = CheckpointFile(again.database.location).path.read_text()
    found = open_checkpoint(note, again.signer.verifier)
    assert (found.origin, found.size, found.root) == (again.signer.name, 301, frontier_of(again, 301).root())


def test_a_shorter_checkpoint_does_not_replace_a_longer_one(again: Store) -> None:
    file = CheckpointFile(again.database.location)
    file.keep(200, sign_frontier(again.signer, frontier_of(again, 200)))
    kept = file.read()
    assert kept is not None
    assert kept.size == 301


def test_another_history_of_the_same_length_is_refused(again: Store) -> None:
    """The writer of the database replaces what no checkpoint in the database signs."""
    cut(again, 201)
    with again.database.writer.begin() as connection:
        state = connection.execute(select(tables.log_state)).one()
        longer = Frontier.from_bytes(201, bytes(state.peaks)).extend([bytes(32)] * 100)
        rows: list[dict[str, Any]] = [
            {"seq": 201 + one, "hash": bytes(32), "tenant": "", "body": b"{}"} for one in range(100)
        ]
        connection.execute(tables.log_leaves.insert(), rows)
        tile = Frontier(0, ()).extend(
            [bytes(one) for one in connection.execute(select(tables.log_leaves.c.hash).limit(256)).scalars()]
        )
        connection.execute(tables.log_tiles.insert().values(level=1, seq=0, hash=tile.root()))
        connection.execute(update(tables.log_state).values(size=301, peaks=longer.to_bytes()))
    with pytest.raises(LogRewritten) as refused:
        again.recorder.write(add)
    assert refused.value.code == "log_rewritten"


def test_the_log_of_another_database_is_refused(again: Store) -> None:
    file = CheckpointFile(again.database.location)
    file.path.unlink()
    file.keep(1, sign_frontier(SigningKey.generate("meruit-other", bytes(32)), OTHER))
    with pytest.raises(LogRewritten):
        again.recorder.write(add)


def test_an_empty_file_is_begun_again(again: Store) -> None:
    file = CheckpointFile(again.database.location)
    file.path.write_text("")
    again.recorder.write(add, sign_now=True)
    kept = file.read()
    assert kept is not None
    assert kept.size == 302


@pytest.mark.parametrize("content", [b"nothing\n", bytes(200), b"\xff"])
def test_a_file_that_is_not_a_checkpoint_is_refused(again: Store, content: bytes) -> None:
    file = CheckpointFile(again.database.location)
    file.path.write_bytes(content)
    with pytest.raises(KeptCheckpointDamaged) as refused:
        again.recorder.write(add)
    assert (refused.value.code, refused.value.status) == ("kept_checkpoint_damaged", 503)
    # No client learns where the files of the server are.
    assert str(file.path) not in refused.value.client_detail
    with again.database.reading() as connection:
        assert again.read_signing(connection).code == "kept_checkpoint_damaged"
        file.path.unlink()
        again.recorder.write(add)
        assert again.read_signing(connection).code == "ok"


def test_a_file_that_cannot_be_kept_is_reported_once(again: Store, caplog: pytest.LogCaptureFixture) -> None:
    file = CheckpointFile(again.database.location)
    file.path.write_text("nothing\n")
    for size in (400, 500):
        file.keep(size, "note")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert file.path.read_text() == "nothing\n"


def test_processes_do_not_replace_a_longer_checkpoint_with_a_shorter_one(tmp_path: Path) -> None:
    signer = SigningKey.generate("meruit-log", bytes(32))
    notes = {size: signer.sign(Checkpoint(signer.name, size, bytes(32)).text()) for size in range(1, 201)}

    def keep(size: int) -> None:
        CheckpointFile(Location(tmp_path)).keep(size, notes[size])

    with ThreadPoolExecutor(4) as processes:
        list(processes.map(keep, random.Random(1).sample([*notes], len(notes))))
    kept = CheckpointFile(Location(tmp_path)).read()
    assert kept is not None
    assert kept.size == 200
    assert [one.name for one in tmp_path.iterdir()] == ["last-checkpoint.txt"]


def test_a_process_that_ends_late_does_not_bring_back_what_was_set_aside(location: Location) -> None:
    running = Store.open(location)
    running.recorder.write(lambda writing: add(writing, 5), sign_now=True)
    running.recorder.write(add)
    insider = Store.open(location)
    cut(insider, 201)
    insider.close()
    file = CheckpointFile(location)
    aside = [file.set_aside()]
    running.close()
    assert file.read() is None
    file.keep(306, aside[0].read_text())
    aside.append(file.set_aside())
    assert len({*aside}) == 2


def test_a_file_that_cannot_be_written_costs_no_record(again: Store) -> None:
    file = CheckpointFile(again.database.location)
    file.path.unlink()
    file.path.mkdir()
    file.keep(1, "note")
    assert file.path.is_dir()


def test_each_database_of_a_server_has_a_file_of_its_own(tmp_path: Path) -> None:
    urls = (None, "postgresql://me:one@host/a", "postgresql://me:two@host/a", "postgresql://host/b")
    one, two, same, other = (CheckpointFile(Location(tmp_path, url)).path for url in urls)
    assert two == same
    assert len({one, two, other}) == 3


def test_the_check_names_an_end_that_is_gone(location: Location) -> None:
    opened = Store.open(location)
    cut(opened, 200)
    assert ("checkpoint", "data folder") in {(one.code, one.where) for one in check_store(opened).problems}
    opened.close()


def test_the_check_names_another_history(again: Store) -> None:
    file = CheckpointFile(again.database.location)
    file.path.unlink()
    file.keep(1, sign_frontier(again.signer, OTHER))
    found = {(one.code, one.where) for one in check_store(again).problems if one.code != "row"}
    assert found == {("checkpoint", "data folder")}


@pytest.mark.parametrize("seq", [-1, 10_000])
def test_the_check_names_a_leaf_beyond_the_end(again: Store, seq: int) -> None:
    row = {"seq": seq, "hash": bytes(32), "tenant": "", "body": b"{}"}
    with again.database.writer.begin() as connection:
        connection.execute(tables.log_leaves.insert().values(**row))
    assert ("leaf", str(seq)) in {(one.code, one.where) for one in check_store(again).problems}
