"""Published benchmarks in the store: `slug@version`, each of which never changes. Deleting one only hides it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Update, bindparam, func, select, update

from meruit.benchmarks.store.read import OPEN
from meruit.errors import BenchmarkChanged, BenchmarkInUse, BenchmarkTaken, NotFound
from meruit.model.canonical import from_canonical
from meruit.model.events import EventType
from meruit.model.record import Record
from meruit.model.task import Benchmark
from meruit.model.time import from_micros
from meruit.outcomes.records import commit_criteria
from meruit.store import tables
from meruit.store.database import MAX_PAGE
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction


class BenchmarkView(Record, frozen=True):
    """One line of a list."""

    benchmark: str
    version: int
    seq: int
    digest: str
    title: str
    tasks: int
    created_at: datetime
    created_by: str
    deleted_at: datetime | None = None
    """When it was hidden; its runs keep it."""


_VERSIONS = Rows[dict[int, BenchmarkView]]("benchmark_versions")
_NEW_RUNS = Rows[int]("benchmark_new_runs")
"""Runs that this transaction creates, which it cannot read yet."""


class PublishedBenchmark(NamedTuple):
    """A benchmark as it was published."""

    view: BenchmarkView
    benchmark: Benchmark


class PublishBenchmark(msgspec.Struct, frozen=True):
    """Publish a benchmark."""

    tenant: str
    by: str
    benchmark: Benchmark
    body: bytes
    """In canonical form."""
    digest: str
    criteria: tuple[tuple[bytes, str], ...]
    """The criteria of each task in canonical form, with their digest."""
    practice: bool = False
    """Whether it is kept for practice only, and not published."""
    follows: int | None = None
    """For an edit: the newest version, deleted ones included, that this one follows; 0 if it is the first."""

    def __call__(self, writing: WriteTransaction) -> BenchmarkView:
        """Store it and commit to the criteria of its tasks in the log; publishing the same again changes nothing."""
        of, slug, version = tables.benchmarks, self.benchmark.benchmark, self.benchmark.version
        versions = _load_versions(writing, self.tenant, slug)
        known = versions.get(version)
        if self.follows is not None and max(versions, default=0) != self.follows:
            newest = f"{slug}@{max(versions, default=0)}"
            raise BenchmarkChanged(f"{newest} was published since; read it, and edit that version")
        if known is not None:
            if known.deleted_at is not None:
                raise BenchmarkTaken(f"{slug}@{version} was deleted; publish yours as a new version")
            if known.digest != self.digest:
                newest = f"{slug}@{version}"
                raise BenchmarkTaken(f"{newest} is published with other content; publish yours as a new version")
            return known
        for body, digest in self.criteria:
            commit_criteria(writing, self.tenant, body, digest)
        seq = writing.emit(
            self.tenant,
            self._event,
            f"{slug}@{version}",
            f"{slug}@{version}:published",
            {"benchmark": slug, "version": version, "digest": self.digest, "tasks": len(self.benchmark.tasks)},
        )
        title, tasks, now = self.benchmark.title, len(self.benchmark.tasks), writing.now.micros
        writing.insert(
            of,
            tenant=self.tenant,
            slug=slug,
            version=version,
            seq=seq,
            digest=self.digest,
            title=title,
            tasks=tasks,
            created_at=now,
            created_by=self.by,
            deleted_at=None,
            body=self.body,
        )
        view = BenchmarkView(
            benchmark=slug,
            version=version,
            seq=seq,
            digest=self.digest,
            title=title,
            tasks=tasks,
            created_at=from_micros(now),
            created_by=self.by,
        )
        _VERSIONS.put(writing, {**versions, version: view}, self.tenant, slug)
        return view

    @property
    def _event(self) -> EventType:
        return EventType.BENCHMARK_PRACTISED if self.practice else EventType.BENCHMARK_PUBLISHED


class DeletedBenchmark(Record, frozen=True):
    """Which versions of a benchmark are hidden now."""

    benchmark: str
    versions: list[int]
    """Those that this request names, and that are hidden."""
    benchmark_runs: int
    """Runs of them that stay on record. They can still be read, compared and judged again."""


@dataclass(frozen=True, slots=True)
class DeleteBenchmark:
    """Hide one version of a benchmark, or all."""

    tenant: str
    slug: str
    version: int | None = None

    def __call__(self, writing: WriteTransaction) -> DeletedBenchmark:
        """Hide them; raises NotFound, and BenchmarkInUse while runs of them have not ended."""
        versions = _load_versions(writing, self.tenant, self.slug)
        meant = [one for one in versions.values() if self._means(one)]
        if not meant:
            raise not_found(self.slug, self.version)
        hidden = sorted(one.version for one in meant if one.deleted_at is None)
        if hidden:
            self._check_unused(writing, hidden)
            self._hide(writing, versions, hidden)
        named = sorted(one.version for one in meant)
        return DeletedBenchmark(self.slug, named, self._count_runs(writing, named))

    def _means(self, one: BenchmarkView) -> bool:
        return one.deleted_at is None if self.version is None else one.version == self.version

    def _check_unused(self, writing: WriteTransaction, hidden: list[int]) -> None:
        of = tables.task_runs
        query = select(func.count()).where(
            of.c.tenant == self.tenant, of.c.slug == self.slug, of.c.version.in_(hidden), of.c.status.in_(OPEN)
        )
        unfinished = int(writing.read(query)[0][0])
        unfinished += sum(_NEW_RUNS.get(writing, self.tenant, self.slug, one) or 0 for one in hidden)
        if unfinished:
            raise BenchmarkInUse(
                f"{unfinished:,} task runs of {self.slug} have not ended; complete or cancel them, then delete it"
            )

    def _hide(self, writing: WriteTransaction, versions: dict[int, BenchmarkView], hidden: list[int]) -> None:
        now = writing.now.micros
        for one in hidden:
            writing.change(_HIDE, of_tenant=self.tenant, of_slug=self.slug, of_version=one, at=now)
        left = {one: msgspec.structs.replace(versions[one], deleted_at=from_micros(now)) for one in hidden}
        _VERSIONS.put(writing, versions | left, self.tenant, self.slug)
        writing.emit(
            self.tenant,
            EventType.BENCHMARK_DELETED,
            self.slug,
            f"{self.slug}@{hidden[-1]}:deleted",
            {"benchmark": self.slug, "versions": hidden},
        )

    def _count_runs(self, writing: WriteTransaction, versions: list[int]) -> int:
        of = tables.benchmark_runs
        query = select(func.count()).where(
            of.c.tenant == self.tenant, of.c.slug == self.slug, of.c.version.in_(versions)
        )
        return int(writing.read(query)[0][0])


def count_new_runs(writing: WriteTransaction, tenant: str, name: tuple[str, int], runs: int) -> None:
    """Count runs that a transaction creates; raises NotFound if their version was deleted."""
    slug, version = name
    found = _load_versions(writing, tenant, slug).get(version)
    if found is not None and found.deleted_at is not None:
        raise deleted_error(slug, version)
    _NEW_RUNS.put(writing, (_NEW_RUNS.get(writing, tenant, slug, version) or 0) + runs, tenant, slug, version)


def not_found(slug: str, version: int | None) -> NotFound:
    """Build the error for a benchmark that does not exist."""
    return NotFound(f"no benchmark {slug}{'' if version is None else f'@{version}'}")


def deleted_error(slug: str, version: int) -> NotFound:
    """Build the error for a run of a version that was deleted."""
    return NotFound(f"{slug}@{version} was deleted; run another version, or publish it again as a new one")


def _load_versions(writing: WriteTransaction, tenant: str, slug: str) -> dict[int, BenchmarkView]:
    """Load the line of every version of a benchmark, deleted ones included."""
    known = _VERSIONS.get(writing, tenant, slug)
    if known is not None:
        return known
    of = tables.benchmarks
    rows = writing.read(select(*_LINE).where(of.c.tenant == tenant, of.c.slug == slug))
    return {row.version: _view(row) for row in rows}


_LINE = [
    tables.benchmarks.c[name]
    for name in ("slug", "version", "seq", "digest", "title", "tasks", "created_at", "created_by", "deleted_at")
]
_HIDE: Update = (
    update(tables.benchmarks)
    .where(
        tables.benchmarks.c.tenant == bindparam("of_tenant"),
        tables.benchmarks.c.slug == bindparam("of_slug"),
        tables.benchmarks.c.version == bindparam("of_version"),
    )
    .values(deleted_at=bindparam("at"))
)


def look_up(connection: Connection, tenant: str, slug: str, version: int | None = None) -> BenchmarkView:
    """Return a benchmark's line: the version that is named, or the newest that is not deleted; raises NotFound."""
    of = tables.benchmarks
    query = select(*_LINE).where(of.c.tenant == tenant, of.c.slug == slug)
    query = query.where(of.c.deleted_at.is_(None) if version is None else of.c.version == version)
    row = connection.execute(query.order_by(of.c.version.desc()).limit(1)).first()
    if row is None:
        raise not_found(slug, version)
    return _view(row)


