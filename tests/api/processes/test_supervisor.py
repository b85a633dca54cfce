"""The parent of workers: when it says that they serve, what it does when one dies, and how it ends."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing

import pytest

from meruit.api.processes import supervisor as parent
from meruit.api.processes.inheritance import Inheritance, WorkerProcess
from meruit.api.processes.supervisor import Supervisor, start_process
from meruit.errors import ServerFailed

# A worker in few lines: it reports, waits for its start, and does what it is told.
WORKER = """
import json, os, signal, socket, sys, time
how, found = sys.argv[1], json.loads(sys.argv[2])
if how == "refuse":
    sys.exit(3)
control = socket.socket(fileno=found["control"])
control.sendall(b"p")
assert control.recv(1) == b"g"
if how == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
control.sendall(b"r")
if how == "die":
    sys.exit(5)
control.recv(1)
time.sleep(60 if how == "stubborn" else 0)
"""
PATIENCE_S = 60.0


class Watched:
    """A supervisor whose workers are small programs, and what it did."""

    def __init__(self, *ways: str, later: str = "serve") -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.ways, self.later = list(ways), later
        self.started: list[tuple[int, subprocess.Popen[bytes]]] = []
        self.ready = 0
        self.supervisor = Supervisor(len(ways), self.listener, self._start)

    def _start(self, inherited: Inheritance) -> "subprocess.Popen[bytes]":
        how = self.ways[inherited.index]
        self.ways[inherited.index] = self.later
        made = start_process([sys.executable, "-S", "-c", WORKER, how], inherited, {})
        self.started.append((inherited.index, made))
        return made

    def run(self, then: Callable[[], None]) -> None:
        """Run until a signal; `then` is called in a thread once all serve."""

        def ready() -> None:
            self.ready += 1
            threading.Thread(target=then, daemon=True).start()

        with closing(self.listener):
            self.supervisor.run(ready)
        assert all(one.poll() is not None for _, one in self.started)


def _end(number: int = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


def _wait_until(true: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE_S
    while not true() and time.monotonic() < until:
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_is_ready_once_and_a_signal_ends_all(number: int) -> None:
    watched = Watched("serve", "serve")
    before = signal.getsignal(number)
    watched.run(lambda: _end(number))
    assert (watched.ready, [index for index, _ in watched.started]) == (1, [0, 1])
    assert signal.getsignal(number) is before


def test_a_killed_worker_is_replaced_at_its_place() -> None:
    watched = Watched("serve", "serve")

    def kill_one() -> None:
        watched.started[1][1].kill()
        _wait_until(lambda: len(watched.started) == 3)
        _end()

    watched.run(kill_one)
    assert (watched.ready, [index for index, _ in watched.started]) == (1, [0, 1, 1])
    assert watched.started[1][1].returncode == -signal.SIGKILL


def test_a_worker_that_cannot_begin_ends_the_service() -> None:
    watched = Watched("serve", "refuse")
    with pytest.raises(ServerFailed, match="worker 2 of 2 ended with status 3"):
        watched.run(lambda: None)
    assert watched.ready == 0


def test_workers_that_die_again_and_again_end_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(parent, "MAX_DEATHS", 2)
    watched = Watched("serve", later="die")
    with pytest.raises(ServerFailed, match="3 times"):
        watched.run(lambda: os.kill(watched.started[0][1].pid, signal.SIGKILL))
    assert len(watched.started) == 3


@pytest.mark.parametrize("again", [False, True])
def test_a_worker_that_does_not_end_is_killed(monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    # After its time, or at once where a second signal comes.
    monkeypatch.setattr(parent, "STOP_S", PATIENCE_S if again else 0.3)
    watched = Watched("stubborn")

    def end() -> None:
        _end()
        if again:
            _wait_until(lambda: watched.supervisor._signals == 1)
            _end()

    watched.run(end)
    assert watched.started[0][1].returncode == -signal.SIGKILL


def test_a_worker_that_is_never_prepared_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent, "START_S", 0.0)
    watched = Watched("serve", "serve")
    with pytest.raises(ServerFailed, match="ended with status -9"):
        watched.run(lambda: None)


def test_a_worker_knows_its_place_and_ends_with_its_parent() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    ended = threading.Event()
    taken: list[WorkerProcess] = []

    def take_over(inherited: Inheritance) -> "subprocess.Popen[bytes]":
        # In this process: with descriptors of its own, as a child has.
        copies = {one: os.dup(one) for one in inherited.descriptors}
        found = Inheritance(
            index=inherited.index,
            listener=copies[inherited.listener],
            control=copies[inherited.control],
            inbox=copies[inherited.inbox],
            outboxes=[copies[one] for one in inherited.outboxes],
            limits=copies[inherited.limits],
        )
        process = WorkerProcess.take_over(found.to_text())
        taken.append(process)
        assert (process.index, process.is_first, process.siblings.count) == (0, True, 1)
        assert process.listener.getsockname() == listener.getsockname()
        assert not any(os.get_inheritable(one) for one in found.descriptors)

        def serve() -> None:
            process.wait_for_start()
            process.watch_parent(ended.set)
            process.report_ready()

        threading.Thread(target=serve, daemon=True).start()
        return subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])

    with closing(listener):
        Supervisor(1, listener, take_over).run(_end)
    assert ended.wait(PATIENCE_S)
    for one in taken:
        one.close()


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"index": 0}', "1" * 100])
def test_a_worker_without_a_parent_is_refused(text: str) -> None:
    with pytest.raises(ServerFailed, match="--workers"):
        WorkerProcess.take_over(text)


def test_a_worker_whose_parent_ended_does_not_serve() -> None:
    mine, theirs = socket.socketpair()
    mine.close()
    # Any other value would do: only the connection to the parent is used.
    worker = WorkerProcess.__new__(WorkerProcess)
    worker._control = theirs
    with theirs:
        with pytest.raises(ServerFailed, match="parent"):
            worker.wait_for_start()
        worker.report_ready()
