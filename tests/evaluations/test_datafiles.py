"""Cases from files: what is there is read, what is wrong is named with its row."""

import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meruit.errors import DocumentError, MeruitError, UnreadableFile
from meruit.evaluations.datafiles import MAX_DIGITS, MAX_LINE_BYTES, ColumnMap, open_data
from meruit.evaluations.evaluation import Case

MAP = ColumnMap.parse("id=q,input.reference=answer,output.text=said,metadata.duration_ms=ms,tags.lang=lang")
ROWS = [
    {"q": "one", "answer": "yes", "said": "Yes, «sí»\n", "ms": 12, "lang": "en"},
    {"q": "two", "answer": "是", "said": "不", "ms": 7, "lang": "zh"},
]
CASES = [
    Case("one", {"reference": "yes"}, {"text": "Yes, «sí»\n"}, {"duration_ms": 12}, tags={"lang": "en"}),
    Case("two", {"reference": "是"}, {"text": "不"}, {"duration_ms": 7}, tags={"lang": "zh"}),
]


def written(folder: Path, name: str, content: bytes | str) -> str:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


def read(path: str, columns: ColumnMap = MAP, format_name: str | None = None) -> list[Case]:
    return [*open_data(path, format_name).cases(columns)]


def test_every_format_gives_the_same_cases(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS)
    assert read(written(tmp_path, "a.jsonl", lines)) == CASES
    assert read(written(tmp_path, "bom.jsonl", "\ufeff\n" + lines + "\n\n")) == CASES
    assert read(written(tmp_path, "a.json", json.dumps(ROWS))) == CASES
    pq.write_table(pa.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    assert read(str(tmp_path / "a.parquet")) == CASES
    table = 'q,answer,said,ms,lang\none,yes,"Yes, «sí»\n",12,en\n\ntwo,是,不,7,zh\n'
    assert read(written(tmp_path, "a.csv", "\ufeff" + table)) == CASES
    assert read(written(tmp_path, "a.tsv", "q\tanswer\tsaid\tms\tlang\ntwo\t是\t不\t7\tzh")) == CASES[1:]


def test_the_rows_and_the_digest_are_known_before(tmp_path: Path) -> None:
    one, other = (written(tmp_path, name, '{"q": 1}\n{"q": 2}') for name in ("a.jsonl", "b.jsonl"))
    assert open_data(one).rows == 2
    assert open_data(one).digest == open_data(other).digest
    assert open_data(written(tmp_path, "c.jsonl", '{"q": 1}\n')).digest != open_data(one).digest


def test_standard_input_is_json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b'{"id": "a", "output": "x"}\n')))
    assert read("-", ColumnMap()) == [Case("a", {}, {"text": "x"})]
    monkeypatch.setattr(sys, "stdin", None)
    assert read("-", ColumnMap()) == []


def test_usual_names_need_no_mapping(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "prompt": "2+2?", "completion": "4", "target": "4", "epoch": 2, "topic": "maths"},
        {"input": {"a": 1}, "output": {"b": 2}, "metadata": {"c": 3}, "group": "g", "tags": {"t": 5}, "topic": "x"},
        {"question": "why?"},
    ]
    assert read(written(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))), ColumnMap()) == [
        Case("7", {"prompt": "2+2?", "reference": "4", "topic": "maths"}, {"text": "4"}, repeat=2),
        Case("2", {"a": 1}, {"b": 2}, {"c": 3, "topic": "x"}, "g", {"t": "5"}),
        Case("3", {"prompt": "why?"}),
    ]


@pytest.mark.parametrize("named", ["latency_ms", "duration_ms"])
def test_a_time_fills_what_its_metric_reads(tmp_path: Path, named: str) -> None:
    content = f'{{"id": "a", "output": "x", "{named}": 812}}\n{{"id": "b", "output": "y", "{named}": null}}\n'
    path = written(tmp_path, "a.jsonl", content)
    mapped = ColumnMap.parse(f"id=id,output.text=output,metadata.{named}={named}")
    assert read(path, ColumnMap()) == [
        Case("a", {}, {"text": "x"}, {"duration_ms": 812}),
        Case("b", {}, {"text": "y"}),
    ]
    assert read(path, mapped)[0] == Case("a", {}, {"text": "x"}, {"duration_ms": 812})
    with pytest.raises(MeruitError):
        ColumnMap.parse("metadata.latency_ms=a,metadata.duration_ms=b")


@pytest.mark.parametrize(
    ("named", "other"),
    [("duration_ms", "latency_ms"), ("ttfb_ms", "time_to_first_byte"), ("processing_ms", "processing_time")],
)
def test_the_second_name_of_a_time_keeps_its_own(tmp_path: Path, named: str, other: str) -> None:
    for columns in ((named, other), (other, named)):
        written_ = {named: "812.50", other: "7"}
        text = f"id,{','.join(columns)}\na,{','.join(written_[one] for one in columns)}\n"
        assert read(written(tmp_path, "a.csv", text), ColumnMap()) == [
            Case("a", {}, metadata={named: 812.5, other: 7}),
        ]


