"""What other packages may use of the outbox, webhooks and deliveries. Tables and SQL are in store."""

from sqlalchemy import Connection

from meruit.events.store import deliveries, outbox, webhooks
from meruit.events.store.deliveries import (
    DeadLetter,
    DeliveryState,
    PendingDelivery,
    RecentDelivery,
    Redeliver,
    SendAgain,
)
from meruit.events.store.outbox import events_after
from meruit.events.store.webhooks import AddWebhook, IssuedWebhook, RemoveWebhook, Webhook
from meruit.model.events import OutboxEvent

__all__ = [
    "AddWebhook",
    "DeadLetter",
    "DeliveryState",
    "IssuedWebhook",
    "PendingDelivery",
    "RecentDelivery",
    "Redeliver",
    "RemoveWebhook",
    "SendAgain",
    "Webhook",
    "events_after",
    "find_webhook",
    "list_dead_letters",
    "list_events",
    "list_pending_deliveries",
    "list_recent_deliveries",
    "list_webhooks",
    "newest_event",
]


def newest_event(connection: Connection) -> int:
    """The number of the newest event; 0 when there is none."""
    return outbox.newest(connection)


def list_events(
    connection: Connection, tenant: str, *, after: int, limit: int, subjects: frozenset[str] | None = None
) -> list[OutboxEvent]:
    """List the events of a tenant after a cursor, oldest first."""
    return events_after(connection, after, tenant=tenant, limit=limit, subjects=subjects)


def list_webhooks(connection: Connection, tenant: str, *, after: str | None, limit: int) -> list[Webhook]:
    """List the webhooks of a tenant by id."""
    return webhooks.page(connection, tenant, after=after, limit=limit)


def list_dead_letters(
    connection: Connection, tenant: str, webhook_id: str, *, after: int, limit: int
) -> list[DeadLetter]:
    """List the dead letters of a webhook, oldest event first; raises NotFound."""
    return deliveries.dead_letters(connection, tenant, webhook_id, after=after, limit=limit)


def find_webhook(connection: Connection, tenant: str, webhook_id: str) -> Webhook:
    """Find a webhook of a tenant; raises NotFound."""
    return webhooks.find(connection, tenant, webhook_id)


def list_pending_deliveries(
    connection: Connection, tenant: str, webhook_id: str, *, limit: int
) -> list[PendingDelivery]:
    """List the deliveries of a webhook that failed and are tried again; raises NotFound."""
    return deliveries.pending_deliveries(connection, tenant, webhook_id, limit=limit)


def list_recent_deliveries(
    connection: Connection, tenant: str, webhook_id: str, *, before: int | None, limit: int
) -> list[RecentDelivery]:
    """List the events that a webhook was sent and what became of each, newest first; raises NotFound."""
    return deliveries.recent_deliveries(connection, tenant, webhook_id, before=before, limit=limit)
