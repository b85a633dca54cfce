"""Who computes which metric, and what each criterion asks of whom."""

from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any, Self

import msgspec

from meruit.documents.sanitize import describe
from meruit.errors import AuthorError, ExtractorConflict
from meruit.judge.compare import items_to_contain
from meruit.judge.plan import COMPUTED_HERE, CriterionRule, Plan, Trait, compile_plan
from meruit.metrics.custom import CustomExtractor
from meruit.metrics.support.extractor import Family, MetricExtractor, MetricService, provenance_of, version_of
from meruit.model.canonical import digest
from meruit.model.criterion import Assertion, SuccessCriteria, SuccessCriterion
from meruit.model.evidence import Cause, Checked, Evidence, Fault, Missing, Provenance
from meruit.model.kinds import CONTAINMENT
from meruit.model.work import Work
from meruit.registry import Ask, Metric, MetricNames, checks, metrics
from meruit.suggestions import nearest
from meruit.verify.custom_code import CriteriaCode, CustomCode, Sandboxes, expr_owner, prepare_criteria_code

ENGINE_VERSION = "1"
"""Changes when the same work would be measured or judged otherwise."""


NO_CODE = CriteriaCode(extractors={}, owner_of={}, flaws={})
MIN_CODE_MS = 100
"""The least time that a piece of code gets, however many there are."""


class Slot(msgspec.Struct, frozen=True):
    """One question put to one metric; criteria that ask the same share it."""

    label: str
    """What its value is called in the result."""
    subject: str
    """The metric, or the check, that is asked."""
    measure: Callable[[Work], Evidence] | None
    """A metric or check of ours; None when a third-party extractor answers, or nothing can."""
    owner: str | None = None
    """The extractor that answers, by the name it was given to the engine."""
    flaw: Missing | None = None
    """Why it cannot be asked at all."""
    place: str | None = None
    """The key of the criteria that is at fault for it, where that is known."""
    cache_key: tuple[str, ...] | None = None
    """For costly metrics: what distinguishes this question from others about the same work."""
    version: str = "1"
    crash: Cause = Cause.EXTRACTOR_ERROR
    """What it is called when measuring fails."""
    last: bool = False
    """Whether it is measured after all others."""


