"""A request that comes twice has one effect and one answer, whoever was quicker and whatever was restarted."""

import asyncio
from typing import Any

import httpx
import msgspec
import pytest
from sqlalchemy import select
from tests.api.conftest import CRITERIA, ROUGE, WORK, Deploy, Deployment, code_of, new_tenant

from meruit.api.idempotency import HEADER, REPLAYED
from meruit.app import build_engine
from meruit.config import Settings
from meruit.errors import IdempotencyConflict, KeyInUse
from meruit.model.access import Role
from meruit.outcomes.service import JudgedWork, Registrar, Submission
from meruit.outcomes.store.erase import Erase
from meruit.store import idempotency as stored_replies
from meruit.store import tables
from meruit.store.idempotency import (
    ClaimKey,
    CompleteKey,
    IdempotentReplay,
    IdempotentRequest,
    IdempotentWrite,
    ReleaseKey,
)
from meruit.store.location import Location
from meruit.verify.catalogue import CompiledCriteria

REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/verify": {**WORK, "criteria": CRITERIA},
    "/v1/verify/batch": {"items": [WORK, {"output": {}}], "criteria": CRITERIA},
    "/v1/criteria": {"name": "judged", "criteria": CRITERIA},
}


def changed(body: dict[str, Any]) -> dict[str, Any]:
    """The same request about something else."""
    return {**body, "criteria": {"criteria": [{**ROUGE, "threshold": 0.25}]}}


def post(deployment: Deployment, path: str, key: str, body: Any, once: str) -> httpx.Response:
    return deployment.ask("POST", path, key=key, json=body, headers={HEADER: once})


class Slow(Registrar):
    """Judges when it is told to, so that a test can ask meanwhile."""

    def __init__(self, registrar: Registrar) -> None:
        super().__init__(registrar.engine, registrar.store)
        self.begun, self.may_end = asyncio.Event(), asyncio.Event()

    async def judge(self, compiled: CompiledCriteria, submission: Submission, tenant: str = "default") -> JudgedWork:
        self.begun.set()
        await self.may_end.wait()
        return await super().judge(compiled, submission, tenant)


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


@pytest.mark.parametrize("path", REQUESTS)
def test_a_second_request_is_answered_like_the_first_and_does_nothing(either: Deployment, key: str, path: str) -> None:
    first = post(either, path, key, REQUESTS[path], "once")
    assert first.is_success
    assert REPLAYED not in first.headers
    before = either.rows()
    for _ in range(2):
        again = post(either, path, key, REQUESTS[path], "once")
        assert (again.status_code, again.content) == (first.status_code, first.content)
        assert again.headers[REPLAYED] == "true"
    assert either.rows() == before


@pytest.mark.parametrize("path", REQUESTS)
def test_a_key_is_for_one_request(either: Deployment, key: str, path: str) -> None:
    assert post(either, path, key, REQUESTS[path], "once").is_success
    before = either.rows()
    other = post(either, path, key, changed(REQUESTS[path]), "once")
    assert (other.status_code, code_of(other)) == (422, "idempotency_key_reused")
    assert either.rows() == before
    assert post(either, path, key, changed(REQUESTS[path]), "twice").is_success


def test_a_key_is_for_one_route_and_one_tenant(either: Deployment, key: str) -> None:
    for path, body in REQUESTS.items():
        expected = 200 if path == "/v1/verify" else 422
        assert post(either, path, key, body, "once").status_code == expected
    elsewhere = either.key(Role.OPERATOR, new_tenant())
    reply = post(either, "/v1/verify", elsewhere, REQUESTS["/v1/verify"], "once")
    assert (reply.status_code, REPLAYED in reply.headers) == (200, False)


def test_an_agent_is_not_answered_what_an_operator_was(deployment: Deployment, tenant: str) -> None:
    operator, agent = deployment.key(Role.OPERATOR, tenant), deployment.key(Role.AGENT, tenant)
    deployment.ask("POST", "/v1/criteria", key=operator, json=REQUESTS["/v1/criteria"])
    body = {"output": {}, "criteria": "judged"}
    assert post(deployment, "/v1/verify", operator, body, "once").status_code == 200
    reply = post(deployment, "/v1/verify", agent, body, "once")
    assert (reply.status_code, REPLAYED in reply.headers, "result" in reply.json()) == (200, False, False)


@pytest.mark.parametrize("path", REQUESTS)
def test_what_was_refused_may_be_tried_again_with_the_same_key(either: Deployment, key: str, path: str) -> None:
    broken = {**REQUESTS[path], "criteria": {"criteria": [{**ROUGE, "metric": "nothing"}]}}
    assert post(either, path, key, broken, "once").status_code == 400
    reply = post(either, path, key, REQUESTS[path], "once")
    assert reply.is_success
    assert REPLAYED not in reply.headers


