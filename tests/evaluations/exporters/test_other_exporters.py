"""Files for data tools, for Inspect, for leaderboards, and a signed statement."""

import csv
import io
import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet  # type: ignore[import-untyped]
import pytest
from tests.evaluations.exporters.conftest import Export

from meruit.errors import UnknownName
from meruit.evaluations.evaluation import Case
from meruit.evaluations.export import EvaluationExport, export_format, write_export
from meruit.evaluations.importers.support.source import ImportSource
from meruit.evaluations.imports import recognise, survey
from meruit.log.note import VerifierKey
from meruit.log.statement import open_envelope
from meruit.registry import exporters


def written(exported: EvaluationExport, name: str) -> bytes:
    chunks = exporters.get(name).write(exported)
    return b"".join(chunk.encode() if isinstance(chunk, str) else chunk for chunk in chunks)


def rows_of(exported: EvaluationExport) -> list[Any]:
    return [json.loads(line) for line in written(exported, "jsonl").splitlines()]


@pytest.mark.parametrize("name", exporters.names())
def test_every_format_writes_an_evaluation_without_cases(name: str, export_of: Export) -> None:
    assert isinstance(written(export_of([]), name), bytes)
    assert exporters.get(name).summary.endswith(".")


@pytest.mark.parametrize("name", exporters.names())
def test_every_format_writes_integers_of_any_length(name: str, export_of: Export) -> None:
    kept = Case("long", {"reference": 10**30, "prompt": {"n": 10**30}}, {"text": 10**30 + 1})
    assert isinstance(written(export_of([kept]), name), bytes)


def test_a_page_is_written_by_its_own_command() -> None:
    for format_name, target in (("html", "-"), (None, "a.html")):
        with pytest.raises(UnknownName, match="eval page"):
            export_format(format_name, target)


def test_json_lines_hold_everything(exported: EvaluationExport) -> None:
    rows = rows_of(exported)
    assert [row["summary"]["case_id"] for row in rows][:2] == ["right", "wrong"]
    assert (rows[1]["summary"]["claimed"], rows[1]["output"]) == ("pass", {"text": "no"})
    assert (rows[5]["output"], rows[5]["result"]) == (None, None)


def test_tables_have_one_row_for_each_case(exported: EvaluationExport) -> None:
    table = [*csv.DictReader(io.StringIO(written(exported, "csv").decode()))]
    columns = parquet.read_table(io.BytesIO(written(exported, "parquet"))).to_pylist()
    for rows in (table, columns):
        assert [row["case_id"] for row in rows][:4] == ["right", "wrong", "hostile", "broken"]
        assert rows[1]["criterion.exact_match"] == "not_met"
        assert (rows[1]["claimed"], rows[3]["error"]) == ("pass", "target_error")
    assert (columns[1]["success"], columns[1]["cost"], columns[0]["latency_ms"]) == (False, 0.0015, 40.0)
    assert json.loads(columns[1]["output"]) == {"text": "no"}


def test_an_inspect_log_is_one_that_we_read_ourselves(exported: EvaluationExport, tmp_path: Path) -> None:
    (tmp_path / "log.json").write_bytes(written(exported, "inspect"))
    source = ImportSource(tmp_path / "log.json")
    importer = recognise(source)
    found = survey(source, importer)
    assert (importer.name, found.cases, found.errors, found.claimed) == ("inspect", 8, 1, 6)


def test_scores_for_inspect_leave_out_what_is_open(exported: EvaluationExport) -> None:
    rows = [json.loads(line) for line in written(exported, "inspect-scores").splitlines()]
    assert [(row["id"], row["epoch"], row["value"]) for row in rows] == [
        ("right", 1, "C"),
        ("wrong", 1, "I"),
        ("hostile", 1, "I"),
        ("gone", 1, "I"),
        ("again", 1, "C"),
        ("again", 2, "I"),
    ]


def test_every_eval_ever_has_rates_with_intervals(exported: EvaluationExport) -> None:
    document = json.loads(written(exported, "every-eval-ever"))
    first = document["evaluation_results"][0]["score_details"]
    assert document["schema_version"] == "0.3.0"
    # Its validator refuses a document without these two, or with other words.
    details = {"deployment_type": "self_deployed", "model_availability": "unknown"}
    assert document["model_info"] == {"name": "m-1", "id": "m-1", "additional_details": details}
    assert first["score"] == pytest.approx(2 / 6)
    interval = first["uncertainty"]["confidence_interval"]
    assert interval["lower"] < first["score"] < interval["upper"]
    assert len(document["evaluation_results"]) == 3


def test_a_statement_is_signed_and_names_every_case(exported: EvaluationExport) -> None:
    key = VerifierKey.parse(exported.signer.vkey)
    statement = open_envelope(written(exported, "in-toto"), key)
    digest = sha256(written(exported, "jsonl")).hexdigest()
    assert statement["subject"][0]["digest"] == {"sha256": digest}
    predicate = statement["predicate"]
    assert predicate["result"] == "FAILED"
    assert predicate["passedTests"] == ["right", "again"]
    assert predicate["warnedTests"] == ["broken", "unmeasured"]


def test_the_longest_ending_names_the_format(exported: EvaluationExport, tmp_path: Path) -> None:
    assert export_format(None, "a.inspect.json") == "inspect"
    assert export_format(None, "a.jsonl") == "jsonl"
    target = tmp_path / "kept.csv"
    target.write_text("before")
    write_export(exported, "csv", str(target))
    assert target.read_text().startswith("case_id,")
