"""`meruit ledger`: balances, statements, the proof of the books, the rules of a bill."""

import csv
import io
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from tests.cli.refusals import error_of
from tests.cli.trade import BAD, WORK, Clock, Stall

from meruit.cli.commands.ledger import COLUMNS, FORMULA, escape_formula
from meruit.registry import settlement_rules

Run = Callable[..., subprocess.CompletedProcess[str]]


def statement(stall: Stall, account: str, *options: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(stall.run("ledger", "statement", account, *options, "--json").stdout)
    return found


# Balances.


def test_balances_sum_to_zero_with_every_escrow_shown(stall: Stall) -> None:
    paid, waiting = stall.settled(), stall.held()
    told = stall.run("ledger", "balances").stdout.splitlines()
    assert told[0].split() == ["account", "currency", "balance"]
    assert told[-1].split() == ["escrow", "USD", "0.09"]
    found = json.loads(stall.run("ledger", "balances", "--escrows", "--json").stdout)["balances"]
    by_account = {one["account"]: one["balance"] for one in found}
    assert (by_account[f"escrow:{paid}"], by_account[f"escrow:{waiting}"]) == ("0", "0.09")
    assert sum(map(Decimal, by_account.values())) == 0


def test_currencies_are_kept_apart(stall: Stall) -> None:
    stall.settled()
    stall.settled({**WORK, "terms": {"cpc_rate": 3, "currency": "EUR"}})
    found = json.loads(stall.run("ledger", "balances", "--json").stdout)["balances"]
    assert {(one["account"], one["currency"]) for one in found} >= {("agent:ada", "EUR"), ("agent:ada", "USD")}
    assert statement(stall, "agent:ada", "--currency", "EUR")["closing"] == "3.04"
    assert statement(stall, "agent:ada")["closing"] == "0.0765"


# Statements.


def test_a_statement_tells_how_the_balance_came_about(stall: Stall) -> None:
    contract = stall.settled()
    assert stall.run("contract", "reverse", contract, "--reason", "r").returncode == 0
    found = statement(stall, "agent:ada")
    assert [(line["operation"], line["amount"], line["balance"]) for line in found["lines"]] == [
        ("settle", "0.0765", "0.0765"),
        ("reverse", "-0.0765", "0"),
    ]
    assert (found["opening"], found["closing"], found["from"], found["to"]) == ("0", "0", None, None)
    told = stall.run("ledger", "statement", "agent:ada").stdout
    assert told.startswith("agent:ada in USD: 0 before\n")
    assert f"{contract}  reverse  -0.0765  0\n" in told
    assert told.endswith("agent:ada in USD: 0 after\n")


def test_a_spreadsheet_gets_the_same_lines_as_a_program(stall: Stall) -> None:
    work = stall.submit({**WORK, "consumer_id": 'a "b", c'})
    assert stall.complete(stall.award(work)).returncode == 0
    assert stall.complete(stall.award(work, "bob"), BAD).returncode == 1
    account = 'consumer:a "b", c'
    ended = stall.run("ledger", "statement", account, "--csv")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(",".join(COLUMNS) + "\r\n")
    assert ended.stdout.endswith("\r\n")
    assert ended.stdout.count("\r\n") == ended.stdout.count("\n")
    rows = [*csv.DictReader(io.StringIO(ended.stdout, newline=""))]
    found = statement(stall, account)
    same = {"account": account, "currency": "USD"}
    assert rows == [{**line, "leaf": str(line["leaf"]), **same} for line in found["lines"]]
    assert sum(Decimal(row["amount"]) for row in rows) == Decimal(found["closing"])


@pytest.mark.parametrize("start", FORMULA)
def test_no_name_is_a_formula_to_a_spreadsheet(start: str) -> None:
    assert escape_formula(f"{start}1+1") == f"'{start}1+1"


def test_usual_names_stay_as_they_are(stall: Stall) -> None:
    stall.settled(agent="=cmd|' /C calc'!A0")
    ended = stall.run("ledger", "statement", "agent:=cmd|' /C calc'!A0", "--csv")
    assert ",agent:=cmd|' /C calc'!A0,USD," in ended.stdout
    assert escape_formula("platform") == "platform"


def test_a_period_opens_with_what_was_there(stall: Stall, clock: Clock) -> None:
    stall.settled()
    clock.forward(days=1)
    stall.settled()
    both = ("--from", "2026-03-02", "--to", "2026-03-03")
    found = statement(stall, "agent:ada", *both)
    assert (found["opening"], found["closing"], len(found["lines"])) == ("0.0765", "0.153", 1)
    assert (found["from"], found["to"]) == ("2026-03-02T00:00:00Z", "2026-03-03T00:00:00Z")
    first = statement(stall, "agent:ada", "--to", "2026-03-02T12:00:00Z")
    assert (first["closing"], len(first["lines"])) == ("0.0765", 1)
    zoned = statement(stall, "agent:ada", "--from", "2026-03-02T14:00:00+02:00")
    assert (zoned["opening"], len(zoned["lines"])) == ("0.0765", 1)
    assert statement(stall, "agent:ada", "--from", "2026-03-02T12:00:00.000001z")["lines"] == []


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (("--from", "yesterday"), "'yesterday'"),
        (("--from", "2026-02-30"), "'2026-02-30'"),
        (("--from", "2026-03-01T12:00:00"), "'2026-03-01T12:00:00'"),
        (("--from", "20260301"), "'20260301'"),
        (("--to", "0001-01-01T00:00:00+14:00"), "'0001-01-01T00:00:00+14:00'"),
        (("--from", "2026-03-02", "--to", "2026-03-02"), "--to"),
        (("--currency", "usd"), "'USD'"),
        (("--currency", ""), "''"),
        (("--csv",), "--csv"),
    ],
)
def test_a_bad_statement_is_refused(run: Run, options: tuple[str, ...], name: str) -> None:
    error = error_of(run, "ledger", "statement", "platform", *options)
    assert (error["code"], name in error["message"]) == ("usage", True)


