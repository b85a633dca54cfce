"""The writer's connection: text past SQLAlchemy, queries of SQLAlchemy's in the same transaction."""

import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select

from meruit.errors import StoreError
from meruit.store import tables
from meruit.store.store import Store
from meruit.store.transaction import WriteTransaction

_RECORD = """
import sys
sys.modules.update(dict.fromkeys(["sqlalchemy", "alembic", "asyncio", "httpx"]))
sys.argv = ["meruit", "verify", "c.json", "--output", "o.json", "--record", "--data", "data", "--agent-id", "a"]
from meruit.__main__ import run
run()
"""
_ORIGIN = "UPDATE log_state SET origin = ?"


def test_a_new_store_and_a_record_need_no_sqlalchemy(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"criteria": [{"metric": "exact_match"}]}')
    (tmp_path / "o.json").write_text('{"text": "a"}')
    done = subprocess.run([sys.executable, "-c", _RECORD], check=False, cwd=tmp_path, stderr=subprocess.PIPE)
    assert (done.returncode, b"recorded as out_" in done.stderr) == (3, True), done.stderr


def test_a_query_of_sqlalchemys_is_in_the_same_transaction(store: Store) -> None:
    with store.database.writing() as connection:
        connection.run(_ORIGIN, "written before")
        assert connection.execute(select(tables.log_state.c.origin)).scalar() == "written before"
        connection.execute(insert(tables.log_tiles), [{"level": 1, "seq": 0, "hash": b"h"}])
    with store.database.reading() as reading:
        assert reading.execute(select(tables.log_state.c.origin)).scalar() == "written before"
        assert reading.execute(select(func.count()).select_from(tables.log_tiles)).scalar() == 1


def _write_and_fail(store: Store) -> None:
    with store.database.writing() as connection:
        connection.execute(insert(tables.log_tiles), [{"level": 1, "seq": 0, "hash": b"h"}])
        connection.run(_ORIGIN, "undone")
        raise ZeroDivisionError


def test_an_error_undoes_text_and_query_alike(store: Store) -> None:
    before = store.signer.name
    with pytest.raises(ZeroDivisionError):
        _write_and_fail(store)
    with store.database.writing() as connection:
        assert connection.fetch("SELECT origin FROM log_state") == [(before,)]
        assert connection.fetch("SELECT count(*) FROM log_tiles") == [(0,)]


def test_a_constraint_that_text_breaks_is_a_refusal(store: Store) -> None:
    def write(writing: WriteTransaction) -> None:
        for _ in range(2):
            writing.insert(tables.log_tiles, level=7, seq=7, hash=b"h")

    with pytest.raises(StoreError, match="contradicts"):
        store.recorder.write(write)
