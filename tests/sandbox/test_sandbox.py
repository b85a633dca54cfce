"""The box as its callers use it: from threads, tasks and loops, forked, forgotten, and with mistakes of their own."""

import asyncio
import gc
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from meruit import MeruitError
from meruit.errors import ContextError, Failure
from meruit.model.kinds import Tier
from meruit.model.limits import DEFAULT_TIMEOUT_MS, MAX_TIMEOUT_MS
from meruit.sandbox import pool as pooling
from meruit.sandbox.contract import SandboxResult
from meruit.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

Write = Callable[..., str]
PATIENCE_S = 120
LONG_MS = 60_000
TIERS = pytest.mark.parametrize("tier", ["expr", "small", "full"])
ECHO = {
    "expr": "size([output].map(x, x)) * output",
    "small": "def metric(input, output, metadata):\n    return {'value': output}\n",
    "full": "def metric(input, output, metadata):\n    return {'value': output}\n",
}
ENDLESS = "def metric(input, output, metadata):\n    while True: pass\n"


@pytest.fixture
def box(request: pytest.FixtureRequest, tier: str) -> Sandbox:
    """The shared box of a tier."""
    found = request.getfixturevalue(tier)
    assert isinstance(found, Sandbox)
    return found


# What the caller did wrong.


@pytest.mark.parametrize(
    ("tier", "hint"),
    [
        ("pyton", "'python'?"),
        ("python_full", "'python-full'?"),
        ("EXPR", "expr, python, python-full"),
        ("", "expr, python, python-full"),
        (None, "expr, python, python-full"),
        (3, "expr, python, python-full"),
    ],
)
def test_an_unknown_tier_is_refused_with_the_nearest_name(tier: Any, hint: str) -> None:
    with pytest.raises(MeruitError) as raised:
        Sandbox(tier)
    assert repr(tier) in str(raised.value)
    assert hint in str(raised.value)


@pytest.mark.parametrize("tier", [*Tier, *(str(tier) for tier in Tier)])
def test_a_tier_is_taken_by_its_name_or_as_itself(tier: Any) -> None:
    with Sandbox(tier) as made:
        assert made.tier is Tier(tier)
        assert made.engine


@pytest.mark.parametrize("timeout_ms", [0, -1, True, 1.5, 10**9, MAX_TIMEOUT_MS + 1, "5000", None])
def test_a_limit_of_time_is_a_whole_number_in_its_range(timeout_ms: Any) -> None:
    with (
        Sandbox("expr") as made,
        pytest.raises(MeruitError, match=r"timeout_ms .* 1 to 60,000"),
    ):
        made.execute_sync("1", {}, timeout_ms)


@pytest.mark.parametrize("memory_limit_mb", [0, -1, True, 64.0, 15, 8_193, 10**9, "256", None])
def test_a_limit_of_memory_is_a_whole_number_in_its_range(memory_limit_mb: Any) -> None:
    with pytest.raises(MeruitError, match=r"memory_limit_mb .* 16 to 8,192"):
        Sandbox("python", memory_limit_mb)


@pytest.mark.parametrize("max_workers", [0, -1, True, 1.5, 65])
def test_a_number_of_workers_is_a_whole_number_in_its_range(max_workers: Any) -> None:
    with pytest.raises(MeruitError, match=r"max_workers .* 1 to 64"):
        Sandbox("python", max_workers=max_workers)


@pytest.mark.parametrize("code", [b"1", None, 1, ["1"]])
def test_code_is_text(code: Any) -> None:
    with Sandbox("expr") as made:
        with pytest.raises(MeruitError, match=r"code is \w+"):
            made.execute_sync(code, {})
        with pytest.raises(MeruitError, match=r"code is \w+"):
            asyncio.run(made.execute(code, {}))


