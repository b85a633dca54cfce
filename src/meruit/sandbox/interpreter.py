"""The `python` tier: a small Python interpreter in Rust that makes no system calls, in a confined process."""

import atexit
import builtins
import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meruit.errors import Failure, MissingExtra, SandboxError
from meruit.model.limits import DEFAULT_TIMEOUT_MS
from meruit.sandbox.contract import (
    FROZEN_CLOCK,
    MAX_RESULT_BYTES,
    UNDEFINED,
    explain_top_level_code,
    read_answer,
    to_one_line,
)
from meruit.sandbox.determinism import SEED
from meruit.sandbox.wire import OUT_OF_MEMORY, VERSION, Scripts, Wire, configure, feed, is_timeout, read_text, renewal

if TYPE_CHECKING:
    import pydantic_monty

START_S = 20.0
"""How long a worker may take to start."""
GRACE_S = 0.2
"""Time beyond the limit before a worker that does not stop by itself is killed."""
MAX_CALLS = 5_000
"""A worker is replaced after this many calls, so that its memory cannot grow without limit."""
USER_CODE_NAME = "<string>"
"""The interpreter's file name for code that is executed from a string."""
MAX_DEPTH = 500
MAX_PRINTED = 1_000_000
"""Characters that may be printed before the call is ended."""
MAX_SUSPENSIONS = 11
"""Questions to the host in one call; none is answered. Ten would be a line end in each reply, which cuts it in two."""
MAX_ODD = 256
"""Codes that are remembered as ones for the library."""

PROBE = "not a parameter"
"""No function can have a parameter of this name, so calling with it tests the others and runs nothing."""

# User code has its own globals, so it cannot overwrite the names of a script around it. The answer, a result or an
# error, is cut to one character more than the host accepts. The interpreter parses the script for each call, so it is
# short: the step at which it failed says what went wrong.
SPACE = 'space = {"__name__": "metric", "print": lambda *what, **how: None}'
SPACE_WITHOUT_PRINT = 'space = {"__name__": "metric"}'
"""For code without that word; what it prints all the same is passed over when it arrives."""
RAISED, UNDEFINED_METRIC, UNNAMED, REJECTED = "!", "?", "#", "="
"""First character of an answer that is an error, by the step that failed; JSON never begins with one of them."""
FAILED = frozenset((RAISED, UNDEFINED_METRIC, UNNAMED, REJECTED))
CUT = f"""
except BaseException as problem:
    answer = step + type(problem).__name__ + ": " + str(problem)
answer[:{MAX_RESULT_BYTES + 1}]
"""
MEASURE_PARSED = f"""
import json
{SPACE}
step = {RAISED!r}
try:
    exec(code, space)
    step = {UNDEFINED_METRIC!r}
    metric = space["metric"]
    step = {RAISED!r}
    found = metric(**context)
    if isinstance(found, dict):
        step = {UNNAMED!r}
        "".join(found)
    step = {REJECTED!r}
    answer = json.dumps(found)
{CUT}"""
MEASURE = MEASURE_PARSED.replace("**context", "**json.loads(context)")
"""The same for a context that is JSON."""
LOAD = f"""
{SPACE}
step = {RAISED!r}
answer = "{{}}"
try:
    exec(code, space)
    step = {UNDEFINED_METRIC!r}
    metric = space["metric"]
    step = {RAISED!r}
    try:
        metric(input={{}}, output={{}}, metadata={{}}, **{{{PROBE!r}: 0}})
    except BaseException as problem:
        said = str(problem)
        wrong = said.startswith("metric() ") or said.endswith("object is not callable")
        if isinstance(problem, TypeError) and wrong and {PROBE!r} not in said:
            raise
{CUT}"""
"""Without a context, the code is loaded and its parameters are tested."""
BARE = f"""
import json
{SPACE}
exec(code, space)
if context:
    space["metric"](**json.loads(context))
None
"""
"""The same without catching errors, so that the traceback shows the line."""
_SCRIPTS = {
    (measures, prints): Scripts(
        parsed=parsed.replace(SPACE, space).encode(), unparsed=unparsed.replace(SPACE, space).encode()
    )
    for measures, parsed, unparsed in ((True, MEASURE_PARSED, MEASURE), (False, LOAD, LOAD))
    for prints, space in ((True, SPACE), (False, SPACE_WITHOUT_PRINT))
}
"""By whether there is a context, and whether the code has the word `print`."""


