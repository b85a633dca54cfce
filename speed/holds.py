"""The longest time that one body keeps all other threads, or the event loop, from running.

While a body is handled, one thread wakes every millisecond, and one task of the event loop does. What the process
computed between two wakes is CPU time, so that a busy machine changes the figures little. A wait for the interpreter is
as long as a C function that does not release it, and a wait for the loop as long as one step on it. `/health` takes at
most their sum longer.

python -m speed.holds [NAME ...]
"""

import asyncio
import json
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from meruit.api.app import build_app, build_service
from meruit.api.server import SWITCH_S, ShutdownSignal
from meruit.config import Settings
from meruit.model.access import Role
from meruit.store.access.keys import NewKey
from meruit.store.location import Location
from meruit.store.store import Store

if TYPE_CHECKING:
    from starlette.types import ASGIApp

AGENT_BYTES = 4 * 1_048_576 - 1_024
OPERATOR_BYTES = 15 * 1_048_576
WAKE_S = 0.001
TRIES = 3
NAMED_MS = 20
"""Longer holds are shown with the function that they happened in."""
LOG_LINES = 3
CRITERION = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 1}

Body = Callable[[int], bytes]


def _text(part: str) -> Body:
    return lambda size: json.dumps({"text": part * (size // len(part.encode()))}, ensure_ascii=False).encode()


def _repeat(part: str) -> Body:
    return lambda size: f'{{"text":"a","more":[{",".join([part] * (size // (len(part) + 1)))}]}}'.encode()


def _number(template: str) -> Body:
    """Values that all differ."""
    length = len(template.format(10**6)) + 1
    return lambda size: (
        '{"text":"a","more":[' + ",".join(template.format(number + 10**6) for number in range(size // length)) + "]}"
    ).encode()


def _keys(size: int) -> bytes:
    return ('{"text":"a","more":{' + ",".join(f'"k{number}":1' for number in range(size // 13)) + "}}").encode()


def _nested(size: int) -> bytes:
    """Lists as deep as is allowed, again and again."""
    one = "[" * 58 + "]" * 58
    return _repeat(one)(size)


OUTPUTS: dict[str, Body] = {
    "words": _text("word "),
    "distinct words": lambda size: json.dumps({"text": " ".join(f"w{n}" for n in range(size // 9))}).encode(),
    "one word": _text("x"),
    "U+FDFA, 18 letters each": _text("\ufdfa"),
    "accents on one letter": _text("\u0301"),
    "emoji": _text("\U0001f469\u200d\U0001f4bb"),
    "escapes": lambda size: b'{"text":"' + b"\\u0041" * (size // 6) + b'"}',
    "lines": lambda size: _text("\n")(size // 2),
    "empty lists": _repeat("[]"),
    "nested lists": _nested,
    "small objects": _repeat('{"a":1}'),
    "keys": _keys,
    "short strings": _number('"s{}"'),
    "equal short strings": _repeat('"ab"'),
    "numbers": _number("{}"),
    "fractions": _number("0.{}"),
    "numbers of 400 digits": _repeat("9" * 400),
    "keys and one long number": lambda size: _keys(size).replace(b'"k0":1', b'"k0":' + b"9" * 30),
    "lists and one long number": lambda size: _repeat("[]")(size).replace(b"[[]", b"[" + b"9" * 30),
    "powers": _repeat("1e-300"),
}
"""What an output may hold; each is made of about so many bytes."""


def _criteria(size: int) -> dict[str, Any]:
    return {"criteria": [{**CRITERION, "id": f"c{number}"} for number in range(min(100, size))]}


def _patterns(_: int) -> dict[str, Any]:
    one = {"metric": "regex_match", "metric_type": "boolean", "comparison": "eq", "threshold": True}
    return {"criteria": [{**one, "id": f"c{n}", "config": {"pattern": f"(a|b|c{n}){{1,20}}x"}} for n in range(200)]}


REQUESTS: dict[str, Callable[[int], dict[str, Any]]] = {
    "a text in metadata": lambda size: {"output": {"text": "a"}, "metadata": {"note": "x" * size}},
    "a text in the input": lambda size: {"output": {"text": "a"}, "input": {"reference": "word " * (size // 5)}},
    "100 criteria": lambda size: {"criteria": _criteria(size), "output": {"text": "word " * (size // 5)}},
    "200 patterns": lambda size: {"criteria": _patterns(size), "output": {"text": "ab" * (size // 4)}},
    "a ROUGE of two texts": lambda size: {
        "criteria": {
            "criteria": [{"metric": "rougeL", "metric_type": "rouge_score", "comparison": "gte", "threshold": 0.5}]
        },
        "output": {"text": "word other " * (size // 22)},
        "input": {"reference": "other word " * (size // 22)},
    },
}
"""Other requests to verify, by an operator."""


class _Meter:
    """Measures the longest waits of a thread and of a task, in CPU milliseconds of the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stop = threading.Event()
        self.thread_ms = self.loop_ms = 0.0
        self.places: Counter[str] = Counter()

    @contextmanager
    def measuring(self) -> Iterator[None]:
        thread = threading.Thread(target=self._watch, daemon=True)
        ticking = asyncio.run_coroutine_threadsafe(self._tick(), self._loop)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()
            ticking.result()

    def _watch(self) -> None:
        own, before = threading.get_ident(), time.process_time()
        while not self._stop.is_set():
            time.sleep(WAKE_S)
            frames, now = sys._current_frames(), time.process_time()  # noqa: SLF001 - Python has no other way
            waited = (now - before) * 1e3
            if waited > NAMED_MS:
                for ident, frame in frames.items():
                    stack = traceback.extract_stack(frame)
                    if ident != own and stack[-1].name not in ("wait", "select", "_worker", "run_forever"):
                        place = " < ".join(
                            f"{Path(one.filename).stem}.{one.name}:{one.lineno}" for one in stack[:-4:-1]
                        )
                        self.places[place] = max(self.places[place], round(waited))
            self.thread_ms = max(self.thread_ms, waited)
            before = time.process_time()

    async def _tick(self) -> None:
        while not self._stop.is_set():
            before = time.thread_time()
            await asyncio.sleep(WAKE_S)
            self.loop_ms = max(self.loop_ms, (time.thread_time() - before) * 1e3)


class _Service:
    """A service without a socket, whose loop runs in a thread of its own, as in `serve`."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.open(Location(folder))
        limits = {"key_mb_per_minute": 1_048_576, "tenant_mb_per_minute": 1_048_576, "agent_tries": 1_000_000}
        self._service = build_service(Settings.model_validate({"service": limits}), self.store, ShutdownSignal())
        self._app: ASGIApp = build_app(self._service)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def key(self, role: Role) -> str:
        agent = "robot" if role is Role.AGENT else None
        wish = NewKey("noisy", role, "speed", agent, None, self.store.surroundings.entropy)
        return self.store.recorder.write(wish).secret

    def post(self, key: str, path: str, body: bytes, kind: str = "application/json") -> int:
        async def send() -> int:
            headers = {"Authorization": f"Bearer {key}", "Content-Type": kind}
            request = httpx.Request("POST", f"http://127.0.0.1{path}", content=body, headers=headers)
            reply = await httpx.ASGITransport(app=self._app).handle_async_request(request)
            await reply.aread()
            return reply.status_code

        return asyncio.run_coroutine_threadsafe(send(), self.loop).result(600)

    def hold(self, key: str, path: str, body: bytes, kind: str = "application/json") -> tuple[_Meter, int]:
        meter = _Meter(self.loop)
        with meter.measuring():
            status = self.post(key, path, body, kind)
        return meter, status


def _bodies(agent: str, operator: str) -> Iterator[tuple[str, str, str, bytes]]:
    """The name of each body, the key that sends it, where to, and the body."""
    for name, build in OUTPUTS.items():
        for who, key, size in (("agent", agent, AGENT_BYTES), ("operator", operator, OPERATOR_BYTES)):
            yield f"{who}, {name}", key, "/v1/verify", b'{"criteria":"job","output":' + build(size) + b"}"
    for name, form in REQUESTS.items():
        body = msgspec.json.encode({"criteria": "job", **form(OPERATOR_BYTES)})
        yield f"operator, {name}", operator, "/v1/verify", body
    items = [{"output": {"text": f"answer {number}"}} for number in range(500)]
    items[0] = {"output": {"text": "word " * (OPERATOR_BYTES // 5)}}
    yield "operator, a batch", operator, "/v1/verify/batch", msgspec.json.encode({"criteria": "job", "items": items})
    cases = [{"id": f"c{n}", "input": {"q": str(n)}, "expected": "x" * 600} for n in range(20_000)]
    yield "operator, a dataset", operator, "/v1/datasets", msgspec.json.encode({"name": "d", "cases": cases})


def measure(wanted: list[str]) -> None:
    """Print the longest waits for each body."""
    sys.setswitchinterval(SWITCH_S)
    with tempfile.TemporaryDirectory() as folder:
        service = _Service(Path(folder))
        operator, agent = service.key(Role.OPERATOR), service.key(Role.AGENT)
        named = msgspec.json.encode({"name": "job", "criteria": {"criteria": [CRITERION]}})
        service.post(operator, "/v1/criteria", named)
        service.post(operator, "/v1/verify", b'{"criteria":"job","output":{"text":"a"}}')
        print(f"{'CPU ms':45} {'interpreter':>12} {'loop':>8}")
        for name, key, path, body in _bodies(agent, operator):
            if wanted and not any(one in name for one in wanted):
                continue
            # The least of several: a thread may also wait for a processor, while others of the process have one.
            found = [service.hold(key, path, body) for _ in range(TRIES)]
            meter, status = min(found, key=lambda one: one[0].thread_ms)
            loop_ms = min(one.loop_ms for one, _ in found)
            size = f"{len(body) / 2**20:.1f} MB"
            print(f"{name:45} {meter.thread_ms:12.1f} {loop_ms:8.1f}  {size} {status}", flush=True)
            for place, longest in meter.places.most_common(LOG_LINES):
                print(f"    {longest} ms  {place}", flush=True)
        service.store.close()


if __name__ == "__main__":
    measure(sys.argv[1:])
