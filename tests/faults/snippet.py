"""What a hostile snippet is: code that tries to do harm in one named way, and what the harness may hold against it."""

from enum import StrEnum
from textwrap import dedent
from typing import NamedTuple

FULL = "python-full"
SMALL = "python"


class Kind(StrEnum):
    """The ways of doing harm that every tier must stop; none may be without a snippet."""

    FILES = "files"
    ENVIRONMENT = "environment"
    PROC = "proc"
    WRITING = "writing"
    TCP = "tcp"
    UDP = "udp"
    UNIX_SOCKET = "unix_socket"
    PROGRAMS = "programs"
    CTYPES = "ctypes"
    PICKLE = "pickle"
    FORK_BOMB = "fork_bomb"
    THREADS = "threads"
    KILL = "kill"
    DUNDERS = "dunders"
    FRAMES = "frames"
    GC = "gc"
    FORMAT = "format"
    SETTRACE = "settrace"
    FORGED_FDS = "forged_fds"
    PROTOCOL = "protocol"
    BYTECODE = "bytecode"
    RECURSION = "recursion"
    PARSER = "parser"
    REPR = "repr"
    PYTHON_LOOP = "python_loop"
    C_LOOP = "c_loop"
    POW = "pow"
    REGEX = "regex"
    SLEEP = "sleep"
    SIGNALS = "signals"
    MEMORY = "memory"
    ZIP_BOMB = "zip_bomb"
    DAEMON = "daemon"
    ATEXIT = "atexit"
    NAN = "nan"
    INF = "inf"
    STRINGS = "strings"
    CYCLIC = "cyclic"
    HUGE = "huge"
    SURROGATE = "surrogate"
    DEEP = "deep"
    LIES = "lies"
    EXIT = "exit"
    PRINTING = "printing"
    CONTEXT = "context"
    POISON = "poison"
    LEFTOVER = "leftover"


class Snippet(NamedTuple):
    """One attack. Its targets arrive in `input`; what it learns it tries to carry out in its numbers."""

    name: str
    kind: Kind
    code: str
    timeout_ms: int = 1_000
    ends: frozenset[str] = frozenset()
    """In CPython the call must end in one of these failures; empty when any end will do."""
    ends_small: frozenset[str] = frozenset()
    """The same for the small Python, where most attacks stop at the first line."""
    boasts: bool = True
    """A number other than 0 is a confession that something was reached: that is believed, a zero is not."""


HELPERS = '''
def number(found):
    if found is None:
        return 0
    if isinstance(found, (int, float)):
        return int(found)
    value = 0
    for character in list(found)[:6]:
        value = value * 256 + (character if isinstance(character, int) else ord(character) % 256)
    return value

def after(found, mark):
    """What stands behind the mark in a haystack."""
    if isinstance(found, bytes):
        found = found.decode("latin-1")
    for part in found.split(mark)[1:]:
        if len(part) >= 6 and part[:6].isalnum():
            return part
    return None

def tried(ways):
    reached = {}
    for name in ways:
        try:
            reached[name] = number(ways[name]())
        except BaseException:
            reached[name] = 0
    return reached
'''
"""Written in the syntax that both Pythons know, so that an attack fails at a wall and not at its own spelling."""

NATIVE = '''
def native():
    """ctypes, through whichever door was left open."""
    import sys
    try:
        import ctypes
        return ctypes
    except BaseException:
        pass
    import gc
    for thing in list(sys.modules.values()) + gc.get_objects():
        if type(thing) is type(sys) and getattr(thing, "CDLL", None) is not None:
            return thing
        inner = getattr(thing, "ctypes", None) if type(thing) is type(sys) else None
        if getattr(inner, "CDLL", None) is not None:
            return inner
    raise ImportError("no ctypes")

def caller():
    ctypes = native()
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    def call(number, *arguments):
        made = []
        for argument in arguments:
            if isinstance(argument, bytes):
                argument = ctypes.c_char_p(argument)
            elif isinstance(argument, int):
                argument = ctypes.c_long(argument)
            made.append(argument)
        return libc.syscall(ctypes.c_long(number), *made)
    return ctypes, libc, call

def numbered(intel, arm):
    import sys
    return arm if "aarch64" in sys.implementation._multiarch else intel
'''
"""System calls without asking Python's own modules; in one way or another, every hole in an interpreter ends here."""


def written(code: str, *, helpers: bool = True, native: bool = False) -> str:
    """The code as the sandbox is given it."""
    return (HELPERS if helpers or native else "") + (NATIVE if native else "") + dedent(code)
