"""`meruit holds`: contracts that wait for an operator, and how they end."""

import csv
import io
import json
import subprocess
from collections.abc import Callable

import pytest
from tests.cli.refusals import error_of
from tests.cli.trade import WORK, Stall

Run = Callable[..., subprocess.CompletedProcess[str]]


def test_what_is_held_is_listed_with_the_reason(stall: Stall) -> None:
    stall.settled()
    first, second = stall.held(), stall.held("mallory")
    heading, *rows = stall.run("holds", "list").stdout.splitlines()
    assert heading.split() == ["contract", "state", "since", "(UTC)", "by", "agent", "amount", "why"]
    assert [row.split()[:2] for row in rows] == [[second, "held"], [first, "held"]]
    assert all("0.09 USD held  governance invalid: canary_leak" in row for row in rows)
    page = json.loads(stall.run("holds", "list", "--limit", "1", "--json").stdout)
    assert [one["id"] for one in page["contracts"]] == [second]
    page = json.loads(stall.run("holds", "list", "--before", str(page["next"]), "--json").stdout)
    assert ([one["id"] for one in page["contracts"]], page["next"]) == ([first], None)


def test_holds_are_filtered_and_written_as_csv(stall: Stall) -> None:
    held, paid = stall.held(), stall.settled()
    stall.held("mallory")
    stall.run("contract", "dispute", paid, "--reason", "=too thin", "--by", "Ann Lee")

    def rows(*options: str) -> list[dict[str, str]]:
        return [*csv.DictReader(io.StringIO(stall.run("holds", "list", *options, "--csv").stdout, newline=""))]

    (dispute, total) = rows("--state", "disputed")
    assert (dispute["contract_id"], dispute["by"], dispute["reason"]) == (paid, "Ann Lee", "'=too thin")
    assert (dispute["title"], dispute["consumer_id"], dispute["net"]) == (WORK["title"], "buyer", "0.0765")
    assert (total["record"], total["held"], total["gross"]) == ("total", "0", "0.09")
    assert [row["contract_id"] for row in rows("--agent-id", "eve", "--state", "held")] == [held, ""]
    assert len(rows()) == 4
    assert rows("--until", "2020-01-01") == []


def test_disputes_are_listed_with_reason_person_and_time(stall: Stall) -> None:
    held, paid = stall.held(), stall.settled()
    stall.run("contract", "dispute", paid, "--reason", "too thin", "--by", "Ann Lee")
    at = {move["operation"]: move["at"] for move in stall.show(paid)["history"]}["dispute"]
    page = json.loads(stall.run("holds", "list", "--json").stdout)["contracts"]
    assert [(one["id"], one["on_hold"]["kind"], one["on_hold"]["by"]) for one in page] == [
        (paid, "disputed", "Ann Lee"),
        (held, "held", None),
    ]
    assert (page[0]["on_hold"]["reason"], page[0]["on_hold"]["since"]) == ("too thin", at)
    assert page[1]["on_hold"]["since"] == page[1]["completed_at"]
    row = stall.run("holds", "list").stdout.splitlines()[1]
    assert [part in row for part in (paid, "disputed", "Ann Lee", "0.09 USD paid", "too thin")] == [True] * 5
    assert stall.show(paid)["on_hold"] == {**page[0]["on_hold"], "reasons": None}


def test_a_hold_shows_what_it_rests_on(stall: Stall) -> None:
    contract = stall.held()
    found = json.loads(stall.run("holds", "show", contract, "--json").stdout)["on_hold"]
    (leak, *_) = [one for one in found["reasons"] if "canary_leak" in one["about"]]
    assert (leak["code"], leak["evidence"]["action"], leak["evidence"]["canaries"]) == (
        *("governance", "invalidate"),
        ["heron-feather-77"],
    )
    shown = stall.run("holds", "show", contract).stdout
    assert "  canaries: heron-feather-77\n" in shown
    assert f"meruit holds release {contract}" in shown


def test_a_dispute_shows_the_money_it_is_about(stall: Stall) -> None:
    contract = stall.settled()
    stall.run("contract", "dispute", contract, "--reason", "too thin", "--by", "Ann Lee")
    (reason,) = json.loads(stall.run("holds", "show", contract, "--json").stdout)["on_hold"]["reasons"]
    assert (reason["code"], reason["message"], reason["about"]) == ("disputed", "too thin", ["Ann Lee"])
    assert (reason["evidence"]["paid"], reason["evidence"]["state_before"]) == ("0.09", "settled")
    shown = stall.run("holds", "show", contract).stdout
    assert "Ann Lee" in shown
    assert f"meruit contract resolve {contract}" in shown
    assert "Ann Lee: too thin" in stall.run("contract", "show", contract).stdout


def test_a_contract_that_nothing_stops_has_no_hold(stall: Stall) -> None:
    assert error_of(stall.run, "holds", "show", stall.settled())["code"] == "not_on_hold"
    assert error_of(stall.run, "holds", "show", "con_x")["code"] == "not_found"


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
