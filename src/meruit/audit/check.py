"""Check a whole store against its audit log: every leaf, tile, root, checkpoint, and every row that a leaf commits to.

With write access to the database, one can change rows, leaves and hashes together. The signed checkpoints then no
longer match the recomputed roots, because the signing key is not in the database.

The check goes in slices: pages of the log, then pages of each table. Each slice may have a transaction of its own, so
that a large store is checked while it is written to.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import Connection, func, select

from meruit.audit.check_history import HistoryScan
from meruit.audit.check_rows import CHECKS, DERIVED, Problem, RowScan, parse_leaf
from meruit.errors import NoteError
from meruit.log.entries import (
    ApiKeyEntry,
    ApiKeyRevocationEntry,
    Entry,
    GateEntry,
    KeyEntry,
    RunPaymentEntry,
    UsageEntry,
    entry_bytes,
    read_entry,
)
from meruit.log.key_chain import KeyChain
from meruit.log.merkle import TILE_HEIGHT, Frontier, leaf_hash, node_hash
from meruit.log.note import Checkpoint, SigningKey, open_checkpoint, strict_base64
from meruit.model.record import Record
from meruit.store import tables
from meruit.store.blobs import BlobStore
from meruit.store.checkpoint_file import CheckpointFile
from meruit.store.log_seal import is_possibly_sealed
from meruit.store.sequences import SequenceMemory
from meruit.store.store import Store
from meruit.usage.records import contract_of

PAGE = 2_048
"""Leaves that are read at once; a multiple of what a tile covers."""
WIDTH = 1 << TILE_HEIGHT
MAX_PROBLEMS = 1_000
"""Most problems that are listed; a log that was rewritten has one for each leaf."""
KEPT = "data folder"
"""The place of a problem with what the data folder knows of the log."""
MAX_MISSING = 10
"""Most deleted rows of one table that are named."""

Progress = Callable[[int, int], None]


class LogProblem(Record, frozen=True):
    """One contradiction between the store and its log."""

    code: str
    """`leaf`, `key`, `tile`, `root`, `checkpoint`, `row`, `derived` or `blob`."""
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


class StoreCheck:
    """A check of a whole store, slice by slice; a slice that fails may be tried again."""

    def __init__(
        self,
        blobs: BlobStore,
        sequences: SequenceMemory | None = None,
        kept: Checkpoint | None = None,
        signer: SigningKey | None = None,
    ) -> None:
        """Tell `sequences` how many entries each contract has, as the bytes of the log say.

        The log must extend `kept`, which the data folder knows. The `signer` can tell whether its end is sealed.
        """
        self._blobs, self._sequences, self._kept, self._signer = blobs, sequences, kept, signer
        self._log: _LogReader | None = None
        self._rows: list[RowScan] = []
        self._history: HistoryScan | None = None

    @property
    def position(self) -> tuple[int, int]:
        """The leaves that are read, and those that there are."""
        return (0, 0) if self._log is None else (self._log.frontier.size, self._log.size)

    @property
    def problems(self) -> list[LogProblem]:
        """What was found so far."""
        return [] if self._log is None else self._log.problems

    def check_slice(self, connection: Connection) -> bool:
        """Check one more slice; whether there is another. Leaves that are added after the first slice are left out."""
        if self._log is None:
            self._log = _LogReader(connection, self._sequences or SequenceMemory(), self._kept, self._signer)
            self._rows = [RowScan(one) for one in CHECKS]
        if not self._log.done:
            # Read by a copy, so that a slice that fails leaves nothing half done.
            log = self._log.copy()
            log.read_slice(connection)
            self._log = log
            return True
        place = next((number for number, one in enumerate(self._rows) if not one.done), None)
        if place is None:
            return self._check_history(connection, self._log)
        scan = copy(self._rows[place])
        found = scan.read_page(connection, self._blobs, self._log.size)
        if scan.done:
            found += _check_count(connection, self._log, scan)
        self._rows[place] = scan
        for problem in found:
            self._log.add(*problem)
        return True

    def _check_history(self, connection: Connection, log: "_LogReader") -> bool:
        """What governance remembers, once its dossiers are compared with the log."""
        history = self._history = self._history or HistoryScan()
        if history.done:
            return False
        for where, message in history.read_page(connection):
            log.add(DERIVED, where, message)
        return True

    def result(self) -> LogCheck:
        """What all slices found together."""
        log = self._log
        if log is None:
            return LogCheck(size=0, checkpoints=0, rows=0, unsigned=0, problems=[])
        rows = sum(scan.count for scan in self._rows)
        rows += 0 if self._history is None else self._history.count
        return LogCheck(
            size=log.frontier.size,
            checkpoints=log.checkpoints,
            rows=rows,
            unsigned=log.frontier.size - log.signed,
            problems=log.problems,
        )


def _check_count(connection: Connection, log: "_LogReader", scan: RowScan) -> Iterator[Problem]:
    """Whether each entry of the log has its rows, once all rows are compared."""
    check = scan.check
    if not check.kinds or not check.counts or check.leaf is None:
        return
    leaf = check.table.c[check.leaf]
    # Two rows of one leaf could hide that another is gone; those of one segment are compared with it.
    query = select(func.count(leaf.distinct())).where(leaf < log.size)
    if check.shared is not None:
        query = query.where(check.table.c[check.shared].is_(None))
    found = connection.execute(query).scalar_one()
    leaves, expected = log.leaves[check.table.name], log.rows[check.table.name]
    if (found, scan.alone) != (leaves, expected):
        yield "row", check.table.name, f"{scan.alone:,} rows, and the log has {expected:,} entries of them"
    if found < leaves:
        for seq in _entries_without_row(connection, scan, log.size):
            yield "row", f"{check.table.name} of entry {seq}", "the row is gone"


def _entries_without_row(connection: Connection, scan: RowScan, size: int) -> list[int]:
    """The first entries whose row is gone."""
    table, leaves = scan.check.table, tables.log_leaves
    leaf = table.c[scan.check.leaf or ""]
    query = (
        select(leaves.c.seq, leaves.c.body)
        .outerjoin(table, leaf == leaves.c.seq)
        .where(leaves.c.seq < size, leaf.is_(None))
        .order_by(leaves.c.seq)
    )
    gone = (row.seq for row in connection.execute(query) if scan.check.count_rows(parse_leaf(row.body)))
    return [*islice(gone, MAX_MISSING)]


def begin_check(store: Store) -> StoreCheck:
    """A check of a store, with what its data folder knows of the log."""
    kept = CheckpointFile(store.database.location).read()
    return StoreCheck(store.blobs, store.recorder.sequences, kept, store.signer)


def check_log(connection: Connection, check: StoreCheck, progress: Progress = lambda _done, _total: None) -> LogCheck:
    """Recompute everything from the leaves' bytes, in one transaction of the caller.

    The check is begun before the transaction, or the data folder might know more than the transaction sees.
    """
    while check.check_slice(connection):
        progress(*check.position)
    return check.result()


def check_store(store: Store, progress: Progress = lambda _done, _total: None) -> LogCheck:
    """The same in many short transactions, so that writers and their log files are not held up meanwhile."""
    check, more = begin_check(store), True
    while more:
        with store.database.reading() as connection:
            more = check.check_slice(connection)
        progress(*check.position)
    return check.result()


class _LogReader:
    """Reads the leaves in order, and compares all that follows from them."""

    def __init__(
        self, connection: Connection, sequences: SequenceMemory, kept: Checkpoint | None, signer: SigningKey | None
    ) -> None:
        self.connection = connection
        self._kept, self._signer = kept, signer
        self._sequences = sequences
        self.frontier = Frontier(0, ())
        self.problems: list[LogProblem] = []
        self.leaves: Counter[str] = Counter()
        """For each table, how many leaves commit to its rows."""
        self.rows: Counter[str] = Counter()
        """For each table, to how many rows they commit."""
        self.checkpoints = 0
        self.done = False
        self.signed = 0
        """Leaves that a checkpoint covers."""
        self._tiles: list[list[bytes]] = [[]]
        """For each level, the hashes since the last complete tile."""
        self._notes: dict[int, str] = {}
        """Checkpoints of the slice, by size."""
        # Read before the state: a log that is growing meanwhile is never shorter than its checkpoints.
        longest = connection.execute(select(func.max(tables.checkpoints.c.size))).scalar()
        self._state = connection.execute(select(tables.log_state)).one()
        self._chain = KeyChain(self._state.origin)
        """Keys that the log admits so far."""
        self.size = int(self._state.size)
        """What is checked; leaves that are added meanwhile are not."""
        if kept is not None and (kept.origin != self._state.origin or kept.size > self.size):
            self.add(
                "checkpoint", KEPT, f"it knows {kept.size:,} leaves of {kept.origin}, and the log has {self.size:,}"
            )
        if longest is not None and longest > self.size:
            self.add("checkpoint", str(longest), f"it is of {longest:,} leaves, and the log has {self.size:,}")

    def copy(self) -> "_LogReader":
        """The same, to be read on by a slice that may fail."""
        made = copy(self)
        made.problems, made.leaves, made.rows = [*self.problems], Counter(self.leaves), Counter(self.rows)
        vars(made).update(_chain=self._chain.copy(), _tiles=[[*hashes] for hashes in self._tiles])
        return made

    def add(self, code: str, where: str, message: str) -> None:
        """Note a problem."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(LogProblem(code, where, message))

    def read_slice(self, connection: Connection) -> None:
        """Hash the next page of leaves, and compare tiles and checkpoints on the way."""
        self.connection = connection
        table, notes = tables.log_leaves, tables.checkpoints
        first = self.frontier.size
        last = min(first + PAGE, self.size)
        query = select(notes.c.size, notes.c.note).where(notes.c.size > first, notes.c.size <= last)
        self._notes = {row.size: str(row.note) for row in connection.execute(query)}
        rows = connection.execute(select(table).where(table.c.seq >= first, table.c.seq < last).order_by(table.c.seq))
        for row in rows.all():
            if row.seq != self.frontier.size:
                break
            self._read_leaf(row)
        if self.frontier.size < last:
            self.add("leaf", str(self.frontier.size), "the log lacks this leaf")
        if self.frontier.size < last or last == self.size:
            self._check_state()
            self._check_outside()
            self.done = True

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
        kept = self._kept
        if kept is not None and self.frontier.size == kept.size and self.frontier.root() != kept.root:
            self.add("checkpoint", KEPT, f"the first {kept.size:,} leaves are not those that it knows")

    def _read_entry(self, entry: Entry, row: Any, body: bytes) -> None:
        where = str(row.seq)
        if entry_bytes(entry) != body:
            self.add("leaf", where, "it is not written in canonical form")
        columns = (row.tenant, row.contract_id, row.contract_seq)
        # A key is the deployment's, and belongs to no tenant.
        place = (getattr(entry, "tenant", ""), *_place_in_sequence(entry))
        if columns != place:
            self.add("leaf", where, f"its columns say {columns}, its bytes say {place}")
        tenant, name, number = place
        if name is not None and number is not None and row.seq == self.frontier.size:
            self._sequences.add(tenant, name, number)
        for check in CHECKS:
            if count := check.count_rows(entry):
                self.leaves[check.table.name] += 1
                self.rows[check.table.name] += count
        if isinstance(entry, KeyEntry):
            why = self._chain.admit(row.seq, entry)
            if why:
                self.add("key", where, f"{why}: remove nothing, and ask who wrote to the database")
        if isinstance(entry, ApiKeyEntry):
            self._check_api_key(entry, where)

    def _check_api_key(self, entry: ApiKeyEntry, where: str) -> None:
        """An API key is signed by a key in force, and its row is never deleted."""
        content = entry.signed_content(self._state.origin)
        try:
            signature = strict_base64(entry.signature)
        except ValueError:
            signature = b""
        if not any(key.verify(content, signature) for key in self._chain.in_force):
            self.add("key", where, f"no key that the log admits has signed the API key {entry.key}")
        if self.connection.execute(select(tables.keys.c.id).where(tables.keys.c.id == entry.key)).first() is None:
            self.add("row", f"{tables.keys.name} {entry.key}", "the row is gone")

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
            stored = self.connection.execute(
                select(table.c.hash).where(table.c.level == level, table.c.seq == seq)
            ).scalar()
            if stored is None or bytes(stored) != hash_:
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

    def _check_state(self) -> None:
        """Compare the end of the log with its state."""
        state = self._state
        if state.size != self.frontier.size or bytes(state.peaks) != self.frontier.to_bytes():
            self.add("root", str(state.size), "the recorded end of the log is not that of its leaves")
        elif self._signer is not None and not is_possibly_sealed(
            bytes(state.seal), self._signer, self.frontier, self._chain
        ):
            self.add("root", str(state.size), "no key that the log admits has sealed its end")

    def _check_outside(self) -> None:
        """Leaves that no root covers: they would be found by their contract or key, and are not in the log."""
        seq, size = tables.log_leaves.c.seq, select(tables.log_state.c.size).scalar_subquery()
        query = select(seq).where((seq < 0) | (seq >= size)).order_by(seq).limit(MAX_MISSING)
        for outside in self.connection.execute(query).scalars():
            self.add("leaf", str(outside), "it is beyond the end of the log")


def _fold(hashes: list[bytes]) -> bytes:
    while len(hashes) > 1:
        hashes = [node_hash(left, right) for left, right in zip(hashes[::2], hashes[1::2], strict=True)]
    return hashes[0]


def _place_in_sequence(entry: Entry) -> tuple[str | None, int | None]:
    """What the entry is numbered under without a gap, and its number: a contract, a run or an API key."""
    match entry:
        case GateEntry():
            return entry.run, entry.number
        case UsageEntry():
            return contract_of(entry.run), entry.number
        case RunPaymentEntry() | ApiKeyEntry() | ApiKeyRevocationEntry():
            return entry.sequence, entry.number
        case _:
            return getattr(entry, "contract", None), getattr(entry, "contract_seq", None)
