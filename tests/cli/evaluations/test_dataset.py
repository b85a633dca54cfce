"""`meruit dataset`: add, list, show, diff, and judging a version."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Run

CRITERIA = {"criteria": [{"metric": "exact_match", "metric_type": "boolean", "comparison": "eq", "threshold": True}]}
ROWS = [{"id": f"q{n}", "question": "?", "answer": "yes", "made": "yes" if n else "no"} for n in range(5)]
COLUMNS = "id=id,input.question=question,input.reference=answer,output.text=made"
Write = Callable[[str, Any], str]


@pytest.fixture
def added(run: Run, write: Write, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("MERUIT_DATA", raising=False)
    monkeypatch.delenv("MERUIT_DATABASE_URL", raising=False)
    write("criteria.json", CRITERIA)
    write("rows.jsonl", "\n".join(map(json.dumps, ROWS)))
    write("fewer.jsonl", "\n".join(map(json.dumps, ROWS[1:])))
    ended = run("dataset", "add", "qa", "rows.jsonl", "--map", COLUMNS, "--json")
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def test_a_file_becomes_a_version(run: Run, added: Any) -> None:
    assert (added["version"], added["rows"], added["source"]) == (1, 5, "rows.jsonl")
    again = run("dataset", "add", "qa", "rows.jsonl", "--map", COLUMNS)
    assert again.stdout.startswith("qa@1: 5 cases")
    assert run("dataset", "add", "qa", "fewer.jsonl", "--map", COLUMNS).stdout.startswith("qa@2: 4 cases")
    listed = json.loads(run("dataset", "list", "--limit", "1", "--json").stdout)
    assert (listed["datasets"][0]["version"], listed["next"]) == (2, "qa@2")
    assert "qa@1" in run("dataset", "list", "--before", "qa@2").stdout
    shown = json.loads(run("dataset", "show", "qa@1", "--limit", "2", "--after", "1", "--json").stdout)
    assert ([one["id"] for one in shown["cases"]], shown["next"]) == (["q1", "q2"], 3)
    assert "q4" in run("dataset", "show", "qa").stdout
    diff = json.loads(run("dataset", "diff", "qa@1", "qa@2", "--json").stdout)
    assert (diff["removed"], diff["same"]) == (["q0"], 4)
    assert "removed: q0" in run("dataset", "diff", "qa@1", "qa").stdout


def test_a_version_is_judged_like_a_file(run: Run, added: Any) -> None:
    ended = run("eval", "run", "criteria.json", "dataset:qa@1", "--name", "a", "--json")
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found["evaluation"]["dataset_digest"] == added["digest"]
    assert (found["evaluation"]["planned"], found["summary"]["overall"]["passed"]) == (5, 4)
    for arguments in (("dataset:other",), ("dataset:qa", "--map", COLUMNS), ("dataset:qa@2",)):
        ended = run("eval", "run", "criteria.json", *arguments, "--name", "b")
        assert (ended.returncode, ended.stdout) == (2, "")


def test_standard_input_is_read_like_a_file(run: Run, added: Any) -> None:
    ended = run("dataset", "add", "qa", "-", "--map", COLUMNS, stdin="\n".join(map(json.dumps, ROWS)).encode())
    assert ended.stdout.startswith("qa@1: 5 cases"), ended.stderr


def test_what_cannot_be_added_is_exit_code_2(run: Run, added: Any, write: Write) -> None:
    write("twice.jsonl", '{"id": "a"}\n{"id": "a"}')
    write("none.jsonl", "")
    for arguments in (("qa", "twice.jsonl"), ("qa", "none.jsonl"), ("a b", "rows.jsonl"), ("qa", "missing.jsonl")):
        ended = run("dataset", "add", *arguments)
        assert (ended.returncode, ended.stdout) == (2, "")
    for refused in (["show", "other"], ["diff", "qa@1", "qa@9"], ["list", "--before", "qa"]):
        assert run("dataset", *refused).returncode == 2


def test_an_empty_list_says_what_to_do(run: Run, added: Any) -> None:
    assert run("dataset", "list", "--name", "other").stdout == ""
