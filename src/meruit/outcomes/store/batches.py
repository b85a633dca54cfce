"""Reading many outcomes at once, for work that goes through all of them: a few queries a batch, and bounded memory."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import count as count_up
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from sqlalchemy import ColumnElement, Connection, bindparam, func, select

from meruit.errors import RecordTampered, StoreError
from meruit.model.access import Scope
from meruit.model.outcome import OutcomeSummary
from meruit.outcomes.store.read import OutcomeFilter, OutcomeWork, fitting, forward
from meruit.outcomes.store.segments import SegmentReader
from meruit.outcomes.store.versions import MAX_SPAN, RunPlace, VerdictRunReader, VersionReader, VersionRow, VersionRun
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.database import fetch, in_style

if TYPE_CHECKING:
    from sqlalchemy.sql.compiler import SQLCompiler

BATCH = 512
"""Outcomes read at a time: as many as a segment holds, so that a page is read from few of them."""
MAX_GROUP_BYTES = 32 * 1024 * 1024
"""Work that is held at a time, unless a single one is larger; parts that are small come on top."""
_SMALL_BYTES = 8_192
"""Parts up to this size are read before it is known how much they are together."""
_SMALL = f"b.size, CASE WHEN b.size <= {_SMALL_BYTES} THEN b.content END"


class StoredVersion(msgspec.Struct, frozen=True):
    """One verdict on an outcome as its row holds it."""

    outcome_id: str
    version: int
    criteria_digest: str
    reason: str
    verdict: str
    success: bool
    score: float
    result: bytes | None
    """As JSON; None once erased."""


# A tuple, as the driver gives its rows: what is written by the hundreds is not made into anything else.
class OutcomePlace(NamedTuple):
    """An outcome, where it stands, and how its latest version ended."""

    id: str
    seq: int
    version: int
    verdict: str
    score: float
    success: int
    criteria_digest: str
    contract_id: str
    evidence_leaf: int


KeptResult = tuple[int, int | None, bytes | None]
"""Where the result of a version is: a leaf, its place in the segment of that leaf, else the result as JSON."""


LatestVersion = tuple[OutcomePlace, KeptResult]
"""An outcome, and where the result of its latest version is."""


def end_of(connection: Connection, scope: Scope, narrowed: OutcomeFilter | None) -> int:
    """The place of the newest outcome there is now; 0 when there is none."""
    query = select(func.max(tables.outcomes.c.seq)).where(*_inside(scope), *fitting(narrowed))
    return int(connection.execute(query).scalar() or 0)


def count(connection: Connection, scope: Scope, narrowed: OutcomeFilter | None, end: int) -> int:
    """How many outcomes there are up to that place."""
    query = select(func.count()).where(*_inside(scope), tables.outcomes.c.seq <= end, *fitting(narrowed))
    return int(connection.execute(query).scalar_one())


def end_of_span(
    connection: Connection, scope: Scope, narrowed: OutcomeFilter | None, *, after: int, end: int, rows: int
) -> int:
    """The place of the last of so many outcomes behind a place; the end where there are fewer."""
    seq = tables.outcomes.c.seq
    query = select(seq).where(*_inside(scope), seq > after, seq <= end, *fitting(narrowed))
    found = connection.execute(query.order_by(seq).offset(rows - 1).limit(1)).scalar()
    return end if found is None else int(found)


def _inside(scope: Scope) -> list[ColumnElement[bool]]:
    of = tables.outcomes.c
    return [of.tenant == scope.tenant, *([of.agent_id == (scope.agent_id or "")] if scope.only_own else [])]


def next_page(
    connection: Connection, scope: Scope, narrowed: OutcomeFilter | None, *, after: int, end: int
) -> list[OutcomeSummary]:
    """The oldest outcomes behind a place, up to the end; empty when all were seen."""
    found = forward(connection, scope, narrowed=narrowed, after=after, limit=BATCH)
    return [summary for summary in found if summary.seq <= end]


class PlaceQuery:
    """Outcomes in their order, a page at a time; written once, which costs as much as reading a third of a page."""

    def __init__(self, scope: Scope, narrowed: OutcomeFilter | None) -> None:
        of = tables.outcomes.c
        self._query = (
            select(*[of[name] for name in OutcomePlace._fields])
            .where(*_inside(scope), of.seq > bindparam("after"), of.seq <= bindparam("end"), *fitting(narrowed))
            .order_by(of.seq)
            .limit(BATCH)
        )
        self._written: tuple[str, SQLCompiler] | None = None

    def read(self, connection: Connection, *, after: int, end: int) -> list[OutcomePlace]:
        """The oldest outcomes behind a place, as plain rows: only their order is that of an OutcomePlace."""
        if self._written is None:
            compiled = self._query.compile(dialect=connection.dialect)
            self._written = str(compiled), compiled
        text, compiled = self._written
        values = compiled.construct_params({"after": after, "end": end})
        in_order = compiled.positiontup
        asked = values if in_order is None else tuple(values[name] for name in in_order)
        with connection.exec_driver_sql(text, asked) as found:
            # As the driver gives them: rows with names would take as long as reading them does.
            return [*found.cursor.fetchall()]


class RunScan:
    """Outcomes of one run after the other, as their segments have them."""

    def __init__(self, tenant: str, end: int) -> None:
        """Up to the place `end`."""
        self._tenant, self._end = tenant, end
        self._known: dict[int, VersionRun] = {}
        """By the first outcome the run with its latest version, as far as they were looked up."""
        self._looked_up = 0

    def read(self, connection: Connection, segments: SegmentReader, *, after: int) -> list[LatestVersion] | None:
        """The outcomes of the run that begins behind a place.

        None where there is no such run, or where an outcome has another version by now: rows are to be read then. What
        each version says is taken from the segment, which the log commits to: counting rows takes a tenth of reading.
        """
        first = after + 1
        run = self._find(connection, first)
        if run is None:
            return None
        lines, places = segments.segment(run.leaf).quick_lines, range(first, run.last + 1)
        asked = self._tenant, first, run.last, run.version, run.criteria_digest
        ((alike,),) = _fetch(connection, _ALIKE, *asked)
        if not alike == len(places) == len(lines):
            return None
        scores = {one: float(Fraction(one)) for one in {line.score for line in lines}}
        # Any: a tuple of these columns, in this order, is an OutcomePlace.
        outcomes: Iterator[Any] = zip(
            [line.outcome for line in lines],
            places,
            repeat(run.version),
            [line.verdict for line in lines],
            [scores[line.score] for line in lines],
            [int(line.success) for line in lines],
            repeat(run.criteria_digest),
            [line.contract for line in lines],
            [line.evidence_index for line in lines],
            strict=False,
        )
        return [*zip(outcomes, zip(repeat(run.leaf), count_up(), repeat(None)), strict=False)]

    def _find(self, connection: Connection, first: int) -> VersionRun | None:
        """The run with the latest version that begins at a place; several are looked up at once."""
        if first > self._looked_up:
            self._looked_up = first + MAX_SPAN - 1
            runs = VerdictRunReader(partial(fetch, connection), self._tenant).between(first, self._looked_up)
            # What another process adds meanwhile is noticed: the rows say another version then.
            self._known = {run.first: run for run in runs if run.offsets is None and run.last <= self._end}
        return self._known.get(first)


def find_results(connection: Connection, tenant: str, page: Sequence[OutcomePlace]) -> list[KeptResult | None]:
    """Where the latest result of each outcome of a page is; None where that is not recorded."""
    if not page:
        return []
    reader = VerdictRunReader(partial(fetch, connection), tenant)
    seqs, versions = [row[1] for row in page], [row[2] for row in page]
    wanted = {*versions}
    held: dict[int, dict[int, KeptResult]] = {version: {} for version in wanted}
    for run in reader.around(seqs):
        if run.version in wanted:
            if len(wanted) == 1 and run.holds_all(seqs):
                # The usual case: what one rescore wrote together is read together by the next.
                start = seqs[0] - run.first
                return [*zip(repeat(run.leaf), range(start, start + len(seqs)), repeat(None))]
            held[run.version].update(zip(run.seqs(), zip(repeat(run.leaf), count_up(), repeat(None)), strict=False))
    # The usual case is one version of all.
    found = [*map(held[versions[0]].get, seqs)] if len(wanted) == 1 else [held[row[2]].get(row[1]) for row in page]
    missing = [row for row, kept in zip(page, found, strict=True) if kept is None]
    if missing:
        in_rows = _results_in_rows(connection, tenant, missing)
        found = [kept or in_rows.get(row[0]) for row, kept in zip(page, found, strict=True)]
    return found


def _results_in_rows(connection: Connection, tenant: str, page: Sequence[OutcomePlace]) -> dict[str, KeptResult]:
    first, last = page[0][1], page[-1][1]
    if last - first < 2 * len(page):
        # In their order, neighbours are read in half the time.
        rows = _fetch(connection, f"{_LATEST} o.seq BETWEEN ? AND ?", tenant, first, last)
    else:
        rows = _ask(connection, f"{_LATEST} o.id IN", tenant, [row[0] for row in page])
    return {name: (leaf, place, result) for name, leaf, place, result in rows}


def versions(
    connection: Connection, tenant: str, page: Sequence[OutcomeSummary], *, every: bool
) -> dict[str, list[StoredVersion]]:
    """The verdicts on each outcome of a page, oldest first: all of them, or only the latest."""
    reader = VersionReader(connection, tenant)
    if every:
        found = reader.of_many({one.id: one.seq for one in page})
    else:
        found = reader.latest({one.id: (one.seq, one.version) for one in page})
    for one in page:
        wanted = [*range(1, one.version + 1)] if every else [one.version]
        if [held.version for held in found[one.id]] != wanted:
            raise RecordTampered(f"outcome {one.id} does not have each of its {one.version} versions once")
    return {name: [_stored(reader, one) for one in several] for name, several in found.items()}


def _stored(reader: VersionReader, found: VersionRow | RunPlace) -> StoredVersion:
    row = reader.complete(found)
    return StoredVersion(
        outcome_id=row.outcome_id,
        version=row.version,
        criteria_digest=row.criteria_digest,
        reason=row.reason,
        verdict=row.verdict,
        success=bool(row.success),
        score=row.score,
        result=reader.segments.result_of(row),
    )


class PlacedOutcome(Protocol):
    """An outcome, and its place among all."""

    @property
    def id(self) -> str:
        """Its id."""

    @property
    def seq(self) -> int:
        """Its place."""


def works(
    connection: Connection, tenant: str, outcomes: Sequence[PlacedOutcome], shelf: BlobStore
) -> Iterator[dict[str, OutcomeWork | StoreError]]:
    """The work of each outcome, a few at a time; an error where it is recorded and cannot be read."""
    sizes: dict[str | None, int] = {}
    pieces: dict[str | None, bytes | None] = {None: None}
    """Small parts by their address; None for one that was erased."""
    known: dict[str, _Addresses] = {}
    for name, given, made, facts, size, content in _read_outputs(connection, tenant, outcomes):
        known[name] = given, made, facts
        if size is not None:
            sizes[made] = size
            if content is not None and sha256(content).hexdigest() == made:
                pieces[made] = content
    # Many outcomes share their input and their metadata.
    beside = {part for given, _, facts in known.values() for part in (given, facts) if part is not None}
    for address, size, content in _read_blobs(connection, tenant, beside - sizes.keys(), _SMALL):
        sizes[address] = size
        if content is not None and sha256(content).hexdigest() == address:
            pieces[address] = content
    for group in _groups([(one.id, known[one.id]) for one in outcomes if one.id in known], sizes):
        others = {address for _, addresses in group for address in addresses if address not in pieces}
        if others:
            held = {**pieces, **_pieces(connection, tenant, others, shelf)}
            yield {name: _work([held[address] for address in addresses]) for name, addresses in group}
        else:
            # The usual case: all were small, and none is damaged.
            yield {
                name: OutcomeWork(pieces[given], pieces[made], pieces[facts]) for name, (given, made, facts) in group
            }


_Addresses = tuple[str | None, str | None, str | None]
"""Of the input, the output and the metadata of a work."""


# Any: a row, whose columns no type says.
def _read_outputs(connection: Connection, tenant: str, outcomes: Sequence[PlacedOutcome]) -> Iterator[Any]:
    """For each outcome its id and addresses, and the size and small content of its output; for others too."""
    if not outcomes:
        return
    asked = [one.seq for one in outcomes]
    first, last = min(asked), max(asked)
    if last - first < 2 * len(asked):
        # In their order, neighbours are read in half the time.
        yield from _fetch(connection, f"{_OUTPUTS} o.seq BETWEEN ? AND ?", tenant, first, last)
    else:
        yield from _ask(connection, f"{_OUTPUTS} o.id IN", tenant, [one.id for one in outcomes])


def _work(pieces: Sequence[bytes | StoreError | None]) -> OutcomeWork | StoreError:
    given, made, facts = pieces
    for piece in pieces:
        if isinstance(piece, StoreError):
            return piece
    return OutcomeWork(given, made, facts)  # type: ignore[arg-type]  # just asked


def _groups(
    places: Sequence[tuple[str, _Addresses]], sizes: Mapping[str | None, int]
) -> Iterator[Sequence[tuple[str, _Addresses]]]:
    # The usual case first: whatever they have, it is not too much.
    if places and 3 * len(places) * max(sizes.values(), default=0) <= MAX_GROUP_BYTES:
        yield places
        return
    group: list[tuple[str, _Addresses]] = []
    size = 0
    for place in places:
        given, made, facts = place[1]
        more = sizes.get(given, 0) + sizes.get(made, 0) + sizes.get(facts, 0)
        if group and size + more > MAX_GROUP_BYTES:
            yield group
            group, size = [], 0
        group.append(place)
        size += more
    if group:
        yield group


def _pieces(
    connection: Connection, tenant: str, wanted: Iterable[str | None], shelf: BlobStore
) -> dict[str | None, bytes | StoreError]:
    """The content of each address; what lies in files is read one by one."""
    named = [address for address in wanted if address is not None]
    inline = dict(_read_blobs(connection, tenant, named, "b.content"))
    pieces: dict[str | None, bytes | StoreError] = {}
    for address in named:
        content = inline.get(address)
        if content is not None and sha256(content).hexdigest() == address:
            pieces[address] = content
        else:
            pieces[address] = _read_piece(connection, tenant, address, shelf)
    return pieces


def _read_piece(connection: Connection, tenant: str, address: str, shelf: BlobStore) -> bytes | StoreError:
    try:
        return shelf.content(connection, tenant, address)
    except StoreError as problem:
        return problem


# Any: columns of whichever type.
def _read_blobs(connection: Connection, tenant: str, addresses: Iterable[str], columns: str) -> Iterator[Any]:
    """The address and these columns of each blob that is there."""
    statement = f"SELECT b.address, {columns} FROM blobs b WHERE b.tenant = ? AND b.address IN"  # noqa: S608 - ours
    wanted = sorted(addresses)
    for start in range(0, len(wanted), BATCH):
        yield from _ask(connection, statement, tenant, wanted[start : start + BATCH])


# Any: columns of whichever type, here and below.
def _ask(connection: Connection, statement: str, tenant: str, wanted: Sequence[str]) -> Sequence[Any]:
    """Rows of several keys. As text: building a query of 500 parameters costs more than answering it."""
    return _fetch(connection, f"{statement} ({', '.join('?' * len(wanted))})", tenant, *wanted) if wanted else ()


def _fetch(connection: Connection, statement: str, *values: Any) -> Sequence[Any]:
    with connection.exec_driver_sql(in_style(statement, connection), values) as found:
        # As the driver gives them, as above.
        return found.cursor.fetchall()


_ALIKE = (
    "SELECT count(*) FROM outcomes WHERE tenant = ? AND seq BETWEEN ? AND ? AND version = ? AND criteria_digest = ?"
)
_LATEST = (
    "SELECT o.id, v.leaf, v.place, v.result FROM outcomes o "
    "JOIN verdicts v ON v.tenant = o.tenant AND v.outcome_id = o.id AND v.version = o.version WHERE o.tenant = ? AND"
)
_OUTPUTS = (
    f"SELECT o.id, o.input_address, o.output_address, o.metadata_address, {_SMALL} FROM outcomes o "  # noqa: S608 - ours
    "LEFT JOIN blobs b ON b.tenant = o.tenant AND b.address = o.output_address WHERE o.tenant = ? AND"
)
