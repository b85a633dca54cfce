"""A session and an API key open the service only if a key that signs the log has signed them."""

import os
from base64 import b64encode
from collections.abc import Iterator
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sqlalchemy import insert, select, update

from meruit.audit.check import check_store
from meruit.log.entries import ApiKeyEntry, KeyEntry, api_key_sequence, entry_bytes, read_entry
from meruit.log.key_chain import ROOT, admit_key
from meruit.log.merkle import leaf_hash
from meruit.log.note import SigningKey
from meruit.model.access import Caller, Role
from meruit.store import tables
from meruit.store.access import keys, sessions
from meruit.store.access.keys import NewKey
from meruit.store.access.sessions import EndSession, NewSession
from meruit.store.location import KEY_FILE, Location
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

TENANT = "acme"
TOKEN = "x" * 43


def begin(store: Store, role: Role = Role.OPERATOR) -> tuple[Caller, str]:
    """A caller with a key, and the token of a session."""
    agent = "robot" if role is Role.AGENT else None
    made = store.recorder.write(NewKey(TENANT, role, "a key", agent, None, os.urandom)).key
    who = Caller(TENANT, role, made.id, agent)
    return who, store.recorder.write(NewSession(who, os.urandom)).token


def opened(store: Store, token: str, after: timedelta = timedelta()) -> Caller | None:
    with store.database.reading() as connection:
        return sessions.caller(connection, token, store.surroundings.clock() + after, store.trusted)


def let_in(store: Store, secret: str) -> Caller | None:
    with store.database.reading() as connection:
        return keys.caller(connection, secret, store.surroundings.clock(), store.trusted)


def execute(store: Store, *statements: Any) -> None:
    """What a database writer does."""
    with store.database.writer.begin() as connection:
        for statement in statements:
            connection.execute(statement)


def test_a_session_opens_what_its_key_may(store: Store) -> None:
    for role in Role:
        who, token = begin(store, role)
        assert opened(store, token) == who
        assert opened(store, token, sessions.LASTS) is None
        store.recorder.write(EndSession(token))
        assert opened(store, token) is None


def test_a_session_that_a_database_writer_inserts_opens_nothing(store: Store) -> None:
    who, token = begin(store, Role.ADMIN)
    with store.database.reading() as connection:
        row = connection.execute(select(tables.sessions)).one()._asdict()
    forged = row | {"token_hash": sha256(TOKEN.encode()).digest()}
    execute(store, insert(tables.sessions).values(**forged))
    assert opened(store, TOKEN) is None
    assert opened(store, token) == who


@pytest.mark.parametrize("column", ["token_hash", "key_id", "created_at", "expires_at", "signature"])
def test_a_session_that_a_database_writer_changes_opens_nothing(store: Store, column: str) -> None:
    who, token = begin(store)
    assert opened(store, token) == who
    admin, _ = begin(store, Role.ADMIN)
    changed: dict[str, Any] = {
        "token_hash": sha256(TOKEN.encode()).digest(),
        "key_id": admin.key_id,
        "created_at": 1,
        "expires_at": 2**60,
        "signature": bytes(64),
    }
    own = tables.sessions.c.token_hash == sha256(token.encode()).digest()
    execute(store, update(tables.sessions).where(own).values({column: changed[column]}))
    assert opened(store, TOKEN if column == "token_hash" else token) is None


@pytest.mark.parametrize("column", ["role", "tenant", "agent_id"])
def test_a_session_whose_key_was_changed_opens_nothing(store: Store, column: str) -> None:
    _, token = begin(store)
    execute(store, update(tables.keys).values({column: "emperor"}))
    assert opened(store, token) is None


