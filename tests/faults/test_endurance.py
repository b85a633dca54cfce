"""Ten thousand calls leave the host as it was; killed workers fail one call; nobody outlives the host."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.faults.endurance import CALLS, GOOD, LATE, LATE_WORK, TIERS, Endured, Holding, table
from tests.faults.started import run, start
from tests.faults.world import Process, census, descendants

from meruit.errors import Failure
from meruit.sandbox.jail import SPARES
from meruit.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")
FULL_RUN = os.environ.get("MERUIT_ENDURANCE") == "full"
PATIENCE_S = 900
SHORT_CALLS = 100
HOST_GROWTH_MB = 8
"""For ten thousand calls, less than a kilobyte each; what an allocator keeps for later is within it."""
WORKERS_GROWTH = 1.3
"""Workers come back to the size they had when warm, give or take a page that was not shared yet."""
SETTLING_S = 30.0
CONTEXT = {"input": {"n": 1}, "output": {"text": "a"}, "metadata": {}}
LONG_MS = 60_000
BUSY_TICKS = 10
"""A tenth of a second of the processor: more than a process takes that only waits for a call."""


def kind_of(tier: str) -> str:
    return "expr" if tier == "expr" else "python"


@pytest.mark.parametrize("tier", TIERS)
def test_many_calls_leave_the_host_as_it_was(tier: str, capsys: pytest.CaptureFixture[str]) -> None:
    calls = CALLS if FULL_RUN else SHORT_CALLS
    said = run("endurance", "--tier", tier, "--calls", str(calls), "--json", patience_s=PATIENCE_S)
    assert said.code == 0, said.error
    found = json.loads(said.out)[0]
    endured = Endured(**{**found, "before": Holding(*found["before"]), "after": Holding(*found["after"])})
    with capsys.disabled():
        print(f"\n{table([endured])}")
    before, after = endured.before, endured.after
    assert after.host_mb <= before.host_mb + HOST_GROWTH_MB
    assert after.descriptors <= before.descriptors
    assert after.threads <= before.threads
    assert after.processes <= before.processes
    assert after.workers_mb <= before.workers_mb * WORKERS_GROWTH


# What happens when processes die.


@pytest.fixture(params=TIERS)
def fresh(request: pytest.FixtureRequest) -> Iterator[tuple[Sandbox, Callable[[], list[Process]]]]:
    """A sandbox with a pool of its own, and a way to list the processes that came with it."""
    before = {process.pid for process in descendants(os.getpid())}

    def ours() -> list[Process]:
        return [process for process in descendants(os.getpid()) if process.pid not in before]

    # A limit that no other test uses, so that the workers are not shared with any.
    with Sandbox(tier=request.param, memory_limit_mb=251, max_workers=1) as sandbox:
        yield sandbox, ours


Fresh = tuple[Sandbox, Callable[[], list[Process]]]


def works(sandbox: Sandbox) -> bool:
    result = sandbox.execute_sync(GOOD[kind_of(sandbox.tier)], CONTEXT, 20_000)
    return dict(result) == {"metrics": {"value": 3}}


def emptied(listing: Callable[[], list[Process]], patience_s: float = SETTLING_S) -> bool:
    deadline = time.monotonic() + patience_s
    while listing():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def busiest(listing: Callable[[], list[Process]]) -> Process:
    """The process that runs the call: it uses the processor, and the others wait."""
    begun = {process.pid: processor_ticks(process.pid) for process in listing()}
    deadline = time.monotonic() + SETTLING_S
    while time.monotonic() < deadline:
        for process in listing():
            if processor_ticks(process.pid) - begun.get(process.pid, 0) >= BUSY_TICKS:
                return process
        time.sleep(0.01)
    raise AssertionError("no process runs the call")


def processor_ticks(pid: int) -> int:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return int(fields[11])


@pytest.mark.parametrize("victims", ["all", "eldest", "busiest"])
def test_a_worker_killed_from_outside_fails_its_call_and_no_other(fresh: Fresh, victims: str) -> None:
    sandbox, ours = fresh
    assert works(sandbox)
    with ThreadPoolExecutor(1) as other:
        flight = other.submit(sandbox.execute_sync, LATE[kind_of(sandbox.tier)], LATE_WORK, LONG_MS)
        busy, processes = busiest(ours), sorted(ours())
        for process in {"all": processes, "eldest": processes[:1], "busiest": [busy]}[victims]:
            os.kill(process.pid, signal.SIGKILL)
        result = flight.result(120)
    assert "metrics" not in result
    assert result.failure is not None
    assert result.message
    assert works(sandbox)


@pytest.mark.parametrize("victims", ["all", "eldest", "youngest"])
def test_a_worker_killed_while_idle_does_not_spoil_later_calls(fresh: Fresh, victims: str) -> None:
    sandbox, ours = fresh
    assert works(sandbox)
    time.sleep(0.1)
    processes = sorted(ours())
    for process in {"all": processes, "eldest": processes[:1], "youngest": processes[-1:]}[victims]:
        os.kill(process.pid, signal.SIGKILL)
    # One call may meet the corpse; it says so, and never with numbers that it did not compute.
    later = [sandbox.execute_sync(GOOD[kind_of(sandbox.tier)], CONTEXT, LONG_MS) for _ in range(4)]
    assert all(dict(result) == {"metrics": {"value": 3}} for result in later if result.failure is None)
    assert not any(dict(result) for result in later if result.failure is not None)
    assert sum(result.failure is not None for result in later) <= 1


@pytest.mark.parametrize("tier", ["python-full", "expr"])
def test_a_spare_process_killed_while_idle_costs_no_call(tier: str) -> None:
    before = {process.pid for process in descendants(os.getpid())}
    with Sandbox(tier=tier, memory_limit_mb=251, max_workers=1) as sandbox:
        assert works(sandbox)

        def ours() -> list[Process]:
            return sorted(process for process in descendants(os.getpid()) if process.pid not in before)

        # The process of the call that ended may still be there.
        assert emptied(lambda: ours()[1 + SPARES :])
        spares = {process.pid for process in ours()[1:]}
        for spare in spares:
            os.kill(spare, signal.SIGKILL)
        assert emptied(lambda: [process for process in ours() if process.pid in spares])
        assert all(works(sandbox) for _ in range(4))


def test_closing_leaves_no_process(fresh: Fresh) -> None:
    sandbox, ours = fresh
    assert works(sandbox)
    assert ours()
    sandbox.close()
    assert emptied(ours)
    assert sandbox.execute_sync(GOOD[kind_of(sandbox.tier)], CONTEXT, 1_000).failure is Failure.SANDBOX_UNAVAILABLE


def test_closing_during_a_call_leaves_no_process(fresh: Fresh) -> None:
    sandbox, ours = fresh
    assert works(sandbox)
    flight = threading.Thread(
        target=sandbox.execute_sync, args=(LATE[kind_of(sandbox.tier)], LATE_WORK, 1_000), daemon=True
    )
    flight.start()
    time.sleep(0.1)
    sandbox.close()
    flight.join(120)
    assert not flight.is_alive()
    assert emptied(ours)


@pytest.mark.parametrize("state", ["idle", "busy"])
@pytest.mark.parametrize("tier", TIERS)
def test_workers_do_not_outlive_a_killed_host(tier: str, state: str, tmp_path: Path) -> None:
    with start("doomed", tier, state, str(LONG_MS), folder=tmp_path) as host:
        assert host.stdout is not None
        assert host.stderr is not None
        assert host.stdout.readline() == "ready\n", host.stderr.read()
        workers = {(worker.pid, worker.born) for worker in descendants(host.pid)}
        host.kill()
        host.wait()

    def left() -> list[Process]:
        # A dead one that init has not buried yet is dead all the same.
        living = (process for process in census().values() if process.state != "Z")
        return [process for process in living if (process.pid, process.born) in workers]

    assert workers
    try:
        assert emptied(left)
    finally:
        for process in left():
            os.kill(process.pid, signal.SIGKILL)
