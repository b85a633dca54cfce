"""One database: where it is, how it is opened, and that its tables are those of this version."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from meruit.errors import NotFound, StoreError, StoreUnavailable
from meruit.store.location import FILE, Location

MAX_PAGE = 500

BUSY_S = 30.0
"""How long a writer waits for another process to finish."""
CONNECT_S = 10
"""How long a server may take to let us in."""
FROZEN_MS = 20_000
"""How long a transaction may be idle before Postgres ends it."""
MAX_READERS = 16
PAGE_BYTES = 16 * 1024
"""Of new SQLite databases."""
WAL_BYTES = 32 * 1024 * 1024
"""How long the write-ahead log may grow before it is copied into the database."""
MAX_SWITCHES, SWITCH_S = 300, 0.05
"""How often, and how far apart, a new database is asked to keep a write-ahead log while others open it too."""


class Database(msgspec.Struct, frozen=True):
    """An open database: one way to write, several to read."""

    location: Location
    writer: Engine
    reader: Engine

    def close(self) -> None:
        """Let go of every connection."""
        self.writer.dispose()
        self.reader.dispose()

    def truncate_wal(self) -> None:
        """Move what SQLite's write-ahead log holds to its place, as far as readers allow."""
        if self.location.kind == "sqlite":
            # Past SQLAlchemy, which would begin a transaction first.
            own = sqlite3.connect(self.location.folder / FILE, timeout=BUSY_S)
            try:
                own.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError:
                # A reader is active; the next checkpoint does it.
                return
            finally:
                own.close()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection that sees one state of the database; raises StoreUnavailable when there is none."""
        try:
            with translate_driver_errors(self.location), self.reader.connect() as connection:
                yield connection
        except DataError:
            raise NotFound("no record has such a name: it holds characters that no database keeps") from None


@contextmanager
def translate_driver_errors(location: Location) -> Iterator[None]:
    """Turn what the driver complains about into what to do about it."""
    try:
        yield
    except (IntegrityError, DataError):
        # Something is wrong with what was asked, not with the database.
        raise
    except DBAPIError as problem:
        raise StoreUnavailable(f"{location.display_name}: {_reason(problem)}") from problem


def _reason(problem: DBAPIError) -> str:
    message = str(problem.orig).strip().split("\n")[0]
    match message:
        case "database is locked":
            return "another process has kept it locked; try again, or end that process"
        case "database or disk is full":
            return "the disk is full"
        case _:
            return message


def connect(location: Location) -> Database:
    """Open the database as it is; see `opening.open_database` for what users want."""
    if location.url is not None:
        return Database(location, *_postgres(location.url))
    return Database(location, *_sqlite(location.folder / FILE))


def _postgres(url: str) -> tuple[Engine, Engine]:
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise StoreError("the database URL cannot be read; write postgresql://user:password@host:port/name") from None
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        raise StoreError(f"{parsed.drivername} is not supported; give a postgresql:// URL, or none for SQLite")
    chosen = parsed.set(drivername="postgresql+psycopg")
    try:
        # A connection that died in the pool is replaced before use; a lost writer is reported to its callers.
        usual: dict[str, Any] = {"pool_pre_ping": True, "connect_args": {"connect_timeout": CONNECT_S}}
        writer = create_engine(chosen, pool_size=1, max_overflow=1, **_with_idle_timeout(parsed, usual))
        reader = create_engine(
            chosen, pool_size=MAX_READERS, max_overflow=0, isolation_level="REPEATABLE READ", **usual
        )
    except (ModuleNotFoundError, NoSuchModuleError):
        raise StoreError("Postgres needs its driver: pip install 'meruit[postgres]'") from None
    return writer, reader


# Any: arguments of SQLAlchemy's.
def _with_idle_timeout(url: URL, usual: dict[str, Any]) -> dict[str, Any]:
    """A writer that is frozen in the middle of a transaction lets go of its lock: everybody else waits for it."""
    if "options" in url.query:
        return usual
    options = {"options": f"-c idle_in_transaction_session_timeout={FROZEN_MS}"}
    return {**usual, "connect_args": {**usual["connect_args"], **options}}


def _sqlite(file: Path) -> tuple[Engine, Engine]:
    url = f"sqlite+pysqlite:///{file}"
    arguments = {"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None, "cached_statements": 1024}
    writer = create_engine(url, connect_args=arguments, poolclass=QueuePool, pool_size=1, max_overflow=1)
    reader = create_engine(url, connect_args=arguments, poolclass=QueuePool, pool_size=MAX_READERS, max_overflow=0)
    event.listen(writer, "connect", _durable)
    event.listen(reader, "connect", _durable)
    # The driver begins nothing by itself; a writer says at once that it means to write, so it never has to give up.
    event.listen(writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    event.listen(reader, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return writer, reader


# Any: SQLAlchemy hands over a record of its pool, which is of no use here.
def _durable(connection: sqlite3.Connection, _record: Any) -> None:
    """WAL lets readers read while one writes; FULL makes a commit outlive the machine."""
    _switch_to_wal(connection)
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    connection.execute("PRAGMA trusted_schema=OFF")
    # What is erased is overwritten.
    connection.execute("PRAGMA secure_delete=ON")
    connection.execute("PRAGMA cache_size=-32768")
    page_bytes = int(connection.execute("PRAGMA page_size").fetchone()[0])
    connection.execute(f"PRAGMA wal_autocheckpoint={WAL_BYTES // page_bytes}")


def _switch_to_wal(connection: sqlite3.Connection) -> None:
    """Once in a database's life; SQLite does not wait by itself when several do it at the same time."""
    for attempt in range(MAX_SWITCHES):
        if connection.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            return
        try:
            # Only a new database takes it: a record of some kilobytes then fits one page.
            connection.execute(f"PRAGMA page_size={PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError:
            if attempt == MAX_SWITCHES - 1:
                raise
            time.sleep(SWITCH_S)


def in_style(statement: str, connection: Connection) -> str:
    """The statement as the driver marks its parameters."""
    return statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")
