"""What criteria need of a work's input and do not find there, so that no output could ever be judged."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from meruit.documents.sanitize import NOT_FOUND
from meruit.model.evidence import Cause, Fault, Missing
from meruit.model.work import Work
from meruit.verify.cache import ResultCache
from meruit.verify.catalogue import CompiledCriteria
from meruit.verify.measure import Digests, measure

PROBES: tuple[Mapping[str, Any], ...] = ({}, {"text": "", "predictions": [], "messages": []})
"""Outputs with nothing in them: what a metric lacks now and blames on the author, it lacks for every output."""
NOT_GIVEN = frozenset({Cause.METRIC_MISSING, Cause.AUTHOR_ERROR})
UNCACHED = Digests(input=None, output=None, metadata=None)


class UnmetNeed(NamedTuple):
    """A criterion that cannot be judged on this input."""

    criterion_id: str
    why: str


def find_unmet_needs(compiled: CompiledCriteria, work_input: Mapping[str, Any]) -> Iterator[UnmetNeed]:
    """Measure outputs that hold nothing, and report what the author left out of the input.

    Custom code, third-party extractors and checks are not asked: what they lack may be the output's fault.
    """
    cache = ResultCache[Any](0.0, lambda: 0.0)
    reported = set[str]()
    for output in PROBES:
        evidence = measure(compiled, Work(input=work_input, output=output), UNCACHED, cache)
        for rule, slot, found in zip(compiled.plan.rules, compiled.slot_of, evidence, strict=True):
            # A slot without a measure has a flaw of its own, or is answered by others.
            asked = rule.criterion.assertion is None and compiled.slots[slot].measure is not None
            if not asked or not isinstance(found, Missing) or rule.id in reported:
                continue
            if found.fault is Fault.AUTHOR and found.cause in NOT_GIVEN:
                reported.add(rule.id)
                yield UnmetNeed(rule.id, found.why.removeprefix(NOT_FOUND))
