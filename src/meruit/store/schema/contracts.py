"""Work, contracts, settlements and the ledger."""

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, LargeBinary, String, Table, Text, text

from meruit.store.schema.base import SEQ, metadata

works = Table(
    "works",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(60), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("consumer_id", Text, nullable=False),
    Column("criteria_digest", Text),
    Column("has_cpa", Integer, nullable=False),
    Column("input_address", Text, nullable=False),
    Column("input_salt", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("works_in_order", "tenant", "seq", unique=True),
    Index("works_by_consumer", "tenant", "consumer_id", "seq"),
)
"""Work that was given out; its criteria and its input lie where those of outcomes do."""

contracts = Table(
    "contracts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(60), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("work_id", String(60), nullable=False),
    Column("agent_id", Text, nullable=False),
    Column("consumer_id", Text, nullable=False),
    Column("provider_id", Text),
    Column("domain", Text),
    Column("state", String(30), nullable=False),
    Column("escrow", String(30), nullable=False),
    Column("currency", String(3), nullable=False),
    Column("hold_micros", BigInteger, nullable=False),
    Column("terms", LargeBinary, nullable=False),
    Column("awarded_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("input_read_at", BigInteger),
    Column("started_at", BigInteger),
    Column("completed_at", BigInteger),
    Column("settled_at", BigInteger),
    Column("outcome_id", String(60)),
    Column("completion", String(64)),
    Column("evidence", String(64)),
    Column("settlement", Integer, nullable=False),
    Column("settlements", Integer, nullable=False),
    Column("version", Integer, nullable=False),
    Column("total_micros", BigInteger, nullable=False),
    Column("disputed_from", String(30)),
    Column("disputes", Integer, nullable=False),
    Column("hold_reason", Text, nullable=False),
    Index("contracts_in_order", "tenant", "seq", unique=True),
    Index("contracts_by_agent", "tenant", "agent_id", "seq"),
    Index("contracts_by_consumer", "tenant", "consumer_id", "seq"),
    Index("contracts_by_provider", "tenant", "provider_id", "seq"),
    Index("contracts_by_work", "tenant", "work_id", "agent_id", "seq"),
    Index("contracts_by_state", "tenant", "state", "seq"),
    Index("contracts_due", "state", "expires_at"),
)

contract_transitions = Table(
    "contract_transitions",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("contract_id", String(60), primary_key=True),
    Column("operation", String(30), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("reason", Text, nullable=False),
)
"""The transitions of contracts, each once: a second request for one does nothing."""

settlements = Table(
    "settlements",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("contract_id", String(60), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("outcome_id", String(60), nullable=False),
    Column("version", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("bill", LargeBinary, nullable=False),
)

transfers = Table(
    "transfers",
    metadata,
    Column("leaf", SEQ, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("contract_id", String(60), nullable=False),
    Column("operation", String(30), nullable=False),
    Column("number", Integer, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("at", BigInteger, nullable=False),
    Index("transfers_once", "tenant", "contract_id", "operation", "number", unique=True),
    Index("transfers_by_time", "tenant", "at", "leaf"),
)
"""Money that moved, named by its entry in the audit log."""

postings = Table(
    "postings",
    metadata,
    Column("leaf", BigInteger, primary_key=True, autoincrement=False),
    Column("account", Text, primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("currency", String(3), nullable=False),
    Column("micros", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
    # With the amount, so that a sum reads nothing else.
    Index("postings_by_account", "tenant", "account", "currency", "at", "leaf", "micros"),
)

IS_PARTY = text("substr(account, 1, 7) <> 'escrow:'")
"""Which balances are not escrows; a query must say it in these words to use their index."""
EXACT_BALANCES = "balances_are_exact"
"""The name of the limit on balances."""

balances = Table(
    "balances",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("currency", String(3), primary_key=True),
    Column("account", Text, primary_key=True),
    Column("micros", BigInteger, nullable=False),
    # Far from the end of the integers, where SQLite would go on in floats.
    CheckConstraint(f"micros BETWEEN {-(2**62)} AND {2**62}", name=EXACT_BALANCES),
    # Every contract has an escrow; the balances of parties are few. The migration restricts the index to `IS_PARTY`:
    # to say it here would load the code for both databases in every process.
    Index("balances_of_parties", "tenant", "currency", "account", "micros"),
)