def test_an_account_without_transactions_is_empty(stall: Stall) -> None:
    stall.settled()
    ended = stall.run("ledger", "statement", "agent:adda", "--csv")
    assert (ended.returncode, ended.stdout) == (0, ",".join(COLUMNS) + "\r\n")
    assert ended.stderr.startswith("note: ")
    assert "agent:adda" in ended.stderr


def test_a_statement_that_is_cut_says_so(stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    stall.settled()
    monkeypatch.setattr("meruit.contracts.store.ledger.MAX_LINES", 1)
    monkeypatch.setattr("meruit.contracts.records.MAX_LINES", 1)
    assert " 1 " in stall.run("ledger", "statement", "consumer:buyer").stderr


# The proof.


def test_sound_books_are_said_to_be_sound(stall: Stall) -> None:
    stall.settled()
    stall.held()
    ended = stall.run("ledger", "check")
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)
    found = json.loads(stall.run("ledger", "check", "--json").stdout)
    assert found == {"sound": True, "contracts": 2, "violations": []}


def test_the_books_of_every_tenant_are_checked_unless_one_is_named(stall: Stall) -> None:
    stall.settled()
    work = stall.submit(WORK, "--tenant", "acme")
    stall.award(work, "ada", "--tenant", "acme")
    assert json.loads(stall.run("ledger", "check", "--json").stdout)["contracts"] == 2
    assert json.loads(stall.run("ledger", "check", "--tenant", "acme", "--json").stdout)["contracts"] == 1


@pytest.mark.parametrize(
    ("tampering", "restoring", "rule"),
    [
        (
            "UPDATE balances SET micros = micros + 1 WHERE account = 'agent:ada'",
            "UPDATE balances SET micros = micros - 1 WHERE account = 'agent:ada'",
            "balances_sum_to_zero",
        ),
        (
            "UPDATE contracts SET escrow = 'held'",
            "UPDATE contracts SET escrow = 'paid'",
            "escrow_is_whole_or_empty",
        ),
    ],
)
def test_books_that_were_tampered_with_are_reported(stall: Stall, tampering: str, restoring: str, rule: str) -> None:
    stall.settled()
    _edit(tampering)
    ended = stall.run("ledger", "check")
    assert ended.returncode == 1
    assert f"default: {rule}: " in ended.stdout
    found = json.loads(stall.run("ledger", "check", "--json").stdout)
    assert (found["sound"], found["contracts"], found["violations"][0]["tenant"]) == (False, 1, "default")
    assert rule in {one["what"].partition(":")[0] for one in found["violations"]}
    _edit(restoring)


def _edit(statement: str) -> None:
    connection = sqlite3.connect("meruit-data/meruit.db")
    with connection:
        connection.execute(statement)
    connection.close()


def test_a_deleted_contract_is_missed(run: Run) -> None:
    stall = Stall(run)
    waiting, paid = stall.awarded(), stall.settled()
    _edit("DELETE FROM contracts")
    ended = run("ledger", "check")
    assert ended.returncode == 1
    for contract in (waiting, paid):
        assert re.search(rf"^default: transfers_have_grounds: .*{contract}", ended.stdout, re.MULTILINE)


# The rules.


def test_every_rule_is_listed_with_what_it_does(run: Run) -> None:
    heading, *rows = run("ledger", "rules").stdout.splitlines()
    assert heading.split() == ["rule", "what", "it", "does"]
    assert [row.split()[0] for row in rows] == settlement_rules.names()
    found = json.loads(run("ledger", "rules", "--json").stdout)
    assert {"name": "cpa_bonus", "summary": "Each met criterion earns its bonus."} in found
