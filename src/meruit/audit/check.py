"""Check a whole store against its audit log: every leaf, tile, root, checkpoint, and every row that a leaf commits to.

With write access to the database, one can change rows, leaves and hashes together. The signed checkpoints then no
longer match the recomputed roots, because the signing key is not in the database.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from sqlalchemy import Connection, Table, select

from meruit.errors import NoteError
from meruit.log.commitment import commitment_to, matches
from meruit.log.entries import (
    AwardEntry,
    CriteriaEntry,
    Entry,
    EvidenceEntry,
    GateEntry,
    GovernanceEntry,
    KeyEntry,
    SettlementEntry,
    UsageEntry,
    VerdictEntry,
    entry_bytes,
    read_entry,
)
from meruit.log.key_chain import KeyChain
from meruit.log.merkle import TILE_HEIGHT, Frontier, leaf_hash, node_hash
from meruit.log.note import open_checkpoint
from meruit.model.record import Record
from meruit.store import tables
from meruit.usage.records import contract_of

PAGE = 2_048
"""Leaves that are read at once; a multiple of what a tile covers."""
WIDTH = 1 << TILE_HEIGHT
MAX_PROBLEMS = 1_000
"""Most problems that are listed; a log that was rewritten has one for each leaf."""

Progress = Callable[[int, int], None]


class LogProblem(Record, frozen=True):
    """One contradiction between the store and its log."""

    code: str
    """`leaf`, `key`, `tile`, `root`, `checkpoint`, `row` or `ledger`."""
    where: str
    """The position in the log, or the row."""
    message: str


class LogCheck(Record, frozen=True):
    """The result of a check."""

    size: int
    """Leaves in the log."""
    checkpoints: int
    rows: int
    """Rows that were compared with their leaves."""
    unsigned: int
    """Leaves after the last checkpoint, which no signature covers yet."""
    problems: list[LogProblem]

    @property
    def sound(self) -> bool:
        """Whether nothing contradicts the log."""
        return not self.problems


def check_log(connection: Connection, progress: Progress = lambda _done, _total: None) -> LogCheck:
    """Recompute everything from the leaves' bytes; reads the whole log and every row that it commits to."""
    log = _LogReader(connection, progress)
    log.read_leaves()
    log.check_state()
    rows = 0
    for check in _ROW_CHECKS:
        rows += check(connection, log)
    return LogCheck(log.frontier.size, log.checkpoints, rows, log.frontier.size - log.signed, log.problems)


