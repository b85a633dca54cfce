"""`meruit contract`: from the award to the money, and back."""

import csv
import io
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.refusals import error_of, session_of
from tests.cli.trade import BAD, GOOD, LEAKED, WORK, Clock, Stall, put, with_terms
from tests.golden import check_golden

Run = Callable[..., subprocess.CompletedProcess[str]]


# The way that work is meant to go.


def test_good_work_is_verified_settled_and_paid(stall: Stall) -> None:
    contract = stall.awarded()
    assert stall.balances() == {"consumer:buyer": "-0.09", "escrow": "0.09"}
    assert stall.run("contract", "start", contract).stdout == f"{contract} is executing: 0.09 USD held\n"
    ended = stall.complete(contract)
    assert (ended.returncode, ended.stderr) == (0, "")
    shown = stall.show(contract)
    lines = shown["settlement"]["lines"]
    assert [(one["rule"], one["amount"]) for one in lines] == [
        ("cpc", "0.05"),
        ("cpa_bonus", "0.03"),
        ("cpa_bonus", "0.02"),
        ("cap", "-0.01"),
    ]
    assert (shown["state"], shown["outcome"]["verdict"], shown["verification"]["success"]) == ("settled", "pass", True)
    assert stall.balances() == {
        "agent:ada": "0.0765",
        "consumer:buyer": "-0.09",
        "platform": "0.0135",
        "escrow": "0",
    }


@pytest.mark.golden
def test_a_settled_contract_reads_as_recorded(stall: Stall) -> None:
    contract = stall.awarded()
    stall.complete(contract)
    leaked = stall.awarded()
    stall.complete(leaked, LEAKED)
    shows = [("contract", "show", one) for one in (contract, leaked)]
    check_golden("cli/contract_show", session_of(stall.run, *shows, ("contract", "list"), ("holds", "list")))


def test_bad_work_costs_a_penalty_and_the_rest_goes_back(stall: Stall) -> None:
    contract = stall.awarded()
    assert stall.complete(contract, BAD).returncode == 1
    settlement = stall.show(contract)["settlement"]
    assert ("cpa_penalty", "-0.01") in [(one["rule"], one["amount"]) for one in settlement["lines"]]
    assert settlement["released"] == "0.02"
    assert stall.balances()["agent:ada"] == "0.0595"


def test_implausible_work_is_held(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, LEAKED)
    assert ended.returncode == 3
    shown = stall.show(contract)
    assert (shown["state"], shown["hold"]) == ("verification_pending", "0.09")
    assert "canary_leak" in shown["hold_reason"]
    assert " holds release`" in ended.stderr
    assert stall.balances() == {"consumer:buyer": "-0.09", "escrow": "0.09"}
    assert error_of(stall.run, "contract", "settle", contract)["code"] == "on_hold"


def test_a_claim_that_the_measurement_contradicts_is_held(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, GOOD, "--claims", put("claims.json", {"word_count": 400}))
    assert (ended.returncode, "claimed_vs_measured" in ended.stdout) == (3, True)


def test_a_contract_paid_on_request_waits_for_the_request(stall: Stall) -> None:
    contract = stall.awarded(with_terms(settle="on_request"))
    ended = stall.complete(contract)
    assert (ended.returncode, " contract settle`" in ended.stderr) == (0, True)
    assert stall.show(contract)["state"] == "verified"
    first, second = (stall.run("contract", "settle", contract) for _ in range(2))
    assert first.stdout == second.stdout
    assert stall.show(contract)["state"] == "settled"
    failed = stall.awarded(with_terms(settle="on_request"))
    ended = stall.complete(failed, BAD)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert stall.run("contract", "settle", failed).returncode == 0


