"""Requests that may arrive twice: one effect, one reply, stored in the transaction of the write itself."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Select, bindparam, delete, select, update

from meruit.errors import IdempotencyConflict, KeyInUse
from meruit.store import tables
from meruit.store.recorder import Write
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

T = TypeVar("T")
RUNNING = 0
"""The status of a key that is reserved, and has no reply yet."""
CLAIM_S = 600
"""How long a key stays reserved if its process dies."""
_IN_USE = "a request with this Idempotency-Key is being served; retry in a moment"


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request that may arrive twice."""

    key: str
    fingerprint: str
    """A hash of the request: the same key with another fingerprint is a conflict."""
    status: int
    """The HTTP status of its reply."""


@dataclass(frozen=True, slots=True)
class IdempotentReplay:
    """The reply to the first request with this key."""

    status: int
    reply: bytes


@dataclass(frozen=True, slots=True)
class _StoredReply:
    fingerprint: str
    replay: IdempotentReplay


_REPLIES = Rows[_StoredReply]("reply")
_CLAIMS = Rows[str]("claimed_key")


@dataclass(frozen=True, slots=True)
class IdempotentWrite(Generic[T]):
    """A write that takes effect once, and whose reply becomes durable together with it."""

    tenant: str
    request: IdempotentRequest
    write: Write[T]
    render: Callable[[T], bytes]
    """Turns what the write returns into the reply that is stored."""

    def __call__(self, writing: WriteTransaction, /) -> T | IdempotentReplay:
        """Write, and store the reply; return the stored reply instead when the key was used before."""
        before = _find_stored(writing, self.tenant, self.request)
        if before is not None:
            return before
        written = self.write(writing)
        _store_reply(writing, self.tenant, self.request, self.render(written))
        return written


@dataclass(frozen=True, slots=True)
class ClaimKey:
    """Reserve a key over all processes, before an effect that takes several transactions."""

    tenant: str
    request: IdempotentRequest

    def __call__(self, writing: WriteTransaction, /) -> IdempotentReplay | None:
        """Reserve the key; return the stored reply when it was used before. Raises KeyInUse while it is reserved."""
        table = tables.idempotency
        rows = writing.read(
            select(table.c.fingerprint, table.c.status, table.c.reply, table.c.created_at).where(
                table.c.tenant == self.tenant, table.c.key == self.request.key
            )
        )
        # Another request of the same group is not in the table yet.
        if _CLAIMS.get(writing, self.tenant, self.request.key) is not None:
            raise KeyInUse(_IN_USE)
        _CLAIMS.put(writing, self.request.fingerprint, self.tenant, self.request.key)
        if not rows:
            writing.insert(
                table,
                tenant=self.tenant,
                key=self.request.key,
                fingerprint=self.request.fingerprint,
                status=RUNNING,
                reply=b"",
                created_at=writing.now.micros,
            )
            return None
        row = rows[0]
        found = _check_fingerprint(self.request, _StoredReply(row.fingerprint, IdempotentReplay(row.status, row.reply)))
        if found.status != RUNNING:
            return found
        if writing.now.micros - row.created_at < CLAIM_S * 1_000_000:
            raise KeyInUse(_IN_USE)
        # The process that reserved it is gone.
        writing.change(_RENEW, of_tenant=self.tenant, of_key=self.request.key, new_time=writing.now.micros)
        return None


@dataclass(frozen=True, slots=True)
class CompleteKey:
    """Store the reply of a reserved key."""

    tenant: str
    request: IdempotentRequest
    reply: bytes

    def __call__(self, writing: WriteTransaction, /) -> None:
        """Store the reply."""
        replace_reply(writing, self.tenant, self.request.key, IdempotentReplay(self.request.status, self.reply))


@dataclass(frozen=True, slots=True)
class ReleaseKey:
    """Free a reserved key whose request failed."""

    tenant: str
    request: IdempotentRequest

    def __call__(self, writing: WriteTransaction, /) -> None:
        """Delete the reservation; a stored reply stays."""
        writing.change(_RELEASE, of_tenant=self.tenant, of_key=self.request.key, of_status=RUNNING)


def find_replay(connection: Connection, tenant: str, request: IdempotentRequest) -> IdempotentReplay | None:
    """Find the stored reply to this request; raises IdempotencyConflict when the key belongs to another request."""
    row = connection.execute(_select_reply(tenant, request.key)).first()
    if row is None:
        return None
    stored = _check_fingerprint(request, _StoredReply(row.fingerprint, IdempotentReplay(row.status, row.reply)))
    # Whether a reserved key is still in use is for ClaimKey to say.
    return None if stored.status == RUNNING else stored


def replace_reply(writing: WriteTransaction, tenant: str, key: str, replay: IdempotentReplay) -> None:
    """Store another reply for this key, because the first one quotes evidence that is now erased."""
    writing.change(_REPLACE, of_tenant=tenant, of_key=key, new_status=replay.status, new_reply=replay.reply)


def _find_stored(writing: WriteTransaction, tenant: str, request: IdempotentRequest) -> IdempotentReplay | None:
    stored = _REPLIES.get(writing, tenant, request.key)
    if stored is None:
        rows = writing.read(_select_reply(tenant, request.key))
        stored = _StoredReply(rows[0].fingerprint, IdempotentReplay(rows[0].status, rows[0].reply)) if rows else None
    return None if stored is None else _check_fingerprint(request, stored)


def _store_reply(writing: WriteTransaction, tenant: str, request: IdempotentRequest, reply: bytes) -> None:
    writing.insert(
        tables.idempotency,
        tenant=tenant,
        key=request.key,
        fingerprint=request.fingerprint,
        status=request.status,
        reply=reply,
        created_at=writing.now.micros,
    )
    stored = _StoredReply(request.fingerprint, IdempotentReplay(request.status, reply))
    _REPLIES.put(writing, stored, tenant, request.key)


def _check_fingerprint(request: IdempotentRequest, stored: _StoredReply) -> IdempotentReplay:
    if stored.fingerprint != request.fingerprint:
        raise IdempotencyConflict("this Idempotency-Key was used for another request; use a new one for a new request")
    return stored.replay


# Any: SQLAlchemy's query carries no type of its rows here.
def _select_reply(tenant: str, key: str) -> Select[Any]:
    table = tables.idempotency
    return select(table.c.fingerprint, table.c.status, table.c.reply).where(
        table.c.tenant == tenant, table.c.key == key
    )


_OF_KEY = (tables.idempotency.c.tenant == bindparam("of_tenant"), tables.idempotency.c.key == bindparam("of_key"))
_RENEW = update(tables.idempotency).where(*_OF_KEY).values(created_at=bindparam("new_time"))
_RELEASE = delete(tables.idempotency).where(*_OF_KEY, tables.idempotency.c.status == bindparam("of_status"))
_REPLACE = (
    update(tables.idempotency).where(*_OF_KEY).values(status=bindparam("new_status"), reply=bindparam("new_reply"))
)
