"""Exports: every record once, every digit kept, whole files or none."""

import io
import json
import os
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from meruit import SuccessCriteria, VerificationEngine
from meruit.errors import EvidenceDamaged, MeruitError
from meruit.model.access import Scope
from meruit.model.canonical import digest
from meruit.model.outcome import Labels, OutcomeRecord
from meruit.outcomes import export as exporting
from meruit.outcomes.export import MIXED, atomic_file, export_jsonl, export_parquet, iterate_summaries
from meruit.outcomes.rescore.run import LocalRunner, rescore
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store import batches
from meruit.outcomes.store import read as outcomes
from meruit.outcomes.store.erase import erase
from meruit.outcomes.store.read import OutcomeFilter
from meruit.store.location import Location
from meruit.store.store import Store

SCOPE = Scope("default")
HUGE = 123456789012345678901234567890
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2, "bonus": 0.25}
SURE = {"metric": "confidence", "metric_type": "custom", "comparison": "gte", "threshold": 0.5, "penalty": 1}


def criteria_of(*parts: dict[str, Any]) -> SuccessCriteria:
    return SuccessCriteria.model_validate({"criteria": list(parts)})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(Location(tmp_path / "records"))
    yield opened
    opened.close()


def put(store: Store, output: dict[str, Any], criteria: SuccessCriteria, labels: Labels = Labels()) -> str:  # noqa: B008
    registrar = Registrar(VerificationEngine(), store)
    judged = registrar.judge_sync(registrar.compile(criteria), Submission({"q": "?"}, output, {}, labels))
    return registrar.record_sync("default", judged).outcome_id


@pytest.fixture
def ids(store: Store) -> list[str]:
    """Two outcomes; the first was rescored."""
    first = put(store, {"text": "two words", "n": HUGE, "confidence": True}, criteria_of(WORDS, SURE))
    rescore(
        store,
        VerificationEngine(),
        "default",
        criteria_of({**WORDS, "threshold": Decimal("1.0000000000000000001")}),
        narrowed=None,
        reason="stricter, “quoted”",
        runner=LocalRunner(),
        now=store.surroundings.clock(),
        progress=lambda *_: None,
    )
    second = put(store, {"text": "é", "confidence": 0.5}, criteria_of(WORDS, SURE), Labels("k", "ada", "bob", "law"))
    return [first, second]


def lines(store: Store, narrowed: OutcomeFilter | None = None, *, every: bool = False) -> list[bytes]:
    file = io.BytesIO()
    steps: list[tuple[int, int]] = []
    count = export_jsonl(store, SCOPE, narrowed, file, lambda *step: steps.append(step), every_version=every)
    found = file.getvalue().splitlines()
    assert len(found) == count
    assert not steps or steps[-1][0] == steps[-1][1]
    return found


def test_a_line_is_the_record_itself(store: Store, ids: list[str]) -> None:
    found = lines(store)
    assert [json.loads(line)["id"] for line in found] == ids
    for name, line in zip(ids, found, strict=True):
        read = OutcomeRecord.model_validate_json(line)
        with store.database.reading() as connection:
            kept = outcomes.full_record(connection, SCOPE, name, store.blobs)
        assert digest(read.success_criteria.model_dump(exclude_defaults=True)) == read.criteria_digest
        # What the line says is the store's own bytes; reading it back must not change anything else.
        assert read.model_copy(update={"work_output": None}) == kept.model_copy(update={"work_output": None})
    assert json.loads(found[0])["work_output"]["n"] == HUGE
    assert json.loads(found[0])["billing_impact"] == {"cpc_base": None, "bonus": "0.25", "penalty": "0", "total": None}


def test_every_version_is_a_line_when_asked(store: Store, ids: list[str]) -> None:
    found = [json.loads(line) for line in lines(store, every=True)]
    assert [(one["id"], one["version"]) for one in found] == [(ids[0], 1), (ids[0], 2), (ids[1], 1)]
    assert [one["reason"] for one in found] == ["", "stricter, “quoted”", ""]


