"""Runs inside the jail: loads all modules once, then forks a child for each call and seals it before it reads anything.

Standard library only, apart from what it preloads. The host talks to the zygote on a control socket and to each child
on a socket of its own; a child answers once and ends.
"""

import array
import builtins
import contextlib
import gc
import importlib
import inspect
import json
import os
import signal
import socket
import struct
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from meruit.errors import ConfinementError, MetricRejected
from meruit.sandbox import confine
from meruit.sandbox.determinism import make_deterministic

FORK, END, STATUS = b"fork", b"end", b"status"
"""Orders, each with the name of a child: fork it; kill it; kill it and report its exit status."""
READY, REFUSED = b"ready", b"refused"
MAX_NOTE = 1_000
LENGTHS = struct.Struct(">II")
"""Header of a request: the lengths of its code and its context."""
ANSWER = struct.Struct(">IB")
"""Header of an answer: its length, and whether it is a failure."""
REAP_POLL_S = 0.005
"""How often killed children are polled until they are dead."""
CONTROL = 4
"""The descriptor on which the host gives orders; never that of a child. Low, so that any `ulimit -n` allows it."""
CHANNEL = 3
"""The one descriptor that a child may read and write."""
MOST_FILES = 256
"""More descriptors than a zygote ever has."""
CHILD_LIMITS = {"CPU": 120, "NOFILE": 0, "NPROC": 0}
"""No new descriptor and no process. The CPU limit ends a child that the host did not kill."""
LONGEST_MESSAGE = 300
PARAMETERS = "metric must have the parameters input, output and metadata;"

# fmt: off
STANDARD = (
    "abc", "array", "ast", "base64", "binascii", "bisect", "calendar", "cmath", "codecs", "collections",
    "collections.abc", "colorsys", "contextlib", "copy", "csv", "dataclasses", "datetime", "decimal", "difflib",
    "encodings.ascii", "encodings.cp1252", "encodings.idna", "encodings.latin_1", "encodings.utf_16",
    "encodings.utf_8_sig", "enum", "fnmatch", "fractions", "functools", "graphlib", "gzip", "hashlib", "heapq",
    "hmac", "html", "html.entities", "html.parser", "io", "ipaddress", "itertools", "json", "keyword", "locale",
    "math", "numbers", "operator", "os", "pathlib", "pprint", "random", "re", "reprlib", "secrets", "shlex",
    "statistics", "string", "stringprep", "_strptime", "struct", "textwrap", "time", "token", "tokenize", "tomllib",
    "traceback", "types", "typing", "unicodedata", "urllib.parse", "uuid", "weakref", "xml.etree.ElementTree",
    "zlib",
)
NUMERIC = (
    "numpy", "numpy.fft", "numpy.lib", "numpy.linalg", "numpy.ma", "numpy.polynomial", "numpy.random", "numpy.strings",
)
# fmt: on


def main(control: int, memory_limit_mb: int, language: str, folders: list[str]) -> None:
    """Load modules, confine this process, and fork children until the host closes the control socket."""
    # Children close all descriptors below MOST_FILES. The control socket must be one of them.
    move_descriptor(control, CONTROL)
    host, parent = socket.socket(fileno=CONTROL), os.getpid()
    try:
        run = _prepare(language, folders)
        seal = confine.SyscallFilter(confine.jail_policy(CHANNEL))
        address_space = confine.address_space_now() + memory_limit_mb * 2**20
        confine.hide_memory()
        confine.become_nobody()
        confine.no_new_privileges()
        if confine.landlock_version() > 0:
            confine.limit_files()
        confine.limit_resources(AS=address_space, FSIZE=0, CORE=0, MEMLOCK=0)
        limits = confine.lowest_limits(**CHILD_LIMITS)
        _test_seal(seal, limits)
    except BaseException as refused:  # noqa: BLE001 - the host must learn of every failure
        kind = "" if isinstance(refused, ConfinementError) else f"{type(refused).__name__}: "
        host.send(REFUSED + f" {kind}{refused}".encode("utf-8", "replace")[:MAX_NOTE])
        os._exit(1)
    # Children share these pages until one process writes to them.
    gc.collect()
    gc.freeze()
    host.send(READY)
    _serve(host, partial(_become_child, parent, seal, limits, run))


