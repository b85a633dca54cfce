"""The service is killed in the middle of its work, again and again: what it acknowledged stays, once, and provably."""

import asyncio
import os
import random
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import httpx
from tests.e2e.receiving import Receiver, receiving
from tests.e2e.serving import (
    CRITERIA,
    PATIENCE_S,
    Json,
    Life,
    Seen,
    check_growth,
    check_receipt,
    checkpoint,
    command,
    everything,
    followed,
    let_lease_pass,
    recorded_by,
    request,
    serving,
)

from meruit.store.location import Location

CLIENTS = 8
ROUNDS = {"sqlite": 6, "postgresql": 4} if "MERUIT_DEATHS" in os.environ else {"sqlite": 2, "postgresql": 1}
"""Deaths of the service, under load."""
ACKNOWLEDGED = (10, 60) if "MERUIT_DEATHS" in os.environ else (10, 30)
"""How many requests are answered before the service dies: at least and at most."""
LATER_S = 0.03
"""How long after the last of them it dies at most."""
BATCH = 3
SAMPLE = 6


class Asked(NamedTuple):
    """A request under a key of its own; it may be sent several times."""

    key: str
    path: str
    body: Json
    parts: tuple[str, ...]
    """The label of each outcome that it asks for."""


def asked(number: int) -> Asked:
    key = f"key-{number}"
    words = "only two" if number % 3 == 0 else f"the work of {key} is this"
    # A few contracts are shared, so that entries of one contract come from several requests at once.
    labels = {"contract_id": f"contract-{number % 5}"} if number % 2 else {}
    if number % 4:
        return Asked(key, "/v1/verify", request(key, words, **labels), (key,))
    parts = tuple(f"{key}/{part}" for part in range(BATCH))
    items = [{"output": {"text": words}, "consumer_id": part, **labels} for part in parts]
    return Asked(key, "/v1/verify/batch", {"criteria": CRITERIA, "items": items}, parts)


