"""Workers: as many as allowed and no sooner than needed; a call is answered whatever becomes of its worker."""

import json
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from meruit.errors import Failure, SandboxError
from meruit.sandbox import pool as pooling
from meruit.sandbox.pool import Job, Metrics, Pool, Worker, acquire_pool, release_pool

PATIENCE_S = 60
"""Only a broken pool waits so long."""


class Hand:
    """A worker that does as its call says: `wait` for the gate, `fail`, `break`, or answer."""

    def __init__(self, firm: "Firm") -> None:
        self.firm = firm
        self.done: list[str] = []
        self.killed = threading.Event()

    def run(self, code: str, context: bytes, timeout_ms: int) -> Metrics:
        self.done.append(code)
        if code == "wait":
            self.firm.started.release()
            assert self.firm.gate.wait(PATIENCE_S)
        if code == "loop":
            self.firm.started.release()
            assert self.killed.wait(PATIENCE_S)
            raise SandboxError(Failure.CRASHED, "the code took its worker down")
        if code == "fail":
            raise SandboxError(Failure.MEMORY, "too much")
        if code == "break":
            raise ZeroDivisionError("ours")
        if code == "panic":
            self.firm.started.release()
            raise Panic
        return {"context": float(context), "timeout_ms": timeout_ms}

    def renew(self) -> None:
        self.done.append("renew")
        if self.firm.unrenewable:
            raise OSError("it is gone")

    def serve(self, code: str, context: bytes, timeout_ms: int) -> Metrics | None:
        if code == "explain":
            return None
        if code == "interrupt":
            raise KeyboardInterrupt
        return {**self.run(code, context, timeout_ms), "here": 1.0}

    def clear(self) -> None:
        self.renew()

    def kill(self) -> None:
        self.killed.set()

    def close(self) -> None:
        self.done.append("close")
        if self.firm.unclosable:
            raise OSError("it is gone")


class Panic(BaseException):
    """What a fault in a library that is not written in Python looks like here."""


class Firm:
    """Hires hands, and remembers them."""

    def __init__(self) -> None:
        self.hands: list[Hand] = []
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)
        self.refusals = 0
        self.unrenewable = self.unclosable = False

    def hire(self) -> Worker:
        if self.refusals > 0:
            self.refusals -= 1
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "no wall")
        hand = Hand(self)
        self.hands.append(hand)
        return hand


@pytest.fixture
def firm() -> Iterator[Firm]:
    made = Firm()
    yield made
    made.gate.set()


@pytest.fixture
def one(firm: Firm) -> Iterator[Pool]:
    """A pool of a single worker."""
    made = Pool(firm.hire, 1)
    yield made
    firm.gate.set()
    made.close()


def asked(pool: Pool, code: str = "answer", context: bytes = b"1") -> "Future[Metrics]":
    return pool.submit(code, context, 7)


def answered(pool: Pool, code: str = "answer") -> Metrics:
    return asked(pool, code).result(PATIENCE_S)


def failed(future: "Future[Metrics]") -> tuple[Failure, str]:
    problem = future.exception(PATIENCE_S)
    assert isinstance(problem, SandboxError)
    return problem.failure, str(problem)


# One call after another.


def test_a_call_reaches_its_worker_and_its_answer_comes_back(one: Pool, firm: Firm) -> None:
    assert asked(one, context=b"3").result(PATIENCE_S) == {"context": 3.0, "timeout_ms": 7}
    assert len(firm.hands) == 1


def test_no_worker_starts_before_the_first_call(firm: Firm) -> None:
    pool = Pool(firm.hire, 4)
    pool.close()
    assert firm.hands == []


def test_one_worker_serves_calls_in_turn_and_is_renewed_between_them(one: Pool, firm: Firm) -> None:
    for _ in range(3):
        answered(one)
    one.close()
    (hand,) = firm.hands
    assert hand.done == ["answer", "renew"] * 3 + ["close"]


