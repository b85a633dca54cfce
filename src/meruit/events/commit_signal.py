"""News: wakes whoever waits once something new was committed, by us or by another process."""

import asyncio
from contextlib import suppress

from meruit.store.recorder import CommitNotice, Recorder


class CommitSignal:
    """What is newest, and who is to be told of it."""

    def __init__(self, recorder: Recorder, gather_s: float) -> None:
        self.newest = 0
        self.nudge = asyncio.Event()
        """Cleared by the one who looks around, before looking."""
        self.next_commit = asyncio.Event()
        """Set with the next news, and another one put in its place; to be taken before reading."""
        self._recorder = recorder
        self._gather_s = gather_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._notification: asyncio.TimerHandle | None = None
        self._last_notify_at = 0.0

    def listen(self) -> asyncio.AbstractEventLoop:
        """Hear of commits from now on, in the running loop."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._last_notify_at = self._loop.time() - self._gather_s
            self._recorder.listen(self._on_commit)
        return self._loop

    def _on_commit(self, done: CommitNotice) -> None:
        """Called by the recorder's thread."""
        if self._loop is not None and done.events > self.newest:
            # A loop that is closed has nobody left to tell.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.advance_to, done.events)

    def advance_to(self, newest: int) -> None:
        """Wake everybody if it is new."""
        if newest > self.newest:
            self.newest = newest
            self.wake()

    def wake(self) -> None:
        """Soon, but not more often than every `gather_s`."""
        if self._notification is None:
            loop = asyncio.get_running_loop()
            self._notification = loop.call_at(
                max(self._last_notify_at + self._gather_s, loop.time()), self._notify, loop
            )

    def _notify(self, loop: asyncio.AbstractEventLoop) -> None:
        self._notification = None
        self._last_notify_at = loop.time()
        told, self.next_commit = self.next_commit, asyncio.Event()
        told.set()
        self.nudge.set()


async def first_of(*events: asyncio.Event, within_s: float) -> None:
    """Wait until one of them is set, or the time is up."""
    waits = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
