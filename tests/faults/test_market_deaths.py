"""Wherever a process dies between work and payment, money is conserved, and nothing is lost or paid twice."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.started import run
from tests.sampling import IN_FULL

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
SHARDS = 4 if IN_FULL else 1
SQLITE_DEATHS = 1_255 if IN_FULL else 155
"""In each shard: 5,020 in all, or 155: every step twice."""
POSTGRES_DEATHS = 305 if IN_FULL else 50
PATIENCE_S = 900
WRITTEN = (
    *("agent_histories", "balances", "blobs", "checkpoints", "contract_transitions", "contracts", "criteria"),
    *("dealings", "events", "governance_checks", "idempotency", "log_leaves", "outcomes", "output_sketches"),
    *("postings", "settlements", "first_outputs", "transfers", "verdicts", "works"),
)
CHANGED = ("contracts", "log_state", "outcomes")
READ = (
    *(
        "agent_histories",
        "output_sketches",
        "blobs",
        "checkpoints",
        "contracts",
        "criteria",
        "dealings",
        "idempotency",
        "log_leaves",
        "log_state",
    ),
    *("outcomes", "settlements", "first_outputs", "try_sketches", "verdicts", "works"),
)
STATEMENTS = {
    *(f"INSERT {table}" for table in WRITTEN),
    *(f"UPDATE {table}" for table in CHANGED),
    *(f"SELECT {table}" for table in READ),
    "COMMIT",
}
"""The kinds of statement between work and payment."""
SOMETIMES = {"INSERT log_tiles"}
"""Those that come when the log has grown by 256 entries."""
STEPS = 69
"""Of all stories together."""


def points(statements: set[str]) -> set[str]:
    return {f"{when} {what}" for what in statements for when in ("before", "after")}


def survived(folder: Path, url: str, deaths: int, shard: int, shards: int, statements: set[str]) -> None:
    said = run("market", str(folder), url, str(deaths), str(shard), str(shards), patience_s=PATIENCE_S)
    assert said.code == 0, said
    # Any: what a script says is JSON.
    found: dict[str, Any] = json.loads(said.out)
    print(f"{found['deaths']} deaths in {found['seconds']} s")
    assert found["broken"] == [], found
    assert found["deaths"] >= deaths, found
    assert found["checked_whole"] > deaths // 250, found
    assert set(found["known"]) <= points(statements | SOMETIMES), (set(found["known"]) - points(statements), found)
    if not url:
        # Few as they are, every step was interrupted.
        assert found["steps"] == STEPS, found
    if not IN_FULL:
        return
    # Every kind of point that there is was met, and there are no others.
    assert points(statements) <= set(found["hits"]), (points(statements) - set(found["hits"]), found)
    assert found["steps"] == STEPS, found
    if shards > 1:
        # The shards together met every point of every step.
        assert found["untried"] == 0, found


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_death_between_work_and_payment_loses_nothing_and_pays_nothing_twice_on_sqlite(
    tmp_path: Path, shard: int
) -> None:
    survived(tmp_path, "", SQLITE_DEATHS, shard, SHARDS, STATEMENTS | {"BEGIN"})


def test_a_death_between_work_and_payment_loses_nothing_and_pays_nothing_twice_on_postgres(
    tmp_path: Path, postgres_url: str
) -> None:
    survived(tmp_path, postgres_url, POSTGRES_DEATHS, 0, 1, STATEMENTS)
