"""The versions of outcomes, wherever they are kept: each in a row of `verdicts`, or all of a segment in one run.

A rescore gives the next version to hundreds of outcomes that stand near each other. One row of `verdict_runs` says so
for all of them: where the first and the last stand, and which segment holds their versions, in the same order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING, Any

from meruit.errors import RecordTampered
from meruit.model.record import Record
from meruit.outcomes.segment import VersionContent
from meruit.outcomes.store.segments import SegmentReader, find_gathered
from meruit.store.database import fetch
from meruit.store.lru import LruCache
from meruit.store.transaction import WriteTransaction

if TYPE_CHECKING:
    from sqlalchemy import Connection

MAX_SPAN = 4_096
"""Places from the first outcome of a run to its last: how far back a run may begin that holds an outcome."""
MIN_RUN = 32
"""Versions from which a run is made: reading one outcome reads all runs around it, of which there must be few."""
MAX_BLOCKS = 4
"""Blocks of MAX_SPAN places whose runs are remembered while outcomes are read in their order."""
MAX_IDS = 500
"""Outcomes of one question."""

# Any: columns of several types.
Fetch = Callable[..., Sequence[tuple[Any, ...]]]
"""Finds the rows of a statement, given its parameters."""


class VersionRow(Record, frozen=True):
    """A version of an outcome's verdict, with all that its row holds."""

    outcome_id: str
    version: int
    criteria_digest: str
    verdict: str
    success: int
    score: float
    reason: str
    created_at: int
    leaf: int
    salt: bytes | None
    result: bytes | None
    """As JSON; None once erased, and where a segment holds it."""
    place: int | None
    """In the segment of the leaf; None where there is none."""


class RunPlace(Record, frozen=True):
    """A version that a run holds; the verdict is in the segment only."""

    outcome_id: str
    version: int
    criteria_digest: str
    reason: str
    created_at: int
    leaf: int
    place: int