def test_an_agent_may_be_paid_less_than_the_work_offers(stall: Stall) -> None:
    work = stall.submit()
    contract = stall.award(work, "ada", "--cpc-rate", "0.025")
    assert stall.show(contract)["hold"] == "0.065"
    error = error_of(stall.run, "contract", "award", work, "--agent-id", "ada", "--cpc-rate", "1")
    assert (error["code"], "0.05" in error["message"]) == ("above_budget", True)
    error = error_of(stall.run, "contract", "award", stall.submit({"title": "x"}), "--agent-id", "ada")
    assert (error["code"], "cpc_rate" in error["message"]) == ("no_rate", True)


def test_criteria_without_their_metadata_are_not_guessed(stall: Stall) -> None:
    quick = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 100, "bonus": 0.01}
    criteria = {"criteria": [*WORK["success_criteria"]["criteria"], quick]}
    work = stall.submit({**WORK, "success_criteria": criteria})
    timed = stall.complete(stall.award(work), GOOD, "--metadata", put("meta.json", {"duration_ms": 80}))
    assert timed.returncode == 0
    untimed = stall.award(work)
    assert stall.complete(untimed, {"text": GOOD["text"] + " again"}).returncode == 3
    assert stall.show(untimed)["outcome"]["verdict"] == "inconclusive"


# Once is once.


def test_the_same_output_again_is_told_what_the_first_was(stall: Stall) -> None:
    contract = stall.settled()
    before = stall.balances()
    again = stall.complete(contract)
    assert (again.returncode, stall.balances()) == (0, before)
    assert stall.complete(contract).stdout == again.stdout


def test_another_output_after_settlement_is_refused(stall: Stall) -> None:
    contract = stall.settled()
    before = stall.balances()
    put("other.json", BAD)
    assert (
        error_of(stall.run, "contract", "complete", contract, "--output", "other.json")["code"] == "already_completed"
    )
    assert stall.balances() == before


@pytest.mark.parametrize(
    "command",
    [
        ("start",),
        ("void", "--reason", "r"),
        ("resolve", "--decision", "void", "--reason", "r"),
    ],
)
def test_a_transition_from_the_wrong_state_changes_nothing(stall: Stall, command: tuple[str, ...]) -> None:
    contract = stall.settled()
    before = stall.show(contract)
    error = error_of(stall.run, "contract", command[0], contract, *command[1:])
    assert (error["code"], contract in error["message"]) == ("wrong_state", True)
    assert stall.show(contract) == before


@pytest.mark.parametrize(
    "command",
    [
        ("start",),
        ("settle",),
        ("complete", "--output", "output.json"),
        ("dispute", "--reason", "r"),
        ("resolve", "--decision", "uphold", "--reason", "r"),
        ("reverse", "--reason", "r"),
        ("void", "--reason", "r"),
        ("show",),
    ],
)
def test_an_unknown_contract_is_said_to_be_unknown(stall: Stall, command: tuple[str, ...]) -> None:
    stall.submit()
    put("output.json", GOOD)
    ended = stall.run("contract", command[0], "con_x", *command[1:])
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "error: no contract 'con_x'\n")


