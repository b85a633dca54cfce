"""Selects items, counts them and compares their fields: the common part of all checks of items."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec

from meruit.checks.framework.assertion import (
    Credit,
    EvidenceDisplay,
    FieldRule,
    ItemChange,
    MatchMode,
    PathRule,
    SelectionAssertion,
)
from meruit.checks.framework.context import (
    MAX_READS,
    REDACTED_REASON,
    CheckContext,
    ItemReader,
    ParsedItem,
    for_evidence,
    missing_if_unread,
    redact_value,
    sanitize_value,
)
from meruit.checks.values.confusables import is_plain, unmask_value
from meruit.errors import UnreadableContent
from meruit.model.environment import Encoding, Item
from meruit.model.evidence import Cause, Checked, Fault, Missing

NEAREST = 3
"""Candidates that are shown where nothing was selected."""
MAX_FAILING = 5
"""Failing fields of each of them that are shown."""
MAX_LISTED = 500
"""Ids, and results of fields, in one piece of evidence."""


# Any, in this file: a document, or a part of one.
class FieldResult(msgspec.Struct, frozen=True):
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
        found = {"path": self.path, "op": self.op, "expected": sanitize_value(self.expected), "actual": self.actual}
        return found | {"passed": self.why is None} | ({"why": str(self.why)} if self.why is not None else {})

    def redact(self, shown: EvidenceDisplay) -> "FieldResult":
        """The same, with nothing in it that must not be shown."""
        if shown is EvidenceDisplay.PLAIN:
            return self
        return msgspec.structs.replace(
            self, actual=redact_value(self.actual), why=None if self.why is None else REDACTED_REASON
        )


More = Callable[[Any], Iterable[FieldResult]]
"""What a check asks of a document beyond its fields."""


class ItemResult(msgspec.Struct, frozen=True):
    """One item, held against all that was asked."""

    seen: ParsedItem
    results: list[FieldResult]
    is_of_another: bool = False
    """Whether its identity is wrong."""

    @property
    def score(self) -> Fraction:
        """The share of the weight that fits; 1 where there are no fields, 0 for an item of another."""
        if self.is_of_another:
            return Fraction(0)
        if not self.results:
            return Fraction(1)
        if any(one.must and one.why is not None for one in self.results):
            return Fraction(0)
        fitting = sum((one.weight for one in self.results if one.why is None), Fraction(0))
        return fitting / sum((one.weight for one in self.results), Fraction(0))

    @property
    def rank(self) -> tuple[Fraction, int]:
        """Sort key of the best item: the score, then the number of fields that fit."""
        return self.score, sum(one.why is None for one in self.results)


class ItemSelection(msgspec.Struct, frozen=True):
    """The items of a source, sorted by how they fit an assertion."""

    narrowed: list[ParsedItem]
    """Items that the selector accepts."""
    chosen: list[ParsedItem]
    """Those of them that also fulfil `where` and `changed`."""
    unknown: list[ParsedItem]
    """Items that cannot be read, not by the agent's fault, so that it is unknown whether they are selected."""
    garbled: list[ParsedItem]
    """Items that the agent left unreadable."""
    lookalikes: list[ParsedItem]
    """Items that would be selected without look-alike characters, where they could be too many."""
    strangers: list[ParsedItem]
    """Items that would be selected, were they not of another patient, member or key."""


def decide(
    asked: SelectionAssertion,
    context: CheckContext,
    reader: ItemReader,
    selector: Mapping[str, Any],
    more: More = lambda _document: (),
) -> Checked | Missing:
    """Select, count, match and score."""
    trouble = missing_if_unread(context.source, context.after, "after")
    if trouble is None and asked.changed is not None:
        trouble = missing_if_unread(context.source, context.before, "before")
    if trouble is not None:
        return trouble
    found = _select_items(asked, context, reader, selector)
    finding = _judge_selection(asked, context, reader, found, more)
    # One match that holds is enough; any other result may depend on items that were not kept.
    is_enough = asked.count.high is None and asked.match is MatchMode.BEST and finding.score == "1"
    return finding if is_enough else missing_if_not_kept(context.source, found.unknown) or finding


