"""What a stored result already answers, so that new criteria can be judged without measuring the work again."""

from collections import Counter

from meruit.judge.compare import items_to_contain
from meruit.judge.plan import CriterionRule
from meruit.model.canonical import digest
from meruit.model.evidence import Cause
from meruit.model.kinds import CONTAINMENT
from meruit.model.verdict import CriterionResult, VerificationResult
from meruit.verify.catalogue import ENGINE_VERSION, CompiledCriteria, Slot

OWN_FLAW = -1
"""In place of an old criterion: the new one cannot be answered, and its author learns why without any work."""
LASTING = frozenset({Cause.METRIC_MISSING, Cause.TOO_COSTLY, Cause.VOTES_DISAGREE})
"""Absences that the work itself causes; others may be gone when it is measured again."""


class EvidenceSources:
    """Which of some old criteria ask what the new ones ask, so that their evidence can be judged again."""

    def __init__(self, new: CompiledCriteria, old: CompiledCriteria) -> None:
        self._rules = new.plan.rules
        self._count = len(old.slot_of)
        asked, slots = _questions(old), [old.slots[number] for number in old.slot_of]
        labels = Counter(["engine", *(slot.label for slot in old.slots)])
        self._places: list[list[int]] = []
        for rule, question in zip(new.plan.rules, _questions(new), strict=True):
            if new.slots[new.slot_of[rule.position]].flaw is not None:
                self._places.append([OWN_FLAW])
                continue
            # Of two metrics under one label only one version is on record.
            alike = (number for number, other in enumerate(asked) if question is not None and other == question)
            self._places.append([number for number in alike if labels[slots[number].label] == 1])
        self.possible = all(self._places) and labels["engine"] == 1
        """Whether every new criterion is asked by an old one."""
        used = {number for numbers in self._places for number in numbers if number != OWN_FLAW}
        self._versions = {"engine": ENGINE_VERSION} | {slots[number].label: slots[number].version for number in used}
        self.labels: tuple[str | None, ...] = tuple(
            slots[numbers[0]].label if numbers and numbers[0] != OWN_FLAW else None for numbers in self._places
        )
        """For each new criterion what its value is called in an old result."""

    def of(self, result: VerificationResult) -> tuple[int, ...] | None:
        """For each new criterion the old one whose evidence answers it; None when one has none."""
        if not self.possible or len(result.criterion_results) != self._count:
            return None
        if not self._versions.items() <= result.versions.items():
            return None
        chosen = []
        for rule, numbers in zip(self._rules, self._places, strict=True):
            for number in numbers:
                if number == OWN_FLAW or _answers(rule, result.criterion_results[number]):
                    chosen.append(number)
                    break
            else:
                return None
        return tuple(chosen)


def _answers(rule: CriterionRule, judged: CriterionResult) -> bool:
    """Whether a criterion's result holds the evidence itself, and not only what another threshold made of it."""
    if judged.cause is not None:
        return judged.cause in LASTING
    if judged.comparison is None or judged.error is not None:
        return True
    return judged.natural is rule.natural and judged.provenance is rule.provenance


def _questions(compiled: CompiledCriteria) -> list[tuple[str, ...] | None]:
    """What each criterion asks of the work, apart from its threshold; None when that is not known."""
    return [
        _question(rule, compiled.slots[number], compiled)
        for rule, number in zip(compiled.plan.rules, compiled.slot_of, strict=True)
    ]


def _assertions(compiled: CompiledCriteria) -> str:
    several = (criterion.assertion for criterion in compiled.plan.criteria.criteria)
    return digest([one.model_dump() for one in several if one is not None])


def _question(rule: CriterionRule, slot: Slot, compiled: CompiledCriteria) -> tuple[str, ...] | None:
    criterion = rule.criterion
    if slot.flaw is not None or not slot.version:
        return None
    if criterion.assertion is not None:
        asked = criterion.assertion.model_dump()
        # What such a check says hangs on what the others looked at, or captured.
        beside = _assertions(compiled) if slot.last or "when" in asked or "${" in str(asked) else ""
        return ("check", slot.version, digest(asked), beside)
    if slot.owner is None:
        looked_for = items_to_contain(criterion) if criterion.comparison in CONTAINMENT else ()
        return ("metric", slot.version, slot.subject, digest([criterion.params, looked_for]))
    # The version of custom code is a digest of the code, its limits and the names that it computes.
    owner = "" if slot.owner in compiled.custom or slot.owner in compiled.asked else slot.owner
    return ("extractor", slot.version, slot.subject, owner)
