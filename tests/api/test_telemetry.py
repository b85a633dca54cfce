"""Every request has an id, a line, and its place in the numbers."""

import asyncio
import io
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient
from starlette.types import ASGIApp

from meruit.api import telemetry
from meruit.api.logging import configure_logs
from meruit.api.problems import exception_handlers
from meruit.api.telemetry import Instruments, TelemetryMiddleware
from meruit.model.access import Caller, Role
from meruit.web.app import WebApp
from meruit.web.parameters import FromPath, JSONBody
from meruit.web.requests import Request
from meruit.web.responses import Response
from meruit.web.routing import get, post


@get("/things/{name:str}")
async def thing(name: FromPath[str], request: Request) -> dict[str, str]:
    request.scope["state"]["caller"] = Caller("t1", Role.OPERATOR, "k1")
    return {"name": name, "id": request.scope["state"]["request_id"]}


@post("/things")
async def add(data: JSONBody[dict[str, int]]) -> Response[None]:
    return Response(None, headers={"Cache-Control": "max-age=5"})


@get("/broken")
async def broken() -> None:
    raise ValueError("canary-1234")


class World:
    """One observed service."""

    def __init__(self, app: ASGIApp | None = None) -> None:
        self.instruments = Instruments()
        self.log = io.StringIO()
        self.time = iter(range(1_000_000))
        self.ids = (f"id-{n}" for n in range(1_000_000))
        self.app = TelemetryMiddleware(
            app or WebApp([thing, add, broken], exception_handlers=exception_handlers),
            self.instruments,
            new_id=lambda: next(self.ids),
            clock=lambda: next(self.time) / 1000,
        )

    def lines(self) -> list[dict[str, Any]]:
        # They are written by the loop's next iteration.
        for _ in range(6_000):
            if not self.app._lines:
                break
            time.sleep(0.01)
        written = [json.loads(line) for line in self.log.getvalue().splitlines()]
        # Services that other tests of this process share tell of their events when they come to it.
        return [line for line in written if line["event"] != "event"]

    def numbers(self) -> dict[tuple[str, tuple[str, ...]], float]:
        families = text_string_to_metric_families(self.instruments.exposition().decode())
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in families
            for sample in family.samples
        }


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    handler = configure_logs("info", made.log)
    yield made
    logging.getLogger().removeHandler(handler)


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with TestClient(world.app, raise_server_exceptions=False) as opened:
        yield opened


def test_a_request_is_counted_by_its_route_and_logged_once(world: World, client: TestClient) -> None:
    for name in ("secret-a", "secret-b"):
        assert client.get(f"/things/{name}").status_code == 200
    numbers = world.numbers()
    assert numbers["meruit_requests_total", ("GET", "/things/{name}", "200", "t1")] == 2
    assert numbers["meruit_request_seconds_count", ("/things/{name}", "t1")] == 2
    assert numbers["meruit_request_seconds_sum", ("/things/{name}", "t1")] == pytest.approx(0.002)
    assert numbers["meruit_requests_in_flight", ()] == 0
    first, second = world.lines()
    assert first.pop("time") <= second["time"]
    assert first == {
        "level": "info", "event": "request", "request_id": "id-0", "method": "GET", "route": "/things/{name}",
        "status": 200, "ms": 1.0, "bytes_in": 0, "key_id": "k1", "tenant": "t1", "role": "operator",
    }  # fmt: skip
    assert "secret" not in world.log.getvalue()


def test_bytes_in_are_counted(world: World, client: TestClient) -> None:
    client.post("/things", content=b'{"a": 1}', headers={"Content-Type": "application/json"})
    assert world.lines()[0]["bytes_in"] == 8
    assert "key_id" not in world.lines()[0]


def test_labels_stay_few(world: World, client: TestClient) -> None:
    for n in range(20):
        client.get(f"/nothing/{n}")
        client.request(f"ODD{n}", "/things")
    names = {labels for name, labels in world.numbers() if name == "meruit_requests_total"}
    assert names == {("GET", "-", "404", ""), ("other", "-", "405", "")}


@pytest.mark.parametrize("chosen", ["a", "A.b_c-9", "x" * 64])
def test_a_callers_id_is_kept(world: World, client: TestClient, chosen: str) -> None:
    response = client.get("/things/a", headers={"X-Request-Id": chosen})
    assert response.headers["x-request-id"] == response.json()["id"] == world.lines()[0]["request_id"] == chosen


