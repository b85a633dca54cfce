"""Judging many works by one plan: those with equal evidence, or with other numbers only, share a conclusion. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Generic, TypeVar

import msgspec

from meruit.judge.compare import EXACT_INTEGERS, Test
from meruit.judge.plan import CriterionRule, Plan
from meruit.judge.result_template import ResultTemplate, mark_value, template_of
from meruit.judge.verdict import Circumstances, conclude
from meruit.model.evidence import Evidence, Measured
from meruit.model.verdict import VerificationResult

MAX_CONCLUSIONS = 4_096
MAX_CONCLUSION_BYTES = 32 * 1024 * 1024
"""Of templates that are remembered; with more, all are forgotten and begin again."""
_NEVER = datetime.min.replace(tzinfo=UTC)
_ID, _FIRST_NUMBER = 1, 3
_TIME, _INPUT, _OUTPUT, _METADATA = -8, -6, -4, -2
"""Where gaps are among the parts of a written result."""
_WRITER = msgspec.json.Encoder(order="deterministic")


T = TypeVar("T")
T2 = TypeVar("T2")


@dataclass(frozen=True, slots=True)
class Conclusion(Generic[T]):
    """What follows from some evidence, for every work that has it."""

    template: ResultTemplate
    result: VerificationResult
    """Without id, time and digests: never handed out as a work's own."""
    shared: T
    """What the caller derives from the result, made once."""


class Conclusions(Generic[T]):
    """The conclusions of one plan, by evidence.

    `derive` is given a result without id, time and digests, and must not hand it out as a work's own. `finish` makes
    it what all works with this evidence get.
    """

    def __init__(
        self,
        plan: Plan,
        versions: dict[str, str],
        derive: Callable[[VerificationResult], T],
        finish: Callable[[VerificationResult], VerificationResult] = lambda result: result,
    ) -> None:
        self._plan, self._versions, self._derive, self._finish = plan, versions, derive, finish
        self._known: dict[bytes, Conclusion[T]] = {}
        self._size = 0

    def of(self, evidence: Sequence[Evidence]) -> Conclusion[T] | None:
        """What follows from the evidence; None where that has to be concluded for the work alone."""
        if not _has_one_form(evidence):
            return None
        # As JSON, because 1, 1.0 and True are equal in Python and are not the same value.
        key = _WRITER.encode(evidence)
        found = self._known.get(key)
        return found if found is not None else self._conclude(key, evidence)

    def _conclude(self, key: bytes, evidence: Sequence[Evidence]) -> Conclusion[T] | None:
        result = conclude(self._plan, evidence, Circumstances("", _NEVER, versions=self._versions.copy()))
        result = self._finish(result)
        template = template_of(result)
        if template is None:
            return None
        made = Conclusion(template, result, self._derive(result))
        size = len(key) + len(template.judged) + len(template.summary)
        if len(self._known) >= MAX_CONCLUSIONS or self._size + size > MAX_CONCLUSION_BYTES:
            self._known.clear()
            self._size = 0
        self._known[key] = made
        self._size += size
        return made


# Compared by identity: callers keep what belongs to one, and find it for every work.
@dataclass(frozen=True, slots=True, eq=False)
class NumberlessConclusion(Generic[T]):
    """What follows from some evidence, for any numbers that meet the same criteria."""

    template: ResultTemplate
    """Which lacks the numbers."""
    parts: list[bytes]
    """Of the written result; empty where a gap is."""
    places: tuple[int, ...]
    """Which number stands at each gap of one."""
    spread: Callable[[Sequence[bytes]], tuple[bytes, ...]]
    """The numbers for these gaps."""
    slots: tuple[tuple[int, str], ...]
    """For each number the position of its criterion, and its name among the metrics."""
    result: VerificationResult
    """Without id, time and digests, and with numbers of any work: never handed out as a work's own."""
    shared: T

    # By position: this is called for every work. Everything is in its place but the gaps.
    def write(
        self, contract_id: bytes, verified_at: bytes, numbers: Sequence[bytes], given: bytes, made: bytes, facts: bytes
    ) -> bytes:
        """The result of a work from what the template lacks: its id, time and numbers as JSON, and three digests.

        The id needs no escapes; the digests are in hex.
        """
        parts = self.parts.copy()
        parts[_ID] = contract_id
        if self.places:
            parts[_FIRST_NUMBER:_TIME:2] = self.spread(numbers)
        parts[_TIME] = verified_at
        parts[_INPUT] = given
        parts[_OUTPUT] = made
        parts[_METADATA] = facts
        return b"".join(parts)

    def pieces(self, verified_at: bytes, numbers: Sequence[bytes]) -> tuple[bytes, bytes, bytes, bytes, bytes]:
        """The pieces around the id and the digests in the result of any work with this time and these numbers."""
        parts = self.parts.copy()
        if self.places:
            parts[_FIRST_NUMBER:_TIME:2] = self.spread(numbers)
        parts[_TIME] = verified_at
        return parts[0], b"".join(parts[_ID + 1 : _INPUT]), parts[_INPUT + 1], parts[_OUTPUT + 1], parts[-1]

    def with_numbers_of(
        self, result: VerificationResult, derive: Callable[[VerificationResult], T2]
    ) -> "NumberlessConclusion[T2] | None":
        """The same with another result, whose numbers stand at the same places; None where that has no template."""
        return _without_numbers(result, self.slots, derive(result))

    def put_numbers(self, numbers: Sequence[float]) -> VerificationResult:
        """The result with the numbers of a work, until the next call."""
        result = self.result
        for (position, slot), number in zip(self.slots, numbers, strict=True):
            msgspec.structs.force_setattr(result.criterion_results[position], "value", number)
            result.metrics[slot] = number
        return result


