"""Reviews, their draws and labels."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

reviews = Table(
    "reviews",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("evaluation_id", Text, nullable=False),
    Column("criterion", Text),
    Column("terms", LargeBinary, nullable=False),
    Column("cases", Integer, nullable=False),
    Column("population", BigInteger, nullable=False),
    Column("labels", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Index("reviews_by_name", "tenant", "name", unique=True),
    Index("reviews_by_evaluation", "tenant", "evaluation_id"),
)
"""Queues of cases that people label."""

review_draws = Table(
    "review_draws",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("review_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("case_id", String(200), nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("stratum", String(200), nullable=False),
    Column("probability", Float),
    Index("review_draws_by_case", "tenant", "review_id", "case_id", "repeat", unique=True),
)
"""The cases of each queue, in their order, with the probability of each draw."""

review_labels = Table(
    "review_labels",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("review_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("labeller", String(200), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("choice", String(200), nullable=False),
    Column("note", Text),
    Column("note_salt", LargeBinary),
    Column("note_hash", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("recorded_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""What people said, each version a row; only a note can be erased, with its salt."""
