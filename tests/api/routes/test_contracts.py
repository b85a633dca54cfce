"""Contracts over HTTP: every move once, one answer to one request, and nothing moved by what is refused."""

import asyncio
import csv
import io
import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import func, select
from tests.api.conftest import CRITERIA, PATIENCE_S, Deploy, Deployment, code_of
from tests.api.routes.test_work import PAID, WORK
from tests.api.test_admission import scope_of
from tests.api.test_auth import MOVES, contract_ready_for, logged

from meruit.api import app as build
from meruit.api.idempotency import HEADER, REPLAYED
from meruit.api.routes.contracts import MAX_CLAIMS
from meruit.app import build_engine
from meruit.audit.findings import AuditStepState
from meruit.audit.verify import outcome as recheck
from meruit.config import Settings
from meruit.contracts.invariants import find_violations
from meruit.contracts.store import ledger
from meruit.contracts.transitions import ExpireContracts
from meruit.errors import AuditStep, MeruitError, StoreUnavailable, UnknownName
from meruit.governance.metadata import OF_AGENTS
from meruit.log.note import VerifierKey
from meruit.model.access import DEFAULT_TENANT, Role
from meruit.model.contract import AgentContract
from meruit.outcomes.store.erase import Erase
from meruit.registry import settlement_rules
from meruit.store import tables
from meruit.store.idempotency import IdempotentWrite
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy

GOOD = {"text": "the quick brown fox jumps over a lazy dog"}
AT_ONCE = 200
"""Calls that come together."""


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


@pytest.fixture
def agent(either: Deployment, tenant: str) -> str:
    return either.key(Role.AGENT, tenant)


def given(deployment: Deployment, key: str, **changed: Any) -> str:
    """New work."""
    reply = deployment.ask("POST", "/v1/work", key=key, json={**WORK, **changed})
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def awarded(deployment: Deployment, key: str, agent_id: str = "robot", **changed: Any) -> str:
    """A new contract on new work."""
    wish = {"work_id": given(deployment, key, **changed), "agent_id": agent_id}
    reply = deployment.ask("POST", "/v1/contracts", key=key, json=wish)
    assert reply.status_code == 201, reply.text
    return str(reply.json()["id"])


def moved(
    deployment: Deployment, key: str, contract: str, move: str, body: Any = None, **options: Any
) -> httpx.Response:
    sent = {} if body is None else {"json": body}
    return deployment.ask("POST", f"/v1/contracts/{contract}/{move}", key=key, **sent, **options)


def completed(deployment: Deployment, key: str, contract: str, output: Any = None) -> Any:
    reply = moved(deployment, key, contract, "complete", {"output": output or GOOD})
    assert reply.status_code == 200, reply.text
    return reply.json()


def sound(deployment: Deployment, tenant: str) -> None:
    """Every invariant of the money holds."""
    with deployment.store.database.reading() as connection:
        assert not find_violations(ledger.books(connection, tenant))


def settled_times(deployment: Deployment, contract: str) -> int:
    table = tables.transfers
    with deployment.store.database.reading() as connection:
        query = select(func.count()).where(table.c.contract_id == contract, table.c.operation == "settle")
        return int(connection.execute(query).scalar_one())


