"""Nothing else was touched: whatever no other check looked for stands as it stood."""

from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from pydantic import Field

from meruit.checks.assertion import Change, StateAssertion
from meruit.checks.running import reader_of, state_check
from meruit.checks.scene import Book, Scene, presentable, unread
from meruit.checks.unreadable import Unreadable
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.model.world import Item, Snapshot, SourceKind, in_work, item
from meruit.registry import CheckExample

MAX_SHOWN = 20
"""Items, and fields of one item, that are listed."""


class StateUnchanged(StateAssertion):
    """Which sources must stand as they stood; all of them unless `from` names one."""

    allow: tuple[str, ...] = Field(
        default=(), alias="except", max_length=100, description="Keys that may change, with * and ? for any characters."
    )


def _example(after: bytes, allowed: tuple[str, ...] = ()) -> CheckExample:
    was, now = ({"ehr": Snapshot(SourceKind.FHIR, [item("Patient/1", one)])} for one in (b'{"active": true}', after))
    changed = after != b'{"active": true}' and not allowed
    asked = {"except": list(allowed)} if allowed else {}
    return CheckExample(asked, Work(input=in_work(was), output=in_work(now)), "0" if changed else "1")


@state_check(
    "state-unchanged",
    reads=list(SourceKind),
    settings=StateUnchanged,
    last=True,
    several=True,
    examples=[
        _example(b'{"active": true}'),
        _example(b'{"active": false}'),
        _example(b'{"active": false}', ("Patient/*",)),
    ],
)
def state_unchanged(asked: StateUnchanged, scene: Scene) -> Checked | Missing:
    """Everything that no other check of the task selected is as it was before."""
    book = scene.book
    names = [asked.source] if asked.source is not None else sorted(book.after)
    for name in names:
        trouble = unread(name, book.after.get(name), "after") or unread(name, book.before.get(name), "before")
        if trouble is not None:
            return trouble
    collateral = [found for name in names for found in _collateral(name, book, asked.allow)]
    evidence: dict[str, Any] = {
        "sources": names,
        "looked_for": {name: sorted(book.selected[name])[:MAX_SHOWN] for name in names if book.selected.get(name)},
        "fields": [
            {
                "path": f"{name}:{key}",
                "op": "unchanged",
                "expected": "unchanged",
                "actual": str(change),
                "passed": False,
            }
            for name, key, change in collateral[:MAX_SHOWN]
        ],
    }
    if not collateral:
        return Checked("1", evidence)
    evidence["why"] = f"{len(collateral):,} changed that no check looks for"
    evidence["collateral"] = [_shown(name, key, change, book) for name, key, change in collateral[:MAX_SHOWN]]
    return Checked("0", evidence, Fault.AGENT)


def _collateral(name: str, book: Book, allow: tuple[str, ...]) -> Iterator[tuple[str, str, Change]]:
    changes = Scene(name, book.before[name], book.after[name], {}, book).changes() or {}
    looked_for = book.selected.get(name, set())
    for key in sorted(changes):
        if changes[key] is Change.NONE or key in looked_for:
            continue
        if not any(fnmatchcase(key, pattern) for pattern in allow):
            yield name, key, changes[key]


def _shown(name: str, key: str, change: Change, book: Book) -> dict[str, Any]:
    """What happened to an item, field by field where it can be read."""
    was, now = ({one.key: one for one in world[name].items}.get(key) for world in (book.before, book.after))
    found: dict[str, Any] = {"source": name, "key": key, "change": str(change)}
    if change is Change.UPDATED and was is not None and now is not None:
        found["differences"] = _differences(_document(was, book, name), _document(now, book, name))
    return found


def _document(one: Item, book: Book, name: str) -> Any:
    document = book.document(name, one, reader_of(book.after[name].kind))
    return None if isinstance(document, Unreadable) else document


def _differences(was: Any, now: Any) -> list[dict[str, Any]]:
    """The top-level fields that differ."""
    if not isinstance(was, dict) or not isinstance(now, dict):
        return []
    names = [name for name in sorted({*was, *now}) if was.get(name) != now.get(name) and name != "meta"]
    return [
        {"path": name, "before": presentable(was.get(name)), "after": presentable(now.get(name))}
        for name in names[:MAX_SHOWN]
    ]
