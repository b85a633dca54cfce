"""The blob of a segment of versions: a line of JSON for each, compressed together, then salts and digests. Pure.

Results that differ only in their id, time, digests and numbers are kept once: the first line holds their templates,
and a line names the one of its version. Salts and digests look random, and compressing them would take time and save
nothing.
"""

from binascii import hexlify, unhexlify
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from struct import Struct
from typing import TypeVar

import msgspec

from meruit.errors import StoreError
from meruit.judge.result_template import (
    ResultGaps,
    ResultTemplate,
    encode_text,
    split_result,
    take_numbers,
    write_numbers,
)
from meruit.judge.segment_blob import ERASED, WHOLE, SegmentBlob, join_blob, unpack_blob
from meruit.log.commitment import SALT_BYTES, commitment
from meruit.log.merkle import Frontier, leaf_hash
from meruit.log.segment import MAX_CASES, VersionEntry, version_bytes
from meruit.model.decoding import decode_json, json_decoder
from meruit.model.record import Record

_DIGEST_BYTES = 32
_TAIL = SALT_BYTES + 3 * _DIGEST_BYTES
"""What stands behind the lines for each version: its salt, and the digests of input, output and metadata."""
_NO_DIGESTS = bytes(3 * _DIGEST_BYTES)
_NO_TAIL = bytes(_TAIL)
_HEX = 2 * _DIGEST_BYTES + 2
"""A digest as JSON."""
_WRITER = msgspec.json.Encoder()

T = TypeVar("T")
Evidence = tuple[str, str, str]
"""Input, output and metadata, as salted hashes."""


class VersionContent(Record, frozen=True):
    """All that is kept of one version; once erased, only what the log says of it."""

    outcome: str
    contract: str
    version: int
    verdict: str
    success: bool
    score: str
    """As a fraction."""
    bonus_micros: int
    penalty_micros: int
    result: bytes | None
    """As JSON; None once erased."""
    salt: bytes
    """Empty once erased."""
    evidence_index: int | None = None
    """Where the log holds what was judged; None for a first version, which brings it along."""
    evidence: Evidence | None = None
    """Of a first version."""
    erased: str = ""
    """The salted hash of the result, once that was erased."""

    def entry(self) -> VersionEntry:
        """What the log commits to."""
        given, made, facts = self.evidence or ("", "", "")
        return VersionEntry(
            outcome=self.outcome,
            contract=self.contract,
            version=self.version,
            result=self.erased if self.result is None else commitment(self.salt, self.result),
            verdict=self.verdict,
            success=self.success,
            score=self.score,
            bonus_micros=self.bonus_micros,
            penalty_micros=self.penalty_micros,
            evidence_index=self.evidence_index,
            input=given,
            output=made,
            metadata=facts,
        )

    def erase(self) -> "VersionContent":
        """The same without its result: the hash stays, and says nothing without its salt."""
        return msgspec.structs.replace(self, result=None, salt=b"", erased=self.entry().result)


class PackedVersion(Record, frozen=True):
    """A version as a blob keeps it, and as the log commits to it."""

    template: ResultTemplate | None
    """None where the result is kept as it is, or was erased."""
    line: bytes
    """After the number of the template."""
    tail: bytes
    entry: bytes
    is_erased: bool = False


class _VersionLine(msgspec.Struct, array_like=True):
    """A line of a blob."""

    template: int
    outcome: str
    contract: str
    version: int
    evidence_index: int | None
    result: msgspec.Raw
    """Its time, where it has a template, or a list of its time and its numbers; once erased, the salted hash."""
    verdict: str
    success: bool
    score: str
    bonus_micros: int
    penalty_micros: int
    evidence: Evidence | None = None


class QuickLine(msgspec.Struct, array_like=True, gc=False):
    """The first fields of the same line, read for all lines at once."""

    template: int
    outcome: str
    contract: str
    version: int
    evidence_index: int | None
    result: msgspec.Raw
    """As in the line: it is read once for all lines that say the same."""
    verdict: str
    success: bool
    score: str


