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
_Digests = tuple[bytes, bytes, bytes, bytes]
"""Of input, output and metadata, in hex; then all as bytes, one after the other."""


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


class PlainOutcome(NamedTuple):
    """An outcome whose latest result fills a template of a segment."""

    outcome: OutcomePlace
    kept: KeptResult
    before: AlikeResult
    """What its result says."""
    digests: _Digests

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

    __slots__ = ("parts",)

    def __init__(self, conclusion: _Conclusion, numbers: Sequence[float], now: bytes, template: int) -> None:
        known, encoded = now, list[bytes]()
        if numbers:
            written = _encode(numbers)
            known, encoded = b"[%b,%b" % (now, written[1:]), written[1:-1].split(b",")
        verdict = conclusion.shared
        line = b'[%d,"' % template, b"%b,%b]" % (known, verdict.line)
        self.parts = verdict, *conclusion.pieces(now, encoded), *line
        """The verdict; the pieces of the result; the ends of the line in the segment."""


class _Packer:
    """Packs versions, one for each outcome."""

    def __init__(self, page: JudgedPage, most: int, now: bytes, entropy: Callable[[int], bytes]) -> None:
        self._now, self._templates = now, page.versions.packed
        # Found once for all: looking these up for each outcome would take as long as one of its digests.
        self._next_salt = iter(Struct(f"{SALT_BYTES}s" * most).unpack(entropy(SALT_BYTES * most))).__next__
        versions, packed = page.versions, page.versions.packed
        self._add_line, self._add_tail, self._add_hash = packed.lines.append, packed.tails.append, packed.hashes.append
        self._add_event, self._add_before = versions.events.append, page.before.append
        self._add_outcome, self._add_verdict = versions.outcomes.append, versions.verdicts.append

    def form(self, conclusion: _Conclusion, numbers: Sequence[float]) -> _Form:
        """What versions have in common."""
        return _Form(conclusion, numbers, self._now, self._templates.number_of(conclusion.template))

    # In one piece: this is all that most outcomes go through, and a call costs as much as most of what it does.
    def add(self, outcome: OutcomePlace, before: AlikeResult, form: _Form, digests: _Digests) -> None:
        """Add the next version of an outcome."""
        outcome_id, _, version, _, _, _, _, contract_id, index = outcome
        name, salt, version = outcome_id.encode(), self._next_salt(), version + 1
        contract = b'"%b"' % name if contract_id == outcome_id else _encode(contract_id)
        verdict, start, middle, to_made, to_facts, end, head, tail = form.parts
        given, made, facts, together = digests
        written = b"".join((start, contract[1:-1], middle, given, to_made, made, to_facts, facts, end))
        committed = sha256(PURPOSE + salt + sha256(written).digest()).hexdigest().encode()
        self._add_line(b'%b%b",%b,%d,%d,%b' % (head, name, contract, version, index, tail))
        self._add_tail(salt + together)
        self._add_hash(sha256(verdict.form % (contract, index, name, committed, version)).digest())
        self._add_event(verdict.event % (name, contract, version))
        self._add_outcome(outcome)
        self._add_verdict(verdict)
        self._add_before(before)


class _Template:
    """What outcomes have in common whose results fill one template."""

    __slots__ = ("alike", "evidence", "forms")

    def __init__(self, alike: AlikeResult, evidence: NumberedEvidence[RescoredVerdict] | None) -> None:
        self.alike = alike
        self.evidence = evidence
        """None where the work must be measured."""
        self.forms: dict[bytes, _Form] = {}
        """By the numbers of an outcome, as its line has them: 1 and 1.0 are written apart, and equal in Python."""


class _OpenSegment:
    """A segment while its outcomes are judged."""

    def __init__(self, versions: OpenVersions) -> None:
        self.lines, self.digests = versions.quick_lines(), versions.digests()
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

    def form(self, line: QuickLine, said: bytes, template: _Template, packer: _Packer) -> _Form | None:
        """What follows from the numbers that a line says; None where the outcome is judged for itself."""
        evidence = template.evidence
        if evidence is None:
            return None
        numbers = self.versions.numbers_of(line)
        conclusion = evidence.of(numbers)
        if conclusion is None:
            return None
        made = template.forms[said] = packer.form(conclusion, evidence.pick(numbers))
        return made


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
    add = packer.add
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
            judged.asking.append(PlainOutcome(outcome, kept, template.alike, segment.digests[place]))
            continue
        # What follows the time.
        said = bytes(line.result).partition(b",")[2]
        form = template.forms.get(said) or segment.form(line, said, template, packer)
        if form is None:
            rest.append(both)
        else:
            add(outcome, template.alike, form, segment.digests[place])
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
    for outcome, kept, before, digests in asking:
        work = works.get(outcome[0])
        if work is None:
            continue
        found = task.measure(before, work, digests[:3])
        if found is None:
            rest.append((outcome, kept))
            continue
        conclusion, numbers = found
        key = conclusion, _encode(numbers)
        form = forms.get(key) or forms.setdefault(key, packer.form(conclusion, numbers))
        packer.add(outcome, before, form, digests)
    judged.rest = rest
    return judged
