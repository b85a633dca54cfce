"""An interface engine that takes HL7 v2 messages over MLLP, keeps every byte, and acknowledges.

A message is kept whether it is valid or not: an invalid message is also something that the agent did. Only the secret
of the playground is removed. Where others can reach the port, the first message of a connection has the secret in
MSH-8, the field that HL7 has for that.
"""

import asyncio
import contextlib
import hmac
import re
import socket
from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from meruit.checks.formats import hl7v2 as er7
from meruit.errors import MeruitError, PlaygroundFull, UnreadableContent
from meruit.model.environment import SourceKind
from meruit.playground.state import Clock, PlaygroundState
from meruit.web.fair_threads import CALLER

START, END = b"\x0b", b"\x1c\r"
"""The marks around a message."""
MAX_FRAME_BYTES = 1024 * 1024
"""The longest message; a connection that sends a longer one is closed."""
MAX_CONNECTIONS = 64
"""Connections at once; one more is closed."""
IDLE_S = 300.0
"""A connection that is silent for this time is closed."""
FIRST_S = 10.0
"""How long a connection may take to send the secret, where one is needed."""
SECURITY_FIELD = 8
"""The field of MSH that has the secret."""
SECURITY = f"MSH-{SECURITY_FIELD}"
READ_BYTES = 64 * 1024
EVENT = "hl7_outbound"
OURS = "MERUIT"
"""The name of the engine if a message names no receiver."""
NOT_KEPT = "000000"
"""The number in the acknowledgement of a message that was not kept."""
VERSION = "2.5.1"
REQUIRED = {9: "message type", 10: "message control id", 11: "processing id", 12: "version id"}
"""The fields of MSH that a message must have."""

_CONTROL = re.compile(r"[\x00-\x1f]")


class AckCode(StrEnum):
    """The code of an acknowledgement, as in MSA-1."""

    ACCEPTED = "AA"
    ERROR = "AE"
    """It is HL7, but a required field is missing."""
    REJECTED = "AR"
    """It is not HL7, or the playground is full."""


class MllpPiece(msgspec.Struct, frozen=True):
    """What came over a connection: one message, or other bytes."""

    content: bytes
    trouble: str | None = None
    """Why the bytes are not one whole frame."""


class Frames:
    """Splits a stream into messages, however it arrives."""

    def __init__(self, limit: int = MAX_FRAME_BYTES) -> None:
        self.limit = limit
        self.overrun = False
        """Whether something was too long; nothing is read after that."""
        self._buffer = bytearray()
        self._inside = False
        self._seen = 0
        """How much of the buffer has no mark."""

    def feed(self, data: bytes) -> Iterator[MllpPiece]:
        """Add bytes; yields what is complete, one after another, so that a reader can let others run between them."""
        if not self.overrun:
            self._buffer += data
        while not self.overrun and (found := self._step()) is not None:
            yield from found

    def end(self) -> list[MllpPiece]:
        """Return what is left at the end."""
        left, inside = bytes(self._buffer), self._inside
        self._buffer.clear()
        self._inside, self._seen = False, 0
        if inside:
            return [MllpPiece(left, "the connection ended inside a frame")]
        return _stray(left)

    def _step(self) -> list[MllpPiece] | None:
        """Take the next piece from the buffer; None if it needs more bytes."""
        start = self._buffer.find(START, self._seen)
        # Not beyond the next start: with many of them, the rest would be searched again for each.
        end = self._buffer.find(END, self._seen, start if start >= 0 else None) if self._inside else -1
        marks = [at for at in (start, end) if at >= 0]
        # The end mark has two bytes, of which the first may be the last here.
        open_end = len(self._buffer) - self._buffer.endswith(END[:1])
        if min(marks, default=open_end) > self.limit:
            self.overrun = True
            content = bytes(self._buffer[: self.limit])
            self._buffer.clear()
            return [MllpPiece(content, f"longer than {self.limit} bytes")]
        if not marks:
            self._seen = open_end
            return None
        at = min(marks)
        content = bytes(self._buffer[:at])
        if at == end:
            found = [MllpPiece(content)]
        elif self._inside:
            found = [MllpPiece(content, "a frame began before this one ended")]
        else:
            found = _stray(content)
        self._inside = at == start
        del self._buffer[: at + (len(START) if at == start else len(END))]
        self._seen = 0
        return found


