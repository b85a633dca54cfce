"""`meruit db`: what stands in the database, and how it is brought to this version."""

import json
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of
from tests.postgres import NewDatabase
from tests.store import layouts

from meruit.store import migrate as opening
from meruit.store.location import Location

Run = Callable[..., subprocess.CompletedProcess[str]]
Write = Callable[[str, Any], str]

FILE = Path("meruit-data/meruit.db")
OLDER = opening.HEAD
NOWHERE = "postgresql://user:hidden@127.0.0.1:1/name"
CRITERIA = "criteria:\n  - {metric: word_count, metric_type: count, comparison: gte, threshold: 2}\n"


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MERUIT_DATA", "MERUIT_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def record(run: Run, write: Write) -> Callable[..., None]:
    """Records one outcome."""
    write("c.yaml", CRITERIA)
    write("o.json", {"text": "two words"})

    def one(*place: str) -> None:
        assert run("verify", "c.yaml", "--output", "o.json", "--record", *place).returncode == 0

    return one


def status(run: Run, *arguments: str) -> dict[str, Any]:
    ended = run("db", "status", *arguments, "--json")
    assert ended.stderr == ""
    found: dict[str, Any] = json.loads(ended.stdout)
    assert ended.returncode == (0 if found["current"] else 1)
    return found


def stamp(revision: str) -> None:
    """As if another version had made the tables."""
    layouts.stamp(Location(FILE.parent), revision)


@pytest.fixture
def later_layout(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], None]:
    """From the call on, commands use a layout that is one newer than that of the database."""
    return lambda: (layouts.use_later_layout(monkeypatch, tmp_path_factory.mktemp("later")), None)[1]


# What stands there.


def test_a_missing_database_is_not_created_by_status(run: Run) -> None:
    ended = run("db", "status")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.startswith("meruit-data/meruit.db: ")
    found = status(run)
    assert (found["exists"], found["revision"], found["head"]) == (False, None, opening.HEAD)
    assert list(Path().iterdir()) == []


def test_a_current_database_is_told_with_its_size(run: Run, record: Callable[..., None]) -> None:
    record()
    record()
    ended = run("db", "status")
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = ended.stdout.splitlines()
    assert lines[0] == f"meruit-data/meruit.db: tables at {opening.HEAD} (current)"
    assert lines[1].startswith("2 outcomes, ")
    found = status(run)
    assert found == {
        "location": "meruit-data/meruit.db",
        "exists": True,
        "revision": opening.HEAD,
        "head": opening.HEAD,
        "outcomes": 2,
        # The key, the criteria, and evidence and verdict of each.
        "log_size": 6,
        "events": 2,
        "current": True,
    }


def test_an_older_database_is_not_changed_by_being_looked_at(
    run: Run, record: Callable[..., None], later_layout: Callable[[], None]
) -> None:
    record()
    later_layout()
    ended = run("db", "status")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert all(part in ended.stdout for part in (OLDER, opening.HEAD, " db upgrade`"))
    found = status(run)
    assert (found["revision"], found["outcomes"], found["current"]) == (OLDER, 1, False)


@pytest.mark.parametrize("revision", ["0006", "9999"])
def test_a_database_of_an_unknown_layout_is_left_alone(run: Run, record: Callable[..., None], revision: str) -> None:
    record()
    stamp(revision)
    before = FILE.read_bytes()
    ended = run("db", "status")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert all(part in ended.stdout for part in (revision, opening.HEAD))
    # It may count otherwise; we say nothing rather than something wrong.
    assert "outcomes" not in ended.stdout
    refused = run("db", "upgrade")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert all(part in refused.stderr for part in (str(FILE), revision, opening.HEAD, " outcome export"))
    assert FILE.read_bytes() == before


def test_a_file_that_is_no_database_is_told_of(run: Run) -> None:
    FILE.parent.mkdir()
    FILE.write_bytes(b"not a database, but long enough to be read as one" * 100)
    for command in ("status", "upgrade"):
        ended = run("db", command)
        assert (ended.returncode in (2, 3), ended.stdout) == (True, "")
        assert "meruit-data/meruit.db: " in ended.stderr


# Bringing it to this version.


def test_a_new_database_is_made_once(run: Run) -> None:
    first, second = run("db", "upgrade"), run("db", "upgrade")
    assert (first.returncode, first.stdout.endswith("(new)\n")) == (0, True)
    assert (second.returncode, second.stdout.endswith("(new)\n")) == (0, False)
    again = json.loads(run("db", "upgrade", "--json").stdout)
    assert (again["before"], again["after"], again["backup"]) == (opening.HEAD, opening.HEAD, None)
    assert status(run)["outcomes"] == 0


def test_programs_hear_what_was_done(run: Run) -> None:
    told = {"location": "elsewhere/meruit.db", "after": opening.HEAD, "backup": None}
    first = json.loads(run("db", "upgrade", "--data", "elsewhere", "--json").stdout)
    second = json.loads(run("db", "upgrade", "--data", "elsewhere", "--json").stdout)
    assert first == told | {"before": None}
    assert second == told | {"before": opening.HEAD}


def test_an_older_database_keeps_its_records_and_a_copy_as_it_was(
    run: Run, record: Callable[..., None], later_layout: Callable[[], None]
) -> None:
    record()
    record()
    (before,) = [json.loads(run("outcome", "list", "--json").stdout)]
    later_layout()
    ended = run("db", "upgrade")
    assert (ended.returncode, ended.stderr) == (0, "")
    copy = FILE.with_name(f"{FILE.name}.before-{opening.HEAD}")
    assert all(part in ended.stdout for part in (opening.HEAD, OLDER, str(copy)))
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(OLDER,)]
        assert connection.execute("SELECT count(*) FROM outcomes").fetchall() == [(2,)]
    assert status(run)["current"]
    assert json.loads(run("outcome", "list", "--json").stdout) == before
    record()
    assert status(run)["outcomes"] == 3
    restored = Path("restored")
    restored.mkdir()
    copy.rename(restored / FILE.name)
    assert status(run, "--data", "restored")["revision"] == OLDER


