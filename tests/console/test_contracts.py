"""Contracts, holds and the ledger as pages: what is owed, what is in the way, what there is to decide."""

import io
import re

import pytest
from openpyxl import load_workbook
from tests.api.conftest import Deployment, new_tenant
from tests.api.test_auth import contract_ready_for
from tests.console.conftest import Reader, SignIn

from meruit.model.access import Role

STATES = {"release": "settled", "void": "failed", "reverse": "verification pending", "dispute": "disputed"}


def main_of(text: str) -> str:
    """A page without its menu."""
    return text.partition("<main")[2]


@pytest.fixture
def tenant() -> str:
    return new_tenant()


@pytest.fixture
def operator(reader: SignIn, tenant: str) -> Reader:
    return reader(Role.OPERATOR, tenant)


@pytest.fixture
def key(console: Deployment, tenant: str) -> str:
    return console.key(Role.OPERATOR, tenant)


def test_empty_lists_say_what_to_do(operator: Reader) -> None:
    for path, said in (("/contracts", "meruit work submit"), ("/holds", "Nothing waits"), ("/ledger", "No money")):
        page = operator.get(path)
        assert (page.status_code, said in page.text) == (200, True), path


def test_the_list_counts_states_and_filters_by_them(console: Deployment, key: str, operator: Reader) -> None:
    held, paid = contract_ready_for(console, key, "release"), contract_ready_for(console, key, "reverse")
    page = operator.get("/contracts").text
    assert held in page
    assert paid in page
    assert "1 contract of 2 waits for a person" in page
    filtered = operator.get("/contracts?state=settled").text
    assert (held in filtered, paid in filtered) == (False, True)
    assert held in operator.get("/holds").text
    assert "No contract matches" in operator.get("/contracts?agent_id=nobody-here").text


def test_the_board_has_a_column_for_each_state(console: Deployment, key: str, operator: Reader) -> None:
    held, paid = (contract_ready_for(console, key, move) for move in ("release", "reverse"))
    page = main_of(operator.get("/contracts?view=board").text)
    for contract, state in ((held, "verification pending"), (paid, "settled")):
        column = page.partition(f"<h2>{state}</h2>")[2].partition("</section>")[0]
        assert f"/contracts/{contract}" in column
    assert 'href="/contracts?state=settled"' in page
    assert "None with these filters" in operator.get("/contracts?view=board&agent_id=unknown").text


@pytest.mark.parametrize("act", ["release", "void", "reverse", "dispute"])
def test_an_act_shows_balances_and_amount_then_does_it(
    console: Deployment, key: str, operator: Reader, act: str
) -> None:
    contract = contract_ready_for(console, key, act)
    assert f'href="/contracts/{contract}/{act}"' in operator.get(f"/contracts/{contract}").text
    dialog = operator.get(f"/contracts/{contract}/{act}", headers={"x-fragment": "1"}).text
    button = re.search(r'<button class="btn (?:go|bad)" type="submit">([^<]*)</button>', dialog)
    assert button is not None
    assert re.search(r"\d+(\.\d+)? [A-Z]{3}$", button[1]), button[1]
    if act != "dispute":
        assert "escrow of this contract" in dialog
    done = operator.post(f"/contracts/{contract}/{act}", reason="checked by hand")
    assert (done.status_code, done.headers["location"]) == (303, f"/contracts/{contract}")
    page = operator.get(f"/contracts/{contract}").text
    assert STATES[act] in main_of(page)
    assert "checked by hand" in page


@pytest.mark.parametrize(("decision", "fields"), [("uphold", {}), ("void", {}), ("adjust", {"amount": "0.01"})])
def test_a_dispute_ends_with_a_decision(
    console: Deployment, key: str, operator: Reader, decision: str, fields: dict[str, str]
) -> None:
    contract = contract_ready_for(console, key, "resolve")
    if decision == "adjust":
        assert 'name="amount"' in operator.get(f"/contracts/{contract}/adjust").text
        assert "pay 0.01" in operator.get(f"/contracts/{contract}/adjust?amount=0.01").text
        assert operator.get(f"/contracts/{contract}/adjust?amount=nonsense").status_code == 400
    done = operator.post(f"/contracts/{contract}/{decision}", reason="heard both", **fields)
    assert done.status_code == 303
    assert "disputed" not in operator.get(f"/contracts/{contract}").text.partition("</h1>")[0].rpartition("<h1>")[2]


def test_an_act_needs_a_reason_a_token_and_an_operator(
    console: Deployment, tenant: str, key: str, operator: Reader, reader: SignIn
) -> None:
    contract = contract_ready_for(console, key, "release")
    assert operator.post(f"/contracts/{contract}/release", reason=" ").status_code == 400
    assert operator.post(f"/contracts/{contract}/release", reason="a\nb").status_code == 400
    assert operator.post(f"/contracts/{contract}/release", csrf="0.0", reason="fine").status_code == 403
    for role in (Role.AUDITOR, Role.AGENT):
        other = reader(role, tenant)
        assert other.get(f"/contracts/{contract}/release").status_code == 403
        assert other.post(f"/contracts/{contract}/release", reason="fine").status_code == 403
    auditor = reader(Role.AUDITOR, tenant).get(f"/contracts/{contract}").text
    assert "Actions need an operator key" in auditor
    assert "/release" not in main_of(auditor)
    assert "verification pending" in main_of(operator.get(f"/contracts/{contract}").text)