@cache
def engine() -> str:
    """The interpreter and its version."""
    try:
        return f"pydantic-monty {metadata.version('pydantic-monty')}"
    except metadata.PackageNotFoundError:
        raise MissingExtra("custom metrics need `pip install 'meruit[custom]'`") from None


class Interpreter:
    """One worker process with a session ready for the next call; and the library's, for code that needs it."""

    def __init__(self, memory_limit_mb: int) -> None:
        self._memory_limit_mb = memory_limit_mb
        self._timeout_ms = DEFAULT_TIMEOUT_MS
        self._wire: Wire | None = None
        self._calls = 0
        self._odd: dict[int, None] = {}
        """Hashes of code that the library must run."""
        self._killed = threading.Event()
        self._library: Library | None = None
        self._start()

    def run(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float]:
        """The metrics of one call, in a session that no other call has seen."""
        start = time.monotonic()
        answer = self._answer(code, context, timeout_ms)
        if not isinstance(answer, str):
            raise SandboxError(Failure.RESULT_REJECTED, "the result is not JSON")
        metrics = _read(answer)
        if metrics is not None:
            return metrics
        can_run_again = _is_quick(start, timeout_ms) and len(answer) <= MAX_RESULT_BYTES
        where = self._line_of(code, context, timeout_ms) if can_run_again else ""
        raise _explain_error(to_one_line(answer[1:]), timeout_ms, where)

    def serve(self, code: str, context: bytes, timeout_ms: int) -> dict[str, float] | None:
        """Run a call in any thread; None for code that fails, which `run` explains."""
        start = time.monotonic()
        wire = self._wire
        if wire is None or self._calls >= MAX_CALLS or hash(code) in self._odd or not self._has_session(timeout_ms):
            return None
        try:
            answer = self._ask(wire, code, context, timeout_ms)
        except BrokenPipeError:
            return None
        metrics = None if answer is None else _read(answer)
        if metrics is None and answer is not None and not _is_quick(start, timeout_ms):
            raise _explain_error(to_one_line(answer[1:]), timeout_ms, "")
        return metrics

    def clear(self) -> None:
        """The next session was begun with the call; raises EOFError where the worker is gone."""
        if self._wire is None:
            raise EOFError

    # Any: the value of user code.
    def _answer(self, code: str, context: bytes, timeout_ms: int) -> Any:
        """What the script returns: by the wire, or by the library for code that the wire does not understand."""
        mark = hash(code)
        if mark not in self._odd:
            try:
                answer = self._ask(self._prepare(timeout_ms), code, context, timeout_ms)
            except BrokenPipeError:
                # Ended from outside between two calls; the code is not to blame, and has not run.
                answer = self._ask(self._prepare(timeout_ms), code, context, timeout_ms)
            if answer is not None:
                return answer
            self._odd[mark] = None
            if len(self._odd) > MAX_ODD:
                del self._odd[next(iter(self._odd))]
        return self._with_library().run_script(
            MEASURE if context else LOAD, {"code": code, "context": context.decode()}, timeout_ms
        )

    def _ask(self, wire: Wire, code: str, context: bytes, timeout_ms: int) -> str | None:
        """Run a call by the wire; None where only the library can run it to its end.

        Raises BrokenPipeError where the worker was gone before the code could run.
        """
        self._calls += 1
        request = feed(code.encode(), context, _SCRIPTS[bool(context), "print" in code])
        try:
            reply = wire.ask(request, renewal(*self._limits()), time.monotonic() + timeout_ms / 1000 + GRACE_S)
        except TimeoutError:
            self._end()
            raise _timeout_error(timeout_ms) from None
        except BrokenPipeError:
            self._end()
            raise
        except EOFError:
            if self._end() == OUT_OF_MEMORY:
                raise SandboxError(Failure.MEMORY, "MemoryError: the worker exceeded its memory limit") from None
            raise SandboxError(Failure.CRASHED, "the code crashed its worker") from None
        except OverflowError:
            self._end()
            return None
        answer = read_text(reply)
        if answer is None and is_timeout(reply):
            raise _timeout_error(timeout_ms)
        return answer

    def _line_of(self, code: str, context: bytes, timeout_ms: int) -> str:
        """Run failed code again to find the line; it fails the same way, because clock and randomness are fixed."""
        try:
            self._with_library().run_script(BARE, {"code": code, "context": context.decode()}, timeout_ms)
        except SandboxError as again:
            return again.where
        return ""

    def renew(self) -> None:
        """Start a worker where there is none, so that the next call need not wait for it."""
        self._prepare(self._timeout_ms)
        if self._library is not None:
            self._library.renew()

    def kill(self) -> None:
        """End the processes at once; from any thread, while a call may be running."""
        self._killed.set()
        for process in (self._wire, self._library):
            if process is not None:
                process.kill()

    def close(self) -> None:
        """End the workers."""
        self._end()
        if self._library is not None:
            self._library.close()

    def _prepare(self, timeout_ms: int) -> Wire:
        """Return the worker, with a session that no code has used and that has this time limit."""
        if self._wire is not None and self._calls >= MAX_CALLS:
            self._end()
        if self._wire is None:
            self._timeout_ms = timeout_ms
        elif self._has_session(timeout_ms):
            return self._wire
        return self._start()

    def _has_session(self, timeout_ms: int) -> bool:
        """Whether the worker has a session that no code has used and that has this time limit; begins one."""
        return self._timeout_ms == timeout_ms or self._begin(timeout_ms)

    def _begin(self, timeout_ms: int) -> bool:
        """Begin a session with this time limit; False where the worker is gone, which is ended then."""
        self._timeout_ms = timeout_ms
        try:
            if self._wire is not None:
                self._wire.renew(renewal(*self._limits()), time.monotonic() + START_S)
        except (BrokenPipeError, TimeoutError):
            self._end()
        return self._wire is not None

    def _start(self) -> Wire:
        if self._killed.is_set():
            raise SandboxError(Failure.CRASHED, "the worker was killed")
        self._calls = 0
        self._wire = Wire(_launcher(self._memory_limit_mb))
        if not self._wire.is_ready(configure(*self._limits()), time.monotonic() + START_S):
            self._end()
            raise SandboxError(
                Failure.SANDBOX_UNAVAILABLE, f"the interpreter does not answer as release {VERSION} does"
            )
        if self._killed.is_set():
            # It started too late to be killed with the others.
            self._wire.kill()
        return self._wire

    def _limits(self) -> tuple[int, int, int, int]:
        """Of a session: bytes of memory, calls inside each other, questions to the host, milliseconds."""
        return self._memory_limit_mb * 2**20, MAX_DEPTH, MAX_SUSPENSIONS, self._timeout_ms

    def _end(self) -> int | None:
        """End the worker, and return its exit code where there was one."""
        wire, self._wire = self._wire, None
        return None if wire is None else wire.close()

    def _with_library(self) -> "Library":
        if self._library is None:
            self._library = Library(self._memory_limit_mb)
        if self._killed.is_set():
            self._library.kill()
        return self._library


