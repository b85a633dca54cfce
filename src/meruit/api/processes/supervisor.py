"""The parent of the workers: starts them, replaces one that dies, and stops all of them."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from meruit.api.logging import log
from meruit.api.processes.inheritance import GO, PREPARED, READY, Inheritance
from meruit.api.processes.limits import SharedLimits
from meruit.api.server import GRACE_S, STOP_SIGNALS
from meruit.errors import ServerFailed

MAX_WORKERS = 64
START_S = 120.0
"""Longest time until a worker can serve; it tests the sandbox first."""
MAX_DEATHS, DEATHS_S = 10, 60.0
"""More deaths of workers in so many seconds end the service: replacing them does not help."""
FIRST_WAIT_S, MAX_WAIT_S = 0.1, 5.0
"""The wait before a dead worker is replaced; it doubles with each further death of the last minute."""
STOP_S = GRACE_S + 10.0
"""Longest time for workers to end; those that are left are killed."""
TICK_S = 0.2
"""Longest delay until a signal or a death is noticed."""

StartWorker = Callable[[Inheritance], "subprocess.Popen[bytes]"]
"""Starts the process of a worker, which inherits these descriptors."""


@dataclass(slots=True)
class _Worker:
    """One place among the workers, and the process that has it now."""

    index: int
    inbox: socket.socket
    outbox: socket.socket
    process: "subprocess.Popen[bytes] | None" = None
    control: socket.socket | None = None
    started: float = 0.0
    is_prepared: bool = False
    is_ready: bool = False
    restart_at: float | None = None


class Supervisor:
    """Runs workers that accept connections on one socket, until a signal."""

    def __init__(
        self,
        count: int,
        listener: socket.socket,
        start: StartWorker,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = listener
        self._start = start
        self._clock = clock
        self._limits = SharedLimits.create()
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(count)]
        self._workers = [_Worker(index, *pair) for index, pair in enumerate(pairs)]
        self._deaths: deque[float] = deque()
        self._signals = 0
        self._has_started = False
        self._selector = selectors.DefaultSelector()

    def run(self, ready: Callable[[], None]) -> None:
        """Serve until a signal; calls `ready` once all workers serve. Raises ServerFailed if they cannot."""
        with self._catch_signals():
            try:
                for worker in self._workers:
                    self._start_worker(worker)
                while not self._signals:
                    self._tick(ready)
            finally:
                self._stop()

    def process_ids(self) -> list[int]:
        """The processes of the workers that run now."""
        return [one.process.pid for one in self._workers if one.process is not None]

    @contextlib.contextmanager
    def _catch_signals(self) -> Iterator[None]:
        def count(_number: int, _frame: object) -> None:
            self._signals += 1

        earlier = {number: signal.signal(number, count) for number in STOP_SIGNALS}
        try:
            yield
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)

    def _start_worker(self, worker: _Worker) -> None:
        mine, theirs = socket.socketpair()
        inheritance = Inheritance(
            index=worker.index,
            listener=self._listener.fileno(),
            control=theirs.fileno(),
            inbox=worker.inbox.fileno(),
            outboxes=[one.outbox.fileno() for one in self._workers],
            limits=self._limits.descriptor,
        )
        with theirs:
            worker.process = self._start(inheritance)
        worker.control, worker.started, worker.restart_at = mine, self._clock(), None
        worker.is_prepared = worker.is_ready = False
        self._selector.register(mine, selectors.EVENT_READ, (worker, mine))

    def _tick(self, ready: Callable[[], None]) -> None:
        for key, _ in self._selector.select(TICK_S):
            worker, control = key.data
            self._hear(worker, control)
        for worker in self._workers:
            self._examine(worker)
        self._let_go()
        if not self._has_started and all(one.is_ready for one in self._workers):
            self._has_started = True
            ready()

    def _hear(self, worker: _Worker, control: socket.socket) -> None:
        try:
            said = control.recv(16)
        except OSError:
            said = b""
        worker.is_prepared |= PREPARED in said
        worker.is_ready |= READY in said
        if not said:
            self._hang_up(worker)

    def _hang_up(self, worker: _Worker) -> None:
        if worker.control is not None:
            self._selector.unregister(worker.control)
            worker.control.close()
            worker.control = None

    def _let_go(self) -> None:
        """Let workers accept connections: at the start all at once, so that none is refused for want of the others."""
        waiting = [(one, one.control) for one in self._workers if one.is_prepared and one.control is not None]
        if self._has_started or len(waiting) == len(self._workers):
            for worker, control in waiting:
                worker.is_prepared = False
                with contextlib.suppress(OSError):
                    control.sendall(GO)

    def _examine(self, worker: _Worker) -> None:
        now = self._clock()
        if worker.process is None:
            if worker.restart_at is not None and now >= worker.restart_at:
                self._start_worker(worker)
            return
        status = worker.process.poll()
        if status is None:
            if not worker.is_ready and now - worker.started > START_S:
                worker.process.kill()
            return
        self._hang_up(worker)
        worker.process = None
        if not self._has_started:
            raise ServerFailed(
                f"worker {worker.index + 1} of {len(self._workers)} ended with status {status} before it could serve; "
                "the log above says why"
            )
        self._count_death(now, worker, status)

    def _count_death(self, now: float, worker: _Worker, status: int) -> None:
        self._deaths.append(now)
        while self._deaths[0] < now - DEATHS_S:
            self._deaths.popleft()
        count = len(self._deaths)
        log("worker_ended", level="error", worker=worker.index + 1, status=status, count=count)
        if count > MAX_DEATHS:
            raise ServerFailed(
                f"workers ended {count} times in {DEATHS_S:.0f} seconds, so the service stops; the log above says why"
            )
        worker.restart_at = now + min(FIRST_WAIT_S * 2 ** (count - 1), MAX_WAIT_S)

    def _stop(self) -> None:
        """Ask all workers to end, and wait; a second signal ends them at once."""
        seen = self._signals
        running = [one.process for one in self._workers if one.process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        until = time.monotonic() + STOP_S
        while any(one.poll() is None for one in running) and time.monotonic() < until and self._signals <= max(seen, 1):
            time.sleep(TICK_S / 4)
        late = [one for one in running if one.poll() is None]
        for process in late:
            process.kill()
            process.wait()
        if late:
            log("workers_killed", level="warning", count=len(late))
        for worker in self._workers:
            self._hang_up(worker)
            worker.inbox.close()
            worker.outbox.close()
        self._selector.close()
        self._limits.close()


def start_process(
    command: Sequence[str], inheritance: Inheritance, environ: dict[str, str]
) -> "subprocess.Popen[bytes]":
    """Start a worker that inherits the descriptors, and nothing else of the parent."""
    # A session of its own: Ctrl-C in a terminal must reach the parent alone, which then stops the workers gracefully.
    return subprocess.Popen(  # noqa: S603 - our own command, with the options of this one
        [*command, inheritance.to_text()],
        pass_fds=inheritance.descriptors,
        env={**os.environ, **environ},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