def test_another_tenants_contract_is_unknown(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.run("contract", "start", contract, "--tenant", "other")
    assert (ended.returncode, "no contract" in ended.stderr) == (2, True)


# Disputes, and what is taken back.


@pytest.mark.parametrize(
    ("decision", "state", "agent"),
    [("uphold", "settled", "0.0765"), ("reverse", "verification_pending", "0"), ("void", "failed", "0")],
)
def test_a_dispute_ends_one_of_three_ways(stall: Stall, decision: str, state: str, agent: str) -> None:
    contract = stall.settled()
    assert "is disputed: 0.09 USD paid" in stall.run("contract", "dispute", contract, "--reason", "thin").stdout
    resolve = ("contract", "resolve", contract, "--decision", decision, "--reason", "looked")
    ended = stall.run(*resolve)
    assert ended.returncode == 0
    assert stall.run(*resolve).stdout == ended.stdout
    assert (stall.show(contract)["state"], stall.balances()["agent:ada"]) == (state, agent)


def test_a_dispute_is_settled_on_another_amount(stall: Stall) -> None:
    contract = stall.settled()
    stall.run("contract", "dispute", contract, "--reason", "thin", "--by", "Ann Lee")
    resolve = ("contract", "resolve", contract, "--decision", "adjust", "--reason", "half", "--by", "Bo")
    ended = stall.run(*resolve, "--amount", "0.050001", "--currency", "USD")
    assert ended.returncode == 0
    # Half-even: 0.15 of 50,001 millionths is 7,500.15.
    assert stall.balances() == {
        "agent:ada": "0.042501",
        "consumer:buyer": "-0.050001",
        "platform": "0.0075",
        "escrow": "0",
    }
    assert stall.run(*resolve, "--amount", "0.050001").stdout == ended.stdout
    shown = stall.show(contract)
    assert (shown["state"], shown["settlement"]["total"], shown["settlement"]["number"]) == ("settled", "0.050001", 2)
    assert [(line["rule"], line["part"]) for line in shown["settlement"]["lines"]] == [("adjust", "adjustment")]
    assert shown["settlement"]["breakdown"]["adjustment"] == "0.050001"
    people = {move["operation"]: move["by"] for move in shown["history"]}
    assert (people["dispute"], people["resolve"]) == ("Ann Lee", "Bo")
    assert error_of(stall.run, *resolve, "--amount", "0.05")["code"] == "wrong_state"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--amount", "0.090001"), "above_paid"),
        (("--amount", "0.01", "--currency", "EUR"), "wrong_currency"),
        (("--amount", "-1"), "usage"),
        (("--amount", "nan"), "usage"),
        (("--amount", "0.0000001"), "usage"),
        (("--amount", ""), "usage"),
        (("--currency", "USD"), "amount_missing"),
        ((), "amount_missing"),
    ],
)
def test_an_amount_that_cannot_be_settled_on_changes_nothing(stall: Stall, options: tuple[str, ...], code: str) -> None:
    contract = stall.settled()
    stall.run("contract", "dispute", contract, "--reason", "thin")
    before = stall.show(contract)
    resolve = ("contract", "resolve", contract, "--reason", "r", "--decision")
    assert error_of(stall.run, *resolve, "adjust", *options)["code"] == code
    assert error_of(stall.run, *resolve, "void", "--amount", "0.01")["code"] == "amount_unexpected"
    assert stall.show(contract) == before


def test_a_held_contract_is_settled_on_at_most_what_is_held(stall: Stall) -> None:
    contract = stall.held()
    stall.run("contract", "dispute", contract, "--reason", "it is mine")
    resolve = ("contract", "resolve", contract, "--decision", "adjust", "--reason", "agreed", "--amount")
    assert error_of(stall.run, *resolve, "0.090001")["code"] == "above_held"
    assert stall.run(*resolve, "0.09").returncode == 0
    assert (stall.show(contract)["state"], stall.balances()["agent:eve"]) == ("settled", "0.0765")


def test_a_dispute_freezes_what_is_held(stall: Stall) -> None:
    contract = stall.held()
    assert stall.run("contract", "dispute", contract, "--reason", "not so").returncode == 0
    assert (stall.show(contract)["state"], stall.show(contract)["escrow"]) == ("disputed", "frozen")
    resolve = ("contract", "resolve", contract, "--reason", "r", "--decision")
    assert error_of(stall.run, *resolve, "reverse")["code"] == "nothing_paid"
    assert stall.run(*resolve, "void").returncode == 0
    assert stall.show(contract)["state"] == "failed"
    assert stall.balances()["consumer:buyer"] == "0"


def test_a_dispute_comes_in_time_or_not_at_all(stall: Stall, clock: Clock) -> None:
    contract = stall.settled(with_terms(dispute_window_hours=2))
    clock.forward(hours=2, seconds=1)
    error = error_of(stall.run, "contract", "dispute", contract, "--reason", "late")
    assert (error["code"], "2026-03-01T14:00:00" in error["message"]) == ("dispute_window_closed", True)
    clock.forward(seconds=-1)
    assert stall.run("contract", "dispute", contract, "--reason", "late").returncode == 0


