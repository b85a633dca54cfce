"""`meruit ledger`: balances, statements, the proof of the books, the rules of a bill."""

import csv
import io
import json
import re
import sqlite3
import subprocess
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from openpyxl import load_workbook
from tests.cli.refusals import error_of
from tests.cli.trade import BAD, WORK, Clock, Stall, with_terms

from meruit.contracts.list_csv import EARNINGS_HEADINGS, STATEMENT_HEADINGS
from meruit.registry import settlement_rules

Run = Callable[..., subprocess.CompletedProcess[str]]


def statement(stall: Stall, account: str, *options: str) -> dict[str, Any]:
    """The only statement of an account."""
    found: dict[str, Any] = json.loads(stall.run("ledger", "statement", account, *options, "--json").stdout)
    (only,) = found.pop("statements")
    return {**found, **only}


def rows_of(text: str) -> list[dict[str, str]]:
    return [*csv.DictReader(io.StringIO(text, newline=""))]


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
    every = json.loads(stall.run("ledger", "statement", "agent:ada", "--json").stdout)["statements"]
    assert [(one["currency"], one["closing"]) for one in every] == [("EUR", "3.04"), ("USD", "0.0765")]
    told = stall.run("ledger", "statement", "agent:ada").stdout
    assert "agent:ada in EUR: 3.04 after\n" in told
    assert "agent:ada in USD: 0.0765 after\n" in told


def test_balances_are_written_as_csv(stall: Stall) -> None:
    stall.settled()
    rows = rows_of(stall.run("ledger", "balances", "--csv").stdout)
    assert {row["account"]: row["balance"] for row in rows} == stall.balances()
    assert stall.balances()["consumer:buyer"].startswith("-")


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
    assert re.search(rf"{contract}  reverse  -0.0765  0 +consumer:buyer  {WORK['title']}\n", told)
    assert told.endswith("agent:ada in USD: 0 after\n")


def test_a_spreadsheet_gets_the_same_lines_as_a_program(stall: Stall) -> None:
    work = stall.submit({**WORK, "consumer_id": 'a "b", c'})
    assert stall.complete(stall.award(work)).returncode == 0
    assert stall.complete(stall.award(work, "bob"), BAD).returncode == 1
    account = 'consumer:a "b", c'
    ended = stall.run("ledger", "statement", account, "--csv")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(",".join(STATEMENT_HEADINGS) + "\r\n")
    assert ended.stdout.endswith("\r\n")
    assert ended.stdout.count("\r\n") == ended.stdout.count("\n")
    opening, *rows, total = rows_of(ended.stdout)
    found = statement(stall, account)
    same = {"record": "line", "account": account, "currency": "USD"}
    lines = [{**line, "leaf": str(line["leaf"]), **same} for line in found["lines"]]
    assert [{**row, "at": row["at"].replace(".000000", "")} for row in rows] == lines
    assert (opening["record"], opening["balance"]) == ("opening", "0")
    assert (total["record"], total["balance"]) == ("total", found["closing"])
    for part in ("gross", "fee", "net", "amount"):
        assert sum(Decimal(row[part]) for row in rows) == Decimal(total[part])


def test_a_statement_names_title_counterparty_gross_fee_and_net(stall: Stall) -> None:
    contract = stall.settled()
    assert stall.run("contract", "reverse", contract, "--reason", "r").returncode == 0
    paid, back = statement(stall, "agent:ada")["lines"]
    assert (paid["title"], paid["counterparty"]) == (WORK["title"], "consumer:buyer")
    assert (paid["gross"], paid["fee"], paid["net"], paid["amount"]) == ("0.09", "0.0135", "0.0765", "0.0765")
    assert (back["gross"], back["fee"], back["net"]) == ("-0.09", "-0.0135", "-0.0765")
    (held,) = statement(stall, "consumer:buyer")["lines"]
    assert (held["operation"], held["counterparty"], held["gross"], held["amount"]) == (
        "hold",
        "agent:ada",
        "0",
        "-0.09",
    )


def test_no_name_is_a_formula_to_a_spreadsheet(stall: Stall) -> None:
    stall.settled({**WORK, "title": "=cmd|' /C calc'!A0"}, agent="@SUM(1)")
    (_, line, _) = rows_of(stall.run("ledger", "statement", "consumer:buyer", "--csv").stdout)[:3]
    assert (line["title"], line["counterparty"]) == ("'=cmd|' /C calc'!A0", "agent:@SUM(1)")
    assert line["amount"] == "-0.09"


