"""`meruit agent trust`: what is recorded of an agent, counted fairly."""

import json
import subprocess
from collections.abc import Callable
from typing import Any

from tests.cli.refusals import error_of
from tests.cli.trade import BAD, CANARY, GOOD, REFERENCE, Clock, Stall, put, with_terms

Run = Callable[..., subprocess.CompletedProcess[str]]
CRITERIA = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}]}
PARTIAL = {
    "criteria": [
        {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3},
        {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 9},
    ]
}


def trust(run: Run, agent: str = "ada", *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run("agent", "trust", agent, *options, "--json").stdout)
    return found


def counts(found: dict[str, Any]) -> dict[str, int]:
    """How much work ended in which way, without zeros."""
    inputs = found["inputs"]
    every = {**inputs["left_out"], "delivered": inputs["delivered"], "not_delivered": inputs["not_delivered"]}
    return {name: number for name, number in every.items() if number}


def verified(run: Run, text: str, criteria: dict[str, Any] = CRITERIA, agent: str = "ada") -> None:
    files = (put("criteria.json", criteria), "--output", put("output.json", {"text": text}))
    ended = run("verify", *files, "--record", "--agent-id", agent)
    assert ended.returncode in (0, 1), ended.stderr


def test_recorded_outcomes_make_the_score(run: Run) -> None:
    verified(run, "one two three")
    verified(run, "four five six")
    verified(run, "one")
    verified(run, "one two three", agent="bob")
    found = trust(run)
    assert counts(found) == {"delivered": 2, "not_delivered": 1}
    assert (found["exact"], found["records"], found["method"]["version"]) == ("2/3", "few", 1)
    assert 0 < found["interval"]["low"] < found["score"] < found["interval"]["high"] < 1
    told = run("agent", "trust", "ada").stdout
    assert told.startswith("score 66.7 % (2/3 delivered)")
    assert "few records" in told


def test_rescoring_by_other_criteria_changes_no_trust(run: Run) -> None:
    verified(run, "one two three")
    stricter = {"criteria": [{**CRITERIA["criteria"][0], "threshold": 9}]}
    ended = run("rescore", put("stricter.json", stricter), "--all", "--reason", "to compare")
    assert ended.returncode == 0, ended.stderr
    assert counts(trust(run)) == {"delivered": 1}


def test_partial_work_that_is_no_success_was_not_delivered(run: Run) -> None:
    verified(run, "one two three", PARTIAL)
    assert counts(trust(run)) == {"not_delivered": 1}


def test_an_unknown_agent_has_no_score_and_the_nearest_is_named(run: Run) -> None:
    verified(run, "one two three")
    ended = run("agent", "trust", "adda")
    assert (ended.returncode, "'ada'" in ended.stderr) == (0, True)
    found = trust(run, "adda")
    assert (found["score"], found["records"]) == (None, "none")
    assert (found["interval"]["low"], found["interval"]["high"]) == (0.0, 1.0)
    assert trust(run, "ada", "--tenant", "acme")["records"] == "none"


def test_a_span_of_time_chooses_the_work(run: Run) -> None:
    verified(run, "one two three")
    assert counts(trust(run, "ada", "--until", "2020-01-01")) == {}
    assert counts(trust(run, "ada", "--since", "2020-01-01")) == {"delivered": 1}
    error = error_of(run, "agent", "trust", "ada", "--since", "2026-01-02", "--until", "2026-01-01")
    assert error["code"] == "usage"


def test_contracts_count_once_they_are_decided(stall: Stall, clock: Clock) -> None:
    work = stall.submit()
    paid = stall.award(work)
    assert counts(trust(stall.run)) == {"open": 1}
    assert stall.complete(paid).returncode == 0
    assert counts(trust(stall.run)) == {"delivered": 1}
    assert stall.complete(stall.award(stall.submit()), BAD).returncode == 1
    assert counts(trust(stall.run)) == {"delivered": 1, "not_delivered": 1}
    assert stall.run("contract", "dispute", paid, "--reason", "r").returncode == 0
    assert counts(trust(stall.run)) == {"disputed": 1, "not_delivered": 1}
    assert stall.run("contract", "resolve", paid, "--decision", "reverse", "--reason", "r").returncode == 0
    assert counts(trust(stall.run)) == {"waiting": 1, "not_delivered": 1}
    assert stall.run("holds", "void", paid, "--reason", "r").returncode == 0
    assert counts(trust(stall.run)) == {"cancelled": 1, "not_delivered": 1}


def test_a_deadline_counts_against_an_agent_that_had_started(stall: Stall, clock: Clock) -> None:
    started, never = stall.awarded(), stall.awarded()
    assert stall.run("contract", "start", started).returncode == 0
    clock.forward(days=30)
    assert stall.run("contract", "expire").returncode == 0
    assert stall.show(never)["state"] == stall.show(started)["state"] == "expired"
    assert counts(trust(stall.run)) == {"not_delivered": 1, "never_started": 1}


def test_a_suspicion_counts_only_when_a_person_confirms_it(stall: Stall) -> None:
    held = stall.held("eve")
    assert counts(trust(stall.run, "eve")) == {"waiting": 1}
    assert stall.run("holds", "void", held, "--reason", "it leaked the reference").returncode == 0
    assert counts(trust(stall.run, "eve")) == {"not_delivered": 1}
    released = stall.awarded(agent="mallory")
    assert stall.complete(released, {"text": f"{REFERENCE} {CANARY} and more"}).returncode == 3
    assert stall.run("holds", "release", released, "--reason", "agreed").returncode == 0
    assert counts(trust(stall.run, "mallory")) == {"delivered": 1}


def test_an_inconclusive_contract_does_not_lower_trust(stall: Stall) -> None:
    accuracy = {"metric": "accuracy", "metric_type": "accuracy", "comparison": "gte", "threshold": 0.9, "bonus": "0.01"}
    work = with_terms() | {"success_criteria": {"criteria": [accuracy]}}
    work["input"] = {**work["input"], "ground_truth": ["a", "b"]}
    contract = stall.awarded(work)
    assert stall.complete(contract, GOOD).returncode != 0
    found = counts(trust(stall.run))
    assert "not_delivered" not in found, found