class CompiledCriteria(msgspec.Struct, frozen=True):
    """Criteria compiled for one engine: keep them and judge any number of works with them."""

    plan: Plan
    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]
    """For each criterion its slot."""
    in_order: bool
    """Whether each criterion has the slot of its own position, so that evidence needs no sorting."""
    asks: tuple[Callable[[Work], Evidence] | None, ...]
    """For each slot what measures it at once; None for one that is cached, awaited, flawed or measured last."""
    lasts: tuple[int, ...]
    """The slots that are measured after all others."""
    owners: tuple[str, ...]
    """The extractors that have to be awaited."""
    versions: dict[str, str]
    custom: Mapping[str, CustomExtractor]
    """The code that the criteria bring along, by the owner that slots name."""
    sandboxes: Sandboxes
    """Where the engine that compiled them lets such code run."""
    asked: Mapping[str, MetricExtractor]
    """What asks the engine's services, such as judges, by the owner that slots name."""

    @property
    def has_foreign_extractors(self) -> bool:
        """Whether an extractor of the caller's own program has to be awaited."""
        return any(owner not in self.asked and owner not in self.custom for owner in self.owners)

    def with_slots(self, slots: tuple[Slot, ...]) -> Self:
        """The same criteria, whose slots measure otherwise; there are as many, in the same order."""
        return msgspec.structs.replace(self, slots=slots, asks=_asked_at_once(slots))

    def limit_code_time(self, total_ms: int) -> Self:
        """The same criteria, whose code has so much time for all of its pieces together."""
        if not self.custom:
            return self
        each_ms = max(MIN_CODE_MS, total_ms // len(self.custom))
        custom = {
            owner: CustomExtractor(one.code, one.sandbox, one.metrics, min(one.timeout_ms, each_ms))
            for owner, one in self.custom.items()
        }
        return msgspec.structs.replace(self, custom=custom)

    def without_services(self, why: str) -> Self:
        """The same criteria, which ask no judge or other service: what one would answer is missing."""
        silent = {owner: _SilentExtractor(one, why) for owner, one in self.asked.items()}
        return msgspec.structs.replace(self, asked=silent) if silent else self

    def judged_rules(self) -> Iterator[tuple[CriterionRule, MetricExtractor]]:
        """The criteria that a service answers, each with what asks it."""
        for rule, number in zip(self.plan.rules, self.slot_of, strict=True):
            owner = self.slots[number].owner
            if owner is not None and owner in self.asked:
                yield rule, self.asked[owner]

    @property
    def body(self) -> bytes:
        """The canonical form of the criteria, as it is recorded."""
        return self.plan.body

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form: the name of the criteria for all time."""
        return self.plan.digest


def _asked_at_once(slots: tuple[Slot, ...]) -> tuple[Callable[[Work], Evidence] | None, ...]:
    return tuple(None if one.last or one.cache_key is not None else one.measure for one in slots)


class _SilentExtractor(MetricExtractor):
    """Stands in for a service that is not to be asked."""

    def __init__(self, of: MetricExtractor, why: str) -> None:
        self.version, self.provenance = version_of(of), provenance_of(of)
        self._found = {name: Missing(why, Cause.METRIC_DISABLED, Fault.SYSTEM) for name in of.supported_metrics()}

    def supported_metrics(self) -> list[str]:
        """Every name that `extract` may return."""
        return [*self._found]

    async def extract(
        self, task_input: Mapping[str, Any], task_output: Mapping[str, Any], metadata: Mapping[str, Any]
    ) -> Mapping[str, Missing]:
        """Why nothing was asked."""
        del task_input, task_output, metadata
        return self._found


class Catalogue:
    """Who computes which metric."""

    def __init__(
        self,
        extractors: Mapping[str, MetricExtractor] | None,
        custom: CustomCode | None = None,
        switched_off: Mapping[str, str] | None = None,
        services: Mapping[str, MetricService] | None = None,
    ) -> None:
        self.extractors = dict(extractors or {})
        self.services: Mapping[str, MetricService] = {} if services is None else services
        """What answers metrics that ask another system, by the name that such a metric has of it."""
        self.switched_off = dict(switched_off or {})
        """Why a metric that exists is not computed, by its name."""
        self.sandboxes = Sandboxes(custom)
        self._ours: dict[str, Metric | None] = {}
        """Our own metrics; None for one that was not asked yet, whose file need not be loaded."""
        self._theirs: dict[str, str] = {}
        if extractors is None:
            self._ours = dict.fromkeys(metrics.names())
        for name, extractor in self.extractors.items():
            self._take(name, extractor)

    def _take(self, name: str, extractor: MetricExtractor) -> None:
        ours: dict[str, Metric | None] = {}
        # Whoever writes an extract of her own wants it called.
        if isinstance(extractor, Family) and type(extractor).extract is Family.extract:
            ours = dict.fromkeys(extractor.member_names())
            if type(extractor).members is not Family.members:
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

    def _our_metric(self, name: str) -> Metric | None:
        """A metric of ours, loaded when it is first asked; None for any other name."""
        metric = self._ours.get(name)
        if metric is None and name in self._ours:
            metric = self._ours[name] = metrics.get(name)
        return metric

    def names(self) -> MetricNames:
        """Every metric that can be computed; it also knows which are switched off."""
        return MetricNames(sorted([*self._ours, *self._theirs]), self.switched_off)

    def can_extract(self, metric: str) -> bool:
        """Whether this metric can be computed."""
        return metric in self._ours or metric in self._theirs

    def owner_of(self, metric: str) -> str | None:
        """The third-party extractor that computes a metric; None for our own and for an unknown one."""
        return self._theirs.get(metric)

    def trait(self, metric: str) -> Trait:
        """What is known of a metric before it is measured."""
        known = self._our_metric(metric)
        if known is not None:
            # What we did not compute ourselves may be on any scale; the criterion says which.
            return Trait(known.kind if known.provenance is Provenance.COMPUTED else None, known.provenance)
        owner = self._theirs.get(metric)
        return Trait(None, provenance_of(self.extractors[owner]) if owner is not None else None)

    def compile(self, criteria: SuccessCriteria) -> CompiledCriteria:
        """Compile the criteria: each distinct question becomes one slot."""
        # A copy of our own: what happens to the author's lists and mappings later changes nothing here.
        criteria = criteria.model_copy(deep=True)
        own = prepare_criteria_code(criteria, self.sandboxes, self.extractors)
        slots: dict[tuple[str, str], Slot] = {}
        asked: dict[str, MetricExtractor] = {}
        keys: list[tuple[str, str]] = []
        labels: set[str] = set()
        subjects = {criterion.subject for criterion in criteria.criteria}
        for criterion, identity in zip(criteria.criteria, criteria.ids, strict=True):
            # An assertion and an expression share their slot with no other.
            ask, subject = ask_of(criterion), criterion.subject
            shared = criterion.metric is not None and criterion.expr is None
            key = (subject, self._distinction(subject, ask, identity)) if shared else ("", identity)
            if criterion.assertion is not None:
                slots[key] = _slot_of_check(criterion.assertion, identity)
            elif key not in slots:
                label = _label(subject, identity, labels, subjects)
                labels.add(label)
                if criterion.expr is not None:
                    slots[key] = _slot_of_own(own, expr_owner(identity), subject, label)
                else:
                    slots[key] = self._slot(subject, ask, label, key[1], own, asked)
            keys.append(key)
        order = {key: index for index, key in enumerate(slots)}
        return CompiledCriteria(
            plan=compile_plan(
                criteria,
                lambda metric: COMPUTED_HERE if metric in own.owner_of else self.trait(metric),
                tuple(slots[key].label for key in keys),
            ),
            slots=tuple(slots.values()),
            slot_of=tuple(order[key] for key in keys),
            in_order=keys == list(order),
            asks=_asked_at_once(tuple(slots.values())),
            lasts=tuple(number for number, one in enumerate(slots.values()) if one.last),
            owners=tuple(dict.fromkeys(slot.owner for slot in slots.values() if slot.owner is not None)),
            versions={"engine": ENGINE_VERSION}
            | {slot.label: slot.version for slot in slots.values() if slot.flaw is None and slot.version},
            custom=own.extractors,
            sandboxes=self.sandboxes,
            asked=asked,
        )

    def _distinction(self, metric: str, ask: Ask, identity: str) -> str:
        """What makes two questions to one metric differ; nothing where the metric does not listen."""
        known = self._our_metric(metric)
        if known is not None and known.takes_ask:
            return digest([ask.params, ask.wanted])
        # It will be refused, and must take no other question down with it.
        refused = ask.params or (ask.wanted and metric in self._ours)
        return identity if refused else ""

    def _slot(
        self,
        name: str,
        ask: Ask,
        label: str,
        distinction: str,
        own: CriteriaCode,
        asked: dict[str, MetricExtractor],
    ) -> Slot:
        if name in own.owner_of:
            return self._slot_of_custom(name, ask, label, own)
        metric = self._our_metric(name)
        if metric is not None:
            service = self.services.get(metric.service or "")
            of_service = None if service is None else _slot_of_service(service, metric, ask, label, asked)
            return of_service or _slot_of_ours(metric, ask, label, distinction)
        owner = self._theirs.get(name)
        if owner is not None:
            if ask.params:
                why = f"{name} is computed by the extractor {owner!r}, which takes no params"
                return _slot_with_flaw(label, name, why)
            return Slot(
                label=label, subject=name, measure=None, owner=owner, version=version_of(self.extractors[owner])
            )
        if name in self.switched_off:
            why = f"the metric {name!r} is switched off: {self.switched_off[name]}"
            return Slot(label=label, subject=name, measure=None, flaw=Missing(why, Cause.METRIC_DISABLED, Fault.SYSTEM))
        why = f"Metric not found: no extractor computes {name!r}{metrics.suggest(name, self.names())}"
        return _slot_with_flaw(label, name, why, Cause.UNKNOWN_METRIC)

    def _slot_of_custom(self, name: str, ask: Ask, label: str, own: CriteriaCode) -> Slot:
        owner = own.owner_of[name]
        if name in self._ours or name in self._theirs:
            why = f"{name!r} is a metric of this engine already; give the custom metric another name"
            return msgspec.structs.replace(_slot_with_flaw(label, name, why), place=f"{owner}.metrics")
        refused = _explain_bad_ask_of_code(name, ask)
        return _slot_of_own(own, owner, name, label) if refused is None else _slot_with_flaw(label, name, refused)

    def explain_bad_ask(self, name: str, ask: Ask, declared: Container[str]) -> str | None:
        """Why the metric cannot be asked this, on its author's account; `declared` are metrics of custom code."""
        if name in declared:
            return _explain_bad_ask_of_code(name, ask)
        if name not in self._ours and name not in self._theirs:
            return None
        flaw = self._slot(name, ask, name, "", NO_CODE, {}).flaw
        return flaw.why if flaw is not None and flaw.fault is Fault.AUTHOR else None


def _explain_bad_ask_of_code(name: str, ask: Ask) -> str | None:
    if ask.params:
        return f"{name} is computed by custom code, which takes no params"
    if ask.wanted:
        return f"{name} is a number that custom code computes, in which nothing can be contained; use gte, lte or eq"
    return None


def _label(subject: str, identity: str, labels: set[str], subjects: set[str]) -> str:
    """What a slot's value is called: `subject[id]` where the subject is taken and this label is free."""
    name = f"{subject}[{identity}]"
    return name if subject in labels and name not in subjects else subject


def _slot_of_own(own: CriteriaCode, owner: str, subject: str, label: str) -> Slot:
    """What the author's own code answers."""
    if owner in own.flaws:
        return Slot(label=label, subject=subject, measure=None, flaw=own.flaws[owner].why, place=own.flaws[owner].place)
    return Slot(label=label, subject=subject, measure=None, owner=owner, version=own.extractors[owner].version)


def _slot_of_service(
    service: MetricService, metric: Metric, ask: Ask, label: str, asked: dict[str, MetricExtractor]
) -> Slot:
    """A question to a service of the engine; what asks it is added to `asked`."""
    try:
        extractor = service.open(metric.name, ask)
    except AuthorError as problem:
        return _slot_with_flaw(label, metric.name, str(problem))
    owner = f"{metric.name}:{extractor.version}:{digest([ask.params, ask.wanted])}"
    asked[owner] = extractor
    return Slot(label=label, subject=metric.name, measure=None, owner=owner, version=extractor.version)


def _slot_of_ours(metric: Metric, ask: Ask, label: str, distinction: str) -> Slot:
    if ask.params and not metric.takes_ask:
        return _slot_with_flaw(label, metric.name, f"{metric.name} takes no params")
    if ask.wanted and not metric.takes_ask:
        return _slot_with_flaw(
            label, metric.name, f"{metric.name} looks for nothing; contains_keywords does, for example"
        )
    key = (metric.name, metric.version, distinction) if metric.costly else None
    try:
        return Slot(
            label=label, subject=metric.name, measure=metric.prepare(ask), cache_key=key, version=metric.version
        )
    except AuthorError as problem:
        return _slot_with_flaw(label, metric.name, str(problem))
    except Exception as crash:  # noqa: BLE001 - a plugin that cannot prepare costs its own criteria only
        why = f"{metric.name} cannot be prepared: {describe(crash)}"
        return Slot(
            label=label, subject=metric.name, measure=None, flaw=Missing(why, Cause.EXTRACTOR_ERROR, Fault.SYSTEM)
        )


def _slot_of_check(assertion: Assertion, label: str) -> Slot:
    """Compile an assertion. One that cannot be run fails with fault `author`; the other criteria go on."""
    check = checks.find(assertion.check)
    if check is None:
        why = f"no check is named {assertion.check!r}{nearest(assertion.check, checks.names())}"
        return _slot_of_unsupported(assertion, label, why)
    try:
        run = check.prepare(assertion)
    except AuthorError as problem:
        return _slot_of_unsupported(assertion, label, str(problem))
    return Slot(
        label=label,
        subject=assertion.check,
        measure=run,
        version=check.version,
        crash=Cause.CHECK_ERROR,
        last=check.last,
    )


def _slot_of_unsupported(assertion: Assertion, label: str, why: str) -> Slot:
    """An assertion that is not valid fails, and says why."""
    details = {"unsupported_assertion": assertion.check, "message": f"unsupported assertion: {why}"}
    failed = Checked("0", details, Fault.AUTHOR)
    return Slot(label=label, subject=assertion.check, measure=lambda _work: failed, version="")


def _slot_with_flaw(label: str, name: str, why: str, cause: Cause = Cause.AUTHOR_ERROR) -> Slot:
    """A question that cannot be asked, on its author's account."""
    return Slot(label=label, subject=name, measure=None, flaw=Missing(why, cause, Fault.AUTHOR))


def ask_of(criterion: SuccessCriterion) -> Ask:
    """What the criterion asks of its metric."""
    return Ask(criterion.params, items_to_contain(criterion) if criterion.comparison in CONTAINMENT else ())