def test_work_that_is_not_json_is_the_callers_mistake() -> None:
    with Sandbox("expr") as made:
        for context in ({"input": {1, 2}}, {"other": 1}, None):
            with pytest.raises(ContextError):
                made.execute_sync("1", context)  # type: ignore[arg-type]  # what is wrong with it is the point


# What the author did wrong.


@TIERS
def test_code_that_is_not_unicode_is_not_supported(box: Sandbox) -> None:
    found = box.execute_sync("'\ud800'", {})
    assert found.failure is Failure.UNSUPPORTED_CONSTRUCT
    assert "lone surrogate" in found.message
    assert found.evidence["code_sha256"] == hashlib.sha256("'\ud800'".encode("utf-8", "surrogatepass")).hexdigest()


@TIERS
def test_huge_code_is_not_looked_at(box: Sandbox) -> None:
    found = box.execute_sync("#" * (256 * 1024 + 1), {})
    assert found.failure is Failure.UNSUPPORTED_CONSTRUCT
    assert "262,145 bytes" in found.message


@pytest.mark.parametrize("tier", ["small", "full"])
def test_the_largest_code_runs(box: Sandbox, metric: Write) -> None:
    code = metric("return {'a': 1}")
    assert box.execute_sync(code + "#" * (256 * 1024 - len(code)), {}, LONG_MS) == {"metrics": {"a": 1}}


@TIERS
def test_large_work_crosses(box: Sandbox, tier: str) -> None:
    work = {"input": "x" * 5_000_000, "output": 7}
    assert box.execute_sync(ECHO[tier], work, LONG_MS) == {"metrics": {"value": 7}}


# What comes back.


@TIERS
def test_the_evidence_says_what_ran_and_within_which_limits(box: Sandbox, tier: str) -> None:
    for code in (ECHO[tier], "no code at all"):
        found = box.execute_sync(code, {"output": 3}, 12_345)
        assert found.evidence == {
            "tier": {"expr": "expr", "small": "python", "full": "python-full"}[tier],
            "engine": box.engine,
            "code_sha256": hashlib.sha256(code.encode()).hexdigest(),
            "timeout_ms": 12_345,
            "memory_limit_mb": 256,
            "clock": "2000-01-01T00:00:00+00:00",
            "seed": 0,
        }
        assert json.loads(json.dumps(found.evidence)) == found.evidence


@TIERS
def test_a_result_is_read_as_the_specification_reads_it(box: Sandbox, tier: str) -> None:
    async def specified(code: str) -> Any:
        result = await box.execute(code, {"input": {}, "output": 4, "metadata": {}}, timeout_ms=LONG_MS)
        assert isinstance(result, SandboxResult)
        return result.get("metrics", {})

    assert asyncio.run(specified(ECHO[tier])) == {"value": 4}
    assert asyncio.run(specified("no code")) == {}


@TIERS
def test_with_or_without_a_loop_the_result_is_the_same(box: Sandbox, tier: str) -> None:
    for code in (ECHO[tier], "no code at all", "1"):
        waited = box.execute_sync(code, {"output": 1}, LONG_MS)
        awaited = asyncio.run(box.execute(code, {"output": 1}, LONG_MS))
        assert waited == awaited
        assert (waited.failure, waited.message) == (awaited.failure, awaited.message)
        assert waited.evidence == awaited.evidence


# Closing.


def test_a_closed_box_runs_nothing_and_says_so(metric: Write) -> None:
    for tier in Tier:
        made = Sandbox(tier)
        made.close()
        made.close()
        for found in (made.execute_sync("1", {}), asyncio.run(made.execute("1", {}))):
            assert (found.failure, "closed" in found.message) == (Failure.SANDBOX_UNAVAILABLE, True)
            assert found.evidence["tier"] == tier


