"""Sessions of browsers that signed in with a key: short, revocable, kept as hashes."""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
from sqlalchemy import Connection, delete, select

from meruit.model.access import Caller, Role
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.keys import is_logged_key
from meruit.store.transaction import WriteTransaction

LASTS = timedelta(hours=8)
TOKEN_BYTES = 32
_WRITTEN = re.compile(r"[A-Za-z0-9_-]{43}")


class IssuedSession(msgspec.Struct, frozen=True):
    """A new session with its token, which only the browser keeps."""

    token: str
    expires_at: datetime


class NewSession(msgspec.Struct, frozen=True):
    """A session to begin for the owner of a key; sessions that ended are removed."""

    key_id: str
    entropy: Callable[[int], bytes]

    def __call__(self, writing: WriteTransaction) -> IssuedSession:
        """Keep its hash, answer its token."""
        token = urlsafe_b64encode(self.entropy(TOKEN_BYTES)).rstrip(b"=").decode()
        ends = writing.now.micros + LASTS // timedelta(microseconds=1)
        writing.change(delete(tables.sessions).where(tables.sessions.c.expires_at <= writing.now.micros))
        writing.insert(
            tables.sessions,
            token_hash=_hash_token(token),
            key_id=self.key_id,
            created_at=writing.now.micros,
            expires_at=ends,
        )
        return IssuedSession(token, from_micros(ends))


class EndSession(msgspec.Struct, frozen=True):
    """A session to end."""

    token: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Forget it; one that is gone already stays so."""
        writing.change(delete(tables.sessions).where(tables.sessions.c.token_hash == _hash_token(self.token)))


def caller(connection: Connection, token: str, now: datetime) -> Caller | None:
    """Whose session it is; None where it or its key has ended."""
    if not _WRITTEN.fullmatch(token):
        return None
    keys, sessions = tables.keys, tables.sessions
    row = connection.execute(
        select(keys, sessions.c.expires_at.label("session_ends"))
        .join(sessions, sessions.c.key_id == keys.c.id)
        .where(sessions.c.token_hash == _hash_token(token))
    ).first()
    if row is None or row.revoked_at is not None:
        return None
    if to_micros(now) >= min(row.session_ends, row.session_ends if row.expires_at is None else row.expires_at):
        return None
    if not is_logged_key(connection, row):
        return None
    return Caller(row.tenant, Role(row.role), row.id, row.agent_id)


def _hash_token(token: str) -> bytes:
    # 256 random bits need no slow hash.
    return sha256(token.encode()).digest()
