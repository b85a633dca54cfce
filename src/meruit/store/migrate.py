"""Open a data directory: create it when new, upgrade it when older, refuse a layout that this version does not know."""

import os
from pathlib import Path

import msgspec
from sqlalchemy import Connection, inspect, select, text

from meruit.errors import StoreError, UnknownLayout
from meruit.model.record import Record
from meruit.store import tables
from meruit.store.database import Database, connect, translate_driver_errors
from meruit.store.location import FILE, KEY_FILE, Location

MIGRATIONS = Path(__file__).parent / "migrations"
REVISIONS = ("schema_0001",)
"""Every layout of the tables that can be upgraded, oldest first; each has a file under migrations/versions."""
HEAD = REVISIONS[-1]
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
        with translate_driver_errors(location):
            before = _revision_of(database)
            if before == HEAD:
                return UpgradeResult(before=before, after=HEAD, backup=None)
            if before is None:
                _refuse_emptied(location)
            _refuse_unknown(location, before)
            backup = _backup(location, before)
            with database.writer.begin() as connection:
                _lock_for_migration(connection)
                # Another process may have upgraded while we waited for the lock.
                found = _revision(connection)
                _refuse_unknown(location, found)
                if found != HEAD:
                    _migrate(connection)
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
        with database.reading() as connection:
            revision = _revision(connection)
            row = connection.execute(select(tables.log_state)).first() if revision in REVISIONS else None
            return DatabaseStatus(
                location.display_name,
                exists=True,
                revision=revision,
                head=HEAD,
                outcomes=row.outcomes if row else 0,
                log_size=row.size if row else 0,
                events=row.events if row else 0,
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


def _revision_of(database: Database) -> str | None:
    with database.reading() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


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


def _lock_for_migration(connection: Connection) -> None:
    """Take a lock that ends with the transaction on Postgres; SQLite has a single writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _backup(location: Location, revision: str | None) -> Path | None:
    """Copy the SQLite file as it is; the operator backs up a database server."""
    if location.url is not None or revision is None:
        return None
    copy = location.folder / f"{FILE}.before-{HEAD}"
    if not copy.exists():
        import sqlite3

        # Of several processes at once, each makes its own copy and the last one stays: the copies are equal.
        unfinished = copy.with_name(f"{copy.name}.{os.urandom(4).hex()}")
        source, target = sqlite3.connect(location.folder / FILE), sqlite3.connect(unfinished)
        try:
            source.backup(target)
        finally:
            source.close()
            target.close()
        unfinished.replace(copy)
    return copy


def _migrate(connection: Connection) -> None:
    # Alembic takes half a second to load, and is needed once in the life of a database.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
