"""The layout of a segment's blob, which evaluations and outcomes share. Pure.

Lines of JSON are compressed together; the first one holds the templates of the results. Behind them stands a tail of
fixed length for each line: salts and digests look random, and compressing them would take time and save nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
from isal import isal_zlib

from meruit.errors import StoreError
from meruit.judge.result_template import ResultTemplate
from meruit.model.decoding import decode_json

WHOLE, ERASED = -1, -2
"""In place of the number of a template: the result is kept as it is, or was erased."""
LEVEL = 1
"""Of the compression."""
MAX_SEGMENT_BYTES = 1 << 30
"""A blob that would unpack to more than this is damaged."""
_WRITER = msgspec.json.Encoder()


class SegmentLine(Protocol):
    """A line that is ready for its blob."""

    @property
    def template(self) -> ResultTemplate | None:
        """None where the line holds the whole result."""

    @property
    def line(self) -> bytes:
        """JSON without its brackets."""

    @property
    def tail(self) -> bytes:
        """What stands behind the lines for it."""

    @property
    def is_erased(self) -> bool:
        """Whether its content was erased."""


@dataclass(frozen=True, slots=True)
class SegmentBlob:
    """What a blob holds."""

    text: bytes
    """Its lines, with line feeds between them; JSON has none inside."""
    count: int
    """How many lines there are."""
    templates: Sequence[ResultTemplate]
    tails: bytes

    def lines(self) -> list[bytes]:
        """Each line for itself."""
        return self.text.split(b"\n") if self.count else []


def pack_blob(lines: Sequence[SegmentLine]) -> bytes:
    """The blob of a segment."""
    numbers: dict[ResultTemplate | None, int] = {None: WHOLE}
    written = list[bytes]()
    for one in lines:
        number = numbers.setdefault(one.template, len(numbers) - 1)
        written.append(b"[%d,%b]" % (ERASED if one.is_erased else number, one.line))
    templates = [template for template in numbers if template is not None]
    return join_blob(templates, written, b"".join([one.tail for one in lines]))


def join_blob(templates: Sequence[ResultTemplate], lines: Sequence[bytes], tails: bytes) -> bytes:
    """The same of whole lines, each with its brackets and the number of its template, and all their tails."""
    first = _WRITER.encode([[part.decode() for part in (one.judged, one.summary, one.end)] for one in templates])
    # What zlib's own format and level 1 give, for texts in a quarter of its time.
    return isal_zlib.compress(b"\n".join((first, *lines)), LEVEL) + tails


def unpack_blob(blob: bytes, tail_bytes: int) -> SegmentBlob:
    """The parts of a blob; raises StoreError for one that is damaged."""
    reader = isal_zlib.decompressobj()
    try:
        whole = reader.decompress(blob, MAX_SEGMENT_BYTES)
        if not reader.eof:
            raise StoreError("a segment is cut off or too large; restore it from a copy")
        first, more, text = whole.partition(b"\n")
        parts = decode_json(first, list[tuple[str, str, str]])
    # Its type stub calls the class an exception.
    except (isal_zlib.error, msgspec.DecodeError) as problem:  # type: ignore[misc]
        raise StoreError(f"a segment cannot be read: {problem}; restore it from a copy") from None
    templates = [ResultTemplate(*(part.encode() for part in one)) for one in parts]
    tails, count = reader.unused_data, text.count(b"\n") + 1 if more else 0
    if len(tails) != count * tail_bytes:
        raise StoreError("a segment does not have as many salts as lines; restore it from a copy")
    return SegmentBlob(text, count, templates, tails)
