"""What each key has sent: requests that were accepted, and the bytes of their bodies."""

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from meruit.model.record import Record
from meruit.store import tables
from meruit.store.transaction import MergeRule, WriteTransaction


class KeyUse(Record, frozen=True):
    """What one key has sent since it was made."""

    tenant: str
    key_id: str
    requests: int
    """Writing requests that were accepted."""
    bytes: int
    """Of their bodies."""


@dataclass(frozen=True, slots=True)
class AddKeyUse:
    """Add what keys have sent, by tenant and key: requests and bytes."""

    added: Mapping[tuple[str, str], tuple[int, int]]

    def __call__(self, writing: WriteTransaction) -> None:
        """Add to what is recorded."""
        for (tenant, key_id), (requests, size) in self.added.items():
            writing.merge(tables.key_use, MergeRule.ADDED, tenant=tenant, key_id=key_id, requests=requests, bytes=size)


def read_key_use(connection: Connection, tenant: str | None = None) -> list[KeyUse]:
    """What keys have sent, of one tenant or of all."""
    table = tables.key_use
    query = select(table).order_by(table.c.tenant, table.c.key_id)
    if tenant is not None:
        query = query.where(table.c.tenant == tenant)
    return [KeyUse(row.tenant, row.key_id, int(row.requests), int(row.bytes)) for row in connection.execute(query)]
