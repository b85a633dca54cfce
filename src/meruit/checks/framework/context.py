"""What a check reads: one source before and after the run, the names it may use, and the results of other checks."""

import re
from collections.abc import Callable, Mapping
from copy import copy
from decimal import Decimal
from typing import Any, Protocol

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
"""Reads of a source that the evidence lists."""
BASE = "base"
"""The fact with the address at which a resource was read."""
_DIGEST = re.compile("sha256:[0-9a-f]{64}")
REDACTED_REASON = "does not fit"
"""The reason where the evidence must not show values."""


# Any, in this file: a document, or a part of one.
class ItemReader(Protocol):
    """Reads the items of one kind of source."""

    def parse(self, item: Item) -> Any:
        """Parse the document of an item; raises UnreadableContent."""

    def values(self, document: Any, path: str) -> tuple[Any, ...]:
        """Everything at a path."""

    def narrow(self, selector: Mapping[str, Any]) -> Callable[[Item, Any], bool]:
        """Compile a selector as authors write it; raises AuthorError for an invalid one."""


class PublicReader(ItemReader, Protocol):
    """A reader that `let` can use too."""

    def check_path(self, path: str, selector: Mapping[str, Any]) -> object:
        """Raise AuthorError for a path that cannot exist in the selected items."""


class WorkContext:
    """The state that the checks of one work share while they run in order."""

    def __init__(self, work: Work) -> None:
        self.before: EnvironmentState = environment_in(work.input)
        self.after: EnvironmentState = restore_state(self.before, environment_in(work.output))
        facts = work.input.get(FACTS_KEY)
        self.names: dict[str, Any] = dict(facts) if isinstance(facts, Mapping) else {}
        self.captured: set[str] = set()
        """Names of matched items; a value that they lack is the agent's fault."""
        self.uncaptured: dict[str, Checked | Missing | Skipped] = {}
        """Names that a check failed to capture, with its finding."""
        self.selected: dict[str, set[str]] = {}
        """By source, the keys of the items that a check expects."""
        self._documents: dict[tuple[int, str, str, str], tuple[ItemReader, Any]] = {}
        self._bases = {name: base_of(one.reads) for name, one in (self.before | self.after).items()}

    def attempt(self) -> "WorkContext":
        """A copy that shares what was parsed, and keeps what a check records to itself."""
        own = copy(self)
        own.names, own.selected = dict(self.names), {name: set(keys) for name, keys in self.selected.items()}
        return own

    def sources(self) -> list[str]:
        """Every source that was read, before or after."""
        return sorted({*self.before, *self.after})

    def first_source(self, kinds: frozenset[SourceKind]) -> str | None:
        """The first source of one of these kinds, by name."""
        snapshots = self.before | self.after
        return next((name for name in self.sources() if snapshots[name].kind in kinds), None)

    def select(self, source: str, keys: list[str]) -> None:
        """Record that a check expects these items, so that they are not reported as collateral."""
        self.selected.setdefault(source, set()).update(keys)

    def document(self, source: str, item: Item, reader: ItemReader) -> Any:
        """An item's document, parsed once per reader; an UnreadableContent where it cannot be parsed."""
        # Readers parse the same bytes differently. Keeping the reader alive keeps its id unique.
        key = (id(reader), source, item.key, item.version)
        if key not in self._documents:
            self._documents[key] = reader, _parse_or_fault(self._with_base_fact(source, item), reader)
        return self._documents[key][1]

    def _with_base_fact(self, source: str, item: Item) -> Item:
        """The item with its server's address among its facts, where its body names that address."""
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
    """The context of a work; use `work.derive(build_work_context)`."""
    return WorkContext(work)


class ParsedItem(msgspec.Struct, frozen=True):
    """One item, parsed."""

    item: Item
    document: Any
    change: ItemChange


