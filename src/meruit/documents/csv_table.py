"""CSV for spreadsheets and programs: RFC 4180, UTF-8, exact numbers, and no text that a spreadsheet would compute."""

import csv
import io
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from meruit.model.time import to_rfc3339

CSV = "text/csv; charset=utf-8; header=present"
BOM = b"\xef\xbb\xbf"
"""Tells Excel that a file is UTF-8; most programs take it for part of the first heading."""
FORMULA_STARTS = frozenset("=+-@|%＝＋－＠")
"""First characters of text that some spreadsheet computes; the wide ones count in East Asian versions."""
CHUNK_ROWS = 500
"""Rows that are encoded at a time."""
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?", re.ASCII)
_SPACES = frozenset("\t\r\n")

Cell = str | int | float | bool | datetime | None
"""Amounts are decimal text, so that no digit is lost."""


def write_csv(headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, bom: bool = False) -> Iterator[bytes]:
    """Encode a table a few rows at a time, the headings first; lines end in CR LF."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    writer.writerow(headings)
    for number, row in enumerate(rows, 1):
        writer.writerow([format_csv_cell(cell) for cell in row])
        if number % CHUNK_ROWS == 0:
            yield _encode(buffer, bom=bom)
            bom = False
    yield _encode(buffer, bom=bom)


def _encode(buffer: io.StringIO, *, bom: bool) -> bytes:
    text = buffer.getvalue()
    buffer.seek(0)
    buffer.truncate()
    return (BOM if bom else b"") + text.encode()


def format_csv_cell(cell: Cell) -> str:
    """A cell as text: nothing for None, RFC 3339 for times, numbers with every digit, text made harmless."""
    match cell:
        case None:
            return ""
        case bool():
            return str(cell).lower()
        case int() | float():
            return repr(cell)
        case datetime():
            return to_rfc3339(cell)
        case str():
            return neutralise_formulas(escape_controls(cell))


def neutralise_formulas(text: str) -> str:
    """Put an apostrophe before text that a spreadsheet would compute; a plain number stays a number.

    Where a semicolon or a tab separates cells, as in many countries, a formula could also begin inside a text.
    """
    if _NUMBER.fullmatch(text):
        return text
    parts = re.split(r"([;\t\r\n])", text)
    return "".join(f"'{part}" if _starts_formula(part) else part for part in parts)


def _starts_formula(text: str) -> bool:
    """Whether text begins like a formula, after spaces and characters without width."""
    begun = next((char for char in text if not (char.isspace() or unicodedata.category(char) == "Cf")), "")
    return begun in FORMULA_STARTS if begun else False


def escape_controls(text: str) -> str:
    """Escape control characters, so that a terminal that shows the file obeys none; line breaks and tabs stay."""
    if text.isprintable():
        return text
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in ("Cc", "Cs") and char not in _SPACES else char
        for char in text
    )
