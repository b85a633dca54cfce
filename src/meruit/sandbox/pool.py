"""A bounded pool of warm workers: each runs one call at a time and is renewed after each call."""

import atexit
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from meruit.errors import Failure, SandboxError

MAX_WAITING = 10_000
"""Calls that may wait for a free worker."""
MAX_WAITING_BYTES = 256 * 1024 * 1024
"""Limit on the size of all waiting calls together."""
CLOSING_S = 5.0
"""How long closing waits for workers to end."""

Metrics = dict[str, float]


class Worker(Protocol):
    """A confined process that runs one call at a time."""

    def run(self, code: str, context: bytes, timeout_ms: int) -> Metrics:
        """Return the metrics; raises SandboxError for everything else."""

    def renew(self) -> None:
        """Remove all traces of the last call, and prepare for the next."""

    def serve(self, code: str, context: bytes, timeout_ms: int) -> Metrics | None:
        """Run a call in any thread, starting no process; None where only `run` can run it to its end."""

    def clear(self) -> None:
        """Renew in any thread, starting no process; raises where the worker is of no more use."""

    def kill(self) -> None:
        """End the process at once; from any thread, while a call may be running."""

    def close(self) -> None:
        """End the process; called once, when no call is running."""


class Job(msgspec.Struct, frozen=True):
    """One call, waiting or running."""

    future: "Future[Metrics]"
    code: str
    context: bytes
    timeout_ms: int


