"""`meruit contract rejudge`, and what `show` tells of a contract's past."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import Run

Write = Callable[[str, Any], str]

WORK = """\
title: Count to three
success_criteria:
  criteria:
    - {metric: word_count, metric_type: count, comparison: in_range, threshold: [3, 5], bonus: 0.03}
terms: {cpc_rate: 0.05}
"""


@pytest.fixture
def contract_id(run: Run, write: Write) -> str:
    write("work.yaml", WORK)
    write("out.json", '{"text": "one two three"}')
    work_id = run("work", "submit", "work.yaml").stdout.strip()
    made = run("contract", "award", work_id, "--agent-id", "heron").stdout.strip()
    assert run("contract", "complete", made, "--output", "out.json").returncode == 0
    return str(made)


def test_what_was_taken_back_is_judged_again_and_paid(run: Run, contract_id: str) -> None:
    assert run("contract", "reverse", contract_id, "--reason", "by mistake").returncode == 0
    again = run("contract", "rejudge", contract_id, "--reason", "to be sure", "--json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["outcome"]["version"] == 2
    paid = json.loads(run("contract", "settle", contract_id, "--json").stdout)
    assert (paid["state"], paid["settlement"]["version"]) == ("settled", 2)
    shown = run("contract", "show", contract_id).stdout
    assert "by command line: by mistake" in shown
    told = json.loads(run("contract", "show", contract_id, "--json").stdout)["history"]
    assert [move["operation"] for move in told] == ["award", "complete", "settle", "reverse", "settle"]
    assert run("ledger", "check").returncode == 0


def test_a_reason_is_needed(run: Run, contract_id: str) -> None:
    assert run("contract", "rejudge", contract_id, "--reason", " ").returncode == 2
    assert run("contract", "rejudge", "con_nobody", "--reason", "why").returncode == 2