def test_a_named_failure_is_reported_and_costs_no_worker(one: Pool, firm: Firm) -> None:
    assert failed(asked(one, "fail")) == (Failure.MEMORY, "too much")
    answered(one)
    one.close()
    (hand,) = firm.hands
    assert hand.done == ["fail", "renew", "answer", "renew", "close"]


@pytest.mark.parametrize("unclosable", [False, True])
def test_a_broken_worker_is_replaced_and_its_call_fails(one: Pool, firm: Firm, unclosable: bool) -> None:
    firm.unclosable = unclosable
    failure, message = failed(asked(one, "break"))
    assert failure is Failure.SANDBOX_UNAVAILABLE
    assert "ZeroDivisionError('ours')" in message
    firm.unclosable = False
    answered(one)
    first, second = firm.hands
    assert first.done == ["break", "close"]
    assert second.done[0] == "answer"


@pytest.mark.parametrize("unclosable", [False, True])
def test_a_worker_that_cannot_be_renewed_is_replaced(one: Pool, firm: Firm, unclosable: bool) -> None:
    firm.unrenewable, firm.unclosable = True, unclosable
    answered(one)
    answered(one)
    firm.unclosable = False
    one.close()
    assert [hand.done for hand in firm.hands] == [["answer", "renew", "close"]] * 2


def test_a_worker_that_cannot_be_hired_fails_one_call_and_the_next_tries_again(one: Pool, firm: Firm) -> None:
    firm.refusals = 2
    assert failed(asked(one)) == (Failure.SANDBOX_UNAVAILABLE, "no wall")
    assert failed(asked(one)) == (Failure.SANDBOX_UNAVAILABLE, "no wall")
    assert answered(one)
    assert len(firm.hands) == 1


def test_hiring_that_breaks_is_reported_too() -> None:
    def hire() -> Worker:
        raise OSError("no more processes")

    pool = Pool(hire, 1)
    failure, message = failed(asked(pool))
    assert failure is Failure.SANDBOX_UNAVAILABLE
    assert "no more processes" in message
    pool.close()


def test_a_panic_is_reported_and_the_pool_goes_on(firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    pool = Pool(firm.hire, 1)
    future = asked(pool, "panic")
    assert firm.started.acquire(timeout=PATIENCE_S)
    # Waits for the thread, which has taken the call by now.
    pool.close()
    assert future.done()
    assert failed(future)[0] is Failure.SANDBOX_UNAVAILABLE


# Many at once.


@pytest.mark.parametrize("size", [1, 2, 5])
def test_no_more_workers_than_allowed_are_hired(firm: Firm, size: int) -> None:
    pool = Pool(firm.hire, size)
    futures = [asked(pool, "wait") for _ in range(12)]
    for _ in range(size):
        assert firm.started.acquire(timeout=PATIENCE_S)
    assert len(firm.hands) == size
    firm.gate.set()
    for future in futures:
        assert future.result(PATIENCE_S)
    assert len(firm.hands) == size
    assert sum(hand.done.count("wait") for hand in firm.hands) == 12
    pool.close()
    assert all(hand.done[-1] == "close" for hand in firm.hands)


def test_a_free_worker_is_used_before_another_is_hired(firm: Firm) -> None:
    pool = Pool(firm.hire, 8)
    for _ in range(20):
        answered(pool)
        # Free again once a worker waits for the next call.
        while pool._open > 0:
            threading.Event().wait(0.001)
    assert len(firm.hands) == 1
    pool.close()


def test_a_call_never_waits_behind_another_while_a_worker_may_be_hired(firm: Firm) -> None:
    taken, go = threading.Event(), threading.Event()

    class Slowly(queue.SimpleQueue[Any]):
        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            job = super().get(block, timeout)
            taken.set()
            assert go.wait(PATIENCE_S)
            return job

    pool = Pool(firm.hire, 2)
    pool._jobs = Slowly()
    first = asked(pool, "wait")
    assert taken.wait(PATIENCE_S)
    second = asked(pool)
    go.set()
    try:
        assert second.result(PATIENCE_S)
        assert not first.done()
    finally:
        firm.gate.set()
        pool.close()


def test_calls_from_many_threads_each_get_their_own_answer(firm: Firm) -> None:
    pool = Pool(firm.hire, 3)
    found: dict[int, float] = {}

    def call(number: int) -> None:
        found[number] = asked(pool, context=b"%d" % number).result(PATIENCE_S)["context"]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: float(number) for number in range(30)}
    assert len(firm.hands) <= 3
    pool.close()


