"""Database credentials and an empty folder read a store, and sign nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select
from tests.faults.tampering import TENANT, put

from meruit.audit.check import begin_check, check_log
from meruit.audit.export import export
from meruit.audit.verify.outcome import verify_bundle
from meruit.errors import AuditStep, KeyNotAdmitted
from meruit.log.entries import KeyEntry, read_entry
from meruit.log.key_chain import ROOT
from meruit.log.note import SigningKey
from meruit.model.access import Scope
from meruit.store import tables
from meruit.store.checkpoint import checkpoint
from meruit.store.key_admission import insert_key
from meruit.store.location import Location
from meruit.store.store import Store


@pytest.fixture
def machines(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two machines on one database, each with a folder of its own."""
    one, two = (Store.open(Location(tmp_path / name, postgres_url)) for name in ("one", "two"))
    yield one, two
    one.close()
    two.close()


def codes(store: Store) -> set[str]:
    with store.database.reading() as connection:
        return {problem.code for problem in check_log(connection, begin_check(store)).problems}


def key_entries(store: Store) -> list[str]:
    with store.database.reading() as connection:
        bodies = connection.execute(select(tables.log_leaves.c.body).order_by(tables.log_leaves.c.seq)).scalars()
        entries = [read_entry(bytes(body)) for body in bodies]
    return [entry.vkey for entry in entries if isinstance(entry, KeyEntry)]


def test_a_second_machine_is_admitted_by_the_first(machines: tuple[Store, Store]) -> None:
    one, two = machines
    outcome = put(one)
    for attempt in (
        lambda: put(two),
        lambda: checkpoint(two),
        lambda: export(two, Scope(TENANT), outcome),
        two.require_admitted,
        lambda: two.admit_key(two.signer, two.signer.vkey, ""),
    ):
        with pytest.raises(KeyNotAdmitted):
            attempt()
    assert key_entries(two) == [one.signer.vkey]
    one.admit_key(one.signer, two.signer.vkey, "")
    two.admit_own_key()
    assert key_entries(one) == [one.signer.vkey, two.signer.vkey]
    # The bundle shows the chain, and both keys are in it.
    bundle = export(two, Scope(TENANT), put(two))
    assert verify_bundle(bundle, key=two.signer.verifier).failed is None
    assert codes(one) == set()
    with pytest.raises(KeyNotAdmitted):
        one.admit_key(one.signer, two.signer.vkey, "")


def test_a_key_that_was_written_into_the_database_is_refused(machines: tuple[Store, Store]) -> None:
    """An insider appends an entry for a key of his own, with every hash right."""
    one, two = machines
    outcome = put(one)
    two.recorder.refuse_writes(None)
    two.recorder.write(lambda writing: insert_key(writing, KeyEntry(writing.now.written, two.signer.vkey)))
    two.recorder.write(lambda _: None, sign_now=True)
    assert codes(one) == {"key", "checkpoint", "root"}
    two.admit_own_key()
    with pytest.raises(KeyNotAdmitted):
        two.require_admitted()
    two._refusal = None
    assert verify_bundle(export(two, Scope(TENANT), outcome)).failed is AuditStep.SEQUENCE


def test_a_lost_key_is_replaced_by_the_root_only(tmp_path: Path) -> None:
    root = SigningKey.generate("meruit-root", bytes(32))
    store = Store.open(Location(tmp_path))
    store.admit_key(store.signer, root.vkey, "", role=ROOT)
    lost = store.signer.vkey
    store.close()
    (tmp_path / "audit-key.pem").unlink()
    store = Store.open(Location(tmp_path), new_key=True)
    with pytest.raises(KeyNotAdmitted):
        store.admit_key(SigningKey.generate("meruit-root", bytes([1] * 32)), store.signer.vkey, "")
    store.admit_key(root, store.signer.vkey, lost)
    put(store)
    store.recorder.write(lambda _: None, sign_now=True)
    assert not store.key_chain().is_in_force(lost)
    assert codes(store) == set()
    store.close()