def test_a_payment_can_be_reversed_and_the_contract_voided(stall: Stall) -> None:
    contract = stall.settled()
    assert stall.run("contract", "reverse", contract, "--reason", "a mistake").returncode == 0
    shown = stall.show(contract)
    assert (shown["state"], shown["hold"]) == ("verification_pending", "0.09")
    assert "a mistake" in shown["hold_reason"]
    assert error_of(stall.run, "contract", "settle", contract)["code"] == "already_settled"
    assert stall.run("contract", "void", contract, "--reason", "done with it").returncode == 0
    assert stall.balances() == {"agent:ada": "0", "consumer:buyer": "0", "platform": "0", "escrow": "0"}


def test_a_contract_that_has_not_started_can_be_voided(stall: Stall) -> None:
    contract = stall.awarded()
    assert stall.run("contract", "void", contract, "--reason", "changed my mind").returncode == 0
    assert (stall.show(contract)["state"], stall.balances()["consumer:buyer"]) == ("failed", "0")
    complete = ("contract", "complete", contract, "--output", put("out.json", GOOD))
    assert error_of(stall.run, *complete)["code"] == "wrong_state"


def test_what_is_due_expires_and_goes_back(stall: Stall, clock: Clock) -> None:
    work = stall.submit(with_terms(deadline_hours=1))
    late = [stall.award(work, name) for name in ("ada", "bob")]
    assert stall.run("contract", "start", late[1]).returncode == 0
    clock.forward(hours=1, seconds=1)
    intime = stall.award(work)
    refused = stall.complete(late[0])
    assert (refused.returncode, "ran until" in refused.stderr) == (2, True)
    assert stall.run("contract", "expire").stdout == "2 expired\n"
    assert json.loads(stall.run("contract", "expire", "--json").stdout) == {"expired": 0}
    assert [stall.show(one)["state"] for one in (*late, intime)] == ["expired", "expired", "awarded"]


# What is shown.


def test_contracts_are_listed_by_several_things_at_once(stall: Stall) -> None:
    first, second = stall.settled(), stall.held()
    rows = stall.run("contract", "list").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:]] == [second, first]
    assert "settled               pass     0.09 USD" in rows[2]

    def listed(*options: str) -> list[str]:
        page = json.loads(stall.run("contract", "list", *options, "--json").stdout)
        return [one["id"] for one in page["contracts"]]

    assert listed("--agent-id", "ada") == [first]
    assert listed("--state", "verification_pending") == [second]
    assert listed("--work-id", stall.show(first)["work_id"]) == [first]
    assert listed("--consumer-id", "buyer") == [second, first]
    assert listed("--tenant", "other") == []
    page = json.loads(stall.run("contract", "list", "--limit", "1", "--json").stdout)
    assert listed("--before", str(page["next"])) == [first]
    assert "--before" in stall.run("contract", "list", "--limit", "1").stderr
    assert listed("--agent-id", "ada", "--state", "settled", "--since", "2020-01-01") == [first]
    assert listed("--agent-id", "ada", "--state", "failed") == listed("--until", "2020-01-01") == []
    assert listed("--provider-id", "acme") == listed("--domain", "law") == []
    error = error_of(stall.run, "contract", "list", "--since", "2026-02-01", "--until", "2026-01-01")
    assert (error["code"], "--until" in error["message"]) == ("usage", True)


