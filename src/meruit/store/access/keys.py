"""Keys that let callers in: shown once, kept as hashes."""

import hmac
import re
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, select, update

from meruit.errors import MeruitError, NotFound
from meruit.log.entries import ApiKeyEntry, ApiKeyRevocationEntry, api_key_sequence, read_entry
from meruit.log.note import strict_base64
from meruit.model.access import TENANT, Caller, Role
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import RowMarks
from meruit.store.signed_rows import TrustedSigners
from meruit.store.sorting import ListOrder, SortedPage, SortKey, read_sorted
from meruit.store.transaction import WriteTransaction

if TYPE_CHECKING:
    from meruit.store.store import Store

SECRET_BYTES = 32
_ID_BYTES = 6
_WRITTEN = re.compile(r"(mk_[0-9a-f]{12})\.([A-Za-z0-9_-]{43})")


class KeyRecord(Record, frozen=True):
    """A key as it is listed: everything but its secret."""

    id: str
    tenant: str
    role: Role
    name: str
    agent_id: str | None
    created_at: datetime
    expires_at: datetime | None
    revoked_at: datetime | None


class IssuedKey(Record, frozen=True):
    """A new key with its secret, which is shown this once."""

    key: KeyRecord
    secret: str


class NewKey(msgspec.Struct, frozen=True):
    """A key to be made."""

    tenant: str
    role: Role
    name: str
    agent_id: str | None
    expires_at: datetime | None
    entropy: Callable[[int], bytes]

    def __call__(self, writing: WriteTransaction) -> IssuedKey:
        """Keep its hash, answer its secret."""
        check_new_key(self)
        key_id = f"mk_{self.entropy(_ID_BYTES).hex()}"
        secret = urlsafe_b64encode(self.entropy(SECRET_BYTES)).rstrip(b"=").decode()
        expires = None if self.expires_at is None else to_micros(self.expires_at)
        writing.insert(
            tables.keys,
            id=key_id,
            secret_hash=_hash_secret(secret),
            tenant=self.tenant,
            role=self.role.value,
            name=self.name,
            agent_id=self.agent_id,
            created_at=writing.now.micros,
            expires_at=expires,
            revoked_at=None,
        )
        _log_key(writing, self, key_id, secret)
        _emit_key_event(writing, self.tenant, EventType.KEY_CREATED, key_id, self.role)
        made = KeyRecord(
            id=key_id,
            tenant=self.tenant,
            role=self.role,
            name=self.name,
            agent_id=self.agent_id,
            created_at=from_micros(writing.now.micros),
            expires_at=self.expires_at,
            revoked_at=None,
        )
        return IssuedKey(made, f"{key_id}.{secret}")


def _log_key(writing: WriteTransaction, new: NewKey, key_id: str, secret: str) -> None:
    name, created = api_key_sequence(key_id), writing.now.micros
    expires = None if new.expires_at is None else to_micros(new.expires_at)
    record = (key_id, _hash_secret(secret), new.tenant, new.role.value, new.name, new.agent_id, created, expires)
    entry = ApiKeyEntry(
        writing.now.written,
        tenant=new.tenant,
        key=key_id,
        number=1,
        role=new.role.value,
        agent=new.agent_id or "",
        digest=_digest_record(record),
        signature="",
    )
    signature = writing.signer.sign_bytes(entry.signed_content(writing.signer.name))
    writing.append(msgspec.structs.replace(entry, signature=b64encode(signature).decode()), new.tenant, name, 1)


# Any: columns of several types.
def _digest_record(record: Sequence[Any]) -> str:
    """Of a key's columns in their order; the hash of the secret among them cannot be guessed."""
    return sha256(msgspec.json.encode(record)).hexdigest()


# Any: a row of SQLAlchemy, and entries of every kind.
def differing_key_fields(row: Any, entries: Sequence[Any]) -> Iterator[str]:
    """What the row of a key says otherwise than the log's entries on it."""
    columns = (row.id, bytes(row.secret_hash), row.tenant, row.role, row.name, row.agent_id)
    made, is_revoked = (entries[0] if entries else None), len(entries) > 1
    if not isinstance(made, ApiKeyEntry):
        yield "key"
    elif made.digest != _digest_record((*columns, row.created_at, row.expires_at)):
        yield "record"
    if is_revoked != (row.revoked_at is not None):
        yield "revoked_at"


def check_new_key(new: NewKey) -> None:
    """Raise MeruitError for what cannot be a key."""
    if not TENANT.fullmatch(new.tenant):
        raise MeruitError(f"{new.tenant!r} is not a valid tenant: use a-z, 0-9, - and _, at most 63 characters")
    if (new.role is Role.AGENT) != (new.agent_id is not None):
        raise MeruitError("an agent's key names its agent (agent_id), and no other key does")


_REVOKED = RowMarks("revoked_key")


class Revoke(msgspec.Struct, frozen=True):
    """A key to be made useless; of one tenant, or of any tenant for the operator."""

    key_id: str
    tenant: str | None

    def __call__(self, writing: WriteTransaction) -> KeyRecord:
        """The key, revoked now or earlier."""
        query = select(tables.keys).where(tables.keys.c.id == self.key_id)
        if self.tenant is not None:
            query = query.where(tables.keys.c.tenant == self.tenant)
        rows = writing.read(query)
        if not rows:
            raise NotFound(f"no key {self.key_id!r}")
        if rows[0].revoked_at is None and not _REVOKED.has(writing, self.key_id):
            _REVOKED.add(writing, self.key_id)
            writing.change(
                update(tables.keys).where(tables.keys.c.id == self.key_id).values(revoked_at=writing.now.micros)
            )
            name, tenant = api_key_sequence(self.key_id), rows[0].tenant
            number = writing.next_in_contract(tenant, name)
            entry = ApiKeyRevocationEntry(writing.now.written, tenant=tenant, key=self.key_id, number=number)
            writing.append(entry, tenant, name, number)
            _emit_key_event(writing, tenant, EventType.KEY_REVOKED, self.key_id, Role(rows[0].role))
        return _key(rows[0], from_micros(rows[0].revoked_at or writing.now.micros))


