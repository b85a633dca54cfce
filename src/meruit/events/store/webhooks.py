"""Webhooks: the URLs that receive the events of a tenant."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, Select, bindparam, delete, func, select

from meruit.errors import NotFound, WebhookRejected
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction
from meruit.suggestions import nearest

MAX_WEBHOOKS = 100
"""Most webhooks of one tenant."""
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - the prefix of every secret

_webhooks, _deliveries = tables.webhooks, tables.deliveries


class Webhook(Record, frozen=True):
    """A webhook without its secret."""

    id: str
    tenant: str
    url: str
    types: tuple[str, ...]
    """Empty for every type."""
    created_at: datetime


class IssuedWebhook(Record, frozen=True):
    """A new webhook with the secret that signs its events; the secret is shown only once."""

    webhook: Webhook
    secret: str


_COUNTS = Rows[int]("webhook_count")


class AddWebhook(msgspec.Struct, frozen=True):
    """Create a webhook; the caller checks that its URL may be called."""

    tenant: str
    url: str
    types: frozenset[str]
    entropy: Callable[[int], bytes]

    def __call__(self, writing: WriteTransaction) -> IssuedWebhook:
        """Store it and return its secret; it receives events from now on."""
        for unknown in sorted(self.types - set(EventType)):
            raise WebhookRejected(f"unknown event type {unknown!r}{nearest(unknown, map(str, EventType))}")
        query = select(func.count()).where(_webhooks.c.tenant == self.tenant)
        count = _COUNTS.get(writing, self.tenant) or writing.read(query)[0][0]
        if count >= MAX_WEBHOOKS:
            raise WebhookRejected(f"a tenant may have {MAX_WEBHOOKS} webhooks; delete one first")
        _COUNTS.put(writing, count + 1, self.tenant)
        webhook_id = writing.new_id("whk")
        secret = SECRET_PREFIX + b64encode(self.entropy(SECRET_BYTES)).decode()
        types = tuple(sorted(self.types))
        writing.insert(
            _webhooks,
            id=webhook_id,
            tenant=self.tenant,
            url=self.url,
            secret=secret,
            types=",".join(types),
            created_at=writing.now.micros,
            seq=writing.events,
        )
        return IssuedWebhook(
            Webhook(
                id=webhook_id, tenant=self.tenant, url=self.url, types=types, created_at=from_micros(writing.now.micros)
            ),
            secret,
        )


class RemoveWebhook(msgspec.Struct, frozen=True):
    """Delete a webhook."""

    tenant: str
    webhook_id: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Delete it with its pending deliveries; raises NotFound."""
        if not writing.read(_webhook_of(self.tenant, self.webhook_id)):
            raise NotFound(f"no webhook {self.webhook_id!r}")
        writing.change(_REMOVE, of_webhook=self.webhook_id)
        # Deletes deliveries of this transaction too, because changes follow inserts.
        writing.change(_FORGET, of_webhook=self.webhook_id)


_REMOVE = delete(_webhooks).where(_webhooks.c.id == bindparam("of_webhook"))
_FORGET = delete(_deliveries).where(_deliveries.c.webhook_id == bindparam("of_webhook"))


def page(connection: Connection, tenant: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[Webhook]:
    """List the webhooks of a tenant by id."""
    query = select(_webhooks).where(_webhooks.c.tenant == tenant)
    if after is not None:
        query = query.where(_webhooks.c.id > after)
    return [webhook_from(row) for row in connection.execute(query.order_by(_webhooks.c.id).limit(min(limit, MAX_PAGE)))]


def find(connection: Connection, tenant: str, webhook_id: str) -> Webhook:
    """Find a webhook of a tenant; raises NotFound."""
    row = connection.execute(_webhook_of(tenant, webhook_id)).first()
    if row is None:
        raise NotFound(f"no webhook {webhook_id!r}")
    return webhook_from(row)


def _webhook_of(tenant: str, webhook_id: str) -> Select[Any]:
    return select(_webhooks).where(_webhooks.c.id == webhook_id, _webhooks.c.tenant == tenant)


class WebhookTarget(msgspec.Struct, frozen=True):
    """A webhook with what the dispatcher needs."""

    id: str
    tenant: str
    url: str
    secret: str
    types: frozenset[str]
    seq: int
    """Every event up to here was delivered, waits for a retry, or is dead."""


def target(connection: Connection, webhook_id: str) -> WebhookTarget | None:
    """Find a webhook with its secret; None when it was deleted."""
    row = connection.execute(select(_webhooks).where(_webhooks.c.id == webhook_id)).first()
    if row is None:
        return None
    return WebhookTarget(
        id=row.id, tenant=row.tenant, url=row.url, secret=row.secret, types=frozenset(_types(row)), seq=row.seq
    )


def existing(connection: Connection, ids: Sequence[str]) -> frozenset[str]:
    """Those of the webhooks that still exist."""
    return frozenset(connection.execute(select(_webhooks.c.id).where(_webhooks.c.id.in_(ids))).scalars())


# Any: rows of SQLAlchemy have no type.
def webhook_from(row: Any) -> Webhook:
    """The webhook in a row."""
    return Webhook(id=row.id, tenant=row.tenant, url=row.url, types=_types(row), created_at=from_micros(row.created_at))


# Any: as above.
def _types(row: Any) -> tuple[str, ...]:
    return tuple(row.types.split(",")) if row.types else ()
