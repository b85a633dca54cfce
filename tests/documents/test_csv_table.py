"""CSV: what a spreadsheet and a program read is what was written, and nothing is computed."""

import csv
import io
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.documents.csv_table import BOM, CHUNK_ROWS, FORMULA_STARTS, format_csv_cell, neutralise_formulas, write_csv

STARTS = sorted(FORMULA_STARTS)


def read(content: bytes) -> list[list[str]]:
    return [*csv.reader(io.StringIO(content.decode(), newline=""))]


@pytest.mark.parametrize("before", ["", " ", "\t", "\r", "\n", "\u200b", "\u00a0", "\ufeff", "\r\n\t "])
@pytest.mark.parametrize("start", STARTS)
def test_no_text_is_a_formula(start: str, before: str) -> None:
    written = neutralise_formulas(f"{before}{start}cmd|' /C calc'!A0")
    assert "'" in written.partition(start)[0]
    assert written.replace("'", "", 1).startswith(before + start)


@pytest.mark.parametrize("separator", [";", "\t", "; ", "\r\n"])
def test_no_formula_begins_where_another_country_separates_cells(separator: str) -> None:
    assert neutralise_formulas(f"a{separator}=1+1") == f"a{separator.rstrip(' ')}'{' ' * separator.count(' ')}=1+1"


@pytest.mark.parametrize("number", ["-0.05", "-12", "0", "12.5", "-1.5e-07", "1e+22"])
def test_numbers_stay_numbers(number: str) -> None:
    assert neutralise_formulas(number) == number


@pytest.mark.parametrize("text", ["-1+1", "+1", "-", "--1", "-1,000", "-inf", "-٣"])
def test_what_only_looks_like_a_number_is_text(text: str) -> None:
    assert neutralise_formulas(text) == f"'{text}"


@pytest.mark.parametrize("text", ["agent:=1", "a - b", "a=b", "", "'=1", "Отчёт", "報告"])
def test_usual_text_stays_as_it_is(text: str) -> None:
    assert neutralise_formulas(text) == text


def test_each_kind_of_cell_has_one_form() -> None:
    moment = datetime(2026, 3, 1, 12, tzinfo=UTC)
    cells = (None, True, False, -3, 0.1, -1e-7, moment, "x", 10**30)
    assert [format_csv_cell(one) for one in cells] == [
        *("", "true", "false", "-3", "0.1", "-1e-07", "2026-03-01T12:00:00.000000Z", "x", "1" + "0" * 30),
    ]


@pytest.mark.parametrize(("text", "written"), [("\x1b[2J", "\\x1b[2J"), ("a\x00b", "a\\x00b"), ("\ud800", "\\ud800")])
def test_a_terminal_obeys_no_cell(text: str, written: str) -> None:
    assert format_csv_cell(text) == written


@given(st.lists(st.lists(st.text("ab,\"'\n\r ;Ж中", max_size=6), min_size=2, max_size=2), max_size=20))
def test_a_program_reads_what_was_written(rows: list[list[str]]) -> None:
    assert read(b"".join(write_csv(("x", "y"), rows))) == [["x", "y"], *rows]


def test_large_tables_come_in_parts() -> None:
    rows = ([str(number)] for number in range(2 * CHUNK_ROWS + 1))
    parts = [*write_csv(("n",), rows, bom=True)]
    assert (len(parts), parts[0].startswith(BOM), b"".join(parts).count(BOM)) == (3, True, 1)
    assert len(read(b"".join(parts).removeprefix(BOM))) == 2 * CHUNK_ROWS + 2


def test_an_empty_table_has_its_headings_and_a_mark_only_if_asked() -> None:
    assert [*write_csv(("a", "b"), [])] == [b"a,b\r\n"]
    assert [*write_csv(("a",), [], bom=True)] == [BOM + b"a\r\n"]
