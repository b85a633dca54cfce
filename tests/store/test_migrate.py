"""Where stores can be opened, and what is said where they cannot."""

import os
import re
import sqlite3
from contextlib import AbstractContextManager, closing
from pathlib import Path

import pytest
from tests.postgres import Server

from meruit.errors import StoreError, StoreUnavailable
from meruit.store import migrate as opening
from meruit.store.database import FROZEN_MS, Database, connect
from meruit.store.driver import DriverConnection
from meruit.store.location import FILE, KEY_FILE, Location
from meruit.store.store import Store

VERSIONS = opening.MIGRATIONS / "versions"


def test_every_migration_is_a_known_revision_and_follows_the_one_before() -> None:
    found = {
        re.search(r'^revision = "(.*)"', file.read_text(), re.MULTILINE)[1]: file.read_text()  # type: ignore[index]  # each has one
        for file in sorted(VERSIONS.glob("*.py"))
    }
    assert tuple(found) == opening.REVISIONS
    before = None
    for revision, content in found.items():
        assert f"down_revision = {before!r}".replace("'", '"') in content
        before = revision


def test_a_layout_that_changed_has_another_name(tmp_path: Path) -> None:
    """Or else a data folder of the earlier layout would be opened, and fail later."""
    with closing(sqlite3.connect(tmp_path / "made.db")) as database:
        database.executescript(opening.script_of(opening.HEAD).read_text())
        found = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid")
        made = [statement for (statement,) in found]
    assert opening.name_layout(made) == opening.HEAD
    assert opening.name_layout([*made, "CREATE TABLE t (a TEXT)"]) != opening.HEAD


def test_a_file_is_not_a_data_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=r"/file "):
        Store.open(Location(tmp_path / "file"))
    with pytest.raises(StoreError, match="below"):
        Store.open(Location(tmp_path / "file" / "below"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(StoreError, match=str(tmp_path)):
        Store.open(Location(tmp_path))


def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meruit.db").write_bytes(b"not a database, but long enough to be read as one" * 100)
    with pytest.raises(StoreUnavailable, match="not a database"):
        Store.open(Location(tmp_path))


def test_the_secrets_of_a_new_store_are_its_owners(tmp_path: Path) -> None:
    store = Store.open(Location(tmp_path / "data"))
    store.close()
    assert (tmp_path / "data").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "data" / "audit-key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "cannot be read"),
        ("mysql://user@host/name", "is not supported"),
        ("postgresql://user:secret@127.0.0.1:1/name", "127.0.0.1:1/name"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused_without_its_password(tmp_path: Path, url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said) as refused:
        Store.open(Location(tmp_path, url))
    assert "secret" not in str(refused.value)


def test_a_location_is_shown_without_its_password(tmp_path: Path) -> None:
    assert Location(tmp_path, "postgresql://u:secret@h:5/n").display_name == "postgresql://h:5/n"
    assert Location(tmp_path, "postgresql://u:secret@h/n").display_name == "postgresql://h/n"
    assert Location(tmp_path).display_name == str(tmp_path / "meruit.db")


def test_a_missing_database_is_reported(postgres_server: Server, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nothing"):
        opening.status(Location(tmp_path, postgres_server.url("nothing")))


def test_a_database_without_tables_has_no_revision(empty_location: Location) -> None:
    empty_location.folder.mkdir()
    database = connect(empty_location)
    with database.writer.begin() as connection:
        connection.exec_driver_sql("SELECT 1")
    database.close()
    status = opening.status(empty_location)
    assert (status.exists, status.revision, status.is_current) == (True, None, False)


def test_a_lost_signing_key_is_replaced_only_on_request(tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    first = Store.open(location)
    first.close()
    (location.folder / KEY_FILE).unlink()
    with pytest.raises(StoreError, match=r"is gone.*replace-key"):
        Store.open(location)
    assert not (location.folder / KEY_FILE).exists()
    second = Store.open(location, new_key=True)
    second.close()
    assert second.signer.vkey != first.signer.vkey
    third = Store.open(location)
    third.close()
    assert third.signer.vkey == second.signer.vkey


def test_a_key_that_another_process_writes_meanwhile_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = Location(tmp_path / "data")
    first = Store.open(location)
    first.close()
    key = (location.folder / KEY_FILE).read_bytes()
    (location.folder / KEY_FILE).unlink()
    asking, reads = Database.asking, iter(range(1_000))

    def write_key_first(database: Database) -> AbstractContextManager[DriverConnection]:
        # The two reads before are of the layout and of the log's name; then the file is looked for.
        if next(reads) == 2:
            (location.folder / KEY_FILE).write_bytes(key)
        return asking(database)

    monkeypatch.setattr(Database, "asking", write_key_first)
    second = Store.open(location)
    second.close()
    assert second.signer.vkey == first.signer.vkey


def test_an_emptied_database_is_refused(tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    Store.open(location).close()
    (location.folder / FILE).write_bytes(b"")
    with pytest.raises(StoreError, match=FILE):
        Store.open(location)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://bob:s3/cr3t@127.0.0.1:1/db",
        "postgresql://bob:s3#cr3t@127.0.0.1:1/db",
        "postgresql://bob:s3?cr3t@127.0.0.1:1/db",
        "postgresql://bob:s3@cr3t@127.0.0.1:1/db?password=cr3t",
    ],
)
def test_no_password_is_shown(url: str, tmp_path: Path) -> None:
    assert Location(tmp_path, url).display_name == "postgresql://127.0.0.1:1/db"


def test_a_writer_that_is_frozen_in_a_transaction_lets_go_of_its_lock(postgres_url: str, tmp_path: Path) -> None:
    with closing(Store.open(Location(tmp_path, postgres_url))) as store, store.database.writer.connect() as connection:
        shown = connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one()
    assert shown == f"{FROZEN_MS // 1000}s"