def _select_items(
    asked: SelectionAssertion, context: CheckContext, reader: ItemReader, selector: Mapping[str, Any]
) -> ItemSelection:
    changes = context.changes()
    seen, unreadable = parse_items(
        context, reader, changes, deleted_too=asked.changed in (ItemChange.DELETED, ItemChange.ANY)
    )
    garbled, unknown = split_by_fault([one for one in unreadable if _has_change(one, asked.changed)], changes)
    fits = reader.narrow(selector)
    narrowed = [one for one in seen if fits(one.item, one.document)]
    where, identity = list(asked.where.items()), asked.identity()
    fitting = [one for one in narrowed if _has_change(one, asked.changed) and _is_match(where, one.document, reader)]
    strangers = [one for one in fitting if not _is_match(identity, one.document, reader)]
    # With `all`, each item is asked about: one of another fails, instead of being left out.
    left_out = set() if asked.match is MatchMode.ALL else {one.item.key for one in strangers}
    chosen = [one for one in fitting if one.item.key not in left_out]
    lookalikes = list[ParsedItem]()
    if asked.count.high is not None or asked.match is MatchMode.ALL:
        taken = {one.item.key for one in chosen}
        others = [one for one in seen if one.item.key not in taken and _has_change(one, asked.changed)]
        lookalikes = [
            one for one in others if not _is_ascii(one.item) and _is_lookalike([*where, *identity], one, reader, fits)
        ]
    return ItemSelection(
        narrowed=narrowed, chosen=chosen, unknown=unknown, garbled=garbled, lookalikes=lookalikes, strangers=strangers
    )


def _is_ascii(one: Item) -> bool:
    """Whether an item has no look-alike characters; a quick test that nearly all items pass."""
    plain = one.encoding is Encoding.TEXT and one.body is not None and is_plain(one.body)
    return plain and "\\u" not in str(one.body)


def _is_lookalike(
    rules: Sequence[PathRule], one: ParsedItem, reader: ItemReader, fits: Callable[[Item, Any], bool]
) -> bool:
    if not fits(one.item, one.document) and not fits(one.item, unmask_value(one.document)):
        return False
    return all(rule.matcher.seems(reader.values(one.document, path)) is None for path, rule in rules)


def split_by_fault(
    unreadable: Sequence[ParsedItem], changes: Mapping[str, ItemChange] | None
) -> tuple[list[ParsedItem], list[ParsedItem]]:
    """Split unreadable items into those that are the agent's fault and the others."""
    agents, others = list[ParsedItem](), list[ParsedItem]()
    for one in unreadable:
        (agents if _is_fault_of_agent(one, changes) else others).append(one)
    return agents, others


def _is_fault_of_agent(unreadable: ParsedItem, changes: Mapping[str, ItemChange] | None) -> bool:
    """Whether the agent wrote invalid content, or made the item too large to keep."""
    if unreadable.item.body is not None:
        return unreadable.change is not ItemChange.NONE or changes is None
    # Without a read before the run it is unknown who made it so large.
    return unreadable.item.encoding is Encoding.LEFT and unreadable.change in (ItemChange.CREATED, ItemChange.UPDATED)


def _judge_selection(
    asked: SelectionAssertion, context: CheckContext, reader: ItemReader, found: ItemSelection, more: More
) -> Checked:
    chosen, garbled = found.chosen, found.garbled
    evidence = base_evidence(
        context, len(found.narrowed), [describe_unreadable(one, asked.evidence) for one in garbled]
    )
    evidence["selected"] = _ids(chosen)
    if why := _count_mismatch(asked, found):
        of_others = {one.item.key for one in found.strangers}
        _record_selected(asked, context, [one for one in chosen if one.item.key not in of_others])
        evidence["why"] = why + _describe_strangers(asked, found.strangers, reader)
        if found.lookalikes:
            evidence["lookalikes"] = _ids(found.lookalikes)
        if not chosen and 0 not in asked.count:
            evidence["nearest"] = _nearest(asked, found.narrowed, reader)
        if not chosen and found.strangers:
            evidence["fields"] = _closest_stranger(asked, found.strangers, reader)
        return Checked("0", evidence, Fault.AGENT)
    if not chosen:
        # No item means no credit for fields.
        evidence["why"] = "no item has these fields" if asked.fields else "no item, as required"
        return Checked("0" if asked.fields else "1", evidence)
    return _score_selection(asked, context, reader, found, more, evidence)


def _count_mismatch(asked: SelectionAssertion, found: ItemSelection) -> str | None:
    """Why the number of items is wrong or cannot be known; None where it is right."""
    number, garbled, alike = len(found.chosen), found.garbled, len(found.lookalikes)
    if number not in asked.count:
        unread = f"{len(garbled):,} unreadable ({garbled[0].item.key}); " if garbled else ""
        return f"{unread}{number:,} found; {asked.count} required"
    if asked.count.high is not None and number + alike > asked.count.high:
        seen = f"{alike:,} more without look-alike and invisible characters"
        return f"{number:,} found, and {seen}; {asked.count} required"
    if garbled and asked.count.high is not None:
        # An unreadable item may be one too many.
        return f"{len(garbled):,} unreadable, so there may be more than were found"
    if asked.match is MatchMode.FIRST and found.chosen:
        before = [one for one in garbled if one.item.key < found.chosen[0].item.key]
        return f"{len(before):,} unreadable, so the first is unknown" if before else None
    return None


