"""`/v1/agent-runs`: queued here, driven by a worker elsewhere, and shown to each as far as it is theirs to see."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from tests.api.conftest import Deployment, code_of, new_tenant
from tests.cli.scripted_agents import EVIDENCE, Doubted, agents

from meruit.errors import VerificationWaiting
from meruit.gate.gate import Gate
from meruit.gate.runner.engine import AgentRoster
from meruit.gate.runner.local import InlineEngine
from meruit.gate.store import read as agent_reading
from meruit.model.access import Role
from meruit.model.chat import Usage
from meruit.model.time import to_micros

PAGE = 2


class Desk(NamedTuple):
    """One tenant's keys, on a service that all share."""

    deployment: Deployment
    tenant: str
    operator: str
    agent: str
    """The key of the agent `writer`."""

    def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        return self.deployment.ask(method, f"/v1/agent-runs{path}", key=key or self.operator, **options)

    def read(self, path: str, key: str | None = None) -> Any:
        reply = self.ask("GET", path, key)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def queue(self, agent: str, **more: Any) -> str:
        reply = self.ask("POST", "", json={"agent": agent, "query": "count", **more})
        assert reply.status_code == 201, reply.text
        return str(reply.json()["id"])

    def work(self) -> None:
        """Drive what is queued, in a loop of its own as another process would."""
        engine = InlineEngine(self.deployment.store, AgentRoster(agents))
        asyncio.run(engine.serve(asyncio.Event(), until_idle=True))


@pytest.fixture
def desk(deployment: Deployment) -> Desk:
    tenant = new_tenant()
    operator = deployment.key(Role.OPERATOR, tenant)
    return Desk(deployment, tenant, operator, deployment.key(Role.AGENT, tenant, agent_id="writer"))


# From the queue to the result


def test_a_run_has_the_budget_of_its_agent(desk: Desk) -> None:
    run_id = desk.queue("hasty")
    desk.work()
    run = desk.read(f"/{run_id}")
    assert (run["status"], run["ending"]) == ("failed", "attempts")
    assert (run["verification"]["attempts_used"], run["verification"]["limits"]["max_attempts"]) == (2, 2)


def test_a_run_is_queued_driven_and_read_with_all_that_became_of_it(desk: Desk) -> None:
    run_id = desk.queue("writer", payload={"a": 1}, labels={"case": "7"}, max_seconds=60)
    queued = desk.read(f"/{run_id}")
    assert (queued["status"], queued["has_worker"], queued["submissions"]) == ("queued", False, [])
    assert queued["request"]["labels"] == {"case": "7"}
    desk.work()
    found = desk.read(f"/{run_id}")
    assert (found["status"], found["attempts_used"], found["max_attempts"]) == ("completed", 2, 5)
    assert found["result"] == {"number": 3, "checked_against": EVIDENCE}
    assert [(one["number"], one["outcome"], one["counted"], one["feedback"]) for one in found["submissions"]] == [
        (1, "rejected", True, None),
        (2, "rejected", True, None),
        (3, "passed", False, None),
    ]
    assert found["verification"]["ended"] == "passed"
    one = desk.read(f"/{run_id}/submissions/1")
    assert one["candidate"] == {"n": 1}
    assert one["said"] == {
        "outcome": "rejected",
        "message": "1 is too small",
        "code": "small",
        "retryable": True,
        "metadata": {"evidence": EVIDENCE},
    }
    assert one["feedback"].startswith('<verification_rejected code="small"')
    assert desk.ask("GET", f"/{run_id}/submissions/4").status_code == 404


def test_the_runs_own_budget_ends_it(desk: Desk) -> None:
    run_id = desk.queue("writer", max_attempts=1)
    desk.work()
    found = desk.read(f"/{run_id}")
    assert (found["status"], found["ending"], found["attempts_used"]) == ("failed", "attempts", 1)


def test_a_team_shows_how_its_members_stand(desk: Desk) -> None:
    run_id, lost = desk.queue("pair"), desk.queue("lost")
    desk.work()
    members = desk.read(f"/{run_id}")["members"]
    assert [(one["item"], one["signal"], one["id"]) for one in members] == [
        ("first", "success", f"{run_id}.first"),
        ("second", "success", f"{run_id}.second"),
    ]
    assert [one["signal"] for one in desk.read(f"/{lost}")["members"]] == ["failure"]
    assert desk.read(f"/{run_id}.first")["parent_id"] == run_id
    listed = desk.read(f"?parent={run_id}")["agent_runs"]
    assert {one["item"] for one in listed} == {"first", "second"}
    subjects = {one["subject"] for one in desk.read(f"/{run_id}/events")["events"]}
    assert subjects == {run_id, f"{run_id}.first", f"{run_id}.second"}


