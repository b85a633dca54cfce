"""Large bodies: few at once, callers in turn, every place given back, and the small ones answered meanwhile."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.api.conftest import PATIENCE_S, Deploy, Deployment, code_of, settings_with

from meruit.api.admission import AT_ONCE, MAX_WAITING, AdmissionSlot, BodyAdmission
from meruit.api.bodies import json_body as body
from meruit.api.bodies.json_body import LARGE_BYTES, StrictRequest
from meruit.api.idempotency import HEADER
from meruit.api.request import ApiRequest
from meruit.errors import ApiProblem
from meruit.model.access import Role

NOBODYS = f"con_{'0' * 34}"
LARGE: dict[str, Any] = {"output": {"text": "x" * (LARGE_BYTES + 1)}}
OF_ONE = MAX_WAITING // 2


class Crowd:
    """Callers in a room, and what each of them waits for."""

    def __init__(self) -> None:
        self.room, self.inside, self.turns = (
            BodyAdmission(2, 4),
            list[AdmissionSlot](),
            dict[AdmissionSlot, asyncio.Task[None]](),
        )

    def enter(self, caller: str, own: list[AdmissionSlot]) -> None:
        if len(self.inside) >= 6 or len(own) >= 2:
            with pytest.raises(ApiProblem) as refused:
                self.room.acquire_slot(caller)
            assert (refused.value.status, refused.value.headers) == (503, {"Retry-After": "1"})
        else:
            self.inside.append(self.room.acquire_slot(caller))

    def turn(self, _caller: str, own: list[AdmissionSlot]) -> None:
        for place in own:
            if place not in self.turns:
                self.turns[place] = asyncio.create_task(self.room.wait_for_turn(place))

    def cancel(self, _caller: str, own: list[AdmissionSlot]) -> None:
        """As a server does it: the task is told, and what it holds is given back a moment later."""
        for place in own[-1:]:
            if place in self.turns:
                self.turns[place].cancel()
            self.leave(_caller, [place])

    def leave(self, _caller: str, own: list[AdmissionSlot]) -> None:
        for place in own[:1]:
            self.inside.remove(place)
            self.room.release_slot(place)
            if place in self.turns:
                self.turns[place].cancel()

    def check(self) -> None:
        asked = {place.caller for place in self.inside if place in self.turns}
        served = [place.caller for place in self.inside if place.has_turn]
        assert self.room.busy == len(served) == min(2, len(asked))
        # One large body at a time of each caller.
        assert len({*served}) == len(served)
        assert self.room.slots_in_use == len(self.inside)


STEPS = [Crowd.enter, Crowd.turn, Crowd.cancel, Crowd.leave]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(STEPS)), max_size=80))
def test_slots_are_never_exceeded_and_never_idle(steps: list[tuple[str, Any]]) -> None:
    async def walk() -> None:
        crowd = Crowd()
        for caller, step in steps:
            step(crowd, caller, [place for place in crowd.inside if place.caller == caller])
            await asyncio.sleep(0)
            crowd.check()
        for place in crowd.inside:
            crowd.room.release_slot(place)
        await asyncio.gather(*crowd.turns.values(), return_exceptions=True)
        assert (crowd.room.busy, crowd.room.slots_in_use, crowd.room._queues, crowd.room._held) == (0, 0, {}, {})

    asyncio.run(walk())


def test_callers_take_turns() -> None:
    async def use() -> list[str]:
        room, order = BodyAdmission(1, 16), list[str]()

        async def one(caller: str, number: int) -> None:
            place = room.acquire_slot(caller)
            await room.wait_for_turn(place)
            # A second time is no second wait.
            await room.wait_for_turn(place)
            order.append(f"{caller}{number}")
            await asyncio.sleep(0)
            room.release_slot(place)

        several = [one("greedy", number) for number in range(5)] + [one("modest", number) for number in range(2)]
        await asyncio.gather(*several)
        return order

    assert asyncio.run(use()) == ["greedy0", "greedy1", "modest0", "greedy2", "modest1", "greedy3", "greedy4"]


class Held:
    """Parses large bodies only when a test lets it, and counts who is in there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_end = threading.Event()
        self.turns, self.most = 0, 0
        parsed, turn = StrictRequest._parse, ApiRequest.wait_for_body_turn

        async def counted(request: ApiRequest) -> None:
            await turn(request)
            self.turns += 1
            self.most = max(self.most, request.service.admission.busy)

        def slowly(request: StrictRequest, content: bytes, kind: Any) -> Any:
            if len(content) > LARGE_BYTES:
                assert self.may_end.wait(PATIENCE_S)
            return parsed(request, content, kind)

        monkeypatch.setattr(ApiRequest, "wait_for_body_turn", counted)
        monkeypatch.setattr(StrictRequest, "_parse", slowly)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        # What is waited for happens inside the service, which tells nobody.
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def contract_for(made: Deployment, operator: str) -> str:
    work = made.ask("POST", "/v1/work", key=operator, json={"title": "t", "terms": {"cpc_rate": "0.05"}}).json()["id"]
    award = {"work_id": work, "agent_id": "robot"}
    return str(made.ask("POST", "/v1/contracts", key=operator, json=award).json()["id"])


