"""Runs inside the jail: loads everything once, then forks a child for each call and seals it before it hears a word.

Standard library only, apart from what it preloads. The host speaks to the zygote on a control socket and to each
child on a socket of its own; a child answers once and ends.
"""

import array
import builtins
import contextlib
import gc
import importlib
import json
import os
import random
import signal
import socket
import struct
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn

from meruit.sandbox import confine
from meruit.sandbox.determinism import SEED, make_deterministic

FORK, END, TELL = b"fork", b"end", b"tell"
"""Orders, each with the name of a child: make it; end it; end it and tell how it ended."""
READY, REFUSED = b"ready", b"refused"
MAX_NOTE = 1_000
LENGTHS = struct.Struct(">II")
"""Before a request: how long its code and its context are."""
ANSWER = struct.Struct(">IB")
"""Before an answer: how long it is, and whether it is a failure."""
REAP_POLL_S = 0.005
"""How long after a child was ended we look again whether it is dead."""
CONTROL = 200
"""The descriptor on which the host gives orders; never that of a child."""
CHANNEL = 3
"""The one descriptor that a child may read and write."""
MOST_FILES = 256
"""More descriptors than a zygote ever has."""
CHILD_LIMITS = {"CPU": 120, "NOFILE": 0, "NPROC": 0}
"""No descriptor, no process; and an end for a child that everybody forgot, though the host kills it long before."""
LONGEST_MESSAGE = 300

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
    """Load, put up the walls that a parent can have, and fork children until the host goes away."""
    # However many files the host has open: what children must close is below the limit they close to.
    move_descriptor(control, CONTROL)
    host, parent = socket.socket(fileno=CONTROL), os.getpid()
    try:
        run = _prepare(language, folders)
        seal = confine.SyscallFilter(confine.jail_policy(CHANNEL))
        room = confine.address_space_now() + memory_limit_mb * 2**20
        confine.hide_memory()
        confine.become_nobody()
        confine.no_new_privileges()
        if confine.landlock_version() > 0:
            confine.limit_files()
        confine.limit_resources(AS=room, FSIZE=0, CORE=0, MEMLOCK=0)
        _test_seal(seal)
    except BaseException as refused:  # noqa: BLE001 - whatever it is, the host is told
        kind = "" if isinstance(refused, confine.ConfinementError) else f"{type(refused).__name__}: "
        host.send(REFUSED + f" {kind}{refused}".encode("utf-8", "replace")[:MAX_NOTE])
        os._exit(1)
    # Children share these pages with us as long as nobody writes to them.
    gc.collect()
    gc.freeze()
    host.send(READY)
    _serve(host, parent, seal, run)


def move_descriptor(descriptor: int, target: int) -> None:
    """Move a descriptor to a given number, and do not let executed programs inherit it."""
    if descriptor == target:
        # There is nothing to copy, and nothing to close. A copy onto itself would not change the flag either.
        os.set_inheritable(target, False)  # noqa: FBT003 - it has no name to give
        return
    os.dup2(descriptor, target, inheritable=False)
    os.close(descriptor)


