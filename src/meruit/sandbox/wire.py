"""Calls of the interpreter in one round trip, in the binary form in which the library talks to its worker.

The library makes four round trips for a call, each through a thread of its own. Here a call is one message, and the end
of its session travels with the start of the next. Only a plain answer is understood: what else the worker says is for
the library, which runs the code again and explains it.
"""

import os
import select
import struct
import subprocess
import time
import weakref
from functools import lru_cache
from typing import Any

import msgspec
import orjson

from meruit.sandbox.determinism import FROZEN_S, SEED

VERSION = "1.4.0"
"""The release of the library whose messages these are; its worker refuses others."""
MAX_VALUES = 64
"""Values of a context that are sent one by one; of more, the interpreter parses the JSON itself."""
MAX_KEPT_NAME = 64
"""The longest key whose row is remembered."""
MAX_FRAME = 256 * 1024
"""The longest message that is read: more than any answer, and than what is printed at once."""
PIECE = 1 << 16
OUT_OF_MEMORY = 65
"""Exit code of a worker that the system refused more memory."""
MAX_EXACT = 2**63
"""From here on, a parsed float may have been an integer."""
_LENGTH = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")
_SMALL = tuple(bytes([number]) for number in range(128))
_MORE = 0x80


def write_number(number: int) -> bytes:
    """A whole number, seven bits a byte, lowest first."""
    if number < _MORE:
        return _SMALL[number]
    written = bytearray()
    while number >= _MORE:
        written.append(number & 0x7F | _MORE)
        number >>= 7
    written.append(number)
    return bytes(written)


def read_number(message: bytes, place: int) -> tuple[int, int]:
    """A whole number of a message, and the place behind it; raises IndexError past the end."""
    number = shift = 0
    while message[place] >= _MORE:
        number |= (message[place] & 0x7F) << shift
        place, shift = place + 1, shift + 7
    return number | message[place] << shift, place + 1


def number_field(field: int, number: int) -> bytes:
    """A field that holds a whole number."""
    return _SMALL[field << 3] + write_number(number)


def bytes_field(field: int, content: bytes) -> bytes:
    """A field that holds text, or a message."""
    size = len(content)
    return _SMALL[field << 3 | 2] + (_SMALL[size] if size < _MORE else write_number(size)) + content


def frame(message: bytes) -> bytes:
    """A message behind its length."""
    return _LENGTH.pack(len(message)) + message


DONE = bytes_field(10, b"")
"""The worker's reply to `END` and to `configure`."""
PRINTED = b"\x0a"
"""First byte of a message with printed text."""
END = frame(bytes_field(9, b""))
"""Ends a session, so that nothing is left of it, also where its code waits for an answer."""


@lru_cache(16)
def configure(memory_bytes: int, depth: int, suspensions: int, timeout_ms: int) -> bytes:
    """Start a session with these limits, the fixed clock and the fixed seed."""
    limits = (
        number_field(2, memory_bytes)
        + number_field(4, depth)
        + number_field(5, suspensions)
        + number_field(6, timeout_ms * 1000)
    )
    clock = bytes_field(3, number_field(1, FROZEN_S)) + bytes_field(4, bytes_field(1, b""))
    no_sleep, seed = bytes_field(5, bytes_field(3, b"")), bytes_field(8, bytes_field(1, bytes([SEED])))
    policy = bytes_field(11, clock + no_sleep + seed + bytes_field(9, b""))
    # As the library sends them without a wish of ours: the length of notes about assertions, and two flags.
    usual = number_field(6, 120) + number_field(7, 1) + number_field(9, 6)
    named = bytes_field(1, b"main.py") + bytes_field(2, limits) + bytes_field(5, VERSION.encode())
    return frame(bytes_field(1, named + usual + policy))


@lru_cache(16)
def renewal(memory_bytes: int, depth: int, suspensions: int, timeout_ms: int) -> bytes:
    """End a session, so that nothing is left of it, and start the next with these limits."""
    return END + configure(memory_bytes, depth, suspensions, timeout_ms)


@lru_cache(256)
def _name_row(name: str) -> bytes:
    return bytes_field(2, bytes_field(8, name.encode()))


