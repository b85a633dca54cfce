"""`meruit holds`: contracts that wait for an operator, and how they end."""

import json
import subprocess
from collections.abc import Callable

import pytest
from tests.cli.refusals import error_of
from tests.cli.trade import Stall

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_what_is_held_is_listed_with_the_reason(stall: Stall) -> None:
    stall.settled()
    first, second = stall.held(), stall.held("mallory")
    heading, *rows = stall.run("holds", "list").stdout.splitlines()
    assert heading.split() == ["contract", "completed", "(UTC)", "agent", "held", "why"]
    assert [row.split()[0] for row in rows] == [second, first]
    assert all("0.09 USD  governance invalid: canary_leak" in row for row in rows)
    page = json.loads(stall.run("holds", "list", "--limit", "1", "--json").stdout)
    assert [one["id"] for one in page["contracts"]] == [second]
    page = json.loads(stall.run("holds", "list", "--before", str(page["next"]), "--json").stdout)
    assert ([one["id"] for one in page["contracts"]], page["next"]) == ([first], None)


def test_what_is_released_is_paid_once_by_its_verdict(stall: Stall) -> None:
    contract = stall.held()
    release = ("holds", "release", contract, "--reason", "it wrote the reference itself")
    ended = stall.run(*release)
    assert ended.returncode == 0
    assert "total      0.09    of 0.09 held" in ended.stdout
    assert ended.stdout.endswith(f"{contract} is settled: 0.09 USD paid\n")
    assert stall.run(*release).stdout == ended.stdout
    assert stall.balances()["agent:eve"] == "0.0765"
    shown = stall.show(contract)
    assert (shown["outcome"]["version"], shown["outcome"]["governance"]) == (2, "released")
    assert stall.run("holds", "list").stdout.count("\n") == 1


def test_what_is_voided_goes_back(stall: Stall) -> None:
    contract = stall.held()
    void = ("holds", "void", contract, "--reason", "it copied")
    ended = stall.run(*void)
    assert (ended.returncode, stall.show(contract)["state"]) == (0, "failed")
    assert stall.run(*void).stdout == ended.stdout
    assert stall.balances() == {"consumer:buyer": "0", "escrow": "0"}
    assert error_of(stall.run, "holds", "release", contract, "--reason", "or not")["code"] == "wrong_state"


@pytest.mark.parametrize("command", ["release", "void"])
def test_programs_get_the_contract(stall: Stall, command: str) -> None:
    contract = stall.held()
    found = json.loads(stall.run("holds", command, contract, "--reason", "r", "--json").stdout)
    assert found == {**stall.show(contract), "history": None}


@pytest.mark.parametrize("command", ["release", "void"])
def test_nothing_is_decided_without_a_reason_or_a_contract(stall: Stall, command: str) -> None:
    contract = stall.settled()
    for reason in ((), ("--reason", " ")):
        error = error_of(stall.run, "holds", command, contract, *reason)
        assert (error["code"], "--reason" in error["message"]) == ("usage", True)
    assert error_of(stall.run, "holds", command, contract, "--reason", "r")["code"] == "wrong_state"
    error = error_of(stall.run, "holds", command, "con_x", "--reason", "r")
    assert (error["code"], "'con_x'" in error["message"]) == ("not_found", True)
