"""Messages between the workers of one service, over sockets that they inherit from their parent.

A message that finds a full socket is dropped: each is a hint that saves waiting for the next regular read.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from enum import StrEnum

MAX_MESSAGE = 60_000
"""Bytes of one message; a longer one is not sent."""
MAX_AT_ONCE = 64
"""Most messages handled before other work of the event loop."""
ANSWER_S = 2.0
"""How long a sibling may take to send its metrics."""
MAX_ANSWER = 64 * 1024 * 1024
_CHUNK = 65_536


class MessageTopic(StrEnum):
    """What a message is about."""

    EVENTS = "events"
    """New events: the number of the newest."""
    KEYS = "keys"
    """Keys or sessions changed: forget those in memory."""
    CHECKS = "checks"
    """What the checks of the first worker found."""
    METRICS = "metrics"
    """A question: write your metrics into the pipe that comes with it."""
    TOAST = "toast"
    """A message that waits for the next page of a browser, or was shown."""


class Siblings:
    """The other workers, as one worker sees them. Belongs to one event loop once it listens."""

    def __init__(self, index: int, inbox: socket.socket, outboxes: Sequence[socket.socket]) -> None:
        """`outboxes` are the sockets of all workers, by their number; the own one is not used."""
        self.index = index
        self._inbox = inbox
        self._outboxes = outboxes
        self._handlers: dict[str, Callable[[bytes], None]] = {}
        self._answer_metrics: Callable[[], bytes] = bytes
        self._answers: set[asyncio.Task[None]] = set()
        for one in (inbox, *outboxes):
            one.setblocking(False)  # noqa: FBT003 - the method takes no keyword

    @property
    def count(self) -> int:
        """How many workers there are."""
        return len(self._outboxes)

    def on(self, topic: MessageTopic, handler: Callable[[bytes], None]) -> None:
        """Call the handler with each message on a topic."""
        self._handlers[topic] = handler

    def on_metrics(self, answer: Callable[[], bytes]) -> None:
        """Answer with this text when a sibling asks for the metrics."""
        self._answer_metrics = answer

    def send(self, topic: MessageTopic, content: bytes = b"") -> None:
        """Send a message to all siblings; may be called from any thread."""
        message = topic.encode() + b" " + content
        if len(message) > MAX_MESSAGE:
            return
        for outbox in self._others():
            with contextlib.suppress(OSError):
                outbox.send(message)

    async def ask_metrics(self) -> dict[int, bytes | None]:
        """The metrics of each sibling by its number; None of one that does not answer in time."""
        numbers = [number for number in range(self.count) if number != self.index]
        answers = await asyncio.gather(*(self._ask(number) for number in numbers))
        return dict(zip(numbers, answers, strict=True))

    def listen(self) -> None:
        """Handle messages from now on, in the running loop."""
        asyncio.get_running_loop().add_reader(self._inbox, self._read)

    async def close(self) -> None:
        """Handle no more messages."""
        asyncio.get_running_loop().remove_reader(self._inbox)
        for task in self._answers:
            task.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    def close_sockets(self) -> None:
        """Close the sockets, once nothing is handled any more."""
        for one in (self._inbox, *self._outboxes):
            one.close()

    def _others(self) -> list[socket.socket]:
        return [one for number, one in enumerate(self._outboxes) if number != self.index]

    def _read(self) -> None:
        for _ in range(MAX_AT_ONCE):
            try:
                message, descriptors, _, _ = socket.recv_fds(self._inbox, MAX_MESSAGE, 1)
            except OSError:
                return
            topic, _, content = message.partition(b" ")
            if topic == MessageTopic.METRICS.encode() and descriptors:
                task = asyncio.create_task(_write_all(descriptors.pop(), self._answer_metrics()))
                self._answers.add(task)
                task.add_done_callback(self._answers.discard)
            for descriptor in descriptors:
                os.close(descriptor)
            handler = self._handlers.get(topic.decode("ascii", "replace"))
            if handler is not None:
                handler(content)

    async def _ask(self, number: int) -> bytes | None:
        reading, writing = os.pipe()
        try:
            socket.send_fds(self._outboxes[number], [MessageTopic.METRICS.encode()], [writing])
        except OSError:
            os.close(reading)
            return None
        finally:
            os.close(writing)
        loop = asyncio.get_running_loop()
        stream = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(reading, "rb", 0)
        )
        try:
            # A worker that died before it read the question closes the pipe without an answer.
            return await asyncio.wait_for(_read_all(stream), ANSWER_S) or None
        except (TimeoutError, OSError):
            return None
        finally:
            transport.close()


async def _read_all(stream: asyncio.StreamReader) -> bytes:
    parts = list[bytes]()
    size = 0
    while (part := await stream.read(_CHUNK)) and size < MAX_ANSWER:
        parts.append(part)
        size += len(part)
    return b"".join(parts)


async def _write_all(descriptor: int, content: bytes) -> None:
    """Write into a pipe, whose reader may go away, and close it."""
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(descriptor, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        writer.write(content)
        await asyncio.wait_for(writer.drain(), ANSWER_S)
    except (TimeoutError, OSError):
        transport.abort()
    finally:
        writer.close()