def move_descriptor(descriptor: int, target: int) -> None:
    """Move a descriptor to a given number, and do not let executed programs inherit it."""
    if descriptor == target:
        # There is nothing to copy, and nothing to close. A copy onto itself would not change the flag either.
        os.set_inheritable(target, False)  # noqa: FBT003 - it has no name to give
        return
    os.dup2(descriptor, target, inheritable=False)
    os.close(descriptor)


def _test_seal(seal: confine.SyscallFilter, limits: confine.Limits) -> None:
    """Seal a child that does nothing, to find out before any user code arrives whether sealing works."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            confine.set_limits(limits)
            seal.enforce()
        except BaseException as refused:  # noqa: BLE001 - the parent must learn of every failure
            os.write(writing, str(refused).encode("utf-8", "replace")[:MAX_NOTE])
        os._exit(0)
    os.close(writing)
    why = os.read(reading, MAX_NOTE)
    os.close(reading)
    os.waitpid(child, 0)
    if why:
        raise ConfinementError(why.decode("utf-8", "replace"))


Run = Callable[[str, bytes], bytes]

EMPTY = b'{"input":{},"output":{"a":"a"},"metadata":{}}'
WARMING = (
    ("size(output.a) + 1", EMPTY),
    ("def metric(input, output, metadata):\n    return {'a': len(output['a']) / 2.0}\n", EMPTY),
)
"""Calls that only warm up: an expression, and metric code."""
WARM_UPS = 20
"""After so many, the interpreter has made its code special; else each child would, in pages of its own."""


def _prepare(language: str, folders: list[str]) -> Run:
    sys.path.extend(folders)
    if language == "expr":
        from meruit.sandbox.expression import evaluate

        def run(code: str, context: bytes) -> bytes:
            return json.dumps(evaluate(code, context)).encode()
    else:
        for name in STANDARD:
            importlib.import_module(name)
        for name in NUMERIC if language == "numpy" else ():
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        run = _run_metric
    # Modules that load on first use must load before the process is confined.
    for _ in range(WARM_UPS):
        run(*WARMING[run is _run_metric])
    make_deterministic()
    return run


def _serve(host: socket.socket, become_child: Callable[[int], NoReturn]) -> NoReturn:
    """Carry out the host's orders; exit with all children when the host closes its end."""
    children: dict[bytes, int] = {}
    ending: list[int] = []
    while True:
        # Killed children are reaped without waiting for them.
        ending = [child for child in ending if os.waitpid(child, os.WNOHANG)[0] == 0]
        host.settimeout(REAP_POLL_S if ending else None)
        try:
            received, given, _, _ = host.recvmsg(64, socket.CMSG_SPACE(struct.calcsize("i")))
        except TimeoutError:
            continue
        order, _, name = received.partition(b" ")
        if order == FORK:
            channel = array.array("i", given[0][2])[0]
            child = os.fork()
            if child == 0:
                become_child(channel)
            os.close(channel)
            children[name] = child
        elif order == END:
            child = children.pop(name)
            os.kill(child, signal.SIGKILL)
            ending.append(child)
        elif order == STATUS:
            host.send(str(_kill_child(children.pop(name))).encode())
        else:
            for child in children.values():
                _kill_child(child)
            os._exit(0)


def _kill_child(child: int) -> int:
    """Kill a child that may be dead already, and return its exit status."""
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _become_child(parent: int, seal: confine.SyscallFilter, limits: confine.Limits, run: Run, channel: int) -> NoReturn:
    """Seal this process, then answer one request. On any error it exits without an answer, which is a failure."""
    try:
        confine.die_with_parent(parent)
        move_descriptor(channel, CHANNEL)
        os.closerange(CHANNEL + 1, MOST_FILES)
        confine.set_limits(limits)
        seal.enforce()
        # A warm-up call takes the page faults before a request waits for them.
        with contextlib.suppress(Exception):
            run(*WARMING[run is _run_metric])
        lengths = LENGTHS.unpack(_receive(LENGTHS.size))
        code, context = (_receive(length) for length in lengths)
        _answer(run, code.decode(), context)
    finally:
        os._exit(0)


