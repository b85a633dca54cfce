"""Outcomes judged again in bulk, straight into versions for a segment: what most of a rescore goes through.

To the byte what `RescoreTask.judge` and `RescoredVersion.of` give, without the values between them. What is not plain
is left to these. `judge_page` judges from evidence; `measure_page` judges from work what evidence does not answer.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Protocol

import msgspec

from meruit.judge.bulk import NumberedEvidence, NumberlessConclusion
from meruit.log.commitment import PURPOSE, SALT_BYTES
from meruit.model.record import Record
from meruit.outcomes.rescore.alike import AlikeResult, AlikeResults, StoredResult
from meruit.outcomes.segment import DIGESTS_AT, TAIL_HEX, OpenVersions, PackedVersion, QuickLine
from meruit.outcomes.store.batches import LatestVersion
from meruit.outcomes.store.read import OutcomeWork
from meruit.outcomes.store.rescored import RescoredVerdict, RescoredVersion
from meruit.outcomes.store.segments import SegmentReader

MIN_SHARE = 16
"""Of a segment, one version in so many must be judged: reading all of its lines is for nothing where few are."""
_AWARDED = "con_"
"""How the contracts begin whose versions are entries of their own."""
_encode = msgspec.json.Encoder().encode

_Conclusion = NumberlessConclusion[RescoredVerdict]


class BulkJudging(Protocol):
    """New criteria, and what judges by them."""

    written_now: bytes
    """The time of the rescore as JSON."""
    may_measure: bool
    """Whether work can be measured in bulk."""

    def evidence_of(self, alike: AlikeResult) -> NumberedEvidence[RescoredVerdict]:
        """The evidence in stored results, which answers the new criteria."""

    def measure(
        self, alike: AlikeResult, work: OutcomeWork, digests: tuple[bytes, bytes, bytes]
    ) -> tuple[_Conclusion, Sequence[float]] | None:
        """What follows from work, and the numbers that the conclusion lacks; None where it is judged for itself."""


class PlainOutcome(Record, frozen=True):
    """An outcome whose latest result fills a template of a segment."""

    outcome: LatestVersion
    before: AlikeResult
    """What its result says."""
    hexes: bytes
    """The digests of input, output and metadata in hex, one after the other."""
    digests: bytes

    @property
    def id(self) -> str:
        """Of the outcome."""
        return self.outcome.id

    @property
    def seq(self) -> int:
        """Its place among all."""
        return self.outcome.seq


class JudgedPage(Record, frozen=True):
    """Outcomes that were judged together."""

    versions: Sequence[RescoredVersion] = ()
    before: Sequence[AlikeResult] = ()
    """What each said before."""
    asking: Sequence[PlainOutcome] = ()
    """Those that are left for `measure_page`."""
    rest: Sequence[LatestVersion] = ()
    """Those that are left to be judged one by one."""
    from_evidence: bool = True

    def count(self, recorded: Collection[str]) -> Counter[tuple[AlikeResult, RescoredVerdict]]:
        """How many of those that were recorded turned from what to what."""
        pairs = zip(self.versions, self.before, strict=True)
        return Counter([(before, one.verdict) for one, before in pairs if one.outcome.id in recorded])


@dataclass(slots=True)
class _Template:
    alike: AlikeResult
    evidence: NumberedEvidence[RescoredVerdict] | None
    """None where the work must be measured."""


class _OpenSegment:
    """A segment while its outcomes are judged."""

    def __init__(self, versions: OpenVersions) -> None:
        self.lines = versions.quick_lines()
        self.tails, self.hexes = versions.tails, versions.digests_in_hex()
        self._versions = versions
        self.templates: dict[int, _Template | None] = {}

    def template(self, place: int, line: QuickLine, alike: AlikeResults, task: BulkJudging) -> _Template | None:
        """What is needed for the outcomes of one template; None where each is judged for itself."""
        number = line.template
        if number not in self.templates:
            found = self._versions.split(place)
            stored = alike.fit(self._versions.templates[number], found[1]) if isinstance(found, tuple) else None
            made = None
            if isinstance(stored, StoredResult):
                if stored.alike.sources is not None:
                    made = _Template(stored.alike, task.evidence_of(stored.alike))
                elif task.may_measure:
                    made = _Template(stored.alike, None)
            self.templates[number] = made
        return self.templates[number]


def judge_page(
    page: Sequence[LatestVersion],
    segments: SegmentReader,
    known_alike: Mapping[str, AlikeResults],
    task: BulkJudging,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge outcomes of one page, as far as evidence answers."""
    judged: list[tuple[PlainOutcome, _Conclusion, Sequence[float]]] = []
    asking: list[PlainOutcome] = []
    rest: list[LatestVersion] = []
    opened: dict[tuple[int, str], _OpenSegment | None] = {}
    wanted = Counter([one.leaf for one in page if one.place is not None])
    for one in page:
        place, contract_id = one.place, one.contract_id
        if place is None or contract_id.startswith(_AWARDED):
            rest.append(one)
            continue
        key = one.leaf, one.criteria_digest
        if key not in opened:
            stored = segments.segment(one.leaf)
            opened[key] = _OpenSegment(stored) if wanted[one.leaf] * MIN_SHARE >= len(stored.lines) else None
        segment = opened[key]
        line = segment.lines[place] if segment is not None and place < len(segment.lines) else None
        if (
            segment is None
            or line is None
            or line.template < 0
            or line.outcome != one.id
            or line.contract != contract_id
        ):
            rest.append(one)
            continue
        template = segment.templates.get(line.template) or segment.template(
            place, line, known_alike[one.criteria_digest], task
        )
        if template is None:
            rest.append(one)
            continue
        at, end = place * TAIL_HEX + DIGESTS_AT, (place + 1) * TAIL_HEX
        plain = PlainOutcome(one, template.alike, segment.hexes[at:end], segment.tails[at // 2 : end // 2])
        evidence = template.evidence
        if evidence is None:
            asking.append(plain)
            continue
        numbers = line.numbers
        conclusion = evidence.of(numbers)
        if conclusion is None:
            rest.append(one)
            continue
        judged.append((plain, conclusion, evidence.pick(numbers)))
    return JudgedPage(_pack(judged, task.written_now, entropy), [one[0].before for one in judged], asking, rest)


def measure_page(
    asking: Sequence[PlainOutcome],
    works: Mapping[str, OutcomeWork],
    task: BulkJudging,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge the outcomes whose work is at hand."""
    judged: list[tuple[PlainOutcome, _Conclusion, Sequence[float]]] = []
    rest: list[LatestVersion] = []
    for one in asking:
        work, hexes = works.get(one.outcome.id), one.hexes
        if work is None:
            continue
        found = task.measure(one.before, work, (hexes[:64], hexes[64:128], hexes[128:]))
        if found is None:
            rest.append(one.outcome)
        else:
            judged.append((one, *found))
    versions = _pack(judged, task.written_now, entropy)
    return JudgedPage(versions, [one[0].before for one in judged], (), rest, from_evidence=False)


# In one piece: this is all that most outcomes go through, and a call costs as much as most of what it does.
def _pack(
    judged: Sequence[tuple[PlainOutcome, _Conclusion, Sequence[float]]], now: bytes, entropy: Callable[[int], bytes]
) -> list[RescoredVersion]:
    """The next version of each outcome, from what follows for it and the numbers that the conclusion lacks."""
    versions: list[RescoredVersion] = []
    salts = entropy(SALT_BYTES * len(judged))
    for number, (plain, conclusion, numbers) in enumerate(judged):
        one, hexes, verdict = plain.outcome, plain.hexes, conclusion.shared
        contract, outcome_id, version, index = (
            _encode(one.contract_id),
            one.id.encode(),
            one.version + 1,
            one.evidence_leaf,
        )
        given, made, facts = hexes[:64], hexes[64:128], hexes[128:]
        if numbers:
            encoded = _encode(numbers)
            written = conclusion.write(contract[1:-1], now, encoded[1:-1].split(b","), given, made, facts)
            known = b"[%b,%b" % (now, encoded[1:])
        else:
            written, known = conclusion.write(contract[1:-1], now, (), given, made, facts), now
        salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
        committed = sha256(PURPOSE + salt + sha256(written).digest()).hexdigest().encode()
        packed = PackedVersion(
            conclusion.template,
            b'"%b",%b,%d,%d,%b,%b' % (outcome_id, contract, version, index, known, verdict.line),
            salt + plain.digests,
            verdict.form % (contract, index, outcome_id, committed, version),
        )
        versions.append(RescoredVersion(one, verdict, packed))
    return versions
