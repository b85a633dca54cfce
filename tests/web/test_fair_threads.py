"""Threads that callers share: none has all of them, and the service itself has no limit."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager
from threading import Event

import pytest

from meruit.web.fair_threads import CALLER, FairThreads

THREADS, OF_ONE = 4, 2
PATIENCE_S = 30
"""Only a failing test waits so long."""


@contextmanager
def named(caller: str) -> Iterator[None]:
    token = CALLER.set(caller)
    try:
        yield
    finally:
        CALLER.reset(token)


class Gate:
    """Work that begins, and ends when it is let go."""

    def __init__(self) -> None:
        self.begun, self.may_end = Event(), Event()

    def work(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE_S)
        return "done"


@pytest.fixture
def threads() -> Iterator[FairThreads]:
    made = FairThreads(THREADS, OF_ONE, "fair")
    yield made
    made.shutdown()


def submit(threads: FairThreads, caller: str, count: int) -> tuple[list[Gate], list[Future[str]]]:
    gates = [Gate() for _ in range(count)]
    with named(caller):
        return gates, [threads.submit(gate.work) for gate in gates]


def test_a_caller_never_has_all_threads(threads: FairThreads) -> None:
    mine, done = submit(threads, "noisy", 10)
    assert all(gate.begun.wait(PATIENCE_S) for gate in mine[:OF_ONE])
    with named("other"):
        assert threads.submit(lambda: 7).result(PATIENCE_S) == 7
    # What others did passed over none of the waiting work, and began none of it.
    assert not any(gate.begun.is_set() for gate in mine[OF_ONE:])
    for gate in mine:
        gate.may_end.set()
    assert [one.result(PATIENCE_S) for one in done] == ["done"] * 10


def test_the_next_work_begins_when_one_ends(threads: FairThreads) -> None:
    mine, done = submit(threads, "noisy", 4)
    for place in range(2):
        mine[place].may_end.set()
        assert mine[OF_ONE + place].begun.wait(PATIENCE_S)
    for gate in mine:
        gate.may_end.set()
    assert [one.result(PATIENCE_S) for one in done] == ["done"] * 4
    # Nothing of a caller that is done is kept.
    threads.shutdown()
    assert (threads._running, threads._waiting) == ({}, {})


def test_the_service_itself_may_use_every_thread(threads: FairThreads) -> None:
    gates = [Gate() for _ in range(THREADS)]
    done = [threads.submit(gate.work) for gate in gates]
    assert all(gate.begun.wait(PATIENCE_S) for gate in gates)
    for gate in gates:
        gate.may_end.set()
    assert [one.result(PATIENCE_S) for one in done] == ["done"] * THREADS


def test_work_that_fails_frees_its_thread(threads: FairThreads) -> None:
    with named("noisy"):
        failed = [threads.submit(lambda: 1 // 0) for _ in range(5)]
        after = threads.submit(lambda: 7)
    assert after.result(PATIENCE_S) == 7
    assert all(isinstance(one.exception(PATIENCE_S), ZeroDivisionError) for one in failed)


def test_cancelled_work_is_passed_over(threads: FairThreads) -> None:
    mine, done = submit(threads, "noisy", 4)
    assert done[2].cancel()
    for gate in mine:
        gate.may_end.set()
    assert done[3].result(PATIENCE_S) == "done"
    assert not mine[2].begun.is_set()


def test_waiting_work_is_cancelled_at_the_end() -> None:
    threads = FairThreads(THREADS, OF_ONE, "fair")
    mine, done = submit(threads, "noisy", 3)
    assert mine[0].begun.wait(PATIENCE_S)
    threads.shutdown(wait=False)
    for gate in mine:
        gate.may_end.set()
    assert done[0].result(PATIENCE_S) == "done"
    with pytest.raises(CancelledError):
        done[2].result(PATIENCE_S)


def test_queued_work_is_cancelled_at_the_end_on_demand() -> None:
    threads = FairThreads(THREADS, OF_ONE, "fair")
    busy = [submit(threads, name, OF_ONE) for name in ("a", "b")]
    assert all(gate.begun.wait(PATIENCE_S) for gates, _ in busy for gate in gates)
    _, queued = submit(threads, "c", OF_ONE + 1)
    threads.shutdown(wait=False, cancel_futures=True)
    for gates, done in busy:
        for gate, one in zip(gates, done, strict=True):
            gate.may_end.set()
            assert one.result(PATIENCE_S) == "done"
    for one in queued:
        with pytest.raises(CancelledError):
            one.result(PATIENCE_S)


def test_threads_that_have_ended_take_no_work_to_wait() -> None:
    threads = FairThreads(THREADS, OF_ONE, "fair")
    mine, _ = submit(threads, "noisy", OF_ONE)
    threads.shutdown(wait=False)
    with pytest.raises(RuntimeError):
        submit(threads, "noisy", 1)
    for gate in mine:
        gate.may_end.set()


def test_work_that_waits_while_the_threads_end_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = FairThreads(THREADS, OF_ONE, "fair")
    mine, done = submit(threads, "noisy", 5)
    assert mine[1].begun.wait(PATIENCE_S)
    # Between the two steps of the end, one work ends and the next would begin.
    monkeypatch.setattr(threads, "_shutdown", True)
    mine[0].may_end.set()
    for one in done[2:]:
        with pytest.raises(CancelledError):
            one.result(PATIENCE_S)
    mine[1].may_end.set()
    threads.shutdown()


def test_asyncio_counts_what_a_task_hands_over_for_its_caller() -> None:
    async def use() -> list[str]:
        asyncio.get_running_loop().set_default_executor(FairThreads(THREADS, 1, "fair"))
        gate = Gate()

        async def ask(caller: str) -> str:
            CALLER.set(caller)
            return await asyncio.to_thread(gate.work if caller == "noisy" else lambda: "quick")

        noisy = [asyncio.create_task(ask("noisy")) for _ in range(20)]
        quick = [await asyncio.create_task(ask(name)) for name in ("a", "b", "")]
        gate.may_end.set()
        return [*quick, *await asyncio.gather(*noisy)]

    assert asyncio.run(use()) == ["quick"] * 3 + ["done"] * 20
