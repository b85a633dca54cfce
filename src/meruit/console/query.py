"""The query of a list's URL: filters, order, columns and cursor, so that what a reader sees can be shared."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlencode

from meruit.api.auth import ApiConnection

CURSORS = ("before", "after")
"""Parameters that say where a page begins; another filter or order begins again."""
MAX_VALUE = 500
MAX_VALUES = 100
MAX_CURSOR = 4_000
"""A cursor holds the value that the list is sorted by."""


@dataclass(frozen=True, slots=True)
class Query:
    """A path and what is asked of it; every change is a new one, and writes itself as an address."""

    path: str
    asked: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, request: ApiConnection) -> Self:
        """What a browser asks; values that are too long or too many are left out."""
        pairs = request.query_params.multi_items()
        valid = [
            (name, value)
            for name, value in pairs
            if 0 < len(value) <= (MAX_CURSOR if name in CURSORS else MAX_VALUE) and value.isprintable()
        ]
        return cls(request.scope["path"], tuple(valid[:MAX_VALUES]))

    def __str__(self) -> str:
        return f"{self.path}?{urlencode(self.asked)}" if self.asked else self.path

    def get(self, name: str, otherwise: str = "") -> str:
        """The last value of a parameter."""
        return next((value for one, value in reversed(self.asked) if one == name), otherwise)

    def all(self, name: str) -> tuple[str, ...]:
        """All values of a parameter."""
        return tuple(value for one, value in self.asked if one == name)

    def has(self, name: str, value: str) -> bool:
        """Whether the parameter has this value."""
        return (name, value) in self.asked

    def number(self, name: str) -> int | None:
        """A parameter that is a whole number; None where it is not given or is not one."""
        text = self.get(name)
        return int(text) if text.isdecimal() and text.isascii() and len(text) < 16 else None

    def choose(self, name: str, value: str) -> Self:
        """With this value alone, from the first page on; without any where the value is empty."""
        rest = self._without(name, *CURSORS)
        return type(self)(self.path, (*rest, (name, value)) if value else rest)

    def toggle(self, name: str, value: str) -> Self:
        """With this value added, or removed where it is there."""
        if self.has(name, value):
            left = tuple(pair for pair in self.asked if pair != (name, value) and pair[0] not in CURSORS)
            return type(self)(self.path, left)
        return type(self)(self.path, (*self._without(*CURSORS), (name, value)))

    def turn(self, name: str, cursor: object) -> Self:
        """The page that begins at a cursor."""
        return type(self)(self.path, (*self._without(*CURSORS), (name, str(cursor))))

    def keep(self, *names: str) -> Self:
        """With these parameters only: all filters cleared."""
        return type(self)(self.path, tuple(pair for pair in self.asked if pair[0] in names))

    def at(self, path: str) -> Self:
        """The same at another path."""
        return type(self)(path, self.asked)

    def _without(self, *names: str) -> tuple[tuple[str, str], ...]:
        return tuple(pair for pair in self.asked if pair[0] not in names)


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of a filter."""

    value: str
    word: str
    count: int | None = None
    """How many rows it has; None where that is not counted."""
    tone: str = ""
    """The mark before the word."""


@dataclass(frozen=True, slots=True)
class Filter:
    """A row of chips: one parameter of the query and its values."""

    name: str
    word: str
    choices: Sequence[Choice]
    several: bool = False
    """Whether several values may be chosen; else one replaces another."""

    @classmethod
    def of_counts(cls, name: str, word: str, counts: Mapping[str, int], *, several: bool = False) -> Self:
        """A filter whose values are counted, the most frequent first."""
        ordered = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        return cls(name, word, [Choice(value, value, count) for value, count in ordered if value], several)
