"""The first layout of the tables, rendered from `store.tables.metadata`. Later layouts add a file each."""

import sqlalchemy as sa
from alembic import op

revision = "schema_c199bfc6"
down_revision = None


def upgrade() -> None:
    """Create every table and index."""
    _create_log()
    _create_outcomes()
    _create_service()
    _create_contracts()
    _create_governance()
    _create_benchmarks()
    _create_gate()
    _create_usage()
    _create_evaluations()
    _create_judges()
    _create_reviews()


def _create_log() -> None:
    """The audit log, its signed checkpoints and keys."""
    op.create_table(
        "log_state",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("origin", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("peaks", sa.LargeBinary(), nullable=False),
        sa.Column("outcomes", sa.BigInteger(), nullable=False),
        sa.Column("events", sa.BigInteger(), nullable=False),
        sa.Column("checkpoint_at", sa.BigInteger(), nullable=False),
        sa.Column("seal", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "log_leaves",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=True),
        sa.Column("contract_seq", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("log_leaves_by_contract", "log_leaves", ["tenant", "contract_id", "contract_seq"], unique=True)
    op.create_table(
        "log_tiles",
        sa.Column("level", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("hash", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("level", "seq"),
    )
    op.create_table(
        "checkpoints",
        sa.Column("size", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("size"),
    )
    op.create_table(
        "log_keys",
        sa.Column("vkey", sa.String(length=400), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("vkey"),
    )


def _create_outcomes() -> None:
    """Outcomes, the evidence and criteria they were judged by, and each version of their verdicts."""
    op.create_table(
        "blobs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("refs", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "address"),
    )
    op.create_table(
        "criteria",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest"),
    )
    op.create_table(
        "criteria_names",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "version"),
    )
    op.create_table(
        "outcomes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("contract_id", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("consumer_id", sa.Text(), nullable=True),
        sa.Column("domain", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("evidence_leaf", sa.BigInteger(), nullable=False),
        sa.Column("input_address", sa.Text(), nullable=True),
        sa.Column("input_salt", sa.LargeBinary(), nullable=True),
        sa.Column("output_address", sa.Text(), nullable=True),
        sa.Column("output_salt", sa.LargeBinary(), nullable=True),
        sa.Column("metadata_address", sa.Text(), nullable=True),
        sa.Column("metadata_salt", sa.LargeBinary(), nullable=True),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("success", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=True),
        sa.Column("by_agent", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("outcomes_by_agent", "outcomes", ["tenant", "agent_id", "seq"], unique=False)
    op.create_index("outcomes_by_contract", "outcomes", ["tenant", "contract_id", "seq"], unique=False)
    op.create_index("outcomes_by_criteria", "outcomes", ["tenant", "criteria_digest", "seq"], unique=False)
    op.create_index("outcomes_by_score", "outcomes", ["tenant", "verdict", "score", "seq"], unique=False)
    op.create_index("outcomes_by_verdict", "outcomes", ["tenant", "verdict", "seq"], unique=False)
    op.create_index("outcomes_in_order", "outcomes", ["tenant", "seq"], unique=True)
    op.create_table(
        "verdicts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("outcome_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("success", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("place", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "outcome_id", "version"),
    )
    op.create_table(
        "verdict_segments",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("versions", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "leaf"),
    )
    op.create_table(
        "verdict_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("first_seq", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("offsets", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "first_seq", "version"),
    )


def _create_service() -> None:
    """API keys, idempotent replies, the outbox and its webhooks."""
    op.create_table(
        "keys",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("revoked_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("keys_by_tenant", "keys", ["tenant", "id"], unique=False)
    op.create_table(
        "key_use",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key_id"),
    )
    op.create_table(
        "sessions",
        sa.Column("token_hash", sa.LargeBinary(), nullable=False),
        sa.Column("key_id", sa.String(length=40), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("token_hash"),
    )
    op.create_index("sessions_by_end", "sessions", ["expires_at"], unique=False)
    op.create_table(
        "idempotency",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("reply", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_table(
        "events",
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("event_id", sa.Text(), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("seq"),
    )
    op.create_index("events_by_subject", "events", ["tenant", "subject", "seq"], unique=False)
    op.create_index("events_by_tenant", "events", ["tenant", "seq"], unique=False)
    op.create_table(
        "cursors",
        sa.Column("consumer", sa.String(length=100), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("consumer"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("holder", sa.Text(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "webhooks",
        sa.Column("id", sa.String(length=40), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("secret", sa.Text(), nullable=False),
        sa.Column("types", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("webhooks_by_tenant", "webhooks", ["tenant", "id"], unique=False)
    op.create_table(
        "deliveries",
        sa.Column("webhook_id", sa.String(length=40), nullable=False),
        sa.Column("seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_at", sa.BigInteger(), nullable=False),
        sa.Column("dead_at", sa.BigInteger(), nullable=True),
        sa.Column("error", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("webhook_id", "seq"),
    )
    op.create_index("deliveries_by_subject", "deliveries", ["webhook_id", "subject", "dead_at", "seq"], unique=False)
    op.create_index("deliveries_due", "deliveries", ["webhook_id", "dead_at", "next_at"], unique=False)


def _create_contracts() -> None:
    """Work, contracts, their transitions and the ledger."""
    op.create_table(
        "works",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("consumer_id", sa.Text(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=True),
        sa.Column("has_cpa", sa.Integer(), nullable=False),
        sa.Column("input_address", sa.Text(), nullable=False),
        sa.Column("input_salt", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("works_by_consumer", "works", ["tenant", "consumer_id", "seq"], unique=False)
    op.create_index("works_in_order", "works", ["tenant", "seq"], unique=True)
    op.create_table(
        "contracts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("work_id", sa.String(length=60), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("consumer_id", sa.Text(), nullable=False),
        sa.Column("provider_id", sa.Text(), nullable=True),
        sa.Column("domain", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=30), nullable=False),
        sa.Column("escrow", sa.String(length=30), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("hold_micros", sa.BigInteger(), nullable=False),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.Column("awarded_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("input_read_at", sa.BigInteger(), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("completed_at", sa.BigInteger(), nullable=True),
        sa.Column("settled_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome_id", sa.String(length=60), nullable=True),
        sa.Column("completion", sa.String(length=64), nullable=True),
        sa.Column("evidence", sa.String(length=64), nullable=True),
        sa.Column("settlement", sa.Integer(), nullable=False),
        sa.Column("settlements", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("total_micros", sa.BigInteger(), nullable=False),
        sa.Column("disputed_from", sa.String(length=30), nullable=True),
        sa.Column("disputes", sa.Integer(), nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("contracts_by_agent", "contracts", ["tenant", "agent_id", "seq"], unique=False)
    op.create_index("contracts_by_consumer", "contracts", ["tenant", "consumer_id", "seq"], unique=False)
    op.create_index("contracts_by_provider", "contracts", ["tenant", "provider_id", "seq"], unique=False)
    op.create_index("contracts_by_state", "contracts", ["tenant", "state", "seq"], unique=False)
    op.create_index("contracts_by_work", "contracts", ["tenant", "work_id", "agent_id", "seq"], unique=False)
    op.create_index("contracts_due", "contracts", ["state", "expires_at"], unique=False)
    op.create_index("contracts_in_order", "contracts", ["tenant", "seq"], unique=True)
    op.create_table(
        "contract_transitions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.Column("operation", sa.String(length=30), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "contract_id", "operation", "number"),
    )
    op.create_table(
        "settlements",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("outcome_id", sa.String(length=60), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("bill", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "contract_id", "number"),
    )
    op.create_table(
        "transfers",
        sa.Column("leaf", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=False, nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.Column("operation", sa.String(length=30), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("leaf"),
    )
    op.create_index("transfers_by_time", "transfers", ["tenant", "at", "leaf"], unique=False)
    op.create_index("transfers_once", "transfers", ["tenant", "contract_id", "operation", "number"], unique=True)
    op.create_table(
        "postings",
        sa.Column("leaf", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("leaf", "account"),
    )
    op.create_index(
        "postings_by_account", "postings", ["tenant", "account", "currency", "at", "leaf", "micros"], unique=False
    )
    op.create_table(
        "balances",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("micros BETWEEN -4611686018427387904 AND 4611686018427387904", name="balances_are_exact"),
        sa.PrimaryKeyConstraint("tenant", "currency", "account"),
    )
    is_party = sa.text("substr(account, 1, 7) <> 'escrow:'")
    op.create_index(
        "balances_of_parties",
        "balances",
        ["tenant", "currency", "account", "micros"],
        unique=False,
        sqlite_where=is_party,
        postgresql_where=is_party,
    )


def _create_governance() -> None:
    """What governance checked, and the histories it compares with."""
    op.create_table(
        "governance_checks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("outcome_id", sa.String(length=60), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("disposition", sa.String(length=20), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "outcome_id", "version"),
    )
    op.create_table(
        "agent_histories",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(length=20), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "kind"),
    )
    op.create_table(
        "dealings",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("consumer_id", sa.Text(), nullable=False),
        sa.Column("outcomes", sa.BigInteger(), nullable=False),
        sa.Column("with_bonus", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "consumer_id"),
    )
    op.create_table(
        "first_outputs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("output_hash", sa.String(length=80), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.Column("signature", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "output_hash", "agent_id", "input_hash"),
    )
    op.create_table(
        "output_sketches",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=False),
        sa.Column("sketches", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "input_hash"),
    )
    op.create_table(
        "agent_tries",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.Column("used", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "criteria_digest", "contract_id"),
    )
    op.create_table(
        "try_sketches",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("sketches", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "criteria_digest"),
    )


def _create_benchmarks() -> None:
    """Benchmarks and their runs."""
    op.create_table(
        "benchmarks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("title", sa.Text(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("deleted_at", sa.BigInteger(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "slug", "version"),
    )
    op.create_index("benchmarks_in_order", "benchmarks", ["tenant", "seq"], unique=True)
    op.create_table(
        "benchmark_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("scored", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("benchmark_runs_by_agent", "benchmark_runs", ["tenant", "agent_id", "seq"], unique=False)
    op.create_index("benchmark_runs_by_benchmark", "benchmark_runs", ["tenant", "slug", "version", "seq"], unique=False)
    op.create_index("benchmark_runs_in_order", "benchmark_runs", ["tenant", "seq"], unique=True)
    op.create_table(
        "task_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("benchmark_run_id", sa.String(length=60), nullable=True),
        sa.Column("slug", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("task", sa.String(length=100), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("scored", sa.Integer(), nullable=False),
        sa.Column("reveal", sa.String(length=20), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("deadline", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("playground_id", sa.String(length=60), nullable=True),
        sa.Column("input_address", sa.String(length=64), nullable=True),
        sa.Column("outcome_id", sa.String(length=60), nullable=True),
        sa.Column("outcome_version", sa.Integer(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("task_runs_by_agent", "task_runs", ["tenant", "agent_id", "seq"], unique=False)
    op.create_index("task_runs_by_benchmark_run", "task_runs", ["tenant", "benchmark_run_id", "seq"], unique=False)
    op.create_index("task_runs_by_status", "task_runs", ["tenant", "status", "seq"], unique=False)
    op.create_index("task_runs_in_order", "task_runs", ["tenant", "seq"], unique=True)
    op.create_index("task_runs_overdue", "task_runs", ["status", "deadline"], unique=False)
    op.create_table(
        "criterion_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("task_run_id", sa.String(length=60), nullable=False),
        sa.Column("outcome_id", sa.String(length=60), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("score", sa.Float(), nullable=True),
        sa.Column("took_us", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index(
        "criterion_runs_by_task_run",
        "criterion_runs",
        ["tenant", "task_run_id", "outcome_id", "version", "position"],
        unique=True,
    )


def _create_gate() -> None:
    """Runs of agents, their journal and their workers."""
    op.create_table(
        "agent_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("agent", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("parent_id", sa.String(length=120), nullable=True),
        sa.Column("item", sa.String(length=100), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("request", sa.LargeBinary(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("wake_at", sa.BigInteger(), nullable=True),
        sa.Column("owner", sa.String(length=120), nullable=True),
        sa.Column("worker", sa.String(length=120), nullable=True),
        sa.Column("cancel", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("takeovers", sa.Integer(), nullable=False),
        sa.Column("submissions", sa.Integer(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.LargeBinary(), nullable=False),
        sa.Column("usage", sa.LargeBinary(), nullable=False),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("ending", sa.String(length=40), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("waiting_for", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("agent_runs_by_agent", "agent_runs", ["tenant", "agent", "seq"], unique=False)
    op.create_index("agent_runs_by_parent", "agent_runs", ["tenant", "parent_id", "seq"], unique=False)
    op.create_index("agent_runs_by_status", "agent_runs", ["tenant", "status", "seq"], unique=False)
    op.create_index("agent_runs_by_worker", "agent_runs", ["worker", "status"], unique=False)
    op.create_index("agent_runs_due", "agent_runs", ["status", "wake_at"], unique=False)
    op.create_index("agent_runs_in_order", "agent_runs", ["tenant", "seq"], unique=True)
    op.create_table(
        "agent_steps",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=120), nullable=False),
        sa.Column("key", sa.String(length=200), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run_id", "key"),
    )
    op.create_table(
        "submissions",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=120), nullable=False),
        sa.Column("submission_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("turn", sa.Integer(), nullable=False),
        sa.Column("candidate_hash", sa.String(length=64), nullable=True),
        sa.Column("candidate", sa.LargeBinary(), nullable=False),
        sa.Column("outcome", sa.String(length=20), nullable=False),
        sa.Column("counted", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("code", sa.Text(), nullable=True),
        sa.Column("retryable", sa.Integer(), nullable=False),
        sa.Column("ending", sa.String(length=40), nullable=True),
        sa.Column("said", sa.LargeBinary(), nullable=False),
        sa.Column("feedback", sa.Text(), nullable=True),
        sa.Column("verifier_version", sa.String(length=100), nullable=True),
        sa.Column("outcome_id", sa.String(length=60), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run_id", "submission_id"),
    )
    op.create_index(
        "submissions_by_candidate", "submissions", ["tenant", "run_id", "candidate_hash", "number"], unique=False
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("agents", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )


def _create_usage() -> None:
    """Runs whose tokens are reconciled, with their observations."""
    op.create_table(
        "usage_runs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=200), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("framework", sa.String(length=200), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("attribution_kind", sa.String(length=20), nullable=False),
        sa.Column("attribution_key", sa.String(length=200), nullable=False),
        sa.Column("task", sa.String(length=200), nullable=False),
        sa.Column("contract_id", sa.String(length=200), nullable=True),
        sa.Column("started_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("local_input", sa.BigInteger(), nullable=True),
        sa.Column("local_output", sa.BigInteger(), nullable=True),
        sa.Column("local_requests", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("quoted_micros", sa.BigInteger(), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("code", sa.String(length=40), nullable=False),
        sa.Column("next_observation_at", sa.BigInteger(), nullable=True),
        sa.Column("last_observation_at", sa.BigInteger(), nullable=True),
        sa.Column("observations", sa.Integer(), nullable=False),
        sa.Column("exhausted", sa.Integer(), nullable=False),
        sa.Column("waiting_for", sa.String(length=20), nullable=False),
        sa.Column("withdrawn", sa.Integer(), nullable=False),
        sa.Column("last_input", sa.BigInteger(), nullable=True),
        sa.Column("last_output", sa.BigInteger(), nullable=True),
        sa.Column("last_requests", sa.BigInteger(), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("acknowledged", sa.LargeBinary(), nullable=True),
        sa.Column("verdict", sa.LargeBinary(), nullable=False),
        sa.Column("progress", sa.LargeBinary(), nullable=True),
        sa.Column("quotes", sa.LargeBinary(), nullable=True),
        sa.Column("costs", sa.LargeBinary(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index(
        "usage_runs_by_attribution_key",
        "usage_runs",
        ["tenant", "account", "attribution_kind", "attribution_key", "ended_at"],
        unique=False,
    )
    op.create_index("usage_runs_by_contract", "usage_runs", ["tenant", "contract_id", "seq"], unique=False)
    op.create_index("usage_runs_by_cost", "usage_runs", ["tenant", "quoted_micros", "seq"], unique=False)
    op.create_index("usage_runs_by_framework", "usage_runs", ["tenant", "framework", "seq"], unique=False)
    op.create_index(
        "usage_runs_by_status",
        "usage_runs",
        [
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
        ],
        unique=False,
    )
    op.create_index(
        "usage_runs_by_tenant_account", "usage_runs", ["tenant", "account", "ended_at", "seq"], unique=False
    )
    op.create_index("usage_runs_due", "usage_runs", ["tenant", "account", "next_observation_at"], unique=False)
    op.create_index("usage_runs_in_order", "usage_runs", ["tenant", "seq"], unique=True)
    op.create_index("usage_runs_observed", "usage_runs", ["tenant", "account", "last_observation_at"], unique=False)
    op.create_table(
        "usage_account_totals",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("runs", sa.BigInteger(), nullable=False),
        sa.Column("tokens", sa.BigInteger(), nullable=False),
        sa.Column("unattributed", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "account", "status"),
    )
    op.create_table(
        "usage_observations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "run_id", "number"),
    )
    op.create_index("usage_observations_by_id", "usage_observations", ["tenant", "run_id", "id"], unique=False)
    op.create_table(
        "usage_calls",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "account", "call_id"),
    )
    op.create_table(
        "usage_fetches",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("window_start", sa.BigInteger(), nullable=False),
        sa.Column("window_end", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "account", "digest"),
    )
    op.create_table(
        "usage_accounts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("owner", sa.String(length=120), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("credential", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "account"),
    )


def _create_evaluations() -> None:
    """Evaluations, their segments, and the index of their cases."""
    op.create_table(
        "evaluations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=False),
        sa.Column("dataset_digest", sa.Text(), nullable=True),
        sa.Column("tags", sa.LargeBinary(), nullable=False),
        sa.Column("planned", sa.BigInteger(), nullable=True),
        sa.Column("cases", sa.BigInteger(), nullable=False),
        sa.Column("segments", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("evaluations_by_name", "evaluations", ["tenant", "name"], unique=True)
    op.create_table(
        "evaluation_figures",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("cases", sa.BigInteger(), nullable=False),
        sa.Column("rate", sa.Float(), nullable=True),
        sa.Column("cost_micros", sa.BigInteger(), nullable=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.Column("signature", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "evaluation_id"),
    )
    op.create_table(
        "evaluation_segments",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "evaluation_id", "number"),
    )
    op.create_table(
        "evaluation_cases",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("case_id", sa.String(length=200), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("segment", sa.Integer(), nullable=False),
        sa.Column("place", sa.Integer(), nullable=False),
        sa.Column("outcome_id", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("success", sa.Integer(), nullable=False),
        sa.Column("score", sa.Float(), nullable=False),
        sa.Column("statuses", sa.Text(), nullable=False),
        sa.Column("group_id", sa.Text(), nullable=True),
        sa.Column("tags", sa.LargeBinary(), nullable=True),
        sa.Column("claimed", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("faults", sa.Text(), nullable=True),
        sa.Column("latency_ms", sa.Float(), nullable=True),
        sa.Column("cost_micros", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "evaluation_id", "case_id", "repeat"),
    )
    op.create_index("evaluation_cases_in_order", "evaluation_cases", ["tenant", "evaluation_id", "seq"], unique=True)
    op.create_index("evaluation_cases_by_outcome", "evaluation_cases", ["tenant", "outcome_id"], unique=True)
    op.create_table(
        "datasets",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("name", sa.String(length=100), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("rows", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name", "version"),
    )
    op.create_table(
        "dataset_chunks",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("address", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "digest", "number"),
    )


def _create_judges() -> None:
    """Votes of model judges, and their tokens."""
    op.create_table(
        "judge_votes",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("output_digest", sa.Text(), nullable=False),
        sa.Column("other_digest", sa.Text(), nullable=False),
        sa.Column("asked_at", sa.BigInteger(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_index("judge_votes_by_output", "judge_votes", ["tenant", "output_digest"], unique=False)
    op.create_index("judge_votes_by_other", "judge_votes", ["tenant", "other_digest"], unique=False)
    op.create_table(
        "judge_tokens",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("voter", sa.String(length=200), nullable=False),
        sa.Column("model", sa.String(length=200), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("input_tokens", sa.BigInteger(), nullable=False),
        sa.Column("output_tokens", sa.BigInteger(), nullable=False),
        sa.Column("unknown_calls", sa.BigInteger(), nullable=False),
        sa.Column("unknown_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_micros", sa.BigInteger(), nullable=False),
        sa.Column("unknown_micros", sa.BigInteger(), nullable=False),
        sa.Column("unpriced_calls", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "account", "voter", "model"),
    )
    op.create_table(
        "judge_calls",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("key", sa.String(length=120), nullable=False),
        sa.Column("output_digest", sa.Text(), nullable=False),
        sa.Column("other_digest", sa.Text(), nullable=False),
        sa.Column("sends", sa.Integer(), nullable=False),
        sa.Column("sent_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_table(
        "judge_calibrations",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("version", sa.String(length=64), nullable=False),
        sa.Column("judge", sa.String(length=200), nullable=False),
        sa.Column("labels", sa.BigInteger(), nullable=False),
        sa.Column("kappa", sa.Float(), nullable=True),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "version"),
    )


def _create_reviews() -> None:
    """Queues of cases, and the labels that people gave."""
    op.create_table(
        "reviews",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("evaluation_id", sa.Text(), nullable=False),
        sa.Column("criterion", sa.Text(), nullable=True),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.Column("cases", sa.Integer(), nullable=False),
        sa.Column("population", sa.BigInteger(), nullable=False),
        sa.Column("labels", sa.BigInteger(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("reviews_by_name", "reviews", ["tenant", "name"], unique=True)
    op.create_index("reviews_by_evaluation", "reviews", ["tenant", "evaluation_id"], unique=False)
    op.create_table(
        "review_draws",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("review_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("case_id", sa.String(length=200), nullable=False),
        sa.Column("repeat", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("stratum", sa.String(length=200), nullable=False),
        sa.Column("probability", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "review_id", "number"),
    )
    op.create_index("review_draws_by_case", "review_draws", ["tenant", "review_id", "case_id", "repeat"], unique=True)
    op.create_table(
        "review_labels",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("review_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("labeller", sa.String(length=200), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("choice", sa.String(length=200), nullable=False),
        sa.Column("note", sa.Text(), nullable=True),
        sa.Column("note_salt", sa.LargeBinary(), nullable=True),
        sa.Column("note_hash", sa.Text(), nullable=False),
        sa.Column("salt", sa.LargeBinary(), nullable=False),
        sa.Column("leaf", sa.BigInteger(), nullable=False),
        sa.Column("recorded_by", sa.Text(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "review_id", "number", "labeller", "version"),
    )
