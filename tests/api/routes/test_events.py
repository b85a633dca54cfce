"""What happened, followed as it happens or delivered where a tenant wants it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from standardwebhooks import Webhook
from tests.api.conftest import CRITERIA, WORK, Deploy, Deployment, code_of, settings_with
from tests.api.test_auth import dead_letter, webhook_wish

from meruit.api.open_streams import OpenStreams
from meruit.api.routes import events
from meruit.api.server import run
from meruit.errors import ApiProblem, StoreUnavailable
from meruit.events.store.webhooks import MAX_WEBHOOKS, AddWebhook
from meruit.model.access import Role
from meruit.model.events import EventType
from meruit.store.access.keys import Revoke

PATIENCE_S = 30.0


class Told(NamedTuple):
    """One event of a stream."""

    seq: int
    kind: str
    data: Any


def told(body: bytes) -> list[Told]:
    """The events of a stream, comments left out."""
    found = list[Told]()
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line and not line.startswith(":"))
        if fields:
            found.append(Told(int(fields["id"]), fields["event"], json.loads(fields["data"])))
    return found


def so_many(count: int) -> Callable[[bytes], bool]:
    return lambda body: len(told(body[: body.rfind(b"\n\n") + 2])) >= count


@pytest.fixture
def key(either: Deployment, tenant: str) -> str:
    return either.key(Role.OPERATOR, tenant)


def judged(deployment: Deployment, key: str) -> str:
    reply = deployment.ask("POST", "/v1/verify", key=key, json={**WORK, "criteria": CRITERIA})
    return str(reply.json()["outcome_id"])


def test_events_are_streamed_in_order_from_a_cursor(either: Deployment, tenant: str, key: str) -> None:
    outcomes = [judged(either, key) for _ in range(3)]
    either.ask("POST", "/v1/criteria", key=key, json={"name": "judged", "criteria": CRITERIA})
    reply = either.follow("/v1/events?after=0", so_many(5), key=key)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-store"
    found = told(reply.content)
    assert [one.kind for one in found] == ["key.created", *["outcome.recorded"] * 3, "criteria.registered"]
    assert [one.data["data"]["outcome_id"] for one in found[1:4]] == outcomes
    assert {one.data["tenant_id"] for one in found} == {tenant}
    assert [one.seq for one in found] == sorted(one.seq for one in found)
    rest = either.follow("/v1/events", so_many(2), key=key, headers={"Last-Event-ID": str(found[2].seq)})
    assert told(rest.content) == found[3:]
    # What a browser sends by itself is newer than the address it was given.
    both = either.follow("/v1/events?after=0", so_many(1), key=key, headers={"Last-Event-ID": str(found[3].seq)})
    assert told(both.content) == found[4:]


def test_only_selected_types_are_streamed(either: Deployment, key: str) -> None:
    outcome = judged(either, key)
    either.ask("POST", "/v1/criteria", key=key, json={"name": "judged", "criteria": CRITERIA})
    both = "types=criteria.registered,outcome.recorded"
    found = told(either.follow(f"/v1/events?after=0&{both}", so_many(2), key=key).content)
    assert [one.kind for one in found] == ["outcome.recorded", "criteria.registered"]
    found = told(either.follow("/v1/events?after=0&types=outcome.recorded", so_many(1), key=key).content)
    assert [one.data["data"]["outcome_id"] for one in found] == [outcome]
    unknown = either.ask("GET", "/v1/events?types=outcome.recorded,nothing", key=key)
    assert (unknown.status_code, code_of(unknown)) == (400, "unknown_event_type")
    assert all(kind in unknown.json()["detail"] for kind in EventType)


@contextmanager
def listening(made: Deployment, key: str) -> Iterator[httpx.Client]:
    """The service on a real socket, and somebody who talks to it; it ends with the block."""
    urls: Queue[str] = Queue()
    options: Any = {"ready": urls.put, "log_level": "error", "stopping": made.service.stopping}
    server = threading.Thread(target=run, args=(made.app, "127.0.0.1", 0), kwargs=options)
    server.start()
    try:
        url, headers = urls.get(timeout=PATIENCE_S), {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE_S) as client:
            yield client
    finally:
        made.service.stopping.begin()
        server.join(PATIENCE_S)
    assert not server.is_alive()


def test_without_a_cursor_only_new_events_are_streamed(deploy: Deploy) -> None:
    """Over a real socket, until the service ends."""
    made = deploy(living=False)
    with listening(made, made.key(Role.OPERATOR)) as client:
        work = {**WORK, "criteria": CRITERIA}
        client.post("/v1/verify", json=work)
        with client.stream("GET", "/v1/events") as stream:
            parts = stream.iter_raw()
            assert next(parts) == b": following\n\n"
            new = [client.post("/v1/verify", json=work).json()["outcome_id"] for _ in range(2)]
            seen = b""
            for _ in new:
                seen += next(parts)
            assert [one.data["data"]["outcome_id"] for one in told(seen)] == new
            made.service.stopping.begin()
            assert b"".join(parts) == b""


def test_one_subject_is_followed_over_a_real_socket(deploy: Deploy) -> None:
    made = deploy(living=False)
    key = made.key(Role.OPERATOR)
    with listening(made, key) as client:

        def queued() -> str:
            return str(client.post("/v1/agent-runs", json={"agent": "nobody", "query": "count"}).json()["id"])

        mine, others = queued(), queued()
        with client.stream("GET", "/v1/events", params={"subject": mine, "after": 0}) as stream:
            parts = stream.iter_raw()
            assert next(parts) == b": following\n\n"
            (before,) = told(next(parts))
            for run in (others, mine):
                assert client.post(f"/v1/agent-runs/{run}/cancel").status_code == 200
            (after,) = told(next(parts))
        assert [(one.kind, one.data["data"]["run_id"]) for one in (before, after)] == [
            ("agent_run.queued", mine),
            ("agent_run.cancelled", mine),
        ]


def test_a_quiet_stream_says_that_it_is_still_there(deploy: Deploy) -> None:
    made = deploy()
    key = made.key(Role.OPERATOR)
    dispatcher = made.service.dispatcher
    dispatcher._pace = msgspec.structs.replace(dispatcher._pace, heartbeat_s=0.05)
    reply = made.follow("/v1/events", lambda body: b"still here" in body, key=key)
    assert reply.content.startswith(b": following\n\n: still here\n\n")


def test_a_webhook_is_made_shown_once_listed_and_removed(either: Deployment, tenant: str, key: str) -> None:
    wish = {"url": "https://meruit.invalid/hook", "types": ["outcome.erased"]}
    reply = either.ask("POST", "/v1/webhooks", key=key, json=wish)
    assert reply.status_code == 201
    made, secret = reply.json()["webhook"], reply.json()["secret"]
    assert secret.startswith("whsec_")
    assert (made["tenant"], made["url"], made["types"]) == (tenant, wish["url"], wish["types"])
    listing = either.ask("GET", "/v1/webhooks", key=key)
    assert listing.json() == {"webhooks": [made], "next": None}
    assert secret not in listing.text
    gone = either.ask("DELETE", f"/v1/webhooks/{made['id']}", key=key)
    assert (gone.status_code, gone.content) == (204, b"")
    assert either.ask("GET", "/v1/webhooks", key=key).json() == {"webhooks": [], "next": None}
    assert either.ask("DELETE", f"/v1/webhooks/{made['id']}", key=key).status_code == 404


def new_webhook(deployment: Deployment, tenant: str) -> str:
    wish = AddWebhook(
        tenant, "http://127.0.0.1:9/", frozenset({"outcome.erased"}), deployment.store.surroundings.entropy
    )
    return deployment.store.recorder.write(wish).webhook.id


def test_webhooks_are_listed_in_pages(either: Deployment, tenant: str, key: str) -> None:
    made = sorted(new_webhook(either, tenant) for _ in range(5))
    found, after = list[str](), dict[str, str]()
    for _ in range(4):
        page = either.ask("GET", "/v1/webhooks", key=key, params={"limit": 2, **after}).json()
        found += [one["id"] for one in page["webhooks"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert found == made


def test_a_tenant_has_only_so_many_webhooks(deployment: Deployment, tenant: str, admin: str) -> None:
    for _ in range(MAX_WEBHOOKS):
        new_webhook(deployment, tenant)
    wish = {"url": "https://meruit.invalid/hook", "types": ["outcome.erased"]}
    reply = deployment.ask("POST", "/v1/webhooks", key=admin, json=wish)
    assert (reply.status_code, code_of(reply)) == (400, "bad_webhook")


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://10.0.0.1/", "http://169.254.169.254/"),
        *("file:///etc/passwd", "ftp://meruit.invalid/", "https://user:pass@meruit.invalid/", "https://", "nonsense"),
        *("http://2130706433/", "http://0x7f.1/", "http://meruit.invalid:0/", "https://meruit.invalid/\0"),
    ],
)
def test_a_webhook_leads_out_and_nowhere_else(deployment: Deployment, admin: str, url: str) -> None:
    before = deployment.rows()
    reply = deployment.ask("POST", "/v1/webhooks", key=admin, json={"url": url, "types": ["outcome.erased"]})
    if url == "http://localhost/":
        # A name is looked up when it is called, and refused then.
        assert reply.status_code == 201
        return
    assert (reply.status_code, code_of(reply)) == (400, "bad_webhook"), reply.text
    assert deployment.rows() == before


def test_dead_letters_are_listed_in_pages_and_sent_again(either: Deployment, tenant: str, key: str) -> None:
    webhook = new_webhook(either, tenant)
    first = dead_letter(either, webhook, "nobody listens")
    path = f"/v1/webhooks/{webhook}/dead"
    page = either.ask("GET", path, key=key).json()
    (one,) = page["dead"]
    assert (one["seq"], one["attempts"], one["error"], page["next"]) == (first, 9, "nobody listens", None)
    assert one["event"]["event_type"] == "key.created"
    assert either.ask("GET", path, key=key, params={"limit": 1}).json()["next"] == first
    assert either.ask("GET", path, key=key, params={"after": first}).json()["dead"] == []
    assert either.ask("POST", f"{path}/{first + 1}/redeliver", key=key).status_code == 404
    again = either.ask("POST", f"{path}/{first}/redeliver", key=key)
    assert again.status_code == 202
    assert either.ask("POST", f"/v1/webhooks/whk_{'0' * 34}/dead/{first}/redeliver", key=key).status_code == 404
    assert either.ask("GET", f"/v1/webhooks/whk_{'0' * 34}/dead", key=key).status_code == 404


def test_a_webhook_that_cannot_be_written_is_not_the_callers_fault(
    deployment: Deployment, admin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(deployment.store.recorder, "record", gone)
    reply = deployment.ask("POST", "/v1/webhooks", key=admin, json={"url": "https://meruit.invalid/"})
    assert (reply.status_code, code_of(reply)) == (503, "unavailable")


class Received(NamedTuple):
    """What a webhook's endpoint was sent."""

    headers: dict[str, str]
    body: bytes