_Key = tuple[bool | tuple[bool, bytes] | bytes, ...]


class NumberlessConclusions(Generic[T]):
    """The conclusions of one plan, by which criteria the numbers meet, and by all other evidence.

    A number only decides whether its criterion is met, and is repeated in the result: the rest follows from the first.
    """

    def __init__(
        self,
        plan: Plan,
        versions: dict[str, str],
        derive: Callable[[VerificationResult], T],
        finish: Callable[[VerificationResult], VerificationResult] = lambda result: result,
    ) -> None:
        self._plan, self._versions, self._derive, self._finish = plan, versions, derive, finish
        self._tests = [_test_of(rule) for rule in plan.rules]
        self._known: dict[_Key, NumberlessConclusion[T]] = {}
        self._size = 0

    # Any: findings as metrics return them, which may be anything.
    def of(
        self, findings: Sequence[Any], clean: Callable[[Any], Evidence] = lambda evidence: evidence
    ) -> tuple[NumberlessConclusion[T], list[float]] | None:
        """What follows from the findings, one for each criterion, and their numbers.

        `clean` makes evidence of what metrics return. None where that has to be concluded for the work alone. Raises
        what an encoder raises on details that are not JSON.
        """
        # For each finding whether its number is enough, with what came with it; or all of it, as JSON.
        key: list[bool | tuple[bool, bytes] | bytes] = []
        numbers: list[float] = []
        for finding, (test, lowest, low, high, highest, negated) in zip(findings, self._tests, strict=True):
            value, details = finding, None
            if value.__class__ is Measured and finding.provenance is None:
                value, details = finding.value, finding.details
            if (value.__class__ is float or value.__class__ is int) and test is not None:
                # As the test itself does with what is possible, without a call. No comparison with NaN is true.
                met = (low <= value <= high) is not negated if lowest <= value <= highest else test(value)
                if met is True or met is False:
                    key.append(met if details is None else (met, _encode_details(details)))
                    numbers.append(value)
                    continue
            evidence = clean(finding)
            if not _has_one_form((evidence,)):
                return None
            key.append(_WRITER.encode(evidence))
        whole = tuple(key)
        found = self._known.get(whole) or self._conclude(whole, [clean(finding) for finding in findings])
        return None if found is None else (found, numbers)

    def _conclude(self, key: _Key, evidence: Sequence[Evidence]) -> NumberlessConclusion[T] | None:
        result = conclude(self._plan, evidence, Circumstances("", _NEVER, versions=self._versions.copy()))
        result = self._finish(result)
        numeric = [position for position in range(len(evidence)) if not isinstance(key[position], bytes)]
        made = _without_numbers(result, _slots(self._plan, numeric), self._derive(result))
        if made is None:
            return None
        template = made.template
        size = len(template.judged) + len(template.summary)
        size += sum(len(part[1] if isinstance(part, tuple) else part) for part in key if not isinstance(part, bool))
        if len(self._known) >= MAX_CONCLUSIONS or self._size + size > MAX_CONCLUSION_BYTES:
            self._known.clear()
            self._size = 0
        self._known[key] = made
        self._size += size
        return made