def forge_key(store: Store, signature: str | SigningKey, **changed: Any) -> str:
    """Insert a row and an entry for an admin's key, with every hash right; with `over`, in place of that entry."""
    key_id, record = "mk_0123456789ab", sha256(TOKEN.encode()).digest()
    row = {"id": key_id, "secret_hash": record, "tenant": TENANT, "role": "admin", "name": "mine", "created_at": 1}
    columns = (key_id, record, TENANT, "admin", "mine", None, 1, None)
    entry = ApiKeyEntry(
        "2026-01-01T00:00:00Z",
        tenant=TENANT,
        key=key_id,
        number=1,
        role="admin",
        agent="",
        digest=sha256(msgspec.json.encode(columns)).hexdigest(),
        signature=signature if isinstance(signature, str) else "",
    )
    if isinstance(signature, SigningKey):
        signed = b64encode(signature.sign_bytes(entry.signed_content(store.signer.name))).decode()
        entry = msgspec.structs.replace(entry, signature=signed)
    name, over = api_key_sequence(key_id), changed.pop("over", None)

    def append(writing: WriteTransaction) -> None:
        writing.insert(tables.keys, **row, agent_id=None, expires_at=None, revoked_at=None)
        writing.append(entry, TENANT, name, 1)

    if not changed and over is None:
        store.recorder.write(append)
    else:
        body = entry_bytes(entry)
        leaf = {"hash": leaf_hash(body), "tenant": TENANT, "contract_id": name, "contract_seq": 1, "body": body}
        if over is not None:
            execute(store, tables.log_leaves.delete().where(tables.log_leaves.c.seq == over))
            leaf["seq"] = over
        execute(store, insert(tables.keys).values(**row), insert(tables.log_leaves).values(**leaf, **changed))
    return f"{key_id}.{TOKEN}"


@pytest.mark.parametrize("place", [{}, {"seq": -1}, {"seq": 10_000}])
@pytest.mark.parametrize("signature", ["", "no base64", "A" * 86 + "=="])
def test_a_key_that_a_database_writer_adds_to_the_log_opens_nothing(
    store: Store, signature: str, place: dict[str, int]
) -> None:
    begin(store)
    secret = forge_key(store, signature, **place)
    assert let_in(store, secret) is None
    assert {"key"} <= {one.code for one in check_store(store).problems} or place


def test_the_signature_of_another_key_opens_nothing(store: Store) -> None:
    begin(store, Role.ADMIN)
    with store.database.reading() as connection:
        bodies = connection.execute(select(tables.log_leaves.c.body)).scalars().all()
    (made,) = [one for one in map(read_entry, map(bytes, bodies)) if isinstance(one, ApiKeyEntry)]
    assert let_in(store, forge_key(store, made.signature)) is None
    assert [one.code for one in check_store(store).problems] == ["key"]


@pytest.mark.parametrize("place", [{"seq": -1}, {"seq": 10_000}, {"over": 1}, {"over": 3}])
def test_a_leaked_key_that_was_retired_makes_no_api_keys(tmp_path: Path, place: dict[str, int]) -> None:
    store = Store.open(Location(tmp_path))
    leaked, root = store.signer, SigningKey.generate("meruit-root", bytes(range(32)))
    store.admit_key(leaked, root.vkey, "", role=ROOT)
    made = store.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    store.recorder.write(NewKey(TENANT, Role.ADMIN, "another key", None, None, os.urandom))
    other = SigningKey.generate(leaked.name, bytes(32))
    store.admit_key(root, other.vkey, leaked.vkey)
    store.close()
    (tmp_path / KEY_FILE).write_bytes(other.to_pem())
    again = Store.open(Location(tmp_path))
    again.require_known_log()
    # What it signed in its time opens the service as before.
    assert let_in(again, made.secret) is not None
    assert let_in(again, forge_key(again, leaked, **place)) is None
    again.close()


def test_a_hidden_revocation_does_not_bring_a_key_back(store: Store) -> None:
    made = store.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    assert let_in(store, made.secret) is not None
    store.recorder.write(keys.Revoke(made.key.id, None))
    leaves, name = tables.log_leaves, api_key_sequence(made.key.id)
    hidden = update(leaves).where(leaves.c.contract_id == name, leaves.c.contract_seq == 2)
    execute(store, hidden.values(contract_id=None, contract_seq=None), update(tables.keys).values(revoked_at=None))
    assert let_in(store, made.secret) is None


