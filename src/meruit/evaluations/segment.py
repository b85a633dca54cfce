"""The blob of a segment: one line of JSON for each case, compressed together. Pure."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from meruit.errors import StoreError
from meruit.log.commitment import SALT_BYTES, commitment
from meruit.log.segment import MAX_CASES, CaseEntry, case_bytes
from meruit.model.record import Record

SALTS = 4
"""One each for input, output, metadata and the result."""
_HEX = 2 * SALT_BYTES
LEVEL = 1
"""Of the compression: higher levels save a tenth more and take three times as long."""
MAX_SEGMENT_BYTES = 1 << 30
"""A blob that would unpack to more than this is damaged."""
NOTHING = msgspec.Raw()
"""In place of a part that was erased."""
_WRITER = msgspec.json.Encoder(order="sorted")


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


def pack(cases: Sequence[CaseContent]) -> bytes:
    """The blob of a segment."""
    if not 0 < len(cases) <= MAX_CASES:
        raise ValueError(f"a segment has 1 to {MAX_CASES} cases, not {len(cases)}")
    return zlib.compress(b"\n".join(map(_WRITER.encode, cases)), LEVEL)


def unpack(blob: bytes) -> list[CaseContent]:
    """The cases of a segment, in order; raises StoreError for a blob that is damaged."""
    reader = zlib.decompressobj()
    try:
        lines = reader.decompress(blob, MAX_SEGMENT_BYTES)
        if not reader.eof:
            raise StoreError("a segment is cut off or too large; restore it from a copy")
        return [msgspec.json.decode(line, type=CaseContent) for line in lines.split(b"\n")]
    except (zlib.error, msgspec.DecodeError) as problem:
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
