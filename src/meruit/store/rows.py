"""Rows that a transaction has read or written, by key, so that callers of one group see each other's changes."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from meruit.store.lru import LruCache

T = TypeVar("T")
RowKey = tuple[Any, ...]
"""A `Rows` and the parts of the key; Any, because tuples of mixed types have no shorter name."""


class RowCache:
    """The values of every `Rows` of one transaction."""

    def __init__(self, lasting: LruCache[RowKey, Any]) -> None:
        self.lasting = lasting
        """From earlier transactions: only of kinds that never change."""
        self.written: dict[RowKey, Any] = {}
        self.loaded: dict[RowKey, Any] = {}
        """Read ahead for the whole group; None for a row that does not exist."""
        self._undo: list[tuple[RowKey, Any]] = []

    def put(self, key: RowKey, value: Any) -> None:
        """Remember a value, and what it replaces."""
        self._undo.append((key, self.written.get(key)))
        self.written[key] = value

    def mark(self) -> int:
        """The point that `roll_back_to` returns to."""
        return len(self._undo)

    def roll_back_to(self, mark: int) -> None:
        """Restore what the values after the mark replaced."""
        while len(self._undo) > mark:
            key, before = self._undo.pop()
            self.written[key] = before

    def lasting_values(self) -> Iterator[tuple[RowKey, Any]]:
        """What later transactions may rely on once this one is durable."""
        return ((key, value) for key, value in self.written.items() if key[0].lasting and value is not None)


class _Transaction(Protocol):
    @property
    def row_cache(self) -> RowCache: ...


class Rows(Generic[T]):
    """One kind of row, declared once: `_RUNS = Rows[AgentRunRow]("agent_run")`.

    The values belong to a transaction: `_RUNS.get(writing, tenant, run_id)`. Another process may change a row between
    two transactions, so that only kinds that never change are `lasting`.
    """

    def __init__(self, name: str, *, lasting: bool = False) -> None:
        self.name, self.lasting = name, lasting

    def __repr__(self) -> str:
        """The name of the kind."""
        return f"Rows({self.name!r})"

    def key(self, *parts: str | int) -> RowKey:
        """The key of one row."""
        return (self, *parts)

    def get(self, writing: _Transaction, *parts: str | int) -> T | None:
        """The row as written by this transaction, else as loaded; None when neither knows it."""
        cache, key = writing.row_cache, (self, *parts)
        found: T | None = cache.written.get(key)
        if found is None:
            found = cache.loaded.get(key)
        if found is None and self.lasting:
            found = cache.lasting.get(key)
        return found

    def put(self, writing: _Transaction, value: T, *parts: str | int) -> None:
        """Remember a row that this transaction writes."""
        writing.row_cache.put((self, *parts), value)

    def load(self, writing: _Transaction, found: Mapping[RowKey, T], wanted: Iterable[RowKey]) -> None:
        """Remember rows that were read ahead; those wanted and not found do not exist."""
        writing.row_cache.loaded |= {key: found.get(key) for key in wanted}

    def is_known(self, writing: _Transaction, *parts: str | int) -> bool:
        """Whether a read would add nothing: the row was written or loaded, or is known not to exist."""
        cache, key = writing.row_cache, (self, *parts)
        return key in cache.loaded or cache.written.get(key) is not None

    def rows_to_write(self, writing: _Transaction) -> list[T]:
        """The rows of this kind that the transaction writes."""
        return [value for key, value in writing.row_cache.written.items() if key[0] is self and value is not None]

    def has(self, writing: _Transaction, *parts: str | int) -> bool:
        """Whether this transaction has written the row."""
        return writing.row_cache.written.get((self, *parts)) is not None

    def any(self, writing: _Transaction) -> bool:
        """Whether it has written any of this kind."""
        written = writing.row_cache.written
        return any(key[0] is self and value is not None for key, value in written.items())


class RowMarks(Rows[bool]):
    """One kind of mark on rows: something that this transaction has done to them."""

    def add(self, writing: _Transaction, *parts: str | int) -> None:
        """Mark a row."""
        writing.row_cache.put((self, *parts), value=True)
