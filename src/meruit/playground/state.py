"""The content of one playground, in one SQLite file: items, all their versions, and events.

Any number of threads and processes may use one file. A writer has it alone during a transaction, and the others wait;
a process that is killed leaves the last complete transaction.
"""

import json
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from meruit.errors import MeruitError, PlaygroundFull, Unreachable
from meruit.model.environment import EnvironmentState, Item, Snapshot, SourceKind, make_item
from meruit.model.record import Record

NAMES = {
    "ehr": SourceKind.FHIR,
    "outbound": SourceKind.HL7,
    "portal": SourceKind.ROWS,
    "drop": SourceKind.FILES,
    "call": SourceKind.VOICE,
    "clearinghouse": SourceKind.X12,
    "fax": SourceKind.FAX,
    "inbox": SourceKind.MESSAGES,
    "cds": SourceKind.CDS,
}
"""The names of a playground's systems in tasks."""
START = "start"
"""The checkpoint of a playground as it was created."""
BUSY_S = 30.0
"""How long a writer waits for another."""
MAX_APPENDED = 999_999
"""How many items may follow each other in one system; their keys have six digits."""
QUOTA_BYTES = 256 * 1024 * 1024
"""How much one playground may take, unless its settings have another `quota_bytes`: its content with all versions,
its events, and its checkpoints.
"""
SPARE_BYTES = 1024 * 1024
"""Additional space, for events of what was refused."""
REFUSED = "quota_refused"
"""The event of a change that was refused because the playground is full."""
MAX_EVENTS = 10_000
"""How many events, or versions, are read at once."""

_FORMAT = 1
_OURS = 0x4D455250
_CHECKPOINT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_SCHEMA = f"""
PRAGMA application_id = {_OURS};
PRAGMA user_version = {_FORMAT};
CREATE TABLE versions (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, key TEXT NOT NULL, version TEXT NOT NULL,
    at TEXT NOT NULL, event TEXT NOT NULL, content BLOB, facts TEXT NOT NULL
);
CREATE INDEX versions_by_key ON versions (kind, key, seq);
CREATE TABLE items (kind TEXT NOT NULL, key TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (kind, key)) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, at TEXT NOT NULL, type TEXT NOT NULL,
    kind TEXT, key TEXT, facts TEXT NOT NULL
);
CREATE TABLE settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""
_RESET = ("versions", "items", "events")
"""The tables that a reset restores; settings describe the playground, not what happened in it."""

Clock = Callable[[], datetime]


def utc_now() -> datetime:
    """Return the time, with its zone."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """Format a time in UTC as everything in a playground writes it; later times sort later."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


class PlaygroundEvent(Record, frozen=True):
    """Something that happened in a playground."""

    seq: int
    """It rises, and is never used again, not even after a reset."""
    at: str
    type: str
    """As `fhir_create` or `hl7_outbound`."""
    kind: SourceKind | None = None
    key: str | None = None
    """The item that it happened to, if any."""
    facts: Mapping[str, Any] = {}


class ItemVersion(Record, frozen=True):
    """One version of an item; without content, its removal."""

    seq: int
    key: str
    version: str
    at: str
    event: str
    content: bytes | None = None
    facts: Mapping[str, Any] = {}


