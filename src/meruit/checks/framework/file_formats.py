"""The formats of files: how each is parsed, and how paths read it."""

import csv
import io
import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any, NoReturn

import msgspec

from meruit.checks.formats import hl7v2 as er7
from meruit.checks.formats import json_path as dotted
from meruit.checks.formats import x12 as interchange
from meruit.checks.matching.matchers import Dialect
from meruit.errors import AuthorError, UnreadableContent

MAX_ROWS = 100_000
"""The most rows of a CSV file, or lines of another file."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class FileFormat(StrEnum):
    """The format of a file."""

    NONE = "none"
    """Only path, size and digest are looked at."""
    JSON = "json"
    NDJSON = "ndjson"
    """One JSON document a line; together they are a list."""
    CSV = "csv"
    """With a header: `rows[].name`, `rows[0].name`, `header`."""
    TEXT = "text"
    """`text`, and `lines`."""
    HL7 = "hl7"
    X12 = "x12"


def _as_ndjson(content: bytes) -> list[Any]:
    _check_row_count(content.count(b"\n"), content)
    found: list[Any] = []
    offset = 0
    for line in content.removeprefix(_BYTE_ORDER_MARK).split(b"\n"):
        if line.strip():
            try:
                found.append(dotted.read_json(line))
            except UnreadableContent as fault:
                skipped = len(content) - len(content.removeprefix(_BYTE_ORDER_MARK))
                raise UnreadableContent.at(fault.why, content, skipped + offset + fault.offset) from None
        offset += len(line) + 1
    return found


def _check_row_count(rows: int, content: bytes) -> None:
    if rows > MAX_ROWS:
        raise UnreadableContent.at(f"has more than {MAX_ROWS:,} lines or rows", content, 0)


def _decode(content: bytes) -> str:
    body = content.removeprefix(_BYTE_ORDER_MARK)
    try:
        return body.decode()
    except UnicodeDecodeError as fault:
        raise UnreadableContent.at("is not UTF-8", content, len(content) - len(body) + fault.start) from None


def _as_text(content: bytes) -> dict[str, Any]:
    _check_row_count(max(content.count(b"\r"), content.count(b"\n")), content)
    text = _decode(content)
    lines = _LINE_END.split(text)
    # A line end at the end of the file does not begin another line.
    return {"text": text, "lines": lines[:-1] if lines[-1] == "" else lines}


def _as_csv(content: bytes) -> dict[str, Any]:
    text = _decode(content)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    header: list[str] = []
    rows: list[dict[str, str]] = []
    begins = 0
    try:
        for number, cells in enumerate(reader):
            _check_row_count(number, content)
            if header and len(cells) > len(header):
                raise _no_csv(f"has {len(cells)} cells in a row where its header has {len(header)}", content, begins)
            if header and cells:
                rows.append(dict(zip(header, cells, strict=False)))
            elif cells:
                header = cells
            begins = reader.line_num
    except csv.Error as fault:
        raise _no_csv(f"is not CSV: {fault}", content, begins) from None
    if not header:
        raise UnreadableContent.at("is not CSV: the header is missing", content, 0)
    if len(set(header)) < len(header):
        raise UnreadableContent.at("is not CSV: its header names a column twice", content, 0)
    return {"header": header, "rows": rows}


def _no_csv(why: str, content: bytes, lines: int) -> UnreadableContent:
    """The error of the row that begins after that many lines."""
    ends = [found.end() for found in islice(re.finditer(rb"\r\n|\r|\n", content), lines)]
    return UnreadableContent.at(why, content, ends[-1] if ends else 0)


def _as_x12(content: bytes) -> list[interchange.TransactionSet]:
    return [one for envelope in interchange.read(content) for one in envelope.transactions]


def _part_of_csv(path: str) -> dotted.JsonPath:
    return _compile_rooted_path(
        path, ("rows", "header"), "a CSV file has rows, as in rows[].name or rows[0].name, and header"
    )


def _part_of_text(path: str) -> dotted.JsonPath:
    return _compile_rooted_path(path, ("text", "lines"), "a text has text and lines, as in lines[0]")


def _compile_rooted_path(path: str, names: tuple[str, ...], otherwise: str) -> dotted.JsonPath:
    found = dotted.compile_path(path)
    if re.split(r"[.\[]", path, maxsplit=1)[0] not in names:
        raise AuthorError(f"there is no {path!r}: {otherwise}")
    return found


def _refuse_path(path: str) -> NoReturn:
    known = ", ".join(one for one in FileFormat if one is not FileFormat.NONE)
    raise AuthorError(f"to read {path!r}, set the file's format with parse: {known}")


class FormatReader(msgspec.Struct, frozen=True):
    """Parses files of one format and reads them by path."""

    read: Callable[[bytes], Any]
    path: Callable[[str], Any]
    values: Callable[[Any, Any], tuple[Any, ...]]
    dialect: Dialect


FORMATS: Mapping[FileFormat, FormatReader] = {
    FileFormat.NONE: FormatReader(
        read=lambda _content: None, path=_refuse_path, values=lambda _nothing, _path: (), dialect=Dialect.TEXT
    ),
    FileFormat.JSON: FormatReader(
        read=dotted.read_json, path=dotted.compile_path, values=dotted.values, dialect=Dialect.JSON
    ),
    FileFormat.NDJSON: FormatReader(
        read=_as_ndjson, path=dotted.compile_path, values=dotted.values, dialect=Dialect.JSON
    ),
    FileFormat.CSV: FormatReader(read=_as_csv, path=_part_of_csv, values=dotted.values, dialect=Dialect.TEXT),
    FileFormat.TEXT: FormatReader(read=_as_text, path=_part_of_text, values=dotted.values, dialect=Dialect.TEXT),
    FileFormat.HL7: FormatReader(
        read=er7.read_batch,
        path=er7.compile_path,
        values=lambda messages, path: tuple(value for one in messages for value in er7.values(one, path)),
        dialect=Dialect.TEXT,
    ),
    FileFormat.X12: FormatReader(
        read=_as_x12,
        path=interchange.compile_path,
        values=lambda sets, path: tuple(value for one in sets for value in interchange.values(one, path)),
        dialect=Dialect.TEXT,
    ),
}

_ENDINGS = {
    "json": FileFormat.JSON,
    "ndjson": FileFormat.NDJSON,
    "jsonl": FileFormat.NDJSON,
    "csv": FileFormat.CSV,
    "hl7": FileFormat.HL7,
}
_X12_ENDING = re.compile(r"x12|edi|[2-9][0-9]{2}")


def format_by_ending(path: str) -> FileFormat:
    """The format of a file by its extension, where `parse` is not set."""
    ending = path.rpartition("/")[2].rpartition(".")[2].lower()
    return _ENDINGS.get(ending, FileFormat.X12 if _X12_ENDING.fullmatch(ending) else FileFormat.TEXT)