def test_a_cancelled_call_is_passed_over(one: Pool, firm: Firm) -> None:
    first = asked(one, "wait")
    assert firm.started.acquire(timeout=PATIENCE_S)
    unwanted, last = asked(one, "fail"), asked(one)
    assert unwanted.cancel()
    assert not first.cancel()
    firm.gate.set()
    assert last.result(PATIENCE_S)
    with pytest.raises(CancelledError):
        unwanted.result(PATIENCE_S)
    assert "fail" not in firm.hands[0].done


def test_a_cancelled_first_call_starts_no_worker(firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    future: Future[Metrics] = Future()
    assert future.cancel()
    pool = Pool(firm.hire, 1)
    assert pool._serve_one(Job(future, "answer", b"1", 7), None) is None
    assert firm.hands == []


def test_only_so_many_calls_may_wait(one: Pool, firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "MAX_WAITING", 2)
    futures = [asked(one, "wait")]
    assert firm.started.acquire(timeout=PATIENCE_S)
    futures += [asked(one), asked(one)]
    with pytest.raises(SandboxError, match="2 calls") as raised:
        asked(one)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    firm.gate.set()
    for future in futures:
        assert future.result(PATIENCE_S)
    assert answered(one)


# In the caller's thread.


def test_an_idle_worker_serves_in_the_thread_of_its_caller(one: Pool, firm: Firm) -> None:
    # The first call starts a worker, which only the pool's own threads do.
    assert "here" not in one.call("answer", b"1", 7)
    awaited_idle(one)
    assert one.call("answer", b"2", 7) == {"context": 2.0, "timeout_ms": 7, "here": 1.0}
    assert firm.hands[0].done == ["answer", "renew", "answer", "renew"]
    # What the worker cannot decide alone is run by the pool.
    assert "here" not in one.call("explain", b"3", 7)
    assert len(firm.hands) == 1


def awaited_idle(pool: Pool) -> None:
    """Wait until a worker is idle: it is renewed after its call was answered."""
    deadline = time.monotonic() + PATIENCE_S
    while not pool._idle or pool._open:
        assert time.monotonic() < deadline
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("code", "failure", "kept"),
    [("fail", Failure.MEMORY, True), ("break", Failure.SANDBOX_UNAVAILABLE, False), ("interrupt", None, False)],
)
def test_a_failure_in_the_callers_thread_costs_no_other_call(
    one: Pool, firm: Firm, code: str, failure: Failure | None, kept: bool
) -> None:
    answered(one)
    awaited_idle(one)
    with pytest.raises(KeyboardInterrupt if failure is None else SandboxError) as raised:
        one.call(code, b"1", 7)
    assert failure is getattr(raised.value, "failure", None)
    assert (firm.hands[0].done[-1] == "close") is not kept
    assert one.call("answer", b"2", 7)["context"] == 2.0
    assert len(firm.hands) == (1 if kept else 2)


def test_a_worker_that_cannot_be_cleared_is_replaced(one: Pool, firm: Firm) -> None:
    answered(one)
    awaited_idle(one)
    firm.unrenewable = True
    assert one.call("answer", b"2", 7)["here"] == 1.0
    assert firm.hands[0].done[-1] == "close"
    firm.unrenewable = False
    assert "here" not in one.call("answer", b"2", 7)
    assert len(firm.hands) == 2


def test_callers_and_threads_share_as_many_workers_as_allowed(firm: Firm) -> None:
    pool = Pool(firm.hire, 2)
    answered(pool)
    awaited_idle(pool)
    ended: list[Metrics] = []
    caller = threading.Thread(target=lambda: ended.append(pool.call("wait", b"1", 7)))
    caller.start()
    assert firm.started.acquire(timeout=PATIENCE_S)
    waiting = [asked(pool, "wait") for _ in range(3)]
    assert firm.started.acquire(timeout=PATIENCE_S)
    assert len(firm.hands) == 2
    firm.gate.set()
    caller.join(PATIENCE_S)
    assert ended[0]["here"] == 1.0
    assert all(future.result(PATIENCE_S) for future in waiting)
    assert len(firm.hands) == 2
    pool.close()