def test_a_mapping_knows_the_usual_names_of_columns() -> None:
    columns = ColumnMap.parse("case_id=q,expected=gold,completion=said")
    assert columns.apply({"q": "a", "gold": "4", "said": "5"}, "1") == Case("a", {"reference": "4"}, {"text": "5"})


def test_facts_in_a_table_without_types_are_read_as_json(tmp_path: Path) -> None:
    columns = ColumnMap.parse(
        "id=id,input.year=year,output.text=said,metadata.duration_ms=ms,metadata.run_id=run,metadata.messages=log,"
        "metadata.model=model,metadata.note=note"
    )
    lines = (
        'id,year,said,ms,run,log,model,note\n1,1990,7,81.5,1001,"[{""role"": ""user""}]",4o,\n'
        '2,1990,7,fast,,{,"""q""",NaN\n'
    )
    typed, odd = read(written(tmp_path, "a.csv", lines), columns)
    # What an agent reads and writes stays text, and so do ids.
    assert typed == Case(
        "1",
        {"year": "1990"},
        {"text": "7"},
        {"duration_ms": 81.5, "run_id": "1001", "messages": [{"role": "user"}], "model": "4o", "note": None},
    )
    assert odd.metadata == {"duration_ms": "fast", "run_id": None, "messages": "{", "model": '"q"', "note": "NaN"}
    (known,) = read(written(tmp_path, "b.csv", "id,output,latency_ms\n1,2,300\n"), ColumnMap())
    assert known == Case("1", {}, {"text": "2"}, {"duration_ms": 300})


@pytest.mark.parametrize(
    ("name", "cell", "found"),
    [
        *((name, "1001", "1001") for name in ("id", "run_id", "run.id")),
        *((name, "true", True) for name in ("valid", "paid", "grid")),
        *(("version", text, text) for text in ("1.10", "12e5", "1E3", "-0", "1e5000", "1" * 5_000)),
        *(("version", text, number) for text, number in (("1.1", 1.1), ("7", 7), (" -2 ", -2), ("1e+22", 1e22))),
        *(("duration_ms", text, number) for text, number in (("81.50", 81.5), ("1e3", 1_000.0))),
        *(("note", text, value) for text, value in (("[1.10]", [1.1]), ("false", False), ('{"a": 1}', {"a": 1}))),
    ],
)
def test_a_number_in_a_cell_is_one_if_it_is_written_the_same(
    tmp_path: Path, name: str, cell: str, found: str | float | list[float] | dict[str, int]
) -> None:
    quoted = '"' + cell.replace('"', '""') + '"'
    path = written(tmp_path, "a.csv", f"id,output,x\na,b,{quoted}\n")
    (case,) = read(path, ColumnMap.parse(f"id=id,output=output,metadata.{name}=x"))
    value: Any = case.metadata
    for key in name.split("."):
        value = value[key]
    assert (value, type(value)) == (found, type(found))


@pytest.mark.parametrize(
    ("name", "content", "where"),
    [
        ("a.jsonl", '\n{"q": ', "line 2"),
        ("a.jsonl", '{"q": NaN}', "line 1"),
        ("a.jsonl", '{"q": "a", "answer": "b"}', "row 1"),
        ("a.jsonl", "[1]", "row 1"),
        ("a.json", '{"q": 1}', ""),
        ("a.csv", "q,answer,said,ms,lang\n1,2", "line 2"),
        ("a.csv", "q,answer,said,ms,lang,q\n1,1,1,1,1,1\n1,1,1,1,1,2", "line 3"),
        ("a.csv", 'q,answer\n"1', "line"),
        ("a.csv", "q\n\xff".encode("latin-1"), "UTF-8"),
        ("a.csv", "q;answer\n1;2", "line 1"),
        ("a.jsonl", '\n{"q": "\xe9"}'.encode("latin-1"), "line 2: not UTF-8"),
        ("a.jsonl", '{"q": 1}'.encode("utf-16"), "UTF-8"),
        ("a.jsonl", '{"q": ' + "[" * 3_000 + "]" * 3_000 + "}", "line 1"),
        ("a.jsonl", '{"q": ' + "9" * 5_000 + "}", "line 1"),
        ("a.json", '[{"q": 1},\n{"q" 2}]', "line 2"),
        ("a.parquet", "not parquet", ""),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, name: str, content: bytes | str, where: str) -> None:
    with pytest.raises(DocumentError) as refused:
        read(written(tmp_path, name, content))
    assert where in str(refused.value)


@pytest.mark.parametrize("form", ["{}", "[{}]"])
def test_long_integers_keep_every_digit(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, "a.json" if "[" in form else "a.jsonl", form.replace("{}", f'{{"output": {10**30 + 1}}}'))
    assert read(path, ColumnMap())[0].output == {"text": 10**30 + 1}
    assert read(written(tmp_path, "a.csv", f'metadata\n"{{""n"": {10**30 + 1}}}"'), ColumnMap())[0].metadata == {
        "n": 10**30 + 1
    }


def test_a_number_out_of_range_is_called_so(tmp_path: Path) -> None:
    # 4,300 digits are read, and the limit is ours and Python's.
    assert read(written(tmp_path, "a.jsonl", f'{{"output": {"1" * MAX_DIGITS}}}'), ColumnMap())
    for number in ("1" * (MAX_DIGITS + 1), "1e999"):
        with pytest.raises(DocumentError) as refused:
            read(written(tmp_path, "a.jsonl", f'{{"output": {number}}}'), ColumnMap())
        assert f"{MAX_DIGITS:,}" in str(refused.value)


def test_a_pipe_is_refused_before_it_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    with pytest.raises(UnreadableFile) as refused:
        open_data(str(tmp_path / "a.jsonl"))
    assert "use -" in str(refused.value)


def test_what_cannot_be_opened_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFile):
        read(str(tmp_path / "none.jsonl"))
    with pytest.raises(UnreadableFile):
        read(str(tmp_path / "nul\0.jsonl"))
    with pytest.raises(MeruitError):
        read(str(tmp_path / "data.xyz"))
    with pytest.raises(MeruitError):
        read("-", format_name="jsnol")


