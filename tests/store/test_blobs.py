"""Evidence in files: whole, found by its content, and damage noticed."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.outcomes.making import outcome, recorded

from meruit.errors import EvidenceDamaged, StoreError, StoreUnavailable
from meruit.model.access import Scope
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.write import NewOutcome
from meruit.store import blobs
from meruit.store.blobs import INLINE_BYTES
from meruit.store.location import Location
from meruit.store.store import Store

LARGE = {"text": "x" * (INLINE_BYTES + 1)}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path_factory.mktemp("blobs")))
    yield opened
    opened.close()


@pytest.fixture
def large(tmp_path: Path) -> Iterator[tuple[Store, NewOutcome, Path]]:
    """A recorded outcome whose output lies in a file."""
    store = Store.open(Location(tmp_path))
    new = outcome(store, work_output=LARGE)
    recorded(store, new)
    yield store, new, tmp_path / "blobs" / "acme" / new.output.address[:2] / new.output.address
    store.close()


def read(store: Store, new: NewOutcome) -> bytes | None:
    with store.database.reading() as connection:
        return outcomes.evidence(connection, Scope("acme"), new.id, store.blobs).output


@settings(max_examples=20)
@given(size=st.integers(INLINE_BYTES - 3, INLINE_BYTES + 3))
def test_only_what_is_large_lies_in_a_file(store: Store, size: int) -> None:
    part = store.blobs.part("acme", b"x" * size)
    assert (part.file is not None) == (size > INLINE_BYTES)
    assert (part.blob("acme").content is None) == (part.file is not None)


def test_a_large_piece_is_a_file_of_its_content(large: tuple[Store, NewOutcome, Path]) -> None:
    store, new, file = large
    assert file.read_bytes() == new.output.content == read(store, new)
    assert [*file.parent.iterdir()] == [file]


def test_a_damaged_file_is_noticed(large: tuple[Store, NewOutcome, Path]) -> None:
    store, new, file = large
    file.write_bytes(b"y" + new.output.content[1:])
    with pytest.raises(StoreError, match="changed"):
        read(store, new)


def test_a_lost_file_is_noticed(large: tuple[Store, NewOutcome, Path]) -> None:
    store, new, file = large
    file.unlink()
    with pytest.raises(EvidenceDamaged, match=new.output.address):
        read(store, new)


def test_a_file_that_was_cut_short_is_written_again(large: tuple[Store, NewOutcome, Path]) -> None:
    store, new, file = large
    file.write_bytes(b"")
    recorded(store, outcome(store, work_output=LARGE))
    assert read(store, new) == new.output.content


def test_what_nothing_refers_to_can_be_discarded(large: tuple[Store, NewOutcome, Path]) -> None:
    store, new, file = large
    store.blobs.discard("acme", new.output.address)
    store.blobs.discard("acme", new.output.address)
    assert not file.exists()


def test_a_file_that_cannot_be_finished_leaves_nothing_behind(
    large: tuple[Store, NewOutcome, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _new, _file = large

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(blobs.os, "fsync", full)  # type: ignore[attr-defined]  # what the module imported is not its to give
    before = sorted((store.database.location.folder / "blobs").rglob("*"))
    with pytest.raises(StoreUnavailable, match="No space left"):
        store.blobs.part("acme", b"z" * (INLINE_BYTES + 1))
    after = sorted((store.database.location.folder / "blobs").rglob("*"))
    assert [path for path in after if path.is_file()] == [path for path in before if path.is_file()]
