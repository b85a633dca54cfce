"""What a check sees: one source before and after, the names it may use, and what other checks have found."""

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple, Protocol

import msgspec

from meruit.checks.assertion import Change, Shown
from meruit.checks.unreadable import Unreadable
from meruit.model.evidence import Cause, Checked, Fault, Missing, Skipped
from meruit.model.work import Work
from meruit.model.world import FACTS, Item, Snapshot, SourceKind, World, restored, world_of

MAX_ACTUAL = 2_000
"""Characters of one value in the evidence."""


class Reader(Protocol):
    """How the items of one kind of source are read."""

    def parse(self, item: Item) -> Any:
        """The document in an item; raises Unreadable."""

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path."""

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Which items a selector means, as authors write it; raises AuthorError for one that is none."""


class Book:
    """What the checks of one work share, in the order in which they ran."""

    def __init__(self, work: Work) -> None:
        self.before: World = world_of(work.input)
        self.after: World = restored(self.before, world_of(work.output))
        facts = work.input.get(FACTS)
        self.names: dict[str, Any] = dict(facts) if isinstance(facts, Mapping) else {}
        self.selected: dict[str, set[str]] = {}
        """By source, the keys of the items that some check has looked for."""
        self.uncaptured: dict[str, Checked | Missing | Skipped] = {}
        """Names that a check was to capture and did not, with what it found instead."""
        self._documents: dict[tuple[str, str, str, Reader], Any] = {}

    def select(self, source: str, keys: list[str]) -> None:
        """Remember that these were looked for, so that nobody calls them collateral."""
        self.selected.setdefault(source, set()).update(keys)

    def document(self, source: str, item: Item, reader: Reader) -> Any:
        """An item's document, parsed once; an Unreadable where it cannot be."""
        key = (source, item.key, item.version, reader)
        if key not in self._documents:
            try:
                self._documents[key] = reader.parse(item)
            except Unreadable as fault:
                self._documents[key] = fault
        return self._documents[key]


def open_book(work: Work) -> Book:
    """The book of a work; use `work.derive(open_book)`."""
    return Book(work)


class Seen(NamedTuple):
    """One item, parsed."""

    item: Item
    document: Any
    change: Change


class Scene(NamedTuple):
    """One source, as a check sees it."""

    source: str
    before: Snapshot | None
    after: Snapshot
    names: Mapping[str, Any]
    book: Book

    def only(self, keep: Callable[[Item], bool]) -> "Scene":
        """The same with fewer items, before any is parsed: what nobody asks for need not be readable."""
        before = self.before and msgspec.structs.replace(self.before, items=list(filter(keep, self.before.items)))
        after = msgspec.structs.replace(self.after, items=list(filter(keep, self.after.items)))
        return self._replace(before=before, after=after)

    def changes(self) -> dict[str, Change] | None:
        """What happened to each item; None when nobody looked before."""
        if self.before is None:
            return None
        was, now = self.before.manifest(), self.after.manifest()
        changes = {key: Change.NONE if was.get(key) == version else Change.UPDATED for key, version in now.items()}
        changes |= dict.fromkeys(now.keys() - was.keys(), Change.CREATED)
        return changes | dict.fromkeys(was.keys() - now.keys(), Change.DELETED)


def find_source(book: Book, name: str | None, kinds: frozenset[SourceKind]) -> str | Missing:
    """The source that an assertion means."""
    if name is not None:
        found = book.after.get(name)
        if found is None:
            known = ", ".join(sorted(book.after)) or "none"
            return _authors(f"no source is called {name!r}; the task has {known}")
        if kinds and found.kind not in kinds:
            return _authors(f"the source {name!r} is {found.kind}; this check reads {_listed(kinds)}")
        return name
    fitting = [one for one, snapshot in book.after.items() if snapshot.kind in kinds]
    if len(fitting) != 1:
        many = f"{', '.join(sorted(fitting))}; say which with from" if fitting else "none"
        return _authors(f"this check reads {_listed(kinds)}, of which the task has {many}")
    return fitting[0]


def unread(source: str, snapshot: Snapshot | None, which: str) -> Missing | None:
    """Why nothing can be concluded from a snapshot."""
    if snapshot is not None and snapshot.trouble is None:
        return None
    why = f"nobody read it {which} the run" if snapshot is None else str(snapshot.trouble)
    reads = [] if snapshot is None else [one.to_dict() for one in snapshot.reads[:20]]
    return Missing(f"{source} could not be read: {why}", Cause.CHECK_ERROR, Fault.SYSTEM, {"reads": reads})


def _authors(why: str) -> Missing:
    return Missing(why, Cause.AUTHOR_ERROR, Fault.AUTHOR)


def _listed(kinds: frozenset[SourceKind]) -> str:
    return " or ".join(sorted(kinds))


def for_evidence(values: tuple[Any, ...], shown: Shown = Shown.PLAIN) -> Any:
    """What was found at a path, as JSON: the value, a list of several, null for nothing."""
    plain = [presentable(value) for value in values]
    if shown is Shown.HASH:
        plain = [f"sha256:{sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()}" for value in plain]
    return None if not plain else plain[0] if len(plain) == 1 else plain


def presentable(value: Any) -> Any:
    """A value as JSON, its numbers as they are read and its size bounded."""
    match value:
        case bool() | None:
            return value
        case str():
            return value if len(value) <= MAX_ACTUAL else f"{value[:MAX_ACTUAL]}…"
        case int() if abs(value) < 2**53:
            return value
        case Decimal() if Decimal(repr(float(value))) == value:
            return float(value)
        case Mapping():
            return _bounded({str(key): presentable(one) for key, one in value.items()})
        case list() | tuple():
            return _bounded([presentable(one) for one in value])
        case _:
            return str(value)


def _bounded(value: Any) -> Any:
    written = msgspec.json.encode(value)
    return value if len(written) <= MAX_ACTUAL else f"{written[:MAX_ACTUAL].decode('utf-8', 'ignore')}…"
