"""Benchmarks, their runs, and the runs of tasks and criteria."""

from sqlalchemy import BigInteger, Column, Float, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import metadata

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
    Column("deleted_at", BigInteger),
    Column("body", LargeBinary, nullable=False),
    Index("benchmarks_in_order", "tenant", "seq", unique=True),
)
"""Tasks under one name and version, which never change. A deleted version is hidden; its runs keep it."""

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
