"""Items are selected, counted, and held against fields: what all checks of items have in common."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from meruit.checks.assertion import Change, Credit, Fields, Match, Rule, Selecting, Shown
from meruit.checks.scene import Reader, Scene, Seen, for_evidence, presentable, unread
from meruit.checks.unreadable import Unreadable
from meruit.model.evidence import Cause, Checked, Fault, Missing
from meruit.model.world import Encoding

NEAREST = 3
"""Candidates that are shown where nothing was selected."""
MAX_LISTED = 50
"""Ids in one piece of evidence."""


class FieldResult(NamedTuple):
    """One field, held against its rule."""

    path: str
    op: str
    expected: Any
    actual: Any
    why: str | None
    """Why it does not fit; None when it does."""
    weight: Fraction = Fraction(1)
    must: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As evidence."""
        found = {"path": self.path, "op": self.op, "expected": presentable(self.expected), "actual": self.actual}
        return found | {"passed": self.why is None} | ({"why": self.why} if self.why is not None else {})


More = Callable[[Any], Iterable[FieldResult]]
"""What a check asks of a document beyond its fields."""


class Judged(NamedTuple):
    """One item, held against all that was asked."""

    seen: Seen
    results: list[FieldResult]

    @property
    def score(self) -> Fraction:
        """The share of the weight that fits; 1 where nothing was asked but presence."""
        if not self.results:
            return Fraction(1)
        if any(one.must and one.why is not None for one in self.results):
            return Fraction(0)
        fitting = sum((one.weight for one in self.results if one.why is None), Fraction(0))
        return fitting / sum((one.weight for one in self.results), Fraction(0))


def decide(
    asked: Selecting, scene: Scene, reader: Reader, selector: Mapping[str, Any], more: More
) -> Checked | Missing:
    """Select, count, match and score."""
    trouble = unread(scene.source, scene.after, "after")
    changes = scene.changes()
    if trouble is None and asked.changed is not None:
        trouble = unread(scene.source, scene.before, "before")
    if trouble is not None:
        return trouble
    seen, unreadable = parsed(scene, reader, changes, deleted_too=asked.changed in (Change.DELETED, Change.ANY))
    unreadable = [one for one in unreadable if _changed(one, asked.changed)]
    if trouble := not_kept(scene.source, unreadable):
        return trouble
    garbled = [as_garbled(one) for one in unreadable if one.change is not Change.NONE or changes is None]
    fits = reader.narrow(selector)
    narrowed = [one for one in seen if fits(one.item, one.document)]
    chosen = [one for one in narrowed if _changed(one, asked.changed) and _holds(asked.where, one.document, reader)]
    evidence = grounds(scene, len(narrowed), garbled)
    if len(chosen) not in asked.count:
        scene.book.select(scene.source, [one.item.key for one in chosen])
        return _miscounted(asked, narrowed, chosen, evidence, reader)
    if garbled and asked.count.high is not None:
        # What nobody can read may be the one too many.
        evidence["why"] = f"{len(garbled):,} unreadable, so nobody can say that there are no more than were found"
        return Checked("0", evidence | {"selected": _ids(chosen)}, Fault.AGENT)
    if not chosen:
        evidence |= {"selected": [], "why": "none, as asked"}
        return Checked("0" if asked.fields else "1", evidence)
    return _matched(asked, scene, chosen, evidence, reader, more)


def grounds(scene: Scene, considered: int, garbled: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """What a finding rests on, as evidence; no fields yet."""
    evidence: dict[str, Any] = {"source": scene.source, "considered": considered, "fields": []}
    if scene.after.settled_after_ms is not None:
        evidence["settled_after_ms"] = scene.after.settled_after_ms
    if scene.after.reads:
        evidence["reads"] = [one.to_dict() for one in scene.after.reads[:MAX_LISTED]]
    if garbled:
        evidence["unreadable"] = list(garbled[:MAX_LISTED])
    return evidence


def parsed(
    scene: Scene, reader: Reader, changes: Mapping[str, Change] | None, *, deleted_too: bool
) -> tuple[list[Seen], list[Seen]]:
    """Every item in the order of its key: those that can be read, and those that cannot."""
    seen, unreadable = list[Seen](), list[Seen]()
    gone = [] if scene.before is None or not deleted_too else scene.before.items
    kept = {one.key for one in scene.after.items}
    for one in sorted([*scene.after.items, *(old for old in gone if old.key not in kept)], key=lambda item: item.key):
        change = Change.NONE if changes is None else changes[one.key]
        document = scene.book.document(scene.source, one, reader)
        (unreadable if isinstance(document, Unreadable) else seen).append(Seen(one, document, change))
    return seen, unreadable


def not_kept(source: str, unreadable: Sequence[Seen]) -> Missing | None:
    """Why nothing can be said where an item was too large for us to keep: that is nobody's failure."""
    left = [one.item.key for one in unreadable if one.item.encoding is Encoding.LEFT]
    if not left:
        return None
    why = f"{source}: {left[0]} is too large to read" + (f", and {len(left) - 1:,} more" if left[1:] else "")
    return Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM, {"too_large": left[:MAX_LISTED]})