def _stray(content: bytes) -> list[MllpPiece]:
    """Return bytes between frames; white space does not count."""
    return [MllpPiece(content, "outside any frame")] if content.strip() else []


class Hl7Receipt(msgspec.Struct, frozen=True):
    """The answer to a message."""

    code: AckCode
    trouble: str | None
    header: list[str]
    """Return the fields of the message's MSH, with MSH-1 in its place; empty if it has no MSH."""
    codec: str


def examine(piece: MllpPiece) -> Hl7Receipt:
    """Check whether the bytes are a message with its required fields."""
    try:
        message = er7.read(piece.content)
    except UnreadableContent as unreadable:
        return Hl7Receipt(code=AckCode.REJECTED, trouble=piece.trouble or str(unreadable), header=[], codec="utf-8")
    fields = message.texts["MSH"][0].split(message.notation.field)
    header = ["MSH", message.notation.field, *(_CONTROL.sub("", field) for field in fields[1:])]
    if piece.trouble is not None:
        return Hl7Receipt(code=AckCode.REJECTED, trouble=piece.trouble, header=header, codec=message.notation.codec)
    lacking = [f"MSH-{number} ({name})" for number, name in REQUIRED.items() if not _field(header, number)]
    if lacking:
        trouble = f"{' and '.join(lacking)} must not be empty"
        return Hl7Receipt(code=AckCode.ERROR, trouble=trouble, header=header, codec=message.notation.codec)
    return Hl7Receipt(code=AckCode.ACCEPTED, trouble=None, header=header, codec=message.notation.codec)


def acknowledgement(receipt: Hl7Receipt, *, control_id: str, at: str) -> bytes:
    """Build the ACK, in the sender's delimiters and character set, without a frame."""
    header = receipt.header or ["MSH", "|", "^~\\&"]
    mark, encoding = header[1], _field(header, 2)
    kind = _field(header, 9).split(encoding[0])
    event = kind[1] if len(kind) > 1 else ""
    fields = [
        *("MSH", encoding),
        *(_field(header, 5) or OURS, _field(header, 6), _field(header, 3), _field(header, 4)),
        *(at, "", encoding[0].join(["ACK", event, "ACK"]) if event else "ACK"),
        *(control_id, _field(header, 11) or "P", _field(header, 12) or VERSION),
        *([""] * 5 + [_field(header, 18)] if _field(header, 18) else []),
    ]
    parts = ["MSA", receipt.code.value, _field(header, 10)]
    segments = [mark.join(fields), mark.join(parts)]
    if receipt.trouble:
        segments[1] += mark + _strip_delimiters(receipt.trouble, mark, encoding)
        # 101 is a missing required field, 207 any other error of an application.
        number = "101" if receipt.code is AckCode.ERROR else "207"
        segments.append(mark.join(["ERR", "", "", number, "E"]))
    return "".join(f"{segment}\r" for segment in segments).encode(receipt.codec, "replace")


def _field(header: list[str], number: int) -> str:
    return header[number] if number < len(header) else ""


def _strip_delimiters(text: str, mark: str, encoding: str) -> str:
    """Return a text without delimiters; they are not worth an escape in an error."""
    return "".join(" " if character in mark + encoding or character < " " else character for character in text)