def test_closing_ends_a_call_in_its_callers_thread(one: Pool, firm: Firm) -> None:
    answered(one)
    awaited_idle(one)
    ended: list[Failure] = []

    def call() -> None:
        with pytest.raises(SandboxError) as raised:
            one.call("loop", b"1", 7)
        ended.append(raised.value.failure)

    caller = threading.Thread(target=call)
    caller.start()
    assert firm.started.acquire(timeout=PATIENCE_S)
    one.close()
    caller.join(PATIENCE_S)
    assert ended == [Failure.SANDBOX_UNAVAILABLE]
    assert firm.hands[0].done[-1] == "close"


# The end.


def test_closing_ends_what_runs_and_does_not_call_it_the_codes_fault(firm: Firm) -> None:
    pool = Pool(firm.hire, 3)
    running = [asked(pool, "loop") for _ in range(3)]
    for _ in running:
        assert firm.started.acquire(timeout=PATIENCE_S)
    pool.close()
    for future in running:
        assert failed(future)[0] is Failure.SANDBOX_UNAVAILABLE
    assert all(hand.done[-1] == "close" for hand in firm.hands)


def test_a_collected_pool_does_not_wait(firm: Firm) -> None:
    pool = Pool(firm.hire, 1)
    running = asked(pool, "wait")
    assert firm.started.acquire(timeout=PATIENCE_S)
    pool.close(wait=False)
    assert not running.done()
    assert firm.hands[0].killed.is_set()
    firm.gate.set()
    assert running.result(PATIENCE_S)


def test_a_worker_that_is_hired_while_the_pool_closes_is_ended_too(firm: Firm) -> None:
    hired, closed = threading.Event(), threading.Event()

    def slowly() -> Worker:
        hired.set()
        assert closed.wait(PATIENCE_S)
        return firm.hire()

    pool = Pool(slowly, 1)
    running = asked(pool, "loop")
    assert hired.wait(PATIENCE_S)
    pool.close(wait=False)
    closed.set()
    assert failed(running)[0] is Failure.SANDBOX_UNAVAILABLE