class Pool:
    """Workers of one tier. They start when calls wait, and stay warm.

    A worker starts in a thread of the pool, because the kernel ends it with the thread that started it. A caller that
    would wait for the answer anyhow uses an idle worker in its own thread, which saves two switches between threads.
    """

    def __init__(self, make_worker: Callable[[], Worker], size: int) -> None:
        self.process_id = os.getpid()
        self._make_worker = make_worker
        self._size = size
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._workers: set[Worker] = set()
        self._idle: list[Worker] = []
        self._running = 0
        """Calls that have a worker, or start one; with the idle workers at most `size`."""
        self._changing = threading.Lock()
        self._freed = threading.Condition(self._changing)
        self._open = 0
        """Calls that wait or run, and those whose worker is being renewed."""
        self._waiting_bytes = 0
        self._closed = False

    def submit(self, code: str, context: bytes, timeout_ms: int) -> "Future[Metrics]":
        """Queue a call; its future ends with the metrics or with SandboxError."""
        future: Future[Metrics] = Future()
        with self._changing:
            if self._closed:
                raise _unavailable("the sandbox is closed")
            waiting = self._jobs.qsize()
            full = waiting >= MAX_WAITING or self._waiting_bytes + len(context) > MAX_WAITING_BYTES
            if waiting and full:
                raise _unavailable(f"the queue is full: {waiting:,} calls are waiting; retry later")
            if self._open >= len(self._threads) and len(self._threads) < self._size:
                self._start_thread()
            self._open += 1
            self._waiting_bytes += len(context)
            self._jobs.put(Job(future=future, code=code, context=context, timeout_ms=timeout_ms))
        return future

    def call(self, code: str, context: bytes, timeout_ms: int) -> Metrics:
        """Run a call and wait for it; raises SandboxError for everything but metrics."""
        worker = self._borrow()
        if worker is not None:
            metrics = self._serve_here(worker, code, context, timeout_ms)
            if metrics is not None:
                return metrics
        return self.submit(code, context, timeout_ms).result()

    def _serve_here(self, worker: Worker, code: str, context: bytes, timeout_ms: int) -> Metrics | None:
        kept: Worker | None = None
        ended: Metrics | SandboxError | None
        try:
            try:
                ended = worker.serve(code, context, timeout_ms)
            except SandboxError as failed:
                ended = self._reported(failed)
            with contextlib.suppress(Exception):
                worker.clear()
                kept = worker
        except Exception as crash:  # noqa: BLE001 - as in `_serve_one`; an interrupt is for the caller
            ended = _unavailable(f"the sandbox itself failed: {crash!r}")
        finally:
            self._give_back(self._retire(worker) if kept is None else kept)
        if isinstance(ended, SandboxError):
            raise ended
        return ended

    def close(self, *, wait: bool = True) -> None:
        """Kill every worker; calls that wait or run fail as unavailable."""
        with self._changing:
            if not self._closed:
                self._closed = True
                self._drain()
                for _ in self._threads:
                    self._jobs.put(None)
                self._freed.notify_all()
            workers, threads = list(self._workers), list(self._threads)
        if self.process_id != os.getpid():
            return
        for worker in workers:
            worker.kill()
        deadline = time.monotonic() + CLOSING_S
        for thread in threads if wait else ():
            thread.join(max(0.0, deadline - time.monotonic()))

    def _start_thread(self) -> None:
        # A daemon, so that the host can exit while user code runs in an endless loop.
        thread = threading.Thread(target=self._serve, daemon=True, name=f"sandbox-{len(self._threads)}")
        try:
            thread.start()
        except RuntimeError as problem:
            if not self._threads:
                raise _unavailable(f"no thread can be started for a worker: {problem}") from None
            # The other threads serve the call.
            return
        self._threads.append(thread)

    def _drain(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._jobs.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(_unavailable("the sandbox is closed"))

    def _serve(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                with self._changing:
                    self._waiting_bytes -= len(job.context)
                self._give_back(self._serve_one(job, self._take()))
                # Frees the call's context before the next call comes.
                del job
                with self._changing:
                    self._open -= 1
        finally:
            self._retire_idle()

    def _take(self) -> Worker | None:
        """Wait for one of the places; returns an idle worker, or None where one may be started."""
        with self._freed:
            while self._running >= self._size and not self._closed:
                self._freed.wait()
            self._running += 1
            return self._idle.pop() if self._idle else None

    def _borrow(self) -> Worker | None:
        """An idle worker that no other call waits for; None where there is none."""
        with self._changing:
            if self._closed or not self._idle or self._open:
                return None
            self._running += 1
            return self._idle.pop()

    def _give_back(self, worker: Worker | None) -> None:
        """Free the place of a call, and keep its worker where it lives."""
        with self._freed:
            self._running -= 1
            if worker is not None:
                self._idle.append(worker)
            self._freed.notify()
            closed = self._closed
        if closed:
            # The threads may have ended already.
            self._retire_idle()

    def _retire_idle(self) -> None:
        while True:
            with self._changing:
                if not self._idle:
                    return
                worker = self._idle.pop()
            self._retire(worker)

    def _reported(self, failed: SandboxError) -> SandboxError:
        closed = self._closed and failed.failure is Failure.CRASHED
        reported = _unavailable("the sandbox was closed while the code ran") if closed else failed
        # The traceback's frames would keep the call's context alive until the garbage collector runs.
        return reported.with_traceback(None)

    def _serve_one(self, job: Job, worker: Worker | None) -> Worker | None:
        """Run one call, answer it, then renew the worker; returns None when the worker is gone."""
        if not job.future.set_running_or_notify_cancel():
            return worker
        try:
            worker = self._start_worker() if worker is None else worker
            metrics = worker.run(job.code, job.context, job.timeout_ms)
        except SandboxError as failed:
            job.future.set_exception(self._reported(failed))
        except BaseException as crash:  # noqa: BLE001 - an error of the sandbox itself must reach the caller too
            job.future.set_exception(_unavailable(f"the sandbox itself failed: {crash!r}"))
            return self._retire(worker)
        else:
            job.future.set_result(metrics)
        if worker is None:
            return None
        try:
            worker.renew()
        except BaseException:  # noqa: BLE001 - the next call starts another worker, or reports why that fails
            return self._retire(worker)
        return worker

    def _start_worker(self) -> Worker:
        worker = self._make_worker()
        with self._changing:
            self._workers.add(worker)
        if self._closed:
            # It started too late to be killed with the others.
            worker.kill()
        return worker

    def _retire(self, worker: Worker | None) -> Worker | None:
        """End the worker, ignoring errors; always returns None."""
        if worker is not None:
            with self._changing:
                self._workers.discard(worker)
            with contextlib.suppress(BaseException):
                worker.close()
        return None


def _unavailable(why: str) -> SandboxError:
    return SandboxError(Failure.SANDBOX_UNAVAILABLE, why)


class _SharedPool(msgspec.Struct, frozen=True):
    pool: Pool
    users: set[int]


_pools: dict[object, _SharedPool] = {}
_sharing = threading.RLock()


def acquire_pool(key: object, user: int, make: Callable[[], Pool]) -> Pool:
    """Return the pool of that key, made on first use; it lasts until its last user releases it."""
    with _sharing:
        if key not in _pools:
            _pools[key] = _SharedPool(make(), set())
        _pools[key].users.add(user)
        return _pools[key].pool


def release_pool(key: object, user: int, *, wait: bool = False) -> None:
    """Remove one user; the last one closes the pool, and may wait until its workers have ended."""
    with _sharing:
        shared = _pools.get(key)
        if shared is None:
            return
        shared.users.discard(user)
        if shared.users:
            return
        del _pools[key]
    shared.pool.close(wait=wait)


def _close_all() -> None:
    with _sharing:
        pools = [shared.pool for shared in _pools.values()]
        _pools.clear()
    for pool in pools:
        pool.close()


def _forget() -> None:
    """After a fork the workers belong to the parent; the child starts its own."""
    global _sharing  # noqa: PLW0603 - the lock may have been held by a thread that does not exist here
    _sharing = threading.RLock()
    _pools.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_forget)
