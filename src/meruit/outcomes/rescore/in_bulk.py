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
from meruit.outcomes.rescore.alike import AlikeResult, AlikeResults, StoredResult, read_numbers
from meruit.outcomes.segment import OpenVersions
from meruit.outcomes.store.batches import KeptResult, LatestVersion, OutcomePlace
from meruit.outcomes.store.read import OutcomeWork
from meruit.outcomes.store.rescored import RescoredVerdict, RescoredVersions
from meruit.outcomes.store.segments import SegmentReader

MIN_SHARE = 16
"""Of a segment, one version in so many must be judged: reading all of its lines is for nothing where few are."""
MAX_LEARNT = 32
"""Results of rows in one page whose templates are learnt."""
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
        """By the numbers of an outcome, as they are written: 1 and 1.0 are written apart, and equal in Python."""

    def make_form(self, said: bytes, packer: _Packer) -> _Form | None:
        """What follows from numbers that are written so; None where the outcome is judged for itself."""
        evidence, numbers = self.evidence, read_numbers(said)
        if evidence is None or numbers is None or len(numbers) != self.alike.lacking:
            return None
        conclusion = evidence.of(numbers)
        if conclusion is None:
            return None
        made = self.forms[said] = packer.form(conclusion, evidence.pick(numbers))
        return made


_Found = tuple[_Template, bytes, _Digests]
"""What fills a template in the result of an outcome: its numbers, as they are written, and its digests."""


def _template_of(alike: AlikeResult, task: BulkJudging) -> _Template | None:
    """None where each of the outcomes is judged for itself."""
    if alike.sources is not None:
        return _Template(alike, task.evidence_of(alike))
    return _Template(alike, None) if task.may_measure else None


class _Rows:
    """Results that rows hold whole, while their outcomes are judged."""

    def __init__(self, known_alike: Mapping[str, AlikeResults], task: BulkJudging) -> None:
        self._known_alike, self._task = known_alike, task
        self._templates: dict[AlikeResult, _Template | None] = {}
        self._to_learn = MAX_LEARNT

    def find(self, outcome: OutcomePlace, kept: KeptResult) -> _Found | None:
        """The result of an outcome; None where it is judged for itself."""
        known, contract_id, written = self._known_alike[outcome[6]], outcome[7], kept[2]
        found = None if written is None else known.find(written, contract_id)
        if found is None:
            if written is None or not self._to_learn:
                return None
            # Of a kind that was not met lately. What has no template is taken apart in vain, so that has an end.
            self._to_learn -= 1
            known.read(written)
            found = known.find(written, contract_id)
            if found is None:
                return None
        alike, said, digests = found
        if alike not in self._templates:
            self._templates[alike] = _template_of(alike, self._task)
        template = self._templates[alike]
        return None if template is None else (template, said, digests)


class _OpenSegment:
    """A segment while its outcomes are judged."""

    __slots__ = ("digests", "lines", "templates", "versions")

    def __init__(self, versions: OpenVersions) -> None:
        self.lines, self.digests = versions.quick_lines(), versions.digests()
        self.versions = versions
        self.templates: dict[int, _Template | None] = {}

    def template(self, place: int, number: int, alike: AlikeResults, task: BulkJudging) -> _Template | None:
        """What is needed for the outcomes of one template; None where each is judged for itself."""
        if number not in self.templates:
            found = self.versions.split(place)
            stored = alike.fit(self.versions.templates[number], found[1]) if isinstance(found, tuple) else None
            self.templates[number] = _template_of(stored.alike, task) if isinstance(stored, StoredResult) else None
        return self.templates[number]


class _Segments:
    """Results that segments hold, while their outcomes are judged."""

    def __init__(
        self,
        page: Sequence[LatestVersion],
        segments: SegmentReader,
        known_alike: Mapping[str, AlikeResults],
        task: BulkJudging,
    ) -> None:
        self._segments, self._known_alike, self._task = segments, known_alike, task
        self._wanted = Counter([leaf for _, (leaf, place, _) in page if place is not None])
        self._opened: dict[tuple[int, str], _OpenSegment | None] = {}
        self._last: tuple[int, str] | None = None
        self._segment: _OpenSegment | None = None

    def find(self, outcome: OutcomePlace, kept: KeptResult) -> _Found | None:
        """The result of an outcome; None where it is judged for itself."""
        outcome_id, _, version, _, _, _, digest, contract_id, _ = outcome
        leaf, place, _ = kept
        key = leaf, digest
        if key != self._last:
            self._last, self._segment = key, self._open(key)
        segment = self._segment
        if segment is None or place is None or not 0 <= place < len(segment.lines):
            return None
        line = segment.lines[place]
        number = line.template
        if number < 0 or line.outcome != outcome_id or line.contract != contract_id or line.version != version:
            return None
        template = segment.templates.get(number) or segment.template(
            place, number, self._known_alike[digest], self._task
        )
        # What follows the time.
        said = bytes(line.result).partition(b",")[2][:-1]
        return None if template is None else (template, said, segment.digests[place])

    def _open(self, key: tuple[int, str]) -> _OpenSegment | None:
        """A segment of which many versions are judged; None for others."""
        if key not in self._opened:
            stored = self._segments.segment(key[0])
            many = self._wanted[key[0]] * MIN_SHARE >= len(stored)
            self._opened[key] = _OpenSegment(stored) if many else None
        return self._opened[key]


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
    in_segment, in_row = _Segments(page, segments, known_alike, task).find, _Rows(known_alike, task).find
    for one in page:
        outcome, kept = one
        if outcome[7].startswith(_AWARDED):
            rest.append(one)
            continue
        found = in_row(outcome, kept) if kept[1] is None else in_segment(outcome, kept)
        if found is None:
            rest.append(one)
            continue
        template, said, digests = found
        if template.evidence is None:
            judged.asking.append(PlainOutcome(outcome, kept, template.alike, digests))
            continue
        form = template.forms.get(said) or template.make_form(said, packer)
        if form is None:
            rest.append(one)
        else:
            packer.add(outcome, template.alike, form, digests)
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
