"""Outcomes judged again from evidence, straight into versions for a segment: what most of a rescore goes through.

To the byte what `RescoreTask.judge` and `RescoredVersion.of` give, without the values between them. What is not plain
is left to these.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import msgspec

from meruit.judge.bulk import NumberedEvidence
from meruit.judge.result_template import encode_text
from meruit.log.commitment import PURPOSE, SALT_BYTES
from meruit.model.record import Record
from meruit.outcomes.rescore.alike import AlikeResult, AlikeResults, StoredResult
from meruit.outcomes.segment import DIGESTS_AT, TAIL_HEX, OpenVersions, PackedVersion, QuickLine
from meruit.outcomes.store.batches import LatestVersion
from meruit.outcomes.store.rescored import RescoredVerdict, RescoredVersion
from meruit.outcomes.store.segments import SegmentReader

MIN_SHARE = 16
"""Of a segment, one version in so many must be judged: reading all of its lines is for nothing where few are."""
_AWARDED = "con_"
"""How the contracts begin whose versions are entries of their own."""
_SALT_TO_DIGESTS = TAIL_HEX // 2
_encode = msgspec.json.Encoder().encode

Judge = Callable[[AlikeResult], NumberedEvidence[RescoredVerdict]]


class JudgedPage(Record, frozen=True):
    """Outcomes that were judged together."""

    versions: Sequence[RescoredVersion] = ()
    alike: Sequence[AlikeResult] = ()
    """What each said before."""
    rest: Sequence[LatestVersion] = ()
    """Those that are left."""

    def count(self, recorded: Collection[str]) -> Counter[tuple[AlikeResult, RescoredVerdict]]:
        """How many of those that were recorded turned from what to what."""
        pairs = zip(self.versions, self.alike, strict=True)
        return Counter([(before, one.verdict) for one, before in pairs if one.outcome.id in recorded])


@dataclass(slots=True)
class _Template:
    alike: AlikeResult
    evidence: NumberedEvidence[RescoredVerdict]
    picked: tuple[int, ...]


class _OpenSegment:
    """A segment while its outcomes are judged."""

    def __init__(self, versions: OpenVersions) -> None:
        self.lines = versions.quick_lines()
        self.tails, self.hexes = versions.tails, versions.digests_in_hex()
        self._versions = versions
        self.templates: dict[int, _Template | None] = {}

    def template(self, place: int, line: QuickLine, alike: AlikeResults, judge: Judge) -> _Template | None:
        """What is needed for the outcomes of one template; None where each is judged for itself."""
        number = line.template
        if number not in self.templates:
            found = self._versions.split(place)
            stored = alike.fit(self._versions.templates[number], found[1]) if isinstance(found, tuple) else None
            made = None
            if isinstance(stored, StoredResult) and stored.alike.sources is not None:
                evidence = judge(stored.alike)
                made = _Template(stored.alike, evidence, evidence.picked)
            self.templates[number] = made
        return self.templates[number]


# In one piece: this is all that most outcomes go through, and a call costs as much as most of what it does.
def judge_page(
    page: Sequence[LatestVersion],
    segments: SegmentReader,
    known_alike: Mapping[str, AlikeResults],
    judge: Judge,
    now: bytes,
    entropy: Callable[[int], bytes],
) -> JudgedPage:
    """Judge outcomes of one page; `now` is the time of the rescore as JSON."""
    versions: list[RescoredVersion] = []
    before: list[AlikeResult] = []
    rest: list[LatestVersion] = []
    opened: dict[tuple[int, str], _OpenSegment | None] = {}
    wanted = Counter([one.leaf for one in page if one.place is not None])
    salts = entropy(SALT_BYTES * len(page))
    for number, one in enumerate(page):
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
            place, line, known_alike[one.criteria_digest], judge
        )
        numbers = line.numbers
        shared = None if template is None else template.evidence.of(numbers)
        if template is None or shared is None:
            rest.append(one)
            continue
        at = place * TAIL_HEX + DIGESTS_AT
        hexes, verdict, version = segment.hexes, shared.shared, one.version + 1
        given, made, facts = hexes[at : at + 64], hexes[at + 64 : at + 128], hexes[at + 128 : at + 192]
        contract, outcome_id, index = encode_text(contract_id), one.id.encode(), one.evidence_leaf
        if template.picked:
            encoded = _encode([numbers[picked] for picked in template.picked])
            written = shared.write(contract[1:-1], now, encoded[1:-1].split(b","), given, made, facts)
            known = b"[%b,%b" % (now, encoded[1:])
        else:
            written, known = shared.write(contract[1:-1], now, (), given, made, facts), now
        salt = salts[number * SALT_BYTES : (number + 1) * SALT_BYTES]
        committed = sha256(PURPOSE + salt + sha256(written).digest()).hexdigest().encode()
        end = (place + 1) * _SALT_TO_DIGESTS
        packed = PackedVersion(
            shared.template,
            b'"%b",%b,%d,%d,%b,%b' % (outcome_id, contract, version, index, known, verdict.line),
            salt + segment.tails[end - 96 : end],
            verdict.form % (contract, index, outcome_id, committed, version),
        )
        versions.append(RescoredVersion(one, verdict, packed))
        before.append(template.alike)
    return JudgedPage(versions, before, rest)