def test_large_bodies_take_turns_and_do_not_delay_small_ones(deploy: Deploy, held: Held) -> None:
    made = deploy()
    agent, operator = made.key(Role.AGENT), made.key(Role.OPERATOR)
    path, room = f"/v1/contracts/{contract_for(made, operator)}/complete", made.service.admission

    async def use() -> tuple[list[httpx.Response], list[httpx.Response], list[httpx.Response]]:
        greedy = [asyncio.create_task(made.asked("POST", path, key=agent, json=LARGE)) for _ in range(40)]
        refused = 40 - OF_ONE
        await until(lambda: sum(one.done() for one in greedy) == refused)
        assert (room.busy, room.slots_in_use) == (1, OF_ONE)
        # Whoever else comes has places left, and whoever sends little needs none.
        other = asyncio.create_task(made.asked("POST", path, key=operator, json=LARGE))
        await until(lambda: room.slots_in_use == OF_ONE + 1)
        small = [
            await made.asked("GET", "/health"),
            await made.asked("POST", path.replace("complete", "start"), key=agent),
            await made.asked("POST", "/v1/work", key=operator, json={"title": "another"}),
        ]
        held.may_end.set()
        return await asyncio.gather(*greedy), small, [await other]

    greedy, small, other = made.run(use())
    assert [reply.status_code for reply in small] == [200, 200, 201]
    said = sorted(reply.status_code for reply in greedy)
    assert said == [200] * OF_ONE + [503] * (40 - OF_ONE)
    assert {reply.headers["retry-after"] for reply in greedy if reply.status_code == 503} == {"1"}
    assert other[0].status_code == 200
    assert (held.most, held.turns) == (AT_ONCE, OF_ONE + 1)
    assert (room.busy, room.slots_in_use) == (0, 0)


@pytest.mark.parametrize("content", [b"[" * (LARGE_BYTES + 1), json.dumps({"output": "x" * LARGE_BYTES}).encode()])
def test_a_refused_request_frees_its_slot(deploy: Deploy, content: bytes) -> None:
    made = deploy()
    path = f"/v1/contracts/{contract_for(made, made.key())}/complete"
    key, sent = made.key(), {"Content-Type": "application/json"}
    for _ in range(MAX_WAITING):
        assert made.ask("POST", path, key=key, content=content, headers=sent).status_code == 400
    assert made.ask("POST", path, key=key, content=content, headers={"Content-Type": "text/plain"}).status_code == 415
    assert (made.service.admission.busy, made.service.admission.slots_in_use) == (0, 0)


def test_a_client_that_leaves_frees_its_slot(deploy: Deploy, held: Held) -> None:
    """While it is parsed, while it waits, and in the middle of the body."""
    made = deploy()
    key, room = made.key(), made.service.admission
    path = f"/v1/contracts/{contract_for(made, key)}/complete"

    async def use() -> httpx.Response:
        several = [asyncio.create_task(made.asked("POST", path, key=key, json=LARGE)) for _ in range(OF_ONE - 1)]
        broken = asyncio.create_task(made.asked("POST", path, key=key, content=endless(), headers=JSON))
        await until(lambda: (room.busy, room.slots_in_use) == (1, OF_ONE))
        for one in (broken, *several):
            one.cancel()
        await asyncio.gather(broken, *several, return_exceptions=True)
        assert (room.busy, room.slots_in_use) == (0, 0)
        held.may_end.set()
        return await made.asked("POST", path, key=key, json=LARGE)

    assert made.run(use()).status_code == 200
    assert (room.busy, room.slots_in_use) == (0, 0)


