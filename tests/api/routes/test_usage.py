"""`/v1/usage/runs`: recorded whole or as they go, looked at elsewhere, and accepted by people."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.api.conftest import Deploy, Deployment, code_of, new_tenant
from tests.api.routes.test_contracts import until
from tests.usage.metering import BEGUN, ENDED, attempt

from meruit.errors import FetchError
from meruit.model.access import Role
from meruit.model.metering import MAX_STEPS, PriceQuote, RunCosts
from meruit.model.usage import Observation, Tokens
from meruit.store.location import Location
from meruit.store.store import ClockAndEntropy
from meruit.usage.store.record_observations import RecordObservations, RunObservation
from meruit.usage.store.record_prices import RecordPrices

BEGAN, OVER = BEGUN.isoformat(), ENDED.isoformat()
CALL: dict[str, Any] = {"at": BEGAN, "model": "gpt-4o", "tokens": {"input": 10, "output": 5}}
STEP: dict[str, Any] = {"id": "plan", "calls": [CALL]}
WHOLE: dict[str, Any] = {"framework": "f", "started_at": BEGAN, "ended_at": OVER, "steps": [STEP]}
MOVES: dict[str, Any] = {"steps": STEP, "end": {}, "acknowledge": {"reason": "seen"}, "look": {}}
OPENAI = {"prompt_tokens": 100, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 60}}
ANTHROPIC = {"input_tokens": 40, "output_tokens": 20, "cache_read_input_tokens": 60, "cache_creation_input_tokens": 3}
SECRET = "sk-proj-" + "x" * 20

_names = count(1)


class Desk(NamedTuple):
    """One tenant's keys, on a service that all share."""

    deployment: Deployment
    tenant: str
    operator: str

    def ask(self, method: str, path: str, key: str | None = None, **options: Any) -> httpx.Response:
        return self.deployment.ask(method, f"/v1/usage/runs{path}", key=key or self.operator, **options)

    # Any: JSON.
    def done(self, path: str, body: Any = None, status: int = 200) -> Any:
        reply = self.ask("POST", path, json=body)
        assert reply.status_code == status, reply.text
        return reply.json()

    def read(self, path: str) -> Any:
        reply = self.ask("GET", path)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def recorded(self, run_id: str | None = None, **more: Any) -> str:
        """A run; unless told otherwise it has ended."""
        return str(self.done("", {**WHOLE, "id": run_id or f"run-{next(_names)}", **more}, 201)["id"])

    def opened(self) -> str:
        return self.recorded(ended_at=None, steps=[])

    def refused(self, status: int, code: str, path: str, body: Any, where: str = "") -> str:
        """Why it is; nothing is written."""
        before = self.deployment.rows()
        reply = self.ask("POST", path, json=body)
        assert reply.headers["content-type"] == "application/problem+json"
        told = reply.json()
        assert (reply.status_code, code_of(reply)) == (status, code), reply.text
        assert where in [one["where"] for one in told.get("errors", [{"where": ""}])], reply.text
        assert self.deployment.rows() == before
        return str(told["detail"])

    def look(self, run_id: str, *attempts: Observation) -> None:
        self.deployment.store.recorder.write(
            RecordObservations(self.tenant, [RunObservation(run_id, one) for one in attempts])
        )

    def fallen(self) -> str:
        """A run whose count fell."""
        run_id = self.recorded()
        self.look(run_id, attempt(10), attempt(70, Tokens(9, 5)))
        return run_id


@pytest.fixture
def desk(deployment: Deployment) -> Desk:
    tenant = new_tenant()
    return Desk(deployment, tenant, deployment.key(Role.OPERATOR, tenant))


# Recorded whole, or as it goes


def test_a_run_is_recorded_whole(desk: Desk) -> None:
    told = {
        "framework": "crew",
        "source": "openai-prod",
        "attribution_key": {"kind": "key", "value": "key_abc"},
        "task": "invoice-7",
        "success": True,
        "score": 0.5,
        "contract_id": "con-1",
        "outcome_id": "out-1",
    }
    made = desk.done("", {**WHOLE, "id": "mine", **told}, 201)
    assert (made["id"], made["verification_status"], made["code"]) == ("mine", "pending", "not_started")
    assert (made["total_steps"], made["attempts"], made["total_tokens_in"]) == (1, 0, None)
    assert made["next_observation_at"] == (ENDED + timedelta(minutes=10)).isoformat().replace("+00:00", "Z")
    found = desk.read("/mine")
    assert found["local"] == {**dict.fromkeys(("requests", "cached", "cache_write", "reasoning")), **CALL["tokens"]}
    assert {name: found["run"][name] for name in told} == told
    assert {name: found[name] for name in made} == made
    assert found["observations"] == []


