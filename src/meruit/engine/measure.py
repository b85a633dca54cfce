"""Evidence for a plan: which metric is asked what, once each, and what comes back.

A metric that fails costs its own criteria and nothing else.
"""

import math
import numbers
from collections.abc import Hashable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from meruit.engine.cache import ResultCache
from meruit.judge.compare import EXACT_INTEGERS, wanted
from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.metrics.extractor import Family, MetricExtractor
from meruit.model.canonical import digest
from meruit.model.criterion import CONTAINMENT, SuccessCriteria, SuccessCriterion
from meruit.model.errors import AuthorError, ExtractorConflict, nearest
from meruit.model.evidence import (
    Cause,
    Checked,
    Evidence,
    Fault,
    Measured,
    Missing,
    Provenance,
    Skipped,
    Value,
)
from meruit.model.work import Work
from meruit.registry import Ask, Measure, Metric, checks, metrics

ENGINE_VERSION = "1"
"""Changes when the same work would be measured or judged otherwise."""

MAX_LIST_VALUE = 10_000
"""The longest list that a metric may return as its value."""


class Slot(NamedTuple):
    """One question put to one metric; criteria that ask the same share it."""

    label: str
    """What its value is called in the result."""
    measure: Measure | None
    """A metric of ours; None when a stranger's extractor answers, or nobody can."""
    owner: str | None = None
    """The extractor that answers, by the name it was given to the engine."""
    flaw: Missing | None = None
    """Why it cannot be asked at all."""
    cache_key: tuple[str, ...] | None = None
    """For costly metrics: what distinguishes this question from others about the same work."""
    version: str = "1"


class Prepared(NamedTuple):
    """Criteria compiled for one engine: keep it and judge any number of works with it."""

    plan: Plan
    slots: tuple[Slot, ...]
    slot_of: tuple[int | None, ...]
    """For each criterion its slot; None for an assertion."""
    in_order: bool
    """Whether each criterion has the slot of its own position, so that evidence needs no sorting."""
    owners: tuple[str, ...]
    """The extractors that have to be awaited."""
    versions: dict[str, str]


class Catalogue:
    """Who computes which metric."""

    def __init__(self, extractors: Mapping[str, MetricExtractor] | None) -> None:
        self.extractors = dict(extractors or {})
        self._ours: dict[str, Metric] = {}
        self._theirs: dict[str, str] = {}
        if extractors is None:
            self._ours = {metric.name: metric for metric in metrics}
        for name, extractor in self.extractors.items():
            self._take(name, extractor)

    def _take(self, name: str, extractor: MetricExtractor) -> None:
        ours = {metric.name: metric for metric in extractor.members()} if isinstance(extractor, Family) else {}
        for metric in extractor.supported_metrics():
            if metric in self._ours or metric in self._theirs:
                raise ExtractorConflict(
                    f"extractor {name!r} computes {metric!r}, which another extractor already does; "
                    "give one of them another metric name"
                )
            if metric in ours:
                self._ours[metric] = ours[metric]
            else:
                self._theirs[metric] = name

    def names(self) -> list[str]:
        """Every metric that can be computed."""
        return sorted([*self._ours, *self._theirs])

    def trait(self, metric: str) -> Trait:
        """What is known of a metric before it is measured."""
        if metric in self._ours:
            return Trait(self._ours[metric].kind, self._ours[metric].provenance)
        owner = self._theirs.get(metric)
        provenance = getattr(self.extractors[owner], "provenance", Provenance.COMPUTED) if owner else None
        return Trait(None, provenance)

    def prepare(self, criteria: SuccessCriteria) -> Prepared:
        """Compile the criteria: each distinct question becomes one slot."""
        slots: dict[Hashable, Slot] = {}
        keys: list[Hashable | None] = []
        labels: set[str] = set()
        for criterion, identity in zip(criteria.criteria, criteria.ids, strict=True):
            if criterion.metric is None:
                keys.append(None)
                continue
            ask = _ask(criterion)
            key = (criterion.metric, self._distinction(criterion.metric, ask, identity))
            if key not in slots:
                label = criterion.metric if criterion.metric not in labels else f"{criterion.metric}[{identity}]"
                labels.add(label)
                slots[key] = self._slot(criterion.metric, ask, label, key[1])
            keys.append(key)
        order = {key: index for index, key in enumerate(slots)}
        names = tuple(
            slots[key].label if key is not None else criterion.label
            for key, criterion in zip(keys, criteria.criteria, strict=True)
        )
        return Prepared(
            plan=compile_plan(criteria, self.trait, names),
            slots=tuple(slots.values()),
            slot_of=tuple(None if key is None else order[key] for key in keys),
            in_order=keys == list(order),
            owners=tuple(dict.fromkeys(slot.owner for slot in slots.values() if slot.owner is not None)),
            versions={"engine": ENGINE_VERSION}
            | {slot.label: slot.version for slot in slots.values() if slot.flaw is None},
        )

    def _distinction(self, metric: str, ask: Ask, identity: str) -> str:
        """What makes two questions to one metric differ; nothing where the metric does not listen."""
        if metric not in self._ours or not self._ours[metric].takes_ask:
            return identity if ask.params else ""
        return digest([ask.params, ask.wanted])

    def _slot(self, name: str, ask: Ask, label: str, distinction: str) -> Slot:
        metric = self._ours.get(name)
        if metric is not None:
            key = (name, metric.version, distinction) if metric.costly else None
            if ask.params and not metric.takes_ask:
                return _flawed(label, f"{name} takes no params")
            try:
                return Slot(label, metric.prepare(ask), cache_key=key, version=metric.version)
            except AuthorError as problem:
                return _flawed(label, str(problem))
        owner = self._theirs.get(name)
        if owner is not None:
            if ask.params:
                return _flawed(label, f"{name} is computed by the extractor {owner!r}, which takes no params")
            return Slot(label, None, owner=owner, version=self.extractors[owner].version)
        why = f"Metric not found: nobody here computes {name!r}{nearest(name, self.names())}"
        return _flawed(label, why, Cause.UNKNOWN_METRIC)