def test_csv_goes_to_a_file_with_a_mark_for_excel_if_asked(stall: Stall) -> None:
    stall.settled()
    ended = stall.run("ledger", "statement", "platform", "--csv", "out.csv", "--bom")
    assert (ended.returncode, ended.stdout, "out.csv" in ended.stderr) == (0, "", True)
    content = Path("out.csv").read_bytes()
    assert content.startswith(b"\xef\xbb\xbfrecord,")
    assert content[3:].decode() == stall.run("ledger", "statement", "platform", "--csv").stdout


def test_a_statement_is_written_as_xlsx_with_the_values_of_csv(stall: Stall) -> None:
    stall.settled({**WORK, "title": "=cmd|' /C calc'!A0"})
    ended = stall.run("ledger", "statement", "platform", "--xlsx", "out.xlsx")
    assert (ended.returncode, ended.stdout, "out.xlsx" in ended.stderr) == (0, "", True)
    headings, *rows = load_workbook("out.xlsx").worksheets[0].iter_rows(values_only=True)
    assert headings == STATEMENT_HEADINGS
    written = [dict(zip(STATEMENT_HEADINGS, row, strict=True)) for row in rows]
    expected = rows_of(stall.run("ledger", "statement", "platform", "--csv").stdout)
    assert [(row["record"], Decimal(str(row["balance"]))) for row in written] == [
        (row["record"], Decimal(row["balance"])) for row in expected
    ]
    assert written[1]["title"] == "=cmd|' /C calc'!A0"


@pytest.mark.parametrize(
    "options", [("--csv", "a", "--xlsx", "b"), ("--xlsx", "b", "--json"), ("--xlsx", "-"), ("--xlsx", "b", "--bom")]
)
def test_a_workbook_needs_a_file_and_no_other_format(run: Run, options: tuple[str, ...]) -> None:
    ended = run("ledger", "balances", *options)
    assert (ended.returncode, Path("b").exists()) == (2, False)


def test_long_statements_are_read_in_pages(stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        stall.settled()
    whole = stall.run("ledger", "statement", "consumer:buyer", "--csv").stdout
    monkeypatch.setattr("meruit.contracts.store.ledger.PAGE", 2)
    assert stall.run("ledger", "statement", "consumer:buyer", "--csv").stdout == whole
    assert len(rows_of(whole)) == 2 + 3


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
        (("--csv", "-"), "--csv"),
        (("--bom",), "--bom"),
    ],
)
def test_a_bad_statement_is_refused(run: Run, options: tuple[str, ...], name: str) -> None:
    error = error_of(run, "ledger", "statement", "platform", *options)
    assert (error["code"], name in error["message"]) == ("usage", True)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("agent:adda", "agent:ada"), ("ada", "agent:ada"), ("agent:buyer", "consumer:buyer"), ("plattform", "platform")],
)
def test_an_unknown_account_is_refused_with_the_nearest(stall: Stall, typed: str, meant: str) -> None:
    stall.settled()
    for form in ("--json", "--csv"):
        ended = stall.run("ledger", "statement", typed, form)
        assert (ended.returncode, ended.stdout) == (2, "")
        assert repr(meant) in ended.stderr
    assert json.loads(stall.run("ledger", "statement", typed, "--json").stderr)["error"]["code"] == "unknown_account"


def test_an_account_of_another_tenant_is_unknown(stall: Stall) -> None:
    stall.settled()
    ended = stall.run("ledger", "statement", "agent:ada", "--tenant", "acme")
    assert (ended.returncode, "did you mean" in ended.stderr) == (2, False)


@pytest.mark.parametrize("account", ["agent:eve", "platform"])
def test_a_known_account_without_transactions_is_empty(stall: Stall, account: str) -> None:
    contract = stall.held()
    ended = stall.run("ledger", "statement", account, "--csv")
    assert (ended.returncode, ended.stdout) == (0, ",".join(STATEMENT_HEADINGS) + "\r\n")
    assert ended.stderr.startswith(f"note: {account} ")
    assert statement(stall, f"escrow:{contract}")["closing"] == "0.09"


def test_a_currency_that_the_account_lacks_is_zero_and_said(stall: Stall) -> None:
    stall.settled()
    assert statement(stall, "agent:ada", "--currency", "EUR")["closing"] == "0"
    assert "USD" in stall.run("ledger", "statement", "agent:ada", "--currency", "EUR").stderr


