"""Verification over HTTP with a durable record, against the same server doing nothing and against an ordinary stack.

Server and load are processes of their own; blocks of one side alternate with blocks of the other, and the best block
of each counts. Latencies are those of the best block.
"""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from speed.measure import Row
from speed.serving import NOTHING

CONNECTIONS = 64
BLOCK_REQUESTS = 3_000
BLOCKS = 5
WARM_UP = 500
ENDURANCE_BLOCKS = 10
ENDURANCE_REQUESTS = 10_000
VERIFY = "/v1/verify"
CRITERIA: list[dict[str, Any]] = [
    {"metric": "latency_ms", "metric_type": "latency", "comparison": "lte", "threshold": 2000, "bonus": 0.02},
    {"metric": "output_length", "metric_type": "count", "comparison": "in_range", "threshold": {"min": 9, "max": 9000}},
    {"metric": "contains_keywords", "metric_type": "contains", "comparison": "contains_all", "threshold": ["weir"]},
]
TEXT = "The plan works where it was carried out and the ninth weir is still closed to trout. " * 52


class Block(NamedTuple):
    """What one block of requests showed."""

    seconds_each: float
    p50_ms: float
    p99_ms: float


def body(number: int) -> bytes:
    """About 5 KB, as an agent's answer is; no two are alike, as no two answers are."""
    return json.dumps(
        {
            "criteria": {"criteria": CRITERIA},
            "input": {"question": "Is the ninth weir open?", "required_keywords": ["weir"]},
            "output": {"text": TEXT, "number": f"{number:024x}", "sources": ["river.txt", "plan.txt"]},
            "metadata": {"duration_ms": 812.5},
        }
    ).encode()


def rows() -> Iterator[Row]:
    with server("ours") as here, server("ordinary") as there:
        yield _against(here, VERIFY, here, NOTHING, "POST verify + record, SQLite", "the same server, no work", 0.5)
        yield _against(here, VERIFY, there, VERIFY, "POST verify + record, SQLite", "FastAPI + SQLAlchemy", 8)
    with postgres() as (mine, theirs), server("ours", mine) as here, server("ordinary", theirs) as there:
        yield _against(here, VERIFY, here, NOTHING, "POST verify + record, Postgres", "the same server, no work", 0.5)
        yield _against(here, VERIFY, there, VERIFY, "POST verify + record, Postgres", "FastAPI + SQLAlchemy", 8)


def _against(ours: str, path: str, other: str, other_path: str, name: str, baseline: str, target: float) -> Row:
    block(ours, path, WARM_UP)
    block(other, other_path, WARM_UP)
    best, best_other = [
        min(blocks)
        for blocks in zip(*((block(ours, path), block(other, other_path)) for _ in range(BLOCKS)), strict=True)
    ]
    remark = (
        f"{1 / best.seconds_each:,.0f} against {1 / best_other.seconds_each:,.0f} requests/s; "
        f"p50 {best.p50_ms:.3g} ms, p99 {best.p99_ms:.3g} ms with {CONNECTIONS} connections"
    )
    return Row(name, best.seconds_each * 1e6, best_other.seconds_each * 1e6, baseline, target, remark)


def growth() -> Iterator[tuple[str, int, float]]:
    """A request's cost while the log grows, and the server's memory: both must stay flat."""
    with server("ours") as here, tempfile.TemporaryDirectory():
        block(here, VERIFY, WARM_UP)
        for number in range(1, ENDURANCE_BLOCKS + 1):
            seen = block(here, VERIFY, ENDURANCE_REQUESTS)
            yield "POST verify, after so many", number * ENDURANCE_REQUESTS, seen.seconds_each * 1e3
            yield "resident MB, after so many", number * ENDURANCE_REQUESTS, _resident_mb(here)


def block(url: str, path: str, requests: int = BLOCK_REQUESTS) -> Block:
    """A block of requests from a process of its own, so that the load does not run where it is measured."""
    command = [sys.executable, "-m", "speed.service", url, path, str(requests)]
    done = subprocess.run(command, check=True, capture_output=True)
    return Block(*json.loads(done.stdout))


_PROCESSES: dict[str, int] = {}


@contextmanager
def server(name: str, database_url: str | None = None) -> Iterator[str]:
    """A server in a process of its own, on a fresh database; gives its URL."""
    with tempfile.TemporaryDirectory() as folder:
        settings = json.dumps({"folder": folder, "url": database_url})
        process = subprocess.Popen(
            [sys.executable, "-m", "speed.serving", name, settings], stdout=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            _PROCESSES[url] = process.pid
            yield url
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def postgres() -> Iterator[tuple[str, str]]:
    """Two databases of a real, durable Postgres."""
    from tests.postgres import running

    with running({}) as server:
        # Ours and the ordinary one each have a database of their own.
        server.ask("CREATE DATABASE ours", "CREATE DATABASE ordinary")
        yield server.url("ours"), server.url("ordinary")


def _resident_mb(url: str) -> float:
    pages = int(Path(f"/proc/{_PROCESSES[url]}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _load(url: str, path: str, requests: int) -> Block:
    where = urlsplit(url)
    size = len(body(0))
    head = f"POST {path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
    start = int.from_bytes(os.urandom(8))
    messages = iter([f"{head}Content-Length: {size}\r\n\r\n".encode() + body(start + n) for n in range(requests)])
    latencies: list[float] = []

    async def caller() -> None:
        reader, writer = await asyncio.open_connection(where.hostname, where.port)
        for _ in range(requests // CONNECTIONS):
            message = next(messages)
            begun = time.perf_counter()
            writer.write(message)
            reply = await reader.readuntil(b"\r\n\r\n")
            assert reply.startswith(b"HTTP/1.1 200"), reply
            length = next(line for line in reply.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
            latencies.append(time.perf_counter() - begun)
        writer.close()

    begun = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CONNECTIONS)))
    each = (time.perf_counter() - begun) / len(latencies)
    latencies.sort()
    return Block(each, latencies[len(latencies) // 2] * 1e3, latencies[len(latencies) * 99 // 100] * 1e3)


if __name__ == "__main__":
    import uvloop

    print(json.dumps(uvloop.run(_load(sys.argv[1], sys.argv[2], int(sys.argv[3])))))