def _describe_strangers(asked: SelectionAssertion, strangers: Sequence[ParsedItem], reader: ItemReader) -> str:
    """Name the items that are of another, and by what."""
    text = ""
    for one in strangers[:NEAREST]:
        path, rule = next(pair for pair in asked.identity() if not _is_match([pair], one.document, reader))
        result = field_result(path, rule, reader.values(one.document, path), asked.evidence)
        text += f"; {one.item.key} is of another: {path} {result.why}"
    return text


def _closest_stranger(
    asked: SelectionAssertion, strangers: Sequence[ParsedItem], reader: ItemReader
) -> list[dict[str, Any]]:
    """The fields of the item of another that fits best, so that a reader sees what was written, and where."""
    several = [(one, _results(asked.fields.items(), one.document, reader, asked.evidence)) for one in strangers]
    one, results = max(several, key=lambda pair: sum(result.why is None for result in pair[1]))
    return [result.to_dict() | {"item": one.item.key} for result in results[:MAX_LISTED]]


def _record_selected(asked: SelectionAssertion, context: CheckContext, several: Iterable[ParsedItem]) -> None:
    """Record the items that the assertion expects: created ones, and changed ones where it requires a change.

    An assertion that accepts no item expects none; one about items from before the run expects none either.
    """
    if asked.count.low == 0:
        return
    is_asked = asked.changed not in (None, ItemChange.NONE)
    keys = [one.item.key for one in several if is_asked or one.change in (ItemChange.CREATED, ItemChange.NONE)]
    context.work_context.select(context.source, keys)


def base_evidence(context: CheckContext, considered: int, garbled: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """The evidence of a finding, without fields."""
    evidence: dict[str, Any] = {"source": context.source, "considered": considered, "fields": []}
    if context.after.settled_after_ms is not None:
        evidence["settled_after_ms"] = context.after.settled_after_ms
    if context.after.reads:
        evidence["reads"] = [one.to_dict() for one in context.after.reads[:MAX_READS]]
    if garbled:
        evidence["unreadable"] = list(garbled[:MAX_LISTED])
    return evidence


def parse_items(
    context: CheckContext, reader: ItemReader, changes: Mapping[str, ItemChange] | None, *, deleted_too: bool
) -> tuple[list[ParsedItem], list[ParsedItem]]:
    """Parse every item in the order of the keys; returns the readable and the unreadable ones."""
    seen, unreadable = list[ParsedItem](), list[ParsedItem]()
    gone = [] if context.before is None or not deleted_too else context.before.items
    present = {one.key for one in context.after.items}
    for one in sorted(
        [*context.after.items, *(old for old in gone if old.key not in present)], key=lambda item: item.key
    ):
        change = ItemChange.NONE if changes is None else changes[one.key]
        document = context.work_context.document(context.source, one, reader)
        (unreadable if isinstance(document, UnreadableContent) else seen).append(
            ParsedItem(item=one, document=document, change=change)
        )
    return seen, unreadable


def missing_if_not_kept(source: str, unreadable: Sequence[ParsedItem]) -> Missing | None:
    """The finding where an item was not kept and that is not the agent's fault; None where all were kept."""
    left = [one.item for one in unreadable if one.item.body is None]
    if not left:
        return None
    how = "is not in the record" if left[0].encoding is Encoding.LOST else "is too large to read"
    why = f"{source}: {left[0].key} {how}" + (f", and {len(left) - 1:,} more" if left[1:] else "")
    return Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM, {"too_large": [one.key for one in left[:MAX_LISTED]]})


def describe_unreadable(one: ParsedItem, shown: EvidenceDisplay = EvidenceDisplay.PLAIN) -> dict[str, Any]:
    """An item that cannot be read, as evidence."""
    fault, facts = one.document, one.item.facts
    if one.item.body is None:
        size, limit = (facts.get(name) if isinstance(facts.get(name), int) else None for name in ("size", "limit"))
        why = "is too large to keep"
        if size is not None:
            why += f": {size:,} bytes" + ("" if limit is None else f", and at most {limit:,} are kept")
        return {"key": one.item.key, "why": why, "offset": 0, "size": size, "limit": limit}
    if shown is EvidenceDisplay.HASH:
        return {"key": one.item.key, "why": "cannot be read", "offset": fault.offset}
    return {"key": one.item.key, "why": fault.why, "offset": fault.offset, "head": fault.head}


