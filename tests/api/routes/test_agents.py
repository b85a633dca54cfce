"""Trust over HTTP: computed from records, for those who may see them."""

from typing import Any

import pytest
from tests.api.conftest import Deployment
from tests.api.routes.test_contracts import awarded, completed, told

from meruit.model.access import Role


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def trust(deployment: Deployment, key: str, **params: Any) -> dict[str, Any]:
    reply = deployment.ask("GET", "/v1/trust", key=key, params=params)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_trust_is_computed_from_recorded_work(either: Deployment, key: str) -> None:
    completed(either, key, awarded(either, key))
    completed(either, key, awarded(either, key), {"text": "nothing of the kind"})
    awarded(either, key)
    found = trust(either, key, agent_id="robot")
    assert (found["exact"], found["score"], found["records"]) == ("1/2", 0.5, "few")
    assert found["inputs"]["left_out"]["open"] == 1
    assert found["method"]["name"] == "delivered_share"
    assert trust(either, key, agent_id="robot", until="2020-01-01T00:00:00Z")["score"] is None


def test_an_agent_sees_its_own_trust_alone(either: Deployment, tenant: str, key: str) -> None:
    completed(either, key, awarded(either, key))
    agent, other = either.key(Role.AGENT, tenant), either.key(Role.AGENT, tenant, agent_id="other")
    assert trust(either, agent) == trust(either, agent, agent_id="robot") == trust(either, key, agent_id="robot")
    assert trust(either, other)["score"] is None
    reply = either.ask("GET", "/v1/trust", key=other, params={"agent_id": "robot"})
    assert told(reply) == (403, "forbidden")
    assert told(either.ask("GET", "/v1/trust", key=key)) == (400, "invalid")


def test_tenants_do_not_see_each_others_agents(either: Deployment, tenant: str, key: str) -> None:
    completed(either, key, awarded(either, key))
    stranger = either.key(Role.AUDITOR, f"{tenant}-2")
    assert trust(either, stranger, agent_id="robot")["records"] == "none"


def test_what_an_agent_hands_in_without_a_contract_does_not_count(either: Deployment, tenant: str, key: str) -> None:
    criteria = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}
    made = either.ask("POST", "/v1/criteria", key=key, json={"name": "easy", "criteria": criteria})
    assert made.status_code == 201, made.text
    agent = either.key(Role.AGENT, tenant)
    reply = either.ask("POST", "/v1/verify", key=agent, json={"criteria": "easy", "output": {"text": "a b"}})
    assert reply.status_code == 200, reply.text
    found = trust(either, key, agent_id="robot")
    assert (found["score"], found["inputs"]["left_out"]["self_submitted"]) == (None, 1)
