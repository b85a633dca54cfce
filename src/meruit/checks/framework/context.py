"""What a check sees: one source before and after, the names it may use, and what other checks have found."""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, Protocol

import msgspec

from meruit.checks.fhir_types.reference import base_of
from meruit.checks.framework.assertion import EvidenceDisplay, ItemChange
from meruit.checks.values.decimals import json_number
from meruit.errors import UnreadableContent
from meruit.model.canonical import digest
from meruit.model.environment import (
    FACTS_KEY,
    EnvironmentState,
    Item,
    Snapshot,
    SourceKind,
    environment_in,
    restore_state,
)
from meruit.model.evidence import Cause, Checked, Fault, Missing, Skipped
from meruit.model.work import Work

MAX_ACTUAL = 2_000
"""Characters of one value in the evidence."""
MAX_READS = 50
"""Readings of a source that one piece of evidence repeats."""
BASE = "base"
"""The fact that says at which address a resource was read."""
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
REDACTED_REASON = "does not fit"
"""Every reason, where the evidence shows no values."""


# Any, in this file: a document, or a part of one.
class ItemReader(Protocol):
    """How the items of one kind of source are read."""

    def parse(self, item: Item) -> Any:
        """The document in an item; raises Unreadable."""

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path."""

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Which items a selector means, as authors write it; raises AuthorError for one that is none."""


class PublicReader(ItemReader, Protocol):
    """How the items of one kind of source are read by whoever wants a value out of them, as `let` does."""

    def check_path(self, path: str, selector: Mapping[str, Any]) -> object:
        """Whether there can be such a path in what a selector means; raises AuthorError where there cannot."""


class WorkContext:
    """What the checks of one work share, in the order in which they ran."""

    def __init__(self, work: Work) -> None:
        self.before: EnvironmentState = environment_in(work.input)
        self.after: EnvironmentState = restore_state(self.before, environment_in(work.output))
        facts = work.input.get(FACTS_KEY)
        self.names: dict[str, Any] = dict(facts) if isinstance(facts, Mapping) else {}
        self.captured: set[str] = set()
        """Names that stand for what a check matched, so that the agent answers for what they lack."""
        self.uncaptured: dict[str, Checked | Missing | Skipped] = {}
        """Names that a check was to capture and did not, with what it found instead."""
        self.selected: dict[str, set[str]] = {}
        """By source, the keys of the items that some check has looked for."""
        self._documents: dict[tuple[int, str, str, str], tuple[ItemReader, Any]] = {}
        self._bases = {name: base_of(one.reads) for name, one in (self.before | self.after).items()}

    def sources(self) -> list[str]:
        """Every source that was read, before or after."""
        return sorted({*self.before, *self.after})

    def select(self, source: str, keys: list[str]) -> None:
        """Remember that these were looked for, so that nobody calls them collateral."""
        self.selected.setdefault(source, set()).update(keys)

    def document(self, source: str, item: Item, reader: ItemReader) -> Any:
        """An item's document, parsed once a reader; an Unreadable where it cannot be."""
        # Readers differ in what they make of the same bytes; kept here, none gives its id to another.
        key = (id(reader), source, item.key, item.version)
        if key not in self._documents:
            self._documents[key] = reader, _parse_or_fault(self._with_base_fact(source, item), reader)
        return self._documents[key][1]

    def _with_base_fact(self, source: str, item: Item) -> Item:
        """The item with the address of its server among its facts, where it names that."""
        base = self._bases.get(source)
        if base is None or item.body is None or base not in item.body:
            return item
        return msgspec.structs.replace(item, facts={**item.facts, BASE: base})


def _parse_or_fault(item: Item, reader: ItemReader) -> Any:
    try:
        return reader.parse(item)
    except UnreadableContent as fault:
        return fault


def build_work_context(work: Work) -> WorkContext:
    """The book of a work; use `work.derive(open_book)`."""
    return WorkContext(work)


class ParsedItem(NamedTuple):
    """One item, parsed."""

    item: Item
    document: Any
    change: ItemChange


