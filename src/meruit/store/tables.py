"""The tables. Tenant first in every key; moments are whole microseconds; text and bytes as they are."""

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()

# SQLite's own integer key is the only one that needs no second index.
_SEQ = BigInteger().with_variant(Integer, "sqlite")

log_state = Table(
    "log_state",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("origin", Text, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("peaks", LargeBinary, nullable=False),
    Column("outcomes", BigInteger, nullable=False),
    Column("events", BigInteger, nullable=False),
    Column("checkpoint_at", BigInteger, nullable=False),
)
"""One row, locked by the writer: all that follows from it is in the order of commits."""

log_leaves = Table(
    "log_leaves",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("hash", LargeBinary, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("contract_id", Text),
    Column("contract_seq", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Index("log_leaves_by_contract", "tenant", "contract_id", "contract_seq", unique=True),
)

log_tiles = Table(
    "log_tiles",
    metadata,
    Column("level", Integer, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Column("hash", LargeBinary, nullable=False),
)
"""The roots of complete subtrees of 256, 65,536… leaves, so that no proof reads more than a few hundred hashes."""

checkpoints = Table(
    "checkpoints",
    metadata,
    Column("size", _SEQ, primary_key=True, autoincrement=False),
    Column("note", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)

log_keys = Table(
    "log_keys",
    metadata,
    Column("vkey", String(400), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)

blobs = Table(
    "blobs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("address", Text, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("refs", BigInteger, nullable=False),
    Column("content", LargeBinary),
)
"""Evidence by the digest of its content; what is large lies in a file beside the database, with only its size here."""

criteria = Table(
    "criteria",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("digest", Text, primary_key=True),
    Column("leaf", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
)

criteria_names = Table(
    "criteria_names",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
)

outcomes = Table(
    "outcomes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("contract_id", Text, nullable=False),
    Column("agent_id", Text),
    Column("consumer_id", Text),
    Column("domain", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("evidence_leaf", BigInteger, nullable=False),
    Column("input_address", Text),
    Column("input_salt", LargeBinary),
    Column("output_address", Text),
    Column("output_salt", LargeBinary),
    Column("metadata_address", Text),
    Column("metadata_salt", LargeBinary),
    Column("version", Integer, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("criteria_digest", Text, nullable=False),
    Column("idempotency_key", Text),
    Column("by_agent", Integer, nullable=False),
    Index("outcomes_in_order", "tenant", "seq", unique=True),
    Index("outcomes_by_contract", "tenant", "contract_id", "seq"),
    Index("outcomes_by_agent", "tenant", "agent_id", "seq"),
    Index("outcomes_by_verdict", "tenant", "verdict", "seq"),
    Index("outcomes_by_criteria", "tenant", "criteria_digest", "seq"),
)
"""What never changes about an outcome, and how its latest version ended."""

verdicts = Table(
    "verdicts",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("outcome_id", Text, primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("criteria_digest", Text, nullable=False),
    Column("verdict", Text, nullable=False),
    Column("success", Integer, nullable=False),
    Column("score", Float, nullable=False),
    Column("reason", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("salt", LargeBinary),
    Column("result", LargeBinary),
)

keys = Table(
    "keys",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("secret_hash", LargeBinary, nullable=False),
    Column("tenant", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("agent_id", Text),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Index("keys_by_tenant", "tenant", "id"),
)

sessions = Table(
    "sessions",
    metadata,
    Column("token_hash", LargeBinary, primary_key=True),
    Column("key_id", String(40), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Index("sessions_by_end", "expires_at"),
)
"""Browsers that signed in with a key. A session lasts no longer than its key."""

idempotency = Table(
    "idempotency",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("fingerprint", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("reply", LargeBinary, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

events = Table(
    "events",
    metadata,
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("tenant", Text, nullable=False),
    Column("event_id", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("idempotency_key", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Index("events_by_tenant", "tenant", "seq"),
    Index("events_by_subject", "tenant", "subject", "seq"),
)
"""The outbox: written with the record that the event is about, read by the dispatcher."""

cursors = Table(
    "cursors",
    metadata,
    Column("consumer", String(100), primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(100), primary_key=True),
    Column("holder", Text, nullable=False),
    Column("until", BigInteger, nullable=False),
)

webhooks = Table(
    "webhooks",
    metadata,
    Column("id", String(40), primary_key=True),
    Column("tenant", Text, nullable=False),
    Column("url", Text, nullable=False),
    Column("secret", Text, nullable=False),
    Column("types", Text, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Index("webhooks_by_tenant", "tenant", "id"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("webhook_id", String(40), primary_key=True),
    Column("seq", _SEQ, primary_key=True, autoincrement=False),
    Column("subject", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("dead_at", BigInteger),
    Column("error", Text, nullable=False),
    Index("deliveries_due", "webhook_id", "dead_at", "next_at"),
    Index("deliveries_by_subject", "webhook_id", "subject", "dead_at", "seq"),
)
"""Deliveries that failed: waiting for a retry, or dead letters."""

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
    Column("leaf", _SEQ, primary_key=True, autoincrement=False),
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
    Index("postings_by_account", "tenant", "account", "currency", "at", "leaf"),
)

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
)

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

settled_evidence = Table(
    "settled_evidence",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("evidence", String(64), primary_key=True),
    Column("contract_id", String(60), primary_key=True),
    Column("live", Integer, nullable=False),
)

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

benchmarks = Table(
    "benchmarks",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("slug", String(100), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("title", Text, nullable=False),
    Column("tasks", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("benchmarks_in_order", "tenant", "seq", unique=True),
)
"""Tasks under one name and version, which never change."""

benchmark_runs = Table(
    "benchmark_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(60), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("slug", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("agent_id", Text),
    Column("repeats", Integer, nullable=False),
    Column("scored", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("ended_at", BigInteger),
    Index("benchmark_runs_in_order", "tenant", "seq", unique=True),
    Index("benchmark_runs_by_benchmark", "tenant", "slug", "version", "seq"),
    Index("benchmark_runs_by_agent", "tenant", "agent_id", "seq"),
)

task_runs = Table(
    "task_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(60), primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("benchmark_run_id", String(60)),
    Column("slug", String(100), nullable=False),
    Column("version", Integer, nullable=False),
    Column("task", String(100), nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("agent_id", Text),
    Column("status", String(20), nullable=False),
    Column("scored", Integer, nullable=False),
    Column("reveal", String(20), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Column("started_at", BigInteger),
    Column("deadline", BigInteger),
    Column("ended_at", BigInteger),
    Column("playground_id", String(60)),
    Column("input_address", String(64)),
    Column("outcome_id", String(60)),
    Column("outcome_version", Integer),
    Column("body", LargeBinary),
    Index("task_runs_in_order", "tenant", "seq", unique=True),
    Index("task_runs_by_benchmark_run", "tenant", "benchmark_run_id", "seq"),
    Index("task_runs_by_agent", "tenant", "agent_id", "seq"),
    Index("task_runs_by_status", "tenant", "status", "seq"),
    Index("task_runs_overdue", "status", "deadline"),
)
"""One agent at one task; what was found and decided is an outcome like every other."""

criterion_runs = Table(
    "criterion_runs",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", String(60), primary_key=True),
    Column("task_run_id", String(60), nullable=False),
    Column("outcome_id", String(60), nullable=False),
    Column("version", Integer, nullable=False),
    Column("position", Integer, nullable=False),
    Column("status", String(20), nullable=False),
    Column("score", Float),
    Column("took_us", BigInteger),
    Index("criterion_runs_by_task_run", "tenant", "task_run_id", "outcome_id", "version", "position", unique=True),
)
"""One criterion of a task run; its evidence stands in that version of the verdict on the outcome."""

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
    Column("quotes", LargeBinary),
    Column("costs", LargeBinary),
    Column("body", LargeBinary, nullable=False),
    Index("usage_runs_in_order", "tenant", "seq", unique=True),
    Index("usage_runs_by_framework", "tenant", "framework", "seq"),
    Index("usage_runs_by_status", "tenant", "status", "seq"),
    Index("usage_runs_by_tenant_account", "tenant", "account", "ended_at", "seq"),
    Index("usage_runs_by_attribution_key", "tenant", "account", "attribution_kind", "attribution_key", "ended_at"),
    Index("usage_runs_due", "tenant", "account", "next_observation_at"),
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

judge_votes = Table(
    "judge_votes",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("output_digest", Text, nullable=False),
    Column("other_digest", Text, nullable=False),
    Column("asked_at", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Index("judge_votes_by_output", "tenant", "output_digest"),
    Index("judge_votes_by_other", "tenant", "other_digest"),
)
"""What model judges answered, by the digest of what they were asked."""

judge_tokens = Table(
    "judge_tokens",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("account", String(200), primary_key=True),
    Column("voter", String(200), primary_key=True),
    Column("model", String(200), primary_key=True),
    Column("calls", BigInteger, nullable=False),
    Column("input_tokens", BigInteger, nullable=False),
    Column("output_tokens", BigInteger, nullable=False),
    Column("unknown_calls", BigInteger, nullable=False),
    Column("unknown_tokens", BigInteger, nullable=False),
    Column("cost_micros", BigInteger, nullable=False),
    Column("unknown_micros", BigInteger, nullable=False),
    Column("unpriced_calls", BigInteger, nullable=False),
)
"""Tokens of judges for each evaluation and each day; what is reserved counts as unknown until it is answered."""

judge_calls = Table(
    "judge_calls",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("key", String(120), primary_key=True),
    Column("output_digest", Text, nullable=False),
    Column("other_digest", Text, nullable=False),
    Column("sends", Integer, nullable=False),
    Column("sent_at", BigInteger, nullable=False),
)
"""Questions that were sent and whose end is not recorded: under way, or left by a process that died."""

judge_calibrations = Table(
    "judge_calibrations",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("version", String(64), primary_key=True),
    Column("judge", String(200), nullable=False),
    Column("labels", BigInteger, nullable=False),
    Column("kappa", Float),
    Column("leaf", BigInteger, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""What people's labels say of each version of a judge, as last recorded."""

reviews = Table(
    "reviews",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("name", String(200), nullable=False),
    Column("evaluation_id", Text, nullable=False),
    Column("criterion", Text),
    Column("terms", LargeBinary, nullable=False),
    Column("cases", Integer, nullable=False),
    Column("population", BigInteger, nullable=False),
    Column("labels", BigInteger, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Text, nullable=False),
    Index("reviews_by_name", "tenant", "name", unique=True),
    Index("reviews_by_evaluation", "tenant", "evaluation_id"),
)
"""Queues of cases that people label."""

review_draws = Table(
    "review_draws",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("review_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("case_id", String(200), nullable=False),
    Column("repeat", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("stratum", String(200), nullable=False),
    Column("probability", Float),
    Index("review_draws_by_case", "tenant", "review_id", "case_id", "repeat", unique=True),
)
"""The cases of each queue, in their order, with the probability of each draw."""

review_labels = Table(
    "review_labels",
    metadata,
    Column("tenant", Text, primary_key=True),
    Column("review_id", Text, primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("labeller", String(200), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("choice", String(200), nullable=False),
    Column("note", Text, nullable=False),
    Column("salt", LargeBinary, nullable=False),
    Column("leaf", BigInteger, nullable=False),
    Column("recorded_by", Text, nullable=False),
    Column("at", BigInteger, nullable=False),
)
"""What people said, each version a row; never changed."""