def test_a_box_closes_itself_behind_both_kinds_of_blocks(small: Sandbox, metric: Write) -> None:
    code = metric("return {'a': 1}")
    with Sandbox("python") as made:
        assert made.execute_sync(code, {}, LONG_MS) == {"metrics": {"a": 1}}
    assert made.execute_sync(code, {}).failure is Failure.SANDBOX_UNAVAILABLE

    async def within() -> Sandbox:
        async with Sandbox("python") as opened:
            assert await opened.execute(code, {}, LONG_MS) == {"metrics": {"a": 1}}
        return opened

    assert asyncio.run(within()).execute_sync(code, {}).failure is Failure.SANDBOX_UNAVAILABLE
    assert small.execute_sync(code, {}, LONG_MS) == {"metrics": {"a": 1}}


def test_boxes_of_a_kind_share_their_workers_until_the_last_is_closed(small: Sandbox, metric: Write) -> None:
    code = metric("return {'a': 1}")
    key = (Tier.PYTHON, 32, 1)
    first, second = (Sandbox("python", 32, max_workers=1) for _ in range(2))
    for made in (first, second):
        assert made.execute_sync(code, {}, LONG_MS).failure is None
    shared = pooling._pools[key].pool
    first.close()
    assert second.execute_sync(code, {}, LONG_MS).failure is None
    assert pooling._pools[key].pool is shared
    second.close()
    assert key not in pooling._pools


def test_a_box_that_was_never_used_starts_nothing() -> None:
    with Sandbox("python-full", 33):
        assert (Tier.PYTHON_FULL, 33) not in {key[:2] for key in pooling._pools}  # type: ignore[index]  # keys are tuples


def test_a_forgotten_box_ends_its_workers(small: Sandbox, metric: Write) -> None:
    made = Sandbox("python", 34, max_workers=1)
    key = (Tier.PYTHON, 34, 1)
    try:
        assert made.execute_sync(metric("return {'a': 1}"), {}, LONG_MS).failure is None
        assert key in pooling._pools
        watched = weakref.ref(made)
        del made
        gc.collect()
        assert watched() is None
        assert key not in pooling._pools
    finally:
        # Whatever was found, nothing is left for the other tests.
        shared = pooling._pools.pop(key, None)
        if shared is not None:
            shared.pool.close()


# Many callers.


@TIERS
def test_many_threads_each_get_their_own_numbers(box: Sandbox, tier: str) -> None:
    found: dict[int, Any] = {}

    def call(number: int) -> None:
        found[number] = box.execute_sync(ECHO[tier], {"output": number}, LONG_MS)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {"metrics": {"value": number}} for number in range(12)}


