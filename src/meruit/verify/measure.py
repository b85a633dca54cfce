"""Evidence for a plan: each question put once, and what comes back.

A metric that fails costs its own criteria and nothing else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from meruit.documents.sanitize import describe, sanitize
from meruit.model.evidence import Cause, Evidence, Fault, Missing
from meruit.model.work import Work
from meruit.verify.cache import ResultCache
from meruit.verify.catalogue import CompiledCriteria, Slot


class Digests(NamedTuple):
    """The content of a work, as keys; None where it is not JSON."""

    input: str | None
    output: str | None
    metadata: str | None


AnyDigests = tuple[str | None, str | None, str | None]
"""The same where no name is needed: making a `Digests` takes as long as a comparison."""
AWAITED = Missing("the extractor has not answered yet", Cause.EXTRACTOR_ERROR, Fault.SYSTEM)


def measure(compiled: CompiledCriteria, work: Work, digests: AnyDigests, cache: ResultCache[Any]) -> list[Evidence]:
    """One piece of evidence for each criterion, AWAITED where a third-party extractor must be asked.

    Done before any await, so that nothing can change the work between its digest and our measuring.
    """
    found: list[Evidence] = []
    for ask in compiled.asks:
        if ask is None:
            slot = compiled.slots[len(found)]
            found.append(AWAITED if slot.last else _measure_slot(slot, work, digests, cache))
            continue
        # The usual case, without a call of its own.
        try:
            finding = ask(work)
            kind = finding.__class__
            if kind is not float and kind is not int:
                finding = sanitize(finding)
        except (Exception, SystemExit) as crash:  # noqa: BLE001 - whatever a plugin does costs its own criteria only
            finding = _missing_slot(compiled.slots[len(found)], crash)
        found.append(finding)
    for place in compiled.lasts:
        found[place] = _measure_slot(compiled.slots[place], work, digests, cache)
    if compiled.in_order:
        return found
    return [found[slot] for slot in compiled.slot_of]


def fill_in(compiled: CompiledCriteria, evidence: list[Evidence], answers: Mapping[str, Any]) -> list[Evidence]:
    """The evidence with what the awaited extractors said."""
    return [
        _answer(compiled.slots[slot], answers) if found is AWAITED else found
        for slot, found in zip(compiled.slot_of, evidence, strict=True)
    ]


def _measure_slot(slot: Slot, work: Work, digests: AnyDigests, cache: ResultCache[Any]) -> Evidence:
    if slot.measure is None:
        return slot.flaw if slot.flaw is not None else AWAITED
    key = None
    if slot.cache_key is not None and None not in digests:
        key = (slot.cache_key, digests)
        cached: Evidence | None = cache.get(key)
        if cached is not None:
            return cached
    try:
        finding: Evidence = slot.measure(work)
        if finding.__class__ is not float and finding.__class__ is not int:
            finding = sanitize(finding)
    except (Exception, SystemExit) as crash:  # noqa: BLE001 - whatever a plugin does costs its own criteria only
        return _missing_slot(slot, crash)
    if key is not None:
        cache.put(key, finding)
    return finding


def _missing_slot(slot: Slot, crash: BaseException) -> Missing:
    return Missing(f"{slot.subject} failed: {describe(crash)}", slot.crash, Fault.SYSTEM)


def _answer(slot: Slot, answers: Mapping[str, Any]) -> Evidence:
    """The answer of a third-party extractor about this slot's metric."""
    answer = answers.get(slot.owner or "")
    if isinstance(answer, Missing):
        return answer
    if not isinstance(answer, Mapping):
        why = f"the extractor {slot.owner!r} returned {type(answer).__name__}, not a mapping of metrics"
        return Missing(why, Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
    value = answer.get(slot.subject)
    if value is None:
        why = f"Metric not found: the extractor {slot.owner!r} returned no {slot.subject!r}"
        return Missing(why, fault=Fault.SYSTEM)
    try:
        return sanitize(value)
    except Exception as crash:  # noqa: BLE001 - an odd value costs its own criteria only
        return missing_answer(slot.owner or "", crash)


def is_complete(compiled: CompiledCriteria, owner: str, answer: Any) -> bool:
    """Whether an extractor's answer holds all that was asked of it, so that it is worth keeping."""
    asked = [slot.subject for slot in compiled.slots if slot.owner == owner]
    return isinstance(answer, Mapping) and not any(isinstance(answer.get(name), Missing | None) for name in asked)


def missing_answer(owner: str, crash: BaseException) -> Missing:
    """What an extractor's crash means for the criteria that asked it."""
    return Missing(f"the extractor {owner!r} failed: {describe(crash)}", Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