def test_a_run_without_an_id_gets_one_of_ours(desk: Desk) -> None:
    first, second = (desk.done("", WHOLE, 201)["id"] for _ in range(2))
    assert first != second
    assert first.startswith("use_")


def test_a_run_is_opened_goes_on_step_by_step_and_ends(desk: Desk) -> None:
    run_id = desk.opened()
    assert desk.read(f"/{run_id}")["code"] == "run_open"
    assert desk.done(f"/{run_id}/steps", {"id": "plan"})["total_steps"] == 1
    assert desk.done(f"/{run_id}/steps", STEP)["total_steps"] == 1
    desk.done(f"/{run_id}/steps", {"id": "sum up", "tokens": {"input": 1, "output": 2}})
    ended = desk.done(f"/{run_id}/end", {"ended_at": OVER, "success": True, "score": 1})
    assert (ended["code"], ended["next_observation_at"] is None) == ("not_started", False)
    found = desk.read(f"/{run_id}")
    assert [one["id"] for one in found["run"]["steps"]] == ["plan", "sum up"]
    assert (found["local"]["input"], found["local"]["output"]) == (11, 7)
    assert (found["run"]["success"], found["run"]["score"]) == (True, 1)


def test_a_run_that_is_just_begun_begins_now(deploy: Deploy) -> None:
    now = [datetime(2030, 1, 1, tzinfo=UTC)]
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now[0]))
    asked = Desk(made, "default", made.key())
    body = {"id": "r", "framework": "f"}
    asked.done("", body, 201)
    now[0] += timedelta(minutes=3)
    asked.done("", body, 201)
    assert asked.read("/r")["run"]["started_at"] == "2030-01-01T00:00:00Z"
    asked.done("/r/end", {})
    now[0] += timedelta(minutes=3)
    assert asked.done("/r/end", {})["ended_at"] == "2030-01-01T00:03:00Z"
    # Of what is over or has steps already, nobody knows when it began.
    for more in ({"ended_at": OVER}, {"steps": [STEP]}):
        assert asked.read(f"/{asked.recorded(started_at=None, **more)}")["run"]["started_at"] is None


def test_whose_clock_is_ahead_of_ours_can_end_its_run(desk: Desk) -> None:
    ahead = "2999-01-01T00:00:00Z"
    run_id = desk.recorded(ended_at=None, started_at=ahead)
    assert desk.done(f"/{run_id}/end", {})["ended_at"] == ahead


# Asked twice


