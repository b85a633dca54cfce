"""Direct routes answer as the framework does: the same requests go through both, and the replies are compared."""

import json
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.api.conftest import CRITERIA, HERE, PROBLEM, WORK, Deploy, Deployment, settings_with

from meruit.api.direct_routes import DirectRoutes
from meruit.api.telemetry import Instruments, TelemetryMiddleware
from meruit.errors import StoreUnavailable
from meruit.model.access import Role

if TYPE_CHECKING:
    from meruit.web.app import WebApp

REQUEST = {**WORK, "criteria": CRITERIA}
JSON = {"content-type": "application/json"}
_IDS = re.compile(rb"(out|req|evt)_[0-9a-f]{34}")
_TIMES = re.compile(rb"\d{4}-\d\d-\d\dT[0-9:.]+Z")
_COUNTED = re.compile(rb"retry in \d+ s")


class Both:
    """One service, once with its direct routes and once without."""

    def __init__(self, made: Deployment) -> None:
        self.made = made
        framework: WebApp = made.app._app.service
        self.without: Any = TelemetryMiddleware(
            framework, Instruments(), new_id=lambda: "req", over=made.service.admission.on_request_end
        )
        self.taken = 0
        """Requests that a direct route served."""
        answer = DirectRoutes._answer

        async def count(routes: DirectRoutes, *arguments: Any) -> Any:
            self.taken += 1
            return await answer(routes, *arguments)

        self.count = count

    def ask(self, app: Any, method: str, path: str, headers: dict[str, str], content: bytes) -> httpx.Response:
        sent = {"x-request-id": "fixed", **headers}

        async def asked() -> httpx.Response:
            request = httpx.Request(method, f"http://127.0.0.1{path}", headers=sent, content=content)
            reply = await httpx.ASGITransport(app=app, client=HERE).handle_async_request(request)
            await reply.aread()
            return reply

        return self.made.run(asked())

    def compare(
        self, method: str = "POST", path: str = "/v1/verify", *, headers: dict[str, str], content: bytes = b""
    ) -> httpx.Response:
        """Ask both, and compare all that a client can see."""
        here, there = (self.ask(app, method, path, headers, content) for app in (self.made.app, self.without))
        assert seen(here) == seen(there)
        return here


def seen(reply: httpx.Response) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """The reply without what differs between any two requests."""
    body = _COUNTED.sub(b"retry in N s", _TIMES.sub(b"TIME", _IDS.sub(b"ID", reply.content)))
    headers = [(name, b"N" if name.lower() == b"retry-after" else value) for name, value in reply.headers.raw]
    return reply.status_code, headers, body


