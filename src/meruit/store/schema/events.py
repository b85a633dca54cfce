"""Events, their readers, webhooks and deliveries."""

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, String, Table, Text

from meruit.store.schema.base import SEQ, metadata

events = Table(
    "events",
    metadata,
    Column("seq", SEQ, primary_key=True, autoincrement=False),
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
    Column("seq", SEQ, primary_key=True, autoincrement=False),
    Column("subject", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("next_at", BigInteger, nullable=False),
    Column("dead_at", BigInteger),
    Column("error", Text, nullable=False),
    Index("deliveries_due", "webhook_id", "dead_at", "next_at"),
    Index("deliveries_by_subject", "webhook_id", "subject", "dead_at", "seq"),
)
"""Deliveries that failed: waiting for a retry, or dead letters."""
