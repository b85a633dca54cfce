"""The tenants of a deployment: for its operator, who may know that they exist."""

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection, Table, func, select

from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.store import tables

_WITH_TENANTS = (
    tables.keys,
    tables.outcomes,
    tables.evaluations,
    tables.contracts,
    tables.usage_runs,
    tables.agent_runs,
    tables.webhooks,
    tables.benchmarks,
)
"""Tables whose rows make a tenant; each has an index that begins with it."""


class TenantSummary(Record, frozen=True):
    """One tenant, as the operator of the deployment sees it: that it is there, and nothing of its work."""

    name: str
    keys: int
    """Keys that are neither revoked nor expired."""
    last_outcome_at: datetime | None


def list_tenants(connection: Connection, now: int, *, after: str = "", limit: int = 50) -> list[TenantSummary]:
    """The tenants by name, of those that follow `after`."""
    found: list[TenantSummary] = []
    for name in _names(connection, after):
        if len(found) == limit:
            break
        found.append(TenantSummary(name, _count_keys(connection, name, now), _find_last_outcome(connection, name)))
    return found


def _names(connection: Connection, after: str) -> Iterator[str]:
    """Each name once, with one look into each index for each name."""
    while True:
        found = [name for table in _WITH_TENANTS if (name := _next(connection, table, after)) is not None]
        if not found:
            return
        after = min(found)
        yield after


def _next(connection: Connection, table: Table, after: str) -> str | None:
    query = select(table.c.tenant).where(table.c.tenant > after).order_by(table.c.tenant).limit(1)
    found: str | None = connection.execute(query).scalar()
    return found


def _count_keys(connection: Connection, tenant: str, now: int) -> int:
    keys = tables.keys
    valid = select(func.count()).where(
        keys.c.tenant == tenant, keys.c.revoked_at.is_(None), (keys.c.expires_at.is_(None)) | (keys.c.expires_at > now)
    )
    return int(connection.execute(valid).scalar_one())


def _find_last_outcome(connection: Connection, tenant: str) -> datetime | None:
    outcomes = tables.outcomes
    query = select(outcomes.c.created_at).where(outcomes.c.tenant == tenant).order_by(outcomes.c.seq.desc()).limit(1)
    micros = connection.execute(query).scalar()
    return None if micros is None else from_micros(int(micros))