def told(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, code_of(reply)


def test_a_contract_is_completed_believed_billed_and_settled_at_once(
    either: Deployment, tenant: str, key: str, agent: str
) -> None:
    contract = awarded(either, key)
    path = f"/v1/contracts/{contract}"
    view = either.ask("GET", path, key=key).json()
    assert (view["state"], view["escrow"], view["hold"], view["currency"]) == ("awarded", "held", "0.07", "EUR")
    begun = moved(either, agent, contract, "start")
    assert (begun.status_code, begun.json()["state"]) == (200, "executing")
    body = {"output": GOOD, "metadata": {"duration_ms": 5}, "claimed_metrics": {"rougeL": 0.9}}
    reply = moved(either, agent, contract, "complete", body)
    assert reply.status_code == 200, reply.text
    mine = reply.json()
    assert mine.keys() == set(AgentContract.__struct_fields__)
    assert (mine["state"], mine["verdict"], mine["success"], mine["payout"]) == ("settled", "pass", True, "0.0595")
    view = either.ask("GET", path, key=key).json()
    assert (view["state"], view["escrow"], view["outcome"]["governance"]) == ("settled", "paid", "clear")
    paid = view["settlement"]
    assert (paid["base"], paid["bonus"], paid["penalty"], paid["total"]) == ("0.05", "0.02", "0", "0.07")
    assert (paid["fee"], paid["payout"], paid["released"]) == ("0.0105", "0.0595", "0")
    assert either.ask("GET", path, key=agent).json() == mine
    outcome = either.ask("GET", f"/v1/outcomes/{mine['outcome_id']}", key=key).json()
    assert (outcome["contract_id"], outcome["work_output"]) == (contract, GOOD)
    assert outcome["execution_metadata"]["claimed_metrics"] == {"rougeL": 0.9}
    sound(either, tenant)


def test_the_bundle_of_a_paid_contract_verifies(either: Deployment, key: str) -> None:
    outcome = completed(either, key, awarded(either, key))["outcome"]["outcome_id"]
    bundle = either.ask("GET", f"/v1/outcomes/{outcome}/bundle", key=key).content
    signer = VerifierKey.parse(either.ask("GET", "/v1/audit/key", key=key).text)
    found = recheck.verify_bundle(bundle, key=signer)
    assert {step.step for step in found.steps if step.state is not AuditStepState.OK} == {AuditStep.WITNESSES}, found


def test_work_that_fails_is_paid_by_its_terms(either: Deployment, tenant: str, key: str) -> None:
    contract = awarded(either, key)
    view = completed(either, key, contract, {"text": "nothing of the kind"})
    assert (view["state"], view["outcome"]["verdict"]) == ("settled", "fail")
    assert (view["settlement"]["total"], view["settlement"]["penalty"]) == ("0.04", "0.01")
    sound(either, tenant)


def test_contracts_are_listed_by_several_filters(either: Deployment, key: str, agent: str) -> None:
    first, second = awarded(either, key), awarded(either, key, "other", consumer_id="bank")
    completed(either, key, first)
    work = either.ask("GET", f"/v1/contracts/{second}", key=key).json()["work_id"]

    def ids(who: str, **params: Any) -> list[str]:
        reply = either.ask("GET", "/v1/contracts", key=who, params=params)
        assert reply.status_code == 200, reply.text
        return [one["id"] for one in reply.json()["contracts"]]

    assert ids(key) == [second, first]
    assert ids(key, agent_id="robot") == ids(key, consumer_id="shop") == ids(key, state="settled") == [first]
    assert ids(key, work_id=work) == ids(key, state="awarded") == [second]
    assert ids(agent) == ids(agent, state="settled") == [first]
    assert ids(agent, work_id=work) == ids(agent, agent_id="other") == []
    assert told(either.ask("GET", "/v1/contracts", key=agent, params={"consumer_id": "shop"})) == (403, "forbidden")
    page = either.ask("GET", "/v1/contracts", key=key, params={"limit": 1}).json()
    assert ids(key, before=page["next"]) == [first]
    assert ids(key, agent_id="robot", state="settled", consumer_id="shop", since="2020-01-01T00:00:00Z") == [first]
    assert ids(key, agent_id="robot", state="awarded") == ids(key, agent_id="robot", until="2020-01-01T00:00:00Z") == []
    for wrong in ({"state": "gone"}, {"work_id": "w"}, {"before": 0}, {"since": "today"}):
        assert either.ask("GET", "/v1/contracts", key=key, params=wrong).status_code == 400
    gone = either.ask("GET", "/v1/contracts", key=key, params={"state": "gone"}).json()
    assert gone["errors"][0]["where"] == "state"
    assert "awarded, executing" in gone["errors"][0]["message"]


def test_contracts_and_holds_are_written_as_csv(either: Deployment, key: str, agent: str) -> None:
    paid, held = awarded(either, key), contract_ready_for(either, key, "release")
    completed(either, key, paid)

    def rows(path: str, who: str = key, **params: str) -> list[dict[str, str]]:
        reply = either.ask("GET", path, key=who, params=params, headers={"Accept": "text/csv"})
        assert (reply.status_code, reply.headers["content-type"][:8]) == (200, "text/csv"), reply.text
        return [*csv.DictReader(io.StringIO(reply.text, newline=""))]

    *_, first, total = rows("/v1/contracts", state="settled")
    assert (first["contract_id"], first["gross"], first["fee"], first["net"]) == (paid, "0.07", "0.0105", "0.0595")
    assert (total["record"], total["currency"], total["net"]) == ("total", "EUR", "0.0595")
    waiting = rows("/v1/holds", state="held", agent_id="robot")[0]
    assert (waiting["contract_id"], waiting["state"], waiting["gross"]) == (held, "held", "0")
    assert rows("/v1/holds", state="disputed") == []
    own = rows("/v1/contracts", agent)
    assert "consumer_id" not in own[0]
    assert {row["contract_id"] for row in own} == {paid, held}


def test_what_is_held_waits_in_a_queue_with_its_reason(either: Deployment, tenant: str, key: str) -> None:
    contract = contract_ready_for(either, key, "release")
    (held,) = either.ask("GET", "/v1/holds", key=key).json()["contracts"]
    assert (held["id"], held["hold_reason"]) == (contract, "governance review: reference_copy")
    assert held["outcome"]["governance_flags"] == ["reference_copy"]
    assert told(moved(either, key, contract, "settle")) == (409, "on_hold")
    released = moved(either, key, contract, "release", {"reason": "quoted, as agreed"}).json()
    assert (released["state"], released["outcome"]["governance"]) == ("settled", "released")
    assert either.ask("GET", "/v1/holds", key=key).json() == {"contracts": [], "next": None}
    again = moved(either, key, contract, "release", {"reason": "quoted, as agreed"})
    assert (again.status_code, again.json()) == (200, released)
    assert told(moved(either, key, contract, "release", {"reason": "another"})) == (409, "wrong_state")
    assert settled_times(either, contract) == 1
    sound(either, tenant)


def test_a_leak_is_held_and_its_agent_does_not_see_why(either: Deployment, key: str, agent: str) -> None:
    contract = awarded(either, key)
    reply = moved(either, agent, contract, "complete", {"output": {"text": f"{GOOD['text']} planted-one"}})
    assert (reply.json()["state"], reply.json()["payout"]) == ("verification_pending", None)
    view = either.ask("GET", f"/v1/contracts/{contract}", key=key).json()
    assert (view["outcome"]["governance"], view["outcome"]["governance_flags"]) == ("invalid", ["canary_leak"])
    seen = reply.text + either.ask("GET", f"/v1/contracts/{contract}", key=agent).text
    for hidden in ("leak", "governance", "flag", "planted", "rouge", "fox", "shop"):
        assert hidden not in seen
    assert moved(either, key, contract, "void", {"reason": "cheated"}).json()["escrow"] == "released"


def test_a_dispute_freezes_and_its_end_decides(either: Deployment, tenant: str, key: str, agent: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract)
    objected = moved(either, agent, contract, "dispute", {"reason": "the bonus is missing"})
    assert (objected.status_code, objected.json()["state"]) == (200, "disputed")
    wish = {"decision": "reverse", "reason": "agreed"}
    ended = moved(either, key, contract, "resolve", wish).json()
    assert (ended["state"], ended["escrow"], ended["settlement"]) == ("verification_pending", "held", None)
    assert told(moved(either, key, contract, "settle")) == (409, "already_settled")
    gone = moved(either, key, contract, "void", {"reason": "agreed"}).json()
    assert (gone["state"], gone["escrow"]) == ("failed", "released")
    sound(either, tenant)


def test_what_was_paid_can_be_taken_back_once(either: Deployment, tenant: str, key: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract)
    back = moved(either, key, contract, "reverse", {"reason": "paid by mistake"})
    assert (back.status_code, back.json()["escrow"], back.json()["hold_reason"]) == (
        *(200, "held"),
        "reversed: paid by mistake",
    )
    before = either.rows()
    assert moved(either, key, contract, "reverse", {"reason": "paid by mistake"}).json() == back.json()
    assert told(moved(either, key, contract, "reverse", {"reason": "another"})) == (409, "wrong_state")
    assert either.rows() == before
    sound(either, tenant)


def test_what_is_settled_on_request_waits_for_it(either: Deployment, tenant: str, key: str, agent: str) -> None:
    contract = awarded(either, key, terms={"cpc_rate": "0.05", "settle": "on_request"})
    assert completed(either, key, contract)["state"] == "verified"
    assert moved(either, agent, contract, "settle").status_code == 403
    paid = moved(either, key, contract, "settle")
    assert (paid.status_code, paid.json()["state"], paid.json()["settlement"]["total"]) == (200, "settled", "0.07")
    assert moved(either, key, contract, "settle").json() == paid.json()
    assert settled_times(either, contract) == 1
    sound(either, tenant)


def test_the_award_may_name_the_rate_within_the_budget(either: Deployment, key: str) -> None:
    open_to_offers = given(either, key, terms={}, budget={"max_cpc": "0.08"})

    def offered(**more: Any) -> httpx.Response:
        wish = {"work_id": open_to_offers, "agent_id": "robot", **more}
        return either.ask("POST", "/v1/contracts", key=key, json=wish)

    assert offered(cpc_rate="0.08").json()["hold"] == "0.1"
    assert offered(cpc_rate=0.06).json()["hold"] == "0.08"
    assert offered(cpc_rate=0).json()["terms"]["cpc_rate"] == "0"
    before = either.rows()
    assert told(offered()) == (409, "no_rate")
    assert told(offered(cpc_rate="0.080001")) == (409, "above_budget")
    assert either.rows() == before


REFUSED_AWARDS: dict[str, tuple[Any, int, str]] = {
    "negative": ({"cpc_rate": -1}, 400, "cpc_rate: expected a number of at least 0"),
    "seven places": ({"cpc_rate": 0.0000001}, 400, "cpc_rate: money has at most 6 decimal places"),
    "seven places in text": ({"cpc_rate": "0.1234567"}, 400, "cpc_rate: money has at most 6 decimal places"),
    "no number": ({"cpc_rate": "a lot"}, 400, "cpc_rate: expected a number"),
    "not a number": ({"cpc_rate": "NaN"}, 400, "cpc_rate: expected a number"),
    "endless": ({"cpc_rate": "Infinity"}, 400, "cpc_rate: expected a number"),
    "more than there is": ({"cpc_rate": 10**12}, 400, "cpc_rate: an amount is at most"),
    "true": ({"cpc_rate": True}, 400, "cpc_rate"),
    "a list": ({"cpc_rate": [1]}, 400, "cpc_rate"),
    "unknown work": ({"work_id": f"wrk_{'0' * 34}"}, 404, "no work"),
    "no work": ({"work_id": "w"}, 400, "work_id"),
    "no agent": ({"agent_id": ""}, 400, "agent_id"),
    "agent of two lines": ({"agent_id": "a\nb"}, 400, "agent_id"),
    "agent of another type": ({"agent_id": 5}, 400, "agent_id"),
    "unknown field": ({"currency": "USD"}, 400, "unknown field `currency`"),
}


@pytest.mark.parametrize("why", REFUSED_AWARDS)
def test_an_award_that_cannot_be_is_refused_and_nothing_is_put_aside(
    deployment: Deployment, admin: str, why: str
) -> None:
    changed, status, said = REFUSED_AWARDS[why]
    wish = {"work_id": given(deployment, admin, terms={}), "agent_id": "robot", "cpc_rate": 1, **changed}
    before = deployment.rows()
    reply = deployment.ask("POST", "/v1/contracts", key=admin, json=wish)
    assert reply.status_code == status, reply.text
    assert said in reply.json()["detail"]
    assert deployment.rows() == before


def test_an_award_beyond_all_measure_is_refused(deployment: Deployment, admin: str) -> None:
    criteria = {"criteria": [{**PAID, "bonus": 8_000_000_000}]}
    work = given(deployment, admin, terms={}, budget={}, success_criteria=criteria)
    before = deployment.rows()
    wish = {"work_id": work, "agent_id": "robot", "cpc_rate": 8_000_000_000}
    assert told(deployment.ask("POST", "/v1/contracts", key=admin, json=wish)) == (422, "too_much")
    assert deployment.rows() == before


RAW = {
    "empty": b"",
    "no object": b"[]",
    "nothing in it": b"{}",
    "a key twice": b'{"output": {}, "output": {"text": "x"}, "reason": "a", "reason": "b", "decision": "void"}',
    "not a number": b'{"output": {"score": NaN}, "reason": NaN, "decision": "void"}',
    "endless": b'{"output": {"score": 1e999}, "reason": 1e999, "decision": "void"}',
    "half a pair": b'{"output": {"text": "\\ud800"}, "reason": "\\ud800", "decision": "void"}',
    "wrong types": b'{"output": [], "reason": 5, "decision": 5}',
    "unknown field": b'{"output": {}, "reason": "a", "decision": "void", "amount": 5}',
}


@pytest.mark.parametrize(
    ("move", "why"),
    [
        (move, why)
        for move in MOVES
        for why in RAW
        # Two moves take no body.
        if move and not (move in ("start", "settle") and why in ("empty", "nothing in it"))
    ],
)
def test_a_body_that_is_not_asked_for_moves_nothing(deployment: Deployment, admin: str, move: str, why: str) -> None:
    contract = contract_ready_for(deployment, admin, move)
    before = deployment.rows()
    path, sent = f"/v1/contracts/{contract}/{move}", {"Content-Type": "application/json"}
    reply = deployment.ask("POST", path, key=admin, content=RAW[why], headers=sent)
    assert reply.status_code == 400, reply.text
    assert deployment.rows() == before


def test_what_was_taken_back_is_judged_again_and_paid(either: Deployment, key: str) -> None:
    contract = awarded(either, key)
    moved(either, key, contract, "complete", {"output": GOOD})
    moved(either, key, contract, "reverse", {"reason": "by mistake"})
    again = moved(either, key, contract, "rejudge", {"reason": "to be sure"}).json()
    assert (again["state"], again["outcome"]["version"]) == ("verification_pending", 2)
    paid = moved(either, key, contract, "settle").json()
    assert (paid["state"], paid["settlement"]["number"], paid["settlement"]["version"]) == ("settled", 2, 2)


def test_a_contract_is_rejudged_once_under_one_key(either: Deployment, key: str) -> None:
    contract = awarded(either, key)
    moved(either, key, contract, "complete", {"output": GOOD})
    path, once = f"/v1/contracts/{contract}/rejudge", {"Idempotency-Key": "judge-it"}
    replies = [either.ask("POST", path, key=key, json={"reason": "why"}, headers=once) for _ in range(2)]
    assert [reply.status_code for reply in replies] == [200, 200]
    assert replies[0].content == replies[1].content
    assert [reply.headers.get("Idempotency-Replayed") for reply in replies] == [None, "true"]
    assert either.ask("GET", f"/v1/contracts/{contract}", key=key).json()["outcome"]["version"] == 2
    # A request that fails leaves its key to the next one.
    missing = f"/v1/contracts/{contract[:-4]}0000/rejudge"
    refused = [either.ask("POST", missing, key=key, json={"reason": "why"}, headers={**once, "Idempotency-Key": "x"})]
    refused.append(either.ask("POST", missing, key=key, json={"reason": "why"}, headers={"Idempotency-Key": "x"}))
    assert [reply.status_code for reply in refused] == [404, 404]


@pytest.mark.parametrize(
    "reason", ["", " ", "x" * 201, "a\nb", "a\0b", "a\x1b[2Jb", "a\u2028b", "a\u202eb", "a\u0085b"]
)
@pytest.mark.parametrize("move", ["release", "void", "reverse", "dispute", "resolve", "rejudge"])
def test_a_reason_is_a_line_that_a_person_can_read(deployment: Deployment, admin: str, move: str, reason: str) -> None:
    contract = contract_ready_for(deployment, admin, move)
    before = deployment.rows()
    reply = moved(deployment, admin, contract, move, {**MOVES[move]["json"], "reason": reason})
    assert (reply.status_code, "reason" in reply.json()["detail"]) == (400, True), reply.text
    assert deployment.rows() == before


@pytest.mark.parametrize("move", MOVES)
def test_an_unknown_contract_is_not_found(deployment: Deployment, admin: str, move: str) -> None:
    before = deployment.rows()
    method = "POST" if move else "GET"
    path = f"/v1/contracts/con_{'0' * 34}/{move}".rstrip("/")
    assert told(deployment.ask(method, path, key=admin, **MOVES[move])) == (404, "not_found")
    path = f"/v1/contracts/con_0/{move}".rstrip("/")
    assert deployment.ask(method, path, key=admin, **MOVES[move]).status_code == 400
    assert deployment.rows() == before


@pytest.mark.parametrize(
    "metadata", [{"usage": {}}, {"claimed_fields": []}, {"duration_ms": 5, "evaluator": {}}, {"x" * 500: 1}]
)
def test_an_agent_may_report_claims_only(deployment: Deployment, tenant: str, admin: str, metadata: Any) -> None:
    agent, contract = deployment.key(Role.AGENT, tenant), awarded(deployment, admin)
    before = deployment.rows()
    reply = moved(deployment, agent, contract, "complete", {"output": GOOD, "metadata": metadata})
    assert told(reply) == (403, "forbidden")
    (other,) = metadata.keys() - OF_AGENTS
    assert reply.json()["detail"].endswith(f"leave out {other[:60]}")
    assert deployment.rows() == before
    body = {"output": GOOD, "metadata": {"run_id": "7", "ended_at": 5.0, "started_at": 4}}
    assert moved(deployment, agent, contract, "complete", body).status_code == 200


@pytest.mark.parametrize(
    "claims",
    [
        {"accuracy": "0.9"},
        {"accuracy": True},
        {"accuracy": None},
        {"": 1},
        {"a\nb": 1},
        {"accuracy": 10**399},
        {f"m{number}": 1 for number in range(MAX_CLAIMS + 1)},
        [1],
    ],
)
def test_claims_are_numbers_under_names(deployment: Deployment, admin: str, claims: Any) -> None:
    contract = awarded(deployment, admin)
    before = deployment.rows()
    reply = moved(deployment, admin, contract, "complete", {"output": GOOD, "claimed_metrics": claims})
    assert reply.status_code == 400, reply.text
    assert deployment.rows() == before


def test_an_output_of_20_mb_is_refused_and_one_of_1_mb_is_judged(
    deployment: Deployment, tenant: str, admin: str
) -> None:
    contract = awarded(deployment, admin)
    before = deployment.rows()
    reply = moved(deployment, admin, contract, "complete", {"output": {"text": "x" * 20_000_000}})
    assert told(reply) == (413, "too_large")
    assert deployment.rows() == before
    assert completed(deployment, admin, contract, {"text": "x" * 1_000_000})["state"] == "settled"
    again = moved(deployment, admin, contract, "complete", {"output": {"text": "x" * 1_000_000}})
    assert again.status_code == 200
    sound(deployment, tenant)


def test_a_second_output_is_refused_before_it_is_judged(
    deployment: Deployment, tenant: str, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract = awarded(deployment, admin)
    first = completed(deployment, admin, contract)
    before = deployment.rows()

    async def judged_again(*_: Any) -> Any:
        raise AssertionError("it was judged again")

    monkeypatch.setattr(deployment.service.registrar, "judge", judged_again)
    assert completed(deployment, admin, contract) == first
    reply = moved(deployment, admin, contract, "complete", {"output": {"text": "another"}})
    assert told(reply) == (409, "already_completed")
    void = contract_ready_for(deployment, admin, "void")
    moved(deployment, admin, void, "void", {"reason": "changed my mind"})
    before_void = deployment.rows()
    assert told(moved(deployment, admin, void, "complete", {"output": GOOD})) == (409, "wrong_state")
    assert deployment.rows() == before_void
    assert before_void["outcomes"] == before["outcomes"]
    sound(deployment, tenant)


def keyed(deployment: Deployment, key: str, contract: str, move: str, body: Any, once: str) -> httpx.Response:
    return moved(deployment, key, contract, move, body, headers={HEADER: once})


@pytest.mark.parametrize("move", [move for move in MOVES if move])
def test_a_move_that_is_asked_for_again_is_answered_alike(either: Deployment, key: str, move: str) -> None:
    contract, body = contract_ready_for(either, key, move), MOVES[move].get("json")
    first = keyed(either, key, contract, move, body, "once")
    assert (first.status_code, REPLAYED in first.headers) == (200, False), first.text
    before = either.rows()
    again = keyed(either, key, contract, move, body, "once")
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (200, first.content, "true")
    other = contract_ready_for(either, key, move)
    before = either.rows()
    assert told(keyed(either, key, other, move, body, "once")) == (422, "idempotency_key_reused")
    if body is not None:
        changed = {"output": {"text": "other"}} if move == "complete" else {**body, "reason": "another"}
        assert told(keyed(either, key, contract, move, changed, "once")) == (422, "idempotency_key_reused")
    assert either.rows() == before


def test_an_award_that_is_asked_for_again_is_made_once(either: Deployment, key: str) -> None:
    wish = {"work_id": given(either, key), "agent_id": "robot"}
    first, again = (either.ask("POST", "/v1/contracts", key=key, json=wish, headers={HEADER: "once"}) for _ in range(2))
    assert (first.status_code, again.status_code, again.headers[REPLAYED]) == (201, 201, "true")
    assert first.content == again.content
    other = either.ask("POST", "/v1/contracts", key=key, json={**wish, "agent_id": "other"}, headers={HEADER: "once"})
    assert told(other) == (422, "idempotency_key_reused")
    assert len(either.ask("GET", "/v1/contracts", key=key).json()["contracts"]) == 1


def test_a_completion_known_already_is_kept_for_its_own_key(either: Deployment, key: str) -> None:
    contract, body = awarded(either, key), {"output": GOOD}
    first = keyed(either, key, contract, "complete", body, "one")
    second = keyed(either, key, contract, "complete", body, "two")
    assert (second.json(), REPLAYED in second.headers) == (first.json(), False)
    moved(either, key, contract, "dispute", {"reason": "too little"})
    third = keyed(either, key, contract, "complete", body, "two")
    assert (third.content, third.headers[REPLAYED]) == (second.content, "true")
    assert told(keyed(either, key, contract, "complete", {"output": {}}, "two")) == (422, "idempotency_key_reused")


def test_an_agent_is_not_answered_what_an_operator_was(either: Deployment, key: str, agent: str) -> None:
    contract, body = awarded(either, key), {"output": GOOD}
    assert keyed(either, key, contract, "complete", body, "once").status_code == 200
    reply = keyed(either, agent, contract, "complete", body, "once")
    assert (reply.status_code, reply.json().keys()) == (200, set(AgentContract.__struct_fields__))
    assert REPLAYED not in reply.headers


def test_an_agent_uses_up_no_key_but_its_own(either: Deployment, tenant: str, key: str, agent: str) -> None:
    """The operator's moves have keys that an agent can guess, and each of them still works."""
    contract, other = awarded(either, key), either.key(Role.AGENT, tenant, agent_id="other")
    theirs = awarded(either, key, "other")
    for once in (f"settle-{contract}", f"dispute-{contract}", f"complete-{contract}"):
        assert keyed(either, other, theirs, "start", None, once).status_code == 200
        assert keyed(either, agent, contract, "start", None, once).status_code == 200
    for move, body in (("complete", {"output": GOOD}), ("settle", None), ("dispute", {"reason": "why"})):
        reply = keyed(either, key, contract, move, body, f"{move}-{contract}")
        assert (reply.status_code, REPLAYED in reply.headers) == (200, False), reply.text
    again = keyed(either, agent, contract, "start", None, f"settle-{contract}")
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    reused = keyed(either, agent, contract, "dispute", {"reason": "why"}, f"settle-{contract}")
    assert told(reused) == (422, "idempotency_key_reused")


def test_of_two_agents_each_has_its_own_answer(either: Deployment, tenant: str, key: str) -> None:
    """Neither hears from a refusal or a replay what the other asked for."""
    agents = {name: either.key(Role.AGENT, tenant, agent_id=name) for name in ("robot", "robot x", "x")}
    for name, own in agents.items():
        contract = awarded(either, key, name)
        for once in ("once", "y", "x"):
            reply = keyed(either, own, contract, "start", None, once)
            assert (reply.json()["id"], REPLAYED in reply.headers) == (contract, False)


def test_a_reply_to_an_agent_is_forgotten_with_its_outcome(either: Deployment, tenant: str, key: str) -> None:
    agent, contract = either.key(Role.AGENT, tenant), awarded(either, key)
    assert keyed(either, agent, contract, "complete", {"output": GOOD}, "once").status_code == 200
    (outcome,) = either.ask("GET", "/v1/outcomes", key=key, params={"contract_id": contract}).json()["outcomes"]
    either.store.recorder.write(Erase(tenant, outcome["id"], "asked for"))
    reply = keyed(either, agent, contract, "complete", {"output": GOOD}, "once")
    assert (reply.headers[REPLAYED], "score" in reply.text, "erased" in reply.text) == ("true", False, True)


@pytest.mark.parametrize("leaves", ["cancelled", "disconnected"])
@pytest.mark.parametrize("what", ["work", "complete"])
def test_who_leaves_midway_leaves_nothing_half_done(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, what: str, leaves: str
) -> None:
    """What the recorder was given it finishes, and whoever asks again is told so."""
    made = deploy()
    key, begun, may_end = made.key(), threading.Event(), threading.Event()
    contract = awarded(made, key)
    path, body = ("/v1/work", WORK) if what == "work" else (f"/v1/contracts/{contract}/complete", {"output": GOOD})
    content, sent = json.dumps(body).encode(), {"Content-Type": "application/json", HEADER: "once"}
    before, written = made.rows(), made.store.recorder._write_group

    def slowly(group: Any) -> Any:
        if any(isinstance(one.write, IdempotentWrite) for one in group):
            begun.set()
            assert may_end.wait(PATIENCE_S)
        return written(group)

    monkeypatch.setattr(made.store.recorder, "_write_group", slowly)

    async def leave() -> None:
        if leaves == "disconnected":
            asked = asyncio.create_task(unheard(made, path, key, content))
        else:
            asked = asyncio.create_task(made.asked("POST", path, key=key, content=content, headers=sent))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        if leaves == "cancelled":
            asked.cancel()
        may_end.set()
        await asyncio.gather(asked, return_exceptions=True)

    made.run(leave())
    reply = made.ask("POST", path, key=key, content=content, headers=sent)
    assert reply.is_success, reply.text
    assert reply.headers[REPLAYED] == "true"
    after = made.rows()
    grown = {name for name in after if after[name] > before[name]}
    if what == "work":
        assert after["works"] == before["works"] + 1
    else:
        assert reply.json()["state"] == "settled"
        assert {"outcomes", "verdicts", "settlements", "transfers", "idempotency"} <= grown
        assert settled_times(made, contract) == 1
        sound(made, DEFAULT_TENANT)


async def unheard(made: Deployment, path: str, key: str, content: bytes) -> Any:
    """A request whose caller is gone by the time of the answer."""
    sent = [{"type": "http.request", "body": content, "more_body": False}]

    async def receive() -> Any:
        return sent.pop() if sent else {"type": "http.disconnect"}

    async def send(_message: Any) -> None:
        raise OSError("nobody is there")

    scope = scope_of(path, key)
    scope["headers"].append((HEADER.lower().encode(), b"once"))
    await made.app(scope, receive, send)


@pytest.mark.parametrize("move", ["start", "complete", "dispute"])
def test_an_agent_moves_its_own_contract_alone(either: Deployment, tenant: str, key: str, move: str) -> None:
    own, other = either.key(Role.AGENT, tenant), either.key(Role.AGENT, tenant, agent_id="other")
    contract, body = contract_ready_for(either, key, move), MOVES[move].get("json")
    before = either.rows()
    assert told(moved(either, other, contract, move, body)) == (404, "not_found")
    assert either.rows() == before
    assert moved(either, own, contract, move, body).json().keys() == set(AgentContract.__struct_fields__)


def together(deployment: Deployment, requests: list[tuple[str, str, Any]]) -> list[httpx.Response]:
    """Ask all at once."""

    async def all_of_them() -> list[httpx.Response]:
        return await asyncio.gather(
            *(
                deployment.asked("POST", path, key=key, **({} if body is None else {"json": body}))
                for key, path, body in requests
            )
        )

    return deployment.run(all_of_them())


def test_200_completions_and_settlements_at_once_pay_once(
    either: Deployment, tenant: str, key: str, agent: str
) -> None:
    contract = awarded(either, key)
    path = f"/v1/contracts/{contract}"
    several: list[tuple[str, str, Any]] = [
        (key, f"{path}/complete", {"output": GOOD}) if number % 2 else (key, f"{path}/settle", None)
        for number in range(AT_ONCE)
    ]
    replies = together(either, several)
    done = [reply for reply, (_, place, _) in zip(replies, several, strict=True) if place.endswith("complete")]
    paid = [reply for reply, (_, place, _) in zip(replies, several, strict=True) if place.endswith("settle")]
    final = either.ask("GET", path, key=key).json() | {"history": None}
    assert (final["state"], settled_times(either, contract)) == ("settled", 1)
    assert {reply.status_code for reply in done} == {200}
    assert {reply.content for reply in done} == {json.dumps(final, separators=(",", ":"), ensure_ascii=False).encode()}
    # Whoever comes before the output is told so.
    assert {(reply.status_code, reply.json().get("type", "").rpartition(":")[2]) for reply in paid} <= {
        (200, ""),
        (409, "wrong_state"),
    }
    assert all(reply.json() == final for reply in paid if reply.status_code == 200)
    later = together(either, several)
    assert {reply.status_code for reply in later} == {200}
    assert all(reply.json() == final for reply in later)
    assert settled_times(either, contract) == 1
    sound(either, tenant)
    assert either.ask("GET", path, key=agent).json()["payout"] == "0.0595"


def test_of_200_outputs_at_once_one_counts(either: Deployment, tenant: str, key: str) -> None:
    contract = awarded(either, key)
    path = f"/v1/contracts/{contract}/complete"
    several = [(key, path, {"output": {"text": f"{GOOD['text']} {number}"}}) for number in range(AT_ONCE)]
    replies = together(either, several)
    assert Counter(reply.status_code for reply in replies) == {200: 1, 409: AT_ONCE - 1}
    assert {told(reply)[1] for reply in replies if reply.status_code == 409} == {"already_completed"}
    assert settled_times(either, contract) == 1
    outcomes = either.ask("GET", "/v1/outcomes", key=key, params={"contract_id": contract}).json()["outcomes"]
    assert len(outcomes) == 1
    sound(either, tenant)


def test_of_200_settlements_at_once_one_pays(either: Deployment, tenant: str, key: str) -> None:
    contract = awarded(either, key, terms={"cpc_rate": "0.05", "settle": "on_request"})
    completed(either, key, contract)
    replies = together(either, [(key, f"/v1/contracts/{contract}/settle", None)] * AT_ONCE)
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.content for reply in replies}) == 1
    assert settled_times(either, contract) == 1
    sound(either, tenant)