class CheckContext(msgspec.Struct, frozen=True):
    """One source, before and after the run, for one check."""

    source: str
    before: Snapshot | None
    after: Snapshot
    names: Mapping[str, Any]
    work_context: WorkContext

    def filter_items(self, keep: Callable[[Item], bool]) -> "CheckContext":
        """The same context with fewer items, before any is parsed: items that no check needs may be unreadable."""
        before = self.before and msgspec.structs.replace(self.before, items=list(filter(keep, self.before.items)))
        after = msgspec.structs.replace(self.after, items=list(filter(keep, self.after.items)))
        return msgspec.structs.replace(self, before=before, after=after)

    def attempt(self) -> "CheckContext":
        """The same context for a result that does not count: nothing is selected or captured for later checks."""
        return msgspec.structs.replace(self, work_context=self.work_context.attempt())

    def changes(self) -> dict[str, ItemChange] | None:
        """How each item changed; None when the source was not read before the run, or not completely."""
        if self.before is None or self.before.trouble is not None:
            return None
        was, now = self.before.manifest(), self.after.manifest()
        changes = {
            key: ItemChange.NONE if was.get(key) == version else ItemChange.UPDATED for key, version in now.items()
        }
        changes |= dict.fromkeys(now.keys() - was.keys(), ItemChange.CREATED)
        return changes | dict.fromkeys(was.keys() - now.keys(), ItemChange.DELETED)


def find_source(work_context: WorkContext, name: str | None, kinds: frozenset[SourceKind]) -> str | Missing:
    """Find the source of an assertion."""
    snapshots = work_context.before | work_context.after
    if name is None:
        fitting = [one for one, snapshot in snapshots.items() if snapshot.kind in kinds]
        if len(fitting) != 1:
            many = f"{', '.join(sorted(fitting))}; choose one with from" if fitting else "none"
            return _author_fault(f"this check reads {_join_kinds(kinds)}, of which the task has {many}")
        name = fitting[0]
    if name not in snapshots:
        return _author_fault(f"unknown source {name!r}; the task has {', '.join(sorted(snapshots)) or 'none'}")
    if kinds and snapshots[name].kind not in kinds:
        return _author_fault(f"the source {name!r} is {snapshots[name].kind}; this check reads {_join_kinds(kinds)}")
    missing = None if name in work_context.after else missing_if_unread(name, None, "after")
    return missing or name


def missing_if_unread(source: str, snapshot: Snapshot | None, which: str) -> Missing | None:
    """The finding where a snapshot is absent or incomplete; None where it is complete."""
    if snapshot is not None and snapshot.trouble is None:
        return None
    why = f"it was not read {which} the run" if snapshot is None else str(snapshot.trouble)
    reads = [] if snapshot is None else [one.to_dict() for one in snapshot.reads[:MAX_READS]]
    return Missing(f"{source} could not be read: {why}", Cause.CHECK_ERROR, Fault.SYSTEM, {"reads": reads})


def _author_fault(why: str) -> Missing:
    return Missing(why, Cause.AUTHOR_ERROR, Fault.AUTHOR)


def _join_kinds(kinds: frozenset[SourceKind]) -> str:
    return " or ".join(sorted(kinds))


def for_evidence(values: tuple[Any, ...], shown: EvidenceDisplay = EvidenceDisplay.PLAIN) -> Any:
    """The values at a path as JSON: one value, a list of several, or null."""
    plain = [digest_of(value) if shown is EvidenceDisplay.HASH else sanitize_value(value) for value in values]
    return None if not plain else plain[0] if len(plain) == 1 else _truncate(plain)


def redact_value(actual: Any) -> Any:
    """Replace values by their digests; digests stay as they are."""
    if actual is None or (isinstance(actual, str) and _DIGEST.fullmatch(actual)):
        return actual
    if isinstance(actual, list) and all(isinstance(one, str) and _DIGEST.fullmatch(one) for one in actual):
        return actual
    return digest_of(actual)


def digest_of(value: Any) -> str:
    """The digest shown instead of a value: equal for equal values."""
    return f"sha256:{digest(_as_json(value))}"


def sanitize_value(value: Any) -> Any:
    """A value as JSON, with exact numbers and bounded size."""
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
    """Escape the characters that JSON cannot hold."""
    return str(value) if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _truncate(value: Any) -> Any:
    written = msgspec.json.encode(value)
    return value if len(written) <= MAX_ACTUAL else f"{written[:MAX_ACTUAL].decode('utf-8', 'ignore')}…"
