"""Opening a data directory: made when new, upgraded when older, refused when newer."""

import os
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection, inspect, select, text

from meruit.errors import StoreError
from meruit.model.record import Record
from meruit.store import tables
from meruit.store.database import Database, connect, translate_driver_errors
from meruit.store.location import FILE, KEY_FILE, Location

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
"""Every state that the tables have had, oldest first; each has a file under migrations/versions."""
HEAD = REVISIONS[-1]
_LOCK = 0x4D455255
"""Ours among the advisory locks of a Postgres server."""


class DatabaseStatus(Record, frozen=True):
    """What stands in the database, and what this version needs."""

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


class UpgradeResult(NamedTuple):
    """What an upgrade did."""

    before: str | None
    after: str
    backup: Path | None
    """The file as it was, where one was kept."""


def open_database(location: Location) -> Database:
    """The database, its tables those of this version; raises StoreError when it is newer than we are."""
    upgrade(location)
    return connect(location)


def upgrade(location: Location) -> UpgradeResult:
    """Bring the tables to this version. Several may try at once; one does it and the others wait."""
    _make_folder(location.folder)
    if location.url is None:
        _make_file(location.folder / FILE)
    database = connect(location)
    try:
        with translate_driver_errors(location):
            before = _revision_of(database)
            if before == HEAD:
                return UpgradeResult(before, HEAD, None)
            if before is None:
                _refuse_emptied(location)
            _refuse_newer(location, before)
            backup = _backup(location, before)
            with database.writer.begin() as connection:
                _lock_for_migration(connection)
                # Somebody may have upgraded while we waited for the lock.
                found = _revision(connection)
                _refuse_newer(location, found)
                if found != HEAD:
                    _migrate(connection)
            return UpgradeResult(before, HEAD, backup)
    finally:
        database.close()


def status(location: Location) -> DatabaseStatus:
    """What stands there; nothing is made or changed."""
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
    """An empty database that nobody else may read; SQLite's other files take their rights from it."""
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
    """A key without records means that there were some; a fresh start would hide that they are gone."""
    if location.url is None and (location.folder / KEY_FILE).exists():
        raise StoreError(
            f"{location.display_name} holds nothing, and yet there is a signing key beside it: the database was removed or "
            "emptied; restore it from a copy, or give another data directory"
        )


def _refuse_newer(location: Location, revision: str | None) -> None:
    if revision is not None and revision not in REVISIONS:
        raise StoreError(
            f"{location.display_name} was made by a newer Meruit (its tables are at {revision}, this version knows up to "
            f"{HEAD}); upgrade Meruit, or give another data directory"
        )


def _lock_for_migration(connection: Connection) -> None:
    """SQLite's writer is alone already; Postgres is asked for a lock that ends with the transaction."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _backup(location: Location, revision: str | None) -> Path | None:
    """The SQLite file as it was; a server's database is its operator's to back up."""
    if location.url is not None or revision is None:
        return None
    copy = location.folder / f"{FILE}.before-{HEAD}"
    if not copy.exists():
        import sqlite3

        # Of several that upgrade at once, each makes a copy of its own, and the last one stays: they are alike.
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
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, HEAD)