def newest_version(connection: Connection, tenant: str, slug: str) -> int:
    """Return the newest version of a benchmark, deleted ones included; 0 if there is none."""
    of = tables.benchmarks
    query = select(func.max(of.c.version)).where(of.c.tenant == tenant, of.c.slug == slug)
    return connection.execute(query).scalar() or 0


def content(connection: Connection, tenant: str, view: BenchmarkView) -> Benchmark:
    """Return the content of a benchmark."""
    of = tables.benchmarks
    query = select(of.c.body).where(of.c.tenant == tenant, of.c.slug == view.benchmark, of.c.version == view.version)
    return Benchmark.model_validate(from_canonical(connection.execute(query).scalar_one()))


def page(connection: Connection, tenant: str, *, before: int | None = None, limit: int = 50) -> list[BenchmarkView]:
    """List published benchmarks, newest first."""
    of = tables.benchmarks
    query = select(*_LINE).where(of.c.tenant == tenant, of.c.slug.not_like("%.practice-____________"))
    query = query.where(of.c.deleted_at.is_(None))
    if before is not None:
        query = query.where(of.c.seq < before)
    return [_view(row) for row in connection.execute(query.order_by(of.c.seq.desc()).limit(min(limit, MAX_PAGE)))]


# Any: a row of the columns above.
def _view(row: Any) -> BenchmarkView:
    at, hidden = from_micros(row.created_at), None if row.deleted_at is None else from_micros(row.deleted_at)
    return BenchmarkView(
        benchmark=row.slug,
        version=row.version,
        seq=row.seq,
        digest=row.digest,
        title=row.title,
        tasks=row.tasks,
        created_at=at,
        created_by=row.created_by,
        deleted_at=hidden,
    )