class _ResultLine(msgspec.Struct, array_like=True, gc=False):
    """The first fields of the same line, for callers that need the result only."""

    template: int
    outcome: msgspec.Raw
    contract: msgspec.Raw
    version: msgspec.Raw
    evidence_index: msgspec.Raw
    result: msgspec.Raw


def describe_verdict(verdict: str, success: bool, score: str, bonus_micros: int, penalty_micros: int) -> bytes:  # noqa: FBT001 - a field
    """The end of a line, which versions that ended alike share."""
    return b'"%b",%b,"%b",%d,%d' % (
        *(verdict.encode(), b"true" if success else b"false", score.encode()),
        *(bonus_micros, penalty_micros),
    )


def pack_digests(gaps: ResultGaps) -> bytes | None:
    """The digests of input, output and metadata, as bytes; None where one is missing."""
    if not len(gaps.input) == len(gaps.output) == len(gaps.metadata) == _HEX:
        return None
    return unhexlify(gaps.input[1:-1] + gaps.output[1:-1] + gaps.metadata[1:-1])


class ResultParts(Record, frozen=True):
    """What a result adds to its template; its time is written as JSON, as its id is."""

    contract: bytes
    verified_at: bytes
    digests: bytes
    """Of input, output and metadata, 32 bytes each."""
    numbers: Sequence[float] = ()
    """Those that the template lacks."""

    def in_hex(self) -> tuple[bytes, bytes, bytes]:
        """The digests in hex."""
        digests = hexlify(self.digests)
        return digests[:64], digests[64:128], digests[128:]

    def fill(self, template: ResultTemplate) -> bytes:
        """The whole result; raises StoreError where the template lacks more numbers."""
        gaps = ResultGaps(self.contract, self.verified_at, *(b'"%b"' % digest for digest in self.in_hex()))
        try:
            return template.fill(gaps, write_numbers(self.numbers))
        except ValueError as problem:
            raise _unreadable(problem) from None

    def known(self) -> bytes:
        """What the line of a version says of its result."""
        return b"[%b,%b" % (self.verified_at, _WRITER.encode(self.numbers)[1:]) if self.numbers else self.verified_at


# By position, and assembled by hand: it is called for every outcome of a rescore.
def write_line(
    outcome: bytes, contract: bytes, version: int, evidence_index: int | None, result: bytes, judged: bytes
) -> bytes:
    """The line of a version; contract and result are JSON, `judged` from describe_verdict."""
    if evidence_index is None:
        return b'"%b",%b,%d,null,%b,%b' % (outcome, contract, version, result, judged)
    return b'"%b",%b,%d,%d,%b,%b' % (outcome, contract, version, evidence_index, result, judged)


def pack_version(content: VersionContent) -> PackedVersion:
    """A version, ready for its blob."""
    judged = describe_verdict(
        content.verdict, content.success, content.score, content.bonus_micros, content.penalty_micros
    )
    if content.evidence is not None:
        judged = b"%b,%b" % (judged, _WRITER.encode(content.evidence))
    contract = encode_text(content.contract)
    where = content.outcome.encode(), contract, content.version, content.evidence_index
    entry = version_bytes(content.entry())
    if content.result is None:
        line = write_line(*where, encode_text(content.erased), judged)
        return PackedVersion(None, line, _NO_TAIL, entry, is_erased=True)
    found = split_result(content.result)
    if found is not None and found[1].contract_id == contract:
        template, gaps = found
        digests = pack_digests(gaps)
        if digests is not None:
            template, numbers = take_numbers(template)
            line = write_line(*where, ResultParts(contract, gaps.verified_at, digests, numbers).known(), judged)
            return PackedVersion(template, line, content.salt + digests, entry)
    return PackedVersion(None, write_line(*where, content.result, judged), content.salt + _NO_DIGESTS, entry)


