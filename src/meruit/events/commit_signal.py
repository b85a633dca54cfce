"""The commit signal: wakes readers when this or another process has committed new events."""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from meruit.store.recorder import CommitNotice, Recorder

if TYPE_CHECKING:
    from collections.abc import Callable


class CommitSignal:
    """The number of the newest event, and the asyncio events that wake readers."""

    def __init__(self, recorder: Recorder, gather_s: float) -> None:
        self.newest = 0
        self.nudge = asyncio.Event()
        """Wakes the dispatcher, which clears it before it reads."""
        self.next_commit = asyncio.Event()
        """Set at the next commit, and then replaced. A reader takes it before it reads."""
        self._recorder = recorder
        self._gather_s = gather_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notification: asyncio.TimerHandle | None = None
        self._last_notify_at = 0.0
        self._committed_here = 0
        self._announced = 0
        self.announce: Callable[[int], None] = lambda _newest: None
        """Called with the newest event that this process committed, as often as readers are woken."""

    def listen(self) -> asyncio.AbstractEventLoop:
        """Receive commits from now on, in the running loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._last_notify_at = self._loop.time() - self._gather_s
            self._recorder.listen(self._on_commit)
        return self._loop

    def _on_commit(self, done: CommitNotice) -> None:
        """Handle a commit; called by the thread of the recorder."""
        if self._loop is not None and done.events > self.newest:
            # A closed loop runs no callbacks.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._advance_here, done.events)

    def _advance_here(self, newest: int) -> None:
        self._committed_here = max(newest, self._committed_here)
        self.advance_to(newest)

    def advance_to(self, newest: int) -> None:
        """Wake all readers if this event is new."""
        if newest > self.newest:
            self.newest = newest
            self.wake()

    def wake(self) -> None:
        """Wake all readers soon, at most once every `gather_s`."""
        if self._notification is None:
            loop = asyncio.get_running_loop()
            self._notification = loop.call_at(
                max(self._last_notify_at + self._gather_s, loop.time()), self._notify, loop
            )

    def _notify(self, loop: asyncio.AbstractEventLoop) -> None:
        self._notification = None
        self._last_notify_at = loop.time()
        current, self.next_commit = self.next_commit, asyncio.Event()
        current.set()
        self.nudge.set()
        if self._committed_here > self._announced:
            self._announced = self._committed_here
            self.announce(self._announced)


async def first_of(*events: asyncio.Event, within_s: float) -> None:
    """Wait until one of the events is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
