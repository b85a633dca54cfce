"""Votes of model judges and the tokens they used."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

judge_votes = Table(
    "judge_votes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("output_digest", Text, nullable=False),
    Column("other_digest", Text, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("judge_votes_by_output", "tenant", "output_digest"),
    Index("judge_votes_by_other", "tenant", "other_digest"),
)
"""What model judges answered, by the digest of what they were asked."""

judge_tokens = Table(
    "judge_tokens",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("voter", String(200), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("unknown_calls", BigInteger, nullable=False),
    Column("unknown_tokens", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("unknown_micros", BigInteger, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
)
"""Tokens of judges for each evaluation and each day; what is reserved counts as unknown until it is answered."""

judge_calls = Table(
    "judge_calls",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", String(120), primary_key=True),
    Column("output_digest", Text, nullable=False),
    Column("other_digest", Text, nullable=False),
    Column("sends", Integer, nullable=False),
    Column("sent_at", BigInteger, nullable=False),
)
"""Questions that were sent and whose end is not recorded: under way, or left by a process that died."""

judge_calibrations = Table(
    "judge_calibrations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("version", String(64), primary_key=True),
    Column("judge", String(200), nullable=False),
    Column("labels", BigInteger, nullable=False),
    Column("kappa", Float),
    Column("leaf", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""What people's labels say of each version of a judge, as last recorded."""
