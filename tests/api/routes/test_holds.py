"""Holds and disputes over HTTP, and an agent's time, which counts from its first read of the input."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.api.conftest import Deploy, Deployment, code_of
from tests.api.routes.test_contracts import awarded, completed, given, moved, sound, told
from tests.api.routes.test_work import REFERENCE

from meruit.audit.verify.outcome import verify_bundle
from meruit.errors import AuditStep
from meruit.model.access import Role
from meruit.store.store import ClockAndEntropy

QUICK = {
    "metric": "latency_ms",
    "metric_type": "latency",
    "comparison": "lte",
    "threshold": 2000,
    "bonus": "0.02",
    "required": False,
}
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}
TIMED = {"success_criteria": {"criteria": [WORDS, QUICK]}}


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


@pytest.fixture
def agent(either: Deployment, tenant: str) -> str:
    return either.key(Role.AGENT, tenant)


def holds(deployment: Deployment, key: str) -> list[Any]:
    reply = deployment.ask("GET", "/v1/holds", key=key)
    assert reply.status_code == 200, reply.text
    return list(reply.json()["contracts"])


# Disputes.


def test_a_dispute_is_listed_with_reason_person_and_time(either: Deployment, key: str, agent: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract)
    assert holds(either, key) == []
    moved(either, agent, contract, "dispute", {"reason": "worth more"})
    (listed,) = holds(either, key)
    history = either.ask("GET", f"/v1/contracts/{contract}", key=key).json()["history"]
    (dispute,) = [move for move in history if move["operation"] == "dispute"]
    assert listed["on_hold"] == {
        "kind": "disputed",
        "reason": "worth more",
        "by": agent.partition(".")[0],
        "since": dispute["at"],
        "reasons": None,
    }
    shown = either.ask("GET", f"/v1/holds/{contract}", key=key).json()["on_hold"]
    (reason,) = shown["reasons"]
    assert (reason["code"], reason["evidence"]["paid"], reason["evidence"]["currency"]) == ("disputed", "0.07", "EUR")


def test_a_hold_shows_its_evidence(either: Deployment, key: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract, {"text": f"{REFERENCE} planted-one"})
    (listed,) = holds(either, key)
    assert (listed["on_hold"]["kind"], listed["on_hold"]["by"]) == ("held", None)
    reasons = either.ask("GET", f"/v1/holds/{contract}", key=key).json()["on_hold"]["reasons"]
    (leak,) = [one for one in reasons if one["about"] == ["canary_leak"]]
    assert (leak["code"], leak["evidence"]["canaries"]) == ("governance", ["planted-one"])


def test_a_hold_that_is_none_is_refused(either: Deployment, key: str, agent: str) -> None:
    contract = awarded(either, key)
    assert told(either.ask("GET", f"/v1/holds/{contract}", key=key)) == (409, "not_on_hold")
    assert either.ask("GET", f"/v1/holds/con_{'0' * 34}", key=key).status_code == 404
    assert either.ask("GET", f"/v1/holds/{contract}", key=agent).status_code == 403


def test_a_dispute_is_settled_on_an_amount_once(either: Deployment, tenant: str, key: str) -> None:
    contract = awarded(either, key)
    completed(either, key, contract)
    moved(either, key, contract, "dispute", {"reason": "too much"})
    decision = {"decision": "adjust", "reason": "half", "amount": "0.033333", "currency": "EUR"}
    first = moved(either, key, contract, "resolve", decision, headers={"Idempotency-Key": "k"})
    assert first.status_code == 200, first.text
    paid = first.json()["settlement"]
    # Half-even: 15 % of 33,333 millionths is 4,999.95.
    assert (paid["total"], paid["fee"], paid["payout"], paid["number"]) == ("0.033333", "0.005", "0.028333", 2)
    assert moved(either, key, contract, "resolve", decision, headers={"Idempotency-Key": "k"}).json() == first.json()
    assert moved(either, key, contract, "resolve", decision).json() == first.json()
    assert told(moved(either, key, contract, "resolve", {**decision, "amount": 0.03})) == (409, "wrong_state")
    sound(either, tenant)
    bundle = either.ask("GET", f"/v1/outcomes/{first.json()['outcome']['outcome_id']}/bundle", key=key)
    assert verify_bundle(bundle.content).failed is None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"amount": "0.070001"}, (422, "above_paid")),
        ({"amount": "0.01", "currency": "USD"}, (422, "wrong_currency")),
        ({"amount": -1}, (400, "bad_amount")),
        ({"amount": "NaN"}, (400, "bad_amount")),
        ({"amount": 0.0000001}, (400, "bad_amount")),
        ({"amount": True}, (400, "bad_body")),
        ({"amount": None}, (422, "amount_missing")),
        ({"currency": "EUR"}, (422, "amount_missing")),
        ({"decision": "void", "amount": 0.01}, (422, "amount_unexpected")),
    ],
)
def test_an_amount_that_cannot_be_settled_on_is_refused(
    either: Deployment, tenant: str, key: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    contract = awarded(either, key)
    completed(either, key, contract)
    moved(either, key, contract, "dispute", {"reason": "too much"})
    before = either.ask("GET", f"/v1/contracts/{contract}", key=key).json()
    reply = moved(either, key, contract, "resolve", {"decision": "adjust", "reason": "half", **body})
    assert (reply.status_code, code_of(reply)) == expected
    assert either.ask("GET", f"/v1/contracts/{contract}", key=key).json() == before
    sound(either, tenant)


# Time.


class Timed:
    """A service whose clock the test moves, with an operator and an agent."""

    def __init__(self, deploy: Deploy) -> None:
        self.now = datetime(2026, 5, 4, 12, tzinfo=UTC)
        self.service = deploy(surroundings=ClockAndEntropy(clock=lambda: self.now))
        self.key = self.service.key(Role.OPERATOR, "acme")
        self.agent = self.service.key(Role.AGENT, "acme")

    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def award(self, **changed: Any) -> tuple[str, str]:
        """A contract and its work."""
        work = given(self.service, self.key, **{**TIMED, **changed})
        reply = self.service.ask("POST", "/v1/contracts", key=self.key, json={"work_id": work, "agent_id": "robot"})
        return str(reply.json()["id"]), work

    def read(self, work: str, key: str | None = None) -> Any:
        reply = self.service.ask("GET", f"/v1/work/{work}", key=key or self.agent)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def show(self, contract: str, key: str | None = None) -> Any:
        return self.service.ask("GET", f"/v1/contracts/{contract}", key=key or self.key).json()

    def hand_in(self, contract: str, **metadata: Any) -> Any:
        body = {"output": {"text": "four words of it"}, "metadata": metadata}
        reply = moved(self.service, self.agent, contract, "complete", body)
        assert reply.status_code == 200, reply.text
        return reply.json()


@pytest.fixture
def timed(deploy: Deploy) -> Timed:
    return Timed(deploy)


def test_a_late_start_earns_no_bonus(timed: Timed) -> None:
    contract, work = timed.award()
    assert timed.read(work)["latency_from"] == "input"
    timed.wait(600)
    moved(timed.service, timed.agent, contract, "start")
    timed.wait(1)
    assert timed.hand_in(contract, duration_ms=900)["total"] == "0.05"


def test_time_counts_from_the_first_read_and_can_be_proven(timed: Timed) -> None:
    contract, work = timed.award()
    timed.wait(3600)
    timed.read(work, timed.key)
    assert timed.show(contract)["input_read_at"] is None
    timed.read(work)
    timed.wait(1)
    timed.read(work)
    done = timed.hand_in(contract)
    assert done["total"] == "0.07"
    assert done["latency_basis"] == {"event": "input_read", "at": "2026-05-04T13:00:00Z"}
    shown = timed.show(contract)
    assert (shown["input_read_at"], shown["latency_basis"]) == ("2026-05-04T13:00:00Z", done["latency_basis"])
    assert shown["terms"]["latency_from"] == "input"
    path = f"/v1/outcomes/{done['outcome_id']}/bundle"
    found = verify_bundle(timed.service.ask("GET", path, key=timed.key).content)
    assert found.failed is None
    assert AuditStep.SETTLEMENT in {step.step for step in found.steps}


def test_terms_over_http_may_count_from_the_start(timed: Timed) -> None:
    terms = {"cpc_rate": "0.05", "latency_from": "start"}
    contract, work = timed.award(terms=terms)
    timed.read(work)
    timed.wait(600)
    moved(timed.service, timed.agent, contract, "start")
    timed.wait(1)
    assert timed.hand_in(contract)["total"] == "0.07"
    assert timed.show(contract, timed.agent)["latency_basis"]["event"] == "start"


def test_terms_over_http_may_price_tokens(timed: Timed) -> None:
    rates = {"input_per_million": 3, "output_per_million": "15", "cached_per_million": 0.3}
    terms = {"cpc_rate": "0.05", "token_rates": rates, "max_token_cost": "0.5"}
    work = given(timed.service, timed.key, **TIMED, terms=terms)
    kept = timed.read(work, timed.key)["terms"]
    assert kept["token_rates"] == {"input_per_million": "3", "output_per_million": "15", "cached_per_million": "0.3"}
    assert (kept["max_token_cost"], kept["rules"][-1]) == ("0.5", "tokens")