class _LogReader:
    """Reads the leaves in order, and compares all that follows from them."""

    def __init__(self, connection: Connection, progress: Progress) -> None:
        self.connection = connection
        self.progress = progress
        self.frontier = Frontier(0, ())
        self.problems: list[LogProblem] = []
        self.entries: Counter[str] = Counter()
        self.checkpoints = 0
        self.signed = 0
        """Leaves that a checkpoint covers."""
        self._tiles: list[list[bytes]] = [[]]
        """For each level, the hashes since the last complete tile."""
        # Read before the state: a log that is growing meanwhile is never shorter than its checkpoints.
        rows = connection.execute(select(tables.checkpoints).order_by(tables.checkpoints.c.size))
        self._notes = {row.size: str(row.note) for row in rows}
        self._state = connection.execute(select(tables.log_state)).one()
        self._chain = KeyChain(self._state.origin)
        """Keys that the log admits so far."""
        self.size = int(self._state.size)
        """What is checked; leaves that are added meanwhile are not."""

    def add(self, code: str, where: str, message: str) -> None:
        """Note a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(LogProblem(code, where, message))

    def read_leaves(self) -> None:
        """Hash every leaf, and compare tiles and checkpoints on the way."""
        table, total = tables.log_leaves, self.size
        while self.frontier.size < total:
            first = self.frontier.size
            rows = self.connection.execute(
                select(table).where(table.c.seq >= first, table.c.seq < min(first + PAGE, total)).order_by(table.c.seq)
            ).all()
            for row in rows:
                if row.seq != self.frontier.size:
                    self.add("leaf", str(self.frontier.size), "the log lacks this leaf")
                    return
                self._read_leaf(row)
            self.progress(self.frontier.size, total)
            if not rows:
                return

    # Any: a row of SQLAlchemy.
    def _read_leaf(self, row: Any) -> None:
        body, where = bytes(row.body), str(row.seq)
        found = leaf_hash(body)
        if found != bytes(row.hash):
            self.add("leaf", where, "its bytes do not give its hash: one of them was changed")
        try:
            entry = read_entry(body)
        except msgspec.DecodeError as problem:
            self.add("leaf", where, f"it is not an entry of this log: {problem}")
        else:
            self._read_entry(entry, row, body)
        self.frontier = self.frontier.extend([found])
        self._grow_tiles(found)
        if (note := self._notes.pop(self.frontier.size, None)) is not None:
            self._check_note(note)

    def _read_entry(self, entry: Entry, row: Any, body: bytes) -> None:
        where = str(row.seq)
        if entry_bytes(entry) != body:
            self.add("leaf", where, "it is not written in canonical form")
        columns = (row.tenant, row.contract_id, row.contract_seq)
        # A key is the deployment's, and belongs to no tenant.
        said = (getattr(entry, "tenant", ""), *_place_in_sequence(entry))
        if columns != said:
            self.add("leaf", where, f"its columns say {columns}, its bytes say {said}")
        self.entries[type(entry).__name__] += 1
        if isinstance(entry, KeyEntry):
            why = self._chain.admit(row.seq, entry)
            if why:
                self.add("key", where, f"{why}: remove nothing, and ask who wrote to the database")

    def _grow_tiles(self, hash_: bytes) -> None:
        level = 0
        while True:
            self._tiles[level].append(hash_)
            if len(self._tiles[level]) < WIDTH:
                return
            hash_ = _fold(self._tiles[level])
            self._tiles[level] = []
            level += 1
            seq = (self.frontier.size >> (level * TILE_HEIGHT)) - 1
            table = tables.log_tiles
            kept = self.connection.execute(
                select(table.c.hash).where(table.c.level == level, table.c.seq == seq)
            ).scalar()
            if kept is None or bytes(kept) != hash_:
                self.add("tile", f"{level}/{seq}", "the stored hash is not that of its leaves")
            if level == len(self._tiles):
                self._tiles.append([])

    def _check_note(self, note: str) -> None:
        size, root = self.frontier.size, self.frontier.root()
        self.checkpoints += 1
        for key in self._chain.signers_at(size):
            try:
                signed = open_checkpoint(note, key)
            except NoteError:
                continue
            if (signed.origin, signed.size, signed.root) != (self._state.origin, size, root):
                self.add("checkpoint", str(size), "the signed root is not that of the leaves: the log was rewritten")
            self.signed = size
            return
        self.add("checkpoint", str(size), "no key that the log admits has signed it")

    def check_state(self) -> None:
        """Compare the end of the log with its state, and find checkpoints of a log that was longer."""
        state = self._state
        if state.size != self.frontier.size or bytes(state.peaks) != self.frontier.to_bytes():
            self.add("root", str(state.size), "the recorded end of the log is not that of its leaves")
        for size in self._notes:
            self.add("checkpoint", str(size), f"it is of {size:,} leaves, and the log has {self.frontier.size:,}")


def _fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


class _RowCheck(NamedTuple):
    """Compare the rows of one table with the leaves that commit to them."""

    table: Table
    leaf: str
    """The column with the position of the leaf."""
    kind: type[Any]
    """Of the entry."""
    # Any, here and below: rows of SQLAlchemy, entries of the kind.
    compare: Callable[[Connection, Any, Any], Iterator[str]]
    """The names of what differs."""

    def __call__(self, connection: Connection, log: _LogReader) -> int:
        """Compare every row; how many there are."""
        leaves = tables.log_leaves
        query = select(self.table, leaves.c.body.label("leaf_body")).outerjoin(
            leaves, leaves.c.seq == self.table.c[self.leaf]
        )
        query = query.where(self.table.c[self.leaf] < log.size)
        count = 0
        for row in connection.execute(query.execution_options(yield_per=PAGE)):
            count += 1
            where = f"{self.table.name} {_name_of(row)}"
            try:
                entry = None if row.leaf_body is None else read_entry(bytes(row.leaf_body))
            except msgspec.DecodeError:
                entry = None
            if not isinstance(entry, self.kind):
                log.add("row", where, f"leaf {getattr(row, self.leaf)} does not commit to it")
                continue
            differ = [*self.compare(connection, row, entry)]
            if differ:
                log.add("row", where, f"not what leaf {getattr(row, self.leaf)} commits to: {', '.join(differ)}")
        logged = log.entries[self.kind.__name__]
        if count != logged:
            log.add("row", self.table.name, f"{count:,} rows, and the log has {logged:,} entries of them")
        return count


def _name_of(row: Any) -> str:
    named = [getattr(row, name) for name in ("tenant", "id", "outcome_id", "contract_id", "vkey") if hasattr(row, name)]
    numbers = [getattr(row, name) for name in ("version", "number") if hasattr(row, name)]
    return "/".join(map(str, [*named[:2], *numbers[:1]]))


def _differing(**pairs: tuple[Any, Any]) -> Iterator[str]:
    return (name for name, (kept, logged) in pairs.items() if kept != logged)


def _compare_key(_connection: Connection, row: Any, entry: KeyEntry) -> Iterator[str]:
    return _differing(vkey=(row.vkey, entry.vkey))


def _compare_criteria(_connection: Connection, row: Any, entry: CriteriaEntry) -> Iterator[str]:
    digest = sha256(bytes(row.body)).hexdigest()
    return _differing(tenant=(row.tenant, entry.tenant), digest=(row.digest, entry.digest), body=(digest, entry.digest))


def _compare_evidence(connection: Connection, row: Any, entry: EvidenceEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant), id=(row.id, entry.outcome), contract_id=(row.contract_id, entry.contract)
    )
    for part in ("input", "output", "metadata"):
        address, salt = getattr(row, f"{part}_address"), getattr(row, f"{part}_salt")
        if address is None or salt is None:
            # It was erased; its hash stays, and says nothing.
            continue
        if commitment_to(bytes(salt), address) != getattr(entry, part):
            yield part
            continue
        blobs = tables.blobs
        kept = connection.execute(
            select(blobs.c.content).where(blobs.c.tenant == row.tenant, blobs.c.address == address)
        ).first()
        if kept is None or (kept.content is not None and sha256(bytes(kept.content)).hexdigest() != address):
            yield part


def _compare_verdict(_connection: Connection, row: Any, entry: VerdictEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        criteria_digest=(row.criteria_digest, entry.criteria),
        verdict=(row.verdict, entry.verdict),
        success=(bool(row.success), entry.success),
        reason=(row.reason, entry.reason),
    )
    if not _is_committed(entry.result, row.salt, row.result):
        yield "result"


def _compare_governance(_connection: Connection, row: Any, entry: GovernanceEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        disposition=(row.disposition, entry.disposition),
    )
    if not _is_committed(entry.dossier, row.salt, row.body):
        yield "dossier"


def _compare_award(connection: Connection, row: Any, entry: AwardEntry) -> Iterator[str]:
    yield from _differing(
        tenant=(row.tenant, entry.tenant),
        id=(row.id, entry.contract),
        work_id=(row.work_id, entry.work),
        agent_id=(row.agent_id, entry.agent),
        consumer_id=(row.consumer_id, entry.consumer),
        currency=(row.currency, entry.currency),
        hold_micros=(row.hold_micros, entry.hold_micros),
        terms=(sha256(bytes(row.terms)).hexdigest(), entry.terms),
    )
    works = tables.works
    work = connection.execute(
        select(works.c.body, works.c.consumer_id, works.c.criteria_digest).where(
            works.c.tenant == row.tenant, works.c.id == entry.work
        )
    ).first()
    if (
        work is None
        or sha256(bytes(work.body)).hexdigest() != entry.work_digest
        or (work.consumer_id, work.criteria_digest or "") != (entry.consumer, entry.criteria)
    ):
        yield "work"


def _is_committed(committed: str, salt: bytes | None, content: bytes | None) -> bool:
    """Whether the log commits to the content; true once it was erased, because nothing is left to compare."""
    return salt is None or content is None or matches(committed, bytes(salt), bytes(content))


def _compare_settlement(_connection: Connection, row: Any, entry: SettlementEntry) -> Iterator[str]:
    return _differing(
        tenant=(row.tenant, entry.tenant),
        contract_id=(row.contract_id, entry.contract),
        number=(row.number, entry.number),
        outcome_id=(row.outcome_id, entry.outcome),
        version=(row.version, entry.version),
        bill=(sha256(bytes(row.bill)).hexdigest(), entry.bill),
    )


_ROW_CHECKS = (
    _RowCheck(tables.log_keys, "seq", KeyEntry, _compare_key),
    _RowCheck(tables.criteria, "leaf", CriteriaEntry, _compare_criteria),
    _RowCheck(tables.outcomes, "evidence_leaf", EvidenceEntry, _compare_evidence),
    _RowCheck(tables.verdicts, "leaf", VerdictEntry, _compare_verdict),
    _RowCheck(tables.governance_checks, "leaf", GovernanceEntry, _compare_governance),
    _RowCheck(tables.contracts, "seq", AwardEntry, _compare_award),
    _RowCheck(tables.settlements, "leaf", SettlementEntry, _compare_settlement),
)


def _place_in_sequence(entry: Entry) -> tuple[str | None, int | None]:
    """What the entry is numbered under without a gap, and its number: a contract, a usage run or an agent run."""
    match entry:
        case GateEntry():
            return entry.run, entry.number
        case UsageEntry():
            return contract_of(entry.run), entry.number
        case _:
            return getattr(entry, "contract", None), getattr(entry, "contract_seq", None)
