"""What was acknowledged survives the death of the process that wrote it, at every point of the write path."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.started import run
from tests.sampling import IN_FULL, seed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
SHARDS = 1
SQLITE_DEATHS = 500 if IN_FULL else 60
"""Beside those on the way of money; `tests.faults.deaths` dies as often as it is told."""
POSTGRES_DEATHS = 200 if IN_FULL else 30
PATIENCE_S = 600
WRITTEN = (
    *("criteria", "criteria_names", "cursors", "events", "idempotency", "keys"),
    *("log_leaves", "log_tiles", "outcomes", "verdicts", "verdict_runs", "verdict_segments", "blobs", "checkpoints"),
)
CHANGED = ("cursors", "keys", "log_state", "outcomes")
READ = (
    *("checkpoints", "criteria", "criteria_names", "cursors", "idempotency", "keys"),
    *("log_leaves", "log_state", "outcomes"),
)
STATEMENTS = {
    *(f"INSERT {table}" for table in WRITTEN),
    *(f"UPDATE {table}" for table in CHANGED),
    *(f"SELECT {table}" for table in READ),
    "COMMIT",
}
"""The kinds of statement that the write path has."""


def survived(folder: Path, url: str, deaths: int, shard: int, statements: set[str]) -> None:
    said = run("deaths", str(folder), url, str(deaths), str(seed() + shard), patience_s=PATIENCE_S)
    assert said.code == 0, said
    # Any: what a script says is JSON.
    found: dict[str, Any] = json.loads(said.out)
    points = {f"{when} {what}" for what in statements for when in ("before", "after")}
    assert found["broken"] == [], found
    assert found["deaths"] >= deaths, found
    assert found["checked_whole"] > deaths // 100, found
    assert set(found["known"]) <= points, found
    if not url:
        # Few as they are, there is one at most kinds of points, whatever the seed.
        missed = set(found["known"]) - set(found["hits"])
        assert len(missed) <= len(found["known"]) // 4, (missed, found)
    if IN_FULL:
        # Every point that there is was met, and there are no others.
        assert set(found["hits"]) == points, (points ^ set(found["hits"]), found)


@pytest.mark.parametrize("shard", range(SHARDS))
def test_nothing_acknowledged_is_lost_doubled_or_halved_on_sqlite(tmp_path: Path, shard: int) -> None:
    survived(tmp_path, "", SQLITE_DEATHS, shard, STATEMENTS | {"BEGIN"})


def test_nothing_acknowledged_is_lost_doubled_or_halved_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    survived(tmp_path, postgres_url, POSTGRES_DEATHS, 2, STATEMENTS)
