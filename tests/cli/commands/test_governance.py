"""`meruit governance`: the rules listed, and tried."""

import io
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from meruit.registry import flags

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_rules_lists_every_rule_with_its_action_and_limits(run: Run) -> None:
    ended = run("governance", "rules")
    assert (ended.returncode, ended.stderr) == (0, "")
    heading, *rows = ended.stdout.splitlines()
    assert heading.split()[:3] == ["rule", "action", "limits"]
    assert [row.split()[:2] for row in rows] == [[rule.name, str(rule.action)] for rule in flags]
    assert all(rule.summary in row for rule, row in zip(flags, rows, strict=True))
    assert "start_skew_s 0.25, received_skew_s 5" in ended.stdout


def test_rules_as_json(run: Run) -> None:
    rules = json.loads(run("governance", "rules", "--json").stdout)
    assert [rule["name"] for rule in rules] == flags.names()
    assert next(rule for rule in rules if rule["name"] == "clock_order") == {
        "name": "clock_order",
        "action": "invalidate",
        "limits": {"start_skew_s": 0.25, "received_skew_s": 5.0},
        "summary": flags.get("clock_order").summary,
        "version": "1",
    }


def test_evaluate_prints_a_row_for_each_rule_and_the_totals(run: Run) -> None:
    ended = run("governance", "evaluate", "--outcomes", "300")
    assert ended.returncode == 0
    lines = ended.stdout.splitlines()
    assert lines[0].split()[:2] == ["rule", "action"]
    rules = len(flags.names())
    assert [line.split()[0] for line in lines[1 : rules + 1]] == flags.names()
    assert lines[rules + 2].split()[:2] == ["attack", "tries"]
    assert ("honest" in lines[-2], "cheating" in lines[-1]) == (True, True)
    assert ended.stderr.startswith("note: ")
    assert run("governance", "evaluate", "--outcomes", "300", "--seed", "1").stdout == ended.stdout
    assert run("governance", "evaluate", "--outcomes", "300", "--seed", "2").stdout != ended.stdout


def test_evaluate_as_json_says_nothing_else(run: Run) -> None:
    ended = run("governance", "evaluate", "--outcomes", "120", "--seed", "5", "--json")
    found = json.loads(ended.stdout)
    assert (found["seed"], found["outcomes"], ended.stderr) == (5, 120, "")
    assert [rule["rule"] for rule in found["rules"]] == flags.names()


def test_a_person_sees_how_far_it_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    assert run("governance", "evaluate", "--outcomes", "20").returncode == 0
    assert "simulating" in screen.getvalue()


@pytest.mark.parametrize("outcomes", ["0", "-1", "1000001", "many"])
def test_a_market_has_a_size(run: Run, outcomes: str) -> None:
    ended = run("governance", "evaluate", "--outcomes", outcomes)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "--outcomes" in ended.stderr
