"""Tables of datasets: versions by name, and the chunks of each content."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from meruit.errors import NotFound
from meruit.evaluations.evaluation import DatasetRecord
from meruit.model.time import from_micros
from meruit.store import tables
from meruit.store.blobs import EvidencePart
from meruit.store.database import MAX_PAGE
from meruit.store.transaction import WriteTransaction
from meruit.suggestions import nearest


# Any, here and below: SQLAlchemy's rows have their columns as untyped attributes.
def dataset_of(row: Any) -> DatasetRecord:
    """A version of a dataset from its row."""
    return DatasetRecord(
        name=row.name,
        version=row.version,
        digest=row.digest,
        rows=row.rows,
        created_at=from_micros(row.created_at),
        source=row.source,
    )


def find_dataset(connection: Connection, tenant: str, name: str, version: int | None = None) -> DatasetRecord:
    """A version of a dataset, or its latest; raises NotFound, naming the nearest."""
    table = tables.datasets
    query = select(table).where(table.c.tenant == tenant, table.c.name == name).order_by(table.c.version.desc())
    if version is not None:
        query = query.where(table.c.version == version)
    row = connection.execute(query.limit(1)).first()
    if row is not None:
        return dataset_of(row)
    names = select(table.c.name).where(table.c.tenant == tenant).distinct().limit(MAX_PAGE)
    known = [*connection.execute(names).scalars()]
    if name in known:
        raise NotFound(f"the dataset {name!r} has no version {version}; `meruit dataset list` shows all")
    raise NotFound(f"no dataset is named {name!r}{nearest(name, known)}; `meruit dataset list` shows all")


def page_datasets(
    connection: Connection,
    tenant: str,
    *,
    name: str | None = None,
    before: tuple[str, int] | None = None,
    limit: int = 50,
) -> list[DatasetRecord]:
    """Versions of datasets by name, the latest of each first; `before` is the last one of the previous page."""
    table = tables.datasets
    query = select(table).where(table.c.tenant == tenant).order_by(table.c.name, table.c.version.desc())
    if name is not None:
        query = query.where(table.c.name == name)
    if before is not None:
        query = query.where((table.c.name > before[0]) | ((table.c.name == before[0]) & (table.c.version < before[1])))
    return [dataset_of(row) for row in connection.execute(query.limit(min(limit, MAX_PAGE)))]


def chunk_addresses(connection: Connection, tenant: str, digest: str) -> list[str]:
    """The addresses of all chunks of a content, in order."""
    table = tables.dataset_chunks
    query = select(table.c.address).where(table.c.tenant == tenant, table.c.digest == digest).order_by(table.c.number)
    return [*connection.execute(query).scalars()]


def count_chunks(connection: Connection, tenant: str, digest: str) -> int:
    """How many chunks of a content are kept."""
    table = tables.dataset_chunks
    query = select(func.count()).where(table.c.tenant == tenant, table.c.digest == digest)
    return int(connection.execute(query).scalar_one())


@dataclass(frozen=True, slots=True)
class KeepChunk:
    """One chunk of a content; keeping it a second time does nothing."""

    tenant: str
    digest: str
    number: int
    blob: EvidencePart

    def __call__(self, writing: WriteTransaction) -> None:
        """Keep it."""
        table = tables.dataset_chunks
        known = writing.read(
            select(table.c.number).where(
                table.c.tenant == self.tenant, table.c.digest == self.digest, table.c.number == self.number
            )
        )
        if known:
            return
        writing.keep(self.blob.blob(self.tenant))
        writing.insert(table, tenant=self.tenant, digest=self.digest, number=self.number, address=self.blob.address)


@dataclass(frozen=True, slots=True)
class AddVersion:
    """A new version of a dataset whose chunks are kept; the same content as the latest makes no new version."""

    tenant: str
    name: str
    digest: str
    rows: int
    source: str

    def __call__(self, writing: WriteTransaction) -> DatasetRecord:
        """Write the version, or return the latest where nothing changed."""
        table = tables.datasets
        found = writing.read(
            select(table)
            .where(table.c.tenant == self.tenant, table.c.name == self.name)
            .order_by(table.c.version.desc())
            .limit(1)
        )
        latest = dataset_of(found[0]) if found else None
        if latest is not None and latest.digest == self.digest:
            return latest
        version = 1 if latest is None else latest.version + 1
        writing.insert(
            table,
            tenant=self.tenant,
            name=self.name,
            version=version,
            digest=self.digest,
            rows=self.rows,
            created_at=writing.now.micros,
            source=self.source,
        )
        return DatasetRecord(
            name=self.name,
            version=version,
            digest=self.digest,
            rows=self.rows,
            created_at=from_micros(writing.now.micros),
            source=self.source,
        )