def test_a_run_waits_for_what_others_hand_in(desk: Desk) -> None:
    run_id = desk.queue("asker")
    desk.work()
    waits = desk.read(f"/{run_id}")
    assert (waits["status"], waits["waiting_for"], waits["note"]) == ("waiting", "1.0", "a person's word")
    wrong = desk.ask("POST", f"/{run_id}/resume", json={"key": "2.0", "value": 1})
    assert (wrong.status_code, code_of(wrong)) == (409, "wrong_state")
    given = {"key": "1.0", "value": {"ok": True}}
    assert desk.ask("POST", f"/{run_id}/resume", json=given).json()["status"] == "queued"
    assert desk.ask("POST", f"/{run_id}/resume", json=given).status_code == 200
    assert desk.ask("POST", f"/{run_id}/resume", json={"key": "1.0", "value": None}).status_code == 409
    desk.work()
    assert desk.read(f"/{run_id}")["status"] == "completed"
    assert desk.ask("POST", f"/{run_id}/resume", json={"key": "9.0", "value": 1}).status_code == 409


def test_a_verifier_waits_for_an_answer_over_http(desk: Desk) -> None:
    run_id = desk.queue("the doubter")
    desk.work()
    waits = desk.read(f"/{run_id}")
    assert (waits["status"], waits["waiting_for"], waits["note"]) == ("waiting", "verify:1:0", "is 1 right?")
    assert (waits["attempts_used"], waits["submissions"]) == (0, [])
    given = {"key": "verify:1:0", "value": "yes"}
    for _ in range(2):
        assert desk.ask("POST", f"/{run_id}/resume", json=given).status_code == 200
    other = desk.ask("POST", f"/{run_id}/resume", json={**given, "value": "no"})
    assert (other.status_code, code_of(other)) == (409, "wrong_state")
    desk.work()
    found = desk.read(f"/{run_id}")
    assert (found["status"], found["result"], found["attempts_used"]) == ("completed", 1, 0)


def test_a_run_in_a_hosts_own_loop_waits_for_an_answer_over_http(desk: Desk) -> None:
    store = desk.deployment.store
    gate = Gate(Doubted, store=store, tenant=desk.tenant, run_id="r", agent="bridged", query="count")
    with pytest.raises(VerificationWaiting):
        asyncio.run(gate.submit({"n": 1}, usage=Usage(7, 1, 0, 1)))
    run = desk.read("/r")
    assert (run["status"], run["waiting_for"], run["is_hosted"]) == ("waiting", "verify:1", True)
    assert (run["request"]["query"], run["usage"]["input_tokens"]) == ("count", 7)
    assert desk.ask("POST", "/r/resume", json={"value": "no"}).json()["status"] == "running"
    assert desk.read("")["agents_without_worker"] == []
    assert asyncio.run(gate.resume()).attempts_used == 1  # type: ignore[union-attr]


def test_what_a_run_waits_for_needs_no_name(desk: Desk) -> None:
    run_id = desk.queue("asker")
    desk.work()
    given = {"value": "yes"}
    assert desk.ask("POST", f"/{run_id}/resume", json=given).json()["status"] == "queued"
    again = desk.ask("POST", f"/{run_id}/resume", json=given)
    assert (again.status_code, code_of(again)) == (409, "wrong_state")
    desk.work()
    assert desk.read(f"/{run_id}")["status"] == "completed"
    assert desk.ask("POST", "/run_nothing/resume", json=given).status_code == 404


def test_a_team_without_a_budget_shows_none(desk: Desk) -> None:
    run_id = desk.queue("pair")
    desk.work()
    assert (desk.read(f"/{run_id}")["attempts_used"], desk.read(f"/{run_id}")["max_attempts"]) == (2, None)
    budgeted = desk.queue("pair", max_attempts=4)
    desk.work()
    assert desk.read(f"/{budgeted}")["max_attempts"] == 4