@given(steps=st.lists(st.sampled_from("abc"), unique=True), ended=st.booleans(), given_id=st.booleans())
@settings(max_examples=15, deadline=None)
def test_the_same_twice_is_once(deployment: Deployment, steps: list[str], ended: bool, given_id: bool) -> None:
    tenant = new_tenant()
    desk = Desk(deployment, tenant, deployment.key(Role.OPERATOR, tenant))
    body = {**WHOLE, "steps": [{**STEP, "id": one} for one in steps], "ended_at": OVER if ended else None}
    if given_id:
        body["id"] = "r"
    # Without an id of its own, only a key tells that it is the same.
    headers = {} if given_id else {"Idempotency-Key": "mine"}
    first, again = (desk.ask("POST", "", json=body, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code, again.content) == (201, 201, first.content)
    assert again.headers.get("idempotency-replayed") == (None if given_id else "true")
    assert [one["id"] for one in desk.read("")["usage_runs"]] == [first.json()["id"]]
    changed = desk.ask("POST", "", json={**body, "framework": "other"}, headers=headers)
    assert changed.status_code == (409 if ended and given_id else 422)


def test_repeated_steps_and_ends_have_one_effect(desk: Desk) -> None:
    run_id = desk.opened()
    told: list[tuple[str, Any]] = [("steps", STEP), ("end", {"success": True}), ("end", {})]
    for path, body in told:
        headers = {"Idempotency-Key": f"{path}-{len(body)}"}
        first, again, without = (
            desk.ask("POST", f"/{run_id}/{path}", json=body, headers=sent) for sent in (headers, headers, None)
        )
        assert first.status_code == without.status_code == 200
        assert first.content == again.content == without.content


def test_who_opens_a_run_again_does_not_lose_its_steps(desk: Desk) -> None:
    body = {"id": "r", "framework": "f", "started_at": BEGAN}
    desk.done("", body, 201)
    desk.done("/r/steps", STEP)
    assert desk.done("", body, 201)["total_steps"] == 1
    more = {**body, "task": "t", "steps": [{**STEP, "succeeded": True}, {"id": "second"}]}
    assert desk.done("", more, 201)["total_steps"] == 2
    found = desk.read("/r")["run"]
    assert (found["task"], [one["succeeded"] for one in found["steps"]]) == ("t", [True, None])
    over = {**body, "task": "t", "ended_at": OVER}
    assert desk.done("", over, 201) == desk.done("", over, 201)


def test_steps_that_come_at_once_are_all_kept(desk: Desk) -> None:
    run_id = desk.opened()

    async def together() -> list[httpx.Response]:
        asked = desk.deployment.asked
        path = f"/v1/usage/runs/{run_id}/steps"
        return await asyncio.gather(
            *(asked("POST", path, key=desk.operator, json={**STEP, "id": f"s{number}"}) for number in range(40))
        )

    assert {one.status_code for one in desk.deployment.run(together())} == {200}
    found = desk.read(f"/{run_id}")
    assert {one["id"] for one in found["run"]["steps"]} == {f"s{number}" for number in range(40)}
    assert found["local"]["input"] == 400


# What an ended run takes


def test_a_run_that_has_ended_stays_as_it_is_and_says_what_to_do(desk: Desk) -> None:
    run_id = desk.recorded(success=True)
    others: list[tuple[str, Any]] = [
        ("", {**WHOLE, "id": run_id, "framework": "other"}),
        ("", {**WHOLE, "id": run_id, "success": True, "steps": [{"id": "another"}]}),
        ("", {**WHOLE, "id": run_id, "success": True, "ended_at": None}),
        (f"/{run_id}/steps", {"id": "another"}),
        (f"/{run_id}/steps", {"id": "plan"}),
        (f"/{run_id}/end", {"success": False}),
        (f"/{run_id}/end", {"ended_at": BEGAN}),
    ]
    for path, body in others:
        why = desk.refused(409, "wrong_state", path, body)
        assert run_id in why
        assert OVER in why


# Usage blocks


@pytest.mark.parametrize("block", [OPENAI, {"usage": OPENAI}, ANTHROPIC], ids=["openai", "response", "anthropic"])
def test_a_usage_block_is_read_by_the_rules_of_its_provider(desk: Desk, block: dict[str, Any]) -> None:
    run_id = desk.recorded(steps=[{"id": "s", "calls": [{"at": BEGAN, "usage": block}]}])
    local = desk.read(f"/{run_id}")["local"]
    written = 3 if block is ANTHROPIC else None
    assert local == {
        "input": 103 if block is ANTHROPIC else 100,
        "output": 20,
        "requests": 1,
        "cached": 60,
        "cache_write": written,
        "reasoning": None,
    }


@pytest.mark.parametrize("block", [{}, {"prompt_tokens": None}, {"cost": 1}, {"prompt_tokens": 0}])
def test_a_block_that_says_nothing_is_unknown_and_not_nothing(desk: Desk, block: dict[str, Any]) -> None:
    run_id = desk.recorded(steps=[{"id": "s", "calls": [{"at": BEGAN, "usage": block}]}])
    assert desk.read(f"/{run_id}")["local"] is None


@pytest.mark.parametrize(
    ("call", "place"),
    [
        ({"usage": {"prompt_tokens": -1, "completion_tokens": 1}}, ".usage"),
        ({"usage": {"prompt_tokens": 1.5, "completion_tokens": 1}}, ".usage"),
        ({"usage": {"prompt_tokens": "7", "completion_tokens": 1}}, ".usage"),
        ({"usage": {"prompt_tokens": 2**53 + 1, "completion_tokens": 1}}, ".usage"),
        ({"usage": {**OPENAI, "prompt_tokens_details": 3}}, ".usage"),
        ({"usage": OPENAI, "tokens": {"input": 1}}, ""),
    ],
)
def test_a_bad_usage_block_is_named(desk: Desk, call: dict[str, Any], place: str) -> None:
    step = {"id": "s", "calls": [CALL, {"at": BEGAN, **call}]}
    where = f"steps[1].calls[1]{place}"
    desk.refused(400, "invalid", "", {**WHOLE, "steps": [STEP, step]}, where)
    run_id = desk.opened()
    desk.refused(400, "invalid", f"/{run_id}/steps", step, f"calls[1]{place}")


# What cannot be meant


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"framework": ""}, "framework"),
        ({"framework": 7}, "framework"),
        ({"id": ""}, "id"),
        ({"id": "a\nb"}, "id"),
        ({"id": "a\x1b[2Jb"}, "id"),
        ({"id": "a/b"}, "id"),
        ({"id": "/"}, "id"),
        ({"id": ".."}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"task": "a\0b"}, "task"),
        ({"task": "\n"}, "task"),
        ({"contract_id": "a\nb"}, "contract_id"),
        ({"started_at": "2026-05-04T03:00:00"}, "started_at"),
        ({"ended_at": "yesterday"}, "ended_at"),
        ({"ended_at": 1_777_777_777}, "ended_at"),
        ({"score": 1.01}, "score"),
        ({"attribution_key": {"kind": "lane"}}, "attribution_key.kind"),
        ({"attribution_key": {"kind": "key", "value": "a\x07"}}, "attribution_key.value"),
        ({"attribution_key": {"knid": "key"}}, "attribution_key"),
        ({"steps": [{}]}, "steps[0]"),
        ({"steps": [{"id": "a\tb"}]}, "steps[0].id"),
        ({"steps": [{"id": "s", "tokens": {"input": -1}}]}, "steps[0].tokens.input"),
        ({"steps": [{"id": "s", "tokens": {"input": 2**53 + 1}}]}, "steps[0].tokens.input"),
        ({"steps": [{"id": "s", "tokens": {"input": 10**30}}]}, "steps[0].tokens.input"),
        ({"steps": [{"id": "s", "tokens": {"input": 1.5}}]}, "steps[0].tokens.input"),
        ({"steps": [{"id": "s", "tokens": {"inptu": 1}}]}, "steps[0].tokens"),
        ({"steps": [{"id": "s", "calls": [{"at": "2026-05-04T03:00:00"}]}]}, "steps[0].calls[0].at"),
        ({"steps": [{"id": "s", "calls": [{**CALL, "model": "a\nb"}]}]}, "steps[0].calls[0].model"),
        ({"steps": [{"id": "s", "calls": [{**CALL, "state": "lost"}]}]}, "steps[0].calls[0].state"),
        ({"steps": [{"id": "s", "calls": [{**CALL, "tokns": {}}]}]}, "steps[0].calls[0]"),
        ({"steps": [{"id": str(number)} for number in range(MAX_STEPS + 1)]}, "steps"),
        ({"sucess": True}, ""),
    ],
)
def test_an_invalid_run_is_refused_by_its_field(desk: Desk, body: dict[str, Any], where: str) -> None:
    desk.refused(400, "bad_body", "", {**WHOLE, **body}, where)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"steps": [STEP, {"id": "b"}, STEP]}, "steps[2].id"),
        ({"steps": [{**STEP, "tokens": {"input": 1}}]}, "steps[0].tokens"),
        ({"steps": [{"id": "s", "started_at": OVER, "ended_at": BEGAN}]}, "steps[0].ended_at"),
        ({"attribution_key": {"kind": "key"}}, "attribution_key"),
        ({"attribution_key": {"kind": "window", "value": "w"}}, "attribution_key"),
        ({"attribution_key": {"kind": "key", "value": SECRET}}, "attribution_key"),
    ],
)
def test_contradictions_are_named_by_their_field(desk: Desk, body: dict[str, Any], where: str) -> None:
    assert SECRET not in desk.refused(400, "invalid", "", {**WHOLE, **body}, where)


