"""The `python-full` tier on the host's side: a confined zygote process that forks a sealed child for each call.

A fork copies the page tables of all that its zygote loaded, and numpy doubles them. So code that does not name numpy
runs in children of a zygote without it.
"""

import array
import contextlib
import fcntl
import os
import platform
import socket
import subprocess
import sys
import time
import weakref
from collections import deque
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from meruit.errors import ConfinementError, Failure, SandboxError
from meruit.sandbox import confine
from meruit.sandbox.contract import MAX_RESULT_BYTES, explain_top_level_code, read_answer, to_one_line
from meruit.sandbox.zygote import ANSWER, END, FORK, LENGTHS, READY, STATUS

START_S = 30.0
"""How long loading may take."""
ORDER_S = 10.0
"""How long the zygote may take to fork or to end a child."""
ENDING_S = 2.0
SPARES = 2
"""Children that are ready or being forked. One more than a call needs, so that calls in a row overlap with forks."""
PIECE = 1 << 16
NO_STREAM = 3
"""The lowest descriptor after the standard streams."""
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
    # One thread: the jail cannot start another.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
WITHOUT_HOOK = "import os; fork = os.fork; del os.fork; import random; os.fork = fork; del fork; "
"""Imports `random` so that it does not seed itself again after each fork, from the entropy of the machine."""
SIGXCPU, SIGSEGV = 24, 11
PLAIN, NUMERIC, EXPRESSION = "python", "numpy", "expr"
"""What a zygote loads: the standard library; that and numpy; the evaluator of expressions."""
PRELOADED = {PLAIN: (), NUMERIC: ("numpy",), EXPRESSION: ("cel_expr_python", "orjson")}
"""The installed packages that each of them needs."""