def test_a_list_of_contracts_is_written_as_csv_with_totals(stall: Stall, monkeypatch: pytest.MonkeyPatch) -> None:
    work = {**WORK, "title": "=1+1"}
    paid, euro = stall.settled(work), stall.settled({**work, "terms": {"cpc_rate": 3, "currency": "EUR"}})
    held = stall.held()
    whole = stall.run("contract", "list", "--csv").stdout
    with monkeypatch.context() as small:
        small.setattr("meruit.store.paging.MAX_PAGE", 1)
        assert stall.run("contract", "list", "--csv").stdout == whole
    *rows, euros, dollars = csv.DictReader(io.StringIO(whole, newline=""))
    assert [row["contract_id"] for row in rows] == [held, euro, paid]
    last = rows[-1]
    assert (last["title"], last["gross"], last["fee"], last["net"]) == ("'=1+1", "0.09", "0.0135", "0.0765")
    assert (rows[0]["held"], rows[0]["gross"], rows[0]["verdict"]) == ("0.09", "0", "pass")
    assert (euros["record"], euros["currency"], euros["gross"]) == ("total", "EUR", "3.04")
    assert (dollars["currency"], dollars["held"], dollars["gross"], dollars["net"]) == ("USD", "0.09", "0.09", "0.0765")
    exported = stall.run("outcome", "export", "--csv").stdout
    first, second, third, euros, dollars = csv.DictReader(io.StringIO(exported, newline=""))
    assert [row["record"] for row in (first, euros, dollars)] == ["outcome", "total", "total"]
    assert {first["title"], second["title"], third["title"]} == {"'=1+1", WORK["title"]}
    assert (euros["currency"], euros["gross"], dollars["currency"], dollars["net"]) == ("EUR", "3.04", "USD", "0.0765")
    limited = csv.DictReader(io.StringIO(stall.run("contract", "list", "--csv", "--limit", "1").stdout, newline=""))
    assert [row["record"] for row in limited] == ["contract", "total"]


def test_one_contract_is_shown_with_its_verdict_and_its_bill(stall: Stall) -> None:
    contract = stall.awarded()
    assert "runs until" in stall.run("contract", "show", contract).stdout
    assert stall.complete(contract).returncode == 0
    told = stall.run("contract", "show", contract).stdout
    for part in (f"contract    {contract}", "agent       ada", "verdict pass", "total      0.09", "is settled"):
        assert part in told
    whole = stall.show(contract)
    assert (whole["settlement"]["total"], whole["outcome"]["verdict"]) == ("0.09", "pass")
    assert whole["verification"]["criterion_results"][0]["metric"] == "word_count"
    assert whole["terms"]["rules"][0] == "cpc"


def test_an_erased_result_is_said_to_be_erased(stall: Stall) -> None:
    contract = stall.settled()
    outcome = stall.show(contract)["outcome"]["outcome_id"]
    assert stall.run("outcome", "erase", outcome, "--reason", "asked to", "--yes").returncode == 0
    assert "erased" in stall.run("contract", "show", contract).stdout
    assert stall.show(contract)["verification"] is None
    assert stall.run("contract", "list").returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        ("start",),
        ("complete", "--output", "output.json"),
        ("void", "--reason", "r"),
        ("show",),
    ],
)
def test_programs_get_the_contract_from_every_move(stall: Stall, command: tuple[str, ...]) -> None:
    contract = stall.awarded()
    put("output.json", GOOD)
    ended = stall.run("contract", command[0], contract, *command[1:], "--json")
    found = json.loads(ended.stdout)
    assert (ended.returncode, ended.stdout.count("\n"), found["id"]) == (0, 1, contract)
    assert ("verification" in found, found["hold"]) == (True, "0.09")
    assert {**stall.show(contract), "history": None} == {**found, "history": None}


def test_programs_get_the_contract_from_later_moves(stall: Stall) -> None:
    contract = stall.settled()
    for command in (
        ("settle",),
        ("dispute", "--reason", "r"),
        ("resolve", "--decision", "uphold", "--reason", "r"),
        ("reverse", "--reason", "r"),
    ):
        ended = stall.run("contract", command[0], contract, *command[1:], "--json")
        assert json.loads(ended.stdout) == {**stall.show(contract), "history": None, "on_hold": None}
    made = json.loads(stall.run("contract", "award", stall.submit(), "--agent-id", "a", "--json").stdout)
    assert (made["state"], made["verification"], made["settlement"]) == ("awarded", None, None)


# Bad input.


