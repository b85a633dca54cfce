"""Sessions of browsers that signed in with a key: short, revocable, kept as hashes, signed.

A row opens a session only if a signing key of the log has signed it: writing to the database is not enough.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Callable
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec
from sqlalchemy import Connection, delete, select

from meruit.log.note import signed_content
from meruit.model.access import Caller, Role
from meruit.model.time import from_micros, to_micros
from meruit.store import tables
from meruit.store.access.keys import is_logged_key
from meruit.store.signed_rows import TrustedSigners
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

    caller: Caller
    entropy: Callable[[int], bytes]

    def __call__(self, writing: WriteTransaction) -> IssuedSession:
        """Keep its hash, answer its token."""
        token = urlsafe_b64encode(self.entropy(TOKEN_BYTES)).rstrip(b"=").decode()
        name, begins = _hash_token(token), writing.now.micros
        ends = begins + LASTS // timedelta(microseconds=1)
        writing.change(delete(tables.sessions).where(tables.sessions.c.expires_at <= writing.now.micros))
        whose = self.caller.key_id, self.caller.tenant, self.caller.role.value, self.caller.agent_id
        content = _signed_content(writing.signer.name, name, whose, begins, ends)
        writing.insert(
            tables.sessions,
            token_hash=name,
            key_id=self.caller.key_id,
            created_at=begins,
            expires_at=ends,
            signature=writing.signer.sign_bytes(content),
        )
        return IssuedSession(token, from_micros(ends))


class EndSession(msgspec.Struct, frozen=True):
    """A session to end."""

    token: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Forget it; one that is gone already stays so."""
        writing.change(delete(tables.sessions).where(tables.sessions.c.token_hash == _hash_token(self.token)))


def caller(connection: Connection, token: str, now: datetime, trusted: TrustedSigners) -> Caller | None:
    """Whose session it is; None where it or its key has ended."""
    if not _WRITTEN.fullmatch(token):
        return None
    keys, sessions, name = tables.keys, tables.sessions, _hash_token(token)
    begins, ends = sessions.c.created_at.label("session_begins"), sessions.c.expires_at.label("session_ends")
    row = connection.execute(
        select(keys, begins, ends, sessions.c.signature)
        .join(sessions, sessions.c.key_id == keys.c.id)
        .where(sessions.c.token_hash == name)
    ).first()
    if row is None or row.revoked_at is not None:
        return None
    if to_micros(now) >= min(row.session_ends, row.session_ends if row.expires_at is None else row.expires_at):
        return None
    whose = row.id, row.tenant, row.role, row.agent_id
    content = _signed_content(trusted.origin, name, whose, row.session_begins, row.session_ends)
    if not trusted.is_signed(connection, content, bytes(row.signature)) or not is_logged_key(connection, row, trusted):
        return None
    return Caller(row.tenant, Role(row.role), row.id, row.agent_id)


def _signed_content(
    origin: str, name: bytes, whose: tuple[str | None, str, str, str | None], begins: int, ends: int
) -> bytes:
    return signed_content("session", origin, name.hex(), *whose, begins, ends)


def _hash_token(token: str) -> bytes:
    # 256 random bits need no slow hash.
    return sha256(token.encode()).digest()
