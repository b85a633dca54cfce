"""Published benchmarks in the store: `slug@version`, each of which never changes."""

from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, select

from meruit.errors import BenchmarkTaken, NotFound
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


_VIEWS = Rows[BenchmarkView]("benchmark")


class PublishedBenchmark(NamedTuple):
    """A benchmark as it was published."""

    view: BenchmarkView
    benchmark: Benchmark


class PublishBenchmark(NamedTuple):
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

    def __call__(self, writing: WriteTransaction) -> BenchmarkView:
        """Store it and commit to the criteria of its tasks in the log; publishing the same again changes nothing."""
        of, slug, version = tables.benchmarks, self.benchmark.benchmark, self.benchmark.version
        known = _VIEWS.get(writing, self.tenant, slug, version)
        if known is None:
            rows = writing.read(
                select(*_LINE).where(of.c.tenant == self.tenant, of.c.slug == slug, of.c.version == version)
            )
            known = _view(rows[0]) if rows else None
        if known is not None:
            if known.digest != self.digest:
                newest = f"{slug}@{version}"
                raise BenchmarkTaken(f"{newest} is published with other content; publish yours as a new version")
            return known
        for body, digest in self.criteria:
            commit_criteria(writing, self.tenant, body, digest)
        seq = writing.emit(
            *(self.tenant, self._event, f"{slug}@{version}", f"{slug}@{version}:published"),
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
            body=self.body,
        )
        view = BenchmarkView(slug, version, seq, self.digest, title, tasks, from_micros(now), self.by)
        _VIEWS.put(writing, view, self.tenant, slug, version)
        return view

    @property
    def _event(self) -> EventType:
        return EventType.BENCHMARK_PRACTISED if self.practice else EventType.BENCHMARK_PUBLISHED


_LINE = [
    tables.benchmarks.c[name]
    for name in ("slug", "version", "seq", "digest", "title", "tasks", "created_at", "created_by")
]


def look_up(connection: Connection, tenant: str, slug: str, version: int | None = None) -> BenchmarkView:
    """Return a benchmark's line, of the newest version unless one is named; raises NotFound."""
    of = tables.benchmarks
    query = select(*_LINE).where(of.c.tenant == tenant, of.c.slug == slug)
    if version is not None:
        query = query.where(of.c.version == version)
    row = connection.execute(query.order_by(of.c.version.desc()).limit(1)).first()
    if row is None:
        raise NotFound(f"no benchmark {slug}{'' if version is None else f'@{version}'}")
    return _view(row)


def content(connection: Connection, tenant: str, view: BenchmarkView) -> Benchmark:
    """Return the content of a benchmark."""
    of = tables.benchmarks
    query = select(of.c.body).where(of.c.tenant == tenant, of.c.slug == view.benchmark, of.c.version == view.version)
    return Benchmark.model_validate(from_canonical(connection.execute(query).scalar_one()))


def page(connection: Connection, tenant: str, *, before: int | None = None, limit: int = 50) -> list[BenchmarkView]:
    """List published benchmarks, newest first."""
    of = tables.benchmarks
    query = select(*_LINE).where(of.c.tenant == tenant, of.c.slug.not_like("%.practice-____________"))
    if before is not None:
        query = query.where(of.c.seq < before)
    return [_view(row) for row in connection.execute(query.order_by(of.c.seq.desc()).limit(min(limit, MAX_PAGE)))]


# Any: a row of the columns above.
def _view(row: Any) -> BenchmarkView:
    at = from_micros(row.created_at)
    return BenchmarkView(row.slug, row.version, row.seq, row.digest, row.title, row.tasks, at, row.created_by)
