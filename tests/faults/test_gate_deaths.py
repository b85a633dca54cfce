"""Wherever the worker of a gated run dies, the run ends as if nobody had: counted once, told once, verified once."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.faults.gate_stories import Move, Story, expected, told_stories
from tests.faults.started import run
from tests.sampling import IN_FULL, seed

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes are forked")
SQLITE_DEATHS, POSTGRES_DEATHS, DBOS_DEATHS = (340, 120, 60) if IN_FULL else (60, 12, 4)
NAIVE_DEATHS = 400
"""At most, until a mistake that was made on purpose is noticed."""
PATIENCE_S = 600
WRITTEN = (
    *("queue", "claim", "take over", "keep model", "keep tool", "keep verify", "account", "rest", "wait", "wake"),
    *("resume", "cancel", "queue a member", "wait for members", "give_up", "end"),
)
KINDS = {
    *(f"{write}: {when}" for write in WRITTEN for when in ("before it is written", "before COMMIT", "after COMMIT")),
    *(f"{work}: {when}" for work in ("model", "tool", "verify") for when in ("asked", "done")),
    *(f"account: after INSERT {table}" for table in ("submissions", "agent_steps", "events", "log_leaves")),
    *(f"account: after UPDATE {table}" for table in ("agent_runs", "log_state")),
}
"""Every step of a run: before it, within it, and after it is written and before anybody knows."""


# Any: what a script says is JSON.
def told(folder: Path, url: str, engine: str, deaths: int, *naive: str) -> dict[str, Any]:
    said = run("gate_deaths", str(folder), url, engine, str(deaths), str(seed()), *naive, patience_s=PATIENCE_S)
    assert said.code == 0, said
    found: dict[str, Any] = json.loads(said.out)
    return found


def test_a_run_ends_as_if_nobody_had_died_on_sqlite(tmp_path: Path) -> None:
    found = told(tmp_path, "", "inline", SQLITE_DEATHS)
    assert found["broken"] == [], found
    assert found["deaths"] >= SQLITE_DEATHS, found
    # Few as they are, there is one at most kinds of points, whatever the seed; and there are no others.
    assert set(found["hits"]) <= set(found["known"]) <= KINDS, (set(found["known"]) ^ KINDS, found)
    missed = KINDS - set(found["hits"])
    assert len(missed) <= (0 if IN_FULL else len(KINDS) // 4), (missed, found)


@pytest.mark.parametrize(("engine", "deaths"), [("inline", POSTGRES_DEATHS), ("dbos", DBOS_DEATHS)])
def test_a_run_ends_as_if_nobody_had_died_or_slept_on_postgres(
    tmp_path: Path, postgres_url: str, engine: str, deaths: int
) -> None:
    found = told(tmp_path, postgres_url, engine, deaths)
    assert found["broken"] == [], found
    assert found["deaths"] >= deaths, found
    # Who sleeps under DBOS is a test of its own.
    assert (found["slept"] > 0) == (engine == "inline"), found


def test_a_count_that_is_not_written_with_its_submission_would_be_noticed(tmp_path: Path) -> None:
    found = told(tmp_path, "", "inline", NAIVE_DEATHS, "count")
    # Without a death, even the naive counter is right.
    assert found["broken"]
    assert not any("died at []" in problem for problem in found["broken"]), found


def test_a_worker_that_writes_though_another_owns_the_run_would_be_noticed(tmp_path: Path, postgres_url: str) -> None:
    # It takes no death: a worker that stops lets go even of what it has ended. The first problem ends the search, so
    # that many deaths cost no more than the few which are enough as a rule.
    assert told(tmp_path, postgres_url, "inline", NAIVE_DEATHS, "owner")["broken"]


def test_the_oracle_knows_the_specified_numbers() -> None:
    by_name = {story.name: expected(story) for story in told_stories() if not story.members}
    # Two rejections, then a pass: two are counted, and the verifier's events are three, two, two and one.
    simple = by_name["twice no, then yes"]
    assert (simple.status, simple.attempts_used, simple.done.total()) == ("completed", 2, 6)
    assert sum(times for key, times in simple.events.items() if ":" in key) == 8
    # A, B, A counts three; the same four times counts one.
    assert (by_name["out of attempts"].attempts_used, by_name["out of attempts"].ending) == (3, "attempts")
    assert (by_name["no progress"].attempts_used, by_name["no progress"].ending) == (1, "no_progress")
    broken = expected(Story("", ((Move("submit", 1, "pass", 5),),)))
    assert (broken.attempts_used, broken.submissions, broken.ending) == (0, [], "system_error")
