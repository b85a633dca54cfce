"""Results of costly metrics, kept for a while: equal work measured again costs a look-up."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")

MAX_ENTRIES = 4_096


class ResultCache(Generic[V]):
    """A bounded map whose entries expire; the clock is given, so that time can be played in tests."""

    def __init__(self, ttl_s: float, clock: Callable[[], float], max_entries: int = MAX_ENTRIES) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._max_entries = max_entries
        self._entries: OrderedDict[Hashable, tuple[float, V]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> V | None:
        """What was put under the key, if that is not too long ago."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            expires, value = entry
            if self._clock() >= expires:
                del self._entries[key]
                return None
            return value

    def put(self, key: Hashable, value: V) -> None:
        """Keep a value; the oldest makes room."""
        if self._ttl_s <= 0:
            return
        with self._lock:
            self._entries[key] = (self._clock() + self._ttl_s, value)
            self._entries.move_to_end(key)
            if len(self._entries) > self._max_entries:
                self._entries.popitem(last=False)

    def __len__(self) -> int:
        """How many entries are held, expired ones included."""
        return len(self._entries)