def test_a_contract_that_changed_meanwhile_is_a_conflict(console: Deployment, key: str, operator: Reader) -> None:
    contract = contract_ready_for(console, key, "release")
    assert operator.post(f"/contracts/{contract}/void", reason="copied").status_code == 303
    late = operator.post(f"/contracts/{contract}/release", reason="fine")
    assert late.status_code == 409
    assert operator.get(f"/contracts/{contract}/uphold").status_code == 409
    assert operator.get(f"/contracts/{contract}/burn").status_code == 404


def test_an_agent_sees_its_own_contract_without_criteria(
    console: Deployment, tenant: str, key: str, reader: SignIn
) -> None:
    contract = contract_ready_for(console, key, "release")
    own, other = reader(Role.AGENT, tenant), reader(Role.AGENT, tenant, agent_id="other")
    seen = own.get(f"/contracts/{contract}").text + own.get("/contracts").text
    assert contract in seen
    for hidden in ("rougeL", "reference_copy", "governance", "shop", "Criteria</h2>"):
        assert hidden not in main_of(seen), hidden
    assert other.get(f"/contracts/{contract}").status_code == 404
    assert contract not in other.get("/contracts").text
    for path in ("/holds", "/ledger"):
        assert own.get(path).status_code == 403


def test_another_tenant_sees_nothing(console: Deployment, key: str, reader: SignIn) -> None:
    contract = contract_ready_for(console, key, "reverse")
    stranger = reader(Role.ADMIN, new_tenant())
    assert stranger.get(f"/contracts/{contract}").status_code == 404
    assert contract not in stranger.get("/contracts").text + stranger.get("/holds").text + stranger.get("/ledger").text
    assert stranger.post(f"/contracts/{contract}/reverse", reason="mine").status_code == 404


@pytest.mark.parametrize("path", ["/contracts", "/holds", "/ledger", "/ledger/statement?account=agent:robot"])
@pytest.mark.parametrize("kind", ["csv", "xlsx"])
def test_lists_come_as_files(console: Deployment, key: str, operator: Reader, path: str, kind: str) -> None:
    contract_ready_for(console, key, "reverse")
    contract_ready_for(console, key, "release")
    reply = operator.get(f"{path}{'&' if '?' in path else '?'}format={kind}")
    assert reply.status_code == 200
    if kind == "csv":
        assert reply.text.count("\r\n") > 1
    else:
        assert (load_workbook(io.BytesIO(reply.content)).worksheets[0].max_row or 0) > 1


def test_a_statement_has_a_period_and_leads_to_contracts(
    console: Deployment, tenant: str, key: str, operator: Reader, reader: SignIn
) -> None:
    contract = contract_ready_for(console, key, "reverse")
    page = operator.get("/ledger/statement?account=agent:robot&from=2020-01-01&to=2099-01-01").text
    assert f'href="/contracts/{contract}"' in page
    assert "No movement" in operator.get("/ledger/statement?account=agent:robot&from=2099-01-01").text
    for wrong in ("from=yesterday", "to=9999-12-31", "currency=XXQ"):
        assert operator.get(f"/ledger/statement?account=agent:robot&{wrong}").status_code == 400, wrong
    assert operator.get("/ledger/statement").status_code == 400
    agent = reader(Role.AGENT, tenant)
    assert agent.get("/statement").headers["location"] == "/ledger/statement"
    own = agent.get("/ledger/statement").text
    assert contract in own
    assert "consumer:" not in main_of(own)
    assert agent.get("/ledger/statement?account=platform").status_code == 403


def test_hostile_text_stays_text(console: Deployment, key: str, operator: Reader) -> None:
    hostile = '<script>alert(1)</script>"><img src=x onerror=alert(1)>' + "x" * 60
    work = {"title": hostile, "consumer_id": "=1+1<b>", "terms": {"cpc_rate": "0.05"}}
    made = console.ask("POST", "/v1/work", key=key, json=work)
    assert made.status_code == 201, made.text
    award = console.ask("POST", "/v1/contracts", key=key, json={"work_id": made.json()["id"], "agent_id": "<i>robot"})
    contract = award.json()["id"]
    for path in ("/contracts", f"/contracts/{contract}", "/ledger", f"/contracts/{contract}/void"):
        text = operator.get(path).text
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert "<i>robot" not in text
        assert not re.search(r"<style|\sstyle=|<script(?! src)|\son\w+=(?!&)", text.replace("onerror=alert(1)&gt;", ""))
