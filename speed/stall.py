"""How long others wait while one key sends the worst bodies: `/health`, and another tenant's verify.

Each kind of body is sent six at a time by one agent's key and by one operator's key, and meanwhile the others ask one
after another. The ratio is to the same questions in a quiet service; the aim is 100 ms for `/health` at the 99th
percentile. Times are of the wall clock, so that a busy machine makes all of them longer.
"""

import asyncio
import json
import math
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx

from meruit.api.app import build_app, build_service
from meruit.api.server import ShutdownSignal, run
from meruit.config import Settings
from meruit.model.access import Role
from meruit.store.access.keys import NewKey
from meruit.store.location import Location
from meruit.store.store import Store

AT_ONCE = 6
QUESTIONS = 150
ROUNDS = 1
BODY_BYTES = 15 * 1_048_576
AGENT_BYTES = 4 * 1_048_576 - 1_024
SMALL = {
    "criteria": {"criteria": [{"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}]}
}


def _text(char: str) -> Callable[[int], bytes]:
    def build(size: int) -> bytes:
        text = char * (size // len(char.encode()))
        return json.dumps({"text": text}, ensure_ascii=False).encode()

    return build


def _repeat(part: bytes) -> Callable[[int], bytes]:
    return lambda size: b'{"text":"a","more":[' + b",".join([part] * (size // (len(part) + 1))) + b"]}"


def _keys(size: int) -> bytes:
    return b'{"text":"a","more":{' + b",".join(b'"k%d":1' % number for number in range(size // 13)) + b"}}"


BODIES: dict[str, Callable[[int], bytes]] = {
    "words": _text("word "),
    "U+FDFA, 18 letters each": _text("\ufdfa"),
    "accents on one letter": _text("\u0301"),
    "empty lists": _repeat(b"[]"),
    "small objects": _repeat(b'{"a":1}'),
    "keys": _keys,
}


class Waits(NamedTuple):
    """The 99th percentile of each question, in milliseconds."""

    health: float
    verify: float


class _Server(NamedTuple):
    url: str
    operator: str
    agent: str
    neighbour: str


def _serve() -> None:
    """Serve a new folder, and print the address and the keys."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.open(Location(Path(folder)))
        limits = {"key_mb_per_minute": 1_048_576, "tenant_mb_per_minute": 1_048_576, "agent_tries": 1_000_000}
        settings = Settings.model_validate({"service": limits})

        def add_key(tenant: str, role: Role) -> str:
            agent_id = "robot" if role is Role.AGENT else None
            return store.recorder.write(
                NewKey(tenant, role, "speed", agent_id, None, store.surroundings.entropy)
            ).secret

        keys = [add_key("noisy", Role.OPERATOR), add_key("noisy", Role.AGENT), add_key("neighbour", Role.OPERATOR)]
        stopping = ShutdownSignal()
        try:
            app = build_app(build_service(settings, store, stopping))
            run(app, "127.0.0.1", 0, ready=lambda where: print(where, *keys, flush=True), stopping=stopping)
        finally:
            store.close()


@asynccontextmanager
async def _server() -> AsyncIterator[_Server]:
    command = (sys.executable, "-m", "speed.stall", "serve")
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    assert process.stdout is not None
    try:
        yield _Server(*(await process.stdout.readline()).decode().split())
    finally:
        process.terminate()
        await process.wait()


def _p99(waits: Sequence[float]) -> float:
    return sorted(waits)[max(0, math.ceil(len(waits) * 0.99) - 1)] * 1e3


async def _ask(client: httpx.AsyncClient, server: _Server, busy: asyncio.Event | None = None) -> Waits:
    """Ask one after another; with `busy`, for as long as it is not set."""
    health, verify = list[float](), list[float]()
    bearer = {"Authorization": f"Bearer {server.neighbour}"}
    number = 0
    while number < QUESTIONS if busy is None else not busy.is_set() or number < QUESTIONS // 10:
        begun = time.perf_counter()
        (await client.get("/health")).raise_for_status()
        health.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        body = {**SMALL, "output": {"text": f"answer {number}"}}
        (await client.post("/v1/verify", json=body, headers=bearer)).raise_for_status()
        verify.append(time.perf_counter() - begun)
        number += 1
        await asyncio.sleep(0.01)
    return Waits(_p99(health), _p99(verify))


async def _disturb(server: _Server, key: str, body: bytes, done: asyncio.Event) -> list[int]:
    """Send the body again and again, several at once; the statuses."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    async with httpx.AsyncClient(base_url=server.url, timeout=300, limits=httpx.Limits()) as client:
        replies = [
            await asyncio.gather(*(client.post("/v1/verify", content=body, headers=headers) for _ in range(AT_ONCE)))
            for _ in range(ROUNDS)
        ]
    done.set()
    return [reply.status_code for several in replies for reply in several]


async def measure() -> None:
    """Print a line for each kind of body and key."""
    async with _server() as server, httpx.AsyncClient(base_url=server.url, timeout=300) as client:
        headers = {"Authorization": f"Bearer {server.operator}"}
        named = {"name": "job", **SMALL}
        (await client.post("/v1/criteria", json=named, headers=headers)).raise_for_status()
        await _ask(client, server)
        quiet = await _ask(client, server)
        print(f"{'quiet':45} health {quiet.health:7.1f} ms        verify {quiet.verify:7.1f} ms")
        for who, key, size in (("agent", server.agent, AGENT_BYTES), ("operator", server.operator, BODY_BYTES)):
            for name, build in BODIES.items():
                body = b'{"criteria":"job","output":' + build(size) + b"}"
                done = asyncio.Event()
                asking = asyncio.create_task(_ask(client, server, done))
                statuses = await _disturb(server, key, body, done)
                found = await asking
                line = f"{who}, {AT_ONCE} of {len(body) / 2**20:.0f} MB, {name}"
                print(
                    f"{line:45} health {found.health:7.1f} ms {found.health / quiet.health:5.0f}x "
                    f"verify {found.verify:7.1f} ms {found.verify / quiet.verify:5.0f}x  {sorted({*statuses})}",
                    flush=True,
                )


if __name__ == "__main__":
    if sys.argv[1:] == ["serve"]:
        _serve()
    else:
        asyncio.run(measure())