_NAMED, _NAMED_FIRST = b"\x0a\x04\x08", b"\x0a\x02\x10"
"""Openings of a member of a mapping: with the row of its name, and where that is row 0, which is left out."""
_EMPTY = bytes_field(14, b"")


class Values:
    """Values that code is given: a table in which the parts of a value come before it."""

    def __init__(self) -> None:
        self._rows: list[bytes] = []
        self._begun = 0

    # Any: a value as JSON has them.
    def add(self, value: Any) -> int:
        """Add a value and return its row; raises OverflowError where the interpreter should parse the JSON itself."""
        # Counted before its parts are added, so that the depth has a limit too. A row's number fits in one byte.
        self._begun += 1
        if self._begun > MAX_VALUES:
            raise OverflowError
        kind = value.__class__
        if kind is str:
            return self.add_text(value.encode())
        if kind is dict:
            if not value:
                return self._add(_EMPTY)
            return self._add(bytes_field(14, b"".join([self._member(*member) for member in value.items()])))
        if kind is list:
            parts = bytes([self.add(held) for held in value])
            return self._add(bytes_field(11, bytes_field(1, parts) if parts else b""))
        return self._add(_write_scalar(value))

    def add_text(self, content: bytes) -> int:
        """Add a text and return its row."""
        return self._add(bytes_field(8, content))

    def to_message(self) -> bytes:
        """The whole table."""
        return number_field(1, len(self._rows)) + b"".join(self._rows)

    def _member(self, key: str, value: Any) -> bytes:
        self._begun += 1
        name = len(self._rows)
        self._rows.append(_name_row(key) if len(key) <= MAX_KEPT_NAME else bytes_field(2, bytes_field(8, key.encode())))
        held = self.add(value)
        return _NAMED + bytes((name, 0x10, held)) if name else _NAMED_FIRST + bytes((held,))

    def _add(self, row: bytes) -> int:
        rows = self._rows
        rows.append(bytes_field(2, row))
        return len(rows) - 1


def _write_scalar(value: float | None) -> bytes:
    if value is None:
        return bytes_field(2, b"")
    if isinstance(value, bool):
        return number_field(4, value)
    if not -MAX_EXACT < value < MAX_EXACT:
        raise OverflowError
    if isinstance(value, int):
        # The sign is the lowest bit.
        return number_field(5, 2 * value if value >= 0 else -2 * value - 1)
    return b"\x39" + _DOUBLE.pack(value)


class Scripts(msgspec.Struct, frozen=True, kw_only=True):
    """A script in two forms: for a context that is given as values, and for one that is given as JSON."""

    parsed: bytes
    unparsed: bytes


def feed(code: bytes, context: bytes, scripts: Scripts) -> bytes:
    """Run a script on `code` and `context`."""
    values, script = Values(), scripts.parsed
    values.add_text(code)
    try:
        row = values.add(orjson.loads(context))
    except (OverflowError, ValueError):
        values, script = Values(), scripts.unparsed
        values.add_text(code)
        row = values.add_text(context)
    return frame(bytes_field(3, _script_and_names(script, row) + bytes_field(3, values.to_message()) + _FOLDER))


@lru_cache(256)
def _script_and_names(script: bytes, row: int) -> bytes:
    names = bytes_field(2, bytes_field(1, b"code")) + bytes_field(2, bytes_field(1, b"context") + number_field(2, row))
    return bytes_field(1, script) + names


_FOLDER = bytes_field(5, b"/")


def unwrap(message: bytes, *openings: bytes) -> bytes | None:
    """The innermost content of nested fields, each with its opening before its length; None where they differ."""
    place, size = 0, len(message)
    try:
        for opening in openings:
            if not message.startswith(opening, place):
                return None
            size, place = read_number(message, place + len(opening))
    except IndexError:
        return None
    content = message[place : place + size]
    return content if len(content) == size else None


def read_text(message: bytes) -> str | None:
    """The text that a script returned; None for any other message."""
    content = unwrap(message, b"\x32", b"\x12", b"\x08\x01\x12", b"\x42")
    return None if content is None else content.decode("utf-8", "replace")


def is_timeout(message: bytes) -> bool:
    """Whether the worker ended the call at its time limit; code cannot raise this, because a script catches all."""
    return unwrap(message, b"\x3a", b"\x0a", b"\x0a") == b"TimeoutError"


