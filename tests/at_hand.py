"""The programs `meruit` and `python`, forked from a process that has loaded all they need: Python takes a second to.

Each is still a process of its own, with the arguments, folder, environment and streams that its caller gives it, and
gets the signals that are sent to it. One process is loaded for all workers of `tests.forking`, and makes new stores by
copying one (`tests.migrating`).
"""

import atexit
import marshal
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from shutil import rmtree
from typing import IO, NamedTuple

import pytest

LOADED = Path(__file__).with_name("loaded.py")
# Reached by its name alone: where a socket may be is limited to a hundred characters.
CALLER = """#!{python} -IS
import marshal, os, signal, socket, sys
if {program!r} == "python" and (len(sys.argv) < 2 or not sys.argv[1].endswith(".py")):
    os.execv({python!r}, [{python!r}, *sys.argv[1:]])
asked = marshal.dumps(({program!r}, sys.argv[1:], os.getcwd(), dict(os.environ)))
os.chdir({folder!r})
line = socket.socket(socket.AF_UNIX)
line.connect("line")
socket.send_fds(line, [b"-"], [0, 1, 2])
line.sendall(asked)
told = line.makefile()
process = int(told.readline())
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(process, number))
code = int(told.readline())
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
PROGRAMS = ("meruit", "python")
STOPPING_S = 300.0


class Loaded(NamedTuple):
    """The loaded process, and the folder of its socket and of the programs."""

    folder: Path
    process: "subprocess.Popen[bytes]"

    def stop(self) -> None:
        """End it, with all that was forked from it and has ended."""
        self.process.communicate(timeout=STOPPING_S)
        rmtree(self.folder, ignore_errors=True)


_loaded: list[Loaded] = []
"""None or one; workers that are forked later inherit it."""


def loaded() -> Loaded:
    """The loaded process of this session."""
    if not _loaded:
        # Short, and for all workers, so not in pytest's folders.
        folder = Path(tempfile.mkdtemp(prefix="mhand-"))
        for name in PROGRAMS:
            program = folder / name
            program.write_text(CALLER.format(python=sys.executable, folder=str(folder), program=name))
            program.chmod(0o700)
        # It ends when we and our workers do, however we end: its input does then.
        process = subprocess.Popen(
            [sys.executable, "-P", str(LOADED)], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        _loaded.append(Loaded(folder, process))
        atexit.register(_loaded[0].stop)
    return _loaded[0]


def pytest_configure(config: pytest.Config) -> None:
    """Begin to load while tests are collected, which takes one processor, and before workers are forked."""
    if getattr(config.option, "workers", 0) and not config.option.collectonly:
        loaded()


@pytest.fixture(scope="session")
def meruit_at_hand() -> Path:
    """A folder with the programs, to be looked in before all others."""
    return _ready().folder


def program(name: str = "meruit") -> str:
    """Where a program is."""
    return str(_ready().folder / name)


def _ready() -> Loaded:
    found = loaded()
    until = time.monotonic() + STOPPING_S
    # Not by what it prints: several workers wait for it.
    while not (found.folder / "line").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    return found


class Started:
    """A process that was forked for us; as much of `Popen` as tests use."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes],
        stderr: IO[bytes],
        program: str = "meruit",
    ) -> None:
        self.returncode: int | None = None
        self._line = socket.socket(socket.AF_UNIX)
        _connect(self._line, _ready().folder)
        with open(os.devnull, "rb") as nothing:  # noqa: PTH123 - a stream
            streams = [nothing.fileno(), stdout.fileno(), stderr.fileno()]
            socket.send_fds(self._line, [b"-"], streams)
        self._line.sendall(marshal.dumps((program, list(arguments), str(cwd), dict(env))))
        self._said = self._line.makefile()
        self.pid = int(self._said.readline())

    def wait(self, timeout: float) -> int:
        """Its exit code, or the negative number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("meruit", timeout)
            self.returncode = int(self._said.readline())
            self._said.close()
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code if it has ended."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """`kill -9`."""
        self.send_signal(signal.SIGKILL)


def _connect(line: socket.socket, folder: Path) -> None:
    """Connect by a short name: `/proc/self/fd` keeps the path within its limit."""
    place = os.open(folder, os.O_PATH)
    try:
        line.connect(f"/proc/self/fd/{place}/line")
    finally:
        os.close(place)
