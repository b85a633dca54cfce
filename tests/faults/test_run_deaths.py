"""Wherever a process dies between reading a world and recording its verdict, the run is judged once, and whole."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.started import run
from tests.sampling import IN_FULL

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
SQLITE_DEATHS, POSTGRES_DEATHS = (60, 30) if IN_FULL else (30, 15)
PATIENCE_S = 300
STEPS = {"none", "pending", "running"}
"""What a life begins with: nothing, a run to be started, a run to be completed."""


def survived(folder: Path, url: str, deaths: int) -> None:
    said = run("run_deaths", str(folder), url, str(deaths), "1", patience_s=PATIENCE_S)
    assert said.code == 0, said
    # Any: what a script says is JSON.
    found: dict[str, Any] = json.loads(said.out)
    assert found["broken"] == [], found
    assert found["deaths"] >= deaths, found
    around = {f"{step}: {when} COMMIT" for step in STEPS for when in ("before", "after")}
    assert around <= set(found["hits"]), found


def test_a_run_is_judged_once_and_whole_whoever_dies_on_the_way_on_sqlite(tmp_path: Path) -> None:
    survived(tmp_path, "", SQLITE_DEATHS)


def test_a_run_is_judged_once_and_whole_whoever_dies_on_the_way_on_postgres(tmp_path: Path, postgres_url: str) -> None:
    survived(tmp_path, postgres_url, POSTGRES_DEATHS)
