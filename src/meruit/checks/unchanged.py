"""Check `state-unchanged`: everything that no other check expects is unchanged."""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import msgspec
from pydantic import Field

from meruit.checks.framework.assertion import EvidenceDisplay, ItemChange, StateAssertion
from meruit.checks.framework.compile import reader_of, state_check
from meruit.checks.framework.context import CheckContext, WorkContext, for_evidence, missing_if_unread
from meruit.errors import AuthorError
from meruit.model.environment import Snapshot, SourceKind, as_work_part, make_item
from meruit.model.evidence import Checked, Fault, Missing
from meruit.model.work import Work
from meruit.registry import CheckExample

_CHANGE_NOTHING = frozenset({SourceKind.ANSWER, SourceKind.CDS})
"""An answer, and advice that was shown; what an accepted suggestion creates is in the FHIR store."""
MAX_SHOWN = 20
"""Items, and fields of one item, that are listed."""


class StateUnchanged(StateAssertion):
    """Which sources must be unchanged; all of them unless `from` names one."""

    allow: tuple[str, ...] = Field(
        default=(),
        alias="except",
        max_length=100,
        description="Keys that may change, with * and ? for any characters; `source:key` where several are read.",
    )


def _example(after: bytes, allowed: tuple[str, ...] = ()) -> CheckExample:
    was, now = (
        {"ehr": Snapshot(SourceKind.FHIR, [make_item("Patient/1", one)])} for one in (b'{"active": true}', after)
    )
    changed = after != b'{"active": true}' and not allowed
    asked = {"except": list(allowed)} if allowed else {}
    return CheckExample(
        assertion=asked, work=Work(input=as_work_part(was), output=as_work_part(now)), expect="0" if changed else "1"
    )


@state_check(
    "state-unchanged",
    reads=[kind for kind in SourceKind if kind not in _CHANGE_NOTHING],
    settings=StateUnchanged,
    last=True,
    several=True,
    examples=[
        _example(b'{"active": true}'),
        _example(b'{"active": false}'),
        _example(b'{"active": false}', ("Patient/*",)),
    ],
)
def state_unchanged(asked: StateUnchanged, context: CheckContext) -> Checked | Missing:
    """Everything that no other check of the task selected is unchanged."""
    work_context = context.work_context
    names = [asked.source] if asked.source is not None else _systems(work_context)
    for name in names:
        trouble = missing_if_unread(name, work_context.after.get(name), "after") or missing_if_unread(
            name, work_context.before.get(name), "before"
        )
        if trouble is not None:
            return trouble
    touched = [one for name in names for one in _collateral(name, work_context, asked.allow, alone=len(names) == 1)]
    evidence: dict[str, Any] = {
        "sources": names,
        "looked_for": {
            name: sorted(work_context.selected[name])[:MAX_SHOWN] for name in names if work_context.selected.get(name)
        },
        "fields": [one.to_dict() for one in touched[:MAX_SHOWN]],
    }
    if not touched:
        return Checked("1", evidence)
    evidence["why"] = f"{len(touched):,} items changed that no check expects"
    evidence["collateral"] = [one.in_detail(work_context, asked.evidence) for one in touched[:MAX_SHOWN]]
    return Checked("0", evidence, Fault.AGENT)


def _systems(work_context: WorkContext) -> list[str]:
    """The sources that are systems which an agent can change."""
    kinds = {name: one.kind for name, one in (work_context.before | work_context.after).items()}
    return [name for name in work_context.sources() if kinds[name] not in _CHANGE_NOTHING]


class CollateralChange(msgspec.Struct, frozen=True):
    """An item that changed unexpectedly."""

    source: str
    key: str
    change: ItemChange

    def to_dict(self) -> dict[str, Any]:
        """The change as a failed field."""
        path = f"{self.source}:{self.key}"
        unchanged = str(ItemChange.NONE)
        return {"path": path, "op": "changed", "expected": unchanged, "actual": str(self.change), "passed": False}

    def in_detail(self, work_context: WorkContext, shown: EvidenceDisplay) -> dict[str, Any]:
        """How it changed, field by field where it can be read."""
        found: dict[str, Any] = {"source": self.source, "key": self.key, "change": str(self.change)}
        found |= self._type_facts(work_context)
        if self.change is ItemChange.UPDATED:
            was, now = (
                self._document(world[self.source], work_context) for world in (work_context.before, work_context.after)
            )
            found["differences"] = _differences(was, now, shown)
        return found

    def _type_facts(self, work_context: WorkContext) -> dict[str, Any]:
        """Facts about its type, where the source has them: a message's type, a response's set, a turn's speaker."""
        sides = (world.get(self.source) for world in (work_context.after, work_context.before))
        one = next((one for side in sides if side is not None for one in side.items if one.key == self.key), None)
        return (
            {} if one is None else {name: one.facts[name] for name in ("type", "set", "speaker") if name in one.facts}
        )

    def _document(self, snapshot: Snapshot, work_context: WorkContext) -> Any:
        item = next(one for one in snapshot.items if one.key == self.key)
        try:
            return work_context.document(self.source, item, reader_of(snapshot.kind))
        except AuthorError:
            return None  # No installed check reads such items.


def _collateral(
    name: str, work_context: WorkContext, allow: tuple[str, ...], *, alone: bool
) -> Iterator[CollateralChange]:
    changes = (
        CheckContext(
            source=name,
            before=work_context.before[name],
            after=work_context.after[name],
            names={},
            work_context=work_context,
        ).changes()
        or {}
    )
    looked_for = work_context.selected.get(name, set())
    for key, change in sorted(changes.items()):
        if change is not ItemChange.NONE and key not in looked_for and not is_allowed(name, key, allow, alone=alone):
            yield CollateralChange(source=name, key=key, change=change)


def is_allowed(name: str, key: str, allow: tuple[str, ...], *, alone: bool) -> bool:
    """Match `source:key`; a bare key is enough with one source, and would allow too much with several."""
    # A bracket is literal: file names have them.
    globs = [pattern.replace("[", "[[]") for pattern in allow]
    qualified = f"{name}:{key}"
    return any(fnmatchcase(qualified, glob) or (alone and fnmatchcase(key, glob)) for glob in globs)


# Any: documents as they were parsed.
def _differences(was: Any, now: Any, shown: EvidenceDisplay) -> list[dict[str, Any]]:
    """The top-level fields that differ."""
    if not isinstance(was, Mapping) or not isinstance(now, Mapping):
        return []
    names = sorted(name for name in {*was, *now} - {"meta"} if _at(was, name) != _at(now, name))
    return [
        {"path": name, "before": for_evidence(_at(was, name), shown), "after": for_evidence(_at(now, name), shown)}
        for name in names[:MAX_SHOWN]
    ]


def _at(document: Mapping[str, Any], name: str) -> tuple[Any, ...]:
    return (document[name],) if name in document else ()