def _test_seal(seal: confine.SyscallFilter) -> None:
    """Seal a child that does nothing: a wall that does not stand is known before anybody's code arrives."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            confine.limit_resources(**CHILD_LIMITS)
            seal.enforce()
        except BaseException as refused:  # noqa: BLE001 - whatever it is, the parent is told
            os.write(writing, str(refused).encode("utf-8", "replace")[:MAX_NOTE])
        os._exit(0)
    os.close(writing)
    why = os.read(reading, MAX_NOTE)
    os.close(reading)
    os.waitpid(child, 0)
    if why:
        raise confine.ConfinementError(why.decode("utf-8", "replace"))


Run = Callable[[str, bytes], bytes]

EMPTY = b'{"input":{},"output":{"a":"a"},"metadata":{}}'
WARMING = (
    ("size(output.a) + 1", EMPTY),
    ("def metric(input, output, metadata):\n    return {'a': len(output['a']) / 2.0}\n", EMPTY),
)
"""A call of no consequence: an expression, and metric code."""


def _prepare(language: str, folders: list[str]) -> Run:
    sys.path.extend(folders)
    if language == "expr":
        from meruit.sandbox.expression import evaluate

        # What is loaded when first used must be loaded before the doors close.
        evaluate(*WARMING[0])

        def run(code: str, context: bytes) -> bytes:
            return json.dumps(evaluate(code, context)).encode()
    else:
        for name in STANDARD:
            importlib.import_module(name)
        for name in NUMERIC:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        run = _run_metric
    make_deterministic()
    return run


def _serve(host: socket.socket, parent: int, seal: confine.SyscallFilter, run: Run) -> NoReturn:
    """One order of the host after another; its silence ends us and our children."""
    children: dict[bytes, int] = {}
    ending: list[int] = []
    while True:
        # Nobody waits for the dead; they are buried when there is time.
        ending = [child for child in ending if os.waitpid(child, os.WNOHANG)[0] == 0]
        host.settimeout(REAP_POLL_S if ending else None)
        try:
            said, given, _, _ = host.recvmsg(64, socket.CMSG_SPACE(struct.calcsize("i")))
        except TimeoutError:
            continue
        order, _, name = said.partition(b" ")
        if order == FORK:
            channel = array.array("i", given[0][2])[0]
            child = os.fork()
            if child == 0:
                _become_child(parent, channel, seal, run)
            os.close(channel)
            children[name] = child
        elif order == END:
            child = children.pop(name)
            os.kill(child, signal.SIGKILL)
            ending.append(child)
        elif order == TELL:
            host.send(str(_kill_child(children.pop(name))).encode())
        else:
            for child in children.values():
                _kill_child(child)
            os._exit(0)


def _kill_child(child: int) -> int:
    """Kill a child that may be dead already, and say how it ended."""
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _become_child(parent: int, channel: int, seal: confine.SyscallFilter, run: Run) -> NoReturn:
    """Seal ourselves, then hear and answer one request. Whatever fails from here on is silence, which is a failure."""
    try:
        confine.die_with_parent(parent)
        move_descriptor(channel, CHANNEL)
        os.closerange(CHANNEL + 1, MOST_FILES)
        confine.limit_resources(**CHILD_LIMITS)
        seal.enforce()
        # A fork starts chance anew, unless it is told where.
        random.seed(SEED)
        # Touching once what every call touches takes the page faults before anyone waits.
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
        said = run(code, context)
    except MemoryError:
        failed, said = 1, b"memory the code used more memory than it may"
    except BaseException as problem:  # noqa: BLE001 - all that code can do is fail
        failed, said = 1, _describe_failure(problem).encode("utf-8", "backslashreplace")
    left = memoryview(ANSWER.pack(len(said), failed) + said)
    while left:
        left = left[os.write(CHANNEL, left) :]


class MetricRejected(Exception):
    """An answer that is no result; its text begins with the failure's name."""


def _run_metric(code: str, context: bytes) -> bytes:
    """What the code's `metric` says of the context, as JSON; the host decides whether to believe it."""
    dumps, loads = json.dumps, json.loads
    try:
        compiled = compile(code, "metric.py", "exec")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as wrong:
        line = f" (line {wrong.lineno})" if isinstance(wrong, SyntaxError) and wrong.lineno else ""
        said = f"SyntaxError: {wrong.msg}" if isinstance(wrong, SyntaxError) else str(wrong) or "the code is too deep"
        raise MetricRejected(f"unsupported_construct {said}{line}") from None
    module = types.ModuleType("metric")
    sys.modules["metric"] = module
    module.__dict__["__builtins__"] = builtins
    exec(compiled, module.__dict__)  # noqa: S102 - what this process is for
    metric = module.__dict__.get("metric")
    if isinstance(metric, types.FunctionType) and metric.__code__.co_flags & 0x80:
        raise MetricRejected("unsupported_construct metric is an async function; write a plain def")
    if not callable(metric):
        raise MetricRejected("unsupported_construct the code defines no function metric(input, output, metadata)")
    found = metric(**loads(context))
    try:
        if isinstance(found, dict):
            if not all(isinstance(name, str) for name in found):
                raise MetricRejected("result_rejected a metric's name is text")
            found = {name: _to_json_value(name, value) for name, value in found.items()}
        written = dumps(found).encode()
    except (TypeError, ValueError, RecursionError) as wrong:
        raise MetricRejected(f"result_rejected {wrong}") from None
    if len(written) > 1 << 16:
        raise MetricRejected("result_rejected the result is larger than 64 KiB")
    return written


def _to_json_value(name: str, value: Any) -> Any:
    """A number of numpy's as one of Python's; what JSON has no word for is refused here, by its name."""
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str | list | tuple | dict):
        return value
    raise MetricRejected(f"result_rejected metric {name!r}: {type(value).__name__} is no number; write float(…)")


def _describe_failure(problem: BaseException) -> str:
    """The failure's name and what happened, with the line of the author's code."""
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
        what = f"metric must take input, output and metadata, by these names; {what}"
    return f"{failure} {what}{str(problem)[:LONGEST_MESSAGE]}{where}"