_wires: "weakref.WeakSet[Wire]" = weakref.WeakSet()


def _forget() -> None:
    """After a fork the workers belong to the parent; a pipe left open here would keep them alive after it ends."""
    for wire in list(_wires):
        wire.abandon()


os.register_at_fork(after_in_child=_forget)


REPLIES = 2
"""Of a worker, to the end of a session and to the start of the next."""


class Wire:
    """A worker process of the interpreter, which has one session at a time."""

    def __init__(self, launcher: str) -> None:
        theirs, self._given = os.pipe()
        self._said, reply = os.pipe()
        try:
            self._worker = subprocess.Popen(  # noqa: S603 - our own launcher
                [launcher, "subprocess"], stdin=theirs, stdout=reply, stderr=subprocess.DEVNULL, env={}
            )
        except OSError:
            self._close_pipes()
            raise
        finally:
            os.close(theirs)
            os.close(reply)
        # A worker that reads nothing must not hold up its host.
        os.set_blocking(self._given, False)
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(self._said, select.POLLIN)
        self._writable.register(self._given, select.POLLOUT)
        self._unread = bytearray()
        self._owed = 0
        """Replies that must be `DONE`, and come before that to the next request."""
        _wires.add(self)

    def ask(self, request: bytes, renewal: bytes, deadline: float) -> bytes:
        """Send a request, and return its reply; printed text is passed over.

        The renewal of the session is sent with it, so that the worker need not be woken for it. Its replies are read
        with that of the next request.

        Raises TimeoutError at the deadline, EOFError when the worker is gone, and OverflowError when it says too much;
        BrokenPipeError when the worker was gone before it had read the request.
        """
        self._send(request + renewal, deadline)
        printed = 0
        while True:
            message = self._receive(deadline)
            if self._owed:
                self._owed -= 1
                if message != DONE:
                    # It is out of step, so its next message may belong to another call.
                    raise EOFError
            elif message[:1] == PRINTED:
                printed += len(message)
                if printed > MAX_FRAME:
                    raise OverflowError
            else:
                self._owed += REPLIES
                return message

    def renew(self, renewal: bytes, deadline: float) -> None:
        """Begin a session with other limits; the replies are read with that of the next request."""
        self._send(renewal, deadline)
        self._owed += REPLIES

    def _send(self, request: bytes, deadline: float) -> None:
        left = memoryview(request)
        while left:
            try:
                left = left[os.write(self._given, left) :]
            except BlockingIOError:
                _wait(self._writable, deadline)

    def is_ready(self, session: bytes, deadline: float) -> bool:
        """Begin the first session, and return whether the worker understands."""
        try:
            self._send(session, deadline)
            return self._receive(deadline) == DONE
        except (EOFError, BrokenPipeError, TimeoutError, OverflowError):
            return False

    def kill(self) -> None:
        """End the process at once; from any thread."""
        self._worker.kill()

    def close(self) -> int:
        """End the process, wait for it, and return its exit code, which is its own where it was ending; once."""
        _wires.discard(self)
        self._worker.kill()
        self._close_pipes()
        return self._worker.wait()

    def abandon(self) -> None:
        """Close this process's ends of the pipes; the worker belongs to the parent."""
        self._close_pipes()
        # Only the parent can wait for it.
        self._worker.returncode = 0

    def _close_pipes(self) -> None:
        os.close(self._given)
        os.close(self._said)

    def _receive(self, deadline: float) -> bytes:
        unread = self._unread
        while True:
            if len(unread) >= _LENGTH.size:
                (size,) = _LENGTH.unpack_from(unread)
                if size > MAX_FRAME:
                    raise OverflowError
                end = _LENGTH.size + size
                if len(unread) >= end:
                    message = bytes(unread[_LENGTH.size : end])
                    del unread[:end]
                    return message
            _wait(self._readable, deadline)
            piece = os.read(self._said, PIECE)
            if not piece:
                raise EOFError
            unread += piece


def _wait(pipe: select.poll, deadline: float) -> None:
    # One millisecond more, because it is rounded down.
    if not pipe.poll(max(0.0, deadline - time.monotonic()) * 1000 + 1):
        raise TimeoutError