class Ledger:
    """What we asked for, and what we were told."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.replies: dict[str, bytes] = {}
        """By key; a second reply must be the first one, byte for byte."""
        self.known: dict[str, Json] = {}
        """What was said about each part, by its label."""
        self.replayed = 0

    def next(self) -> Asked:
        """Something new, or now and then something old once more."""
        if self.asked and random.random() < 0.2:
            return random.choice(self.asked)
        self.asked.append(asked(len(self.asked)))
        return self.asked[-1]

    def answered(self, one: Asked, response: httpx.Response) -> None:
        if response.status_code == httpx.codes.CONFLICT:
            # The same key is being served right now, for another of our clients.
            return
        assert response.status_code == httpx.codes.OK, response.text
        again = response.headers.get("idempotency-replayed") == "true"
        assert self.replies.setdefault(one.key, response.content) == response.content
        self.replayed += again
        reply = response.json()
        for part, told in zip(one.parts, reply.get("results", [reply]), strict=True):
            self.known[part] = told

    @property
    def unanswered(self) -> list[Asked]:
        return [one for one in self.asked if one.key not in self.replies]


async def _ask(client: httpx.AsyncClient, ledger: Ledger, one: Asked) -> None:
    ledger.answered(one, await client.post(one.path, json=one.body, headers={"Idempotency-Key": one.key}))


async def _under_load(life: Life, ledger: Ledger, seen: list[Seen]) -> None:
    """Several clients ask as fast as they can, and one keeps checkpoints, until the service is killed."""
    wanted = len(ledger.replies) + random.randint(*ACKNOWLEDGED)
    enough = asyncio.Event()

    async def ask(client: httpx.AsyncClient) -> None:
        while True:
            try:
                await _ask(client, ledger, ledger.next())
            except httpx.TransportError:
                return
            if len(ledger.replies) >= wanted:
                enough.set()

    async def keep(client: httpx.AsyncClient) -> None:
        while True:
            try:
                note = (await client.get("/v1/audit/checkpoint")).text
            except httpx.TransportError:
                return
            seen.append(Seen(note, seen[0].key))
            await asyncio.sleep(random.uniform(0, 0.2))

    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(base_url=life.url, timeout=PATIENCE_S, trust_env=False, limits=limits) as client,
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as clients,
    ):
        for _ in range(CLIENTS):
            clients.create_task(ask(client))
        clients.create_task(keep(client))
        await enough.wait()
        await asyncio.sleep(random.uniform(0, LATER_S))
        life.kill()


async def _again(life: Life, ledger: Ledger, several: list[Asked]) -> None:
    """Repeat requests, a few at a time."""
    async with httpx.AsyncClient(base_url=life.url, timeout=PATIENCE_S, trust_env=False) as client:
        for at in range(0, len(several), CLIENTS):
            await asyncio.gather(*(_ask(client, ledger, one) for one in several[at : at + CLIENTS]))


async def _check_known(life: Life, known: dict[str, Json]) -> None:
    """Every acknowledged outcome is there, and says what was said."""

    async def check(client: httpx.AsyncClient, label: str, told: Json) -> None:
        found = (await client.get(f"/v1/outcomes/{told['outcome_id']}")).raise_for_status().json()
        assert found["verification_result"] == told["result"], label
        assert (found["consumer_id"], found["version"]) == (label, told["version"])

    waiting = list(known.items())
    async with httpx.AsyncClient(base_url=life.url, timeout=PATIENCE_S, trust_env=False) as client:
        for at in range(0, len(waiting), CLIENTS):
            await asyncio.gather(*(check(client, *one) for one in waiting[at : at + CLIENTS]))


def _check_once(client: httpx.Client, ledger: Ledger) -> list[Json]:
    """No outcome twice, no batch by halves, nothing acknowledged that is not listed."""
    listed = everything(client)
    times = Counter(one["consumer_id"] for one in listed)
    assert max(times.values(), default=0) <= 1, times.most_common(3)
    assert {one["id"] for one in listed} >= {told["outcome_id"] for told in ledger.known.values()}
    for one in ledger.asked:
        assert sum(part in times for part in one.parts) in (0, len(one.parts)), one.key
    assert [one["seq"] for one in listed] == list(range(len(listed), 0, -1))
    return listed


def _check_events(client: httpx.Client, listed: list[Json]) -> None:
    """Each outcome was told of once, in the order of the log, without a gap."""
    events = followed(client, len(listed))
    assert [number for number, _ in events] == list(range(1, len(events) + 1))
    told = [outcome for _, event in events for outcome in recorded_by(event)]
    assert told == [one["id"] for one in reversed(listed)]
    assert len({event["event_id"] for _, event in events}) == len(events)


def _check_after_death(life: Life, ledger: Ledger, seen: list[Seen], fresh: dict[str, Json]) -> list[Json]:
    """All that must hold once the service is back."""
    with life.client() as client:
        _check_once(client, ledger)
        asyncio.run(_check_known(life, fresh))
        acknowledged = [one for one in ledger.asked if one.key in ledger.replies]
        before = ledger.replayed
        sample = random.sample(acknowledged, min(SAMPLE, len(acknowledged)))
        asyncio.run(_again(life, ledger, [*sample, *ledger.unanswered]))
        assert ledger.replayed >= before + len(sample)
        assert not ledger.unanswered
        listed = _check_once(client, ledger)
        assert {one["consumer_id"] for one in listed} == {part for one in ledger.asked for part in one.parts}
        newest = checkpoint(client)
        for older in (seen[0], *random.sample(seen, min(SAMPLE, len(seen))), seen[-1]):
            check_growth(client, older, newest)
        seen.append(newest)
        for told in random.sample(list(ledger.known.values()), min(SAMPLE, len(ledger.known))):
            receipt = client.get(f"/v1/outcomes/{told['outcome_id']}/receipt").raise_for_status().json()
            assert check_receipt(receipt, newest.key)["verdict"] == told["result"]["verdict"]
        _check_events(client, listed)
    return listed


def _subscribe(life: Life, receiver: Receiver, url: str) -> None:
    with life.client() as client:
        made = client.post("/v1/webhooks", json={"url": url, "types": ["outcome.recorded", "outcomes.recorded"]})
    assert made.status_code == httpx.codes.CREATED, made.text
    receiver.secret = made.json()["secret"]


def test_what_was_acknowledged_outlives_every_kill(store_location: Location, tmp_path: Path) -> None:
    home, rounds = tmp_path / "home", ROUNDS[store_location.kind]
    ledger, seen = Ledger(), list[Seen]()
    with receiving() as (receiver, hook):
        with serving(home, store_location) as life:
            _subscribe(life, receiver, hook)
            with life.client() as client:
                seen.append(checkpoint(client))
            fresh = _killed_under_load(life, ledger, seen)
        for remaining in reversed(range(rounds)):
            let_lease_pass(store_location)
            with serving(home, store_location) as life:
                listed = _check_after_death(life, ledger, seen, fresh)
                if remaining:
                    fresh = _killed_under_load(life, ledger, seen)
                    continue
                asyncio.run(_check_known(life, ledger.known))
                _check_bundle(life, listed, home, seen[-1])
                assert receiver.await_all({one["id"] for one in listed}, PATIENCE_S) == set()
                assert life.stop() == 0
    assert receiver.bad == []
    assert all(len(bodies) == 1 for bodies in receiver.deliveries.values())


def _killed_under_load(life: Life, ledger: Ledger, seen: list[Seen]) -> dict[str, Json]:
    """What was acknowledged for the first time in this life."""
    before = set(ledger.known)
    asyncio.run(_under_load(life, ledger, seen))
    fresh = {label: told for label, told in ledger.known.items() if label not in before}
    assert fresh
    return fresh


def _check_bundle(life: Life, listed: list[Json], home: Path, seen: Seen) -> None:
    """A stranger who has the key and an old checkpoint finds nothing wrong."""
    (home / "kept").write_text(seen.note)
    with life.client() as client:
        bundle = client.get(f"/v1/outcomes/{random.choice(listed)['id']}/bundle").raise_for_status().content
    (home / "bundle.zip").write_bytes(bundle)
    checked = command("audit", "verify", "bundle.zip", "--key", seen.key.vkey, "--checkpoint", "kept", cwd=home)
    assert checked.returncode == 0, checked.stdout + checked.stderr