def test_a_filter_narrows_and_small_batches_lose_nothing(
    store: Store, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [json.loads(line)["id"] for line in lines(store, OutcomeFilter(agent_id="ada"))] == ids[1:]
    assert lines(store, OutcomeFilter(agent_id="nobody")) == []
    whole = lines(store)
    monkeypatch.setattr(batches, "BATCH", 1)
    monkeypatch.setattr(exporting, "MAX_SETS", 1)
    assert lines(store) == whole


def test_an_agent_gets_its_own(store: Store, ids: list[str]) -> None:
    file, steps = io.BytesIO(), []
    scope = Scope("default", "ada", only_own=True)
    assert export_jsonl(store, scope, None, file, lambda *step: steps.append(step)) == 1
    assert steps == [(1, 1)]


def test_erased_parts_are_null(store: Store, ids: list[str]) -> None:
    erase(store, "default", ids[0], "asked to")
    record = json.loads(lines(store)[0])
    parts = ("verification_result", "work_input", "work_output", "execution_metadata")
    assert [record[part] for part in parts] == [None] * 4
    assert record["billing_impact"]["bonus"] is None
    row = table(store).to_pylist()[0]
    assert (row["verdict"], row["result"], row["output"]) == ("pass", None, None)


def test_nobody_has_no_work(store: Store) -> None:
    nobody = SimpleNamespace(id="nobody", seq=1)
    with store.database.reading() as connection:
        assert list(batches.works(connection, "default", [nobody], store.blobs)) == []
        assert list(batches.works(connection, "default", [], store.blobs)) == []


def test_work_is_found_at_neighbouring_places_and_at_distant_ones(store: Store, ids: list[str]) -> None:
    with store.database.reading() as connection:
        (page, _total), *_ = iterate_summaries(connection, SCOPE, None)
        (all_works,) = batches.works(connection, "default", page, store.blobs)
        assert [*all_works] == [one.id for one in page]
        first = SimpleNamespace(id=page[0].id, seq=page[0].seq)
        far = SimpleNamespace(id=page[-1].id, seq=10**6)
        (some,) = batches.works(connection, "default", [first, far], store.blobs)
    assert some == {one.id: all_works[one.id] for one in (first, far)}


def test_evidence_that_is_gone_ends_the_export(store: Store) -> None:
    put(store, {"text": "x" * 100_000}, criteria_of(WORDS))
    for file in (store.database.location.folder / "blobs").rglob("*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(EvidenceDamaged):
        lines(store)


def table(store: Store, *, every: bool = False) -> Any:
    file = io.BytesIO()
    export_parquet(store, SCOPE, None, file, lambda *_: None, every_version=every)
    file.seek(0)
    return pq.ParquetFile(file).read()


def test_columns_have_the_types_they_promise(store: Store, ids: list[str]) -> None:
    found = table(store, every=True)
    assert {name: str(found.schema.field(name).type) for name in ("version", "success", "score", "created_at")} == {
        "version": "int64",
        "success": "bool",
        "score": "double",
        "created_at": "timestamp[us, tz=UTC]",
    }
    assert str(found.schema.field("metric.word_count").type) == "double"
    # True once and a half once: no column says that, and the file says so.
    assert "metric.confidence" not in found.schema.names
    assert json.loads(found.schema.metadata[MIXED]) == ["confidence"]
    rows = found.to_pylist()
    assert [(row["id"], row["version"], row["metric.word_count"]) for row in rows] == [
        (ids[0], 1, 2.0),
        (ids[0], 2, 2.0),
        (ids[1], 1, 1.0),
    ]
    assert json.loads(rows[0]["output"])["n"] == HUGE
    assert json.loads(rows[2]["result"])["verdict"] == rows[2]["verdict"]
    assert [json.loads(line)["criteria_digest"] for line in lines(store, every=True)] == [
        row["criteria_digest"] for row in rows
    ]


def test_truth_values_have_a_column_of_their_own(store: Store) -> None:
    put(store, {"text": "two words", "confidence": True}, criteria_of(SURE))
    assert str(table(store).schema.field("metric.confidence").type) == "bool"


def test_row_groups_are_bounded(store: Store, ids: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(exporting, "GROUP_ROWS", 1)
    monkeypatch.setattr(batches, "BATCH", 1)
    with atomic_file(tmp_path / "a.parquet") as file:
        export_parquet(store, SCOPE, None, file, lambda *_: None)
    assert pq.ParquetFile(tmp_path / "a.parquet").num_row_groups == 2


def test_an_empty_export_is_a_valid_file(store: Store) -> None:
    assert table(store).num_rows == 0
    assert lines(store) == []


def test_too_many_metrics_are_refused(store: Store, ids: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exporting, "MAX_METRIC_COLUMNS", 1)
    with pytest.raises(MeruitError, match="export fewer"):
        table(store)


def test_an_export_that_ends_early_leaves_no_file(tmp_path: Path) -> None:
    target = tmp_path / "a.jsonl"
    target.write_bytes(b"the last one")

    def interrupted() -> None:
        with atomic_file(target) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a.jsonl", b"the last one")]
    with atomic_file(target) as file:
        file.write(b"whole")
    assert [(one.name, one.read_bytes()) for one in tmp_path.iterdir()] == [("a.jsonl", b"whole")]


@pytest.mark.parametrize("name", ["gone/report.json", "/dev/full"])
def test_a_file_that_cannot_be_written_is_known_by_its_own_name(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    with pytest.raises(OSError, match=r"No such file|No space left") as refused, atomic_file(target) as file:
        file.write(b"x")
    assert refused.value.filename == str(target.resolve())


def test_without_pyarrow_it_is_said_what_to_install(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MeruitError, match=r"pip install 'meruit\[bulk\]'"):
        export_parquet(store, SCOPE, None, io.BytesIO(), lambda *_: None)


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    heard: list[bytes] = []
    reader = threading.Thread(target=lambda: heard.append(pipe.read_bytes()))
    reader.start()
    with atomic_file(pipe) as file:
        file.write(b"to the pipe")
    reader.join(30)
    assert heard == [b"to the pipe"]
    assert pipe.is_fifo()


def test_a_link_leads_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with atomic_file(tmp_path / "link") as file:
        file.write(b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"new"