@pytest.fixture
def both(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Both:
    """The service that tests share: each has a tenant of its own."""
    made = Both(deployment)
    monkeypatch.setattr(DirectRoutes, "_answer", made.count)
    return made


def bearer(key: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}", **JSON, **more}


def encode(value: Any) -> bytes:
    return json.dumps(value).encode()


GOOD = encode(REQUEST)
BODIES = {
    "good": GOOD,
    "unrecorded": encode({**REQUEST, "record": False}),
    "labelled": encode({**REQUEST, "agent_id": "a", "consumer_id": "c", "domain": "d"}),
    "named": encode({**WORK, "criteria": "missing"}),
    "named with version": encode({**WORK, "criteria": "missing@2"}),
    "no output": encode({"criteria": CRITERIA}),
    "unknown field": encode({**REQUEST, "outputs": {}}),
    "wrong type": encode({**REQUEST, "output": "text"}),
    "wrong criteria": encode({**REQUEST, "criteria": {"criteria": [{"metric": "nothing"}]}}),
    "code": encode({**REQUEST, "criteria": {"criteria": [{**CRITERIA["criteria"][0], "metric": "x", "expr": "1.0"}]}}),
    "a list": b"[]",
    "not JSON": b"{",
    "not UTF-8": b'{"output": "\xff"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "twice the same key": b'{"output": {"a": 1, "a": 2}, "criteria": "x"}',
    "deep": b'{"output": {"a": ' + b"[" * 70 + b"]" * 70 + b'}, "criteria": "x"}',
    "long integer": b'{"output": {"a": ' + b"9" * 500 + b'}, "criteria": "x"}',
    "tiny number": b'{"output": {"a": 1e-400}, "criteria": "x"}',
    "surrogate": b'{"output": {"a": "\\ud800"}, "criteria": "x"}',
    "null character": b'{"output": {}, "agent_id": "\\u0000", "criteria": "x"}',
    "contract of ours": encode({**REQUEST, "contract_id": f"con_{'0' * 34}"}),
    "other scripts": encode({**REQUEST, "output": {"text": "ﷺ 猫"}}),
}


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("role", [Role.OPERATOR, Role.AGENT])
def test_bodies(both: Both, tenant: str, name: str, role: Role) -> None:
    key = both.made.key(role, tenant)
    both.compare(headers=bearer(key), content=BODIES[name])
    assert both.taken == 1


def test_callers(both: Both, tenant: str) -> None:
    keys = {role: both.made.key(role, tenant) for role in Role}
    statuses = {role: both.compare(headers=bearer(key), content=GOOD).status_code for role, key in keys.items()}
    assert statuses[Role.OPERATOR] == 200
    assert statuses[Role.AUDITOR] == statuses[Role.AGENT] == 403
    for headers in (JSON, {**JSON, "authorization": "Basic x"}, {**JSON, "authorization": "Bearer wrong"}):
        assert both.compare(headers=headers, content=GOOD).status_code == 401


def test_without_any_key(deploy: Deploy) -> None:
    both = Both(deploy())
    assert both.compare(headers=JSON, content=GOOD).status_code == 200
    assert both.compare(headers={**JSON, "origin": "http://elsewhere"}, content=GOOD).status_code == 401


@pytest.mark.parametrize(
    ("headers", "content"),
    [
        ({"content-type": "text/plain"}, GOOD),
        ({"content-type": "application/json; charset=utf-8"}, GOOD),
        ({"content-type": "application/json; charset=latin-1"}, GOOD),
        ({}, GOOD),
        (JSON, b""),
        ({**JSON, "host": "a b"}, GOOD),
        ({**JSON, "transfer-encoding": "chunked"}, GOOD),
        (JSON, encode({**REQUEST, "output": {"text": "x" * 70_000}})),
    ],
)
def test_what_is_not_plain_is_left_to_the_framework(
    both: Both, admin: str, headers: dict[str, str], content: bytes
) -> None:
    both.compare(headers={"authorization": f"Bearer {admin}", **headers}, content=content)
    assert both.taken == 0


def test_other_paths_and_methods_are_left_to_the_framework(both: Both, admin: str) -> None:
    headers = bearer(admin)
    for method, path in (
        ("GET", "/v1/verify"),
        ("POST", "/v1/verify/"),
        ("POST", "/v1/verify?x=1"),
        ("PUT", "/health"),
    ):
        both.compare(method, path, headers=headers, content=GOOD)
    assert both.taken == 0


def test_health(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    assert both.compare("GET", "/health", headers={}).status_code == 200

    async def fail(*_: Any) -> None:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(type(both.made.service), "read", fail)
    assert both.compare("GET", "/health", headers={}).status_code == 503
    assert both.taken == 2
    assert both.compare("GET", "/health", headers={"content-length": "2"}, content=b"{}").status_code == 503
    assert both.taken == 2


def test_idempotency_keys(both: Both, admin: str) -> None:
    headers = bearer(admin, **{"idempotency-key": "once"})
    first = both.ask(both.made.app, "POST", "/v1/verify", headers, GOOD)
    again = both.compare(headers=headers, content=GOOD)
    assert (again.content, again.headers["idempotency-replayed"]) == (first.content, "true")
    assert both.compare(headers=headers, content=encode({**REQUEST, "record": True})).status_code == 422
    for wrong in ("", "a b", "x" * 201):
        assert both.compare(headers={**headers, "idempotency-key": wrong}, content=GOOD).status_code == 400
    listed = both.ask(both.made.app, "GET", "/v1/outcomes", bearer(admin), b"").json()
    assert [one["id"] for one in listed["outcomes"]] == [first.json()["outcome_id"]]


def test_a_defect_is_answered_alike(both: Both, admin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    headers = bearer(admin)
    # Of this service, not of its class: other tests may have left it a method of its own.
    monkeypatch.setattr(both.made.service.registrar, "judge", fail)
    assert both.compare(headers=headers, content=GOOD).status_code == 500
    assert both.taken == 1


def test_limits_hold_on_direct_routes(deploy: Deploy) -> None:
    made = Both(deploy(settings=settings_with(requests_per_minute=2, max_agent_bytes=1_024)))
    agent, operator = made.made.key(Role.AGENT), made.made.key(Role.OPERATOR)
    large = encode({"criteria": "x", "output": {"text": "y" * 2_000}})
    assert made.compare(headers=bearer(agent), content=large).status_code == 413
    made.compare(headers=bearer(operator), content=GOOD)
    reply = made.compare(headers=bearer(operator), content=GOOD)
    assert (reply.status_code, "retry-after" in reply.headers) == (429, True)


def test_a_revoked_key_stops_at_once(both: Both, admin: str) -> None:
    headers = bearer(admin)
    made = both.ask(both.made.app, "POST", "/v1/keys", headers, encode({"role": "operator", "name": "n"})).json()
    used = bearer(made["secret"])
    assert both.compare(headers=used, content=GOOD).status_code == 200
    both.ask(both.made.app, "DELETE", f"/v1/keys/{made['key']['id']}", headers, b"")
    assert both.compare(headers=used, content=GOOD).status_code == 401


def test_a_client_that_leaves_in_its_body_gets_a_problem(both: Both, admin: str) -> None:
    sent: list[Any] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/verify",
        "query_string": b"",
        "headers": [
            (b"host", b"127.0.0.1"),
            (b"authorization", f"Bearer {admin}".encode()),
            (b"content-type", b"application/json"),
            (b"content-length", b"9"),
        ],
        "client": HERE,
    }
    parts: list[Any] = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    both.made.run(both.made.app(scope, receive, send))
    assert (sent[0]["status"], json.loads(sent[1]["body"])["type"]) == (400, f"{PROBLEM}bad_body")
    assert both.taken == 1
