"""What a red team found, and what holds since."""

from typing import Any

import pytest
from tests.api.conftest import CRITERIA, WORK, Deploy, Deployment, code_of

from meruit.api.routes import events
from meruit.model.access import Role
from meruit.store import log as audit
from meruit.store.keys import Revoke

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


def test_a_neighbours_wrong_keys_keep_no_right_one_out(deploy: Deploy) -> None:
    deployment = deploy()
    right = deployment.key(Role.OPERATOR)
    wrong = f"mk_{'0' * 12}.{'A' * 43}"
    seen = [deployment.ask("GET", "/v1/outcomes", key=wrong).status_code for _ in range(15)]
    assert (seen[0], seen[-1]) == (401, 429)
    deployment.service.authenticator.clear_cache()
    assert deployment.ask("GET", "/v1/outcomes", key=right).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "8.8.8.8"},
        {"Forwarded": "for=8.8.8.8"},
        {"Via": "1.1 proxy"},
        {"X-Forwarded-Host": "example.org"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Host": "127.0.0.1:80@example.org"},
        {"Host": ""},
    ],
    ids=str,
)
def test_without_keys_nobody_is_served_for_somebody_else(deploy: Deploy, headers: dict[str, str]) -> None:
    deployment = deploy()
    assert deployment.ask("GET", "/v1/outcomes", headers=headers).status_code == 401
    assert deployment.ask("GET", "/v1/outcomes", headers={"Sec-Fetch-Site": "none"}).status_code == 200


def test_an_item_of_a_large_batch_is_judged_beside_the_loop(
    either: Deployment, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    registrar = either.service.registrar
    judge = registrar.judge

    async def seen(ready: Any, submission: Any) -> Any:
        sizes.append(submission.size)
        return await judge(ready, submission)

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


def test_a_contract_too_long_for_a_bundle_is_told_as_such(
    either: Deployment, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_WINDOW", 4)
    asked = {**WORK, "criteria": "job", "contract_id": "deal-7"}
    ids = [either.ask("POST", "/v1/verify", key=operator, json=asked).json()["outcome_id"] for _ in range(3)]
    reply = either.ask("GET", f"/v1/outcomes/{ids[0]}/bundle", key=operator)
    assert (reply.status_code, code_of(reply)) == (409, "too_many_entries")


def test_a_stream_ends_with_its_key(either: Deployment, tenant: str, operator: str) -> None:
    listening = either.key(Role.AUDITOR, tenant)

    said: list[bytes] = []

    def revoke(body: bytes) -> bool:
        said.append(body)
        if len(said) == 1:
            either.store.recorder.write(Revoke(listening.partition(".")[0], tenant))
            either.service.authenticator.clear_cache()
            either.store.recorder.write(_tell(tenant))
        # The second thing that is sent is the end of the answer.
        return len(said) > 1

    reply = either.follow("/v1/events?after=0", revoke, key=listening)
    assert reply.content == b": following\n\n"
    assert either.service.open_streams[listening.partition(".")[0]] == 0


def _tell(tenant: str) -> Any:
    from meruit.model.events import EventType

    return lambda writing: writing.emit(tenant, EventType.CRITERIA_REGISTERED, "s", "k", {"name": "n"})


def test_a_key_follows_so_many_streams_at_most(
    either: Deployment, operator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_OPEN_STREAMS", 1)
    either.service.open_streams[operator.partition(".")[0]] += 1
    try:
        assert either.ask("GET", "/v1/events", key=operator).status_code == 429
    finally:
        either.service.open_streams[operator.partition(".")[0]] -= 1
