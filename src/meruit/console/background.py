"""Figures that take longer than a page may: computed beside the request, by few threads, each of them once.

A page asks for figures by a key that names all they depend on. What is ready within PATIENCE_S is shown at once. Else
the page says that it is computing, how far that is, and asks for itself again until the figures are there.
Figures of records that still change have a key without their state. They are shown for a while if they took long:
else a page about a busy service would compute for ever.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar, cast

from meruit.errors import ApiProblem
from meruit.store.lru import LruCache

PATIENCE_S = 0.3
"""How long a page waits before it says that it is computing."""
THREADS = 2
"""Figures that are computed at the same time."""
MAX_RUNNING = 64
"""Figures that may be computed or wait for it."""
KEPT_S = 5.0
"""Changing figures that took longer than a page waits are shown for so long,"""
KEPT_TIMES = 3.0
"""or for so many times as long as they took."""
MAX_READY = 64
"""Figures that are kept; those of large comparisons may hold 50,000 cases."""
T = TypeVar("T")


@dataclass(slots=True)
class Progress:
    """How far a computation is; it counts, and pages read."""

    total: int = 0
    """Cases that it reads; 0 where that is not known."""
    done: int = 0
    started: float = 0.0

    def advance(self, cases: int) -> None:
        """Note that so many more cases were read."""
        self.done = min(self.done + cases, self.total)

    def reach(self, done: int, total: int) -> None:
        """Note how far it is, where the total is only known now."""
        self.done, self.total = done, total


@dataclass(frozen=True, slots=True)
class Computing:
    """What a page shows in place of figures that are not ready."""

    done: int
    total: int
    seconds: int


@dataclass(frozen=True, slots=True)
class _Ready:
    # Any, here and below: figures of many kinds.
    value: Any
    at: float
    took_s: float


class BackgroundFigures:
    """The figures that are being computed, and those that are ready."""

    def __init__(self, patience_s: float = PATIENCE_S, clock: Callable[[], float] = monotonic) -> None:
        self.patience_s, self._clock = patience_s, clock
        self._lock = threading.Lock()
        self._room = threading.Semaphore(THREADS)
        self._running: dict[Hashable, tuple[Future[Any], Progress]] = {}
        self._ready = LruCache[Hashable, _Ready](MAX_READY)

    async def ask(
        self, key: Hashable, compute: Callable[[Progress], T], total: int = 0, *, changing: bool = False
    ) -> T | Computing:
        """The figures, or how far they are; raises what computing them raised, and then begins again when asked.

        With `changing`, the key does not name all that the figures depend on.
        """
        return await self._wait(key, compute, total, changing, lambda found: asyncio.wait_for(found, self.patience_s))

    def drop(self, key: Hashable) -> None:
        """Forget figures that are ready, so that who asks next begins again."""
        self._ready.remove(key)

    async def wait_for(
        self, key: Hashable, compute: Callable[[Progress], T], total: int = 0, *, changing: bool = False
    ) -> T:
        """The figures, however long they take: for a file."""
        return cast("T", await self._wait(key, compute, total, changing, lambda found: found))

    async def _wait(
        self,
        key: Hashable,
        compute: Callable[[Progress], T],
        total: int,
        changing: bool,  # noqa: FBT001 - of this class alone
        wait: Callable[[Awaitable[Any]], Awaitable[Any]],
    ) -> T | Computing:
        found = self._ready.get(key)
        if found is not None and not (changing and self._is_old(found)):
            return cast("T", found.value)
        future, progress = self._begin(key, compute, total)
        try:
            # Shielded: who goes away does not end what others wait for.
            return cast("T", await wait(asyncio.shield(asyncio.wrap_future(future))))
        except TimeoutError:
            return Computing(progress.done, progress.total, int(self._clock() - progress.started))

    def _is_old(self, found: "_Ready") -> bool:
        kept = max(KEPT_S, KEPT_TIMES * found.took_s) if found.took_s > self.patience_s else 0.0
        return self._clock() - found.at >= kept

    def _begin(self, key: Hashable, compute: Callable[[Progress], T], total: int) -> tuple[Future[Any], Progress]:
        with self._lock:
            known = self._running.get(key)
            if known is not None:
                return known
            if len(self._running) >= MAX_RUNNING:
                raise ApiProblem(503, "busy", "the service computes many other figures; try again in a minute")
            made = self._running[key] = (Future(), Progress(total, started=self._clock()))
        # A daemon: a service that ends does not wait for figures.
        threading.Thread(target=self._run, args=(key, compute, *made), daemon=True, name="figures").start()
        return made

    def _run(self, key: Hashable, compute: Callable[[Progress], Any], future: Future[Any], progress: Progress) -> None:
        try:
            with self._room:
                value = compute(progress)
            now = self._clock()
            self._ready.put(key, _Ready(value, now, now - progress.started))
        except BaseException as problem:  # noqa: BLE001 - the page that asks raises it
            self._forget(key)
            future.set_exception(problem)
        else:
            self._forget(key)
            future.set_result(value)

    def _forget(self, key: Hashable) -> None:
        with self._lock:
            del self._running[key]