def test_any_command_that_uses_it_upgrades_it(
    run: Run, record: Callable[..., None], later_layout: Callable[[], None]
) -> None:
    record()
    later_layout()
    assert run("outcome", "list").returncode == 0
    assert status(run)["current"]
    assert FILE.with_name(f"{FILE.name}.before-{opening.HEAD}").exists()


def test_postgres_is_made_and_told_of_alike(
    run: Run, new_empty_postgres: NewDatabase, record: Callable[..., None]
) -> None:
    there = ("--database-url", new_empty_postgres())
    empty = status(run, *there)
    assert (empty["exists"], empty["revision"]) == (True, None)
    assert " db upgrade`" in run("db", "status", *there).stdout
    assert run("db", "upgrade", *there).stdout.endswith(f"{opening.HEAD} (new)\n")
    record(*there)
    found = status(run, *there)
    assert (found["revision"], found["outcomes"], found["current"]) == (opening.HEAD, 1, True)


@pytest.mark.parametrize("command", ["status", "upgrade"])
@pytest.mark.parametrize(
    ("url", "said"),
    [
        (NOWHERE, "postgresql://127.0.0.1:1/name"),
        ("mysql://user:hidden@127.0.0.1/name", "mysql"),
        ("hidden", "URL"),
        ("postgresql://user:hidden@127.0.0.1:port/name", "URL"),
    ],
)
def test_a_database_that_cannot_be_reached_is_told_without_a_password(
    run: Run, command: str, url: str, said: str
) -> None:
    ended = run("db", command, "--database-url", url)
    assert (ended.returncode in (2, 3), ended.stdout) == (True, "")
    assert said in ended.stderr
    assert "hidden" not in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_data_folder_that_is_a_file_is_refused(run: Run, write: Write) -> None:
    write("file", "")
    assert "file" in error_of(run, "db", "upgrade", "--data", "file")["message"]


@pytest.fixture
def restored(record: Callable[..., None]) -> Path:
    """A data folder whose database was restored from a copy that lacks the second outcome."""
    record()
    with closing(sqlite3.connect(FILE)) as source, closing(sqlite3.connect("copy.db")) as copy:
        source.backup(copy)
    record()
    for file in FILE.parent.glob(f"{FILE.name}*"):
        file.unlink()
    return Path("copy.db").rename(FILE)


def test_a_restored_copy_is_written_to_after_it_was_accepted(restored: Path, run: Run) -> None:
    recorded = ("verify", "c.yaml", "--output", "o.json", "--record")
    for refused in (recorded, ("serve", "--port", "0")):
        assert error_of(run, *refused)["code"] == "log_rolled_back"
    assert "log_rolled_back" in run("doctor").stdout
    assert run("audit", "check").returncode == 1
    known = Path("meruit-data/last-checkpoint.txt").read_text().split("\n")[1]
    accepted = json.loads(run("db", "accept-restored", "--json").stdout)
    assert accepted["known"] == int(known) > accepted["entries"]
    assert Path(accepted["set_aside"]).read_text().split("\n")[1] == known
    assert run(*recorded).returncode == 0
    assert run("audit", "check").returncode == 0
    assert "nothing to accept" in run("db", "accept-restored").stdout


def test_a_damaged_file_of_the_newest_checkpoint_is_named(record: Callable[..., None], run: Run) -> None:
    record()
    kept = Path("meruit-data/last-checkpoint.txt")
    kept.write_bytes(bytes(100))
    for refused in (("verify", "c.yaml", "--output", "o.json", "--record"), ("serve", "--port", "0")):
        assert error_of(run, *refused)["code"] == "kept_checkpoint_damaged"
    assert "kept_checkpoint_damaged" in run("doctor").stdout
    kept.unlink()
    assert run("verify", "c.yaml", "--output", "o.json", "--record").returncode == 0


def test_a_copy_that_contradicts_its_signatures_is_not_accepted(restored: Path, run: Run) -> None:
    with closing(sqlite3.connect(restored)) as opened:
        opened.execute("UPDATE checkpoints SET note = 'forged'")
        opened.commit()
    assert error_of(run, "db", "accept-restored")["code"] == "log_rewritten"
    # What the folder knew still counts.
    assert error_of(run, "db", "accept-restored")["code"] == "log_rewritten"
    assert Path("meruit-data/last-checkpoint.txt").exists()


def test_nothing_is_accepted_where_the_folder_knows_nothing(record: Callable[..., None], run: Run) -> None:
    record()
    Path("meruit-data/last-checkpoint.txt").unlink()
    with closing(sqlite3.connect(FILE)) as opened:
        opened.execute("UPDATE checkpoints SET note = 'forged'")
        opened.commit()
    assert error_of(run, "db", "accept-restored")["code"] == "log_rewritten"


def test_a_copy_older_than_the_key_of_the_folder_is_accepted(record: Callable[..., None], run: Run) -> None:
    record()
    with closing(sqlite3.connect(FILE)) as source, closing(sqlite3.connect("copy.db")) as copy:
        source.backup(copy)
    record()
    assert run("audit", "rotate").returncode == 0
    for file in FILE.parent.glob(f"{FILE.name}*"):
        file.unlink()
    Path("copy.db").rename(FILE)
    done = run("db", "accept-restored")
    assert (done.returncode, "accepted" in done.stdout) == (0, True)
    assert error_of(run, "audit", "checkpoint")["code"] == "key_not_admitted"