def test_a_deleted_key_is_named(store: Store) -> None:
    made = store.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    execute(store, tables.keys.delete())
    assert [(one.code, one.where) for one in check_store(store).problems] == [("row", f"keys {made.key.id}")]


@pytest.fixture
def machines(postgres_url: str, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two machines on one database; the first admits the key of the second."""
    one, two = (Store.open(Location(tmp_path / name, postgres_url)) for name in ("one", "two"))
    one.admit_key(one.signer, two.signer.vkey, "")
    two.admit_own_key()
    two.require_known_log()
    yield one, two
    one.close()
    two.close()


def test_machines_open_what_others_signed(machines: tuple[Store, Store]) -> None:
    one, two = machines
    made = one.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    who = Caller(TENANT, Role.ADMIN, made.key.id, None)
    token = two.recorder.write(NewSession(who, os.urandom)).token
    for machine in machines:
        machine.require_known_log()
        assert let_in(machine, made.secret) == who
        assert opened(machine, token) == who


def test_a_retired_machine_opens_no_new_session(machines: tuple[Store, Store]) -> None:
    one, two = machines
    who, token = begin(two)
    one.require_known_log()
    assert opened(one, token) == who
    made = two.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    two.admit_key(two.signer, SigningKey.generate(two.signer.name, bytes(32)).vkey, two.signer.vkey)
    one.require_known_log()
    # Keys of its time are valid, its sessions are not: the browser signs in again.
    assert let_in(one, made.secret) == Caller(TENANT, Role.ADMIN, made.key.id, None)
    assert opened(one, token) is None
    assert check_store(one).sound


def test_a_chain_that_a_database_writer_rewrote_admits_nothing(machines: tuple[Store, Store]) -> None:
    """The first key of the log is replaced by the insider's, who admits the others again."""
    one, _ = machines
    mine = SigningKey.generate(one.signer.name, bytes(32))
    who, _ = begin(one)
    bodies = {
        0: KeyEntry("2026-01-01T00:00:00Z", mine.vkey),
        1: admit_key(mine, "2026-01-01T00:00:00Z", one.signer.name, one.signer.vkey),
    }
    for seq, entry in bodies.items():
        leaf = tables.log_leaves.c.seq == seq
        execute(one, update(tables.log_leaves).where(leaf).values(body=entry_bytes(entry)))
    name, ends = sha256(TOKEN.encode()).digest(), 2**60
    content = sessions._signed_content(one.signer.name, name, (who.key_id, TENANT, who.role.value, None), 1, ends)
    row = {"token_hash": name, "key_id": who.key_id, "created_at": 1, "expires_at": ends}
    execute(one, insert(tables.sessions).values(**row, signature=mine.sign_bytes(content)))
    for machine in machines:
        assert opened(machine, TOKEN) is None


def test_a_reader_of_an_older_log_does_not_make_keys_forgotten(machines: tuple[Store, Store]) -> None:
    one, two = machines
    made = two.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    again = Store(one.database, one.signer, one.surroundings)
    again.require_known_log()
    with again.database.reading() as older:
        older.execute(select(tables.log_state)).one()
        begin(again)
        assert keys.caller(older, made.secret, again.surroundings.clock(), again.trusted) is not None
    assert let_in(again, made.secret) is not None
    begin(two)
    begin(again)
    again.recorder.close()


def test_keys_of_others_wait_for_the_log_to_be_followed(machines: tuple[Store, Store]) -> None:
    one, two = machines
    made = one.recorder.write(NewKey(TENANT, Role.ADMIN, "a key", None, None, os.urandom))
    again = Store(two.database, two.signer, two.surroundings)
    assert let_in(again, made.secret) is None
    again.require_known_log()
    assert let_in(again, made.secret) is not None
    execute(one, tables.log_leaves.delete().where(tables.log_leaves.c.seq == 2))
    assert let_in(again, made.secret) is None
    again.recorder.close()


def test_deleted_keys_do_not_open_the_service_again(store: Store) -> None:
    assert not keys.are_required(store)
    begin(store)
    assert keys.are_required(store)
    execute(store, tables.keys.delete())
    assert keys.are_required(store)