def slowed(made: Deployment) -> Slow:
    """Let a service judge only when it is told to."""
    slow = Slow(made.service.registrar)
    # The application, the one place where routes find their service.
    made.app._app.service.state["service"] = msgspec.structs.replace(made.service, registrar=slow)
    return slow


@pytest.mark.parametrize("path", ["/v1/verify", "/v1/verify/batch"])
def test_of_two_requests_at_once_one_must_retry(deploy: Deploy, path: str) -> None:
    made = deploy()
    key = made.key(Role.OPERATOR)
    slow = slowed(made)
    request: dict[str, Any] = {"key": key, "json": REQUESTS[path], "headers": {HEADER: "once"}}

    async def both() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
        first = asyncio.create_task(made.asked("POST", path, **request))
        await slow.begun.wait()
        second = await made.asked("POST", path, **request)
        slow.may_end.set()
        return await first, second, await made.asked("POST", path, **request)

    first, second, third = made.run(both())
    assert (second.status_code, code_of(second)) == (409, "still_running")
    assert second.headers["retry-after"] == "1"
    assert first.status_code == 200
    assert (third.content, third.headers[REPLAYED]) == (first.content, "true")
    assert made.rows()["outcomes"] == len(REQUESTS[path].get("items", [1]))


def test_a_key_is_free_again_when_its_caller_has_left(deploy: Deploy) -> None:
    made = deploy()
    slow = slowed(made)
    key = made.key(Role.OPERATOR)
    request: dict[str, Any] = {"key": key, "json": REQUESTS["/v1/verify"], "headers": {HEADER: "once"}}

    async def left() -> httpx.Response:
        first = asyncio.create_task(made.asked("POST", "/v1/verify", **request))
        await slow.begun.wait()
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        slow.may_end.set()
        return await made.asked("POST", "/v1/verify", **request)

    reply = made.run(left())
    assert (reply.status_code, REPLAYED in reply.headers) == (200, False)


