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
from meruit.outcomes.store.rescored import RescoredVerdict, RescoredVersions, is_awarded
from meruit.outcomes.store.segments import SegmentReader

MIN_SHARE = 16
"""Of a segment, one version in so many must be judged: reading all of its lines is for nothing where few are."""
MAX_LEARNT = 32
"""Results of rows in one page whose templates are learnt."""
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
        # Versions that were judged one by one follow them.
        if len(recorded) == len(self.versions):
            return Counter(zip(self.before, self.versions.verdicts, strict=False))
        judged = zip(self.before, self.versions.verdicts, self.versions.outcomes, strict=False)
        return Counter([(before, verdict) for before, verdict, outcome in judged if outcome[0] in recorded])


class _Form:
    """What versions have in common that follow from one conclusion with the same numbers."""

    __slots__ = ("parts", "verdict")

    def __init__(self, conclusion: _Conclusion, numbers: Sequence[float], now: bytes, template: int) -> None:
        known, encoded = now, list[bytes]()
        if numbers:
            written = _encode(numbers)
            known, encoded = b"[%b,%b" % (now, written[1:]), written[1:-1].split(b",")
        self.verdict = verdict = conclusion.shared
        line = b'[%d,"' % template, b"%b,%b]" % (known, verdict.line)
        self.parts = *conclusion.pieces(now, encoded), *line, verdict.form, verdict.event
        """The pieces of the result; the ends of the line in the segment; its entry and its event."""


_Ready = tuple[OutcomePlace, AlikeResult, _Form, _Digests]
"""What the next version of an outcome is packed from; the second is what its result says so far."""


