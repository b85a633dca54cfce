"""A real `meruit serve` in a process of its own, on a port of its own choosing, and how to talk to it."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from base64 import b64decode
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
from sqlalchemy import update
from tests.at_hand import Started

from meruit.log.merkle import is_consistent, is_included, leaf_hash
from meruit.log.note import Checkpoint, VerifierKey, open_checkpoint
from meruit.store import tables
from meruit.store.database import connect
from meruit.store.location import Location

PATIENCE_S = 60.0
"""How long anything may take; a loaded machine is no bug."""
POLL_S = 0.01
CRITERIA = {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 3}]}
# Criteria's own code has tests of its own; without it the service starts in a third of the time.
SETTINGS = """
extractors:
  text_quality: {class: TextQualityExtractor}
service:
  webhook_networks: ["127.0.0.0/8"]
"""
# With a grace that no slow machine uses up, or one that a test can wait for.
PATIENT = """
import sys
from meruit.api import server
from meruit.cli import main
server.GRACE_S = {grace_s}
main(sys.argv[1:])
"""

# Any: what the service says is JSON.
Json = dict[str, Any]


def environment(**more: str) -> dict[str, str]:
    """Ours, without what would change the service."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MERUIT", "COV", "PYTEST"))}
    return kept | more


def command(*arguments: str, cwd: Path, **more: str) -> "subprocess.CompletedProcess[str]":
    """A command of Meruit's, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "meruit", *arguments],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


class Life(NamedTuple):
    """One life of the service, from its start to its end."""

    process: Started
    url: str
    log: Path

    @property
    def address(self) -> tuple[str, int]:
        """Where it listens."""
        return "127.0.0.1", int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """`kill -9`."""
        self.process.send_signal(signal.SIGKILL)
        assert self.process.wait(PATIENCE_S) == -signal.SIGKILL

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Its exit code after one signal."""
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    def client(self, **options: Any) -> httpx.Client:
        """Somebody who asks it."""
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False, **options)


@contextmanager
def serving(
    home: Path, location: Location, *options: str, settings: str | None = SETTINGS, grace_s: float | None = None
) -> Iterator[Life]:
    """The service on these records, listening; killed in the end if it still lives."""
    home.mkdir(exist_ok=True)
    arguments = ["serve", "--port", "0", "--json", "--data", str(location.folder), *options]
    if location.url is not None:
        arguments += ["--database-url", location.url]
    if settings is not None:
        file = home / "settings.yaml"
        file.write_text(settings)
        arguments += ["--config", str(file)]
    number = len(list(home.glob("*.out")))
    said, log = home / f"{number}.out", home / f"{number}.err"
    with said.open("wb") as out, log.open("wb") as err:
        program = "meruit"
        if grace_s is not None:
            (home / "serve.py").write_text(PATIENT.format(grace_s=grace_s))
            program, arguments = "python", [str(home / "serve.py"), *arguments]
        process = Started(arguments, cwd=home, env=environment(), stdout=out, stderr=err, program=program)
    try:
        yield Life(process, _listening(process, said, log), log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_S)


def _listening(process: Started, said: Path, log: Path) -> str:
    """The URL that it says it listens on."""
    until = time.monotonic() + PATIENCE_S
    while not (line := said.read_text()).endswith("\n"):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, log.read_text()
        time.sleep(POLL_S)
    url: str = json.loads(line)["url"]
    return url


def request(key: str, words: str = "three words here", **labels: str) -> Json:
    """Work to be judged, with its key among its labels, so that its outcome can be told from others'."""
    return {"criteria": CRITERIA, "output": {"text": words}, "consumer_id": key, **labels}


def everything(client: httpx.Client, limit: int = 200) -> list[Json]:
    """Every outcome, newest first, page by page."""
    found: list[Json] = []
    place: int | None = None
    while True:
        asked: dict[str, int] = {"limit": limit} if place is None else {"limit": limit, "before": place}
        page = client.get("/v1/outcomes", params=asked).raise_for_status().json()
        found += page["outcomes"]
        place = page["next"]
        if place is None:
            return found


def recorded_by(event: Json) -> list[str]:
    """The outcomes that an event says are recorded: one, or those of a batch."""
    match event["event_type"]:
        case "outcome.recorded":
            return [event["data"]["outcome_id"]]
        case "outcomes.recorded":
            return [one["outcome_id"] for one in event["data"]["outcomes"]]
        case _:
            return []


def followed(client: httpx.Client, count: int, after: int = 0) -> list[tuple[int, Json]]:
    """The events of so many recorded outcomes, with all that stand between them, each with its number."""
    found: list[tuple[int, Json]] = []
    number, recorded = -1, 0
    with client.stream("GET", "/v1/events", params={"after": after}) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for line in stream.iter_lines():
            name, _, value = line.partition(": ")
            if name == "id":
                number = int(value)
            elif name == "data":
                found.append((number, json.loads(value)))
                recorded += len(recorded_by(found[-1][1]))
            if recorded == count:
                break
    return found


class Seen(NamedTuple):
    """A checkpoint that somebody kept."""

    note: str
    key: VerifierKey

    def opened(self) -> Checkpoint:
        """What it says, if the key signed it."""
        return open_checkpoint(self.note, self.key)


def checkpoint(client: httpx.Client) -> Seen:
    """The log as it stands."""
    key = VerifierKey.parse(client.get("/v1/audit/key").raise_for_status().text)
    return Seen(client.get("/v1/audit/checkpoint").raise_for_status().text, key)


def check_growth(client: httpx.Client, older: Seen, newer: Seen) -> None:
    """The newer log begins with the older one."""
    old, new = older.opened(), newer.opened()
    assert (old.origin, older.key) == (new.origin, newer.key)
    asked = {"old": old.size, "new": new.size}
    proof = client.get("/v1/audit/consistency", params=asked).raise_for_status().json()["proof"]
    assert is_consistent(old.size, new.size, [bytes.fromhex(one) for one in proof], old.root, new.root)


def check_receipt(receipt: Mapping[str, Any], key: VerifierKey) -> Json:
    """What the receipt proves to be in the log: an entry, or one version in the segment of a batch."""
    assert receipt["vkey"] == key.vkey
    signed = open_checkpoint(receipt["checkpoint"], key)
    entry, proof = _bytes(receipt["entry"]), [_bytes(one) for one in receipt["proof"]]
    assert is_included(leaf_hash(entry), receipt["index"], signed.size, proof, signed.root)
    found: Json = json.loads(entry)
    if "case" in receipt:
        inside, path = _bytes(receipt["case"]["entry"]), [_bytes(one) for one in receipt["case"]["proof"]]
        root = bytes.fromhex(found["root"])
        assert is_included(leaf_hash(inside), receipt["case"]["place"], found["versions"], path, root)
        found = json.loads(inside)
    assert found["outcome"] == receipt["outcome"]
    return found


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def let_lease_pass(location: Location) -> None:
    """As if the half minute had passed for which a dead process still has the right to deliver."""
    database = connect(location)
    try:
        with database.writer.begin() as connection:
            connection.execute(update(tables.leases).values(until=0))
    finally:
        database.close()


def refused(address: Sequence[Any]) -> bool:
    """Whether nobody listens there any more, within our patience."""
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        try:
            with contextlib.closing(socket.create_connection((address[0], address[1]), timeout=1.0)):
                time.sleep(POLL_S)
        except ConnectionRefusedError:
            return True
        except (ConnectionResetError, TimeoutError):
            continue
    return False
