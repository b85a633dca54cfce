"""One database: where it is, how it is opened, and that its tables are those of this version."""

import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from meruit.errors import NotFound, StoreError, StoreUnavailable
from meruit.store import driver
from meruit.store.driver import DriverConnection, PostgresConnection, SqliteConnection, StatementTransactions
from meruit.store.location import FILE, Location

# SQLAlchemy is loaded when it is first needed: a command that records one outcome does without it.
if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import DBAPIError

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


class Engines(NamedTuple):
    """SQLAlchemy's way to write, and its way to read."""

    writer: "Engine"
    reader: "Engine"


class Database:
    """An open database: one way to write, several to read."""

    def __init__(self, location: Location, make_engines: Callable[[], Engines], writing: DriverConnection) -> None:
        self.location = location
        self._make_engines = make_engines
        self._engines: Engines | None = None
        self._writing = writing
        self._one_writer, self._one_maker = threading.Lock(), threading.Lock()

    @property
    def writer(self) -> "Engine":
        """SQLAlchemy's engine of a connection that writes."""
        return self._both().writer

    @property
    def reader(self) -> "Engine":
        """SQLAlchemy's engine of connections that read."""
        return self._both().reader

    def close(self) -> None:
        """Let go of every connection."""
        self._writing.close()
        if self._engines is not None:
            for engine in self._engines:
                engine.dispose()

    def truncate_wal(self) -> None:
        """Move what SQLite's write-ahead log holds to its place, as far as readers allow."""
        if self.location.kind == "sqlite":
            # Past SQLAlchemy, which would begin a transaction first.
            own = sqlite3.connect((self.location.folder / FILE).absolute(), timeout=BUSY_S)
            try:
                own.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.OperationalError:
                # A reader is active; the next checkpoint does it.
                return
            finally:
                own.close()

    @contextmanager
    def reading(self) -> "Iterator[Connection]":
        """A connection that sees one state of the database; raises StoreUnavailable when there is none."""
        from sqlalchemy.exc import DataError

        try:
            with translate_driver_errors(self.location), self.reader.connect() as connection:
                yield connection
        except DataError:
            raise NotFound("no record has such a name: it holds characters that no database keeps") from None

    @contextmanager
    def writing(self) -> Iterator[DriverConnection]:
        """The one connection of the writer, in a transaction that is durable afterwards, or undone by an error."""
        connection = self._writing
        with translate_driver_errors(self.location), self._one_writer:
            try:
                connection.begin()
                yield connection
                connection.commit()
            except BaseException:
                connection.roll_back()
                raise

    @contextmanager
    def asking(self) -> Iterator[DriverConnection]:
        """A connection for statements as text, which sees one state of the database; on SQLite without SQLAlchemy."""
        connection = (
            SqliteConnection(partial(_open_sqlite, (self.location.folder / FILE).absolute()))
            if self.location.url is None
            else PostgresConnection(self.reader)
        )
        with translate_driver_errors(self.location), closing(connection):
            connection.begin(writes=False)
            yield connection

    def _both(self) -> Engines:
        with self._one_maker:
            if self._engines is None:
                self._engines = self._make_engines()
            return self._engines


@contextmanager
def translate_driver_errors(location: Location) -> Iterator[None]:
    """Turn what the driver complains about into what to do about it."""
    try:
        yield
    except Exception as problem:
        if "sqlalchemy" not in sys.modules:
            raise
        from sqlalchemy.exc import DataError, DBAPIError, IntegrityError

        # Of the other two, something is wrong with what was asked, not with the database.
        if isinstance(problem, DBAPIError) and not isinstance(problem, IntegrityError | DataError):
            raise StoreUnavailable(f"{location.display_name}: {_reason(problem)}") from problem
        raise


def _reason(problem: "DBAPIError") -> str:
    message = str(problem.orig).strip().split("\n")[0]
    match message:
        case "database is locked":
            return "another process has kept it locked; try again, or end that process"
        case "database or disk is full":
            return "the disk is full"
        case _:
            return message


def connect(location: Location) -> Database:
    """Open the database as it is; see `migrate.open_database` for what users want."""
    if location.url is not None:
        engines = _postgres(location.url)
        return Database(location, lambda: engines, PostgresConnection(engines.writer))
    # SQLite takes a name that begins with `file:` for a URL, but not a whole path.
    file = (location.folder / FILE).absolute()
    return Database(location, partial(_sqlite, file), SqliteConnection(partial(_open_sqlite, file)))


def _postgres(url: str) -> Engines:
    from sqlalchemy import create_engine, make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

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
    return Engines(writer, reader)


# Any: arguments of SQLAlchemy's.
def _with_idle_timeout(url: "URL", usual: dict[str, Any]) -> dict[str, Any]:
    """A writer that is frozen in the middle of a transaction lets go of its lock: everybody else waits for it."""
    if "options" in url.query:
        return usual
    options = {"options": f"-c idle_in_transaction_session_timeout={FROZEN_MS}"}
    return {**usual, "connect_args": {**usual["connect_args"], **options}}


# Any: arguments of the driver's.
def _sqlite_arguments() -> dict[str, Any]:
    return {"timeout": BUSY_S, "check_same_thread": False, "isolation_level": None, "cached_statements": 1024}


def _open_sqlite(file: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(file, factory=StatementTransactions, **_sqlite_arguments())
    _make_durable(connection)
    # How pages were before a statement is only needed until it ends: a file for that takes half of all writes.
    connection.execute("PRAGMA temp_store=MEMORY")
    return connection


def _sqlite(file: Path) -> Engines:
    from sqlalchemy import create_engine, event
    from sqlalchemy.pool import QueuePool

    # The path is not written into a URL, where % and ? would name another file.
    usual: dict[str, Any] = {
        "creator": partial(sqlite3.connect, file, **_sqlite_arguments()),
        "poolclass": QueuePool,
    }
    writer = create_engine("sqlite+pysqlite://", pool_size=1, max_overflow=1, **usual)
    reader = create_engine("sqlite+pysqlite://", pool_size=MAX_READERS, max_overflow=0, **usual)
    event.listen(writer, "connect", _make_durable)
    event.listen(reader, "connect", _make_durable)
    # The driver begins nothing by itself; a writer says at once that it means to write, so it never has to give up.
    event.listen(writer, "begin", lambda connection: connection.exec_driver_sql("BEGIN IMMEDIATE"))
    event.listen(reader, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    return Engines(writer, reader)


# Any: SQLAlchemy hands over a record of its pool, which is of no use here.
def _make_durable(connection: sqlite3.Connection, _record: Any = None) -> None:
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


def in_style(statement: str, connection: "Connection") -> str:
    """The statement as the driver marks its parameters."""
    return driver.in_style(statement, connection.dialect.name)


def fetch(connection: "Connection | DriverConnection", statement: str, *values: Any) -> list[tuple[Any, ...]]:
    """The rows that a statement finds, as plain tuples; parameters are marked by `?`."""
    if isinstance(connection, DriverConnection):
        return connection.fetch(statement, *values)
    return [tuple(row) for row in connection.exec_driver_sql(in_style(statement, connection), values)]
