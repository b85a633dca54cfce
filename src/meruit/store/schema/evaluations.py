"""Evaluations, their segments and cases, and datasets."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

evaluations = Table(
    "evaluations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("status", Text, nullable=False),
    Column("criteria_digest", Text, nullable=False),
    Column("dataset_digest", Text),
    Column("tags", LargeBinary, nullable=False),
    Column("planned", BigInteger),
    Column("cases", BigInteger, nullable=False),
    Column("segments", Integer, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("ended_at", BigInteger),
    Index("evaluations_by_name", "tenant", "name", unique=True),
)
"""Named sets of judged cases; how many there are so far."""

evaluation_figures = Table(
    "evaluation_figures",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("evaluation_id", Text, primary_key=True),
    Column("cases", BigInteger, nullable=False),
    # Of `content`, to sort by; what is shown comes from the signed content.
    Column("rate", Float),
    Column("cost_micros", BigInteger),
    Column("content", LargeBinary, nullable=False),
    Column("signature", LargeBinary, nullable=False),
)
"""What a finished evaluation adds up to, signed by the log's key; counted again from the cases where it is not."""

evaluation_segments = Table(
    "evaluation_segments",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("evaluation_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("leaf", BigInteger, nullable=False),
    Column("address", Text, nullable=False),
    Column("cases", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)
"""Up to 512 cases in one blob and behind one entry of the log."""

evaluation_cases = Table(
    "evaluation_cases",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("evaluation_id", Text, primary_key=True),
    Column("case_id", String(200), primary_key=True),
    Column("repeat", Integer, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("segment", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("outcome_id", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("statuses", Text, nullable=False),
    Column("group_id", Text),
    Column("tags", LargeBinary),
    Column("claimed", Text),
    Column("error", Text),
    Column("faults", Text),
    Column("latency_ms", Float),
    Column("cost_micros", BigInteger),
    Index("evaluation_cases_in_order", "tenant", "evaluation_id", "seq", unique=True),
    Index("evaluation_cases_by_outcome", "tenant", "outcome_id", unique=True),
)
"""One slim row for each case, so that lists and statistics need not open segments."""

datasets = Table(
    "datasets",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("rows", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("source", String(200), nullable=False),
)
"""Versions of datasets, and which content each has."""

dataset_chunks = Table(
    "dataset_chunks",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("address", Text, nullable=False),
)
"""The blobs of each content, in order."""