@pytest.mark.parametrize("chosen", ["", "x" * 65, "a b", 'a"', "a\tb", "é".encode(), "<b>"])
def test_an_odd_id_is_replaced(client: TestClient, chosen: str | bytes) -> None:
    headers: Any = {"X-Request-Id": chosen}
    assert client.get("/things/a", headers=headers).headers["x-request-id"] == "id-0"


def test_problems_name_the_request(client: TestClient) -> None:
    for path, status in (("/nothing", 404), ("/broken", 500)):
        response = client.get(path)
        assert response.status_code == status
        assert response.json()["request_id"] == response.headers["x-request-id"]


def test_headers_of_caution(client: TestClient) -> None:
    for path in ("/things/a", "/nothing", "/schemata"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
        assert headers["content-security-policy"] == "default-src 'none'"
    for path in ("/schema", "/schema/openapi.json"):
        headers = client.get(path).headers
        assert "content-security-policy" not in headers
        assert headers["x-content-type-options"] == "nosniff"


def test_what_a_route_says_itself_is_kept(client: TestClient) -> None:
    response = client.post("/things", json={})
    assert response.headers.get_list("cache-control") == ["max-age=5"]


def test_two_services_count_apart() -> None:
    one, other = Instruments(), Instruments()
    one.verdicts_total.labels("pass", "acme").inc()
    one.recorded_total.labels("acme").inc(2)
    one.group_size.observe(3)
    one.recorder_queue.set(4)
    one.outbox_lag.set(5)
    one.webhook_attempts_total.labels("delivered", "acme").inc()
    one.dead_letters_total.labels("acme").inc()
    text = one.exposition().decode()
    for line in (
        'meruit_verdicts_total{tenant="acme",verdict="pass"} 1.0',
        'meruit_recorded_total{tenant="acme"} 2.0',
        "meruit_group_size_count 1.0",
        "meruit_recorder_queue 4.0",
        "meruit_outbox_lag 5.0",
        'meruit_webhook_attempts_total{result="delivered",tenant="acme"} 1.0',
        'meruit_dead_letters_total{tenant="acme"} 1.0',
    ):
        assert line in text
    assert "acme" not in other.exposition().decode()


async def served(world: World, kind: str = "http") -> list[Any]:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope: Any = {"type": kind, "method": "GET", "path": "/", "headers": []}
    await world.app(scope, receive, send)
    return sent


@pytest.mark.parametrize(("starts", "status"), [(False, "500"), (True, "200")])
def test_an_app_that_breaks_is_counted_and_its_error_passes_on(starts: bool, status: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        if starts:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError

    world = World(app)
    with pytest.raises(LookupError):
        asyncio.run(served(world))
    assert world.numbers()["meruit_requests_total", ("GET", "-", status, "")] == 1
    assert world.numbers()["meruit_requests_in_flight", ()] == 0


def test_a_caller_that_left_is_counted_as_gone() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise asyncio.CancelledError

    world = World(app)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(served(world))
    assert world.numbers()["meruit_requests_total", ("GET", "-", "499", "")] == 1


def test_other_connections_pass_unseen() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(scope["type"])

    world = World(app)
    assert asyncio.run(served(world, "lifespan")) == ["lifespan"]
    assert ("meruit_request_seconds_count", ("-", "")) not in world.numbers()


def test_tenants_beyond_a_number_share_their_times(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "MAX_TIMED", 2)
    for tenant in ("t1", "t2", "t3", "t4", "t1"):
        world.app._histogram("/things", tenant).observe(1)
    counts = {key: count for (name, key), count in world.numbers().items() if name == "meruit_request_seconds_count"}
    assert counts == {("/things", "t1"): 2, ("/things", "t2"): 1, ("/things", telemetry.OTHER_TENANTS): 2}


def test_the_service_starts_and_stops_behind_it() -> None:
    seen: list[str] = []

    @asynccontextmanager
    async def lifespan(_: WebApp) -> AsyncIterator[None]:
        seen.append("up")
        yield
        seen.append("down")

    app: Any = World(WebApp([], lifespan=[lifespan])).app
    with TestClient(app):
        assert seen == ["up"]
    assert seen == ["up", "down"]