class _Packer:
    """Packs versions, one for each outcome."""

    def __init__(self, page: JudgedPage, now: bytes, entropy: Callable[[int], bytes]) -> None:
        self._page, self._now, self._entropy = page, now, entropy

    def form(self, conclusion: _Conclusion, numbers: Sequence[float]) -> _Form:
        """What versions have in common."""
        return _Form(conclusion, numbers, self._now, self._page.versions.packed.number_of(conclusion.template))

    # In one loop: this is all that most outcomes go through, and a call costs as much as most of what it does.
    def add_all(self, ready: Sequence[_Ready]) -> None:
        """Add the next version of each outcome."""
        versions, packed = self._page.versions, self._page.versions.packed
        add_line, add_tail, add_hash = packed.lines.append, packed.tails.append, packed.hashes.append
        add_event = versions.events.append
        salts = Struct(f"{SALT_BYTES}s" * len(ready)).unpack(self._entropy(SALT_BYTES * len(ready)))
        for (outcome, _, form, digests), salt in zip(ready, salts, strict=True):
            outcome_id, _, version, _, _, _, _, contract_id, index = outcome
            start, middle, to_made, to_facts, end, head, tail, entry, event = form.parts
            given, made, facts, together = digests
            name, version = outcome_id.encode(), version + 1
            # Most outcomes have no contract but themselves.
            own, contract = name, b'"%b"' % name
            if contract_id != outcome_id:
                contract = _encode(contract_id)
                own = contract[1:-1]
            written = b"".join((start, own, middle, given, to_made, made, to_facts, facts, end))
            committed = sha256(PURPOSE + salt + sha256(written).digest()).hexdigest().encode()
            add_line(b'%b%b",%b,%d,%d,%b' % (head, name, contract, version, index, tail))
            add_tail(salt + together)
            add_hash(sha256(entry % (contract, index, name, committed, version)).digest())
            add_event(event % (name, contract, version))
        versions.outcomes += [one[0] for one in ready]
        versions.verdicts += [one[2].verdict for one in ready]
        self._page.before += [one[1] for one in ready]


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

    __slots__ = ("contracts", "digests", "ids", "lines", "numbers", "templates", "versions")

    def __init__(self, versions: OpenVersions) -> None:
        self.lines, self.digests = versions.quick_lines, versions.digests()
        self.versions = versions
        self.ids, self.contracts = [line.outcome for line in self.lines], [line.contract for line in self.lines]
        self.numbers = [line.version for line in self.lines]
        self.templates: dict[int, _Template | None] = {}

    def said(self, place: int) -> bytes:
        """The numbers of a result, as its line has them: what follows the time."""
        return bytes(self.lines[place].result).partition(b",")[2][:-1]

    def template(self, place: int, alike: AlikeResults, task: BulkJudging) -> _Template | None:
        """What is needed for the outcomes of the template at a place; None where each is judged for itself."""
        number = self.lines[place].template
        if number < 0:
            return None
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

    def find(self, outcome: OutcomePlace, kept: KeptResult) -> _Found | None:
        """The result of an outcome; None where it is judged for itself."""
        outcome_id, _, version, _, _, _, digest, contract_id, _ = outcome
        leaf, place, _ = kept
        segment = self._open((leaf, digest))
        if segment is None or place is None or not 0 <= place < len(segment.lines):
            return None
        if (segment.ids[place], segment.contracts[place], segment.numbers[place]) != (outcome_id, contract_id, version):
            return None
        template = segment.template(place, self._known_alike[digest], self._task)
        return None if template is None else (template, segment.said(place), segment.digests[place])

    def find_all(self, page: Sequence[LatestVersion]) -> list[_Found] | None:
        """The results of a page that one segment holds, one beside the other; None for any other page."""
        outcomes, kept = zip(*page, strict=True)
        ids, _, versions, _, _, _, digests, contracts, _ = map(list, zip(*outcomes, strict=True))
        leaves, places, _ = zip(*kept, strict=True)
        first = places[0]
        if first is None or len({*digests}) > 1 or len({*leaves}) > 1 or places != (*range(first, first + len(page)),):
            return None
        segment, digest = self._open((leaves[0], digests[0])), digests[0]
        some = slice(first, first + len(page))
        if (
            segment is None
            or segment.ids[some] != ids
            or segment.contracts[some] != contracts
            or segment.numbers[some] != versions
        ):
            return None
        alike, task, known = self._known_alike[digest], self._task, segment.templates
        found: list[_Found] = []
        for place, (line, held) in enumerate(zip(segment.lines[some], segment.digests[some], strict=True), first):
            template = known.get(line.template) or segment.template(place, alike, task)
            if template is None:
                return None
            # As `said` does.
            found.append((template, bytes(line.result).partition(b",")[2][:-1], held))
        return found

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
    judged, rest, ready = JudgedPage(), list[LatestVersion](), list[_Ready]()
    packer = _Packer(judged, task.written_now, entropy)
    for one, found in zip(page, _find(page, segments, known_alike, task), strict=True):
        if found is None:
            rest.append(one)
            continue
        template, said, digests = found
        if template.evidence is None:
            judged.asking.append(PlainOutcome(*one, template.alike, digests))
            continue
        form = template.forms.get(said) or template.make_form(said, packer)
        if form is None:
            rest.append(one)
        else:
            ready.append((one[0], template.alike, form, digests))
    packer.add_all(ready)
    judged.rest = rest
    return judged


def _find(
    page: Sequence[LatestVersion],
    segments: SegmentReader,
    known_alike: Mapping[str, AlikeResults],
    task: BulkJudging,
) -> Sequence[_Found | None]:
    """The result of each outcome; None for one that is judged for itself."""
    in_segments, in_rows = _Segments(page, segments, known_alike, task), _Rows(known_alike, task)
    awarded = any(is_awarded(outcome[7]) for outcome, _ in page)
    found = None if awarded or not page else in_segments.find_all(page)
    if found is not None:
        return found
    return [
        None if is_awarded(outcome[7]) else (in_rows if kept[1] is None else in_segments).find(outcome, kept)
        for outcome, kept in page
    ]


def measure_page(
    asking: Sequence[PlainOutcome],
    works: Mapping[str, OutcomeWork],
    task: BulkJudging,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge the outcomes whose work is at hand."""
    judged, rest = JudgedPage(from_evidence=False), list[LatestVersion]()
    packer, ready = _Packer(judged, task.written_now, entropy), list[_Ready]()
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
        ready.append((outcome, before, form, digests))
    packer.add_all(ready)
    judged.rest = rest
    return judged
