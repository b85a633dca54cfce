"""What governance remembers of agents and outputs."""

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

governance_checks = Table(
    "governance_checks",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("outcome_id", String(60), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("disposition", String(20), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("salt", LargeBinary),
    Column("body", LargeBinary),
)
"""The dossier and the answer of governance; erased with its outcome."""

agent_histories = Table(
    "agent_histories",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("kind", String(20), primary_key=True),
    Column("body", LargeBinary, nullable=False),
)
"""What is remembered of an agent, apart for contracts and for work verified without one."""

dealings = Table(
    "dealings",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("consumer_id", Text, primary_key=True),
    Column("outcomes", BigInteger, nullable=False),
    Column("with_bonus", BigInteger, nullable=False),
)
"""How often a pair dealt with each other; an empty name stands for all."""

first_outputs = Table(
    "first_outputs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("output_hash", String(80), primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("input_hash", String(64), primary_key=True),
    Column("contract_id", String(60), nullable=False),
    Column("signature", Text, nullable=False),
)
"""Which agent gave which long output to which input first: by its hash, by those of its parts and by its shingles."""

output_sketches = Table(
    "output_sketches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("input_hash", String(64), primary_key=True),
    Column("sketches", Text, nullable=False),
)
"""Sketches of an agent's last outputs to one input."""

agent_tries = Table(
    "agent_tries",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("criteria_digest", Text, primary_key=True),
    Column("contract_id", String(60), primary_key=True),
    Column("used", BigInteger, nullable=False),
)
"""How often an agent had its own work verified by criteria: under an open contract, or an empty id without one."""

try_sketches = Table(
    "try_sketches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("agent_id", Text, primary_key=True),
    Column("criteria_digest", Text, primary_key=True),
    Column("sketches", Text, nullable=False),
)
"""The words of an agent's last outputs that were judged by the same criteria, and whether each passed."""
