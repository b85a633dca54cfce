"""Work, contracts, the ledger, and what governance remembers."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    """Add the tables of contracts and money."""
    op.create_table(
        "agent_histories",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id"),
    )
    op.create_table(
        "attempts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=False),
        sa.Column("sketches", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "agent_id", "input_hash"),
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
    op.create_table(
        "contracts",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("work_id", sa.String(length=60), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("consumer_id", sa.Text(), nullable=False),
        sa.Column("domain", sa.Text(), nullable=True),
        sa.Column("state", sa.String(length=30), nullable=False),
        sa.Column("escrow", sa.String(length=30), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("hold_micros", sa.BigInteger(), nullable=False),
        sa.Column("terms", sa.LargeBinary(), nullable=False),
        sa.Column("awarded_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
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
    op.create_index("contracts_by_state", "contracts", ["tenant", "state", "seq"], unique=False)
    op.create_index("contracts_by_work", "contracts", ["tenant", "work_id", "agent_id", "seq"], unique=False)
    op.create_index("contracts_due", "contracts", ["state", "expires_at"], unique=False)
    op.create_index("contracts_in_order", "contracts", ["tenant", "seq"], unique=True)
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
        "moves",
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
        "postings",
        sa.Column("leaf", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("account", sa.Text(), nullable=False),
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("currency", sa.String(length=3), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("leaf", "account"),
    )
    op.create_index("postings_by_account", "postings", ["tenant", "account", "currency", "at", "leaf"], unique=False)
    op.create_table(
        "settled_evidence",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("evidence", sa.String(length=64), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "evidence"),
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
        "first_outputs",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("output_hash", sa.String(length=64), nullable=False),
        sa.Column("agent_id", sa.Text(), nullable=False),
        sa.Column("input_hash", sa.String(length=64), nullable=False),
        sa.Column("contract_id", sa.String(length=60), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "output_hash", "agent_id", "input_hash"),
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
    op.create_index("transfers_once", "transfers", ["tenant", "contract_id", "operation", "number"], unique=True)
    op.create_table(
        "works",
        sa.Column("tenant", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=60), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("consumer_id", sa.Text(), nullable=False),
        sa.Column("criteria_digest", sa.Text(), nullable=True),
        sa.Column("has_cpa", sa.Integer(), nullable=False),
        sa.Column("input_address", sa.Text(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", sa.Text(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "id"),
    )
    op.create_index("works_in_order", "works", ["tenant", "seq"], unique=True)
