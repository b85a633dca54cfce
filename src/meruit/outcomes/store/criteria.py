"""Named criteria: each name has immutable versions, each version a digest."""

from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from meruit.errors import NotFound
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.time import from_micros
from meruit.outcomes.store.write import commit_criteria
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction


class NamedCriteria(Record, frozen=True):
    """One version of criteria that have a name."""

    name: str
    version: int
    digest: str
    created_at: datetime
    created_by: str
    """The key that registered it; empty for the command line and for a service without keys."""


class RegisterCriteria(msgspec.Struct, frozen=True):
    """Criteria to be kept under a name; the same ones again are the version they already are."""

    tenant: str
    name: str
    body: bytes
    digest: str
    created_by: str

    def __call__(self, writing: WriteTransaction) -> NamedCriteria:
        """The version, new or found."""
        return self._register(writing)

    def _register(self, writing: WriteTransaction) -> NamedCriteria:
        latest = _LATEST.get(writing, self.tenant, self.name) or _latest(writing, self.tenant, self.name)
        if latest is not None and latest.digest == self.digest:
            return latest
        commit_criteria(writing, self.tenant, self.body, self.digest)
        version = 1 if latest is None else latest.version + 1
        writing.insert(
            tables.criteria_names,
            tenant=self.tenant,
            name=self.name,
            version=version,
            digest=self.digest,
            created_at=writing.now.micros,
            created_by=self.created_by,
        )
        payload = {"name": self.name, "version": version, "criteria_digest": self.digest}
        subject = f"criteria/{self.name}"
        writing.emit(self.tenant, EventType.CRITERIA_REGISTERED, subject, f"{subject}:{version}", payload)
        made = NamedCriteria(
            name=self.name,
            version=version,
            digest=self.digest,
            created_at=from_micros(writing.now.micros),
            created_by=self.created_by,
        )
        _LATEST.put(writing, made, self.tenant, self.name)
        return made


_LATEST = Rows[NamedCriteria]("criteria_name")


def _latest(writing: WriteTransaction, tenant: str, name: str) -> NamedCriteria | None:
    rows = writing.read(_versions(tenant, name).limit(1))
    return _criteria_from_row(rows[0]) if rows else None


# Any: SQLAlchemy's query carries no type of its rows here.
def _versions(tenant: str, name: str) -> Any:
    table = tables.criteria_names
    return select(table).where(table.c.tenant == tenant, table.c.name == name).order_by(table.c.version.desc())


def find(connection: Connection, tenant: str, name: str, version: int | None = None) -> NamedCriteria:
    """A version of named criteria, the latest unless another is asked for; raises NotFound."""
    query = _versions(tenant, name)
    if version is not None:
        query = query.where(tables.criteria_names.c.version == version)
    row = connection.execute(query.limit(1)).first()
    if row is None:
        raise NotFound(f"no criteria are named {name!r}" + (f" in version {version}" if version is not None else ""))
    return _criteria_from_row(row)


def history(connection: Connection, tenant: str, name: str) -> list[NamedCriteria]:
    """The versions of a name, newest first."""
    found = [_criteria_from_row(row) for row in connection.execute(_versions(tenant, name).limit(MAX_PAGE))]
    if not found:
        raise NotFound(f"no criteria are named {name!r}")
    return found


def page(connection: Connection, tenant: str, *, after: str | None = None, limit: int = 50) -> list[NamedCriteria]:
    """The latest version of each name, by name; `after` is the last name already seen."""
    table = tables.criteria_names
    names = select(table.c.name, func.max(table.c.version).label("version")).where(table.c.tenant == tenant)
    if after is not None:
        names = names.where(table.c.name > after)
    newest = names.group_by(table.c.name).order_by(table.c.name).limit(min(limit, MAX_PAGE)).subquery()
    query = (
        select(table)
        .join(newest, (table.c.name == newest.c.name) & (table.c.version == newest.c.version))
        .where(table.c.tenant == tenant)
        .order_by(table.c.name)
    )
    return [_criteria_from_row(row) for row in connection.execute(query)]


def _criteria_from_row(row: Any) -> NamedCriteria:
    return NamedCriteria(
        name=row.name,
        version=row.version,
        digest=row.digest,
        created_at=from_micros(row.created_at),
        created_by=row.created_by,
    )
