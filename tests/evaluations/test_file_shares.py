"""Parts of a file that are read apart hold together what the whole file holds."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import DocumentError, MeruitError
from meruit.evaluations import file_shares
from meruit.evaluations.datafiles import ColumnMap, DataFile, open_data
from meruit.evaluations.file_shares import cut_file, has_rows, read_share

CELLS = st.text(st.sampled_from('ab",\n\r\té\u2028 '), max_size=6)
ROWS = st.lists(st.tuples(CELLS, CELLS), max_size=9)


@pytest.fixture(scope="module", autouse=True)
def small_shares() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_shares, "SHARE_ROWS", 2)
        patch.setattr(file_shares, "GROUP_ROWS", 3)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shares")


def check_shares(file: DataFile) -> None:
    columns = ColumnMap.parse("output.text=a,input.x=b")
    shares = [*cut_file(file)]
    whole = [*file.cases(columns)]
    assert [case for share in shares for case in read_share(file, share, columns)] == whole
    assert [share.rows_before for share in shares] == sorted({share.rows_before for share in shares})
    # Where rows are not counted, those of the last part are not known.
    assert has_rows(file, 1) or len(whole) <= (0 if file.rows is not None else 2)
    assert not has_rows(file, len(whole) + 1)


@given(ROWS, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["csv", "tsv"]), st.booleans())
def test_parts_of_a_table_are_the_table(
    folder: Path, rows: list[tuple[str, str]], end: str, kind: str, mark: bool
) -> None:
    written = io.StringIO(newline="")
    # Not written with minimal quotes, where a lone CR in a cell would end its row.
    writer = csv.writer(written, "excel-tab" if kind == "tsv" else "excel", lineterminator=end, quoting=csv.QUOTE_ALL)
    if end == "\r\n":
        writer = csv.writer(written, "excel-tab" if kind == "tsv" else "excel")
    writer.writerows([("a", "b"), *rows])
    path = folder / f"t.{kind}"
    path.write_text(written.getvalue(), encoding="utf-8-sig" if mark else "utf-8", newline="")
    check_shares(open_data(str(path)))


@given(st.lists(st.one_of(st.none(), st.tuples(CELLS, CELLS)), max_size=9), st.booleans())
def test_parts_of_json_lines_are_the_file(folder: Path, rows: list[tuple[str, str] | None], mark: bool) -> None:
    lines = ["" if row is None else json.dumps({"a": row[0], "b": row[1]}) for row in rows]
    path = folder / "t.jsonl"
    path.write_text("\n".join(lines), encoding="utf-8-sig" if mark else "utf-8")
    file = open_data(str(path))
    check_shares(DataFile(file.path, file.format, file.digest, None))


@pytest.mark.parametrize("count", [0, 1, 7])
def test_parts_of_parquet_are_the_file(tmp_path: Path, count: int) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table({"a": [f"x{n}" for n in range(count)], "b": [*range(count)]})
    pytest.importorskip("pyarrow.parquet").write_table(table, tmp_path / "t.parquet", row_group_size=5)
    file = open_data(str(tmp_path / "t.parquet"))
    assert file.rows == count
    check_shares(file)


def test_rows_that_end_in_a_lone_cr_are_counted(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_bytes(b"a,b\n1,2\r3,4\r\n5,6\n7,8\n")
    check_shares(open_data(str(tmp_path / "old.csv")))


@pytest.mark.parametrize("written", [b'a,b\n"x\ry"z,1\n', b'a,b\n"x,1\n', b'a,b\n"\xff",1\n'])
def test_a_table_that_cannot_be_cut_says_so(tmp_path: Path, written: bytes) -> None:
    (tmp_path / "bad.csv").write_bytes(written)
    with pytest.raises(DocumentError):
        [*cut_file(open_data(str(tmp_path / "bad.csv")))]


def test_what_is_in_one_piece_is_not_cut(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text("[]")
    with pytest.raises(MeruitError, match="jsonl"):
        next(cut_file(open_data(str(tmp_path / "all.json"))))
    (tmp_path / "none.csv").write_text("")
    assert [*cut_file(open_data(str(tmp_path / "none.csv")))] == []
