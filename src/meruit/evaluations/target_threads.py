"""Threads for plain functions that make outputs: as many as are asked for at once, and none that holds up the end."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from meruit.errors import TargetFailed

MAX_HUNG = 256
"""Calls that nothing waits for any more, because they took too long, and that still go on."""

# Any: a user's function takes an object of JSON and returns anything.
_Call = Callable[[], Any]
_Work = tuple[_Call, "asyncio.Future[Any]", asyncio.AbstractEventLoop]


class TargetThreads:
    """Threads that each run one call at a time; a call that never returns costs its thread and nothing else.

    The threads of asyncio are fewer, and its end waits for all of them.
    """

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[_Work | None]] = []
        self._hung = 0

    async def call(self, function: _Call) -> Any:
        """What the function returns; raises what it raises, and TargetFailed where too many calls hang."""
        if self._hung >= MAX_HUNG:
            raise TargetFailed(f"{MAX_HUNG} calls that took too long have not ended", retry=False)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        thread = self._idle.pop() if self._idle else self._start()
        thread.put((function, answer, loop))
        try:
            return await answer
        except asyncio.CancelledError:
            self._hung += 1
            raise

    def close(self) -> None:
        """End the threads that are idle; the others end with their call."""
        for thread in self._idle:
            thread.put(None)
        self._idle.clear()

    def _start(self) -> "SimpleQueue[_Work | None]":
        waiting: SimpleQueue[_Work | None] = SimpleQueue()
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._work, waiting), name="target", daemon=True).start()
        return waiting

    def _work(self, waiting: "SimpleQueue[_Work | None]") -> None:
        while (work := waiting.get()) is not None:
            function, answer, loop = work
            made: Any = None
            problem: BaseException | None = None
            try:
                made = function()
            except BaseException as raised:  # noqa: BLE001 - it is raised where the answer is awaited
                problem = raised
            # The loop may have ended before this call.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._end, waiting, answer, made, problem)
                continue
            return

    def _end(
        self,
        thread: "SimpleQueue[_Work | None]",
        answer: "asyncio.Future[Any]",
        made: Any,
        problem: BaseException | None,
    ) -> None:
        self._idle.append(thread)
        if answer.cancelled():
            self._hung -= 1
        elif problem is None:
            answer.set_result(made)
        else:
            answer.set_exception(problem)
