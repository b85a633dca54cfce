"""`meruit work`: published, listed, shown, or refused with what to do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.trade import CANARY, WORK, Stall, put, with_terms

Run = Callable[..., subprocess.CompletedProcess[str]]

YAML = """\
title: Count
success_criteria:
  criteria:
    - {metric: word_count, metric_type: count, comparison: gte, threshold: 3, bonus: 0.01}
terms:
  cpc_rate: 0.05
"""


def test_work_is_published_and_its_id_is_all_of_stdout(stall: Stall) -> None:
    ended = stall.run("work", "submit", put("work.yaml", YAML))
    assert (ended.returncode, ended.stdout[:4], ended.stdout.count("\n")) == (0, "wrk_", 1)
    assert ended.stderr == f"note: `meruit contract award {ended.stdout.strip()} --agent-id …` gives it to an agent\n"
    assert stall.run("work", "submit", "-", stdin=YAML.encode()).returncode == 0


def test_programs_get_the_whole_work(stall: Stall) -> None:
    ended = stall.run("work", "submit", put("work.json", WORK), "--json")
    made = json.loads(ended.stdout)
    assert (made["consumer_id"], made["has_cpa"], made["created_by"]) == ("buyer", True, "command line")
    assert (made["terms"]["cpc_rate"], made["terms"]["max_cpa_total"]) == ("0.05", "0.04")
    assert made["input"]["reference"].endswith(CANARY)
    assert json.loads(stall.run("work", "show", made["id"], "--json").stdout) == made
    assert ended.stderr == ""


def test_work_without_criteria_is_paid_by_completion_alone(stall: Stall) -> None:
    contract = stall.awarded({"title": "Anything", "terms": {"cpc_rate": 1}})
    ended = stall.complete(contract, {"text": "done"}, "--json")
    found = json.loads(ended.stdout)
    # Nothing passes by default, and completion is paid all the same.
    assert (ended.returncode, found["outcome"]["success"], found["settlement"]["total"]) == (1, False, "1")
    shown = stall.run("work", "list").stdout
    assert " no        Anything" in shown


@pytest.mark.parametrize(
    ("text", "complaints"),
    [
        (YAML.replace("0.05", "0.0000001"), ["line 6", "cpc_rate", "at most 6 decimal places"]),
        (YAML.replace("0.05", "-1"), ["line 6", "cpc_rate", "at least 0"]),
        (YAML + "  currency: XXX\n", ["line 7", "currency", "such as USD"]),
        (YAML + "budget: {max_cpa_total: -1}\n", ["line 7", "max_cpa_total", "at least 0"]),
        (YAML + "budget: {max_bonus: 1, max_cpa_bonus: 2}\n", ["are one cap and differ"]),
        (
            YAML.replace("word_count", "word_cout"),
            ["line 4", "Unknown metric: word_cout", "did you mean 'word_count'?"],
        ),
        (YAML.replace("threshold: 3", "threshold: [1]"), ["line 4", "Invalid threshold for metric: word_count"]),
        (YAML.replace("title: Count", "titel: Count"), ["line 1", "titel"]),
        (YAML + "  dispute_window_hours: 169\n", ["line 7", "dispute_window_hours"]),
        ("title: [", ["work.yaml: line 1"]),
        ("title: a\ntitle: b\n", ["line 2", "title"]),
        ("", ["work.yaml"]),
        ("- a\n", ["work.yaml"]),
        (
            YAML.replace("  criteria:", "  custom_metrics: [{metrics: [mine], code_file: mine.py}]\n  criteria:"),
            ["line 3", "code_file", "put the code itself in `code`"],
        ),
    ],
)
def test_what_cannot_be_published_is_told_with_its_line(stall: Stall, text: str, complaints: list[str]) -> None:
    ended = stall.run("work", "submit", put("work.yaml", text))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert all(complaint in ended.stderr for complaint in complaints), ended.stderr
    assert not Path("meruit-data").exists()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"success_criteria": {"criteria": [{**WORK["success_criteria"]["criteria"][0], "threshold": 0}]}},
            "accept_null_agent",
        ),
        ({"terms": {"cpc_rate": 1, "rules": ["cpc", "cap_all"]}}, "`meruit ledger rules` lists all"),
        ({"terms": {"cpc_rate": "8589934592"}, "budget": {}}, "could cost more than"),
        ({"terms": {"cpc_rate": 1, "rules": ["cpc", "claimed_only", "cpa_bonus"]}}, "claimed_only must come after"),
        ({"terms": {"cpc_rate": 1}, "budget": {"max_cpc": "0.5"}}, "above the budget.max_cpc of"),
        ({"description": f"say {CANARY}"}, "agents are shown the canary"),
        ({"input": {"parts": [{"reference": "x"}]}}, "put what is private under private"),
        ({"title": " "}, "nothing but spaces"),
    ],
)
def test_work_that_nobody_should_award_is_refused_with_what_to_do(
    stall: Stall, change: dict[str, Any], complaint: str
) -> None:
    ended = stall.run("work", "submit", put("work.json", {**WORK, **change}))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert complaint in ended.stderr


def test_a_null_agent_may_pass_where_somebody_says_why(stall: Stall) -> None:
    easy = {"criteria": [{**WORK["success_criteria"]["criteria"][0], "threshold": 0}]}
    work = {**WORK, "success_criteria": easy, "accept_null_agent": "silence is golden"}
    ended = stall.run("work", "submit", put("work.json", work))
    assert ended.returncode == 0
    assert "note: an agent that does nothing may pass: silence is golden" in ended.stderr
    assert "null agent  silence is golden" in stall.run("work", "show", ended.stdout.strip()).stdout


def test_a_file_that_is_not_there_is_named(run: Run) -> None:
    ended = run("work", "submit", "no.yaml")
    assert (ended.returncode, ended.stderr) == (2, "error: no.yaml: cannot be read: No such file or directory\n")


def test_stdin_is_read_for_one_thing(run: Run) -> None:
    assert "one file only" in run("work", "submit", "-", "--config", "-").stderr


@pytest.mark.parametrize("tenant", ["Acme", "", "a b"])
def test_a_tenant_has_a_plain_name(run: Run, tenant: str) -> None:
    ended = run("work", "submit", put("work.yaml", YAML), "--tenant", tenant)
    assert (ended.returncode, "is no tenant" in ended.stderr) == (2, True)


def test_pages_of_work_go_on(stall: Stall) -> None:
    ids = [stall.submit() for _ in range(3)]
    page = json.loads(stall.run("work", "list", "--limit", "2", "--json").stdout)
    assert [one["id"] for one in page["works"]] == ids[:0:-1]
    ended = stall.run("work", "list", "--before", str(page["next"]))
    assert ended.stdout.splitlines()[1].split()[0] == ids[0]
    assert "there may be more: --before" in stall.run("work", "list", "--limit", "1").stderr
    assert json.loads(stall.run("work", "list", "--tenant", "other", "--json").stdout) == {"works": [], "next": None}


def test_one_work_is_shown_with_its_terms_and_criteria(stall: Stall) -> None:
    told = stall.run("work", "show", stall.submit()).stdout
    for line in (
        "title       Tell the story of the fox",
        "pays        0.05 USD for completion",
        "cap         bonuses of 0.04 at most",
        "fee         0.15 of the price",
        "input       reference (private), text",
        "canaries    1",
        "rougeL      ≥ 0.5      0.02   0.01",
    ):
        assert line in told
    plain = stall.run("work", "show", stall.submit({"title": "x", "impossible": True})).stdout
    assert "pays        as awarded USD" in plain
    assert "planted: nobody can pass it" in plain
    assert CANARY not in told


def test_what_is_private_is_named_as_such(stall: Stall) -> None:
    work = stall.submit({"title": "x", "input": {"text": "y"}, "private": {"solution": {"reference": "z"}}})
    assert "input       solution (private), text" in stall.run("work", "show", work).stdout
    shown = json.loads(stall.run("work", "show", work, "--json").stdout)
    assert (shown["private"], shown["input"]["solution"]) == (["solution"], {"reference": "z"})


def test_unknown_work_is_said_to_be_unknown(stall: Stall) -> None:
    stall.submit(with_terms())
    for command in (("work", "show", "wrk_x"), ("contract", "award", "wrk_x", "--agent-id", "a")):
        ended = stall.run(*command)
        assert (ended.returncode, ended.stderr) == (2, "error: no work 'wrk_x'\n")


def test_without_records_nothing_is_listed_and_nothing_is_made(run: Run) -> None:
    ended = run("work", "list")
    assert (ended.returncode, "holds no records yet" in ended.stderr) == (2, True)
    assert not Path("meruit-data").exists()