class VersionRun(Record, frozen=True):
    """Versions of one number, of outcomes that stand near each other."""

    first: int
    version: int
    last: int
    leaf: int
    criteria_digest: str
    reason: str
    created_at: int
    offsets: bytes | None

    def seqs(self) -> Sequence[int]:
        """Where its outcomes stand, in the order of the segment; raises RecordTampered where that cannot be read."""
        if self.offsets is None:
            return range(self.first, self.last + 1)
        if not self.offsets or len(self.offsets) % 2:
            raise self._unreadable()
        return [self.first + offset for offset in _offsets_form(len(self.offsets) // 2).unpack(self.offsets)]

    def _unreadable(self) -> RecordTampered:
        return RecordTampered(f"the run of versions in the segment of leaf {self.leaf} cannot be read")

    def holds_all(self, seqs: Sequence[int]) -> bool:
        """Whether its outcomes are neighbours, and all that stand at these places are among them."""
        first, last = seqs[0], seqs[-1]
        inside = self.offsets is None and self.first <= first and last <= self.last
        return inside and last - first == len(seqs) - 1

    def place_of(self, seq: int) -> int | None:
        """Where the segment holds the version of the outcome at this place."""
        if not self.first <= seq <= self.last:
            return None
        if self.offsets is None:
            return seq - self.first
        if not self.offsets or len(self.offsets) % 2:
            raise self._unreadable()
        if seq - self.first >= MAX_SPAN:
            return None
        # Searched as bytes, which takes no time: of each two, the first is at an even place.
        wanted = (seq - self.first).to_bytes(2, "big")
        at = self.offsets.find(wanted)
        while at > 0 and at % 2:
            at = self.offsets.find(wanted, at + 1)
        return None if at < 0 else at // 2

    def held(self, outcome_id: str, place: int) -> RunPlace:
        """The version of an outcome, whose place in the segment is known."""
        return RunPlace(outcome_id, self.version, self.criteria_digest, self.reason, self.created_at, self.leaf, place)


# Any: a row of SQLAlchemy's has its columns as attributes, which no type says.
def run_of(row: Any) -> VersionRun:
    """The run of a row of `verdict_runs`."""
    return VersionRun(
        first=row.first_seq,
        version=row.version,
        last=row.last_seq,
        leaf=row.leaf,
        criteria_digest=row.criteria_digest,
        reason=row.reason,
        created_at=row.created_at,
        offsets=row.offsets,
    )


def _offsets_form(count: int) -> Struct:
    return Struct(f">{count}H")


def pack_offsets(seqs: Sequence[int]) -> bytes | None:
    """The `offsets` of a run over outcomes at these places, which are in order."""
    first, count = seqs[0], len(seqs)
    return None if seqs[-1] - first == count - 1 else _offsets_form(count).pack(*[seq - first for seq in seqs])


def can_form_run(seqs: Sequence[int]) -> bool:
    """Whether outcomes at these places are enough, in order, and near enough to each other."""
    fit = len(seqs) >= MIN_RUN and seqs[-1] - seqs[0] < MAX_SPAN
    return fit and all(before < after for before, after in pairwise(seqs))


class VerdictRunReader:
    """Reads the runs of one tenant, block by block."""

    def __init__(self, fetch_rows: Fetch, tenant: str) -> None:
        self._fetch, self._tenant = fetch_rows, tenant
        self._blocks = LruCache[int, list[VersionRun]](MAX_BLOCKS)

    def between(self, first: int, last: int) -> list[VersionRun]:
        """The runs that reach into these places, the oldest version first."""
        rows = self._fetch(_RUNS, self._tenant, first - MAX_SPAN, last, first)
        return [VersionRun(*row) for row in rows]

    def around(self, seqs: Sequence[int]) -> list[VersionRun]:
        """The runs that may hold outcomes at these places, which are in order."""
        if seqs[-1] - seqs[0] < MAX_SPAN:
            return self.between(seqs[0], seqs[-1])
        # Far from each other, block by block: all runs between them would be too many.
        starts = dict.fromkeys(seq - seq % MAX_SPAN for seq in seqs)
        found = (run for start in starts for run in self.between(start, start + MAX_SPAN - 1))
        return [*{(run.first, run.version): run for run in found}.values()]

    def places(self, outcome_id: str, seq: int) -> list[RunPlace]:
        """The versions of an outcome that runs hold, oldest first."""
        start = seq - seq % MAX_SPAN
        runs = self._blocks.get_or_make(start, lambda: self.between(start, start + MAX_SPAN - 1))
        return [run.held(outcome_id, place) for run in runs if (place := run.place_of(seq)) is not None]


class VersionReader:
    """Reads the versions of outcomes of one tenant, from rows and from runs."""

    def __init__(self, connection: "Connection", tenant: str) -> None:
        self._connection, self._tenant = connection, tenant
        self.segments = SegmentReader(connection, tenant)
        self._runs = VerdictRunReader(partial(fetch, connection), tenant)

    def of(self, outcome_id: str, seq: int) -> list[VersionRow | RunPlace]:
        """All versions of an outcome, oldest first."""
        return self.of_many({outcome_id: seq})[outcome_id]

    def of_many(self, seqs: Mapping[str, int]) -> dict[str, list[VersionRow | RunPlace]]:
        """The same for outcomes by their ids, given the place of each."""
        found = {one: self._in_runs(one, seq) for one, seq in seqs.items()}
        for row in self._rows(_ROWS, [*seqs]):
            found[row.outcome_id].append(row)
        for several in found.values():
            several.sort(key=lambda one: one.version)
        return found

    def latest(self, places: Mapping[str, tuple[int, int]]) -> dict[str, list[VersionRow | RunPlace]]:
        """The same for the latest version of each, given its place and the number of that version."""
        found = {
            one: [held for held in self._in_runs(one, seq) if held.version == version]
            for one, (seq, version) in places.items()
        }
        for row in self._rows(_LATEST_ROWS, [one for one, held in found.items() if not held]):
            found[row.outcome_id].append(row)
        return found

    def newest(self, outcome_id: str, seq: int) -> VersionRow | RunPlace | None:
        """The version of an outcome with the highest number, whatever the outcome says of it."""
        several = [*self._in_runs(outcome_id, seq)[-1:]]
        several += [VersionRow(*row) for row in fetch(self._connection, _NEWEST_ROW, self._tenant, outcome_id)]
        return max(several, key=lambda one: one.version, default=None)

    def numbers(self, outcome_id: str, seq: int) -> list[int]:
        """The numbers of all versions of an outcome, in order; one that is there twice is named twice."""
        rows = fetch(self._connection, _NUMBERS, self._tenant, outcome_id)
        return sorted([*(number for (number,) in rows), *(held.version for held in self._runs.places(outcome_id, seq))])

    def in_segment(self, leaf: int, seqs: Mapping[str, int]) -> dict[str, RunPlace]:
        """The versions that a run has in a segment, by their outcomes, given where these stand."""
        if not seqs:
            return {}
        runs = [run for run in self._runs.around(sorted(seqs.values())) if run.leaf == leaf]
        return {
            one: run.held(one, place)
            for one, seq in seqs.items()
            for run in runs
            if (place := run.place_of(seq)) is not None
        }

    def _in_runs(self, outcome_id: str, seq: int) -> list[VersionRow | RunPlace]:
        return [*self._runs.places(outcome_id, seq)]

    def complete(self, found: VersionRow | RunPlace) -> VersionRow:
        """The whole row; raises RecordTampered where a run and its segment disagree."""
        return found if isinstance(found, VersionRow) else _row_of(found, self._content(found))

    def _content(self, found: RunPlace) -> VersionContent:
        content = self.segments.segment(found.leaf).content(found.place)
        if (content.outcome, content.version) != (found.outcome_id, found.version):
            raise RecordTampered(f"the segment of leaf {found.leaf} holds no version {found.version} of its outcome")
        return content

    def _rows(self, statement: str, ids: Sequence[str]) -> Iterator[VersionRow]:
        # As text: building a query of 500 parameters costs more than answering it.
        for start in range(0, len(ids), MAX_IDS):
            some = ids[start : start + MAX_IDS]
            asked = f"{statement} ({', '.join('?' * len(some))})"
            for row in fetch(self._connection, asked, self._tenant, *some):
                yield VersionRow(*row)


def find_places(writing: WriteTransaction, tenant: str, outcome_id: str, seq: int) -> list[tuple[int, int]]:
    """The leaf of each segment that holds a version of the outcome, and its place there; new segments included."""
    found = [(leaf, place) for leaf, place in writing.fetch(_PLACES, tenant, outcome_id)]
    found += [(one.leaf, one.place) for one in VerdictRunReader(writing.fetch, tenant).places(outcome_id, seq)]
    return found + find_gathered(writing, outcome_id)


def _row_of(found: RunPlace, content: VersionContent) -> VersionRow:
    return VersionRow(
        outcome_id=found.outcome_id,
        version=found.version,
        criteria_digest=found.criteria_digest,
        verdict=content.verdict,
        success=int(content.success),
        score=float(Fraction(content.score)),
        reason=found.reason,
        created_at=found.created_at,
        leaf=found.leaf,
        salt=None,
        result=None,
        place=found.place,
    )


_RUNS = (
    "SELECT first_seq, version, last_seq, leaf, criteria_digest, reason, created_at, offsets FROM verdict_runs "
    "WHERE tenant = ? AND first_seq > ? AND first_seq <= ? AND last_seq >= ? ORDER BY version, first_seq"
)
_PLACES = "SELECT leaf, place FROM verdicts WHERE tenant = ? AND outcome_id = ? AND place IS NOT NULL"
_COLUMNS = (
    "SELECT v.outcome_id, v.version, v.criteria_digest, v.verdict, v.success, v.score, v.reason, v.created_at, v.leaf, "
    "v.salt, v.result, v.place FROM verdicts v"
)
_ROWS = f"{_COLUMNS} WHERE v.tenant = ? AND v.outcome_id IN"
_NUMBERS = "SELECT version FROM verdicts WHERE tenant = ? AND outcome_id = ?"
_NEWEST_ROW = f"{_COLUMNS} WHERE v.tenant = ? AND v.outcome_id = ? ORDER BY v.version DESC LIMIT 1"
_LATEST_ROWS = (
    f"{_COLUMNS} JOIN outcomes o ON o.tenant = v.tenant AND o.id = v.outcome_id AND o.version = v.version "
    "WHERE v.tenant = ? AND v.outcome_id IN"
)
