"""The blob of a segment: one line of JSON for each case, compressed together, and behind it the salts. Pure.

Results that differ only in their id, time, digests and numbers are kept once: the first line holds their templates, and
a line names the one of its case. Salts are random, and compressing them would take time and save nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import msgspec

from meruit.errors import StoreError
from meruit.judge.result_template import ResultGaps, ResultTemplate, split_result
from meruit.judge.segment_blob import WHOLE, pack_blob, unpack_blob
from meruit.log.commitment import SALT_BYTES, commitment
from meruit.log.segment import MAX_CASES, CaseEntry, case_bytes
from meruit.model.decoding import decode_json, json_decoder
from meruit.model.record import Record

SALTS = 4
"""One each for input, output, metadata and the result."""
_HEX = 2 * SALT_BYTES
_CASE_SALTS = SALTS * SALT_BYTES
_NO_SALTS = bytes(_CASE_SALTS)
NOTHING = msgspec.Raw()
"""In place of a part that was erased."""
_WRITER = msgspec.json.Encoder()


class CaseContent(Record, frozen=True, omit_defaults=True):
    """All that is kept of one case; once erased, only what the log says of it."""

    case: str
    repeat: int
    outcome: str
    version: int
    input: msgspec.Raw = NOTHING
    output: msgspec.Raw = NOTHING
    metadata: msgspec.Raw = NOTHING
    result: msgspec.Raw = NOTHING
    salts: str | None = None
    """Of the four parts, in hex."""
    verdict: str = ""
    success: bool = False
    score: str = "0"
    bonus_micros: int = 0
    penalty_micros: int = 0
    error_message: str = ""
    erased: CaseEntry | None = None
    """In place of all the parts, where they were erased."""

    def entry(self) -> CaseEntry:
        """What the log commits to."""
        if self.erased is not None:
            return self.erased
        parts = bytes(self.input), bytes(self.output), bytes(self.metadata), bytes(self.result)
        if self.salts is None or not all(parts):
            raise StoreError(f"the case {self.case!r} of a segment is incomplete; restore it from a copy")
        salts = bytes.fromhex(self.salts)
        given, made, facts, result = parts
        return CaseEntry(
            case=self.case,
            repeat=self.repeat,
            outcome=self.outcome,
            version=self.version,
            input=commitment(salts[:SALT_BYTES], given),
            output=commitment(salts[SALT_BYTES : 2 * SALT_BYTES], made),
            metadata=commitment(salts[2 * SALT_BYTES : 3 * SALT_BYTES], facts),
            result=commitment(salts[3 * SALT_BYTES : SALTS * SALT_BYTES], result),
            verdict=self.verdict,
            success=self.success,
            score=self.score,
            bonus_micros=self.bonus_micros,
            penalty_micros=self.penalty_micros,
        )

    def part_salts(self) -> list[str]:
        """The salts of input, output, metadata and result, in hex; empty once erased."""
        return [] if self.salts is None else [self.salts[at : at + _HEX] for at in range(0, SALTS * _HEX, _HEX)]

    def erase(self) -> "CaseContent":
        """The same case without its content: its hashes stay, and say nothing without their salts."""
        return CaseContent(self.case, self.repeat, self.outcome, self.version, erased=self.entry())


class PackedCase(Record, frozen=True):
    """A case as a blob keeps it."""

    template: ResultTemplate | None
    """None where the result is kept as it is."""
    line: bytes
    """After the number of the template."""
    tail: bytes
    """Its salts."""
    is_erased: bool = False


class _CaseLine(msgspec.Struct, array_like=True):
    """A line of a blob."""

    template: int
    case: str
    repeat: int
    outcome: str
    version: int
    input: msgspec.Raw
    output: msgspec.Raw
    metadata: msgspec.Raw
    result: msgspec.Raw
    """Its time, where it has a template; a list of its time and its numbers, where that lacks them."""
    verdict: str
    success: bool
    score: str
    bonus_micros: int
    penalty_micros: int
    error_message: str
    erased: CaseEntry | None = None


# By position, and assembled by hand: it is called for every case.
def write_line(  # noqa: PLR0913 - the fields of a line
    case: bytes,
    repeat: int,
    outcome: str,
    version: int,
    work: tuple[bytes, bytes, bytes],
    result: bytes,
    verdict: str,
    success: bytes,
    score: str,
    bonus_micros: int,
    penalty_micros: int,
    error_message: bytes,
) -> bytes:
    """The line of a case; bytes are JSON already, the texts need no escapes."""
    return b",".join(
        (
            b'%b,%d,"%b",%d' % (case, repeat, outcome.encode(), version),
            *work,
            result,
            b'"%b",%b,"%b",%d,%d' % (verdict.encode(), success, score.encode(), bonus_micros, penalty_micros),
            error_message,
        )
    )


def pack(cases: Sequence[CaseContent]) -> bytes:
    """The blob of a segment."""
    return pack_lines([_pack(case) for case in cases])


def pack_lines(cases: Sequence[PackedCase]) -> bytes:
    """The same of cases whose lines are written."""
    if not 0 < len(cases) <= MAX_CASES:
        raise ValueError(f"a segment has 1 to {MAX_CASES} cases, not {len(cases)}")
    return pack_blob(cases)


def _pack(case: CaseContent) -> PackedCase:
    of = _WRITER.encode
    outcome, verdict, score = case.outcome, case.verdict, case.score
    if case.erased is not None:
        nothing = (b"null", b"null", b"null")
        line = write_line(
            of(case.case),
            case.repeat,
            outcome,
            case.version,
            nothing,
            b"null",
            verdict,
            of(case.success),
            score,
            case.bonus_micros,
            case.penalty_micros,
            of(""),
        )
        return PackedCase(None, b"%b,%b" % (line, of(case.erased)), _NO_SALTS, is_erased=True)
    work = bytes(case.input), bytes(case.output), bytes(case.metadata)
    template, result = _split(bytes(case.result), outcome, work)
    line = write_line(
        of(case.case),
        case.repeat,
        outcome,
        case.version,
        work,
        result,
        verdict,
        of(case.success),
        score,
        case.bonus_micros,
        case.penalty_micros,
        of(case.error_message),
    )
    return PackedCase(template, line, bytes.fromhex(case.salts or ""))


def _split(result: bytes, outcome: str, work: tuple[bytes, bytes, bytes]) -> tuple[ResultTemplate | None, bytes]:
    """The template and the time of a result; the whole where it says anything else of the case than the case does."""
    found = split_result(result)
    if found is None:
        return None, result
    template, gaps = found
    same = gaps == _gaps(outcome, gaps.verified_at, work)
    return (template, gaps.verified_at) if same else (None, result)


def _gaps(outcome: str, verified_at: bytes, work: tuple[bytes, bytes, bytes]) -> ResultGaps:
    given, made, facts = (digest_as_json(part) for part in work)
    return ResultGaps(
        contract_id=b'"%b"' % outcome.encode(), verified_at=verified_at, input=given, output=made, metadata=facts
    )


def digest_as_json(part: bytes) -> bytes:
    """The digest of a part of the work, as results hold it."""
    return EMPTY if part == b"{}" else b'"%b"' % sha256(part).hexdigest().encode()


EMPTY = b'"%b"' % sha256(b"{}").hexdigest().encode()
"""The digest of a part that has nothing in it."""


def unpack(blob: bytes) -> list[CaseContent]:
    """The cases of a segment, in order; raises StoreError for a blob that is damaged."""
    opened = open_segment(blob)
    return [opened.case(place) for place in range(len(opened.lines))]


@dataclass(frozen=True, slots=True)
class OpenSegment:
    """A segment whose cases are read one by one, so that a page of a few reads only these."""

    lines: Sequence[bytes]
    templates: Sequence[ResultTemplate]
    salts: bytes

    def case(self, place: int) -> CaseContent:
        """The case at a place; raises StoreError for one that is damaged."""
        try:
            line = _LINES.decode(self.lines[place])
        except msgspec.DecodeError as problem:
            raise StoreError(f"a segment cannot be read: {problem}; restore it from a copy") from None
        return _content(line, self.templates, self.salts[place * _CASE_SALTS :][:_CASE_SALTS])


def open_segment(blob: bytes) -> OpenSegment:
    """A segment, to read some of its cases; raises StoreError for a blob that is damaged."""
    found = unpack_blob(blob, _CASE_SALTS)
    return OpenSegment(found.lines(), found.templates, found.tails)


_LINES = json_decoder(_CaseLine)


def _content(line: _CaseLine, templates: Sequence[ResultTemplate], salts: bytes) -> CaseContent:
    if line.erased is not None:
        return CaseContent(line.case, line.repeat, line.outcome, line.version, erased=line.erased)
    result = bytes(line.result)
    if line.template != WHOLE:
        if not 0 <= line.template < len(templates):
            raise StoreError("a segment names a template that it does not hold; restore it from a copy")
        work = bytes(line.input), bytes(line.output), bytes(line.metadata)
        result = _fill(templates[line.template], line.outcome, result, work)
    return CaseContent(
        case=line.case,
        repeat=line.repeat,
        outcome=line.outcome,
        version=line.version,
        input=line.input,
        output=line.output,
        metadata=line.metadata,
        result=msgspec.Raw(result),
        salts=salts.hex(),
        verdict=line.verdict,
        success=line.success,
        score=line.score,
        bonus_micros=line.bonus_micros,
        penalty_micros=line.penalty_micros,
        error_message=line.error_message,
    )


def _fill(template: ResultTemplate, outcome: str, known: bytes, work: tuple[bytes, bytes, bytes]) -> bytes:
    """The whole result from what a line says of it."""
    numbers = list[bytes]()
    if known.startswith(b"["):
        known, *numbers = map(bytes, decode_json(known, list[msgspec.Raw]))
    try:
        return template.fill(_gaps(outcome, known, work), numbers)
    except ValueError as problem:
        raise StoreError(f"a segment cannot be read: {problem}; restore it from a copy") from None


def entries_of(cases: Sequence[CaseContent]) -> list[bytes]:
    """What the log's tree over a segment is made of."""
    return [case_bytes(case.entry()) for case in cases]


def payload_of(part: msgspec.Raw) -> Mapping[str, Any] | None:
    """A part of the work as it was handed in; None once erased."""
    if not bytes(part):
        return None
    found: Mapping[str, Any] = msgspec.json.decode(part)
    return found