@pytest.mark.parametrize(
    ("options", "option"),
    [
        (("--agent-id", ""), "--agent-id"),
        (("--agent-id", "a\nb"), "--agent-id"),
        (("--agent-id", "x" * 201), "--agent-id"),
        (("--agent-id", "a", "--cpc-rate", "0.0000001"), "--cpc-rate"),
        (("--agent-id", "a", "--cpc-rate", "-1"), "--cpc-rate"),
        (("--agent-id", "a", "--cpc-rate", "free"), "--cpc-rate"),
        (("--agent-id", "a", "--cpc-rate", "nan"), "--cpc-rate"),
        ((), "--agent-id"),
    ],
)
def test_a_bad_award_is_refused(run: Run, options: tuple[str, ...], option: str) -> None:
    error = error_of(run, "contract", "award", "wrk_x", *options)
    assert (error["code"], option in error["message"]) == ("usage", True)


@pytest.mark.parametrize("reason", ["", "  ", "a\nb", "x" * 201])
@pytest.mark.parametrize("command", [("dispute",), ("resolve", "--decision", "void"), ("reverse",), ("void",)])
def test_a_reason_is_a_line_of_text(run: Run, command: tuple[str, ...], reason: str) -> None:
    error = error_of(run, "contract", command[0], "con_x", *command[1:], "--reason", reason)
    assert (error["code"], "--reason" in error["message"]) == ("usage", True)


@pytest.mark.parametrize(
    ("claims", "code", "name"),
    [
        ({"accuracy": "high"}, "usage", "accuracy"),
        ({"accuracy": True}, "usage", "accuracy"),
        ({"accuracy": None}, "usage", "accuracy"),
        ('{"accuracy": 1' + "0" * 400 + "}", "bad_document", "claims.json"),
        ('{"accuracy": NaN}', "bad_document", "claims.json"),
        ([], "bad_document", "claims.json"),
    ],
)
def test_claims_are_numbers(stall: Stall, claims: Any, code: str, name: str) -> None:
    contract = stall.awarded()
    files = ("--output", put("out.json", GOOD), "--claims", put("claims.json", claims))
    error = error_of(stall.run, "contract", "complete", contract, *files)
    assert (error["code"], name in error["message"]) == (code, True)
    assert stall.show(contract)["state"] == "awarded"


@pytest.mark.parametrize("output", ["", "{", "[]", '{"a": 1, "a": 2}'])
def test_an_output_that_cannot_be_read_completes_nothing(stall: Stall, output: str) -> None:
    contract = stall.awarded()
    assert stall.complete(contract, output).returncode == 2
    assert stall.show(contract)["state"] == "awarded"


def test_missing_files_and_two_readers_of_stdin_are_refused(run: Run) -> None:
    assert error_of(run, "contract", "complete", "c", "--output", "no.json")["where"] == "no.json"
    assert error_of(run, "contract", "complete", "c", "--output", "-", "--metadata", "-")["code"] == "usage"


def test_an_output_may_come_from_a_pipe(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.run("contract", "complete", contract, "--output", "-", stdin=json.dumps(GOOD).encode())
    assert ended.returncode == 0


def test_governance_that_is_switched_off_is_not_asked(stall: Stall) -> None:
    put("settings.yaml", "verification: {governance_check: false}\n")
    contract = stall.awarded()
    ended = stall.complete(contract, LEAKED, "--config", "settings.yaml")
    assert ended.returncode == 0
    assert stall.show(contract)["verification"]["governance"] == "not_checked"


def test_the_states_that_can_be_asked_for_are_all_there_are() -> None:
    from meruit.cli.commands.contract import DECISIONS, STATES
    from meruit.contracts.lifecycle import Decision
    from meruit.model.contract import ContractState

    assert [*STATES] == [str(state) for state in ContractState]
    assert [*DECISIONS] == [str(decision) for decision in Decision]


def test_without_records_nothing_is_created(run: Run) -> None:
    assert error_of(run, "contract", "list")["code"] == "store_error"
    assert not Path("meruit-data").exists()
