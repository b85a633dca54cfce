"""Benchmarks, and runs of them."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add the tables of benchmarks and runs."""
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
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "slug", "version"),
    )
    op.create_index("benchmarks_in_order", "benchmarks", ["tenant", "seq"], unique=True)
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