@dataclass(frozen=True, slots=True)
class SegmentDraft:
    """A segment, ready to be written."""

    versions: int
    blob: bytes
    root: bytes
    """Of the tree over the versions, which the log commits to."""


class PackedVersions:
    """Versions on their way into one segment: of each column, one value for each version."""

    __slots__ = ("hashes", "lines", "numbers", "tails")

    def __init__(self) -> None:
        self.numbers: dict[ResultTemplate, int] = {}
        """Of each template, in the order in which they were met."""
        self.lines: list[bytes] = []
        """With their brackets and the number of the template."""
        self.tails: list[bytes] = []
        self.hashes: list[bytes] = []
        """Of what the log commits to."""

    def __len__(self) -> int:
        """How many there are."""
        return len(self.lines)

    def add(self, version: PackedVersion) -> None:
        """Add one version."""
        number = WHOLE if version.template is None else self.number_of(version.template)
        self.lines.append(b"[%d,%b]" % (ERASED if version.is_erased else number, version.line))
        self.tails.append(version.tail)
        self.hashes.append(leaf_hash(version.entry))

    def number_of(self, template: ResultTemplate) -> int:
        """The number of a template, which is kept from now on."""
        return self.numbers.setdefault(template, len(self.numbers))

    def pick(self, places: Sequence[int]) -> "PackedVersions":
        """Some of them, with the templates that these need: one that no line needs may say what was erased."""
        templates, made = [*self.numbers], PackedVersions()
        for place in places:
            number, comma, rest = self.lines[place][1:].partition(b",")
            if int(number) >= 0:
                number = b"%d" % made.number_of(templates[int(number)])
            made.lines.append(b"[" + number + comma + rest)
            made.tails.append(self.tails[place])
            made.hashes.append(self.hashes[place])
        return made

    def draft(self) -> SegmentDraft:
        """The blob of their segment, and its root; raises ValueError where they are too many, or none."""
        if not 0 < len(self) <= MAX_CASES:
            raise ValueError(f"a segment has 1 to {MAX_CASES} versions, not {len(self)}")
        root = Frontier(0, ()).extend(self.hashes).root()
        return SegmentDraft(len(self), join_blob([*self.numbers], self.lines, b"".join(self.tails)), root)


def pack(versions: Sequence[PackedVersion]) -> SegmentDraft:
    """The blob of a segment, and its root."""
    gathered = PackedVersions()
    for one in versions:
        gathered.add(one)
    return gathered.draft()


_LINE = json_decoder(_VersionLine)
_NUMBERS = json_decoder(list[int | float])
_QUICK_LINES = json_decoder(list[QuickLine])
_BYTES_FORM = Struct(f"{SALT_BYTES}x{3 * _DIGEST_BYTES}s")
_HEX_FORM = Struct(f"{2 * SALT_BYTES}x" + 3 * f"{2 * _DIGEST_BYTES}s")
"""The tail of a version, and the same in hex."""
_RESULT_LINE = json_decoder(_ResultLine)


