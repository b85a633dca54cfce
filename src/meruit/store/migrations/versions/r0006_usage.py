"""Runs whose tokens are reconciled, the looks at them, and what providers answered."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Add the tables of usage."""
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
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("code", sa.String(length=40), nullable=False),
        sa.Column("next_observation_at", sa.BigInteger(), nullable=True),
        sa.Column("last_observation_at", sa.BigInteger(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("exhausted", sa.Integer(), nullable=False),
        sa.Column("waits", sa.String(length=20), nullable=False),
        sa.Column("withdrawn", sa.Integer(), nullable=False),
        sa.Column("last_input", sa.BigInteger(), nullable=True),
        sa.Column("last_output", sa.BigInteger(), nullable=True),
        sa.Column("last_requests", sa.BigInteger(), nullable=True),
        sa.Column("salt", sa.LargeBinary(), nullable=True),
        sa.Column("acknowledged", sa.LargeBinary(), nullable=True),
        sa.Column("verdict", sa.LargeBinary(), nullable=False),
        sa.Column("quotes", sa.LargeBinary(), nullable=True),
        sa.Column("ledger", sa.LargeBinary(), nullable=True),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("usage_runs_by_contract", "usage_runs", ["tenant", "contract_id", "seq"], unique=False)
    op.create_index("usage_runs_by_framework", "usage_runs", ["tenant", "framework", "seq"], unique=False)
    op.create_index("usage_runs_by_status", "usage_runs", ["tenant", "status", "seq"], unique=False)
    op.create_index(
        "usage_runs_by_attribution_key",
        "usage_runs",
        ["account", "attribution_kind", "attribution_key", "ended_at"],
        unique=False,
    )
    op.create_index("usage_runs_due", "usage_runs", ["tenant", "account", "next_observation_at"], unique=False)
    op.create_index(
        "usage_runs_by_tenant_account", "usage_runs", ["tenant", "account", "ended_at", "seq"], unique=False
    )
    op.create_index("usage_runs_by_account", "usage_runs", ["account", "ended_at", "seq"], unique=False)
    op.create_index("usage_runs_in_order", "usage_runs", ["tenant", "seq"], unique=True)
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
    op.create_table(
        "usage_calls",
        sa.Column("account", sa.String(length=200), nullable=False),
        sa.Column("call_id", sa.String(length=200), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(length=200), nullable=False),
        sa.PrimaryKeyConstraint("account", "call_id"),
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