def _receive(size: int) -> bytes:
    parts: list[bytes] = []
    while size > 0:
        part = os.read(CHANNEL, min(size, 1 << 20))
        if not part:
            os._exit(0)
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _answer(run: Run, code: str, context: bytes) -> None:
    failed = 0
    try:
        reply = run(code, context)
    except MemoryError:
        failed, reply = 1, b"memory the code used more memory than its limit"
    except BaseException as problem:  # noqa: BLE001 - user code may raise anything
        failed, reply = 1, _describe_failure(problem).encode("utf-8", "backslashreplace")
    left = memoryview(ANSWER.pack(len(reply), failed) + reply)
    while left:
        left = left[os.write(CHANNEL, left) :]


def _run_metric(code: str, context: bytes) -> bytes:
    """Run the code's `metric` on the context and return its result as JSON; the host validates it.

    Without a context, the code is loaded and its parameters are tested.
    """
    dumps, loads = json.dumps, json.loads
    try:
        compiled = compile(code, "metric.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        line = f" (line {wrong.lineno})" if isinstance(wrong, SyntaxError) and wrong.lineno else ""
        message = (
            f"SyntaxError: {wrong.msg}" if isinstance(wrong, SyntaxError) else str(wrong) or "the code is too deep"
        )
        raise MetricRejected(f"unsupported_construct {message}{line}") from None
    module = types.ModuleType("metric")
    sys.modules["metric"] = module
    module.__dict__["__builtins__"] = builtins
    exec(compiled, module.__dict__)  # noqa: S102 - what this process is for
    metric = module.__dict__.get("metric")
    if isinstance(metric, types.FunctionType) and metric.__code__.co_flags & 0x80:
        raise MetricRejected("unsupported_construct metric is an async function; write a plain def")
    if not callable(metric):
        raise MetricRejected("unsupported_construct the code defines no function metric(input, output, metadata)")
    if not context:
        _test_parameters(metric)
        return b"{}"
    found = metric(**loads(context))
    try:
        if isinstance(found, dict):
            if not all(isinstance(name, str) for name in found):
                raise MetricRejected("result_rejected a metric's name must be text")
            found = {name: _to_json_value(name, value) for name, value in found.items()}
        written = dumps(found).encode()
    except (TypeError, ValueError, RecursionError) as wrong:
        raise MetricRejected(f"result_rejected {wrong}") from None
    if len(written) > 1 << 16:
        raise MetricRejected("result_rejected the result is larger than 64 KiB")
    return written


def _test_parameters(metric: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(metric)
    except (TypeError, ValueError):
        return  # A function in C says nothing of its parameters.
    try:
        signature.bind(input={}, output={}, metadata={})
    except TypeError as wrong:
        raise MetricRejected(f"crashed {PARAMETERS} {wrong}") from None


def _to_json_value(name: str, value: Any) -> Any:
    """Convert a numpy number to Python's; refuse a value that JSON cannot hold, with the metric's name."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    raise MetricRejected(f"result_rejected metric {name!r}: {type(value).__name__} is not a number; write float(…)")


def _describe_failure(problem: BaseException) -> str:
    """The failure's name, the error, and the line of the author's code."""
    if isinstance(problem, MetricRejected):
        return str(problem)[:LONGEST_MESSAGE]
    failure = getattr(problem, "failure", None) or (
        "unsupported_construct" if isinstance(problem, ImportError) else "crashed"
    )
    lines = []
    trace = problem.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "metric.py":
            lines.append(trace.tb_lineno)
        trace = trace.tb_next
    where = f" (line {lines[-1]})" if lines else ""
    what = "" if hasattr(problem, "failure") else f"{type(problem).__name__}: "
    if not lines and isinstance(problem, TypeError) and str(problem).startswith("metric() "):
        what = f"{PARAMETERS} {what}"
    return f"{failure} {what}{str(problem)[:LONGEST_MESSAGE]}{where}"
