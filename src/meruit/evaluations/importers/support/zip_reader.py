"""ZIP archives with Zstandard (method 93), which Python's own reader does not open; damaged ones as far as they go."""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

import msgspec

from meruit.errors import ImportDamaged

STORED, DEFLATED, ZSTANDARD = 0, 8, 93
MAX_ENTRY_BYTES = 256 * 1024 * 1024
"""The largest entry after unpacking: what would be larger is refused before it fills the memory."""
MAX_ENTRIES = 1_000_000
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_DESCRIPTOR = 0x08
"""The flag of an entry whose sizes follow its content."""


class ZipEntry(msgspec.Struct, frozen=True):
    """Where an entry lies, and what it must be."""

    name: str
    at: int
    """Of its local header."""
    packed: int
    size: int
    method: int
    crc: int


class ZipArchive(msgspec.Struct, frozen=True):
    """The entries of an archive; the last of a name counts."""

    entries: dict[str, ZipEntry]
    is_whole: bool
    """Whether the archive has its directory: it was closed, and not cut off."""


def list_entries(file: BinaryIO) -> ZipArchive:
    """The entries by the directory; without one, by walking the entries from the first to where they break off."""
    try:
        with zipfile.ZipFile(file) as archive:
            listed = archive.infolist()
    except (zipfile.BadZipFile, ValueError, OSError, struct.error, UnicodeDecodeError, NotImplementedError):
        return ZipArchive({one.name: one for one in _walk(file)}, is_whole=False)
    if len(listed) > MAX_ENTRIES:
        raise ImportDamaged(f"the archive has more than {MAX_ENTRIES:,} entries")
    return ZipArchive(
        {
            one.filename: ZipEntry(
                name=one.filename,
                at=one.header_offset,
                packed=one.compress_size,
                size=one.file_size,
                method=one.compress_type,
                crc=one.CRC,
            )
            for one in listed
        },
        is_whole=True,
    )


def _walk(file: BinaryIO) -> Iterator[ZipEntry]:
    end, at = file.seek(0, 2), 0
    for _ in range(MAX_ENTRIES):
        head = _local_header(file, at)
        if head is None:
            return
        name, start, flags, method, crc, packed, size = head
        if flags & _DESCRIPTOR or start + packed > end:
            return
        yield ZipEntry(name=name, at=at, packed=packed, size=size, method=method, crc=crc)
        at = start + packed


def _local_header(file: BinaryIO, at: int) -> tuple[str, int, int, int, int, int, int] | None:
    """Name, start of the content, flags, method, checksum and sizes of an entry; None where there is none."""
    file.seek(at)
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size or head[:4] != b"PK\x03\x04":
        return None
    _, _, flags, method, _, _, crc, packed, size, name_size, extra_size = _LOCAL.unpack(head)
    name = file.read(name_size).decode(errors="replace")
    return name, at + _LOCAL.size + name_size + extra_size, flags, method, crc, packed, size


def read_entry(file: BinaryIO, entry: ZipEntry) -> bytes:
    """The content of an entry; raises ImportDamaged for one that is damaged, too large, or packed in an unknown way."""
    head = _local_header(file, entry.at)
    if head is None:
        raise ImportDamaged(f"the entry {entry.name!r} is not where the directory says")
    if entry.packed > MAX_ENTRY_BYTES or entry.size > MAX_ENTRY_BYTES:
        raise ImportDamaged(f"the entry {entry.name!r} is larger than {MAX_ENTRY_BYTES // 2**20} MiB")
    file.seek(head[1])
    content = _unpack(file.read(entry.packed), entry)
    if len(content) > MAX_ENTRY_BYTES:
        raise ImportDamaged(f"the entry {entry.name!r} is larger than {MAX_ENTRY_BYTES // 2**20} MiB")
    if len(content) != entry.size or zlib.crc32(content) != entry.crc:
        raise ImportDamaged(f"the entry {entry.name!r} is damaged: its checksum is wrong")
    return content


def _unpack(packed: bytes, entry: ZipEntry) -> bytes:
    if entry.method == STORED:
        return packed
    if entry.method == DEFLATED:
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(packed, MAX_ENTRY_BYTES + 1)
        except zlib.error as problem:
            raise ImportDamaged(f"the entry {entry.name!r} is damaged: {problem}") from None
    if entry.method == ZSTANDARD:
        # Only these archives need it.
        import zstandard

        try:
            with zstandard.ZstdDecompressor().stream_reader(packed, read_across_frames=True) as reader:
                return reader.read(MAX_ENTRY_BYTES + 1)
        except zstandard.ZstdError as problem:
            raise ImportDamaged(f"the entry {entry.name!r} is damaged: {problem}") from None
    raise ImportDamaged(f"the entry {entry.name!r} is packed by method {entry.method}, which is not supported")
