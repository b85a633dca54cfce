"""`/v1/verify`: what an agent may not choose, and how large requests are judged."""

from typing import Any

import pytest
from tests.api.conftest import CRITERIA, Deployment, code_of

from meruit.model.access import Role

OUTPUT = {"output": {"text": "the cat sat"}}


@pytest.fixture
def operator(either: Deployment, tenant: str) -> str:
    key = either.key(Role.OPERATOR, tenant)
    assert either.ask("POST", "/v1/criteria", key=key, json={"name": "job", "criteria": CRITERIA}).status_code == 201
    return key


@pytest.mark.parametrize(
    "more",
    [
        {"criteria": "job", "record": False},
        {"criteria": "job@1"},
        {"criteria": "job", "contract_id": "deal-7"},
        {"criteria": "job", "consumer_id": "acme"},
    ],
    ids=["no trace", "an older version", "another's contract", "another's consumer"],
)
@pytest.mark.usefixtures("operator")
def test_an_agent_cannot_choose_how_it_is_judged(either: Deployment, tenant: str, more: dict[str, Any]) -> None:
    agent = either.key(Role.AGENT, tenant)
    assert either.ask("POST", "/v1/verify", key=agent, json={**OUTPUT, **more}).status_code == 403
    assert either.ask("POST", "/v1/verify", key=agent, json={**OUTPUT, "criteria": "job"}).status_code == 200


def test_an_item_of_a_large_batch_is_judged_outside_the_event_loop(
    either: Deployment, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    registrar = either.service.registrar
    judge = registrar.judge

    async def seen(ready: Any, submission: Any, tenant: str) -> Any:
        sizes.append(submission.size)
        return await judge(ready, submission, tenant)

    monkeypatch.setattr(registrar, "judge", seen)
    items = [{"output": {"text": "word " * 20_000}}, *[{"output": {"text": "a"}}] * 9]
    asked = {"criteria": "job", "items": items}
    assert either.ask("POST", "/v1/verify/batch", key=operator, json=asked).status_code == 200
    assert len(sizes) == 10
    assert min(sizes) > 100_000


def test_a_large_body_is_read_as_strictly_as_a_small_one(either: Deployment, operator: str) -> None:
    padding = "x" * 100_000
    body = f'{{"criteria": "job", "output": {{"text": "a", "text": "b", "padding": "{padding}"}}}}'
    reply = either.ask(
        "POST", "/v1/verify", key=operator, content=body.encode(), headers={"Content-Type": "application/json"}
    )
    assert (reply.status_code, code_of(reply), "'text'" in reply.json()["detail"]) == (400, "bad_body", True)
