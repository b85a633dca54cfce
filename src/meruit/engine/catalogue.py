"""Who computes which metric, and what each criterion asks of whom."""

from collections.abc import Hashable, Mapping
from typing import NamedTuple

from meruit.engine.plainly import describe
from meruit.judge.compare import wanted
from meruit.judge.plan import Plan, Trait, compile_plan
from meruit.metrics.extractor import Family, MetricExtractor
from meruit.model.canonical import digest
from meruit.model.criterion import SuccessCriteria, SuccessCriterion
from meruit.model.errors import AuthorError, ExtractorConflict, nearest
from meruit.model.evidence import Cause, Fault, Missing, Provenance
from meruit.model.kinds import CONTAINMENT
from meruit.registry import Ask, Measure, Metric, metrics

ENGINE_VERSION = "1"
"""Changes when the same work would be measured or judged otherwise."""


class Slot(NamedTuple):
    """One question put to one metric; criteria that ask the same share it."""

    label: str
    """What its value is called in the result."""
    metric: str
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
        ours: dict[str, Metric] = {}
        # Whoever writes an extract of her own wants it called.
        if isinstance(extractor, Family) and type(extractor).extract is Family.extract:
            ours = {metric.name: metric for metric in extractor.members()}
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
            known = self._ours[metric]
            # What we did not compute ourselves may be on any scale; the criterion says which.
            return Trait(known.kind if known.provenance is Provenance.COMPUTED else None, known.provenance)
        owner = self._theirs.get(metric)
        return Trait(None, self.extractors[owner].provenance if owner is not None else None)

    def prepare(self, criteria: SuccessCriteria) -> Prepared:
        """Compile the criteria: each distinct question becomes one slot."""
        # A copy of our own: what happens to the author's lists and mappings later changes nothing here.
        criteria = criteria.model_copy(deep=True)
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
        if metric in self._ours and self._ours[metric].takes_ask:
            return digest([ask.params, ask.wanted])
        # It will be refused, and must take no other question down with it.
        refused = ask.params or (ask.wanted and metric in self._ours)
        return identity if refused else ""

    def _slot(self, name: str, ask: Ask, label: str, distinction: str) -> Slot:
        metric = self._ours.get(name)
        if metric is not None:
            return _slot_of_ours(metric, ask, label, distinction)
        owner = self._theirs.get(name)
        if owner is not None:
            if ask.params:
                why = f"{name} is computed by the extractor {owner!r}, which takes no params"
                return _flawed(label, name, why)
            return Slot(label, name, None, owner=owner, version=str(self.extractors[owner].version))
        why = f"Metric not found: nobody here computes {name!r}{nearest(name, self.names())}"
        return _flawed(label, name, why, Cause.UNKNOWN_METRIC)


def _slot_of_ours(metric: Metric, ask: Ask, label: str, distinction: str) -> Slot:
    if ask.params and not metric.takes_ask:
        return _flawed(label, metric.name, f"{metric.name} takes no params")
    if ask.wanted and not metric.takes_ask:
        return _flawed(label, metric.name, f"{metric.name} looks for nothing; contains_keywords does, for example")
    key = (metric.name, metric.version, distinction) if metric.costly else None
    try:
        return Slot(label, metric.name, metric.prepare(ask), cache_key=key, version=metric.version)
    except AuthorError as problem:
        return _flawed(label, metric.name, str(problem))
    except Exception as crash:  # noqa: BLE001 - a plugin that cannot prepare costs its own criteria only
        why = f"{metric.name} cannot be prepared: {describe(crash)}"
        return Slot(label, metric.name, None, flaw=Missing(why, Cause.EXTRACTOR_ERROR, Fault.SYSTEM))


def _flawed(label: str, name: str, why: str, cause: Cause = Cause.AUTHOR_ERROR) -> Slot:
    """A question that cannot be asked, on its author's account."""
    return Slot(label, name, None, flaw=Missing(why, cause, Fault.AUTHOR))


def _ask(criterion: SuccessCriterion) -> Ask:
    return Ask(criterion.params, wanted(criterion) if criterion.comparison in CONTAINMENT else ())
