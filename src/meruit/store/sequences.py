"""Remember how far the numbered entries of each contract, run or key have come.

Entries of one contract are found by columns of their rows, which a database writer can change: an entry whose columns
are changed is still in the log, but its contract looks as it did before. So a process remembers the newest number of
each sequence that it wrote, saw added or checked; entries only ever grow in number.
"""

from collections.abc import Mapping

from meruit.store.lru import LruCache

MAX_SEQUENCES = 65_536
"""Sequences that one process remembers, those that were used last."""


class SequenceMemory:
    """The newest number of each sequence that this process knows."""

    def __init__(self, most: int = MAX_SEQUENCES) -> None:
        self._newest = LruCache[tuple[str, str], int](most)

    def add(self, tenant: str, name: str, number: int) -> None:
        """Remember that the log has an entry of this number."""
        key = tenant, name
        if number > (self._newest.get(key) or 0):
            self._newest.put(key, number)

    def add_all(self, newest: Mapping[tuple[str, str], int]) -> None:
        """The same for several sequences, by tenant and name."""
        for (tenant, name), number in newest.items():
            self.add(tenant, name, number)

    def newest(self, tenant: str, name: str) -> int:
        """The newest number that is known; 0 where none is."""
        return self._newest.get((tenant, name)) or 0
