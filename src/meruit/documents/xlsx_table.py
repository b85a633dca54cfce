"""XLSX for spreadsheets: the tables of `csv_table`, with amounts as numbers, times as times, and no formula."""

import math
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, BinaryIO

from meruit.documents.csv_table import Cell, escape_controls

if TYPE_CHECKING:
    from xlsxwriter.format import Format
    from xlsxwriter.workbook import Workbook
    from xlsxwriter.worksheet import Worksheet

XLSX = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
AMOUNTS = frozenset(("amount", "balance", "bonus", "fee", "gross", "held", "net", "penalty", "reversed"))
"""Columns of decimal text that become numbers; text in every other column stays text."""
SHEET_ROWS = 1_048_576
"""Most rows of one sheet, the headings included. Longer tables continue on the next sheet."""
CELL_CHARACTERS = 32_767
CUT = " … (cut: a cell holds 32,767 characters; the CSV has all)"
EXACT_DIGITS = 15
"""A spreadsheet's numbers are doubles. They keep this many digits, so longer numbers are written as text."""
COLUMN_WIDTH, FIRST_DAY = 18, datetime(1900, 3, 1, tzinfo=UTC)
"""Spreadsheets disagree about earlier days, because one of them had 29 February 1900."""
# No clock: equal tables are equal files.
_CREATED = datetime(2000, 1, 1)  # noqa: DTZ001 - the format has no zone


def write_xlsx(file: BinaryIO, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Write a table, row by row, with constant memory; the headings are bold and stay visible."""
    # Imported here, because most runs write none.
    from xlsxwriter import Workbook

    options = {
        "constant_memory": True,
        "strings_to_formulas": False,
        "strings_to_numbers": False,
        "strings_to_urls": False,
        "use_zip64": True,
    }
    with Workbook(file, options) as book:
        book.set_properties({"created": _CREATED})
        _SheetWriter(book, headings).write(rows)


class _SheetWriter:
    """Writes rows to sheets, and begins another one when a sheet is full."""

    def __init__(self, book: "Workbook", headings: Sequence[str]) -> None:
        self._book, self._headings = book, headings
        self._bold: Format = book.add_format({"bold": True})
        self._amount: Format = book.add_format({"num_format": "#,##0.00####"})
        self._time: Format = book.add_format({"num_format": 'yyyy-mm-dd hh:mm:ss "UTC"'})
        self._is_amount = [heading in AMOUNTS for heading in headings]

    def write(self, rows: Iterable[Sequence[Cell]]) -> None:
        sheet, line = self._begin_sheet(), 1
        for row in rows:
            if line == SHEET_ROWS:
                sheet, line = self._begin_sheet(), 1
            for column, cell in enumerate(row):
                self._write_cell(sheet, line, column, cell)
            line += 1

    def _begin_sheet(self) -> "Worksheet":
        sheet: Worksheet = self._book.add_worksheet()
        sheet.set_column(0, len(self._headings) - 1, COLUMN_WIDTH)
        sheet.freeze_panes(1, 0)
        for column, heading in enumerate(self._headings):
            sheet.write_string(0, column, _clean(heading), self._bold)
        return sheet

    def _write_cell(self, sheet: "Worksheet", line: int, column: int, cell: Cell) -> None:
        match cell:
            case None:
                pass
            case bool():
                sheet.write_boolean(line, column, cell)
            case int() | float():
                if _is_exact(cell):
                    sheet.write_number(line, column, cell)
                else:
                    sheet.write_string(line, column, repr(cell))
            case datetime():
                moment = cell.astimezone(UTC)
                if moment < FIRST_DAY:
                    sheet.write_string(line, column, moment.isoformat())
                else:
                    sheet.write_datetime(line, column, moment.replace(tzinfo=None), self._time)
            case str() if self._is_amount[column] and _fits_double(Decimal(cell)):
                sheet.write_number(line, column, float(cell), self._amount)
            case str():
                # Never `write`, which guesses: text that begins with = would become a formula.
                sheet.write_string(line, column, _clean(cell))


def _is_exact(number: float) -> bool:
    if isinstance(number, int):
        return _fits_double(Decimal(number))
    return math.isfinite(number)


def _fits_double(number: Decimal) -> bool:
    return len(number.normalize().as_tuple().digits) <= EXACT_DIGITS


def _clean(text: str) -> str:
    """Text without control characters, with one kind of line end, and short enough for a cell."""
    clean = escape_controls(text).replace("\r\n", "\n").replace("\r", "\n")
    return clean if len(clean) <= CELL_CHARACTERS else clean[: CELL_CHARACTERS - len(CUT)] + CUT
