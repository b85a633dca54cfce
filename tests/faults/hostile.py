"""Runs hostile snippets against one tier and says, from facts of the world alone, whether its walls held.

    python -m tests.faults.hostile --tier python-full --user nobody [--part 1/3] [--some] [--seed N] [--only NAME ...]

One JSON line for each snippet; the exit code is 1 when anything broke, and 77 when this machine lets nobody try.
"""

import argparse
import asyncio
import concurrent.futures
import contextlib
import ctypes
import json
import math
import os
import resource
import sys
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

from meruit.errors import Failure
from meruit.model.limits import MAX_METRICS
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.jail import SPARES
from meruit.sandbox.sandbox import Sandbox

from .expressions import EXPRESSIONS, WORK
from .ordinary import Impossible, become_ordinary
from .snippet import FULL, SMALL, Kind, Snippet
from .snippets import SNIPPETS
from .world import TOKEN_NAME, World, below, descendants, marked, resident_mb, run_ns

EXPR = "expr"
SKIPPED = 77
MEMORY_LIMIT_MB = 128
LATE = "late"
OUT_OF_TIME = f"ended as {Failure.TIMEOUT}"
LATE_S = 30.0
"""How much later than its timeout an answer may come."""
LOST_S = 60.0
"""After so much more it never comes."""
SETTLING_S = 30.0
"""How long what a call started may take to end."""
WATCH_S = 0.015
BUSY = 0.3
"""A process that runs for so much of the time is not waiting for work."""
HOST_GROWTH_MB = 64
"""What reading one answer may cost the host."""
WORKER_ROOM_MB = 192
"""A worker's own program, next to what the code in it may use."""
HUNGRY = {Kind.MEMORY, Kind.ZIP_BOMB, Kind.POW, Kind.HUGE, Kind.FORMAT, Kind.REPR, Kind.REGEX, Kind.DEEP}
EXHAUSTING = HUNGRY | {Kind.RECURSION, Kind.PARSER, Kind.PRINTING, Kind.PYTHON_LOOP, Kind.C_LOOP}
"""What is stopped by a limit, which is the same for every user; each takes until the limit is met."""
SOME = 4
"""One in so many of these is tried, unless all are asked for."""
WARM_CALLS = 12
WARM_ROUNDS = 20
"""So often at most, until every worker has had calls of both kinds."""
PROCESSES = {SMALL: 2, FULL: 2 * (1 + SPARES), EXPR: 0}
"""Of a worker: one for the wire and one of the library; two zygotes and their spares; any number for `expr`."""
HOST_LIMIT_BYTES = 4 * 2**30
"""A host that evaluates a bomb itself ends here, and not with the machine."""
PRINTABLE_MESSAGE = 2_000
_PR_SET_CHILD_SUBREAPER = 36

BENIGN_CODE = """
import math, json, re

def metric(input, output, metadata):
    words = output["text"].split()
    return {
        "sum": input["a"] + input["b"], "words": len(words), "root": math.sqrt(input["a"] * input["a"]),
        "least": sorted([3, 1, 2])[0], "total": sum([1, 2, 3, 7]), "read": json.loads('{"a": 42}')["a"],
        "upper": 1 if "a".upper() == "A" else 0, "pi": math.pi, "found": len(re.findall("a", "banana")),
        "round": round(2.5), "known": len(metadata), "rest": abs(-7) % 4, "most": max(1, 42), "input": len(input),
    }
"""
WARMING = {
    # Code that fails is run again by the library, whose process then stays.
    SMALL: "def metric(input, output, metadata):\n    return {'rest': input['a'] // 0}",
    # One zygote is for code that names numpy, as the probe does, and one for other code.
    FULL: BENIGN_CODE,
    EXPR: "input.a + input.b",
}
"""With the probe, this starts every process that a worker ever has."""
BENIGN = {SMALL: BENIGN_CODE, FULL: BENIGN_CODE, EXPR: "input.a + input.b + size(output.text)"}
"""Ordinary work: its numbers are known beforehand."""

