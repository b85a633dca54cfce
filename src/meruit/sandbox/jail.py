"""The `python-full` tier, seen from outside: a zygote behind walls, and a sealed child of it for every call."""

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
from functools import cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from meruit.sandbox import confine
from meruit.sandbox.contract import MAX_RESULT_BYTES, Failure, SandboxError, read_answer, to_one_line
from meruit.sandbox.zygote import ANSWER, END, FORK, LENGTHS, READY, TELL

START_S = 30.0
"""How long loading may take."""
ORDER_S = 10.0
"""How long the zygote may take to fork or to end a child."""
ENDING_S = 2.0
PIECE = 1 << 16
NO_STREAM = 3
"""The lowest descriptor that is no standard stream."""
ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONUTF8": "1",
    "TZ": "UTC",
    # One thread: there is no way to start another in the jail.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
SIGXCPU, SIGSEGV = 24, 11


@cache
def engine() -> str:
    """The interpreter, and numpy where it is installed, with their versions."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    with contextlib.suppress(metadata.PackageNotFoundError):
        name += f", numpy {metadata.version('numpy')}"
    return name


_jails: "weakref.WeakSet[Jail]" = weakref.WeakSet()


def _forget() -> None:
    """After a fork the jails are the parent's; a line to them kept open here would keep them alive without it."""
    for jail in list(_jails):
        jail.abandon()


os.register_at_fork(after_in_child=_forget)


class Jail:
    """A zygote, and a child of it ready for the next call."""

    def __init__(self, memory_limit_mb: int, language: str = "python") -> None:
        try:
            confine.machine()
        except confine.ConfinementError as refused:
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, str(refused)) from None
        self._control, theirs = _control_socket_pair()
        self._channel: socket.socket | None = None
        self._count = 0
        folders = _install_folders("cel_expr_python", "orjson") if language == "expr" else _install_folders("numpy")
        code = (
            f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); from meruit.sandbox.zygote import main; "
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
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the jail cannot be started: {problem}") from None
        finally:
            theirs.close()
        _jails.add(self)
        said = self._receive_control(START_S)
        if said != READY:
            self.close()
            why = to_one_line(said.decode("utf-8", "replace").partition(" ")[2]) or "it ended while loading"
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the jail's walls do not stand: {why}")
        self._fork()

    def run(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float]:
        """The metrics of one call, in a process that no other call has seen."""
        channel, deadline = self._channel, time.monotonic() + timeout_ms / 1000
        if channel is None:
            raise SandboxError(Failure.SANDBOX_UNAVAILABLE, "the jail has no child to run this")
        request = code.encode()
        try:
            channel.settimeout(timeout_ms / 1000)
            channel.sendall(LENGTHS.pack(len(request), len(context)) + request + context)
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

    def renew(self) -> None:
        """Have another child ready, and end that of the last call, whatever it is doing."""
        channel, name = self._channel, self._name()
        self._fork()
        if channel is not None:
            channel.close()
            self._control.send(END + name)

    def kill(self) -> None:
        """End the processes at once; from any thread, while a call may be running."""
        self._zygote.kill()

    def close(self) -> None:
        """End the zygote and its child."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        # Its end of the line goes silent, and it leaves with all its children.
        self._control.close()
        try:
            self._zygote.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait()

    def abandon(self) -> None:
        """Close our ends without a word."""
        self._control.close()
        if self._channel is not None:
            self._channel.close()
        # It is not ours to wait for.
        self._zygote.returncode = 0

    def _fork(self) -> None:
        """Ask for a child. A request may be written before it lives, so nobody waits for it here."""
        self._count += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            given = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
            try:
                self._control.sendmsg([FORK + self._name()], given)
            except OSError:
                ours.close()
                raise
        self._channel = ours

    def _name(self) -> bytes:
        """What the present child is called between the zygote and us."""
        return b" %d" % self._count

    def _receive_control(self, patience_s: float) -> bytes:
        self._control.settimeout(patience_s)
        try:
            return self._control.recv(2_000)
        except OSError:
            # No answer in time is one of these too.
            return b""

    def _explain_exit(self) -> SandboxError:
        """Why a child fell silent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        try:
            self._control.send(TELL + self._name())
            status = int(self._receive_control(ORDER_S))
        except (OSError, ValueError):
            return SandboxError(Failure.SANDBOX_UNAVAILABLE, "the jail was ended from outside while the code ran")
        if not os.WIFSIGNALED(status):
            return SandboxError(Failure.CRASHED, "the code ended its process without an answer")
        number = os.WTERMSIG(status)
        if number == SIGXCPU:
            return SandboxError(Failure.TIMEOUT, "the code used up its processor time")
        hint = " (a crash in C, or recursion without end)" if number == SIGSEGV else ""
        return SandboxError(Failure.CRASHED, f"the code's process was ended by signal {number}{hint}")


def _control_socket_pair() -> tuple[socket.socket, socket.socket]:
    """Make a control line: our end and the zygote's. Keep the zygote's off the numbers of the standard streams."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    # A host that was started without streams has their numbers free. In the zygote, its own streams take them.
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
    """A failure as the child tells it; what it says is the code's word, so only known names count."""
    name, _, message = answer.decode("utf-8", "replace").partition(" ")
    told = {Failure.MEMORY, Failure.TIMEOUT, Failure.RESULT_REJECTED, Failure.UNSUPPORTED_CONSTRUCT}
    return SandboxError(Failure(name) if name in told else Failure.CRASHED, to_one_line(message) or "it gave no reason")


def _install_folders(*modules: str) -> list[str]:
    """Where the modules to preload are installed, and nowhere else."""
    found = (find_spec(module) for module in modules)
    return list(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin))