JSON = {"Content-Type": "application/json"}


async def endless() -> Any:
    """A body that is large, and never ends."""
    yield b" " * (LARGE_BYTES + 1)
    await asyncio.Event().wait()


def test_a_body_that_breaks_off_gives_its_place_back(deploy: Deploy) -> None:
    made = deploy()
    path = f"/v1/contracts/{contract_for(made, made.key())}/complete"
    key = made.key()

    async def use() -> list[Any]:
        sent = [{"type": "http.request", "body": b" " * (LARGE_BYTES + 1), "more_body": True}]
        said = list[Any]()

        async def receive() -> Any:
            return sent.pop() if sent else {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            said.append(message)

        await made.app(scope_of(path, key), receive, send)
        return said

    assert made.run(use())[0]["status"] == 400
    assert (made.service.admission.busy, made.service.admission.slots_in_use) == (0, 0)


def scope_of(path: str, key: str) -> Any:
    headers = [(b"authorization", f"Bearer {key}".encode()), (b"content-type", b"application/json")]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [*headers, (b"host", b"127.0.0.1")],
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }


@pytest.mark.parametrize("size", [body.SMALL_BYTES + 1, LARGE_BYTES + 1])
@pytest.mark.parametrize("announced", [True, False])
def test_no_output_is_read_for_a_contract_that_is_not_there(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, size: int, announced: bool
) -> None:
    made = deploy()
    operator, agent = made.key(Role.OPERATOR), made.key(Role.AGENT, agent_id="another")
    voided = contract_for(made, operator)
    assert made.ask("POST", f"/v1/contracts/{voided}/void", key=operator, json={"reason": "no"}).status_code == 200
    asked: dict[str, tuple[str, int]] = {
        NOBODYS: (operator, 404),
        contract_for(made, operator): (agent, 404),
        "con_0": (operator, 404),
        "%00": (operator, 404),
        voided: (operator, 409),
    }
    content = json.dumps({"output": {"text": "x" * size}}).encode()

    async def parts() -> Any:
        yield content

    async def unread(_request: StrictRequest) -> bytes:
        raise AssertionError("the body was read")

    monkeypatch.setattr(StrictRequest, "body", unread)
    for contract, (key, expected) in asked.items():
        path = f"/v1/contracts/{contract}/complete"
        reply = made.ask("POST", path, key=key, content=content if announced else parts(), headers=JSON)
        assert reply.status_code == expected, reply.text


def test_a_large_output_may_be_sent_again(deploy: Deploy) -> None:
    made = deploy()
    key = made.key()
    path = f"/v1/contracts/{contract_for(made, key)}/complete"
    replies = [made.ask("POST", path, key=key, json=LARGE, headers={HEADER: once}) for once in ("one", "one", "two")]
    assert [reply.status_code for reply in replies] == [200] * 3
    assert len({reply.content for reply in replies}) == 1
    other = made.ask("POST", path, key=key, json={"output": {"text": "y" * LARGE_BYTES}})
    assert other.status_code == 409


def test_only_ten_refused_fields_are_named(deploy: Deploy) -> None:
    made = deploy()
    path = f"/v1/contracts/{contract_for(made, made.key())}/complete"
    metadata = {f"field{number}": 1 for number in range(100_000)}
    reply = made.ask("POST", path, key=made.key(Role.AGENT), json={"output": {}, "metadata": metadata})
    assert (reply.status_code, reply.json()["detail"].count("field")) == (403, 10)


@pytest.mark.parametrize("declared", [True, False])
def test_an_agent_sends_smaller_bodies_than_an_operator(deploy: Deploy, declared: bool) -> None:
    made = deploy(settings=settings_with(max_agent_bytes=4_096))
    agent, operator = made.key(Role.AGENT), made.key(Role.OPERATOR)
    body = json.dumps({"criteria": "job", "output": {"text": "x" * 5_000}}).encode()
    headers = {"Content-Type": "application/json", **({} if declared else {"Transfer-Encoding": "chunked"})}
    replies = [made.ask("POST", "/v1/verify", key=key, content=body, headers=headers) for key in (agent, operator)]
    assert [(one.status_code, code_of(one)) for one in replies] == [(413, "too_large"), (404, "not_found")]
