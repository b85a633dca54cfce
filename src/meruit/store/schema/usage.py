"""Usage runs, observations, calls, fetches and accounts."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

usage_runs = Table(
    "usage_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(200), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("framework", String(200), nullable=False),
    Column("account", String(200), nullable=False),
    Column("attribution_kind", String(20), nullable=False),
    Column("attribution_key", String(200), nullable=False),
    Column("task", String(200), nullable=False),
    Column("contract_id", String(200)),
    Column("started_at", BigInteger),
    Column("ended_at", BigInteger),
    Column("local_input", BigInteger),
    Column("local_output", BigInteger),
    Column("local_requests", BigInteger),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    # Of `costs`, in millionths, to sort by.
    Column("quoted_micros", BigInteger),
    Column("status", String(20), nullable=False),
    Column("code", String(40), nullable=False),
    Column("next_observation_at", BigInteger),
    Column("last_observation_at", BigInteger),
    Column("observations", Integer, nullable=False),
    Column("exhausted", Integer, nullable=False),
    Column("waiting_for", String(20), nullable=False),
    Column("withdrawn", Integer, nullable=False),
    Column("last_input", BigInteger),
    Column("last_output", BigInteger),
    Column("last_requests", BigInteger),
    # What is long stands last: SQLite reads a row from its beginning.
    Column("salt", LargeBinary),
    Column("acknowledged", LargeBinary),
    Column("verdict", LargeBinary, nullable=False),
    Column("progress", LargeBinary),
    Column("quotes", LargeBinary),
    Column("costs", LargeBinary),
    Column("body", LargeBinary, nullable=False),
    Index("usage_runs_in_order", "tenant", "seq", unique=True),
    Index("usage_runs_by_framework", "tenant", "framework", "seq"),
    # What lists are filtered and sorted by is in the index, so that a sort reads no rows.
    Index(
        "usage_runs_by_status",
        "tenant",
        "status",
        "seq",
        "account",
        "code",
        "ended_at",
        "last_input",
        "last_output",
        "local_input",
        "local_output",
    ),
    Index("usage_runs_by_tenant_account", "tenant", "account", "ended_at", "seq"),
    Index("usage_runs_by_attribution_key", "tenant", "account", "attribution_kind", "attribution_key", "ended_at"),
    Index("usage_runs_due", "tenant", "account", "next_observation_at"),
    Index("usage_runs_observed", "tenant", "account", "last_observation_at"),
    Index("usage_runs_by_cost", "tenant", "quoted_micros", "seq"),
    Index("usage_runs_by_contract", "tenant", "contract_id", "seq"),
)
"""Runs whose tokens are reconciled, and the present verdict on each."""

usage_observations = Table(
    "usage_observations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("run_id", String(200), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("id", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("usage_observations_by_id", "tenant", "run_id", "id"),
)
"""Observations of what a provider counted for a run; added to, never changed."""

usage_calls = Table(
    "usage_calls",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("call_id", String(200), primary_key=True),
    Column("run_id", String(200), nullable=False),
)
"""The run of a tenant that each call belongs to; empty for none."""

usage_fetches = Table(
    "usage_fetches",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("window_start", BigInteger, nullable=False),
    Column("window_end", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("content", LargeBinary, nullable=False),
)
"""Replies of providers, each content once."""

usage_accounts = Table(
    "usage_accounts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("owner", String(120), nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("credential", String(64), nullable=False),
)
"""The lease of each account, so that one reconciler asks it at a time, and the fingerprint of the key used last."""

usage_account_totals = Table(
    "usage_account_totals",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("status", String(20), primary_key=True),
    Column("runs", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    Column("unattributed", BigInteger, nullable=False),
)
"""What the runs of each account and status add up to; each change of a run adds its difference."""
