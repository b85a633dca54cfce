"""Segments of versions: one blob and one entry of the log for up to 512 verdicts, and a slim row for each."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

from meruit.errors import EvidenceDamaged, StoreError
from meruit.log.entries import VersionSegmentEntry
from meruit.outcomes.segment import OpenVersions, SegmentDraft, open_versions
from meruit.store import tables
from meruit.store.blobs import in_database
from meruit.store.database import fetch
from meruit.store.lru import LruCache
from meruit.store.rows import Rows
from meruit.store.transaction import WriteTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

MAX_OPEN = 8
"""Segments that a reader keeps open."""
_SEGMENT = (
    "SELECT s.address, b.content FROM verdict_segments s "
    "LEFT JOIN blobs b ON b.tenant = s.tenant AND b.address = s.address WHERE s.tenant = ? AND s.leaf = ?"
)


@dataclass(frozen=True, slots=True)
class GatheredSegment:
    """A segment that a transaction writes, or has written again."""

    leaf: int
    address: str
    blob: bytes
    outcomes: tuple[str, ...] = ()
    """Those of a new segment, in order."""


_GATHERED = Rows[GatheredSegment]("version_segment")


class SegmentReader:
    """Reads results of one tenant, wherever they are kept; segments stay open while they are read."""

    def __init__(self, connection: "Connection", tenant: str) -> None:
        self._connection, self._tenant = connection, tenant
        self._open = LruCache[int, OpenVersions](MAX_OPEN)

    # Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
    def result_of(self, row: Any) -> bytes | None:
        """The result of a row of `verdicts`, as JSON; None once erased."""
        return row.result if row.place is None else self.segment(row.leaf).result(row.place)

    def segment(self, leaf: int) -> OpenVersions:
        """The segment of a leaf; raises StoreError where it is gone or damaged."""
        return self._open.get_or_make(leaf, lambda: open_versions(self._blob(leaf)))

    def _blob(self, leaf: int) -> bytes:
        return checked_blob(leaf, fetch(self._connection, _SEGMENT, self._tenant, leaf))[1]


def checked_blob(leaf: int, found: Sequence[Any]) -> tuple[str, bytes]:
    """The address and the blob of a segment; raises StoreError where it is gone or not what it was."""
    if not found or found[0][1] is None:
        raise StoreError(f"the segment of leaf {leaf} is not in the store; restore the database from a copy")
    address, blob = found[0][0], bytes(found[0][1])
    if sha256(blob).hexdigest() != address:
        raise EvidenceDamaged(f"the segment of leaf {leaf} was changed after it was recorded; restore it from a copy")
    return address, blob


def fetch_segment(writing: WriteTransaction, tenant: str, leaf: int) -> GatheredSegment:
    """A segment as this transaction leaves it so far: another caller of the group may have erased a part of it."""
    known = _GATHERED.get(writing, tenant, leaf)
    return known or GatheredSegment(leaf, *checked_blob(leaf, writing.fetch(_SEGMENT, tenant, leaf)))


def find_gathered(writing: WriteTransaction, outcome_id: str) -> list[tuple[int, int]]:
    """The leaf of each new segment of the transaction that holds a version of the outcome, and its place there."""
    return [
        (one.leaf, one.outcomes.index(outcome_id))
        for one in _GATHERED.rows_to_write(writing)
        if outcome_id in one.outcomes
    ]


def gathered_outcomes(writing: WriteTransaction, outcomes: Sequence[str]) -> set[str]:
    """Those of these outcomes that a new segment of the transaction holds a version of."""
    new = [one for one in _GATHERED.rows_to_write(writing) if one.outcomes]
    return {*outcomes}.intersection(chain.from_iterable(one.outcomes for one in new)) if new else set()


def rewrite_segment(writing: WriteTransaction, tenant: str, before: GatheredSegment, blob: bytes) -> None:
    """Put another blob in place of a segment's; its entry in the log stays."""
    part = in_database(blob)
    writing.keep(part.blob(tenant))
    writing.rewrite(_MOVE, part.address, tenant, before.leaf)
    after = GatheredSegment(before.leaf, part.address, blob, before.outcomes)
    _GATHERED.put(writing, after, tenant, before.leaf)


def write_segment(
    writing: WriteTransaction,
    tenant: str,
    draft: SegmentDraft,
    criteria: tuple[str, int],
    *,
    reason: str,
    outcomes: Sequence[str],
    evidence: bool,
) -> int:
    """Write a segment by criteria of that digest and place in the log; the position of its entry."""
    digest, index = criteria
    leaf = writing.append(
        VersionSegmentEntry(
            writing.now.written,
            tenant=tenant,
            criteria=digest,
            criteria_index=index,
            evidence=evidence,
            versions=draft.versions,
            root=draft.root.hex(),
            reason=reason,
        ),
        tenant,
    )
    blob = in_database(draft.blob)
    writing.keep(blob.blob(tenant))
    writing.insert(
        tables.verdict_segments,
        tenant=tenant,
        leaf=leaf,
        address=blob.address,
        versions=draft.versions,
        created_at=writing.now.micros,
    )
    _GATHERED.put(writing, GatheredSegment(leaf, blob.address, draft.blob, tuple(outcomes)), tenant, leaf)
    return leaf


_MOVE = "UPDATE verdict_segments SET address = ? WHERE tenant = ? AND leaf = ?"