@pytest.fixture
def endpoint() -> Iterator[tuple[str, "Queue[Received]"]]:
    """A real endpoint on this machine, and what comes in there."""
    received: Queue[Received] = Queue()

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received.put(Received({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - what it overrides
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/hook", received
    server.shutdown()
    server.server_close()
    thread.join(PATIENCE_S)


def test_events_are_delivered_signed_to_where_the_operator_allows(
    deploy: Deploy, endpoint: tuple[str, "Queue[Received]"]
) -> None:
    url, received = endpoint
    made = deploy(settings=settings_with(webhook_networks=["127.0.0.0/8"]))
    key = made.key(Role.OPERATOR)
    wish = {"url": url, "types": ["outcome.recorded"]}
    secret = made.ask("POST", "/v1/webhooks", key=key, json=wish).json()["secret"]
    outcome = judged(made, key)
    found = received.get(timeout=PATIENCE_S)
    event = Webhook(secret).verify(found.body, found.headers)
    assert (event["event_type"], event["data"]["outcome_id"]) == ("outcome.recorded", outcome)
    assert b"the cat sat" not in found.body
    assert "authorization" not in found.headers


def test_an_endpoint_that_is_not_there_is_counted(deploy: Deploy) -> None:
    made = deploy(settings=settings_with(webhook_networks=["127.0.0.0/8"]))
    key = made.key(Role.OPERATOR)
    wish = {**webhook_wish("nowhere"), "types": ["outcome.recorded"]}
    made.ask("POST", "/v1/webhooks", key=key, json=wish)
    judged(made, key)
    # Any: a counter shows its number to nobody but its own registry.
    failed: Any = made.service.instruments.webhook_attempts_total.labels("failed", "default")
    for _ in range(600):
        if failed._value.get():
            break
        threading.Event().wait(0.05)
    assert failed._value.get() >= 1


def test_a_stream_ends_with_its_key(either: Deployment, tenant: str) -> None:
    listening = either.key(Role.AUDITOR, tenant)

    said: list[bytes] = []

    def revoke(body: bytes) -> bool:
        said.append(body)
        if len(said) == 1:
            either.store.recorder.write(Revoke(listening.partition(".")[0], tenant))
            either.service.authenticator.clear_cache()
            either.store.recorder.write(_emit(tenant))
        # The second thing that is sent is the end of the answer.
        return len(said) > 1

    reply = either.follow("/v1/events?after=0", revoke, key=listening)
    assert reply.content == b": following\n\n"
    assert either.service.open_streams[listening.partition(".")[0]] == 0


def _emit(tenant: str) -> Any:
    return lambda writing: writing.emit(tenant, EventType.CRITERIA_REGISTERED, "s", "k", {"name": "n"})


def test_the_open_streams_of_a_key_are_limited(
    either: Deployment, tenant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = either.key(Role.OPERATOR, tenant)
    monkeypatch.setattr(events, "MAX_OPEN_STREAMS", 1)
    state: dict[str, Any] = {}
    either.service.open_streams.open_stream(operator.partition(".")[0], 1, state)
    try:
        reply = either.ask("GET", "/v1/events", key=operator)
        assert (reply.status_code, code_of(reply)) == (429, "too_many_streams")
    finally:
        either.service.open_streams.on_request_end(state)
    assert either.service.open_streams[operator.partition(".")[0]] == 0


def test_streams_count_before_they_begin() -> None:
    streams, states = OpenStreams(), [dict[str, Any]() for _ in range(300)]
    refused = 0
    for state in states:
        try:
            streams.open_stream("key", 32, state)
        except ApiProblem:
            refused += 1
    assert (streams["key"], refused) == (32, 268)
    for state in [*states, {}]:
        streams.on_request_end(state)
    assert streams["key"] == 0