class NumberedEvidence(Generic[T]):
    """Evidence of works that differ in some of its numbers only, and what follows from it.

    Its numbers decide whether their criteria are met, and are repeated in the result, as in `NumberlessConclusions`.
    """

    def __init__(
        self,
        plan: Plan,
        versions: dict[str, str],
        evidence: Sequence[Evidence],
        places: Mapping[int, int],
        derive: Callable[[VerificationResult], T],
        finish: Callable[[VerificationResult], VerificationResult],
    ) -> None:
        """`places` says which of a work's numbers is the evidence of a criterion, by the criterion's position."""
        self._plan, self._versions, self._derive, self._finish = plan, versions, derive, finish
        self._evidence, self._places = evidence, sorted(places.items())
        self._tests = [(place, *_test_of(plan.rules[position])) for position, place in self._places]
        self.picked = tuple(place for _, place in self._places)
        """Which of a work's numbers a conclusion lacks."""
        self._in_order = self.picked == tuple(range(len(self.picked)))
        self._known: dict[tuple[bool, ...], NumberlessConclusion[T] | None] = {}

    def of(self, numbers: Sequence[float]) -> NumberlessConclusion[T] | None:
        """What follows for a work with these numbers; None where that has to be concluded for the work alone."""
        met: list[bool] = []
        for place, test, lowest, low, high, highest, negated in self._tests:
            value = numbers[place]
            if lowest <= value <= highest:
                met.append((low <= value <= high) is not negated)
                continue
            enough = None if test is None else test(value)
            if enough is not True and enough is not False:
                return None
            met.append(enough)
        key = tuple(met)
        if key in self._known:
            return self._known[key]
        if len(self._known) >= MAX_CONCLUSIONS:
            self._known.clear()
        made = self._known[key] = self._conclude(numbers)
        return made

    def pick(self, numbers: Sequence[float]) -> Sequence[float]:
        """Those of a work's numbers that its conclusion lacks."""
        # Most often all of them.
        if self._in_order and len(numbers) == len(self.picked):
            return numbers
        return [numbers[place] for place in self.picked]

    def _conclude(self, numbers: Sequence[float]) -> NumberlessConclusion[T] | None:
        evidence = [*self._evidence]
        for position, place in self._places:
            found = evidence[position]
            evidence[position] = (
                msgspec.structs.replace(found, value=numbers[place]) if isinstance(found, Measured) else numbers[place]
            )
        result = conclude(self._plan, evidence, Circumstances("", _NEVER, versions=self._versions.copy()))
        result = self._finish(result)
        return _without_numbers(result, _slots(self._plan, [place for place, _ in self._places]), self._derive(result))


def _slots(plan: Plan, positions: Iterable[int]) -> tuple[tuple[int, str], ...]:
    return tuple((position, plan.slots[position]) for position in positions)


def _without_numbers(
    result: VerificationResult, slots: tuple[tuple[int, str], ...], shared: T
) -> NumberlessConclusion[T] | None:
    template = template_of(_take_numbers(result, slots))
    if template is None:
        return None
    parts, places = template.parts()
    # Each number has two gaps or more, one of its criterion and one of its metric: so these are tuples.
    spread = itemgetter(*places) if places else tuple
    return NumberlessConclusion(template, parts, places, spread, slots, result, shared)


def _test_of(rule: CriterionRule) -> tuple[Test | None, float, float, float, float, bool]:
    """The test of a number, and the bounds that decide without it; these hold nothing where only the test decides."""
    bracket = rule.bracket
    if bracket is None or bracket.whole:
        return rule.test, math.inf, 0.0, 0.0, -math.inf, False
    low, high, negated = bracket.meets
    lowest, highest = max(bracket.possible.low, -EXACT_INTEGERS), min(bracket.possible.high, EXACT_INTEGERS)
    return rule.test, lowest, low, high, highest, negated


_encode_details = msgspec.json.Encoder().encode
"""As details are read by: two that it writes alike are alike."""


def _take_numbers(result: VerificationResult, slots: Sequence[tuple[int, str]]) -> VerificationResult:
    """A copy of the result with a mark in place of each number."""
    judged, values = [*result.criterion_results], dict[str, Any](result.metrics)
    for number, (position, slot) in enumerate(slots):
        mark = msgspec.Raw(mark_value(number))
        judged[position] = msgspec.structs.replace(judged[position], value=mark)
        values[slot] = mark
    return msgspec.structs.replace(result, criterion_results=judged, metrics=values)


def _has_one_form(evidence: Sequence[Evidence]) -> bool:
    """Whether equal JSON means equal evidence: NaN and infinity are written alike."""
    for found in evidence:
        value = found.value if isinstance(found, Measured) else found
        if isinstance(value, list) or (isinstance(value, float) and not math.isfinite(value)):
            return False
    return True
