"""Results of costly metrics, kept for a while, so that equal work is measured once."""

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from meruit.store.lru import LruCache

V = TypeVar("V")

MAX_ENTRIES = 4_096


class ResultCache(Generic[V]):
    """A bounded map whose entries expire; tests pass a clock of their own."""

    def __init__(self, ttl_s: float, clock: Callable[[], float], max_entries: int = MAX_ENTRIES) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._entries = LruCache[Hashable, tuple[float, V]](max_entries)

    def get(self, key: Hashable) -> V | None:
        """The value put under the key, unless it has expired."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        expires, value = entry
        if self._clock() >= expires:
            self._entries.remove(key)
            return None
        return value

    def put(self, key: Hashable, value: V) -> None:
        """Keep a value; the one not used for longest makes room."""
        if self._ttl_s > 0:
            self._entries.put(key, (self._clock() + self._ttl_s, value))

    def __len__(self) -> int:
        """How many entries are held, expired ones included."""
        return len(self._entries)
