"""One transaction of the recorder: rows, log entries and events are gathered, then written in one go."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import chain
from operator import add, itemgetter
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.errors import RecordTampered
from meruit.log.entries import Entry, entry_bytes
from meruit.log.merkle import Frontier, leaf_hash, new_full_tiles
from meruit.log.note import Checkpoint, SigningKey
from meruit.model.events import EventType
from meruit.store.driver import DriverConnection
from meruit.store.layout import COLUMNS, KEY_SIZES
from meruit.store.log_seal import seal_end
from meruit.store.log_tiles import Tiles
from meruit.store.lru import LruCache
from meruit.store.rows import RowCache, RowKey, Rows
from meruit.store.sequences import SequenceMemory

if TYPE_CHECKING:
    from sqlalchemy import Select, Table, Update
    from sqlalchemy.sql.dml import Delete

CHECKPOINT_EVERY_MICROS = 1_000_000
CHANCE_BYTES = 10
"""Of an id."""
MAX_ROWS = 128
"""Rows of one statement, well within the parameters that a statement may have."""


class WriteMoment(msgspec.Struct, frozen=True):
    """When a group is written; the same for all in it."""

    micros: int
    written: str


def id_of(kind: str, micros: int, entropy: Callable[[int], bytes]) -> str:
    """A unique id; ids sort by time: `out_0065…`."""
    # As `id_from` does, whose calls take longer than the rest.
    return f"{kind}_{micros:014x}{entropy(CHANCE_BYTES).hex()}"


def id_from(kind: str, micros: int, chance: bytes) -> str:
    """The same from random bytes that are drawn already."""
    return f"{id_prefix(kind, micros)}{chance.hex()}"


def id_prefix(kind: str, micros: int) -> str:
    """What ids of one kind and one moment begin with; 20 random digits follow."""
    return f"{kind}_{_in_order(micros)}"


def _in_order(micros: int) -> str:
    return f"{micros:014x}"


class MergeRule(StrEnum):
    """What becomes of a row whose key is there already."""

    ADDED = "added"
    """Its numbers are added to those that stand."""
    REPLACED = "replaced"
    KEPT = "kept"
    """The first one stays."""


class _Mark(msgspec.Struct, frozen=True):
    rows: dict[str, int]
    merges: int
    blobs: int
    changes: int
    many_changes: int
    hashes: int
    outcomes: int
    events: int
    row_cache: int


class Blob(msgspec.Struct, frozen=True):
    """Evidence to be kept: its content, or None where that lies in a file already."""

    tenant: str
    address: str
    size: int
    content: bytes | None
    restore: Callable[[], None] | None = None
    """Makes sure that the file is there, once nothing can be refused any more."""


class LogState(msgspec.Struct, frozen=True):
    """The one row that every writer holds."""

    origin: str
    frontier: Frontier
    outcomes: int
    events: int
    checkpoint_at: int
    seal: bytes


class LogProcess(msgspec.Struct, frozen=True):
    """What a process knows of the log that it writes."""

    signer: SigningKey
    sequences: SequenceMemory
    is_shared: bool
    """Whether other keys may sign the log too."""


class WriteTransaction:
    """What several callers write together: all of it becomes durable, or none."""

    def __init__(
        self,
        connection: DriverConnection,
        state: LogState,
        now: WriteMoment,
        entropy: Callable[[int], bytes],
        lasting: LruCache[RowKey, Any],
        process: LogProcess,
    ) -> None:
        self.now = now
        self.signer, self.is_shared = process.signer, process.is_shared
        self.has_key_entry = False
        """Whether an entry about a key was added."""
        self.note: str | None = None
        """The checkpoint that was signed with this transaction."""
        self._entropy, self._drawn = entropy, 1
        self._moment, self._chances = _in_order(now.micros), list[str]()
        self.outcomes, self.events = state.outcomes, state.events
        self.row_cache = RowCache(lasting)
        self._connection = connection
        self._state = state
        self._sequences = process.sequences
        self._rows: dict[str, list[tuple[Any, ...]]] = {}
        """By the name of their table."""
        self._merges: list[tuple[str, MergeRule, tuple[Any, ...]]] = []
        self._blobs: list[Blob] = []
        self._changes: list[tuple[Update | Delete | str, dict[str, Any] | tuple[Any, ...], RowKey | None]] = []
        self._many_changes: list[tuple[str, Sequence[tuple[Any, ...]]]] = []
        self._hashes: list[bytes] = []
        self._leaves = self._rows.setdefault("log_leaves", [])

    @property
    def log_frontier(self) -> Frontier:
        """The end of the log before this transaction."""
        return self._state.frontier

    @property
    def log_size(self) -> int:
        """The entries of the log before this transaction."""
        return self._state.frontier.size

    def tiles(self) -> Tiles:
        """The stored hashes of the log."""
        return Tiles(self._connection)

    def read(self, query: "Select[Any]") -> Sequence[Any]:
        """Rows as this transaction found them; what it has gathered itself is not among them yet."""
        return self._connection.execute(query).all()

    def ask(self, statement: str, *values: Any) -> Sequence[Any]:
        """The same for what every contract asks, as text: building a query costs more than answering it."""
        return self._connection.ask(statement, *values)

    def fetch(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The same as plain tuples, past SQLAlchemy: naming the columns costs most of a small question."""
        return self._connection.fetch(statement, *values)

    def insert(self, table: "Table", /, **row: Any) -> None:
        """Add a row with all its columns."""
        self._rows.setdefault(table.name, []).append(_values_in_order(table.name, row))

    def insert_all(self, table: "Table", columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """Add many rows at once; `columns` are all of the table's, in its order."""
        if (*columns,) != COLUMNS[table.name]:
            raise TypeError(f"the columns of {table.name} are {COLUMNS[table.name]}")
        self._rows.setdefault(table.name, []).extend(rows)

    def merge(self, table: "Table", how: MergeRule, /, **row: Any) -> None:
        """Add a row that may be there already; each table is merged in one way."""
        self._merges.append((table.name, how, _values_in_order(table.name, row)))

    def change(self, statement: "Update | Delete", **parameters: Any) -> None:
        """An update or delete, done after every insert; bind parameters of one statement share its execution."""
        self._changes.append((statement, parameters, None))

    def rewrite(self, statement: str, *values: Any, row: RowKey | None = None) -> None:
        """The same as text, for what every submission changes; of a row that is named, the last one is enough."""
        self._changes.append((statement, values, row))

    def rewrite_all(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """The same for many rows at once."""
        self._many_changes.append((statement, rows))

    def keep(self, blob: Blob) -> None:
        """Evidence, once more referred to."""
        self._blobs.append(blob)

    def is_keeping(self, tenant: str, address: str) -> bool:
        """Whether this transaction adds a reference to the evidence."""
        return any(blob.tenant == tenant and blob.address == address for blob in self._blobs)

    def new_id(self, kind: str) -> str:
        """A unique id with the time of this transaction."""
        if not self._chances:
            # Several at a time, and more of them in a group that needs many.
            self._drawn = min(self._drawn * 2, MAX_ROWS)
            drawn = self._entropy(CHANCE_BYTES * self._drawn).hex()
            self._chances = [
                drawn[place : place + 2 * CHANCE_BYTES] for place in range(0, len(drawn), 2 * CHANCE_BYTES)
            ]
        return f"{kind}_{self._moment}{self._chances.pop()}"

    def next_outcome(self) -> int:
        """The place of a new outcome among all."""
        self.outcomes += 1
        return self.outcomes

    def append(
        self, entry: Entry, tenant: str = "", contract_id: str | None = None, contract_seq: int | None = None
    ) -> int:
        """Add an entry to the audit log; answers its index."""
        return self.append_bytes(entry_bytes(entry), tenant, contract_id, contract_seq)

    def append_bytes(
        self, body: bytes, tenant: str = "", contract_id: str | None = None, contract_seq: int | None = None
    ) -> int:
        """The same for an entry that is written already."""
        index = self._state.frontier.size + len(self._hashes)
        hashed = leaf_hash(body)
        self._hashes.append(hashed)
        # In the order of the columns, which `insert` would have to look up for each entry.
        self._leaves.append((index, hashed, tenant, contract_id, contract_seq, body))
        if contract_id is not None and contract_seq is not None:
            _CONTRACT_ENTRIES.put(self, contract_seq, tenant, contract_id)
        return index

    def next_in_contract(self, tenant: str, contract_id: str) -> int:
        """The number of the contract's next entry; raises RecordTampered where entries are hidden."""
        known = _CONTRACT_ENTRIES.get(self, tenant, contract_id)
        if known is None:
            known = int(self.ask(_LAST_OF_CONTRACT, tenant, contract_id)[0][0] or 0)
            self.require_entries(tenant, contract_id, known)
        return known + 1

    def require_entries(self, tenant: str, contract_id: str, found: int) -> None:
        """Raise RecordTampered where more entries than were found are known to be in the log."""
        newest = self._sequences.newest(tenant, contract_id)
        if found < newest:
            raise RecordTampered(f"the audit log had {newest} entries of {contract_id!r}, and {found} are found")

    def look_up_contracts(self, tenant: str, contract_ids: Iterable[str]) -> None:
        """Read with one query how many entries the log has on each of several contracts; raises RecordTampered."""
        unknown = {one for one in contract_ids if _CONTRACT_ENTRIES.get(self, tenant, one) is None}
        if not unknown:
            return
        # As text: building a query of 500 parameters costs more than answering it.
        marks = ", ".join("?" * len(unknown))
        found = dict(self.fetch(f"{_LAST_OF_CONTRACTS} ({marks}) GROUP BY contract_id", tenant, *unknown))
        for one in unknown:
            number = found.get(one, 0)
            self.require_entries(tenant, one, number)
            _CONTRACT_ENTRIES.put(self, number, tenant, one)

    def remember_sequences(self) -> None:
        """Remember how many entries each contract has, once they are durable."""
        # Of the entries of one contract, the last has the highest number.
        self._sequences.add_all(
            {
                (tenant, contract_id): contract_seq
                for _, _, tenant, contract_id, contract_seq, _ in self._leaves
                if contract_id is not None and contract_seq is not None
            }
        )

    def emit(self, tenant: str, kind: EventType, subject: str, idempotency_key: str, data: dict[str, Any]) -> int:
        """Write an event to the outbox."""
        self.events += 1
        written = msgspec.json.encode(data)
        event = (self.events, tenant, self.new_id("evt"), str(kind), subject, idempotency_key, self.now.micros, written)
        self._rows.setdefault("events", []).append(event)
        return self.events

    # Any: columns of several types.
    def emitted(self) -> Sequence[tuple[Any, ...]]:
        """The events that were gathered, as rows of the outbox."""
        return self._rows.get("events", ())

    def mark(self) -> _Mark:
        """Where a caller's part begins."""
        return _Mark(
            rows={table: len(rows) for table, rows in self._rows.items()},
            merges=len(self._merges),
            blobs=len(self._blobs),
            changes=len(self._changes),
            many_changes=len(self._many_changes),
            hashes=len(self._hashes),
            outcomes=self.outcomes,
            events=self.events,
            row_cache=self.row_cache.mark(),
        )

    def roll_back_to(self, mark: _Mark) -> None:
        """Forget what was gathered since: its caller is refused, the others are not."""
        for table, rows in self._rows.items():
            del rows[mark.rows.get(table, 0) :]
        del (
            self._merges[mark.merges :],
            self._blobs[mark.blobs :],
            self._changes[mark.changes :],
            self._many_changes[mark.many_changes :],
            self._hashes[mark.hashes :],
        )
        self.outcomes, self.events = mark.outcomes, mark.events
        self.row_cache.roll_back_to(mark.row_cache)

    # Any: columns of several types.
    def rows_since(self, mark: _Mark, table: "Table") -> list[dict[str, Any]]:
        """The rows of a table that were gathered since a mark, by the names of their columns."""
        rows = self._rows.get(table.name, [])[mark.rows.get(table.name, 0) :]
        return [dict(zip(COLUMNS[table.name], row, strict=True)) for row in rows]

    def flush(self, *, sign_now: bool = False) -> Frontier:
        """Write all that was gathered, the log's new state last."""
        for table, rows in self._rows.items():
            self._insert(table, rows)
        self._write_merges()
        self._write_blobs()
        self._write_changes()
        return self._write_state(sign_now=sign_now)

    def _insert(self, table: str, rows: list[tuple[Any, ...]], suffix: str = "") -> None:
        if self._connection.style == "sqlite" and len(rows) > MAX_ROWS:
            # SQLite binds row by row faster than it reads a statement of thousands of parameters.
            empty = _empty_columns(rows)
            if empty:
                rows = [*map(itemgetter(*[place for place in range(len(rows[0])) if place not in empty]), rows)]
            self._connection.run_all(_sparse_insert_text(table, empty) + suffix, rows)
            return
        done = 0
        while done < len(rows):
            count = min(len(rows) - done, MAX_ROWS)
            values = chain.from_iterable(rows[done : done + count])
            self._connection.run(_insert_text(table, count) + suffix, *values)
            done += count

    def _write_merges(self) -> None:
        """One row for a key and group: a statement may not meet a row twice."""
        merged: dict[tuple[str, MergeRule], dict[tuple[Any, ...], tuple[Any, ...]]] = {}
        for table, how, values in self._merges:
            size = KEY_SIZES[table]
            key, rest = values[:size], values[size:]
            rows = merged.setdefault((table, how), {})
            before = rows.get(key)
            if before is not None and how is MergeRule.ADDED:
                rest = tuple(map(add, before, rest))
            elif before is not None and how is MergeRule.KEPT:
                rest = before
            rows[key] = rest
        for (table, how), rows in merged.items():
            # Sorted, so that two deployments which write the same rows never wait for each other in a circle.
            self._insert(table, [(*key, *rows[key]) for key in sorted(rows)], _on_conflict(table, how))

    def _write_blobs(self) -> None:
        """Each content once; how often it is referred to is counted, so that the last to leave can erase it."""
        counted: dict[tuple[str, str], list[Any]] = {}
        for blob in self._blobs:
            if blob.restore is not None:
                blob.restore()
            row = counted.setdefault((blob.tenant, blob.address), [blob.size, 0, blob.content])
            row[1] += 1
        rows = [(*key, *row) for key, row in counted.items()]
        self._insert("blobs", rows, " ON CONFLICT (tenant, address) DO UPDATE SET refs = blobs.refs + excluded.refs")

    def _write_changes(self) -> None:
        # Any: bind parameters are a mapping for a statement of SQLAlchemy's, and a tuple for text.
        grouped: dict[int, tuple[Update | Delete | str, list[Any]]] = {}
        last = {row: place for place, (_, _, row) in enumerate(self._changes)}
        for place, (statement, parameters, row) in enumerate(self._changes):
            if row is not None and last[row] != place:
                continue
            grouped.setdefault(id(statement), (statement, []))[1].append(parameters)
        for text, rows in self._many_changes:
            self._connection.run_all(text, rows)
        for statement, several in grouped.values():
            if isinstance(statement, str):
                self._connection.run_all(statement, several)
            else:
                self._connection.execute(statement, several if several != [{}] else None)

    def _write_state(self, *, sign_now: bool) -> Frontier:
        old, frontier = self._state.frontier, self._state.frontier.extend(self._hashes)
        self._write_tiles(old.size, frontier.size)
        checkpoint_at = self._state.checkpoint_at
        due = frontier.size > old.size and self.now.micros - checkpoint_at >= CHECKPOINT_EVERY_MICROS
        if due or sign_now:
            checkpoint_at = self.now.micros
            self.note = sign_frontier(self.signer, frontier)
            self._insert("checkpoints", [(frontier.size, self.note, checkpoint_at)], " ON CONFLICT (size) DO NOTHING")
        if (frontier, self.outcomes, self.events, checkpoint_at) != (
            *(old, self._state.outcomes, self._state.events, self._state.checkpoint_at),
        ):
            seal = self._state.seal
            if frontier != old:
                seal = seal_end(self.signer, frontier, is_shared=self.is_shared)
            new = (frontier.size, frontier.to_bytes(), self.outcomes, self.events, checkpoint_at, seal)
            self._connection.run(_NEW_STATE, *new)
        return frontier

    def _write_tiles(self, old_size: int, new_size: int) -> None:
        tiles = Tiles(self._connection)
        for level, seq in new_full_tiles(old_size, new_size):
            # This transaction's own leaves and lower tiles are all written by now.
            self._insert("log_tiles", [(level, seq, tiles.tile_root(level, seq))])


def sign_frontier(signer: SigningKey, frontier: Frontier) -> str:
    """The checkpoint of a log that ends there."""
    return signer.sign(Checkpoint(signer.name, frontier.size, frontier.root()).text())


_CONTRACT_ENTRIES = Rows[int]("contract_entries")
"""How many entries the log has on a contract."""

# As text: these two are part of every group, and SQLAlchemy's own form costs as much as a record.
_STATE = "SELECT origin, size, peaks, outcomes, events, checkpoint_at, seal FROM log_state WHERE id = 1"
_LAST_OF_CONTRACT = "SELECT max(contract_seq) FROM log_leaves WHERE tenant = ? AND contract_id = ?"
_LAST_OF_CONTRACTS = "SELECT contract_id, max(contract_seq) FROM log_leaves WHERE tenant = ? AND contract_id IN"
_NEW_STATE = (
    "UPDATE log_state SET size = ?, peaks = ?, outcomes = ?, events = ?, checkpoint_at = ?, seal = ? WHERE id = 1"
)


def _values_in_order(table: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values of a row in the order of the columns; raises where one is missing or has no column."""
    columns, in_order = _column_getter(table)
    if len(row) != len(columns):
        raise TypeError(f"a row of {table} lacks or adds columns: {sorted({*columns} ^ row.keys())}")
    return in_order(row)


@lru_cache(maxsize=64)
def _column_getter(table: str) -> tuple[tuple[str, ...], Callable[[Mapping[str, Any]], tuple[Any, ...]]]:
    return COLUMNS[table], itemgetter(*COLUMNS[table])


@lru_cache(maxsize=2048)
def _insert_text(table: str, count: int) -> str:
    """One statement for several rows: the driver is called once, and lets other threads run once."""
    row = f"({', '.join('?' * len(COLUMNS[table]))})"
    # Names of our own tables; values are bound.
    return f"INSERT INTO {table} ({', '.join(COLUMNS[table])}) VALUES {', '.join([row] * count)}"  # noqa: S608


def _empty_columns(rows: Sequence[tuple[Any, ...]]) -> frozenset[int]:
    """The columns that are NULL in all rows, which need not be bound: that would take as long as any other value."""
    maybe = [place for place, value in enumerate(rows[0]) if value is None]
    # One column alone is not worth it; and two or more stay to be bound, so that a row is a tuple.
    if len(maybe) < 2 or len(rows[0]) - len(maybe) < 2:
        return frozenset()
    distinct = {*map(itemgetter(*maybe), rows)}
    columns = zip(maybe, zip(*distinct, strict=True), strict=True)
    return frozenset(place for place, values in columns if all(value is None for value in values))


@lru_cache(maxsize=256)
def _sparse_insert_text(table: str, empty: frozenset[int]) -> str:
    """The statement for one row on SQLite, where some columns are not bound."""
    values = ["NULL" if place in empty else "?" for place in range(len(COLUMNS[table]))]
    return f"INSERT INTO {table} ({', '.join(COLUMNS[table])}) VALUES ({', '.join(values)})"  # noqa: S608 - as above


@lru_cache(maxsize=64)
def _on_conflict(table: str, how: MergeRule) -> str:
    names, size = COLUMNS[table], KEY_SIZES[table]
    key = ", ".join(names[:size])
    if how is MergeRule.KEPT:
        return f" ON CONFLICT ({key}) DO NOTHING"
    stands = f"{table}.{{0}} + " if how is MergeRule.ADDED else ""
    changes = ", ".join(f"{name} = {stands.format(name)}excluded.{name}" for name in names[size:])
    return f" ON CONFLICT ({key}) DO UPDATE SET {changes}"


def read_state(connection: DriverConnection) -> LogState:
    """The log as it stands, locked until the transaction ends."""
    # SQLite knows no such lock and needs none: its writer is alone from the start.
    locked = _STATE if connection.style == "sqlite" else f"{_STATE} FOR UPDATE"
    ((origin, size, peaks, outcomes, events, checkpoint_at, seal),) = connection.fetch(locked)
    return LogState(
        origin=origin,
        frontier=Frontier.from_bytes(size, peaks),
        outcomes=outcomes,
        events=events,
        checkpoint_at=checkpoint_at,
        seal=bytes(seal),
    )
