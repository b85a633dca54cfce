"""XLSX: a spreadsheet reads what was written, with exact amounts, and computes nothing."""

import io
import zipfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openpyxl import load_workbook
from openpyxl.utils.escape import unescape
from tests.sampling import IN_FULL

from meruit.documents import xlsx_table
from meruit.documents.csv_table import FORMULA_STARTS, Cell, escape_controls
from meruit.documents.xlsx_table import CELL_CHARACTERS, CUT, write_xlsx
from meruit.model.numbers import in_units

MOMENT = datetime(2026, 3, 1, 12, 30, 15, tzinfo=UTC)


def write(headings: Sequence[str], *rows: Sequence[Cell]) -> bytes:
    file = io.BytesIO()
    write_xlsx(file, headings, rows)
    return file.getvalue()


# Any: openpyxl's cells hold values of many kinds.
def cells_of(content: bytes) -> list[list[Any]]:
    book = load_workbook(io.BytesIO(content))
    return [list(row) for sheet in book.worksheets for row in sheet.iter_rows()]


def values_of(content: bytes) -> list[list[Any]]:
    return [[cell.value for cell in row] for row in cells_of(content)]


@pytest.mark.parametrize("start", sorted(FORMULA_STARTS))
@pytest.mark.parametrize("before", ["", " ", "\t", "\u200b"])
def test_text_that_looks_like_a_formula_is_text(start: str, before: str) -> None:
    text = f"{before}{start}HYPERLINK(A1)"
    (_, (cell,)) = cells_of(write(["title"], [text]))
    assert (cell.data_type, cell.value) == ("s", text)


@pytest.mark.parametrize("text", ["0001", "1e5", "http://example.com", "{=1+1}", "2026-01-01", "TRUE", "#REF!"])
def test_text_that_looks_like_something_else_is_text(text: str) -> None:
    content = write([text], [text])
    assert [(cell.data_type, cell.value) for (cell,) in cells_of(content)] == [("s", text)] * 2
    with zipfile.ZipFile(io.BytesIO(content)) as parts:
        assert b"hyperlink" not in parts.read("xl/worksheets/sheet1.xml")


@settings(max_examples=25)
@given(st.lists(st.text(min_size=1), min_size=1, max_size=20))
def test_any_text_is_read_back_as_csv_shows_it(texts: list[str]) -> None:
    found = values_of(write(["text"], *([text] for text in texts)))[1:]
    # openpyxl leaves `_xHHHH_` as it is, by which the format writes what XML cannot.
    assert [[one_kind_of_line_end(escape_controls(text))] for text in texts] == [[unescape(text)] for (text,) in found]


def one_kind_of_line_end(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@settings(max_examples=25)
@given(st.lists(st.integers(-(10**15) + 1, 10**15 - 1), min_size=1))
def test_amounts_are_exact_numbers(amounts: list[int]) -> None:
    cells = [cell for (cell,) in cells_of(write(["amount"], *([in_units(micros)] for micros in amounts)))[1:]]
    assert [Decimal(repr(cell.value)) for cell in cells] == [Decimal(in_units(micros)) for micros in amounts]
    assert {(cell.data_type, cell.number_format) for cell in cells} == {("n", "#,##0.00####")}


def test_a_number_too_long_for_a_spreadsheet_keeps_its_digits_as_text() -> None:
    amount, count = "1234567890123.456789", 12345678901234567
    assert values_of(write(["amount", "count"], [amount, count]))[1] == [amount, str(count)]


def test_each_kind_of_cell_keeps_its_kind() -> None:
    row: list[Cell] = [None, True, -3, 0.1, MOMENT, "x", float("nan"), float("-inf")]
    found = values_of(write([*"abcdefgh"], row))[1]
    assert found == [None, True, -3, 0.1, MOMENT.replace(tzinfo=None), "x", "nan", "-inf"]


@pytest.mark.parametrize("moment", [datetime(1900, 1, 1, tzinfo=UTC), datetime(1, 1, 1, tzinfo=UTC)])
def test_days_that_spreadsheets_disagree_on_are_text(moment: datetime) -> None:
    assert values_of(write(["at"], [moment]))[1] == [moment.isoformat()]


def test_times_of_other_zones_are_written_in_utc() -> None:
    (_, (cell,)) = cells_of(write(["at"], [MOMENT.astimezone(timezone(timedelta(hours=5)))]))
    assert (cell.value, "UTC" in cell.number_format) == (MOMENT.replace(tzinfo=None), True)


def test_long_text_is_cut_and_says_so() -> None:
    (_, (found,)) = values_of(write(["text"], ["x" * (CELL_CHARACTERS + 1)]))
    assert (len(found), found.endswith(CUT)) == (CELL_CHARACTERS, True)


def test_a_long_table_continues_on_another_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xlsx_table, "SHEET_ROWS", 3)
    found = values_of(write(["n"], *([number] for number in range(5))))
    assert found == [["n"], [0], [1], ["n"], [2], [3], ["n"], [4]]


def test_an_empty_table_has_its_headings() -> None:
    assert values_of(write(["a", "b"])) == [["a", "b"]]


def test_equal_tables_are_equal_files() -> None:
    assert write(["a"], ["x"]) == write(["a"], ["x"])


def test_rows_are_written_as_they_come() -> None:
    """Half of a long table is on disk before the last row is asked for."""
    rows_total = 200_000 if IN_FULL else 5_000

    def rows() -> Iterable[Sequence[Cell]]:
        for number in range(rows_total):
            yield (number, "text")

    file = io.BytesIO()
    write_xlsx(file, ["n", "text"], rows())
    assert load_workbook(file, read_only=True).worksheets[0].max_row == rows_total + 1