class CheckContext(NamedTuple):
    """One source, as a check sees it."""

    source: str
    before: Snapshot | None
    after: Snapshot
    names: Mapping[str, Any]
    work_context: WorkContext

    def filter_items(self, keep: Callable[[Item], bool]) -> "CheckContext":
        """The same with fewer items, before any is parsed: what nobody asks for need not be readable."""
        before = self.before and msgspec.structs.replace(self.before, items=list(filter(keep, self.before.items)))
        after = msgspec.structs.replace(self.after, items=list(filter(keep, self.after.items)))
        return self._replace(before=before, after=after)

    def changes(self) -> dict[str, ItemChange] | None:
        """What happened to each item; None when nobody looked before, or not at all of it."""
        if self.before is None or self.before.trouble is not None:
            return None
        was, now = self.before.manifest(), self.after.manifest()
        changes = {
            key: ItemChange.NONE if was.get(key) == version else ItemChange.UPDATED for key, version in now.items()
        }
        changes |= dict.fromkeys(now.keys() - was.keys(), ItemChange.CREATED)
        return changes | dict.fromkeys(was.keys() - now.keys(), ItemChange.DELETED)


def find_source(book: WorkContext, name: str | None, kinds: frozenset[SourceKind]) -> str | Missing:
    """The source that an assertion means."""
    worlds = book.before | book.after
    if name is None:
        fitting = [one for one, snapshot in worlds.items() if snapshot.kind in kinds]
        if len(fitting) != 1:
            many = f"{', '.join(sorted(fitting))}; say which with from" if fitting else "none"
            return _author_fault(f"this check reads {_join_kinds(kinds)}, of which the task has {many}")
        name = fitting[0]
    if name not in worlds:
        return _author_fault(f"no source is called {name!r}; the task has {', '.join(sorted(worlds)) or 'none'}")
    if kinds and worlds[name].kind not in kinds:
        return _author_fault(f"the source {name!r} is {worlds[name].kind}; this check reads {_join_kinds(kinds)}")
    missing = None if name in book.after else missing_if_unread(name, None, "after")
    return missing or name


def missing_if_unread(source: str, snapshot: Snapshot | None, which: str) -> Missing | None:
    """Why nothing can be concluded from a snapshot."""
    if snapshot is not None and snapshot.trouble is None:
        return None
    why = f"nobody read it {which} the run" if snapshot is None else str(snapshot.trouble)
    reads = [] if snapshot is None else [one.to_dict() for one in snapshot.reads[:MAX_READS]]
    return Missing(f"{source} could not be read: {why}", Cause.CHECK_ERROR, Fault.SYSTEM, {"reads": reads})


def _author_fault(why: str) -> Missing:
    return Missing(why, Cause.AUTHOR_ERROR, Fault.AUTHOR)


def _join_kinds(kinds: frozenset[SourceKind]) -> str:
    return " or ".join(sorted(kinds))


def for_evidence(values: tuple[Any, ...], shown: EvidenceDisplay = EvidenceDisplay.PLAIN) -> Any:
    """What was found at a path, as JSON: the value, a list of several, null for nothing."""
    plain = [digest_of(value) if shown is EvidenceDisplay.HASH else sanitize_value(value) for value in values]
    return None if not plain else plain[0] if len(plain) == 1 else _truncate(plain)


def redact_value(actual: Any) -> Any:
    """What was to be shown of some values, as digests; what is hidden already stays as it is."""
    if actual is None or (isinstance(actual, str) and _DIGEST.fullmatch(actual)):
        return actual
    if isinstance(actual, list) and all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in actual):
        return actual
    return digest_of(actual)


def digest_of(value: Any) -> str:
    """What stands for a value that must not be shown: equal for equal values."""
    return f"sha256:{digest(_as_json(value))}"


def sanitize_value(value: Any) -> Any:
    """A value as JSON, its numbers as they are read and its size bounded."""
    match value:
        case Mapping():
            return _truncate({_text(str(key)): sanitize_value(one) for key, one in value.items()})
        case list() | tuple():
            return _truncate([sanitize_value(one) for one in value])
        case _:
            plain = _as_json(value)
            return f"{plain[:MAX_ACTUAL]}…" if isinstance(plain, str) and len(plain) > MAX_ACTUAL else plain


def _as_json(value: Any) -> Any:
    """The whole value as JSON."""
    match value:
        case bool() | None:
            return value
        case str():
            return _text(value)
        case int() | float() | Decimal():
            return json_number(value)
        case Mapping():
            return {_text(str(key)): _as_json(one) for key, one in value.items()}
        case list() | tuple():
            return [_as_json(one) for one in value]
        case _:
            return _text(str(value))


def _text(value: str) -> str:
    """The text, with what no JSON can hold spelled out."""
    return str(value) if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _truncate(value: Any) -> Any:
    written = msgspec.json.encode(value)
    return value if len(written) <= MAX_ACTUAL else f"{written[:MAX_ACTUAL].decode('utf-8', 'ignore')}…"