def test_a_missing_account_is_asked_for(run: Run) -> None:
    ended = run("ledger", "statement", "--csv", "agent:ada")
    assert (ended.returncode, "--csv" in ended.stderr) == (2, True)
    assert run("ledger", "statement").returncode == 2


# Earnings.


def earnings(stall: Stall, *options: str) -> list[tuple[str, ...]]:
    found = json.loads(stall.run("ledger", "earnings", *options, "--json").stdout)["earnings"]
    return [(one["day"], one["provider_id"], one["agent_id"], one["currency"], one["net"]) for one in found]


def test_earnings_are_summed_by_day_agent_and_provider(stall: Stall, clock: Clock) -> None:
    for agent in ("ada", "ada", "bob"):
        assert stall.complete(stall.award(stall.submit(), agent, "--provider-id", "acme")).returncode == 0
    clock.forward(days=1)
    contract = stall.settled()
    assert earnings(stall) == [
        ("2026-03-01", "acme", "ada", "USD", "0.153"),
        ("2026-03-01", "acme", "bob", "USD", "0.0765"),
        ("2026-03-02", "ada", "ada", "USD", "0.0765"),
    ]
    assert earnings(stall, "--provider-id", "acme", "--agent-id", "bob") == [
        ("2026-03-01", "acme", "bob", "USD", "0.0765")
    ]
    assert earnings(stall, "--provider-id", "ada") == earnings(stall, "--since", "2026-03-02")
    assert earnings(stall, "--until", "2026-03-01") == []
    clock.forward(days=1)
    assert stall.run("contract", "reverse", contract, "--reason", "r").returncode == 0
    report = json.loads(stall.run("ledger", "earnings", "--agent-id", "ada", "--json").stdout)
    last = report["earnings"][-1]
    assert (last["day"], last["settlements"], last["reversals"]) == ("2026-03-03", 0, 1)
    assert (last["gross"], last["fee"], last["net"], last["reversed"]) == ("-0.09", "-0.0135", "-0.0765", "0.0765")
    (total,) = report["totals"]
    assert total["net"] == statement(stall, "agent:ada")["closing"]


def test_earnings_of_several_currencies_are_not_mixed(stall: Stall) -> None:
    stall.settled()
    stall.settled({**WORK, "terms": {"cpc_rate": 3, "currency": "EUR"}})
    *days, euros, dollars = rows_of(stall.run("ledger", "earnings", "--csv").stdout)
    assert {row["record"] for row in days} == {"day"}
    assert [(row["record"], row["currency"], row["net"]) for row in (euros, dollars)] == [
        ("total", "EUR", "3.04"),
        ("total", "USD", "0.0765"),
    ]
    assert len(earnings(stall, "--currency", "EUR")) == 1
    told = stall.run("ledger", "earnings").stdout.splitlines()
    assert told[-1].split() == ["total", "USD", "0.09", "0.0135", "0.0765"]


def test_work_that_earned_nothing_is_counted_with_nothing(stall: Stall) -> None:
    nothing = with_terms(cpc_rate=0, bonus_on_failure="none")
    assert stall.complete(stall.awarded(nothing), BAD).returncode == 1
    (row, _) = rows_of(stall.run("ledger", "earnings", "--csv").stdout)
    assert (row["settlements"], row["gross"], row["net"]) == ("1", "0", "0")


def test_no_earnings_are_an_empty_table(stall: Stall) -> None:
    stall.awarded()
    assert stall.run("ledger", "earnings", "--csv").stdout == ",".join(EARNINGS_HEADINGS) + "\r\n"
    assert json.loads(stall.run("ledger", "earnings", "--json").stdout) == {"earnings": [], "totals": []}


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


def test_a_changed_verdict_is_found(stall: Stall) -> None:
    stall.settled()
    checked = json.loads(stall.run("audit", "check", "--json").stdout)
    assert (checked["problems"], checked["size"] > 3, checked["rows"] > 3) == ([], True, True)
    _edit("UPDATE verdicts SET verdict = 'fail'")
    for command in (("audit", "check"), ("ledger", "check")):
        ended = stall.run(*command)
        assert ended.returncode == 1
        assert "row verdicts default/" in ended.stdout
    problems = json.loads(stall.run("audit", "check", "--json").stdout)["problems"]
    assert [(one["code"], one["where"].split()[0]) for one in problems] == [("row", "outcomes"), ("row", "verdicts")]
    _edit("UPDATE verdicts SET verdict = 'pass'")
    ended = stall.run("audit", "check")
    assert (ended.returncode, ended.stdout.count("\n")) == (0, 1)


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