@TIERS
def test_many_tasks_in_several_loops_each_get_their_own_numbers(box: Sandbox, tier: str) -> None:
    found: dict[int, Any] = {}

    async def all_at_once(numbers: range) -> None:
        calls = (box.execute(ECHO[tier], {"output": number}, LONG_MS) for number in numbers)
        found.update(zip(numbers, await asyncio.gather(*calls), strict=True))

    threads = [
        threading.Thread(target=lambda start=start: asyncio.run(all_at_once(range(start, start + 5))))
        for start in (0, 5, 10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: {"metrics": {"value": number}} for number in range(15)}


@pytest.mark.parametrize("tier", ["small", "full"])
def test_a_cancelled_call_leaves_the_box_usable(box: Sandbox, tier: str) -> None:
    async def cancelling() -> None:
        # More than there are workers: some run, some wait.
        tasks = [asyncio.create_task(box.execute(ENDLESS, {}, 300)) for _ in range(12)]
        await asyncio.sleep(0.05)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        # On a machine that pauses, a call may reach its own limit before it is cancelled; none gives a value.
        late = [end for end in ended if not isinstance(end, asyncio.CancelledError)]
        assert all(isinstance(end, dict) and not end.get("metrics") for end in late)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(box.execute(ENDLESS, {}, 3_000), 0.01)
        assert await box.execute(ECHO[tier], {"output": 5}, LONG_MS) == {"metrics": {"value": 5}}

    asyncio.run(cancelling())


def test_a_loop_goes_on_while_code_runs(small: Sandbox) -> None:
    async def both() -> int:
        running = asyncio.create_task(small.execute(ENDLESS, {}, 300))
        turns = 0
        while not running.done():
            turns += 1
            await asyncio.sleep(0.01)
        assert (await running).failure is Failure.TIMEOUT
        return turns

    assert asyncio.run(both()) > 1


# A host that forks.

FORKING = """
import json, multiprocessing, os, sys, threading
from meruit.sandbox.sandbox import Sandbox

tier, way, first = sys.argv[1:]
CODE = "size([1].map(x, x))"
if tier != "expr":
    CODE = f"def metric(input, output, metadata):\\n    {first}\\n    return {{'value': 1}}\\n"

def called(box):
    # In a thread of its own, so that whoever hangs is found out.
    found = []
    thread = threading.Thread(target=lambda: found.append(box.execute_sync(CODE, {}, 60_000)), daemon=True)
    thread.start()
    thread.join(50)
    return "hangs" if not found else found[0].message or found[0]

box = Sandbox(tier)
said = {"before": called(box)}
hear, say = os.pipe()

def child():
    os.write(say, json.dumps([called(box), called(Sandbox(tier, 64))]).encode())

if way == "fork":
    if os.fork() == 0:
        child()
        os._exit(0)
elif way == "exit":
    if os.fork() == 0:
        os.write(say, b'[]')
        sys.exit(0)
else:
    multiprocessing.get_context("fork").Process(target=child).start()
said["child"] = json.loads(os.read(hear, 10_000))
if way != "process":
    os.wait()
said["after"] = called(box)
said["new"] = called(Sandbox(tier, max_workers=1))
print(json.dumps(said), flush=True)
"""
GOOD = {"metrics": {"value": 1}}


def forked(tier: str, way: str, first: str = "pass") -> Any:
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKING, tier, way, first],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("way", ["fork", "process"])
@pytest.mark.parametrize("tier", ["expr", "python", "python-full"])
@pytest.mark.usefixtures("small", "full")
def test_both_sides_of_a_fork_work(tier: str, way: str) -> None:
    assert forked(tier, way) == {"before": GOOD, "child": [GOOD, GOOD], "after": GOOD, "new": GOOD}


@pytest.mark.parametrize("way", ["fork", "process"])
@pytest.mark.usefixtures("small")
def test_the_library_refuses_in_a_forked_child_rather_than_wait_for_ever(way: str) -> None:
    # What asks the host for something is for the library.
    said = forked("python", way, "try: open('a')\n    except Exception: pass")
    assert [said["before"], said["after"], said["new"]] == [GOOD] * 3
    assert all("forked" in message for message in said["child"])


@pytest.mark.parametrize("tier", ["expr", "python-full", "python"])
@pytest.mark.usefixtures("small", "full")
def test_a_forked_child_that_ends_takes_nothing_with_it(tier: str) -> None:
    assert forked(tier, "exit") == {"before": GOOD, "child": [], "after": GOOD, "new": GOOD}


ENDING = """
import os, sys
from meruit.sandbox.sandbox import Sandbox

for tier in ("python", "python-full"):
    box = Sandbox(tier)
    found = box.execute_sync("def metric(input, output, metadata):\\n    return {'a': 1}\\n", {}, 60_000)
    assert found == {"metrics": {"a": 1}}, found.message
running = [Sandbox("python", 64), Sandbox("python-full", 64)]
timeout_ms = 60_000 if len(sys.argv) > 1 else 1
for box in running:
    box._start("def metric(input, output, metadata):\\n    while True: pass\\n", b"{}", timeout_ms)
if len(sys.argv) > 1:
    os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("small", "full")
@pytest.mark.parametrize("arguments", [[], ["killed"]])
def test_a_host_that_ends_leaves_no_process_behind(arguments: list[str], tmp_path: Path) -> None:
    # Every process inherits this pipe's end as its error output or closes it; it is silent once all have ended.
    hear, say = os.pipe()
    try:
        done = subprocess.run(
            [sys.executable, "-c", ENDING, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=say,
            timeout=PATIENCE_S,
            check=False,
            # Whoever is killed cannot tidy up.
            env={**os.environ, "TMPDIR": str(tmp_path)},
        )
    finally:
        os.close(say)
    with os.fdopen(hear) as ended:
        said = ended.read()
    assert done.returncode == (-9 if arguments else 0), said
    assert said == ""


COLD = """
import asyncio
from meruit.sandbox.sandbox import Sandbox