def _emit_key_event(writing: WriteTransaction, tenant: str, kind: EventType, key_id: str, role: Role) -> None:
    writing.emit(tenant, kind, f"key/{key_id}", f"{key_id}:{kind}", {"key_id": key_id, "role": role})


def caller(connection: Connection, presented: str, now: datetime, trusted: TrustedSigners) -> Caller | None:
    """Whose key it is; None for anything that is not a valid key."""
    parts = _WRITTEN.fullmatch(presented)
    if parts is None:
        return None
    row = connection.execute(select(tables.keys).where(tables.keys.c.id == parts[1])).first()
    # Hashing and comparing take the same time whether or not there is such a key.
    expected = row.secret_hash if row is not None else bytes(SECRET_BYTES)
    right = hmac.compare_digest(_hash_secret(parts[2]), expected)
    if row is None or not right or row.revoked_at is not None:
        return None
    if row.expires_at is not None and to_micros(now) >= row.expires_at:
        return None
    if not is_logged_key(connection, row, trusted):
        return None
    return Caller(row.tenant, Role(row.role), row.id, row.agent_id)


# Any: a row of SQLAlchemy.
def is_logged_key(connection: Connection, row: Any, trusted: TrustedSigners) -> bool:
    """Whether the audit log has the key as its row is, signed; what a database writer adds or changes opens nothing."""
    leaves, name = tables.log_leaves, api_key_sequence(row.id)
    query = select(leaves.c.seq, leaves.c.body).where(leaves.c.tenant == row.tenant, leaves.c.contract_id == name)
    found = connection.execute(query.order_by(leaves.c.contract_seq)).all()
    try:
        entries = [read_entry(bytes(one.body)) for one in found]
    except msgspec.DecodeError:
        return False
    # A revocation may be hidden whose entry this process has seen.
    if any(differing_key_fields(row, entries)) or len(entries) < trusted.sequences.newest(row.tenant, name):
        return False
    made = entries[0]
    entry = found[0].seq, bytes(found[0].body)
    return isinstance(made, ApiKeyEntry) and _is_signed_key(connection, made, entry, trusted)


def _is_signed_key(
    connection: Connection, made: ApiKeyEntry, entry: tuple[int, bytes], trusted: TrustedSigners
) -> bool:
    """Whether a signing key of the log has signed an API key."""
    with suppress(ValueError):
        signature = strict_base64(made.signature)
        return trusted.is_signed(connection, made.signed_content(trusted.origin), signature, entry)
    return False


def any_exists(connection: Connection) -> bool:
    """Whether a key was ever made."""
    return connection.execute(select(tables.keys.c.id).limit(1)).first() is not None


KEYS_EXIST = "api-keys-exist"
"""A file of the data folder: deleting all rows of keys must not open the service again."""


def are_required(store: "Store") -> bool:
    """Whether every request needs a key: from the first key on, as the database or the data folder knows."""
    marker = store.database.location.file_about_records(KEYS_EXIST)
    if marker.exists():
        return True
    with store.database.reading() as connection:
        found = any_exists(connection)
    if found:
        # A folder that cannot be written to learns it the next time.
        with suppress(OSError):
            marker.touch()
    return found


def page(
    connection: Connection, *, tenant: str | None, after: str | None = None, limit: int = MAX_PAGE
) -> list[KeyRecord]:
    """Keys by id, of one tenant or of all."""
    query = select(tables.keys)
    if tenant is not None:
        query = query.where(tables.keys.c.tenant == tenant)
    if after is not None:
        query = query.where(tables.keys.c.id > after)
    return [_key(row) for row in connection.execute(query.order_by(tables.keys.c.id).limit(min(limit, MAX_PAGE)))]


SORTS = {
    "name": SortKey(tables.keys.c.name, str, tables.keys.c.id, str),
    "role": SortKey(tables.keys.c.role, str, tables.keys.c.id, str),
    "created": SortKey(tables.keys.c.created_at, int, tables.keys.c.id, str),
}
"""What a list of keys can be sorted by."""


def page_sorted(
    connection: Connection, order: ListOrder, *, tenant: str, limit: int = MAX_PAGE
) -> SortedPage[KeyRecord]:
    """Keys of a tenant in one of the orders SORTS."""
    query = select(tables.keys).where(tables.keys.c.tenant == tenant)
    return read_sorted(connection, query, SORTS, order, limit).convert(_key)


def _hash_secret(secret: str) -> bytes:
    # 256 random bits need no slow hash: there is nothing to guess.
    return sha256(secret.encode()).digest()


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _key(row: Any, revoked_at: datetime | None = None) -> KeyRecord:
    return KeyRecord(
        id=row.id,
        tenant=row.tenant,
        role=Role(row.role),
        name=row.name,
        agent_id=row.agent_id,
        created_at=from_micros(row.created_at),
        expires_at=None if row.expires_at is None else from_micros(row.expires_at),
        revoked_at=revoked_at or (None if row.revoked_at is None else from_micros(row.revoked_at)),
    )