def test_a_queued_run_is_cancelled_at_once_and_for_good(desk: Desk) -> None:
    run_id = desk.queue("endless")
    assert desk.ask("POST", f"/{run_id}/cancel").json()["status"] == "cancelled"
    assert desk.ask("POST", f"/{run_id}/cancel").json()["status"] == "cancelled"
    desk.work()
    assert desk.read(f"/{run_id}")["status"] == "cancelled"
    assert desk.ask("POST", f"/{run_id}/cancel", json={"reason": "x"}).status_code == 400


@contextmanager
def at_work(desk: Desk) -> Iterator[None]:
    """A worker in the service's own loop, for as long as it is wanted."""

    async def begin() -> tuple[asyncio.Event, asyncio.Task[None]]:
        stopping = asyncio.Event()
        engine = InlineEngine(desk.deployment.store, AgentRoster(agents))
        return stopping, asyncio.get_running_loop().create_task(engine.serve(stopping))

    def living() -> list[agent_reading.LiveWorker]:
        with desk.deployment.store.database.reading() as connection:
            return agent_reading.live_workers(connection, to_micros(desk.deployment.store.surroundings.clock()))

    async def end() -> None:
        stopping.set()
        await working

    stopping, working = desk.deployment.run(begin())
    while not living():
        time.sleep(0.01)
    try:
        yield
    finally:
        desk.deployment.run(end())


def test_one_run_is_followed_as_it_goes_and_a_running_one_is_stopped(desk: Desk) -> None:
    other, run_id = desk.queue("hasty"), desk.queue("endless")

    def until(kind: bytes) -> str:
        path = f"/v1/events?subject={run_id}&after=0"
        return desk.deployment.follow(path, lambda body: kind in body, key=desk.operator).text

    with at_work(desk):
        until(b"event: agent_run.started")
        assert desk.read(f"/{run_id}")["has_worker"]
        assert desk.ask("POST", f"/{run_id}/cancel").status_code == 200
        told = until(b"event: agent_run.cancelled")
    assert other not in told
    events = [json.loads(line.removeprefix("data: ")) for line in told.splitlines() if line.startswith("data: ")]
    assert [one["event_type"].partition(".")[2] for one in events] == ["queued", "started", "cancelled"]


def test_a_name_that_no_worker_knows_is_refused_while_any_works(desk: Desk) -> None:
    early: dict[str, Any] = {"json": {"agent": "wirter", "query": "count"}, "headers": {"Idempotency-Key": "early"}}
    waiting = desk.ask("POST", "", **early).json()["id"]
    assert desk.read("")["agents_without_worker"] == ["wirter"]
    with at_work(desk):
        reply = desk.ask("POST", "", json={"agent": "wirter", "query": "count"})
        assert (reply.status_code, code_of(reply)) == (422, "unknown_agent")
        assert "'writer'" in reply.json()["detail"]
        assert desk.ask("POST", "", **early).json()["id"] == waiting
        known = desk.queue("endless")
        page = desk.read("")
        assert (page["agents_without_worker"], page["agent_runs"][0]["id"]) == (["wirter"], known)
        desk.ask("POST", f"/{known}/cancel")
    assert desk.read("", desk.agent)["agents_without_worker"] == []


# What is asked for twice, or wrongly


def test_a_key_used_twice_queues_one_run(desk: Desk) -> None:
    body = {"agent": "nobody", "query": "count"}
    once = {"Idempotency-Key": "mine"}
    first = desk.ask("POST", "", json=body, headers=once)
    again = desk.ask("POST", "", json=body, headers=once)
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert len(desk.read("")["agent_runs"]) == 1
    assert desk.ask("POST", "", json={**body, "query": "more"}, headers=once).status_code == 422


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"query": "count"}, "agent"),
        ({"agent": "writer"}, "query"),
        ({"query": ""}, "query"),
        ({"query": "x" * 200_001}, "query"),
        ({"agent": ""}, "agent"),
        ({"agent": "a\nb"}, "agent"),
        ({"payload": [1]}, "payload"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": True}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_seconds": -1}, "max_seconds"),
        ({"max_seconds": 1e9}, "max_seconds"),
        ({"labels": {"a": 1}}, "labels"),
        ({"labels": {str(number): "a" for number in range(51)}}, "labels"),
        ({"max_attempt": 1}, "max_attempt"),
    ],
)
def test_an_invalid_request_is_refused_by_its_field(desk: Desk, body: dict[str, Any], where: str) -> None:
    whole = body if where in ("agent", "query") and len(body) == 1 and where not in body else None
    reply = desk.ask("POST", "", json=whole or {"agent": "writer", "query": "count", **body})
    assert reply.status_code == 400
    assert where in reply.text
    assert desk.read("")["agent_runs"] == []