PROBE = {
    # Walks a list, so that it is evaluated by a worker.
    EXPR: "size(input) + size([1, 2, 39].map(a, a + 1))",
    SMALL: """
import random

def metric(input, output, metadata):
    seen = 0
    try:
        seen = poisoned
    except NameError:
        pass
    return {"poisoned": seen, "chance": random.random(), "hash": hash("x") % 1000003}
""",
    FULL: """
def metric(input, output, metadata):
    import builtins, collections, decimal, gc, json, os, random, sys, time
    def seen(way):
        try:
            return float(way())
        except BaseException as problem:
            return -float(len(type(problem).__name__))
    def array():
        import numpy
        return numpy.sum(numpy.array([1, 2, 39])) + numpy.mean([1, 2])
    return {
        "poisoned": sum(hasattr(place, "poisoned") for place in (builtins, sys)) + ("poisoned" in sys.modules),
        "chance": seen(random.random), "hash": hash("x") % 1000003, "limit": sys.getrecursionlimit(),
        "array": seen(array), "environ": len(os.environ), "dumped": len(json.dumps({"a": [1, 2]})),
        "counted": collections.Counter("banana")["a"], "precision": decimal.getcontext().prec,
        "division": float(decimal.Decimal(1) / decimal.Decimal(3)), "modules": len(sys.modules),
        "builtins": len(vars(builtins)), "gc": int(gc.isenabled()), "zone": seen(lambda: time.timezone),
        "digits": seen(sys.get_int_max_str_digits), "paths": len(sys.path) + len(sys.meta_path),
        "streams": sum(stream is None for stream in (sys.stdin, sys.stdout, sys.stderr)),
        "here": seen(lambda: len(os.getcwd())), "integer": 7 * 6,
    }
""",
}
"""What anything left behind by the call before would change; compared with what it said at first."""


def main() -> int:
    options = _options()
    if TOKEN_NAME not in os.environ:
        _start_anew(options.user)
    # Orphans become ours instead of init's, so that nobody leaves the census.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    # Kept apart, since everything that appears on 1 and 2 from now on is evidence.
    report = os.fdopen(os.dup(1), "w")
    os.set_inheritable(report.fileno(), False)
    world = World()
    lines = []
    try:
        for line in _reports(world, options):
            lines.append(line)
            print(json.dumps(line), file=report, flush=True)
    finally:
        world.close()
    if any("lost" in line for line in lines):
        # A call that never ends must not keep us from ending.
        os._exit(1)
    return int(not all(line["ok"] for line in lines))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tier", choices=[SMALL, FULL, EXPR], required=True)
    parser.add_argument("--user", choices=["self", "nobody"], default="self")
    parser.add_argument("--part", default="1/1", help="the second of three parts is 2/3")
    parser.add_argument(
        "--some", action="store_true", help="of those that exhaust something, one in four; of the others, half"
    )
    parser.add_argument("--seed", type=int, default=0, help="which of them")
    parser.add_argument("--only", nargs="*", default=[], help="these snippets only")
    return parser.parse_args()


