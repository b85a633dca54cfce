"""Webhooks: where a tenant wants events to be sent."""

from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, bindparam, delete, func, select

from meruit.errors import MeruitError, NotFound, nearest
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

MAX_WEBHOOKS = 100
"""Webhooks of one tenant."""
SECRET_BYTES = 32
SECRET_PREFIX = "whsec_"  # noqa: S105 - what every secret begins with

_webhooks, _deliveries = tables.webhooks, tables.deliveries


class Webhook(Record, frozen=True):
    """Where a tenant wants events to be sent, as it is listed: everything but its secret."""

    id: str
    tenant: str
    url: str
    types: tuple[str, ...]
    """Empty for every type."""
    created_at: datetime


class IssuedWebhook(Record, frozen=True):
    """A new webhook with the secret that signs what it is sent, which is shown this once."""

    webhook: Webhook
    secret: str


_COUNTS = Rows[int]("webhook_count")


class AddWebhook(NamedTuple):
    """A webhook to be made; whether its URL may be called is for the caller to check."""

    tenant: str
    url: str
    types: frozenset[str]
    entropy: Callable[[int], bytes]

    def __call__(self, writing: WriteTransaction) -> IssuedWebhook:
        """Keep it, answer its secret; it is sent what happens from now on."""
        for unknown in sorted(self.types - set(EventType)):
            raise MeruitError(f"no event type is named {unknown!r}{nearest(unknown, map(str, EventType))}")
        query = select(func.count()).where(_webhooks.c.tenant == self.tenant)
        count = _COUNTS.get(writing, self.tenant) or writing.read(query)[0][0]
        if count >= MAX_WEBHOOKS:
            raise MeruitError(f"a tenant has {MAX_WEBHOOKS} webhooks at most; remove one first")
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
        return IssuedWebhook(Webhook(webhook_id, self.tenant, self.url, types, from_micros(writing.now.micros)), secret)


class RemoveWebhook(NamedTuple):
    """A webhook that is to be sent nothing more."""

    tenant: str
    webhook_id: str

    def __call__(self, writing: WriteTransaction) -> None:
        """Forget it and all that waits for it; raises NotFound."""
        if not writing.read(_webhook_of(self.tenant, self.webhook_id)):
            raise NotFound(f"no webhook {self.webhook_id!r}")
        writing.change(_REMOVE, of_webhook=self.webhook_id)
        # Also what is settled in this very transaction: changes come after inserts.
        writing.change(_FORGET, of_webhook=self.webhook_id)


_REMOVE = delete(_webhooks).where(_webhooks.c.id == bindparam("of_webhook"))
_FORGET = delete(_deliveries).where(_deliveries.c.webhook_id == bindparam("of_webhook"))


def page(connection: Connection, tenant: str, *, after: str | None = None, limit: int = MAX_PAGE) -> list[Webhook]:
    """A tenant's webhooks by id."""
    query = select(_webhooks).where(_webhooks.c.tenant == tenant)
    if after is not None:
        query = query.where(_webhooks.c.id > after)
    return [_webhook(row) for row in connection.execute(query.order_by(_webhooks.c.id).limit(min(limit, MAX_PAGE)))]


def find(connection: Connection, tenant: str, webhook_id: str) -> Webhook:
    """One of a tenant's webhooks; raises NotFound."""
    row = connection.execute(_webhook_of(tenant, webhook_id)).first()
    if row is None:
        raise NotFound(f"no webhook {webhook_id!r}")
    return _webhook(row)


def _webhook_of(tenant: str, webhook_id: str) -> Select[Any]:
    return select(_webhooks).where(_webhooks.c.id == webhook_id, _webhooks.c.tenant == tenant)


class Target(NamedTuple):
    """A webhook as whoever delivers to it needs it."""

    id: str
    tenant: str
    url: str
    secret: str
    types: frozenset[str]
    seq: int
    """Every event up to here was delivered, waits in `deliveries`, or is dead."""


def target(connection: Connection, webhook_id: str) -> Target | None:
    """The webhook with its secret; None when it was removed."""
    row = connection.execute(select(_webhooks).where(_webhooks.c.id == webhook_id)).first()
    if row is None:
        return None
    return Target(row.id, row.tenant, row.url, row.secret, frozenset(_types(row)), row.seq)


def existing(connection: Connection, ids: Sequence[str]) -> frozenset[str]:
    """Those of the webhooks that were not removed."""
    return frozenset(connection.execute(select(_webhooks.c.id).where(_webhooks.c.id.in_(ids))).scalars())


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def _webhook(row: Any) -> Webhook:
    return Webhook(row.id, row.tenant, row.url, _types(row), from_micros(row.created_at))


# Any: as above.
def _types(row: Any) -> tuple[str, ...]:
    return tuple(row.types.split(",")) if row.types else ()