@pytest.mark.parametrize("seconds", [b"NaN", b"Infinity", b"1e999"])
def test_a_time_that_is_not_a_number_is_refused(desk: Desk, seconds: bytes) -> None:
    body = b'{"agent": "writer", "query": "count", "max_seconds": %s}' % seconds
    assert desk.ask("POST", "", content=body, headers={"Content-Type": "application/json"}).status_code == 400


def test_more_than_a_body_may_hold_is_refused(desk: Desk) -> None:
    reply = desk.ask("POST", "", json={"agent": "writer", "query": "count", "payload": {"a": "x" * 1_100_000}})
    assert reply.status_code == 413


def test_runs_are_listed_by_status_and_agent_page_by_page(desk: Desk) -> None:
    made = [desk.queue("nobody" if number % 2 else "somebody") for number in range(5)]
    assert [one["id"] for one in desk.read("?agent=nobody")["agent_runs"]] == [made[3], made[1]]
    desk.ask("POST", f"/{made[0]}/cancel")
    assert [one["id"] for one in desk.read("?status=cancelled")["agent_runs"]] == [made[0]]
    found, before = list[str](), ""
    while True:
        page = desk.read(f"?limit={PAGE}{before}")
        found += [one["id"] for one in page["agent_runs"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == made[::-1]
    wrong = desk.ask("GET", "?status=lost")
    assert (wrong.status_code, code_of(wrong)) == (400, "invalid")
    assert wrong.json()["detail"] == "status: one of queued, running, waiting, completed, failed, cancelled"
    assert desk.ask("GET", "?stats=queued").status_code == 400


def test_events_come_page_by_page(desk: Desk) -> None:
    run_id = desk.queue("writer")
    desk.work()
    whole = desk.read(f"/{run_id}/events")["events"]
    assert whole[0]["event"]["event_type"] == "agent_run.queued"
    assert whole[-1]["event"]["event_type"] == "agent_run.completed"
    first = desk.read(f"/{run_id}/events?limit={PAGE}")
    rest = desk.read(f"/{run_id}/events?after={first['next']}")
    assert [*first["events"], *rest["events"]] == whole


# Who sees what


def test_an_agent_sees_of_its_runs_what_its_model_saw(desk: Desk) -> None:
    mine, others = desk.queue("writer", payload={"reference": EVIDENCE}), desk.queue("hasty")
    desk.work()
    found = desk.ask("GET", f"/{mine}", desk.agent)
    assert (found.status_code, found.json()["status"], found.json()["query"]) == (200, "completed", "count")
    for hidden in ("result", "request", "error", "verification", "members", "has_worker", "created_by"):
        assert hidden not in found.json()
    assert EVIDENCE not in found.text
    one = desk.read(f"/{mine}/submissions/1", desk.agent)
    assert (one["candidate"], "said" in one) == ({"n": 1}, False)
    # The version may be a digest of private criteria, which could be guessed at.
    for shown in (one, *found.json()["submissions"]):
        assert not {"verifier_version", "outcome_id"} & shown.keys()
    for place in (f"/{others}", f"/{others}/submissions/1"):
        assert desk.ask("GET", place, desk.agent).status_code == 404
    assert [one["id"] for one in desk.read("", desk.agent)["agent_runs"]] == [mine]
    assert desk.read("?agent=hasty", desk.agent) == {"agent_runs": [], "next": None, "agents_without_worker": []}
    assert [one["id"] for one in desk.read("?agent=writer", desk.agent)["agent_runs"]] == [mine]
    for method, place in (("POST", ""), ("POST", f"/{mine}/cancel"), ("GET", f"/{mine}/events")):
        assert desk.ask(method, place, desk.agent, json={}).status_code == 403


def test_prometheus_counts_what_waits_and_what_happened(desk: Desk) -> None:
    desk.queue("nobody-knows-it")
    text = desk.deployment.ask("GET", "/metrics", key=desk.deployment.key(Role.OPERATOR)).text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    queued = f'meruit_agent_runs{{status="queued",tenant="{desk.tenant}"}}'
    assert float(lines[queued]) >= 1
