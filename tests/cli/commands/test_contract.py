"""`meruit contract`: from the award to the money, and back."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.cli.trade import BAD, GOOD, LEAKED, WORK, Clock, Stall, put, with_terms

Run = Callable[..., subprocess.CompletedProcess[str]]


# The way that work is meant to go.


def test_good_work_is_verified_settled_and_paid(stall: Stall) -> None:
    contract = stall.awarded()
    assert stall.balances() == {"consumer:buyer": "-0.09", "escrow": "0.09"}
    assert stall.run("contract", "start", contract).stdout == f"{contract} is executing: 0.09 USD held\n"
    ended = stall.complete(contract)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "verdict pass, success true" in ended.stdout
    assert "plausibility: clear" in ended.stdout
    assert ended.stdout.endswith(
        "rule       amount  why\n"
        "cpc        0.05    completed\n"
        "cpa_bonus  0.03    word_count is met\n"
        "cpa_bonus  0.02    rougeL is met\n"
        "cap        -0.01   over the cap of 0.04 (rougeL)\n"
        "total      0.09    of 0.09 held\n"
        "paid: 0.0765 USD to the agent ada, 0.0135 USD to the platform\n"
        f"{contract} is settled: 0.09 USD paid\n"
    )
    assert stall.balances() == {
        "agent:ada": "0.0765",
        "consumer:buyer": "-0.09",
        "platform": "0.0135",
        "escrow": "0",
    }


def test_bad_work_costs_a_penalty_and_the_rest_goes_back(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, BAD)
    assert ended.returncode == 1
    assert "cpa_penalty  -0.01   rougeL is not met\n" in ended.stdout
    assert "0.02 USD back to buyer" in ended.stdout
    assert stall.balances()["agent:ada"] == "0.0595"


def test_work_that_nobody_believes_is_held(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, LEAKED)
    assert ended.returncode == 3
    assert f"{contract} is verification pending: 0.09 USD held (governance invalid: canary_leak" in ended.stdout
    assert "`meruit holds release` or `meruit holds void`" in ended.stderr
    assert stall.balances() == {"consumer:buyer": "-0.09", "escrow": "0.09"}
    ended = stall.run("contract", "settle", contract)
    assert (ended.returncode, "is held" in ended.stderr) == (2, True)


def test_a_claim_that_the_measurement_contradicts_is_held(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, GOOD, "--claims", put("claims.json", {"word_count": 400}))
    assert (ended.returncode, "claimed_vs_measured" in ended.stdout) == (3, True)


def test_what_is_paid_on_request_waits_for_the_request(stall: Stall) -> None:
    contract = stall.awarded(with_terms(settle="on_request"))
    ended = stall.complete(contract)
    assert (ended.returncode, ended.stderr) == (0, "note: nothing is paid yet; `meruit contract settle` pays it\n")
    assert "is verified: 0.09 USD held" in ended.stdout
    first, second = (stall.run("contract", "settle", contract) for _ in range(2))
    assert first.stdout == second.stdout
    assert first.stdout.endswith(f"{contract} is settled: 0.09 USD paid\n")
    failed = stall.awarded(with_terms(settle="on_request"))
    ended = stall.complete(failed, BAD)
    assert (ended.returncode, ended.stderr) == (1, "")
    assert stall.run("contract", "settle", failed).returncode == 0


def test_an_agent_may_be_paid_less_than_the_work_offers(stall: Stall) -> None:
    work = stall.submit()
    contract = stall.award(work, "ada", "--cpc-rate", "0.025")
    assert stall.show(contract)["hold"] == "0.065"
    ended = stall.run("contract", "award", work, "--agent-id", "ada", "--cpc-rate", "1")
    assert (ended.returncode, "pays at most 0.05" in ended.stderr) == (2, True)
    ended = stall.run("contract", "award", stall.submit({"title": "x"}), "--agent-id", "ada")
    assert (ended.returncode, "give cpc_rate with the award" in ended.stderr) == (2, True)


def test_metadata_is_judged_and_criteria_without_it_are_not_guessed(stall: Stall) -> None:
    quick = {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 100, "bonus": 0.01}
    criteria = {"criteria": [*WORK["success_criteria"]["criteria"], quick]}
    work = stall.submit({**WORK, "success_criteria": criteria})
    timed = stall.complete(stall.award(work), GOOD, "--metadata", put("meta.json", {"duration_ms": 80}))
    assert timed.returncode == 0
    untimed = stall.complete(stall.award(work), {"text": GOOD["text"] + " again"})
    assert untimed.returncode == 3
    assert "the verdict is inconclusive" in untimed.stdout


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
    ended = stall.complete(contract, BAD)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "was completed with another output, or with other metadata" in ended.stderr
    assert stall.balances() == before


@pytest.mark.parametrize(
    "command",
    [
        ("start",),
        ("void", "--reason", "r"),
        ("resolve", "--decision", "void", "--reason", "r"),
    ],
)
def test_a_move_from_the_wrong_state_changes_nothing(stall: Stall, command: tuple[str, ...]) -> None:
    contract = stall.settled()
    before = stall.show(contract)
    ended = stall.run("contract", command[0], contract, *command[1:])
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"contract {contract} is settled; {command[0]} needs it to be" in ended.stderr
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


def test_a_dispute_freezes_what_is_held(stall: Stall) -> None:
    contract = stall.held()
    ended = stall.run("contract", "dispute", contract, "--reason", "not so")
    assert "frozen until the dispute is resolved" in ended.stdout
    refused = stall.run("contract", "resolve", contract, "--decision", "reverse", "--reason", "r")
    assert (refused.returncode, "nothing was paid" in refused.stderr) == (2, True)
    ended = stall.run("contract", "resolve", contract, "--decision", "void", "--reason", "r")
    assert f"{contract} is failed: called off, 0.09 USD back with buyer" in ended.stdout


def test_a_dispute_comes_in_time_or_not_at_all(stall: Stall, clock: Clock) -> None:
    contract = stall.settled(with_terms(dispute_window_hours=2))
    clock.forward(hours=2, seconds=1)
    ended = stall.run("contract", "dispute", contract, "--reason", "late")
    assert (ended.returncode, "could be disputed until 2026-03-01T14:00:00" in ended.stderr) == (2, True)
    clock.forward(seconds=-1)
    assert stall.run("contract", "dispute", contract, "--reason", "late").returncode == 0


def test_what_was_paid_can_be_taken_back_and_called_off(stall: Stall) -> None:
    contract = stall.settled()
    ended = stall.run("contract", "reverse", contract, "--reason", "a mistake")
    assert f"{contract} is verification pending: 0.09 USD held (reversed: a mistake)" in ended.stdout
    refused = stall.run("contract", "settle", contract)
    assert (refused.returncode, "a later one is needed" in refused.stderr) == (2, True)
    assert stall.run("contract", "void", contract, "--reason", "done with it").returncode == 0
    assert stall.balances() == {"agent:ada": "0", "consumer:buyer": "0", "platform": "0", "escrow": "0"}


def test_a_contract_that_nobody_began_can_be_called_off(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.run("contract", "void", contract, "--reason", "changed my mind")
    assert ended.stdout == f"{contract} is failed: called off, 0.09 USD back with buyer\n"
    refused = stall.complete(contract)
    assert (refused.returncode, "is failed; complete needs it to be" in refused.stderr) == (2, True)


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


def test_contracts_are_listed_by_one_thing_at_a_time(stall: Stall) -> None:
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
    assert "there may be more: --before" in stall.run("contract", "list", "--limit", "1").stderr
    ended = stall.run("contract", "list", "--agent-id", "ada", "--state", "settled")
    assert (ended.returncode, "--agent-id and --state cannot be combined" in ended.stderr) == (2, True)


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
    assert "the result was erased" in stall.run("contract", "show", contract).stdout
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
        assert json.loads(ended.stdout) == {**stall.show(contract), "history": None}
    made = json.loads(stall.run("contract", "award", stall.submit(), "--agent-id", "a", "--json").stdout)
    assert (made["state"], made["verification"], made["settlement"]) == ("awarded", None, None)


# Bad input.


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (("--agent-id", ""), "--agent-id is a line of 1 to 200"),
        (("--agent-id", "a\nb"), "--agent-id is a line of 1 to 200"),
        (("--agent-id", "x" * 201), "--agent-id is a line of 1 to 200"),
        (("--agent-id", "a", "--cpc-rate", "0.0000001"), "at most 6 decimal places"),
        (("--agent-id", "a", "--cpc-rate", "-1"), "at least 0"),
        (("--agent-id", "a", "--cpc-rate", "free"), "expected a number"),
        (("--agent-id", "a", "--cpc-rate", "nan"), "expected a number"),
        ((), "Missing option '--agent-id'"),
    ],
)
def test_an_award_that_cannot_be_is_refused(run: Run, options: tuple[str, ...], complaint: str) -> None:
    ended = run("contract", "award", "wrk_x", *options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert complaint in ended.stderr


@pytest.mark.parametrize("reason", ["", "  ", "a\nb", "x" * 201])
@pytest.mark.parametrize("command", [("dispute",), ("resolve", "--decision", "void"), ("reverse",), ("void",)])
def test_a_reason_is_a_line_of_text(run: Run, command: tuple[str, ...], reason: str) -> None:
    ended = run("contract", command[0], "con_x", *command[1:], "--reason", reason)
    assert (ended.returncode, "--reason is a line of 1 to 200" in ended.stderr) == (2, True)


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"accuracy": "high"}, "accuracy must be a number"),
        ({"accuracy": True}, "accuracy must be a number"),
        ({"accuracy": None}, "accuracy must be a number"),
        ('{"accuracy": 1' + "0" * 400 + "}", "claims.json: not JSON"),
        ('{"accuracy": NaN}', "claims.json: not JSON"),
        ([], "expected a JSON object"),
    ],
)
def test_claims_are_numbers(stall: Stall, claims: Any, complaint: str) -> None:
    contract = stall.awarded()
    ended = stall.complete(contract, GOOD, "--claims", put("claims.json", claims))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert complaint in ended.stderr
    assert stall.show(contract)["state"] == "awarded"


@pytest.mark.parametrize("output", ["", "{", "[]", '{"a": 1, "a": 2}'])
def test_an_output_that_cannot_be_read_completes_nothing(stall: Stall, output: str) -> None:
    contract = stall.awarded()
    assert stall.complete(contract, output).returncode == 2
    assert stall.show(contract)["state"] == "awarded"


def test_missing_files_and_two_readers_of_stdin_are_refused(run: Run) -> None:
    assert "no.json: cannot be read" in run("contract", "complete", "c", "--output", "no.json").stderr
    ended = run("contract", "complete", "c", "--output", "-", "--metadata", "-")
    assert (ended.returncode, "one file only" in ended.stderr) == (2, True)


def test_an_output_may_come_from_a_pipe(stall: Stall) -> None:
    contract = stall.awarded()
    ended = stall.run("contract", "complete", contract, "--output", "-", stdin=json.dumps(GOOD).encode())
    assert ended.returncode == 0


def test_governance_that_is_switched_off_is_not_asked(stall: Stall) -> None:
    put("settings.yaml", "verification: {governance_check: false}\n")
    contract = stall.awarded()
    ended = stall.complete(contract, LEAKED, "--config", "settings.yaml")
    assert (ended.returncode, "nobody was asked" in ended.stdout) == (0, True)


def test_the_states_that_can_be_asked_for_are_all_there_are() -> None:
    from meruit.cli.commands.contract import DECISIONS, STATES
    from meruit.contracts.lifecycle import Decision
    from meruit.model.contract import ContractState

    assert [*STATES] == [str(state) for state in ContractState]
    assert [*DECISIONS] == [str(decision) for decision in Decision]


def test_without_records_nothing_is_made(run: Run) -> None:
    assert "holds no records yet" in run("contract", "list").stderr
    assert not Path("meruit-data").exists()