@pytest.mark.parametrize(
    "body",
    [
        {"started_at": OVER, "ended_at": BEGAN},
        {"started_at": "0001-01-01T00:00:00+14:00"},
        {"ended_at": "9999-12-31T23:59:59-12:00"},
    ],
)
def test_impossible_times_are_refused(desk: Desk, body: dict[str, Any]) -> None:
    desk.refused(422, "bad_usage", "", {**WHOLE, **body})
    run_id = desk.recorded(ended_at=None)
    desk.refused(422, "bad_usage", f"/{run_id}/end", {"ended_at": "1969-12-31T23:59:59Z"})
    desk.refused(422, "bad_usage", f"/{run_id}/end", {"ended_at": (BEGUN - timedelta(seconds=1)).isoformat()})
    assert desk.read(f"/{run_id}")["code"] == "run_open"


def test_a_run_has_ten_thousand_steps_and_no_more(desk: Desk) -> None:
    steps = [{"id": str(number)} for number in range(MAX_STEPS)]
    run_id = desk.recorded(ended_at=None, steps=steps)
    assert desk.done(f"/{run_id}/steps", {"id": "7", "succeeded": True})["total_steps"] == MAX_STEPS
    for path, body in ((f"/{run_id}/steps", STEP), ("", {**WHOLE, "id": run_id})):
        assert "10,000" in desk.refused(422, "bad_usage", path, body)
    assert desk.read(f"/{run_id}")["run"]["steps"][7]["succeeded"]


