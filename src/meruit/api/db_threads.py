"""Threads for database reads, kept apart from slower work, and threads for that work; callers share both."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from meruit.store.database import MAX_READERS
from meruit.web.fair_threads import FairThreads

T = TypeVar("T")

MAX_THREADS = 32
"""Threads for slow work: the code of criteria, large bodies, figures, checkpoints."""
MOST_OF_ONE_KEY = 4
"""Threads of each kind that one key may use at once. With its exports, it leaves readers of the database to others."""

# Not asyncio's own threads: those run the code of criteria and wait for checkpoints.
_READERS = FairThreads(MAX_READERS, MOST_OF_ONE_KEY, "meruit-reader")


class SharedReads:
    """Reads that answer all who ask the same at one time; of one event loop."""

    def __init__(self) -> None:
        # Any: each question has an answer of its own type.
        self._running: dict[bytes, asyncio.Task[Any]] = {}

    async def ask(self, name: bytes, query: Callable[..., T], *arguments: Any) -> T:
        """The answer to a question, by its name: read now, or begun by another caller who waits for it."""
        running = self._running.get(name)
        if running is None:
            running = self._running[name] = asyncio.create_task(run_in_reader_thread(query, *arguments))
            running.add_done_callback(partial(self._forget, name))
        # A caller that leaves must not take the answer from the others.
        answer: T = await asyncio.shield(running)
        return answer

    def _forget(self, name: bytes, done: "asyncio.Task[Any]") -> None:
        del self._running[name]
        if not done.cancelled():
            # All who asked may have left: then the error is of no interest.
            done.exception()


async def run_in_reader_thread(query: Callable[..., T], *arguments: Any) -> T:
    """Run a read on one of the reader threads."""
    return await asyncio.get_running_loop().run_in_executor(_READERS, query, *arguments)


def share_slow_threads() -> None:
    """Have the running loop share the threads of `asyncio.to_thread` among callers."""
    asyncio.get_running_loop().set_default_executor(FairThreads(MAX_THREADS, MOST_OF_ONE_KEY, "meruit-slow"))