def test_two_processes_pay_once(deploy: Deploy, store_location: Location) -> None:
    first, second = deploy(store_location), deploy(store_location)
    key = first.key(Role.OPERATOR)
    contract = awarded(first, key)
    body = {"output": GOOD}
    replies = list[httpx.Response]()

    def ask(one: Deployment) -> None:
        replies.extend(together(one, [(key, f"/v1/contracts/{contract}/complete", body)] * 20))

    threads = [threading.Thread(target=ask, args=(one,)) for one in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert Counter(reply.status_code for reply in replies) == {200: 40}
    assert len({reply.content for reply in replies}) == 1
    assert settled_times(first, contract) == 1
    sound(first, "default")


@pytest.mark.parametrize("same", [True, False])
def test_of_two_processes_with_one_key_one_has_the_effect(
    deploy: Deploy, store_location: Location, monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    """Neither finds the key in the database before the other has written it."""
    first, second = deploy(store_location), deploy(store_location)
    key = first.key(Role.OPERATOR)
    contract = awarded(first, key)
    body = {"output": GOOD}
    write, said = second.store.recorder.record, list[httpx.Response]()

    async def after_the_other(wish: Any, **options: Any) -> Any:
        # The service's own housekeeping writes too.
        if isinstance(wish, IdempotentWrite):
            sent = body if same else {"output": {"text": "another"}}
            said.append(await asyncio.to_thread(keyed, first, key, contract, "complete", sent, "once"))
        return await write(wish, **options)

    monkeypatch.setattr(second.store.recorder, "record", after_the_other)
    late = keyed(second, key, contract, "complete", body, "once")
    assert said[0].status_code == 200
    if same:
        assert (late.status_code, late.content, late.headers[REPLAYED]) == (200, said[0].content, "true")
    else:
        assert told(late) == (422, "idempotency_key_reused")
    assert settled_times(first, contract) == 1
    sound(first, "default")


def test_a_contract_of_ours_is_completed_and_not_verified(deployment: Deployment, tenant: str, admin: str) -> None:
    contract = awarded(deployment, admin)
    before = deployment.rows()
    one: dict[str, Any] = {"output": GOOD, "contract_id": contract}
    several: dict[str, Any] = {"items": [one]}
    for path, body in {"/v1/verify": one, "/v1/verify/batch": several}.items():
        reply = deployment.ask("POST", path, key=admin, json={**body, "criteria": CRITERIA})
        assert told(reply) == (422, "complete_the_contract")
        assert "/complete" in reply.json()["detail"]
    assert deployment.rows() == before
    agent = deployment.key(Role.AGENT, tenant)
    assert deployment.ask("POST", "/v1/verify", key=agent, json={**one, "criteria": "x"}).status_code == 403


def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        threading.Event().wait(0.05)
    raise AssertionError("it never came about")


def test_a_contract_without_output_expires(
    deploy: Deploy, store_location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "EXPIRY_S", 0.05)
    monkeypatch.setattr(build, "EXPIRED_AT_ONCE", 1)
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(store_location, surroundings=ClockAndEntropy(clock=lambda: now[0]))
    key = made.key(Role.OPERATOR)
    terms = {"cpc_rate": "0.05", "deadline_hours": 1}
    several = [awarded(made, key, terms=terms) for _ in range(3)]
    moved(made, key, several[0], "start")
    now[0] += timedelta(hours=2)
    assert told(moved(made, key, several[2], "complete", {"output": GOOD}))[0] == 409

    def ended() -> bool:
        listed = made.ask("GET", "/v1/contracts", key=key, params={"state": "expired"}).json()["contracts"]
        return {one["id"] for one in listed} == set(several)

    until(ended)
    balances = made.ask("GET", "/v1/ledger/balances", key=key).json()["balances"]
    assert {one["balance"] for one in balances} == {"0"}
    sound(made, "default")
    # Any: a counter shows its number to nobody but its own registry.
    expired: Any = made.service.instruments.contract_events_total.labels("expired", "default")
    until(lambda: expired._value.get() == 3)


def test_trouble_with_deadlines_is_logged_and_tried_again(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "EXPIRY_S", 0.05)
    tried = list[int]()

    def broken_once(self: ExpireContracts, _writing: Any) -> int:
        tried.append(self.limit)
        if len(tried) == 1:
            raise StoreUnavailable("the disk is full")
        return 0

    monkeypatch.setattr(ExpireContracts, "__call__", broken_once)
    with logged() as lines:
        made = deploy()
        until(lambda: len(tried) > 2)
        made.close()
    assert lines.getvalue().count('"event":"expiry_failed"') == 1


def test_moves_are_logged_by_ids_of_ours_alone(deploy: Deploy) -> None:
    with logged() as lines:
        made = deploy()
        key = made.key(Role.OPERATOR)
        contract = awarded(made, key, "secret-agent", consumer_id="secret-consumer")
        work = made.ask("GET", f"/v1/contracts/{contract}", key=key).json()["work_id"]
        until(lambda: f'"contract_id":"{contract}"' in lines.getvalue())
        made.close()
    said = [json.loads(line) for line in lines.getvalue().splitlines()]
    # Other services of this process log too.
    (line,) = [one for one in said if one.get("contract_id") == contract]
    assert (line["event_type"], line["work_id"]) == ("contract.awarded", work)
    assert "secret" not in lines.getvalue()


def test_criteria_that_no_longer_run_here_stay_hidden_from_agents(deploy: Deploy) -> None:
    code = "def metric(input, output, metadata):\n    return {'words': len(output.get('text', '').split())}\n"
    custom = {
        "criteria": [{"metric": "words", "metric_type": "count", "comparison": "gte", "threshold": 3}],
        "custom_metrics": [{"metrics": ["words"], "code": code}],
    }
    first = deploy()
    operator, agent = first.key(Role.OPERATOR), first.key(Role.AGENT)
    contract = awarded(first, operator, success_criteria=custom)
    first.close()
    narrower = Settings.parse("extractors: {custom: {class: CustomExtractor, enabled: false}}", "no code")
    second = deploy(using=build_engine(narrower), settings=narrower)
    before = second.rows()
    for key in (agent, operator):
        reply = moved(second, key, contract, "complete", {"output": GOOD})
        assert told(reply) == (422, "unavailable_here"), reply.text
        assert ("errors" in reply.json()) == (key == operator)
    assert second.rows() == before


def test_terms_whose_rule_is_gone_pay_nothing(
    deployment: Deployment, tenant: str, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract, agent = awarded(deployment, admin), deployment.key(Role.AGENT, tenant)

    def gone(name: str) -> Any:
        raise UnknownName(f"gone-{name}")

    monkeypatch.setattr(settlement_rules, "get", gone)
    reply = moved(deployment, agent, contract, "complete", {"output": GOOD})
    assert (reply.status_code, reply.json()["state"]) == (200, "verification_pending"), reply.text
    assert "gone-" not in reply.text
    assert settled_times(deployment, contract) == 0
    (held,) = deployment.ask("GET", "/v1/holds", key=admin).json()["contracts"]
    assert "gone-" in held["hold_reason"]
    sound(deployment, tenant)


def test_an_output_that_cannot_be_judged_is_refused(
    deployment: Deployment, tenant: str, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    contract, agent = awarded(deployment, admin), deployment.key(Role.AGENT, tenant)
    before = deployment.rows()

    async def hopeless(*_: Any) -> Any:
        raise MeruitError("the reference is broken")

    monkeypatch.setattr(deployment.service.marketplace, "completion", hopeless)
    for key in (agent, admin):
        reply = moved(deployment, key, contract, "complete", {"output": GOOD})
        assert told(reply) == (422, "cannot_be_judged")
        assert ("reference" in reply.text) == (key == admin)
    assert deployment.rows() == before
