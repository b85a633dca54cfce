"""Open a data directory: create it when new, upgrade it when older, refuse a layout that this version does not know."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from meruit.errors import StoreError, UnknownLayout
from meruit.model.record import Record
from meruit.store.database import Database, connect, fetch, translate_driver_errors
from meruit.store.location import FILE, KEY_FILE, Location

if TYPE_CHECKING:
    from sqlalchemy import Connection

MIGRATIONS = Path(__file__).parent / "migrations"
REVISIONS = ("schema_c199bfc6",)
"""Every layout of the tables that can be upgraded, oldest first; each has a file under migrations/versions."""
HEAD = REVISIONS[-1]
_NAME_CHARS = 8
_LOCK = 0x4D455255
"""The number of our advisory lock on a Postgres server."""


class DatabaseStatus(Record, frozen=True):
    """The state of a database, and the layout that this version needs."""

    location: str
    exists: bool
    revision: str | None
    head: str
    outcomes: int
    log_size: int
    events: int

    @property
    def is_current(self) -> bool:
        """Whether it can be used as it is."""
        return self.revision == self.head

    @property
    def is_known(self) -> bool:
        """Whether this version uses the layout or can upgrade it; an empty database counts."""
        return self.revision is None or self.revision in REVISIONS


class UpgradeResult(msgspec.Struct, frozen=True):
    """What an upgrade did."""

    before: str | None
    after: str
    backup: Path | None
    """The copy of the SQLite file as it was, if one was made."""


def open_database(location: Location) -> Database:
    """Upgrade the database and connect to it; raises UnknownLayout when this version cannot use its tables."""
    upgrade(location)
    return connect(location)


def upgrade(location: Location) -> UpgradeResult:
    """Bring the tables to this version. Of several processes at once, one does it and the others wait."""
    _make_folder(location.folder)
    if location.url is None:
        _make_file(location.folder / FILE)
    database = connect(location)
    try:
        before = _read_revision(database)
        if before == HEAD:
            return UpgradeResult(before=before, after=HEAD, backup=None)
        if before is None:
            _refuse_emptied(location)
        _refuse_unknown(location, before)
        backup = _backup(location, before)
        if before is None and location.url is None and script_of(HEAD).exists():
            _create(database)
        if _read_revision(database) != HEAD:
            _run_migrations(database)
        return UpgradeResult(before=before, after=HEAD, backup=backup)
    finally:
        database.close()


def status(location: Location) -> DatabaseStatus:
    """Read the state of a database; creates and changes nothing."""
    if location.url is None and not (location.folder / FILE).exists():
        return DatabaseStatus(
            location.display_name, exists=False, revision=None, head=HEAD, outcomes=0, log_size=0, events=0
        )
    database = connect(location)
    try:
        with database.asking() as connection:
            revision = _revision(connection.style, connection.fetch)
            rows = connection.fetch(_COUNTS) if revision in REVISIONS else []
            outcomes, log_size, events = rows[0] if rows else (0, 0, 0)
            return DatabaseStatus(
                location.display_name,
                exists=True,
                revision=revision,
                head=HEAD,
                outcomes=outcomes,
                log_size=log_size,
                events=events,
            )
    finally:
        database.close()


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        raise StoreError(f"{folder} is a file; a data directory is needed") from None
    except OSError as problem:
        raise StoreError(f"the data directory {folder} cannot be made: {problem.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise StoreError(f"the data directory {folder} cannot be written to")


def _make_file(file: Path) -> None:
    """Create an empty database that only its owner may read; SQLite copies these rights to its other files."""
    try:
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as problem:
        raise StoreError(f"{file} cannot be made: {problem.strerror}") from None


_COUNTS = "SELECT outcomes, size, events FROM log_state"
_HAS_REVISION = {
    "sqlite": "SELECT name FROM sqlite_master WHERE name = 'alembic_version'",
    "postgresql": "SELECT oid FROM pg_class WHERE oid = to_regclass('alembic_version')",
}


def _read_revision(database: Database) -> str | None:
    with database.asking() as connection:
        return _revision(connection.style, connection.fetch)


# Any: columns of several types.
def _revision(style: str, fetch: Callable[[str], list[tuple[Any, ...]]]) -> str | None:
    if not fetch(_HAS_REVISION[style]):
        return None
    found = fetch("SELECT version_num FROM alembic_version")
    return str(found[0][0]) if found else None


def _refuse_emptied(location: Location) -> None:
    """Refuse a signing key without records: there were some, and a fresh start would hide that they are gone."""
    if location.url is None and (location.folder / KEY_FILE).exists():
        raise StoreError(
            f"{location.display_name} is empty, but there is a signing key beside it: the database was removed or "
            "emptied. Restore it from a copy, or give another data directory"
        )


def _refuse_unknown(location: Location, revision: str | None) -> None:
    if revision is not None and revision not in REVISIONS:
        raise UnknownLayout(
            f"{location.display_name} was made by another version of Meruit: its tables are at {revision}, "
            f"this version uses {HEAD} and cannot upgrade them. Use the version that made it "
            "(`meruit outcome export` saves its outcomes to a file), or give another data directory"
        )


def _backup(location: Location, revision: str | None) -> Path | None:
    """Copy the SQLite file as it is; the operator backs up a database server."""
    if location.url is not None or revision is None:
        return None
    copy = location.folder.absolute() / f"{FILE}.before-{HEAD}"
    if not copy.exists():
        import sqlite3

        # Of several processes at once, each makes its own copy and the last one stays: the copies are equal.
        unfinished = copy.with_name(f"{copy.name}.{os.urandom(4).hex()}")
        source, target = sqlite3.connect(copy.with_name(FILE)), sqlite3.connect(unfinished)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()
        unfinished.replace(copy)
    return copy


def name_layout(statements: Sequence[str]) -> str:
    """The revision of the tables that these statements make: a layout that changed must not keep its name."""
    return f"schema_{sha256(';'.join(statements).encode()).hexdigest()[:_NAME_CHARS]}"


def script_of(revision: str) -> Path:
    """The statements that make a new SQLite file of that layout: docs/generate.py writes them from the migrations."""
    return MIGRATIONS / f"{revision}.sql"


def _create(database: Database) -> None:
    """Make the tables of an empty SQLite file, which Alembic does in ten times the time."""
    with database.writing() as connection:
        # Another process may have made them while we waited for the lock.
        if not connection.fetch("SELECT name FROM sqlite_master LIMIT 1"):
            for statement in script_of(HEAD).read_text(encoding="utf-8").split(";\n"):
                connection.run(statement)


def _run_migrations(database: Database) -> None:
    with translate_driver_errors(database.location), database.writer.begin() as connection:
        if database.location.kind == "postgresql":
            # It ends with the transaction; SQLite has a single writer anyway.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
        # Another process may have upgraded while we waited for the lock.
        found = _revision(database.location.kind, partial(fetch, connection))
        _refuse_unknown(database.location, found)
        if found != HEAD:
            run_migrations(connection)


def run_migrations(connection: "Connection") -> None:
    """Bring the tables to this version."""
    # Alembic takes half a second to load, and is needed once in the life of a database.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
