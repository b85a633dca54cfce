"""Outcomes judged again in bulk, straight into versions for a segment: what most of a rescore goes through.

To the byte what `RescoreTask.judge` and `RescoredVersions.add` give, without the values between them. What is not plain
is left to these. `judge_page` judges from evidence; `measure_page` judges from work what evidence does not answer.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from struct import Struct
from typing import NamedTuple, Protocol

import msgspec

from meruit.judge.bulk import NumberedEvidence, NumberlessConclusion
from meruit.log.commitment import PURPOSE, SALT_BYTES
from meruit.outcomes.rescore.alike import AlikeResult, AlikeResults, StoredResult
from meruit.outcomes.segment import OpenVersions, QuickLine
from meruit.outcomes.store.batches import KeptResult, LatestVersion, OutcomePlace
from meruit.outcomes.store.read import OutcomeWork
from meruit.outcomes.store.rescored import RescoredVerdict, RescoredVersions
from meruit.outcomes.store.segments import SegmentReader

MIN_SHARE = 16
"""Of a segment, one version in so many must be judged: reading all of its lines is for nothing where few are."""
_AWARDED = "con_"
"""How the contracts begin whose versions are entries of their own."""
_encode = msgspec.json.Encoder().encode

_Conclusion = NumberlessConclusion[RescoredVerdict]
_Digests = tuple[bytes, bytes, bytes]
"""Of input, output and metadata, in hex."""


class BulkJudging(Protocol):
    """New criteria, and what judges by them."""

    written_now: bytes
    """The time of the rescore as JSON."""
    may_measure: bool
    """Whether work can be measured in bulk."""

    def evidence_of(self, alike: AlikeResult) -> NumberedEvidence[RescoredVerdict]:
        """The evidence in stored results, which answers the new criteria."""

    def measure(
        self, alike: AlikeResult, work: OutcomeWork, digests: _Digests
    ) -> tuple[_Conclusion, Sequence[float]] | None:
        """What follows from work, and the numbers that the conclusion lacks; None where it is judged for itself."""


class PlainOutcome(NamedTuple):
    """An outcome whose latest result fills a template of a segment."""

    outcome: OutcomePlace
    kept: KeptResult
    before: AlikeResult
    """What its result says."""
    digests: bytes
    hexes: _Digests
    """The same in hex."""

    @property
    def id(self) -> str:
        """Of the outcome."""
        return self.outcome[0]

    @property
    def seq(self) -> int:
        """Its place among all."""
        return self.outcome[1]


@dataclass(slots=True)
class JudgedPage:
    """Outcomes that were judged together."""

    versions: RescoredVersions = field(default_factory=RescoredVersions)
    before: list[AlikeResult] = field(default_factory=list)
    """What each said before."""
    asking: list[PlainOutcome] = field(default_factory=list)
    """Those that are left for `measure_page`."""
    rest: Sequence[LatestVersion] = ()
    """Those that are left to be judged one by one."""
    from_evidence: bool = True

    def count(self, recorded: Collection[str]) -> Counter[tuple[AlikeResult, RescoredVerdict]]:
        """How many of those that were recorded turned from what to what."""
        # What was judged one by one stands behind them.
        judged = zip(self.before, self.versions.verdicts, self.versions.outcomes, strict=False)
        return Counter([(before, verdict) for before, verdict, outcome in judged if outcome[0] in recorded])


class _Form:
    """What versions have in common that follow from one conclusion with the same numbers."""

    __slots__ = ("end", "head", "middle", "start", "tail", "to_facts", "to_made", "verdict")

    def __init__(self, conclusion: _Conclusion, numbers: Sequence[float], now: bytes, template: int) -> None:
        self.verdict = conclusion.shared
        known, encoded = now, list[bytes]()
        if numbers:
            written = _encode(numbers)
            known, encoded = b"[%b,%b" % (now, written[1:]), written[1:-1].split(b",")
        self.start, self.middle, self.to_made, self.to_facts, self.end = conclusion.pieces(now, encoded)
        self.head, self.tail = b'[%d,"' % template, b"%b,%b]" % (known, self.verdict.line)


class _Packer:
    """Packs versions, one for each outcome."""

    def __init__(self, page: JudgedPage, most: int, now: bytes, entropy: Callable[[int], bytes]) -> None:
        self._page, self._now = page, now
        self._salts = iter(Struct(f"{SALT_BYTES}s" * most).unpack(entropy(SALT_BYTES * most)))

    def form(self, conclusion: _Conclusion, numbers: Sequence[float]) -> _Form:
        """What versions have in common."""
        return _Form(conclusion, numbers, self._now, self._page.versions.packed.number_of(conclusion.template))

    # In one piece: this is all that most outcomes go through, and a call costs as much as most of what it does.
    def add(self, outcome: OutcomePlace, before: AlikeResult, form: _Form, hexes: _Digests, digests: bytes) -> None:
        """Add the next version of an outcome."""
        outcome_id, _, version, _, _, _, _, contract_id, index = outcome
        name, verdict, salt, version = outcome_id.encode(), form.verdict, next(self._salts), version + 1
        contract = b'"%b"' % name if contract_id == outcome_id else _encode(contract_id)
        given, made, facts = hexes
        written = b"".join(
            (
                form.start,
                contract[1:-1],
                form.middle,
                given,
                form.to_made,
                made,
                form.to_facts,
                facts,
                form.end,
            )
        )
        committed = sha256(PURPOSE + salt + sha256(written).digest()).hexdigest().encode()
        versions, packed = self._page.versions, self._page.versions.packed
        packed.lines.append(b'%b%b",%b,%d,%d,%b' % (form.head, name, contract, version, index, form.tail))
        packed.tails.append(salt + digests)
        packed.hashes.append(sha256(verdict.form % (contract, index, name, committed, version)).digest())
        versions.events.append(verdict.event % (name, contract, version))
        versions.outcomes.append(outcome)
        versions.verdicts.append(verdict)
        self._page.before.append(before)


class _Template:
    """What outcomes have in common whose results fill one template."""

    __slots__ = ("alike", "evidence", "forms")

    def __init__(self, alike: AlikeResult, evidence: NumberedEvidence[RescoredVerdict] | None) -> None:
        self.alike = alike
        self.evidence = evidence
        """None where the work must be measured."""
        self.forms: dict[bytes, _Form | None] = {}
        """By the numbers of an outcome, as its line has them: 1 and 1.0 are written apart, and equal in Python."""


class _OpenSegment:
    """A segment while its outcomes are judged."""

    def __init__(self, versions: OpenVersions) -> None:
        self.lines, self.hexes = versions.quick_lines(), versions.digests()
        self.versions = versions
        self.templates: dict[int, _Template | None] = {}

    def template(self, place: int, line: QuickLine, alike: AlikeResults, task: BulkJudging) -> _Template | None:
        """What is needed for the outcomes of one template; None where each is judged for itself."""
        number = line.template
        if number not in self.templates:
            found = self.versions.split(place)
            stored = alike.fit(self.versions.templates[number], found[1]) if isinstance(found, tuple) else None
            made = None
            if isinstance(stored, StoredResult):
                if stored.alike.sources is not None:
                    made = _Template(stored.alike, task.evidence_of(stored.alike))
                elif task.may_measure:
                    made = _Template(stored.alike, None)
            self.templates[number] = made
        return self.templates[number]

    def form(self, line: QuickLine, template: _Template, packer: _Packer) -> _Form | None:
        """What follows from the numbers of a line; None where the outcome is judged for itself."""
        evidence = template.evidence
        if evidence is None:
            return None
        numbers = self.versions.numbers_of(line)
        conclusion = evidence.of(numbers)
        return None if conclusion is None else packer.form(conclusion, evidence.pick(numbers))


def judge_page(
    page: Sequence[LatestVersion],
    segments: SegmentReader,
    known_alike: Mapping[str, AlikeResults],
    task: BulkJudging,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge outcomes of one page, as far as evidence answers."""
    judged, rest = JudgedPage(), list[LatestVersion]()
    packer = _Packer(judged, len(page), task.written_now, entropy)
    opened: dict[tuple[int, str], _OpenSegment | None] = {}
    wanted = Counter([kept[0] for _, kept in page if kept[1] is not None])
    last, segment = None, None
    for both in page:
        outcome, kept = both
        outcome_id, _, version, _, _, _, digest, contract_id, _ = outcome
        leaf, place, _ = kept
        if place is None or contract_id.startswith(_AWARDED):
            rest.append(both)
            continue
        key = leaf, digest
        if key != last:
            if key not in opened:
                stored = segments.segment(leaf)
                opened[key] = _OpenSegment(stored) if wanted[leaf] * MIN_SHARE >= len(stored) else None
            last, segment = key, opened[key]
        line = segment.lines[place] if segment is not None and 0 <= place < len(segment.lines) else None
        if (
            segment is None
            or line is None
            or line.template < 0
            or line.outcome != outcome_id
            or line.contract != contract_id
            or line.version != version
        ):
            rest.append(both)
            continue
        template = segment.templates.get(line.template) or segment.template(place, line, known_alike[digest], task)
        if template is None:
            rest.append(both)
            continue
        if template.evidence is None:
            digests = segment.versions.digests_at(place)
            judged.asking.append(PlainOutcome(outcome, kept, template.alike, digests, segment.hexes[place]))
            continue
        # What follows the time.
        said = bytes(line.result).partition(b",")[2]
        forms = template.forms
        if said in forms:
            form = forms[said]
        else:
            form = forms[said] = segment.form(line, template, packer)
        if form is None:
            rest.append(both)
            continue
        packer.add(outcome, template.alike, form, segment.hexes[place], segment.versions.digests_at(place))
    judged.rest = rest
    return judged


def measure_page(
    asking: Sequence[PlainOutcome],
    works: Mapping[str, OutcomeWork],
    task: BulkJudging,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge the outcomes whose work is at hand."""
    judged, rest = JudgedPage(from_evidence=False), list[LatestVersion]()
    packer = _Packer(judged, len(asking), task.written_now, entropy)
    forms: dict[tuple[_Conclusion, bytes], _Form] = {}
    for outcome, kept, before, digests, hexes in asking:
        work = works.get(outcome[0])
        if work is None:
            continue
        found = task.measure(before, work, hexes)
        if found is None:
            rest.append((outcome, kept))
            continue
        conclusion, numbers = found
        key = conclusion, _encode(numbers)
        form = forms.get(key) or forms.setdefault(key, packer.form(conclusion, numbers))
        packer.add(outcome, before, form, hexes, digests)
    judged.rest = rest
    return judged
