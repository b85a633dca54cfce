"""Ray's workers judge what this process would: the same rows in, the same bytes out."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from meruit import SuccessCriteria, VerificationEngine
from meruit.errors import MeruitError
from meruit.model.canonical import canonical
from meruit.outcomes.rescore import ray as cluster
from meruit.outcomes.rescore.ray import RayRunner, _options, _SerializedTask, _spans, _tables, judge_table, ray_session
from meruit.outcomes.rescore.run import RescoreBatch, RescoreLine, RescoreRow, RescoreTask, judge_rows
from meruit.outcomes.service import Registrar, Submission
from meruit.outcomes.store.read import OutcomeWork
from meruit.store.location import Location
from meruit.store.store import Store

NOW = datetime(2026, 7, 1, 12, 30, 0, 123456, tzinfo=UTC)
WORDS = {"metric": "word_count", "metric_type": "count", "comparison": "gte", "threshold": 2}
OLD = SuccessCriteria.model_validate({"criteria": [WORDS]})
NEW = SuccessCriteria.model_validate({"criteria": [{**WORDS, "threshold": 3}]})
RAY_S = 300
"""Ray starts within seconds, unless the machine is busy."""


@pytest.fixture
def rows() -> list[RescoreRow]:
    engine = VerificationEngine()
    work = OutcomeWork(b"{}", b'{"n":123456789012345678901234567890,"text":"a b c"}', b"{}")
    stored = engine.verify_sync("c", {}, json.loads(work.output or b""), OLD)
    return [RescoreRow(stored, (0,)), RescoreRow(stored, None, work), RescoreRow(stored, (0,))]


def _sent() -> _SerializedTask:
    return _SerializedTask(
        canonical(NEW.model_dump(exclude_defaults=True)), RayRunner(VerificationEngine)._engine, NOW.isoformat()
    )


def test_a_worker_judges_as_this_process_does(rows: list[RescoreRow]) -> None:
    expected = [result.to_json() for result in judge_rows(RescoreTask(VerificationEngine(), NEW, NOW), rows)]
    tables = [judge_table(table, _sent()) for table in _tables(rows, 2)]
    assert [table["place"].to_pylist() for table in tables] == [[0, 1], [2]]
    assert [written for table in tables for written in table["result"].to_pylist()] == expected


class Here:
    """Stands where Ray Data stands, and does the work at once; it may lose some."""

    TaskPoolStrategy: Any = dict

    def __init__(self, *, keep: bool = True) -> None:
        self._keep = keep

    def from_arrow(self, tables: list[Any]) -> "Here":
        self._tables = tables
        return self

    def map_batches(self, function: Any, fn_kwargs: dict[str, Any], **_: Any) -> "Here":
        self._tables = [function(table, **fn_kwargs) for table in reversed(self._tables)]
        return self

    def iter_batches(self, **_: Any) -> Iterator[Any]:
        return iter(self._tables if self._keep else self._tables[1:])


def test_results_find_their_rows_whatever_order_they_come_in(
    rows: list[RescoreRow], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TASK_ROWS", 1)
    runner = RayRunner(VerificationEngine)
    found = runner._span(Here(), _sent(), rows)
    expected = judge_rows(RescoreTask(VerificationEngine(), NEW, NOW), rows)
    assert [result.to_json() for result in found] == [result.to_json() for result in expected]
    assert runner._span(Here(), _sent(), []) == []
    with pytest.raises(MeruitError, match="for 2 of 3 outcomes"):
        runner._span(Here(keep=False), _sent(), rows)


def test_batches_travel_in_spans_of_a_bounded_size(rows: list[RescoreRow], monkeypatch: pytest.MonkeyPatch) -> None:
    # Any: what a line is of matters to nobody here.
    summary: Any = None
    batches = [RescoreBatch([RescoreLine(summary, row)], number) for number, row in enumerate(rows * 2)]
    assert [len(span) for span in _spans(iter(batches))] == [6]
    monkeypatch.setattr(cluster, "SPAN_ROWS", 4)
    assert [len(span) for span in _spans(iter(batches))] == [4, 2]
    monkeypatch.setattr(cluster, "SPAN_BYTES", 60)
    assert [[one.examined for one in span] for span in _spans(iter(batches))] == [[0, 1, 2, 3], [4, 5]]
    monkeypatch.setattr(cluster, "SPAN_BYTES", 10)
    assert [len(span) for span in _spans(iter(batches))] == [1, 1, 2, 1, 1]
    assert list(_spans(iter([]))) == []


def test_ray_listens_to_this_machine_only_unless_told_of_a_cluster() -> None:
    here = _options(None, 3, "/tmp/x")
    assert (here["address"], here["_node_ip_address"], here["include_dashboard"], here["num_cpus"]) == (
        *("local", "127.0.0.1"),
        *(False, 3),
    )
    there = _options("ray://head:10001", 3, "/tmp/x")
    assert there["address"] == "ray://head:10001"
    assert "num_cpus" not in there


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in cluster._QUIET | cluster._ALONE:
        monkeypatch.setenv(name, "0")
    with pytest.raises(MeruitError, match=r"pip install 'meruit\[ray\]'"), ray_session(2):
        pass


def test_two_workers_and_this_process_record_the_same_bytes(tmp_path: Path, meruit_at_hand: Path) -> None:
    store = Store.open(Location(tmp_path / "here"))
    registrar = Registrar(VerificationEngine(), store)
    ready = registrar.compile(OLD)
    for number in range(30):
        work = Submission({}, {"text": "word " * (number % 5)}, {"duration_ms": number})
        registrar.record_sync("default", registrar.judge_sync(ready, work))
    store.close()
    length = {"metric": "output_length", "metric_type": "count", "comparison": "gte", "threshold": 12}
    (tmp_path / "new.json").write_text(json.dumps({"criteria": [WORDS, length]}))
    copied = ["cp", "-r", str(tmp_path / "here"), str(tmp_path / "there")]
    subprocess.run(copied, check=True)
    said = {}
    for folder, engine in (("here", ["local"]), ("there", ["ray", "--workers", "2"])):
        program = [str(meruit_at_hand / "meruit")] if engine == ["local"] else [sys.executable, "-m", "meruit"]
        command = ["rescore", "new.json", "--all", "--reason", "r", "--data", folder, "--json", "--engine", *engine]
        ended = subprocess.run(
            [*program, *command],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=RAY_S,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, "")
        said[folder] = {**json.loads(ended.stdout), "seconds": 0}
    assert said["here"] == said["there"]
    assert said["here"]["measured"] == 30
    written = []
    for folder in said:
        command = ["outcome", "export", "-o", f"{folder}.jsonl", "--all-versions", "--data", folder]
        subprocess.run([meruit_at_hand / "meruit", *command], cwd=tmp_path, check=True, timeout=RAY_S)
        lines = [json.loads(line) for line in (tmp_path / f"{folder}.jsonl").read_text().splitlines()]
        # When it was rescored is all that may differ.
        for line in lines:
            del line["verification_result"]["verified_at"]
        written.append([json.dumps(line) for line in lines])
    assert written[0] == written[1]
    assert len(written[0]) == 60