def _flawed(label: str, why: str, cause: Cause = Cause.AUTHOR_ERROR) -> Slot:
    """A question that cannot be asked, on its author's account."""
    return Slot(label, None, flaw=Missing(why, cause, Fault.AUTHOR))


def _ask(criterion: SuccessCriterion) -> Ask:
    return Ask(criterion.params, wanted(criterion) if criterion.comparison in CONTAINMENT else ())


class Digests(NamedTuple):
    """The content of a work, as keys; None where it is not JSON."""

    input: str | None
    output: str | None
    metadata: str | None


def measure(
    prepared: Prepared, work: Work, digests: Digests, cache: ResultCache[Any], answers: Mapping[str, Any]
) -> list[Evidence]:
    """One piece of evidence for each criterion; `answers` holds what the awaited extractors returned."""
    found = [_measure_slot(slot, work, digests, cache, answers) for slot in prepared.slots]
    if prepared.in_order:
        return found
    return [
        found[slot] if slot is not None else _check(rule.criterion, work)
        for slot, rule in zip(prepared.slot_of, prepared.plan.rules, strict=True)
    ]


def _measure_slot(
    slot: Slot, work: Work, digests: Digests, cache: ResultCache[Any], answers: Mapping[str, Any]
) -> Evidence:
    if slot.measure is None:
        return slot.flaw if slot.flaw is not None else _answer(slot, answers)
    key = None
    if slot.cache_key is not None and None not in digests:
        key = (slot.cache_key, digests)
        kept: Evidence | None = cache.get(key)
        if kept is not None:
            return kept
    try:
        finding: Evidence = slot.measure(work)
    except Exception as crash:  # noqa: BLE001 - whatever a metric does costs its own criteria only
        return Missing(f"{slot.label} failed: {describe(crash)}", Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
    if finding.__class__ is not float and finding.__class__ is not int:
        finding = _presentable(finding)
    if key is not None:
        cache.put(key, finding)
    return finding


def _answer(slot: Slot, answers: Mapping[str, Any]) -> Evidence:
    """What a stranger's extractor said about this slot's metric."""
    answer = answers.get(slot.owner or "")
    if isinstance(answer, Missing):
        return answer
    if not isinstance(answer, Mapping):
        why = f"the extractor {slot.owner!r} returned {type(answer).__name__}, not a mapping of metrics"
        return Missing(why, Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
    value = answer.get(slot.label)
    if value is None:
        why = f"Metric not found: the extractor {slot.owner!r} returned no {slot.label!r}"
        return Missing(why, fault=Fault.SYSTEM)
    return _presentable(value)


def _presentable(finding: Any) -> Evidence:
    """Plain JSON values only, so that a record can hold and repeat them."""
    match finding:
        case Missing(cause=Cause.METRIC_MISSING):
            return Missing(f"Metric not found: {finding.why}", finding.cause, finding.fault)
        case Missing():
            return finding
        case Measured():
            value = _plain(finding.value)
            if isinstance(value, Missing):
                return value
            return Measured(value, _writable_details(finding.details), finding.provenance)
        case _:
            return _plain(finding)


def _plain(value: Any) -> Value | Missing:  # noqa: PLR0911 - one line a kind of value
    """Numbers of other libraries become Python's; what is no value at all becomes a reason."""
    match value:
        case bool():
            return value
        # Subclasses such as numpy's float64 would not encode.
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            if writable(value) == value:
                return value
            return Missing("the value is text that is not Unicode", Cause.WRONG_TYPE, Fault.SYSTEM)
        case numbers.Integral():
            return int(value)
        case numbers.Real() | Decimal():
            return float(value) if math.isfinite(value) else math.nan
        case list() | tuple() if len(value) <= MAX_LIST_VALUE and all(map(_listable, value)):
            return list(value)
        case _:
            item = getattr(value, "item", None)
            if callable(item) and getattr(value, "ndim", None) == 0:
                return _plain(item())
            why = f"the value is {type(value).__name__}, not a number"
            return Missing(why, Cause.WRONG_TYPE, Fault.SYSTEM)


def _check(criterion: SuccessCriterion, work: Work) -> Evidence:
    """An assertion's finding. An unknown one fails as specified, on its author's account, and the rest go on."""
    assertion = criterion.assertion
    if assertion is None:  # A criterion without a metric always has one; this tells the type checker.
        return Missing("neither metric nor assertion", Cause.AUTHOR_ERROR, Fault.AUTHOR)
    check = checks.find(assertion.check)
    if check is None:
        why = f"unsupported assertion: no check is named {assertion.check!r}{nearest(assertion.check, checks.names())}"
        return Checked("0", {"unsupported_assertion": assertion.check, "message": why}, Fault.AUTHOR)
    try:
        finding: object = check.run(assertion, work)
    except Exception as crash:  # noqa: BLE001 - whatever a check does costs its own criterion only
        return Missing(f"{assertion.check} failed: {describe(crash)}", Cause.CHECK_ERROR, Fault.SYSTEM)
    # A plugin's annotations are a promise, not a proof.
    if not isinstance(finding, Checked | Missing | Skipped):
        why = f"{assertion.check} answered {type(finding).__name__}, not a finding"
        return Missing(why, Cause.CHECK_ERROR, Fault.SYSTEM)
    if isinstance(finding, Checked):
        return Checked(finding.score, _writable_details(finding.details), finding.fault)
    return finding


def _listable(item: Any) -> bool:
    """Whether a list that is a metric's value may hold the item."""
    return writable(item) == item if isinstance(item, str) else isinstance(item, int) and abs(item) <= EXACT_INTEGERS


def writable(text: str) -> str:
    """The text, with what no JSON can hold spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _writable_details(details: Any) -> Any:
    """Details as a record can hold them."""
    try:
        msgspec.json.encode(details)
    except UnicodeEncodeError:
        return _spelled_out(details)
    except (TypeError, ValueError, RecursionError):
        return {"message": "the details cannot be written down"}
    return details


def _spelled_out(value: Any) -> Any:
    match value:
        case str():
            return writable(value)
        case Mapping():
            return {writable(str(key)): _spelled_out(item) for key, item in value.items()}
        case list() | tuple():
            return [_spelled_out(item) for item in value]
        case _:
            return value


MAX_MESSAGE = 200


def describe(crash: BaseException) -> str:
    """A crash in one short line that any terminal and any JSON can hold."""
    text = f"{type(crash).__name__}: {crash}" if str(crash) else type(crash).__name__
    line = " ".join(writable(text).split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"


def missing_answer(owner: str, crash: BaseException) -> Missing:
    """What an extractor's crash means for the criteria that asked it."""
    return Missing(f"the extractor {owner!r} failed: {describe(crash)}", Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