class Library:
    """The library and its worker, for code whose call does not end with a plain answer."""

    def __init__(self, memory_limit_mb: int) -> None:
        _refuse_forked_process()
        from pydantic_monty import Monty

        self._memory_limit_mb = memory_limit_mb
        self._pool = Monty(
            binary_path=_launcher(memory_limit_mb),
            min_processes=1,
            max_processes=1,
            checkout_timeout=START_S,
            max_checkouts_per_worker=MAX_CALLS,
            feed_duration_limit_grace=GRACE_S,
            turn_duration_limit_grace=GRACE_S,
        )
        self._pool.__enter__()
        self._session: pydantic_monty.MontySession | None = None
        self._timeout_ms = DEFAULT_TIMEOUT_MS
        self._used = False
        self._process_id: int | None = None

    # Any: the value of user code.
    def run_script(self, script: str, given: dict[str, str], timeout_ms: int) -> Any:
        """Run a script in a fresh session; raises SandboxError when the worker or a limit breaks."""
        import pydantic_monty as monty

        session = self._ready_for(timeout_ms)
        self._used = True
        printed = PrintLimit(self.kill)
        try:
            return session.feed_run(script, inputs=given, print_callback=printed)
        except monty.MontyCrashedError as gone:
            if printed.too_much:
                raise SandboxError(Failure.CRASHED, f"the code prints more than {MAX_PRINTED:,} characters") from None
            if gone.timed_out:
                raise _timeout_error(timeout_ms) from None
            raise SandboxError(Failure.CRASHED, f"the code crashed its worker: {to_one_line(str(gone))}") from None
        except monty.MontyError as problem:
            raise _explain_error(to_one_line(str(problem)), timeout_ms, _line(problem)) from None

    def renew(self) -> None:
        """Prepare a fresh session, so that the next call need not wait for one."""
        self._ready_for(self._timeout_ms)

    def kill(self) -> None:
        """End the process at once; from any thread, while a call may be running."""
        if self._process_id is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process_id, signal.SIGKILL)

    def close(self) -> None:
        """End the worker."""
        self._leave()
        self._pool.__exit__(None, None, None)

    def _ready_for(self, timeout_ms: int) -> "pydantic_monty.MontySession":
        """Return an unused session that has this time limit."""
        if self._session is None or self._used or self._timeout_ms != timeout_ms:
            self._leave()
            self._session = self._new_session(timeout_ms)
            self._timeout_ms, self._used = timeout_ms, False
            # Read now, because a session that is running code does not answer.
            self._process_id = self._session.worker_pid
        return self._session

    def _new_session(self, timeout_ms: int) -> "pydantic_monty.MontySession":
        session = self._pool.checkout(
            limits={
                "max_feed_duration_secs": timeout_ms / 1000,
                "max_memory": self._memory_limit_mb * 2**20,
                "max_recursion_depth": MAX_DEPTH,
                "max_suspensions": MAX_SUSPENSIONS,
            },
            os_policy={
                "datetime": datetime.fromisoformat(FROZEN_CLOCK),
                "sleep": "zero",
                "random_start": {"seed": SEED},
            },
        )
        return session.__enter__()

    def _leave(self) -> None:
        session, self._session = self._session, None
        self._process_id = None
        if session is not None:
            # A session whose worker is gone has nothing left to close.
            with contextlib.suppress(Exception):
                session.__exit__(None, None, None)