class PlaygroundState:
    """One playground's content. Blocks as long as the disk takes, so call it from a thread."""

    def __init__(self, path: Path, *, clock: Clock = utc_now) -> None:
        self.path = path
        self.clock = clock
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._moment = ""
        self._depth = 0
        """How many changes are nested; read only with the lock."""
        self._room: tuple[int, int] | None = None
        """The quota, and what checkpoints take of it; read once per change."""
        if not path.is_file():
            raise MeruitError(f"no playground exists at {path}")
        with self._use_connection() as connection:
            found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")]
        if found != [_OURS, _FORMAT]:
            self.close()
            raise MeruitError(f"{path} is not a playground of this version; create a new one")

    @classmethod
    def create(
        cls, path: Path, *, clock: Clock = utc_now, settings: Mapping[str, Any] | None = None
    ) -> "PlaygroundState":
        """Create an empty playground; raises MeruitError if the file exists."""
        with _publish(path) as unfinished, _closing(unfinished) as connection:
            connection.executescript(f"PRAGMA journal_mode = WAL; BEGIN; {_SCHEMA} COMMIT")
        state = cls(path, clock=clock)
        state.set(created_at=rfc3339(clock()), **(settings or {}))
        return state

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        with self._lock:
            if self._connection is not None and not self._depth:
                self._connection.close()
                self._connection = None

    def release_if_idle(self) -> None:
        """Close the file for a while, unless it is in use."""
        if self._lock.acquire(blocking=False):
            try:
                self.close()
            finally:
                self._lock.release()

    def items(self, kind: SourceKind, *, under: str = "") -> list[Item]:
        """Return the items of a system, ordered by key; with `under`, those whose key begins with it."""
        return [
            make_item(key, content, version=version, facts=json.loads(facts))
            for key, content, version, facts in self._rows(
                "SELECT key, content, version, facts FROM items JOIN versions USING (kind, key, seq)"
                " WHERE kind = ? AND key >= ? AND substr(key, 1, ?) = ? ORDER BY key",
                kind,
                under,
                len(under),
                under,
            )
        ]

    def facts(self, kind: SourceKind, *, under: str = "") -> dict[str, Mapping[str, Any]]:
        """Return the facts of the items of a system, ordered by key, without reading their content."""
        rows = self._rows(
            "SELECT key, facts FROM items JOIN versions USING (kind, key, seq)"
            " WHERE kind = ? AND key >= ? AND substr(key, 1, ?) = ? ORDER BY key",
            kind,
            under,
            len(under),
            under,
        )
        return {key: json.loads(facts) for key, facts in rows}

    def count(self, kind: SourceKind, *, under: str = "") -> int:
        """Count the items of a system."""
        ((found,),) = self._rows(
            "SELECT count(*) FROM items WHERE kind = ? AND key >= ? AND substr(key, 1, ?) = ?",
            kind,
            under,
            len(under),
            under,
        )
        return int(found)

    def content_bytes(self, kind: SourceKind) -> int:
        """Return the size of a system's items, with all their versions."""
        ((found,),) = self._rows("SELECT coalesce(sum(length(content)), 0) FROM versions WHERE kind = ?", kind)
        return int(found)

    def get(self, kind: SourceKind, key: str) -> Item | None:
        """Return one item; None if there is none, or it was removed."""
        found = self.latest(kind, key)
        if found is None or found.content is None:
            return None
        return make_item(key, found.content, version=found.version, facts=found.facts)

    def put(
        self,
        kind: SourceKind,
        key: str,
        content: bytes,
        *,
        version: str | None = None,
        facts: Mapping[str, Any] | None = None,
        event: str,
        noted: Mapping[str, Any] | None = None,
    ) -> Item:
        """Write an item under a key; `noted` is added to its event.

        For a conditional write, read and write inside one `change`.
        """
        with self.change() as connection:
            at = self.moment()
            item = make_item(key, content, version=version, facts={**_facts(kind, content, at, event), **(facts or {})})
            row = (kind, key, item.version, at, event, content, json.dumps(item.facts))
            seq = connection.execute(
                "INSERT INTO versions (kind, key, version, at, event, content, facts) VALUES (?, ?, ?, ?, ?, ?, ?)", row
            ).lastrowid
            connection.execute("INSERT OR REPLACE INTO items VALUES (?, ?, ?)", (kind, key, seq))
            _insert_event(connection, at, event, kind, key, {"version": item.version, **(noted or {})})
            self._must_fit(connection, f"{kind} {key}")
        return item

    def remove(
        self,
        kind: SourceKind,
        key: str,
        *,
        event: str,
        version: str | None = None,
        noted: Mapping[str, Any] | None = None,
    ) -> Item | None:
        """Remove an item and return it; its versions stay, and the removal is the last of them."""
        with self.change() as connection:
            at, removed = self.moment(), self.get(kind, key)
            if removed is None:
                return None
            connection.execute(
                "INSERT INTO versions (kind, key, version, at, event, facts) VALUES (?, ?, ?, ?, ?, '{}')",
                (kind, key, version or removed.version, at, event),
            )
            connection.execute("DELETE FROM items WHERE kind = ? AND key = ?", (kind, key))
            _insert_event(connection, at, event, kind, key, {"version": version or removed.version, **(noted or {})})
            self._must_fit(connection, f"that {kind} {key} is gone")
        return removed

    def append(
        self,
        kind: SourceKind,
        content: bytes,
        *,
        facts: Mapping[str, Any] | None = None,
        event: str,
        noted: Mapping[str, Any] | None = None,
    ) -> Item:
        """Write an item after the last one of its system: `000001` first."""
        with self.change() as connection:
            (last,) = connection.execute("SELECT max(key) FROM versions WHERE kind = ?", (kind,)).fetchone()
            if last is not None and int(last) >= MAX_APPENDED:
                raise MeruitError(f"the playground's {kind} has {MAX_APPENDED:,} items; reset it or create a new one")
            key = f"{int(last or 0) + 1:06}"
            return self.put(kind, key, content, facts=facts, event=event, noted=noted)

    def log(self, event: str, facts: Mapping[str, Any] | None = None) -> None:
        """Record an event without an item."""
        with self.change() as connection:
            _insert_event(connection, self.moment(), event, None, None, facts or {})
            self._must_fit(connection, event)

    def log_if_room(self, event: str, facts: Mapping[str, Any] | None = None) -> None:
        """Record an event that may be dropped: a full playground takes it for a while only."""
        with self.change() as connection:
            if self._used(connection) <= self._quota(connection) + SPARE_BYTES:
                _insert_event(connection, self.moment(), event, None, None, facts or {})

    def used_bytes(self) -> int:
        """Return how much the playground takes of its quota."""
        with self._use_connection() as connection:
            self._room = None
            return self._used(connection)

    def _used(self, connection: sqlite3.Connection) -> int:
        return _bytes_in(connection) + self._quota_and_checkpoint_bytes(connection)[1]

    def _quota(self, connection: sqlite3.Connection) -> int:
        return self._quota_and_checkpoint_bytes(connection)[0]

    def _quota_and_checkpoint_bytes(self, connection: sqlite3.Connection) -> tuple[int, int]:
        if self._room is None:
            found = connection.execute("SELECT value FROM settings WHERE name = 'quota_bytes'").fetchone()
            beside = sum(found.stat().st_size for found in self._checkpoint_files())
            self._room = (QUOTA_BYTES if found is None else int(json.loads(found[0])), beside)
        return self._room

    def _must_fit(self, connection: sqlite3.Connection, what: str) -> None:
        if self._used(connection) > self._quota(connection):
            raise PlaygroundFull(self._quota(connection), what)

    def events(self, after: int = 0, limit: int = 500) -> list[PlaygroundEvent]:
        """List events, oldest first, after the one of that number."""
        return self._events("WHERE seq > ? ORDER BY seq LIMIT ?", after, min(limit, MAX_EVENTS))

    def last_event(self) -> PlaygroundEvent | None:
        """Return the newest event."""
        return next(iter(self._events("ORDER BY seq DESC LIMIT 1")), None)

    def _events(self, which: str, *given: int) -> list[PlaygroundEvent]:
        rows = self._rows(f"SELECT seq, at, type, kind, key, facts FROM events {which}", *given)  # noqa: S608 - ours
        return [
            PlaygroundEvent(
                seq=seq, at=at, type=event, kind=SourceKind(kind) if kind else None, key=key, facts=json.loads(facts)
            )
            for seq, at, event, kind, key, facts in rows
        ]

    def latest(self, kind: SourceKind, key: str) -> ItemVersion | None:
        """Return the last version of an item, also its removal; None if there never was one."""
        return next(iter(self._versions("kind = ? AND key = ? ORDER BY seq DESC LIMIT 1", kind, key)), None)

    def versions(self, kind: SourceKind, key: str) -> list[ItemVersion]:
        """List every version of an item, oldest first, with removals."""
        return self._versions("kind = ? AND key = ? ORDER BY seq", kind, key)

    def history(
        self, kind: SourceKind, *, under: str = "", since: str = "", before: int | None = None, limit: int = 100
    ) -> list[ItemVersion]:
        """List versions of a system's items, newest first, by prefix of the key, earliest time and number."""
        return self._versions(
            "kind = ? AND substr(key, 1, ?) = ? AND at >= ? AND seq < ? ORDER BY seq DESC LIMIT ?",
            kind,
            len(under),
            under,
            since,
            before or 2**62,
            min(limit, MAX_EVENTS),
        )

    def versions_count(self, kind: SourceKind, *, under: str = "", since: str = "") -> int:
        """Count the versions of a history."""
        ((count,),) = self._rows(
            "SELECT count(*) FROM versions WHERE kind = ? AND substr(key, 1, ?) = ? AND at >= ?",
            kind,
            len(under),
            under,
            since,
        )
        return int(count)

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """Make several changes as one: all of them, or after an exception none. Do not await inside.

        Raises PlaygroundFull if they do not fit, and records that.
        """
        with self._use_connection() as connection:
            name = f"change_{self._depth}"
            connection.execute(f"SAVEPOINT {name}" if self._depth else "BEGIN IMMEDIATE")
            if not self._depth:
                self._moment, self._room = rfc3339(self.clock()), None
            self._depth += 1
            try:
                yield connection
            except BaseException as problem:
                self._depth -= 1
                # On a full disk SQLite rolls back by itself.
                if connection.in_transaction:
                    connection.execute(f"ROLLBACK TO {name}" if self._depth else "ROLLBACK")
                if isinstance(problem, PlaygroundFull) and not self._depth:
                    self.log_if_room(REFUSED, {"what": problem.what, "quota_bytes": problem.quota_bytes})
                raise
            self._depth -= 1
            connection.execute(f"RELEASE {name}" if self._depth else "COMMIT")

    def moment(self) -> str:
        """Return the time; inside a change, the one time of all of it."""
        with self._lock:
            return self._moment if self._depth else rfc3339(self.clock())

    @contextmanager
    def consistent_read(self) -> Iterator[None]:
        """Make several reads of one moment, independent of writers. Do not await inside."""
        with self._use_connection() as connection:
            if self._depth or connection.in_transaction:
                yield
                return
            connection.execute("BEGIN")
            try:
                yield
            finally:
                connection.execute("COMMIT")

    def snapshots(self) -> EnvironmentState:
        """Read everything that the playground holds, at one moment."""
        with self.consistent_read():
            return {name: Snapshot(kind, self.items(kind)) for name, kind in NAMES.items()}

    def settings(self) -> dict[str, Any]:
        """Return the settings: `secret`, `created_at`, and `call` and `facts` of its seed."""
        return {name: json.loads(value) for name, value in self._rows("SELECT name, value FROM settings ORDER BY name")}

    def set(self, **values: Any) -> None:
        """Change settings; a reset does not restore them."""
        with self.change() as connection:
            connection.executemany(
                "INSERT OR REPLACE INTO settings VALUES (?, ?)",
                [(name, json.dumps(value)) for name, value in values.items()],
            )

    def checkpoint(self, name: str = START) -> None:
        """Save everything under a name, in place of an earlier checkpoint of that name; raises PlaygroundFull."""
        file = self._checkpoint_file(name)
        with _publish(file, replace=True) as unfinished:
            self._copy(unfinished)
            earlier = file.stat().st_size if file.exists() else 0
            with self._use_connection() as connection:
                self._room = None
                if self._used(connection) - earlier + unfinished.stat().st_size > self._quota(connection):
                    raise PlaygroundFull(self._quota(connection), f"the checkpoint {name}")

    def checkpoints(self) -> list[str]:
        """List the names of the checkpoints."""
        return sorted(found.name.removeprefix(self._prefix) for found in self._checkpoint_files())

    def reset(self, name: str = START) -> None:
        """Restore a checkpoint: items, their versions, and events."""
        remembered = self._checkpoint_file(name)
        if not remembered.is_file():
            known = ", ".join(self.checkpoints()) or "none"
            raise MeruitError(f"no checkpoint of the playground is named {name!r}; there are: {known}")
        with self._use_connection() as connection:
            # A finished checkpoint never changes, so it can be read without locks.
            connection.execute("ATTACH ? AS remembered", (f"{remembered.resolve().as_uri()}?immutable=1",))
            try:
                with self.change():
                    for table in _RESET:
                        connection.execute(f"DELETE FROM main.{table}")  # noqa: S608 - our own names
                        connection.execute(f"INSERT INTO main.{table} SELECT * FROM remembered.{table}")  # noqa: S608
                    _insert_event(connection, self.moment(), "reset", None, None, {"checkpoint": name})
            finally:
                connection.execute("DETACH remembered")

    def branch(self, path: Path, **settings: Any) -> "PlaygroundState":
        """Create a copy of the playground with its checkpoints; the given settings replace its own."""
        with _publish(path) as unfinished:
            self._copy(unfinished)
        branched = PlaygroundState(path, clock=self.clock)
        branched.set(created_at=rfc3339(self.clock()), **settings)
        for found in self._checkpoint_files():
            name = found.name.removeprefix(self._prefix)
            with _publish(branched._checkpoint_file(name), replace=True) as unfinished:
                shutil.copyfile(found, unfinished)
        return branched

    @property
    def _prefix(self) -> str:
        return f"{self.path.name}.at-"

    def _checkpoint_file(self, name: str) -> Path:
        if not _CHECKPOINT.fullmatch(name):
            raise MeruitError(f"{name!r} is not a valid checkpoint name; use a-z, 0-9, - and _, at most 63 characters")
        return self.path.with_name(f"{self._prefix}{name}")

    def _checkpoint_files(self) -> list[Path]:
        return [
            found
            for found in self.path.parent.iterdir()
            if found.name.startswith(self._prefix) and _CHECKPOINT.fullmatch(found.name.removeprefix(self._prefix))
        ]

    def _copy(self, target: Path) -> None:
        """Write everything at one moment to a single file."""
        with self._use_connection() as connection, _closing(target) as copy:
            connection.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE")

    def _versions(self, where: str, *values: object) -> list[ItemVersion]:
        rows = self._rows(
            f"SELECT seq, key, version, at, event, content, facts FROM versions WHERE {where}",  # noqa: S608
            *values,
        )
        return [
            ItemVersion(seq=seq, key=key, version=version, at=at, event=event, content=content, facts=json.loads(facts))
            for seq, key, version, at, event, content, facts in rows
        ]

    # Any: the columns of a statement.
    def _rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._use_connection() as connection:
            return connection.execute(statement, values).fetchall()

    @contextmanager
    def _use_connection(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, for one thread at a time; raises Unreachable if the file cannot be used now."""
        with self._lock:
            try:
                if self._connection is None:
                    self._connection = _connect(self.path)
                yield self._connection
            except sqlite3.DatabaseError as problem:
                raise Unreachable(f"the playground at {self.path} cannot be used: {problem}") from problem


def _facts(kind: SourceKind, content: bytes, at: str, event: str) -> dict[str, Any]:
    """Return the facts of every item of a kind."""
    match kind:
        case SourceKind.FILES:
            return {"size": len(content), "modified": at}
        case SourceKind.HL7 | SourceKind.X12 | SourceKind.VOICE | SourceKind.FAX:
            return {"type": event, "at": at}
        case SourceKind.FHIR | SourceKind.ROWS | SourceKind.MESSAGES | SourceKind.CDS | SourceKind.ANSWER:
            return {}


def _insert_event(
    connection: sqlite3.Connection,
    at: str,
    event: str,
    kind: SourceKind | None,
    key: str | None,
    facts: Mapping[str, Any],
) -> None:
    connection.execute(
        "INSERT INTO events (at, type, kind, key, facts) VALUES (?, ?, ?, ?, ?)",
        (at, event, kind, key, json.dumps(dict(facts))),
    )


def _bytes_in(connection: sqlite3.Connection) -> int:
    """Return the size of the content, with that of an open transaction and without free pages."""
    names = ("page_count", "freelist_count", "page_size")
    pages, free, size = (int(connection.execute(f"PRAGMA {name}").fetchone()[0]) for name in names)
    return (pages - free) * size


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=rw", timeout=BUSY_S, isolation_level=None, check_same_thread=False, uri=True
    )
    # A copy starts without a write-ahead log; for the others this changes nothing.
    connection.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL")
    return connection


@contextmanager
def _closing(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a connection to a new file, which is complete when this ends."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _publish(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Yield a file to be written, which gets its name when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    unfinished.unlink(missing_ok=True)
    try:
        yield unfinished
        if replace:
            unfinished.replace(path)
        else:
            # Unlike a rename, a link refuses a name that exists.
            path.hardlink_to(unfinished)
    except FileExistsError:
        raise MeruitError(f"{path} exists; choose another path") from None
    finally:
        unfinished.unlink(missing_ok=True)
