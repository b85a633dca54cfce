"""Threads that callers share: each uses a few at once, and what more it asks for waits until one of those is free."""

from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any, NamedTuple, ParamSpec, TypeVar

CALLER: ContextVar[str] = ContextVar("caller", default="")
"""For whom the running task works; empty for the service itself, which has no limit."""

_ENDED = "the threads have ended, and take no more work"

P = ParamSpec("P")
T = TypeVar("T")


class _Work(NamedTuple):
    # Any: work of any result.
    future: Future[Any]
    do: Callable[[], Any]

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.do()
        except BaseException as problem:  # noqa: BLE001 - raised where the result is awaited
            self.future.set_exception(problem)
        else:
            self.future.set_result(result)

    def follow(self, queued: Future[None]) -> None:
        """Cancel the work, if its place in the queue of the threads was."""
        if queued.cancelled():
            self.future.cancel()


class FairThreads(ThreadPoolExecutor):
    """A pool of threads of which one caller never has all. Its work waits for its own work, not for that of others."""

    def __init__(self, threads: int, most_of_one: int, name: str) -> None:
        """`most_of_one` is how many threads one caller may use at once."""
        super().__init__(threads, thread_name_prefix=name)
        self._most = most_of_one
        self._lock = Lock()
        self._running = Counter[str]()
        self._waiting: dict[str, deque[_Work]] = {}
        self._has_ended = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run a function for the caller of the running task as soon as the caller has a free thread."""
        caller = CALLER.get()
        if not caller:
            return super().submit(fn, *args, **kwargs)
        work = _Work(Future(), partial(fn, *args, **kwargs))
        with self._lock:
            if self._running[caller] >= self._most:
                if self._has_ended:
                    raise RuntimeError(_ENDED)
                self._waiting.setdefault(caller, deque()).append(work)
                return work.future
            self._running[caller] += 1
        self._queue(caller, work)
        return work.future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as its base
        """End the threads; work that waits for its caller is cancelled."""
        with self._lock:
            self._has_ended = True
            left = [work for several in self._waiting.values() for work in several]
            self._waiting.clear()
        for work in left:
            work.future.cancel()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def _queue(self, caller: str, work: _Work) -> None:
        """Have the next free thread run the work."""
        super().submit(self._run, caller, work).add_done_callback(work.follow)

    def _run(self, caller: str, work: _Work) -> None:
        try:
            work.run()
        finally:
            self._begin_next(caller)

    def _begin_next(self, caller: str) -> None:
        """Queue the caller's next work behind that of others, or free its thread."""
        with self._lock:
            waiting = self._waiting.get(caller)
            if not waiting:
                self._running[caller] -= 1
                if not self._running[caller]:
                    del self._running[caller]
                return
            work = waiting.popleft()
            if not waiting:
                del self._waiting[caller]
        try:
            self._queue(caller, work)
        except RuntimeError:
            # The threads are ending, and nothing else would begin what waits behind this work.
            with self._lock:
                left = [work, *self._waiting.pop(caller, ())]
            for one in left:
                one.future.cancel()
