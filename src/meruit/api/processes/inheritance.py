"""What a worker inherits from its parent: sockets and a file, named by their descriptors."""

import contextlib
import os
import socket
import threading
from collections.abc import Callable

import msgspec

from meruit.api.processes.limits import SharedLimits
from meruit.api.processes.siblings import Siblings
from meruit.errors import ServerFailed
from meruit.model.decoding import decode_json

PREPARED, READY, GO = b"p", b"r", b"g"
"""What a worker reports: it can serve, it serves; and what the parent answers to the first."""


class Inheritance(msgspec.Struct, frozen=True):
    """The descriptors of a worker, as the parent passes them on the command line."""

    index: int
    """The number of the worker, from 0."""
    listener: int
    """The bound port, which all workers share."""
    control: int
    """To the parent; it ends when the parent ends."""
    inbox: int
    outboxes: list[int]
    """To every worker, by its number."""
    limits: int

    def to_text(self) -> str:
        """The form that `take_over` reads."""
        return msgspec.json.encode(self).decode()

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them."""
        return (self.listener, self.control, self.inbox, *self.outboxes, self.limits)


class WorkerProcess:
    """One worker of a service: its number, and what it shares with the others."""

    def __init__(
        self, *, index: int, listener: socket.socket, control: socket.socket, siblings: Siblings, limits: SharedLimits
    ) -> None:
        self.index = index
        self.listener = listener
        self.siblings = siblings
        self.limits = limits
        self._control = control

    @classmethod
    def take_over(cls, text: str) -> "WorkerProcess":
        """Open what the parent passed on; raises ServerFailed for a text that it did not write."""
        try:
            found = decode_json(text, Inheritance)
            for one in found.descriptors:
                # Programs that this worker starts inherit none of it.
                os.set_inheritable(one, False)  # noqa: FBT003 - the function takes no keyword
            return cls(
                index=found.index,
                listener=socket.socket(fileno=found.listener),
                control=socket.socket(fileno=found.control),
                siblings=Siblings(
                    found.index,
                    socket.socket(fileno=found.inbox),
                    [socket.socket(fileno=one) for one in found.outboxes],
                ),
                limits=SharedLimits(found.limits),
            )
        except (msgspec.MsgspecError, OSError, ValueError) as problem:
            raise ServerFailed(
                f"this worker was not started by `meruit serve --workers` ({problem}); start that command instead"
            ) from None

    @property
    def is_first(self) -> bool:
        """Whether this worker does what only one of them does, such as delivering events."""
        return self.index == 0

    def wait_for_start(self) -> None:
        """Report that this worker can serve, and wait until all can; raises ServerFailed if the parent ended."""
        try:
            self._control.sendall(PREPARED)
            received = self._control.recv(1)
        except OSError:
            received = b""
        if received != GO:
            raise ServerFailed("the parent of this worker ended; start `meruit serve --workers` again")

    def report_ready(self) -> None:
        """Report that this worker serves."""
        with contextlib.suppress(OSError):
            self._control.sendall(READY)

    def close(self) -> None:
        """Close all that was inherited."""
        self.siblings.close_sockets()
        self.limits.close()
        self.listener.close()
        self._control.close()

    def watch_parent(self, ended: Callable[[], None]) -> None:
        """Call `ended`, from a thread, when the parent ends; a worker without a parent would hold the port."""

        def watch() -> None:
            with contextlib.suppress(OSError):
                while self._control.recv(1):
                    pass
            ended()

        threading.Thread(target=watch, daemon=True, name="meruit-parent").start()
