"""Agent runs, their steps and submissions, and workers."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

agent_runs = Table(
    "agent_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(120), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("agent", String(200), nullable=False),
    Column("status", String(20), nullable=False),
    Column("parent_id", String(120)),
    Column("item", String(100)),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("wake_at", BigInteger),
    Column("owner", String(120)),
    Column("worker", String(120)),
    Column("cancel", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("takeovers", Integer, nullable=False),
    Column("submissions", Integer, nullable=False),
    # Input and output of `usage`, to sort by.
    Column("tokens", BigInteger, nullable=False),
    Column("state", LargeBinary, nullable=False),
    Column("usage", LargeBinary, nullable=False),
    Column("result", LargeBinary),
    Column("ending", String(40)),
    Column("error", Text),
    Column("waiting_for", Text),
    Column("note", Text),
    Index("agent_runs_in_order", "tenant", "seq", unique=True),
    Index("agent_runs_by_status", "tenant", "status", "seq"),
    Index("agent_runs_by_agent", "tenant", "agent", "seq"),
    Index("agent_runs_by_parent", "tenant", "parent_id", "seq"),
    Index("agent_runs_due", "status", "wake_at"),
    Index("agent_runs_by_worker", "worker", "status"),
)
"""Runs of agents and teams; its owner may write it, until another worker takes it over."""

agent_steps = Table(
    "agent_steps",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("run_id", String(120), primary_key=True),
    Column("key", String(200), primary_key=True),
    Column("at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)
"""The journal: what each step of a run gave, so that no step is taken twice once it is here."""

submissions = Table(
    "submissions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("run_id", String(120), primary_key=True),
    Column("submission_id", String(200), primary_key=True),
    Column("number", Integer, nullable=False),
    Column("turn", Integer, nullable=False),
    Column("candidate_hash", String(64)),
    Column("candidate", LargeBinary, nullable=False),
    Column("outcome", String(20), nullable=False),
    Column("counted", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("code", Text),
    Column("retryable", Integer, nullable=False),
    Column("ending", String(40)),
    Column("said", LargeBinary, nullable=False),
    Column("feedback", Text),
    Column("verifier_version", String(100)),
    Column("outcome_id", String(60)),
    Column("salt", LargeBinary, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("submissions_by_candidate", "tenant", "run_id", "candidate_hash", "number"),
)
"""Candidates that were answered: the key makes counting exact after any crash."""

workers = Table(
    "workers",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("agents", Text, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
)
"""Workers that take runs, and until when each counts as alive."""
