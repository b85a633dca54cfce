"""Runs of agents, their journal and their submissions."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the tables of agents."""
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
    op.create_table(
        "workers",
        sa.Column("id", sa.String(length=120), nullable=False),
        sa.Column("agents", sa.Text(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("events_by_subject", "events", ["tenant", "subject", "seq"], unique=False)
