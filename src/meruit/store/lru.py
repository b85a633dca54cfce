"""A bounded map that forgets what was not used for longest."""

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

# Any: stands for a value that is not there, of whichever type.
_ABSENT: Any = object()


class LruCache(Generic[K, V]):
    """The values used last, up to a limit; several threads may share one."""

    def __init__(
        self, max_entries: int, *, max_weight: float | None = None, weigh: Callable[[V], float] | None = None
    ) -> None:
        """Hold so many entries at most and, where a weight is given, so much of it in all."""
        self._max_entries, self._max_weight = max_entries, max_weight
        self._weigh = weigh
        self._weight: float = 0
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value under the key, which counts as used now; None when there is none."""
        with self._lock:
            found: V | None = self._use(key, None)
            return found

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value under the key, made first when there is none; of threads at once, each may make one."""
        with self._lock:
            found: V = self._use(key, _ABSENT)
        if found is _ABSENT:
            found = make()
            self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        """Keep a value; the ones not used for longest make room."""
        with self._lock:
            self._remove(key)
            self._entries[key] = value
            self._weight += 0 if self._weigh is None else self._weigh(value)
            while len(self._entries) > self._max_entries or self._is_too_heavy():
                self._remove(next(iter(self._entries)))

    def remove(self, key: K) -> None:
        """Forget the value under the key, if there is one."""
        with self._lock:
            self._remove(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._entries.clear()
            self._weight = 0

    def __len__(self) -> int:
        """How many values are held."""
        return len(self._entries)

    def _use(self, key: K, default: Any) -> Any:
        found = self._entries.get(key, default)
        if found is not default:
            self._entries.move_to_end(key)
        return found

    def _remove(self, key: K) -> None:
        removed = self._entries.pop(key, _ABSENT)
        if removed is not _ABSENT and self._weigh is not None:
            self._weight -= self._weigh(removed)

    def _is_too_heavy(self) -> bool:
        return self._max_weight is not None and self._weight > self._max_weight
