"""Lists as files: whole however long they are, a page at a time, up to a limit that the file states."""

import csv
import io
from threading import Event

import pytest
from openpyxl import load_workbook
from tests.api.conftest import Deployment, new_tenant
from tests.api.test_auth import contract_ready_for
from tests.console.conftest import Reader, SignIn

from meruit.api import file_stream
from meruit.cli.demo.support_replies import CRITERIA, make_cases
from meruit.console import table
from meruit.evaluations.run import run_cases
from meruit.evaluations.service import Evaluator
from meruit.model.access import Role

NUMBER = 5


def rows_of(one: Reader, path: str) -> list[list[str]]:
    """The rows of a list's CSV, without its headings."""
    reply = one.get(f"{path}{'&' if '?' in path else '?'}format=csv")
    assert reply.status_code == 200, path
    return [*csv.reader(io.StringIO(reply.text))][1:]


@pytest.fixture
def one(console: Deployment, reader: SignIn, monkeypatch: pytest.MonkeyPatch) -> Reader:
    """A tenant with some records of each kind, whose files are read two rows at a time."""
    monkeypatch.setattr(table, "MAX_PAGE", 2)
    monkeypatch.setattr(table, "MAX_SORTED_PAGE", 2)
    tenant = new_tenant()
    key = console.key(Role.ADMIN, tenant)
    for _ in range(NUMBER):
        contract_ready_for(console, key, "reverse")
    evaluator = Evaluator(console.service.registrar, tenant)
    compiled = evaluator.compile(CRITERIA)
    for name in "abcde":
        started = evaluator.start(name, compiled, tags={})
        run_cases(evaluator, started, compiled, make_cases("heron-2", NUMBER))
    return reader(Role.ADMIN, tenant)


def test_files_hold_lists_whole_in_every_order(one: Reader) -> None:
    for path, key in (
        *(("/contracts", 1), ("/contracts?sort=-paid", 1), ("/contracts?sort=agent", 1)),
        *(("/outcomes", 0), ("/outcomes?sort=score", 0), ("/outcomes?agent=robot&sort=-recorded", 0)),
        *(("/evaluations", 1), ("/evaluations?sort=-name", 1)),
    ):
        found = [row[key] for row in rows_of(one, path) if row[0] != "total"]
        assert len(found) == len({*found}) == NUMBER, path
    evaluation = rows_of(one, "/evaluations")[0][1]
    for sort in ("", "&sort=-score", "&sort=ms"):
        cases = rows_of(one, f"/evaluations/{evaluation}?show=all{sort}")
        assert len({row[0] for row in cases}) == len(cases) == NUMBER, sort
    balances = [float(row[2]) for row in rows_of(one, "/ledger?sort=-balance")]
    assert balances == sorted(balances, reverse=True)
    assert len(rows_of(one, "/audit")) > 3 * NUMBER


def test_totals_of_a_file_are_of_all_its_rows(one: Reader) -> None:
    *rows, total = rows_of(one, "/contracts")
    gross = [float(row[-4]) for row in rows]
    assert total[0] == "total"
    assert float(total[-4]) == pytest.approx(sum(gross))
    assert all(gross)


def test_a_file_that_is_too_long_says_so_in_its_last_row(one: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_stream, "MAX_FILE_ROWS", 3)
    rows = rows_of(one, "/outcomes")
    assert len(rows) == 4
    assert rows[-1][0].startswith("cut: more than 3 rows")
    assert {len(row) for row in rows} == {len(rows[0])}
    book = load_workbook(io.BytesIO(one.get("/outcomes?format=xlsx").content))
    assert [row[0] for row in book.worksheets[0].iter_rows(values_only=True)][1:] == [row[0] for row in rows]


def test_a_client_that_leaves_ends_the_reading(one: Reader) -> None:
    left = Event()
    rows = file_stream._limit_rows(iter([(1,), (2,), (3,)]), 1, left)
    assert next(rows) == (1,)
    left.set()
    assert [*rows] == []
