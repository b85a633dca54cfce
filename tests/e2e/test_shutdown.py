"""The service is asked to end: what was begun is finished, nothing new is taken, and it says goodbye in time."""

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import httpx
import pytest
from tests.e2e.serving import (
    PATIENCE_S,
    Json,
    Life,
    check_growth,
    checkpoint,
    everything,
    followed,
    refused,
    request,
    serving,
)

from meruit.store.location import Location

SLOW = 3
"""Requests that are under way when the signal comes."""
SIGNALS = [signal.SIGTERM, signal.SIGINT]
MAX_REPLY = 1_000_000
LONG_S = 300.0
"""A grace that ends after any test."""
SHORT_S = 3.0
"""One that a test waits for."""


class SlowRequest:
    """A request whose handler has begun to read it, and whose end we hold back."""

    def __init__(self, life: Life, key: str) -> None:
        self.body = json.dumps(request(key)).encode()
        head = (
            "POST /v1/verify HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(self.body)}\r\nExpect: 100-continue\r\n\r\n"
        )
        self._connection = socket.create_connection(life.address, timeout=PATIENCE_S)
        self._connection.sendall(head.encode())
        # Said when somebody wants the body, not before.
        assert self._connection.recv(100).startswith(b"HTTP/1.1 100 ")

    def finish(self) -> tuple[int, Json]:
        """Send the rest, and hear the answer."""
        self._connection.sendall(self.body)
        reply = b""
        while len(reply) < MAX_REPLY and (more := self._connection.recv(65_536)):
            reply += more
        head, _, body = reply.partition(b"\r\n\r\n")
        return int(head.split()[1]), json.loads(body)

    def close(self) -> None:
        """Go away, finished or not."""
        self._connection.close()


@contextlib.contextmanager
def slow_requests(life: Life, count: int = SLOW) -> Iterator[list[SlowRequest]]:
    with contextlib.ExitStack() as closing:
        yield [closing.enter_context(contextlib.closing(SlowRequest(life, f"slow-{each}"))) for each in range(count)]


def follow(life: Life, lines: "Queue[str | None]") -> None:
    """Every line of the stream of events; None once it has ended as it should."""
    with life.client() as client, client.stream("GET", "/v1/events", params={"after": 0}) as stream:
        for line in stream.iter_lines():
            lines.put(line)
    lines.put(None)


@contextlib.contextmanager
def following(life: Life) -> Iterator["Queue[str | None]"]:
    lines: Queue[str | None] = Queue()
    thread = threading.Thread(target=follow, args=(life, lines), daemon=True)
    thread.start()
    assert lines.get(timeout=PATIENCE_S) == ": following"
    yield lines
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def drained(lines: "Queue[str | None]") -> list[str]:
    found = []
    while (line := lines.get(timeout=PATIENCE_S)) is not None:
        found.append(line)
    return found


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_what_was_begun_is_answered_and_durable_and_the_next_life_goes_on(number: int, tmp_path: Path) -> None:
    location = Location(tmp_path / "data")
    patient = serving(tmp_path / "home", location, grace_s=LONG_S)
    with patient as life, following(life) as lines, slow_requests(life) as slow:
        with life.client() as client:
            before = client.post("/v1/verify", json=request("before")).raise_for_status().json()
            seen = checkpoint(client)
        life.process.send_signal(number)
        assert refused(life.address)
        assert life.process.poll() is None
        answers = [one.finish() for one in slow]
        assert [status for status, _ in answers] == [httpx.codes.OK] * SLOW
        assert all(reply["recorded"] for _, reply in answers)
        assert life.process.wait(PATIENCE_S) == 0
        assert f'"outcome_id":"{before["outcome_id"]}"' in "".join(drained(lines))
    assert '"level":"error"' not in life.log.read_text()
    expected = [before["outcome_id"], *(reply["outcome_id"] for _, reply in answers)]
    with serving(tmp_path / "home", location, grace_s=LONG_S) as life, life.client() as client:
        assert {one["id"] for one in everything(client)} == set(expected)
        for outcome_id, (_, reply) in zip(expected[1:], answers, strict=True):
            found = client.get(f"/v1/outcomes/{outcome_id}").raise_for_status().json()
            assert found["verification_result"] == reply["result"]
        check_growth(client, seen, checkpoint(client))
        headers = {"Content-Type": "application/json", "Idempotency-Key": "slow-0"}
        again = client.post("/v1/verify", content=slow[0].body, headers=headers)
        assert (again.json(), again.headers.get("idempotency-replayed")) == (answers[0][1], "true")
        after = client.post("/v1/verify", json=request("after")).raise_for_status().json()
        assert [number for number, _ in followed(client, SLOW + 2)] == list(range(1, SLOW + 3))
        assert after["outcome_id"] in {one["id"] for one in everything(client)}
        # The client's connection is idle now, and holds nothing up: the grace is far longer than the patience.
        assert life.stop() == 0


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_a_second_signal_ends_it_at_once(number: int, tmp_path: Path) -> None:
    with serving(tmp_path / "home", Location(tmp_path / "data"), grace_s=LONG_S) as life, slow_requests(life, 1):
        life.process.send_signal(number)
        assert refused(life.address)
        with pytest.raises(subprocess.TimeoutExpired):
            life.process.wait(0.3)
        assert life.stop(number) == -number


def test_a_caller_that_never_ends_its_request_holds_it_up_for_the_grace_and_no_longer(tmp_path: Path) -> None:
    with serving(tmp_path / "home", Location(tmp_path / "data"), grace_s=SHORT_S) as life, slow_requests(life, 1):
        begun = time.monotonic()
        assert life.stop() == 0
        assert time.monotonic() - begun > SHORT_S * 0.9