def test_a_thread_that_cannot_start_fails_that_call_only(firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    pool = Pool(firm.hire, 2)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as pressed:
        pressed.setattr(threading.Thread, "start", refuse)
        with pytest.raises(SandboxError, match="thread"):
            asked(pool)
    assert answered(pool)
    # With one worker there, a second that cannot start is done without.
    with monkeypatch.context() as pressed:
        pressed.setattr(threading.Thread, "start", refuse)
        pool._open = 5
        assert asked(pool).result(PATIENCE_S)
    pool.close()


def test_only_so_much_work_may_wait(one: Pool, firm: Firm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "MAX_WAITING_BYTES", 10)
    running = asked(one, "wait", b"1" * 100)
    assert firm.started.acquire(timeout=PATIENCE_S)
    waiting = asked(one, context=b"1" * 8)
    with pytest.raises(SandboxError, match="1 calls"):
        asked(one, context=b"1" * 8)
    firm.gate.set()
    assert running.result(PATIENCE_S)
    assert waiting.result(PATIENCE_S)


def test_a_failure_keeps_nothing_of_what_its_call_was_given(one: Pool) -> None:
    problem = asked(one, "fail").exception(PATIENCE_S)
    assert problem is not None
    assert problem.__traceback__ is None


def test_closing_answers_those_that_wait_and_lets_the_running_finish(
    firm: Firm, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(firm.hire, 1)
    running = asked(pool, "wait")
    assert firm.started.acquire(timeout=PATIENCE_S)
    waiting, unwanted = asked(pool), asked(pool)
    assert unwanted.cancel()
    monkeypatch.setattr(pooling, "CLOSING_S", 0.01)
    pool.close()
    assert failed(waiting)[0] is Failure.SANDBOX_UNAVAILABLE
    assert unwanted.cancelled()
    firm.gate.set()
    assert running.result(PATIENCE_S)
    (thread,) = pool._threads
    thread.join(PATIENCE_S)
    assert firm.hands[0].done == ["wait", "renew", "close"]


def test_a_closed_pool_takes_no_call_and_closes_once(one: Pool, firm: Firm) -> None:
    answered(one)
    one.close()
    one.close()
    with pytest.raises(SandboxError, match="closed") as raised:
        asked(one)
    assert raised.value.failure is Failure.SANDBOX_UNAVAILABLE
    assert firm.hands[0].done.count("close") == 1


def test_threads_of_another_process_are_not_waited_for(firm: Firm) -> None:
    pool = Pool(firm.hire, 1)
    asked(pool, "wait")
    assert firm.started.acquire(timeout=PATIENCE_S)
    pool.process_id = 0
    pool.close()
    firm.gate.set()


# Sharing.


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> dict[object, Any]:
    """A registry of this test's own."""
    pools: dict[object, Any] = {}
    monkeypatch.setattr(pooling, "_pools", pools)
    return pools


def closed(pool: Pool) -> bool:
    try:
        asked(pool).result(PATIENCE_S)
    except SandboxError:
        return True
    return False


def test_a_pool_lasts_until_its_last_user_lets_go(registry: dict[object, Any], firm: Firm) -> None:
    made: list[Pool] = []

    def make() -> Pool:
        made.append(Pool(firm.hire, 1))
        return made[-1]

    first = acquire_pool("key", 1, make)
    assert acquire_pool("key", 2, make) is first
    assert acquire_pool("key", 2, make) is first
    other = acquire_pool("other", 1, make)
    assert other is not first
    release_pool("key", 1)
    release_pool("key", 1)
    release_pool("key", 3)
    assert not closed(first)
    release_pool("key", 2)
    assert closed(first)
    assert not closed(other)
    release_pool("key", 2)
    assert acquire_pool("key", 1, make) is not first
    assert len(made) == 3
    pooling._close_all()
    assert all(closed(pool) for pool in made)
    assert registry == {}


def test_releasing_an_unknown_pool_does_nothing(registry: dict[object, Any]) -> None:
    release_pool("key", 1)
    assert registry == {}


FORKED = """
import json, os, sys
from meruit.sandbox import pool as pooling

class Hand:
    def run(self, code, context, timeout_ms):
        return {"process": os.getpid()}
    def renew(self):
        pass
    def kill(self):
        pass
    def close(self):
        pass

def process(pool):
    return pool.submit("", b"", 1).result(30)["process"]

make = lambda: pooling.Pool(Hand, 1)
ours = pooling.acquire_pool("key", 1, make)
assert process(ours) == os.getpid()
held = sys.argv[1] == "held"
if held:
    # As a thread would that forking leaves behind.
    import threading
    lock = pooling._sharing
    ready, done = threading.Event(), threading.Event()
    threading.Thread(target=lambda: (lock.acquire(), ready.set(), done.wait()), daemon=True).start()
    ready.wait()
hear, say = os.pipe()
child = os.fork()
if child == 0:
    try:
        empty = not pooling._pools
        pooling.release_pool("key", 1)
        own = pooling.acquire_pool("key", 1, make)
        said = {"empty": empty, "own": process(own) == os.getpid() == own.process_id}
        pooling.release_pool("key", 1)
    except BaseException as problem:
        said = {"problem": repr(problem)}
    os.write(say, json.dumps(said).encode())
    os._exit(0)
said = json.loads(os.read(hear, 10_000))
os.waitpid(child, 0)
said["parent"] = process(ours) == os.getpid()
print(json.dumps(said), flush=True)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forking is for Linux here")
@pytest.mark.parametrize("lock", ["free", "held"])
def test_a_forked_child_starts_with_no_pool_and_makes_its_own(lock: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED, lock], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"empty": True, "own": True, "parent": True}