def _start_anew(user: str) -> NoReturn:
    """Execute ourselves again, as the user, with a token in the environment from the very beginning."""
    if user == "nobody":
        try:
            become_ordinary()
        except Impossible as problem:
            print(problem, file=sys.stderr)
            sys.exit(SKIPPED)
    resource.setrlimit(resource.RLIMIT_AS, (HOST_LIMIT_BYTES, HOST_LIMIT_BYTES))
    environment = {**os.environ, TOKEN_NAME: marked(), "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    os.execve(sys.executable, [sys.executable, "-m", "tests.faults.hostile", *sys.argv[1:]], environment)


def chosen(
    tier: str, part: str, only: Collection[str] = (), *, some: bool = False, seed: int = 0, half: int | None = None
) -> list[Snippet]:
    """The snippets of a part, in order.

    With `some`, a sample of those that exhaust something; of the others, one half if only one is wanted.
    """
    number, parts = (int(side) for side in part.split("/"))
    every = EXPRESSIONS if tier == EXPR else SNIPPETS
    found = [snippet for snippet in every if not only or snippet.name in only]
    if some:
        seen: Counter[Kind] = Counter()
        # The first of each kind is always among them.
        found = [each for each in found if _is_sampled(each.kind, _nth(seen, each.kind), seed, half)]
    return found[len(found) * (number - 1) // parts : len(found) * number // parts]


def half_of(user: str) -> int | None:
    """Which half of a sample this user tries: root one, an ordinary user the other; all where nobody is root."""
    return int(user == "nobody") if user == "nobody" or os.geteuid() == 0 else None


def _is_sampled(kind: Kind, place: int, seed: int, half: int | None) -> bool:
    if place == 0:
        return True
    if kind in EXHAUSTING:
        # The limit is the same for every user, so that one of them meets it.
        return place % SOME == seed % SOME and (half is None or (place // SOME + seed) % 2 == half)
    return half is None or (place + seed) % 2 == half


def _nth(seen: "Counter[Kind]", kind: Kind) -> int:
    """How many of its kind came before."""
    seen[kind] += 1
    return seen[kind] - 1


def _reports(world: World, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    sandbox = Sandbox(tier=options.tier, memory_limit_mb=MEMORY_LIMIT_MB)
    bench = Bench(world, sandbox, options.tier)
    user = "root" if os.geteuid() == 0 else "ordinary"
    warm = bench.warm_up()
    if warm:
        yield {"name": "warm-up", "tier": options.tier, "user": user, "ok": False, "why": warm}
        return
    half = half_of(options.user)
    picked = chosen(options.tier, options.part, options.only, some=options.some, seed=options.seed, half=half)
    for number, snippet in enumerate(picked):
        line = bench.run(snippet, in_a_loop=number % 2 == 1)
        # A machine that paused makes an answer late, or cuts an attack short, once; a wall that leaks does so twice.
        if line["why"] and all(why.startswith((LATE, OUT_OF_TIME)) for why in line["why"]):
            line = bench.run(snippet, in_a_loop=number % 2 == 1)
        yield {"name": snippet.name, "kind": snippet.kind, "tier": options.tier, "user": user, **line}
        if "lost" in line:
            return
    sandbox.close()
    left = bench.left_over(allowed=0)
    yield {"name": "close", "tier": options.tier, "user": user, "ok": not left, "why": left}


class Bench:
    """One sandbox, and what it looked like before anything hostile ran in it."""

    def __init__(self, world: World, sandbox: Sandbox, tier: str) -> None:
        self.world, self.sandbox, self.tier = world, sandbox, tier
        self.targets = WORK if tier == EXPR else world.targets()
        self.threads = concurrent.futures.ThreadPoolExecutor(2)
        self.processes = 0
        self.probe: Any = None
        self.turn = 0

    def warm_up(self) -> list[str]:
        """Fill the pool, then note what a quiet sandbox looks like."""
        first = self._call(PROBE[self.tier], {}, 30_000)
        if first.failure is not None:
            return [f"the sandbox does not work at all: {first.failure}: {first.message}"]

        async def crowd() -> None:
            context: dict[str, Any] = {"input": {"a": 1, "b": 2}, "output": {"text": ""}, "metadata": {}}
            both = (PROBE[self.tier], WARMING[self.tier])
            calls = (self.sandbox.execute(both[number % 2], context, 30_000) for number in range(2 * WARM_CALLS))
            await asyncio.gather(*calls)

        *_, workers = self.sandbox._key
        most = PROCESSES[self.tier] * workers
        for _ in range(WARM_ROUNDS):
            asyncio.run(crowd())
            if len(self._living()) >= most:
                break
        self.probe = dict(first)
        deadline = time.monotonic() + SETTLING_S
        while not (settled := _quiet(self._living())) and time.monotonic() < deadline:
            time.sleep(WATCH_S)
        # A child may just be on its way.
        self.processes = max(most, len(self._living()))
        return [*self.world.broken(), *self._after()] if settled else ["the workers never come to rest"]

    def run(self, snippet: Snippet, *, in_a_loop: bool) -> dict[str, Any]:
        """Everything that is wrong after one snippet."""
        _forget_peak()
        before_mb = resident_mb(os.getpid())
        watch = PeakWatch() if snippet.kind in HUNGRY else contextlib.nullcontext()
        began = time.monotonic()
        with watch:
            waiting = self.threads.submit(self._call, snippet.code, self.targets, snippet.timeout_ms, in_a_loop)
            try:
                result = waiting.result(snippet.timeout_ms / 1000 + LOST_S)
            except concurrent.futures.TimeoutError:
                return {"ok": False, "lost": True, "why": ["no answer at all"]}
            except Exception as problem:  # noqa: BLE001 - a sandbox that raises is the finding
                return {"ok": False, "why": [f"the sandbox raised {problem!r}", *self.world.broken()]}
            took_s = time.monotonic() - began
        why = [
            *_promised(result),
            *_expected(snippet, self.tier, result),
            *self.world.leaked(_all_text(result), _numbers(result)),
            *([f"{LATE}: {took_s * 1000:.0f} ms"] if took_s > snippet.timeout_ms / 1000 + LATE_S else []),
        ]
        growth_mb = _peak_mb() - before_mb
        if growth_mb > HOST_GROWTH_MB:
            why.append(f"the host grew by {growth_mb:.0f} MB while it read the answer")
        worker_mb = watch.most_mb if isinstance(watch, PeakWatch) else 0.0
        if worker_mb > MEMORY_LIMIT_MB + WORKER_ROOM_MB:
            why.append(f"a worker grew to {worker_mb:.0f} MB")
        why += [*self._after(), *self.left_over(self.processes), *self.world.broken()]
        return {
            "failure": result.failure,
            "message": result.message[:200],
            "metrics": len(_numbers(result)),
            "ms": round(took_s * 1000, 1),
            "worker_mb": round(worker_mb),
            "ok": not why,
            "why": why,
        }

    def left_over(self, allowed: int) -> list[str]:
        """Processes beyond those that were warm before, or that are still at work."""
        deadline = time.monotonic() + SETTLING_S
        while True:
            living = self._living()
            quiet = _quiet(living)
            if quiet and len(living) <= allowed:
                return []
            if time.monotonic() > deadline:
                busy = "" if quiet else ", one of them busy"
                return [f"{len(living)} processes are left{busy}, {allowed} were there before: {living}"]

    def _call(self, code: str, given: Any, timeout_ms: int, in_a_loop: bool = False) -> SandboxResult:
        context = {"input": given, "output": {"text": "a b c"}, "metadata": {"k": 1}}
        if in_a_loop:
            return asyncio.run(self.sandbox.execute(code, context, timeout_ms))
        return self.sandbox.execute_sync(code, context, timeout_ms)

    def _after(self) -> list[str]:
        """What the next, innocent calls see."""
        self.turn += 1
        benign = self._call(BENIGN[self.tier], {"a": self.turn, "b": 2}, 5_000)
        right = _right(self.tier, self.turn)
        wrong = []
        if benign.failure is not None or benign.get("metrics") != right:
            wrong.append(f"the next call went wrong: {benign.failure} {benign.message} {benign.get('metrics')}")
        probe = self._call(PROBE[self.tier], {}, 5_000)
        if dict(probe) != self.probe:
            changed = set(probe.get("metrics", {}).items()) ^ set(self.probe["metrics"].items())
            wrong.append(f"the next call sees what was left: {probe.failure} {probe.message} {sorted(changed)}")
        return wrong

    def _living(self) -> list[tuple[int, str]]:
        decoy = self.world.decoy.pid
        return [(process.pid, process.name) for process in descendants(os.getpid()) if process.pid != decoy]


def _quiet(living: list[tuple[int, str]]) -> bool:
    """Whether they all wait, watched for a moment."""
    before = {pid: run_ns(pid) for pid, _ in living}
    began = time.monotonic_ns()
    time.sleep(WATCH_S)
    span = time.monotonic_ns() - began
    return not any(run_ns(pid) - ran > BUSY * span for pid, ran in before.items())


def _right(tier: str, turn: int) -> dict[str, float]:
    """What the benign call says."""
    if tier == EXPR:
        return {"value": turn + 7}
    first = {"sum": turn + 2, "words": 3, "root": float(turn), "least": 1, "total": 13, "read": 42, "upper": 1}
    return first | {"pi": math.pi, "found": 3, "round": 2, "known": 1, "rest": 3, "most": 42, "input": 2}


class PeakWatch:
    """The largest that any worker becomes while it is watched."""

    def __init__(self) -> None:
        self.most_mb = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "PeakWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(WATCH_S):
            self.most_mb = max([self.most_mb, *map(resident_mb, below(os.getpid()))])


def _promised(result: SandboxResult) -> Iterator[str]:
    """What holds for every result, whatever the code did."""
    if result.failure is None and set(result) != {"metrics"}:
        yield f"neither metrics nor a failure: {dict(result)}"
    if result.failure is not None and (dict(result) or not result.message):
        yield "a failure with metrics, or without a reason"
    if result.failure is not None and result.failure not in set(Failure) - {Failure.SANDBOX_UNAVAILABLE}:
        yield f"failure {result.failure}: {result.message}"
    for name, value in result.get("metrics", {}).items():
        if type(name) is not str or type(value) not in (int, float) or not abs(value) <= 2**53:
            yield f"{str(name)[:40]!r} is {value!r:.40}"
    if len(result.get("metrics", {})) > MAX_METRICS:
        yield f"{len(result['metrics'])} metrics"
    if len(result.message) > PRINTABLE_MESSAGE or not result.message.isprintable():
        yield f"a message of {len(result.message)} characters that may do harm where it is shown"
    try:
        json.dumps(dict(result.evidence), allow_nan=False).encode()
        result.message.encode()
    except (TypeError, ValueError) as problem:
        yield f"the evidence cannot be kept: {problem}"


def _expected(snippet: Snippet, tier: str, result: SandboxResult) -> Iterator[str]:
    """What holds for this snippet."""
    ends = snippet.ends_small if tier == SMALL else snippet.ends
    # A tier that cannot run the code at all has stopped it soon enough.
    if ends and (result.failure or "") not in ends | {Failure.UNSUPPORTED_CONSTRUCT}:
        yield f"ended as {result.failure or result.get('metrics')}, not as {' or '.join(sorted(ends))}"
    reached = {name: value for name, value in result.get("metrics", {}).items() if value != 0}
    if snippet.boasts and reached:
        yield f"the snippet reached something: {reached}"


def _numbers(result: SandboxResult) -> list[float]:
    return [value for value in result.get("metrics", {}).values() if isinstance(value, (int, float))]


def _all_text(result: SandboxResult) -> str:
    return f"{result!r} {dict(result)!r} {result.message} {dict(result.evidence)!r}"


def _forget_peak() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


if __name__ == "__main__":
    sys.exit(main())
