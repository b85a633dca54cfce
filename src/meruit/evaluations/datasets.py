"""Datasets: named, versioned cases, found by the digest of their content; streamed, never held whole."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice

from meruit.errors import InvalidCase
from meruit.evaluations.case_judge import check_case
from meruit.evaluations.dataset_chunks import pack_chunk, read_row, split, unpack_chunk, write_row
from meruit.evaluations.evaluation import Case, DatasetRecord
from meruit.evaluations.store import datasets as stored
from meruit.model.record import Record
from meruit.store.store import Store

PREFIX = "dataset:"
"""Begins the name of a dataset where a file could stand too."""
MAX_SOURCE = 200
"""Characters that are kept of where a version comes from."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_REFERENCE = re.compile(rf"({_NAME.pattern})(?:@([1-9][0-9]{{0,8}}))?", re.ASCII)


def parse_cursor(written: str | None) -> tuple[str, int] | None:
    """The `next` of a page of datasets, as `NAME@VERSION`."""
    if written is None:
        return None
    found = _REFERENCE.fullmatch(written)
    if found is None or found[2] is None:
        raise InvalidCase(f"{written!r} is not a cursor; pass the `next` value of the previous page")
    return found[1], int(found[2])


class ChangedRow(Record, frozen=True):
    """A case that both versions have, with other content."""

    id: str
    parts: tuple[str, ...]
    """Which parts differ: `input`, `output`, `metadata`, `tags`."""


class DatasetDiff(Record, frozen=True):
    """What changed from one version of a dataset to another."""

    old: DatasetRecord
    new: DatasetRecord
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[ChangedRow, ...]
    same: int


@dataclass(frozen=True, slots=True)
class DatasetSource:
    """A version of a dataset, as cases of a run."""

    record: DatasetRecord
    read: Callable[[], Iterator[Case]]

    @property
    def digest(self) -> str:
        """Of its content."""
        return self.record.digest

    @property
    def rows(self) -> int:
        """How many cases it has."""
        return self.record.rows

    def cases(self) -> Iterator[Case]:
        """Its cases, in order."""
        return self.read()


class Datasets:
    """The datasets of one tenant."""

    def __init__(self, store: Store, tenant: str) -> None:
        self._store = store
        self._tenant = tenant

    def add(self, name: str, read: Callable[[], Iterable[Case]], source: str = "") -> DatasetRecord:
        """Keep cases as the next version; the same content as the latest version is that version.

        `read` is called twice: once to check every case before anything is kept, and once to keep them.
        """
        if not _NAME.fullmatch(name):
            raise InvalidCase(
                f"the name of a dataset has 1 to 100 letters, digits, dots, dashes and underscores, not {name[:80]!r}"
            )
        digest, rows = _measure(read())
        if not rows:
            raise InvalidCase("a dataset has at least one case")
        self._keep(digest, read())
        return self._store.recorder.write(
            stored.AddVersion(tenant=self._tenant, name=name, digest=digest, rows=rows, source=source[:MAX_SOURCE])
        )

    def _keep(self, digest: str, cases: Iterable[Case]) -> None:
        """Keep the chunks that a process before this one did not."""
        with self._store.database.reading() as connection:
            chunks = stored.count_chunks(connection, self._tenant, digest)
        hashed = sha256()
        for number, chunk in enumerate(split(map(write_row, cases)), 1):
            for row in chunk:
                hashed.update(row + b"\n")
            if number > chunks:
                blob = self._store.blobs.part(self._tenant, pack_chunk(chunk))
                self._store.recorder.write(stored.KeepChunk(self._tenant, digest, number, blob))
        if hashed.hexdigest() != digest:
            raise InvalidCase("the cases changed while they were read; add them again")

    def find(self, reference: str) -> DatasetRecord:
        """A dataset by `NAME` (its latest version) or `NAME@VERSION`; raises NotFound."""
        found = _REFERENCE.fullmatch(reference.removeprefix(PREFIX))
        if found is None:
            raise InvalidCase(f"{reference!r} is not NAME or NAME@VERSION")
        name, version = found.groups()
        with self._store.database.reading() as connection:
            return stored.find_dataset(connection, self._tenant, name, None if version is None else int(version))

    def page(
        self, *, name: str | None = None, before: tuple[str, int] | None = None, limit: int = 50
    ) -> list[DatasetRecord]:
        """Versions by name, the latest of each first; `before` is the last one of the previous page."""
        with self._store.database.reading() as connection:
            return stored.page_datasets(connection, self._tenant, name=name, before=before, limit=limit)

    def open(self, reference: str) -> DatasetSource:
        """A dataset as the cases of a run; raises NotFound."""
        record = self.find(reference)
        return DatasetSource(record, lambda: self.cases(record))

    def cases(self, dataset: DatasetRecord, *, after: int = 0, limit: int | None = None) -> Iterator[Case]:
        """Its cases in order, from behind the row `after`; streamed."""
        rows = (row for address in self._addresses(dataset) for row in self._chunk(address))
        end = None if limit is None else after + limit
        return map(read_row, islice(rows, after, end))

    def diff(self, old: DatasetRecord, new: DatasetRecord) -> DatasetDiff:
        """What changed between two versions; chunks that both have are not opened."""
        before, after = self._addresses(old), self._addresses(new)
        shared = {*before} & {*after}
        gone = {_key(case): case for case in self._open_all(before, shared)}
        added: list[str] = []
        changed: list[ChangedRow] = []
        for case in self._open_all(after, shared):
            earlier = gone.pop(_key(case), None)
            if earlier is None:
                added.append(_case_label(case))
            elif earlier != case:
                changed.append(ChangedRow(_case_label(case), _find_changed_parts(earlier, case)))
        removed = tuple(map(_case_label, gone.values()))
        return DatasetDiff(
            old=old,
            new=new,
            added=tuple(added),
            removed=removed,
            changed=tuple(changed),
            same=new.rows - len(added) - len(changed),
        )

    def _open_all(self, addresses: Iterable[str], shared: Collection[str]) -> Iterator[Case]:
        """The cases of the chunks that only one of two versions has."""
        return (read_row(row) for address in addresses if address not in shared for row in self._chunk(address))

    def _addresses(self, dataset: DatasetRecord) -> list[str]:
        with self._store.database.reading() as connection:
            return stored.chunk_addresses(connection, self._tenant, dataset.digest)

    def _chunk(self, address: str) -> list[bytes]:
        with self._store.database.reading() as connection:
            return unpack_chunk(self._store.blobs.content(connection, self._tenant, address))


def _measure(cases: Iterable[Case]) -> tuple[str, int]:
    """The digest of all rows, and their number; raises InvalidCase for a case that cannot be kept."""
    hashed, rows = sha256(), 0
    # Hashes, because a million ids would take three times as much memory.
    seen: set[int] = set()
    for case in cases:
        check_case(case)
        key = hash(_key(case))
        if key in seen:
            raise InvalidCase(f"two cases have the id {case.id!r}; give each its own, or map another column to id")
        seen.add(key)
        hashed.update(write_row(case) + b"\n")
        rows += 1
    return hashed.hexdigest(), rows


def _key(case: Case) -> tuple[str, int]:
    return case.id, case.repeat


def _case_label(case: Case) -> str:
    return case.id if not case.repeat else f"{case.id} #{case.repeat}"


def _find_changed_parts(old: Case, new: Case) -> tuple[str, ...]:
    return tuple(name for name in Case.__struct_fields__ if getattr(old, name) != getattr(new, name))
