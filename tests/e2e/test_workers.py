"""`meruit serve --workers 2` on Postgres: two processes behave as one, and one may die."""

import contextlib
import json
import math
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
from tests.e2e.serving import PATIENCE_S, SETTINGS, Life, check_growth, checkpoint, everything, request, serving

from meruit.store.location import Location

RATE = 40
"""Requests a minute of a key; few, so that a test can use them up."""
LIMITED = f"{SETTINGS}  requests_per_minute: {RATE}\n"
TOGETHER = 6
"""Idempotency keys that are sent to both workers at once."""
UNDER_WAY = 16
"""Requests that are sent while a worker is killed."""
MAX_CONNECTIONS = 200
"""Connections until each worker has accepted one."""


def processes_of(life: Life) -> dict[str, int]:
    """The process of each worker, by its number."""
    found = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1]) if entry.name.isdecimal() else 0
            named = re.search(rb'\{"index":(\d+)', (entry / "cmdline").read_bytes()) if parent else None
            if parent == life.process.pid and named is not None:
                found[str(int(named[1]) + 1)] = int(entry.name)
    return found


def read_metrics(client: httpx.Client, name: str) -> Counter[str]:
    """A metric by worker, summed over its other labels."""
    found: Counter[str] = Counter()
    text = client.get("/metrics").raise_for_status().text
    for worker, value in re.findall(rf'^{name}\{{worker="(\d+)"[^}}]*\}} (\S+)$', text, re.MULTILINE):
        found[worker] += round(float(value))
    return found


def worker_of(client: httpx.Client) -> str:
    """The worker that has the client's connection: the one that has answered more after one more question."""
    before, after = (read_metrics(client, "meruit_requests_total") for _ in range(2))
    return max(after, key=lambda worker: after[worker] - before[worker])


@contextmanager
def client_of_each(life: Life) -> Iterator[dict[str, httpx.Client]]:
    """A client of each worker, with one connection that stays open."""
    with ExitStack() as open_clients:
        found = dict[str, httpx.Client]()
        for _ in range(MAX_CONNECTIONS):
            client = open_clients.enter_context(life.client(limits=httpx.Limits(max_connections=1)))
            found.setdefault(worker_of(client), client)
            if len(found) == 2:
                break
        assert set(found) == {"1", "2"}
        yield found


def verify(client: httpx.Client, key: str) -> bytes:
    """Send work until it is answered; also over a new connection, where the worker of the first one died."""
    while True:
        try:
            reply = client.post("/v1/verify", json=request(key), headers={"Idempotency-Key": key})
        except httpx.TransportError:
            continue
        if reply.status_code != httpx.codes.CONFLICT:
            assert reply.status_code == httpx.codes.OK, reply.text
            return reply.content
        assert reply.json()["type"].endswith("still_running")
        time.sleep(0.01)


def wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < until
        time.sleep(0.05)


def outcome_of(reply: bytes) -> str:
    outcome: str = json.loads(reply)["outcome_id"]
    return outcome


def test_two_workers_are_one_service_and_one_may_die(tmp_path: Path, postgres_url: str) -> None:
    location = Location(tmp_path / "data", postgres_url)
    with serving(tmp_path / "home", location, "--workers", "2", settings=LIMITED) as life:
        first = processes_of(life)
        assert set(first) == {"1", "2"}
        replies = dict[str, bytes]()
        with client_of_each(life) as clients, ThreadPoolExecutor(2) as pool:
            for number in range(TOGETHER):
                key = f"key-{number}"
                one, other = pool.map(lambda client, key=key: verify(client, key), clients.values())
                assert one == other
                replies[key] = one
            _check_stream(clients, replies)
        _check_death(life, first, replies)
        _check_rate(life)
        assert life.stop() == 0
        assert not processes_of(life)


def _check_stream(clients: dict[str, httpx.Client], replies: dict[str, bytes]) -> None:
    """A stream of the second worker shows what the first one records."""
    begun, found = threading.Event(), list[str]()

    def follow() -> None:
        with clients["2"].stream("GET", "/v1/events") as stream:
            for line in stream.iter_lines():
                begun.set()
                if line.startswith("data: {"):
                    found.append(json.loads(line[6:])["data"]["outcome_id"])
                    return

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    assert begun.wait(PATIENCE_S)
    replies["seen"] = verify(clients["1"], "seen")
    follower.join(PATIENCE_S)
    assert found == [outcome_of(replies["seen"])]


def _check_death(life: Life, first: dict[str, int], replies: dict[str, bytes]) -> None:
    """A worker is killed under load: it is replaced, and what was acknowledged is there, once."""
    with life.client() as client:
        before = checkpoint(client)

    def ask(number: int) -> tuple[str, bytes]:
        with life.client() as client:
            return f"late-{number}", verify(client, f"late-{number}")

    with ThreadPoolExecutor(UNDER_WAY) as pool:
        asked = [pool.submit(ask, number) for number in range(UNDER_WAY)]
        asked[0].result()
        os.kill(first["1"], signal.SIGKILL)
        replies |= dict(one.result() for one in asked)
    wait_until(lambda: processes_of(life).get("1", first["1"]) != first["1"])
    with life.client() as client:
        wait_until(lambda: read_metrics(client, "meruit_worker_up") == Counter({"1": 1, "2": 1}))
        found = [one["id"] for one in everything(client)]
        assert sorted(found) == sorted(outcome_of(reply) for reply in replies.values())
        check_growth(client, before, checkpoint(client))
        assert client.get("/health").json()["status"] == "ok"
        assert all(verify(client, key) == reply for key, reply in replies.items())


def _check_rate(life: Life) -> None:
    """A key's rate is one for both workers, and a new key closes both to callers without one."""
    with client_of_each(life) as clients:
        made = clients["1"].post("/v1/keys", json={"name": "reader", "role": "auditor"})
        secret = made.raise_for_status().json()["secret"]
        assert all(one.get("/v1/outcomes").status_code == httpx.codes.UNAUTHORIZED for one in clients.values())
        begun, admitted = time.monotonic(), 0
        for number in range(3 * RATE):
            asked = clients[str(number % 2 + 1)].get("/v1/outcomes", headers={"Authorization": f"Bearer {secret}"})
            admitted += asked.is_success
            if asked.status_code == httpx.codes.TOO_MANY_REQUESTS:
                break
        assert RATE <= admitted <= RATE + math.ceil((time.monotonic() - begun) * RATE / 60)