@pytest.mark.parametrize("path", REQUESTS)
def test_of_two_processes_one_has_the_effect(
    deploy: Deploy, store_location: Location, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Neither finds the key in the database before the other has written it."""
    first, second = deploy(store_location), deploy(store_location)
    key = first.key(Role.OPERATOR)
    said = list[httpx.Response]()
    write = second.store.recorder.record

    async def after_the_other(wish: Any, **options: Any) -> Any:
        # The service's own housekeeping writes too.
        if isinstance(wish, IdempotentWrite):
            said.append(await asyncio.to_thread(post, first, path, key, REQUESTS[path], "once"))
        return await write(wish, **options)

    monkeypatch.setattr(second.store.recorder, "record", after_the_other)
    late = post(second, path, key, REQUESTS[path], "once")
    assert said[0].is_success
    assert (late.status_code, late.content, late.headers[REPLAYED]) == (said[0].status_code, said[0].content, "true")
    assert first.rows()["outcomes"] == {"/v1/verify": 1, "/v1/verify/batch": 2, "/v1/criteria": 0}[path]

    async def after_another(wish: Any, **options: Any) -> Any:
        if isinstance(wish, IdempotentWrite):
            await asyncio.to_thread(post, first, path, key, changed(REQUESTS[path]), "other")
        return await write(wish, **options)

    monkeypatch.setattr(second.store.recorder, "record", after_another)
    before = first.rows()["log_leaves"]
    reply = post(second, path, key, REQUESTS[path], "other")
    assert (reply.status_code, code_of(reply)) == (422, "idempotency_key_reused")
    assert before < first.rows()["log_leaves"]


@pytest.mark.parametrize("path", REQUESTS)
def test_answers_outlive_the_process(deploy: Deploy, store_location: Location, path: str) -> None:
    first = deploy(store_location)
    key = first.key(Role.OPERATOR)
    told = post(first, path, key, REQUESTS[path], "once")
    before = first.rows()
    first.close()
    second = deploy(store_location)
    again = post(second, path, key, REQUESTS[path], "once")
    assert (again.status_code, again.content, again.headers[REPLAYED]) == (told.status_code, told.content, "true")
    assert post(second, path, key, changed(REQUESTS[path]), "once").status_code == 422
    assert second.rows() == before


def test_without_a_record_there_is_nothing_to_repeat(deployment: Deployment, tenant: str) -> None:
    key = deployment.key(Role.OPERATOR, tenant)
    body = {**REQUESTS["/v1/verify"], "record": False}
    before = deployment.rows()
    replies = [post(deployment, "/v1/verify", key, body, "once") for _ in range(2)]
    assert [REPLAYED in reply.headers for reply in replies] == [False, False]
    assert deployment.rows() == before


def test_what_is_kept_of_a_request_is_its_answer_and_a_hash(deployment: Deployment, tenant: str) -> None:
    key = deployment.key(Role.OPERATOR, tenant)
    reply = post(deployment, "/v1/verify", key, REQUESTS["/v1/verify"], "once")
    with deployment.store.database.reading() as connection:
        row = connection.execute(select(tables.idempotency).where(tables.idempotency.c.tenant == tenant)).one()
    assert (row.key, row.status, row.reply) == ("once", 200, reply.content)
    assert len(row.fingerprint) == 64


def test_an_agents_reply_is_forgotten_with_its_outcome(deployment: Deployment, tenant: str) -> None:
    operator, agent = deployment.key(Role.OPERATOR, tenant), deployment.key(Role.AGENT, tenant)
    deployment.ask("POST", "/v1/criteria", key=operator, json=REQUESTS["/v1/criteria"])
    body = {"output": {}, "criteria": "judged"}
    outcome = post(deployment, "/v1/verify", agent, body, "once").json()["outcome_id"]
    with deployment.store.database.reading() as connection:
        row = connection.execute(select(tables.idempotency).where(tables.idempotency.c.tenant == tenant)).one()
        kept = connection.execute(select(tables.outcomes.c.idempotency_key).where(tables.outcomes.c.id == outcome))
        assert row.key == kept.scalar_one() == "agent/robot once"
    deployment.store.recorder.write(Erase(tenant, outcome, "asked for"))
    again = post(deployment, "/v1/verify", agent, body, "once")
    assert (again.headers[REPLAYED], "score" in again.text) == ("true", False)


def test_an_agent_does_not_wait_for_another_with_its_key(deploy: Deploy) -> None:
    made = deploy()
    operator, agent = made.key(Role.OPERATOR), made.key(Role.AGENT)
    made.ask("POST", "/v1/criteria", key=operator, json=REQUESTS["/v1/criteria"])
    slow = slowed(made)
    request: dict[str, Any] = {"json": {"output": {}, "criteria": "judged"}, "headers": {HEADER: "once"}}

    async def both() -> list[httpx.Response]:
        first = asyncio.create_task(made.asked("POST", "/v1/verify", key=agent, **request))
        await slow.begun.wait()
        second = asyncio.create_task(made.asked("POST", "/v1/verify", key=operator, **request))
        same = await made.asked("POST", "/v1/verify", key=agent, **request)
        slow.may_end.set()
        return [await first, await second, same]

    assert [reply.status_code for reply in made.run(both())] == [200, 200, 409]


def test_settings_may_say_that_nothing_is_recorded(deploy: Deploy) -> None:
    settings = Settings.parse("verification: {store_outcomes: false}", "settings")
    made = deploy(using=build_engine(settings), settings=settings)
    key = made.key(Role.OPERATOR)
    criteria = {"criteria": [{**ROUGE, "metric": "one", "expr": "1.0"}]}
    assert made.ask("POST", "/v1/verify", key=key, json={**WORK, "criteria": criteria}).json()["recorded"] is False
    body = {**WORK, "criteria": criteria, "record": True}
    assert made.ask("POST", "/v1/verify", key=key, json=body).json()["recorded"] is True


def test_two_idempotency_keys_are_refused(either: Deployment, key: str) -> None:
    twice = [(HEADER, "one"), (HEADER, "two")]
    reply = either.ask("POST", "/v1/verify", key=key, json=REQUESTS["/v1/verify"], headers=twice)
    assert (reply.status_code, code_of(reply)) == (400, "bad_idempotency_key")


def test_a_reserved_key_is_in_use_in_every_process(either: Deployment, tenant: str) -> None:
    recorder, once = either.service.store.recorder, IdempotentRequest("rejudged", "f" * 64, 200)
    assert recorder.write(ClaimKey(tenant, once)) is None
    with pytest.raises(KeyInUse) as refused:
        recorder.write(ClaimKey(tenant, once))
    assert (refused.value.code, refused.value.status) == ("still_running", 409)
    with pytest.raises(IdempotencyConflict):
        recorder.write(ClaimKey(tenant, IdempotentRequest("rejudged", "0" * 64, 200)))
    # A failed request frees it, a done one keeps its reply.
    recorder.write(ReleaseKey(tenant, once))
    assert recorder.write(ClaimKey(tenant, once)) is None
    recorder.write(CompleteKey(tenant, once, b"{}"))
    recorder.write(ReleaseKey(tenant, once))
    assert recorder.write(ClaimKey(tenant, once)) == IdempotentReplay(200, b"{}")


def test_a_key_whose_process_died_is_free_again(
    either: Deployment, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder, once = either.service.store.recorder, IdempotentRequest("left", "f" * 64, 200)
    recorder.write(ClaimKey(tenant, once))
    monkeypatch.setattr(stored_replies, "CLAIM_S", 0)
    assert recorder.write(ClaimKey(tenant, once)) is None
