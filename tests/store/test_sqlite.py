"""What holds for a store in a file: its queries use indexes, its commits last, its locks are waited for."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.outcomes.making import outcome, recorded

from meruit.errors import StoreUnavailable
from meruit.model.access import Scope
from meruit.model.outcome import Labels
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.read import OutcomeFilter
from meruit.store import database
from meruit.store.location import FILE, Location
from meruit.store.store import Store

OWN = Scope("acme", "a1", only_own=True)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path))
    yield opened
    opened.close()


def plans(store: Store, scope: Scope, narrowed: OutcomeFilter, before: int | None) -> list[str]:
    """How SQLite goes about each query of a page."""
    asked: list[tuple[str, Any]] = []

    def heard(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_rest: Any) -> None:
        asked.append((statement, parameters))

    event.listen(store.database.reader, "before_cursor_execute", heard)
    with store.database.reading() as connection:
        outcomes.page(connection, scope, narrowed=narrowed, before=before)
    event.remove(store.database.reader, "before_cursor_execute", heard)
    found = []
    with store.database.reading() as connection:
        for statement, parameters in asked:
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
            found += [row[-1] for row in rows]
    return found


def is_indexed(step: str) -> bool:
    """Whether a step of a plan goes by an index, or over rows that an earlier step has limited."""
    return step.startswith(("SEARCH outcomes USING INDEX", "SEARCH outcomes USING COVERING INDEX", "CO-ROUTINE")) or (
        step in ("SCAN anon_1", "USE TEMP B-TREE FOR ORDER BY")
    )


MOMENT = datetime(2026, 1, 1, tzinfo=UTC)
FILTERS: dict[str, Any] = {
    **dict.fromkeys((*outcomes.INDEXED, *outcomes.UNINDEXED), "x"),
    "since": MOMENT,
    "until": MOMENT,
}


@pytest.mark.parametrize("before", [None, 100])
@pytest.mark.parametrize("scope", [Scope("acme"), OWN], ids=["tenant", "agent"])
@pytest.mark.parametrize("names", [(), *combinations(FILTERS, 1), *combinations(FILTERS, 2), tuple(FILTERS)])
def test_no_list_grows_slow_with_the_table(
    store: Store, scope: Scope, names: tuple[str, ...], before: int | None
) -> None:
    steps = plans(store, scope, OutcomeFilter(**{name: FILTERS[name] for name in names}), before)
    assert [step for step in steps if not is_indexed(step)] == []


@pytest.mark.parametrize("name", ["a%41", "a?mode=memory", "file:a", "a#b", "a b", ":memory:", "ä'\""])
def test_a_folder_of_any_name_is_written_and_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder that the name would mean as a URL.
    recorded_by(Location(Path("aA")), "neighbour")
    found = recorded_by(Location(Path(name)), "ours")
    assert found == ["ours"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted({"aA", name})


def recorded_by(location: Location, agent: str) -> list[str | None]:
    """Record an outcome in a new store; the agents of those that are read from it then."""
    with closing(Store.open(location)) as store:
        recorded(store, outcome(store, labels=Labels(agent_id=agent)))
        store.database.truncate_wal()
        with store.database.reading() as connection:
            page = outcomes.page(connection, Scope("acme"))
    return [one.agent_id for one in page.entries]


def test_a_commit_outlives_the_machine(store: Store) -> None:
    with store.database.writing() as connection:
        found = {
            name: connection.fetch(f"PRAGMA {name}")[0][0] for name in ("journal_mode", "synchronous", "foreign_keys")
        }
    assert found == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_full_disk_is_called_that(store: Store) -> None:
    with store.database.writing() as connection:
        ((pages,),) = connection.fetch("PRAGMA page_count")
        connection.run(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreUnavailable, match=r"meruit\.db: .*full"):
        recorded(store, outcome(store, work_output={"text": os.urandom(30_000).hex()}))


def test_a_lock_that_is_not_released_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "BUSY_S", 0.05)
    store = Store.open(Location(tmp_path))
    other = sqlite3.connect(tmp_path / "meruit.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable, match="locked"):
            recorded(store, outcome(store))
        other.execute("ROLLBACK")
        recorded(store, outcome(store))
    finally:
        other.close()
        store.close()


def test_readers_read_while_one_writes(store: Store) -> None:
    (kept,) = recorded(store, outcome(store))
    with store.database.writer.begin() as writing:
        writing.exec_driver_sql("DELETE FROM outcomes")
        with store.database.reading() as connection:
            assert outcomes.summary(connection, Scope("acme"), kept.outcome_id).id == kept.outcome_id
        writing.rollback()


def test_a_reader_sees_one_state(store: Store) -> None:
    recorded(store, outcome(store))
    with store.database.reading() as connection:
        assert len(outcomes.page(connection, Scope("acme")).entries) == 1
        recorded(store, outcome(store))
        assert len(outcomes.page(connection, Scope("acme")).entries) == 1
    with store.database.reading() as connection:
        assert len(outcomes.page(connection, Scope("acme")).entries) == 2


def test_a_new_store_has_large_pages_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    for name, page_bytes in (("old", 4_096), ("new", database.PAGE_BYTES)):
        folder = tmp_path / name
        folder.mkdir()
        if name == "old":
            with sqlite3.connect(folder / FILE) as old:
                old.execute("PRAGMA page_size=4096")
                old.execute("PRAGMA journal_mode=WAL")
        connected = database.connect(Location(folder))
        with connected.reading() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_size").scalar()
            checkpoint = connection.exec_driver_sql("PRAGMA wal_autocheckpoint").scalar()
        connected.close()
        assert (pages, checkpoint) == (page_bytes, database.WAL_BYTES // page_bytes)