def _has_change(seen: ParsedItem, asked: ItemChange | None) -> bool:
    if asked is None:
        return seen.change is not ItemChange.DELETED
    return seen.change is not ItemChange.NONE if asked is ItemChange.ANY else seen.change is asked


def _is_match(rules: Iterable[PathRule], document: Any, reader: ItemReader) -> bool:
    return all(rule.matcher.judge(reader.values(document, path)) is None for path, rule in rules)


def _results(
    fields: Iterable[PathRule], document: Any, reader: ItemReader, shown: EvidenceDisplay
) -> list[FieldResult]:
    return [field_result(path, rule, reader.values(document, path), shown) for path, rule in fields]


def field_result(
    path: str, rule: FieldRule, values: tuple[Any, ...], shown: EvidenceDisplay = EvidenceDisplay.PLAIN
) -> FieldResult:
    """Compare values with a rule."""
    why = rule.matcher.judge(values)
    if why is not None and shown is EvidenceDisplay.HASH:
        why = REDACTED_REASON
    asked = rule.matcher
    expected = asked.expected if asked.written is None else asked.written
    return FieldResult(
        path=path,
        op=asked.op,
        expected=expected,
        actual=for_evidence(values, shown),
        why=why,
        weight=rule.weight,
        must=rule.must,
    )


def _nearest(asked: SelectionAssertion, narrowed: Sequence[ParsedItem], reader: ItemReader) -> list[dict[str, Any]]:
    """The candidates that came closest, with the rules that each fails."""

    def lacking(one: ParsedItem) -> list[PathRule]:
        wanted = [*asked.where.items(), *asked.fields.items()]
        return [pair for pair in wanted if not _is_match([pair], one.document, reader)]

    failing = [(not _has_change(one, asked.changed), lacking(one), one) for one in narrowed]
    failing.sort(
        key=lambda candidate: (candidate[0], len(candidate[1]))
    )  # Sorting is stable, so equals stay in the order of their keys.
    return [
        {
            "key": one.item.key,
            "change": str(one.change),
            "failing": [
                field_result(path, rule, reader.values(one.document, path), asked.evidence).to_dict()
                for path, rule in rules[:MAX_FAILING]
            ],
        }
        for _, rules, one in failing[:NEAREST]
    ]


def _score_selection(
    asked: SelectionAssertion,
    context: CheckContext,
    reader: ItemReader,
    found: ItemSelection,
    more: More,
    evidence: dict[str, Any],
) -> Checked:
    others_keys = {one.item.key for one in found.strangers}
    judged = [
        ItemResult(
            one,
            [
                *(result.redact(asked.evidence) for result in more(one.document)),
                *_results(asked.fields.items(), one.document, reader, asked.evidence),
            ],
            is_of_another=one.item.key in others_keys,
        )
        for one in (found.chosen[:1] if asked.match is MatchMode.FIRST else found.chosen)
    ]
    best = max(judged, key=lambda one: one.rank)  # The first of equals: they are in the order of their keys.
    is_all = asked.match is MatchMode.ALL
    looked_at = judged if is_all else [best]
    if asked.capture is not None:
        context.work_context.names[asked.capture] = best.seen.document
    # With an upper limit on the count, each item is expected; otherwise only the one that was compared.
    expected = found.chosen if asked.count.high is not None else [one.seen for one in looked_at]
    _record_selected(asked, context, [one for one in expected if one.item.key not in others_keys])
    results = [(one.seen.item.key, result) for one in looked_at for result in one.results]
    evidence |= {
        "selected": _ids([one.seen for one in looked_at]),
        "fields": [result.to_dict() | ({"item": key} if is_all else {}) for key, result in results[:MAX_LISTED]],
    }
    others = [one for one in found.chosen if one is not best.seen]
    if others and not is_all:
        evidence["also_selected"] = _ids(others)
    # With `all`, unreadable items and look-alikes count as failed.
    hidden_ones = len(found.garbled) + len(found.lookalikes) if is_all else 0
    if is_all and found.lookalikes:
        evidence["lookalikes"] = _ids(found.lookalikes)
    score = sum((one.score for one in looked_at), Fraction(0)) / (len(looked_at) + hidden_ones)
    if asked.credit is Credit.ALL and score < 1:
        score = Fraction(0)
    return Checked(str(score), evidence, Fault.AGENT)


def _ids(several: Sequence[ParsedItem]) -> list[dict[str, str]]:
    return [{"key": one.item.key, "version": one.item.version} for one in several[:MAX_LISTED]]