@pytest.mark.parametrize("path", ["", "/steps", "/end", "/acknowledge"])
def test_what_is_no_body_is_refused(desk: Desk, path: str) -> None:
    place = f"/{desk.recorded()}{path}" if path else ""
    bodies: list[Any] = [[], "text", {"unknown": 1}]
    for body in bodies:
        desk.refused(400, "bad_body", place, body)


# Listed and read


def test_runs_are_listed_by_what_they_have_page_by_page(desk: Desk) -> None:
    made = [
        desk.recorded(framework=f"f{number % 2}", source=f"s{number % 3}", task=f"t{number % 2}") for number in range(6)
    ]
    desk.look(made[2], attempt(10), attempt(70))

    def listed(query: str) -> list[str]:
        return [one["id"] for one in desk.read(query)["usage_runs"]]

    assert listed("") == made[::-1]
    assert listed("?framework=f1") == listed("?task=t1") == [made[5], made[3], made[1]]
    assert listed("?source=s2") == [made[5], made[2]]
    assert listed("?status=verified") == listed("?status=verified&framework=f0") == [made[2]]
    assert listed("?status=verified&framework=f1") == listed("?framework=nobody") == []
    found, before = list[str](), ""
    while True:
        page = desk.read(f"?limit=4{before}")
        found += [one["id"] for one in page["usage_runs"]]
        if page["next"] is None:
            break
        before = f"&before={page['next']}"
    assert found == made[::-1]
    for wrong in ("status=done", "limit=0", "limit=501", "before=x", "framework=", "account=s1"):
        assert desk.ask("GET", f"?{wrong}").status_code == 400
    (problem,) = desk.ask("GET", "?status=done").json()["errors"]
    assert problem["where"] == "status"
    assert all(status in problem["message"] for status in ("pending", "warning", "verified", "data_not_available"))


def test_all_that_is_known_of_a_run_can_be_read(desk: Desk) -> None:
    run_id = desk.recorded()
    looks = [attempt(10, FetchError.SERVER, detail="503"), attempt(20), attempt(80)]
    desk.look(run_id, *looks)
    quote = PriceQuote("table", "1", "0" * 64, "openai", "gpt-4o", "gpt-4o", BEGUN, {"input": Decimal("2.50")})
    desk.deployment.store.recorder.write(RecordPrices(desk.tenant, run_id, (quote,), RunCosts(billed=Decimal("0.25"))))
    found = desk.read(f"/{run_id}")
    assert (found["verification_status"], found["code"], found["attempts"]) == ("verified", "stable", 3)
    assert (found["total_tokens_in"], found["total_tokens_out"], found["steps_with_tokens"]) == (10, 5, 1)
    assert [(one["id"], one["error"], one["detail"]) for one in found["observations"]] == [
        (one.id, one.error, one.detail) for one in looks
    ]
    assert found["verdict"]["compared"] == [looks[1].id, looks[2].id]
    assert (found["verdict"]["minutes"], found["verdict"]["assurance"]) == (60, "B")
    assert [one["status"] for one in found["verdict"]["history"]] == ["pending", "verified"]
    assert (found["quotes"][0]["prices"], found["quotes"][0]["at"]) == ({"input": "2.50"}, "2026-05-04T03:00:00Z")
    assert found["ledger"] == {"quoted": None, "billed": "0.25", "settled": None, "currency": "USD"}
    assert (found["acknowledged"], found["waits"], found["exhausted"]) == ([], "", False)


# People's moves