def test_a_line_without_an_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meruit.evaluations.datafiles.MAX_LINE_BYTES", 10)
    with pytest.raises(DocumentError):
        read(written(tmp_path, "a.jsonl", '{"q": "0123456789"}'))
    assert MAX_LINE_BYTES > 10


@pytest.mark.parametrize(
    ("mapping", "row", "expected"),
    [
        ("output.text=a", {"id": "x", "a": "b"}, ("x", 0)),
        ("output.text=a", {"case_id": 7, "epoch": 2, "a": "b"}, ("7", 2)),
        ("output.text=a", {"id": None, "a": "b"}, ("1", 0)),
        ("output.text=a,id=q", {"id": "x", "q": "y", "a": "b"}, ("y", 0)),
        ("output.text=a,input.customer=id", {"id": "x", "a": "b"}, ("1", 0)),
        ("output.text=a,repeat=n", {"id": "x", "repeat": 5, "n": 1, "a": "b"}, ("x", 1)),
    ],
)
def test_ids_are_read_also_where_a_mapping_does_not_name_them(
    mapping: str, row: dict[str, Any], expected: tuple[str, int], tmp_path: Path
) -> None:
    """By row numbers, two files in another order would be compared case by wrong case."""
    path = written(tmp_path, "rows.jsonl", json.dumps(row))
    (case,) = read(path, ColumnMap.parse(mapping))
    assert (case.id, case.repeat) == expected


@pytest.mark.parametrize(
    "mapping", ["a", "=b", "output.text=", "x.y=z", "output..text=a", "tags=t", "id=a,id=b", "outptu.text=a"]
)
def test_a_mapping_that_cannot_be_meant_is_refused(mapping: str) -> None:
    with pytest.raises(MeruitError):
        ColumnMap.parse(mapping)


@pytest.mark.parametrize(
    "row",
    [
        {"id": ["a"]},
        {"repeat": -1},
        {"repeat": 1.5},
        {"repeat": "x"},
        {"cost": "free"},
        {"cost": -1},
        {"metadata": "no json"},
        {"metadata": 5},
        {"output": "a", "completion": "b"},
        {"tags": {"a": {}}},
    ],
)
def test_a_row_that_cannot_be_meant_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises(MeruitError):
        ColumnMap().apply(row, "1") if "cost" not in row else ColumnMap.parse("cost=cost").apply(row, "1")


def test_a_mapping_makes_objects_on_the_way() -> None:
    columns = ColumnMap.parse("input=all, input.a.b=x, metadata.c=y, cost=price, claimed=v")
    row = {"all": {"z": 0}, "x": 1, "y": None, "price": "0.25", "v": True}
    assert columns.apply(row, "9") == Case(
        "9", {"z": 0, "a": {"b": 1}}, metadata={"c": None}, claimed="true", cost_micros=250_000
    )
    with pytest.raises(MeruitError):
        ColumnMap.parse("input.a=x,input.a.b=y").apply({"x": 1, "y": 2}, "1")


@given(
    st.dictionaries(st.text(max_size=4), st.none() | st.text(max_size=4) | st.integers() | st.booleans(), max_size=5)
)
def test_any_row_is_read_or_refused(row: dict[str, Any]) -> None:
    try:
        found = ColumnMap().apply(row, "1")
    except MeruitError:
        return
    assert found.id
