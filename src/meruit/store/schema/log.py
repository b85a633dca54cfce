"""The audit log: leaves, tiles, checkpoints, keys that sign."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import SEQ, metadata

log_state = Table(
    "log_state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("peaks", LargeBinary, nullable=False),
    Column("outcomes", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("checkpoint_at", BigInteger, nullable=False),
    Column("seal", LargeBinary, nullable=False),
)
"""One row, locked by the writer: all that follows from it is in the order of commits."""

log_leaves = Table(
    "log_leaves",
    metadata,
    Column("seq", SEQ, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("contract_id", Text),
    Column("contract_seq", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Index("log_leaves_by_contract", "tenant", "contract_id", "contract_seq", unique=True),
)

log_tiles = Table(
    "log_tiles",
    metadata,
    Column("level", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
)
"""The roots of complete subtrees of 256, 65,536… leaves, so that no proof reads more than a few hundred hashes."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", SEQ, primary_key=True, autoincrement=False),
    Column("note", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

log_keys = Table(
    "log_keys",
    metadata,
    Column("vkey", String(400), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