def test_a_count_that_fell_is_accepted_for_a_reason(desk: Desk) -> None:
    run_id = desk.fallen()
    assert desk.read(f"/{run_id}")["code"] == "decreased"
    accepted = desk.done(f"/{run_id}/acknowledge", {"reason": "they took a call back"})
    assert accepted["code"] == "changing"
    (word,) = desk.read(f"/{run_id}")["acknowledged"]
    assert (word["by"], word["reason"]) == (desk.operator.split(".")[0], "they took a call back")
    assert desk.done(f"/{run_id}/acknowledge", {"reason": "they took a call back"}) == accepted
    desk.refused(409, "wrong_state", f"/{run_id}/acknowledge", {"reason": "again"})


def test_only_a_count_that_fell_is_accepted_and_not_without_a_reason(desk: Desk) -> None:
    run_id = desk.recorded()
    for look in (None, attempt(10), attempt(70)):
        if look is not None:
            desk.look(run_id, look)
        desk.refused(409, "wrong_state", f"/{run_id}/acknowledge", {"reason": "seen"})
    fallen = desk.fallen()
    for reason in ("", "a\nb", "x" * 201, None):
        desk.refused(400, "bad_body", f"/{fallen}/acknowledge", {"reason": reason}, "reason")
    desk.refused(422, "bad_usage", f"/{fallen}/acknowledge", {"reason": "  "})


def test_a_requested_observation_makes_a_run_due(deploy: Deploy) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    made = deploy(surroundings=ClockAndEntropy(clock=lambda: now))
    asked = Desk(made, "default", made.key())
    run_id = asked.recorded()
    asked.look(run_id, attempt(10, FetchError.AUTH))
    waits = asked.read(f"/{run_id}")
    assert (waits["next_observation_at"], waits["waits"]) == (None, "credential")
    assert asked.done(f"/{run_id}/look")["next_observation_at"] == "2030-01-01T00:00:00Z"
    assert asked.read(f"/{run_id}")["waits"] == ""
    asked.refused(400, "bad_body", f"/{run_id}/look", {"now": True})
    assert "end it" in asked.refused(409, "wrong_state", f"/{asked.opened()}/look", {})


# Who sees what


def test_another_tenants_run_is_not_there(desk: Desk) -> None:
    run_id, stranger = desk.fallen(), desk.deployment.key(Role.ADMIN, new_tenant())
    before = desk.deployment.rows()
    for name in (run_id, "never-was"):
        replies = [desk.ask("GET", f"/{name}", stranger)]
        replies += [desk.ask("POST", f"/{name}/{move}", stranger, json=body) for move, body in MOVES.items()]
        assert {(one.status_code, code_of(one)) for one in replies} == {(404, "not_found")}
    assert desk.deployment.rows() == before
    assert desk.ask("GET", "", stranger).json() == {"usage_runs": [], "next": None}


def test_two_tenants_may_choose_the_same_id(desk: Desk) -> None:
    desk.recorded("mine", framework="ours")
    stranger = desk.deployment.key(Role.ADMIN, new_tenant())
    body = {**WHOLE, "id": "mine", "framework": "theirs"}
    assert desk.ask("POST", "", stranger, json=body).status_code == 201
    assert desk.read("/mine")["framework"] == "ours"


def test_an_agent_may_neither_read_nor_record_usage(desk: Desk) -> None:
    run_id, agent = desk.fallen(), desk.deployment.key(Role.AGENT, desk.tenant)
    auditor = desk.deployment.key(Role.AUDITOR, desk.tenant)
    told = [("", WHOLE), *((f"/{run_id}/{move}", body) for move, body in MOVES.items())]
    for path in ("", f"/{run_id}"):
        assert desk.ask("GET", path, agent).status_code == 403
        assert desk.ask("GET", path, auditor).status_code == 200
    for path, body in told:
        for key in (agent, auditor):
            assert desk.ask("POST", path, key, json=body).status_code == 403


def test_prometheus_counts_what_happened(deploy: Deploy, tmp_path: Path) -> None:
    # A service of its own: others' webhooks may hold up what is counted as it is told.
    made, tenant = deploy(Location(tmp_path / "data")), new_tenant()
    desk = Desk(made, tenant, made.key(Role.OPERATOR, tenant))
    counters = [
        desk.deployment.service.instruments.usage_events_total.labels(kind, tenant)
        for kind in ("usage_run.recorded", "usage_run.ended", "usage.verified")
    ]
    before = [counted(one) for one in counters]
    run_id = desk.recorded()
    desk.look(run_id, attempt(10), attempt(70))
    until(lambda: all(counted(one) > number for one, number in zip(counters, before, strict=True)))


# Any: a counter shows its number to nobody but its own registry.
def counted(counter: Any) -> float:
    return float(counter._value.get())
