"""How a dataset is kept: canonical rows in chunks whose borders follow the content. Pure.

A border depends on the row before it alone, so that versions which differ in a few rows share all other chunks.
"""

import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from meruit.errors import InvalidCase, StoreError
from meruit.evaluations.evaluation import Case
from meruit.model.canonical import payload_bytes
from meruit.model.decoding import decode_json

FEWEST_ROWS, MOST_ROWS = 16, 1_024
"""Of a chunk; the last may be shorter."""
ONE_IN = 256
"""One row in so many ends a chunk."""
CHUNK_BYTES = 4 * 1024 * 1024
"""A chunk ends once its rows are this large together."""
MAX_UNPACKED = 1 << 30
"""A chunk that would unpack to more than this is damaged."""
LEVEL = 6
"""Of the compression: datasets are written once and read often."""
_DEFAULTS = msgspec.to_builtins(Case(""))


def write_row(case: Case) -> bytes:
    """A case in canonical form, on one line; raises InvalidCase for what is not plain JSON."""
    parts = msgspec.to_builtins(case)
    row = {name: value for name, value in parts.items() if name == "id" or value != _DEFAULTS[name]}
    written = payload_bytes(row)
    if written is None:
        raise InvalidCase(f"the case {case.id!r} is not plain JSON (NaN, a date, or nested too deeply)")
    return written


def read_row(line: bytes) -> Case:
    """The case of a row; raises StoreError for a damaged one."""
    try:
        return decode_json(line, Case)
    except msgspec.DecodeError as problem:
        raise StoreError(f"a row of a dataset cannot be read: {problem}; restore it from a copy") from None


def split(rows: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The rows in chunks."""
    chunk: list[bytes] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += len(row)
        at_border = len(chunk) >= FEWEST_ROWS and zlib.crc32(row) % ONE_IN == 0
        if at_border or len(chunk) >= MOST_ROWS or size >= CHUNK_BYTES:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def pack_chunk(rows: Sequence[bytes]) -> bytes:
    """The blob of a chunk."""
    return zlib.compress(b"\n".join(rows), LEVEL)


def unpack_chunk(blob: bytes) -> list[bytes]:
    """The rows of a chunk; raises StoreError for a blob that is damaged."""
    reader = zlib.decompressobj()
    try:
        lines = reader.decompress(blob, MAX_UNPACKED)
    except zlib.error as problem:
        raise StoreError(f"a chunk of a dataset cannot be read: {problem}; restore it from a copy") from None
    if not reader.eof:
        raise StoreError("a chunk of a dataset is cut off or too large; restore it from a copy")
    return lines.split(b"\n")