@dataclass(frozen=True)
class OpenVersions:
    """A segment whose versions are read one by one."""

    blob: SegmentBlob

    @cached_property
    def lines(self) -> list[bytes]:
        """One for each version."""
        return self.blob.lines()

    @property
    def templates(self) -> Sequence[ResultTemplate]:
        """Those that lines name by their number."""
        return self.blob.templates

    def __len__(self) -> int:
        """How many versions there are."""
        return self.blob.count

    def contents(self) -> list[VersionContent]:
        """All versions, in order; raises StoreError for one that is damaged."""
        return [self.content(place) for place in range(len(self.lines))]

    def content(self, place: int) -> VersionContent:
        """The version at a place; raises StoreError for one that is damaged."""
        line = self._line(place)
        is_erased = line.template == ERASED
        return VersionContent(
            outcome=line.outcome,
            contract=line.contract,
            version=line.version,
            verdict=line.verdict,
            success=line.success,
            score=line.score,
            bonus_micros=line.bonus_micros,
            penalty_micros=line.penalty_micros,
            result=None if is_erased else self._whole(line, place),
            salt=b"" if is_erased else self._tail(place)[:SALT_BYTES],
            evidence_index=line.evidence_index,
            evidence=line.evidence,
            erased=bytes(line.result).decode().strip('"') if is_erased else "",
        )

    @cached_property
    def quick_lines(self) -> list[QuickLine]:
        """The first fields of all lines; raises StoreError where one is damaged."""
        try:
            lines = _QUICK_LINES.decode(b"[%b]" % self.blob.text.replace(b"\n", b","))
        except msgspec.DecodeError as problem:
            raise _unreadable(problem) from None
        if len(lines) != len(self):
            raise StoreError("a segment cannot be read: a line holds several versions; restore it from a copy")
        return lines

    def digests(self) -> list[tuple[bytes, bytes, bytes, bytes]]:
        """The digests of input, output and metadata of each version, in hex, and as bytes one after the other."""
        in_hex, together = _HEX_FORM.iter_unpack(hexlify(self.blob.tails)), _BYTES_FORM.iter_unpack(self.blob.tails)
        return [(*each, joined) for each, (joined,) in zip(in_hex, together, strict=True)]

    def result(self, place: int) -> bytes | None:
        """The result at a place, as JSON; None once erased."""
        line = self._line(place)
        return None if line.template == ERASED else self._whole(line, place)

    def is_of(self, place: int, outcome: str, version: int) -> bool:
        """Whether this version of this outcome is at a place."""
        line = self._decode(_RESULT_LINE, place)
        return (bytes(line.outcome), bytes(line.version)) == (b'"%b"' % outcome.encode(), b"%d" % version)

    def split(self, place: int) -> tuple[int, ResultParts] | bytes | None:
        """The number of the result's template, and what fills it; else the whole, and None once erased."""
        line = self._decode(_RESULT_LINE, place)
        if line.template == ERASED:
            return None
        if line.template == WHOLE:
            return bytes(line.result)
        self._template(line.template)
        return line.template, self._parts(bytes(line.contract), line.result, place)

    def _line(self, place: int) -> _VersionLine:
        return self._decode(_LINE, place)

    def _decode(self, reader: msgspec.json.Decoder[T], place: int) -> T:
        if not 0 <= place < len(self.lines):
            raise StoreError(f"a segment has no version at {place}; restore it from a copy")
        try:
            return reader.decode(self.lines[place])
        except msgspec.DecodeError as problem:
            raise _unreadable(problem) from None

    def _whole(self, line: _VersionLine, place: int) -> bytes:
        if line.template == WHOLE:
            return bytes(line.result)
        return self._parts(encode_text(line.contract), line.result, place).fill(self._template(line.template))

    def _template(self, number: int) -> ResultTemplate:
        if not 0 <= number < len(self.templates):
            raise StoreError("a segment names a template that it does not hold; restore it from a copy")
        return self.templates[number]

    def _parts(self, contract: bytes, known: msgspec.Raw, place: int) -> ResultParts:
        written = bytes(known)
        if not written.startswith(b"["):
            return ResultParts(contract, written, self._tail(place)[SALT_BYTES:])
        try:
            verified_at, *numbers = decode_json(written, list[msgspec.Raw])
            return ResultParts(
                contract,
                bytes(verified_at),
                self._tail(place)[SALT_BYTES:],
                _NUMBERS.decode(b"[%b]" % b",".join(numbers)),
            )
        except (ValueError, msgspec.DecodeError) as problem:
            raise _unreadable(problem) from None

    def _tail(self, place: int) -> bytes:
        return self.blob.tails[place * _TAIL : (place + 1) * _TAIL]


def open_versions(blob: bytes) -> OpenVersions:
    """A segment, to read some of its versions; raises StoreError for a blob that is damaged."""
    return OpenVersions(unpack_blob(blob, _TAIL))


def _unreadable(problem: Exception) -> StoreError:
    return StoreError(f"a segment cannot be read: {problem}; restore it from a copy")
