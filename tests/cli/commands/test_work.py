"""`meruit work`: published, listed, shown, or refused with what to do."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of, session_of
from tests.cli.trade import CANARY, WORK, Stall, put, with_terms
from tests.golden import check_golden

Run = Callable[..., subprocess.CompletedProcess[str]]

EASY = {"comparison": "lte", "threshold": 5}
"""What an empty text meets."""
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
    assert f" contract award {ended.stdout.strip()} --agent-id …`" in ended.stderr
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
    ("text", "line", "values"),
    [
        (YAML.replace("0.05", "0.0000001"), 6, ["cpc_rate"]),
        (YAML.replace("0.05", "-1"), 6, ["cpc_rate"]),
        (YAML + "  currency: XXX\n", 7, ["currency"]),
        (YAML + "budget: {max_cpa_total: -1}\n", 7, ["max_cpa_total"]),
        (YAML + "budget: {max_bonus: 1, max_cpa_bonus: 2}\n", 7, ["max_bonus"]),
        (YAML.replace("word_count", "word_cout"), 4, ["Unknown metric: word_cout", "'word_count'"]),
        (YAML.replace("threshold: 3", "threshold: [1]"), 4, ["Invalid threshold", ": word_count"]),
        (YAML.replace("title: Count", "titel: Count"), 1, ["titel"]),
        (YAML + "  dispute_window_hours: 169\n", 7, ["dispute_window_hours"]),
        ("title: [", 1, []),
        ("title: a\ntitle: b\n", 2, ["title"]),
        ("", None, []),
        ("- a\n", 1, []),
        (
            YAML.replace("  criteria:", "  custom_metrics: [{metrics: [mine], code_file: mine.py}]\n  criteria:"),
            3,
            ["code_file", "`code`"],
        ),
    ],
)
def test_bad_work_is_refused_with_its_line(stall: Stall, text: str, line: int | None, values: list[str]) -> None:
    error = error_of(stall.run, "work", "submit", put("work.yaml", text))
    places = {one["where"] for one in error["problems"]}
    assert ("work.yaml" if line is None else f"work.yaml:{line}") in places
    shown = json.dumps(error)
    assert all(value in shown for value in values), shown
    assert not Path("meruit-data").exists()


@pytest.mark.parametrize(
    ("change", "code", "name"),
    [
        (
            {"success_criteria": {"criteria": [{**WORK["success_criteria"]["criteria"][0], **EASY}]}},
            "null_agent_passes",
            "accept_null_agent",
        ),
        ({"terms": {"cpc_rate": 1, "rules": ["cpc", "cap_all"]}}, "unknown_name", " ledger rules`"),
        ({"terms": {"cpc_rate": "8589934592"}, "budget": {}}, "too_much", ""),
        ({"terms": {"cpc_rate": 1, "rules": ["cpc", "claimed_only", "cpa_bonus"]}}, "unknown_rule", "claimed_only"),
        ({"terms": {"cpc_rate": 1}, "budget": {"max_cpc": "0.5"}}, "bad_document", "budget.max_cpc"),
        ({"description": f"say {CANARY}"}, "canary_shown", ""),
        ({"input": {"parts": [{"reference": "x"}]}}, "bad_document", "private"),
        ({"title": " "}, "bad_document", "title"),
    ],
)
def test_work_that_could_not_be_awarded_is_refused(stall: Stall, change: dict[str, Any], code: str, name: str) -> None:
    error = error_of(stall.run, "work", "submit", put("work.json", {**WORK, **change}))
    assert (error["code"], name in json.dumps(error)) == (code, True)


def test_a_null_agent_may_pass_if_the_author_says_why(stall: Stall) -> None:
    easy = {"criteria": [{**WORK["success_criteria"]["criteria"][0], **EASY}]}
    work = {**WORK, "success_criteria": easy, "accept_null_agent": "silence is golden"}
    ended = stall.run("work", "submit", put("work.json", work))
    assert (ended.returncode, "silence is golden" in ended.stderr) == (0, True)
    assert "null agent  silence is golden" in stall.run("work", "show", ended.stdout.strip()).stdout


BROKEN = """\
title: Count
success_criteria:
  criteria:
    - {metric: word_count, metric_type: count, comparison: gte, threshold: 3}
    - metric: accuracy
      metric_type: accuracy
      comparison: gt
      threshold: 1
      penalty: 0.01
