"""Criteria, outcomes and their verdicts."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, Table, Text

from meruit.store.schema.base import metadata

criteria = Table(
    "criteria",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("leaf", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

criteria_names = Table(
    "criteria_names",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("contract_id", Text, nullable=False),
    Column("agent_id", Text),
    Column("consumer_id", Text),
    Column("domain", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("evidence_leaf", BigInteger, nullable=False),
    Column("input_address", Text),
    Column("input_salt", LargeBinary),
    Column("output_address", Text),
    Column("output_salt", LargeBinary),
    Column("metadata_address", Text),
    Column("metadata_salt", LargeBinary),
    Column("version", Integer, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("criteria_digest", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("by_agent", Integer, nullable=False),
    Index("outcomes_in_order", "tenant", "seq", unique=True),
    Index("outcomes_by_contract", "tenant", "contract_id", "seq"),
    Index("outcomes_by_agent", "tenant", "agent_id", "seq"),
    Index("outcomes_by_verdict", "tenant", "verdict", "seq"),
    # Sorts by score too: the few verdicts are read one beside the other.
    Index("outcomes_by_score", "tenant", "verdict", "score", "seq"),
    Index("outcomes_by_criteria", "tenant", "criteria_digest", "seq"),
)
"""What never changes about an outcome, and how its latest version ended."""

verdicts = Table(
    "verdicts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("outcome_id", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("criteria_digest", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("salt", LargeBinary),
    Column("result", LargeBinary),
    Column("place", Integer),
)
"""Versions of verdicts that are not in a run; one with a place has its result in the segment of its leaf."""

verdict_segments = Table(
    "verdict_segments",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("leaf", BigInteger, primary_key=True),
    Column("address", Text, nullable=False),
    Column("versions", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""Up to 512 versions of verdicts in one blob and behind one entry of the log."""

verdict_runs = Table(
    "verdict_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("first_seq", BigInteger, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("last_seq", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("criteria_digest", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("offsets", LargeBinary),
)
"""Versions of one number, of outcomes near each other: all that the segment of the leaf holds, in their order.

`offsets` says where the outcomes are from the first one on; without it, they are neighbours.
"""
