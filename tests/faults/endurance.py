"""Many calls in a row and many at once: what the host and its workers hold before and after.

python -m tests.faults.endurance [--tier python] [--calls 10000] [--json]
"""

import argparse
import asyncio
import gc
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import Sandbox

from .world import descendants, resident_mb

TIERS = ("python", "python-full", "expr")
CALLS = 10_000
AT_ONCE = 64
ROUNDS = 3
WARM_CALLS = 200
SETTLING_S = 30.0
RUN_MS = 20_000
FAILING_EVERY, LATE_EVERY = 20, 100
LATE_MS = 50
FILLING_ROUNDS, STEADY_ROUNDS = 30, 3

GOOD = {
    "expr": "size(output.text) + input.n + size([1].map(a, a))",
    "python": "def metric(input, output, metadata):\n    return {'value': len(output['text']) + input['n'] + 1}",
}
BAD = {"expr": "1 / input.zero", "python": "def metric(input, output, metadata):\n    return {'value': 1 / 0}"}
LATE = {
    "expr": "input.list.all(a, input.list.all(b, !input.long.matches('(x+)+y'))) ? 1 : 0",
    "python": "def metric(input, output, metadata):\n    while True:\n        pass",
}
"""Ends after many seconds, or never."""
SLOWLY_BAD = """
def metric(input, output, metadata):
    for _ in range(100_000):
        pass
    return {'value': 1 / 0}
"""
"""Fails once the other workers have a call too: where its line is looked up, a worker gets a second process."""
TEXT = "word " * 200
LATE_WORK = {"input": {"list": list(range(90)), "long": "x" * 100_000}, "output": {}, "metadata": {}}


class Holding(NamedTuple):
    """What a host holds at one moment."""

    host_mb: float
    descriptors: int
    threads: int
    processes: int
    """Dead ones that nobody has buried included."""
    workers_mb: float


class Endured(NamedTuple):
    """A run, from warm to warm."""

    tier: str
    calls: int
    seconds: float
    wrong: list[str]
    before: Holding
    after: Holding


def holding() -> Holding:
    """What this process holds now."""
    gc.collect()
    workers = descendants(os.getpid(), zombies=True)
    return Holding(
        host_mb=round(resident_mb(os.getpid()), 1),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=threading.active_count(),
        processes=len(workers),
        workers_mb=round(sum(resident_mb(worker.pid) for worker in workers), 1),
    )


def endure(tier: str, calls: int) -> Endured:
    """So many calls in a row, then crowds; a few of them fail or never end, as in life."""
    wrong: list[str] = []
    with Sandbox(tier=tier) as sandbox:
        _in_a_row(sandbox, tier, min(calls, WARM_CALLS), wrong)
        asyncio.run(_at_once(sandbox, tier, wrong))
        if tier == "python":
            asyncio.run(_fill(sandbox, wrong))
        before = _settled()
        began = time.monotonic()
        _in_a_row(sandbox, tier, calls, wrong)
        for _ in range(ROUNDS):
            asyncio.run(_at_once(sandbox, tier, wrong))
        seconds = time.monotonic() - began
        after = _settled(before)
    return Endured(tier, calls + ROUNDS * AT_ONCE, seconds, wrong, before, after)


def _settled(like: Holding | None = None) -> Holding:
    """What is held once the workers are ready again."""
    deadline = time.monotonic() + SETTLING_S
    time.sleep(0.2)
    now = holding()
    while like is not None and now.processes != like.processes and time.monotonic() < deadline:
        time.sleep(0.05)
        now = holding()
    return now


def _in_a_row(sandbox: Sandbox, tier: str, calls: int, wrong: list[str]) -> None:
    kind = "expr" if tier == "expr" else "python"
    for number in range(calls):
        if number % LATE_EVERY == LATE_EVERY - 1:
            _check(sandbox.execute_sync(LATE[kind], LATE_WORK, LATE_MS), None, wrong)
        elif number % FAILING_EVERY == FAILING_EVERY - 1:
            _check(sandbox.execute_sync(BAD[kind], _work(number), RUN_MS), None, wrong)
        else:
            _check(sandbox.execute_sync(GOOD[kind], _work(number), RUN_MS), number, wrong)


async def _at_once(sandbox: Sandbox, tier: str, wrong: list[str]) -> None:
    code = GOOD["expr" if tier == "expr" else "python"]
    results = await asyncio.gather(*(sandbox.execute(code, _work(number), RUN_MS) for number in range(AT_ONCE)))
    for number, result in enumerate(results):
        _check(result, number, wrong)


async def _fill(sandbox: Sandbox, wrong: list[str]) -> None:
    """Call until every worker has both of its processes: until several rounds in a row brought no more of them."""
    most, steady = 0, 0
    for _ in range(FILLING_ROUNDS):
        for result in await asyncio.gather(*(sandbox.execute(SLOWLY_BAD, _work(0), RUN_MS) for _ in range(AT_ONCE))):
            _check(result, None, wrong)
        found = len(descendants(os.getpid()))
        most, steady = max(most, found), 0 if found > most else steady + 1
        if steady == STEADY_ROUNDS:
            return


def _work(number: int) -> dict[str, object]:
    return {"input": {"n": number, "zero": 0, "list": list(range(100))}, "output": {"text": TEXT}, "metadata": {}}


def _check(result: SandboxResult, number: int | None, wrong: list[str]) -> None:
    right = {} if number is None else {"metrics": {"value": len(TEXT) + number + 1}}
    if dict(result) != right or (result.failure is None) != (number is not None):
        wrong.append(f"call {number}: {result.failure} {result.message} {dict(result)}")


def table(runs: list[Endured]) -> str:
    """The figures, for people."""
    lines = [f"{'tier':12}{'calls':>8}{'ms/call':>9}   " + "".join(f"{name:>18}" for name in Holding._fields)]
    for run in runs:
        pairs = (f"{before:g} -> {after:g}" for before, after in zip(run.before, run.after, strict=True))
        each_ms = run.seconds * 1000 / run.calls
        lines.append(f"{run.tier:12}{run.calls:>8,}{each_ms:>9.2f}   " + "".join(f"{pair:>18}" for pair in pairs))
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=TIERS, action="append")
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    runs = [endure(tier, options.calls) for tier in options.tier or TIERS]
    print(json.dumps([run._asdict() for run in runs]) if options.json else table(runs))
    for run in runs:
        for problem in run.wrong[:10]:
            print(f"{run.tier}: {problem}", file=sys.stderr)
    return int(any(run.wrong for run in runs))


if __name__ == "__main__":
    sys.exit(main())
