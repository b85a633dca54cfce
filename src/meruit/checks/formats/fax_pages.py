"""Pages of a fax, as services take them: PDF with its text, TIFF as pictures."""

import io
import re
import struct
from enum import StrEnum
from typing import Any

import msgspec

from meruit.errors import MissingExtra, UnreadableContent

MAX_PAGES = 200
MAX_PAGE_TEXT = 100_000
"""Characters of one page that are read."""
_SPACE = re.compile(r"\s+")
_BYTE_ORDERS = {b"II*\0": "<", b"MM\0*": ">"}
_WIDTH, _LENGTH, _STRIP_OFFSETS, _STRIP_BYTES, _TILE_OFFSETS, _TILE_BYTES = 256, 257, 273, 279, 324, 325
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4}
"""Bytes of a value, by TIFF's number of its type."""
_NUMBERS = {1: "B", 3: "H", 4: "I", 13: "I"}
_MAX_TAGS = 512
_MAX_STRIPS = 65_536


class FaxFormat(StrEnum):
    """The format of a faxed document."""

    PDF = "pdf"
    TIFF = "tiff"


class FaxPages(msgspec.Struct, frozen=True):
    """What can be read of a faxed document."""

    format: FaxFormat
    texts: tuple[str, ...]
    """The text of each page, spaces and line ends as one space; empty for a picture."""

    @property
    def pictures(self) -> int:
        """Pages without text; what they show is not read."""
        return sum(not text for text in self.texts)


def read_pages(content: bytes) -> FaxPages:
    """Read a PDF or TIFF; raises UnreadableContent."""
    if content[:4] in _BYTE_ORDERS:
        return FaxPages(FaxFormat.TIFF, ("",) * _count_tiff_pages(content))
    if b"%PDF-" in content[:1024]:
        return FaxPages(FaxFormat.PDF, _read_pdf(content))
    raise UnreadableContent.at("is neither PDF nor TIFF", content, 0)


def _read_pdf(content: bytes) -> tuple[str, ...]:
    try:
        from pypdf import PdfReader
    except ImportError as missing:
        raise MissingExtra.of(missing) or missing from None
    texts: tuple[str, ...] = ()
    try:
        document = PdfReader(io.BytesIO(content))
        why = _why_unreadable(None if document.is_encrypted else len(document.pages))
        if not why:
            texts = tuple(_SPACE.sub(" ", page.extract_text()[:MAX_PAGE_TEXT]).strip() for page in document.pages)
    except Exception as fault:  # noqa: BLE001 - a damaged file breaks the library in any way
        why = f"is not a valid PDF ({type(fault).__name__})"
    if why:
        raise UnreadableContent.at(why, content, 0)
    return texts


def _why_unreadable(pages: int | None) -> str:
    """Why a PDF of so many pages is not read; None for one that is encrypted."""
    if pages is None:
        return "is encrypted"
    if pages > MAX_PAGES:
        return f"has {pages:,} pages; at most {MAX_PAGES} are read"
    return "" if pages else "has no pages"


def _count_tiff_pages(content: bytes) -> int:
    """Follow the chain of directories; each must describe a picture whose data is in the file."""
    order = _BYTE_ORDERS[content[:4]]
    pages, seen = 0, set[int]()
    (offset,) = _unpack(content, order, "I", 4)
    while offset:
        if offset in seen or pages == MAX_PAGES:
            raise UnreadableContent.at(f"has more than {MAX_PAGES} pages, or pages in a circle", content, offset)
        seen.add(offset)
        offset = _check_tiff_page(content, order, offset)
        pages += 1
    if not pages:
        raise UnreadableContent.at("has no pages", content, 4)
    return pages


def _check_tiff_page(content: bytes, order: str, offset: int) -> int:
    """Check one directory and return the place of the next one; 0 at the end."""
    (count,) = _unpack(content, order, "H", offset)
    if count > _MAX_TAGS:
        raise UnreadableContent.at(f"has a page of {count:,} tags", content, offset)
    tags = {}
    for place in range(offset + 2, offset + 2 + 12 * count, 12):
        tag, kind, number = _unpack(content, order, "HHI", place)
        tags[tag] = kind, number, place + 8
    if not (_numbers(content, order, tags.get(_WIDTH)) and _numbers(content, order, tags.get(_LENGTH))):
        raise UnreadableContent.at("has a page without width or length", content, offset)
    starts = _numbers(content, order, tags.get(_STRIP_OFFSETS) or tags.get(_TILE_OFFSETS))
    sizes = _numbers(content, order, tags.get(_STRIP_BYTES) or tags.get(_TILE_BYTES))
    ends = [start + size for start, size in zip(starts, sizes, strict=False)]
    if not ends or len(starts) != len(sizes) or max(ends) > len(content) or not sum(sizes):
        raise UnreadableContent.at("has a page without its picture", content, offset)
    (following,) = _unpack(content, order, "I", offset + 2 + 12 * count)
    return int(following)


def _numbers(content: bytes, order: str, tag: tuple[int, int, int] | None) -> list[int]:
    """The values of a tag; empty where it is absent or not of whole numbers."""
    if tag is None or tag[0] not in _NUMBERS or not 0 < tag[1] <= _MAX_STRIPS:
        return []
    kind, count, place = tag
    if _SIZES[kind] * count > 4:  # the value is elsewhere in the file
        (place,) = _unpack(content, order, "I", place)
    found = [int(value) for value in _unpack(content, order, _NUMBERS[kind] * count, place)]
    return found if any(found) else []


# Any: struct's values; each caller knows its own.
def _unpack(content: bytes, order: str, layout: str, offset: int) -> tuple[Any, ...]:
    try:
        return struct.unpack_from(order + layout, content, offset)
    except struct.error:
        raise UnreadableContent.at("ends in the middle of a page", content, min(offset, len(content))) from None