terms:
  cpc_rate: 0.05
"""


def test_criteria_that_are_proven_wrong_are_refused_with_their_lines(stall: Stall) -> None:
    error = error_of(stall.run, "work", "submit", put("work.yaml", BROKEN))
    assert error["code"] == "broken_criteria"
    assert {(one["where"], one["path"], one["code"]) for one in error["problems"]} == {
        ("work.yaml:5", "success_criteria.criteria[1]", "never_met"),
        ("work.yaml:5", "success_criteria.criteria[1]", "missing_input"),
    }
    assert json.loads(stall.run("work", "list", "--json").stdout)["works"] == []


def test_a_proven_error_is_published_when_its_code_is_accepted(stall: Stall) -> None:
    file = put("work.yaml", BROKEN + "accept_findings: [never_met]\n")
    (problem,) = error_of(stall.run, "work", "submit", file)["problems"]
    assert problem["code"] == "missing_input"
    ended = stall.run("work", "submit", file, "--accept-finding", "missing_input")
    assert (ended.returncode, "missing_input" in ended.stderr) == (0, True)
    work = ended.stdout.strip()
    assert "accepted    never_met, missing_input" in stall.run("work", "show", work).stdout
    shown = json.loads(stall.run("work", "show", work, "--json").stdout)
    assert shown["accept_findings"] == ["never_met", "missing_input"]


def test_an_accepted_finding_is_named_by_its_code(stall: Stall) -> None:
    file = put("work.yaml", BROKEN)
    assert error_of(stall.run, "work", "submit", file, "--accept-finding", "Never met!")["code"] == "usage"


def test_a_pasted_criteria_file_keeps_its_lines(stall: Stall) -> None:
    text = (
        "title: Count\nsuccess_criteria:\n  success_criteria:\n    criteria:\n"
        "      - {metric: word_count, metric_type: count, comparison: gte, threshold: 0}\n"
    )
    error = error_of(stall.run, "work", "submit", put("work.yaml", text))
    found = {one["code"]: one["where"] for one in error["problems"]}
    assert found == {"never_fails": "work.yaml:5", "null_agent_passes": "work.yaml:3"}


def test_a_missing_file_is_named(run: Run) -> None:
    error = error_of(run, "work", "submit", "no.yaml")
    assert (error["code"], error["where"]) == ("unreadable_file", "no.yaml")


def test_stdin_is_read_for_one_thing(run: Run) -> None:
    assert error_of(run, "work", "submit", "-", "--config", "-")["code"] == "usage"


@pytest.mark.parametrize("tenant", ["Acme", "", "a b"])
def test_a_tenant_has_a_plain_name(run: Run, tenant: str) -> None:
    assert repr(tenant) in error_of(run, "work", "submit", put("work.yaml", YAML), "--tenant", tenant)["message"]


def test_pages_of_work_go_on(stall: Stall) -> None:
    ids = [stall.submit() for _ in range(3)]
    page = json.loads(stall.run("work", "list", "--limit", "2", "--json").stdout)
    assert [one["id"] for one in page["works"]] == ids[:0:-1]
    ended = stall.run("work", "list", "--before", str(page["next"]))
    assert ended.stdout.splitlines()[1].split()[0] == ids[0]
    assert "--before" in stall.run("work", "list", "--limit", "1").stderr
    assert json.loads(stall.run("work", "list", "--tenant", "other", "--json").stdout) == {"works": [], "next": None}


@pytest.mark.golden
def test_work_reads_as_recorded(stall: Stall) -> None:
    names = [stall.submit(), stall.submit({"title": "x", "impossible": True})]
    shown = session_of(stall.run, *(("work", "show", name) for name in names))
    assert CANARY not in shown
    check_golden("cli/work_show", shown)


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


def test_without_records_nothing_is_listed_or_created(run: Run) -> None:
    assert error_of(run, "work", "list")["code"] == "store_error"
    assert not Path("meruit-data").exists()
