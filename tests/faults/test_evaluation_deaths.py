"""An evaluation that is killed again and again ends whole: each case once, no output paid for beyond the limit."""

import json
import sys
from pathlib import Path

import pytest
from tests.faults.evaluation_deaths import CONCURRENCY
from tests.faults.started import run
from tests.sampling import IN_FULL, seed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
CASES, DEATHS = (2_000, 100) if IN_FULL else (120, 6)


def test_a_killed_evaluation_ends_whole_within_its_limit(tmp_path: Path) -> None:
    said = run("evaluation_deaths", str(tmp_path), str(CASES), str(DEATHS), str(seed()), patience_s=1_200)
    assert said.code == 0, said
    found = json.loads(said.out)
    assert found["deaths"] >= DEATHS // 2, found
    assert (found["status"], found["judged"], found["proven"]) == ("finished", CASES, True)
    assert found["cases"] == sorted(f"c{n}" for n in range(CASES))
    # Nothing is left that no record accounts for.
    assert (found["blobs"], found["files"], found["journals"]) == (found["segments"], 0, 0)
    # What was billed, not what was recorded: calls that died unanswered count too.
    assert found["spent_at_limit_micros"] <= found["limit_micros"] + found["in_flight_micros"], found
    assert found["billed_micros"] >= found["cost_micros"]
    # A death pays again only for what was in flight.
    assert found["calls"] <= CASES + found["deaths"] * CONCURRENCY