CODE = "def metric(input, output, metadata):\\n    return {'n': input['n']}\\n"

async def main():
    box = Sandbox("python", max_workers=8)
    found = await asyncio.gather(*(box.execute(CODE, {"input": {"n": n}}, 60_000) for n in range(16)))
    assert [one.get("metrics") for one in found] == [{"n": n} for n in range(16)], [one.message for one in found]

asyncio.run(main())
"""


def test_the_first_calls_of_a_process_may_all_come_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", COLD], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("tier", ["python", "python-full"])
def test_closing_does_not_wait_for_an_endless_loop(tier: str, metric: Write) -> None:
    box = Sandbox(tier, 66, max_workers=2)
    assert box.execute_sync(metric("return {'a': 1}"), {}, LONG_MS).failure is None
    with ThreadPoolExecutor(2) as others:
        running = [others.submit(box.execute_sync, metric("while True: pass"), {}, LONG_MS) for _ in range(2)]
        time.sleep(0.5)
        box.close()
        found = [each.result(PATIENCE_S) for each in running]
    assert [one.failure for one in found] == [Failure.SANDBOX_UNAVAILABLE] * 2
    assert box.execute_sync(metric("return {'a': 1}"), {}).failure is Failure.SANDBOX_UNAVAILABLE


# Code that is only loaded.

DEFINED = "def metric(input, output, metadata):\n    return {'a': 1 / 0}\n"


@pytest.mark.parametrize("which", ["small", "full"])
@pytest.mark.parametrize(
    ("code", "failure", "said"),
    [
        (DEFINED, None, ""),
        ("def metric(**given):\n    return given['absent']()\n", None, ""),
        ("metric = lambda input, output, metadata: {}", None, ""),
        ("def metric(input, output, metadata):\n    x = (1\n    return {}\n", Failure.UNSUPPORTED_CONSTRUCT, "line "),
        ("def metric(:\n", Failure.UNSUPPORTED_CONSTRUCT, "SyntaxError: "),
        ("\nimport nowhere\n" + DEFINED, Failure.UNSUPPORTED_CONSTRUCT, "(line 2)"),
        ("x = 1", Failure.UNSUPPORTED_CONSTRUCT, "def metric(input, output, metadata)"),
        ("return {'a': 1}", Failure.UNSUPPORTED_CONSTRUCT, "def metric(input, output, metadata)"),
        ("x = len(output['text'])", Failure.CRASHED, "def metric(input, output, metadata)"),
        ("x = input['text']", Failure.CRASHED, "def metric(input, output, metadata)"),
        ("def metric(output):\n    return {}\n", Failure.CRASHED, "parameters input, output and metadata"),
        ("\n1 / 0\n" + DEFINED, Failure.CRASHED, "(line 2)"),
        ("while True: pass", Failure.TIMEOUT, "300 ms"),
    ],
)
def test_code_that_cannot_be_used_is_found_without_work(
    request: pytest.FixtureRequest, which: str, code: str, failure: Failure | None, said: str
) -> None:
    sandbox: Sandbox = request.getfixturevalue(which)
    result = sandbox.load_sync(code, timeout_ms=300 if failure is Failure.TIMEOUT else DEFAULT_TIMEOUT_MS)
    assert result.failure is failure
    assert said in result.message
    assert result == ({"metrics": {}} if failure is None else {})
