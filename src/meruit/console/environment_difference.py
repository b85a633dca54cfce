"""What changed in each system between two snapshots: items that are new, gone or different, with the difference."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from meruit.console.shape import TextPiece, line_difference
from meruit.model.environment import Encoding, EnvironmentState, Item, Snapshot

MAX_ITEMS = 100
"""Changed items of one system that a page shows."""
MAX_LINES = 200
"""Lines of one item's difference."""
CONTEXT = 2
"""Unchanged lines that are shown beside changed ones."""


@dataclass(frozen=True, slots=True)
class ItemDifference:
    """One item that is not the same before and after."""

    key: str
    kind: Literal["added", "removed", "changed"]
    pieces: Sequence[TextPiece]
    left_out: int = 0
    """Lines that the page does not show."""
    why_empty: str = ""
    """Why a difference cannot be shown."""


@dataclass(frozen=True, slots=True)
class SystemChange:
    """What changed in one system."""

    name: str
    kind: str
    items: tuple[ItemDifference, ...]
    same: int
    left_out: int = 0
    trouble: str = ""

    @property
    def change_count(self) -> int:
        """How many items changed."""
        return len(self.items) + self.left_out


def compare_environments(before: EnvironmentState, after: EnvironmentState) -> list[SystemChange]:
    """What changed, by system; systems that changed come first."""
    found = [_compare(name, before.get(name), after.get(name)) for name in {**before, **after}]
    return sorted(found, key=lambda one: (one.change_count == 0, one.name))


def _compare(name: str, before: Snapshot | None, after: Snapshot | None) -> SystemChange:
    old = {} if before is None else {item.key: item for item in before.items}
    new = {} if after is None else {item.key: item for item in after.items}
    changed = [key for key in {**old, **new} if _identity(old.get(key)) != _identity(new.get(key))]
    items = tuple(_change(key, old.get(key), new.get(key)) for key in changed[:MAX_ITEMS])
    some = after or before
    trouble = (after.trouble if after is not None else None) or (before.trouble if before is not None else None) or ""
    kind = "" if some is None else str(some.kind)
    same = len({**old, **new}) - len(changed)
    return SystemChange(
        name=name, kind=kind, items=items, same=same, left_out=max(0, len(changed) - MAX_ITEMS), trouble=trouble
    )


def _identity(item: Item | None) -> tuple[str, str | None] | None:
    return None if item is None else (item.version, item.body)


def _change(key: str, old: Item | None, new: Item | None) -> ItemDifference:
    kind: Literal["added", "removed", "changed"] = "added" if old is None else "removed" if new is None else "changed"
    hidden = [one for one in (old, new) if one is not None and one.encoding not in (Encoding.TEXT, Encoding.BEFORE)]
    if hidden:
        why = "not text" if hidden[0].encoding is Encoding.BASE64 else "its content was too large to keep"
        return ItemDifference(key, kind, (), why_empty=why)
    pieces = line_difference(_lines(old), _lines(new))
    shown = _near_changes(pieces)
    return ItemDifference(key, kind, shown[:MAX_LINES], max(0, len(shown) - MAX_LINES))


def _lines(item: Item | None) -> str:
    """The content by lines; JSON is indented and sorted, so that one field is one line in its place."""
    if item is None or not item.body:
        return ""
    try:
        return json.dumps(json.loads(item.body), indent=1, ensure_ascii=False, sort_keys=True)
    except ValueError:
        # HL7 and X12 end segments in other ways.
        return item.body.replace("\r\n", "\n").replace("\r", "\n").replace("~", "~\n")


def _near_changes(pieces: Sequence[TextPiece]) -> list[TextPiece]:
    """The changed lines, and a few before and after each."""
    places = [place for place, piece in enumerate(pieces) if piece.kind != "same"]
    near_lines = {near for place in places for near in range(place - CONTEXT, place + CONTEXT + 1)}
    return [piece for place, piece in enumerate(pieces) if place in near_lines]