_home: list[int] = []
"""The process in which the library's threads live."""


def _refuse_forked_process() -> None:
    """Refuse in a process forked from one where the library ran: it would wait for the parent's threads for ever."""
    _home[:] = _home or [os.getpid()]
    if _home != [os.getpid()]:
        message = "this process was forked after its parent used the tier python; start it with spawn, or fork earlier"
        raise SandboxError(Failure.SANDBOX_UNAVAILABLE, message)


class PrintLimit:
    """Discards printed text that bypassed our own `print`, and ends the worker when there is too much of it."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._left = MAX_PRINTED
        self._end = end
        self.too_much = False

    def __call__(self, _stream: str, text: str) -> None:
        """Discard the text; too much of it ends the worker, because an exception would not stop it."""
        self._left -= len(text)
        if self._left < 0 and not self.too_much:
            self.too_much = True
            self._end()


def _read(answer: str) -> dict[str, float] | None:
    """The metrics of an answer; None for an error of the code. Raises SandboxError for a result that is refused."""
    step = answer[:1]
    if step not in FAILED:
        return read_answer(answer.encode())
    complaint = answer[1:]
    if step == REJECTED:
        # Without the name of the exception.
        raise SandboxError(Failure.RESULT_REJECTED, to_one_line(complaint.partition(": ")[2]))
    if step == UNNAMED and complaint.startswith("TypeError"):
        raise SandboxError(Failure.RESULT_REJECTED, "a metric's name must be text")
    if step == UNDEFINED_METRIC and complaint.startswith("KeyError"):
        raise SandboxError(Failure.UNSUPPORTED_CONSTRUCT, explain_top_level_code(UNDEFINED))
    return None


def _is_quick(start: float, timeout_ms: int) -> bool:
    """Whether a call can run once more within its time limit, which a busy machine does not change as a rule."""
    return (time.monotonic() - start) * 2_000 < timeout_ms


def _timeout_error(timeout_ms: int) -> SandboxError:
    return SandboxError(Failure.TIMEOUT, f"no answer within {timeout_ms} ms")


_PLACE = re.compile(rf"\({USER_CODE_NAME}, line (\d+)\)")
UNSUPPORTED = ("ModuleNotFoundError", "ImportError", "NotImplementedError", "SyntaxError")


def _explain_error(complaint: str, timeout_ms: int, where: str) -> SandboxError:
    """Map the interpreter's error to one of our failures."""
    complaint = _PLACE.sub(r"(line \1)", complaint)
    kind, _, message = complaint.partition(": ")
    if explain_top_level_code(complaint) != complaint:
        return SandboxError(Failure.CRASHED, explain_top_level_code(f"{complaint}{where}"), where)
    if kind in UNSUPPORTED or _is_missing_feature(kind, message):
        lacking = message.removeprefix("The monty syntax parser does not yet support ")
        text = complaint if lacking == message else f"the tier python does not support {lacking}"
        return SandboxError(Failure.UNSUPPORTED_CONSTRUCT, text if "(line " in text else f"{text}{where}", where)
    if kind == "TimeoutError" and "time limit exceeded" in message:
        return _timeout_error(timeout_ms)
    if kind == "MemoryError":
        return SandboxError(Failure.MEMORY, complaint)
    if not where and kind == "TypeError" and message.startswith("metric() "):
        complaint = f"metric must have the parameters input, output and metadata; {complaint}"
    if not where and kind == "TypeError" and message.endswith("object is not callable"):
        complaint = "metric is not a function; write def metric(input, output, metadata)"
    return SandboxError(Failure.CRASHED, f"{complaint}{where}", where)