@cache
def engine() -> str:
    """The interpreter, and numpy where it is installed, with their versions."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    with contextlib.suppress(metadata.PackageNotFoundError):
        name += f", numpy {metadata.version('numpy')}"
    return name


_jails: "weakref.WeakSet[Jail]" = weakref.WeakSet()


def _forget() -> None:
    """After a fork the jails belong to the parent; a socket left open here would keep them alive after it ends."""
    for jail in list(_jails):
        jail.abandon()


os.register_at_fork(after_in_child=_forget)


class FullPython:
    """CPython in a jail without numpy, and in one with it for code that names it; each starts when it is needed."""

    def __init__(self, memory_limit_mb: int) -> None:
        self._memory_limit_mb = memory_limit_mb
        self._jails: dict[str, Jail] = {}
        self._used: Jail | None = None
        self._killed = False

    def run(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float]:
        """Run one call in a process that no other call has used, and return its metrics."""
        self._used = self._jail_for(code)
        return self._used.run(code, context, timeout_ms)

    def serve(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float] | None:
        """Run a call in any thread; None where a jail must be started first."""
        return self.run(code, context, timeout_ms) if _language_of(code) in self._jails else None

    def clear(self) -> None:
        """The same as `renew`, in any thread."""
        self.renew()

    def renew(self) -> None:
        """Prepare the jail that was used for its next call."""
        used, self._used = self._used, None
        if used is not None:
            used.renew()

    def kill(self) -> None:
        """End the processes at once; from any thread, while a call may be running."""
        self._killed = True
        for jail in list(self._jails.values()):
            jail.kill()

    def close(self) -> None:
        """End both zygotes and their children."""
        for jail in self._jails.values():
            jail.close()

    def _jail_for(self, code: str) -> "Jail":
        loaded = _language_of(code)
        if loaded not in self._jails:
            self._jails[loaded] = Jail(self._memory_limit_mb, loaded)
            if self._killed:
                # It started too late to be killed with the other.
                self._jails[loaded].kill()
        return self._jails[loaded]


def _language_of(code: str) -> str:
    return NUMERIC if "numpy" in code else PLAIN


class Child(NamedTuple):
    """A process that runs one call."""

    name: bytes
    """In messages to the zygote."""
    channel: socket.socket


class Jail:
    """A zygote, and children of it ready for the next calls."""

    def __init__(self, memory_limit_mb: int, language: str = PLAIN) -> None:
        try:
            confine.machine()
        except ConfinementError as refused:
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, str(refused)) from None
        self._control, theirs = _control_socket_pair()
        self._children: deque[Child] = deque()
        """The first one runs the next call."""
        self._count = 0
        folders = _install_folders(*PRELOADED[language])
        code = (
            f"{WITHOUT_HOOK}import sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
            "from meruit.sandbox.zygote import main; "
            f"main({theirs.fileno()}, {memory_limit_mb}, {language!r}, {folders!r})"
        )
        try:
            self._zygote = subprocess.Popen(  # noqa: S603 - our own interpreter and code
                [sys.executable, "-P", "-s", "-S", "-c", code],
                env=ENVIRONMENT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as problem:
            self._control.close()
            raise _cannot_start(str(problem)) from None
        finally:
            theirs.close()
        _jails.add(self)
        reply = self._receive_control(START_S)
        if reply != READY:
            self.close()
            why = to_one_line(reply.decode("utf-8", "replace").partition(" ")[2]) or "it ended while loading"
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the jail cannot be confined: {why}")
        try:
            for _ in range(SPARES):
                self._fork()
        except OSError as problem:
            # Otherwise the zygote would stay as a zombie.
            self.close()
            raise _cannot_start(str(problem)) from None

    def run(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float]:
        """Run one call in a process that no other call has used, and return its metrics."""
        deadline = time.monotonic() + timeout_ms / 1000
        if not self._children:
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "the jail has no child to run this")
        encoded = code.encode()
        request = LENGTHS.pack(len(encoded), len(context)) + encoded + context
        try:
            channel = self._send(request, timeout_ms / 1000)
            length, failed = ANSWER.unpack(_receive(channel, ANSWER.size, deadline))
            if length > MAX_RESULT_BYTES:
                raise SandboxError(Failure.RESULT_REJECTED, f"the result is larger than {MAX_RESULT_BYTES // 1024} KiB")
            answer = _receive(channel, length, deadline)
        except TimeoutError:
            raise SandboxError(Failure.TIMEOUT, f"no answer within {timeout_ms} ms") from None
        except (EOFError, OSError):
            raise self._explain_exit() from None
        if failed:
            raise _parse_failure(answer)
        return read_answer(answer)

    def serve(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float]:
        """The same as `run`, in any thread."""
        return self.run(code, context, timeout_ms)

    def clear(self) -> None:
        """The same as `renew`, in any thread."""
        self.renew()

    def renew(self) -> None:
        """Fork another child, and kill that of the last call."""
        self._fork()
        if len(self._children) > SPARES:
            self._end_first()

    def kill(self) -> None:
        """End the processes at once; from any thread, while a call may be running."""
        self._zygote.kill()

    def close(self) -> None:
        """End the zygote and its child."""
        self._close_channels()
        # The zygote exits with its children when the host's end is closed.
        self._control.close()
        try:
            self._zygote.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()

    def abandon(self) -> None:
        """Close this process's ends of the sockets; the zygote belongs to the parent."""
        self._control.close()
        self._close_channels()
        # Only the parent can wait for it.
        self._zygote.returncode = 0

    def _send(self, request: bytes, patience_s: float) -> socket.socket:
        """Hand the request to a child; code runs once all of it was read, so that a dead child costs no call."""
        for _ in range(SPARES + 1):
            channel = self._children[0].channel
            channel.settimeout(patience_s)
            try:
                channel.sendall(request)
            except BrokenPipeError:
                self._fork()
                self._end_first()
            else:
                return channel
        raise BrokenPipeError

    def _end_first(self) -> None:
        used = self._children.popleft()
        used.channel.close()
        self._control.send(END + used.name)

    def _fork(self) -> None:
        """Ask the zygote for a child. The request can be written before the child runs, so this does not wait."""
        self._count += 1
        name = b" %d" % self._count
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
            try:
                self._control.sendmsg([FORK + name], given)
            except OSError:
                ours.close()
                raise
        self._children.append(Child(name, ours))

    def _close_channels(self) -> None:
        while self._children:
            self._children.popleft().channel.close()

    def _receive_control(self, patience_s: float) -> bytes:
        self._control.settimeout(patience_s)
        try:
            return self._control.recv(2_000)
        except OSError:
            # A timeout is an OSError too.
            return b""

    def _explain_exit(self) -> SandboxError:
        """Find out why a child ended without an answer."""
        used = self._children.popleft()
        used.channel.close()
        try:
            self._control.send(STATUS + used.name)
            status = int(self._receive_control(ORDER_S))
        except (OSError, ValueError):
            return SandboxError(Failure.SANDBOX_UNAVAILABLE, "the jail was killed from outside while the code ran")
        if not os.WIFSIGNALED(status):
            return SandboxError(Failure.CRASHED, "the code ended its process without an answer")
        number = os.WTERMSIG(status)
        if number == SIGXCPU:
            return SandboxError(Failure.TIMEOUT, "the code used all of its processor time")
        hint = " (a crash in C, or endless recursion)" if number == SIGSEGV else ""
        return SandboxError(Failure.CRASHED, f"the code's process was killed by signal {number}{hint}")


def _cannot_start(why: str) -> SandboxError:
    return SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the jail cannot be started: {why}")


def _control_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make the control sockets, ours and the zygote's. The zygote's avoids the numbers of the standard streams."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A host that was started without streams has their numbers free; the zygote's own streams take them.
    if theirs.fileno() < NO_STREAM:
        with theirs as low:
            theirs = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, NO_STREAM))
    return ours, theirs


def _receive(channel: socket.socket, size: int, deadline: float) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        channel.settimeout(left)
        part = channel.recv(min(size, PIECE))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _parse_failure(answer: bytes) -> SandboxError:
    """Parse a failure that the child reports; user code may have forged it, so only some names are accepted."""
    name, _, message = answer.decode("utf-8", "replace").partition(" ")
    accepted = {Failure.MEMORY, Failure.TIMEOUT, Failure.RESULT_REJECTED, Failure.UNSUPPORTED_CONSTRUCT}
    failure = Failure(name) if name in accepted else Failure.CRASHED
    return SandboxError(failure, explain_top_level_code(to_one_line(message)) or "the code gave no reason")


def _install_folders(*modules: str) -> list[str]:
    """The folders in which the modules to preload are installed."""
    found = (find_spec(module) for module in modules)
    return list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin))