class MllpListener:
    """Listens for one playground until it is closed; unlike asyncio's own server it then ends its connections."""

    def __init__(
        self,
        state: PlaygroundState,
        clock: Clock,
        *,
        secret: str = "",
        needs_secret: bool = False,
        idle_s: float = IDLE_S,
        limit: int = MAX_FRAME_BYTES,
    ) -> None:
        """`secret` is removed from messages; with `needs_secret`, the first message of a connection must have it."""
        self.needs_secret = needs_secret
        self._state = state
        self._clock = clock
        self._secret = secret
        self._idle_s = idle_s
        self._limit = limit
        self._server: asyncio.Server | None = None
        self._caller = ""
        """Names this listener where callers share threads."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._unknown: dict[asyncio.Task[None], None] = {}
        """Connections that have not sent the secret yet, oldest first."""

    async def start(self, host: str, port: int) -> None:
        """Start to listen; raises OSError if the port is in use."""
        self._server = await asyncio.start_server(self._accept, host, port)
        self._caller = f"mllp:{self.port}"

    @property
    def sockets(self) -> Sequence[socket.socket]:
        """The sockets that it listens on."""
        return self._server.sockets if self._server is not None else ()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self.sockets[0].getsockname()[1])

    def close(self) -> None:
        """Stop listening, and end every connection."""
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until the last connection has ended."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._tasks) >= MAX_CONNECTIONS and not self._end_oldest_unknown():
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        # One that is cancelled before its first step never closes it.
        task.add_done_callback(lambda _: writer.close())
        if self.needs_secret:
            self._unknown[task] = None

    def _end_oldest_unknown(self) -> bool:
        """Make room: clients without the secret must not keep out those that have it."""
        oldest = next(iter(self._unknown), None)
        if oldest is None:
            return False
        oldest.cancel()
        del self._unknown[oldest]
        return True

    def _forget(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._unknown.pop(task, None)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A client that hangs up, stays silent or fills the disk ends its connection, never the listener.
        with contextlib.suppress(OSError, MeruitError):
            CALLER.set(self._caller)
            frames, is_known = Frames(self._limit), not self.needs_secret
            begun = asyncio.get_running_loop().time()
            try:
                while not frames.overrun:
                    left = self._idle_s if is_known else begun + FIRST_S - asyncio.get_running_loop().time()
                    async with asyncio.timeout(left):
                        data = await reader.read(READ_BYTES)
                    if not data:
                        break
                    for piece in frames.feed(data):
                        receipt = await asyncio.to_thread(examine, piece)
                        if not is_known and not self._has_secret(receipt):
                            await self._refuse(receipt, writer)
                            return
                        is_known = True
                        self._unknown.pop(asyncio.current_task(), None)  # type: ignore[arg-type] # it runs in one
                        await self._answer(piece, receipt, writer)
            finally:
                # Whole messages may be waiting behind the one that was being answered.
                for piece in (*frames.feed(b""), *frames.end()) if is_known else ():
                    await asyncio.to_thread(self._keep_unexamined, piece)

    def _keep_unexamined(self, piece: MllpPiece) -> None:
        self._keep(piece, examine(piece))

    def _has_secret(self, receipt: Hl7Receipt) -> bool:
        given = _field(receipt.header, SECURITY_FIELD).encode()
        return hmac.compare_digest(given, self._secret.encode()) and bool(self._secret)

    async def _refuse(self, receipt: Hl7Receipt, writer: asyncio.StreamWriter) -> None:
        """Answer a client without the secret; nothing of it is kept."""
        trouble = f"the first message of a connection must have the playground's secret in {SECURITY}"
        await self._send(msgspec.structs.replace(receipt, code=AckCode.REJECTED, trouble=trouble), NOT_KEPT, writer)

    async def _answer(self, piece: MllpPiece, receipt: Hl7Receipt, writer: asyncio.StreamWriter) -> None:
        key = NOT_KEPT
        try:
            key = await asyncio.to_thread(self._keep, piece, receipt)
        except PlaygroundFull as full:
            receipt = msgspec.structs.replace(receipt, code=AckCode.REJECTED, trouble=str(full))
        await self._send(receipt, key, writer)

    async def _send(self, receipt: Hl7Receipt, key: str, writer: asyncio.StreamWriter) -> None:
        at = self._clock().strftime("%Y%m%d%H%M%S%z")
        async with asyncio.timeout(self._idle_s):
            writer.write(START + acknowledgement(receipt, control_id=f"{OURS}{key}", at=at) + END)
            await writer.drain()

    def _keep(self, piece: MllpPiece, receipt: Hl7Receipt) -> str:
        facts = {"ack": receipt.code.value, **({"trouble": receipt.trouble} if receipt.trouble else {})}
        # The state is evidence, which others read.
        content = piece.content.replace(self._secret.encode(), b"") if self._secret else piece.content
        return self._state.append(SourceKind.HL7, content, facts=facts, event=EVENT, noted=facts).key


async def listen(  # noqa: PLR0913 - one for each limit
    state: PlaygroundState,
    host: str,
    port: int,
    clock: Clock,
    *,
    secret: str = "",
    needs_secret: bool = False,
    idle_s: float = IDLE_S,
    limit: int = MAX_FRAME_BYTES,
) -> MllpListener:
    """Take messages for a playground; port 0 is any free one."""
    listener = MllpListener(state, clock, secret=secret, needs_secret=needs_secret, idle_s=idle_s, limit=limit)
    await listener.start(host, port)
    return listener