def as_garbled(one: Seen) -> dict[str, Any]:
    """An item that cannot be read, as evidence."""
    fault = one.document
    return {"key": one.item.key, "why": fault.why, "offset": fault.offset, "head": fault.head}


def _changed(seen: Seen, asked: Change | None) -> bool:
    if asked is None:
        return seen.change is not Change.DELETED
    return seen.change is not Change.NONE if asked is Change.ANY else seen.change is asked


def _holds(where: Fields, document: Any, reader: Reader) -> bool:
    return all(rule.matcher.judge(reader.values(document, path)) is None for path, rule in where.items())


def _results(fields: Fields, document: Any, reader: Reader, shown: Shown) -> list[FieldResult]:
    return [field_result(path, rule, reader.values(document, path), shown) for path, rule in fields.items()]


def field_result(path: str, rule: Rule, values: tuple[Any, ...], shown: Shown = Shown.PLAIN) -> FieldResult:
    """Values held against a rule."""
    why = rule.matcher.judge(values)
    if why is not None and shown is Shown.HASH:
        why = "does not fit"
    actual = for_evidence(values, shown)
    return FieldResult(path, rule.matcher.op, rule.matcher.expected, actual, why, rule.weight, rule.must)


def _miscounted(
    asked: Selecting, narrowed: Sequence[Seen], chosen: Sequence[Seen], evidence: dict[str, Any], reader: Reader
) -> Checked:
    evidence |= {"selected": _ids(chosen), "why": f"{len(chosen):,} found; {asked.count} asked for"}
    if not chosen:
        evidence["nearest"] = _nearest(asked, narrowed, reader)
    return Checked("0", evidence, Fault.AGENT)


def _nearest(asked: Selecting, narrowed: Sequence[Seen], reader: Reader) -> list[dict[str, Any]]:
    """The candidates that came closest, with what keeps each from being it."""
    close = []
    for one in narrowed:
        results = _results({**asked.where, **asked.fields}, one.document, reader, asked.evidence)
        failing = [result.to_dict() for result in results if result.why is not None]
        right = _changed(one, asked.changed)
        close.append((not right, len(failing), one.item.key, {"change": str(one.change), "failing": failing[:5]}))
    close.sort(key=lambda found: found[:3])
    return [{"key": key, **found} for _, _, key, found in close[:NEAREST]]


def _matched(
    asked: Selecting, scene: Scene, chosen: list[Seen], evidence: dict[str, Any], reader: Reader, more: More
) -> Checked:
    judged = [
        Judged(one, [*more(one.document), *_results(asked.fields, one.document, reader, asked.evidence)])
        for one in (chosen[:1] if asked.match is Match.FIRST else chosen)
    ]
    best = max(judged, key=lambda one: one.score)  # The first of equals: they stand in the order of their keys.
    looked_at = judged if asked.match is Match.ALL else [best]
    score = sum((one.score for one in looked_at), Fraction(0)) / len(looked_at)
    if asked.credit is Credit.ALL and score < 1:
        score = Fraction(0)
    if asked.capture is not None:
        scene.book.names[asked.capture] = best.seen.document
    scene.book.select(scene.source, [one.seen.item.key for one in looked_at])
    evidence |= {
        "selected": _ids([one.seen for one in looked_at]),
        "fields": [result.to_dict() for one in looked_at[:MAX_LISTED] for result in one.results],
    }
    others = [one.seen for one in judged if one is not best]
    if others and asked.match is not Match.ALL:
        evidence["also_selected"] = _ids(others)
    return Checked(str(score), evidence, Fault.AGENT)


def _ids(several: Sequence[Seen]) -> list[dict[str, str]]:
    return [{"key": one.item.key, "version": one.item.version} for one in several[:MAX_LISTED]]
