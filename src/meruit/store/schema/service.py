"""What the store itself keeps: blobs, keys of clients, sessions, idempotent requests, quotas."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

blobs = Table(
    "blobs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("refs", BigInteger, nullable=False),
    Column("content", LargeBinary),
)
"""Evidence by the digest of its content; what is large lies in a file beside the database, with only its size here."""

keys = Table(
    "keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("agent_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Index("keys_by_tenant", "tenant", "id"),
)

key_use = Table(
    "key_use",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key_id", String(40), primary_key=True),
    Column("requests", BigInteger, nullable=False),
    Column("bytes", BigInteger, nullable=False),
)
"""What each key has sent: accepted writing requests, and the bytes of their bodies."""

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("key_id", String(40), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("signature", LargeBinary, nullable=False),
    Index("sessions_by_end", "expires_at"),
)
"""Browsers that signed in with a key. A session lasts no longer than its key; a row without our signature is none."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("reply", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