def _is_missing_feature(kind: str, message: str) -> bool:
    """Whether the code uses a feature of CPython that this interpreter lacks."""
    if kind == "NameError":
        return message in {f"name {name!r} is not defined" for name in dir(builtins)}
    return kind == "AttributeError" and message.startswith(("module ", "'module' "))


# Any: the library's errors share no typed face.
def _line(problem: Any) -> str:
    """The line of the author's code where the error happened."""
    frames = problem.traceback() if hasattr(problem, "traceback") else []
    lines = [frame.line for frame in frames if frame.filename == USER_CODE_NAME]
    return f" (line {lines[-1]})" if lines else ""


_launchers: dict[int, Path] = {}
_launching = threading.Lock()


def _launcher(memory_limit_mb: int) -> str:
    """Path of a program that confines itself and then executes the interpreter; the library takes only a path."""
    # Several workers start at once, and finding the program is not safe in threads.
    with _launching:
        known = _launchers.get(memory_limit_mb)
        # A cleaner of temporary folders may have removed it.
        if known is None or not known.exists():
            known = _launchers[memory_limit_mb] = _new_launcher(memory_limit_mb)
        return str(known)


def _new_launcher(memory_limit_mb: int) -> Path:
    # Private, but the library offers no public name for it; the version is pinned.
    from pydantic_monty._binary import find_monty_binary

    try:
        program = find_monty_binary()
    except FileNotFoundError as problem:
        raise SandboxError(Failure.SANDBOX_UNAVAILABLE, str(problem)) from None
    code = (
        f"import sys; sys.path.append({str(Path(__file__).parents[2])!r}); "
        f"from meruit.sandbox.launch import main; main({program!r}, {str(memory_limit_mb)!r}, *sys.argv[1:])"
    )
    script = Path(_folder(), "launch")
    script.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, "-P", "-s", "-S", "-c", code])} "$@"\n')
    script.chmod(0o700)
    _probe(str(script))
    return script


def _folder() -> str:
    """Make a temporary folder where programs may be executed; it is removed when this process ends."""
    for parent in (None, os.environ.get("XDG_RUNTIME_DIR"), str(Path.home() / ".cache")):
        with contextlib.suppress(OSError):
            folder = tempfile.mkdtemp(prefix="meruit-", dir=parent)
            atexit.register(_remove, folder, os.getpid())
            script = Path(folder, "probe")
            script.touch(0o700)
            # False on a file system mounted with noexec.
            if os.access(script, os.X_OK):
                return folder
    raise SandboxError(
        Failure.SANDBOX_UNAVAILABLE, "no temporary folder allows programs to be executed; set TMPDIR to one that does"
    )


def _remove(folder: str, owner: int) -> None:
    """Remove the folder, only in the process that made it: a forked child ends before its parent does."""
    if owner == os.getpid():
        shutil.rmtree(folder, ignore_errors=True)


def _probe(launcher: str) -> None:
    """Start the interpreter once, confined; raises SandboxError with the reason when it does not start."""
    try:
        done = subprocess.run(  # noqa: S603 - our own launcher
            [launcher, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
            env={},
        )
    except (OSError, subprocess.SubprocessError) as problem:
        raise SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the interpreter cannot be started: {problem}") from None
    if done.returncode != 0 or not done.stdout.strip():
        why = to_one_line(done.stderr) or f"exit code {done.returncode}"
        raise SandboxError(Failure.SANDBOX_UNAVAILABLE, f"the confined interpreter cannot be started: {why}")
